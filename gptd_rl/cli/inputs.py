"""What options name, made or read: environments and agents; what cannot be is told in one line."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gptd_rl.cli.terminal import BAD_ARGUMENTS, FAILED, Refusal, refusing
from gptd_rl.exceptions import CollectionError


def make_env(args: argparse.Namespace, n_envs: int = 1) -> Any:
    """Make the environment that the options name, or several that are stepped together."""
    import gymnasium as gym

    kwargs = dict(args.env_kwargs)
    # Whatever the code of an environment raises, the environment cannot be used.
    with refusing(Exception, before=f"cannot make environment {args.env!r}: "):
        if n_envs == 1:
            return gym.make(args.env, **kwargs)
        return gym.make_vec(args.env, n_envs, vectorization_mode="sync", **kwargs)


def load_policy(path: Path, env: Any, args: argparse.Namespace, algo: str | None = None) -> Any:
    """Load an agent that fits `env`, behind the statistics of ``--vecnormalize``; seeded, if it is to draw actions."""
    from gptd_rl.agents import PolicyIteration
    from gptd_rl.sb3.loading import load_agent, load_statistics
    from gptd_rl.sb3.policies import NormalizedPolicy, check_spaces

    with refusing(ValueError, OSError):
        if _is_our_own(path):
            policy: Any = PolicyIteration.load(path, env)
        else:
            policy = load_agent(path, algo=algo)
        if args.stochastic and hasattr(policy, "set_random_seed"):
            policy.set_random_seed(args.seed)
        if args.vecnormalize is not None:
            policy = NormalizedPolicy(policy, load_statistics(args.vecnormalize))
        check_spaces(policy, env)
        return policy


def _is_our_own(path: Path) -> bool:
    """Whether a file is an archive as `PolicyIteration.save` writes it, and not one of Stable-Baselines3's."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "header.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


@contextmanager
def rollouts() -> Iterator[None]:
    """Tell rollouts that could not begin, as bad input, from those that failed on their way."""
    try:
        yield
    except CollectionError as error:
        raise Refusal(str(error), BAD_ARGUMENTS if error.trajectories is None else FAILED) from error
