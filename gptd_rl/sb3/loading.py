"""Trained Stable-Baselines3 agents, and what `VecNormalize` learnt beside them, from files; no code of theirs is run.

An archive of Stable-Baselines3 (SB3) is a zip with PyTorch's weights and a JSON file, some fields of which are pickles.
A `VecNormalize` file is one pickle. Pickles run code: `PPO.load` on a stranger's file can do anything that you can.
Here SB3 never gets to see them. They are read by an unpickler that knows the few classes plain files are made of and
refuses to look up anything else; what only training needs (schedules, buffers) is left out, and weights must be weights
only. So an agent with a network or policy class of its own is refused: whoever trusts it loads it in Python, and gives
the model to `gptd_rl.evaluate_agent`. A file can still be wrong, or too big for the memory: know where it comes from.
"""

from __future__ import annotations

import base64
import copy
import importlib
import importlib.util
import io
import json
import os
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from gymnasium import Space, spaces

from gptd_rl.data.spaces import describe, require_flat
from gptd_rl.exceptions import AgentError

ALGORITHMS = ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")
MAX_BYTES = 2**31  # of all members together; agents whose state is a row of numbers take some megabytes
MAX_BYTES_OF_DATA = 2**28  # of the JSON file, or of a VecNormalize file

_MEMBERS = {"data", "policy.pth", "_stable_baselines3_version"}
_MEMBER = re.compile(r"data|_stable_baselines3_version|system_info\.txt|\w+(\.\w+)*\.pth", re.ASCII)
_IN_PYTHON = "load it in Python with its own library and give the model to gptd_rl.evaluate_agent"

# Everything a plain file names. Of these modules, the classes that they define…
_SPACES = {f"gymnasium.spaces.{kind}" for kind in ("box", "dict", "discrete", "multi_binary", "multi_discrete")}
_OF_STATISTICS = _SPACES | {
    "stable_baselines3.common.running_mean_std",
    "stable_baselines3.common.vec_env.vec_normalize",
}
_OF_AGENTS = _SPACES | {
    "stable_baselines3.common.policies",
    "stable_baselines3.common.sb2_compat.rmsprop_tf_like",
    "stable_baselines3.common.torch_layers",
    "stable_baselines3.dqn.policies",
    "stable_baselines3.sac.policies",
    "stable_baselines3.td3.policies",
    "torch.nn.modules.activation",
    "torch.optim.adam",
    "torch.optim.adamw",
    "torch.optim.rmsprop",
    "torch.optim.sgd",
}
# … and of others just these names: arrays, and the random generators that spaces carry.
_NAMES = {
    ("collections", "OrderedDict"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.random._pcg64", "PCG64"),
    ("numpy.random._pickle", "__bit_generator_ctor"),
    ("numpy.random._pickle", "__generator_ctor"),
    ("numpy.random.bit_generator", "SeedSequence"),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),
}
_RENAMED = {"gym.": "gymnasium.", "numpy.core.": "numpy._core."}  # since files were written that are still around

_NEEDED = ("policy_class", "policy_kwargs", "observation_space", "action_space", "gamma")
# Only training needs the rest. What is pickled of it (schedules, classes of buffers) becomes None, where that will do.
# A replay buffer of a million transitions costs memory, and a seed would seed everybody's random numbers.
_NO_TRAINING: dict[str, Any] = dict(
    seed=None,
    n_envs=1,
    n_steps=1,
    learning_rate=0.0,
    clip_range=0.2,
    train_freq=1,
    buffer_size=1,
    optimize_memory_usage=False,
    replay_buffer_kwargs={},
    rollout_buffer_kwargs={},
)


def load_agent(path: str | os.PathLike[str], *, algo: str | None = None) -> Any:
    """Read an agent that Stable-Baselines3's `save` wrote; no code in the file is run.

    Parameters
    ----------
    path : path-like
        The archive; ".zip" may be left out, as `save` does.
    algo : {"a2c", "ddpg", "dqn", "ppo", "sac", "td3"}, optional
        The algorithm in any case, if the file does not tell. DDPG is TD3 with other settings: a file that looks like
        DDPG's may be called either.

    Returns
    -------
    model : stable_baselines3.common.base_class.BaseAlgorithm
        On the CPU and without environment, to be asked, not to be trained further.
    """
    if algo is not None and algo.upper() not in ALGORITHMS:
        raise AgentError(f"there is no algorithm {algo!r}: expected one of {', '.join(ALGORITHMS).lower()}.")
    with _open(path, ".zip") as file:
        name = Path(file.name).name
        data = _look_into(file, name)
        algorithm = _algorithm(data, name, algo)
        _require_sb3(name)
        objects = {key: _decode(key, item, name) for key, item in data.items() if _is_pickle(item)}
        objects |= copy.deepcopy(_NO_TRAINING)
        try:
            _check_weights(file)
            with warnings.catch_warnings():
                # SB3 has two to give here: old files' optimisers, which nobody needs any more, do not fit.
                warnings.filterwarnings("ignore", module="stable_baselines3")
                return _sb3_class(algorithm).load(file, device="cpu", custom_objects=objects)
        except Exception as error:
            raise AgentError(
                f"Stable-Baselines3 cannot load {name} as {algorithm} ({_brief(error)}): was it cut off while it was "
                "copied?"
            ) from error


def load_statistics(path: str | os.PathLike[str]) -> Any:
    """Read what `VecNormalize.save` wrote; no code in the file is run.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    statistics : stable_baselines3.common.vec_env.VecNormalize
        Without environment and learning no more: good for `normalize_obs`, and for `Normalised`.
    """
    with _open(path) as file:
        name = Path(file.name).name
        _require_sb3(name)
        if os.fstat(file.fileno()).st_size > MAX_BYTES_OF_DATA:
            raise AgentError(f"{name} is too large for a VecNormalize file: expected some kilobytes.")
        try:
            statistics = _Unpickler(file, _OF_STATISTICS).load()
        except Exception as error:
            raise AgentError(
                f"{name} is no plain VecNormalize file ({_brief(error)}): expected what VecNormalize.save writes."
            ) from error
    from stable_baselines3.common.vec_env import VecNormalize

    if not isinstance(statistics, VecNormalize):
        raise AgentError(f"{name} holds a {type(statistics).__name__}: expected what VecNormalize.save writes.")
    statistics.training = False
    return statistics


class Normalised:
    """An agent that was trained on normalised observations, as a policy that sees raw ones.

    So the environment stays as it is, and states, relevances and pictures are in its own units.

    Parameters
    ----------
    model : object with predict
        A Stable-Baselines3 model, or anything that predicts like one.
    statistics : stable_baselines3.common.vec_env.VecNormalize
        From `load_statistics`, or in use.

    Attributes
    ----------
    gamma : float
        Discount of the model.
    observation_space, action_space : gymnasium.Space
        Of raw observations, and of the model's actions.
    """

    def __init__(self, model: Any, statistics: Any) -> None:
        self.model, self.statistics = model, statistics
        expected = getattr(model, "observation_space", self.observation_space)
        if not _fits(expected, self.observation_space):
            raise AgentError(
                f"the agent observes {_short(expected)} and the statistics are of {_short(self.observation_space)}: "
                "were they saved together?"
            )

    @property
    def gamma(self) -> float:
        """Discount of the model."""
        return self.model.gamma

    @property
    def observation_space(self) -> Space[Any]:
        """Space of raw observations."""
        return self.statistics.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Space of the model's actions."""
        return self.model.action_space

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Actions at raw observations, one or a batch; see Stable-Baselines3's `predict`."""
        seen = self.statistics.normalize_obs(observation)
        return self.model.predict(seen, state=state, episode_start=episode_start, deterministic=deterministic)


def check_spaces(model: Any, env: Any) -> None:
    """Refuse an agent that does not belong to an environment, and observations that are images.

    Bounds may differ, wrappers change them. What the agent does not declare is not checked.

    Parameters
    ----------
    model : object
        A policy, maybe with `observation_space` and `action_space`.
    env : gymnasium.Env, gymnasium.vector.VectorEnv or stable_baselines3.common.vec_env.VecEnv
    """
    for kind, does, gives in (("observation", "observes", "gives"), ("action", "acts in", "takes")):
        space = getattr(env, f"single_{kind}_space" if hasattr(env, f"single_{kind}_space") else f"{kind}_space")
        expected = getattr(model, f"{kind}_space", space)
        if kind == "observation":
            try:
                require_flat(expected)
            except ValueError as error:
                raise AgentError(str(error)) from None
        if not _fits(expected, space):
            raise AgentError(
                f"the agent {does} {_short(expected)} and {_name(env)} {gives} {_short(space)}: was it trained there?"
            )


# Files


def _open(path: str | os.PathLike[str], suffix: str = "") -> IO[bytes]:
    path = Path(path)
    if not path.exists() and (longer := path.with_name(path.name + suffix)).exists():
        path = longer
    if not path.exists():
        raise AgentError(f"there is no file {path}.")
    if not path.is_file():
        raise AgentError(f"{path} is a folder, or something else that is no file: expected a file.")
    try:
        return path.open("rb")
    except OSError as error:
        raise AgentError(f"{path} cannot be read: {error.strerror}.") from error


def _look_into(file: IO[bytes], name: str) -> dict[str, Any]:
    """Fields of an archive that is a plain one of SB3; nothing is unpickled."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = [(member.filename, member.file_size) for member in archive.infolist()]
            _check_members(members, name)
            data = json.loads(archive.read("data"))
    except AgentError:
        raise
    except Exception as error:
        raise AgentError(
            f"{name} is no archive of Stable-Baselines3 ({_brief(error)}): expected what an agent's save writes."
        ) from error
    if not isinstance(data, dict):
        raise AgentError(f"{name} is no archive of Stable-Baselines3: its 'data' holds no fields.")
    return data


def _check_members(members: list[tuple[str, int]], name: str) -> None:
    names = [member for member, _ in members]
    if missing := sorted(_MEMBERS - set(names)):
        raise AgentError(f"{name} is no archive of Stable-Baselines3: it has no {missing[0]!r}.")
    for member in names:
        if not _MEMBER.fullmatch(member) or names.count(member) > 1:
            raise AgentError(
                f"{name} is no plain archive of Stable-Baselines3: it has a member {member!r}, or has it twice."
            )
    if sum(size for _, size in members) > MAX_BYTES or dict(members)["data"] > MAX_BYTES_OF_DATA:
        raise AgentError(f"{name} would unpack to more than any agent needs: expected less than {MAX_BYTES} bytes.")


def _check_weights(file: IO[bytes]) -> None:
    """Read them as weights only, which runs no code; some versions of SB3 do not insist."""
    import torch

    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            if member.endswith(".pth"):
                with archive.open(member) as weights:
                    torch.load(weights, map_location="cpu", weights_only=True)


def _algorithm(data: dict[str, Any], name: str, algo: str | None) -> str:
    """Name of the algorithm, from what the JSON says."""
    policy = data.get("policy_class")
    module = str(policy.get("__module__")) if isinstance(policy, dict) else "nowhere"
    if not module.startswith("stable_baselines3."):
        raise AgentError(
            f"{name} has a policy class of {module}, so it is no plain Stable-Baselines3 agent: {_IN_PYTHON}."
        )
    possible = _possible(data)
    if algo is None and not possible:
        raise AgentError(f"{name} holds none of {', '.join(ALGORITHMS)}: {_IN_PYTHON}.")
    if algo is not None and possible and algo.upper() not in possible:
        raise AgentError(f"{name} holds a {possible[0]} agent, not {algo.upper()}: leave out --algo.")
    return possible[0] if algo is None else algo.upper()


def _possible(data: dict[str, Any]) -> tuple[str, ...]:
    """Algorithms whose settings these are, the likeliest first.

    The policy does not tell: A2C and PPO share theirs, with TRPO of sb3-contrib even, and DDPG has that of TD3.
    """
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


def _require_sb3(name: str) -> None:
    if importlib.util.find_spec("stable_baselines3") is None:
        raise AgentError(f'reading {name} needs Stable-Baselines3: pip install "gptd-rl[sb3]".')


def _sb3_class(algorithm: str) -> Any:
    return getattr(importlib.import_module("stable_baselines3"), algorithm)


# Pickles


class _Unpickler(pickle.Unpickler):
    """Looks up no class or function but those which plain files need; without these, a pickle can do no harm."""

    def __init__(self, file: IO[bytes], modules: set[str]) -> None:
        super().__init__(file, fix_imports=False)
        self.modules = modules

    def find_class(self, module: str, name: str) -> Any:
        """The class or function of that name, if it is allowed."""
        for old, new in _RENAMED.items():
            module = new + module.removeprefix(old) if module.startswith(old) else module
        if (module, name) in _NAMES:
            return super().find_class(module, name)
        if module in self.modules:
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and found.__module__ == module:  # not what the module only imports
                return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _is_pickle(item: Any) -> bool:
    return isinstance(item, dict) and ":serialized:" in item


def _decode(key: str, item: dict[str, Any], name: str) -> Any:
    """The object in a field of the JSON; None if it is no plain one and not needed."""
    try:
        return _Unpickler(io.BytesIO(base64.b64decode(item[":serialized:"])), _OF_AGENTS).load()
    except Exception as error:
        if key not in _NEEDED:
            return None
        raise AgentError(
            f"{name} is no plain Stable-Baselines3 agent, see its {key} ({_brief(error)}): if you trust it, "
            f"{_IN_PYTHON}."
        ) from error


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:160]}…"


# Spaces


def _fits(a: Space[Any], b: Space[Any]) -> bool:
    """Whether two spaces have elements of the same form, whatever the bounds."""
    if isinstance(a, spaces.Dict) and isinstance(b, spaces.Dict):
        # In the same order too, since this is the order of the states.
        return list(a) == list(b) and all(_fits(a[key], b[key]) for key in a)
    if isinstance(a, spaces.Tuple) and isinstance(b, spaces.Tuple):
        return len(a) == len(b) and all(map(_fits, a, b))
    if isinstance(a, spaces.Box) and isinstance(b, spaces.Box):
        return a.shape == b.shape and np.dtype(a.dtype).kind == np.dtype(b.dtype).kind
    return a == b


def _short(space: Space[Any]) -> str:
    """Name a space without its bounds."""
    if isinstance(space, spaces.Box):
        kind = np.dtype(space.dtype)
        return f"Box{space.shape}" if kind.kind == "f" else f"Box{space.shape} of {kind}"
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {_short(part)}' for key, part in space.items())})"
    return describe(space)


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return "the environment" if spec is None else str(spec.id)
