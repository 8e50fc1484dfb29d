"""Minari datasets in and out, and collecting into them through kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.collect import collect
from gptd_rl.rollouts.streaming import collect_to_minari

minari = pytest.importorskip("minari")
GAMMA = 0.9


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


class Counting(gym.Env):
    """Observation (episode, step) as a Dict; the action is repeated in the reward."""

    observation_space = spaces.Dict({"episode": spaces.Discrete(1000), "step": spaces.Box(0, 1e6, (1,), np.float64)})
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, lengths: tuple = (3, 1, 4), fails_at: tuple | None = None) -> None:
        self.lengths, self.fails_at = lengths, fails_at
        self.episode = -1

    def observe(self) -> dict:
        return {"episode": np.int64(self.episode), "step": np.array([float(self.steps)])}

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        if (self.episode, self.steps) == self.fails_at:
            raise RuntimeError("out of order")
        over = self.steps == self.lengths[self.episode % len(self.lengths)]
        even = self.episode % 2 == 0
        terminated, truncated = over and even, over and (not even or self.episode % 4 == 0)
        return self.observe(), float(action[0]), terminated, truncated, {}


def assert_same(one: Trajectories, other: Trajectories) -> None:
    for name in ("states", "rewards", "discounts", "lengths", "terminated", "actions"):
        a, b = getattr(one, name), getattr(other, name)
        assert_array_equal(a, b, err_msg=name)
        assert a.dtype == b.dtype, name


@pytest.fixture
def data() -> Trajectories:
    return collect(Counting(), n_transitions=30, gamma=GAMMA, seed=0)


# ------------------------------------------------------------------ in and out


@pytest.mark.parametrize("data_format", ["arrow", "hdf5", "parquet", None])
@pytest.mark.parametrize("with_spaces", [False, True])
def test_there_and_back(data, data_format, with_spaces):
    known: dict[str, Any] = dict(env=Counting()) if with_spaces else {}
    dataset = data.to_minari("counting/random-v0", data_format=data_format, **known)
    assert_same(Trajectories.from_minari(dataset), data)
    assert_same(Trajectories.from_minari("counting/random-v0"), data)
    assert dataset.total_steps == data.n_transitions
    assert dataset.total_episodes == data.n_segments
    assert "counting/random-v0" in minari.list_local_datasets()
    if with_spaces:
        assert dataset.observation_space == Counting.observation_space
        assert dataset.action_space == Counting.action_space


def test_both_flags_are_kept(data):
    for episode, terminated in zip(data.to_minari("flags-v0"), data.terminated, strict=True):
        assert episode.terminations.tolist() == [False] * (len(episode) - 1) + [terminated]
        assert episode.truncations.tolist() == [False] * (len(episode) - 1) + [not terminated]


@pytest.mark.parametrize(
    "actions", [np.array([[4], [-2]]), np.array([1, 3]), np.array([-1, 0]), np.array([[0.5, 2.0]] * 2)]
)
def test_spaces_are_made_up_if_need_be(actions):
    episode = dict(observations=[[0.0], [0.1], [0.2]], actions=actions, rewards=[1.0, 2.0], terminated=True)
    data = Trajectories.from_episodes([episode], gamma=GAMMA)
    dataset = data.to_minari("made-up-v0")
    assert all(dataset.action_space.contains(action) for action in dataset[0].actions)
    assert_same(Trajectories.from_minari(dataset), data)


def test_varying_discounts_come_back(data):
    discounts = np.where(data.discounts > 0, np.linspace(0.1, 0.9, len(data)), 0)
    varying = Trajectories(data.states, data.rewards, discounts, data.lengths, data.terminated, data.actions)
    dataset = varying.to_minari("varying-v0")
    assert_same(Trajectories.from_minari(dataset), varying)
    assert set(Trajectories.from_minari(dataset, gamma=0.5).discounts) == {0.0, 0.5}


def test_the_environment_can_be_made_again():
    data = collect("CartPole-v1", n_transitions=50, gamma=GAMMA, seed=0)
    metadata = dict(author="A. Cat", description="random", algorithm_name="none")
    dataset = data.to_minari("cartpole/random-v0", env="CartPole-v1", metadata=metadata)
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    assert dataset.observation_space.dtype == np.float32
    assert dataset.storage.metadata["author"] == {"A. Cat"}
    assert_same(Trajectories.from_minari(dataset), data)


def test_datasets_of_others(data):
    """Written by Minari itself, without discounts, one episode having no flag and one both."""
    from minari.data_collector import EpisodeBuffer

    def episode(terminated, truncated):
        return EpisodeBuffer(
            observations=np.array([0, 1, 2]),
            actions=np.array([1, 0]),
            rewards=[1.0, 2.0],
            terminations=[False, terminated],
            truncations=[False, truncated],
        )

    with pytest.warns(UserWarning, match=r"is set to None|env_spec is None"):
        dataset = minari.create_dataset_from_buffers(
            "theirs-v0",
            [episode(False, False), episode(True, True), episode(False, True)],
            observation_space=spaces.Discrete(3),
            action_space=spaces.Discrete(2),
        )
    read = Trajectories.from_minari(dataset, gamma=0.8)
    assert read.terminated.tolist() == [False, True, False]
    assert_array_equal(read.states[:3], np.eye(3))
    assert set(read.discounts) == {0.0, 0.8}
    with pytest.raises(ValueError, match="no discount: pass gamma"):
        Trajectories.from_minari(dataset)


def test_episodes_too_long_for_minari(data):
    n = 33_000
    episode = dict(observations=np.arange(n + 1.0), actions=np.zeros(n, int), rewards=np.ones(n), terminated=True)
    long = Trajectories.from_episodes([episode], gamma=GAMMA)
    dataset = long.to_minari("long-v0")
    assert dataset.storage.FORMAT == "hdf5"
    assert_same(Trajectories.from_minari(dataset), long)
    dataset = long.to_minari("long-v1", data_format="arrow")
    with pytest.raises(ValueError, match=r"episode 0 of long-v1 has 33000 steps, but Minari returned"):
        Trajectories.from_minari(dataset)


def test_what_minari_cannot_hold(data, root):
    with pytest.raises(ValueError, match="these trajectories have none"):
        Trajectories.from_chain([0, 1, 2], [1, 1], [0.9, 0.9]).to_minari("none-v0")
    paid = data.rewards.copy()
    paid[data.last[data.terminated][0]] = 1.0
    changed = Trajectories(data.states, paid, data.discounts, data.lengths, data.terminated, data.actions)
    with pytest.raises(ValueError, match="what follows a terminal state"):
        changed.to_minari("paid-v0")
    with pytest.raises(ValueError, match=r"the states are no observations from Discrete\(1001\)"):
        data.to_minari("wrong-v0", observation_space=spaces.Discrete(1001))
    with pytest.raises(ValueError, match=r"the actions are not from Discrete\(2\)"):
        data.to_minari("wrong-v0", action_space=spaces.Discrete(2))
    for name in ("no version", "no-version", "../up-v0"):
        with pytest.raises(ValueError, match="expected a dataset id such as"):
            data.to_minari(name)
    assert not any(path.is_dir() for path in root.iterdir()), "nothing half-made is left"
    data.to_minari("twice-v0")
    with pytest.raises(ValueError, match="'twice-v0' exists already"):
        data.to_minari("twice-v0")
    with pytest.raises(FileNotFoundError, match="nowhere-v0"):
        Trajectories.from_minari("nowhere-v0")


# ------------------------------------------------------------------ streams


def test_a_stream_is_what_would_be_collected():
    expected = collect(Counting(), n_transitions=300, gamma=GAMMA, seed=5)
    dataset = collect_to_minari(Counting(), dataset_id="some/stream-v0", n_transitions=300, gamma=GAMMA, seed=5)
    assert_same(Trajectories.from_minari(dataset), expected)
    assert dataset.total_steps == 300
    assert dataset.observation_space == Counting.observation_space
    assert dataset.storage.metadata["dataset_size"] > 0


def test_a_stream_of_several_environments_has_the_same_episodes():
    def make():
        return gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")

    dataset = collect_to_minari(make(), dataset_id="several-v0", n_transitions=200, gamma=GAMMA, seed=5)
    streamed = sorted(s.states.tolist() for s in Trajectories.from_minari(dataset))
    collected = collect(make(), n_transitions=200, gamma=GAMMA, seed=5)
    assert streamed == sorted(s.states.tolist() for s in collected)


def test_long_episodes_are_written_in_pieces_that_share_their_ends():
    env = Counting(lengths=(2000, 5))
    dataset = collect_to_minari(env, dataset_id="pieces-v0", n_transitions=2500, gamma=GAMMA, chunk=300)
    data = Trajectories.from_minari(dataset)
    assert data.n_transitions == 2500
    assert data.lengths.max() <= 300 + 256 + 1
    pieces = [s for s in data if s.states[0, 0] == 1]
    assert len(pieces) > 3
    for one, following in pairwise(pieces):
        assert_array_equal(one.states[-1], following.states[0])
        assert not one.terminated[0]
    assert pieces[-1].terminated[0]
    assert sum(p.n_transitions for p in pieces) == 2000


def test_normalised_observations_are_kept_as_seen():
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    expected = collect(env, n_transitions=60, gamma=GAMMA, seed=0)
    dataset = collect_to_minari(env, dataset_id="normal-v0", n_transitions=60, gamma=GAMMA, seed=0)
    assert_same(Trajectories.from_minari(dataset), expected)


def test_a_stream_can_be_lengthened_with_new_episodes():
    def lengthen(n):
        return Trajectories.from_minari(
            collect_to_minari("CartPole-v1", dataset_id="longer-v0", n_transitions=n, gamma=GAMMA, seed=5)
        )

    first, second = lengthen(100), lengthen(250)
    assert_same(second[: first.n_segments], first)
    assert second.n_transitions == 250
    starts = second.states[second.starts]
    assert len(np.unique(starts, axis=0)) == len(starts), "no episode was collected twice"
    assert_same(lengthen(100), second)


def test_progress_counts_what_was_there(capsys):
    collect_to_minari(Counting(), dataset_id="bar-v0", n_transitions=30, gamma=GAMMA)
    collect_to_minari(Counting(), dataset_id="bar-v0", n_transitions=70, gamma=GAMMA, progress_bar=True)
    assert "70/70" in capsys.readouterr().out


def test_after_an_error_everything_is_in_the_dataset():
    with pytest.raises(CollectionError, match=r"out of order \(episode 8, step 1\)"):
        collect_to_minari(Counting(fails_at=(8, 2)), dataset_id="err-v0", n_transitions=90, gamma=GAMMA, seed=0)
    lengths = [len(e) for e in minari.load_dataset("err-v0")]
    assert lengths == [3, 1, 4, 3, 1, 4, 3, 1, 1]
    with pytest.raises(CollectionError, match=r"out of order \(episode 2, step 3\)"):
        collect_to_minari(Counting(fails_at=(2, 4)), dataset_id="err-v0", n_transitions=90, gamma=GAMMA, seed=0)
    assert [len(e) for e in minari.load_dataset("err-v0")] == [*lengths, 3, 1, 3]


def test_streams_are_not_mixed_up(data):
    data.to_minari("whole-v0")
    with pytest.raises(ValueError, match="was not begun by collect_to_minari"):
        collect_to_minari(Counting(), dataset_id="whole-v0", n_transitions=90, gamma=GAMMA)
    collect_to_minari(Counting(), dataset_id="mine-v0", n_transitions=20, gamma=GAMMA)
    with pytest.raises(ValueError, match=r"begun with other gamma: 0.9, not 0.5"):
        collect_to_minari(Counting(), dataset_id="mine-v0", n_transitions=90, gamma=0.5)
    with pytest.raises(ValueError, match="begun with other observations"):
        collect_to_minari("CartPole-v1", dataset_id="mine-v0", n_transitions=90, gamma=GAMMA)
    with pytest.raises(ValueError, match="gamma must lie in"):
        collect_to_minari(Counting(), dataset_id="new-v0", n_transitions=90, gamma=2)
    assert set(minari.list_local_datasets()) == {"whole-v0", "mine-v0"}
    with pytest.raises(ValueError, match="chunk must be at most 32000"):
        collect_to_minari(Counting(), dataset_id="mine-v0", n_transitions=90, gamma=GAMMA, chunk=40_000)


@pytest.mark.parametrize("spoilt", ["", "half", "gone"])
def test_what_a_kill_can_spoil_is_mended(root, spoilt):
    """The account of the whole is cut short, and the last episode is half written."""
    data = Trajectories.from_minari(
        collect_to_minari(Counting(), dataset_id="s-v0", n_transitions=80, gamma=GAMMA, seed=0)
    )
    folder = root / "s-v0" / "data"
    text = (folder / "metadata.json").read_text()
    (folder / "metadata.json").write_text(text[: len(text) // 2] if spoilt else "")
    last = folder / str(data.n_segments - 1)
    if spoilt == "gone":
        (last / "metadata.json").unlink()
    else:
        (last / "metadata.json").write_text("")
    (last / "part-0.arrow").write_bytes(b"half")
    (root / ".t-v0.partial").mkdir()  # killed while making an empty dataset
    collect_to_minari(Counting(), dataset_id="t-v0", n_transitions=20, gamma=GAMMA)
    again = Trajectories.from_minari(
        collect_to_minari(Counting(), dataset_id="s-v0", n_transitions=99, gamma=GAMMA, seed=0)
    )
    assert again.n_transitions == 99
    assert_same(again[: data.n_segments - 1], data[:-1])


SCRIPT = """
import sys, time
import gymnasium as gym
import numpy as np
from gptd_rl.rollouts.streaming import collect_to_minari

class Logged(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.np_random.random(), 0
        self.length = int(self.np_random.integers(1, 12))
        return np.array([self.episode, 0.0]), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == self.length
        if over:
            log.write(f"{self.episode!r} {self.length}\\n")
        return np.array([self.episode, self.steps]), 1.0, over, False, {}

log = open(sys.argv[1], "a", buffering=1)
collect_to_minari(Logged(), dataset_id="killed/often-v0", n_transitions=int(sys.argv[2]), gamma=0.9, seed=3)
"""


def test_kills_cost_the_episode_under_way(root):
    script, log = root / "script.py", root / "log"
    script.write_text(SCRIPT)
    folder = root / "killed" / "often-v0" / "data"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    kept: list = []
    for kill in range(3):
        process = subprocess.Popen([sys.executable, script, log, "1000000"], env=environment)
        deadline = time.monotonic() + 60
        while not (folder / str(len(kept) + 25 + 8 * kill)).exists():
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before, kept = kept, _complete(folder)
        assert kept[: len(before)] == before, "what was there is there"
        ended = log.read_text().splitlines()
        assert len(ended) - len(kept) <= kill + 1, "each kill costs one episode at most"

    total = sum(length for _, length in kept) + 101
    subprocess.run([sys.executable, script, log, str(total)], env=environment, check=True)
    data = Trajectories.from_minari("killed/often-v0")
    assert data.n_transitions == total
    assert [(s.states[0, 0], s.n_transitions) for s in data][: len(kept)] == kept
    assert len({s.states[0, 0] for s in data}) == data.n_segments, "no episode was collected twice"
    assert data.terminated[:-1].all()
    for segment in data:
        assert_array_equal(segment.states[:, 1], np.arange(len(segment)))


def _complete(folder) -> list:
    """First observation and length of the episodes whose account is complete, read by other means."""
    ipc = pytest.importorskip("pyarrow.ipc")
    found: list = []
    while (account := folder / str(len(found)) / "metadata.json").exists() and account.read_text():
        table = ipc.open_file(account.with_name("part-0.arrow")).read_all()
        length = json.loads(account.read_text())["total_steps"]
        assert table.num_rows == length + 1
        found.append((table["observations"][0].as_py()[0], length))
    return found


def test_trajectories_have_both_ways_as_methods(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episode = dict(observations=[[0.0], [1.0], [2.0]], actions=[0, 1], rewards=[1.0, 2.0], terminated=True)
    data = Trajectories.from_episodes([episode], gamma=0.9)
    data.to_minari("walk/method-v0")
    back = Trajectories.from_minari("walk/method-v0")
    np.testing.assert_array_equal(back.states, data.states)
    np.testing.assert_array_equal(back.discounts, data.discounts)
    np.testing.assert_array_equal(back.terminated, data.terminated)
