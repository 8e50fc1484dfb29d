"""Models in files that were edited: refused in one line, or as good as before."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptd_rl
from gptd_rl import ARD, GPTD, GPTDQ, DynamicsModel, OnlineGPTD, Trajectories
from gptd_rl.kernels import paper_kernel
from tests.helpers import MIXES, sample

DATA = sample(MIXES["mixed"], seed=1)
KERNEL = paper_kernel(ARD([1.0, 0.5, 2.0]), 2.0, 1.0)
QUICK: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0, noise_floor=1e-2)


def with_actions() -> Trajectories:
    actions = np.random.default_rng(3).integers(2, size=len(DATA))
    return Trajectories(DATA.states, DATA.rewards, DATA.discounts, DATA.lengths, DATA.terminated, actions)


def online(**options: Any) -> OnlineGPTD:
    v = OnlineGPTD(KERNEL, 0.1, tolerance=0.1, **options).update(DATA)
    return v.update(gptd_rl.Transition(DATA.states[0], 1.0, DATA.states[1], 0.9))  # a segment goes on


MODELS: dict[str, Callable[[], Any]] = {
    "exact": lambda: GPTD("isotropic", **QUICK).fit(DATA),
    "sparse": lambda: GPTD("isotropic", method="sparse", subset_size=5, **QUICK).fit(DATA),
    "bootstrapped": lambda: GPTD(KERNEL, bootstrap=True, method="sparse", subset_size=5, n_restarts=0).fit(DATA),
    "pairs": lambda: GPTDQ("isotropic", **QUICK).fit(with_actions()),
    "greedy": lambda: GPTDQ("ard").fit(with_actions(), policy="greedy"),
    "online": lambda: online(),
    "online bootstrapped": lambda: online(bootstrap=True, keep_history=False),
    "dynamics": lambda: DynamicsModel(max_rows=100, subset_size=20).fit(with_actions()),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    """A file of each model."""
    folder = tmp_path_factory.mktemp("models")
    return {name: make().save(folder / f"{name}.gptd") for name, make in MODELS.items()}


def members(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(str(arrays.pop("header"))), arrays


def write(path: Path, header: dict[str, Any], arrays: dict[str, Any]) -> Path:
    with path.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)
    return path


def refusal(path: Path) -> str:
    """Why a file is refused; empty if it is not, and the model then predicts finite numbers."""
    message = ""
    try:
        check_predictions(gptd_rl.load(path))
    except ValueError as error:
        message = str(error)
    assert "\n" not in message and (not message or str(path) in message)
    return message


def check_predictions(model: Any) -> None:
    x = DATA.states[:3]
    if isinstance(model, GPTD | OnlineGPTD):
        assert np.isfinite(model.predict(x, return_std=True)).all()
    elif isinstance(model, GPTDQ):
        assert np.isfinite(model.q_values(x)).all()
    else:
        outcome = model.predict(x, [0, 1, 0])
        assert np.isfinite(outcome.next_states).all() and np.isfinite(outcome.rewards).all()


@pytest.mark.parametrize("name", MODELS)
def test_load_takes_a_file_that_was_not_edited(name, saved, tmp_path):
    assert not refusal(saved[name])
    assert not refusal(write(tmp_path / "v.gptd", *members(saved[name])))


# -------------------------------------------------------------------------------------- arrays

MAY_BE_ANYTHING = {
    # follow from the fit
    ("greedy", "theta"),
    ("greedy", "inputs"),
    # infinite bounds are none
    ("dynamics", "space_low"),
    ("dynamics", "space_high"),
}
MAY_BE_SHORTER = ("history", "_rows", "_inducing_points")  # fewer data are data


@pytest.mark.parametrize("name", MODELS)
def test_load_refuses_arrays_with_nan(name, saved, tmp_path):
    header, arrays = members(saved[name])
    for edited, array in arrays.items():
        if array.dtype.kind == "f" and array.size and (name, edited) not in MAY_BE_ANYTHING:
            for bad in (np.nan, np.inf):
                broken = array.copy()
                broken.flat[-1] = bad
                assert refusal(write(tmp_path / "v.gptd", header, arrays | {edited: broken})), (edited, bad)


@pytest.mark.parametrize("name", MODELS)
def test_load_refuses_arrays_of_other_shapes_and_types(name, saved, tmp_path):
    header, arrays = members(saved[name])
    for edited, array in arrays.items():
        if (name, edited) in MAY_BE_ANYTHING or edited in ("actions", "policy_actions"):
            continue
        others = [
            array[None],
            array[..., None],
            array[:-1],
            np.array("text"),
            np.full(array.shape, "a"),
            array.astype("V8"),
        ]
        for other in others:
            if other.shape != array.shape or other.dtype.kind in "UV":
                path = write(tmp_path / "v.gptd", header, arrays | {edited: other})
                is_shorter = other.size < array.size and edited.endswith(MAY_BE_SHORTER)
                assert refusal(path) or other.size == array.size or is_shorter, (edited, other.shape, other.dtype)


@pytest.mark.parametrize("name", ["exact", "sparse", "pairs", "online"])
@pytest.mark.parametrize("value", [800.0, 1e60])
def test_load_refuses_parameters_that_overflow(name, value, saved, tmp_path):
    header, arrays = members(saved[name])
    for i in range(len(arrays["theta"])):
        theta = arrays["theta"].copy()
        theta[i] = value
        assert "overflow" in refusal(write(tmp_path / "v.gptd", header, arrays | dict(theta=theta))), i


def test_load_refuses_scales_that_overflow(saved, tmp_path):
    header, arrays = members(saved["dynamics"])
    tiny = np.full_like(arrays["output0_scale"], 1e-320)
    assert "overflow" in refusal(write(tmp_path / "v.gptd", header, arrays | dict(output0_scale=tiny)))


@pytest.mark.parametrize("edited", ["output0_rows", "ends_weights"])
def test_load_refuses_empty_arrays_of_dynamics(edited, saved, tmp_path):
    header, arrays = members(saved["dynamics"])
    assert refusal(write(tmp_path / "v.gptd", header, arrays | {edited: arrays[edited][..., :0]}))


def test_load_refuses_actions_that_are_no_whole_numbers(saved, tmp_path):
    header, arrays = members(saved["greedy"])
    for bad in (0.5, 1e30):
        states = arrays["states"].copy()
        states[0, -1] = bad
        assert refusal(write(tmp_path / "v.gptd", header, arrays | dict(states=states)))


@pytest.mark.parametrize("name", ["exact", "sparse", "pairs", "greedy"])
def test_load_refuses_discounts_beyond_one(name, saved, tmp_path):
    header, arrays = members(saved[name])
    assert "discounts must lie in [0, 1]" in refusal(
        write(tmp_path / "v.gptd", header, arrays | dict(discounts=5.0 * arrays["discounts"]))
    )


@pytest.mark.parametrize("name", MODELS)
def test_load_refuses_unknown_arrays(name, saved, tmp_path):
    header, arrays = members(saved[name])
    path = write(tmp_path / "v.gptd", header, dict(arrays, strange=np.zeros(3)))
    assert "it holds an unknown array 'strange'" in refusal(path)


# -------------------------------------------------------------------------------------- headers


def leaves(header: Any, trail: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of nested dicts and lists are."""
    yield trail
    items = header.items() if isinstance(header, dict) else enumerate(header) if isinstance(header, list) else ()
    for key, value in items:
        yield from leaves(value, (*trail, key))


def edited(header: dict[str, Any], trail: tuple[Any, ...], value: Any) -> dict[str, Any]:
    header = deepcopy(header)
    place: Any = header
    for key in trail[:-1]:
        place = place[key]
    place[trail[-1]] = value
    return header


@pytest.mark.parametrize("name", MODELS)
def test_load_of_headers_with_nonsense(name, saved, tmp_path):
    """Each value in turn: the model is refused in one line, or still predicts."""
    header, arrays = members(saved[name])
    nonsense: list[Any] = [None, -1, 1e100, float("nan"), "x", [], {}, [[1]], True, 10**30]
    n_refused = 0
    trails = [trail for trail in leaves(header) if trail]
    for i, trail in enumerate(trails):
        for k in range(2):
            value = nonsense[(2 * i + k) % len(nonsense)]
            n_refused += bool(refusal(write(tmp_path / "v.gptd", edited(header, trail, value), arrays)))
    assert n_refused > len(trails) / 2


@pytest.mark.parametrize("name", ["exact", "sparse", "pairs", "greedy", "online"])
def test_load_refuses_unknown_noise(name, saved, tmp_path):
    header, arrays = members(saved[name])
    header["params"]["noise"] = "none at all"
    assert "noise must be one of" in refusal(write(tmp_path / "v.gptd", header, arrays))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_load_refuses_deep_json(text, tmp_path):
    with (tmp_path / "v.gptd").open("wb") as file:
        np.savez_compressed(file, header=np.array(text))
    assert "nested too deeply" in refusal(tmp_path / "v.gptd")


def test_load_refuses_deep_kernels(saved, tmp_path):
    header, arrays = members(saved["exact"])
    for _ in range(400):
        header["kernel"] = dict(type="Sum", parts=[header["kernel"]])
    assert refusal(write(tmp_path / "v.gptd", header, arrays))


def test_load_refuses_long_json(tmp_path):
    with (tmp_path / "v.gptd").open("wb") as file:
        np.savez_compressed(file, header=np.array("[" + "[]," * 5_000_000 + "1]"))
    assert "items" in refusal(tmp_path / "v.gptd")


def test_load_refuses_a_folder_in_one_line(tmp_path):
    with pytest.raises(OSError, match=r"is a folder: expected a file\.$"):
        gptd_rl.load(tmp_path)


def test_load_refuses_huge_shapes(saved, tmp_path):
    """A header of an array that says that there are 2**45 numbers, or numbers of a gigabyte each."""
    header, arrays = members(saved["exact"])
    source = write(tmp_path / "v.gptd", header, arrays)
    shape = f"({len(DATA)}, 3)".encode()
    for other in (b"(2**45,)", b"(35184372088832, 3)", b"(0, 4611686018427387904)", b"(-1, -21)", b"()"):
        with zipfile.ZipFile(source) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        before = content["states.npy"]
        head = before[:128].replace(shape, other)[:127].ljust(127) + b"\n"
        assert head != before[:128]
        content["states.npy"] = head + before[128:]
        with zipfile.ZipFile(tmp_path / "w.gptd", "w") as archive:
            for name, written in content.items():
                archive.writestr(name, written)
        assert refusal(tmp_path / "w.gptd")


@pytest.mark.parametrize("name", ["exact", "sparse", "bootstrapped", "online bootstrapped"])
def test_load_predicts_the_same_to_the_last_digit(name, saved):
    x = DATA.states + 0.1
    expected = MODELS[name]().predict(x, return_std=True)
    np.testing.assert_array_equal(gptd_rl.load(saved[name]).predict(x, return_std=True), expected)
