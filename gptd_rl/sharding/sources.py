"""All that `fit` accepts as data, as a list of shards that are loaded on demand, in this process or on a worker.

Trajectories in memory are split into shards of whole segments. Files and Minari datasets are read shard by shard. The
shards of an iterator are written to a temporary folder one by one, so that they need not all fit into memory.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gptd_rl.data.files import TemporaryFolder
from gptd_rl.data.resampling import split_into_shards
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import DataLike

# States in a shard, unless the user made the shards: large enough for the cost of a task, small enough to share work.
SHARD_SIZE = 32_768

# Small neighbouring shards are merged if there are more shards than this.
MAX_UNMERGED = 64


class ShardSource(Protocol):
    """The origin of a shard."""

    @property
    def name(self) -> str:
        """Name in messages."""
        ...

    @property
    def key(self) -> str:
        """Unique key."""
        ...

    def load(self) -> Trajectories:
        """Load the trajectories."""
        ...


def _key() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, eq=False)
class InMemory:
    """Trajectories in memory."""

    data: Trajectories
    name: str = "the data"
    key: str = field(default_factory=_key)

    def load(self) -> Trajectories:
        """Return the trajectories."""
        return self.data


@dataclass(frozen=True, eq=False)
class File:
    """A file that `Trajectories.save` wrote."""

    path: str
    name: str = "the file"
    key: str = field(default_factory=_key)

    def load(self) -> Trajectories:
        """Read the file."""
        return Trajectories.load(self.path)


@dataclass(frozen=True, eq=False)
class Episodes:
    """Some episodes of a Minari dataset on disk."""

    dataset: str  # path
    episodes: tuple[int, ...]
    gamma: float | None
    name: str = "the dataset"
    key: str = field(default_factory=_key)

    def load(self) -> Trajectories:
        """Read these episodes."""
        from gptd_rl.data.minari import import_minari

        dataset = import_minari().MinariDataset(self.dataset, episode_indices=np.array(self.episodes))
        return Trajectories.from_minari(dataset, self.gamma)


class Sources(Sequence[ShardSource]):
    """The shards of a dataset, and the temporary folder that holds them if there is one."""

    def __init__(self, shards: Iterable[ShardSource], folder: TemporaryFolder | None = None) -> None:
        listed = list(shards)
        if not listed:
            raise ValueError("empty data: expected at least one shard, got none.")
        n = len(listed)
        self._shards = (
            _merge_small([_renamed(s, f"shard {i + 1} of {n}") for i, s in enumerate(listed)]) if n > 1 else listed
        )
        self._folder = folder

    def __len__(self) -> int:
        """Number of shards."""
        return len(self._shards)

    def __getitem__(self, index: Any) -> Any:
        """Return a shard, or several."""
        return self._shards[index]

    @classmethod
    def of(cls, data: DataLike, gamma: float | None = None) -> Sources:
        """Shards of the data that were passed to `fit`.

        Parameters
        ----------
        data : Trajectories, path, Minari dataset or its id, or an iterable of these
        gamma : float, optional
            Discount, for Minari datasets without one.
        """
        if isinstance(data, Sources):
            return data
        if isinstance(data, Iterator):
            folder = TemporaryFolder()
            return cls(_spill(data, gamma, folder.path), folder)
        is_one = isinstance(data, Trajectories | str | os.PathLike) or _is_minari(data)
        if not is_one and not isinstance(data, Iterable):
            raise _unknown(data)
        items: Iterable[Any] = [data] if is_one else data  # type: ignore[assignment]
        return cls(shard for item in items for shard in _shards_of(item, gamma))

    def map(self, function: Callable[[Trajectories], Trajectories | None]) -> Sources | None:
        """Apply `function` to every shard, now and once; shards for which it returns None are left out.

        Results of shards that were not in memory are written to a temporary folder. None if no shard is left.
        """
        folder = TemporaryFolder()
        shards = list(self._mapped(function, folder.path))
        return Sources(shards, folder) if shards else None

    def _mapped(self, function: Callable[[Trajectories], Trajectories | None], folder: Path) -> Iterator[ShardSource]:
        for number, source in enumerate(self._shards):
            try:
                data = function(source.load())
            except (TypeError, ValueError) as error:
                raise type(error)(f"{source.name}: {error}" if len(self) > 1 else str(error)) from None
            if data is not None and isinstance(source, InMemory):
                yield InMemory(data, source.name)
            elif data is not None:
                yield File(str(data.save(folder / f"{number}.npz")), source.name)


def _shards_of(item: Any, gamma: float | None) -> Iterator[ShardSource]:
    if isinstance(item, Trajectories):
        return (InMemory(part) for part in split_into_shards(item, SHARD_SIZE))
    if isinstance(item, str | os.PathLike) and (Path(item).suffix == ".npz" or Path(item).is_file()):
        return iter([File(str(Path(item).resolve()), name=str(item))])
    if isinstance(item, str) or _is_minari(item):
        return _minari_shards(item, gamma)
    raise _unknown(item)


def _unknown(item: Any) -> TypeError:
    return TypeError(
        "fit expects Trajectories, paths of files that Trajectories.save wrote (*.npz), a Minari dataset, or an "
        f"iterable of these; got {type(item).__name__}: make Trajectories by gptd_rl.collect(…), "
        "Trajectories.from_episodes(…) or Trajectories.from_chain(…)."
    )


def _minari_shards(dataset: Any, gamma: float | None) -> Iterator[ShardSource]:
    from gptd_rl.data.minari import episode_lengths, load_dataset

    name = dataset if isinstance(dataset, str) else dataset.id
    if isinstance(dataset, str):
        try:
            dataset = load_dataset(dataset)
        except FileNotFoundError:
            raise FileNotFoundError(f"{name!r} is neither a file nor a Minari dataset on this computer.") from None
    indices = np.asarray(dataset.episode_indices)
    number = np.cumsum(episode_lengths(dataset)) // SHARD_SIZE
    path = str(Path(dataset.storage.data_path).resolve())
    for group in np.split(indices, np.flatnonzero(np.diff(number)) + 1):
        yield Episodes(path, tuple(int(i) for i in group), gamma, f"episodes {group[0]}–{group[-1]} of {name}")


def _spill(items: Iterator[Any], gamma: float | None, folder: Path) -> Iterator[ShardSource]:
    """Write trajectories to files one by one."""
    for number, item in enumerate(items):
        for part, source in enumerate(_shards_of(item, gamma)):
            if isinstance(source, InMemory):
                yield File(str(source.data.save(folder / f"{number}-{part}.npz")), source.name, source.key)
            else:
                yield source


def _renamed(source: Any, name: str) -> ShardSource:
    own = "" if isinstance(source, InMemory) else f" ({source.name})"
    return replace(source, name=name + own)


def _merge_small(shards: list[ShardSource]) -> list[ShardSource]:
    """Merge small neighbours in memory if there are many shards, since each shard costs a task."""
    merged: list[ShardSource] = []
    if len(shards) <= MAX_UNMERGED:
        return shards
    for shard in shards:
        last = merged[-1] if merged else None
        if isinstance(shard, InMemory) and isinstance(last, InMemory) and _can_merge(last.data, shard.data):
            first_name = last.name.split(" to ")[0]
            merged[-1] = InMemory(last.data + shard.data, f"{first_name} to {shard.name}")
        else:
            merged.append(shard)
    return merged


def _can_merge(a: Trajectories, b: Trajectories) -> bool:
    return len(a) + len(b) <= SHARD_SIZE and a.n_dims == b.n_dims and (a.actions is None) == (b.actions is None)


def _is_minari(data: Any) -> bool:
    return hasattr(data, "iterate_episodes") and hasattr(data, "storage")
