"""Environments and agents that options name; errors are one line."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gptd_rl.cli.terminal import BAD_ARGUMENTS, FAILED, CommandError, as_command_error
from gptd_rl.exceptions import CollectionError


def make_env(args: argparse.Namespace, n_envs: int = 1) -> Any:
    """The environment that the options name, or a vector environment of several."""
    import gymnasium as gym

    kwargs = dict(args.env_kwargs)
    # The code of an environment may raise any exception.
    with as_command_error(Exception, prefix=f"cannot make environment {args.env!r}: "):
        if n_envs == 1:
            return gym.make(args.env, **kwargs)
        return gym.make_vec(args.env, n_envs, vectorization_mode="sync", **kwargs)


def load_policy(path: Path, env: Any, args: argparse.Namespace, algo: str | None = None) -> Any:
    """Load an agent for `env`, with the statistics of ``--vecnormalize``; seeded if it samples its actions."""
    from gptd_rl.agents import PolicyIteration
    from gptd_rl.sb3.loading import load_agent, load_statistics
    from gptd_rl.sb3.policies import NormalizedPolicy, check_spaces

    with as_command_error(ValueError, OSError):
        if _is_policy_iteration(path):
            policy: Any = PolicyIteration.load(path, env)
        else:
            policy = load_agent(path, algo=algo)
        _seed(policy, args)
        if args.vecnormalize is not None:
            policy = NormalizedPolicy(policy, load_statistics(args.vecnormalize))
        check_spaces(policy, env)
        return policy


def load_zoo(args: argparse.Namespace) -> Any:
    """Load the folder of rl-zoo that ``--zoo`` names; its agent is seeded if it samples its actions."""
    from gptd_rl.sb3.zoo import load_zoo

    with as_command_error(ValueError, OSError):
        run = load_zoo(args.zoo, algo=args.algo, env_id=args.env, env_kwargs=dict(args.env_kwargs))
        _seed(run.policy, args)
        return run


def _seed(policy: Any, args: argparse.Namespace) -> None:
    """Seed an agent that samples its actions."""
    model = getattr(policy, "model", policy)
    if args.stochastic and hasattr(model, "set_random_seed"):
        model.set_random_seed(args.seed)


def _is_policy_iteration(path: Path) -> bool:
    """Whether `PolicyIteration.save` wrote a file, and not Stable-Baselines3."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "header.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


@contextmanager
def collection_errors() -> Iterator[None]:
    """Rollouts that cannot start are bad arguments; rollouts that stop with an error are failures."""
    try:
        yield
    except CollectionError as error:
        raise CommandError(str(error), BAD_ARGUMENTS if error.trajectories is None else FAILED) from error
