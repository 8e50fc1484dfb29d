"""What gets installed, what importing it costs, and which way imports point."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
FOLDERS = {
    package: package.removeprefix("gptd_rl.").replace(".", "/")
    if package.startswith(("gptd_rl.envs", "gptd_rl.agents"))
    else package.replace(".", "/")
    for package in PACKAGES
}
MODULES = [
    pytest.param(package, path, id=f"{folder}/{path.name}")
    for package, folder in FOLDERS.items()
    for path in sorted((ROOT / folder).glob("*.py"))
]
NEEDS_SB3 = ("gptd_rl.evaluation", "callback.py")  # a subclass of what is there
OPTIONAL_OR_SLOW = ["matplotlib", "minari", "pygame", "stable_baselines3", "torch"]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


# The wheel


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an sdist built from a copy, so that nothing is left in the checkout, and of a wheel built from it."""
    copy = tmp_path_factory.mktemp("source") / "gptd-rl"
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, copy)
    for folder in {folder.split("/")[0] for folder in FOLDERS.values()} | {"benchmarks", "docs", "examples", "tests"}:
        unwanted = shutil.ignore_patterns("__pycache__", "results", "_build", "_generated", "generated")
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=unwanted)
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=copy)
    return out


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (built,) = distributions.glob("*.whl")
    return built


def test_sdist_holds_what_make_needs(distributions: Path) -> None:
    (built,) = distributions.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    examples = {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    assert (
        examples | {"Makefile", "constraints.txt", "CHANGELOG.md", "tests/test_packaging.py", "docs/conf.py"} <= names
    )
    assert not [name for name in names if "__pycache__" in name]


def test_the_index_would_take_both(distributions: Path) -> None:
    checked = run(sys.executable, "-m", "twine", "check", "--strict", *sorted(distributions.iterdir()), cwd=ROOT)
    assert checked.count("PASSED") == 2


def test_wheel_holds_every_module_under_one_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{package.replace('.', '/')}/{path.name}"
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).glob("*.py")
    }
    package_files = {name for name in names if ".dist-info/" not in name}
    assert package_files == expected | {"gptd_rl/py.typed", "gptd_rl/reproduction/paper.json"}
    assert {"gptd_rl/__init__.py", "gptd_rl/envs/__init__.py", "gptd_rl/agents/__init__.py"} <= (package_files)
    top_level = {PurePosixPath(name).parts[0] for name in names}
    assert {name for name in top_level if not name.endswith(".dist-info")} == {"gptd_rl"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    (commands,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
    assert "gptd-rl = gptd_rl.cli.main:main" in zipfile.ZipFile(wheel).read(commands).decode()


def test_unpacked_wheel_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import gptd_rl, gptd_rl.envs, gptd_rl.agents\n"
        "print(*(m.__file__ for m in (gptd_rl, gptd_rl.envs, gptd_rl.agents)), sep='\\n')"
    )
    files = run(sys.executable, "-I", "-c", code, cwd=tmp_path).splitlines()
    assert [Path(file).relative_to(tmp_path).as_posix() for file in files] == [
        "gptd_rl/__init__.py",
        "gptd_rl/envs/__init__.py",
        "gptd_rl/agents/__init__.py",
    ]


@pytest.mark.parametrize("folder", ["envs", "agents"])
def test_links_are_relative(folder: str) -> None:
    assert os.readlink(ROOT / "gptd_rl" / folder) == f"../{folder}"


# Imports


def test_importing_gptd_rl_imports_nothing_optional_or_slow() -> None:
    code = f"import sys, gptd_rl; print(*sorted(set({OPTIONAL_OR_SLOW}) & set(sys.modules)))"
    assert run(sys.executable, "-c", code, cwd=ROOT).split() == []


def imported_names(nodes: Iterator[ast.AST], package: str) -> set[str]:
    """Absolute dotted names that import statements mention, `from a import b` as `a.b`."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            source = ".".join([*base, node.module] if node.module else base)
            names |= {f"{source}.{alias.name}" for alias in node.names}
    return names


def all_imports(path: Path, package: str) -> set[str]:
    return imported_names(ast.walk(ast.parse(path.read_text(encoding="utf-8"))), package)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def nodes_run_on_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(child)):
            yield child
            yield from nodes_run_on_import(child)


def third_party(names: set[str]) -> set[str]:
    tops = {name.split(".")[0] for name in names}
    return tops - set(sys.stdlib_module_names) - {"gptd_rl"}


def below(names: set[str], package: str) -> set[str]:
    return {name for name in names if f"{name}.".startswith(f"{package}.")}


@pytest.mark.parametrize(
    ("package", "code", "expected"),
    [
        ("gptd_rl", "import numpy.linalg as la", {"numpy.linalg"}),
        ("gptd_rl", "from gptd_rl import agents", {"gptd_rl.agents"}),
        ("gptd_rl", "from . import envs, kernels", {"gptd_rl.envs", "gptd_rl.kernels"}),
        ("gptd_rl", "from .agents.sb3 import A", {"gptd_rl.agents.sb3.A"}),
        ("gptd_rl.envs", "from ..agents import A", {"gptd_rl.agents.A"}),
        ("gptd_rl.envs", "def f():\n    from .. import agents", {"gptd_rl.agents"}),
    ],
)
def test_imported_names_resolves_every_form(package: str, code: str, expected: set[str]) -> None:
    assert imported_names(ast.walk(ast.parse(code)), package) == expected


def test_linalg_knows_only_numpy_and_scipy() -> None:
    names = all_imports(ROOT / "gptd_rl" / "linalg.py", "gptd_rl")
    assert third_party(names) <= {"numpy", "scipy"}
    assert below(names, "gptd_rl") == {"gptd_rl.threads.spare_cores", "gptd_rl.types.Array"}


@pytest.mark.parametrize(("package", "path"), MODULES)
def test_what_runs_on_import_needs_no_extra(package: str, path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if (package, path.name) == NEEDS_SB3:
        required |= {"stable_baselines3", "torch"}
    assert third_party(imported_names(nodes_run_on_import(tree), package)) <= required


# Texts


def committed_texts() -> Iterator[tuple[str, str]]:
    listing = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listing.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            yield name, content.decode("utf-8")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_text_names_a_registry_or_a_path_of_a_machine() -> None:
    hosts = [
        "py" + "pi.org",
        "python" + "hosted.org",
        "download.py" + "torch.org",
        "ana" + "conda.org",
    ]
    host = re.compile("|".join(map(re.escape, hosts)), re.IGNORECASE)
    # An absolute path, but not the tail of an address nor of a relative path.
    path = re.compile(r"(?<![\w.~})-])/(?:home|root|work|opt|tmp|mnt|srv|Users)/|\b[A-Z]:\\Users\b")
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in committed_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if host.search(line) or path.search(line)
    ]
    assert not found, "\n".join(found)
