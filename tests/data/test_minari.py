"""Trajectories written to Minari datasets and read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from gptd_rl import GPTD
from gptd_rl.data.minari import only_writer
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.rollouts.collect import collect
from tests.counting import GAMMA, Counting, assert_same

minari = pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def data() -> Trajectories:
    return collect(Counting(), n_transitions=30, gamma=GAMMA, seed=0)


@pytest.mark.parametrize("data_format", ["arrow", "hdf5", "parquet", None])
@pytest.mark.parametrize("with_spaces", [False, True])
def test_from_minari_inverts_to_minari(data, data_format, with_spaces):
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


def test_to_minari_keeps_both_flags(data):
    for episode, terminated in zip(data.to_minari("flags-v0"), data.terminated, strict=True):
        assert episode.terminations.tolist() == [False] * (len(episode) - 1) + [terminated]
        assert episode.truncations.tolist() == [False] * (len(episode) - 1) + [not terminated]


@pytest.mark.parametrize(
    "actions", [np.array([[4], [-2]]), np.array([1, 3]), np.array([-1, 0]), np.array([[0.5, 2.0]] * 2)]
)
def test_to_minari_infers_spaces(actions):
    episode = dict(observations=[[0.0], [0.1], [0.2]], actions=actions, rewards=[1.0, 2.0], terminated=True)
    data = Trajectories.from_episodes([episode], gamma=GAMMA)
    dataset = data.to_minari("made-up-v0")
    assert all(dataset.action_space.contains(action) for action in dataset[0].actions)
    assert_same(Trajectories.from_minari(dataset), data)


def test_from_minari_reads_varying_discounts(data):
    discounts = np.where(data.discounts > 0, np.linspace(0.1, 0.9, len(data)), 0)
    varying = Trajectories(data.states, data.rewards, discounts, data.lengths, data.terminated, data.actions)
    dataset = varying.to_minari("varying-v0")
    assert_same(Trajectories.from_minari(dataset), varying)
    assert set(Trajectories.from_minari(dataset, gamma=0.5).discounts) == {0.0, 0.5}


def test_to_minari_keeps_the_environment_spec():
    data = collect("CartPole-v1", n_transitions=50, gamma=GAMMA, seed=0)
    metadata = dict(author="A. Cat", description="random", algorithm_name="none")
    dataset = data.to_minari("cartpole/random-v0", env="CartPole-v1", metadata=metadata)
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    assert dataset.observation_space.dtype == np.float32
    assert dataset.storage.metadata["author"] == {"A. Cat"}
    assert_same(Trajectories.from_minari(dataset), data)


def test_from_minari_reads_foreign_datasets(data):
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


def test_to_minari_of_long_episodes(data):
    n = 33_000
    episode = dict(observations=np.arange(n + 1.0), actions=np.zeros(n, int), rewards=np.ones(n), terminated=True)
    long = Trajectories.from_episodes([episode], gamma=GAMMA)
    dataset = long.to_minari("long-v0")
    assert dataset.storage.FORMAT == "hdf5"
    assert_same(Trajectories.from_minari(dataset), long)
    dataset = long.to_minari("long-v1", data_format="arrow")
    with pytest.raises(ValueError, match=r"episode 0 of long-v1 has 33000 steps, but Minari returned"):
        Trajectories.from_minari(dataset)


def test_to_minari_refuses(data, root):
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


# -------------------------------------------------------------------------------------- files of others


def as_hdf5(data, root) -> Path:
    """A dataset of these data, as a file to edit."""
    data.to_minari("linked-v0", data_format="hdf5")
    return root / "linked-v0" / "data" / "main_data.hdf5"


def external(file, h5py, other) -> None:
    file["episode_0/rewards"] = h5py.ExternalLink(other, "/secret")


def soft(file, h5py, other) -> None:
    file["elsewhere"] = h5py.ExternalLink(other, "/")
    file["episode_0/rewards"] = h5py.SoftLink("/elsewhere/secret")


def nested(file, h5py, other) -> None:
    file["episode_0/infos/more"] = h5py.ExternalLink(other, "/")


def whole(file, h5py, other) -> None:
    del file["episode_0"]
    file["episode_0"] = h5py.ExternalLink(other, "/")


def virtual(file, h5py, other) -> None:
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(other, "secret", (3,))
    file.create_virtual_dataset("episode_0/rewards", layout)


def stored_elsewhere(file, h5py, other) -> None:
    file.create_dataset("episode_0/rewards", (3,), "f8", external=[(other, 0, 24)])


@pytest.mark.parametrize("edit", [external, soft, nested, whole, virtual, stored_elsewhere])
def test_from_minari_refuses_hdf5_that_refers_to_other_files(data, root, edit):
    h5py = pytest.importorskip("h5py")
    path, other = as_hdf5(data, root), str(root / "other.hdf5")
    with h5py.File(other, "w") as file:
        file["secret"] = np.arange(3.0)
    with h5py.File(path, "a") as file:
        if edit not in (nested, whole):
            del file["episode_0/rewards"]
        edit(file, h5py, other)
    for read in (Trajectories.from_minari, GPTD().fit):
        with pytest.raises(ValueError, match=r"is a link to .*, and links are not followed|takes its numbers from"):
            read("linked-v0")


def test_from_minari_reads_hdf5_whose_groups_form_a_circle(data, root):
    h5py = pytest.importorskip("h5py")
    with h5py.File(as_hdf5(data, root), "a") as file:
        file["episode_0/back"] = file["episode_0"]
    assert_same(Trajectories.from_minari("linked-v0"), data)


@pytest.mark.parametrize("data_format", ["arrow", "hdf5", "parquet"])
@pytest.mark.parametrize("spoilt", ["metadata.json", "data"])
def test_from_minari_says_in_one_line_that_files_are_damaged(data, root, data_format, spoilt):
    data.to_minari("cut-v0", data_format=data_format)
    folder = root / "cut-v0" / "data"
    names = {"arrow": "0/part-0.arrow", "parquet": "0/part-0.parquet", "hdf5": "main_data.hdf5"}
    path = folder / (names[data_format] if spoilt == "data" else spoilt)
    path.write_bytes(path.read_bytes()[:100])
    for read in (Trajectories.from_minari, GPTD().fit):
        with pytest.raises(ValueError, match=r"the dataset 'cut-v0' cannot be read, so it is damaged \(\w+: ") as info:
            read("cut-v0")
        assert "\n" not in str(info.value)


def test_to_minari_refuses_a_second_writer(data):
    with only_writer("busy/one-v0"), pytest.raises(BlockingIOError, match=r"is writing the dataset 'busy/one-v0'"):
        data.to_minari("busy/one-v0")
    assert_same(Trajectories.from_minari(data.to_minari("busy/one-v0")), data)
