"""Shards from anywhere, passed over by any backend: one answer, whoever does the work and however the data were cut."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, Trajectories
from gptd_rl.data import files as archive
from gptd_rl.data.resampling import split_into_shards
from gptd_rl.estimators import sparse_engine
from gptd_rl.inference import statistics
from gptd_rl.selection import bound
from gptd_rl.sharding import sources as shard_sources
from gptd_rl.sharding.backends import ATTEMPTS, Cache, Dask, ShardSpec, Threads, make_backend
from gptd_rl.sharding.dataset import ShardedDataset
from gptd_rl.sharding.sources import Episodes, File, Sources
from gptd_rl.temporal.shards import Shard
from tests.helpers import MIXES, NOISES, assert_same, sample
from tests.mdps import Walk, roll_out

every_noise = pytest.mark.parametrize("noise", NOISES)


def wander(n: int, seed: int = 0) -> Trajectories:
    """Noisy steps in the plane: some episodes end at a cliff, others at a time limit."""
    rng = np.random.default_rng(seed)

    def step(x: np.ndarray) -> tuple[np.ndarray, float, bool]:
        reached = 0.8 * x + 0.6 * rng.normal(size=2)
        return reached, -float(x[0] ** 2), bool(reached[0] > 1.3)

    return roll_out(n, lambda: rng.normal(size=2), step, gamma=0.9, time_limit=12)


def with_actions(data: Trajectories, actions: Any = None) -> Trajectories:
    actions = np.zeros(len(data), dtype=np.int64) if actions is None else actions
    return Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)


DATA = wander(120, seed=2)
PARTS = [DATA[:4], DATA[4:5], DATA[5:8], DATA[8:]]
X = np.random.default_rng(1).normal(size=(9, 2))


def quick(**options: Any) -> GPTD:
    defaults: dict[str, Any] = dict(
        kernel="isotropic", method="sparse", subset_size=12, objective="marginal_likelihood", n_restarts=0
    )
    return GPTD(**(defaults | options))


def answers(v: GPTD) -> dict[str, Any]:
    """All that users read off a fitted model."""
    assert v.method_ == "sparse"
    mean, std = v.predict(X, return_std=True)
    lower, upper = v.confidence_interval(X)
    return dict(
        theta=v.theta_,
        subset=v.inducing_points_,
        evidence=[v.log_marginal_likelihood_, v.complexity_, v.data_fit_],
        mean=mean,
        std=std,
        lower=lower,
        upper=upper,
    )


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in one:
        assert_array_equal(one[name], other[name], err_msg=name)


def assert_close(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name in one:
        assert_allclose(one[name], other[name], rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str], dict[str, Any]]:
    """The answers of each noise model, from one piece and from PARTS, with threads of our own."""
    assert 0.2 < DATA.terminated.mean() < 0.8
    return {
        (noise, cut): answers(quick(noise=noise).fit(data))
        for noise in NOISES
        for cut, data in (("whole", DATA), ("parts", PARTS))
    }


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes that share no memory with this one."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


HANDS = ("own threads", "one thread", "two threads", "processes")
every_hand = pytest.mark.parametrize("executor", HANDS, indirect=True)


@pytest.fixture
def executor(request) -> Iterator[Executor | None]:
    if request.param == "own threads":
        yield None
    elif request.param == "processes":
        yield request.getfixturevalue("pool")
    else:
        with ThreadPoolExecutor(1 if request.param == "one thread" else 2) as threads:
            yield threads


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """PARTS, each in a file."""
    return [part.save(tmp_path / f"{i}.npz") for i, part in enumerate(PARTS)]


@pytest.fixture
def folders(tmp_path_factory, monkeypatch) -> Callable[[], list[Path]]:
    """Lists the temporary folders that the package has at the moment."""
    place = tmp_path_factory.mktemp("tmp")
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return lambda: list(place.glob("gptd-rl-*"))


def fleet_of(parts: Any, executor: Any = None, noise: Any = "stochastic") -> ShardedDataset:
    return ShardedDataset([ShardSpec(source, noise) for source in Sources.of(parts)], make_backend(executor))


# -------------------------------------------------------------------------------------- trajectories in files


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("actions", [None, "numbers", "vectors"])
def test_trajectories_come_back_from_a_file(mix, actions, tmp_path):
    data = sample(MIXES[mix], seed=3, terminal_rewards=True)
    if actions is not None:
        shape = (len(data),) if actions == "numbers" else (len(data), 2)
        kind: Any = np.int16 if actions == "numbers" else np.float32
        data = with_actions(data, np.arange(np.prod(shape)).reshape(shape).astype(kind))
    path = tmp_path / "shard"
    assert data.save(path) == path
    back = Trajectories.load(str(path))
    assert_same(back, data)
    if data.actions is not None and back.actions is not None:
        assert back.actions.dtype == data.actions.dtype
    assert [p.name for p in tmp_path.iterdir()] == ["shard"], "no ending is added, nothing else is left"


def test_thinned_trajectories_come_back_from_a_file(tmp_path):
    data = Walk(n_cells=3).sample(60, np.random.default_rng(0)).thin(5)
    assert (data.lengths == 1).any()
    assert_same(Trajectories.load(data.save(tmp_path / "thinned.npz")), data)


def test_thinned_trajectories_can_be_passed_over_by_processes(pool):
    data = wander(150).thin(4)
    assert (data.lengths == 1).any()
    assert_equal(answers(quick().fit(data, executor=pool)), answers(quick().fit(data)))


def write_spoilt(path: Path, data: Trajectories, name: str, index: Any, value: float) -> Path:
    """A file with one wrong number in it, as only another program could write it."""
    names = ("states", "rewards", "discounts", "lengths", "terminated")
    arrays = {n: np.array(getattr(data, n)) for n in names}
    arrays[name][index] = value
    return archive.write(path, arrays)


def write_object(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, states=np.array([{}], dtype=object))


def write_lone_state(path: Path) -> None:
    """Of a truncated segment: it says nothing, and thinning does not leave any."""
    one = np.zeros(1)
    archive.write(path, dict(states=one[:, None], rewards=one, discounts=one, lengths=one + 1, terminated=one > 0))


BAD_FILES: dict[str, tuple[Any, str]] = {
    "text": (lambda path: path.write_text("Dear reader,\n"), "no whole archive"),
    "nothing": (lambda path: path.write_bytes(b""), "no whole archive"),
    "other arrays": (
        lambda path: archive.write(path, dict(weights=np.ones(3), bias=np.ones(1))),
        "holds bias, weights",
    ),
    "no rewards": (lambda path: archive.write(path, dict(states=np.ones((3, 1)))), "rewards"),
    "objects": (write_object, "pickle"),
    "nan": (lambda path: write_spoilt(path, DATA, "states", (5, 1), np.nan), r"states\[5, 1\] is nan"),
    "infinite": (lambda path: write_spoilt(path, DATA, "rewards", 7, np.inf), r"rewards\[7\] is inf"),
    "discount": (lambda path: write_spoilt(path, DATA, "discounts", 2, 1.5), r"discounts\[2\] is 1\.5"),
    "lengths": (lambda path: write_spoilt(path, DATA, "lengths", 0, 99), r"lengths add up to"),
    "a lone state": (write_lone_state, "a transition needs two"),
    "cut off": (lambda path: path.write_bytes(DATA.save(path).read_bytes()[:-50]), "no whole archive"),
    "cut in half": (lambda path: path.write_bytes(DATA.save(path).read_bytes()[:3000]), "no whole archive"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_that_holds_no_trajectories_is_called_that(kind, tmp_path):
    write, message = BAD_FILES[kind]
    write(tmp_path / "bad.npz")
    with pytest.raises(ValueError, match=rf"bad\.npz does not hold trajectories .*{message}") as caught:
        Trajectories.load(tmp_path / "bad.npz")
    assert "\n" not in str(caught.value)


def test_a_damaged_byte_is_noticed(tmp_path):
    path = DATA.save(tmp_path / "damaged.npz")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"damaged\.npz does not hold trajectories .*CRC"):
        Trajectories.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^there is no file .*nowhere\.npz\.$"):
        Trajectories.load(tmp_path / "nowhere.npz")


# -------------------------------------------------------------------------------------- cutting into shards


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=30), st.integers(1, 120))
def test_a_split_is_whole_segments_in_order(lengths, size):
    data = sample([(n, i % 3 == 0) for i, n in enumerate(lengths)], n_dims=1)
    shards = list(split_into_shards(data, size))
    assert_same(Trajectories.concatenate(shards), data)
    assert all(np.shares_memory(shard.states, data.states) for shard in shards), "views, not copies"
    assert all(len(shard) < size + max(lengths) for shard in shards)
    assert len(shards) <= 1 + len(data) / size
    if len(data) <= size:
        assert len(shards) == 1


def test_large_data_are_split_for_fit(monkeypatch):
    monkeypatch.setattr(shard_sources, "SHARD_SIZE", 25)
    shards = Sources.of(DATA)
    assert len(shards) == len(list(split_into_shards(DATA, 25))) > 4
    assert_same(Trajectories.concatenate([s.load() for s in shards]), DATA)


# -------------------------------------------------------------------------------------- what fit accepts


def loaded(shards: Sources) -> Trajectories:
    return Trajectories.concatenate([shard.load() for shard in shards])


def test_one_shard():
    (only,) = Sources.of(DATA)
    assert only.name == "the data"
    assert_same(only.load(), DATA)


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda parts: (part for part in parts)])
def test_several_shards_are_numbered(kind):
    shards = Sources.of(kind(PARTS))
    assert [shard.name.split(" (")[0] for shard in shards] == [f"shard {i} of 4" for i in (1, 2, 3, 4)]
    assert len({shard.key for shard in shards}) == 4
    for shard, part in zip(shards, PARTS, strict=True):
        assert_same(shard.load(), part)


def test_paths(files, tmp_path, monkeypatch):
    shards = Sources.of([str(files[0]), *files[1:]])
    assert [shard.name for shard in shards] == [f"shard {i + 1} of 4 ({path})" for i, path in enumerate(files)]
    for shard, part in zip(shards, PARTS, strict=True):
        assert_same(shard.load(), part)
    for one in (files[1], str(files[1])):
        assert_same(loaded(Sources.of(one)), PARTS[1])
    monkeypatch.chdir(tmp_path)
    relative = Sources.of("2.npz")
    monkeypatch.chdir("/")
    assert_same(loaded(relative), PARTS[2])
    other_ending = PARTS[0].save(tmp_path / "data.bin")
    assert_same(loaded(Sources.of(str(other_ending))), PARTS[0])


def test_a_mixture(files):
    shards = Sources.of([PARTS[0], files[1], PARTS[2], str(files[3])])
    assert_same(loaded(shards), DATA)


def test_a_generator_is_put_aside_as_it_comes(folders):
    """Each shard is in a file before the next is asked for, and the folder goes with the shards."""

    def stream() -> Iterator[Trajectories]:
        for i, part in enumerate(PARTS):
            (folder,) = folders()
            assert len(list(folder.iterdir())) == i
            yield part

    shards = Sources.of(stream())
    (folder,) = folders()
    assert all(isinstance(shard, File) and Path(shard.path).parent == folder for shard in shards)
    assert_same(loaded(shards), DATA)
    dataset = ShardedDataset([ShardSpec(shard, "stochastic") for shard in shards], Threads(None), (shards,))
    dataset = dataset.changed(every=2)
    del shards
    gc.collect()
    assert folders() == [folder], "the dataset still needs it"
    del dataset
    gc.collect()
    assert folders() == []


@pytest.mark.parametrize("how", ["generator", "processes"])
def test_temporary_folders_go_without_a_warning(how, folders):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept: Any = Sources.of(iter(PARTS)) if how == "generator" else make_backend(Inline())
        assert len(folders()) == 1
        del kept
        gc.collect()
    assert folders() == []
    assert [w.category for w in caught] == []


def test_fitted_models_leave_nothing_behind(folders, pool):
    v = quick().fit(iter(PARTS), executor=pool)
    assert folders() != []
    del v
    gc.collect()
    assert folders() == []


@pytest.mark.parametrize("empty", [[], (), iter([]), (part for part in PARTS[:0])])
def test_no_shards(empty):
    with pytest.raises(ValueError, match="empty data: expected at least one shard, got none"):
        Sources.of(empty)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (None, "NoneType"),
        (3, "int"),
        (DATA.states, "ndarray"),
        ([DATA, None], "NoneType"),
        ([DATA, [DATA]], "list"),
        (iter([DATA, 3.0]), "float"),
        (Path("no-ending"), "PosixPath"),
    ],
    ids=["none", "int", "array", "none in a list", "list in a list", "float in an iterator", "path"],
)
def test_other_types_are_refused(data, kind):
    with pytest.raises(TypeError, match=rf"^fit expects Trajectories, paths .*; got {kind}: make Trajectories by "):
        Sources.of(data)


@pytest.mark.parametrize("name", ["nowhere.dat", "nowhere", "some/nowhere-v0", ""])
def test_a_name_of_nothing(name, minari_root):
    with pytest.raises(
        FileNotFoundError, match=rf"^'{name}' is neither a file nor a Minari dataset on this computer\.$"
    ):
        Sources.of(name)


def test_many_tiny_shards_are_laid_together_and_keep_their_names():
    segments = list(wander(700))
    assert len(segments) > shard_sources.MAX_UNMERGED
    n = len(segments)
    (only,) = Sources.of(segments)
    assert only.name == f"shard 1 of {n} to shard {n} of {n}"
    assert_same(only.load(), Trajectories.concatenate(segments))
    assert len(Sources.of(segments[: shard_sources.MAX_UNMERGED])) == shard_sources.MAX_UNMERGED, (
        "a few are left as they are"
    )


def test_tiny_shards_are_laid_together_only_as_far_as_they_fit(files, monkeypatch):
    monkeypatch.setattr(shard_sources, "MAX_UNMERGED", 4)
    monkeypatch.setattr(shard_sources, "SHARD_SIZE", 30)
    wide, acting = sample([(2, True)], n_dims=3), with_actions(PARTS[1])
    long = sample([(31, True)], n_dims=PARTS[1].n_dims)
    shards = Sources.of([PARTS[1], PARTS[1], wide, acting, acting, files[1], PARTS[1], long, PARTS[1]])
    names = [shard.name.split(" (")[0] for shard in shards]
    assert names == [
        "shard 1 of 9 to shard 2 of 9",
        "shard 3 of 9",
        "shard 4 of 9 to shard 5 of 9",
        "shard 6 of 9",
        "shard 7 of 9",
        "shard 8 of 9",
        "shard 9 of 9",
    ]
    assert_same(shards[0].load(), PARTS[1] + PARTS[1])


# -------------------------------------------------------------------------------------- Minari


@pytest.fixture
def minari_root(tmp_path, monkeypatch):
    pytest.importorskip("minari", reason="the extra gptd-rl[minari] is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def dataset(minari_root) -> Any:
    return with_actions(DATA).to_minari("wander/noisy-v0")


@pytest.fixture
def foreign_dataset(minari_root) -> Any:
    """Written by Minari itself, so it keeps no discounts."""
    import minari
    from minari.data_collector import EpisodeBuffer

    def buffer(segment: Trajectories) -> Any:
        n = segment.n_transitions
        at_end = np.arange(n) == n - 1
        return EpisodeBuffer(
            observations=segment.states,
            actions=np.zeros(n, dtype=np.int64),
            rewards=segment.rewards[:-1],
            terminations=at_end & segment.terminated[0],
            truncations=at_end & ~segment.terminated[0],
        )

    with pytest.warns(UserWarning, match=r"is set to None|env_spec is None"):
        return minari.create_dataset_from_buffers(
            "theirs-v0",
            [buffer(segment) for segment in DATA],
            observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float64),
            action_space=spaces.Discrete(2),
        )


def without_actions(data: Trajectories) -> Trajectories:
    assert data.actions is not None
    return Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated)


def test_minari_datasets(dataset):
    for given_as in (dataset, "wander/noisy-v0", [dataset]):
        (only,) = Sources.of(given_as)
        assert only.name == f"episodes 0–{DATA.n_segments - 1} of wander/noisy-v0"
        assert_same(without_actions(only.load()), DATA)


def test_a_given_discount_goes_before_those_kept(dataset):
    assert set(loaded(Sources.of(dataset)).discounts) == {0.0, 0.9}
    assert set(loaded(Sources.of(dataset, gamma=0.5)).discounts) == {0.0, 0.5}


def test_minari_datasets_without_discounts_need_one(foreign_dataset):
    assert_same(without_actions(loaded(Sources.of(foreign_dataset, gamma=0.9))), DATA)
    assert_same(without_actions(loaded(Sources.of("theirs-v0", gamma=0.9))), DATA)
    with refused(quick(), ValueError, r"^episodes 0–\d+ of theirs-v0: episode 0: no discount: pass gamma=…") as v:
        v.fit(foreign_dataset)
    assert_equal(answers(quick().fit(foreign_dataset, gamma=0.9)), answers(quick().fit(DATA)))


def test_large_minari_datasets_are_read_piece_by_piece(dataset, monkeypatch):
    monkeypatch.setattr(shard_sources, "SHARD_SIZE", 30)
    shards = Sources.of(dataset)
    assert len(shards) > 3
    assert all(isinstance(shard, Episodes) for shard in shards)
    assert shards[0].name.startswith(f"shard 1 of {len(shards)} (episodes 0–")
    assert max(len(shard.load()) for shard in shards) < 30 + DATA.lengths.max()
    assert_same(without_actions(loaded(shards)), DATA)
    some = Sources.of(dataset.filter_episodes(lambda episode: episode.id % 2 == 1))
    assert_same(without_actions(loaded(some)), DATA[1::2])


def test_a_dataset_beside_other_shards(dataset):
    shards = Sources.of([with_actions(DATA), dataset, "wander/noisy-v0"])
    assert [shard.name[:12] for shard in shards] == ["shard 1 of 3", "shard 2 of 3", "shard 3 of 3"]
    assert_same(without_actions(loaded(shards)), DATA + DATA + DATA)


# -------------------------------------------------------------------------------------- passing over shards


def numbered(n: int) -> list[Trajectories]:
    """Shards that can be told from each other."""
    return [sample([(3 + i, True)], n_dims=1) for i in range(n)]


def number_of(shard: Shard, seconds: float) -> int:
    """Later shards are done sooner."""
    number = len(shard.data) - 3
    time.sleep(seconds * max(0, 4 - number))
    return number


@every_hand
def test_results_come_in_the_order_of_the_shards(executor):
    dataset = fleet_of(numbered(12), executor)
    told: list[tuple[int, int]] = []
    dataset.backend.on_shard = lambda done, n: told.append((done, n))
    assert list(dataset.map(number_of, 0.03)) == list(range(12))
    assert told == [(i, 12) for i in range(13)]
    assert dataset.sum(number_of, 0.0) == sum(range(12))


class Inline(Executor):
    """The simplest executor that is neither threads nor processes: it works when asked to."""

    def __init__(self, max_workers: int = 2) -> None:
        self._max_workers = max_workers
        self.n_tasks = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.n_tasks += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_any_executor_will_do(expected):
    assert_equal(answers(quick().fit(PARTS, executor=Inline())), expected["stochastic", "parts"])


def test_only_a_few_shards_are_under_way_at_a_time():
    inline = Inline(max_workers=2)
    results = fleet_of(numbered(30), inline).map(number_of, 0.0)
    assert next(results) == 0
    assert inline.n_tasks <= 6, "results wait in memory for the slowest"
    assert list(results) == list(range(1, 30))
    assert inline.n_tasks == 30


def fails_at_two(shard: Shard, seconds: float) -> int:
    number = number_of(shard, seconds)
    if number == 2:
        raise ArithmeticError("shard 2 is odd")
    return number


@every_hand
def test_an_error_in_a_pass_comes_through(executor):
    dataset = fleet_of(numbered(6), executor)
    done: list[int] = []
    with pytest.raises(ArithmeticError, match="shard 2 is odd"):
        done.extend(dataset.map(fails_at_two, 0.0))
    assert list(dataset.map(number_of, 0.0)) == list(range(6)), "the backend are still there"


SHORT_AND_LONG = [sample([(30, False)]), sample([(4, False), (3, False)], 1), sample([(25, True), (5, False)], 2)]


def count_states(shard: Shard, factor: int) -> int:
    return factor * len(shard.data)


@every_hand
def test_a_shard_of_which_thinning_leaves_nothing_gives_no_result(executor):
    dataset = fleet_of(SHORT_AND_LONG, executor).changed(every=10)
    assert list(dataset.map(count_states, 1)) == [3, 3]
    late = dataset.changed(offset=7)
    assert list(late.map(count_states, 1)) == [len(SHORT_AND_LONG[i].thin(10, 7)) for i in (0, 2)]
    assert list(dataset.changed(every=1).map(count_states, 1)) == [30, 7, 30]


def first_state(shard: Shard, factor: float) -> np.ndarray:
    return factor * shard.data.states[0]


@every_hand
def test_inputs_are_taken(executor):
    dataset = fleet_of(SHORT_AND_LONG, executor).changed(inputs=np.array([2, 0]))
    for found, data in zip(dataset.map(first_state, 2.0), SHORT_AND_LONG, strict=True):
        assert_array_equal(found, 2.0 * data.states[0, [2, 0]])


def test_two_fleets_are_one():
    one, other = fleet_of(numbered(2)), fleet_of(numbered(5)[2:], Inline())
    both = one + other
    assert list(both.map(number_of, 0.0)) == list(range(5))
    assert both.backend is one.backend


@dataclass(frozen=True, eq=False)
class Counted(File):
    """A file that keeps a record of who reads it."""

    log: str = ""

    def load(self) -> Trajectories:
        with open(self.log, "a") as log:
            log.write(f"{Path(self.path).name} {os.getpid()}\n")
        return super().load()


@pytest.fixture
def counted(files, tmp_path, monkeypatch) -> list[Counted]:
    """PARTS as files that count, which fit accepts for the time being."""
    original = shard_sources._shards_of
    monkeypatch.setattr(
        shard_sources,
        "_shards_of",
        lambda item, gamma: iter([item]) if isinstance(item, File) else original(item, gamma),
    )
    return [Counted(str(path), log=str(tmp_path / "log")) for path in files]


def loads(shards: list[Counted]) -> list[int]:
    """How often each shard was read."""
    lines = Path(shards[0].log).read_text().splitlines()
    return [sum(line.startswith(Path(shard.path).name) for line in lines) for shard in shards]


@pytest.fixture
def passes(monkeypatch) -> list[int]:
    """Number of passes over shards so far."""
    original, n = ShardedDataset.map, [0]

    def counting(self: ShardedDataset, *arguments: Any) -> Any:
        n[0] += 1
        return original(self, *arguments)

    monkeypatch.setattr(ShardedDataset, "map", counting)
    return n


def hooked(monkeypatch: pytest.MonkeyPatch, hook: Any) -> list[int]:
    """Have `hook(n)` called before the n-th evaluation of the bound."""
    original, n = bound.FixedBound.__call__, [0]

    def watched(self: bound.FixedBound, model: Any) -> Any:
        n[0] += 1
        hook(n[0])
        return original(self, model)

    monkeypatch.setattr(bound.FixedBound, "__call__", watched)
    return n


@every_hand
def test_a_shard_is_read_once_by_each_process(executor, counted, passes, expected):
    v = quick().fit(counted, executor=executor)
    n_processes = 2 if isinstance(executor, ProcessPoolExecutor) else 1
    assert passes[0] >= 8
    assert all(1 <= n <= n_processes for n in loads(counted))
    assert_equal(answers(v), expected["stochastic", "parts"])


def test_what_does_not_fit_into_memory_is_read_again(counted):
    specs = [ShardSpec(source, "stochastic") for source in counted]
    sizes = [Shard.of(part, "stochastic").nbytes for part in PARTS]
    cache = Cache(limit=max(sizes) + min(sizes))
    small, large, other, another = np.argsort(sizes)
    first = cache.get(specs[large])
    cache.get(specs[small])
    assert cache.get(specs[large]) is first, "both fit"
    cache.get(specs[other])  # the small one was not used for longest
    assert [loads(counted)[i] for i in (small, large, other, another)] == [1, 1, 1, 0]
    cache.get(specs[small])
    assert loads(counted)[small] == 2
    tiny = Cache(limit=1)
    assert tiny.get(specs[another]) is tiny.get(specs[another]), "one is always kept"


def test_thinned_and_whole_are_kept_apart(counted):
    cache = Cache(limit=np.inf)
    spec = ShardSpec(counted[0], "stochastic")
    thinned = ShardSpec(counted[0], "stochastic", every=3)
    shards = [cache.get(spec), cache.get(thinned), cache.get(ShardSpec(counted[0], "stochastic", every=3, offset=1))]
    shards += [cache.get(ShardSpec(counted[0], noise="deterministic"))]
    shards += [cache.get(ShardSpec(counted[0], "stochastic", inputs=np.array([i]))) for i in (0, 1)]
    assert len({id(shard) for shard in shards}) == 6
    assert cache.get(spec) is shards[0] and cache.get(thinned) is shards[1]


# -------------------------------------------------------------------------------------- the same answer


@every_noise
@every_hand
def test_hands_do_not_matter(executor, noise, expected):
    assert_equal(answers(quick(noise=noise).fit(PARTS, executor=executor)), expected[noise, "parts"])


@every_noise
def test_shards_do_not_matter(noise, expected):
    assert_close(expected[noise, "parts"], expected[noise, "whole"])
    other = [DATA[:10], DATA[10:]]
    assert_close(answers(quick(noise=noise).fit(other)), expected[noise, "whole"])
    assert not np.array_equal(expected["stochastic", "whole"]["theta"], expected["deterministic", "whole"]["theta"])


@every_noise
@pytest.mark.parametrize("kind", ["generator", "files", "file", "Minari"])
def test_where_shards_come_from_does_not_matter(kind, noise, files, expected, request, tmp_path):
    v = quick(noise=noise)
    if kind == "Minari":
        v.fit(request.getfixturevalue("dataset"))
    elif kind == "file":
        v.fit(DATA.save(tmp_path / "all.npz"))
    else:
        v.fit(files if kind == "files" else (part for part in PARTS))
    assert_equal(answers(v), expected[noise, "parts" if kind in ("files", "generator") else "whole"])


def test_files_and_datasets_with_processes(files, dataset, pool, expected):
    assert_equal(answers(quick().fit(files, executor=pool)), expected["stochastic", "parts"])
    assert_equal(answers(quick().fit(dataset, executor=pool)), expected["stochastic", "whole"])


@pytest.mark.parametrize("mix", ["terminated", "truncated"])
@every_noise
def test_one_kind_of_ending_only(mix, noise):
    whole = DATA[np.flatnonzero(DATA.terminated == (mix == "terminated"))]
    parts = [whole[:1], whole[1:4], whole[4:]]
    assert_close(answers(quick(noise=noise).fit(parts)), answers(quick(noise=noise).fit(whole)))


@pytest.mark.parametrize("objective", ["thinned", "loo", "leave_one_episode_out"])
def test_other_objectives(objective, pool):
    options: dict[str, Any] = dict(objective=objective) | (dict(thinning=3) if objective == "thinned" else {})
    v = quick(**options).fit(PARTS)
    assert v.thinning_ == options.get("thinning", 1)
    assert_equal(answers(quick(**options).fit(PARTS, executor=pool)), answers(v))
    assert_close(answers(quick(**options).fit(DATA)), answers(v))


def test_shards_that_thinning_empties_do_not_matter():
    """One of the shards has only pieces that are too short to be thinned."""
    pieces = DATA[:3].cut(2)
    parts = [DATA[3:8], pieces[np.flatnonzero(~pieces.terminated)], DATA[8:]]
    with pytest.raises(ValueError, match="long enough"):
        parts[1].thin(4)
    v, w = (quick(objective="thinned", thinning=4).fit(data) for data in (parts, Trajectories.concatenate(parts)))
    assert_close(answers(v), answers(w))


def test_hands_do_not_matter_where_samples_are_taken(pool, monkeypatch):
    """Data so large that the search goes by samples on its way to all of them."""
    monkeypatch.setattr(sparse_engine, "SAMPLE_SIZE", 50)
    monkeypatch.setattr(sparse_engine, "CONTIGUOUS_SIZE", 40)
    monkeypatch.setattr(sparse_engine, "N_CANDIDATES", 40)
    v = quick().fit(PARTS)
    assert len(v.data_) < 0.5 * len(DATA)
    assert_equal(answers(quick().fit(PARTS, executor=pool)), answers(v))


# -------------------------------------------------------------------------------------- bad input


@pytest.fixture(scope="module")
def one_fitted() -> GPTD:
    return quick().fit(PARTS)


@pytest.fixture
def fitted(one_fitted) -> GPTD:
    """A fitted estimator that a test may do anything to."""
    return copy(one_fitted)


@contextmanager
def refused(v: GPTD, error: type[Exception], message: str) -> Iterator[GPTD]:
    """What is done with `v` here fails in one clear line, and leaves it as it was."""
    before = dict(vars(v))
    with pytest.raises(error, match=message) as caught:
        yield v
    assert "\n" not in str(caught.value)
    changed = {name for name in before.keys() | vars(v).keys() if before.get(name) is not vars(v).get(name)}
    assert not changed


@every_hand
def test_a_shard_of_another_width(executor, fitted):
    wide = sample([(6, True)], n_dims=3)
    with refused(fitted, ValueError, r"^shard 2 of 3: states have 3 dimensions; expected 2\.$"):
        fitted.fit([PARTS[0], wide, PARTS[1]], executor=executor)
    assert np.isfinite(fitted.predict(X)).all()


def test_further_data_of_another_width(fitted):
    with refused(fitted, ValueError, r"^the data: states have 3 dimensions; expected 2\.$"):
        fitted.partial_fit(sample([(6, True)], n_dims=3))


@every_hand
def test_a_number_that_is_none_in_shard_17(executor, fitted, tmp_path):
    paths = [PARTS[0].save(tmp_path / f"{i}.npz") for i in range(1, 33)]
    write_spoilt(paths[16], PARTS[0], "states", (3, 0), np.nan)
    with refused(fitted, ValueError, r"^shard 17 of 32 \(.*17\.npz\): .*states must be finite; states\[3, 0\] is nan"):
        fitted.fit(paths, executor=executor)


@every_hand
def test_a_file_that_cannot_be_read(executor, fitted, files):
    files[2].write_text("Dear reader,\n")
    with refused(fitted, ValueError, r"^shard 3 of 4 \(.*2\.npz\): .*2\.npz does not hold trajectories"):
        fitted.fit(files, executor=executor)
    files[2].unlink()
    with refused(fitted, FileNotFoundError, r"^shard 3 of 4 \(.*2\.npz\): there is no file .*2\.npz\.$"):
        fitted.fit(files, executor=executor)
    files[2].mkdir()
    with refused(fitted, IsADirectoryError, r"^shard 3 of 4 \(.*2\.npz\): "):
        fitted.fit(files, executor=executor)


def test_a_generator_that_fails(fitted, folders):
    def stream() -> Iterator[Trajectories]:
        yield PARTS[0]
        raise ConnectionError("the robot is gone")

    with refused(fitted, ConnectionError, "^the robot is gone$"):
        fitted.fit(stream())
    for _ in range(50):  # until the thread that read the stream has ended
        gc.collect()
        if not folders():
            break
        time.sleep(0.1)
    assert folders() == []


def test_no_data(fitted):
    nothing: list[Any] = [[], iter(())]
    for empty in nothing:
        with refused(fitted, ValueError, "^empty data: expected at least one shard, got none"):
            fitted.fit(empty)


@pytest.mark.parametrize(
    "executor", ["threads", 2, ThreadPoolExecutor, object()], ids=["word", "number", "class", "object"]
)
def test_an_executor_that_is_none(executor, fitted):
    kind = type(executor).__name__
    with refused(fitted, TypeError, rf"^executor must be a concurrent\.futures\.Executor, .*; got {kind}\.$"):
        fitted.fit(PARTS, executor=executor)
    with refused(fitted, TypeError, r"^executor must be"):
        fitted.partial_fit(PARTS[0], executor=executor)


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_that_was_shut_down(kind, fitted):
    executor = kind(1)
    executor.shutdown()
    with refused(fitted, RuntimeError, r"^the executor takes no more work \(.*shutdown\): give fit a running one\.$"):
        fitted.fit(PARTS, executor=executor)


def new_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_a_pool_whose_process_died(fitted):
    with new_pool() as pool:
        kill(pool.submit(os.getpid).result())
        with refused(fitted, RuntimeError, r"^the executor (is dead|died in the middle of the work): "):
            fitted.fit(PARTS, executor=pool)
        with refused(fitted, RuntimeError, r"^the executor is dead: "):
            fitted.fit(PARTS, executor=pool)


def test_a_pool_whose_process_dies_in_the_middle(fitted, monkeypatch):
    with new_pool() as pool:
        pid = pool.submit(os.getpid).result()
        hooked(monkeypatch, lambda n: kill(pid) if n == 2 else None)
        with refused(fitted, RuntimeError, r"^the executor (is dead|died in the middle of the work): "):
            fitted.fit(PARTS, executor=pool)


def test_a_fitted_model_outlives_its_executor(files):
    with ThreadPoolExecutor(1) as threads:
        v = quick().fit(files, executor=threads)
    assert_equal(answers(v), answers(quick().fit(files)))
    for ask in (v.prune, lambda: v.log_marginal_likelihood(v.theta_ + 0.1)):
        with refused(v, RuntimeError, "the executor takes no more work"):
            ask()
    v.partial_fit(PARTS[0])
    assert np.isfinite(v.predict(X)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(subset_size=0), r"^subset_size must be a whole number of 1 or more; got 0\.$"),
        (dict(subset_size=-3), r"^subset_size must be a whole number of 1 or more; got -3\.$"),
        (dict(subset_size=2.5), r"^subset_size must be a whole number of 1 or more; got 2\.5\.$"),
        (dict(tolerance=-0.1), r"^tolerance is a share of the prior variance, from 0 to below 1; got -0\.1\.$"),
        (dict(tolerance=1.0), r"^tolerance is .*; got 1\.0\.$"),
        (dict(tolerance=float("nan")), r"^tolerance is .*; got nan\.$"),
        (dict(sparse_variance="full"), r"^sparse_variance must be one of 'projected_process', .*; got 'full'\.$"),
        (dict(method="fast"), r"^method must be one of 'auto', 'exact', 'sparse'; got 'fast'\.$"),
    ],
    ids=str,
)
def test_arguments_of_the_sparse_method(options, message, fitted):
    fitted.set_params(**options)
    with refused(fitted, ValueError, message):
        fitted.fit(PARTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subset_size", float("nan")),
        ("subset_size", float("inf")),
        ("subset_size", None),
        ("subset_size", "many"),
        ("tolerance", "small"),
    ],
)
def test_odd_arguments_of_the_sparse_method_are_named(name, value, fitted):
    fitted.set_params(**{name: value})
    with pytest.raises((TypeError, ValueError), match=rf"^{name} "):
        fitted.fit(PARTS)


def test_a_whole_number_may_be_a_float(expected):
    v = quick()
    v.set_params(subset_size=12.0)
    try:
        v.fit(PARTS)
    except ValueError as error:
        assert str(error).startswith("subset_size ")  # noqa: PT017
    else:
        assert_equal(answers(v), expected["stochastic", "parts"])


# -------------------------------------------------------------------------------------- Dask


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="the extra gptd-rl[dask] is not installed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=":0",
        local_directory=str(tmp_path_factory.mktemp("dask")),
        silence_logs=logging.CRITICAL,
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster) -> Iterator[Any]:
    """A client of two living workers."""
    from distributed import Client

    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


@every_noise
def test_dask_gives_the_same(client, noise, files, expected):
    data, executor = (PARTS, client.get_executor()) if noise == "stochastic" else (files, client)
    assert_equal(answers(quick(noise=noise).fit(data, executor=executor)), expected[noise, "parts"])


def test_dask_gives_results_in_the_order_of_the_shards(client):
    dataset = fleet_of(numbered(9), client)
    assert list(dataset.map(number_of, 0.02)) == list(range(9))
    assert list(fleet_of(SHORT_AND_LONG, client).changed(every=10).map(count_states, 1)) == [3, 3]


def test_shards_stay_on_the_dask_workers(client, counted, passes, expected):
    v = quick().fit(counted, executor=client.get_executor())
    assert passes[0] >= 8
    assert loads(counted) == [1, 1, 1, 1]
    assert str(os.getpid()) not in Path(counted[0].log).read_text(), "read by the workers"
    assert_equal(answers(v), expected["stochastic", "parts"])


def test_bad_shards_on_dask_workers_are_named(client, fitted, files):
    write_spoilt(files[2], PARTS[2], "rewards", 1, np.nan)
    with refused(fitted, ValueError, r"^shard 3 of 4 \(.*2\.npz\): .*rewards must be finite; rewards\[1\] is nan"):
        fitted.fit(files, executor=client.get_executor())


def die_in_pass(number: int) -> None:
    """Have this process killed when it begins its pass with this number."""
    original, passes = statistics.statistics, itertools.count(1)

    def armed(*arguments: Any) -> Any:
        if next(passes) == number:
            kill(os.getpid())
        return original(*arguments)

    statistics.statistics = armed  # type: ignore[assignment]


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_dask_worker_that_is_killed_in_the_middle_of_a_pass(kind, client, files, expected):
    workers = client.run(os.getpid)
    address = next(iter(workers))
    client.run(die_in_pass, 3, workers=[address])
    v = quick().fit(files if kind == "files" else PARTS, executor=client.get_executor())
    assert_equal(answers(v), expected["stochastic", "parts"])
    assert workers[address] not in client.run(os.getpid).values(), "it was killed"


def test_a_dask_cluster_is_no_executor(cluster, fitted):
    with refused(fitted, TypeError, "^executor must be .*got LocalCluster"):
        fitted.fit(PARTS, executor=cluster)


def test_a_closed_dask_client(cluster, fitted):
    from distributed import Client

    client = Client(cluster)
    client.close()
    with refused(fitted, RuntimeError, "executor|client|Dask"):
        fitted.fit(PARTS, executor=client)


class Lossy:
    """Stands for a client of a cluster that loses what it is asked for, as often as told."""

    def __init__(self, n_losses: int, closes: bool = False) -> None:
        self.n_losses, self.closes, self.status = n_losses, closes, "running"
        self.prepared: list[str] = []

    def nthreads(self) -> dict[str, int]:
        return {"worker": 1}

    def submit(self, function: Any, *arguments: Any, pure: bool) -> Any:
        if function is ShardSpec.prepare:
            self.prepared.append(arguments[0].source.name)
        return Promised(self, function, arguments)


@dataclass(frozen=True, eq=False)
class Promised:
    """A future of it."""

    client: Lossy
    function: Any
    arguments: Any

    def result(self) -> Any:
        if self.client.n_losses > 0:
            self.client.n_losses -= 1
            self.client.status = "closed" if self.client.closes else "running"
            raise CancelledError("lost with its worker")
        return self.function(*(a.result() if isinstance(a, Promised) else a for a in self.arguments))


def test_what_dask_cannot_make_again_is_placed_anew():
    pytest.importorskip("distributed", reason="the extra gptd-rl[dask] is not installed")
    client = Lossy(n_losses=2)
    specs = [ShardSpec(source, "stochastic") for source in Sources.of(numbered(8))]
    assert list(ShardedDataset(specs, Dask(client)).map(number_of, 0.0)) == list(range(8))
    assert client.prepared.count("shard 1 of 8") == 3
    assert sorted(set(client.prepared)) == [f"shard {i} of 8" for i in range(1, 9)]


@pytest.mark.parametrize("closes", [False, True])
def test_what_dask_loses_again_and_again_is_named(closes):
    pytest.importorskip("distributed", reason="the extra gptd-rl[dask] is not installed")
    specs = [ShardSpec(source, "stochastic") for source in Sources.of(numbered(3))]
    dataset = ShardedDataset(specs, Dask(Lossy(n_losses=100, closes=closes)))
    times = 1 if closes else ATTEMPTS
    with pytest.raises(RuntimeError, match=rf"^shard 1 of 3 was lost {times} times on the Dask cluster: lost with its"):
        list(dataset.map(number_of, 0.0))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A test that hangs fails instead."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_dask_worker_that_is_killed_between_passes(client, expected, monkeypatch):
    victim = next(iter(client.run(os.getpid).values()))
    hooked(monkeypatch, lambda n: kill(victim) if n == 2 else None)
    with within(60):
        v = quick().fit(PARTS, executor=client.get_executor())
    assert_equal(answers(v), expected["stochastic", "parts"])
