"""The greedy policy in `GPTDQ`: fitted Q iteration instead of model selection on rewards, and its files."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators import greedy
from gptd_rl.estimators.engines import Engine
from gptd_rl.estimators.fitted import FittedModel, build_actions, data_from
from gptd_rl.estimators.q_base import QEstimator
from gptd_rl.inference.by_action import ActionPrior
from gptd_rl.sharding.sources import Sources

PREFIX = "greedy_"  # of arrays in a file


class GreedyQ(QEstimator):
    """An estimator of Q that can fit the greedy policy."""

    greedy_: greedy.GreedyFit | None

    def _fit_greedy(
        self, data: Trajectories | Sources, actions: DiscreteActions | ContinuousActions, policy: str
    ) -> Self:
        """Fit Q of the greedy policy; see `greedy`."""
        if policy != "greedy":
            raise ValueError(f"policy must be 'greedy' or a policy, or None for that of the data; got {policy!r}.")
        if not isinstance(actions, DiscreteActions):
            raise ValueError("policy='greedy' needs discrete actions: number the candidates, and give these numbers.")
        if callable(self.mean):
            raise ValueError("policy='greedy' needs a number as prior mean; got a function.")
        parts = [data] if isinstance(data, Trajectories) else [source.load() for source in data]
        pairs = greedy.label_actions(Trajectories.concatenate(parts), actions)
        before = self.greedy_ if self.warm_start and hasattr(self, "posterior_") else None
        fit = greedy.fit_greedy(
            pairs,
            ActionPrior(actions.n, self.noise_share, self.action_correlation),
            greedy.starting_kernel(self.kernel, before, pairs.states[:, :-1]),
            n_inducing=self.subset_size,
            prior_mean=self.mean,
            start=before,
            rng=np.random.default_rng(self.random_state),
        )
        return self._adopt_greedy(fit, pairs, actions)

    def _adopt_greedy(self, fit: greedy.GreedyFit, pairs: Trajectories, actions: DiscreteActions) -> Self:
        self.mean_ = None  # the posterior includes it
        self._set(fit.fitted_model(pairs, actions))
        self.greedy_ = fit
        return self

    def _set(self, fitted: FittedModel) -> None:
        super()._set(fitted)
        self.greedy_ = None

    def _engine(self, purpose: str) -> Engine:
        if self.greedy_ is not None:
            raise ValueError(f"a fit of the greedy policy has bootstrapped targets, no rewards to {purpose}.")
        return super()._engine(purpose)

    # ---------------------------------------------------------------------------------- files

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as plain data and arrays, for `storage`."""
        header, arrays = super().to_arrays()
        if self.greedy_ is None:
            return header, arrays
        description, kept = self.greedy_.to_arrays()
        header["params"]["mean"] = self.mean
        return dict(header, greedy=description), arrays | {PREFIX + name: array for name, array in kept.items()}

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The fitted model again."""
        if "greedy" not in header:
            return super().from_arrays(header, arrays)
        kept = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        pairs, actions = data_from(arrays), build_actions(header["actions"])
        if not isinstance(actions, DiscreteActions):
            raise ValueError("a fit of the greedy policy without discrete actions")
        fit = greedy.GreedyFit.from_arrays(header["greedy"], kept, pairs)
        return cls._unfitted(header)._adopt_greedy(fit, pairs, actions)
