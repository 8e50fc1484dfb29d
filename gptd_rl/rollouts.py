"""Rolling a policy through a source of environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gptd_rl.policies import Act, RandomActions
from gptd_rl.recording import BoolArray, IntArray, Record, Segments
from gptd_rl.sources import CollectionError, Source
from gptd_rl.spaces import Numbers, describe
from gptd_rl.trajectories import Trajectories

Unit = Literal["transitions", "episodes"]
NEVER = np.iinfo(np.int64).max


class _Trouble(Exception):
    """The policy or the environment failed; in one sub-environment, if it is known in which."""

    def __init__(self, message: str, env: int | None = None) -> None:
        super().__init__(message)
        self.env = env


class _Fault(NamedTuple):
    """Something that is not finite; the first one compares as the smallest."""

    step: int  # the step that brought it
    in_next: bool  # not from the episode of that step, but from the next one
    env: int
    message: str


class Rollout:
    """A policy on its way through a source.

    Batched steps are made with as little work as can be. What they brought is looked at in blocks:
    was it finite, and where did episodes end?

    Parameters
    ----------
    source : Source
    act : Act
    gamma : float
    seed : int or None
        For resetting the source.
    """

    def __init__(self, source: Source, act: Act, gamma: float, seed: int | None) -> None:
        self.source, self.act, self.gamma = source, act, gamma
        self.trusted = isinstance(act, RandomActions)  # drawn from the space itself
        try:
            self.observations = source.reset(seed)
        except Exception as error:
            raise CollectionError(f"cannot reset the environment: {_name(error)}") from error
        n, states = source.n_envs, source.flatten(self.observations)
        self.record = Record(states, source.actions.example())
        self.steps = 0  # batched steps made
        self.settled = 0  # time up to which the record was looked at
        self.finals: list[Numbers] = []  # final states since then, as the source gave them
        self.begins = np.zeros(n, dtype=np.int64)  # first time of the episode under way
        self.starts = np.zeros(n, dtype=np.int64)  # of the segment under way; NEVER when retired
        self.episodes = np.zeros(n, dtype=np.int64)  # episodes ended
        self.live = np.ones(n, dtype=bool)  # where something is still to be collected
        self.active = self.live  # where the next step is a transition to be recorded
        self.starting = self.live  # where it is the first one of an episode
        bad = np.flatnonzero(~np.isfinite(states).all(axis=1))
        if bad.size:
            message = f"the environment returned observation {states[bad[0]]}: not finite"
            raise self._failure(message, self._where(int(bad[0])))

    def run(self, amount: int, unit: Unit, *, block: int = 64, eager: bool = False) -> Iterator[int]:
        """Collect `amount` of `unit`, shared out evenly; yield how much there is now and then.

        Parameters
        ----------
        amount : int
        unit : {"transitions", "episodes"}
        block : int
            Batched steps between two yields, at most.
        eager : bool
            Yield as soon as an episode ended.
        """
        n = self.source.n_envs
        quota = left = (amount + n - 1 - np.arange(n)) // n
        self._retire(quota == 0)
        while left.any():
            # A step makes at most one of the unit, so no sub-environment overshoots its share.
            self._advance(min(block, int(left[self.live].min())), eager)
            made = self.episodes if unit == "episodes" else self._transitions()
            left = np.where(self.live, quota - made, 0)
            self._retire(left == 0)
            yield amount - int(left.sum())

    def cut(self, longer_than: int) -> None:
        """End the segments under way that have more transitions; their episodes go on."""
        self._cut(self._under_way() & (self.record.time - self.starts > longer_than))

    def take(self) -> Trajectories | None:
        """Hand out the segments that ended, by sub-environment and then by time."""
        if not self.record.segments:
            return None
        data = self.record.take(self.gamma)
        shift = self.record.forget(before=min(self.record.time, int(self.starts.min())))
        self.settled -= shift
        self.begins -= shift
        self.starts[self.live] -= shift
        return data

    # -------------------------------------------------------------------------------- stepping

    def _advance(self, n_steps: int, eager: bool) -> None:
        self.record.make_room(n_steps)
        try:
            for _ in range(n_steps):
                done = self._step()
                if eager and done.any():
                    break
        except _Trouble as trouble:
            self._settle()
            raise self._failure(str(trouble), self._where(trouble.env)) from trouble.__cause__
        self._settle()

    def _step(self) -> BoolArray:
        record, time = self.record, self.record.time
        record.actions[time] = actions = self._choose()
        try:
            step = self.source.step(actions)
        except CollectionError as error:
            raise _Trouble(str(error)) from None
        except Exception as error:
            raise _Trouble(f"the environment failed: {_name(error)}") from error
        record.rewards[time] = step.rewards
        record.terminated[time] = step.terminated
        record.done[time] = step.done
        record.states[time + 1] = step.states
        record.time = time + 1
        if step.finals is not None:
            self.finals.append(step.finals)
        self.steps += 1
        self.observations = step.observations
        if self.source.restart_steps:  # done, then restarting, then starting
            self.starting = self.live > self.active
            self.active = self.live > step.done
        else:
            self.starting = step.done
        return step.done

    def _choose(self) -> NDArray[Any]:
        try:
            chosen = self.act(self.observations, self.starting, self.active)
            actions = self.source.actions(chosen)
        except Exception as error:
            raise _Trouble(f"the policy failed: {_name(error)}") from error
        outside = None if self.trusted else self.source.actions.outside(actions)
        if outside is not None:
            env = int(np.flatnonzero(outside)[0])
            space = describe(self.source.action_space)
            raise _Trouble(f"the policy's action {actions[env]} is outside {space}", env)
        return actions

    # -------------------------------------------------------------------------------- settling

    def _settle(self) -> None:
        """Look at the steps since last time: end segments, and refuse what is not finite."""
        record, first = self.record, self.settled
        times, envs = np.nonzero(record.done[first : record.time])
        times += first
        if self.source.restart_steps:  # an ended episode shows its last state until it restarts
            finals = record.states[times + 1, envs]
        else:
            finals = np.concatenate([*self.finals, record.states[:0, 0]])
        self.finals.clear()
        fault = self._find_fault(first, times, envs, finals)
        if fault is not None:
            record.time = fault.step + fault.in_next
        known = (times < record.time) & self.live[envs]
        self._end_episodes(times[known], envs[known], finals[known])
        self.settled = record.time
        if fault is not None:
            place = fault.step + 1 - int(self.begins[fault.env])
            raise self._failure(fault.message, self._where(fault.env, place))

    def _end_episodes(self, times: IntArray, envs: IntArray, finals: Numbers) -> None:
        """End episodes with the steps of these times, which are in order."""
        order = np.argsort(envs, kind="stable")
        times, envs, finals = times[order], envs[order], finals[order]
        next_starts = times + 1 + self.source.restart_steps
        again = np.diff(envs, prepend=-1) == 0  # not the first to end in its sub-environment
        starts = np.where(again, np.roll(next_starts, 1), self.starts[envs])
        terminated = self.record.terminated[times, envs]
        self.record.segments.append(Segments(envs, starts, times + 1, finals, terminated))
        self.starts[envs] = next_starts
        self.begins[envs] = next_starts
        self.episodes += np.bincount(envs, minlength=len(self.episodes))

    def _find_fault(self, first: int, times: IntArray, envs: IntArray, finals: Numbers) -> _Fault | None:
        """Find the first number since `first` that is not finite, where it matters."""
        rewards = self.record.rewards[first : self.record.time]
        states = self.record.states[first + 1 : self.record.time + 1]
        if all(np.isfinite(values).all() for values in (rewards, states, finals)):
            return None
        reached = states.copy()
        reached[times - first, envs] = finals
        # Only the first state of an episode is shown without having been reached.
        looks = ("reward", rewards, False), ("observation", reached, False)
        faults = []
        for name, values, in_next in (*looks, ("observation", states, True)):
            bad = ~np.isfinite(values.reshape(*rewards.shape, -1)).all(axis=-1) & self.live
            for step, env in np.argwhere(bad)[:1].tolist():
                message = f"the environment returned {name} {values[step, env]}: not finite"
                faults.append(_Fault(first + step, in_next, env, message))
        return min(faults, default=None)

    def _transitions(self) -> IntArray:
        """Transitions made: every batched step was one, but for those that restarted."""
        still_to_restart = np.maximum(self.starts - self.record.time, 0)
        return self.steps - self.source.restart_steps * self.episodes + still_to_restart

    def _under_way(self) -> BoolArray:
        return self.starts < self.record.time

    def _retire(self, envs: BoolArray) -> None:
        """Collect no more there."""
        self._cut(self._under_way() & envs)
        self.starts[envs] = NEVER
        self.live = self.live & ~envs
        self.active = self.active & ~envs

    def _cut(self, mask: BoolArray) -> None:
        """End segments here, without an end of the episode."""
        (envs,), now = np.nonzero(mask), self.record.time
        if envs.size:
            stops, terminated = np.full(len(envs), now), np.zeros(len(envs), dtype=bool)
            finals = self.record.states[now, envs]
            self.record.segments.append(Segments(envs, self.starts[envs], stops, finals, terminated))
            self.starts[envs] = now

    def _where(self, env: int | None, place: int | None = None) -> str:
        """Name a state of the episode under way, the present one by default."""
        if self.source.n_envs == 1:
            env = 0
        if env is None:
            return f"step {self.steps} of all {self.source.n_envs} sub-environments"
        place = self.record.time - int(self.begins[env]) if place is None else place
        sub_env = f"sub-environment {env}, " if self.source.n_envs > 1 else ""
        return f"{sub_env}episode {self.episodes[env]}, step {place}"

    def _failure(self, message: str, where: str) -> CollectionError:
        """Keep what was collected, with the runs under way cut off."""
        self._cut(self._under_way())
        return CollectionError(f"{message} ({where})", self.take())


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
