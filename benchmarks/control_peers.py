"""DQN, PPO and QR-DQN of Stable-Baselines3 on the control tasks, with the settings of rl-baselines3-zoo.

    python benchmarks/control_peers.py                                            train what is not cached yet
    python benchmarks/control_peers.py --algorithms dqn --tasks CartPole-v1 --rerun

The settings are those of hyperparams/dqn.yml (at ce95481), ppo.yml (at 208b6fd) and qrdqn.yml (at 04640c9) in
DLR-RM/rl-baselines3-zoo. The zoo has none for the gridworlds, the swing-ups, FrozenLake, and pendulum and car with five
forces: there two of its other entries are tried with the first seed, and the one that solves the task in fewer steps
(or comes closer) is kept for all. Training stops once the level is held, at the latest after the zoo's number of steps,
or 100 000 without an entry. QR-DQN needs sb3-contrib (benchmarks/requirements.txt).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from control_runs import EVERY, PACKAGES, RESULTS, LearningCurve, summary, versions, write
from control_tasks import TASKS, ControlTask, Run
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

ALGORITHMS = ("dqn", "ppo", "qrdqn")


def algorithm_class(algorithm: str) -> type[BaseAlgorithm]:
    """The class of an algorithm."""
    if algorithm == "qrdqn":
        from sb3_contrib import QRDQN

        return QRDQN
    return {"dqn": DQN, "ppo": PPO}[algorithm]


# -------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Settings:
    """An entry of the zoo.

    Attributes
    ----------
    source : str
        File and entry it comes from.
    n_timesteps : int
    hyperparameters : dict
        Keywords of the algorithm; "lin_0.1" falls linearly from 0.1 to 0.
    n_envs : int
    normalize : bool
        Whether `VecNormalize` scales observations and rewards.
    """

    source: str
    n_timesteps: int
    hyperparameters: dict[str, Any]
    n_envs: int = 1
    normalize: bool = False

    def without_entry(self) -> Settings:
        """The same for a task that the zoo does not have."""
        return Settings(f"{self.source}, borrowed", 100_000, self.hyperparameters, self.n_envs, self.normalize)

    def with_quantiles(self, n_quantiles: int) -> Settings:
        """The entry of qrdqn.yml, which is that of dqn.yml with a number of quantiles."""
        network = self.hyperparameters["policy_kwargs"] | dict(n_quantiles=n_quantiles)
        hyperparameters = self.hyperparameters | dict(policy_kwargs=network)
        return replace(self, source=self.source.replace("dqn.yml", "qrdqn.yml"), hyperparameters=hyperparameters)

    @property
    def eval_every(self) -> int:
        """Steps between evaluations: at most 400 of them, and the policy has changed in between."""
        p = self.hyperparameters
        update = p["n_steps"] * self.n_envs if "n_steps" in p else p["train_freq"]
        return max(EVERY, self.n_timesteps // 400, update)


_WIDE = dict(net_arch=[256, 256])
_DQN_CARTPOLE = Settings(
    "dqn.yml CartPole-v1",
    50_000,
    dict(
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs=_WIDE,
    ),
)
_DQN_MOUNTAIN_CAR = Settings(
    "dqn.yml MountainCar-v0",
    120_000,
    dict(
        learning_rate=4e-3,
        batch_size=128,
        buffer_size=10_000,
        learning_starts=1000,
        gamma=0.98,
        target_update_interval=600,
        train_freq=16,
        gradient_steps=8,
        exploration_fraction=0.2,
        exploration_final_eps=0.07,
        policy_kwargs=_WIDE,
    ),
)
_DQN_ACROBOT = Settings(
    "dqn.yml Acrobot-v1",
    100_000,
    dict(
        learning_rate=6.3e-4,
        batch_size=128,
        buffer_size=50_000,
        learning_starts=0,
        gamma=0.99,
        target_update_interval=250,
        train_freq=4,
        gradient_steps=-1,
        exploration_fraction=0.12,
        exploration_final_eps=0.1,
        policy_kwargs=_WIDE,
    ),
)
_PPO_CARTPOLE = Settings(
    "ppo.yml CartPole-v1",
    100_000,
    dict(
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate="lin_0.001",
        clip_range="lin_0.2",
    ),
    n_envs=8,
)
_PPO_MOUNTAIN_CAR = Settings(
    "ppo.yml MountainCar-v0",
    1_000_000,
    dict(n_steps=16, gae_lambda=0.98, gamma=0.99, n_epochs=4, ent_coef=0.0),
    n_envs=16,
    normalize=True,
)
_PPO_ACROBOT = Settings(
    "ppo.yml Acrobot-v1",
    1_000_000,
    dict(n_steps=256, gae_lambda=0.94, gamma=0.99, n_epochs=4, ent_coef=0.0),
    n_envs=16,
    normalize=True,
)
_PPO_PENDULUM = Settings(
    "ppo.yml Pendulum-v1 without its use_sde, which needs a continuous action",
    100_000,
    dict(n_steps=1024, gae_lambda=0.95, gamma=0.9, n_epochs=10, ent_coef=0.0, learning_rate=1e-3, clip_range=0.2),
    n_envs=4,
)
_PPO_MINIGRID = Settings(
    "ppo.yml MiniGrid-Empty-Random-5x5-v0",
    100_000,
    dict(
        n_steps=128,
        batch_size=64,
        gae_lambda=0.95,
        gamma=0.99,
        n_epochs=10,
        ent_coef=0.0,
        learning_rate=2.5e-4,
        clip_range=0.2,
    ),
    n_envs=8,
    normalize=True,
)

_QRDQN_CARTPOLE = _DQN_CARTPOLE.with_quantiles(10)
_QRDQN_MOUNTAIN_CAR = _DQN_MOUNTAIN_CAR.with_quantiles(25)
_QRDQN_ACROBOT = _DQN_ACROBOT.with_quantiles(25)

_DQN_BORROWED = (_DQN_CARTPOLE.without_entry(), _DQN_ACROBOT.without_entry())
_DQN_CAR_BORROWED = (_DQN_MOUNTAIN_CAR.without_entry(), _DQN_CARTPOLE.without_entry())
_QRDQN_BORROWED = (_QRDQN_CARTPOLE.without_entry(), _QRDQN_ACROBOT.without_entry())
_QRDQN_CAR_BORROWED = (_QRDQN_MOUNTAIN_CAR.without_entry(), _QRDQN_CARTPOLE.without_entry())
_PPO_GRID = (_PPO_CARTPOLE.without_entry(), _PPO_MINIGRID.without_entry())
_PPO_SWING_UP = (_PPO_CARTPOLE.without_entry(), _PPO_PENDULUM.without_entry())

CANDIDATES: dict[tuple[str, str], tuple[Settings, ...]] = {
    ("dqn", "LatentGridworld-1"): _DQN_BORROWED,
    ("dqn", "LatentGridworld-10"): _DQN_BORROWED,
    ("dqn", "PendulumSwingUp"): _DQN_BORROWED,
    ("dqn", "CartPole-v1"): (_DQN_CARTPOLE,),
    ("dqn", "MountainCar-v0"): (_DQN_MOUNTAIN_CAR,),
    ("dqn", "Acrobot-v1"): (_DQN_ACROBOT,),
    ("dqn", "Pendulum-v1"): _DQN_BORROWED,
    ("ppo", "LatentGridworld-1"): _PPO_GRID,
    ("ppo", "LatentGridworld-10"): _PPO_GRID,
    ("ppo", "PendulumSwingUp"): _PPO_SWING_UP,
    ("ppo", "CartPole-v1"): (_PPO_CARTPOLE,),
    ("ppo", "MountainCar-v0"): (_PPO_MOUNTAIN_CAR,),
    ("ppo", "Acrobot-v1"): (_PPO_ACROBOT,),
    ("ppo", "Pendulum-v1"): _PPO_SWING_UP,
    ("qrdqn", "LatentGridworld-1"): _QRDQN_BORROWED,
    ("qrdqn", "LatentGridworld-10"): _QRDQN_BORROWED,
    ("qrdqn", "PendulumSwingUp"): _QRDQN_BORROWED,
    ("qrdqn", "CartPole-v1"): (_QRDQN_CARTPOLE,),
    ("qrdqn", "MountainCar-v0"): (_QRDQN_MOUNTAIN_CAR,),
    ("qrdqn", "Acrobot-v1"): (_QRDQN_ACROBOT,),
    ("qrdqn", "Pendulum-v1"): _QRDQN_BORROWED,
    # the tasks that our agent was not designed on
    ("dqn", "LatentGridworld-slip"): _DQN_BORROWED,
    ("dqn", "MountainCarContinuous-v0"): _DQN_CAR_BORROWED,
    ("dqn", "CartPoleSwingUp"): _DQN_BORROWED,
    ("dqn", "FrozenLake8x8-v1"): _DQN_BORROWED,
    ("ppo", "LatentGridworld-slip"): _PPO_GRID,
    ("ppo", "MountainCarContinuous-v0"): (_PPO_MOUNTAIN_CAR.without_entry(), _PPO_CARTPOLE.without_entry()),
    ("ppo", "CartPoleSwingUp"): _PPO_SWING_UP,
    ("ppo", "FrozenLake8x8-v1"): (_PPO_CARTPOLE.without_entry(),),  # observations that VecNormalize cannot scale
    ("qrdqn", "LatentGridworld-slip"): _QRDQN_BORROWED,
    ("qrdqn", "MountainCarContinuous-v0"): _QRDQN_CAR_BORROWED,
    ("qrdqn", "CartPoleSwingUp"): _QRDQN_BORROWED,
    ("qrdqn", "FrozenLake8x8-v1"): _QRDQN_BORROWED,
}


def schedule(value: Any) -> Any:
    """The zoo's "lin_0.1" as a function of the share of training that is left; all else as it is."""
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    start = float(value.removeprefix("lin_"))
    return lambda left: left * start


# -------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Normalised:
    """Policy of an agent that was trained on normalised observations."""

    agent: BaseAlgorithm
    scale: VecNormalize

    def predict(self, observation: Any, *, deterministic: bool = True) -> tuple[Any, Any]:
        """Actions for observations as the environment gives them [n, D]."""
        return self.agent.predict(self.scale.normalize_obs(observation), deterministic=deterministic)


def train(algorithm: str, task: ControlTask, settings: Settings, seed: int, *, give_up_after: float = np.inf) -> Run:
    """One training, until the level is held."""
    env = make_vec_env(task.make, settings.n_envs, seed=seed)
    if settings.normalize:
        env = VecNormalize(env, gamma=settings.hyperparameters["gamma"])
    hyperparameters = {name: schedule(value) for name, value in settings.hyperparameters.items()}
    agent = algorithm_class(algorithm)("MlpPolicy", env, seed=seed, device="cpu", **hyperparameters)
    policy = Normalised(agent, env) if settings.normalize else agent
    run = Run(seed, settings.n_timesteps)
    ends = dict(stop_when_held=True, give_up_after=give_up_after)
    agent.learn(run.budget, LearningCurve(task, run, settings.eval_every, policy=policy, **ends))
    env.close()
    return run


def better(first: Run, second: Run) -> bool:
    """Whether the first held the level earlier; if neither held it, whether it ended with the higher return."""
    if first.held is None and second.held is None:
        return first.returns[-1] > second.returns[-1]
    return second.held is None or (first.held is not None and first.held < second.held)


# -------------------------------------------------------------------------------------- results


def path_of(algorithm: str, task: str) -> Path:
    """File of an algorithm's results on a task."""
    return RESULTS / f"{algorithm}-{task}.json"


def load(algorithm: str, task: str) -> list[Run]:
    """Cached trainings, none if there is no file."""
    path = path_of(algorithm, task)
    return [Run.from_json(entry) for entry in json.loads(path.read_text())["runs"]] if path.exists() else []


def train_all(algorithm: str, task: ControlTask, n_seeds: int, *, rerun: bool = False) -> list[Run]:
    """Trainings of an algorithm on a task, the cached ones being taken from their file; saved one by one."""
    path = path_of(algorithm, task.name)
    content: dict[str, Any] = dict(algorithm=algorithm, task=task.name, candidates=[])
    if path.exists() and not rerun:
        content = json.loads(path.read_text())
    settings = choose(algorithm, task, content)
    for seed in range(len(content["runs"]), n_seeds):
        run = train(algorithm, task, settings, seed)
        print(f"{algorithm} {task.name} seed {seed}: {summary(run)}", flush=True)
        content["runs"].append(run.to_json())
        write(path, content)
    return [Run.from_json(entry) for entry in content["runs"]][:n_seeds]


def choose(algorithm: str, task: ControlTask, content: dict[str, Any]) -> Settings:
    """The candidate that is best with seed 0; that training, and what became of the others, are put into `content`."""
    candidates = {settings.source: settings for settings in CANDIDATES[algorithm, task.name]}
    tried = {trial["source"] for trial in content["candidates"]}
    for source in [source for source in candidates if source not in tried]:
        best = Run.from_json(content["runs"][0]) if "runs" in content else None
        to_beat = best.held if best and best.held is not None else np.inf
        run = train(algorithm, task, candidates[source], seed=0, give_up_after=to_beat)
        print(f"{algorithm} {task.name} seed 0, {source}: {summary(run)}", flush=True)
        entry = run.to_json()
        trial = dict(source=source, held=run.held, steps=run.steps[-1], final_return=entry["returns"][-1])
        content["candidates"].append(trial)
        if best is None or better(run, best):
            content |= record(algorithm, candidates[source]) | dict(runs=[entry])
        write(path_of(algorithm, task.name), content)
    return candidates[content["settings"]["source"]]


def record(algorithm: str, settings: Settings) -> dict[str, Any]:
    """How a result came about: command, versions, settings."""
    return dict(
        command=f"python benchmarks/control_peers.py --algorithms {algorithm}",
        versions=versions((*PACKAGES, "sb3-contrib") if algorithm == "qrdqn" else PACKAGES),
        settings=dict(vars(settings)),
        eval_every=settings.eval_every,
    )


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="*", default=[*ALGORITHMS], choices=[*ALGORITHMS])
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rerun", action="store_true", help="train again what has been cached")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for algorithm in arguments.algorithms:
        for name in arguments.tasks:
            train_all(algorithm, TASKS[name], arguments.seeds, rerun=arguments.rerun)


if __name__ == "__main__":
    main()
