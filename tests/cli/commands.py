"""Helpers for the tests of the command line."""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from gptd_rl.agents.reference.gridworld import TowardsMiddle
from gptd_rl.cli.main import main, parser

GRID = "gptd_rl/LatentGridworld-v0"


Capture = pytest.CaptureFixture[str]


COMMANDS = ("collect", "evaluate", "compare", "iterate", "plot", "reproduce")


def subparsers() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def run(*arguments: object) -> int:
    """Exit code of a command, returned or raised."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)


def error_line(capsys: Capture) -> str:
    """The one line on stderr; nothing is on stdout."""
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and error.startswith("gptd-rl"), (out, error)
    return error


class StandIn:
    """A policy with the spaces of the gridworld, that records how it is called."""

    gamma = 0.95

    def __init__(self) -> None:
        env = gym.make(GRID)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.asked: list[bool] = []
        self.seeds: list[int] = []
        self.policy = TowardsMiddle()

    def set_random_seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def predict(self, observation: Any, deterministic: bool = False) -> tuple[Any, None]:
        self.asked.append(deterministic)
        return self.policy.predict(observation)[0], None


class Breaks(gym.Env[Any, Any]):
    """An environment that raises an error after `n` steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, n: int = 3, image: bool = False) -> None:
        self.left = n
        if image:
            self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)  # type: ignore[arg-type]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the robot\nfell over")
        return np.full(1, 0.1 * (self.left % 7), np.float32), 1.0, self.left % 5 == 0, False, {}
