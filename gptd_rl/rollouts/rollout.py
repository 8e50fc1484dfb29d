"""The loop of a rollout: policy and environments step by step, recorded in segments."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Literal

import numpy as np

from gptd_rl.data.spaces import Numbers, OutsideSpaceError
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.memory import available_bytes
from gptd_rl.rollouts.environments import EnvAdapter
from gptd_rl.rollouts.policies import BatchPolicy, RandomActions
from gptd_rl.rollouts.recorder import Recorder, SegmentRanges, StepBuffer
from gptd_rl.rollouts.validation import ACTION, NEXT_EPISODE, find_violation
from gptd_rl.types import BoolArray, IntArray

Unit = Literal["transitions", "episodes"]
NEVER = np.iinfo(np.int64).max
BLOCK = 256  # largest number of batched steps that are checked together
MAX_BLOCK_SECONDS = 0.05  # that a block of steps should take at most
MAX_EPISODE = 100_000  # steps after which an episode that was asked for as a whole counts as endless


class Rollout:
    """A rollout of a policy, which can be interrupted and continued.

    Steps are stored with as little work as possible and checked in blocks, where episode ends are found, too. Blocks
    are short where steps are slow, so that errors are reported soon.

    Parameters
    ----------
    env : EnvAdapter
    policy : BatchPolicy
    gamma : float
    seed : int or None
        Seed of the first reset.
    capacity : int
        Initial number of batched steps to allocate memory for.
    """

    def __init__(
        self, env: EnvAdapter, policy: BatchPolicy, gamma: float, seed: int | None, capacity: int = 1000
    ) -> None:
        self.env, self.policy, self.gamma = env, policy, gamma
        # Random actions are sampled from the space itself.
        self.action_check = None if isinstance(policy, RandomActions) else env.actions
        try:
            self.observations = env.reset(seed)
            n, states = env.n_envs, env.flatten(self.observations)
        except OutsideSpaceError as error:
            where = f"sub-environment {error.row}, " if env.n_envs > 1 else ""
            raise CollectionError(f"the environment's {error} ({where}episode 0, step 0)") from error
        except Exception as error:
            raise CollectionError(f"cannot reset the environment: {_name(error)}") from error
        self.buffer = StepBuffer(states, env.actions.example(), BLOCK)
        self.n_actions = self.n_steps = 0  # steps in the buffer that have actions, and that are complete
        self.final_states: list[Numbers] = []  # of the buffer, as the environment gave them
        self.recorder = Recorder(states, self.buffer, capacity)
        self.steps = 0  # batched steps recorded so far
        self.begins = np.zeros(n, dtype=np.int64)  # first time of the running episode
        self.starts = np.zeros(n, dtype=np.int64)  # of the running segment; NEVER if retired
        self.episodes = np.zeros(n, dtype=np.int64)  # episodes ended
        self.live = np.ones(n, dtype=bool)  # sub-environments that are still recorded
        self.active = self.live  # where the next step is a transition to record
        self.starting = self.live  # where it is the first step of an episode
        for i in np.flatnonzero(env.observations.outside(states).any(axis=1)).tolist():
            raise self._failure(env.observations.describe_violation(states[i]), i)

    def run(self, amount: int, unit: Unit, *, eager: bool = False) -> Iterator[int]:
        """Collect `amount` of `unit`, in equal shares; yield the amount so far after each block.

        Parameters
        ----------
        amount : int
        unit : {"transitions", "episodes"}
        eager : bool
            End a block as soon as an episode ends.
        """
        n = self.env.n_envs
        quota = left = (amount + n - 1 - np.arange(n)) // n
        self._retire(quota == 0)
        length = 1
        while left.any():
            start = perf_counter()
            # A step adds at most one transition or episode, so no sub-environment exceeds its share.
            self._advance(min(length, int(left[self.live].min())), eager)
            made = self.episodes if unit == "episodes" else self._transitions()
            left = np.where(self.live, quota - made, 0)
            self._retire(left == 0)
            if unit == "episodes":
                self._check_length()
            length = min(4 * length, BLOCK) if perf_counter() - start < MAX_BLOCK_SECONDS else max(1, length // 4)
            yield amount - int(left.sum())

    def truncate(self, longer_than: int) -> None:
        """End running segments that have more transitions than `longer_than`; their episodes continue."""
        self._truncate(self._is_running() & (self.recorder.time - self.starts > longer_than))

    def pop(self) -> Trajectories | None:
        """Return and remove the segments that ended, by sub-environment and then by time; None if there are none."""
        if not self.recorder.segments:
            return None
        data = self.recorder.pop(self.gamma)
        shift = self.recorder.drop(before=min(self.recorder.time, int(self.starts.min())))
        self.begins -= shift
        self.starts[self.live] -= shift
        return data

    # ----------------------------------------------------------------------------------------- stepping

    def _advance(self, n_steps: int, eager: bool) -> None:
        """Make a block of steps. This loop is the cost of a step, so all that can wait is done in `_record_block`."""
        env, policy, buffer = self.env, self.policy, self.buffer
        who = ""
        try:
            for i in range(n_steps):
                who = "policy"
                actions = env.actions(policy(self.observations, self.starting, self.active))
                buffer.actions[i] = actions
                self.n_actions = i + 1
                who = "environment"
                step = env.step(actions)
                buffer.rewards[i] = step.rewards
                buffer.states[i] = step.states
                buffer.terminated[i] = step.terminated
                buffer.truncated[i] = step.truncated
                if step.final_states is not None:
                    n_ended = np.count_nonzero(buffer.terminated[i] | buffer.truncated[i])
                    if len(step.final_states) != n_ended:
                        raise ValueError(f"{n_ended} episodes ended, with {len(step.final_states)} final observations")
                    self.final_states.append(step.final_states)
                self.n_steps = i + 1
                self.observations = step.observations
                if policy.needs_episode_flags or eager:
                    self._set_flags(done := step.terminated | step.truncated)
                    if eager and done.any():
                        break
        except Exception as error:
            self._record_block()  # which may find an earlier cause
            raise self._explain(error, who) from error
        self._record_block()

    def _set_flags(self, done: BoolArray) -> None:
        if self.env.restart_steps:  # an episode is done, then restarting, then starting
            self.starting, self.active = self.live > self.active, self.live > done
        else:
            self.starting = done

    def _record_block(self) -> None:
        """Record the steps of the buffer up to the first invalid value."""
        buffer, begin = self.buffer, self.recorder.time
        times, envs = np.nonzero(buffer.terminated[: self.n_steps] | buffer.truncated[: self.n_steps])
        if self.env.restart_steps:  # an ended episode shows its final state until it restarts
            final_states = buffer.states[times, envs]
        else:
            final_states = np.concatenate([*self.final_states, buffer.states[:0, 0]])
        violation = find_violation(
            buffer,
            self.n_actions,
            self.n_steps,
            (times, envs),
            final_states,
            self.live,
            self.action_check,
            self.env.observations,
        )
        n_steps = self.n_steps if violation is None else violation.step + (violation.kind == NEXT_EPISODE)
        self.n_actions = self.n_steps = 0
        self.final_states.clear()
        self.steps += n_steps
        self.recorder.append(buffer, n_steps)
        recorded = (times < n_steps) & self.live[envs]
        times, envs, final_states = times[recorded], envs[recorded], final_states[recorded]
        if envs.size:
            self._end_episodes(begin + times + 1, envs, final_states, buffer.terminated[times, envs])
        if violation is not None:
            step = begin + violation.step + (violation.kind != ACTION) - int(self.begins[violation.env])
            raise self._failure(violation.message, violation.env, step)

    # ----------------------------------------------------------------------------------------- segments

    def _end_episodes(self, stops: IntArray, envs: IntArray, final_states: Numbers, terminated: BoolArray) -> None:
        order = np.argsort(envs, kind="stable")  # by time within each sub-environment
        stops, envs, final_states, terminated = stops[order], envs[order], final_states[order], terminated[order]
        next_starts = stops + self.env.restart_steps
        again = np.diff(envs, prepend=-1) == 0  # not the first to end in its sub-environment
        starts = np.where(again, np.roll(next_starts, 1), self.starts[envs])
        self.recorder.segments.append(SegmentRanges(envs, starts, stops, final_states, terminated))
        self.starts[envs] = next_starts
        self.begins[envs] = next_starts
        self.episodes += np.bincount(envs, minlength=len(self.episodes))

    def _truncate(self, mask: BoolArray) -> None:
        """End segments here while their episodes continue."""
        envs, now = np.flatnonzero(mask), self.recorder.time
        if envs.size:
            stops, terminated = np.full(len(envs), now), np.zeros(len(envs), dtype=bool)
            final_states = self.recorder.states[envs, now]
            self.recorder.segments.append(SegmentRanges(envs, self.starts[envs], stops, final_states, terminated))
            self.starts[envs] = now

    def _retire(self, envs: BoolArray) -> None:
        """Stop recording these sub-environments."""
        self._truncate(self._is_running() & envs)
        self.starts[envs] = NEVER
        self.live = self.live & ~envs
        self.active = self.active & ~envs

    def _is_running(self) -> BoolArray:
        return self.starts < self.recorder.time

    def _transitions(self) -> IntArray:
        """Transitions per sub-environment: all batched steps except restarts."""
        still_to_restart = np.maximum(self.starts - self.recorder.time, 0)
        return self.steps - self.env.restart_steps * self.episodes + still_to_restart

    # ----------------------------------------------------------------------------------------- errors

    def _check_length(self) -> None:
        """Give up on episodes that do not end, before they fill the memory."""
        limit = max(MAX_EPISODE, (self.env.spec and self.env.spec.max_episode_steps) or 0)
        for i in np.flatnonzero(self.live & (self.recorder.time - self.begins > limit)).tolist():
            raise self._failure(f"the episode has not ended within {limit:,} steps: collect n_transitions instead", i)
        if self.recorder.capacity - self.recorder.time >= BLOCK:
            return
        needed, free = 2 * self.recorder.n_bytes, available_bytes()
        if free is not None and needed > free:
            raise self._failure(
                f"more transitions take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: "
                "collect fewer, or write them to disk with collect_to_minari"
            )

    def _explain(self, error: Exception, who: str) -> CollectionError:
        if isinstance(error, OutsideSpaceError):
            step = self.recorder.time - int(self.begins[error.row])  # of the state that the action was taken in
            is_reached = who == "environment" and not error.is_first
            return self._failure(f"the {who}'s {error}", error.row, step + is_reached)
        if isinstance(error, CollectionError):
            return self._failure(str(error))
        return self._failure(f"the {who} failed: {_name(error)}")

    def _failure(self, message: str, env: int | None = None, step: int | None = None) -> CollectionError:
        """The error with its episode and step, by default the present ones, and all that was collected."""
        if env is None and self.env.n_envs > 1:
            where = f"step {self.steps} of all {self.env.n_envs} sub-environments"
        else:
            env = env or 0
            step = self.recorder.time - int(self.begins[env]) if step is None else step
            sub_env = f"sub-environment {env}, " if self.env.n_envs > 1 else ""
            where = f"{sub_env}episode {self.episodes[env]}, step {step}"
        self._truncate(self._is_running())
        return CollectionError(f"{message} ({where})", self.pop())


def _name(error: Exception) -> str:
    if isinstance(error, CollectionError):
        return str(error)
    return f"{type(error).__name__}: {error}"
