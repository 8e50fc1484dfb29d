"""The callback for Stable-Baselines3: its log, its errors, and that it does not disturb training."""

import random
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from numpy.testing import assert_allclose, assert_array_equal

sb3 = pytest.importorskip("stable_baselines3")
torch = pytest.importorskip("torch")

from stable_baselines3.common.logger import KVWriter, Logger  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

import gptd_rl.agents  # noqa: E402
import gptd_rl.evaluation.callback as module  # noqa: E402
from gptd_rl.evaluation import GPTDEvalCallback  # noqa: E402
from gptd_rl.evaluation.callback import numbers, snapshot  # noqa: E402
from gptd_rl.exceptions import AgentError, CollectionError, EvaluationWarning  # noqa: E402
from gptd_rl.sb3.policies import NormalizedPolicy  # noqa: E402

QUICK: dict[str, Any] = dict(n_transitions=120, n_episodes=4, n_states=8)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Corridor(gym.Env):
    """Walk to the end at 0; a step costs 1. One observation, far from mean 0 and variance 1."""

    observation_space: Any = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)
    fails = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 10.0 * int(self.np_random.integers(1, 10))
        return self._seen(), {}

    def step(self, action):
        if Corridor.fails:
            raise RuntimeError("the floor\ngave way")
        self.x = min(self.x + (10.0 if action else -10.0), 90.0)
        return self._seen(), -1.0, self.x <= 0, False, {}

    def _seen(self):
        return np.array([self.x], dtype=np.float32)


def corridor() -> gym.Env:
    return TimeLimit(Corridor(), 30)


def several(n: int = 2) -> Any:
    return DummyVecEnv([corridor for _ in range(n)])


def a2c(env: Any = None, **settings: Any) -> Any:
    settings.setdefault("policy_kwargs", dict(net_arch=[8]))
    return sb3.A2C("MlpPolicy", several() if env is None else env, seed=0, device="cpu", **settings)


class Written(KVWriter):
    """Steps and numbers that the logger wrote."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any], dict[str, Any]]] = []

    def write(self, key_values, key_excluded, step=0) -> None:
        self.rows.append((step, dict(key_values), dict(key_excluded)))

    def close(self) -> None:
        pass


def listen(model: Any) -> Written:
    written = Written()
    model.set_logger(Logger(None, [written]))
    return written


@pytest.fixture(scope="module")
def learnt() -> tuple[Any, GPTDEvalCallback, Written]:
    callback = GPTDEvalCallback(corridor(), eval_freq=50, **QUICK)
    model = a2c()
    written = listen(model)
    model.learn(210, callback=callback, log_interval=10_000)
    return model, callback, written


@pytest.fixture
def calls(monkeypatch) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Calls of evaluate_agent, which is replaced."""
    found: list[tuple[Any, Any, dict[str, Any]]] = []
    monkeypatch.setattr(module, "evaluate_agent", lambda agent, env, **options: found.append((agent, env, options)))
    monkeypatch.setattr(module, "numbers", lambda evaluation: {"gptd/value": float(len(found))})
    return found


# Logging


def test_callback_logs_the_results(learnt) -> None:
    _, callback, written = learnt
    ours = [(step, values, excluded) for step, values, excluded in written.rows if "gptd/value" in values]
    assert [step for step, _, _ in ours] == [100, 200]
    _, values, excluded = ours[-1]
    found = callback.last
    assert values["gptd/value"] == found.start.value.estimate
    assert values["gptd/value_lower"] == found.start.value.lower < values["gptd/value"]
    assert values["gptd/value_upper"] == found.start.value.upper > values["gptd/value"]
    assert values["gptd/coverage"] == found.check.scores[0].coverage[-1]
    assert values["gptd/rmse"] == found.check.scores[0].rmse
    assert_allclose(values["gptd/critic_rmse"], found.check.scores[1].rmse)
    assert values["gptd/importance/input_0"] == found.relevance.importances.total_effects[0]
    assert values["time/total_timesteps"] == 200
    assert "tensorboard" in excluded["time/total_timesteps"]


def test_callback_keeps_the_logged_numbers(learnt) -> None:
    _, callback, written = learnt
    assert [found["time/total_timesteps"] for found in callback.evaluations] == [100, 200]
    logged = [values for _, values, _ in written.rows if "gptd/value" in values]
    for values, found in zip(logged, callback.evaluations, strict=True):
        assert values.items() >= found.items(), "beside the numbers of training"


def test_callback_last_is_of_the_model_at_that_time(learnt) -> None:
    model, callback, _ = learnt
    found = callback.last
    assert_array_equal(found.value.predict(found.check.states), found.check.predicted)
    assert_array_equal(found.critic(found.check.states), found.check.critic)
    now = model.policy.predict_values(model.policy.obs_to_tensor(np.array([[50.0]], dtype=np.float32))[0]).item()
    assert now != found.critic(np.array([[50.0]]))[0], "the model has changed since"


def test_numbers_have_keys_from_input_names(learnt) -> None:
    found = learnt[1].last
    named = replace(found, config=replace(found.config, inputs=("speed of θ₁ / s",)))
    assert "gptd/importance/speed_of_θ₁_s" in numbers(named)


def test_numbers_have_the_coverage_of_the_95_percent_interval(learnt) -> None:
    found = learnt[1].last
    score = replace(found.check.scores[0], coverage=(0.4, 0.7, 0.9))
    assert numbers(replace(found, check=replace(found.check, scores=(score,))))["gptd/coverage"] == 0.9


def test_numbers_without_a_critic(learnt) -> None:
    found = learnt[1].last
    assert "gptd/critic_rmse" not in numbers(replace(found, check=replace(found.check, critic=None)))


@pytest.mark.parametrize(("n_envs", "expected"), [(1, [7, 14]), (3, [21, 42])])
def test_callback_eval_freq_counts_calls(calls, n_envs: int, expected: list[int]) -> None:
    callback = GPTDEvalCallback(corridor(), eval_freq=7)
    a2c(several(n_envs)).learn(15 * n_envs, callback=callback)
    assert [found["time/total_timesteps"] for found in callback.evaluations] == expected


def test_callback_passes_options_to_evaluate_agent(calls) -> None:
    env = corridor()
    callback = GPTDEvalCallback(env, 5, 77, 0.5, False, 9, n_episodes=3, n_states=4)
    a2c().learn(10, callback=callback)
    ((agent, place, options),) = calls
    assert place is env and type(agent) is sb3.A2C
    expected = dict(
        n_transitions=77, gamma=0.5, deterministic=False, seed=9, n_episodes=3, n_states=4, analyse_inputs=False
    ) | dict(frames=False)
    assert options == expected


@pytest.mark.parametrize("env", ["CartPole-v1", gym.spec("CartPole-v1")])
def test_callback_takes_an_environment_id(calls, env: Any) -> None:
    callback = GPTDEvalCallback(env, eval_freq=5)
    sb3.A2C("MlpPolicy", "CartPole-v1", device="cpu").learn(5, callback=callback)
    assert calls[0][1] is env


def test_callback_verbose_prints_a_line(capsys) -> None:
    found = {"gptd/value": 1.0, "gptd/value_lower": 0.5, "gptd/value_upper": 1.5}
    for verbose in (0, 1):
        callback = GPTDEvalCallback(corridor(), verbose=verbose)
        callback.init_callback(a2c())
        listen(callback.model)
        callback._log(found)
        said = capsys.readouterr().out
        assert said == ("0 steps: value 1, 95 % interval 0.5 to 1.5\n" if verbose else "")


# Training is not disturbed


def weights(model: Any) -> Any:
    return torch.cat([parameter.detach().ravel() for parameter in model.policy.parameters()]).numpy()


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("A2C", {}), ("DQN", dict(learning_starts=20, exploration_fraction=1.0, train_freq=2))],
)
def test_callback_does_not_change_the_weights(algorithm: str, settings: dict[str, Any], deterministic: bool) -> None:
    def train(callback: Any) -> Any:
        settings_ = dict(policy_kwargs=dict(net_arch=[8]), seed=0, device="cpu") | settings
        return getattr(sb3, algorithm)("MlpPolicy", corridor(), **settings_).learn(150, callback=callback)

    callback = GPTDEvalCallback(corridor(), eval_freq=60, deterministic=deterministic, **QUICK)
    with_it, without = train(callback), train(None)
    assert len(callback.evaluations) == 2
    assert_array_equal(weights(with_it), weights(without))
    assert_array_equal(with_it._last_obs, without._last_obs)


def test_callback_restores_random_state_and_training_mode(monkeypatch) -> None:
    def evaluate(agent: Any, env: Any, **options: Any) -> Any:
        random.random()
        np.random.rand()  # noqa: NPY002
        torch.rand(1)
        agent.action_space.sample()
        agent.policy.set_training_mode(False)
        raise CollectionError("no")  # also if it fails

    monkeypatch.setattr(module, "evaluate_agent", evaluate)
    model = a2c()
    callback = GPTDEvalCallback(corridor(), eval_freq=1)
    callback.init_callback(model)
    model.policy.set_training_mode(True)
    model.action_space.seed(0)
    states = [lambda: random.getstate(), lambda: torch.random.get_rng_state().tolist()]
    states += [lambda: str(np.random.get_state())]  # noqa: NPY002
    states += [lambda: model.action_space.np_random.bit_generator.state, lambda: model.policy.training]
    before = [state() for state in states]
    with pytest.warns(EvaluationWarning):
        callback.on_step()
    assert [state() for state in states] == before


def test_snapshot_does_not_change_with_training() -> None:
    model = a2c()
    x = np.array([[10.0], [90.0]], dtype=np.float32)
    kept, before = snapshot(model), model.policy.get_distribution(torch.tensor(x)).distribution.probs.tolist()
    model.learn(50)
    assert model.policy.get_distribution(torch.tensor(x)).distribution.probs.tolist() != before
    assert kept.policy.get_distribution(torch.tensor(x)).distribution.probs.tolist() == before


def test_snapshot_of_state_dependent_exploration() -> None:
    model = sb3.A2C("MlpPolicy", "Pendulum-v1", use_sde=True, seed=0, device="cpu").learn(10)
    model.policy.reset_noise()  # a tensor that PyTorch does not copy
    x = np.array([[1.0, 0.0, 0.5]], dtype=np.float32)
    kept, before = snapshot(model), model.predict(x, deterministic=False)[0]
    model.policy.reset_noise()
    assert_array_equal(kept.predict(x, deterministic=False)[0], before)


# Normalization


def normalized() -> Any:
    return VecNormalize(several(), gamma=0.99)


@pytest.mark.parametrize("wrapped", [True, False])
def test_callback_normalizes_by_present_statistics(calls, wrapped: bool) -> None:
    inner = several(1)
    eval_env = VecNormalize(inner, training=False) if wrapped else inner
    training = normalized()
    model = a2c(training)
    callback = GPTDEvalCallback(eval_env, eval_freq=5)
    model.learn(20, callback=callback)
    (first, place, _), (second, _, _) = calls
    assert place is inner, "without its VecNormalize"
    for agent in (first, second):
        assert isinstance(agent, NormalizedPolicy) and agent.model.policy is not model.policy
    assert first.statistics.obs_rms.count < second.statistics.obs_rms.count
    assert_allclose(second.statistics.obs_rms.mean, training.obs_rms.mean)
    assert second.statistics.venv is None


def test_callback_results_are_in_units_of_the_environment() -> None:
    training = normalized()
    callback = GPTDEvalCallback(several(1), eval_freq=100, **QUICK)
    a2c(training).learn(200, callback=callback)
    found = callback.last
    assert found is not None
    assert set(np.unique(found.data.states)) <= {10.0 * i for i in range(10)}
    assert set(np.unique(found.data.rewards)) <= {0.0, -1.0}
    assert training.training, "its statistics are still updated"


def test_callback_warns_of_a_model_that_left_its_normalization(tmp_path) -> None:
    a2c(normalized()).learn(100).save(tmp_path / "agent.zip")
    model = sb3.A2C.load(tmp_path / "agent.zip", env=several(), device="cpu")
    for training, expected in ((model, True), (a2c(normalized()), False), (a2c(), False)):
        callback = GPTDEvalCallback(corridor(), eval_freq=20, **QUICK)
        training.learn(40, callback=callback)
        assert callback.last is not None
        assert any("trained behind a VecNormalize" in said for said in callback.last.warnings) == expected


# Errors


def test_callback_warns_if_an_evaluation_fails(monkeypatch) -> None:
    def evaluate(*args: Any, **options: Any) -> Any:
        raise CollectionError("the floor\ngave way")

    monkeypatch.setattr(module, "evaluate_agent", evaluate)
    callback = GPTDEvalCallback(corridor(), eval_freq=10)
    with pytest.warns(EvaluationWarning) as said:
        model = a2c().learn(40, callback=callback)
    assert [str(one.message) for one in said] == [
        f"the evaluation after {n} steps failed: CollectionError: the floor gave way" for n in (20, 40)
    ]
    assert model.num_timesteps == 40
    assert callback.evaluations == [] and callback.last is None


def test_callback_warns_if_the_environment_fails(monkeypatch) -> None:
    callback = GPTDEvalCallback(corridor(), eval_freq=1, **QUICK)
    callback.init_callback(a2c())
    monkeypatch.setattr(Corridor, "fails", True)
    with pytest.warns(EvaluationWarning, match=r"after 0 steps failed: CollectionError: .*the floor gave way"):
        assert callback.on_step()


def test_callback_warning_as_error_ends_training(monkeypatch) -> None:
    monkeypatch.setattr(module, "evaluate_agent", lambda *args, **options: 1 / 0)
    monkeypatch.setattr(warnings, "filters", [])
    warnings.simplefilter("error", EvaluationWarning)
    with pytest.raises(EvaluationWarning, match="ZeroDivisionError"):
        a2c().learn(40, callback=GPTDEvalCallback(corridor(), eval_freq=10))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(eval_freq=0), "eval_freq must be a whole number of at least 1; got 0."),
        (dict(n_transitions=0), "n_transitions must be"),
        (dict(n_episodes=1.5), "n_episodes must be"),
        (dict(n_states=-1), "n_states must be"),
        (dict(gamma=1.5), r"the discount gamma must lie in \[0, 1\]; got 1.5."),
    ],
)
def test_callback_refuses_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPTDEvalCallback("CartPole-v1", **settings)


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        ("CartPole-v1", AgentError, r"the agent observes Box\(1,\) and CartPole-v1 gives Box\(4,\)"),
        ("Nowhere-v0", CollectionError, "cannot make environment 'Nowhere-v0'"),
        (None, TypeError, "expected an environment to evaluate in; got None"),
        (3, TypeError, "expected an environment id, .* got int"),
    ],
)
def test_callback_refuses_other_environments_before_training(env: Any, error: Any, message: str) -> None:
    model = a2c()
    with pytest.raises(error, match=message) as raised:
        model.learn(10, callback=GPTDEvalCallback(env))
    assert "\n" not in str(raised.value)
    assert model.num_timesteps == 0


def test_callback_refuses_other_agents_before_training() -> None:
    agent = gptd_rl.agents.PolicyIteration("CartPole-v1")
    with pytest.raises(TypeError, match="expected a Stable-Baselines3 model; got PolicyIteration"):
        agent.learn(10, callback=GPTDEvalCallback("CartPole-v1"))


@pytest.mark.parametrize("kind", ["env", "inside", "vector", "normalised"])
def test_callback_refuses_the_training_environment(kind: str) -> None:
    env = corridor()
    training: Any = VecNormalize(DummyVecEnv([lambda: env]))
    given = dict(env=env, inside=TimeLimit(env.unwrapped, 5), vector=training.venv, normalised=training)[kind]
    with pytest.raises(ValueError, match="eval_env is the environment of the training"):
        a2c(training).learn(10, callback=GPTDEvalCallback(given))


# Importing


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_callback_without_stable_baselines3() -> None:
    hide = "import sys; sys.modules['stable_baselines3'] = None\n"
    done = run(hide + "from gptd_rl.evaluation import GPTDEvalCallback")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == 'ImportError: GPTDEvalCallback needs Stable-Baselines3: pip install "gptd-rl[sb3]".'
    done = run(hide + "import gptd_rl; print(gptd_rl.evaluate_agent.__name__)")
    assert done.stdout == "evaluate_agent\n", done.stderr


def test_evaluation_does_not_import_stable_baselines3() -> None:
    done = run("import sys, gptd_rl.evaluation; print({'torch', 'stable_baselines3'} & set(sys.modules))")
    assert done.stdout == "set()\n", done.stderr


def test_evaluation_public_names() -> None:
    assert gptd_rl.evaluation.__all__ == ["Evaluation", "GPTDEvalCallback", "evaluate_agent"]
    with pytest.raises(AttributeError, match=r"module 'gptd_rl.evaluation' has no attribute 'Callback'"):
        _ = gptd_rl.evaluation.Callback
