"""True values: of the gridworld in closed form, of the pendulum on a grid."""

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from gptd_rl.agents import (
    OptimalPendulum,
    TowardsMiddle,
    policy_value,
    solve_pendulum,
)
from gptd_rl.agents.reference import bellman, cache, dynamic_programming
from gptd_rl.agents.reference.grid import GridValue, PendulumGrid
from gptd_rl.envs import LatentGridworld, PendulumSwingUp, register_environments

register_environments()

COARSE = (100, 100)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GPTD_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def optimal() -> OptimalPendulum:
    return solve_pendulum(shape=COARSE, cache=False)


def returns(task, policy, states, gamma, n_steps, seed=0):
    """Discounted returns of one rollout from each state, and how many of them ended."""
    rng = np.random.default_rng(seed)
    total, running = np.zeros(len(states)), np.ones(len(states), dtype=bool)
    for t in range(n_steps):
        actions = policy(task.observe(states))
        states, rewards, terminated = task.step(states, actions, rng)
        total += running * gamma**t * rewards
        running &= ~terminated
    return total, np.count_nonzero(~running)


def batched(policy):
    policy.batched = True
    return policy


# The gridworld


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize(
    "task", [LatentGridworld(), LatentGridworld(size=5, n_irrelevant=20, step_reward=-2.0)], ids=repr
)
def test_towards_middle_value_is_the_return_of_the_policy(task, gamma):
    agent = TowardsMiddle(task)
    states = task.sample_states(200, np.random.default_rng(0))
    assert set(np.unique(states[:, 0])) == set(range(1, task.size + 1)) - {task.middle}
    total, n_ended = returns(task, lambda o: agent.predict(o)[0], states, gamma, task.size)
    assert n_ended == 200
    assert_allclose(agent.value(task.observe(states), gamma), total, rtol=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_towards_middle_value_satisfies_the_bellman_equation_where_it_slips(gamma):
    task = LatentGridworld(size=7, slip=0.3, step_reward=-2.0)
    V = dict(zip(range(1, 8), TowardsMiddle(task).value([[x, 1.0] for x in range(1, 8)], gamma), strict=True))
    assert V[4] == 0
    for x in (1, 2, 3, 5, 6, 7):
        ahead, back = (x + 1, max(x - 1, 1)) if x < 4 else (x - 1, min(x + 1, 7))
        assert_allclose(V[x], -2 + gamma * (0.7 * V[ahead] + 0.3 * V[back]), rtol=1e-12)


def test_towards_middle_value_is_zero_in_the_middle():
    assert TowardsMiddle().value([[6.0, 1.0]], gamma=0.9) == 0


def test_towards_middle_predict_takes_one_or_many():
    agent, memory = TowardsMiddle(), object()
    actions, state = agent.predict(np.array([[1.0, 1.0], [7.0, 1.0]], dtype=np.float32), memory)
    assert_array_equal(actions, [1, 0])
    assert state is memory
    action, _ = agent.predict(np.array([1.0, 1.0]), deterministic=False)
    assert action.shape == ()
    env = gym.make("gptd_rl/LatentGridworld-v0")
    env.reset(options={"state": [5, 5]})
    assert env.step(agent.predict(np.array([5.0, 5.0]))[0])[2]


def test_towards_middle_refuses_bad_input():
    with pytest.raises(ValueError, match=r"with 2 entries, got an array of shape \(3,\)"):
        TowardsMiddle().predict([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"gamma: expected a number from 0 to 1, got 1\.1"):
        TowardsMiddle().value([[1.0, 2.0]], gamma=1.1)


# Interpolation


def test_interpolation_is_exact_for_bilinear_functions():
    grid = PendulumGrid(PendulumSwingUp(), (10, 7))
    states = grid.task.sample_states(500, np.random.default_rng(0))
    states = states[states[:, 0] < grid.points[-1, 0]]  # beyond, the circle closes
    angles, speeds = grid.points.T
    value = GridValue(grid, 1 + 2 * angles - speeds + 3 * angles * speeds, gamma=0.9)
    x, y = states.T
    assert_allclose(value.at(states), 1 + 2 * x - y + 3 * x * y, atol=1e-12)


def test_interpolation_goes_round_the_circle():
    grid = PendulumGrid(PendulumSwingUp(), (8, 3))
    last = grid.points[:, 0] == grid.points[-1, 0]
    halfway = np.array([[np.pi - np.pi / 8, 1.0]])
    assert_allclose(GridValue(grid, last.astype(float), 0.9).at(halfway), 0.5)
    assert_allclose(grid.interpolation(halfway).sum(axis=1), 1)


def test_interpolation_meets_the_points_and_the_limits():
    grid = PendulumGrid(PendulumSwingUp(goal_angle=1e-3), (9, 5))
    values = np.arange(45.0)
    assert_allclose(GridValue(grid, values, 0.9).at(grid.points), values, atol=1e-9)


def test_grid_value_is_zero_at_terminal_states(optimal):
    assert_array_equal(optimal.value([[0.0, 0.0], [0.1, -0.5]]), 0)
    assert (optimal.value([[0.11, 0.0], [0.0, 0.6]]) < 0).all()


# Linear systems


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99])
def test_bellman_solve_solves_the_equation(gamma):
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(30), size=30)
    transitions[:5] *= 0.5  # may end there
    rewards = rng.normal(size=30)
    expected = np.linalg.solve(np.eye(30) - gamma * transitions, rewards)
    values = bellman.solve(csr_array(transitions), rewards, gamma)
    assert_allclose(values, expected, atol=bellman.TOLERANCE)


@pytest.mark.parametrize("answer", [np.nan, 0.0, 1e30])
def test_bellman_solve_falls_back_to_sweeps(monkeypatch, answer):
    def fails(operator, residual, **_):
        return np.full_like(residual, answer), -10

    monkeypatch.setattr(bellman, "bicgstab", fails)
    test_bellman_solve_solves_the_equation(0.99)


# The optimal pendulum


def test_solve_pendulum_values_are_the_returns_of_the_policy(optimal):
    task = optimal.value.grid.task
    states = task.sample_states(300, np.random.default_rng(0))
    total, n_ended = returns(task, lambda o: optimal.predict(o)[0], states, 0.99, 120)
    assert n_ended == 300
    errors = np.abs(optimal.value(task.observe(states)) - total)
    assert np.median(errors) < 0.1
    assert np.mean(errors) < 0.5


def test_solve_pendulum_values_satisfy_the_optimality_equation(optimal):
    grid = optimal.value.grid
    alive = ~grid.task.is_terminal(grid.points)
    q = optimal.q_values(grid.task.observe(grid.points))
    assert_allclose(q.max(axis=1)[alive], optimal.value.values[alive], atol=1e-3)  # float32 seen


def test_solve_pendulum_values_are_symmetric(optimal):
    values = optimal.value.values.reshape(COARSE)
    mirrored = np.roll(values[::-1, ::-1], 1, axis=0)  # -pi stays, the others change sign
    assert_allclose(values, mirrored, atol=1e-5)


def test_solve_pendulum_values_converge_with_the_grid():
    states = PendulumSwingUp().sample_states(1000, np.random.default_rng(0))
    fine = solve_pendulum(shape=(240, 240), cache=False).value.at(states)
    errors = [np.abs(solve_pendulum(shape=(n, n), cache=False).value.at(states) - fine).mean() for n in (30, 60, 120)]
    assert errors[0] > 1.5 * errors[1] > 1.5**2 * errors[2]


def test_optimal_pendulum_predict_takes_one_or_many(optimal):
    observations = np.array([[0.3, 0.0], [-0.3, 0.0], [-3.1, 0.0]], dtype=np.float32)
    actions, state = optimal.predict(observations, state="memory", episode_start=None)
    assert_array_equal(actions[:2], [0, 4])  # back up, with all there is
    assert state == "memory"
    action, _ = optimal.predict(observations[0], deterministic=True)
    assert action.shape == ()
    assert action == actions[0]
    env = gym.make("gptd_rl/PendulumSwingUp-v0")
    observation, _ = env.reset(seed=0)
    terminated = truncated = False
    while not (terminated or truncated):
        observation, _, terminated, truncated, _ = env.step(optimal.predict(observation)[0])
    assert terminated


def test_solve_pendulum_with_trigonometric_observations_and_continuous_torques(optimal):
    env = gym.make_vec("gptd_rl/PendulumSwingUpContinuous-v0", 4, observation="cos_sin")
    agent = solve_pendulum(env, shape=COARSE, n_torques=5, cache=False)
    assert_allclose(agent.value.values, optimal.value.values, atol=1e-9)
    observations, _ = env.reset(seed=0)
    actions, _ = agent.predict(observations)
    assert actions in env.action_space
    assert agent.predict(observations[0])[0] in env.single_action_space
    angles = np.arctan2(observations[:, 1], observations[:, 0])
    seen = np.stack([angles, observations[:, 2]], axis=1)
    assert_allclose(agent.value(observations), optimal.value(seen), atol=1e-4)


# Values of any policy


def test_policy_value_of_the_optimal_policy_is_optimal(optimal):
    value = policy_value(optimal, shape=COARSE)
    assert_allclose(value.values, optimal.value.values, atol=1e-2)


def test_policy_value_never_exceeds_the_optimum(optimal):
    for policy in (None, lambda o: 2, lambda o: 4 * int(o[1] > 0)):
        value = policy_value(policy, shape=(50, 50))
        best = solve_pendulum(shape=(50, 50), cache=False).value
        assert (value.values <= best.values + 1e-5).all()


def pump(observations):
    """Torque along the speed, which brings it up but not to rest."""
    return np.where(observations[..., 1] > 0, 4, 0)


def test_policy_value_takes_every_form_of_a_policy():
    class Predicts:
        def predict(self, observation, deterministic):
            return pump(observation), None

    def probabilities(observations):
        return np.eye(5)[pump(observations)]

    first, *others = (
        policy_value(policy, shape=(50, 50)).values
        for policy in (
            Predicts(),
            lambda o: int(pump(o)),
            batched(lambda o: pump(o)),
            probabilities,
            batched(lambda o: probabilities(o)),
        )
    )
    for other in others:
        assert_allclose(other, first, atol=2 * bellman.TOLERANCE)
    continuous = PendulumSwingUp(n_torques=None)
    policy = batched(lambda o: pump(o)[:, None] / 2 - 1)
    assert_allclose(policy_value(policy, continuous, shape=(50, 50)).values, first, atol=1e-5)


def steer(observations):
    """A policy that works: raise the energy, then hold against gravity."""
    x, y = observations.astype(np.float64).T
    energy = y**2 / 2 + 9.81 * (np.cos(x) - 1)
    swing = -5 * np.where(y < 0, -1, 1) * np.sign(energy)
    torques = np.where(np.abs(x) < 0.5, -25 * x - 6 * y, swing)
    return np.clip(np.round(torques / 2.5), -2, 2).astype(int) + 2


def test_policy_value_is_the_return_of_rollouts():
    task = PendulumSwingUp()
    states = task.sample_states(300, np.random.default_rng(0))
    total, n_ended = returns(task, steer, states, 0.95, 400)
    assert n_ended == 300
    errors = [np.abs(policy_value(batched(steer), gamma=0.95, shape=(n, n)).at(states) - total) for n in (50, 100, 200)]
    assert np.median(errors[-1]) < 0.05
    assert errors[0].mean() > errors[1].mean() > errors[2].mean()


@pytest.mark.parametrize("n_torques", [5, None])
def test_policy_value_averages_over_random_actions(n_torques):
    task, n = PendulumSwingUp(n_torques=n_torques), 1000
    states = np.array([[-np.pi, 0.0], [0.2, 0.0], [1.0, -3.0]])
    value = policy_value(None, task, gamma=0.9, shape=(200, 200))
    actions = gym.vector.utils.batch_space(task.action_space, 3 * n)
    actions.seed(0)
    repeated = np.repeat(states, n, axis=0)
    total, _ = returns(task, lambda _: actions.sample(), repeated, 0.9, 80)
    assert_allclose(value.at(states), total.reshape(3, n).mean(axis=1), atol=0.15)


def test_policy_value_samples_a_stochastic_policy():
    class Coin:
        rng = np.random.default_rng(0)

        def predict(self, observation, deterministic):
            assert not deterministic
            return self.rng.integers(5, size=len(observation)), None

    sampled = policy_value(Coin(), gamma=0.9, shape=(50, 50), deterministic=False, n_samples=50)
    exact = policy_value(None, gamma=0.9, shape=(50, 50))
    assert np.abs(sampled.values - exact.values).mean() < 0.05


def test_policy_value_of_a_stable_baselines3_model():
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    task = PendulumSwingUp(observation="cos_sin")
    env = gym.make("gptd_rl/PendulumSwingUp-v0", observation="cos_sin")
    model = PPO("MlpPolicy", env, seed=0, device="cpu", n_steps=64, batch_size=64)
    value = policy_value(model, env, gamma=0.9, shape=COARSE)
    states = task.sample_states(100, np.random.default_rng(0))
    total, _ = returns(task, lambda o: model.predict(o, deterministic=True)[0], states, 0.9, 150)
    assert np.median(np.abs(value(task.observe(states)) - total)) < 0.1


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        (lambda o: 5, ValueError, r"expected an action in Discrete\(5\)"),
        (lambda o: [0, 1], ValueError, r"expected actions of shape \(9,\), got shape \(9, 2\)"),
        (lambda o: [0.5, 0.5, 0.5, 0, 0], ValueError, "add up to 1"),
        (lambda o: [1.5, -0.5, 0, 0, 0], ValueError, "not negative"),
        ("left", TypeError, "expected a policy"),
    ],
)
def test_policy_value_refuses_bad_policies(policy, error, message):
    with pytest.raises(error, match=message):
        policy_value(policy, shape=(3, 3))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"gamma": 1.0}, ValueError, r"gamma: expected at least 0 and less than 1, got 1\.0"),
        ({"gamma": np.nan}, ValueError, "gamma"),
        ({"shape": (1, 5)}, ValueError, "shape: expected an integer >= 2, got 1"),
        ({"shape": (5,)}, ValueError, "shape: expected the numbers of angles and speeds"),
        ({"env": LatentGridworld()}, TypeError, "env: expected a PendulumSwingUp"),
        ({"env": "gptd_rl/LatentGridworld-v0"}, TypeError, "env: expected a PendulumSwingUp"),
    ],
)
def test_solvers_refuse_bad_settings(keywords, error, message):
    with pytest.raises(error, match=message):
        solve_pendulum(**keywords)
    with pytest.raises(error, match=message):
        policy_value(None, **keywords)


def test_grid_value_refuses_bad_observations(optimal):
    with pytest.raises(ValueError, match=r"expected observations of shape \(n, 2\), got \(1, 3\)"):
        optimal.predict([1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="expected finite observations"):
        optimal.value([[np.nan, 0.0]])


# The cache


@pytest.fixture
def solutions(monkeypatch):
    """Every solution computed, not read."""
    computed = []

    def solve(grid, torques, gamma):
        computed.append(gamma)
        return np.full(len(grid.points), -gamma)

    monkeypatch.setattr(dynamic_programming, "_optimal_values", solve)
    return computed


def test_cached_array_is_read_by_the_second_call(own_cache):
    first = solve_pendulum(shape=(20, 20))
    (file,) = own_cache.iterdir()
    assert file.suffix == ".npz"
    with np.load(file, allow_pickle=False) as archive:
        assert_array_equal(archive["array"], first.value.values)
    assert_array_equal(solve_pendulum(shape=(20, 20)).value.values, first.value.values)


def test_cached_array_depends_on_all_settings(solutions):
    for _ in range(2):
        solve_pendulum(shape=(5, 5))
        solve_pendulum(shape=(5, 5), gamma=0.9)
        solve_pendulum(shape=(5, 6))
        solve_pendulum(PendulumSwingUp(mass=2.0), shape=(5, 5))
        solve_pendulum(PendulumSwingUp(n_torques=3), shape=(5, 5))
    assert len(solutions) == 5
    solve_pendulum(PendulumSwingUp(observation="cos_sin"), shape=(5, 5))
    assert len(solutions) == 5
    solve_pendulum(shape=(5, 5), cache=False)
    assert len(solutions) == 6


@pytest.mark.parametrize("damage", ["empty", "cut", "other", "pickle"])
def test_cached_array_replaces_damaged_files(own_cache, solutions, damage):
    solve_pendulum(shape=(5, 5))
    (file,) = own_cache.iterdir()
    content = file.read_bytes()
    if damage == "empty":
        file.write_bytes(b"")
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "other":
        np.savez(file, key=np.array("other settings"), array=np.zeros(25))
    else:
        np.savez(file, key=np.array([{}], dtype=object), array=np.zeros(25))
    assert_array_equal(solve_pendulum(shape=(5, 5)).value.values, -0.99)
    assert len(solutions) == 2
    assert file.read_bytes() == content
    assert list(own_cache.iterdir()) == [file]


def test_cached_array_warns_if_it_cannot_write(monkeypatch, tmp_path, solutions):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("GPTD_RL_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="set GPTD_RL_CACHE to a folder") as caught:
        agent = solve_pendulum(shape=(5, 5))
    assert caught[0].filename == __file__
    assert_array_equal(agent.value.values, -0.99)


def test_cached_array_leaves_nothing_after_a_failed_write(monkeypatch, own_cache, solutions):
    def fails(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.warns(UserWarning, match="disk full"):
        solve_pendulum(shape=(5, 5))
    assert list(own_cache.iterdir()) == []


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "xdg"}, "xdg/gptd-rl"),
        ("linux", {"HOME": "me"}, "me/.cache/gptd-rl"),
        ("darwin", {"HOME": "me"}, "me/Library/Caches/gptd-rl"),
        ("win32", {"LOCALAPPDATA": "local"}, "local/gptd-rl"),
        ("linux", {"GPTD_RL_CACHE": "mine", "XDG_CACHE_HOME": "xdg"}, "mine"),
    ],
)
def test_cache_directory_of_each_platform(monkeypatch, platform, variables, expected):
    for name in ("GPTD_RL_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert cache.cache_directory().as_posix() == expected
