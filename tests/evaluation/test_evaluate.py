"""`evaluate_agent` from end to end, with small budgets: every kind of environment and agent, and what can be wrong."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl import CollectionError, Trajectories, evaluate_agent
from gptd_rl.agents import TowardsMiddle
from gptd_rl.cli import main as cli
from gptd_rl.estimators.conformal import calibrate, cross_val_predict
from gptd_rl.evaluation import fitting
from gptd_rl.evaluation.environments import MAX_ENVS, open_environment
from gptd_rl.evaluation.ground_truth import GroundTruth, collect_ground_truth
from gptd_rl.evaluation.off_policy import TargetValue
from gptd_rl.evaluation.results import LEVELS, Evaluation
from gptd_rl.evaluation.scoring import SHARES, check, disagreements, score
from gptd_rl.exceptions import AgentError
from gptd_rl.sb3 import critics
from gptd_rl.sb3.critics import critic_of
from gptd_rl.temporal.returns import Returns
from tests.mdps import Spiral, Walk

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
    monkeypatch.setattr(fitting, "MAX_COMPARED_INPUTS", 0)
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
    """What holds of every evaluation."""
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
    assert sum(found.setting.learners.values()) == pytest.approx(1.0)
    assert found.start.n_episodes == SMALL["n_episodes"]
    assert len(found.setting.inputs) == inputs == len(found.relevance.strengths)
    assert_array_equal(found.value.predict(check.states), check.predicted)


# Known values


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_the_gridworld_whose_value_is_known(gamma):
    found = evaluate_agent(TowardsMiddle(), GRID, gamma=gamma, n_transitions=300, n_episodes=20, n_states=60)
    truth = TowardsMiddle().value(found.check.states, gamma)
    assert_allclose(found.check.observed, truth, atol=1e-9)
    assert found.check.n_rollouts == 1
    assert_allclose(found.check.predicted, truth, atol=1e-3)
    ours = found.check.scores[0]
    assert ours.coverage[2] >= 0.9 and ours.rmse < 1e-3
    assert found.relevance.kernel == "ard" and (gamma == 0 or found.relevance.removed == (1,))
    assert_allclose(
        found.start.value.estimate, TowardsMiddle().value(found.data.states[found.data.starts], gamma).mean()
    )
    assert found.setting.env == GRID and found.setting.inputs == ("x", "y") and found.setting.agent == "TowardsMiddle"
    assert found.warnings == ()


def test_returns_from_the_start():
    found = evaluate_agent(TowardsMiddle(), GRID, **SMALL | dict(n_episodes=9), seed=4)
    env = gym.make(GRID)
    lengths = [float(abs(env.reset(seed=1_000_004 + i)[0][0] - 6)) for i in range(9)]  # a step costs 1
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


def test_random_futures():
    found = evaluate_agent(go, Line(noise=0.9), **SMALL, gamma=0.9)
    sane(found, 1)
    assert found.check.n_rollouts == 10 and (found.check.errors > 0).mean() > 0.5
    assert found.relevance.kernel == "ard" and found.relevance.kept == (0,)


def test_rewards_that_never_differ():
    class Same(Line):
        def _reward(self, action):
            return 0.0

    found = evaluate_agent(go, Same(), **SMALL)
    sane(found, 1)
    assert_array_equal(found.check.observed, np.zeros(len(found.check.observed)))
    assert found.check.scores[0].coverage == (1.0, 1.0, 1.0)


def test_episodes_that_are_only_cut_off():
    env = gym.make("Pendulum-v1", max_episode_steps=10)
    found = evaluate_agent(lambda obs: np.zeros(1, dtype=np.float32), env, **SMALL, gamma=0.8)
    sane(found, 3)
    assert found.setting.n_terminated == 0 and any("No episode terminated" in w for w in found.warnings)
    assert any(re.search("fewer than 25 ?% fail", w) for w in found.warnings)  # 12 episodes
    # Life goes on beyond the cut in the check: 20 steps are as good as all.
    state = np.arctan2(found.check.states[:, 1], found.check.states[:, 0])
    assert (np.abs(found.check.observed) >= state**2 - 1e-6).all()
    # What was cut off counts in the values of starts, too.
    ends = found.value.predict(found.data.states[found.data.last])
    returns = Returns.of(found.data)
    starts = returns.y[found.data.starts] + 0.8**10 * ends
    assert found.start.value.estimate == pytest.approx(starts.mean(), rel=0.02)
    assert returns.y[found.data.starts].mean() != pytest.approx(starts.mean(), rel=0.04)


# Kinds of environments


def test_an_environment_is_left_as_it_was_but_reset():
    class Closing(Line):
        is_closed = False

        def close(self):
            self.is_closed = True

    env = TimeLimit(Closing(), 50)
    sane(evaluate_agent(go, env, **SMALL), 1)
    assert not env.unwrapped.is_closed  # type: ignore[attr-defined]
    env.reset(seed=0)
    assert not env.step(0)[3] and env._max_episode_steps == 50


def test_environments_that_were_made_are_closed(monkeypatch):
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
def test_how_many_environments(n_transitions, n):
    with open_environment("CartPole-v1", None, n_transitions) as (env, _):
        assert env.vector_env.num_envs == n


def test_gymnasium_vectors():
    sane(evaluate_agent(go, SyncVectorEnv([Line, Line]), **SMALL), 1)
    found = evaluate_agent(go, AsyncVectorEnv([lambda: TimeLimit(Line(), 30)] * 2), **SMALL)
    sane(found, 1, "returns")
    assert any("cannot be copied" in w for w in found.warnings)
    # The returns of episodes of this line are their values.
    assert_allclose(found.check.observed, _line_values(found.check.states, 0.99), atol=1e-9)
    assert found.start.mean < -1


def _line_values(states: Any, gamma: float) -> Any:
    steps = np.ceil((1.0 - states[:, 0]) / 0.1 - 1e-9)
    return -(1 - gamma**steps) / (1 - gamma)


def test_environments_that_cannot_be_copied():
    class Locked(Line):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    found = evaluate_agent(go, Locked(), **SMALL)
    sane(found, 1, "returns")
    assert_allclose(found.check.observed, _line_values(found.check.states, 0.99), atol=1e-9)


def test_what_is_cut_off_has_the_models_tail():
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


def test_intervals_come_from_left_out_episodes():
    data = Walk().sample(150, np.random.default_rng(0))
    found = fitting.fit(data, None, is_categorical=False, analyse_inputs=True, tick=lambda done, total: None)
    returns = Returns.of(data)
    for value, is_local in ((found.value, True), (found.monte_carlo, False)):
        left_out = cross_val_predict(list(value.estimator_.learners.values()), data) @ value.estimator_.weights_
        assert_array_equal(value.cross_val_values_, left_out)
        errors = (returns.y - returns.difference(left_out))[returns.usable]
        relevances = value.estimator_.relevances_
        assert (relevances is not None) == is_local
        weights = None if relevances is None else np.sqrt(relevances + 1e-9 * relevances.max())
        _, expected = calibrate(left_out, data, weights)
        assert_array_equal(value.errors_[0].ratios, expected.ratios)
        assert is_local or sorted(np.abs(errors)) == value.errors_[0].ratios.tolist()
    assert dict(zip(found.value.estimator_.learners, found.value.estimator_.weights_, strict=True)) == found.learners
    rest = returns.z * found.value.cross_val_values_[returns.end]
    assert_allclose(found.start_values, (returns.y + rest)[data.starts])


class Forgetful(Line, EzPickle):
    """As Gymnasium's MuJoCo and Box2D environments are: a copy is a new one."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        Line.__init__(self)


def test_environments_whose_copies_forget():
    found = evaluate_agent(go, Forgetful(), **SMALL)
    assert_allclose(found.check.observed, _line_values(found.check.states, 0.99), atol=1e-9)


def test_stable_baselines_vectors():
    env = vec_env.DummyVecEnv([cartpole] * 2)
    model = ppo(env)
    found = evaluate_agent(model, env, **SMALL)
    sane(found, 4)
    assert found.setting.agent == "PPO" and found.setting.env == "CartPole-v1" and found.setting.gamma == 0.99
    assert [one.name for one in found.check.scores] == ["GPTD", "PPO's critic", "Monte Carlo"]
    assert set(found.setting.learners) >= {"GPTD", "critic, refitted", "critic, refitted, and GPTD"}
    assert found.critic is not None and found.check.critic is not None
    assert_array_equal(found.check.critic, found.critic(found.check.states))
    assert env.reset().shape == (2, 4)
    # The same, as the environment that the model carries.
    assert as_text(evaluate_agent(model, **SMALL)) == as_text(found)


def test_stable_baselines_processes():
    env = vec_env.SubprocVecEnv([cartpole] * 2, start_method="fork")
    try:
        sane(evaluate_agent(ppo(), env, **SMALL), 4, "returns")
    finally:
        env.close()


def test_behind_a_normaliser_everything_is_in_the_environments_units():
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
        """The same agent, told by hand what to see."""

        def __init__(self) -> None:
            self.model = ppo()

        def predict(self, observation, deterministic):
            return self.model.predict(env.normalize_obs(observation), deterministic=deterministic)

    other = evaluate_agent(Shifted(), inside, **SMALL)
    assert_array_equal(other.check.observed, found.check.observed)
    assert_array_equal(other.data.states, found.data.states)


@pytest.mark.parametrize("policy", [None, lambda obs: int(obs[2] > 0)])
def test_policies_of_other_kinds_behind_a_normaliser(policy):
    sane(evaluate_agent(policy, vec_env.VecNormalize(vec_env.DummyVecEnv([cartpole] * 2)), **SMALL), 4)


def test_states_from_a_list():
    found = evaluate_agent(None, "FrozenLake-v1", **SMALL)
    sane(found, 16)
    assert found.setting.is_categorical and found.setting.inputs[3] == "state 3"
    assert found.relevance.kernel == "isotropic" and found.setting.agent == "random actions"


class Parts(gym.ObservationWrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict(
            cart=spaces.Box(-np.inf, np.inf, (2,), np.float32), pole=spaces.Box(-np.inf, np.inf, (2,), np.float32)
        )

    def observation(self, observation):
        return dict(cart=observation[:2], pole=observation[2:])


def test_observations_of_several_parts():
    parts = evaluate_agent(lambda obs: int(obs["pole"][0] > 0), Parts(cartpole()), **SMALL)
    sane(parts, 4)
    assert parts.setting.inputs == ("position", "velocity", "angle", "angular velocity")
    whole = evaluate_agent(lambda obs: int(obs[2] > 0), cartpole(), **SMALL)
    assert_array_equal(parts.check.observed, whole.check.observed)
    assert_array_equal(parts.check.predicted, whole.check.predicted)


def test_names_of_inputs():
    found = evaluate_agent(go, Line(), **SMALL, input_names=["how far"])
    assert found.setting.inputs == ("how far",) and found.setting.env == "Line"
    with pytest.raises(ValueError, match=r"^input_names must have 1 entries, .*got 2\.$"):
        evaluate_agent(go, Line(), **SMALL, input_names=["a", "b"])


# Few transitions


@pytest.mark.parametrize("n_transitions", [2, 5, 50])
def test_few_transitions(n_transitions):
    found = evaluate_agent(TowardsMiddle(), GRID, **SMALL | dict(n_transitions=n_transitions))
    sane(found, 2)
    assert found.setting.n_transitions == n_transitions
    assert any(f"Only {found.setting.n_episodes} episodes" in w for w in found.warnings)


@pytest.mark.parametrize("n_transitions", [20, 100])
def test_one_run_is_enough_to_say_something(n_transitions):
    lean = evaluate_agent(
        lambda obs: int(obs[2] + 0.2 * obs[3] > 0), "CartPole-v1", **SMALL | dict(n_transitions=n_transitions)
    )
    sane(lean, 4)
    assert lean.setting.n_episodes == 1


def test_one_transition_is_refused():
    with pytest.raises(ValueError, match=r"n_transitions|more transitions"):
        evaluate_agent(go, Line(), **SMALL | dict(n_transitions=1))


def test_two_episodes_and_a_critic():
    env = cartpole(max_episode_steps=30)
    sane(evaluate_agent(ppo(), env, **SMALL | dict(n_transitions=15)), 4)


def test_one_fresh_episode():
    found = evaluate_agent(go, Line(), **SMALL | dict(n_episodes=1, n_states=1))
    assert found.start.returns is None and found.start.n_episodes == 1 and found.start.std == 0
    assert len(found.check.states) == 1
    as_text(found)


@pytest.mark.parametrize("name", ["n_transitions", "n_episodes", "n_states"])
@pytest.mark.parametrize("amount", [0, -1, 2.5, True])
def test_amounts(name, amount):
    with pytest.raises(ValueError, match=f"^{name} must be a whole number of at least 1"):
        evaluate_agent(go, Line(), **SMALL | {name: amount})


# What can be wrong


def test_no_environment():
    with pytest.raises(AgentError, match="there is no environment"):
        evaluate_agent(go)
    with pytest.raises(CollectionError, match="cannot make environment 'Nowhere-v0'"):
        evaluate_agent(go, "Nowhere-v0")
    with pytest.raises(TypeError, match=r"expected an environment id.*got list"):
        evaluate_agent(go, [cartpole()])


def test_an_agent_from_elsewhere():
    with pytest.raises(AgentError, match=r"observes Box\(6,\) and CartPole-v1 gives Box\(4,\)"):
        evaluate_agent(ppo("Acrobot-v1"), "CartPole-v1", **SMALL)


def test_a_target_from_elsewhere():
    with pytest.raises(AgentError, match=r"observes Box\(6,\)"):
        evaluate_agent(None, "CartPole-v1", target=ppo("Acrobot-v1"), **SMALL)


def test_images_are_refused():
    class Screen(Line):
        observation_space = spaces.Box(0, 255, (48, 48, 3), np.uint8)

    with pytest.raises(ValueError, match="image observations"):
        evaluate_agent(go, Screen(), **SMALL)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, np.nan])
def test_discounts(gamma):
    with pytest.raises(ValueError, match="discount gamma must lie in"):
        evaluate_agent(go, Line(), **SMALL, gamma=gamma)


def test_no_discount_where_nothing_ends():
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


def test_a_policy_that_raises():
    with pytest.raises(CollectionError, match="the policy failed: RuntimeError: enough"):
        evaluate_agent(Tired(50), Line(), **SMALL)


@pytest.mark.parametrize("patience", [125, 150])
def test_a_policy_that_raises_in_the_check(patience):
    with pytest.raises(CollectionError, match="the policy failed: RuntimeError: enough"):
        evaluate_agent(Tired(patience), Line(), **SMALL)


def test_rewards_that_are_no_numbers():
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


def test_environments_without_an_end(monkeypatch):
    monkeypatch.setattr(Endless, "n_steps", 0)
    found = evaluate_agent(go, SyncVectorEnv([Endless] * 3), **SMALL, gamma=0.8)
    as_text(found)
    assert found.start.n_episodes == 0 and found.start.returns is None and np.isnan(found.start.mean)


# Seeds


def test_the_same_seed_the_same_numbers():
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
    assert not first.setting.deterministic and first.check.n_rollouts == 10


def test_the_same_seed_the_same_numbers_with_dqn():
    model = sb3.DQN("MlpPolicy", "CartPole-v1", buffer_size=9, device="cpu", seed=0, policy_kwargs=dict(net_arch=[8]))
    model.exploration_rate = 0.3
    before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    some = SMALL | dict(n_transitions=60, deterministic=False)
    first, again = (evaluate_agent(model, "CartPole-v1", **some) for _ in range(2))
    assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]  # noqa: NPY002
    assert as_text(first) == as_text(again)


def test_seeds_of_numpy():
    found = evaluate_agent(go, Line(), **SMALL, seed=np.int64(3))  # type: ignore[arg-type]
    assert as_text(found) == as_text(evaluate_agent(go, Line(), **SMALL, seed=3))


# Progress


def test_progress():
    told: list[tuple[str, int, int]] = []
    evaluate_agent(go, Line(), **SMALL, progress=lambda *what: told.append(what))
    stages = [stage for stage, _, _ in told]
    assert list(dict.fromkeys(stages)) == ["collect", "fit", "check"] == sorted(set(stages), key=stages.index)
    assert stages == sorted(stages, key=["collect", "fit", "check"].index)
    assert all(0 <= done <= total for _, done, total in told)
    for stage in ("collect", "fit", "check"):
        last = [(done, total) for s, done, total in told if s == stage][-1]
        assert last[0] == last[1] > 0


# Relevance


def test_directions(monkeypatch):
    monkeypatch.setattr(fitting, "MAX_COMPARED_INPUTS", 12)

    class Diagonal(Line):
        """Only x + y matters."""

        observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.aside = float(self.np_random.normal())
            return self._seen(), {}

        def _seen(self):
            self.aside = getattr(self, "aside", 0.0) * 0.9
            return np.array([self.x + self.aside, self.x - self.aside])

        def _reward(self, action):
            return -1.0 - np.sin(6.0 * self.x)

    found = evaluate_agent(go, Diagonal(), **SMALL, gamma=0.9)
    assert found.relevance.kernel == "factor"
    assert found.relevance.directions is not None and found.relevance.direction_strengths is not None
    assert_allclose(np.linalg.norm(found.relevance.directions, axis=1), 1.0)
    spread = found.data.states.std(axis=0)
    first = found.relevance.directions[0] / spread  # back in the inputs' units
    assert found.relevance.directions[0].min() > 0  # the largest part of a direction is positive
    assert first[0] / first[1] == pytest.approx(1.0, rel=0.25)
    assert (np.diff(found.relevance.direction_strengths) <= 0).all()


def test_an_excerpt_has_whole_episodes():
    data = Walk().sample(2000, np.random.default_rng(0))
    part = fitting.contiguous_sample(data, 900)
    assert 900 <= len(part) < 900 + data.lengths.max()
    starts = {tuple(data.states[s : s + n, 0]) for s, n in zip(data.starts, data.lengths, strict=True)}
    assert all(tuple(part.states[s : s + n, 0]) in starts for s, n in zip(part.starts, part.lengths, strict=True))
    assert fitting.contiguous_sample(data, len(data)) is data
    long = Spiral(time_limit=500).sample(2000, np.random.default_rng(0))
    pieces = fitting.contiguous_sample(long, 400)
    assert pieces.lengths.max() <= 51 and 400 <= len(pieces) <= 451


# Scores, by hand


class Fixed:
    """The same everywhere; 95 % intervals of ± 2, others in proportion."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def predict(self, states):
        return np.full(len(states), self.value)

    def confidence_interval(self, states, level=0.95):
        half = 2.0 * level / 0.95
        return self.predict(states) - half, self.predict(states) + half


def test_scores_by_hand():
    truth = np.array([1.0, 0.0, -1.0, 5.0])
    found = score("ours", Fixed(), np.zeros((4, 1)), truth, np.zeros(4))
    assert (found.name, found.half_width) == ("ours", 2.0)
    assert found.rmse == pytest.approx(np.sqrt((0 + 1 + 4 + 16) / 4)) and found.bias == pytest.approx(-0.25)
    assert found.coverage == (0.5, 0.5, 0.75)  # within 1.05, 1.68 and 2
    std = 2.0 / 1.959964
    expected = np.log(std) + 0.5 * np.log(2 * np.pi) + (0 + 1 + 4 + 16) / 4 / (2 * std**2)
    assert found.nlpd == pytest.approx(expected, rel=1e-6)


def test_a_truth_that_is_known_badly_is_held_more_easily():
    # 4 from the middle: held by √(2² + (1.96·error)²) from an error of √12 / 1.96 on.
    truth, states = np.full(2, 5.0), np.zeros((2, 1))
    for error, held in ((1.7, 0.0), (1.8, 1.0)):
        assert score("ours", Fixed(), states, truth, np.full(2, error)).coverage[2] == held


def test_halves_of_what_was_observed():
    episodes = np.array([0, 0, 3, 4, 4, 9])
    x = np.arange(6.0)
    known, judged = GroundTruth(np.ones(9), x[:, None], x, 0.1 * x, episodes, 10).halves()
    assert_array_equal(known.values, [0, 1, 3, 4])
    assert_array_equal(judged.values, [2, 5])
    assert_array_equal(judged.errors, 0.1 * judged.values)
    assert_array_equal(judged.states[:, 0], judged.values)
    assert set(known.episodes) == {0, 4} and set(judged.episodes) == {3, 9}
    assert len(known.returns) == len(judged.returns) == 9 and known.n_rollouts == 10


def test_one_fresh_episode_of_random_returns():
    found = evaluate_agent(go, Line(noise=0.9), **SMALL | dict(n_episodes=1), gamma=0.9)
    as_text(found)
    assert len(found.check.states) > 0 and np.isfinite(found.check.scores[0].rmse)


def test_a_check_by_hand():
    truth, states = np.array([1.0, 2.5, 9.0]), np.arange(3.0)[:, None]
    observed = GroundTruth(np.ones(2), states, truth, np.zeros(3), np.array([0, 0, 1]), 4)
    critic = np.array([2.0, 4.0, -8.0])
    found = check(observed, {"GPTD": Fixed(), "other": Fixed(9.0)}, lambda x: critic)
    assert (found.kind, found.n_rollouts) == ("rollouts", 4)
    assert_array_equal(found.shares, SHARES)
    assert SHARES[0] == 0.05 and SHARES[-1] == 0.95 and set(LEVELS) <= set(SHARES)
    half = 2.0 * SHARES / 0.95
    assert_allclose(found.reliability["GPTD"], (1.0 + (half >= 1.5)) / 3)
    assert_allclose(found.reliability["other"], np.full(len(SHARES), 1 / 3))
    assert [one.name for one in found.scores] == ["GPTD", "other"]
    # 4 is outside [−1, 3] by 1, −8 by 7; 2 is inside.
    assert [(d.state, d.critic, d.observed) for d in disagreements(found)] == [((2.0,), -8.0, 9.0), ((1.0,), 4.0, 2.5)]
    assert [(d.value, d.lower, d.upper) for d in disagreements(found)] == [(1.0, -1.0, 3.0)] * 2
    alone = check(
        GroundTruth(np.ones(1), states, truth, np.zeros(3), np.zeros(3, dtype=int), 0), {"GPTD": Fixed()}, None
    )
    assert alone.kind == "returns" and disagreements(alone) == ()
    # One for each episode, and no more than eight.
    far = GroundTruth(np.ones(1), np.arange(30.0)[:, None], np.zeros(30), np.zeros(30), np.repeat(np.arange(10), 3), 1)
    many = disagreements(check(far, {"GPTD": Fixed()}, lambda x: 10.0 + x[:, 0]))
    assert [d.state[0] for d in many] == [29.0, 26.0, 23.0, 20.0, 17.0, 14.0, 11.0, 8.0]


# What critics make their values of


def make(algorithm: str) -> Any:
    if algorithm == "PPO":
        return ppo()
    env = "CartPole-v1" if algorithm == "DQN" else "Pendulum-v1"
    net = dict(net_arch=[8])
    return getattr(sb3, algorithm)("MlpPolicy", env, buffer_size=9, device="cpu", seed=0, policy_kwargs=net)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC", "TD3"])
@pytest.mark.parametrize("chunk", [4096, 3])
def test_features_make_the_critic(algorithm, chunk, monkeypatch):
    monkeypatch.setattr(critics, "CHUNK", chunk)
    model = make(algorithm)
    states = np.random.default_rng(0).normal(size=(10, model.observation_space.shape[0]))
    critic, network = critic_of(model), model.policy
    assert critic is not None
    features = critic.features(states)
    if algorithm == "PPO":
        last = [network.value_net]
    else:
        last = [network.q_net.q_net[-1]] if algorithm == "DQN" else [q[-1] for q in network.critic.q_networks]
    assert features.shape == (10, 8 * len(last)) and features.dtype == np.float64
    outputs = []
    for layer, part in zip(last, np.split(features, len(last), axis=1), strict=True):
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        outputs.append(part @ weight.T + bias)
        assert not layer._forward_hooks  # nobody listens any more
    values = outputs[0].max(axis=1) if algorithm == "DQN" else np.min(outputs, axis=0)[:, 0]
    assert_allclose(values, critic(states), rtol=1e-4, atol=1e-6)
    assert critic.features(states[:0]).shape == (0, 8 * len(last))


@pytest.mark.parametrize("chunk", [4096, 3, 1])
def test_features_of_drawn_actions_are_averages(chunk, monkeypatch):
    model = make("SAC")
    states = np.random.default_rng(0).normal(size=(7, 3))
    critic, best = critic_of(model, deterministic=False), critic_of(model)
    assert critic is not None and best is not None
    monkeypatch.setattr(critics, "CHUNK", chunk)
    features = critic.features(states)
    assert features.shape == (7, 16)
    with torch.no_grad():
        model.policy.actor.log_std.weight[:] = 0.0
        model.policy.actor.log_std.bias[:] = -15.0  # as good as no draws: each state's average is that of its best
    assert_allclose(critic.features(states), best.features(states), rtol=1e-3, atol=1e-4)
    assert np.abs(features - best.features(states)).max() > 1e-3


# Another policy on the same data


class Steps(Line):
    """The action says how far to go: deterministic, so that data of another policy serve."""

    def step(self, action):
        self.x += 0.1 * (1 + int(action))
        return self._seen(), -1.0, self.x >= 1.0, False, {}


def test_a_target():
    found = evaluate_agent(None, Steps(), target=go, **SMALL | dict(n_transitions=200), gamma=0.9)
    steps = np.ceil((1.0 - found.check.states[:, 0]) / 0.2 - 1e-9)
    assert_allclose(found.check.observed, -(1 - 0.9**steps) / 0.1, atol=1e-9)
    assert found.setting.learners == {"GPTDQ": 1.0} and found.setting.agent == "random actions"
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


def test_a_target_that_does_the_same():
    found = evaluate_agent(go, Steps(), target=lambda obs: 1, **SMALL)
    assert found.off_policy is not None
    assert (found.off_policy.disagreement, found.off_policy.warning) == (0.0, "")


def test_a_target_with_real_actions():
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


def test_a_target_that_observes_several_parts():
    found = evaluate_agent(None, Parts(cartpole()), target=lambda obs: int(obs["pole"][0] > 0), **SMALL)
    assert found.off_policy is not None and 0.3 < found.off_policy.disagreement < 0.7


class Coin:
    """Goes far if asked for its best action, else by the toss of a coin."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.asked: set[bool] = set()

    def predict(self, observation, deterministic=False):
        self.asked.add(deterministic)
        n = len(observation)
        return np.ones(n, dtype=np.int64) if deterministic else self.rng.integers(2, size=n), None


def test_a_target_is_checked_as_it_was_learnt():
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
def test_the_command(target, agents, tmp_path, capsys):
    more = ["--target", agents / "second.zip"] if target else []
    code = run(
        "evaluate", "--agent", agents / "first.zip", "--env", "CartPole-v1", "--n-transitions", 200 if target else 300,
        "--out", tmp_path / "page", *more,
    )  # fmt: skip
    assert code == 0
    assert sorted(p.name for p in (tmp_path / "page").iterdir()) == ["evaluation.json", "index.html"]
    numbers = json.loads((tmp_path / "page" / "evaluation.json").read_text(encoding="utf-8"))
    assert numbers["setting"]["agent"] == "PPO" and numbers["setting"]["env"] == "CartPole-v1"
    assert numbers["setting"]["n_transitions"] == (200 if target else 300)
    assert (numbers["off_policy"] is not None) == target
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "CartPole-v1" in page and page.rstrip().endswith("</html>")
    assert str(tmp_path / "page") in capsys.readouterr().out.replace("\n", "")


def test_the_command_in_another_environment(agents, tmp_path, capsys):
    code = run("evaluate", "--agent", agents / "first.zip", "--env", "Acrobot-v1", "--out", tmp_path / "page")
    assert code == 2
    assert list(tmp_path.iterdir()) == []
    out, err = capsys.readouterr()
    assert out == "" and len(err.strip().splitlines()) == 1 and "Box(4,)" in err and "Acrobot-v1" in err


def test_it_is_in_the_package():
    assert gptd_rl.evaluate_agent is evaluate_agent


def test_excerpts_shorter_than_the_thinning(monkeypatch):
    monkeypatch.setattr(fitting, "MAX_COMPARED_INPUTS", 12)
    monkeypatch.setattr(fitting, "N_COMPARED", 60)
    rng = np.random.default_rng(0)
    episodes = [
        dict(observations=rng.normal(size=(41, 2)), rewards=rng.normal(size=40), terminated=False) for _ in range(6)
    ]
    part = Trajectories.from_episodes(episodes, gamma=0.9)
    directions, strengths = fitting._directions(SimpleNamespace(thinning_=100), part, np.ones(2))  # type: ignore[arg-type]
    assert (directions is None) == (strengths is None)


class Wild:
    """A Q-function that promises more than rewards allow, but for the first state."""

    def predict(self, states, actions):
        return np.where(np.arange(len(states)) == 0, 5.0, 300.0)

    def confidence_interval(self, states, actions, level):
        middle = self.predict(states, actions)
        return middle - 2.0, middle + 6.0


def test_values_that_rewards_do_not_allow():
    data = Trajectories.from_episodes([dict(observations=np.zeros((4, 1)), rewards=np.ones(3), terminated=True)], 0.9)
    value = TargetValue(Wild(), lambda states: None, data)  # type: ignore[arg-type]
    assert_allclose(value.predict(np.zeros((2, 1))), [5.0, 10.0])
    lower, upper = value.confidence_interval(np.zeros((2, 1)))
    assert_allclose(lower, [3.0, 0.0])
    assert_allclose(upper, [10.0, 10.0])  # what cannot be is no interval: anything may be
