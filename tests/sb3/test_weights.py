"""Tensors are those that `torch.save` wrote, whatever their layout."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gptd_rl.sb3.weights import limited_allocation, read_weights  # noqa: E402


def saved(thing: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_read_weights_of_each_dtype(dtype):
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    again = read_weights(saved({"a": tensor}))["a"]
    assert again.dtype == tensor.dtype and torch.equal(again, tensor)


def test_read_weights_of_each_layout():
    x = torch.arange(24.0).reshape(2, 3, 4)
    kept = dict(
        whole=x,
        transposed=x.permute(2, 0, 1),
        part=x[1:, ::2],
        scalar=torch.tensor(3.0),
        empty=torch.zeros(0, 3),
        parameter=torch.nn.Parameter(x.clone()),
    )
    again = read_weights(saved(kept))
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[name], tensor.data) for name, tensor in kept.items())


def test_read_weights_of_modules_and_optimisers():
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten())
    optimiser = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 1, 5, 5)).sum().backward()
    optimiser.step()
    again = read_weights(saved(module.state_dict()))
    assert isinstance(again, OrderedDict)
    module.load_state_dict(again)
    state = read_weights(saved(optimiser.state_dict()))
    assert state["param_groups"] == optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict(state)


def test_read_weights_refuses_the_format_before_1_6():
    with pytest.raises(ValueError, match=r"no zip, which PyTorch writes since release 1\.6"):
        read_weights(saved({"a": torch.zeros(3)}, _use_new_zipfile_serialization=False))


def test_read_weights_refuses_other_objects():
    with pytest.raises(ValueError, match=r"it names torch\."):
        read_weights(saved({"a": torch.device("cpu")}))


def test_limited_allocation_ends_with_its_context():
    with limited_allocation(100):
        torch.nn.Linear(10, 10)
        with pytest.raises(ValueError, match="larger network than its weights fill"):
            torch.nn.Linear(10_000, 10_000)
    torch.empty(2000, 2000)
