"""Damaged files of our own: refused in one line, or read as if nothing had happened."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gptd_rl
from gptd_rl import GPTD, GPTDQ, OnlineGPTD, Trajectories
from gptd_rl.agents import PolicyIteration
from tests.adversarial.harness import Attack, Category, pick, refused
from tests.adversarial.nonsense import spoiled
from tests.estimators.test_edited_files import DATA, MODELS, edited, leaves, members, write
from tests.sb3.test_malicious_files import zip_of

Members = dict[str, bytes]
HEADERS: list[Any] = [None, -1, 0, 1, 2, 1e100, float("nan"), "x", "", [], {}, [[1]], True, 10**30, 10**400, [1, 2, 3]]


def answer(thing: Any) -> list[np.ndarray]:
    """What a thing that was read says; the numbers are finite."""
    x = DATA.states[:3]
    if isinstance(thing, Trajectories):
        numbers: Any = (thing.states, thing.rewards, thing.discounts)
    elif isinstance(thing, GPTD | OnlineGPTD):
        numbers = thing.predict(x, return_std=True)
    elif isinstance(thing, GPTDQ):
        numbers = (thing.q_values(x),)
    elif isinstance(thing, PolicyIteration):
        numbers = (thing.q_values(np.ones((1, 2))),)
    else:
        outcome = thing.predict(x, [0, 1, 0])
        numbers = (outcome.next_states, outcome.rewards)
    assert all(np.isfinite(array).all() for array in numbers), "a damaged file was read, and predicts no numbers"
    return list(numbers)


# -------------------------------------------------------------------------------------- bytes


def flip(content: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    for _ in range(pick(rng, [1, 1, 2, 8, 64])):
        damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def cut(content: bytes, rng: np.random.Generator) -> bytes:
    a, b = sorted(rng.integers(0, len(content) + 1, size=2).tolist())
    return pick(rng, [content[:a], content[a:], content[:a] + content[b:], content[:a] + bytes(b - a) + content[b:]])


def insert(content: bytes, rng: np.random.Generator) -> bytes:
    a, b, c = sorted(rng.integers(0, len(content) + 1, size=3).tolist())
    return content[:a] + pick(rng, [content[b:c], rng.bytes(c - b), b"PK\x05\x06" + bytes(18)]) + content[a:]


BYTES: list[Callable[[bytes, np.random.Generator], bytes]] = [flip, flip, cut, insert]


# -------------------------------------------------------------------------------------- members


def unpacked(content: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def damage_a_member(parts: Members, rng: np.random.Generator) -> Members:
    """With a right checksum, so that the damage is seen only by who reads the member."""
    name = pick(rng, list(parts))
    return parts | {name: pick(rng, BYTES)(parts[name], rng)}


def damage_a_head(parts: Members, rng: np.random.Generator) -> Members:
    """The head of an array says another shape or type."""
    name = pick(rng, list(parts))
    head, rest = parts[name][:128], parts[name][128:]
    old, new = pick(rng, [(b"(", b"(9999999999,"), (b"<f8", b"|O"), (b"<f8", b"<c16"), (b"<f8", b"<M8[s]"),
                          (b"<f8", b"|V9999"), (b"False", b"True"), (b"<i8", b"<u8"), (b"1", b"2**70"),
                          (b"(", b"(" * 60),
                          (b"<U", b">U"), (b"{", b"{'a': 1, "), (b"<f8", b"<f2"), (b",)", b",-1)")])  # fmt: skip
    return parts | {name: head.replace(old, new)[:127].ljust(127) + b"\n" + rest}


def rename_a_member(parts: Members, rng: np.random.Generator) -> Members:
    parts = dict(parts)
    content = parts.pop(pick(rng, list(parts)))
    names = ["../x.npy", "/x.npy", "x", "header.npy", "states.npy", "a/b.npy", "a\x00.npy", "x" * 5000 + ".npy"]
    return parts | {pick(rng, names): content}


def add_a_bomb(parts: Members, rng: np.random.Generator) -> Members:
    text = pick(rng, ["[" * 50_000, '{"a":' * 50_000, "[" + "[]," * 100_000 + "1]", "9" * 10_000, '"' + "a" * 10**6])
    file = io.BytesIO()
    np.save(file, np.array(text))
    return parts | {pick(rng, ["header.npy", "strange.npy"]): file.getvalue()}


MEMBERS = [damage_a_member, damage_a_member, damage_a_head, rename_a_member, add_a_bomb]


# -------------------------------------------------------------------------------------- content


def edit(source: Path, target: Path, rng: np.random.Generator) -> None:
    """Another value in the header, or other arrays, in a whole file."""
    header, arrays = members(source)
    if rng.random() < 0.5:
        trails = [trail for trail in leaves(header) if trail]
        for _ in range(pick(rng, [1, 1, 2])):
            try:
                header = edited(header, pick(rng, trails), pick(rng, HEADERS))
            except (KeyError, IndexError, TypeError):  # the second place is gone with the first
                continue
    elif arrays:
        name = pick(rng, list(arrays))
        if rng.random() < 0.1:
            del arrays[name]
        else:
            arrays[name] = spoiled(arrays[name], rng)
    write(target, header, {name: as_array(array) for name, array in arrays.items()})


def as_array(value: Any) -> np.ndarray:
    """Any value as an array that can be written: one of text, if it is nothing else."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        array = np.array(str(value))
    return array.astype(str) if array.dtype.hasobject else array


def prepare(folder: Path) -> Attack:
    sources = {name: make().save(folder / f"{name}.gptd") for name, make in MODELS.items()}
    sources["data"] = DATA.save(folder / "data")
    sources["agent"] = PolicyIteration("gptd_rl/LatentGridworld-v0", seed=0).learn(60).save(folder / "agent")
    loaders: dict[str, Callable[[Path], Any]] = {"data": Trajectories.load, "agent": PolicyIteration.load}
    loaders |= dict.fromkeys(MODELS, gptd_rl.load)
    right = {name: answer(loaders[name](path)) for name, path in sources.items()}
    target = folder / "target"

    def attack(rng: np.random.Generator) -> str | None:
        name = pick(rng, list(sources))
        content, kind = sources[name].read_bytes(), rng.random()
        if kind < 0.4:
            target.write_bytes(pick(rng, BYTES)(content, rng))
        elif kind < 0.7 or name == "data":
            compression = pick(rng, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
            target.write_bytes(zip_of(pick(rng, MEMBERS)(unpacked(content), rng), compression))
        else:
            edit(sources[name], target, rng)
        read: list[Any] = []
        if refused(lambda: read.append(loaders[name](target))):
            return None
        if refused(lambda: read.append(answer(read[0]))):
            return None if kind >= 0.4 else f"{name}: read, and then refuses to predict"
        same = all(np.array_equal(a, b) for a, b in zip(read[1], right[name], strict=True))
        return None if same or kind >= 0.4 else f"{name}: damaged bytes were read, and predict something else"

    return attack


CATEGORY = Category("damaged own files", prepare, 0.22)
