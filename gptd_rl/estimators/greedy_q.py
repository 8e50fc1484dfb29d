"""The greedy policy in `GPTDQ`: fitted Q iteration instead of model selection on rewards, and its files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from gptd_rl.checks import as_generator
from gptd_rl.data.action_transitions import ActionTransitions
from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators import greedy
from gptd_rl.estimators.completed import CompletedFit, PriorMean, solve_completed
from gptd_rl.estimators.dynamics.completion import complete_rows
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.dynamics.output import state_kernel, unit_relevances
from gptd_rl.estimators.engines import Engine
from gptd_rl.estimators.fitted import FittedModel, build_actions, data_from
from gptd_rl.estimators.q_base import QEstimator
from gptd_rl.inference.by_action import ActionPrior
from gptd_rl.kernels import MultiScale
from gptd_rl.sharding.sources import Sources

PREFIX = "greedy_"  # of arrays in a file


class GreedyQ(QEstimator):
    """An estimator of Q that can fit the greedy policy."""

    greedy_: greedy.GreedyFit | None

    def _fit_greedy(
        self,
        data: Trajectories | Sources,
        actions: DiscreteActions | ContinuousActions,
        policy: str,
        model: DynamicsModel | None,
    ) -> Self:
        """Fit Q of the greedy policy; see `greedy`, and `completed` if there is a model."""
        if policy != "greedy":
            raise ValueError(f"policy must be 'greedy' or a policy, or None for that of the data; got {policy!r}.")
        if not isinstance(actions, DiscreteActions):
            raise ValueError("policy='greedy' needs discrete actions: number the candidates, and give these numbers.")
        if callable(self.mean):
            raise ValueError("policy='greedy' needs a number as prior mean; got a function.")
        parts = [data] if isinstance(data, Trajectories) else [source.load() for source in data]
        pairs = greedy.label_actions(Trajectories.concatenate(parts), actions)
        if model is not None:
            return self._fit_completed(pairs, actions, model)
        before = self.greedy_ if self.warm_start and hasattr(self, "posterior_") else None
        fit = greedy.fit_greedy(
            pairs,
            ActionPrior(actions.n, self.noise_share, self.action_correlation),
            greedy.starting_kernel(self.kernel, before, pairs.states[:, :-1]),
            n_inducing=self.subset_size,
            prior_mean=self.mean,
            start=before,
            rng=as_generator(self.random_state),
        )
        return self._adopt_greedy(fit, pairs, actions)

    def _fit_completed(self, pairs: Trajectories, actions: DiscreteActions, model: DynamicsModel) -> Self:
        """Fit Q to the transitions and to the outcomes of the actions not taken, as the model predicts them."""
        check_model(model, pairs.n_dims - 1, actions.n)
        if self.action_correlation:
            raise ValueError("a fit with a model has no correlation of actions: every action has its own outcome.")
        ActionPrior(actions.n, self.noise_share)  # refuses shares that are not positive
        rng = as_generator(self.random_state)
        transitions = ActionTransitions.of(pairs)
        data = complete_rows(model, transitions, np.arange(len(transitions)), None, rng)
        kernel = self.kernel
        if isinstance(kernel, str) and kernel == "ard":
            kernel = state_kernel(model.space_, unit_relevances(model.space_, data.states), MultiScale)
        kernel = greedy.starting_kernel(kernel, None, data.states)
        assert not callable(self.mean)
        mean: float | PriorMean = "smallest" if self.mean is None else float(self.mean)
        fit, _ = solve_completed(data, kernel, self.subset_size, self.softness, self.noise_share, mean, rng)
        return self._adopt_greedy(fit, pairs, actions)

    def adopt(self, fit: greedy.GreedyFit, data: Trajectories) -> Self:
        """Become the estimator of a fit of the greedy policy that was made elsewhere, from `data` with actions."""
        actions = self._find_actions(data)
        assert isinstance(actions, DiscreteActions)
        return self._adopt_greedy(fit, greedy.label_actions(data, actions), actions)

    def _adopt_greedy(self, fit: greedy.GreedyFit, pairs: Trajectories, actions: DiscreteActions) -> Self:
        new = copy.copy(self)
        new.mean_ = None  # the posterior includes it
        new._set(fit.fitted_model(pairs, actions))
        new.greedy_ = fit
        return self._become(new)

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
    def from_arrays(cls, header: dict[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The fitted model again."""
        if "greedy" not in header:
            return super().from_arrays(header, arrays)
        kept = {name.removeprefix(PREFIX): arrays[name] for name in arrays if name.startswith(PREFIX)}
        pairs, actions = data_from(arrays), build_actions(header["actions"])
        for name in ("theta", "inputs"):  # follow from the fit
            arrays.get(name)
        if not isinstance(actions, DiscreteActions):
            raise ValueError("a fit of the greedy policy without discrete actions")
        if header["greedy"].get("is_completed"):
            fit: greedy.GreedyFit = CompletedFit.from_completed(header["greedy"], kept)
        else:
            fit = greedy.GreedyFit.from_arrays(header["greedy"], kept, pairs)
        if fit.posterior.regression.prior.n_actions != actions.n:
            raise ValueError(f"there are {actions.n} actions, and a fit of {fit.posterior.regression.prior.n_actions}")
        return cls._unfitted(header)._adopt_greedy(fit, pairs, actions)


def check_model(model: DynamicsModel, n_dims: int, n_actions: int) -> None:
    """Refuse what is no fitted model of these states and actions."""
    if not isinstance(model, DynamicsModel):
        raise TypeError(f"model must be a fitted DynamicsModel; got {type(model).__name__}.")
    model._check_fitted()
    if model.n_dims_ != n_dims or model.n_actions_ != n_actions:
        raise ValueError(
            f"the model has {model.n_dims_} state variables and {model.n_actions_} actions, "
            f"the data have {n_dims} and {n_actions}. GPTDQ(n_actions=…) says how many there are."
        )
