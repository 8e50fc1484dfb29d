"""Agents of sb3-contrib: their files, critics, action masks and hidden states."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl.evaluation import evaluate_agent
from gptd_rl.exceptions import AgentError, CollectionError
from gptd_rl.sb3.critics import critic_name, critic_of
from gptd_rl.sb3.loading import load_agent
from gptd_rl.sb3.policies import NormalizedPolicy, is_recurrent
from tests.cli.commands import error_line, run
from tests.sb3.test_loading import changed, field

contrib = pytest.importorskip("sb3_contrib")
torch = pytest.importorskip("torch")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")

SMALL: dict[str, Any] = dict(n_transitions=150, n_episodes=4, n_states=12, gamma=0.9, analyse_inputs=False)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Corridor(gym.Env):
    """Cells 0 to 6; action 0 stays and 1, 2 walk on by as much, but never beyond the end: then it must not be taken."""

    observation_space = spaces.Box(0.0, 6.0, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.place = self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.t = int(self.np_random.integers(3)), 0
        return self._seen(), {}

    def step(self, action):
        if not self.action_masks()[action]:
            raise RuntimeError(f"action {action} is not allowed at {self.place}")
        self.place += int(action)
        self.t += 1
        return self._seen(), -1.0, self.place == 6, self.t >= 12, {}

    def _seen(self) -> Any:
        return np.array([self.place], dtype=np.float32)

    def action_masks(self) -> Any:
        return np.array([self.place >= 6, True, self.place < 5])


class Unmasked(gym.Wrapper):
    """Hides the masks."""

    def has_wrapper_attr(self, name: str) -> bool:
        return name != "action_masks" and super().has_wrapper_attr(name)

    def get_wrapper_attr(self, name: str) -> Any:
        if name == "action_masks":
            raise AttributeError(name)
        return super().get_wrapper_attr(name)


LSTM = dict(lstm_hidden_size=4, net_arch=[8])
MODELS: dict[str, tuple[str, Any, dict[str, Any]]] = dict(
    QRDQN=("MlpPolicy", "CartPole-v1", dict(buffer_size=50, policy_kwargs=dict(net_arch=[8], n_quantiles=7))),
    TQC=("MlpPolicy", "Pendulum-v1", dict(buffer_size=50)),
    TRPO=("MlpPolicy", "CartPole-v1", dict(n_steps=64, batch_size=64)),
    ARS=("MlpPolicy", "CartPole-v1", {}),
    CrossQ=("MlpPolicy", "Pendulum-v1", dict(buffer_size=50, policy_kwargs=dict(net_arch=[8]))),
    MaskablePPO=("MlpPolicy", Corridor, dict(n_steps=64)),
    RecurrentPPO=("MlpLstmPolicy", "CartPole-v1", dict(n_steps=128, policy_kwargs=LSTM)),
)


def make(algorithm: str, **settings: Any) -> Any:
    policy, env, sizes = MODELS[algorithm]
    sizes = dict(policy_kwargs=dict(net_arch=[8])) | sizes | settings
    sizes |= {} if algorithm == "ARS" else dict(device="cpu")
    model = getattr(contrib, algorithm)(policy, env if isinstance(env, str) else env(), seed=0, **sizes)
    if algorithm == "ARS":  # which begins with zeros
        with torch.no_grad():
            for parameter in model.policy.parameters():
                parameter.normal_()
    return model


def some_states(model: Any, n: int = 9) -> Any:
    return np.random.default_rng(0).normal(size=(n, *model.observation_space.shape)).astype(np.float32)


# Files


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("algorithm", MODELS)
def test_load_agent_of_contrib(algorithm: str, named: bool, tmp_path: Path):
    model = make(algorithm)
    model.save(tmp_path / "agent")
    loaded = load_agent(tmp_path / "agent.zip", algo=algorithm.lower() if named else None)
    assert type(loaded) is type(model) and loaded.get_env() is None
    states = some_states(model)
    answers = [one.predict(states, deterministic=True)[0] for one in (model, loaded)]
    assert_array_equal(*answers)


@pytest.mark.parametrize(("name", "algorithm"), [("ppo_lstm", "RecurrentPPO"), ("ppo_mask", "MaskablePPO")])
def test_load_agent_by_the_names_of_the_zoo(name: str, algorithm: str, tmp_path: Path):
    make(algorithm).save(tmp_path / "agent")
    assert type(load_agent(tmp_path / "agent", algo=name)).__name__ == algorithm


def test_load_agent_refuses_other_classes_of_contrib(tmp_path: Path):
    make("QRDQN").save(tmp_path / "agent")
    with pytest.raises(AgentError, match="QRDQN agent, not TQC: leave out"):
        load_agent(tmp_path / "agent", algo="tqc")
    path = changed(
        tmp_path / "agent.zip", tmp_path / "other.zip", policy_class=dict(__module__="sb3_contrib.mine.policies")
    )
    with pytest.raises(AgentError, match=r"a policy class of sb3_contrib\.mine\.policies"):
        load_agent(path)
    from sb3_contrib.common.wrappers import TimeFeatureWrapper

    # The module in the text is allowed; the one in the pickle is not.
    forged = field(TimeFeatureWrapper, __module__="sb3_contrib.qrdqn.policies")
    path = changed(tmp_path / "agent.zip", tmp_path / "forged.zip", policy_class=forged)
    with pytest.raises(AgentError, match="it names sb3_contrib"):
        load_agent(path)


def test_load_agent_says_that_contrib_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make("TRPO").save(tmp_path / "agent")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sb3_contrib" else found(name))
    with pytest.raises(AgentError, match="a TRPO agent, which needs sb3-contrib: pip install"):
        load_agent(tmp_path / "agent.zip")


# Critics


def by_hand(algorithm: str, model: Any, x: Any) -> Any:
    policy = model.policy
    with torch.no_grad():
        if algorithm in ("TRPO", "MaskablePPO"):
            return policy.value_net(policy.mlp_extractor.forward_critic(x)).numpy()[:, 0]
        if algorithm == "QRDQN":
            quantiles = policy.quantile_net.quantile_net(x).numpy().reshape(len(x), 7, -1)
            return quantiles.mean(axis=1).max(axis=1)
        policy.set_training_mode(False)
        both = torch.cat([x, torch.tanh(policy.actor.mu(policy.actor.latent_pi(x)))], dim=1)
        found = [q(both).numpy() for q in policy.critic.q_networks]
        if algorithm == "CrossQ":
            return np.min(found, axis=0)[:, 0]
        # TQC, as its authors: 25 quantiles of 2 critics, without the 2 largest of each on average.
        return np.sort(np.concatenate(found, axis=1), axis=1)[:, :46].mean(axis=1)


@pytest.mark.parametrize("algorithm", ["QRDQN", "TQC", "TRPO", "CrossQ", "MaskablePPO"])
def test_critic_of_contrib_by_hand(algorithm: str):
    model = make(algorithm)
    critic, states = critic_of(model), some_states(model)
    assert critic is not None
    values = critic(states)
    assert np.ptp(values) > 0
    assert_allclose(values, by_hand(algorithm, model, torch.tensor(states)), rtol=1e-4, atol=1e-5)
    features = critic.features(states)
    assert len(features) == len(states) and np.isfinite(features).all()
    expected = dict(QRDQN="QRDQN's max Q", TQC="TQC's critics", CrossQ="CrossQ's critics")
    assert critic_name(model) == expected.get(algorithm, f"{algorithm}'s critic")


@pytest.mark.parametrize("algorithm", ["TQC", "CrossQ"])
def test_critic_of_contrib_with_sampled_actions(algorithm: str):
    model = make(algorithm)
    states = some_states(model)
    sampled, mean = critic_of(model, deterministic=False), critic_of(model)
    assert sampled is not None and mean is not None
    assert_array_equal(sampled(states), sampled(states))
    assert (sampled(states) != mean(states)).any()


@pytest.mark.parametrize("algorithm", ["ARS", "RecurrentPPO"])
def test_critic_of_contrib_without_one(algorithm: str):
    assert critic_of(make(algorithm)) is None


# Evaluation


@pytest.mark.parametrize("algorithm", ["QRDQN", "TQC", "TRPO", "ARS", "CrossQ"])
def test_evaluate_agent_of_contrib(algorithm: str):
    found = evaluate_agent(make(algorithm), MODELS[algorithm][1], **SMALL)
    assert found.config.agent == algorithm and np.isfinite(found.start.value.estimate)
    assert (found.critic is None) == (algorithm == "ARS")


def vectors() -> list[Any]:
    made: list[Any] = [SyncVectorEnv([Corridor] * 3, autoreset_mode=mode) for mode in AutoresetMode]
    return [*made, AsyncVectorEnv([Corridor] * 2), vec_env.DummyVecEnv([Corridor] * 3), Corridor()]


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("deterministic", [False, True])
def test_collect_applies_masks(kind: int, deterministic: bool):
    env = vectors()[kind]
    model = make("MaskablePPO")
    model.set_random_seed(0)
    data = gptd_rl.collect(env, model, n_episodes=30, gamma=0.9, seed=0, deterministic=deterministic)
    assert data.terminated.all()  # the environment fails after an action that is not allowed
    env.close()


def test_evaluate_agent_applies_masks():
    found = evaluate_agent(make("MaskablePPO"), Corridor(), **SMALL, deterministic=False)
    assert found.check.n_rollouts > 1
    statistics = vec_env.VecNormalize(vec_env.DummyVecEnv([Corridor]))
    normalized = evaluate_agent(make("MaskablePPO"), statistics, **SMALL)
    assert np.isfinite(normalized.start.value.estimate)


def test_evaluate_agent_says_that_masks_are_missing():
    expected = r"^MaskablePPO chooses among the actions that are allowed.*needs a method action_masks\(\)[^\n]*$"
    for env in (Unmasked(Corridor()), SyncVectorEnv([lambda: Unmasked(Corridor())] * 2)):
        with pytest.raises(CollectionError, match=expected):
            evaluate_agent(make("MaskablePPO"), env, **SMALL)


def test_command_says_that_masks_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    contrib.MaskablePPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu").save(tmp_path / "agent.zip")
    out = tmp_path / "page"
    assert run("evaluate", "--agent", tmp_path / "agent.zip", "--env", "CartPole-v1", "--out", out) == 2
    assert "needs a method action_masks()" in error_line(capsys)
    assert not out.exists()


def test_command_evaluates_an_agent_of_contrib(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    make("QRDQN").save(tmp_path / "agent.zip")
    more = ("--n-transitions", 150, "--gamma", 0.9, "--out", tmp_path / "page", "--json")
    assert run("evaluate", "--agent", tmp_path / "agent.zip", "--env", "CartPole-v1", *more) == 0
    assert json.loads(capsys.readouterr().out)["config"]["agent"] == "QRDQN"


def test_evaluate_agent_of_a_recurrent_agent():
    model = make("RecurrentPPO")
    assert is_recurrent(model) and not is_recurrent(make("TRPO")) and not is_recurrent(None)
    found = evaluate_agent(model, "CartPole-v1", **SMALL)
    assert any(warning.startswith("The agent (RecurrentPPO) remembers") for warning in found.warnings)
    assert found.check.n_rollouts == 1  # a copy of the environment with the agent's memory continues as the episode did
    normalizer = vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    assert is_recurrent(NormalizedPolicy(model, normalizer))


def test_collect_resets_the_hidden_state_with_the_episode():
    model = make("RecurrentPPO")
    with torch.no_grad():  # so that the memory matters
        for parameter in model.policy.parameters():
            parameter.mul_(5.0)
    data = gptd_rl.collect(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2), model, n_episodes=8, gamma=0.9, seed=0)
    assert data.actions is not None
    for i, (start, last) in enumerate(zip(data.starts, data.last, strict=True)):
        state, begins = None, np.ones(1, dtype=bool)
        for row in range(start, last):
            seen = data.states[row : row + 1].astype(np.float32)
            action, state = model.predict(seen, state=state, episode_start=begins, deterministic=True)
            assert action[0] == data.actions[row], (i, row)
            begins = np.zeros(1, dtype=bool)
