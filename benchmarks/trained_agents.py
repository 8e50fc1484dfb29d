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

import evaluation_environments  # noqa: F401  (registers the benchmark's own environments)
import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from gptd_rl.sb3 import load_agent, load_statistics
from gptd_rl.sb3.policies import NormalizedPolicy

FOLDER = Path(__file__).parent / "results" / "evaluate"


@dataclass(frozen=True, eq=False)
class Training:
    """How an agent was trained, and how it is evaluated.

    Attributes
    ----------
    deterministic : bool
        Whether the policy to evaluate takes its most likely action. On-policy agents are evaluated as the policies of
        their critics, which learn the value of sampled actions, unless rollouts are too expensive for a precise truth.
    both : bool
        Whether the agent is evaluated with the other kind of actions, too.
    normalize : bool
        Whether it was trained behind a `VecNormalize`, which is kept beside it.
    design : bool
        Whether the estimator was designed with this agent in view.
    is_deterministic : bool
        Whether the environment has no random transitions.
    n_rollouts : int
        From each state for the truth, if actions or transitions are random.
    """

    algorithm: Callable[..., BaseAlgorithm]
    env: str
    n_timesteps: int
    deterministic: bool
    n_envs: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    both: bool = False
    normalize: bool = False
    design: bool = False
    is_deterministic: bool = True
    n_rollouts: int = 200

    @property
    def name(self) -> str:
        return f"{getattr(self.algorithm, '__name__', '?').lower()}-{self.env.split('/')[-1]}"

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.zip"

    @property
    def statistics_path(self) -> Path:
        return FOLDER / f"{self.name}-vecnormalize.pkl"

    @property
    def modes(self) -> tuple[bool, ...]:
        """The values of `deterministic` to evaluate with."""
        return (self.deterministic, not self.deterministic) if self.both else (self.deterministic,)

    def agent(self) -> Any:
        """The kept agent, as a policy of raw observations."""
        model = load_agent(self.path)
        return NormalizedPolicy(model, load_statistics(self.statistics_path)) if self.normalize else model

    def train(self, seed: int = 0) -> BaseAlgorithm:
        """Train and keep the agent."""
        env: Any = make_vec_env(self.env, n_envs=self.n_envs, seed=seed)
        if self.normalize:
            env = VecNormalize(env, gamma=self.settings.get("gamma", 0.99))
        model = self.algorithm("MlpPolicy", env, seed=seed, device="cpu", **self.settings)
        model.learn(self.n_timesteps)
        for optimiser in optimisers(model):
            optimiser.state.clear()  # two thirds of the file, and only further training needs it
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.normalize:
            env.save(str(self.statistics_path))
        model.save(self.path, exclude=["replay_buffer"])
        return model


def optimisers(model: BaseAlgorithm) -> list[torch.optim.Optimizer]:
    """Every optimiser of a model."""
    parts = [model.policy, getattr(model.policy, "actor", None), getattr(model.policy, "critic", None)]
    found = [getattr(part, "optimizer", None) for part in parts] + [getattr(model, "ent_coef_optimizer", None)]
    return [optimiser for optimiser in found if optimiser is not None]


def small_net(*units: int) -> dict[str, Any]:
    return dict(policy_kwargs=dict(net_arch=list(units)))


DESIGN = (
    Training(sb3.A2C, "CartPole-v1", 40_000, deterministic=False, n_envs=8, both=True, design=True),
    Training(
        sb3.PPO,
        "Acrobot-v1",
        200_000,
        deterministic=False,
        n_envs=16,
        settings=dict(n_steps=256, gae_lambda=0.94, gamma=0.99, n_epochs=4, ent_coef=0.0),
        both=True,
        design=True,
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
        design=True,
    ),
    Training(
        sb3.SAC,
        "Pendulum-v1",
        20_000,
        deterministic=False,
        settings=dict(learning_rate=1e-3, policy_kwargs=dict(net_arch=[64, 64])),
        both=True,
        design=True,
    ),
)

FRESH = (
    Training(
        sb3.DQN,
        "CartPole-v1",  # half trained
        12_000,
        deterministic=True,
        settings=dict(
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=20_000,
            learning_starts=1000,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            exploration_fraction=0.16,
            exploration_final_eps=0.04,
            **small_net(64, 64),
        ),
    ),
    Training(
        sb3.DQN,
        "gptd_benchmarks/Blackjack-v0",
        40_000,
        deterministic=True,
        settings=dict(learning_rate=1e-3, learning_starts=1000, exploration_final_eps=0.1, **small_net(32, 32)),
        is_deterministic=False,
        n_rollouts=1500,
    ),
    Training(
        sb3.PPO,
        "gptd_benchmarks/TwoTanks-v0",
        100_000,
        deterministic=False,
        n_envs=8,
        settings=dict(n_steps=128, batch_size=256, gamma=0.98, **small_net(32, 32)),
    ),
    Training(
        sb3.PPO,
        "FrozenLake-v1",
        100_000,
        deterministic=False,
        n_envs=8,
        settings=dict(n_steps=256, batch_size=256, gamma=0.99, learning_rate=1e-3, **small_net(32, 32)),
        both=True,
        is_deterministic=False,
    ),
    Training(
        sb3.PPO,
        "Pendulum-v1",
        100_000,
        deterministic=False,
        n_envs=8,
        settings=dict(
            n_steps=256, batch_size=256, gamma=0.95, gae_lambda=0.95, learning_rate=1e-3, **small_net(64, 64)
        ),
        both=True,
        normalize=True,
    ),
    Training(
        sb3.TD3,
        "Pendulum-v1",
        6_000,
        deterministic=True,
        settings=dict(
            learning_rate=1e-3,
            gamma=0.98,
            learning_starts=500,
            buffer_size=10_000,
            action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)),
            **small_net(64, 64),
        ),
    ),
    Training(
        sb3.PPO,
        "Hopper-v5",
        60_000,
        deterministic=True,
        n_envs=8,
        settings=dict(n_steps=256, batch_size=256, gamma=0.98, learning_rate=1e-3, **small_net(64, 64)),
    ),
    Training(
        sb3.PPO,
        "LunarLander-v3",
        80_000,
        deterministic=False,
        n_envs=8,
        settings=dict(n_steps=512, batch_size=256, gamma=0.99, gae_lambda=0.98, n_epochs=4, **small_net(64, 64)),
        is_deterministic=False,
        n_rollouts=25,
    ),
    Training(
        sb3.PPO,
        "HalfCheetah-v5",
        60_000,
        deterministic=True,
        n_envs=8,
        settings=dict(n_steps=256, batch_size=256, gamma=0.98, learning_rate=1e-3, **small_net(64, 64)),
    ),
    Training(
        sb3.PPO,
        "BipedalWalker-v3",
        60_000,
        deterministic=True,
        n_envs=8,
        settings=dict(n_steps=512, batch_size=256, gamma=0.99, learning_rate=1e-3, **small_net(64, 64)),
    ),
    Training(
        sb3.PPO,
        "MountainCarContinuous-v0",
        24_000,
        deterministic=True,
        settings=dict(
            n_steps=64,
            batch_size=64,
            gamma=0.99,
            learning_rate=3e-4,
            ent_coef=0.004,
            gae_lambda=0.9,
            max_grad_norm=5,
            vf_coef=0.19,
            use_sde=True,
            policy_kwargs=dict(net_arch=[64, 64], log_std_init=-3.29, ortho_init=False),
        ),
        normalize=True,
    ),
)

TRAININGS = DESIGN + FRESH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--again", action="store_true", help="train all of them, those that exist, too")
    parser.add_argument("--only", nargs="*", default=[], help="names of some of them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for training in TRAININGS:
        if args.only and training.name not in args.only:
            continue
        if training.path.exists() and not args.again:
            print(f"{training.name}: exists")
            continue
        began = time.process_time()
        training.train()
        print(f"{training.name}: trained in {time.process_time() - began:.0f} processor seconds", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
