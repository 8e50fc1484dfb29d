"""Leaving out inputs that do not matter (the paper's "(II) without y")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gptd_rl.checks import check_number
from gptd_rl.estimators.planning import Plan
from gptd_rl.inference.posterior import Evidence
from gptd_rl.kernels import Kernel
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import IntArray


@dataclass(frozen=True, eq=False)
class Pruning:
    """The inputs that `prune` removed, and the evidence before and after."""

    kept: IntArray
    removed: IntArray
    before: Evidence
    after: Evidence

    def __str__(self) -> str:
        removed = ", ".join(str(i) for i in self.removed) or "none"
        rows = [f"inputs removed: {removed}", f"{'':<8} {'evidence':>12} {'complexity':>12} {'data fit':>10}"]
        for name, e in (("before", self.before), ("after", self.after)):
            rows.append(f"{name:<8} {e.log_likelihood:>12.2f} {e.complexity:>12.2f} {e.data_fit:>10.2f}")
        return "\n".join(rows)


class InputPruning:
    """The method `prune` of an estimator that selects its kernel."""

    pruning_: Pruning

    @one_blas_thread()
    def prune(self, threshold: float = 1e-3) -> Self:
        """Leave out the inputs that do not matter, and fit again.

        Parameters
        ----------
        threshold : float
            An input goes if moving it by one standard deviation changes ½d² by less than half of this.

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
    std = np.ones(v.n_dims_)
    std[v.inputs_] = engine.scale.input_std[: len(v.inputs_)]
    strength = v.relevances_ * std**2
    keep = strength >= min(threshold, strength.max())
    kept = np.flatnonzero(keep & np.isin(np.arange(v.n_dims_), v.inputs_))
    columns = np.concatenate([kept, np.setdiff1d(v._columns, v.inputs_)])  # those of actions stay
    kernel = v.kernel
    if isinstance(kernel, Kernel):  # over all inputs, pruned before or not
        kernel = kernel.take_inputs(columns[columns < v.data_.n_dims - v.actions_.n_categorical])
    pruned = type(v)(**v.get_params(deep=False) | dict(mean=v.mean_))
    plan = Plan(v.trace_decay_, v.thinning_, amplification=v._amplification)
    pruned._fit(engine.with_inputs(columns), plan, kernel)
    pruned.pruning_ = Pruning(kept, np.setdiff1d(v.inputs_, kept), v.evidence_, pruned.evidence_)
    return pruned
