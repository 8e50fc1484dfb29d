"""Contestants for Q of another policy than the one that made the data: `GPTDQ`, and what the field uses instead."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from decision_systems import Actions, DecisionSystem
from least_squares import Features, Rows, discounts_of, fitted_evaluation, kernel_features, lstd, radial_features
from numpy.typing import NDArray
from scipy.spatial import KDTree
from scores import LEVELS, Prediction
from value_estimators import completed_returns

from gptd_rl import GPTDQ, Trajectories

Array = NDArray[np.float64]
PairFeatures = Callable[[Array, Actions], Array]  # states and actions → [n, m]

N_NEIGHBOURS = 20


@dataclass(frozen=True)
class DecisionCase:
    """Data, the pairs asked about, and the default GPTDQ of these data, which is fitted once."""

    system: DecisionSystem
    data: Trajectories
    states: Array
    actions: Actions

    def fit(self, **options: Any) -> GPTDQ:
        """GPTDQ of the target policy."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return GPTDQ(n_actions=self.system.n_actions, **options).fit(self.data, policy=self.system.target)

    @cached_property
    def default(self) -> GPTDQ:
        """`GPTDQ()`, fitted."""
        return self.fit()

    @cached_property
    def features(self) -> PairFeatures:
        """Whitened features of the kernel that the default GPTDQ selected."""
        q, i = self.default, self.data.has_transition
        columns = np.r_[q.inputs_, q.n_dims_]  # actions are one column here
        features = kernel_features(q.kernel_, pairs(self.data.states[i], self.actions_taken)[:, columns])
        return lambda x, a: features(pairs(x, a)[:, columns])

    @cached_property
    def actions_taken(self) -> Actions:
        """Actions of the transitions."""
        assert self.data.actions is not None
        return self.data.actions[self.data.has_transition]

    def rows(self, features: PairFeatures) -> Rows:
        """r = (ψ(x, a) − γE_π[ψ(x', a')])ᵀw, a segment each: traces would belong to the policy of the data."""
        i = np.flatnonzero(self.data.has_transition)
        x, following = self.data.states[i], self.data.states[i + 1]
        ahead = self.expected(features, following)
        now = features(x, self.actions_taken)
        return Rows(now, ahead, discounts_of(self.data), self.data.rewards[i], self.data.segment_of[i])

    def expected(self, features: PairFeatures, states: Array) -> Array:
        """E_π[ψ(x, a)] over the actions of the target policy, of shape (n, m)."""
        if self.system.n_actions is None:
            return features(states, self.system.target(states))
        p = self.system.target_probabilities(states)
        return sum(p[:, [a]] * features(states, np.full(len(states), a)) for a in range(self.system.n_actions))


Contestant = Callable[[DecisionCase], Prediction]


def pairs(states: Array, actions: Actions) -> Array:
    """[x, a], of shape (n, D + 1)."""
    return np.column_stack([states, actions]).astype(float)


def radial_pair_features(case: DecisionCase, n_centres: int) -> PairFeatures:
    """Radial basis functions of states for each numbered action, or of pairs."""
    n_actions = case.system.n_actions
    if n_actions is None:
        of_pairs = radial_features(pairs(case.data.states[case.data.has_transition], case.actions_taken), n_centres)
        return lambda x, a: of_pairs(pairs(x, a))
    of_states: Features = radial_features(case.data.states, n_centres)

    def features(x: Array, a: Actions) -> Array:
        psi = of_states(x)
        return (np.eye(n_actions)[a][:, :, None] * psi[:, None]).reshape(len(x), -1)

    return features


def predicted(q: GPTDQ, case: DecisionCase) -> Prediction:
    """Mean and confidence intervals."""
    intervals = [q.confidence_interval(case.states, case.actions, level) for level in LEVELS]
    return Prediction(q.predict(case.states, case.actions), intervals)


def default_gptdq(case: DecisionCase) -> Prediction:
    """`GPTDQ()`."""
    return predicted(case.default, case)


def gptdq_residual(case: DecisionCase) -> Prediction:
    """GPTDQ without instruments: Bellman residuals, biased in stochastic systems."""
    return predicted(case.fit(bootstrap=False), case)


def linear(
    features: Callable[[DecisionCase], PairFeatures], estimate: Callable[[Rows], Array], case: DecisionCase
) -> Prediction:
    """Q = ψᵀw, clipped to what the rewards allow: off-policy bootstrapping may diverge."""
    psi = features(case)
    values = psi(case.states, case.actions) @ estimate(case.rows(psi))
    horizon, rewards = 1 / (1 - case.system.gamma), case.data.rewards
    return Prediction(values.clip(min(rewards.min(), 0) * horizon, max(rewards.max(), 0) * horizon))


def lstdq(case: DecisionCase) -> Prediction:
    """LSTDQ on the features of the kernel that GPTDQ selected."""
    return linear(lambda c: c.features, lstd, case)


def radial_lstdq(case: DecisionCase) -> Prediction:
    """LSTDQ on 50 radial basis functions for each action."""
    return linear(lambda c: radial_pair_features(c, 50), lstd, case)


def fqe(case: DecisionCase) -> Prediction:
    """Fitted Q evaluation, linear in the features of the kernel that GPTDQ selected."""
    return linear(lambda c: c.features, fitted_evaluation, case)


def radial_fqe(case: DecisionCase) -> Prediction:
    """Fitted Q evaluation, linear in 100 radial basis functions for each action."""
    return linear(lambda c: radial_pair_features(c, 100), fitted_evaluation, case)


def neural(case: DecisionCase) -> Prediction:
    """Fitted Q evaluation with a neural network."""
    from neural_fqe import neural_fqe

    return neural_fqe(case)


def importance_weighting(case: DecisionCase) -> Prediction:
    """Weighted per-decision importance sampling over the nearest states from which the same action was taken.

    Q(x, a) = Σ_k γᵏ Σ_i ρ_i r_i / Σ_i ρ_i over the runs i that are not cut k steps later, ρ_i being the product of
    π/b up to there. Where all are cut, or none did as the target would, a constant value follows.
    """
    system, data = case.system, case.data
    assert system.n_actions is not None
    taken = np.flatnonzero(data.has_transition)
    rows = np.arange(len(taken))
    x, a = data.states[taken], case.actions_taken
    ratios = system.target_probabilities(x)[rows, a] / system.behaviour.action_probabilities(x)[rows, a]
    place = np.full(len(data), -1)  # row of each state: −1 if the run is cut there, −2 if it is terminal
    place[taken], place[data.last[data.terminated]] = rows, -2
    at = _nearest(case, x, a)  # [q, k]
    weights = np.where(at >= 0, 1.0, 0.0)
    value, discount, level = np.zeros(len(at)), 1.0, completed_returns(data)[1]
    unfinished = np.ones(len(at), dtype=bool)
    while unfinished.any() and discount > 1e-4:
        weights[at == -1] = 0.0
        total = weights.sum(axis=1)
        ends = unfinished & (total <= 0)
        value[ends] += discount * level
        unfinished &= ~ends
        running = at >= 0
        rewards = np.where(running, data.rewards[taken[at]], 0.0)
        share = weights / np.where(total > 0, total, 1.0)[:, None]
        value += np.where(unfinished, discount * (share * rewards).sum(axis=1), 0.0)
        at = np.where(running, place[taken[at] + 1], at)
        weights = np.where(at >= 0, weights * ratios[at], weights)
        unfinished &= (at != -2).any(axis=1)
        discount *= system.gamma
    return Prediction(value)


def _nearest(case: DecisionCase, x: Array, a: Actions) -> NDArray[np.int64]:
    """Rows of the nearest states with the action asked for, of shape (q, k); −1 for want of any."""
    scale = x.std(axis=0) + 1e-12
    at = np.full((len(case.states), N_NEIGHBOURS), -1)
    for action in np.unique(case.actions):
        asked, known = np.flatnonzero(case.actions == action), np.flatnonzero(a == action)
        k = min(N_NEIGHBOURS, len(known))
        if k:
            near = KDTree(x[known] / scale).query(case.states[asked] / scale, np.arange(1, k + 1))[1]
            at[asked[:, None], np.arange(k)] = known[near]
    return at


def constant(case: DecisionCase) -> Prediction:
    """Mean return of the data, whatever the pair."""
    return Prediction(np.full(len(case.states), completed_returns(case.data)[1]))


DEFAULT = "GPTDQ"
FIELD: dict[str, Contestant] = {
    DEFAULT: default_gptdq,
    "GPTDQ residual": gptdq_residual,
    "LSTDQ": lstdq,
    "LSTDQ radial": radial_lstdq,
    "FQE": fqe,
    "FQE radial": radial_fqe,
    "FQE neural": neural,
    "importance": importance_weighting,
    "constant": constant,
}
KERNEL_OF_GPTDQ = ("LSTDQ", "FQE")
DISCRETE_ONLY = ("importance",)

if "bootstrap" not in inspect.signature(GPTDQ).parameters:
    del FIELD["GPTDQ residual"]
if find_spec("torch") is None:
    del FIELD["FQE neural"]
