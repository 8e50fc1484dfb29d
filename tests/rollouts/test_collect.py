"""Collectors, on an environment whose observations say which episode and step they belong to."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.testing import assert_array_equal

from gptd_rl.data.spaces import flatten, unflatten
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts import rollout as rollouts
from gptd_rl.rollouts.collect import collect
from gptd_rl.rollouts.policies import RandomActions

GAMMA = 0.9
# Length and end of each episode: terminated, truncated, both. The first ends after a single step.
SCRIPTS = (
    ((1, "terminated"), (3, "truncated"), (2, "both"), (4, "terminated")),
    ((2, "truncated"), (1, "truncated"), (5, "terminated")),
    ((7, "both"), (1, "terminated")),
)
START_METHOD = "fork" if sys.version_info < (3, 12) else "forkserver"  # later Pythons warn


class Scripted(gym.Env):
    """Observation (sub-environment, episode, step); the rewards of all transitions differ."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, index: int = 0, bad: dict | None = None) -> None:
        self.index, self.bad = index, bad or {}
        self.episode = -1

    def observe(self) -> np.ndarray:
        observation = np.array([self.index, self.episode, self.step_number], dtype=np.float32)
        if self.bad.get("observation") == (self.episode, self.step_number):
            observation[1] = np.nan
        return observation

    def reset(self, *, seed=None, options=None):
        self.episode = 0 if seed is not None else self.episode + 1
        self.step_number = 0
        self.length, self.end = SCRIPTS[self.index][self.episode % len(SCRIPTS[self.index])]
        return self.observe(), {"note": "reset"}

    def step(self, action):
        assert self.step_number < self.length, "stepped past the end"
        assert self.bad.get("lenient") or self.action_space.contains(action)
        self.step_number += 1
        reward = 1000.0 * self.index + 100.0 * self.episode + self.step_number + action / 4
        here = (self.episode, self.step_number)
        if self.bad.get("crash") == here:
            raise RuntimeError("the motor is hot")
        if self.bad.get("reward") == here:
            reward = np.inf
        over = self.step_number == self.length
        terminated = over and self.end in ("terminated", "both")
        truncated = over and self.end in ("truncated", "both")
        return self.observe(), float(reward), terminated, truncated, {"note": "step"}


def act(observation) -> int:
    return int(observation[1] + observation[2]) % 3


class OnAll:
    """A callable on whole batches."""

    batched = True

    def __init__(self, choose: Any = None) -> None:
        self.choose = choose or (lambda o: (o[:, 1] + o[:, 2]).astype(np.int64) % 3)

    def __call__(self, observations):
        return self.choose(observations)


act_on_all = OnAll()


class Memory:
    """A recurrent policy: acts by how often it was asked in this episode."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert deterministic
        assert episode_start.shape == (len(observation),)
        state = np.zeros(len(observation), dtype=np.int64) if state is None else state
        state = np.where(episode_start, 0, state) + 1
        return state % 3, state


class Plain:
    """A policy that knows nothing of states."""

    def predict(self, observation, deterministic=True):
        return act_on_all(observation), None


def reference(n_envs=1, *, n_transitions=None, n_episodes=None, policy=act) -> Trajectories:
    """The same by a naive loop, one sub-environment after the other."""
    episodes = []
    for index in range(n_envs):
        total = n_episodes if n_transitions is None else n_transitions
        share = total // n_envs + (index < total % n_envs)
        env = Scripted(index)
        observation, _ = env.reset(seed=0)
        current: dict[str, Any] = dict(observations=[observation], actions=[], rewards=[])
        while share > 0:
            action = policy(observation)
            observation, reward, terminated, truncated, _ = env.step(np.int64(action))
            current["observations"].append(observation)
            current["actions"].append(action)
            current["rewards"].append(reward)
            over = terminated or truncated
            share -= over if n_transitions is None else 1
            if over or share == 0:
                episodes.append({**current, "terminated": terminated})
            if over:
                observation, _ = env.reset()
                current = dict(observations=[observation], actions=[], rewards=[])
    return Trajectories.from_episodes(episodes, gamma=GAMMA)


def assert_same(one: Trajectories, other: Trajectories) -> None:
    for name in ("states", "rewards", "discounts", "lengths", "terminated", "actions"):
        a, b = getattr(one, name), getattr(other, name)
        assert_array_equal(a, b, err_msg=name)
        assert a.dtype == b.dtype, name


def makers(n: int, **keywords) -> list:
    return [partial(Scripted, i, **keywords) for i in range(n)]


def sync(mode: AutoresetMode, n: int, **keywords) -> SyncVectorEnv:
    return SyncVectorEnv(makers(n), autoreset_mode=mode, **keywords)


def asynchronous(mode: AutoresetMode, n: int) -> AsyncVectorEnv:
    return AsyncVectorEnv(makers(n), autoreset_mode=mode, context=START_METHOD)


def dummy(n: int):
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv(makers(n))


def subproc(n: int):
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv(makers(n), start_method=START_METHOD)


def normalised(n: int, **keywords):
    from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

    env: Any = VecNormalize(dummy(n), **keywords)
    env.ret_rms.var = np.array(100.0)
    if keywords.get("norm_obs", True):
        env.obs_rms.mean, env.obs_rms.var = np.arange(3.0), np.arange(1.0, 4.0)
    return VecMonitor(env)


SOURCES: dict[str, tuple[int, Any]] = {
    "id": (1, lambda: "ScriptedForCollectors-v0"),
    "env": (1, Scripted),
    **{f"sync-{mode.value}-{n}": (n, partial(sync, mode, n)) for mode in AutoresetMode for n in (1, 3)},
    "sync-without-copies": (3, lambda: sync(AutoresetMode.SAME_STEP, 3, copy=False)),
    "sync-disabled-without-copies": (3, lambda: sync(AutoresetMode.DISABLED, 3, copy=False)),
    **{f"async-{mode.value}": (2, partial(asynchronous, mode, 2)) for mode in AutoresetMode},
    "dummy-1": (1, partial(dummy, 1)),
    "dummy-3": (3, partial(dummy, 3)),
    "subproc": (2, partial(subproc, 2)),
    "normalised-rewards": (3, partial(normalised, 3, norm_obs=False)),
}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    gym.register("ScriptedForCollectors-v0", entry_point=lambda **keywords: Scripted(**keywords))
    yield
    del gym.registry["ScriptedForCollectors-v0"]


@pytest.fixture(scope="module", params=SOURCES)
def source(request):
    n_envs, make = SOURCES[request.param]
    env = make()
    yield n_envs, env
    if not isinstance(env, str):
        env.close()


# ------------------------------------------------------------------ every source gives the same


@pytest.mark.parametrize("amount", [1, 5, 24, 61])
def test_collect_transitions_equals_naive_loop(source, amount):
    n_envs, env = source
    data = collect(env, act, n_transitions=amount, gamma=GAMMA, seed=0)
    assert data.n_transitions == amount
    assert_same(data, reference(n_envs, n_transitions=amount))


@pytest.mark.parametrize("amount", [1, 3, 10])
def test_collect_episodes_equals_naive_loop(source, amount):
    n_envs, env = source
    data = collect(env, act, n_episodes=amount, gamma=GAMMA, seed=0)
    assert data.n_segments == amount
    assert_same(data, reference(n_envs, n_episodes=amount))


@pytest.mark.parametrize("policy", [act_on_all, Plain()], ids=["batched", "predict"])
def test_collect_with_batched_policies_equals_naive_loop(source, policy):
    n_envs, env = source
    data = collect(env, policy, n_transitions=40, gamma=GAMMA, seed=0)
    assert_same(data, reference(n_envs, n_transitions=40))


def test_collect_resets_recurrent_policies_at_episode_starts(source):
    n_envs, env = source
    data = collect(env, Memory(), n_transitions=40, gamma=GAMMA, seed=0)
    assert_same(data, reference(n_envs, n_transitions=40, policy=lambda o: int(o[2] + 1) % 3))


def test_random_actions_do_not_depend_on_the_kind_of_environment(source, monkeypatch):
    n_envs, env = source
    monkeypatch.setattr(RandomActions, "BLOCK", 16)
    amount = 100 * n_envs  # more than is drawn at once
    data = collect(env, n_transitions=amount, gamma=GAMMA, seed=7)
    expected = collect(sync(AutoresetMode.SAME_STEP, n_envs), n_transitions=amount, gamma=GAMMA, seed=7)
    assert_same(data, expected)


def test_collect_keeps_normalised_observations_and_original_rewards():
    env = normalised(3)
    seen = []

    def watch(observations):
        seen.append(observations.copy())
        return np.zeros(3, dtype=np.int64)

    data = collect(env, OnAll(watch), n_transitions=60, gamma=GAMMA, seed=0)
    raw = reference(3, n_transitions=60, policy=lambda observation: 0)
    scaled = (raw.states - np.arange(3.0)) / np.sqrt(np.arange(1.0, 4.0) + 1e-8)
    assert_array_equal(data.states, np.clip(scaled, -10, 10).astype(np.float32))
    assert_array_equal(data.rewards, raw.rewards)
    assert_array_equal(data.lengths, raw.lengths)
    assert_array_equal(data.terminated, raw.terminated)
    left = {tuple(row) for row in data.states[data.discounts > 0]}
    assert left == {tuple(row) for batch in seen for row in batch.astype(np.float64)}


@pytest.mark.parametrize("training", [True, False])
def test_collect_does_not_update_normalisation(training):
    env = normalised(2, training=training)
    collect(env, n_transitions=50, gamma=GAMMA, seed=0)
    assert env.training is training
    assert_array_equal(env.obs_rms.mean, np.arange(3.0))
    assert env.ret_rms.var == 100.0
    with pytest.raises(CollectionError):
        collect(env, lambda observation: 9, n_transitions=50, gamma=GAMMA)
    assert env.venv.training is training


@pytest.fixture(scope="module")
def model():
    import torch
    from stable_baselines3 import A2C

    torch.set_num_threads(1)
    return A2C("MlpPolicy", dummy(2), seed=0, device="cpu", policy_kwargs=dict(net_arch=[4]))


def test_collect_from_a_model_uses_its_environment(model):
    data = collect(model, n_transitions=61, gamma=GAMMA, seed=0)

    def greedy(observation):
        return int(model.predict(observation.astype(np.float32), deterministic=True)[0])

    assert_same(data, reference(2, n_transitions=61, policy=greedy))
    assert_same(data, collect(dummy(2), model, n_transitions=61, gamma=GAMMA, seed=0))
    assert_same(data, collect(dummy(2), model.policy, n_transitions=61, gamma=GAMMA, seed=0))


def test_collect_from_a_model_with_another_policy(model):
    data = collect(model, act, n_transitions=61, gamma=GAMMA, seed=0)
    assert_same(data, reference(2, n_transitions=61))


def test_collect_refuses_a_model_without_environment():
    class Orphan(Plain):
        def get_env(self):
            return None

    with pytest.raises(CollectionError, match="Orphan model carries no environment"):
        collect(Orphan(), n_transitions=5, gamma=GAMMA)


# ------------------------------------------------------------------ long runs and many of them


@pytest.mark.parametrize("mode", AutoresetMode)
def test_collect_more_than_the_buffer_holds(mode):
    amount = 3 * 2 * rollouts.BLOCK + 5
    data = collect(sync(mode, 3), act, n_transitions=amount, gamma=GAMMA, seed=0)
    assert_same(data, reference(3, n_transitions=amount))
    data = collect(sync(mode, 3), act, n_episodes=amount, gamma=GAMMA, seed=0)
    assert_same(data, reference(3, n_episodes=amount))


def test_collect_from_a_native_vector_environment_equals_its_steps():
    env = gym.make_vec("CartPole-v1", num_envs=5, vectorization_mode="vector_entry_point")

    lean = OnAll(lambda observations: (observations[:, 2] > 0).astype(np.int64))
    data = collect(env, lean, n_transitions=1000, gamma=GAMMA, seed=3)
    episodes: list[list[Any]] = [[] for _ in range(5)]
    observations = env.reset(seed=3)[0]
    for e, o in zip(episodes, observations, strict=True):
        e.append(dict(observations=[o], actions=[], rewards=[], terminated=False))
    over = np.zeros(5, dtype=bool)
    while min(sum(len(e["rewards"]) for e in runs) for runs in episodes) < 200:
        actions = lean(observations)
        observations, rewards, terminated, truncated, _ = env.step(actions)
        for i, runs in enumerate(episodes):
            if over[i]:
                runs.append(dict(observations=[], actions=[], rewards=[], terminated=False))
            elif sum(len(e["rewards"]) for e in runs) == 200:
                continue
            else:
                runs[-1]["actions"].append(actions[i])
                runs[-1]["rewards"].append(rewards[i])
            runs[-1]["observations"].append(observations[i])
            runs[-1]["terminated"] = terminated[i]
        over = terminated | truncated
    whole = [e for runs in episodes for e in runs if e["rewards"]]
    assert_same(data, Trajectories.from_episodes(whole, gamma=GAMMA))


def test_collect_gives_sub_environments_equal_shares():
    class Lengths(Scripted):
        def reset(self, *, seed=None, options=None):
            observation, info = super().reset(seed=seed)
            self.length = 1 if self.index == 0 else 50
            return observation, info

    env = SyncVectorEnv([partial(Lengths, 0), partial(Lengths, 1)])
    data = collect(env, act, n_episodes=7, gamma=GAMMA, seed=0)
    assert data.lengths.tolist() == [2] * 4 + [51] * 3
    data = collect(env, act, n_transitions=100, gamma=GAMMA, seed=0)
    assert np.bincount(data.states[data.discounts > 0, 0].astype(int)).tolist() == [50, 50]


# ------------------------------------------------------------------ seeds


def test_collect_is_reproducible_by_seed():
    def sample(seed):
        return collect("CartPole-v1", n_transitions=50, gamma=GAMMA, seed=seed)

    assert_same(sample(1), sample(1))
    assert not np.array_equal(sample(1).actions, sample(2).actions)
    assert not np.array_equal(sample(1).states[0], sample(2).states[0])
    sample(None)


def test_random_actions_differ_from_the_random_numbers_of_the_environment():
    class Echo(gym.Env):
        observation_space = action_space = spaces.Box(0.0, 1.0, (1,), np.float64)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.random(1), {}

        def step(self, action):
            return self.np_random.random(1), 0.0, False, False, {}

    data: Any = collect(Echo(), n_transitions=200, gamma=GAMMA, seed=0)
    assert abs(np.corrcoef(data.states[:-1, 0], data.actions[:-1, 0])[0, 1]) < 0.2
    assert abs(np.corrcoef(data.states[1:-1, 0], data.actions[:-2, 0])[0, 1]) < 0.2


# ------------------------------------------------------------------ spaces

SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float64),
    "number": spaces.Box(-1, 1, (), np.float64),
    "integers": spaces.Box(-9, 9, (3,), np.int32),
    "discrete": spaces.Discrete(4, start=-1),
    "multi-discrete": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[1, 0], [0, 5]])),
    "multi-binary": spaces.MultiBinary(3),
    "dict": spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(-1, 1, (2,), np.float64)}),
    "nested": spaces.Tuple(
        [
            spaces.Box(-1, 1, (2,), np.float32),
            spaces.Dict({"x": spaces.MultiBinary(2), "y": spaces.Discrete(2)}),
        ]
    ),
}


class Sampling(gym.Env):
    """Observations drawn from any space; two steps an episode."""

    action_space = spaces.Box(-1.0, 1.0, (2, 2), np.float32)

    def __init__(self, space: gym.Space) -> None:
        self.observation_space = space
        self.seen: list = []

    def show(self):
        self.seen.append(self.observation_space.sample())
        return self.seen[-1]

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.show(), {}

    def step(self, action):
        self.steps += 1
        return self.show(), 0.0, self.steps == 2, False, {}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_collect_flattens_observations_as_gymnasium(space):
    space.seed(0)
    env = Sampling(space)
    data = collect(env, n_episodes=2, gamma=GAMMA, seed=0)
    assert_array_equal(data.states, [spaces.flatten(space, o) for o in env.seen[:6]])

    space.seed(0)
    vector = SyncVectorEnv([lambda: Sampling(space)], autoreset_mode=AutoresetMode.SAME_STEP, copy=False)
    assert_same(collect(vector, n_episodes=2, gamma=GAMMA, seed=0), data)

    batch = batch_space(space, 5)
    batch.seed(0)
    observations = batch.sample()
    again = unflatten(space, flatten(space, observations))
    assert flatten(space, again).tolist() == flatten(space, observations).tolist()


@pytest.mark.parametrize(
    "space",
    [SPACES[name] for name in ("box", "matrix", "discrete", "multi-discrete", "multi-binary")],
)
@pytest.mark.parametrize("vector", [False, True])
def test_collect_keeps_actions_unchanged(space, vector):
    taken = []

    class Watching(Sampling):
        action_space = space

        def step(self, action):
            assert self.action_space.contains(action)
            taken.append(np.array(action))
            return super().step(action)

    env = Watching(spaces.Discrete(2))
    source = SyncVectorEnv([lambda: env]) if vector else env
    data: Any = collect(source, n_transitions=4, gamma=GAMMA, seed=0)
    assert data.actions.shape == (6, *space.shape)
    assert data.actions.dtype == space.dtype
    assert_array_equal(data.actions[[0, 1, 3, 4]], taken)
    assert not data.actions[[2, 5]].any()


def test_collect_converts_actions_to_the_precision_of_the_space():
    data: Any = collect(
        Sampling(spaces.Discrete(2)),
        lambda observation: [[0.1, 0], [0, 1]],
        n_transitions=2,
        gamma=GAMMA,
    )
    assert_array_equal(data.actions[0], np.array([[0.1, 0], [0, 1]], dtype=np.float32))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), r"image observations \(Box\(0, 255, \(84, 84, 3\)"),
        (spaces.Dict({"eye": spaces.Box(0, 255, (64, 64), np.uint8)}), "image observations"),
        (spaces.Text(5), r"observations from Text\(.*\) are not supported"),
    ],
)
def test_collect_refuses_images_and_text(space, message):
    with pytest.raises(CollectionError, match=message):
        collect(Sampling(space), n_transitions=5, gamma=GAMMA)


def test_collect_refuses_composite_actions():
    class Composite(Scripted):
        action_space = spaces.Tuple([spaces.Discrete(2)])

    with pytest.raises(CollectionError, match=r"actions from Tuple.* are not supported"):
        collect(Composite(), n_transitions=5, gamma=GAMMA)


# ------------------------------------------------------------------ bad input


def assert_kept(error: CollectionError, n_envs: int, each: int) -> None:
    """What came before the error is there, as a rollout cut off."""
    assert error.trajectories is not None
    assert_same(error.trajectories, reference(n_envs, n_transitions=n_envs * each))


@pytest.mark.parametrize(
    ("bad", "message", "kept"),
    [
        ({"observation": (1, 2)}, r"observation \[ 0. nan  2.\].*\(episode 1, step 2\)", 2),
        ({"observation": (1, 3)}, r"observation.*\(episode 1, step 3\)", 3),  # the last one
        ({"observation": (2, 0)}, r"observation.*\(episode 2, step 0\)", 4),  # after a reset
        ({"observation": (0, 1)}, r"observation.*\(episode 0, step 1\)", 0),
        ({"observation": (0, 0)}, r"observation.*\(episode 0, step 0\)", 0),
        ({"reward": (3, 2)}, r"reward inf.*\(episode 3, step 2\)", 7),
        ({"reward": (3, 4)}, r"reward inf.*\(episode 3, step 4\)", 9),  # the last one
        ({"crash": (3, 2)}, r"RuntimeError: the motor is hot \(episode 3, step 1\)", 7),
    ],
)
def test_collect_error_names_episode_and_step(bad, message, kept):
    envs: list[Any] = [Scripted(bad=bad), dummy(1), *(sync(mode, 1) for mode in AutoresetMode)]
    for env in envs:
        for inner in getattr(env, "envs", []):
            inner.unwrapped.bad = bad
        with pytest.raises(CollectionError, match=message) as info:
            collect(env, act, n_transitions=50, gamma=GAMMA, seed=0)
        assert "\n" not in str(info.value)
        if kept:
            assert_kept(info.value, 1, kept)
        else:
            assert info.value.trajectories is None


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_collect_error_names_the_sub_environment(mode):
    env: Any = sync(mode, 3)
    env.envs[1].bad = {"observation": (2, 4)}
    with pytest.raises(CollectionError, match="sub-environment 1, episode 2, step 4") as info:
        collect(env, act, n_transitions=50, gamma=GAMMA, seed=0)
    assert_kept(info.value, 3, 6)


def test_collect_ignores_errors_in_finished_sub_environments():
    env: Any = sync(AutoresetMode.NEXT_STEP, 3)  # the third restarts least, and is finished first
    env.envs[2].bad = {"observation": (2, 5)}
    data = collect(env, act, n_transitions=36, gamma=GAMMA, seed=0)
    assert_same(data, reference(3, n_transitions=36))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (3, r"action 3 is outside Discrete\(3\) \(episode 1, step 2\)"),
        (-1, r"action -1 is outside Discrete\(3\) \(episode 1, step 2\)"),
        (1.0, r"actions of shape \(1,\) and type float64; expected shape \(1,\) for Discrete\(3\)"),
        ([1], r"actions of shape \(1, 1\).*\(episode 1, step 2\)"),
        (np.bool_(True), "type bool"),
        (None, "type object"),
    ],
)
def test_collect_refuses_actions_outside_the_space(answer, message):
    def wrong_later(observation):
        return answer if tuple(observation[1:]) == (1, 2) else act(observation)

    for env in (Scripted(), Scripted(bad={"lenient": True}), sync(AutoresetMode.NEXT_STEP, 1), dummy(1)):
        with pytest.raises(CollectionError, match=message) as info:
            collect(env, wrong_later, n_transitions=50, gamma=GAMMA, seed=0)
        assert_kept(info.value, 1, 3)


def test_collect_reports_errors_at_once_where_steps_are_slow(monkeypatch):
    monkeypatch.setattr(rollouts, "MAX_BLOCK_SECONDS", 0.0)
    env = Scripted(bad={"lenient": True})
    with pytest.raises(CollectionError, match=r"action 7 is outside.*\(episode 1, step 1\)"):
        collect(env, lambda o: 7 if tuple(o[1:]) == (1, 1) else 0, n_transitions=50, gamma=GAMMA, seed=0)
    assert (env.episode, env.step_number) == (1, 2)


def test_collect_reports_the_action_before_its_consequences():
    env = Scripted(bad={"lenient": True, "reward": (1, 2)})
    with pytest.raises(CollectionError, match=r"action 7 is outside.*\(episode 1, step 1\)"):
        collect(env, lambda o: 7 if tuple(o[1:]) == (1, 1) else 0, n_transitions=50, gamma=GAMMA, seed=0)


@pytest.mark.parametrize("answer", [[[2.0, 0], [0, 0]], [[np.nan, 0], [0, 0]]])
def test_collect_refuses_continuous_actions_outside_the_space(answer):
    with pytest.raises(CollectionError, match=r"is outside Box\(-1.0, 1.0, \(2, 2\), float32\)"):
        collect(Sampling(spaces.Discrete(2)), lambda o: answer, n_transitions=5, gamma=GAMMA)


def test_collect_refuses_integers_that_would_overflow():
    class Small(Scripted):
        action_space = spaces.Box(0, 100, (1,), np.uint8)

    with pytest.raises(CollectionError, match=r"action \[256\] is outside"):
        collect(Small(), lambda observation: [256], n_transitions=5, gamma=GAMMA)


def test_collect_reports_failing_policies():
    def fragile(observation):
        if observation[1] == 3:
            raise KeyError("no such state")
        return act(observation)

    with pytest.raises(CollectionError, match=r"policy failed: KeyError.*\(episode 3, step 0\)") as i:
        collect(Scripted(), fragile, n_transitions=50, gamma=GAMMA, seed=0)
    assert isinstance(i.value.__cause__, KeyError)
    assert_kept(i.value, 1, 6)
    with pytest.raises(CollectionError, match=r"KeyError.*\(step 6 of all 2 sub-environments\)") as i:
        collect(dummy(2), fragile, n_transitions=50, gamma=GAMMA, seed=0)
    assert_kept(i.value, 2, 6)


def test_collect_refuses_predict_without_state():
    class Bare:
        def predict(self, observation, deterministic=True):
            return act_on_all(observation)

    with pytest.raises(CollectionError, match=r"predict must return \(actions, state\)"):
        collect(Scripted(), Bare(), n_transitions=5, gamma=GAMMA)


def test_collect_refuses_unknown_environments_and_policies():
    with pytest.raises(CollectionError, match=r"cannot make environment 'NoSuch-v0': .*NoSuch") as i:
        collect("NoSuch-v0", n_transitions=5, gamma=GAMMA)
    assert i.value.trajectories is None
    with pytest.raises(TypeError, match=r"expected an environment id.*; got int"):
        collect(3, n_transitions=5, gamma=GAMMA)
    with pytest.raises(TypeError, match=r"expected a policy with predict.*; got str"):
        collect(Scripted(), "left", n_transitions=5, gamma=GAMMA)  # type: ignore[arg-type]


class Native(VectorEnv):
    """Two sub-environments that end every other step."""

    num_envs = 2
    single_observation_space = spaces.Box(-1, 1, (1,))
    single_action_space = spaces.Discrete(2)
    observation_space = batch_space(single_observation_space, 2)
    action_space = batch_space(single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros((2, 1), dtype=np.float32), {}

    def step(self, actions):
        self.steps += 1
        over = np.array([self.steps % 2 == 0, False])
        return np.full((2, 1), 0.5, dtype=np.float32), np.ones(2), over, np.zeros(2, dtype=bool), {}


@pytest.mark.parametrize("mode", [None, "NextStep"])
def test_collect_refuses_undeclared_autoreset(mode):
    env = Native()
    env.metadata = {} if mode is None else {"autoreset_mode": mode}
    with pytest.raises(CollectionError, match=rf"does not declare how it resets.*got {mode!r}") as i:
        collect(env, n_transitions=5, gamma=GAMMA)
    assert i.value.trajectories is None


def test_collect_refuses_wrongly_declared_autoreset():
    env = Native()
    env.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    with pytest.raises(CollectionError, match="no 'final_obs'") as info:
        collect(env, n_transitions=50, gamma=GAMMA)
    kept = info.value.trajectories
    assert kept is not None and kept.n_transitions == 2
    env.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    with pytest.raises(CollectionError, match=r"ignores options\['reset_mask'\]"):
        collect(env, n_transitions=50, gamma=GAMMA)


@pytest.mark.parametrize(
    "amounts",
    [
        {},
        {"n_transitions": 5, "n_episodes": 5},
        {"n_transitions": 0},
        {"n_episodes": -1},
        {"n_transitions": 2.5},
        {"n_episodes": True},
        {"n_transitions": 5, "gamma": 1.5},
        {"n_transitions": 5, "gamma": float("nan")},
    ],
)
def test_collect_refuses_bad_amounts(amounts):
    with pytest.raises(ValueError, match=r"n_transitions|n_episodes|gamma"):
        collect(Scripted(), **{"gamma": GAMMA, **amounts})


# ------------------------------------------------------------------ manners


def test_collect_closes_only_environments_it_made():
    closed = []

    class Closing(Scripted):
        def close(self):
            closed.append(self)

    env = Closing()
    collect(env, act, n_transitions=5, gamma=GAMMA)
    assert not closed
    gym.register("ClosingForCollectors-v0", entry_point=lambda **keywords: Closing(**keywords))
    collect("ClosingForCollectors-v0", act, n_transitions=5, gamma=GAMMA)
    assert len(closed) == 1
    del gym.registry["ClosingForCollectors-v0"]


def test_collect_passes_on_interrupts():
    def interrupt(observation):
        raise KeyboardInterrupt

    env = normalised(1)
    with pytest.raises(KeyboardInterrupt):
        collect(env, interrupt, n_transitions=5, gamma=GAMMA)
    assert env.training


def test_collect_shows_progress(capsys):
    data = collect(Scripted(), act, n_transitions=99, gamma=GAMMA, seed=0, progress_bar=True)
    assert_same(data, reference(n_transitions=99))
    assert "99/99" in capsys.readouterr().out


def test_collect_imports_no_optional_packages():
    code = """
import sys
from gptd_rl.rollouts.collect import collect
collect("CartPole-v1", n_transitions=5, gamma=0.9, seed=0)
heavy = {"torch", "stable_baselines3", "minari", "rich", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=".")
