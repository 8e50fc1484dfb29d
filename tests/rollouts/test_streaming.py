"""Collecting into Minari datasets, continued after errors and after kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.collect import collect
from gptd_rl.rollouts.streaming import collect_to_minari
from tests.counting import GAMMA, Counting, assert_same

minari = pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def data() -> Trajectories:
    return collect(Counting(), n_transitions=30, gamma=GAMMA, seed=0)


def test_collect_to_minari_equals_collect():
    expected = collect(Counting(), n_transitions=300, gamma=GAMMA, seed=5)
    dataset = collect_to_minari(Counting(), dataset_id="some/stream-v0", n_transitions=300, gamma=GAMMA, seed=5)
    assert_same(Trajectories.from_minari(dataset), expected)
    assert dataset.total_steps == 300
    assert dataset.observation_space == Counting.observation_space
    assert dataset.storage.metadata["dataset_size"] > 0


def test_collect_to_minari_of_several_environments_equals_collect():
    def make():
        return gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")

    dataset = collect_to_minari(make(), dataset_id="several-v0", n_transitions=200, gamma=GAMMA, seed=5)
    streamed = sorted(s.states.tolist() for s in Trajectories.from_minari(dataset))
    collected = collect(make(), n_transitions=200, gamma=GAMMA, seed=5)
    assert streamed == sorted(s.states.tolist() for s in collected)


def test_collect_to_minari_writes_long_episodes_in_pieces():
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


def test_collect_to_minari_keeps_normalised_observations():
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    expected = collect(env, n_transitions=60, gamma=GAMMA, seed=0)
    dataset = collect_to_minari(env, dataset_id="normal-v0", n_transitions=60, gamma=GAMMA, seed=0)
    assert_same(Trajectories.from_minari(dataset), expected)


def test_collect_to_minari_continues_with_new_episodes():
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


def test_collect_to_minari_progress_counts_existing_transitions(capsys):
    collect_to_minari(Counting(), dataset_id="bar-v0", n_transitions=30, gamma=GAMMA)
    collect_to_minari(Counting(), dataset_id="bar-v0", n_transitions=70, gamma=GAMMA, progress_bar=True)
    assert "70/70" in capsys.readouterr().out


def test_collect_to_minari_keeps_all_before_an_error():
    with pytest.raises(CollectionError, match=r"out of order \(episode 8, step 1\)"):
        collect_to_minari(Counting(fails_at=(8, 2)), dataset_id="err-v0", n_transitions=90, gamma=GAMMA, seed=0)
    lengths = [len(e) for e in minari.load_dataset("err-v0")]
    assert lengths == [3, 1, 4, 3, 1, 4, 3, 1, 1]
    with pytest.raises(CollectionError, match=r"out of order \(episode 2, step 3\)"):
        collect_to_minari(Counting(fails_at=(2, 4)), dataset_id="err-v0", n_transitions=90, gamma=GAMMA, seed=0)
    assert [len(e) for e in minari.load_dataset("err-v0")] == [*lengths, 3, 1, 3]


def test_collect_to_minari_refuses_other_settings(data):
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
def test_collect_to_minari_repairs_damaged_files(root, spoilt):
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


def snapshot(folder: Path) -> dict[Path, bytes]:
    """All files in a folder."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("place", ["in the middle", "at the end"])
@pytest.mark.parametrize("spoilt", ["account", "half account", "list", "other length", "table", "half table", "all"])
def test_collect_to_minari_refuses_a_damaged_episode(root, spoilt, place):
    data = Trajectories.from_minari(
        collect_to_minari(Counting(), dataset_id="mid-v0", n_transitions=40, gamma=GAMMA, seed=0)
    )
    number = 2 if place == "in the middle" else data.n_segments - 1
    folder = root / "mid-v0" / "data"
    episode = folder / str(number)
    account, table = episode / "metadata.json", episode / "part-0.arrow"
    if spoilt == "all":
        shutil.rmtree(episode)
    elif "account" in spoilt:
        account.write_text(account.read_text()[: 9 if "half" in spoilt else 0])
    elif "table" in spoilt:
        table.write_bytes(table.read_bytes()[: 300 if "half" in spoilt else 0])
    else:
        account.write_text("[]" if spoilt == "list" else json.dumps({"id": 2, "total_steps": 77}))
    before = snapshot(root)
    message = rf"^episode {number} of the dataset at .*mid-v0 is damaged or missing: nothing was changed\. Restore it"
    with pytest.raises(ValueError, match=message):
        collect_to_minari(Counting(), dataset_id="mid-v0", n_transitions=90, gamma=GAMMA, seed=0)
    assert snapshot(root) == before

    for lost in range(number, data.n_segments):  # what the message advises
        shutil.rmtree(folder / str(lost), ignore_errors=True)
    (folder / "metadata.json").unlink()
    again = Trajectories.from_minari(
        collect_to_minari(Counting(), dataset_id="mid-v0", n_transitions=90, gamma=GAMMA, seed=0)
    )
    assert again.n_transitions == 90
    assert_same(again[:number], data[:number])


@pytest.mark.parametrize("text", ["", "{}", "[]"])
def test_collect_to_minari_refuses_a_damaged_note(root, text):
    collect_to_minari(Counting(), dataset_id="note-v0", n_transitions=20, gamma=GAMMA)
    (root / "note-v0" / "gptd_rl.json").write_text(text)
    with pytest.raises(ValueError, match=r"gptd_rl.json is damaged \(.*\): choose another id, or restore the file"):
        collect_to_minari(Counting(), dataset_id="note-v0", n_transitions=90, gamma=GAMMA)


def test_collect_to_minari_replaces_the_summary_in_one_step(root, monkeypatch):
    """Whoever reads while it is being written sees the old one or the new one."""
    collect_to_minari(Counting(), dataset_id="one-v0", n_transitions=20, gamma=GAMMA)
    summary, states = root / "one-v0" / "data" / "metadata.json", []
    original = json.dumps

    def watched(*arguments, **options):
        states.append(json.loads(summary.read_text())["total_steps"])
        return original(*arguments, **options)

    def refused(*_):
        raise AssertionError("a file that is overwritten in place is damaged by a kill")

    monkeypatch.setattr(json, "dumps", watched)
    monkeypatch.setattr("minari.dataset.minari_storage.MinariStorage.update_metadata", refused)
    collect_to_minari(Counting(), dataset_id="one-v0", n_transitions=60, gamma=GAMMA)
    assert states == sorted(states) and states[0] == 20 and states[-1] == 60


def test_collect_to_minari_refuses_a_second_writer(root):
    class Reentrant(Counting):
        def step(self, action):
            with pytest.raises(BlockingIOError, match=r"another process or thread is writing the dataset 'two/w-v0'"):
                collect_to_minari(Counting(), dataset_id="two/w-v0", n_transitions=50, gamma=GAMMA)
            return super().step(action)

    def to_minari():
        collect(Counting(), n_transitions=30, gamma=GAMMA, seed=0).to_minari("two/w-v0")

    class Other(Counting):
        def step(self, action):
            with pytest.raises(BlockingIOError, match="wait until it has ended, or choose another id"):
                to_minari()
            return super().step(action)

    collect_to_minari(Reentrant(), dataset_id="two/w-v0", n_transitions=10, gamma=GAMMA, seed=0)
    collect_to_minari(Other(), dataset_id="two/w-v0", n_transitions=20, gamma=GAMMA, seed=0)
    assert Trajectories.from_minari("two/w-v0").n_transitions == 20
    assert not list(root.rglob(".*")), "no lock is left over"


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


def test_collect_to_minari_loses_one_episode_per_kill(root):
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


def test_collect_to_minari_leaves_a_readable_dataset_after_a_kill(root):
    script, log = root / "script.py", root / "log"
    script.write_text(SCRIPT)
    folder = root / "killed" / "often-v0" / "data"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    rng, n_kept = np.random.default_rng(0), 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, script, log, "1000000"], env=environment)
        deadline = time.monotonic() + 60
        while not (folder / str(n_kept + 30)).exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        with pytest.raises(BlockingIOError, match="another process or thread is writing the dataset"):
            collect_to_minari(Counting(), dataset_id="killed/often-v0", n_transitions=50, gamma=GAMMA)
        time.sleep(rng.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        data = Trajectories.from_minari("killed/often-v0")  # at once, without a call that repairs it
        assert data.n_segments > n_kept
        n_kept = data.n_segments


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
