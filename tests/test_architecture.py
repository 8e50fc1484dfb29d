"""The folder listing is the architecture: each folder imports only those before it, and there are no cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# One direction, as in CONTRIBUTING.md. Modules that lie flat in gptd_rl/ are the ground that all folders stand on.
LAYERS = (
    "ground",
    "data",
    "kernels",
    "temporal",
    "inference",
    "selection",
    "sharding",
    "estimators",
    "envs",
    "rollouts",
    "sb3",
    "report",
    "evaluation",
    "agents",
    "reproduction",
    "cli",
)
GROUND = ("types", "exceptions", "checks", "linalg", "parallel", "memory", "progress", "threads", "version", "seeds")


def sources() -> dict[str, Path]:
    """Module name → file, for all that is installed under the name gptd_rl."""
    found = {}
    for folder in ("gptd_rl", "envs", "agents"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.is_relative_to(ROOT / "gptd_rl" / "envs") or path.is_relative_to(ROOT / "gptd_rl" / "agents"):
                continue  # links to the folders at the top
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if folder == "gptd_rl" else ("gptd_rl", *parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SOURCES = sources()


def layer_of(module: str) -> str:
    parts = module.split(".")
    if len(parts) == 1:
        return "top"  # gptd_rl/__init__.py: public names only
    return "ground" if parts[1] in GROUND else parts[1]


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and module of every import in a tree, lazy ones and those for type checkers included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in SOURCES else base


def edges(module: str) -> Iterator[tuple[int, str]]:
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for line, name in imports(ast.parse(path.read_text(encoding="utf-8")), package):
        if name.split(".")[0] == "gptd_rl":
            yield line, name


def violations(module: str) -> list[str]:
    """Imports of `module` that point the wrong way, one line each."""
    mine = layer_of(module)
    if mine == "top":
        return []
    wrong = []
    for line, name in edges(module):
        theirs = layer_of(name)
        if theirs == "top" or LAYERS.index(theirs) > LAYERS.index(mine):
            where = SOURCES[module].relative_to(ROOT)
            wrong.append(f"{where}:{line}: {mine} imports {name}, which stands above it")
    return wrong


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_folders_import_only_those_before_them(module: str) -> None:
    assert layer_of(module) in (*LAYERS, "top"), f"{module}: give its folder a place in LAYERS"
    found = violations(module)
    assert not found, "\n".join(found)


KNOW_GYMNASIUM = ("envs", "rollouts", "sb3", "evaluation", "agents", "reproduction", "cli")


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_only_the_outer_folders_know_gymnasium(module: str) -> None:
    if layer_of(module) in KNOW_GYMNASIUM or module in ("gptd_rl.data.spaces", "gptd_rl.data.minari"):
        return
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    assert not [line for line, name in imports(tree, module) if name.split(".")[0] == "gymnasium"]


def test_a_wrong_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "gptd_rl" / "data" / "probe.py"
    text = "def f():\n    from gptd_rl.estimators import gptd\n"
    monkeypatch.setitem(SOURCES, "gptd_rl.data.probe", path)
    monkeypatch.setattr(Path, "read_text", lambda self, **options: text)
    (line,) = violations("gptd_rl.data.probe")
    assert line.startswith("gptd_rl/data/probe.py:2: data imports gptd_rl.estimators.gptd")


def test_modules_form_no_cycle() -> None:
    graph = {m: {n for _, n in edges(m) if n in SOURCES and n != m} for m in SOURCES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join([*trail[trail.index(module) :], module])
        if module in done:
            return
        for name in sorted(graph[module]):
            visit(name, (*trail, module))
        done.add(module)

    for module in sorted(SOURCES):
        visit(module, ())


def test_class_names_stand_once() -> None:
    places: dict[str, list[str]] = {}
    for module, path in SOURCES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_modules_and_functions_are_short(module: str) -> None:
    text = SOURCES[module].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, "a module over 400 lines is perhaps two"
    tree = ast.parse(text)
    long = [
        f"{node.name}: {n} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (n := code_lines(node)) > 50
    ]
    assert not long, "\n".join(long)


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    assert node.end_lineno is not None
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    first = body[0].lineno if body else node.end_lineno
    return node.end_lineno - first + 1 + (node.body[0].lineno - node.lineno)
