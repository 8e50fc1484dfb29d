"""`evaluate_agent` from end to end, with small budgets: every kind of environment and agent, and errors."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl import CollectionError, evaluate_agent
from gptd_rl.agents import TowardsMiddle
from gptd_rl.cli import main as cli
from gptd_rl.evaluation import fitting, ground_truth, start_states
from gptd_rl.evaluation.environments import open_environment
from gptd_rl.evaluation.ground_truth import collect_ground_truth
from gptd_rl.evaluation.results import Evaluation
from gptd_rl.exceptions import AgentError
from gptd_rl.rollouts.making import MAX_ENVS
from gptd_rl.seeds import CHECK, derived_seed, env_seeds
from gptd_rl.temporal.returns import Returns
from tests.evaluation.test_scoring import Fixed

sb3 = pytest.importorskip("stable_baselines3")
torch = pytest.importorskip("torch")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")

GRID = "gptd_rl/LatentGridworld-v0"
SMALL: dict[str, Any] = dict(n_transitions=120, n_episodes=6, n_states=15)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One thread, few states to choose a kernel by, and no comparison of kernels, which only one test looks at."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(fitting, "N_SELECTED", 80)
    yield
    torch.set_num_threads(threads)


class Line(gym.Env):
    """A walk from x in (0, 1) to the right, a tenth at a time and somewhat more or less; the end is at 1."""

    observation_space: Any = spaces.Box(-1.0, 2.0, (1,), np.float64)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise
        self.x = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(0.0, 0.9))
        return self._seen(), {}

    def step(self, action):
        self.x += 0.1 + self.noise * self.np_random.uniform(-0.1, 0.1)
        return self._seen(), self._reward(action), self.x >= 1.0, False, {}

    def _seen(self) -> Any:
        return np.array([self.x])

    def _reward(self, action) -> float:
        return -1.0


def go(observation: Any) -> int:
    return 1


def ppo(env: Any = "CartPole-v1", **settings: Any) -> Any:
    return sb3.PPO("MlpPolicy", env, device="cpu", seed=0, n_steps=64, policy_kwargs=dict(net_arch=[8]), **settings)


def cartpole(**options: Any) -> Any:
    return gym.make("CartPole-v1", **options)


def as_text(found: Evaluation) -> str:
    """All numbers but times, as JSON."""
    return json.dumps({k: v for k, v in found.as_json().items() if k != "timing"}, allow_nan=False)


def sane(found: Evaluation, inputs: int, kind: str = "rollouts") -> None:
    """Properties of every evaluation."""
    as_text(found)
    check = found.check
    n = len(check.states)
    assert check.states.shape == (n, inputs) and 0 < n <= SMALL["n_states"]
    assert check.kind == kind and (check.n_rollouts == 0) == (kind == "returns")
    for numbers in (check.observed, check.errors, check.predicted, check.lower, check.upper, check.episodes):
        assert numbers.shape == (n,) and np.isfinite(numbers).all()
    assert (check.lower <= check.predicted).all() and (check.predicted <= check.upper).all()
    assert check.scores[0].name == "GPTD" and check.scores[-1].name == "Monte Carlo"
    assert set(check.reliability) == {one.name for one in check.scores}
    assert found.config.chosen in (found.config.candidates or {"GPTDQ": 0.0})
    assert found.start.n_episodes == SMALL["n_episodes"]
    assert len(found.config.inputs) == inputs == len(found.relevance.scaled_relevances)
    assert_array_equal(found.value.predict(check.states), check.predicted)


# Known values


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_evaluate_agent_in_a_gridworld_with_known_value(gamma):
    found = evaluate_agent(TowardsMiddle(), GRID, gamma=gamma, n_transitions=300, n_episodes=20, n_states=60)
    truth = TowardsMiddle().value(found.check.states, gamma)
    assert_allclose(found.check.observed, truth, atol=1e-9)
    assert found.check.n_rollouts == 1
    assert_allclose(found.check.predicted, truth, atol=1e-3)
    ours = found.check.scores[0]
    assert ours.coverage[2] >= 0.9 and ours.rmse < 1e-3
    assert found.relevance.kernel == "ard" and (gamma == 0 or found.relevance.irrelevant == (1,))
    assert_allclose(
        found.start.value.estimate, TowardsMiddle().value(found.data.states[found.data.starts], gamma).mean()
    )
    assert found.config.env == GRID and found.config.inputs == ("x", "y") and found.config.agent == "TowardsMiddle"
    assert found.warnings == ()


def test_evaluate_agent_start_values_and_returns():
    found = evaluate_agent(TowardsMiddle(), GRID, **SMALL | dict(n_episodes=9), seed=4)
    env = gym.make(GRID)
    check = env_seeds(derived_seed(4, CHECK), 9)
    lengths = [float(abs(env.reset(seed=seed)[0][0] - 6)) for seed in check]  # a step costs 1
    assert found.start.mean == -np.mean(lengths) and found.start.std == pytest.approx(np.std(lengths))
    assert found.start.n_episodes == 9
    half = 2.306004 * np.std(lengths, ddof=1) / 3  # Student's quantile with 8 degrees of freedom
    assert found.start.returns is not None
    assert_allclose(
        [found.start.returns.lower, found.start.returns.upper], found.start.mean + np.array([-half, half]), rtol=1e-6
    )
    starts = TowardsMiddle().value(found.data.states[found.data.starts], 0.99)
    n = len(starts)
    assert found.start.value.estimate == pytest.approx(starts.mean(), abs=1e-4)
    assert (found.start.value.upper - starts.mean()) * np.sqrt(n) / starts.std(ddof=1) == pytest.approx(1.99, abs=0.06)


def test_evaluate_agent_in_a_stochastic_environment():
    found = evaluate_agent(go, Line(noise=0.9), **SMALL, gamma=0.9)
    sane(found, 1)
    assert found.check.n_rollouts == 10 and (found.check.errors > 0).mean() > 0.5
    assert found.relevance.kernel == "ard" and found.relevance.irrelevant == ()


def test_evaluate_agent_with_constant_rewards():
    class Same(Line):
        def _reward(self, action):
            return 0.0

    found = evaluate_agent(go, Same(), **SMALL)
    sane(found, 1)
    assert_array_equal(found.check.observed, np.zeros(len(found.check.observed)))
    assert found.check.scores[0].coverage == (1.0, 1.0, 1.0)


def test_evaluate_agent_with_truncated_episodes_only():
    env = gym.make("Pendulum-v1", max_episode_steps=10)
    found = evaluate_agent(lambda obs: np.zeros(1, dtype=np.float32), env, **SMALL, gamma=0.8)
    sane(found, 3)
    assert found.config.n_terminated == 0 and any("No episode terminated" in w for w in found.warnings)
    assert any(re.search("fewer than 25 ?% fail", w) for w in found.warnings)  # 12 episodes
    # Rollouts of the check continue after the time limit.
    state = np.arctan2(found.check.states[:, 1], found.check.states[:, 0])
    assert (np.abs(found.check.observed) >= state**2 - 1e-6).all()
    # Start values include V at the end of truncated episodes.
    ends = found.value.predict(found.data.states[found.data.last])
    returns = Returns.of(found.data)
    starts = returns.y[found.data.starts] + 0.8**10 * ends
    assert found.start.value.estimate == pytest.approx(starts.mean(), rel=0.02)
    assert returns.y[found.data.starts].mean() != pytest.approx(starts.mean(), rel=0.04)


# Kinds of environments


def test_evaluate_agent_does_not_close_a_given_environment():
    class Closing(Line):
        is_closed = False

        def close(self):
            self.is_closed = True

    env = TimeLimit(Closing(), 50)
    sane(evaluate_agent(go, env, **SMALL), 1)
    assert not env.unwrapped.is_closed  # type: ignore[attr-defined]
    env.reset(seed=0)
    assert not env.step(0)[3] and env._max_episode_steps == 50


def test_open_environment_closes_what_it_made(monkeypatch):
    closed: list[Any] = []
    monkeypatch.setattr(type(cartpole().unwrapped), "close", lambda self: closed.append(self))
    with open_environment("CartPole-v1", None, 3000) as (env, _):
        assert env.vector_env.num_envs == 3 and env.name == "CartPole-v1"
        assert env.input_names == ("position", "velocity", "angle", "angular velocity")
    assert len(closed) == 4
    closed.clear()
    with pytest.raises(AgentError), open_environment("CartPole-v1", ppo("Acrobot-v1"), 3000):
        pass
    assert len(closed) == 1


@pytest.mark.parametrize(("n_transitions", "n"), [(1, 1), (1999, 1), (2000, 2), (10**6, MAX_ENVS)])
def test_open_environment_number_of_environments(n_transitions, n):
    with open_environment("CartPole-v1", None, n_transitions) as (env, _):
        assert env.vector_env.num_envs == n


class LockedLine(Line):
    """Cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("no copies")


def test_evaluate_agent_in_gymnasium_vectors():
    sane(evaluate_agent(go, SyncVectorEnv([Line, Line]), **SMALL), 1)
    found = evaluate_agent(go, SyncVectorEnv([lambda: TimeLimit(LockedLine(), 30)] * 2), **SMALL)
    sane(found, 1, "returns")
    assert any("cannot be restored" in w for w in found.warnings)
    # The returns of episodes of this line are their values.
    assert_allclose(found.check.observed, _line_values(found.check.states, 0.99), atol=1e-9)
    assert found.start.mean < -1


def _line_values(states: Any, gamma: float) -> Any:
    steps = np.ceil((1.0 - states[:, 0]) / 0.1 - 1e-9)
    return -(1 - gamma**steps) / (1 - gamma)


def test_evaluate_agent_in_an_environment_without_copies():
    class Locked(Line):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    found = evaluate_agent(go, Locked(), **SMALL)
    sane(found, 1, "returns")
    assert_allclose(found.check.observed, _line_values(found.check.states, 0.99), atol=1e-9)


def test_collect_ground_truth_adds_values_of_truncated_episodes():
    class Locked(Line):
        def __deepcopy__(self, memo):
            raise TypeError("no copies")

    env = TimeLimit(Locked(), 2)
    with open_environment(env, go, 10) as (opened, policy):
        assert opened.template_env is None
        options: dict[str, Any] = dict(n_episodes=8, n_states=100, gamma=0.5, seed=0, deterministic=True)
        found = collect_ground_truth(opened, policy, Fixed(-40.0), tick=lambda done, total: None, **options)
    # Two steps at most: −1.5 and a quarter of the tail from the start, −1 and half of it behind; nothing after the end.
    assert {-1.0, -1.5, -11.5} < set(found.values) == {-1.0, -1.5, -11.5, -21.0}
    assert found.n_rollouts == 0 and set(found.returns) == {-2.0}


class Forgetful(Line, EzPickle):
    """As Gymnasium's MuJoCo and Box2D environments are: a copy is a new one."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        Line.__init__(self)


def test_evaluate_agent_in_an_environment_whose_copies_are_new():
    found = evaluate_agent(go, Forgetful(), **SMALL)
    assert_allclose(found.check.observed, _line_values(found.check.states, 0.99), atol=1e-9)


def test_evaluate_agent_in_a_dummy_vec_env():
    env = vec_env.DummyVecEnv([cartpole] * 2)
    model = ppo(env)
    found = evaluate_agent(model, env, **SMALL)
    sane(found, 4)
    assert found.config.agent == "PPO" and found.config.env == "CartPole-v1" and found.config.gamma == 0.99
    assert [one.name for one in found.check.scores] == ["GPTD", "PPO's critic", "Monte Carlo"]
    assert set(found.config.candidates) >= {"GPTD", "critic, refitted", "GPTD around the critic, refitted"}
    assert found.critic is not None and found.check.critic is not None
    assert_array_equal(found.check.critic, found.critic(found.check.states))
    assert env.reset().shape == (2, 4)
    # The same, as the environment that the model carries.
    assert as_text(evaluate_agent(model, **SMALL)) == as_text(found)


def test_evaluate_agent_in_a_subproc_vec_env():
    env = vec_env.SubprocVecEnv([cartpole] * 2, start_method="fork")
    try:
        sane(evaluate_agent(ppo(), env, **SMALL), 4, "returns")
    finally:
        env.close()


def test_evaluate_agent_behind_vec_normalize_is_in_units_of_the_environment():
    inside = vec_env.DummyVecEnv([cartpole] * 2)
    env = vec_env.VecNormalize(inside)
    env.obs_rms.mean[:], env.obs_rms.var[:] = [0.1, 0.2, 0.3, 0.4], 4.0
    before = env.obs_rms.mean.copy(), env.obs_rms.count, env.training
    found = evaluate_agent(ppo(), env, **SMALL)
    sane(found, 4)
    assert_array_equal(env.obs_rms.mean, before[0])
    assert (env.obs_rms.count, env.training) == before[1:]
    assert np.abs(found.data.states[found.data.starts]).max() <= 0.05  # CartPole's own starts

    class Shifted:
        """The same agent, with normalization by hand."""

        def __init__(self) -> None:
            self.model = ppo()

        def predict(self, observation, deterministic=False):
            return self.model.predict(env.normalize_obs(observation), deterministic=deterministic)

    other = evaluate_agent(Shifted(), inside, **SMALL)
    assert_array_equal(other.check.observed, found.check.observed)
    assert_array_equal(other.data.states, found.data.states)


@pytest.mark.parametrize("policy", [None, lambda obs: int(obs[2] > 0)])
def test_evaluate_agent_other_policies_behind_vec_normalize(policy):
    sane(evaluate_agent(policy, vec_env.VecNormalize(vec_env.DummyVecEnv([cartpole] * 2)), **SMALL), 4)


def test_evaluate_agent_with_discrete_observations():
    found = evaluate_agent(None, "FrozenLake-v1", **SMALL)
    sane(found, 16)
    assert found.config.is_categorical and found.config.inputs[3] == "state 3"
    assert found.relevance.kernel == "isotropic" and found.config.agent == "random actions"


class Parts(gym.ObservationWrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict(
            cart=spaces.Box(-np.inf, np.inf, (2,), np.float32), pole=spaces.Box(-np.inf, np.inf, (2,), np.float32)
        )

    def observation(self, observation):
        return dict(cart=observation[:2], pole=observation[2:])


def test_evaluate_agent_with_dict_observations():
    parts = evaluate_agent(lambda obs: int(obs["pole"][0] > 0), Parts(cartpole()), **SMALL)
    sane(parts, 4)
    assert parts.config.inputs == ("cart[0]", "cart[1]", "pole[0]", "pole[1]")
    whole = evaluate_agent(lambda obs: int(obs[2] > 0), cartpole(), **SMALL)
    assert_array_equal(parts.check.observed, whole.check.observed)
    assert_array_equal(parts.check.predicted, whole.check.predicted)


def test_evaluate_agent_input_names():
    found = evaluate_agent(go, Line(), **SMALL, input_names=["how far"])
    assert found.config.inputs == ("how far",) and found.config.env == "Line"
    with pytest.raises(ValueError, match=r"^input_names must have 1 entries, .*got 2\.$"):
        evaluate_agent(go, Line(), **SMALL, input_names=["a", "b"])


# Few transitions


@pytest.mark.parametrize("n_transitions", [2, 5, 50])
def test_evaluate_agent_with_few_transitions(n_transitions):
    found = evaluate_agent(TowardsMiddle(), GRID, **SMALL | dict(n_transitions=n_transitions))
    sane(found, 2)
    assert found.config.n_transitions == n_transitions
    assert any(f"Only {found.config.n_episodes} episodes" in w for w in found.warnings)


@pytest.mark.parametrize("n_transitions", [20, 100])
def test_evaluate_agent_with_a_single_run(n_transitions):
    lean = evaluate_agent(
        lambda obs: int(obs[2] + 0.2 * obs[3] > 0), "CartPole-v1", **SMALL | dict(n_transitions=n_transitions)
    )
    sane(lean, 4)
    assert lean.config.n_episodes == 1


def test_evaluate_agent_refuses_one_transition():
    with pytest.raises(ValueError, match=r"n_transitions|more transitions"):
        evaluate_agent(go, Line(), **SMALL | dict(n_transitions=1))


def test_evaluate_agent_with_two_episodes_and_a_critic():
    env = cartpole(max_episode_steps=30)
    sane(evaluate_agent(ppo(), env, **SMALL | dict(n_transitions=15)), 4)


def test_evaluate_agent_with_one_check_episode():
    found = evaluate_agent(go, Line(), **SMALL | dict(n_episodes=1, n_states=1))
    assert found.start.returns is None and found.start.n_episodes == 1 and found.start.std == 0
    assert len(found.check.states) == 1
    as_text(found)


@pytest.mark.parametrize("name", ["n_transitions", "n_episodes", "n_states"])
@pytest.mark.parametrize("amount", [0, -1, 2.5, True])
def test_evaluate_agent_refuses_bad_amounts(name, amount):
    with pytest.raises(ValueError, match=f"^{name} must be a whole number of at least 1"):
        evaluate_agent(go, Line(), **SMALL | {name: amount})


# Errors


def test_evaluate_agent_without_an_environment():
    with pytest.raises(AgentError, match="there is no environment"):
        evaluate_agent(go)
    with pytest.raises(CollectionError, match="cannot make environment 'Nowhere-v0'"):
        evaluate_agent(go, "Nowhere-v0")
    with pytest.raises(TypeError, match=r"expected an environment id.*got list"):
        evaluate_agent(go, [cartpole()])


def test_evaluate_agent_refuses_an_agent_of_another_environment():
    with pytest.raises(AgentError, match=r"observes Box\(6,\) and CartPole-v1 gives Box\(4,\)"):
        evaluate_agent(ppo("Acrobot-v1"), "CartPole-v1", **SMALL)


def test_evaluate_agent_refuses_a_target_of_another_environment():
    with pytest.raises(AgentError, match=r"observes Box\(6,\)"):
        evaluate_agent(None, "CartPole-v1", target=ppo("Acrobot-v1"), **SMALL)


def test_evaluate_agent_refuses_images():
    class Screen(Line):
        observation_space = spaces.Box(0, 255, (48, 48, 3), np.uint8)

    with pytest.raises(ValueError, match="image observations"):
        evaluate_agent(go, Screen(), **SMALL)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, np.nan])
def test_evaluate_agent_refuses_bad_discounts(gamma):
    with pytest.raises(ValueError, match="discount gamma must lie in"):
        evaluate_agent(go, Line(), **SMALL, gamma=gamma)


def test_evaluate_agent_refuses_gamma_1_without_an_end():
    env = gym.make("Pendulum-v1", max_episode_steps=10)
    with pytest.raises(ValueError, match="gamma is 1 and no episode terminates"):
        evaluate_agent(None, env, **SMALL, gamma=1.0)


class Tired:
    """A policy that fails some day."""

    def __init__(self, patience: int) -> None:
        self.left = patience

    def __call__(self, observation):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("enough")
        return 1


def test_evaluate_agent_policy_that_raises():
    with pytest.raises(CollectionError, match="the policy failed: RuntimeError: enough"):
        evaluate_agent(Tired(50), Line(), **SMALL)


@pytest.mark.parametrize("patience", [125, 150])
def test_evaluate_agent_policy_that_raises_in_the_check(patience):
    with pytest.raises(CollectionError, match="the policy failed: RuntimeError: enough"):
        evaluate_agent(Tired(patience), Line(), **SMALL)


def test_evaluate_agent_refuses_rewards_that_are_not_finite():
    class Broken(Line):
        def _reward(self, action):
            return np.nan if self.x > 0.95 else -1.0

    with pytest.raises(CollectionError, match="reward nan: not finite"):
        evaluate_agent(go, Broken(), **SMALL)


class Endless(Line):
    """No episode ends, and no time limit ends it."""

    n_steps = 0

    def step(self, action):
        Endless.n_steps += 1
        if Endless.n_steps > 60_000:
            raise TimeoutError("nobody stops this")
        self.x = (self.x + 0.1) % 1.0
        return self._seen(), self.x, False, False, {}


def test_evaluate_agent_in_an_environment_without_an_end(monkeypatch):
    monkeypatch.setattr(Endless, "n_steps", 0)
    found = evaluate_agent(go, SyncVectorEnv([Endless] * 3), **SMALL, gamma=0.8)
    as_text(found)
    assert found.start.n_episodes == 0 and found.start.returns is None and np.isnan(found.start.mean)


# Seeds


def test_evaluate_agent_is_reproducible():
    model = ppo()
    torch.manual_seed(7)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    some = SMALL | dict(n_transitions=100, deterministic=False)
    first = evaluate_agent(model, "CartPole-v1", **some, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert_array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]  # noqa: NPY002
    torch.manual_seed(8)
    again = evaluate_agent(model, "CartPole-v1", **some, seed=3)
    assert as_text(first) == as_text(again)
    other = evaluate_agent(model, "CartPole-v1", **some, seed=4)
    assert as_text(first) != as_text(other)
    assert not first.config.deterministic and first.check.n_rollouts == 10


def test_evaluate_agent_is_reproducible_with_dqn():
    model = sb3.DQN("MlpPolicy", "CartPole-v1", buffer_size=9, device="cpu", seed=0, policy_kwargs=dict(net_arch=[8]))
    model.exploration_rate = 0.3
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    some = SMALL | dict(n_transitions=60, deterministic=False)
    first, again = (evaluate_agent(model, "CartPole-v1", **some) for _ in range(2))
    assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]  # noqa: NPY002
    assert as_text(first) == as_text(again)


def test_evaluate_agent_takes_numpy_seeds():
    found = evaluate_agent(go, Line(), **SMALL, seed=np.int64(3))  # type: ignore[arg-type]
    assert as_text(found) == as_text(evaluate_agent(go, Line(), **SMALL, seed=3))


# Progress


def test_evaluate_agent_progress():
    told: list[tuple[str, int, int]] = []
    evaluate_agent(go, Line(), **SMALL, progress=lambda *what: told.append(what))
    stages = [stage for stage, _, _ in told]
    expected = ["collect", "fit", "check", "record"]
    assert list(dict.fromkeys(stages)) == expected == sorted(set(stages), key=stages.index)
    assert stages == sorted(stages, key=expected.index)
    assert all(0 <= done <= total for _, done, total in told)
    for stage in expected:
        last = [(done, total) for s, done, total in told if s == stage][-1]
        assert last[0] == last[1] > 0


def test_evaluate_agent_with_one_check_episode_of_random_returns():
    found = evaluate_agent(go, Line(noise=0.9), **SMALL | dict(n_episodes=1), gamma=0.9)
    as_text(found)
    assert len(found.check.states) > 0 and np.isfinite(found.check.scores[0].rmse)


# Off-policy evaluation


class Steps(Line):
    """The action says how far to go: deterministic, so that data of another policy serve."""

    def step(self, action):
        self.x += 0.1 * (1 + int(action))
        return self._seen(), -1.0, self.x >= 1.0, False, {}


def test_evaluate_agent_target():
    found = evaluate_agent(None, Steps(), target=go, **SMALL | dict(n_transitions=200), gamma=0.9)
    steps = np.ceil((1.0 - found.check.states[:, 0]) / 0.2 - 1e-9)
    assert_allclose(found.check.observed, -(1 - 0.9**steps) / 0.1, atol=1e-9)
    assert found.config.chosen == "GPTDQ" and not found.config.candidates and found.config.agent == "random actions"
    assert found.off_policy is not None
    assert found.off_policy.target == "the target (go)"
    taken = np.delete(found.data.actions, found.data.last)  # type: ignore[arg-type]
    assert found.off_policy.disagreement == pytest.approx((taken != 1).mean()) == found.off_policy.mean_difference
    assert found.off_policy.n_asked == 200
    assert found.warnings[0] == found.off_policy.warning != ""
    assert found.check.scores[0].rmse < 0.8 * found.check.scores[-1].rmse
    starts = found.data.states[found.data.starts]
    assert found.start.value.estimate == pytest.approx(found.value.predict(starts).mean())
    as_text(found)


def test_evaluate_agent_target_with_the_same_actions():
    found = evaluate_agent(go, Steps(), target=lambda obs: 1, **SMALL)
    assert found.off_policy is not None
    assert (found.off_policy.disagreement, found.off_policy.warning) == (0.0, "")


def test_evaluate_agent_target_with_continuous_actions():
    class Push(Line):
        action_space = spaces.Box(0.0, 2.0, (1,), np.float32)

        def step(self, action):
            self.x += 0.05 + 0.1 * float(action[0])
            return self._seen(), -1.0, self.x >= 1.0, False, {}

    def half(obs):
        return np.array([1.0], dtype=np.float32)

    found = evaluate_agent(lambda obs: half(obs) + np.float32(0.1), Push(), target=half, **SMALL, gamma=0.9)
    assert found.off_policy is not None
    assert found.off_policy.mean_difference == pytest.approx(0.05, rel=1e-4)  # 0.1 of a range of 2
    assert found.off_policy.disagreement == 0 and found.off_policy.warning == ""
    far = evaluate_agent(lambda obs: half(obs) * 0, Push(), target=half, **SMALL, gamma=0.9)
    assert far.off_policy is not None
    assert far.off_policy.mean_difference == pytest.approx(0.5) and far.off_policy.disagreement == 1.0
    assert re.search("100 ?% of the states", far.warnings[0])


def test_evaluate_agent_target_with_dict_observations():
    found = evaluate_agent(None, Parts(cartpole()), target=lambda obs: int(obs["pole"][0] > 0), **SMALL)
    assert found.off_policy is not None and 0.3 < found.off_policy.disagreement < 0.7


class Coin:
    """Action 1 if deterministic, else a random one."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.asked: set[bool] = set()

    def predict(self, observation, deterministic=False):
        self.asked.add(deterministic)
        n = len(observation)
        return np.ones(n, dtype=np.int64) if deterministic else self.rng.integers(2, size=n), None


def test_evaluate_agent_target_is_deterministic_everywhere():
    coin = Coin()
    evaluate_agent(None, Steps(), target=coin, **SMALL, gamma=0.9, deterministic=False)
    assert len(coin.asked) == 1


# The command line


@pytest.fixture(scope="module")
def agents(tmp_path_factory) -> Path:
    """Folder with untrained agents."""
    folder: Path = tmp_path_factory.mktemp("agents")
    ppo().save(folder / "first.zip")
    sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu", seed=5, n_steps=64, policy_kwargs=dict(net_arch=[8])).save(
        folder / "second.zip"
    )
    return folder


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.mark.parametrize("target", [False, True])
def test_command(target, agents, tmp_path, capsys):
    more = ["--target", agents / "second.zip"] if target else []
    code = run(
        "evaluate", "--agent", agents / "first.zip", "--env", "CartPole-v1", "--n-transitions", 200 if target else 300,
        "--out", tmp_path / "page", *more,
    )  # fmt: skip
    assert code == 0
    assert sorted(p.name for p in (tmp_path / "page").iterdir()) == ["evaluation.json", "index.html"]
    numbers = json.loads((tmp_path / "page" / "evaluation.json").read_text(encoding="utf-8"))
    assert numbers["config"]["agent"] == "PPO" and numbers["config"]["env"] == "CartPole-v1"
    assert numbers["config"]["n_transitions"] == (200 if target else 300)
    assert (numbers["off_policy"] is not None) == target
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "CartPole-v1" in page and page.rstrip().endswith("</html>")
    assert str(tmp_path / "page") in capsys.readouterr().out.replace("\n", "")


def test_command_refuses_another_environment(agents, tmp_path, capsys):
    code = run("evaluate", "--agent", agents / "first.zip", "--env", "Acrobot-v1", "--out", tmp_path / "page")
    assert code == 2
    assert list(tmp_path.iterdir()) == []
    out, err = capsys.readouterr()
    assert out == "" and len(err.strip().splitlines()) == 1 and "Box(4,)" in err and "Acrobot-v1" in err


def test_evaluate_agent_is_public():
    assert gptd_rl.evaluate_agent is evaluate_agent


def test_warns_if_the_observations_hide_what_matters():
    def positions() -> gym.Env:
        env = gym.make("CartPole-v1")
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        return gym.wrappers.TransformObservation(env, lambda observation: observation[[0, 2]], box)

    found = evaluate_agent(None, positions(), n_transitions=1500, n_episodes=2, n_states=4, analyse_inputs=False)
    assert found.markov.is_rejected
    assert any("Stack frames" in warning for warning in found.warnings)
    assert found.as_json()["markov"]["pvalue"] == found.markov.pvalue
    assert "the observations do not tell all" in found.summary()


# Limits that must be said


def unnormalized(found: Evaluation) -> bool:
    return any("seems to be trained behind a VecNormalize" in warning for warning in found.warnings)


@pytest.mark.filterwarnings("ignore::gptd_rl.exceptions.ActionCoverageWarning")  # of the target, not looked at here
def test_evaluate_agent_warns_of_missing_normalization():
    env = vec_env.VecNormalize(vec_env.DummyVecEnv([cartpole] * 2))
    model = ppo(env).learn(128)
    assert unnormalized(evaluate_agent(model, "CartPole-v1", **SMALL))
    assert not unnormalized(evaluate_agent(model, **SMALL))
    assert not unnormalized(evaluate_agent(model, vec_env.VecMonitor(env), **SMALL))
    found = evaluate_agent(ppo(), "CartPole-v1", target=model, **SMALL)
    assert found.warnings[0].startswith("The target (PPO) seems to be trained behind a VecNormalize")


def test_command_warns_of_missing_normalization(tmp_path, capsys):
    env = vec_env.VecNormalize(vec_env.DummyVecEnv([cartpole] * 2))
    ppo(env).learn(128).save(tmp_path / "agent.zip")
    env.save(tmp_path / "statistics.pkl")
    for more, expected in (((), True), (("--vecnormalize", tmp_path / "statistics.pkl"), False)):
        page = tmp_path / f"page{expected}"
        code = run(
            "evaluate", "--agent", tmp_path / "agent.zip", "--env", "CartPole-v1", "--n-transitions", 200,
            "--out", page, *more,
        )  # fmt: skip
        assert code == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("seems to be trained behind a VecNormalize" in said) == expected
        text = (page / "index.html").read_text(encoding="utf-8")
        assert ("seems to be trained behind a VecNormalize" in text) == expected


def test_evaluate_agent_warns_of_cut_rollouts(monkeypatch):
    monkeypatch.setattr(ground_truth, "MAX_STEPS", 3_000)
    monkeypatch.setattr(Endless, "n_steps", 0)
    env = TimeLimit(Endless(), 20)
    found = evaluate_agent(go, env, n_transitions=120, n_episodes=2, n_states=2, gamma=0.999)
    # 2 · 1 500 steps; 0.999¹⁵⁰⁰ = 0.22.
    (said,) = [warning for warning in found.warnings if "were cut" in warning]
    assert said.startswith("With the discount 0.999, 100 % of the check's rollouts were cut after 1500 steps")
    assert "22 % of the return" in said
    found = evaluate_agent(go, env, n_transitions=120, n_episodes=2, n_states=2, gamma=0.99)
    assert not any("were cut" in warning for warning in found.warnings)


class LockedEndless(Endless):
    """As `Endless`, and it cannot be copied; a step ends an episode with probability 0.0005."""

    def __deepcopy__(self, memo):
        raise TypeError("no copies")

    def step(self, action):
        seen, reward, _, _, info = super().step(action)
        return seen, reward, bool(self.np_random.uniform() < 0.0005), False, info


@pytest.mark.parametrize("n_envs", [1, 3])
def test_evaluate_agent_bounds_endless_episodes_without_copies(n_envs, monkeypatch):
    monkeypatch.setattr(ground_truth, "MAX_STEPS", 2_000)
    monkeypatch.setattr(start_states, "MAX_EPISODE_STEPS", 500)
    monkeypatch.setattr(Endless, "n_steps", 0)
    found = evaluate_agent(go, SyncVectorEnv([LockedEndless] * n_envs), **SMALL, gamma=0.8)
    as_text(found)
    n = found.start.n_episodes
    assert Endless.n_steps < 120 + 3_000 + 256 * n_envs + 100
    assert n < SMALL["n_episodes"]
    assert any(
        warning.startswith(f"Only {n} of 6 fresh episodes ended within 3000 steps together")
        for warning in found.warnings
    )


def test_evaluate_agent_bounds_an_environment_without_its_time_limit(monkeypatch):
    monkeypatch.setattr(start_states, "MAX_EPISODE_STEPS", 300)
    env = gym.make("Pendulum-v1").unwrapped  # without its time limit
    found = evaluate_agent(None, env, **SMALL, gamma=0.5)
    assert found.start.n_episodes == 0
    assert any("Only 0 of 6 fresh episodes ended within 300 steps each" in warning for warning in found.warnings)
