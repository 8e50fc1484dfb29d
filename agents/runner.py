"""Episodes that run side by side, each with a policy of the pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gptd_rl.agents.policy_pool import Episode, EpisodeState, PolicyPool, PolicyRecord
from gptd_rl.agents.replay import Experience
from gptd_rl.exceptions import LearningError
from gptd_rl.rollouts.actions import ActionSet
from gptd_rl.rollouts.environments import EnvAdapter, Step
from gptd_rl.types import Array, IntArray


class EpisodeRunner:
    """Steps environments, follows the policies that the pool chooses and reports finished episodes to it.

    Parameters
    ----------
    adapter : EnvAdapter
        The environments.
    actions : ActionSet
    pool : PolicyPool
    gamma : float
    rng : Generator
        Random actions and ties.
    """

    def __init__(
        self,
        adapter: EnvAdapter,
        actions: ActionSet,
        pool: PolicyPool,
        gamma: float,
        rng: np.random.Generator,
    ) -> None:
        self.adapter, self.actions, self.pool, self.gamma, self.rng = adapter, actions, pool, gamma, rng
        self.running: list[EpisodeState] = []
        self.states = np.zeros((0, 0))

    def reset(self, seed: int) -> None:
        """Start an episode in every environment."""
        with _wrapping_env_errors():
            self.states = np.array(self.adapter.flatten(self.adapter.reset(seed)), dtype=np.float64)
        self.running = [self._start(state) for state in self.states]

    def step(self, first_stream: int) -> tuple[Step, Experience, list[float]]:
        """Act once in every environment.

        Returns
        -------
        step : Step
        new : Experience
            Transitions of the environments that did not merely restart.
        returns : list of float
            Undiscounted returns of the episodes that ended.
        """
        _check_finite("observation", self.states)
        actions = self._act()
        with _wrapping_env_errors():
            step = self.adapter.step(self.actions.actions[actions])
        active = np.array([not episode.restarting for episode in self.running])
        new = Experience.from_step(self.states, actions, step, first_stream)
        _check_finite("reward", new.rewards[active, np.newaxis])
        _check_finite("observation", new.next_states[active])
        self.states = np.array(step.states, dtype=np.float64)  # some environments use their arrays again
        return step, new[active], self._end_step(step, new.next_states)

    def switch_policies(self) -> None:
        """Switch running episodes to the newest policy where the pool wants it."""
        newest = self.pool.newest_q
        assert newest is not None
        for episode, state in zip(self.running, self.states, strict=True):
            if self.pool.is_replaced(episode, state):
                episode.policy, episode.single_policy = PolicyRecord(newest.sample, explores=True), False

    def _start(self, state: Array) -> EpisodeState:
        return EpisodeState(self.pool.choose(), state)

    def _act(self) -> IntArray:
        """Greedy actions of the policy of each episode; random ones before the first improvement."""
        indices = self.rng.integers(self.actions.n, size=len(self.running))
        for i, episode in enumerate(self.running):
            if episode.policy is not None and episode.policy.q is not None:
                values = episode.policy.q(self.states[i : i + 1])[0]
                # Ties are broken at random: far from the data all actions have the prior mean.
                indices[i] = self.rng.choice(np.flatnonzero(values >= values.max() - 1e-9 * abs(values.max())))
        return indices

    def _end_step(self, step: Step, next_states: Array) -> list[float]:
        """Add rewards; report episodes that ended to the pool and start the next ones."""
        returns = []
        for i, episode in enumerate(self.running):
            if episode.restarting:
                self.running[i] = self._start(self.states[i])
                continue
            episode.add_reward(float(step.rewards[i]), 0.0 if step.terminated[i] else self.gamma)
            if step.terminated[i] or step.truncated[i]:
                returns.append(episode.total)
                self._report(episode, next_states[i])
                self.running[i] = self._start(self.states[i])
                self.running[i].restarting = bool(self.adapter.restart_steps)
        return returns

    def _report(self, episode: EpisodeState, last: Array) -> None:
        newest = self.pool.newest_q
        if episode.policy is not None and newest is not None:
            finished = Episode(episode.total, episode.start, episode.shortfall(last) <= newest.tolerance)
            self.pool.add_episode(episode.policy if episode.single_policy else None, finished)


@contextmanager
def _wrapping_env_errors() -> Iterator[None]:
    """Turn an exception of the environment into a `LearningError` of one line."""
    try:
        yield
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise LearningError(f"the environment failed: {text}") from error


def _check_finite(name: str, values: Array) -> None:
    """Refuse numbers of the environment that are not finite; `values` has a row for each environment."""
    if (bad := np.flatnonzero(~np.isfinite(values).all(axis=1))).size:
        value = " ".join(str(values[bad[0]].squeeze()).split())
        raise LearningError(f"the environment returned {name} {value}: not finite")
