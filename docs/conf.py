"""Sphinx configuration; `make docs` builds the site (`docs/build.py`)."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))
# Notebooks run in processes of their own: one BLAS thread each, no display, pictures in the page.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
os.environ.pop("MPLBACKEND", None)  # the kernel's own draws into the page
os.environ["GPTD_RL_ROOT"] = str(HERE.parent)  # where tutorials find the agents of the benchmarks
# They read no settings of the user.
os.environ["IPYTHONDIR"] = ipython = tempfile.mkdtemp(prefix="gptd-rl-docs-")
atexit.register(shutil.rmtree, ipython, ignore_errors=True)
(Path(ipython) / "profile_default").mkdir()
(Path(ipython) / "profile_default" / "ipython_kernel_config.json").write_text('{"IPKernelApp": {"log_level": "ERROR"}}')

from gptd_rl.version import __version__  # noqa: E402 (the environment comes first)

project = "gptd-rl"
author = "gptd-rl contributors"
project_copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "mathml",
    "generated",
]
exclude_patterns = [
    "evaluation.md",
    "_build",
    "_generated",
    "_ext",
    "_templates",
]  # the first is in benchmarks/evaluate.md
templates_path = ["_templates"]
nitpicky = False
suppress_warnings = ["myst-nb.lexer"]  # of a build that runs no tutorials

# Text
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_block"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 900  # of one cell, on a busy machine
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "image/svg+xml", 0)]

# Reference
autosummary_generate = True
autosummary_imported_members = True
autodoc_typehints = "none"  # types stand in the docstrings
autodoc_member_order = "bysource"
autoclass_content = "class"
numpydoc_show_class_members = False  # the template lists them
default_role = "code"  # `name` in docstrings

# Pages
html_theme = "furo"
html_title = "gptd-rl"
html_static_path = ["_static"]
html_css_files = ["gptd.css"]
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
