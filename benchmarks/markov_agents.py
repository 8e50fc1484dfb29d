"""Trained agents for the test of the Markov property: what they see, and with velocities hidden.

The agents are those of `trained_agents.py`; each acts by its most likely actions, and by sampled ones. With the first
kind nothing is random but where episodes start.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from trained_agents import TRAININGS, Training

import gptd_rl
from gptd_rl import Trajectories
from gptd_rl.sb3 import load_agent

# Places and angles of the observations, by environment.
STILL = {"CartPole-v1": [0, 2], "Acrobot-v1": [0, 1, 2, 3], "Pendulum-v1": [0, 1], "PendulumSwingUp-v0": [0]}


@dataclass(frozen=True)
class AgentSystem:
    """An agent in its environment, and what is seen of it."""

    training: Training
    deterministic: bool
    hides_velocities: bool = False
    n_transitions: int = 1500

    @property
    def name(self) -> str:
        actions = "most likely actions" if self.deterministic else "sampled actions"
        return f"{self.training.name}, {actions}" + (", without velocities" if self.hides_velocities else "")

    def sample(self, seed: int, n_transitions: int | None = None) -> Trajectories:
        """Episodes until there are so many transitions."""
        data = _collected(self.training, self.deterministic, seed, n_transitions or self.n_transitions)
        return data.take_inputs(STILL[self.training.env.split("/")[-1]]) if self.hides_velocities else data


@cache
def _agent(training: Training) -> Any:
    torch.set_num_threads(1)
    return load_agent(training.path)


@cache
def _collected(training: Training, deterministic: bool, seed: int, n_transitions: int) -> Trajectories:
    torch.manual_seed(seed)
    agent = _agent(training)
    return gptd_rl.collect(
        training.env,
        agent,
        n_transitions=n_transitions,
        gamma=agent.gamma,
        seed=100 * seed,
        deterministic=deterministic,
    )


def agent_systems(hides_velocities: bool = False) -> list[AgentSystem]:
    """The four agents with both kinds of actions."""
    return [AgentSystem(t, actions, hides_velocities) for t in TRAININGS for actions in (True, False)]
