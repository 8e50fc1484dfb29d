"""Policy iteration in a model of the dynamics: planning, trials, what is served, and models that are wrong."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.agents import PolicyIteration
from gptd_rl.agents.lookahead import Lookahead
from gptd_rl.agents.planning import Planning, Setting, planning_from_dict
from gptd_rl.agents.planning_states import StateCounts
from gptd_rl.agents.policy_pool import Episode, NewestQ, PolicyRecord
from gptd_rl.agents.trial import simulated_returns, start_states
from gptd_rl.agents.trial_pool import TrialErrors, TrialPool
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.rollouts.collect import collect
from tests.mdps import Gridworld

GRIDWORLD = "gptd_rl/LatentGridworld-v0"
CELLS = Gridworld().cells[Gridworld().cells[:, 0] != 6]
TOWARDS_GOAL = (CELLS[:, 0] < 6).astype(int)


@pytest.fixture(scope="module")
def learnt() -> PolicyIteration:
    """After 400 steps; not to be changed."""
    return PolicyIteration(GRIDWORLD, seed=0).learn(400)


class Numbered:
    """A policy that is only a name in these tests."""

    def __init__(self, actions: int = 0) -> None:
        self.actions = actions

    def __call__(self, states: Any) -> Any:
        return np.eye(2)[np.full(len(states), self.actions)]

    def greedy(self, states: Any) -> Any:
        return np.full(len(states), self.actions)


def record(trial: float, *differences: float, n_transitions: int = 1) -> PolicyRecord:
    episodes = [Episode(trial + d, np.zeros(2), True, d) for d in differences]
    known = np.array(differences)
    return PolicyRecord(Numbered(), episodes, trial_return=trial, n_transitions=n_transitions, differences=known)


# -------------------------------------------------------------------------------------- learning


def test_learn_serves_the_optimal_policy_of_the_gridworld_after_300_steps():
    agent = PolicyIteration(GRIDWORLD, seed=1).learn(300)
    assert np.mean(agent.predict(CELLS)[0] == TOWARDS_GOAL) > 0.97
    assert agent.pool.trusts_model  # type: ignore[attr-defined]


def test_learn_in_a_slippery_gridworld():
    env = gym.make(GRIDWORLD, slip=0.2)
    agent = PolicyIteration(env, seed=0).learn(600)
    assert np.mean(agent.predict(CELLS)[0] == TOWARDS_GOAL) > 0.95
    assert isinstance(agent.dynamics_, DynamicsModel) and agent.dynamics_.noise_[0] > 0.3  # x' is noisy, too


class NoisyPendulum(gym.ActionWrapper[Any, Any, Any]):
    """Five torques, and noise on top."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.action_space = spaces.Discrete(5)

    def action(self, action: Any) -> Any:
        torque = np.linspace(-2.0, 2.0, 5)[action] + 0.3 * self.np_random.standard_normal()
        return np.array([np.clip(torque, -2.0, 2.0)], dtype=np.float32)


def test_learn_in_a_noisy_pendulum():
    """The return of a random policy is −1 200, that of good ones without noise −150."""
    agent = PolicyIteration(NoisyPendulum(), seed=0).learn(750)
    assert agent.evaluate(10, seed=1).mean() > -300.0
    assert isinstance(agent.dynamics_, DynamicsModel)
    assert 0.02 < agent.dynamics_.noise_[2] < 0.06  # 3 · 0.3 · dt = 0.045, less where the torque is clipped
    assert agent.dynamics_.noise_[0] < 0.01


def test_served_says_which_policy_and_why(learnt):
    served = learnt.served_
    assert served.q is learnt.q and 200 <= served.n_transitions <= 400
    assert -4.0 < served.trial_return < -2.0  # the optimum is −3 on average
    assert "simulated return" in served.reason and "\n" not in served.reason
    assert_array_equal(served.measured_returns, learnt.incumbent_returns)
    assert PolicyIteration(GRIDWORLD, seed=0, model=None).learn(100).served_.trial_return is not None


def test_history_says_what_the_model_did(learnt):
    last = learnt.history[-1]
    assert last.trial_return == pytest.approx(learnt.served_.trial_return)
    assert 0.0 <= last.model_error < 0.1 and np.isnan(learnt.history[0].model_error)
    assert 0.0 <= last.exploration <= 1.0
    assert len(learnt.model_errors_) == len(learnt.history) - 1
    titles = [ax.get_title() for ax in learnt.plot_history().axes]
    assert "One-step error of the model" in titles


def test_asking_an_agent_changes_nothing():
    asked: list[Any] = []
    plain = PolicyIteration(GRIDWORLD, seed=0).learn(260)
    curious = PolicyIteration(GRIDWORLD, seed=0)

    def ask(*_: Any) -> bool:
        asked.append(curious.predict([2.0, 5.0]))
        return True

    curious.learn(260, callback=ask)
    assert len(asked) == 260
    assert_array_equal(plain.data.states, curious.data.states)
    assert_array_equal(plain.q_values(CELLS), curious.q_values(CELLS))


def test_load_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    agent = PolicyIteration(GRIDWORLD, seed=0).learn(300)
    again = PolicyIteration.load(agent.save(tmp_path / "agent"), env=GRIDWORLD)
    assert_array_equal(again.predict(CELLS)[0], agent.predict(CELLS)[0])
    assert again.served_.reason == agent.served_.reason
    for one in (agent, again):
        one.learn(200, reset_num_timesteps=False)
    assert_array_equal(again.data.states, agent.data.states)
    assert_allclose(again.q_values(CELLS), agent.q_values(CELLS), rtol=1e-9)
    assert [i.trial_return for i in again.history] == pytest.approx([i.trial_return for i in agent.history])


def test_save_before_the_first_improvement(tmp_path):
    agent = PolicyIteration(GRIDWORLD, seed=0)
    agent.learn(60, callback=lambda loc, _: loc["self"].num_timesteps < 50)
    again = PolicyIteration.load(agent.save(tmp_path / "agent"), env=GRIDWORLD)
    assert_array_equal(again.predict(CELLS)[0], agent.predict(CELLS)[0])


def test_lookahead_acts_and_cannot_be_saved(tmp_path):
    planning = Planning(lookahead=True, n_rounds=1)
    agent = PolicyIteration(GRIDWORLD, seed=0, planning=planning).learn(250)
    assert isinstance(agent.q, Lookahead)
    assert np.mean(agent.predict(CELLS)[0] == TOWARDS_GOAL) > 0.9
    with pytest.raises(ValueError, match="lookahead cannot be saved"):
        agent.save(tmp_path / "agent")


def test_planning_from_dict_is_the_inverse_of_asdict():
    from dataclasses import asdict

    planning = Planning(settings=(Setting(0.2, 1e-2),), states=StateCounts(rollout=7), trial=False)
    assert planning_from_dict(asdict(planning)) == planning


@pytest.mark.parametrize("model", ["x", "GP", 3, True])
def test_unknown_models_are_refused(model):
    with pytest.raises(ValueError, match="model must be 'gp' or None") as error:
        PolicyIteration(GRIDWORLD, model=model)
    assert "\n" not in str(error.value)


# -------------------------------------------------------------------------------------- models that are wrong


class Unpredictable(gym.Env):
    """Action 1 earns 1, action 0 nothing; the state jumps anywhere, by a rule that no smooth model finds."""

    observation_space: Any = spaces.Box(0.0, 1.0, (2,), np.float64)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        self.x = self.np_random.random(2)
        return self.x, {}

    def step(self, action):
        self.n += 1
        self.x = np.modf(np.array([1e4, 1.3e4]) * self.x + 0.1)[0]
        return self.x, float(action), False, self.n >= 20, {}


def test_learn_is_not_worse_than_without_a_model_where_none_fits():
    agent = PolicyIteration(Unpredictable(), seed=0).learn(600)
    assert np.mean(agent.evaluate(5, seed=1)) == 20.0


class Idle(gym.Env):
    """A walk on a line that nothing comes of."""

    observation_space: Any = spaces.Box(-9.0, 9.0, (1,), np.float64)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n, self.x = 0, self.np_random.uniform(-1.0, 1.0, 1)
        return self.x, {}

    def step(self, action):
        self.n, self.x = self.n + 1, np.clip(self.x + 0.1 * (2 * action - 1), -9.0, 9.0)
        return self.x, 0.0, False, self.n >= 50, {}


@pytest.mark.parametrize(("limit", "trusts"), [(250, False), (1000, True)])
def test_learn_explores_without_the_model_if_nothing_was_found(monkeypatch, limit, trusts):
    monkeypatch.setattr("gptd_rl.agents.policy_iteration.MAX_UNIFORM", limit)
    agent = PolicyIteration(Idle(), seed=0).learn(300)
    assert agent.dynamics_ is not None
    assert agent.pool.trusts_model == trusts  # type: ignore[attr-defined]


def test_learn_does_not_model_categories():
    agent = PolicyIteration("FrozenLake-v1", seed=0).learn(300)
    assert agent.model == "gp" and agent.dynamics_ is None
    assert agent.predict(0)[0] in range(4)


def test_a_pool_without_trust_judges_by_measured_returns():
    pool = TrialPool()
    good, bad = record(10.0), record(20.0)
    pool.trusts_model = True
    pool.judge([good, bad], n_kept=2)
    assert pool.incumbent is bad
    pool.distrust()
    assert pool.incumbent is pool.newest and pool.records == []


# -------------------------------------------------------------------------------------- trials


def test_judge_takes_the_best_trial_if_the_model_is_right():
    pool = TrialPool()
    policies = [record(t, n_transitions=i) for i, t in enumerate((1.0, 3.0, 2.0), 1)]
    pool.judge(policies, n_kept=2)
    assert pool.incumbent is policies[1] and pool.records == [policies[1], policies[2]]
    assert pool.trial_errors == TrialErrors()


def test_judge_wants_measured_episodes_if_trials_were_wrong():
    pool = TrialPool()
    tested = record(10.0, 0.0, 0.0, 0.0, n_transitions=1)
    pool.compared, pool.return_range = [(1, 0.0)] * 3 + [(2, -80.0), (3, -90.0), (4, -85.0)], (-75.0, 10.0)
    new = record(15.0, n_transitions=5)
    pool.judge([tested, new], n_kept=1)
    assert pool.trial_errors.between > 40.0**2
    assert pool.incumbent is tested and new.score < tested.score
    pool.compared = [(n, 0.1) for n in range(6)]
    pool.judge([tested, new], n_kept=1)
    assert pool.incumbent is new  # five more than the other, and trials are right


def test_judge_keeps_the_incumbent_unless_another_is_credibly_better():
    pool, rng = TrialPool(), np.random.default_rng(0)
    first, second = record(0.0, n_transitions=1), record(0.0, n_transitions=2)
    pool.judge([first], n_kept=1)
    noise = rng.standard_normal(100)
    first.trial_returns, second.trial_returns, second.trial_return = noise, rng.standard_normal(100), 0.05
    pool.judge([first, second], n_kept=1)
    assert pool.incumbent is first and first in pool.records
    second.trial_returns = noise + 0.05  # the same states, always a little better
    pool.judge([first, second], n_kept=1)
    assert pool.incumbent is second


def test_judge_takes_the_newer_of_two_policies_with_the_same_returns():
    pool, same = TrialPool(), np.zeros(10)
    old, new = record(0.0, n_transitions=1), record(0.0, n_transitions=2)
    old.trial_returns, new.trial_returns = same, same
    pool.judge([old], n_kept=1)
    pool.judge([old, new], n_kept=1)
    assert pool.incumbent is new
    pool.judge([old, new], n_kept=1)
    assert pool.incumbent is new


def test_trials_that_are_always_far_off_are_uninformative():
    pool = TrialPool()
    pool.compared, pool.return_range = [(n, -100.0) for n in range(5)], (0.0, 4.0)
    assert pool.trial_errors.is_uninformative
    pool.return_range = (-500.0, 4.0)  # policies differ far more than trials do from episodes
    assert not pool.trial_errors.is_uninformative
    pool.compared, pool.return_range = [(n, 0.0) for n in range(5)], (0.0, 4.0)
    assert not pool.trial_errors.is_uninformative


def test_an_uninformative_model_is_asked_again_when_trials_agree_with_later_episodes():
    pool = TrialPool()
    pool.return_range, pool.newest_q = (0.0, 4.0), NewestQ(Numbered(), Numbered(), 1.0)
    pool.compared = [(n, -100.0) for n in range(6)]
    pool.distrust()
    assert pool.trial_errors.is_uninformative
    pool.simulate = lambda record, start: 1.0
    for n in range(5):
        pool.add_episode(record(1.0, n_transitions=n), Episode(1.0, np.zeros(1), True))
    assert not pool.trial_errors.is_uninformative


def test_judge_keeps_policies_with_episodes_on_trial():
    pool = TrialPool()
    tested = record(0.0, 0.0, n_transitions=1)
    pool.judge([record(5.0), record(4.0), tested], n_kept=2)
    assert tested in pool.records and len(pool.records) == 3


@pytest.fixture(scope="module")
def model() -> DynamicsModel:
    data = collect(GRIDWORLD, n_transitions=600, gamma=0.99, seed=0)
    return DynamicsModel(bounds=(np.ones(2), np.full(2, 11.0))).fit(data)


def test_simulated_returns_are_those_of_the_environment(model):
    class Right:
        def __call__(self, states: Any) -> Any:
            return np.column_stack([np.zeros(len(states)), np.ones(len(states))])

        def greedy(self, states: Any) -> Any:
            return np.ones(len(states), dtype=np.int64)

    starts = np.array([[1.0, 5.0], [4.0, 2.0], [5.0, 11.0], [8.0, 6.0]])
    returns, trial = simulated_returns(model, [Right(), Numbered(0)], [starts, starts], 30, np.random.default_rng(0))
    assert_array_equal(returns[0], [-5.0, -2.0, -1.0, -30.0])  # from the right half it never arrives
    assert_array_equal(returns[1], [-30.0, -30.0, -30.0, -2.0])
    assert trial.terminated.tolist() == [True, True, True, False, False, False, False, True]


def test_start_states_are_near_those_that_were_seen():
    pendulum = DynamicsModel().fit(collect("gptd_rl/PendulumSwingUp-v0", n_transitions=60, gamma=0.99, seed=0))
    seen = np.array([[2.0, 3.0], [3.0, 3.0], [2.5, 3.0]])
    x = start_states(pendulum, seen, 500, np.random.default_rng(0))
    assert x.shape == (500, 2) and (x[:, 1] == 3.0).all()
    assert 1.0 <= x[:, 0].min() < 2.0 and 3.0 < x[:, 0].max() < 4.0


def test_start_states_with_few_values_are_those_that_were_seen(model):
    seen = np.array([[2.0, 3.0], [3.0, 3.0]])
    x = start_states(model, seen, 500, np.random.default_rng(0))
    assert_array_equal(np.unique(x, axis=0), seen)
