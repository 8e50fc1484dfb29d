"""The environments: what Gymnasium asks of any, and what the paper says of these."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import solve_ivp

from gptd_rl.envs import CartPoleSwingUp, LatentGridworld, PendulumSwingUp, register_environments
from gptd_rl.envs.pendulum import wrap_angles

register_environments()

PENDULUM = "gptd_rl/PendulumSwingUp-v0"
CONTINUOUS = "gptd_rl/PendulumSwingUpContinuous-v0"
GRIDWORLD = "gptd_rl/LatentGridworld-v0"
CARTPOLE = "gptd_rl/CartPoleSwingUp-v0"
IDS = [PENDULUM, CONTINUOUS, GRIDWORLD, CARTPOLE]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((env_id, {}) for env_id in IDS),
    (PENDULUM, {"observation": "cos_sin", "n_torques": 2, "max_speed": 4.3}),
    (GRIDWORLD, {"n_irrelevant": 20, "size": 5}),
    (GRIDWORLD, {"n_irrelevant": 0}),
    (GRIDWORLD, {"slip": 0.2}),
    (CARTPOLE, {"observation": "angle", "n_forces": None, "rail": 0.3}),
]


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.fixture(params=VARIANTS, ids=str)
def env(request):
    env_id, constants = request.param
    env = gym.make(env_id, **constants)
    yield env
    env.close()


def make(env_id: str, **keywords: Any) -> Any:
    return gym.make(env_id, **keywords)


def make_vec(env_id: str, num_envs: int = 1, **keywords: Any) -> Any:
    return gym.make_vec(env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **keywords)


# What Gymnasium asks of any environment


def test_register_environments_twice_changes_nothing():
    before = [gym.spec(env_id) for env_id in IDS]
    register_environments()
    assert [gym.spec(env_id) for env_id in IDS] == before


def test_check_env_of_gymnasium_passes(env):
    check_env(env.unwrapped)


def test_check_env_of_stable_baselines3_passes(env):
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    sb3_check_env(env)


def test_equal_seeds_give_equal_episodes(env):
    copy = gym.make(env.spec)
    env.action_space.seed(0)
    for seed in (0, 1):
        assert_array_equal(env.reset(seed=seed)[0], copy.reset(seed=seed)[0])
        ended = False
        for _ in range(100):
            if ended:
                assert_array_equal(env.reset()[0], copy.reset()[0])
            action = env.action_space.sample()
            ours, theirs = env.step(action), copy.step(action)
            assert_array_equal(ours[0], theirs[0])
            assert ours[1:] == theirs[1:]
            assert ours[0] in env.observation_space
            ended = ours[2] or ours[3]


def test_pickle_in_mid_episode_continues_equally():
    for env_id in IDS:
        env = make(env_id, render_mode="rgb_array")
        env.reset(seed=0)
        env.render()
        copy = pickle.loads(pickle.dumps(env))
        action = env.action_space.sample()
        ours, theirs = env.step(action), copy.step(action)
        assert_array_equal(ours[0], theirs[0])
        assert_array_equal(env.reset()[0], copy.reset()[0])


def test_step_refuses_before_reset(env):
    with pytest.raises(ResetNeeded, match=r"call reset\(\) before step\(\)"):
        env.unwrapped.step(env.action_space.sample())


def test_step_refuses_after_the_end():
    env = make(GRIDWORLD)
    env.reset(options={"state": [5, 1]})
    assert env.step(1)[2]
    with pytest.raises(ResetNeeded, match="no episode is under way"):
        env.step(1)


@pytest.mark.parametrize("action", [5, -1, 1.5, "left", [0, 1], np.nan])
def test_step_refuses_actions_outside_the_space(action):
    env = make(PENDULUM, disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"expected an action in Discrete\(5\), got"):
        env.step(action)


@pytest.mark.parametrize("action", [[1.01], [np.nan], 0.5])
def test_step_refuses_torques_outside_the_box(action):
    env = make(CONTINUOUS, disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="expected an action in Box"):
        env.step(action)
    env.step(np.array([0.5]))  # of type float64


@pytest.mark.parametrize(
    ("env_id", "constants", "message"),
    [
        (PENDULUM, {"dt": -0.1}, r"dt: expected a finite number > 0, got -0\.1\."),
        (PENDULUM, {"mass": 0}, "mass: expected a finite number > 0, got 0"),
        (PENDULUM, {"friction": np.nan}, "friction: expected a finite number >= 0, got nan"),
        (PENDULUM, {"gravity": "9.81"}, "gravity: expected a finite number >= 0, got '9.81'"),
        (PENDULUM, {"substeps": 1.5}, "substeps: expected an integer >= 1, got 1.5"),
        (PENDULUM, {"substeps": True}, "substeps: expected an integer >= 1, got True"),
        (PENDULUM, {"n_torques": 1}, "n_torques .*expected an integer >= 2, got 1"),
        (PENDULUM, {"goal_angle": 4}, "goal_angle: expected less than pi, got 4"),
        (PENDULUM, {"observation": "sin"}, "expected 'angle' or 'cos_sin', got 'sin'"),
        (GRIDWORLD, {"size": 10}, "size: expected an odd number.*, got 10"),
        (GRIDWORLD, {"size": 1}, "size: expected an integer >= 3, got 1"),
        (GRIDWORLD, {"n_irrelevant": -1}, "n_irrelevant: expected an integer >= 0, got -1"),
        (GRIDWORLD, {"slip": 1.2}, "slip: expected a probability, got 1.2"),
        (CARTPOLE, {"length": 0}, "length: expected a finite number > 0, got 0"),
        (CARTPOLE, {"n_forces": 1}, "n_forces .*expected an integer >= 2, got 1"),
        (CARTPOLE, {"start_spread": 3}, "start_spread: expected less than rail, .* got 3"),
        (CARTPOLE, {"observation": "sin"}, "expected 'angle' or 'cos_sin', got 'sin'"),
    ],
)
def test_make_refuses_bad_constants_in_one_line(env_id, constants, message):
    for make_any in (make, make_vec):
        with pytest.raises(ValueError, match=message) as caught:
            make_any(env_id, **constants)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        (PENDULUM, {"states": [1, 0]}, r"expected some of \['state'\], got 'states'"),
        (PENDULUM, {"state": [1, 0, 0]}, r"expected 2 numbers .* got an array of shape \(1, 3\)"),
        (PENDULUM, {"state": [0.05, 0.2]}, r"not terminal, got \[0.05, 0.2\]"),
        (PENDULUM, {"state": [4, 0]}, r"inside the state space .* got \[4.0, 0.0\]"),
        (CARTPOLE, {"state": [2.4, 0, 0, 0]}, "not terminal"),
        (CARTPOLE, {"state": [0, 0, 4, 0]}, "inside the state space"),
        (GRIDWORLD, {"state": [6, 1]}, "not terminal"),
        (GRIDWORLD, {"state": [1.5, 1]}, "inside the state space"),
        (GRIDWORLD, {"state": [1, np.nan]}, "inside the state space"),
    ],
)
def test_reset_refuses_bad_options(env_id, options, message):
    with pytest.raises(ValueError, match=message):
        make(env_id).reset(options=options)


def test_reset_in_a_given_state():
    assert_array_equal(make(GRIDWORLD).reset(options={"state": [1, 11]})[0], [1, 11])
    observation, _ = make(PENDULUM, observation="cos_sin").reset(options={"state": [1, -2]})
    assert_allclose(observation, [np.cos(1), np.sin(1), -2], rtol=1e-6)


# In other processes


@pytest.mark.parametrize(("env_id", "n_dims"), [(PENDULUM, 2), (CONTINUOUS, 2), (GRIDWORLD, 2), (CARTPOLE, 5)])
def test_make_imports_the_package_in_a_new_process(env_id, n_dims):
    code = f"import gymnasium; print(gymnasium.make('gptd_rl:{env_id}').reset(seed=0)[0].shape)"
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == f"({n_dims},)\n", done.stderr


def test_make_in_async_vector_env():
    envs = gym.make_vec(f"gptd_rl:{PENDULUM}", 2, vectorization_mode="async", vector_kwargs={"context": "spawn"})
    try:
        envs.reset(seed=0)
        observations, *_ = envs.step(envs.action_space.sample())
        assert observations in envs.observation_space
    finally:
        envs.close()


def test_make_in_subproc_vec_env():
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs: Any = make_vec_env(f"gptd_rl:{GRIDWORLD}", n_envs=1, seed=0, vec_env_cls=SubprocVecEnv)
    try:
        envs.reset()
        observations, rewards, *_ = envs.step(np.array([0]))
        assert observations.shape == (1, 2)
        assert rewards[0] == -1
    finally:
        envs.close()


# Time limits


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("limit", [None, 3, -1])
def test_make_vec_time_limit_equals_make(env_id, limit):
    endless: dict[str, dict[str, Any]] = {
        GRIDWORLD: {"size": 1001},
        CARTPOLE: {"rail": 1e9, "n_forces": 3},
    }  # no other end
    constants = endless.get(env_id, {"goal_speed": 1e-9})
    keywords = {} if limit is None else {"max_episode_steps": limit}
    one = make(env_id, **keywords, **constants)
    many = make_vec(env_id, 2, **keywords, **constants)
    state = {GRIDWORLD: [1, 1], CARTPOLE: [0, 0, -3, 0]}.get(env_id, [-3, 0])
    one.reset(options={"state": state})
    many.reset(options={"state": [state, state]})
    action = np.zeros_like(one.action_space.sample())
    for _ in range(250):
        *_, truncated, _ = one.step(action)
        assert_array_equal(many.step(np.stack([action, action]))[3], truncated)
        if truncated:
            break
    assert truncated == (limit != -1)


@pytest.mark.parametrize("limit", [0, -2, 2.5])
def test_vector_env_refuses_bad_time_limits(limit):
    with pytest.raises(ValueError, match="max_episode_steps: expected an integer >= 1"):
        make_vec(PENDULUM, 1, max_episode_steps=limit)


# Many at once


def test_vector_env_step_equals_single_steps():
    for env_id, constants in VARIANTS:
        if "slip" in constants:
            continue  # every coordinate is drawn
        many = make_vec(env_id, 5, **constants)
        many.reset(seed=1)
        many.action_space.seed(0)
        task = many.unwrapped.dynamics
        states = task.sample_states(5, np.random.default_rng(2))
        singles = [make(env_id, **constants) for _ in range(5)]
        moved = 1 if env_id == GRIDWORLD else None  # the other coordinates are drawn
        batch, _ = many.reset(options={"state": states})
        alone = [e.reset(options={"state": s})[0] for e, s in zip(singles, states, strict=True)]
        assert_array_equal(batch, alone)
        running = np.ones(5, dtype=bool)
        for _ in range(30):
            actions = many.action_space.sample()
            batch, rewards, terminated, truncated, _ = many.step(actions)
            for i in np.flatnonzero(running):
                observation, *others, _ = singles[i].step(actions[i])
                assert_array_equal(batch[i][:moved], observation[:moved])
                assert [rewards[i], terminated[i], truncated[i]] == others
            running &= ~(terminated | truncated)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("terminates", [True, False])
def test_vector_env_ends_equal_sync_vector_env(mode, terminates):
    """From x = 4 two steps right reach the middle, and two steps left meet the time limit."""
    keywords: dict[str, Any] = {"max_episode_steps": 2, "n_irrelevant": 0}
    native = make_vec(GRIDWORLD, 3, autoreset_mode=mode, **keywords)
    sync = SyncVectorEnv([lambda: make(GRIDWORLD, **keywords)] * 3, autoreset_mode=mode)
    assert native.metadata["autoreset_mode"] is mode
    actions = np.full(3, int(terminates))
    native.reset(seed=0)
    native.reset(options={"state": [[4.0]] * 3})
    sync.reset(seed=0, options={"state": [4.0]})
    for step in range(3 if mode is AutoresetMode.NEXT_STEP else 2):
        ours, theirs = native.step(actions), sync.step(actions)
        for mine, other in zip(ours[1:4], theirs[1:4], strict=True):
            assert_array_equal(mine, other)
        if step == 1:
            assert ours[4].keys() == theirs[4].keys()
    if mode is AutoresetMode.SAME_STEP:
        assert_array_equal(np.stack(ours[4]["final_obs"]), np.stack(theirs[4]["final_obs"]))
        assert (ours[0] != 6).all()
    elif mode is AutoresetMode.DISABLED:
        assert_array_equal(ours[0], theirs[0])


def test_vector_env_next_step_restarts_ended_episodes_only():
    envs = make_vec(GRIDWORLD, 2, n_irrelevant=0)
    envs.reset(seed=0)
    envs.reset(options={"state": [[5.0], [1.0]]})
    observations, _, terminated, *_ = envs.step(np.array([1, 1]))
    assert_array_equal(observations, [[6.0], [2.0]])
    assert_array_equal(terminated, [True, False])
    observations, rewards, terminated, *_ = envs.step(np.array([1, 1]))
    assert observations[0] != 6
    assert_array_equal(observations[1], [3.0])
    assert_array_equal(rewards, [0.0, -1.0])
    assert not terminated.any()


def test_vector_env_disabled_requires_a_reset():
    envs = make_vec(GRIDWORLD, 2, n_irrelevant=0, autoreset_mode="Disabled")
    with pytest.raises(ResetNeeded, match=r"call reset\(\) for all"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset(options={"state": [[5.0], [1.0]]})
    ended = envs.step(np.array([1, 1]))[2]
    with pytest.raises(ResetNeeded, match=r"environments \[0\] are over"):
        envs.step(np.array([1, 1]))
    options = {"reset_mask": ended, "state": [[9.0]]}
    assert_array_equal(envs.reset(options=options)[0], [[9.0], [2.0]])
    assert_array_equal(envs.step(np.array([0, 0]))[0], [[8.0], [1.0]])


def test_vector_env_refused_reset_changes_nothing():
    envs = make_vec(GRIDWORLD, 2, n_irrelevant=0)
    envs.reset(options={"state": [[1.0], [1.0]]})
    with pytest.raises(ValueError, match="not terminal"):
        envs.reset(options={"state": [[3.0], [6.0]]})
    assert_array_equal(envs.step(np.array([1, 1]))[0], [[2.0], [2.0]])


@pytest.mark.parametrize("mask", [[True], [1, 0], True])
def test_vector_env_refuses_bad_reset_masks(mask):
    envs = make_vec(GRIDWORLD, 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="'reset_mask': expected 2 booleans"):
        envs.reset(options={"reset_mask": mask})


def test_vector_env_refuses_unknown_autoreset_mode():
    with pytest.raises(ValueError, match=r"autoreset_mode: expected one of .* got 'never'"):
        make_vec(GRIDWORLD, 2, autoreset_mode="never")


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_vector_env_equal_seeds_give_equal_episodes(env_id, mode):
    a, b = (make_vec(env_id, 8, max_episode_steps=7, autoreset_mode=mode) for _ in range(2))
    a.action_space.seed(0)
    for seed in (3, list(range(8))):
        assert_array_equal(a.reset(seed=seed)[0], b.reset(seed=seed)[0])
        for _ in range(30):
            actions = a.action_space.sample()
            ours, theirs = a.step(actions), b.step(actions)
            for mine, other in zip(ours[:4], theirs[:4], strict=True):
                assert_array_equal(mine, other)
            assert ours[0] in a.observation_space
    assert not np.array_equal(a.reset(seed=[1] * 8)[0], a.reset(seed=[2] * 8)[0])


@pytest.mark.parametrize("seed", [[1], [1, None], [0.5, 1], [-1, 0]])
def test_vector_env_refuses_bad_seeds(seed):
    with pytest.raises(ValueError, match="seed: expected an integer >= 0 for each of 2"):
        make_vec(GRIDWORLD, 2).reset(seed=seed)


# The pendulum


@pytest.mark.parametrize("torque", [-5.0, 0.0, 2.5])
def test_pendulum_step_equals_accurate_integrator(torque):
    task = PendulumSwingUp(mass=0.7, length=1.3, friction=0.2)
    state = np.array([1.0, -3.0])

    def derivative(_, x):
        inertia = 0.7 * 1.3**2
        return x[1], (-0.2 * x[1] + 0.7 * 9.81 * 1.3 * np.sin(x[0]) + torque) / inertia

    expected = solve_ivp(derivative, (0, task.dt), state, rtol=1e-12, atol=1e-12).y[:, -1]
    assert_allclose(task.advance(state[None], np.array([torque]))[0], expected, atol=2e-8)


def test_pendulum_conserves_energy_without_friction_and_torque():
    task = PendulumSwingUp(friction=0.0)

    def energy(states):
        return states[:, 1] ** 2 / 2 + 9.81 * np.cos(states[:, 0])

    states = np.array([[3.0, 0.5], [1.0, -1.0]])
    start = energy(states)
    for _ in range(200):
        states = task.advance(states, np.zeros(2))
    assert_allclose(energy(states), start, atol=1e-4)


def test_pendulum_is_mirror_symmetric():
    task = PendulumSwingUp()
    states = task.sample_states(100, np.random.default_rng(0))
    torques = np.linspace(-5, 5, 100)
    assert_allclose(task.advance(-states, -torques), -task.advance(states, torques), atol=1e-12)


def test_pendulum_is_underpowered():
    task, states = PendulumSwingUp(), np.array([[-np.pi, 0.0]])
    for _ in range(400):
        states = task.advance(states, np.array([5.0]))
        assert abs(states[0, 0]) > 1.0


def test_pendulum_clips_speeds():
    task = PendulumSwingUp()
    assert_array_equal(task.advance(np.array([[1.5, 7.0]]), np.array([5.0]))[:, 1], 7.0)


@given(st.floats(-1e3, 1e3))
@settings(deadline=None)
def test_wrap_angles_keeps_directions(angle):
    wrapped = wrap_angles(np.array([angle]))[0]
    assert -np.pi <= wrapped < np.pi
    assert_allclose(np.exp(1j * wrapped), np.exp(1j * angle), atol=1e-12)


def test_wrap_angles_just_below_minus_pi():
    assert -np.pi <= wrap_angles(np.array([-np.pi - 1e-17, np.pi, np.nextafter(-np.pi, -4)])).min()
    assert wrap_angles(np.array([np.nextafter(-np.pi, -4), np.pi])).max() < np.pi


def test_pendulum_reward_is_that_of_the_state_left():
    env = make(PENDULUM)
    env.reset(options={"state": [0.5, -1.0]})
    reached, reward, *_ = env.step(2)
    assert_allclose(reward, np.exp(-0.25 - 0.2) - 1)
    assert_allclose(env.step(2)[1], np.exp(-(reached[0] ** 2) - 0.2 * reached[1] ** 2) - 1)


def test_pendulum_terminal_region():
    task = PendulumSwingUp(goal_angle=0.1, goal_speed=0.5)
    states = np.array([[0.1, -0.5], [-0.1, 0.5], [0.11, 0.0], [0.0, -0.51], [-np.pi, 0.0]])
    assert_array_equal(task.is_terminal(states), [True, True, False, False, False])
    env = make(PENDULUM)
    env.reset(options={"state": [0.12, -0.5]})
    assert env.step(2)[2]


def test_pendulum_starts_uniformly_outside_the_terminal_region():
    task = PendulumSwingUp(goal_angle=1.0, goal_speed=2.0)
    states = task.sample_states(20_000, np.random.default_rng(0))
    assert task.may_start(states).all()
    counts, *_ = np.histogram2d(states[:, 0], states[:, 1], bins=4, range=[[-np.pi, np.pi], [-7, 7]])
    outside = np.ones((4, 4)) * np.pi / 2 * 3.5
    outside[1:3, 1:3] -= 1.0 * 2.0
    assert_allclose(counts / 20_000, outside / outside.sum(), atol=4 * np.sqrt(0.07 / 20_000))


def test_pendulum_torques():
    assert_array_equal(PendulumSwingUp().torques(np.arange(5)), [-5, -2.5, 0, 2.5, 5])
    continuous = PendulumSwingUp(n_torques=None, max_torque=3.0)
    assert_array_equal(continuous.torques(np.array([[-1.0], [0.5]])), [-3, 1.5])


@pytest.mark.parametrize("observation", ["angle", "cos_sin"])
def test_pendulum_states_of_inverts_observe(observation):
    task = PendulumSwingUp(observation=observation)
    states = task.sample_states(100, np.random.default_rng(0))
    assert_allclose(task.states_of(task.observe(states)), states, atol=1e-6)


# The cart with a pole


@pytest.mark.parametrize("force", [-10.0, 0.0, 5.0])
def test_cartpole_step_equals_accurate_integrator_of_pilco(force):
    """The equations of PILCO's cart pole, whose angle is π − θ: zero hanging down."""
    task = CartPoleSwingUp(cart_mass=0.7, pole_mass=0.4, length=0.8, friction=0.2)
    M, m, l, b, g = 0.7, 0.4, 0.8, 0.2, 9.82

    def derivative(_, x):
        _, speed, angle, spin = x
        sin, cos = np.sin(angle), np.cos(angle)
        pull = 2 * m * l * spin**2 * sin + 3 * m * g * sin * cos + 4 * (force - b * speed)
        turn = -3 * m * l * spin**2 * sin * cos - 6 * (M + m) * g * sin - 6 * (force - b * speed) * cos
        return speed, pull / (4 * (M + m) - 3 * m * cos**2), spin, turn / (4 * l * (M + m) - 3 * m * l * cos**2)

    state = np.array([0.3, -1.0, 2.0, 4.0])
    mirrored = [0.3, -1.0, np.pi - 2.0, -4.0]
    x = solve_ivp(derivative, (0, task.dt), mirrored, rtol=1e-12, atol=1e-12).y[:, -1]
    expected = [x[0], x[1], np.pi - x[2], -x[3]]
    assert_allclose(task.advance(state[None], np.array([force]))[0], expected, atol=2e-6)


def test_cartpole_conserves_energy_and_momentum_without_friction_and_force():
    task = CartPoleSwingUp(friction=0.0, substeps=20, rail=100.0)
    M, m, l, g = task.cart_mass, task.pole_mass, task.length, task.gravity

    def conserved(states):
        _, speeds, angles, spins = states.T
        middle = speeds + l / 2 * np.cos(angles) * spins, -l / 2 * np.sin(angles) * spins  # of the pole
        moving = M * speeds**2 / 2 + m * (middle[0] ** 2 + middle[1] ** 2) / 2 + m * l**2 / 12 * spins**2 / 2
        return moving + m * g * l / 2 * np.cos(angles), M * speeds + m * middle[0]

    states = np.array([[0.0, 0.0, 3.0, 5.0], [0.5, 1.0, 1.0, -1.0]])
    start = conserved(states)
    for _ in range(200):
        states = task.advance(states, np.zeros(2))
    assert_allclose(conserved(states), start, atol=1e-4)


def test_cartpole_is_mirror_symmetric():
    task, rng = CartPoleSwingUp(), np.random.default_rng(0)
    states, forces = rng.uniform(-3, 3, size=(100, 4)) * [0.7, 1, 1, 1], np.linspace(-10, 10, 100)
    assert_allclose(task.advance(-states, -forces), -task.advance(states, forces), atol=1e-12)


def test_cartpole_reward_is_that_of_the_state_left():
    env = make(CARTPOLE)
    env.reset(options={"state": [0.1, 0.0, 0.2, 0.0]})
    across, below = 0.1 + 0.6 * np.sin(0.2), 0.6 * (1 - np.cos(0.2))
    assert_allclose(env.step(2)[1], np.exp(-(across**2 + below**2) / (2 * 0.25**2)))
    task = CartPoleSwingUp()
    assert_array_equal(task.rewards(np.zeros((1, 4))), 1.0)  # upright in the middle, at any speed
    assert task.rewards(np.array([[0.0, 0.0, -np.pi, 0.0]])) < 1e-4


def test_cartpole_ends_where_the_rail_ends():
    env = make(CARTPOLE)
    env.reset(options={"state": [2.3, 3.0, 0.0, 0.0]})
    observation, reward, terminated, *_ = env.step(4)
    assert terminated
    assert observation[0] == np.float32(2.4)  # it stops there
    assert 0 < reward < 1
    assert observation in env.observation_space


def test_cartpole_starts_hanging_down():
    states = CartPoleSwingUp().sample_states(1000, np.random.default_rng(0))
    away = np.abs(states - [0, 0, 0, 0])
    away[:, 2] = np.pi - away[:, 2]
    assert away.max() <= 0.1
    assert CartPoleSwingUp().may_start(states).all()
    assert away.max(axis=0).min() > 0.09


def test_cartpole_forces():
    assert_array_equal(CartPoleSwingUp().forces(np.arange(5)), [-10, -5, 0, 5, 10])
    continuous = CartPoleSwingUp(n_forces=None, max_force=3.0)
    assert_array_equal(continuous.forces(np.array([[-1.0], [0.5]])), [-3, 1.5])


@pytest.mark.parametrize("observation", ["angle", "cos_sin"])
def test_cartpole_states_of_inverts_observe(observation):
    task = CartPoleSwingUp(observation=observation)
    states = np.random.default_rng(0).uniform(-2, 2, size=(100, 4))
    assert_allclose(task.states_of(task.observe(states)), states, atol=1e-6)
    with pytest.raises(ValueError, match=r"expected observations of shape \(n, "):
        task.states_of(np.zeros((3, 2)))


# The gridworld


def test_gridworld_moves_x_by_action_and_others_at_random():
    task = LatentGridworld(n_irrelevant=20)
    rng = np.random.default_rng(0)
    states = np.full((2000, 21), 4.0)
    actions = np.repeat([0, 1], 1000)
    reached, rewards, terminated = task.step(states, actions, rng)
    assert_array_equal(reached[:, 0], np.repeat([3, 5], 1000))
    assert_array_equal(np.unique(reached[:, 1:]), [3, 5])
    assert_allclose((reached[:, 1:] == 5).mean(axis=0), 0.5, atol=4 * 0.5 / np.sqrt(2000))
    assert (rewards == -1).all()
    assert not terminated.any()


def test_gridworld_slips_as_often_as_it_says():
    task = LatentGridworld(slip=0.2)
    reached, *_ = task.step(np.full((4000, 2), 4.0), np.ones(4000, dtype=np.int64), np.random.default_rng(0))
    assert_array_equal(np.unique(reached[:, 0]), [3, 5])
    assert_allclose((reached[:, 0] == 3).mean(), 0.2, atol=4 * 0.4 / np.sqrt(4000))


def test_gridworld_without_slip_draws_what_it_always_drew():
    """The other coordinates come first from the stream, x is no draw at all."""
    task, states = LatentGridworld(n_irrelevant=3), np.full((5, 4), 4.0)
    rng, reference = np.random.default_rng(3), np.random.default_rng(3)
    reached, *_ = task.step(states, np.ones(5, dtype=np.int64), rng)
    assert_array_equal(reached[:, 1:], 4 + 2 * reference.integers(2, size=(5, 4))[:, 1:] - 1)
    assert rng.random() == reference.random()


def test_gridworld_stays_inside():
    task = LatentGridworld(size=3, n_irrelevant=3)
    rng = np.random.default_rng(0)
    states = task.sample_states(100, rng)
    for action in (0, 0, 0, 1):
        states, _, terminated = task.step(states, np.full(100, action), rng)
        assert states.min() >= 1
        assert states.max() <= 3
    assert_array_equal(states[:, 0], 2)  # from the left border one to the right
    assert terminated.all()


def test_gridworld_last_step_costs_too():
    for start, action in ((5, 1), (7, 0)):
        env = make(GRIDWORLD)
        env.reset(options={"state": [start, 3]})
        observation, reward, terminated, *_ = env.step(action)
        assert observation[0] == 6
        assert (reward, terminated) == (-1.0, True)


def test_gridworld_starts_uniformly_outside_the_middle_column():
    states = LatentGridworld(size=5).sample_states(20_000, np.random.default_rng(0))
    counts, *_ = np.histogram2d(states[:, 0], states[:, 1], bins=5, range=[[0.5, 5.5], [0.5, 5.5]])
    expected = np.repeat([[1], [1], [0], [1], [1]], 5, axis=1) / 20
    assert_allclose(counts / 20_000, expected, atol=4 * np.sqrt(0.05 / 20_000))


# Pictures


def colour_at(picture, x, y):
    """Colour at a place given in shares of width and height, from the lower left corner."""
    height, width, _ = picture.shape
    return tuple(picture[int((1 - y) * height), int(x * width)])


def test_pendulum_draw_shows_the_bob():
    from gptd_rl.envs.rendering import BLUE, GREEN

    env = make(PENDULUM, render_mode="rgb_array")
    env.reset(options={"state": [np.pi / 2, 0.0]})
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.shape == (450, 450, 3)
    assert colour_at(picture, 0.5 + 1 / 3, 0.5) == BLUE  # clockwise from upright: to the right
    assert colour_at(picture, 0.5, 0.5 + 1 / 4) == GREEN
    env.step(4)
    assert not np.array_equal(env.render(), picture)


def test_cartpole_draw_shows_the_pole():
    from gptd_rl.envs.rendering import BLUE, GREEN, GREY

    env = make(CARTPOLE, render_mode="rgb_array")
    env.reset(options={"state": [1.0, 0.0, np.pi / 2, 0.0]})
    picture = env.render()
    width, height = 2 * 2.4 + 0.6, 3 * 0.6
    assert colour_at(picture, 0.5 + 1.5 / width, 0.5) == BLUE  # clockwise from upright: to the right
    assert colour_at(picture, 0.5, 0.5 + 0.6 / height) == GREEN
    assert colour_at(picture, 0.5 - 2.0 / width, 0.5) == GREY
    env.step(0)
    assert not np.array_equal(env.render(), picture)


def test_gridworld_draw_shows_the_agent():
    from gptd_rl.envs.rendering import BLUE, GREEN, INK

    envs = make_vec(GRIDWORLD, 2, render_mode="rgb_array", n_irrelevant=2)
    envs.reset(options={"state": [[2, 10, 3], [9, 1, 11]]})
    first, second = envs.render()
    assert colour_at(first, 2 / 14, 10 / 12) == BLUE
    assert colour_at(first, 13 / 14, 3 / 12) == INK
    assert colour_at(second, 9 / 14, 1 / 12) == BLUE
    assert colour_at(second, 6 / 14, 4 / 12) == GREEN


@pytest.mark.parametrize("env_id", IDS)
def test_render_human_shows_every_step(env_id):
    import pygame

    constants = {} if env_id == GRIDWORLD else {"dt": 0.01}  # 100 frames per second
    env = make(env_id, render_mode="human", **constants)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert pygame.display.get_surface() is not None
    env.close()
    assert pygame.display.get_surface() is None


@pytest.mark.parametrize("make_any", [make, make_vec])
def test_render_without_a_mode_warns(make_any):
    env = make_any(PENDULUM).unwrapped
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="with a render_mode"):
        assert env.render() is None


@pytest.mark.parametrize("make_any", [make, make_vec])
def test_render_without_pygame_names_the_command(make_any, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = make_any(PENDULUM, render_mode="rgb_array")
    env.reset(seed=0)
    with pytest.raises(DependencyNotInstalled, match=r'pip install "gptd-rl\[render\]"'):
        env.render()


def test_make_refuses_unknown_render_mode():
    with pytest.raises(ValueError, match=r"render_mode: expected None or one of .*got 'human'"):
        make_vec(PENDULUM, 1, render_mode="human")
