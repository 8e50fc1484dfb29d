"""Load trained Stable-Baselines3 agents and `VecNormalize` statistics from files, without running code of theirs."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import os
import warnings
from pathlib import Path
from typing import Any

from gptd_rl.exceptions import AgentError, brief
from gptd_rl.sb3.safe_archive import (
    IN_PYTHON,
    decode_field,
    is_pickle,
    new_archive,
    open_file,
    read_agent_file,
    read_statistics,
)
from gptd_rl.sb3.weights import limited_allocation, read_weights

CONTRIB = ("ARS", "CrossQ", "MaskablePPO", "QRDQN", "RecurrentPPO", "TQC", "TRPO")  # of sb3-contrib
ALGORITHMS = ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3", *CONTRIB)
# Names that users give; rl-zoo calls two of them otherwise than their classes.
ALGORITHM_NAMES = {name.lower(): name for name in ALGORITHMS} | {"ppo_lstm": "RecurrentPPO", "ppo_mask": "MaskablePPO"}

# Algorithms with policies of their own, by the beginning of their modules.
_OF_POLICY = {
    "sb3_contrib.ars.": "ARS",
    "sb3_contrib.common.maskable.": "MaskablePPO",
    "sb3_contrib.common.recurrent.": "RecurrentPPO",
    "sb3_contrib.crossq.": "CrossQ",
    "sb3_contrib.qrdqn.": "QRDQN",
    "sb3_contrib.tqc.": "TQC",
}

# Settings that only training needs. Pickled ones (schedules, classes of buffers) become None where SB3 accepts that. A
# replay buffer of a million transitions costs memory, and a seed would seed the global random numbers.
_NO_TRAINING: dict[str, Any] = dict(
    seed=None,
    n_envs=1,
    n_steps=1,
    learning_rate=0.0,
    clip_range=0.2,
    delta_std=0.0,
    train_freq=1,
    buffer_size=1,
    optimize_memory_usage=False,
    replay_buffer_kwargs={},
    rollout_buffer_kwargs={},
)

# SB3 sets every field as an attribute. Only settings are taken, no methods, and no id of an environment: SB3 would make
# it, and import a module that the id names. The last observations tell whether they were normalized.
_FIELDS = {"policy_class", "policy_kwargs", "observation_space", "action_space", "n_envs", "num_timesteps"}
_LAST_OBSERVATIONS = {"_last_obs", "_last_original_obs"}
_VARIABLES = {"log_ent_coef", "ent_coef_tensor"}
_NO_FIELDS = {"env", "policy", "device", "tensorboard_log", "_init_setup_model"}


def load_agent(path: str | os.PathLike[str], *, algo: str | None = None) -> Any:
    """Read an agent that Stable-Baselines3's `save` wrote; no code in the file is run.

    Parameters
    ----------
    path : path-like
        The archive; ".zip" may be left out, as `save` does.
    algo : str, optional
        The algorithm, if the file does not say: "ppo", "a2c", "dqn", "sac", "td3" or "ddpg", or of sb3-contrib "qrdqn",
        "tqc", "trpo", "ars", "crossq", "maskableppo" or "recurrentppo". DDPG is TD3 with other settings: a file that
        looks like DDPG's may be loaded as either.

    Returns
    -------
    model : stable_baselines3.common.base_class.BaseAlgorithm
        On the CPU and without environment: for prediction, not for further training.
    """
    if algo is not None:
        algo = _known(algo)
    with open_file(path, ".zip") as file:
        name = Path(file.name).name
        content = read_agent_file(file, name)
    algorithm = _algorithm(content.fields, name, algo)
    _require_sb3(name, algorithm)
    agent_class = _sb3_class(algorithm)
    fields = {key: item for key, item in content.fields.items() if key in _settings(agent_class)}
    objects = {key: decode_field(key, item, name) for key, item in fields.items() if is_pickle(item)}
    objects |= copy.deepcopy(_NO_TRAINING)
    try:
        weights = {member: read_weights(written) for member, written in content.weights.items()}
        _check_variables(weights)
        archive = new_archive({key: None if key in objects else item for key, item in fields.items()}, weights)
        n_bytes = sum(map(len, content.weights.values()))  # not of tensors, which may be one and the same
        with warnings.catch_warnings(), limited_allocation(n_bytes):
            # SB3 warns about the optimisers of old files, which only training needs.
            warnings.filterwarnings("ignore", module="stable_baselines3")
            return agent_class.load(archive, device="cpu", custom_objects=objects)
    except Exception as error:
        raise AgentError(
            f"Stable-Baselines3 cannot load {name} as {algorithm} ({brief(error)}): was it cut off while it was copied?"
        ) from error


def load_statistics(path: str | os.PathLike[str]) -> Any:
    """Read what `VecNormalize.save` wrote; no code in the file is run.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    statistics : stable_baselines3.common.vec_env.VecNormalize
        Without environment, and fixed: for `normalize_obs`, and for `NormalizedPolicy`.
    """
    with open_file(path) as file:
        name = Path(file.name).name
        _require_sb3(name)
        statistics = read_statistics(file, name)
    from stable_baselines3.common.vec_env import VecNormalize

    if not isinstance(statistics, VecNormalize):
        raise AgentError(f"{name} holds a {type(statistics).__name__}: expected what VecNormalize.save writes.")
    statistics.training = False
    return statistics


def _settings(agent_class: Any) -> set[str]:
    """Names of the fields that a model of this class is given."""
    return (_FIELDS | _LAST_OBSERVATIONS | set(inspect.signature(agent_class).parameters)) - _NO_FIELDS


def _check_variables(weights: dict[str, Any]) -> None:
    """Refuse other single variables than SB3's own: it sets what their names say, be it in a class."""
    for member in ("pytorch_variables.pth", "tensors.pth"):
        if unknown := set(weights.get(member) or ()) - _VARIABLES:
            raise ValueError(f"it has a variable {min(map(str, unknown))!r}")


def _algorithm(data: dict[str, Any], name: str, algo: str | None) -> str:
    """Name of the algorithm, from the fields of the JSON file."""
    policy = data.get("policy_class")
    module = str(policy.get("__module__")) if isinstance(policy, dict) else "nowhere"
    if not module.startswith(("stable_baselines3.", *_OF_POLICY)):
        raise AgentError(
            f"{name} has a policy class of {module}, so it is no plain Stable-Baselines3 agent: {IN_PYTHON}."
        )
    possible = tuple(name for start, name in _OF_POLICY.items() if module.startswith(start)) or _possible(data)
    if algo is None and not possible:
        raise AgentError(f"{name} holds none of {', '.join(ALGORITHMS)}: {IN_PYTHON}.")
    if algo is not None and possible and algo not in possible:
        raise AgentError(f"{name} holds a {possible[0]} agent, not {algo}: leave out --algo.")
    return possible[0] if algo is None else algo


def _known(algo: str) -> str:
    """The name of an algorithm as its class is called."""
    if algo.lower() not in ALGORITHM_NAMES:
        raise AgentError(f"there is no algorithm {algo!r}: expected one of {', '.join(ALGORITHMS).lower()}.")
    return ALGORITHM_NAMES[algo.lower()]


def _possible(data: dict[str, Any]) -> tuple[str, ...]:
    """Algorithms with these settings, the likeliest first.

    The policy class is not enough: A2C, PPO and TRPO of sb3-contrib share one, and so do DDPG and TD3.
    """
    if "cg_max_steps" in data:
        return ("TRPO",)
    if {"clip_range", "n_epochs"} <= data.keys():
        return ("PPO",)
    if "gae_lambda" in data and "batch_size" not in data:  # TRPO has batches
        return ("A2C",)
    if "exploration_fraction" in data:
        return ("DQN",)
    if "target_entropy" in data:
        return ("SAC",)
    if "target_policy_noise" in data:
        is_plain = data.get("policy_delay") == 1 and data.get("target_noise_clip") == 0.0
        return ("DDPG", "TD3") if is_plain else ("TD3",)
    return ()


def _require_sb3(name: str, algorithm: str = "") -> None:
    if importlib.util.find_spec("stable_baselines3") is None:
        raise AgentError(f'reading {name} needs Stable-Baselines3: pip install "gptd-rl[sb3]".')
    if algorithm in CONTRIB and importlib.util.find_spec("sb3_contrib") is None:
        needs = 'needs sb3-contrib: pip install "gptd-rl[contrib]"'
        raise AgentError(f"{name} holds a {algorithm} agent, which {needs}.")


def _sb3_class(algorithm: str) -> Any:
    return getattr(importlib.import_module("sb3_contrib" if algorithm in CONTRIB else "stable_baselines3"), algorithm)
