"""Safe reading of Stable-Baselines3's files: no code of theirs is run.

An archive of Stable-Baselines3 (SB3) is a zip with PyTorch's weights and a JSON file, some fields of which are pickles.
A `VecNormalize` file is one pickle. Pickles run code: `PPO.load` on an untrusted file can execute anything. Here SB3
never unpickles them. They are read by an unpickler that knows the few classes of plain files and refuses all others;
fields that only training needs (schedules, buffers) are dropped, and weights are read as weights only. So an agent with
a network or policy class of its own is refused: load it in Python, if you trust it, and give the model to
`gptd_rl.evaluate_agent`. A file can still be wrong, or too big for the memory: know where it comes from.
"""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import IO, Any

from gptd_rl.exceptions import AgentError

MAX_BYTES = 2**31  # of all members together; agents with vector observations need some megabytes
MAX_BYTES_OF_DATA = 2**28  # of the JSON file, or of a VecNormalize file

_MEMBERS = {"data", "policy.pth", "_stable_baselines3_version"}
_MEMBER = re.compile(r"data|_stable_baselines3_version|system_info\.txt|\w+(\.\w+)*\.pth", re.ASCII)

# All names that plain files use. Of these modules, the classes that they define…
_SPACES = {f"gymnasium.spaces.{kind}" for kind in ("box", "dict", "discrete", "multi_binary", "multi_discrete")}
_STATISTICS_MODULES = _SPACES | {
    "stable_baselines3.common.running_mean_std",
    "stable_baselines3.common.vec_env.vec_normalize",
}
_AGENT_MODULES = _SPACES | {
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
# … and these single names: arrays, and the random generators of spaces.
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
_RENAMED = {"gym.": "gymnasium.", "numpy.core.": "numpy._core."}  # in older files

_NEEDED = ("policy_class", "policy_kwargs", "observation_space", "action_space", "gamma")
IN_PYTHON = "load it in Python with its own library and give the model to gptd_rl.evaluate_agent"


def open_file(path: str | os.PathLike[str], suffix: str = "") -> IO[bytes]:
    """Open a file for reading; `suffix` may be missing from its name."""
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


def read_fields(file: IO[bytes], name: str) -> dict[str, Any]:
    """Fields of the JSON file in a plain archive of SB3; nothing is unpickled."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = [(member.filename, member.file_size) for member in archive.infolist()]
            _check_members(members, name)
            data = json.loads(archive.read("data"))
    except AgentError:
        raise
    except Exception as error:
        raise AgentError(
            f"{name} is no archive of Stable-Baselines3 ({brief(error)}): expected what an agent's save writes."
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


def check_weights(file: IO[bytes]) -> None:
    """Read all weights as weights only, which runs no code; not all versions of SB3 do."""
    import torch

    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            if member.endswith(".pth"):
                with archive.open(member) as weights:
                    torch.load(weights, map_location="cpu", weights_only=True)


class SafeUnpickler(pickle.Unpickler):
    """An unpickler that looks up only the classes and functions of plain files."""

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


def is_pickle(item: Any) -> bool:
    """Whether a field of the JSON file is a pickle."""
    return isinstance(item, dict) and ":serialized:" in item


def decode_field(key: str, item: dict[str, Any], name: str) -> Any:
    """The object in a pickled field of the JSON file; None if it is refused and not needed."""
    try:
        return SafeUnpickler(io.BytesIO(base64.b64decode(item[":serialized:"])), _AGENT_MODULES).load()
    except Exception as error:
        if key not in _NEEDED:
            return None
        raise AgentError(
            f"{name} is no plain Stable-Baselines3 agent, see its {key} ({brief(error)}): if you trust it, {IN_PYTHON}."
        ) from error


def read_statistics(file: IO[bytes], name: str) -> Any:
    """The object in a `VecNormalize` file."""
    if os.fstat(file.fileno()).st_size > MAX_BYTES_OF_DATA:
        raise AgentError(f"{name} is too large for a VecNormalize file: expected some kilobytes.")
    try:
        return SafeUnpickler(file, _STATISTICS_MODULES).load()
    except Exception as error:
        raise AgentError(
            f"{name} is no plain VecNormalize file ({brief(error)}): expected what VecNormalize.save writes."
        ) from error


def brief(error: Exception) -> str:
    """The message of an error in one line, shortened."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:160]}…"
