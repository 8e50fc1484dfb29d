"""Malicious archives of Stable-Baselines3 and VecNormalize files: nothing of theirs runs, and no class changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from gptd_rl.sb3.loading import load_agent, load_statistics
from tests.adversarial.harness import Attack, Category, pick, refused
from tests.adversarial.own_files import BYTES
from tests.sb3.crafted import Changed, Global, Made, dumps
from tests.sb3.test_loading import changed, contents, make, write
from tests.sb3.test_malicious_files import (
    BOMBS,
    NDARRAY,
    OBJECT,
    RECONSTRUCT,
    RMS,
    SCALAR,
    array,
    field,
    field_of_a_hidden_object,
    hidden_object,
    plain_dtype,
    tensor,
    zip_of,
)

MODULE = "antigravity"  # would open a browser: nobody imports it
NORMALIZE = Global("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize")
SPACES = ["box.Box", "discrete.Discrete", "dict.Dict", "multi_binary.MultiBinary", "multi_discrete.MultiDiscrete"]
NAMES = [
    *("os.system", "os.mkdir", "builtins.eval", "builtins.exec", "builtins.getattr", "builtins.dict", "builtins.type"),
    *("builtins.__import__", "importlib.import_module", "subprocess.Popen", "numpy.load", "numpy.dtype", "numpy.save"),
    *("torch.load", "torch._utils._rebuild_tensor_v2", "torch.nn.modules.activation.Tanh", "torch.optim.adam.Adam"),
    *("functools.partial", "operator.attrgetter", "copyreg._reconstructor", "collections.OrderedDict"),
    *("numpy.random._pickle.__generator_ctor", "cloudpickle.cloudpickle._make_function", "pickle.loads", "sys.modules"),
    *("stable_baselines3.common.policies.ActorCriticPolicy", "gptd_rl.data.files.write", f"{MODULE}.geohash", "a.b"),
    *(f"gymnasium.spaces.{name}" for name in SPACES),
]  # fmt: skip
SHAPES = [(1,), (2,), (), (0,), (2**62,), (-1,), (1,) * 40, (2**31, 2**31), "a", (1.5,), [1], None]
LEAVES: list[Any] = [None, True, 0, 1, -1, 2**31, 2**70, 0.5, float("nan"), "", "a", "__class__", b"", b"A" * 8, (), []]


class Pickles:
    """Random pickles: nested calls of names with arguments and states, among them a payload that makes a folder."""

    def __init__(self, rng: np.random.Generator, payload: Path) -> None:
        self.rng, self.payload = rng, payload

    def make(self) -> bytes:
        content = field_of_a_hidden_object() if self.rng.random() < 0.02 else dumps(self.thing(4))
        if self.rng.random() < 0.1:
            content = pick(self.rng, list(BOMBS.values()))
        return pick(self.rng, BYTES)(content, self.rng) if self.rng.random() < 0.2 else content

    def thing(self, depth: int) -> Any:
        makers = [self.leaf]
        if depth:
            makers += [self.sequence, self.mapping, self.call, self.call, self.change]
            makers += [self.array, self.space, self.statistics, self.harm]
        return pick(self.rng, makers)(depth - 1)

    def leaf(self, depth: int) -> Any:
        return pick(self.rng, LEAVES)

    def sequence(self, depth: int) -> Any:
        return pick(self.rng, [tuple, list])(self.thing(depth) for _ in range(self.rng.integers(4)))

    def mapping(self, depth: int) -> Any:
        keys = ["a", "update", "__class__", "__setstate__", "mean", "spaces", "net_arch", "activation_fn", "n", "low"]
        return {pick(self.rng, keys): self.thing(depth) for _ in range(self.rng.integers(4))}

    def name(self) -> Global:
        module, _, name = pick(self.rng, NAMES).rpartition(".")
        return pick(self.rng, [Global(module, name), RMS, NORMALIZE, NDARRAY, RECONSTRUCT, SCALAR])

    def call(self, depth: int) -> Any:
        state = self.thing(depth) if self.rng.random() < 0.5 else None
        return Made(self.name(), *(self.thing(depth) for _ in range(self.rng.integers(4))), state=state)

    def change(self, depth: int) -> Any:
        return Changed(pick(self.rng, [self.name(), self.thing(depth)]), self.thing(depth))

    def array(self, depth: int) -> Any:
        dtypes = [plain_dtype(), plain_dtype("f4"), plain_dtype("i8"), OBJECT, hidden_object(), self.thing(depth)]
        return array(pick(self.rng, dtypes), pick(self.rng, SHAPES), pick(self.rng, [b"A" * 8, b"A" * 16, b"", b"A"]))

    def space(self, depth: int) -> Any:
        values = {key: self.thing(depth) for key in ("n", "start", "low", "high", "_shape", "nvec", "spaces", "dtype")}
        return Made(Global("gymnasium.spaces." + pick(self.rng, SPACES).split(".")[0],
                           pick(self.rng, SPACES).split(".")[1]), state=values)  # fmt: skip

    def statistics(self, depth: int) -> Any:
        rms = Made(RMS, state=dict(mean=0.0, var=1.0, count=1.0) | {"update": self.thing(depth)})
        kept = dict.fromkeys(("clip_obs", "clip_reward", "gamma", "epsilon"), 0.5)
        space = Made(Global("gymnasium.spaces.discrete", "Discrete"), state={"n": 2})
        state = dict(kept, observation_space=space, action_space=space, ret_rms=rms, norm_obs=False)
        state[pick(self.rng, [*state, "obs_rms", "venv", "__class__", "training", "norm_obs_keys"])] = self.thing(depth)
        return Made(NORMALIZE, state=state)

    def harm(self, depth: int) -> Any:
        return pick(self.rng, [Made(Global("os", "mkdir"), str(self.payload)), Made(Global(MODULE, "fly")),
                               Made(Global("builtins", "__import__"), MODULE)])  # fmt: skip


def archive_of(source: Path, target: Path, pickles: Pickles, rng: np.random.Generator) -> None:
    """The archive of an agent with something that is wrong."""
    parts, kind = contents(source), rng.integers(6)
    fields = json.loads(parts["data"])
    if kind == 0:
        target.write_bytes(pick(rng, BYTES)(source.read_bytes(), rng))
    elif kind == 1:
        names = [
            "../up.pth",
            "/root.pth",
            "policy.pth",
            "x",
            "data",
            "__class__.pth",
            "a/b.pth",
            "a\x00.pth",
            "a\\..\\b",
        ]
        write(target, parts | {pick(rng, names): pick(rng, list(parts.values()))})
    elif kind == 2:
        name = pick(rng, list(parts))
        write(target, parts | {name: pick(rng, BYTES)(parts[name], rng)})
    elif kind == 3:
        sizes = [pick(rng, [0, 1, -1, 2, 2**20, 2**40, 2**62]) for _ in range(4)]
        weights = tensor((sizes[0],), (sizes[1],), sizes[2], offset=sizes[3])
        members = {"archive/data.pkl": pick(rng, [weights, pickles.make()]), "archive/data/0": b"abcd"}
        write(target, parts | {pick(rng, list(parts)[1:]): zip_of(members)})
    elif kind == 4:
        changed(source, target, **{pick(rng, list(fields)): field(pickles.make())})
    else:
        values = [
            -1,
            1e308,
            "x",
            [[]],
            {"a": {}},
            {":serialized:": 3},
            {":serialized:": "AAAA"},
            True,
            10**40,
            [1] * 99,
        ]
        changed(source, target, **{pick(rng, list(fields)): pick(rng, values) for _ in range(rng.integers(1, 3))})


def guarded() -> list[Any]:
    """What no file may change."""
    from numpy._core import numeric
    from stable_baselines3.common.running_mean_std import RunningMeanStd
    from stable_baselines3.common.vec_env import VecNormalize

    frombuffer = vars(numeric)["_frombuffer"]
    return [
        RunningMeanStd.update,
        VecNormalize.normalize_obs,
        frombuffer,
        frombuffer.__defaults__,
        gym.spaces.Box.sample,
    ]


def prepare(folder: Path) -> Attack:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    agents = []
    for algorithm in ("PPO", "DQN", "SAC"):
        make(algorithm).save(folder / algorithm)
        agents.append(folder / f"{algorithm}.zip")
    VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")])).save(str(folder / "real.pkl"))
    real, payload, before = (folder / "real.pkl").read_bytes(), folder / "payload", guarded()
    target = folder / "target.zip"

    def attack(rng: np.random.Generator) -> str | None:
        pickles = Pickles(rng, payload)
        load: Callable[[Path], Any] = load_statistics
        if rng.random() < 0.5:
            target.write_bytes(pick(rng, BYTES)(real, rng) if rng.random() < 0.3 else pickles.make())
        else:
            archive_of(pick(rng, agents), target, pickles, rng)
            load = load_agent
        refused(lambda: load(target))
        if payload.exists() or MODULE in sys.modules:
            return "something of the file was run"
        if any(a is not b for a, b in zip(before, guarded(), strict=True)):
            return "the file changed a class or a function"
        return None

    return attack


CATEGORY = Category("malicious SB3 files", prepare, 0.17)
