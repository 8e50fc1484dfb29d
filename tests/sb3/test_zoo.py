"""Folders of rl-zoo: agent, environment, wrappers and normalization, without running what files name."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FlattenObservation, RescaleAction, TimeLimit

from gptd_rl.evaluation import evaluate_agent
from gptd_rl.exceptions import AgentError, CollectionError
from gptd_rl.sb3.inert_yaml import MAX_BYTES_OF_YAML, Unread, plain, read_mapping
from gptd_rl.sb3.policies import NormalizedPolicy
from gptd_rl.sb3.zoo import WRAPPERS, load_zoo
from tests.cli.commands import error_line, run

yaml = pytest.importorskip("yaml")
sb3 = pytest.importorskip("stable_baselines3")
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def agent(env: Any = "CartPole-v1", seed: int = 0, **settings: Any) -> Any:
    kind = sb3.DDPG if settings.pop("continuous", False) else sb3.A2C
    return kind("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=dict(net_arch=[8]), **settings)


def settings(path: Path, **content: Any) -> None:
    """As rl-zoo writes them: sorted pairs of an OrderedDict, with tags of Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.dump(OrderedDict(sorted(content.items()))))


def make_run(
    tmp_path: Path, env: str = "CartPole-v1", args: Any = None, config: Any = None, *, algo: str = "a2c", **more: Any
) -> Path:
    folder = tmp_path / "logs" / algo / f"{env}_1"
    settings(folder / env / "args.yml", **dict(algo=algo, env=env, env_kwargs=None, gym_packages=[]) | (args or {}))
    settings(folder / env / "config.yml", **dict(policy="MlpPolicy", n_timesteps=100.0) | (config or {}))
    agent(env, **more).save(folder / f"{env}.zip")
    return folder


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(AgentError) as caught:
        load_zoo(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def layers(env: Any) -> list[Any]:
    found = []
    while isinstance(env, gym.Wrapper):
        found.append(env)
        env = env.env
    return found


# Folders as they are


def test_load_zoo(tmp_path: Path):
    folder = make_run(tmp_path)
    text = (folder / "CartPole-v1" / "args.yml").read_text()
    assert text.startswith("!!python/object/apply:collections.OrderedDict\n- - - algo")  # else this tests nothing
    run = load_zoo(folder)
    assert type(run.policy) is sb3.A2C and run.env_id == "CartPole-v1" and run.env_kwargs == {} and run.wrappers == ()
    env = run.make_env()
    assert env.spec is not None and env.spec.id == "CartPole-v1"


def test_load_zoo_takes_the_best_model(tmp_path: Path):
    folder = make_run(tmp_path)
    best = agent(seed=5)
    best.save(folder / "best_model.zip")
    loaded = load_zoo(folder).policy
    assert all((loaded.policy.state_dict()[key] == value).all() for key, value in best.policy.state_dict().items())


def test_load_zoo_with_arguments_of_the_environment(tmp_path: Path):
    folder = make_run(tmp_path, "Pendulum-v1", dict(env_kwargs=dict(g=5.0)), algo="ddpg", continuous=True)
    run = load_zoo(folder, env_kwargs=dict(max_episode_steps=17))
    assert type(run.policy) is sb3.DDPG  # as args.yml says: the file alone could be TD3's
    env = run.make_env()
    assert env.unwrapped.g == 5.0 and env.spec.max_episode_steps == 17  # type: ignore[attr-defined, union-attr]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("gymnasium.wrappers.FlattenObservation", [FlattenObservation]),
        ("gym.wrappers.TimeLimit: {max_episode_steps: 9}", [TimeLimit]),
        (["gymnasium.wrappers.flatten_observation.FlattenObservation"], [FlattenObservation]),
        (
            [
                {"gymnasium.wrappers.RescaleAction": {"min_action": -0.5, "max_action": 0.5}},
                "gymnasium.wrappers.FlattenObservation",
            ],
            [FlattenObservation, RescaleAction],  # outermost first
        ),
        (None, []),
    ],
)
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_load_zoo_with_wrappers(setting: Any, expected: list[type], tmp_path: Path):
    if isinstance(setting, str) and ": " in setting:
        setting = yaml.safe_load(setting)
    config = dict(env_wrapper=setting)
    folder = make_run(tmp_path, "Pendulum-v1", config=config, algo="ddpg", continuous=True)
    found = layers(load_zoo(folder).make_env())
    plain_layers = layers(gym.make("Pendulum-v1"))
    assert [type(one) for one in found[: len(found) - len(plain_layers)]] == expected


def test_load_zoo_with_wrappers_of_contrib(tmp_path: Path):
    pytest.importorskip("sb3_contrib")
    name = "sb3_contrib.common.wrappers.TimeFeatureWrapper"
    folder = make_run(tmp_path, config=dict(env_wrapper=name))
    env = load_zoo(folder).make_env()
    assert env.observation_space.shape == (5,)
    agent(env).save(folder / "best_model.zip")
    run = load_zoo(folder)
    found = evaluate_agent(
        run.policy, run.make_env, n_transitions=150, n_episodes=4, n_states=10, gamma=0.9, analyse_inputs=False
    )
    assert len(found.config.inputs) == 5 and found.check.n_rollouts == 1


def test_wrappers_that_are_known_exist():
    import gymnasium.wrappers

    assert all(hasattr(gymnasium.wrappers, name) for name in WRAPPERS["gymnasium.wrappers"])


@pytest.mark.parametrize("inside", [True, False])
def test_load_zoo_with_normalization(inside: bool, tmp_path: Path):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    folder = make_run(tmp_path, config=dict(normalize="{'norm_obs': True, 'norm_reward': False}"))
    assert "there is no vecnormalize.pkl" in refusal(folder)
    statistics = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    moments: Any = statistics.obs_rms
    moments.mean[:] = 3.0
    statistics.save(str((folder / "CartPole-v1" if inside else folder) / "vecnormalize.pkl"))
    policy = load_zoo(folder).policy
    assert isinstance(policy, NormalizedPolicy) and (policy.statistics.obs_rms.mean == 3.0).all()


@pytest.mark.parametrize("setting", ["{'norm_obs': False, 'norm_reward': True}", False, None, "dict(norm_obs=True)"])
def test_load_zoo_without_normalization(setting: Any, tmp_path: Path):
    folder = make_run(tmp_path, config=dict(normalize=setting))
    if setting == "dict(norm_obs=True)":
        assert "there is no vecnormalize.pkl" in refusal(folder)
    else:
        assert type(load_zoo(folder).policy) is sb3.A2C


def test_load_zoo_without_settings(tmp_path: Path):
    folder = tmp_path / "a2c" / "CartPole-v1_12"
    folder.mkdir(parents=True)
    agent().save(folder / "CartPole-v1.zip")
    run = load_zoo(folder)
    assert run.env_id == "CartPole-v1" and type(run.policy) is sb3.A2C


# Folders that are wrong


def test_load_zoo_refuses_folders_without_a_model(tmp_path: Path):
    folder = make_run(tmp_path)
    (folder / "CartPole-v1.zip").unlink()
    assert refusal(folder).endswith(
        "holds no model: expected best_model.zip or CartPole-v1.zip, as rl-zoo writes them."
    )
    assert "there is no folder" in refusal(tmp_path / "none")


def test_load_zoo_refuses_unknown_algorithms(tmp_path: Path):
    folder = make_run(tmp_path, args=dict(algo="her2"))
    assert refusal(folder).startswith("there is no algorithm 'her2': expected one of a2c")
    assert type(load_zoo(folder, algo="a2c").policy) is sb3.A2C
    assert "holds a A2C agent, not PPO" in refusal(folder, algo="ppo")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (dict(env_wrapper="os.system"), "asks for the wrapper os.system, which is not a known one: make the env"),
        (dict(env_wrapper="gymnasium.wrappers.RecordVideo"), "is not a known one"),  # which writes files
        (dict(env_wrapper=["gymnasium.wrappers.transform_observation.gym"]), "is not a known one"),
        (dict(env_wrapper=[{"gymnasium.wrappers.TimeLimit": [3]}]), "no named arguments"),
        (dict(frame_stack=4), "has a frame_stack, which is not supported"),
        (dict(vec_env_wrapper="a.B"), "has a vec_env_wrapper, which is not supported"),
    ],
)
def test_load_zoo_refuses_settings(config: Any, words: str, tmp_path: Path):
    assert words in refusal(make_run(tmp_path, config=config))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (dict(env="os:CartPole-v1"), "an environment of os, and no file may say what is imported"),
        (dict(gym_packages=["antigravity"]), "an environment of antigravity, and no file may"),
        (dict(env_kwargs=[1]), "env_kwargs in args.yml is no mapping"),
    ],
)
def test_load_zoo_imports_nothing_that_a_file_names(args: Any, words: str, tmp_path: Path):
    folder = make_run(tmp_path, args=args)
    assert words in refusal(folder)
    if "env_kwargs" not in args:
        assert load_zoo(folder, env_id="CartPole-v1").env_id == "CartPole-v1"


def test_wrappers_that_do_not_fit(tmp_path: Path):
    folder = make_run(tmp_path, config=dict(env_wrapper=[{"gymnasium.wrappers.TimeLimit": {"steps": 3}}]))
    with pytest.raises(CollectionError, match=r"the wrapper TimeLimit does not fit CartPole-v1: .*steps"):
        load_zoo(folder).make_env()


# YAML


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        import os

        return os.mkdir, (str(self.path),)


def test_read_mapping_calls_nothing(tmp_path: Path):
    made, path = tmp_path / "made", tmp_path / "args.yml"
    path.write_text(yaml.dump(OrderedDict(env="CartPole-v1", env_kwargs=dict(a=Payload(made)))))
    with pytest.raises(AgentError, match=r"holds !!python/object/apply:.*mkdir: expected numbers"):
        plain(read_mapping(path)["env_kwargs"], "env_kwargs")
    assert not made.exists()
    yaml.unsafe_load(path.read_text())  # a control: it would
    assert made.exists()


@pytest.mark.parametrize(
    "tag", ["name:os.system", "object:os.stat_result", "object/new:os.stat_result", "module:antigravity", "none"]
)
def test_read_mapping_leaves_tags_of_python_unread(tag: str, tmp_path: Path):
    path = tmp_path / "config.yml"
    path.write_text(f"a: !!python/{tag} ''\nb: !!python/tuple [1, 2]\n")
    assert read_mapping(path) == dict(a=Unread(f"!!python/{tag}"), b=(1, 2))


@pytest.mark.parametrize(
    "text",
    [
        "- 1",
        "",
        "a: [",
        "1: 2",
        "\x00",
        "!!python/object/apply:collections.OrderedDict {args: []}",
        "!!python/object/apply:collections.OrderedDict [[[1, 2]], 3]",
        "!!python/object/apply:collections.OrderedDict [[1]]",
        "!!python/object/apply:collections.OrderedDict [[[[a], 1]]]",
        "a: " + "[" * 5_000,
        "a: !unknown 1",
        "#" * (MAX_BYTES_OF_YAML + 1),
    ],
)
def test_read_mapping_refuses(text: str, tmp_path: Path):
    path = tmp_path / "args.yml"
    path.write_text(text)
    with pytest.raises(AgentError, match=r"^args\.yml cannot be read \(.*\): expected what rl-zoo writes\.$"):
        read_mapping(path)


def test_plain_bounds_what_aliases_repeat(tmp_path: Path):
    path = tmp_path / "args.yml"
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path.write_text("\n".join(lines))
    with pytest.raises(AgentError, match="has more than 10000 parts"):
        plain(read_mapping(path)["a11"], "env_kwargs")


def test_statistics_with_code_are_refused(tmp_path: Path):
    folder = make_run(tmp_path)
    (folder / "CartPole-v1" / "vecnormalize.pkl").write_bytes(pickle.dumps(Payload(tmp_path / "made")))
    assert "no plain VecNormalize file" in refusal(folder)
    assert not (tmp_path / "made").exists()


# Command line


def test_command_evaluates_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = make_run(tmp_path, config=dict(env_wrapper=[{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 20}}]))
    more = ("--n-transitions", 120, "--gamma", 0.9, "--out", tmp_path / "page", "--json")
    assert run("evaluate", "--zoo", folder, "--env-kwargs", "sutton_barto_reward:False", *more) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["config"]["agent"], found["config"]["env"]) == ("A2C", "CartPole-v1")
    assert (tmp_path / "page" / "index.html").exists()
    assert np.isfinite(found["start"]["value"]["estimate"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--agent is missing: give --agent and --env, or --zoo"),
        (("--agent", "a.zip"), "--env is missing"),
        (("--zoo", "a", "--agent", "b"), "--zoo brings its own --agent"),
        (("--zoo", "none"), "there is no folder none"),
    ],
)
def test_command_refuses_options(options: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run("evaluate", *options, "--out", tmp_path / "page") == 2
    assert words in error_line(capsys)
    assert list(tmp_path.iterdir()) == []
