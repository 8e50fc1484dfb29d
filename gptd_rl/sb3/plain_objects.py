"""Objects of plain files from the records of their pickles: arrays, spaces, statistics, and classes as values.

Each kind of object has one function here, which reads the record, checks it and calls the constructor of the class. No
function or class of the file's choice is called, no state is set from outside, and a `numpy.dtype` is one of a list.
"""

from __future__ import annotations

import importlib
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from gptd_rl.sb3.pickle_records import Call, External, Name

MAX_DEPTH = 50  # of nested records
MAX_OBJECTS = 100_000
MAX_BYTES_OF_ARRAYS = 2**26
MAX_WIDTH = 2**24  # of an observation or action

DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")

# Networks, activations and optimisers: an agent names their classes. Of these modules, the classes that they define.
CLASS_MODULES = {
    "sb3_contrib.ars.policies",
    "sb3_contrib.common.maskable.policies",
    "sb3_contrib.common.recurrent.policies",
    "sb3_contrib.crossq.policies",
    "sb3_contrib.qrdqn.policies",
    "sb3_contrib.tqc.policies",
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
_RENAMED = {"gym.": "gymnasium.", "numpy.core.": "numpy._core."}  # in older files

# Fields of a VecNormalize that say how to normalise; the others belong to the last run.
_STATISTICS_FIELDS = {
    "norm_obs",
    "norm_reward",
    "norm_obs_keys",
    "obs_rms",
    "ret_rms",
    "clip_obs",
    "clip_reward",
    "gamma",
    "epsilon",
    "observation_space",
    "action_space",
    "num_envs",
}


def build(record: Any, class_modules: set[str] | None = None) -> Any:
    """The object that a record of `pickle_records.decode` describes.

    Parameters
    ----------
    record : object
    class_modules : set of str, optional
        Modules whose classes may be values; by default no class may.

    Raises
    ------
    ValueError, TypeError, KeyError
        If it is not one of the objects of plain files.
    """
    return PlainObjects(class_modules or set()).build(record)


class Builder:
    """Builds records; counts what they amount to, since few opcodes can name one object many times."""

    makers: ClassVar[Mapping[Name, str]] = {}  # methods by the class or function in a call

    def __init__(self, class_modules: set[str] | None = None) -> None:
        self.class_modules = class_modules or set()
        self._made: dict[int, Any] = {}
        self._depth = self._n_objects = self._n_bytes = 0

    def build(self, record: Any) -> Any:
        """The object of one record."""
        self._n_objects += 1
        if self._n_objects > MAX_OBJECTS or self._depth > MAX_DEPTH:
            raise ValueError(f"it has more than {MAX_OBJECTS} objects, or is nested deeper than {MAX_DEPTH}")
        self._depth += 1
        try:
            if isinstance(record, dict):
                return {key: self.build(value) for key, value in record.items()}
            if isinstance(record, list | tuple):
                return type(record)(self.build(item) for item in record)
            if isinstance(record, Name):
                return self._class(_current(record))
            if isinstance(record, Call):
                if id(record) not in self._made:
                    self._made[id(record)] = self._call(record)
                return self._made[id(record)]
            if isinstance(record, External):
                return self.external(record)
            return _number_or_text(record)
        finally:
            self._depth -= 1

    def _class(self, name: Name) -> Any:
        if name.module in self.class_modules:
            found = getattr(importlib.import_module(name.module), name.name, None)
            if isinstance(found, type) and found.__module__ == name.module:  # not what the module only imports
                return found
        raise ValueError(f"it names {name}")

    def external(self, record: External) -> Any:
        """What the pickle keeps elsewhere."""
        raise ValueError("it refers to something outside of itself")

    def _call(self, call: Call) -> Any:
        name = _current(call.function)
        if name not in self.makers:
            raise ValueError(f"it names {name}")
        return getattr(self, self.makers[name])(call)

    def ordered_dict(self, call: Call) -> Any:
        """A dict; PyTorch's have a state, which only says which version wrote them."""
        if call.arguments:
            raise ValueError("it makes an OrderedDict of something")
        return OrderedDict((key, self.build(value)) for key, value in call.items.items())


_COMMON = "stable_baselines3.common"


class PlainObjects(Builder):
    """Builds arrays, spaces and statistics."""

    makers: ClassVar[Mapping[Name, str]] = {
        Name("collections", "OrderedDict"): "ordered_dict",
        Name("numpy", "dtype"): "dtype",
        Name("numpy._core.multiarray", "_reconstruct"): "array",
        Name("numpy._core.multiarray", "scalar"): "scalar",
        Name("numpy._core.numeric", "_frombuffer"): "array_of_buffer",
        Name("gymnasium.spaces.box", "Box"): "box",
        Name("gymnasium.spaces.discrete", "Discrete"): "discrete",
        Name("gymnasium.spaces.multi_discrete", "MultiDiscrete"): "multi_discrete",
        Name("gymnasium.spaces.multi_binary", "MultiBinary"): "multi_binary",
        Name("gymnasium.spaces.dict", "Dict"): "dict_space",
        Name(f"{_COMMON}.running_mean_std", "RunningMeanStd"): "running_mean_std",
        Name(f"{_COMMON}.vec_env.vec_normalize", "VecNormalize"): "vec_normalize",
    }

    # ---------------------------------------------------------------------------------- arrays

    def array(self, call: Call) -> Any:
        """An array of protocol 4 and earlier: an empty one is made, then its state is set."""
        if _current(call.arguments[0]) != Name("numpy", "ndarray"):
            raise ValueError(f"it makes an array of {call.arguments[0]}")
        _, shape, kind, is_fortran, content = call.state
        return self._array(content, kind, shape, "F" if is_fortran else "C")

    def array_of_buffer(self, call: Call) -> Any:
        """An array of protocol 5."""
        content, kind, shape, order = call.arguments[:4]
        return self._array(content, kind, shape, order)

    def scalar(self, call: Call) -> Any:
        """A number of NumPy."""
        kind, content = call.arguments
        return self._array(content, kind, (), "C")[()]

    def _array(self, content: Any, kind: Any, shape: Any, order: str) -> Any:
        dtype = self.build(kind)
        if not (isinstance(content, bytes | bytearray) and isinstance(dtype, np.dtype) and _is_shape(shape)):
            raise ValueError("it has an array without plain numbers")
        if math.prod(shape) * dtype.itemsize != len(content):
            raise ValueError(f"it has an array of shape {shape} in {len(content)} bytes")
        self._n_bytes += len(content)
        if self._n_bytes > MAX_BYTES_OF_ARRAYS:
            raise ValueError(f"it has more than {MAX_BYTES_OF_ARRAYS} bytes of arrays")
        if dtype.kind == "b":
            flat = np.frombuffer(content, np.uint8) != 0
        else:
            flat = np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))
        return flat.reshape(shape, order="F" if order == "F" else "C")

    def dtype(self, call: Call) -> Any:
        """A type of plain numbers, by its name and byte order; anything else in its state is refused."""
        code, state = call.arguments[0], call.state or (3, "=", None, None, None, -1, -1, 0)
        if code not in DTYPES or state[1] not in ("<", ">", "=", "|"):
            raise ValueError(f"it has an array of dtype {str(code)[:20]!r}: only plain numbers are read")
        if tuple(state[2:]) != (None, None, None, -1, -1, 0):
            raise ValueError("it has an array of a dtype with fields")
        return np.dtype(state[1] + code)

    # ---------------------------------------------------------------------------------- spaces

    def box(self, call: Call) -> Any:
        """A Box; random generators of spaces are left out."""
        from gymnasium import spaces

        state = self._state(call, "low", "high", "dtype")
        dtype = state["dtype"].newbyteorder("=")
        low, high = (np.asarray(state[name]).astype(dtype) for name in ("low", "high"))
        _check_width(low.size)
        return spaces.Box(low, high, dtype=dtype)

    def discrete(self, call: Call) -> Any:
        """A Discrete space."""
        from gymnasium import spaces

        state = self._state(call, "n", "start")
        return spaces.Discrete(int(state["n"]), start=int(state.get("start", 0)))

    def multi_discrete(self, call: Call) -> Any:
        """A MultiDiscrete space."""
        from gymnasium import spaces

        state = self._state(call, "nvec", "start", "dtype")
        dtype = state.get("dtype", np.dtype(np.int64)).newbyteorder("=")
        return spaces.MultiDiscrete(np.asarray(state["nvec"]), dtype=dtype, start=state.get("start"))

    def multi_binary(self, call: Call) -> Any:
        """A MultiBinary space."""
        from gymnasium import spaces

        n = self._state(call, "n")["n"]
        shape = (n,) if isinstance(n, int | np.integer) else tuple(n)
        _check_width(math.prod(int(size) for size in shape))
        return spaces.MultiBinary(int(n) if isinstance(n, int | np.integer) else [int(size) for size in n])

    def dict_space(self, call: Call) -> Any:
        """A Dict of spaces, in the order of the file."""
        from gymnasium import spaces

        return spaces.Dict(OrderedDict(self._state(call, "spaces")["spaces"]))

    # ---------------------------------------------------------------------------------- statistics

    def running_mean_std(self, call: Call) -> Any:
        """Mean and variance of what was seen."""
        from stable_baselines3.common.running_mean_std import RunningMeanStd

        state = self._state(call, "mean", "var", "count")
        mean, var = (np.array(state[name], dtype=np.float64) for name in ("mean", "var"))
        count = float(state["count"])
        if mean.shape != var.shape or not (np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all()):
            raise ValueError("it has a mean and a variance that are not finite, or of different shapes")
        if not 0 < count < np.inf:
            raise ValueError(f"it has statistics of {count} observations")
        made = RunningMeanStd(shape=mean.shape)
        made.mean, made.var, made.count = mean, var, count
        return made

    def vec_normalize(self, call: Call) -> Any:
        """A VecNormalize without environment."""
        from stable_baselines3.common.vec_env import VecNormalize

        state = self._state(call, *_STATISTICS_FIELDS)
        for name in ("clip_obs", "clip_reward", "epsilon", "gamma"):
            state[name] = float(state[name])
            if not 0 <= state[name] < np.inf:
                raise ValueError(f"it has a {name} of {state[name]}")
        made = VecNormalize.__new__(VecNormalize)
        made.__setstate__(state)
        return made

    def _state(self, call: Call, *names: str) -> dict[str, Any]:
        """Those of the named attributes that a record has; the others are not even built."""
        if call.arguments or call.items or not isinstance(call.state, Mapping):
            raise ValueError(f"it has a {call.function.name} of another form")
        return {name: self.build(call.state[name]) for name in names if name in call.state}


def _current(name: Any) -> Name:
    """The name under which a class or function is known today."""
    if not isinstance(name, Name):
        raise ValueError("it names something that is no name")
    for old, new in _RENAMED.items():
        if name.module.startswith(old):
            return Name(new + name.module.removeprefix(old), name.name)
    return name


def _number_or_text(value: Any) -> Any:
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int) and abs(value) < 2**64:
        return value
    raise ValueError(f"it has a {type(value).__name__} that is no plain number or text")


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, tuple)
        and len(shape) <= 32
        and all(isinstance(size, int) and 0 <= size < 2**31 for size in shape)
    )


def _check_width(width: int) -> None:
    if width > MAX_WIDTH:
        raise ValueError(f"it has a space of {width} numbers: expected at most {MAX_WIDTH}")
