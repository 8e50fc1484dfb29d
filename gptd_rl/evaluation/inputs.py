"""Which inputs matter: what of V's variance is lost without each, and what leaving it out costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.exclusions import Cost, Exclusions
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.estimators.importances import importances
from gptd_rl.kernels import Isotropic
from gptd_rl.report.records import Relevance
from gptd_rl.types import Array

# With more inputs than these none is left out: it would take too long.
MAX_INPUTS = 40

# If all inputs might tell the same, they do if they are correlated so much.
ALIKE = 0.9


def analyse(v: GPTD, part: Trajectories, value: Callable[[Array], Array], leave_out: bool = True) -> Relevance:
    """Importances, relevances, and what it costs to leave inputs out.

    Parameters
    ----------
    v : GPTD
        Its θ was selected on `part`.
    part : Trajectories
    value : callable
        V as it is reported, of states of shape (m, n_dims): total effects are of this function.
    leave_out : bool
        Whether to leave inputs out; they are not if all share a relevance, or if there are more than `MAX_INPUTS`.

    Returns
    -------
    Relevance
        An input is irrelevant if its total effect is negligible, and if leaving out all irrelevant ones costs nothing:
        neither the evidence nor the prediction of left-out episodes is worse.
    """
    effects = importances(value, part.states, part.segment_of)
    is_isotropic = isinstance(getattr(v.kernel_, "metric", None), Isotropic)
    kernel: Literal["isotropic", "ard"] = "isotropic" if is_isotropic else "ard"
    scaled = v.relevances_ * part.states.var(axis=0)
    n_dims, n = part.n_dims, part.n_transitions
    if not leave_out or is_isotropic or not 1 < n_dims <= MAX_INPUTS:
        return Relevance(kernel, scaled, effects, n)
    exclusions = Exclusions.of(v)
    costs = tuple(exclusions.cost([i]) for i in range(n_dims))
    order = np.lexsort([scaled, effects.total_effects])
    removed, alike = _leave_out(exclusions, costs, [int(i) for i in order if costs[i].is_nothing])
    told = {i for group in alike for i in group}
    irrelevant = tuple(sorted(i for i in removed if i not in told and effects.upper[i] < Relevance.NEGLIGIBLE))
    cost = exclusions.cost(irrelevant) if irrelevant else None
    if cost is not None and not cost.is_nothing:  # those that were out with them told what they do
        irrelevant, cost = (), None
    return Relevance(
        kernel, scaled, effects, n, costs, irrelevant, cost, alike, exclusions.evidence, exclusions.n_transitions
    )


def _leave_out(
    exclusions: Exclusions, costs: tuple[Cost, ...], candidates: list[int]
) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """Candidates that together cost nothing, and groups of inputs of which one must stay."""
    removed: list[int] = []
    alike: list[tuple[int, ...]] = []
    for i in candidates:
        is_last = len(removed) + 1 == len(costs)
        if not is_last and exclusions.cost([*removed, i]).is_nothing:
            removed.append(i)
            continue
        group = [j for j in removed if exclusions.cost([i, *(k for k in removed if k != j)]).is_nothing]
        if group and _are_alike(exclusions, costs, group := sorted([*group, i])):
            alike.append(tuple(group))
    return removed, tuple(alike)


def _are_alike(exclusions: Exclusions, costs: tuple[Cost, ...], group: list[int]) -> bool:
    """Whether leaving out all of a group costs much, where each of them costs next to nothing."""
    if len(group) == len(costs):  # something must be left: then their correlations tell
        return bool(np.abs(np.corrcoef(exclusions.compared.states.T)).min() > ALIKE)
    together = exclusions.cost(group)
    return not together.is_nothing and 2 * sum(max(costs[i].evidence, 0.0) for i in group) < together.evidence
