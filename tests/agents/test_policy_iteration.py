"""PolicyIteration: optimal policies, every kind of environment, Stable-Baselines3's verbs, files and faults."""

import json
from dataclasses import asdict
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, GPTDQ, Trajectories
from gptd_rl.agents import PolicyIteration
from gptd_rl.agents.policy_pool import Episode, PolicyRecord
from gptd_rl.estimators.greedy import MAX_ITERATIONS
from gptd_rl.exceptions import CollectionError, LearningError
from gptd_rl.rollouts.collect import collect
from tests.helpers import MIXES, assert_same, sample, segments
from tests.mdps import Gridworld

GRIDWORLD = "gptd_rl/LatentGridworld-v0"
CELLS = Gridworld().cells[Gridworld().cells[:, 0] != 6]  # but for the goal
TOWARDS_GOAL = (CELLS[:, 0] < 6).astype(int)


# -------------------------------------------------------------------------------------- environments


class Corridor(gym.Env):
    """Cells 0…6, a step costs 1, the last cell is the goal; after `limit` steps it is over.

    `faults` says what goes wrong, by the number of the step or reset, counted from 1.
    """

    observation_space: Any = spaces.Box(-1.0, 9.0, (1,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, limit: int | None = 20, goal: int = 6, start: int = 0, **faults: int) -> None:
        self.limit, self.goal, self.faults, self.n_steps, self.n_resets = limit, goal, faults, 0, 0
        self.action_space = spaces.Discrete(2, start=start)

    def observe(self, bad: bool) -> Any:
        return np.array([np.nan if bad else self.x], dtype=np.float32)

    def right(self, action: Any) -> bool:
        assert self.action_space.contains(action), action
        return bool(action == self.action_space.start + 1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_resets += 1
        self.x, self.time = int(self.np_random.integers(6)), 0
        return self.observe(self.n_resets == self.faults.get("reset")), {}

    def step(self, action):
        self.n_steps += 1
        if self.n_steps == self.faults.get("crash"):
            raise RuntimeError("the motor is hot")
        self.x, self.time = int(np.clip(self.x + (1 if self.right(action) else -1), 0, 6)), self.time + 1
        reward = -1.0
        for name, wrong in (("nan", np.nan), ("inf", np.inf)):
            reward = wrong if self.n_steps == self.faults.get(name) else reward
        observation = self.observe(self.n_steps == self.faults.get("observation"))
        return observation, reward, self.x == self.goal, self.time == self.limit, {}


class Numbered(Corridor):
    """Says the number of the cell."""

    observation_space = spaces.Discrete(7)

    def observe(self, bad: bool) -> Any:
        return np.int64(self.x)


class Named(Corridor):
    """Says it in a dictionary, not in the order of the space."""

    observation_space = spaces.Dict({"cell": spaces.Discrete(7), "where": spaces.Box(0.0, 9.0, (2,), np.float32)})

    def observe(self, bad: bool) -> Any:
        return {"where": np.array([self.x, 1.0], dtype=np.float32), "cell": np.int64(self.x)}


class Pushed(Corridor):
    """Takes any force."""

    def __init__(self, shape: tuple[int, ...] = (1,)) -> None:
        super().__init__()
        self.action_space = spaces.Box(-2.0, 2.0, shape, np.float32)

    def right(self, action: Any) -> bool:
        assert self.action_space.contains(action), action
        return bool(np.sum(action) > 0)


# Length and end of the episodes of each sub-environment.
SCRIPTS = (
    ((1, "terminated"), (3, "truncated"), (2, "both"), (4, "terminated")),
    ((2, "truncated"), (1, "truncated"), (5, "terminated")),
    ((7, "both"), (1, "terminated")),
)


class Clock(gym.Env):
    """Observation (sub-environment, episode, step): what was recorded can be checked."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, index: int = 0) -> None:
        self.index, self.episode = index, -1

    def observe(self) -> np.ndarray:
        return np.array([self.index, self.episode, self.time], dtype=self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        self.episode, self.time = self.episode + 1, 0
        self.length, self.end = SCRIPTS[self.index][self.episode % len(SCRIPTS[self.index])]
        return self.observe(), {}

    def step(self, action):
        assert self.time < self.length, "stepped past the end"
        self.time += 1
        over = self.time == self.length
        reward = reward_of(self.index, self.episode, self.time, action)
        return self.observe(), reward, over and self.end != "truncated", over and self.end != "terminated", {}


def reward_of(index: float, episode: float, time: float, action: float) -> float:
    return float(index + 0.01 * episode + 0.125 * time - action)


class PreciseClock(Clock):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)


def assert_clockwork(data: Trajectories, n_envs: int, n_cuts: int = 1) -> None:
    """Each segment is an episode as the script has it, none is missing; `n_cuts` in each environment are cut short."""
    assert data.actions is not None
    seen: dict[int, list[int]] = {i: [] for i in range(n_envs)}
    cut = dict.fromkeys(seen, 0)
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        states = data.states[places]
        index, number = int(states[0, 0]), int(states[0, 1])
        assert_array_equal(states[:, 0], index)
        assert_array_equal(states[:, 1], number)
        assert_array_equal(states[:, 2], np.arange(len(states)))
        expected = [reward_of(index, number, i + 1, data.actions[places[i]]) for i in range(len(states) - 1)]
        assert_allclose(data.rewards[places][:-1], expected, rtol=1e-6)
        length, end = SCRIPTS[index][number % len(SCRIPTS[index])]
        assert len(states) - 1 <= length
        whole = len(states) - 1 == length
        cut[index] += not whole
        assert terminated == (whole and end != "truncated")
        seen[index].append(number)
    for index, numbers in seen.items():
        assert len(set(numbers)) == len(numbers)
        n_missing = max(numbers) + 1 - len(numbers)  # begun, but learning ended before the first step
        assert cut[index] + n_missing <= n_cuts and (n_cuts > 1 or n_missing == 0)


def episodes_of(agent: Any, n_irrelevant: int = 1, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Starts and returns of fresh episodes."""
    env = gym.make(GRIDWORLD, n_irrelevant=n_irrelevant)
    starts, returns = [], []
    for i in range(n):
        observation, _ = env.reset(seed=1000 + i)
        starts.append(observation)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(agent.predict(observation)[0])
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return np.array(starts), np.array(returns)


def assert_optimal(agent: Any, n_irrelevant: int = 1) -> None:
    starts, returns = episodes_of(agent, n_irrelevant)
    assert_array_equal(returns, -np.abs(starts[:, 0] - 6))


def one_line(error: Any) -> str:
    message = str(error.value)
    assert message and "\n" not in message
    return message


@pytest.fixture(scope="module")
def learnt() -> PolicyIteration:
    """After 400 steps; not to be changed."""
    return PolicyIteration(GRIDWORLD, seed=0).learn(400)


@pytest.fixture(scope="module")
def model_free():
    return PolicyIteration(GRIDWORLD, seed=0, model=None).learn(400)


@pytest.fixture(scope="module")
def random_data() -> Trajectories:
    return collect(GRIDWORLD, n_transitions=500, gamma=0.99, seed=5)


@pytest.fixture(scope="module")
def walker(random_data) -> PolicyIteration:
    """Optimal, with an environment; not to be changed."""
    return PolicyIteration(GRIDWORLD, seed=0).learn_offline(random_data)


@pytest.fixture
def sb3() -> Any:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return pytest.importorskip("stable_baselines3")


# -------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("seed", [0, 1])
def test_learn_finds_the_optimal_policy(seed):
    agent = PolicyIteration(GRIDWORLD, seed=seed).learn(1500)
    assert_optimal(agent)
    assert agent.relevances_.argmax() == 0
    q = agent.q_values(CELLS)
    assert q.shape == (110, 2)
    assert_array_equal(q.argmax(axis=1), agent.predict(CELLS)[0])
    # values of a policy that makes a mistake now and then: a soft backup
    assert (q.max(axis=1) < Gridworld().value(CELLS) + 0.5).all()
    assert np.corrcoef(q.max(axis=1), Gridworld().value(CELLS))[0, 1] > 0.9


def test_learn_without_a_model_finds_the_optimal_values():
    agent = PolicyIteration(GRIDWORLD, seed=0, model=None).learn(1500)
    assert_optimal(agent)
    assert np.median(np.abs(agent.q_values(CELLS).max(axis=1) - Gridworld().value(CELLS))) < 0.5


def test_relevances_are_largest_for_the_one_relevant_coordinate():
    agent = PolicyIteration(gym.make(GRIDWORLD, n_irrelevant=3), seed=0).learn(1500)
    assert agent.relevances_.shape == (4,)
    assert agent.relevances_[0] > 2 * agent.relevances_[1:].max()
    assert_optimal(agent, n_irrelevant=3)


def test_learn_offline_finds_the_optimal_policy(random_data):
    agent = PolicyIteration(seed=0).learn_offline(random_data)
    assert agent.num_timesteps == 0 and agent.env is None and agent.episodes == []
    assert_optimal(agent)
    assert np.mean(agent.predict(CELLS)[0] == TOWARDS_GOAL) > 0.97
    assert agent.relevances_.argmax() == 0
    assert [i.selected for i in agent.history] == [True]
    assert agent.data.n_transitions == 500


def test_learn_offline_adds_batches(random_data):
    more = collect(GRIDWORLD, n_transitions=100, gamma=0.99, seed=6)
    agent = PolicyIteration(seed=0).learn_offline(random_data).learn_offline(more)
    both = random_data + more
    assert agent.data.n_transitions == 600
    assert_array_equal(agent.data.states, both.states)
    assert_array_equal(agent.data.terminated, both.terminated)


@pytest.mark.parametrize("reselect", [False, True])
def test_learn_continues_from_learn_offline(random_data, reselect):
    some = collect(GRIDWORLD, n_transitions=150, gamma=0.99, seed=5)
    agent = PolicyIteration(GRIDWORLD, seed=0, model=None, reselect_kernel=reselect).learn_offline(some)
    selected = agent.relevances_
    agent.learn(200)
    assert agent.num_timesteps == 200 and agent.data.n_transitions == 350
    kept = [np.array_equal(i.relevances, selected) for i in agent.history]
    assert all(kept) if not reselect else not kept[-1]
    assert [i.selected for i in agent.history[1:]].count(True) == (1 if reselect else 0)


@pytest.mark.parametrize("model", ["gp", None])
def test_learn_keeps_the_first_relevances_without_reselection(model):
    agent = PolicyIteration(GRIDWORLD, seed=0, model=model, reselect_kernel=False).learn(500)
    assert [i.selected for i in agent.history].count(True) == 1


def test_learn_chooses_among_candidates():
    agent = PolicyIteration(Pushed(), seed=0, candidates=[[-2.0], [2.0]]).learn(200)
    actions, _ = agent.predict(np.arange(6.0)[:, None])
    assert_array_equal(actions, np.full((6, 1), 2.0))


def test_predict_returns_candidates():
    candidates = [[-2.0], [0.0], [2.0]]
    agent = PolicyIteration("Pendulum-v1", seed=0, candidates=candidates).learn(300)
    one, _ = agent.predict(np.array([1.0, 0.0, 0.0], dtype=np.float32))
    assert one.shape == (1,) and one.dtype == np.float32 and one.tolist() in candidates
    assert agent.action_space.contains(one)
    many, _ = agent.predict(agent.data.states[:5])
    assert many.shape == (5, 1)
    assert agent.data.actions is not None and set(agent.data.actions.ravel().tolist()) <= {-2.0, 0.0, 2.0}
    assert agent.data.lengths.tolist() == [201, 101] and not agent.data.terminated.any()


def test_learn_offline_takes_continuous_actions_as_the_nearest_candidate():
    data = collect(Pushed(), n_transitions=200, gamma=0.9, seed=0)
    agent = PolicyIteration(seed=0, candidates=[[-1.0], [1.0]]).learn_offline(data)
    left = data.discounts > 0
    assert agent.data.actions is not None and data.actions is not None
    assert_array_equal(agent.data.actions[left], np.where(data.actions[left] > 0, 1.0, -1.0))
    assert_array_equal(agent.predict(np.arange(6.0)[:, None])[0], np.ones((6, 1)))


def test_learn_with_actions_that_do_not_start_at_0():
    agent = PolicyIteration(Corridor(start=3), seed=0).learn(150)
    actions, _ = agent.predict(np.arange(6.0)[:, None])
    assert_array_equal(actions, np.full(6, 4))
    data = agent.data
    assert data.actions is not None and set(data.actions[data.discounts > 0].tolist()) == {3, 4}


def test_learn_offline_with_actions_that_do_not_start_at_0():
    data = collect(Corridor(start=3), n_transitions=100, gamma=0.99, seed=0)
    agent = PolicyIteration(Corridor(start=3), seed=0).learn_offline(data)
    assert_array_equal(agent.predict(np.arange(6.0)[:, None])[0], np.full(6, 4))


def test_predict_with_discrete_observations():
    agent = PolicyIteration(Numbered(), seed=0).learn(200)
    assert agent.predict(2)[0] == 1 and agent.predict(2)[0].shape == ()
    assert_array_equal(agent.predict(np.arange(6))[0], np.ones(6))
    assert agent.data.states.shape[1] == 7


def test_predict_with_dict_observations():
    agent = PolicyIteration(Named(), seed=0).learn(200)
    where = np.array([2.0, 1.0], dtype=np.float32)
    assert agent.predict({"cell": 2, "where": where})[0] == 1
    many = {"cell": np.array([2, 2, 2]), "where": np.stack([where] * 3)}
    assert_array_equal(agent.predict(many)[0], np.ones(3))


def test_predict_with_dict_observations_in_another_order():
    agent = PolicyIteration(Named(), seed=0).learn(60)
    where = np.array([2.0, 1.0], dtype=np.float32)
    one, _ = agent.predict({"where": where, "cell": 2})
    assert_array_equal(one, agent.predict({"cell": 2, "where": where})[0])


# -------------------------------------------------------------------------------------- seeds


def as_text(history: Any) -> str:
    return json.dumps([asdict(iteration) for iteration in history])  # NaN is NaN


def everything(agent: PolicyIteration) -> tuple[Any, ...]:
    return as_text(agent.history), agent.episodes, agent.data.states.tolist(), agent.q_values(CELLS).tolist()


def test_learn_is_reproducible_by_its_seed(learnt):
    again = PolicyIteration(GRIDWORLD, seed=0).learn(400)
    assert everything(again) == everything(learnt)
    assert_array_equal(again.predict(CELLS)[0], learnt.predict(CELLS)[0])


def test_learn_differs_with_another_seed(learnt):
    other = PolicyIteration(GRIDWORLD, seed=1).learn(400)
    assert other.data.states[0].tolist() != learnt.data.states[0].tolist()
    assert all(a != b for a, b in zip(everything(other), everything(learnt), strict=True))


def test_seed_determines_random_actions():
    """In an environment that always starts alike, too."""
    one, other = (PolicyIteration(Clock(), seed=seed).learn(20).data.actions for seed in (0, 1))
    assert one is not None and other is not None and one.tolist() != other.tolist()


# -------------------------------------------------------------------------------------- environments of every kind


def sync(mode: AutoresetMode) -> Any:
    return SyncVectorEnv([partial(Clock, i) for i in range(3)], autoreset_mode=mode)


def dummy() -> Any:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([partial(Clock, i) for i in range(3)])


SOURCES: dict[str, Any] = {
    "env": (1, Clock),
    **{f"sync-{mode.value}": (3, partial(sync, mode)) for mode in AutoresetMode},
    "dummy": (3, dummy),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_data_hold_every_transition_with_its_true_end(kind):
    n_envs, make = SOURCES[kind]
    agent = PolicyIteration(make(), seed=0, gamma=0.9).learn(90)
    assert 90 <= agent.num_timesteps < 90 + n_envs
    data = agent.data
    assert data.n_transitions == agent.num_timesteps == agent.history[-1].n_transitions
    assert_clockwork(data, n_envs)
    assert_array_equal(np.unique(data.discounts), [0.0, 0.9])
    sums = {}
    for places in segments(data):
        index, number = data.states[places[0], :2].astype(int)
        if len(places) - 1 == SCRIPTS[index][number % len(SCRIPTS[index])][0]:
            sums[index, number] = data.rewards[places].sum()
    assert_allclose(sorted(total for _, total in agent.episodes), sorted(sums.values()), rtol=1e-6)
    assert [made for made, _ in agent.episodes] == sorted(made for made, _ in agent.episodes)


@pytest.mark.parametrize("kind", SOURCES)
def test_data_join_no_episodes_of_different_calls_of_learn(kind, tmp_path):
    """Episodes that the end of `learn` cuts short are not joined to the next ones, nor after loading."""
    n_envs, make = SOURCES[kind]
    env = make()
    agent = PolicyIteration(env, seed=0).learn(6 * n_envs).learn(10 * n_envs)
    agent = PolicyIteration.load(agent.save(tmp_path / "agent"), env=env).learn(10 * n_envs)
    assert agent.data.n_transitions >= 26 * n_envs
    assert_clockwork(agent.data, n_envs, n_cuts=3)


def test_data_with_environments_that_reuse_their_arrays():
    env = SyncVectorEnv(
        [partial(PreciseClock, i) for i in range(3)], autoreset_mode=AutoresetMode.SAME_STEP, copy=False
    )
    assert_clockwork(PolicyIteration(env, seed=0).learn(60).data, 3)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_learn_in_vector_environments_finds_the_optimal_policy(mode):
    env = gym.make_vec(GRIDWORLD, num_envs=3, autoreset_mode=mode)
    agent = PolicyIteration(env, seed=0).learn(1500)
    assert_optimal(agent)
    moves = np.abs(np.diff(agent.data.states, axis=0))
    inside = np.setdiff1d(np.arange(len(agent.data) - 1), agent.data.last)
    assert moves[inside].max() == 1.0
    assert_array_equal(agent.data.states[agent.data.last[agent.data.terminated], 0], 6.0)
    assert agent.get_env() is env


def test_learn_bootstraps_at_time_limits():
    """A corridor without a goal is worth −1/(1−γ), however short its episodes."""
    agent = PolicyIteration(Corridor(limit=5, goal=-1), seed=0, gamma=0.8).learn(200)
    assert not agent.data.terminated.any()
    assert agent.data.n_segments == 40
    assert_allclose(agent.q_values(np.arange(7.0)[:, None]), -5.0, atol=0.1)
    assert agent.episodes == [(5 * (i + 1), -5.0) for i in range(40)]


# -------------------------------------------------------------------------------------- history and predictions


def test_history_records_every_improvement(model_free):
    learnt, history = model_free, model_free.history
    assert [i.n_transitions for i in history] == [25, 50, 75, 175, 275, 375, 400]  # the first ones come sooner
    assert history[0].policy_change == 1.0
    for i in history:
        assert 0.0 <= i.policy_change <= 1.0
        assert 1 <= i.n_iterations <= MAX_ITERATIONS and 1 <= i.n_inducing_points <= learnt.subset_size
        assert i.residual >= 0.0 and len(i.relevances) == 2
    first = [i.selected for i in history].index(True)
    assert all(np.isnan(i.log_evidence) for i in history[:first])
    assert all(np.isfinite([i.log_evidence, i.signal_variance, i.noise_variance]).all() for i in history[first:])
    assert np.isfinite([i.episode_return for i in history[3:]]).all()
    assert history[-1].episode_return == pytest.approx(np.mean([total for _, total in learnt.episodes[-10:]]), abs=1.5)
    served = learnt.incumbent_returns
    assert_array_equal(history[-1].incumbent_return, served.mean() if len(served) else np.nan)
    assert sum(total for _, total in learnt.episodes) >= -400
    assert all(a[0] < b[0] for a, b in zip(learnt.episodes, learnt.episodes[1:], strict=False))


def test_refit_every_sets_the_transitions_between_improvements():
    agent = PolicyIteration(Clock(), seed=0, model=None, refit_every=12, subset_size=5).learn(31)
    assert [i.n_transitions for i in agent.history] == [3, 6, 9, 21, 31]
    assert all(i.n_inducing_points <= 5 for i in agent.history)


def test_plot_history_draws_four_panels(learnt):
    figure = learnt.plot_history()
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 4
    assert {np.size(line.get_xdata()) for line in figure.axes[1].lines} == {len(learnt.history)}
    with pytest.raises(ValueError, match="no history to plot: call learn first") as error:
        PolicyIteration(GRIDWORLD).plot_history()
    one_line(error)


def test_estimator_is_a_gptdq_fitted_to_all_data():
    walker = PolicyIteration(GRIDWORLD, seed=0, model=None).learn(500)
    q = walker.estimator
    assert type(q) is GPTDQ and q.greedy_ is not None and q.greedy_.posterior is q.posterior_
    assert q.data_.n_transitions == walker.data.n_transitions == 500
    mean, std = q.q_values(CELLS, return_std=True)
    assert_allclose(mean, walker.q_values(CELLS), rtol=1e-12)
    assert mean.shape == (110, 2) and (std > 0).all()
    assert_array_equal(q.greedy_actions(CELLS), walker.predict(CELLS)[0])


def test_data_and_policy_of_an_agent_fit_a_gptdq(walker):
    """Intervals of the policy's values: off-policy evaluation on the agent's data."""
    q = GPTDQ(noise="deterministic", n_restarts=0).fit(walker.data, policy=walker)
    mean, std = q.q_values(CELLS, return_std=True)
    assert mean.shape == (110, 2) and (std > 0).all()
    assert np.corrcoef(mean.max(axis=1), Gridworld().value(CELLS))[0, 1] > 0.8


def test_evaluate_runs_new_episodes_of_the_incumbent(walker):
    returns = walker.evaluate(15, seed=3)
    assert returns.shape == (15,) and (returns >= -5.0).all() and (returns <= -1.0).all()
    assert_array_equal(returns, walker.evaluate(15, seed=3))


def test_predict_takes_one_observation_or_many(walker):
    one, state = walker.predict([2.0, 5.0])
    assert one.shape == () and one == 1 and state is None
    many, state = walker.predict([[2.0, 5.0], [9.0, 5.0]], state="kept", deterministic=False)
    assert many.tolist() == [1, 0] and state == "kept"


def test_predict_takes_no_observations(learnt):
    assert learnt.predict(np.zeros((0, 2)))[0].shape == (0,)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ([1.0, 2.0, 3.0], "expected observations of 2 numbers each"),
        (np.zeros((4, 3)), r"expected observations of 2 numbers each; got \(4, 3\)"),
        (np.zeros((2, 2, 2)), "expected observations of 2 numbers each"),
        ([np.nan, 1.0], "expected finite observations"),
        ([[1.0, 1.0], [np.inf, 1.0]], "expected finite observations"),
    ],
)
@pytest.mark.parametrize("with_env", [True, False])
def test_predict_checks_observations(learnt, random_data, observation, message, with_env):
    agent = learnt if with_env else PolicyIteration(seed=0, subset_size=20).learn_offline(random_data)
    for ask in (agent.predict, agent.q_values):
        with pytest.raises(ValueError, match=message) as error:
            ask(observation)
        one_line(error)


# -------------------------------------------------------------------------------------- Stable-Baselines3


def monitored() -> Any:
    from stable_baselines3.common.monitor import Monitor

    return Monitor(gym.make(GRIDWORLD))


def test_predict_works_with_evaluate_policy(sb3, walker):
    from stable_baselines3.common.evaluation import evaluate_policy

    returns, lengths = evaluate_policy(walker, monitored(), n_eval_episodes=15, return_episode_rewards=True)
    assert isinstance(lengths, list) and max(lengths) <= 5
    assert_array_equal(returns, -np.array(lengths))
    mean, _ = evaluate_policy(walker, walker.get_env(), n_eval_episodes=3, warn=False)
    assert isinstance(mean, float) and -5.0 <= mean <= -1.0


def test_learn_with_eval_callback_saves_the_best(sb3, tmp_path):
    from stable_baselines3.common.callbacks import EvalCallback

    told = EvalCallback(
        monitored(), eval_freq=100, n_eval_episodes=4, best_model_save_path=str(tmp_path), log_path=str(tmp_path)
    )
    told.verbose = 0
    PolicyIteration(GRIDWORLD, seed=0).learn(400, callback=told)
    assert told.best_mean_reward == np.mean(told.evaluations_results, axis=1).max()
    assert told.evaluations_timesteps == [100, 200, 300, 400]
    (best,) = [path for path in tmp_path.iterdir() if path.name.startswith("best_model")]
    assert PolicyIteration.load(best).num_timesteps in told.evaluations_timesteps


def test_learn_with_eval_callback_learns_the_same(sb3, learnt):
    from stable_baselines3.common.callbacks import EvalCallback

    told = EvalCallback(monitored(), eval_freq=150, n_eval_episodes=2, verbose=0)
    assert everything(PolicyIteration(GRIDWORLD, seed=0).learn(400, callback=told)) == everything(learnt)


def test_learn_with_checkpoint_callback(sb3, tmp_path, learnt):
    from stable_baselines3.common.callbacks import CheckpointCallback

    agent = PolicyIteration(GRIDWORLD, seed=0).learn(400, callback=CheckpointCallback(200, str(tmp_path)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rl_model_200_steps.zip", "rl_model_400_steps.zip"]
    halfway = PolicyIteration.load(tmp_path / "rl_model_200_steps.zip")
    assert halfway.num_timesteps == halfway.data.n_transitions == 200
    assert everything(agent) == everything(learnt)


def test_learn_stops_when_a_function_says_so(sb3):
    seen = []

    def enough(locals_, globals_):
        seen.append((locals_["self"].num_timesteps, locals_["rewards"].tolist(), locals_["dones"].shape))
        return locals_["self"].num_timesteps < 70

    agent = PolicyIteration(GRIDWORLD, seed=0).learn(200, callback=enough)
    assert agent.num_timesteps == 70 == agent.history[-1].n_transitions
    assert seen == [(i + 1, [-1.0], (1,)) for i in range(70)]


def test_learn_calls_every_callback_of_a_list(sb3):
    from stable_baselines3.common.callbacks import BaseCallback

    class Diary(BaseCallback):
        def __init__(self, limit: int) -> None:
            super().__init__()
            self.limit, self.notes = limit, list[str]()

        def _on_training_start(self) -> None:
            assert id(self.model) == id(agent) and self.logger is agent.logger
            self.notes.append("start")

        def _on_rollout_start(self) -> None:
            self.notes.append("collect")

        def _on_step(self) -> bool:
            return self.num_timesteps < self.limit

        def _on_rollout_end(self) -> None:
            self.notes.append("improve")

        def _on_training_end(self) -> None:
            self.notes.append("end")

    agent = PolicyIteration(GRIDWORLD, seed=0, model=None)
    diaries = [Diary(1000), Diary(60)]
    agent.learn(200, callback=diaries)
    assert agent.num_timesteps == 60
    expected = ["start", "collect", "improve", "collect", "improve", "collect", "end"]  # after 25 and 50 steps
    assert [diary.notes for diary in diaries] == [expected, expected]
    assert diaries[0].n_calls == 60


def test_verbose_prints_the_log(sb3, capsys):
    PolicyIteration(GRIDWORLD, seed=0, model=None, verbose=1).learn(60)
    printed = capsys.readouterr().out
    assert "relevance/" in printed and "ep_rew_mean" in printed
    assert printed.count("policy_change") == 2
    PolicyIteration(GRIDWORLD, seed=0, model=None, verbose=1).learn(60, log_interval=2)
    assert capsys.readouterr().out.count("policy_change") == 1
    PolicyIteration(GRIDWORLD, seed=0, model=None).learn(60)
    assert capsys.readouterr().out == ""


def test_progress_bar_is_shown(capsys):
    PolicyIteration(GRIDWORLD, seed=0).learn(60, progress_bar=True)
    assert "learning" in capsys.readouterr().out


def test_tensorboard_log_is_written(sb3, tmp_path):
    pytest.importorskip("tensorboard")
    PolicyIteration(GRIDWORLD, seed=0, tensorboard_log=str(tmp_path)).learn(60, tb_log_name="mine")
    assert list(tmp_path.glob("mine_1/events.out.tfevents.*"))


def test_get_env_is_a_vec_env(sb3):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    agent = PolicyIteration(GRIDWORLD, seed=0)
    assert isinstance(agent.get_env(), DummyVecEnv)
    assert agent.get_vec_normalize_env() is None
    env = VecNormalize(DummyVecEnv([lambda: gym.make(GRIDWORLD)]))
    agent = PolicyIteration(env, seed=0).learn(60)
    assert agent.get_env() is env and agent.get_vec_normalize_env() is env
    assert set(agent.data.rewards.tolist()) <= {-1.0, 0.0}  # as they were before normalisation
    assert PolicyIteration().get_env() is None


def test_collect_takes_an_agent_with_its_environment(walker):
    data = collect(walker, n_episodes=10, gamma=0.99, seed=3)
    assert data.terminated.all() and data.lengths.max() <= 6


def test_set_logger_is_kept(sb3):
    from stable_baselines3.common.logger import Logger

    agent, mine = PolicyIteration(GRIDWORLD, seed=0), Logger(None, [])
    agent.set_logger(mine)
    agent.learn(30, callback=lambda locals_, globals_: True)
    assert agent.logger is mine


def test_save_before_the_first_improvement(sb3, tmp_path):
    from stable_baselines3.common.callbacks import CheckpointCallback

    agent = PolicyIteration(GRIDWORLD, seed=0).learn(60, callback=CheckpointCallback(10, str(tmp_path)))
    assert agent.num_timesteps == 60


# -------------------------------------------------------------------------------------- files


def test_load_restores_everything(learnt, tmp_path):
    path = learnt.save(tmp_path / "agent")
    assert path == tmp_path / "agent" and [p.name for p in tmp_path.iterdir()] == ["agent"]
    again = PolicyIteration.load(path)
    assert_array_equal(again.predict(CELLS)[0], learnt.predict(CELLS)[0])
    assert_array_equal(again.q_values(CELLS), learnt.q_values(CELLS))
    assert_array_equal(again.relevances_, learnt.relevances_)
    assert_array_equal(again.incumbent_returns, learnt.incumbent_returns)
    assert_same(again.data, learnt.data)
    assert as_text(again.history) == as_text(learnt.history)
    assert again.episodes == learnt.episodes
    names = "gamma seed num_timesteps noise_share action_correlation subset_size refit_every reselect_kernel"
    for name in names.split():
        assert getattr(again, name) == getattr(learnt, name), name
    again.save(tmp_path / "copy")
    assert everything(PolicyIteration.load(tmp_path / "copy")) == everything(learnt)


def test_load_restores_every_parameter(tmp_path):
    options: dict[str, Any] = dict(
        gamma=0.7, seed=3, action_correlation=0.1, noise_share=0.02, subset_size=9, refit_every=7, reselect_kernel=False
    )
    PolicyIteration(Clock(), **options).learn(20).save(tmp_path / "agent")
    again = PolicyIteration.load(tmp_path / "agent")
    for name, value in options.items():
        assert getattr(again, name) == value, name
    params = again.estimator.get_params()
    assert params["action_correlation"] == 0.1 and params["noise_share"] == 0.02 and params["subset_size"] == 9


def test_load_then_learn(model_free, tmp_path):
    learnt = model_free
    path = learnt.save(tmp_path / "agent")
    agent = PolicyIteration.load(path, env=GRIDWORLD).learn(150, reset_num_timesteps=False)
    assert agent.num_timesteps == 550 == agent.data.n_transitions
    assert [i.n_transitions for i in agent.history[:8]] == [25, 50, 75, 175, 275, 375, 400, 500]
    assert_array_equal(agent.data.states[:300], learnt.data.states[:300])
    assert [made for made, _ in agent.episodes] == sorted(made for made, _ in agent.episodes)
    with pytest.raises(ValueError, match="no environment to learn in") as error:
        PolicyIteration.load(path).learn(10)
    one_line(error)


@pytest.mark.parametrize(
    "reset_num_timesteps",
    [True, False],
)
def test_load_then_learn_is_reproducible(learnt, tmp_path, reset_num_timesteps):
    path = learnt.save(tmp_path / "agent")
    one, other = (
        PolicyIteration.load(path, env=GRIDWORLD).learn(60, reset_num_timesteps=reset_num_timesteps) for _ in range(2)
    )
    assert everything(one) == everything(other)


def test_load_restores_the_incumbent_with_its_episodes(tmp_path):
    agent = PolicyIteration(GRIDWORLD, seed=0, model=None).learn(60)
    incumbent, start = PolicyRecord(PolicyIteration(GRIDWORLD, seed=1, model=None).learn(40).q), np.array([1.0, 1.0])
    newest = agent.pool.newest_q
    assert newest is not None
    for _ in range(3):
        agent.pool.add_episode(PolicyRecord(newest.sample), Episode(-5.0, start, False))
    for total in (50.0, 51.0, 52.0):
        agent.pool.add_episode(incumbent, Episode(total, start, False))
    for _ in range(5):
        agent.pool.add_episode(PolicyRecord(newest.sample), Episode(-5.0, start, False))
    assert agent.pool.incumbent is incumbent and agent.q is incumbent.q
    agent.pool.add_episode(incumbent, Episode(60.0, start, True))
    assert agent.incumbent_returns[-1] == 60.0
    again = PolicyIteration.load(agent.save(tmp_path / "agent"), env=GRIDWORLD)
    assert not np.allclose(agent.q_values(CELLS), newest.mean(CELLS))
    assert_array_equal(again.q_values(CELLS), agent.q_values(CELLS))
    assert_array_equal(again.incumbent_returns, agent.incumbent_returns)
    assert again.pool.newest_q is not None
    assert_array_equal(again.pool.newest_q.mean(CELLS), newest.mean(CELLS))
    assert_array_equal(again.pool.newest_q.sample(CELLS), newest.sample(CELLS))
    assert again.pool.newest_q.tolerance == newest.tolerance
    again.learn(50)


def test_load_restores_the_estimator(learnt, tmp_path):
    again = PolicyIteration.load(learnt.save(tmp_path / "agent"))
    for a, b in zip(
        again.estimator.q_values(CELLS, return_std=True), learnt.estimator.q_values(CELLS, return_std=True), strict=True
    ):
        assert_allclose(a, b, rtol=1e-6)


def test_load_restores_the_returns_of_the_newest_policy(tmp_path):
    agent = PolicyIteration(GRIDWORLD, seed=0).learn(60)
    agent.pool.incumbent = agent.pool.newest
    agent.pool.newest.episodes = [Episode(total, np.array([1.0, 1.0]), False) for total in (-9.0, -8.0, -7.0)]
    agent.pool.newest.n_before = 2
    assert agent.incumbent_returns.tolist() == [-7.0]
    assert PolicyIteration.load(agent.save(tmp_path / "agent")).incumbent_returns.tolist() == [-7.0]


def test_load_restores_candidates(tmp_path):
    agent = PolicyIteration(Pushed((2,)), seed=0, candidates=[[-1.0, 0.0], [0.0, 0.5], [2.0, 2.0]]).learn(60)
    again = PolicyIteration.load(agent.save(tmp_path / "agent"))
    states = np.arange(6.0)[:, None]
    assert again.predict(states)[0].shape == (6, 2)
    assert_array_equal(again.predict(states)[0], agent.predict(states)[0])
    assert again.predict(states)[0].dtype == np.float32
    again = PolicyIteration.load(tmp_path / "agent", env=Pushed((2,))).learn(30)
    assert again.data.n_transitions == 90


def test_load_with_an_environment_of_discrete_observations(tmp_path):
    agent = PolicyIteration(Numbered(), seed=0).learn(100)
    again = PolicyIteration.load(agent.save(tmp_path / "agent"), env=Numbered())
    assert_array_equal(again.predict(np.arange(6))[0], agent.predict(np.arange(6))[0])


def test_load_without_environment_takes_flattened_observations(tmp_path):
    agent = PolicyIteration(Numbered(), seed=0).learn(60)
    again = PolicyIteration.load(agent.save(tmp_path / "agent"))  # takes rows of numbers: one for each cell
    assert_array_equal(again.predict(np.eye(7)[:6])[0], agent.predict(np.arange(6))[0])


def _foreign(path: Any) -> None:
    GPTD("isotropic", objective="marginal_likelihood", n_restarts=0).fit(sample(MIXES["mixed"])).save(path)


def _newer(path: Any) -> None:
    PolicyIteration(Clock(), seed=0).learn(10).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header"))) | dict(version=99)
    with path.open("wb") as out:
        np.savez(out, header=np.array(json.dumps(header)), **arrays)


def _broken(path: Any, part: slice) -> None:
    PolicyIteration(Clock(), seed=0).learn(10).save(path)
    path.write_bytes(path.read_bytes()[part])


def _lacking(path: Any) -> None:
    PolicyIteration(Clock(), seed=0).learn(10).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    del arrays["buffer_states"]
    with path.open("wb") as out:
        np.savez(out, **arrays)


def _garbled(path: Any) -> None:
    PolicyIteration(Clock(), seed=0).learn(10).save(path)
    content = bytearray(path.read_bytes())
    for i in range(len(content) // 4, len(content) // 2, 7):
        content[i] ^= 0xFF
    path.write_bytes(bytes(content))


def _arrays(path: Any) -> None:
    with path.open("wb") as out:
        np.savez(out, x=np.arange(3))


FILES: dict[str, Any] = {
    "text": lambda path: path.write_text("hello\nworld"),
    "empty": lambda path: path.write_bytes(b""),
    "arrays": _arrays,
    "another estimator": _foreign,
    "newer version": _newer,
    "cut": partial(_broken, part=slice(0, 900)),
    "beheaded": partial(_broken, part=slice(300, None)),
    "garbled": _garbled,
    "lacking": _lacking,
}


@pytest.mark.parametrize("name", FILES)
def test_load_refuses_other_files(name, tmp_path):
    path = tmp_path / "agent.npz"
    FILES[name](path)
    with pytest.raises(ValueError, match=r"agent\.npz does not hold an agent as PolicyIteration\.save") as error:
        PolicyIteration.load(path)
    one_line(error)


def test_load_refuses_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere") as error:
        PolicyIteration.load(tmp_path / "nowhere")
    one_line(error)


def test_load_runs_no_code(tmp_path):
    """Nothing in them is unpickled."""
    path = tmp_path / "agent"
    with path.open("wb") as out:
        np.savez(out, allow_pickle=True, header=np.array([print], dtype=object))
    with pytest.raises(ValueError, match="does not hold an agent") as error:
        PolicyIteration.load(path)
    one_line(error)


# -------------------------------------------------------------------------------------- bad input


class Image(Corridor):
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)


class Levers(Corridor):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([2, 3])


BAD_ARGUMENTS: dict[str, tuple[Any, type[Exception], str]] = {
    "gamma 1": (lambda: PolicyIteration(GRIDWORLD, gamma=1.0), ValueError, r"gamma must lie in \[0, 1\); got 1"),
    "gamma < 0": (lambda: PolicyIteration(GRIDWORLD, gamma=-0.1), ValueError, r"gamma must lie in \[0, 1\); got -0.1"),
    "gamma nan": (lambda: PolicyIteration(gamma=np.nan), ValueError, r"gamma must lie in \[0, 1\); got nan"),
    "noise": (lambda: PolicyIteration(noise_share=0.0), ValueError, "noise_share must be positive"),
    "rho": (lambda: PolicyIteration(action_correlation=1.0), ValueError, r"action_correlation must lie in \[0, 1\)"),
    "subset": (lambda: PolicyIteration(subset_size=0), ValueError, "subset_size must be a whole number of at least 1"),
    "refit": (lambda: PolicyIteration(refit_every=-2), ValueError, "refit_every must be a whole number"),
    "unknown id": (lambda: PolicyIteration("Nowhere-v0"), ValueError, "cannot make environment 'Nowhere-v0'"),
    "no env": (
        lambda: PolicyIteration(3),
        TypeError,
        "expected an environment id, a function that makes one, a gymnasium Env .* got int",
    ),
    "box": (lambda: PolicyIteration("Pendulum-v1"), ValueError, "is continuous: give candidates"),
    "candidates outside": (
        lambda: PolicyIteration("Pendulum-v1", candidates=[[0.0], [3.0]]),
        ValueError,
        r"candidate \[3\.\] is outside Box",
    ),
    "candidates nan": (
        lambda: PolicyIteration("Pendulum-v1", candidates=[[0.0], [np.nan]]),
        ValueError,
        r"candidate \[nan\] is outside Box",
    ),
    "candidates flat": (
        lambda: PolicyIteration("Pendulum-v1", candidates=[-1.0, 1.0]),
        ValueError,
        r"candidates must be two or more actions of shape \(1,\); got \(2,\)",
    ),
    "one candidate": (
        lambda: PolicyIteration("Pendulum-v1", candidates=[[1.0]]),
        ValueError,
        "candidates must be two or more actions",
    ),
    "candidates discrete": (
        lambda: PolicyIteration(GRIDWORLD, candidates=[[0.0], [1.0]]),
        ValueError,
        r"candidates are for continuous actions; the action space is Discrete\(2\)",
    ),
    "levers": (
        lambda: PolicyIteration(Levers()),
        ValueError,
        r"MultiDiscrete\(\[2 3\]\) are not supported: expected",
    ),
    "images": (lambda: PolicyIteration(Image()), CollectionError, "image observations .* are not supported"),
    "no steps": (lambda: PolicyIteration(Clock()).learn(0), ValueError, "total_timesteps must be a whole .* got 0"),
    "negative": (lambda: PolicyIteration(Clock()).learn(-5), ValueError, "total_timesteps must be a whole .* got -5"),
    "float": (lambda: PolicyIteration(Clock()).learn(1e3), ValueError, r"total_timesteps must be .* got 1000\.0"),  # type: ignore[arg-type]
    "learn nowhere": (lambda: PolicyIteration().learn(10), ValueError, "there is no environment to learn in"),
    "predict": (lambda: PolicyIteration(Clock()).predict([0.0] * 3), ValueError, "not learnt anything yet: call learn"),
    "q_values": (lambda: PolicyIteration(Clock()).q_values([[0.0]]), ValueError, "not learnt anything yet: call learn"),
    "relevances": (lambda: PolicyIteration(Clock()).relevances_, ValueError, "not learnt anything yet: call learn"),
    "data": (lambda: PolicyIteration(Clock()).data, ValueError, "not seen anything yet: call learn first"),
    "save": (lambda: PolicyIteration(Clock()).save("nowhere"), ValueError, "not learnt anything yet: call learn"),
    "evaluate": (lambda: PolicyIteration().evaluate(), ValueError, "there is no environment to evaluate in"),
    "no actions": (
        lambda: PolicyIteration().learn_offline(sample(MIXES["mixed"])),
        ValueError,
        "the data have no actions",
    ),
    "floats": (
        lambda: PolicyIteration().learn_offline(collect(Pushed(), n_transitions=5, gamma=0.9, seed=0)),
        ValueError,
        "the actions of the data are continuous: give candidates",
    ),
    "unknown action": (
        lambda: PolicyIteration(Corridor()).learn_offline(collect(Clock(1), n_transitions=20, gamma=0.9, seed=0)),
        ValueError,
        "unknown action 2: there are 2, from 0",
    ),
    "other actions": (
        lambda: PolicyIteration(Clock()).learn(5).set_env(Corridor()),
        ValueError,
        "the environment has 2 actions, but the agent learnt with 3",
    ),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_raise_one_line(name):
    do, kind, message = BAD_ARGUMENTS[name]
    with pytest.raises(kind, match=message) as error:
        do()
    one_line(error)


def test_learn_offline_refuses_arrays():
    with pytest.raises(TypeError, match="Trajectories"):
        PolicyIteration().learn_offline(np.ones((5, 2)))  # type: ignore[arg-type]


def test_learn_offline_refuses_data_of_another_width(random_data):
    agent = PolicyIteration(seed=0, subset_size=20).learn_offline(random_data)
    wide = collect(gym.make(GRIDWORLD, n_irrelevant=3), n_transitions=20, gamma=0.99, seed=0)
    with pytest.raises(ValueError, match=r"\b2\b.*\b4\b"):
        agent.learn_offline(wide)
    assert agent.data.n_transitions == 500


def test_set_env_refuses_observations_of_another_width():
    agent = PolicyIteration(GRIDWORLD, seed=0).learn(30)
    with pytest.raises(ValueError, match="observations"):
        agent.set_env(gym.make(GRIDWORLD, n_irrelevant=3))


def test_learn_warns_if_no_episode_ends():
    agent = PolicyIteration(Corridor(limit=None, goal=-1), seed=0)
    message = "no episode ended within 60 steps.*Give the environment a time limit"
    with pytest.warns(UserWarning, match=message) as caught:
        agent.learn(60)
    (warning,) = caught
    assert "\n" not in str(warning.message)
    assert warning.filename == __file__
    assert agent.predict([2.0])[0] in (0, 1)
    assert agent.data.lengths.tolist() == [61] and not agent.data.terminated.any()
    assert agent.episodes == [] and len(agent.incumbent_returns) == 0
    assert isinstance(agent.plot_history(), Figure)


FAULTS = {
    "nan": "the environment returned reward nan: not finite",
    "inf": "the environment returned reward inf: not finite",
    "observation": "the environment returned observation nan: not finite",
    "crash": "the environment failed: RuntimeError: the motor is hot",
}


@pytest.mark.parametrize("n_before", [3, 119, 200])
@pytest.mark.parametrize("fault", FAULTS)
def test_learn_keeps_transitions_before_a_fault(fault, n_before, tmp_path):
    agent = PolicyIteration(Corridor(**{fault: n_before + 1}), seed=0)
    with pytest.raises(LearningError, match=FAULTS[fault]) as error:
        agent.learn(400)
    assert f"(step {n_before})" in one_line(error)
    assert isinstance(error.value, ValueError)
    assert agent.num_timesteps == agent.data.n_transitions == n_before
    assert agent.history[-1].n_transitions == n_before  # it learnt from all of it
    assert np.isfinite(agent.data.states).all() and np.isfinite(agent.data.rewards).all()
    states = np.arange(6.0)[:, None]
    if n_before > 100:
        assert_array_equal(agent.predict(states)[0], np.ones(6))
    again = PolicyIteration.load(agent.save(tmp_path / "agent"), env=Corridor())
    assert_array_equal(again.q_values(states), agent.q_values(states))
    assert again.learn(100).data.n_transitions == n_before + 100


@pytest.mark.parametrize("fault", FAULTS)
def test_learn_keeps_nothing_of_a_fault_in_the_first_step(fault):
    agent = PolicyIteration(Corridor(**{fault: 1}), seed=0)
    with pytest.raises(LearningError, match=FAULTS[fault]) as error:
        agent.learn(50)
    assert "(step 0)" in one_line(error)
    assert agent.history == [] and agent.num_timesteps == 0
    with pytest.raises(ValueError, match="not learnt anything yet"):
        agent.predict([1.0])
    agent.set_env(Corridor())
    assert agent.learn(50).data.n_transitions == 50


@pytest.mark.parametrize("mode", AutoresetMode)
def test_learn_reports_a_fault_in_one_of_several_environments(mode):
    env = SyncVectorEnv([Corridor, partial(Corridor, nan=41), Corridor], autoreset_mode=mode)
    agent = PolicyIteration(env, seed=0)
    with pytest.raises(LearningError, match="returned reward nan: not finite"):
        agent.learn(400)
    assert 90 < agent.num_timesteps < 140 and agent.data.n_transitions == agent.num_timesteps
    assert agent.history[-1].n_transitions == agent.num_timesteps
    assert np.isfinite(agent.data.rewards).all()


@pytest.mark.parametrize("number", [1, 2, 15])
def test_learn_refuses_a_first_observation_that_is_not_finite(number):
    agent = PolicyIteration(Corridor(reset=number), seed=0)
    with pytest.raises(LearningError, match="observation nan") as error:
        agent.learn(400)
    one_line(error)
    assert number == 1 or np.isfinite(agent.data.states).all()


def test_learn_reports_an_error_of_several_lines_in_one():
    class Verbose(Corridor):
        def step(self, action):
            raise RuntimeError("the motor\nis hot")

    with pytest.raises(LearningError, match="the motor") as error:
        PolicyIteration(Verbose(), seed=0).learn(10)
    one_line(error)


def test_learn_keeps_transitions_before_an_interruption():
    class Interrupted(Corridor):
        def step(self, action):
            if self.n_steps == 130:
                raise KeyboardInterrupt
            return super().step(action)

    agent = PolicyIteration(Interrupted(), seed=0)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(400)
    assert agent.num_timesteps == 130 == agent.history[-1].n_transitions
    assert agent.predict([3.0])[0] == 1


def test_seed_none_draws_a_seed():
    one, other = (PolicyIteration(GRIDWORLD, seed=None) for _ in range(2))
    assert one.seed != other.seed


def test_learn_reports_a_reset_that_fails():
    class Locked(Corridor):
        def reset(self, *, seed=None, options=None):
            raise RuntimeError("no key")

    with pytest.raises(LearningError, match="no key") as error:
        PolicyIteration(Locked(), seed=0).learn(10)
    one_line(error)


def test_candidates_of_an_integer_box():
    class Whole(Corridor):
        action_space: Any = spaces.Box(0, 5, (1,), np.int64)

        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(0, 5, (1,), np.int64)

        def right(self, action: Any) -> bool:
            return bool(action[0] > 3)

    agent = PolicyIteration(Whole(), seed=0, candidates=[[1], [4]]).learn(150)
    assert_array_equal(agent.predict(np.arange(6.0)[:, None])[0], np.full((6, 1), 4))
    assert agent.estimator.greedy_actions([[2.0]]) == 1
