"""Values with intervals during training: `GPTDEvalCallback` logs them to TensorBoard, with the importance of inputs.

A2C learns to walk to the middle column of the paper's gridworld; each step costs 1, and y does not matter. As the
policy improves, its value rises to the optimum, and the importance of y vanishes. The curves are read from the files of
TensorBoard and printed. To see them there: tensorboard --logdir runs
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from gptd_rl.agents import TowardsMiddle
from gptd_rl.evaluation import GPTDEvalCallback


@dataclass
class Arguments:
    """Arguments of the example."""

    env: str = "gptd_rl/LatentGridworld-v0"
    n_steps: int = 20_000
    n_envs: int = 8
    n_evaluations: int = 5
    n_transitions: int = 500  # of each evaluation
    seed: int = 0
    log: Path = Path("runs")


def main(args: Arguments) -> GPTDEvalCallback:
    """Train with the callback, and print the curves that it logged."""
    torch.set_num_threads(1)  # the networks are too small for more
    callback = GPTDEvalCallback(
        args.env,  # not that of the training
        eval_freq=args.n_steps // args.n_envs // args.n_evaluations,  # one call for all environments
        n_transitions=args.n_transitions,
    )
    envs = make_vec_env(args.env, args.n_envs, seed=args.seed)
    model = A2C("MlpPolicy", envs, seed=args.seed, device="cpu", tensorboard_log=str(args.log))
    model.learn(args.n_steps, callback=callback)

    events = EventAccumulator(model.logger.dir).Reload()
    keys = ["value", "value_lower", "value_upper", "coverage", "rmse", "critic_rmse", "importance/x", "importance/y"]
    curves = [events.Scalars(f"gptd/{key}") for key in keys]
    print(f"{'steps':>7}", *(f"{key:>12}" for key in keys))
    for points in zip(*curves, strict=True):
        print(f"{points[0].step:7d}", *(f"{point.value:12.3g}" for point in points))
    print(f"value of the optimal policy, for comparison: {best_value(args):.2f}")
    print(f"files for TensorBoard: {model.logger.dir}")
    return callback


def best_value(args: Arguments) -> float:
    """Value of the optimal policy, averaged over start states."""
    env = gym.make(args.env)
    starts = [env.reset(seed=i)[0] for i in range(1_000)]
    return float(TowardsMiddle().value(starts, gamma=0.99).mean())


if __name__ == "__main__":
    main(Arguments(n_steps=800, n_evaluations=1, n_transitions=200) if "--small" in sys.argv else Arguments())
