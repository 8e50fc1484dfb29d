"""The paper's equations beside the code that computes them.

Docstrings and comments of the library say "paper eq. (9)" or "paper eqs. (6) and (7)"; this collects them. Equations
are counted through, as the paper prints them.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

CITATION = re.compile(r"paper eqs?\. ((?:\(\d+\)(?:, | and )?)+)")

# Number: what it is, and the formula.
EQUATIONS: dict[int, tuple[str, str]] = {
    3: ("The reward of a step", r"R(x_i, x_{i+1}) = V(x_i) - \gamma_i V(x_{i+1}) + \eta_i"),
    4: ("All rewards at once", r"\mathbf{r} = \mathbf{H}\mathbf{v} + \boldsymbol{\eta}"),
    5: ("The operator H", r"(\mathbf{H}\mathbf{v})_i = v_i - \gamma_i v_{i+1}"),
    6: (
        "The distribution of the rewards",
        r"\mathbf{r} \mid \mathcal{D}, \theta \sim \mathcal{N}(\mathbf{0}, \mathbf{Q})",
    ),
    7: (
        "Their covariance",
        r"\mathbf{Q} = \mathbf{H}\mathbf{K}\mathbf{H}^\top + \sigma^2 \mathbf{H}\mathbf{H}^\top",
    ),
    8: (
        "The posterior of V",
        r"V(x^*) \mid \mathcal{D}, \mathbf{r}, \theta \sim \mathcal{N}(\mu(x^*), \sigma^2(x^*))",
    ),
    9: ("Its mean", r"\mu(x^*) = \mathbf{k}(x^*)^\top \mathbf{H}^\top \mathbf{Q}^{-1} \mathbf{r}"),
    10: (
        "Its variance",
        r"\sigma^2(x^*) = k^* - \mathbf{k}(x^*)^\top \mathbf{H}^\top \mathbf{Q}^{-1} \mathbf{H} \mathbf{k}(x^*)",
    ),
    11: (
        "Subset of regressors",
        r"\tilde{k}(x, x') = \mathbf{k}_m(x)^\top \mathbf{K}_{mm}^{-1} \mathbf{k}_m(x')",
    ),
    12: (
        "Its mean",
        (
            r"\mu(x^*) \approx \mathbf{k}_m(x^*)^\top"
            r" (\mathbf{G}^\top \mathbf{W}\mathbf{G} + \sigma^2 \mathbf{K}_{mm})^{-1}"
            r" \mathbf{G}^\top \mathbf{W} \mathbf{r}"
        ),
    ),
    13: (
        "By the matrix inversion lemma",
        (
            r"\mathbf{K}_{mm}^{-1} \mathbf{G}^\top"
            r" (\mathbf{G} \mathbf{K}_{mm}^{-1} \mathbf{G}^\top + \sigma^2 \mathbf{W}^{-1})^{-1}"
            r" = (\mathbf{G}^\top \mathbf{W} \mathbf{G} + \sigma^2 \mathbf{K}_{mm})^{-1} \mathbf{G}^\top \mathbf{W}"
        ),
    ),
    14: (
        "Its variance",
        (
            r"\sigma^2(x^*) \approx \sigma^2 \mathbf{k}_m(x^*)^\top"
            r" (\mathbf{G}^\top \mathbf{W}\mathbf{G} + \sigma^2 \mathbf{K}_{mm})^{-1} \mathbf{k}_m(x^*)"
        ),
    ),
    15: (
        "Projected process: what is added to it",
        r"k(x^*, x^*) - \mathbf{k}_m(x^*)^\top \mathbf{K}_{mm}^{-1} \mathbf{k}_m(x^*)",
    ),
    16: (
        "The evidence",
        (
            r"\mathcal{L}(\theta) = -\frac{1}{2} \log \det \mathbf{Q}"
            r" - \frac{1}{2} \mathbf{r}^\top \mathbf{Q}^{-1} \mathbf{r}"
            r" - \frac{n}{2} \log 2\pi"
        ),
    ),
    17: (
        "Its gradient",
        (
            r"\frac{\partial \mathcal{L}}{\partial \theta_i} = -\frac{1}{2} \mathrm{tr}"
            r"\left( \mathbf{Q}^{-1} \frac{\partial \mathbf{Q}}{\partial \theta_i} \right)"
            r" + \frac{1}{2} \mathbf{r}^\top \mathbf{Q}^{-1} \frac{\partial \mathbf{Q}}{\partial \theta_i}"
            r" \mathbf{Q}^{-1} \mathbf{r}"
        ),
    ),
    18: (
        "The covariance function",
        r"k(x, x') = v_0 \exp\left( -\frac{1}{2} (x - x')^\top \Omega (x - x') \right) + b",
    ),
}


def citations(root: Path) -> dict[int, list[tuple[str, str]]]:
    """Equation number → (qualified name, first line of its docstring) of all code that cites it."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path in sorted(p for p in (root / "gptd_rl").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for number, place in _cited(path, module):
            if place not in found.setdefault(number, []):
                found[number].append(place)
    return found


def _cited(path: Path, module: str) -> Iterator[tuple[int, tuple[str, str]]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    spans = [(module, tree, 0, 10**9), *_definitions(tree, module)]
    with path.open("rb") as file:
        comments = [(t.start[0], t.string) for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT]
    for name, node, first, last in spans:
        text = ast.get_docstring(node) or ""
        says = text.split("\n\n")[0].replace("\n", " ")
        inner = [span for span in spans if span[2] > first and span[3] <= last]
        own = [c for line, c in comments if first <= line <= last and not any(s[2] <= line <= s[3] for s in inner)]
        for citation in CITATION.findall("\n".join([text, *own]).replace("The p", "p")):
            yield from ((int(number), (name, says)) for number in re.findall(r"\d+", citation))


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST, int, int]]:
    """Classes and functions: qualified name, node, first and last line."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            name = f"{prefix}.{child.name}"
            yield name, child, child.lineno, child.end_lineno or child.lineno
            yield from _definitions(child, name)


def page(root: Path) -> str:
    """Each equation with its formula and functions, as Markdown."""
    places = citations(root)
    lines = []
    for number, (title, formula) in EQUATIONS.items():
        lines += [f"**({number})** {title}", "", f"$$ {formula} $$", ""]
        lines += [f"- `{name}`: {says or 'a step of it'}" for name, says in places.get(number, [])]
        lines += [""]
    return "\n".join(lines)
