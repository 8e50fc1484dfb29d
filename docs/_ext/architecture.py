"""The folders of the library as a stack of layers, in the order that the tests check."""

from __future__ import annotations

import ast
from pathlib import Path


def layers(root: Path) -> list[str]:
    """Names of the folders, those that all others import first."""
    tree = ast.parse((root / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
    (found,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["LAYERS"]
    )
    return list(found)


def page(root: Path) -> str:
    """A drawing of the layers, one box each with its modules, as HTML in Markdown."""
    rows = []
    for name in layers(root):
        folder = root / "gptd_rl" if name == "ground" else root / "gptd_rl" / name
        modules = sorted(path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__"))
        modules += sorted(
            f"{path.name}/" for path in folder.glob("*/") if name != "ground" and (path / "__init__.py").exists()
        )
        title = "gptd_rl/" if name == "ground" else f"{name}/"
        says = "types, checks, linear algebra, threads" if name == "ground" else _says(folder)
        rows.append(
            f'<li><b>{title}</b><span class="says">{says}</span><span class="modules">{" · ".join(modules)}</span></li>'
        )
    return "```{raw} html\n<ol class='layers'>\n" + "\n".join(rows) + "\n</ol>\n```\n"


def _says(folder: Path) -> str:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    first = text.split("\n\n")[0].replace("\n", " ")
    parts = first.replace("``", "`").split("`")  # code between backquotes
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
