"""Plain data come back from all protocols; what is not plain becomes a record, and is neither looked up nor called."""

from __future__ import annotations

import os
import pickle
import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl.sb3.pickle_records import Call, Name, decode
from gptd_rl.sb3.plain_objects import DTYPES, build

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def plain_data(rng: random.Random, depth: int = 0) -> Any:
    """Random nested data."""
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind >= 6:
        parts = [plain_data(rng, depth + 1) for _ in range(rng.randrange(5))]
        return {6: parts, 7: tuple(parts), 8: {f"key {i}": part for i, part in enumerate(parts)}}[kind]
    some: list[Any] = [None, rng.random() < 0.5, rng.randrange(-(2**40), 2**40), rng.gauss(0, 1e9), "ä\n'\\" * 3, ""]
    return some[kind]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_decode_returns_plain_data(protocol):
    rng = random.Random(protocol)
    for _ in range(100):
        data = plain_data(rng)
        assert decode(pickle.dumps(data, protocol)) == data == build(decode(pickle.dumps(data, protocol)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_decode_keeps_names_and_calls_as_records(protocol):
    assert decode(pickle.dumps(os.mkdir, protocol)) == Name(os.mkdir.__module__, "mkdir")
    found = decode(pickle.dumps(OrderedDict(a=1), protocol))
    assert isinstance(found, Call) and str(found.function) == "collections.OrderedDict"


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("code", DTYPES)
def test_build_returns_arrays(protocol, code):
    rng = np.random.default_rng(0)
    for shape in ((), (3,), (2, 3), (0, 2)):
        for order in ("<", ">"):
            array = np.asarray(rng.normal(size=shape) * 3).astype(order + code)
            for written in (array, np.asfortranarray(array)):
                again = build(decode(pickle.dumps(written, protocol)))
                assert_array_equal(again, array)
                assert again.dtype == array.dtype.newbyteorder("=") and again.flags.writeable
    scalar = np.float64(1.5).astype(code)
    assert build(decode(pickle.dumps(scalar, protocol))) == scalar


def test_build_makes_an_object_once():
    """What is one object in the file is one afterwards."""
    array = np.zeros(3)
    one, other = build(decode(pickle.dumps([array, array])))
    assert one is other
