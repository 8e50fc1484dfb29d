"""A dataset in shards: functions of a shard are mapped over all of them, and their results are added up.

A shard function takes a `Shard` and a few small arguments. `ShardedDataset.map` runs it on every shard and yields the
results *in the order of the shards*, so that sums depend neither on timing nor on the backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from gptd_rl.sharding.backends import Backend, ShardFunction, ShardSpec, make_backend
from gptd_rl.sharding.sources import Sources
from gptd_rl.temporal.targets import Noise
from gptd_rl.types import DataLike


class ShardedDataset:
    """Data in shards, and the backend that maps functions over them.

    Parameters
    ----------
    specs : sequence of ShardSpec
    backend : Threads, Processes or Dask
    owners : tuple
        What must live as long as the dataset, such as a temporary folder.
    """

    def __init__(self, specs: Sequence[ShardSpec], backend: Backend, owners: tuple[Any, ...] = ()) -> None:
        self.specs = tuple(specs)
        self.backend = backend
        self.owners = owners

    def __add__(self, other: ShardedDataset) -> ShardedDataset:
        """The shards of both, with the backend of the first."""
        return ShardedDataset(self.specs + other.specs, self.backend, self.owners + other.owners)

    def map(self, function: ShardFunction, *arguments: Any) -> Iterator[Any]:
        """`function(shard, *arguments)` of every shard that is not empty, in their order."""
        tell = self.backend.on_shard or (lambda done, n_shards: None)
        tell(0, len(self.specs))
        for done, result in enumerate(self.backend.map(function, self.specs, arguments), start=1):
            tell(done, len(self.specs))
            if result is not None:
                yield result

    def sum(self, function: ShardFunction, *arguments: Any) -> Any:
        """Add up the results of `map`, in the order of the shards."""
        return reduce(add, self.map(function, *arguments))

    def changed(self, **changes: Any) -> ShardedDataset:
        """The same data with other inputs, or thinned."""
        return ShardedDataset([replace(spec, **changes) for spec in self.specs], self.backend, self.owners)


def open_dataset(data: DataLike, noise: Noise, gamma: float | None = None, executor: Any = None) -> ShardedDataset:
    """The dataset of anything that `fit` takes.

    Parameters
    ----------
    data : Trajectories, path, Minari dataset, or an iterable of these
    noise : {"stochastic", "deterministic"}
    gamma : float, optional
        Discount, for Minari datasets that do not keep it.
    executor : concurrent.futures.Executor or Dask client, optional
    """
    sources = Sources.of(data, gamma)
    return ShardedDataset([ShardSpec(source, noise) for source in sources], make_backend(executor), (sources,))
