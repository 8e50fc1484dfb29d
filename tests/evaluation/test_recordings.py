"""Recorded episodes: which, what they hold, and environments that cannot be drawn."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.evaluation.environments import open_environment
from gptd_rl.evaluation.recordings import N_CANDIDATES, N_FRAMES, N_MOMENTS, record_episodes
from gptd_rl.report.recorded import Recordings
from gptd_rl.types import Array


class Walk(gym.Env):
    """A walk from a random place to 1 that costs 1 a step, drawn as a stripe."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (as Gymnasium declares it)
    observation_space: Any = spaces.Box(-1.0, 2.0, (1,), np.float64)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, stride: float = 0.1) -> None:
        self.render_mode, self.stride, self.x, self.n_drawn = render_mode, stride, 0.0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(0.0, 0.9))
        return np.array([self.x]), {}

    def step(self, action):
        self.x += self.stride
        return np.array([self.x]), -1.0, self.x >= 1.0, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        picture = np.zeros((20, 30, 3), np.uint8)
        picture[:, : int(20 * self.x)] = 255
        return picture


class Value:
    """V(x) = 10 x ± 1."""

    def predict(self, states: Any) -> Array:
        return 10 * np.asarray(states)[:, 0]

    def confidence_interval(self, states: Any, level: float = 0.95) -> tuple[Array, Array]:
        return self.predict(states) - 1, self.predict(states) + 1


def go(observation: Any) -> int:
    return 1


def record(env: Any, frames: bool = True, gamma: float = 0.9, critic: Any = None, policy: Any = go) -> Recordings:
    with open_environment(env, policy, 10) as (opened, act):
        return record_episodes(opened, act, Value(), critic, gamma=gamma, seed=3, deterministic=True, frames=frames)


def test_record_episodes_chooses_by_return():
    found = record(Walk())
    best, typical, worst = found.episodes
    assert [r.name for r in found.episodes] == ["best", "typical", "worst"] and found.n_candidates == N_CANDIDATES
    starts = {}
    env = Walk()
    for seed in np.random.SeedSequence([3, N_CANDIDATES]).generate_state(N_CANDIDATES, np.uint32).tolist():
        starts[seed] = env.reset(seed=seed)[0][0]
    totals = sorted(-np.ceil((1 - x) / 0.1 - 1e-9) for x in starts.values())
    assert (worst.total, typical.total, best.total) == (totals[0], totals[4], totals[-1])
    for r in found.episodes:
        assert r.states[0, 0] == starts[r.seed]  # the seed starts the same episode again
        assert r.n_steps == -r.total and r.end == "terminated"
        assert_array_equal(r.steps, np.arange(r.n_steps + 1))


def test_record_episodes_values_beside_the_return_that_followed():
    worst = record(Walk(), critic=lambda states: 7 + states[:, 0]).episodes[2]
    n = worst.n_steps
    assert_allclose(worst.followed, [-(1 - 0.9 ** (n - t)) / 0.1 for t in range(n + 1)], atol=1e-12)
    assert_allclose(worst.predicted[:-1], 10 * worst.states[:-1, 0])
    assert_allclose(worst.upper[:-1] - worst.lower[:-1], 2.0)
    assert worst.critic is not None
    assert_allclose(worst.critic[:-1], 7 + worst.states[:-1, 0])
    for unknown in (worst.predicted, worst.lower, worst.upper, worst.critic):
        assert np.isnan(unknown[-1]) and np.isfinite(unknown[:-1]).all()  # V of a terminal state is not asked for
    assert np.isnan(worst.rewards[-1]) and (worst.rewards[:-1] == -1).all()


def test_record_episodes_truncated_after_many_steps():
    found = record(TimeLimit(Walk(stride=1e-4), 500), gamma=1.0)
    assert found.note == ""
    for r in found.episodes:
        assert r.end == "truncated" and r.n_steps == 500 and len(r.steps) == N_MOMENTS and len(r.frames) == N_FRAMES
        assert r.steps[0] == 0 and r.steps[-1] == 500 and (np.diff(r.steps) > 0).all()
        assert [r.frames[0].moment, r.frames[-1].moment] == [0, N_MOMENTS - 1]
        assert r.followed[0] == pytest.approx(-500 + r.predicted[-1])  # the value stands for the rest
        assert np.isfinite(r.predicted).all()


def test_record_episodes_draws_only_the_chosen(monkeypatch):
    drawn: list[float] = []
    render = Walk.render

    def counted(self: Walk) -> Any:
        drawn.append(self.x)
        return render(self)

    monkeypatch.setattr(Walk, "render", counted)
    found = record(Walk())
    assert_array_equal(drawn, np.concatenate([r.states[:, 0] for r in found.episodes]))
    assert found.media_type.startswith("image/") and all(len(r.frames) == len(r.steps) for r in found.episodes)
    assert len({frame.data for frame in found.episodes[2].frames}) > 3
    drawn.clear()
    without = record(Walk(), frames=False)
    assert drawn == [] and without.note == "" and [len(r.frames) for r in without.episodes] == [0, 0, 0]
    assert_array_equal(without.episodes[0].states, found.episodes[0].states)


def test_record_episodes_of_wrapped_and_registered_environments():
    assert record("CartPole-v1", policy=lambda obs: int(obs[2] + obs[3] > 0)).note == ""
    assert record("gptd_rl/LatentGridworld-v0", policy=None).note == ""
    assert all(r.frames for r in record(TimeLimit(Walk(), 50)).episodes)


class Undrawn(Walk):
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012


class Breaks(Walk):
    def render(self) -> Any:
        raise RuntimeError("no\nscreen.")


class Nothing(Walk):
    def render(self) -> Any:
        return None


class Forgetful(Walk):
    """Starts elsewhere, whatever the seed."""

    n_starts = 0

    def reset(self, *, seed=None, options=None):
        Forgetful.n_starts += 1
        super().reset(seed=seed)
        self.x = 0.5 + 1e-3 * Forgetful.n_starts
        return np.array([self.x]), {}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Undrawn, "the environment has no render mode rgb_array."),
        (Breaks, "RuntimeError: no screen."),
        (Nothing, "TypeError: render() must return an array of uint8"),
        (Forgetful, "the environment does not repeat an episode from its seed."),
    ],
)
def test_record_episodes_without_pictures(env, words: str):
    found = record(env())
    assert found.note.startswith("The episodes have no pictures: ") and words in found.note and "\n" not in found.note
    assert len(found.episodes) == 3 and not any(r.frames for r in found.episodes) and found.media_type == ""


def test_record_episodes_without_pygame(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    found = record("CartPole-v1", policy=None)
    assert found.note.startswith("The episodes have no pictures: ") and "pygame" in found.note
    assert len(found.episodes) == 3


def test_record_episodes_refuses_mujoco_without_a_display(monkeypatch):
    """Its window library would abort the process."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Walk, "mujoco_renderer", None, raising=False)
    assert "MuJoCo needs a display, or the environment variable MUJOCO_GL=egl or osmesa" in record(Walk()).note
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert record(Walk()).note == ""


class NoCopies(Walk):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no copies")


def test_record_episodes_makes_environments_again_that_cannot_be_copied():
    gym.register("NoCopies-v0", lambda **options: NoCopies(**options), disable_env_checker=True)
    try:
        found = record("NoCopies-v0")
        assert found.note == "" and all(r.frames for r in found.episodes)
    finally:
        gym.registry.pop("NoCopies-v0")
    bare = record(NoCopies())
    assert bare.episodes == () and bare.note == (
        "No episodes were recorded: the environment can neither be copied nor made again."
    )


def test_record_episodes_is_reproducible():
    one, two = record(Walk()), record(Walk())
    for a, b in zip(one.episodes, two.episodes, strict=True):
        assert a.seed == b.seed and a.frames == b.frames
        assert_array_equal(a.followed, b.followed)
