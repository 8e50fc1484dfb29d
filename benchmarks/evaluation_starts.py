"""The value from the start, evaluated many times: how often its interval holds, and how wide it is.

Beside it stands the mean discounted return of the completed episodes of the same transitions, with the interval of
its standard error: what Stable-Baselines3's `evaluate_policy` reports, discounted.
"""

from __future__ import annotations

import argparse
import functools
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from control_systems import SYSTEMS, rolled_out_values
from evaluation_contestants import returns_of
from evaluation_truth import SEED, action_probabilities, file_hash, mode, solved
from scipy import stats
from trained_agents import TRAININGS, Training

import gptd_rl
from gptd_rl import Trajectories

AGENTS = ("a2c-CartPole-v1", "ppo-TwoTanks-v0", "ppo-FrozenLake-v1")
N_STARTS = 20_000  # for the truth
FIRST = 50_000  # data sets of other parts have smaller seeds


@functools.cache
def start_truth(training: Training) -> float:
    """Mean of V^π over the distribution of starts."""
    agent, env = training.agent(), gym.make(training.env)
    torch.manual_seed(SEED)
    starts = np.array([env.reset(seed=SEED + i)[0] for i in range(N_STARTS)])
    if hasattr(env.unwrapped, "P"):
        values = solved(env.unwrapped.P, action_probabilities(agent, env, training.deterministic), agent.gamma)
        return float(values[starts].mean())

    def act(observations: Any) -> Any:
        return agent.predict(observations, deterministic=training.deterministic)[0]

    return float(rolled_out_values(SYSTEMS[training.env], act, starts.astype(np.float64), agent.gamma, 1)[0].mean())


def run_starts(args: argparse.Namespace, store: Any) -> None:
    """Evaluate each agent many times; what is stored is not run again."""
    chosen = [training for training in TRAININGS if training.name in AGENTS and training.name in args.agents]
    for index in range(1 if args.small else args.repeats):
        for training in chosen:
            key = dict(
                agent=training.name,
                mode=mode(training.deterministic),
                data_set=index,
                n_transitions=args.n_transitions,
                agent_hash=file_hash(training.path),
            )
            if store.find(key | ({} if args.label is None else dict(label=args.label))) is None:
                store.add(key, key | dict(label=args.label) | one_start(training, index, args.n_transitions))


def one_start(training: Training, index: int, n_transitions: int) -> dict[str, Any]:
    """One evaluation; the check on fresh episodes has no part in the value from the start, so it is small."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluation = gptd_rl.evaluate_agent(
            training.agent(),
            training.env,
            n_transitions=n_transitions,
            deterministic=training.deterministic,
            seed=FIRST + 1000 * index,
            n_episodes=2,
            n_states=2,
            analyse_inputs=False,
        )
    value = evaluation.start.value
    mean, half = mean_return(evaluation.data)
    return {
        "mean": value.estimate,
        "lower": value.lower,
        "upper": value.upper,
        "mean return": mean,
        "return half width": half,
        "truth": start_truth(training),
        "seconds": time.process_time() - began,
    }


def mean_return(data: Trajectories) -> tuple[float, float]:
    """Mean discounted return of completed episodes, with half the width of its 95 % interval."""
    returns, _ = returns_of(data)
    longest = data.lengths.max()
    completed = data.terminated | (data.lengths == longest)  # the time limit ends an episode, too
    of_episodes = returns[data.starts][completed]
    n = len(of_episodes)
    return float(of_episodes.mean()), float(stats.t.ppf(0.975, n - 1) * of_episodes.std(ddof=1) / np.sqrt(n))
