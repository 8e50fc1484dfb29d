"""The agents that `benchmarks/evaluate.py` evaluates, trained once and kept as Stable-Baselines3 archives.

python benchmarks/trained_agents.py            # train the missing ones
python benchmarks/trained_agents.py --again    # train all of them again
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stable_baselines3 as sb3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env

import gptd_rl  # noqa: F401  (registers the swing-up)

FOLDER = Path(__file__).parent / "results" / "evaluate"


@dataclass(frozen=True, eq=False)
class Training:
    """How an agent was trained, and how it is evaluated.

    Attributes
    ----------
    deterministic : bool
        Whether the policy to evaluate takes its most likely action. Each agent is evaluated as the policy of its
        critic: A2C, PPO and SAC learn the value of sampled actions, DQN that of greedy ones.
    """

    algorithm: Callable[..., BaseAlgorithm]
    env: str
    n_timesteps: int
    deterministic: bool
    n_envs: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{getattr(self.algorithm, '__name__', '?').lower()}-{self.env.split('/')[-1]}"

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.zip"

    def train(self, seed: int = 0) -> BaseAlgorithm:
        """Train and keep the agent."""
        env = make_vec_env(self.env, n_envs=self.n_envs, seed=seed)
        model = self.algorithm("MlpPolicy", env, seed=seed, device="cpu", **self.settings)
        model.learn(self.n_timesteps)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        model.save(self.path, exclude=["replay_buffer"])
        return model


TRAININGS = (
    Training(sb3.A2C, "CartPole-v1", 40_000, deterministic=False, n_envs=8),
    Training(
        sb3.PPO,
        "Acrobot-v1",
        200_000,
        deterministic=False,
        n_envs=16,
        settings=dict(n_steps=256, gae_lambda=0.94, gamma=0.99, n_epochs=4, ent_coef=0.0),
    ),
    Training(
        sb3.DQN,
        "gptd_rl/PendulumSwingUp-v0",
        50_000,
        deterministic=True,
        settings=dict(
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100_000,
            learning_starts=1000,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            exploration_fraction=0.16,
            exploration_final_eps=0.04,
            policy_kwargs=dict(net_arch=[64, 64]),
        ),
    ),
    Training(
        sb3.SAC,
        "Pendulum-v1",
        20_000,
        deterministic=False,
        settings=dict(learning_rate=1e-3, policy_kwargs=dict(net_arch=[64, 64])),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--again", action="store_true", help="train all of them, existing ones too")
    parser.add_argument("--only", nargs="*", default=[], help="names of some of them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for training in TRAININGS:
        if args.only and training.name not in args.only:
            continue
        if training.path.exists() and not args.again:
            print(f"{training.name}: exists")
            continue
        began = time.perf_counter()
        training.train()
        print(f"{training.name}: trained in {time.perf_counter() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
