"""Files of trained agents: each algorithm is recognised and predicts as before, and no file gets to run code."""

import base64
import io
import json
import os
import pickle
import random
import sys
import types
import warnings
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.exceptions import AgentError
from gptd_rl.sb3 import safe_archive
from gptd_rl.sb3.loading import load_agent, load_statistics
from gptd_rl.sb3.policies import NormalizedPolicy, check_spaces

sb3 = pytest.importorskip("stable_baselines3")

ENVS = dict(
    PPO="CartPole-v1", A2C="CartPole-v1", DQN="CartPole-v1", SAC="Pendulum-v1", TD3="Pendulum-v1", DDPG="Pendulum-v1"
)
SIZES: dict[str, dict[str, Any]] = dict(PPO=dict(n_steps=64), A2C={})


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Rooms(gym.Env):
    """Observations of several parts, at random."""

    observation_space: Any = spaces.Dict(
        position=spaces.Box(-1.0, 1.0, (2,), np.float32), room=spaces.Discrete(3), lamps=spaces.MultiBinary(2)
    )
    action_space: Any = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


def make(algorithm: str, env: Any = None, policy: str = "MlpPolicy", **settings: Any) -> Any:
    settings.setdefault("policy_kwargs", dict(net_arch=[8]))
    sizes = SIZES.get(algorithm, dict(buffer_size=50))
    return getattr(sb3, algorithm)(policy, env or ENVS[algorithm], device="cpu", **sizes, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An archive of each algorithm."""
    folder = tmp_path_factory.mktemp("agents")
    for algorithm in ENVS:
        make(algorithm).save(folder / algorithm)
    return folder


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def changed(source: Path, target: Path, **fields: Any) -> Path:
    """The archive `source` with other fields in its JSON; None takes one away."""
    members = contents(source)
    data = json.loads(members["data"]) | fields
    members["data"] = json.dumps({key: item for key, item in data.items() if item is not None}).encode()
    return write(target, members)


def field(thing: Any, **shown: Any) -> dict[str, Any]:
    """A field of the JSON as SB3 writes it."""
    return {":type:": "", ":serialized:": base64.b64encode(pickle.dumps(thing)).decode(), **shown}


def refusal(call, *args: Any, **options: Any) -> str:
    with pytest.raises(AgentError) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


# Agents


@pytest.mark.parametrize("algorithm", ENVS)
@pytest.mark.parametrize("named", [False, True])
def test_load_agent_recognises_each_algorithm(algorithm, named, tmp_path, capsys):
    model = make(algorithm, seed=3, gamma=0.9)
    path = tmp_path / "agent.zip"
    model.save(path)
    random.random()
    before = random.getstate()  # SB3 would seed it
    loaded = load_agent(path, algo=algorithm.lower() if named else None)
    assert random.getstate() == before
    assert type(loaded) is type(model) and loaded.gamma == 0.9
    assert loaded.get_env() is None and str(loaded.device) == "cpu"
    observations = np.stack([model.observation_space.sample().clip(-5, 5) for _ in range(7)])
    assert_array_equal(
        loaded.predict(observations, deterministic=True)[0], model.predict(observations, deterministic=True)[0]
    )
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "settings",
    [
        dict(learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.1 * left),
        dict(verbose=1),
        dict(policy_kwargs=dict(net_arch=[8], activation_fn="ReLU")),
        dict(gamma=np.float32(0.5)),
        dict(use_sde=True, env="Pendulum-v1"),
    ],
    ids=["schedules", "verbose", "activation", "gamma", "sde"],
)
def test_load_agent_with_settings(settings, tmp_path, capsys):
    from torch import nn

    if "policy_kwargs" in settings:
        settings["policy_kwargs"]["activation_fn"] = nn.ReLU
    model = make("PPO", **settings)
    model.save(tmp_path / "agent")
    capsys.readouterr()
    loaded = load_agent(tmp_path / "agent.zip")
    assert loaded.gamma == model.gamma
    assert type(loaded.policy.activation_fn) is type(model.policy.activation_fn)
    observation = model.observation_space.sample().clip(-5, 5)
    assert_array_equal(
        loaded.predict(observation, deterministic=True)[0], model.predict(observation, deterministic=True)[0]
    )
    assert capsys.readouterr() == ("", "")


def test_load_agent_of_trained_agents(tmp_path):
    model = make("SAC", learning_starts=10)
    model.learn(20)  # optimisers, buffers, random generators of the spaces
    model.save(tmp_path / "agent")
    loaded = load_agent(tmp_path / "agent")
    observation = model.observation_space.sample()
    assert_array_equal(
        loaded.predict(observation, deterministic=True)[0], model.predict(observation, deterministic=True)[0]
    )


def test_load_agent_allocates_no_replay_buffer(tmp_path, folder):
    path = changed(folder / "DQN.zip", tmp_path / "agent.zip", buffer_size=10**15, n_envs=10**15)
    agent = load_agent(path)
    assert agent.replay_buffer.buffer_size == 1
    assert agent.replay_buffer_kwargs is not load_agent(path).replay_buffer_kwargs
    path = changed(folder / "PPO.zip", tmp_path / "agent.zip", n_steps=10**15, rollout_buffer_kwargs=dict(strange=1))
    load_agent(path)


def test_load_agent_with_hindsight_replay(tmp_path):
    from stable_baselines3.common.envs import BitFlippingEnv

    buffer = dict(replay_buffer_class=sb3.HerReplayBuffer, replay_buffer_kwargs=dict(n_sampled_goal=2))
    model = make("DQN", BitFlippingEnv(n_bits=3), "MultiInputPolicy", **buffer)
    model.save(tmp_path / "agent")
    observation = model.observation_space.sample()
    loaded = load_agent(tmp_path / "agent")
    assert_array_equal(
        loaded.predict(observation, deterministic=True)[0], model.predict(observation, deterministic=True)[0]
    )


def test_load_agent_with_a_memory_optimised_buffer(tmp_path):
    make("DQN", optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False)).save(
        tmp_path / "agent"
    )
    assert type(load_agent(tmp_path / "agent")) is sb3.DQN


def test_load_agent_ignores_optimisers_of_old_files(tmp_path, folder):
    """Before 2.4, DQN's held the target network, too."""
    import torch

    members = contents(folder / "DQN.zip")
    state = torch.load(io.BytesIO(members["policy.optimizer.pth"]), weights_only=True)
    group = state["param_groups"][0]
    group["params"] = list(range(2 * len(group["params"])))
    file = io.BytesIO()
    torch.save(state, file)
    path = write(tmp_path / "agent.zip", members | {"policy.optimizer.pth": file.getvalue()})
    with pytest.warns(UserWarning, match="saved with SB3 < 2.4.0"):
        sb3.DQN.load(path, device="cpu")
    load_agent(path)


@pytest.mark.parametrize(("env", "policy"), [("FrozenLake-v1", "MlpPolicy"), (Rooms, "MultiInputPolicy")])
def test_load_agent_with_other_observations(env, policy, tmp_path):
    env = gym.make(env) if isinstance(env, str) else env()
    model = make("PPO", env, policy)
    model.save(tmp_path / "agent")
    loaded = load_agent(tmp_path / "agent")
    check_spaces(loaded, env)
    for seed in range(5):
        observation = env.reset(seed=seed)[0]
        assert_array_equal(
            loaded.predict(observation, deterministic=True)[0], model.predict(observation, deterministic=True)[0]
        )


def test_load_agent_of_gym_files(tmp_path, folder, monkeypatch):
    """Spaces of `gym`: those of Gymnasium are meant."""
    old = types.ModuleType("gym.spaces.box")
    old.Box = type("Box", (spaces.Box,), {"__module__": "gym.spaces.box"})  # type: ignore[attr-defined]
    for name in ("gym", "gym.spaces"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "gym.spaces.box", old)
    space = old.Box(-1.0, 1.0, (4,))
    content = field(space)
    monkeypatch.undo()
    path = changed(folder / "A2C.zip", tmp_path / "agent.zip", observation_space=content)
    assert load_agent(path).observation_space == spaces.Box(-1.0, 1.0, (4,))


def test_load_agent_algo(tmp_path, folder):
    assert (
        refusal(load_agent, folder / "DQN.zip", algo="PPO") == "DQN.zip holds a DQN agent, not PPO: leave out --algo."
    )
    for algorithm in ENVS:
        for other in set(ENVS) - {algorithm} - ({"TD3"} if algorithm == "DDPG" else set()):
            assert f"holds a {algorithm} agent, not {other}" in refusal(load_agent, folder / algorithm, algo=other)
    # What TD3 with the settings of DDPG was called, nobody can tell.
    assert type(load_agent(folder / "DDPG", algo="td3")) is sb3.TD3
    assert "expected one of a2c, ddpg, dqn, ppo, sac, td3" in refusal(load_agent, folder / "DQN.zip", algo="nqd")
    for setting in (dict(policy_delay=1), dict(target_noise_clip=0.0)):  # half of it is not DDPG
        assert type(load_agent(changed(folder / "TD3.zip", tmp_path / "td3.zip", **setting))) is sb3.TD3
    # Others have the policy of A2C and PPO, too.
    path = changed(folder / "A2C.zip", tmp_path / "other.zip", batch_size=128, target_kl=0.01)
    assert "holds none of A2C, DDPG, DQN, PPO, SAC, TD3" in refusal(load_agent, path)
    assert type(load_agent(path, algo="a2c")) is sb3.A2C


def test_load_agent_refuses_other_libraries(tmp_path, folder):
    policy = json.loads(contents(folder / "PPO.zip")["data"])["policy_class"]
    policy |= {"__module__": "other_library.common.recurrent.policies"}
    message = refusal(load_agent, changed(folder / "PPO.zip", tmp_path / "lstm.zip", policy_class=policy))
    assert "policy class of other_library.common.recurrent.policies" in message
    assert "gptd_rl.evaluate_agent" in message
    for policy_class in (None, "MlpPolicy"):
        path = changed(folder / "PPO.zip", tmp_path / "none.zip", policy_class=policy_class)
        assert "policy class of nowhere" in refusal(load_agent, path)


def test_load_agent_without_stable_baselines3(folder, monkeypatch):
    make_statistics(folder / "some.pkl")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert refusal(load_agent, folder / "PPO.zip").endswith('pip install "gptd-rl[sb3]".')
    assert refusal(load_statistics, folder / "some.pkl").endswith('pip install "gptd-rl[sb3]".')


@pytest.mark.parametrize("load", [load_agent, load_statistics])
def test_load_refuses_missing_files(load, tmp_path, monkeypatch):
    assert refusal(load, tmp_path / "agent.zip") == f"there is no file {tmp_path / 'agent.zip'}."
    assert "is a folder" in refusal(load, tmp_path)
    (tmp_path / "secret").touch()

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)  # whoever runs the tests may be allowed everything
    assert refusal(load, tmp_path / "secret") == f"{tmp_path / 'secret'} cannot be read: Permission denied."


def test_agent_error_is_one_line():
    assert str(AgentError("first\n  second")) == "first second"


@pytest.mark.parametrize("missing", ["data", "policy.pth", "_stable_baselines3_version"])
def test_load_agent_refuses_a_missing_member(missing, tmp_path, folder):
    members = contents(folder / "PPO.zip")
    del members[missing]
    assert f"it has no '{missing}'" in refusal(load_agent, write(tmp_path / "agent.zip", members))


@pytest.mark.parametrize(
    "member",
    ["../policy.pth", "a/policy.pth", "/policy.pth", "..pth", "run.py", "data.pkl", "a\\b.pth", "x\n.pth", "é.pth"],
)
def test_load_agent_refuses_an_unknown_member(member, tmp_path, folder):
    members = contents(folder / "PPO.zip") | {member: b""}
    assert "no plain archive" in refusal(load_agent, write(tmp_path / "agent.zip", members))


def test_load_agent_refuses_a_member_twice(tmp_path, folder):
    path = write(tmp_path / "agent.zip", contents(folder / "PPO.zip"))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("data", "{}")
    assert "has it twice" in refusal(load_agent, path)


def test_load_refuses_absurd_sizes(tmp_path, folder, monkeypatch):
    total = sum(map(len, contents(folder / "PPO.zip").values()))
    monkeypatch.setattr(safe_archive, "MAX_BYTES", total)
    load_agent(folder / "PPO.zip")
    monkeypatch.setattr(safe_archive, "MAX_BYTES", total - 1)
    assert "more than any agent needs" in refusal(load_agent, folder / "PPO.zip")
    monkeypatch.undo()
    monkeypatch.setattr(safe_archive, "MAX_BYTES_OF_DATA", 1000)
    assert "more than any agent needs" in refusal(load_agent, folder / "PPO.zip")
    make_statistics(tmp_path / "some.pkl")
    assert "too large" in refusal(load_statistics, tmp_path / "some.pkl")


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe\xfa", b"[" * 100_000, b"[1]", b""])
def test_load_agent_refuses_bad_json(data, tmp_path, folder):
    path = write(tmp_path / "agent.zip", contents(folder / "PPO.zip") | {"data": data})
    assert "is no archive of Stable-Baselines3" in refusal(load_agent, path)


def test_load_agent_refuses_other_files(tmp_path, folder):
    whole = (folder / "PPO.zip").read_bytes()
    for content in (b"", b"PK", b"hello", whole[: len(whole) // 2]):
        (tmp_path / "agent.zip").write_bytes(content)
        assert "is no archive of Stable-Baselines3" in refusal(load_agent, tmp_path / "agent.zip")


@pytest.mark.parametrize(
    "change",
    [
        lambda members: {"policy.pth": members["policy.pth"][:300]},
        lambda members: {"policy.pth": members["policy.optimizer.pth"]},
        lambda members: {"policy.pth": b"nonsense"},
        lambda members: {"strange.pth": members["policy.pth"]},
    ],
)
def test_load_agent_refuses_bad_weights(change, tmp_path, folder):
    members = contents(folder / "PPO.zip")
    path = write(tmp_path / "agent.zip", members | change(members))
    with pytest.raises(AgentError, match=r"cannot load agent.zip as PPO \(.*was it cut off") as caught:
        load_agent(path)
    assert "\n" not in str(caught.value) and caught.value.__cause__ is not None


# Code in files


@pytest.mark.parametrize("key", ["policy_class", "policy_kwargs", "observation_space", "action_space", "gamma"])
def test_load_agent_refuses_fields_with_code(key, tmp_path, folder):
    shown = {"__module__": "stable_baselines3.common.policies"}
    path = changed(folder / "PPO.zip", tmp_path / "agent.zip", **{key: field(Payload(tmp_path / "harm"), **shown)})
    message = refusal(load_agent, path)
    assert f"see its {key}" in message and "mkdir" in message and "gptd_rl.evaluate_agent" in message
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("key", ["lr_schedule", "clip_range", "learning_rate", "_last_obs", "env", "something"])
def test_load_agent_ignores_fields_that_are_not_needed(key, tmp_path, folder):
    path = changed(folder / "PPO.zip", tmp_path / "agent.zip", **{key: field(Payload(tmp_path / "harm"))})
    assert type(load_agent(path)) is sb3.PPO
    assert not (tmp_path / "harm").exists()


def test_load_agent_refuses_weights_with_code(tmp_path, folder, monkeypatch):
    import torch

    file = io.BytesIO()
    torch.save(dict(weight=Payload(tmp_path / "harm")), file)
    # Some versions of SB3 unpickle the weights, too.
    monkeypatch.setattr(sb3.PPO, "load", lambda *_, **__: pytest.fail("SB3 was asked"))
    for member in ("policy.pth", "pytorch_variables.pth"):
        path = write(tmp_path / "agent.zip", contents(folder / "PPO.zip") | {member: file.getvalue()})
        refusal(load_agent, path)
        assert not (tmp_path / "harm").exists()


def test_load_agent_refuses_other_networks(tmp_path):
    from stable_baselines3.common.torch_layers import FlattenExtractor

    class Own(FlattenExtractor):
        pass

    make("PPO", policy_kwargs=dict(features_extractor_class=Own)).save(tmp_path / "agent")
    assert "see its policy_kwargs" in refusal(load_agent, tmp_path / "agent")


def named(module: str, name: str) -> bytes:
    """A pickle that is just a name."""
    return pickle.dumps(module)[:-1] + pickle.dumps(name)[2:-1] + b"\x93."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("numpy", "memmap"),
        ("numpy", "load"),
        ("stable_baselines3.common.vec_env.vec_normalize", "pickle.loads"),
        ("stable_baselines3.common.vec_env.vec_normalize", "pickle"),
        ("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize.load"),
        ("stable_baselines3.common.vec_env.vec_normalize", "deepcopy"),  # no class
        ("stable_baselines3.common.vec_env.vec_normalize", "VecEnv"),  # a class of another module
        ("stable_baselines3.common.save_util", "load_from_pkl"),
        ("gymnasium.spaces.box", "Nothing"),
    ],
)
def test_load_statistics_refuses_other_names(module, name, tmp_path):
    (tmp_path / "some.pkl").write_bytes(named(module, name))
    assert f"it names {module}.{name}" in refusal(load_statistics, tmp_path / "some.pkl")


# Statistics


def make_statistics(path: Path, env: Any = "Pendulum-v1", **settings: Any) -> Any:
    """A VecNormalize that has seen something, in a file."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    venv = VecNormalize(DummyVecEnv([lambda: gym.make(env) if isinstance(env, str) else env()]), **settings)
    venv.seed(0)
    venv.action_space.seed(0)  # now the space has a random generator
    venv.reset()
    for _ in range(20):
        venv.step(np.array([venv.action_space.sample()]))
    venv.save(str(path))
    return venv


def test_load_statistics_of_dict_observations(tmp_path):
    venv = make_statistics(tmp_path / "some.pkl", Rooms, norm_obs_keys=["position"])
    model = make("PPO", Rooms(), "MultiInputPolicy")
    policy = NormalizedPolicy(model, load_statistics(tmp_path / "some.pkl"))
    venv.training = False
    seen, raw = venv.reset(), venv.get_original_obs()
    assert_allclose(policy.statistics.normalize_obs(raw)["position"], seen["position"])
    assert_array_equal(policy.predict(raw, deterministic=True)[0], model.predict(seen, deterministic=True)[0])


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1"])
def test_load_statistics_of_other_spaces(env, tmp_path):
    venv = make_statistics(tmp_path / "some.pkl", env, norm_obs=env == "CartPole-v1")
    statistics = load_statistics(tmp_path / "some.pkl")
    assert statistics.observation_space == venv.observation_space
    assert statistics.ret_rms.var == venv.ret_rms.var


def test_load_statistics_of_numpy_1(tmp_path):
    venv = make_statistics(tmp_path / "some.pkl")
    content = pickle.dumps(venv, protocol=3)
    assert content.count(b"cnumpy._core.") > 0
    (tmp_path / "some.pkl").write_bytes(content.replace(b"cnumpy._core.", b"cnumpy.core."))
    assert_array_equal(load_statistics(tmp_path / "some.pkl").obs_rms.var, venv.obs_rms.var)


def test_load_statistics_refuses_code(tmp_path):
    class Worse:
        def __reduce__(self):
            return eval, (f"__import__('os').mkdir({str(tmp_path / 'harm')!r})",)

    for payload in (Payload(tmp_path / "harm"), Worse(), [1, {2: Worse()}]):
        for protocol in (0, 2, 4, 5):
            (tmp_path / "some.pkl").write_bytes(pickle.dumps(payload, protocol))
            assert "no plain VecNormalize file (it names" in refusal(load_statistics, tmp_path / "some.pkl")
            assert not (tmp_path / "harm").exists()


def test_load_statistics_refuses_other_objects(tmp_path):
    make_statistics(tmp_path / "some.pkl")
    whole = (tmp_path / "some.pkl").read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        (tmp_path / "some.pkl").write_bytes(content)
        assert "no plain VecNormalize file" in refusal(load_statistics, tmp_path / "some.pkl")
    (tmp_path / "some.pkl").write_bytes(pickle.dumps({"obs_rms": 1}))
    assert "some.pkl holds a dict" in refusal(load_statistics, tmp_path / "some.pkl")
