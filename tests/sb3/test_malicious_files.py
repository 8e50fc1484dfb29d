"""Files that attack: nothing of theirs runs, no class changes, no memory beyond their own size is taken."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gptd_rl.exceptions import AgentError
from gptd_rl.sb3.loading import load_agent, load_statistics
from tests.sb3.crafted import Changed, Global, Made, dumps
from tests.sb3.test_loading import changed, contents, make, refusal, write

sb3 = pytest.importorskip("stable_baselines3")
torch = pytest.importorskip("torch")

RMS = Global("stable_baselines3.common.running_mean_std", "RunningMeanStd")
DTYPE, SCALAR = Global("numpy", "dtype"), Global("numpy._core.multiarray", "scalar")
RECONSTRUCT, NDARRAY = Global("numpy._core.multiarray", "_reconstruct"), Global("numpy", "ndarray")
OBJECT = Made(DTYPE, "O8", False, True, state=(3, "|", None, None, None, -1, -1, 63))


def hidden_object() -> Made:
    """A structured dtype with a field of Python objects, and flags that deny it."""
    return Made(DTYPE, "V8", False, True, state=(3, "|", None, ("f",), {"f": (OBJECT, 0)}, 8, 1, 0))


def plain_dtype(code: str = "f8", order: str = "<") -> Made:
    return Made(DTYPE, code, False, True, state=(3, order, None, None, None, -1, -1, 0))


def array(dtype: Any, shape: Any, content: bytes) -> Made:
    return Made(RECONSTRUCT, NDARRAY, (0,), b"b", state=(1, shape, dtype, False, content))


def field(content: bytes, **shown: Any) -> dict[str, Any]:
    return {":type:": "", ":serialized:": base64.b64encode(content).decode(), **shown}


@pytest.fixture(scope="module")
def agent(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("agents") / "PPO.zip"
    make("PPO").save(path)
    return path


def statistics_refusal(content: bytes, tmp_path: Path) -> str:
    path = tmp_path / "some.pkl"
    path.write_bytes(content)
    return refusal(load_statistics, path)


def in_subprocess(load: str, path: Path) -> str:
    """What a call of the loader prints in a process of its own, which may crash."""
    code = f"""
from gptd_rl.sb3.loading import load_agent, load_statistics
try:
    {load}({str(path)!r})
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-300:]}"
    return done.stdout


# -------------------------------------------------------------------------------------- memory corruption


def field_of_a_hidden_object() -> bytes:
    """An array whose field is set: NumPy gives back the old object, the address of which is in the file."""
    return dumps(array(hidden_object(), (1,), b"A" * 8))[:-1] + dumps("f")[2:-1] + b"Ns."


def test_load_statistics_survives_a_hidden_object_dtype(tmp_path):
    (tmp_path / "some.pkl").write_bytes(field_of_a_hidden_object())
    assert "no plain VecNormalize file" in in_subprocess("load_statistics", tmp_path / "some.pkl")


def test_load_agent_survives_a_hidden_object_dtype(tmp_path, agent):
    path = changed(agent, tmp_path / "agent.zip", policy_kwargs=field(field_of_a_hidden_object()))
    assert "see its policy_kwargs" in in_subprocess("load_agent", path)


@pytest.mark.parametrize(
    "dtype",
    [
        OBJECT,
        hidden_object(),
        Made(DTYPE, "V8", False, True),
        Made(DTYPE, "f8", False, True, state=(3, "<", None, None, None, 64, -1, 0)),
        Made(DTYPE, "f8", False, True, state=(3, "<", None, None, None, -1, -1, 63)),
        Made(DTYPE, "f8", False, True, state=(3, "<", (plain_dtype(), (4,)), None, None, -1, -1, 0)),
        Made(DTYPE, "f8", False, True, state=(4, "<", None, None, None, -1, -1, 0, {"metadata": 1})),
        Made(DTYPE, "M8", False, True, state=(4, "<", None, None, None, -1, -1, 0, ({}, (b"D", 1, 1, 1)))),
        Made(DTYPE, "U4", False, True),
        Made(DTYPE, [("a", "f8")], False, True),
    ],
)
def test_load_statistics_refuses_other_dtypes(dtype, tmp_path):
    """Type objects, fields, changed sizes, flags, sub-arrays, metadata, dates, text."""
    for thing in (array(dtype, (1,), b"A" * 8), Made(SCALAR, dtype, b"A" * 8), dtype):
        assert "dtype" in statistics_refusal(dumps([thing]), tmp_path)


@pytest.mark.parametrize("shape", [(2,), (2**62,), (2**31, 2**31), (-1,), (1,) * 40, (0, 2**62), "a", (1.0,), [1]])
def test_load_statistics_refuses_arrays_whose_content_has_another_size(shape, tmp_path):
    for thing in (
        array(plain_dtype(), shape, b"A" * 8),
        Made(Global("numpy._core.numeric", "_frombuffer"), b"A" * 8, plain_dtype(), shape, "C"),
    ):
        assert "no plain VecNormalize file" in statistics_refusal(dumps(thing), tmp_path)


# -------------------------------------------------------------------------------------- classes and functions


def test_load_statistics_changes_no_class(tmp_path):
    from stable_baselines3.common.running_mean_std import RunningMeanStd

    before = RunningMeanStd.update
    for state in ({"update": None}, (None, {"update": None})):
        message = statistics_refusal(dumps(Changed(RMS, state)), tmp_path)
        assert "it changes what it did not make" in message
        assert RunningMeanStd.update is before


def test_load_statistics_changes_no_function(tmp_path):
    from numpy._core import numeric

    frombuffer = vars(numeric)["_frombuffer"]
    before = frombuffer.__defaults__
    changed_function = Changed(Global("numpy._core.numeric", "_frombuffer"), (None, {"__defaults__": (1, 2)}))
    assert "it changes what it did not make" in statistics_refusal(dumps(changed_function), tmp_path)
    assert frombuffer.__defaults__ == before


def test_load_statistics_sets_no_methods(tmp_path):
    """A field of the name of a method would hide it."""
    rms = Made(RMS, state={"mean": 0.0, "var": 1.0, "count": 1.0, "update": 3})
    space = Made(Global("gymnasium.spaces.discrete", "Discrete"), state={"n": 2, "sample": 3})
    kept = dict.fromkeys(("clip_obs", "clip_reward", "gamma", "epsilon"), 0.5)
    state = dict(kept, observation_space=space, action_space=space, ret_rms=rms, norm_obs=False, normalize_obs=3)
    module = "stable_baselines3.common.vec_env.vec_normalize"
    (tmp_path / "some.pkl").write_bytes(dumps(Made(Global(module, "VecNormalize"), state=state)))
    statistics = load_statistics(tmp_path / "some.pkl")
    assert callable(statistics.normalize_obs) and callable(statistics.ret_rms.update)
    assert callable(statistics.observation_space.sample)


@pytest.mark.parametrize(
    ("name", "value"), [("mean", np.nan), ("var", -1.0), ("var", np.inf), ("count", 0.0), ("count", np.nan)]
)
def test_load_statistics_checks_the_statistics(name, value, tmp_path):
    rms = Made(RMS, state=dict(mean=0.0, var=1.0, count=1.0) | {name: value})
    assert "no plain VecNormalize file (it has" in statistics_refusal(dumps(rms), tmp_path)


def test_load_agent_makes_no_environment(tmp_path, agent):
    """The id of an environment may name a module, which Gymnasium imports."""
    (tmp_path / "harmful_module.py").write_text("raise SystemExit('imported')")
    path = changed(agent, tmp_path / "agent.zip", env="harmful_module:Env-v0")
    sys.path.insert(0, str(tmp_path))
    try:
        assert load_agent(path).get_env() is None
    finally:
        sys.path.remove(str(tmp_path))


def test_load_agent_sets_no_methods(tmp_path, agent):
    path = changed(agent, tmp_path / "agent.zip", predict=3, _setup_model=3, policy=3, something=[1])
    model = load_agent(path)
    assert callable(model.predict) and not hasattr(model, "something")


@pytest.mark.parametrize("name", ["__class__", "policy.__class__", "policy.forward", "predict"])
def test_load_agent_sets_no_other_variables(name, tmp_path, agent):
    """SB3 sets `data` of what the name of a variable leads to, be it a class."""
    file = io.BytesIO()
    torch.save({name: torch.zeros(1)}, file)
    path = write(tmp_path / "agent.zip", contents(agent) | {"pytorch_variables.pth": file.getvalue()})
    assert f"it has a variable '{name}'" in refusal(load_agent, path)
    assert not hasattr(sb3.PPO, "data") and not hasattr(sb3.PPO.predict, "data")


@pytest.mark.parametrize("name", ["__class__", "policy.__class__", "_logger", "policy._modules"])
def test_load_agent_refuses_weights_of_hidden_attributes(name, tmp_path, agent):
    members = contents(agent)
    path = write(tmp_path / "agent.zip", members | {f"{name}.pth": members["policy.pth"]})
    assert "no plain archive" in refusal(load_agent, path)


# -------------------------------------------------------------------------------------- limits


def peak_of(load: Any, path: Path) -> tuple[str, int]:
    """The refusal of a file, and the most memory that reading it took."""
    tracemalloc.start()
    try:
        message = refusal(load, path)
        return message, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BOMBS = {
    "memo index": b"\x80\x04N" + b"r\xff\xff\xff\x7f" + b"0N.",
    "long memo index": b"\x80\x04Np" + b"9" * 4000 + b"\n0N.",
    "nesting": b"\x80\x04" + b"N" + b"\x85" * 150_000 + b".",
    "nested key": b"\x80\x04}N" + b"\x85" * 150_000 + b"Ns.",
    "list of itself": b"\x80\x04]\x94h\x00a.",
    "doubling": b"\x80\x04]\x94" + b"".join(b"](h%ch%ce\x94" % (i, i) for i in range(40)) + b".",
    "opcodes": b"\x80\x04](" + b"]" * 1_000_000 + b"e.",
    "declared string": b"\x80\x04X\xff\xff\xff\x7fabc.",
    "declared bytes": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc.",
    "declared bytearray": b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"abc.",
    "frame": b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"N.",
    "digits": b"I" + b"9" * 100_000 + b"\n.",
    "large integer": b"\x80\x04\x8b" + (200_000).to_bytes(4, "little") + b"\x7f" * 200_000 + b".",
    "persistent id": b"\x80\x04K\x01Q.",
    "extension": b"\x80\x04\x82\x01.",
    "instance": b"(ios\nsystem\n.",
    "buffer": b"\x80\x05\x97.",
    "set": b"\x80\x04\x8f.",
    "empty stack": b"\x80\x04a.",
    "two results": b"\x80\x04NN.",
    "no mark": b"\x80\x04NNt.",
    "odd items": b"\x80\x04}(Nu.",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_load_statistics_refuses_bombs(kind, tmp_path):
    path = tmp_path / "some.pkl"
    path.write_bytes(BOMBS[kind])
    message, peak = peak_of(load_statistics, path)
    assert "some.pkl" in message and peak < 2**26


def test_load_statistics_counts_arrays_that_share_their_bytes(tmp_path):
    """One string of bytes, memoised, and many arrays of it."""
    n = 2**20
    first = b"\x80\x04](" + b"B" + n.to_bytes(4, "little") + bytes(n) + b"q\xff0"
    one = dumps(array(plain_dtype("u1", "|"), (n,), b"content"))[2:-1]
    shared = one.replace(dumps(b"content")[2:-1], b"h\xff")
    assert shared != one
    (tmp_path / "some.pkl").write_bytes(first + shared * 1000 + b"e.")
    message, peak = peak_of(load_statistics, tmp_path / "some.pkl")
    assert "bytes of arrays" in message and peak < 2**28


def zip_of(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tensor(size: Any, stride: Any, n: int, offset: int = 0, kind: str = "FloatStorage") -> bytes:
    """The pickle of a dict with one tensor."""
    name = dumps(Global("torch._utils", "_rebuild_tensor_v2"))[2:-1]
    storage = dumps(("storage", Global("torch", kind), "0", "cpu", n))[2:-1] + b"Q"
    arguments: list[Any] = [offset, size, stride, False, {}]
    rest = b"".join(dumps(item)[2:-1] for item in arguments)
    return b"\x80\x02}" + dumps("log_std")[2:-1] + name + b"(" + storage + rest + b"tRs."


@pytest.mark.parametrize(
    ("content", "storage"),
    [
        (tensor((2**40,), (1,), 2**40), b"abcd"),
        (tensor((2**20, 2**20), (0, 0), 1), b"abcd"),
        (tensor((2,), (1,), 1), b"abcd"),
        (tensor((1,), (1,), 1, offset=5), b"abcd"),
        (tensor((1,), (1,), 1, offset=-5), b"abcd"),
        (tensor((-1, -1), (1, 1), 1), b"abcd"),
        (tensor((1,), (2**62,), 1, kind="QUInt8Storage"), b"abcd"),
        (dumps({"a": Made(Global("builtins", "bytearray"), 2**40)}), b""),
        (dumps({"a": Made(Global("torch", "empty"), 2**40)}), b""),
    ],
)
def test_load_agent_refuses_tensors_larger_than_their_storage(content, storage, tmp_path, agent):
    members = {"archive/data.pkl": content, "archive/data/0": storage}
    for member in ("policy.pth", "policy.optimizer.pth"):
        path = write(tmp_path / "agent.zip", contents(agent) | {member: zip_of(members, zipfile.ZIP_STORED)})
        message, peak = peak_of(load_agent, path)
        assert "cannot load agent.zip as PPO" in message and peak < 2**26


def deflated(path: Path, members: dict[str, bytes]) -> Path:
    path.write_bytes(zip_of(members))
    return path


def test_load_agent_refuses_deflated_members_beyond_the_limit(tmp_path, agent, monkeypatch):
    from gptd_rl.data import archives

    monkeypatch.setattr(archives, "MAX_BYTES", 2**22)
    path = deflated(tmp_path / "agent.zip", contents(agent) | {"policy.optimizer.pth": bytes(2**25)})
    message, peak = peak_of(load_agent, path)
    assert "it would unpack to" in message and peak < 2**22
    inner = zip_of({"archive/data.pkl": dumps({}), "archive/data/0": bytes(2**25)})
    path = write(tmp_path / "agent.zip", contents(agent) | {"policy.pth": inner})
    message, peak = peak_of(load_agent, path)
    assert "it would unpack to" in message and peak < 2**22


def test_load_agent_does_not_trust_declared_sizes(tmp_path, agent):
    """A member that says that it unpacks to ten bytes, and unpacks to 32 MB."""
    path = deflated(tmp_path / "agent.zip", contents(agent) | {"strange.pth": bytes(2**25)})
    content = path.read_bytes()
    size = (2**25).to_bytes(4, "little")
    assert content.count(size) == 2
    path.write_bytes(content.replace(size, (10).to_bytes(4, "little")))
    message, peak = peak_of(load_agent, path)
    assert "agent.zip" in message and peak < 2**24


def test_load_agent_refuses_other_compressions(tmp_path, agent):
    """Python unpacks these without a limit."""
    path = tmp_path / "agent.zip"
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path.write_bytes(zip_of(contents(agent), compression))
        assert "compressed in another way" in refusal(load_agent, path)


def test_load_agent_reads_deflated_archives(tmp_path, agent):
    """Somebody may have packed it again."""
    load_agent(deflated(tmp_path / "agent.zip", contents(agent)))


def test_load_agent_refuses_json_of_many_items(tmp_path, agent):
    members = contents(agent) | {"data": b"[" + b"[]," * 6_000_000 + b"[]]"}
    message, peak = peak_of(load_agent, deflated(tmp_path / "agent.zip", members))
    assert "items" in message and peak < 2**26


@pytest.mark.parametrize(
    "policy_kwargs",
    [
        {"net_arch": [30_000, 30_000]},
        {"net_arch": {"pi": [2**45], "vf": [8]}},
        {"net_arch": [8] * 10**5},
        {"net_arch": [8], "features_extractor_kwargs": {"features_dim": 2**40}},
    ],
)
def test_load_agent_refuses_networks_that_its_weights_do_not_fill(policy_kwargs, tmp_path, agent):
    path = changed(agent, tmp_path / "agent.zip", policy_kwargs=policy_kwargs)
    assert "cannot load agent.zip as PPO" in refusal(load_agent, path)


def test_load_agent_counts_a_tensor_once(tmp_path, agent):
    """A tensor under many names does not make room for a large network."""
    file, one = io.BytesIO(), torch.zeros(1000)
    torch.save({f"w{i}": one for i in range(2000)}, file)  # as if 8 MB
    members = contents(changed(agent, tmp_path / "agent.zip", policy_kwargs={"net_arch": [2500, 2500]}))
    path = write(tmp_path / "agent.zip", members | {"strange.pth": file.getvalue()})
    assert "larger network than its weights fill" in refusal(load_agent, path)


@pytest.mark.parametrize(
    ("module", "name", "state"),
    [
        ("discrete", "Discrete", {"n": 2**62}),
        ("discrete", "Discrete", {"n": -1}),
        ("discrete", "Discrete", {"n": "many"}),
        ("discrete", "Discrete", {}),
        ("multi_binary", "MultiBinary", {"n": 2**40}),
        ("multi_binary", "MultiBinary", {"n": (2**20, 2**20)}),
        ("multi_discrete", "MultiDiscrete", {"nvec": array(plain_dtype("i8"), (1,), (2**62).to_bytes(8, "little"))}),
        ("box", "Box", {"low": 0.0, "high": 1.0, "dtype": plain_dtype("f4"), "_shape": (2**40,)}),
        ("box", "Box", {"low": np.nan, "high": 1.0, "dtype": plain_dtype("f4")}),
        ("dict", "Dict", {"spaces": {"a": 3}}),
        ("dict", "Dict", {"spaces": [1]}),
    ],
)
def test_load_agent_refuses_spaces_beyond_measure(module, name, state, tmp_path, agent):
    space = field(dumps(Made(Global(f"gymnasium.spaces.{module}", name), state=state)))
    path = changed(agent, tmp_path / "agent.zip", observation_space=space)
    with pytest.raises(AgentError) as caught:
        load_agent(path)
    assert "\n" not in str(caught.value)


def test_load_agent_of_json_fields_of_any_kind(tmp_path, agent):
    """Each field in turn is nonsense: the agent loads, or one line says why not."""
    names = json.loads(contents(agent)["data"])
    nonsense = [-1, 1e308, "x", [[]], {"a": {}}, {":serialized:": 3}, {":serialized:": "AAAA"}]
    for i, name in enumerate(names):
        path = changed(agent, tmp_path / "agent.zip", **{name: nonsense[i % len(nonsense)]})
        assert "\n" not in message_of(path)


def message_of(path: Path) -> str:
    """Why an agent is refused; empty if it is not."""
    try:
        load_agent(path)
    except AgentError as error:
        return str(error)
    return ""
