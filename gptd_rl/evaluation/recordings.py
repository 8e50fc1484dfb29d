"""Episodes to watch: run some fresh ones, and draw the best, a typical and the worst of them.

Only the chosen episodes are drawn: they are played again, from the same seeds and by the same actions.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gptd_rl.checks import one_line
from gptd_rl.data.spaces import flattener, stack
from gptd_rl.evaluation.environments import Environment
from gptd_rl.evaluation.fitting import Tick
from gptd_rl.evaluation.frames import as_picture, encode
from gptd_rl.evaluation.start_states import longest_episode, step
from gptd_rl.report.recorded import Frame, Recording, Recordings
from gptd_rl.report.records import ValueFunction
from gptd_rl.report.slices import subsample
from gptd_rl.rollouts.policies import EpisodePolicy
from gptd_rl.types import Array, IntArray, Policy

N_CANDIDATES = 10
N_MOMENTS = 120  # of an episode
N_FRAMES = 60  # of an episode

Name = Literal["best", "typical", "worst"]
GymEnv = gym.Env[Any, Any]


class NotRecordedError(Exception):
    """Why an environment cannot be recorded or drawn."""


def record_episodes(
    env: Environment,
    policy: Policy,
    value: ValueFunction,
    critic: Callable[[Array], Array] | None,
    *,
    gamma: float,
    seed: int,
    deterministic: bool,
    frames: bool,
    tick: Tick = lambda done, total: None,
) -> Recordings:
    """Record the best, a typical and the worst of some fresh episodes.

    Nothing here is an error: an environment that cannot be drawn is recorded without pictures, one that can neither be
    copied nor made again is not recorded, and `Recordings.note` says why.

    Parameters
    ----------
    env : Environment
    policy : as for `gptd_rl.collect`
    value : ValueFunction
    critic : callable or None
        States of shape (m, n_dims) to values of shape (m,).
    gamma : float
    seed : int
    deterministic : bool
    frames : bool
        Whether to draw pictures.
    tick : callable
        Called as ``tick(done, total)``.
    """
    seeds = np.random.SeedSequence([seed, N_CANDIDATES]).generate_state(N_CANDIDATES, np.uint32).tolist()
    try:
        with _opened(env, None, len(seeds)) as envs:
            chosen = _chosen(_run(envs, policy, seeds, deterministic))
    except Exception as error:  # noqa: BLE001  (recordings are an extra: no error of theirs may lose an evaluation)
        return Recordings(note=f"No episodes were recorded: {_reason(error)}.")
    tick(1, 2)
    made = tuple(_recording(name, episode, value, critic, gamma) for name, episode in chosen.items())
    recordings = Recordings(made, len(seeds))
    if not frames:
        return recordings
    try:
        shown = [subsample(np.arange(len(r.steps)), N_FRAMES) for r in made]
        steps = [r.steps[moments] for r, moments in zip(made, shown, strict=True)]
        pictures = _draw(env, list(chosen.values()), steps)
        media_type, encoded = encode(pictures)
    except Exception as error:  # noqa: BLE001  (drawing runs code of the environment, which may raise anything)
        return replace(recordings, note=f"The episodes have no pictures: {_reason(error)}.")
    drawn = [
        replace(recording, frames=tuple(Frame(int(moments[i]), data) for i, data in kept))
        for recording, moments, kept in zip(made, shown, encoded, strict=True)
    ]
    return replace(recordings, episodes=tuple(drawn), media_type=media_type)


def _reason(error: Exception) -> str:
    """Why something failed, as part of a sentence."""
    text = one_line(error).rstrip(".")
    return text if isinstance(error, NotRecordedError) else f"{type(error).__name__}: {text}"


# -------------------------------------------------------------------------------------- environments


@contextmanager
def _opened(env: Environment, render_mode: str | None, n: int) -> Iterator[list[GymEnv]]:
    """Environments of our own: copies, or made again where it cannot be copied."""
    with ExitStack() as stack:
        if env.template_env is not None:
            envs = [copy.deepcopy(env.template_env) for _ in range(n)]
            for one in envs:
                one.unwrapped.render_mode = render_mode
        else:
            envs = [stack.enter_context(closing(_made_again(env, render_mode))) for _ in range(n)]
        yield envs


def _made_again(env: Environment, render_mode: str | None) -> GymEnv:
    first = getattr(env.vector_env, "envs", [env.vector_env])[0]
    spec = getattr(first, "spec", None) or getattr(env.vector_env, "spec", None)
    if spec is None:
        raise NotRecordedError("the environment can neither be copied nor made again")
    made = gym.make(spec, render_mode=render_mode)
    if (made.observation_space, made.action_space) != (env.observation_space, env.action_space):
        made.close()
        raise NotRecordedError(f"{spec.id}, made again, has other spaces")
    return made


# -------------------------------------------------------------------------------------- episodes


@dataclass(frozen=True, eq=False)
class _Played:
    """A complete episode: states of shape (n + 1, n_dims), n actions and n rewards."""

    seed: int
    states: Array
    actions: list[Any]
    rewards: Array
    terminated: bool


def _run(envs: Sequence[GymEnv], policy: Policy, seeds: Sequence[int], deterministic: bool) -> list[_Played]:
    """One episode in each environment, all together."""
    n, space = len(envs), envs[0].observation_space
    act = EpisodePolicy(policy, space, envs[0].action_space, n, seed=seeds[0], deterministic=deterministic)
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    seen: list[list[Any]] = [[copy.deepcopy(observation)] for observation in observations]
    actions: list[list[Any]] = [[] for _ in envs]
    rewards: list[list[float]] = [[] for _ in envs]
    running, terminated = np.ones(n, dtype=bool), np.zeros(n, dtype=bool)
    for _ in range(longest_episode(envs[0])):
        chosen = act(observations, running)
        for i in np.flatnonzero(running).tolist():
            actions[i].append(copy.deepcopy(chosen[i]))
            observations[i], reward, terminated[i], truncated = step(envs[i], chosen[i])
            seen[i].append(copy.deepcopy(observations[i]))
            rewards[i].append(reward)
            running[i] = not (terminated[i] or truncated)
        if not running.any():
            break
    as_states = [np.asarray(flattener(space)(stack(space, rows)), dtype=np.float64) for rows in seen]
    return [_Played(seeds[i], as_states[i], actions[i], np.array(rewards[i]), bool(terminated[i])) for i in range(n)]


def _chosen(episodes: Sequence[_Played]) -> dict[Name, _Played]:
    """The episodes with the highest, the median and the lowest return."""
    order = np.argsort([-episode.rewards.sum() for episode in episodes], kind="stable")
    return {"best": episodes[order[0]], "typical": episodes[order[len(order) // 2]], "worst": episodes[order[-1]]}


def _recording(
    name: Name, episode: _Played, value: ValueFunction, critic: Callable[[Array], Array] | None, gamma: float
) -> Recording:
    """An episode beside the values of its states, at up to `N_MOMENTS` moments."""
    n = len(episode.rewards)
    steps = subsample(np.arange(n + 1), N_MOMENTS)
    states = episode.states[steps]
    unknown = np.where((steps == n) & episode.terminated, np.nan, 0.0)  # nothing follows a terminal state
    predicted = value.predict(states) + unknown
    lower, upper = (end + unknown for end in value.confidence_interval(states))
    followed = np.zeros(n + 1)
    followed[n] = 0.0 if episode.terminated else predicted[-1]
    for t in reversed(range(n)):
        followed[t] = episode.rewards[t] + gamma * followed[t + 1]
    return Recording(
        name=name,
        seed=episode.seed,
        total=float(episode.rewards.sum()),
        n_steps=n,
        end="terminated" if episode.terminated else "truncated",
        steps=steps,
        states=states,
        rewards=np.append(episode.rewards, np.nan)[steps],
        followed=followed[steps],
        predicted=predicted,
        lower=lower,
        upper=upper,
        critic=None if critic is None else np.asarray(critic(states), dtype=np.float64).reshape(-1) + unknown,
    )


# -------------------------------------------------------------------------------------- pictures


def _draw(env: Environment, episodes: Sequence[_Played], steps: Sequence[IntArray]) -> list[list[NDArray[np.uint8]]]:
    """Pictures of each episode at some of its steps."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with _opened(env, None, 1) as (one,):
        if "rgb_array" not in (one.metadata.get("render_modes") or ()):
            raise NotRecordedError("the environment has no render mode rgb_array")
        if hasattr(one.unwrapped, "mujoco_renderer"):
            _require_opengl()
    if not _has_display():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame needs none, and complains about it
    with _opened(env, "rgb_array", len(episodes)) as envs:
        return [_pictures(*each) for each in zip(envs, episodes, steps, strict=True)]


def _has_display() -> bool:
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _require_opengl() -> None:
    """Refuse MuJoCo without a display: its window library does not raise an error, it aborts the process."""
    if not _has_display() and os.environ.get("MUJOCO_GL", "").lower() not in ("egl", "osmesa"):
        raise NotRecordedError("MuJoCo needs a display, or the environment variable MUJOCO_GL=egl or osmesa")


def _pictures(env: GymEnv, episode: _Played, steps: IntArray) -> list[NDArray[np.uint8]]:
    """Pictures of an episode that is played again."""
    shown, found = set(steps.tolist()), []
    observation, _ = env.reset(seed=episode.seed)
    for t in range(len(episode.states)):
        if t > 0:
            observation = step(env, episode.actions[t - 1])[0]
        state = flattener(env.observation_space)(stack(env.observation_space, [observation]))[0]
        if not np.array_equal(np.asarray(state, dtype=np.float64), episode.states[t]):
            raise NotRecordedError("the environment does not repeat an episode from its seed")
        if t in shown:
            found.append(as_picture(env.render()))
    return found
