"""Evaluate a Stable-Baselines3 agent: its value, the relevance of its inputs, and a check. What ``make demo`` runs.

A small A2C learns CartPole, once: the archive is kept, and loaded without running code in it. Then the agent is
evaluated, and demo/index.html shows the results. It is a good agent, not a perfect one: compare its own critic.

    python examples/evaluate_sb3_agent.py [--out demo] [--small]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env

import gptd_rl
from gptd_rl.evaluation import Evaluation
from gptd_rl.sb3 import load_agent


@dataclass
class Arguments:
    """Arguments of the example."""

    out: Path = Path("demo")
    env: str = "CartPole-v1"
    n_steps: int = 30_000  # of training
    n_envs: int = 8
    n_transitions: int = 8_000  # of the evaluation
    seed: int = 0


def main(args: Arguments) -> Evaluation:
    """Train if there is no archive, load, evaluate, print, and write the page."""
    torch.set_num_threads(1)  # the networks are too small for more
    archive = args.out / f"a2c-{args.env}-{args.n_steps}-steps.zip"
    if not archive.exists():
        args.out.mkdir(parents=True, exist_ok=True)
        print(f"training for {args.n_steps} steps; the agent is kept in {archive}")
        envs = make_vec_env(args.env, args.n_envs, seed=args.seed)
        A2C("MlpPolicy", envs, seed=args.seed, device="cpu").learn(args.n_steps).save(archive)

    agent = load_agent(archive)
    evaluation = gptd_rl.evaluate_agent(agent, args.env, n_transitions=args.n_transitions, seed=args.seed)
    print(evaluation.summary())
    print(f"page: {evaluation.write(args.out)}")
    return evaluation


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Arguments.out, help="folder of the archive and the page")
    parser.add_argument("--small", action="store_true", help="a few seconds of everything")
    given = parser.parse_args()
    main(Arguments(given.out, n_steps=800, n_transitions=300) if given.small else Arguments(given.out))
