"""Rolling a policy through a source of environments."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Literal

import numpy as np

from gptd_rl.data.spaces import Numbers, OutsideSpace
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.environments import Source
from gptd_rl.rollouts.policies import Act, RandomActions
from gptd_rl.rollouts.recorder import Block, Record, Segments
from gptd_rl.rollouts.validation import ACTION, NEXT_EPISODE, find_fault
from gptd_rl.types import BoolArray, IntArray

Unit = Literal["transitions", "episodes"]
NEVER = np.iinfo(np.int64).max
BLOCK = 256  # batched steps to look at together, at most
PATIENCE = 0.05  # seconds that they should take, at most


class Rollout:
    """A policy on its way through a source.

    Steps are made with as little work as can be. What they brought is looked at in blocks: is all as it should be, and
    where did episodes end? Blocks are short where steps are slow, so that nobody waits long to hear of an error.

    Parameters
    ----------
    source : Source
    act : Act
    gamma : float
    seed : int or None
        For resetting the source.
    room : int
        Number of batched steps to make room for at first.
    """

    def __init__(self, source: Source, act: Act, gamma: float, seed: int | None, room: int = 1000) -> None:
        self.source, self.act, self.gamma = source, act, gamma
        # Random actions come from the space itself.
        self.unchecked = None if isinstance(act, RandomActions) else source.actions
        try:
            self.observations = source.reset(seed)
        except Exception as error:
            raise CollectionError(f"cannot reset the environment: {_name(error)}") from error
        n, states = source.n_envs, source.flatten(self.observations)
        self.block = Block(states, source.actions.example(), BLOCK)
        self.n_chosen = self.n_made = 0  # steps in the block that have actions, and that were made
        self.finals: list[Numbers] = []  # final states in the block, as the source gave them
        self.record = Record(states, self.block, room)
        self.steps = 0  # batched steps recorded so far
        self.begins = np.zeros(n, dtype=np.int64)  # first time of the episode under way
        self.starts = np.zeros(n, dtype=np.int64)  # of the segment under way; NEVER when retired
        self.episodes = np.zeros(n, dtype=np.int64)  # episodes ended
        self.live = np.ones(n, dtype=bool)  # where something is still to be collected
        self.active = self.live  # where the next step is a transition to be recorded
        self.starting = self.live  # where it is the first one of an episode
        for env in np.flatnonzero(~np.isfinite(states).all(axis=1)).tolist():
            raise self._failure(f"the environment returned observation {states[env]}: not finite", env)

    def run(self, amount: int, unit: Unit, *, eager: bool = False) -> Iterator[int]:
        """Collect `amount` of `unit`, shared out evenly; yield how much there is after each block.

        Parameters
        ----------
        amount : int
        unit : {"transitions", "episodes"}
        eager : bool
            End a block as soon as an episode ended.
        """
        n = self.source.n_envs
        quota = left = (amount + n - 1 - np.arange(n)) // n
        self._retire(quota == 0)
        length = 1
        while left.any():
            start = perf_counter()
            # A step makes at most one of the unit, so no sub-environment overshoots its share.
            self._advance(min(length, int(left[self.live].min())), eager)
            made = self.episodes if unit == "episodes" else self._transitions()
            left = np.where(self.live, quota - made, 0)
            self._retire(left == 0)
            length = min(4 * length, BLOCK) if perf_counter() - start < PATIENCE else max(1, length // 4)
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
        self.begins -= shift
        self.starts[self.live] -= shift
        return data

    # ----------------------------------------------------------------------------------------- stepping

    def _advance(self, n_steps: int, eager: bool) -> None:
        """Make a block of steps. This loop is the price of a step: what can wait is left to `_settle`."""
        source, act, block = self.source, self.act, self.block
        who = ""
        try:
            for i in range(n_steps):
                who = "policy"
                actions = source.actions(act(self.observations, self.starting, self.active))
                block.actions[i] = actions
                self.n_chosen = i + 1
                who = "environment"
                step = source.step(actions)
                block.rewards[i] = step.rewards
                block.states[i] = step.states
                block.terminated[i] = step.terminated
                block.truncated[i] = step.truncated
                self.n_made = i + 1
                self.observations = step.observations
                if step.finals is not None:
                    self.finals.append(step.finals)
                if act.heeds_flags or eager:
                    self._set_flags(done := step.terminated | step.truncated)
                    if eager and done.any():
                        break
        except Exception as error:
            self._settle()  # which may know better what went wrong
            raise self._explain(error, who) from error
        self._settle()

    def _set_flags(self, done: BoolArray) -> None:
        if self.source.restart_steps:  # an episode is done, then restarting, then starting
            self.starting, self.active = self.live > self.active, self.live > done
        else:
            self.starting = done

    def _settle(self) -> None:
        """Record the steps of the block, up to the first thing wrong."""
        block, begin = self.block, self.record.time
        times, envs = np.nonzero(block.terminated[: self.n_made] | block.truncated[: self.n_made])
        if self.source.restart_steps:  # an ended episode shows its last state until it restarts
            finals = block.states[times, envs]
        else:
            finals = np.concatenate([*self.finals, block.states[:0, 0]])
        fault = find_fault(block, self.n_chosen, self.n_made, (times, envs), finals, self.live, self.unchecked)
        n_steps = self.n_made if fault is None else fault.step + (fault.kind == NEXT_EPISODE)
        self.n_chosen = self.n_made = 0
        self.finals.clear()
        self.steps += n_steps
        self.record.append(block, n_steps)
        known = (times < n_steps) & self.live[envs]
        times, envs, finals = times[known], envs[known], finals[known]
        if envs.size:
            self._end_episodes(begin + times + 1, envs, finals, block.terminated[times, envs])
        if fault is not None:
            place = begin + fault.step + (fault.kind != ACTION) - int(self.begins[fault.env])
            raise self._failure(fault.message, fault.env, place)

    # ----------------------------------------------------------------------------------------- segments

    def _end_episodes(self, stops: IntArray, envs: IntArray, finals: Numbers, terminated: BoolArray) -> None:
        order = np.argsort(envs, kind="stable")  # by time within each sub-environment
        stops, envs, finals, terminated = stops[order], envs[order], finals[order], terminated[order]
        next_starts = stops + self.source.restart_steps
        again = np.diff(envs, prepend=-1) == 0  # not the first to end in its sub-environment
        starts = np.where(again, np.roll(next_starts, 1), self.starts[envs])
        self.record.segments.append(Segments(envs, starts, stops, finals, terminated))
        self.starts[envs] = next_starts
        self.begins[envs] = next_starts
        self.episodes += np.bincount(envs, minlength=len(self.episodes))

    def _cut(self, mask: BoolArray) -> None:
        """End segments here, without an end of the episode."""
        envs, now = np.flatnonzero(mask), self.record.time
        if envs.size:
            stops, terminated = np.full(len(envs), now), np.zeros(len(envs), dtype=bool)
            finals = self.record.states[envs, now]
            self.record.segments.append(Segments(envs, self.starts[envs], stops, finals, terminated))
            self.starts[envs] = now

    def _retire(self, envs: BoolArray) -> None:
        """Collect no more there."""
        self._cut(self._under_way() & envs)
        self.starts[envs] = NEVER
        self.live = self.live & ~envs
        self.active = self.active & ~envs

    def _under_way(self) -> BoolArray:
        return self.starts < self.record.time

    def _transitions(self) -> IntArray:
        """Transitions made: every batched step was one, but for those that restarted."""
        still_to_restart = np.maximum(self.starts - self.record.time, 0)
        return self.steps - self.source.restart_steps * self.episodes + still_to_restart

    # ----------------------------------------------------------------------------------------- errors

    def _explain(self, error: Exception, who: str) -> CollectionError:
        if isinstance(error, OutsideSpace):
            return self._failure(f"the policy's {error}", error.env)
        if isinstance(error, CollectionError):
            return self._failure(str(error))
        return self._failure(f"the {who} failed: {_name(error)}")

    def _failure(self, message: str, env: int | None = None, place: int | None = None) -> CollectionError:
        """Name the place, by default the present one, and keep what was collected."""
        if env is None and self.source.n_envs > 1:
            where = f"step {self.steps} of all {self.source.n_envs} sub-environments"
        else:
            env = env or 0
            place = self.record.time - int(self.begins[env]) if place is None else place
            sub_env = f"sub-environment {env}, " if self.source.n_envs > 1 else ""
            where = f"{sub_env}episode {self.episodes[env]}, step {place}"
        self._cut(self._under_way())
        return CollectionError(f"{message} ({where})", self.take())


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
