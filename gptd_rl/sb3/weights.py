"""PyTorch's weights without PyTorch's unpickler: tensors in plain containers, and a limit on what networks allocate.

A `.pth` file is a zip with a pickle and one member per storage, none of them compressed. The pickle is decoded into
records, and tensors are made from the bytes of the storages, so they take no more memory than the file.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from gptd_rl.data.archives import open_archive, read_member
from gptd_rl.sb3.pickle_records import Call, External, Name, decode
from gptd_rl.sb3.plain_objects import Builder

_STORAGES = dict(
    FloatStorage="float32",
    DoubleStorage="float64",
    HalfStorage="float16",
    BFloat16Storage="bfloat16",
    LongStorage="int64",
    IntStorage="int32",
    ShortStorage="int16",
    CharStorage="int8",
    ByteStorage="uint8",
    BoolStorage="bool",
)

# Networks allocate each weight, a copy of it while it is initialised, and what no file holds.
ALLOCATED_PER_BYTE = 8
ALLOCATED_ANYWAY = 2**22


def read_weights(content: bytes | bytearray) -> Any:
    """What `torch.save` wrote: dicts, lists, numbers and tensors on the CPU.

    Raises
    ------
    ValueError, KeyError, TypeError, zipfile.BadZipFile
        If it is cut off, or holds anything else.
    """
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise ValueError("its weights are no zip, which PyTorch writes since release 1.6: save them again with that")
    with open_archive(io.BytesIO(content), max_bytes=0) as archive:
        (pickled,) = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
        folder = pickled.removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist() and read_member(archive, f"{folder}byteorder") != b"little":
            raise ValueError("its weights are of a computer with another byte order")
        return _Tensors(archive, folder).build(decode(bytes(read_member(archive, pickled))))


def limited_allocation(n_bytes: int) -> AbstractContextManager[Any]:
    """Context in which new tensors may take so much memory as a network with `n_bytes` of weights needs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Limit(TorchDispatchMode):  # type: ignore[misc]
        left = ALLOCATED_ANYWAY + ALLOCATED_PER_BYTE * n_bytes

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # A function that takes a size and no tensor makes a new one: empty, zeros, ones, full.
            if args and isinstance(args[0], list | tuple) and all(isinstance(size, int) for size in args[0]):
                self.left -= 4 * math.prod(args[0])
                if self.left < 0:
                    raise ValueError("its settings ask for a larger network than its weights fill")
            return func(*args, **(kwargs or {}))

    return Limit()


class _Tensors(Builder):
    """Builds tensors from the storages of an archive."""

    makers: ClassVar[Mapping[Name, str]] = {
        Name("collections", "OrderedDict"): "ordered_dict",
        Name("torch._utils", "_rebuild_tensor_v2"): "tensor",
        Name("torch._utils", "_rebuild_parameter"): "parameter",
    }

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__()
        self._archive, self._folder = archive, folder
        self._storages: dict[str, Any] = {}

    def external(self, record: External) -> Any:
        """A storage as a flat tensor, read once."""
        import torch

        _, kind, key, _, size = record.key
        if not (isinstance(kind, Name) and kind.module == "torch" and kind.name in _STORAGES and isinstance(key, str)):
            raise ValueError(f"it has a storage of {kind}")
        if key not in self._storages:
            content = read_member(self._archive, f"{self._folder}data/{key}")
            dtype = getattr(torch, _STORAGES[kind.name])
            if len(content) != size * dtype.itemsize:
                raise ValueError(f"it has a storage of {size} numbers in {len(content)} bytes")
            flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            self._storages[key] = flat.view(torch.uint8) != 0 if dtype == torch.bool else flat
        return self._storages[key]

    def tensor(self, call: Call) -> Any:
        """A part of a storage in some layout; one number of the storage is in one place of the tensor at most."""
        storage, offset, size, stride = (self.build(argument) for argument in call.arguments[:4])
        if not hasattr(storage, "as_strided") or math.prod(size) > storage.numel():
            raise ValueError(f"it has a tensor of shape {tuple(size)}, which is larger than its storage")
        return storage.as_strided(size, stride, offset)

    def parameter(self, call: Call) -> Any:
        """The tensor of a parameter."""
        return self.build(call.arguments[0])
