"""Safe reading of Stable-Baselines3's files: no code of theirs is run.

An archive of Stable-Baselines3 (SB3) is a zip with PyTorch's weights and a JSON file, some fields of which are pickles.
A `VecNormalize` file is one pickle. Pickles run code: `PPO.load` on an untrusted file can execute anything. Here
nothing is unpickled, neither by Python nor by PyTorch: pickles are decoded into inert records (`pickle_records`), from
which the few kinds of objects of plain files are made (`plain_objects`, `weights`). SB3 is given a new archive of what
was read. Fields that only training needs (schedules, buffers) are dropped. So an agent with a network or policy class
of its own is refused: load it in Python, if you trust it, and give the model to `gptd_rl.evaluate_agent`. A file can
still be wrong: know where it comes from.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gptd_rl.data.archives import MAX_BYTES, open_archive, parse_json, read_member
from gptd_rl.exceptions import AgentError, brief
from gptd_rl.sb3.pickle_records import decode
from gptd_rl.sb3.plain_objects import CLASS_MODULES, build

MAX_BYTES_OF_DATA = 2**26  # of the JSON file, or of a VecNormalize file; agents with vector observations need kilobytes

VERSION = "_stable_baselines3_version"
_MEMBERS = {"data", "policy.pth", VERSION}
# SB3 looks up the name of a member with weights as an attribute of the model: none with an underscore in front.
_MEMBER = re.compile(r"data|_stable_baselines3_version|system_info\.txt|[a-z]\w*(\.[a-z]\w*)*\.pth", re.ASCII)

_NEEDED = ("policy_class", "policy_kwargs", "observation_space", "action_space", "gamma")
IN_PYTHON = "load it in Python with its own library and give the model to gptd_rl.evaluate_agent"


@dataclass(frozen=True, eq=False)
class AgentFile:
    """The content of an archive; nothing is decoded yet.

    Attributes
    ----------
    fields : dict
        Of the JSON file.
    weights : dict of str to bytearray
        Members that `torch.save` wrote, by name.
    """

    fields: dict[str, Any]
    weights: dict[str, bytearray]


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


def read_agent_file(file: IO[bytes], name: str) -> AgentFile:
    """Read a plain archive of SB3."""
    try:
        with open_archive(file) as archive:
            _check_members(archive.infolist(), name)
            fields = parse_json(read_member(archive, "data"))
            weights = {member: read_member(archive, member) for member in archive.namelist() if member.endswith(".pth")}
    except AgentError:
        raise
    except Exception as error:
        raise AgentError(
            f"{name} is no archive of Stable-Baselines3 ({brief(error)}): expected what an agent's save writes."
        ) from error
    if not isinstance(fields, dict):
        raise AgentError(f"{name} is no archive of Stable-Baselines3: its 'data' holds no fields.")
    return AgentFile(fields, weights)


def _check_members(members: list[zipfile.ZipInfo], name: str) -> None:
    sizes = {member.filename: member.file_size for member in members}
    if missing := sorted(_MEMBERS - set(sizes)):
        raise AgentError(f"{name} is no archive of Stable-Baselines3: it has no {missing[0]!r}.")
    for member in sizes:
        if not _MEMBER.fullmatch(member):
            raise AgentError(f"{name} is no plain archive of Stable-Baselines3: it has a member {member!r}.")
    if sum(sizes.values()) > MAX_BYTES or sizes["data"] > MAX_BYTES_OF_DATA:
        raise AgentError(f"{name} would unpack to more than any agent needs: expected less than {MAX_BYTES} bytes.")


def new_archive(fields: Mapping[str, Any], weights: Mapping[str, Any]) -> IO[bytes]:
    """An archive of SB3 in memory, with plain fields and with tensors that were read before."""
    import stable_baselines3
    import torch

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data", json.dumps(fields))
        archive.writestr(VERSION, stable_baselines3.__version__)
        for member, tensors in weights.items():
            with archive.open(member, "w", force_zip64=True) as content:
                torch.save(tensors, content)
    file.seek(0)
    return file


def is_pickle(item: Any) -> bool:
    """Whether a field of the JSON file is a pickle."""
    return isinstance(item, dict) and ":serialized:" in item


def decode_field(key: str, item: dict[str, Any], name: str) -> Any:
    """The object in a pickled field of the JSON file; None if it is refused and not needed."""
    try:
        return build(decode(base64.b64decode(item[":serialized:"])), CLASS_MODULES)
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
        return build(decode(file.read()))
    except Exception as error:
        raise AgentError(
            f"{name} is no plain VecNormalize file ({brief(error)}): expected what VecNormalize.save writes."
        ) from error
