"""What every estimator of Q needs: the encoding of its actions, and pairs [x, a] from states and actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import is_count, is_positive, one_line
from gptd_rl.data.actions import Actions, ContinuousActions, DiscreteActions, as_int_actions
from gptd_rl.data.state_actions import recorded_actions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.base import Estimator
from gptd_rl.estimators.fitted import FittedModel
from gptd_rl.sharding.sources import Sources
from gptd_rl.temporal.means import Mean
from gptd_rl.types import Array


class QEstimator(Estimator):
    """An estimator over pairs of a state and an action; parameters and attributes are those of `GPTDQ`."""

    n_actions: int | None
    candidates: ArrayLike | None
    action_correlation: float
    noise_share: float
    softness: float

    def _mean_of_rows(self, mean: Mean, actions: Actions) -> Mean:
        if not callable(mean):
            return mean
        assert isinstance(actions, DiscreteActions | ContinuousActions)

        def of_pairs(pairs: Array) -> ArrayLike:
            n = pairs.shape[1] - actions.n_columns
            return mean(pairs[:, :n], actions.decode(pairs[:, n:]))

        return of_pairs

    def _n_terminal(self, actions: Actions) -> int:
        return actions.n if isinstance(actions, DiscreteActions) else 1

    def _find_actions(self, data: Trajectories | Sources) -> DiscreteActions | ContinuousActions:
        """What the actions in the data are: discrete or continuous, and which."""
        if self.n_actions is not None:
            return DiscreteActions(self.n_actions, self.action_correlation)
        largest = -1
        for part in [data] if isinstance(data, Trajectories) else (source.load() for source in data):
            actions = recorded_actions(part)
            if self.candidates is not None or actions.dtype.kind not in "iub":
                if self.action_correlation:
                    raise ValueError("action_correlation is for discrete actions, and these are continuous.")
                return ContinuousActions(actions.shape[1:])
            largest = max(largest, int(as_int_actions(actions).max(initial=-1)))
        return DiscreteActions(largest + 1, self.action_correlation)

    def _set(self, fitted: FittedModel) -> None:
        super()._set(fitted)
        self.action_relevances_ = self._relevances()[self.n_dims_ :]

    # ---------------------------------------------------------------------------------- checking

    @property
    def _space(self) -> DiscreteActions | ContinuousActions:
        self._check_fitted()
        assert isinstance(self.actions_, DiscreteActions | ContinuousActions)
        return self.actions_

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.n_actions is not None and self.candidates is not None:
            raise ValueError("n_actions is for discrete actions and candidates for continuous ones: give one of them.")
        if self.n_actions is not None and not is_count(self.n_actions):
            raise ValueError(f"n_actions must be a whole number of 1 or more; got {one_line(repr(self.n_actions))}.")
        if not 0.0 <= self.action_correlation < 1.0:
            raise ValueError(f"action_correlation must lie in [0, 1); got {one_line(repr(self.action_correlation))}.")
        if not is_positive(self.noise_share):
            raise ValueError(f"noise_share must be positive; got {one_line(self.noise_share)}.")
        if not 0.0 <= self.softness <= 1.0:
            raise ValueError(f"softness must lie in [0, 1]; got {one_line(repr(self.softness))}.")

    def _check_pairs(self, states: ArrayLike, actions: ArrayLike) -> Array:
        """Pairs with all inputs, of shape (m, n_dims + n_columns)."""
        x, columns = self._check_states(states), self._space.encode(actions)
        if len(columns) != len(x):
            raise ValueError(f"expected one action for each of {len(x)} states; got {len(columns)}.")
        return np.column_stack([x, columns])

    def _all_pairs(self, states: ArrayLike) -> tuple[Array, tuple[int, int]]:
        """Each state with every action, of shape (m · n_actions, …), and (m, n_actions)."""
        x, choices = self._check_states(states), self._choices()
        pairs = np.column_stack([np.repeat(x, len(choices), axis=0), np.tile(choices, (len(x), 1))])
        return pairs, (len(x), len(choices))

    def _choices(self) -> Array:
        """The actions to choose from, of shape (n_actions, n_columns)."""
        space = self._space
        if isinstance(space, DiscreteActions):
            return np.arange(float(space.n))[:, None]
        if self.candidates is None:
            raise ValueError(
                "actions are continuous: GPTDQ(candidates=[…]) or set_params(candidates=[…]) says which to choose from."
            )
        return space.encode(self.candidates)
