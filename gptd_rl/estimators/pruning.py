"""Leaving out inputs that do not matter (the paper's "(II) without y")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gptd_rl.checks import check_number
from gptd_rl.estimators.exclusions import Cost, Exclusions
from gptd_rl.estimators.planning import Plan
from gptd_rl.inference.posterior import Evidence
from gptd_rl.kernels import Kernel
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import IntArray


@dataclass(frozen=True, eq=False)
class Pruning:
    """The inputs that `prune` removed, and what that cost.

    Attributes
    ----------
    kept, removed : ndarray of int
    before, after : Evidence
        `evidence_` of both models. If they bootstrap, each is that of its own instruments, and the two do not compare.
    cost : Cost or None
        What decided: the decrease of the objective that selected θ, on the same data with the same instruments, and the
        increase of the error at left-out episodes; None if nothing was removed.
    """

    kept: IntArray
    removed: IntArray
    before: Evidence
    after: Evidence
    cost: Cost | None

    def __str__(self) -> str:
        removed = ", ".join(str(i) for i in self.removed) or "none"
        rows = [f"inputs removed: {removed}", f"{'':<8} {'evidence':>12} {'complexity':>12} {'data fit':>10}"]
        for name, e in (("before", self.before), ("after", self.after)):
            rows.append(f"{name:<8} {e.log_likelihood:>12.2f} {e.complexity:>12.2f} {e.data_fit:>10.2f}")
        if self.cost is not None:
            rows.append(f"on a sample, without them: {self.cost}")
        return "\n".join(rows)


class InputPruning:
    """The method `prune` of an estimator that selects its kernel."""

    pruning_: Pruning

    @one_blas_thread()
    def prune(self, threshold: float = 1e-3) -> Self:
        """Leave out the inputs that do not matter, and fit again.

        Candidates are the inputs of small relevance. One after the other, the least relevant first, they are left out
        as long as that costs nothing: the evidence by which θ was selected may not fall by 3 nats or more, and
        left-out episodes may not be predicted worse than before, beyond two standard errors. A small relevance alone
        is no reason: it says that V bends little along an input, and it is small where V is linear.

        Parameters
        ----------
        threshold : float
            An input is a candidate if its relevance times its variance is less than this: moving it by one standard
            deviation changes ½d² by less than half of it. With a large one, such as 1e6, all inputs are candidates.

        Returns
        -------
        GPTD or GPTDQ
            A fitted model of its own that takes states of the same width; ``print(pruned.pruning_)`` shows both
            evidences.
        """
        return _prune(self, threshold)


def _prune(v: Any, threshold: float) -> Any:
    v._check_fitted()
    check_number("threshold", threshold, minimum=0.0)
    engine = v._engine("fit a smaller model to")
    strength = v.relevances_[v.inputs_] * engine.scale.input_std[: len(v.inputs_)] ** 2
    order = np.argsort(strength, kind="stable")
    candidates = v.inputs_[order[strength[order] < threshold]]
    exclusions = Exclusions.of(v)
    removed = np.array(exclusions.remove(candidates.tolist()), dtype=np.int64)
    kept = np.setdiff1d(v.inputs_, removed)
    cost = exclusions.cost(removed.tolist()) if len(removed) else None
    columns = np.setdiff1d(v._columns, removed)  # those of actions stay
    kernel = v.kernel
    if isinstance(kernel, Kernel):  # over all inputs, pruned before or not
        kernel = kernel.take_inputs(columns[columns < v.data_.n_dims - v.actions_.n_categorical])
    pruned = type(v)(**v.get_params(deep=False) | dict(mean=v.mean_))
    plan = Plan(v.trace_decay_, v.thinning_, amplification=v._amplification)
    pruned._fit(engine.with_inputs(columns), plan, kernel)
    pruned.pruning_ = Pruning(kept, np.sort(removed), v.evidence_, pruned.evidence_, cost)
    return pruned
