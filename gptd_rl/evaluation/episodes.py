"""Complete episodes of an environment that may never end one: collecting stops after a number of steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.rollouts.collect import start_rollout
from gptd_rl.rollouts.environments import open_adapter
from gptd_rl.types import BoolArray, Policy


def collect_episodes(
    env: Any, policy: Policy, n_episodes: int, max_steps: int, *, gamma: float, seed: int, deterministic: bool
) -> tuple[Trajectories, BoolArray]:
    """Collect episodes as `gptd_rl.collect` does, until there are enough or `max_steps` steps are made, about.

    Parameters
    ----------
    env : gymnasium.Env, gymnasium.vector.VectorEnv or stable_baselines3.common.vec_env.VecEnv
    policy : as for `gptd_rl.collect`
    n_episodes : int
    max_steps : int
        Of all sub-environments together.
    gamma : float
    seed : int
    deterministic : bool

    Returns
    -------
    data : Trajectories
        Complete episodes first, then those that were cut off.
    is_complete : ndarray of shape (data.n_segments,)
    """
    with open_adapter(env) as adapter:
        rollout = start_rollout(adapter, policy, gamma, seed, deterministic, capacity=1000)
        for _ in rollout.run(n_episodes, "episodes"):
            if rollout.steps * adapter.n_envs >= max_steps:
                break
        complete = rollout.pop()
        rollout.truncate(0)
        cut = rollout.pop()
    parts = [part for part in (complete, cut) if part is not None]
    is_complete = np.repeat([part is complete for part in parts], [part.n_segments for part in parts])
    return parts[0] if len(parts) == 1 else Trajectories.concatenate(parts), is_complete
