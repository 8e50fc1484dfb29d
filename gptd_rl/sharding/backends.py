"""Backends that run a function on every shard: threads, processes or Dask.

Shards stay where they are worked on. Threads share this process's memory; worker processes load a shard at first use
and keep it; on a Dask cluster each is a future that lives on a worker. What travels are the model and the m×m results.
A shard that is lost with its Dask worker is placed anew, and the function is run on it again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from gptd_rl.data.files import UNREADABLE, TemporaryFolder
from gptd_rl.exceptions import ExecutorError, brief
from gptd_rl.memory import available_bytes
from gptd_rl.sharding.sources import File, InMemory, ShardSource
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.targets import Noise
from gptd_rl.threads import count_cores, one_blas_thread
from gptd_rl.types import IntArray

ShardFunction = Callable[..., Any]

# How often a shard is placed anew before its loss counts as a failure.
ATTEMPTS = 5


@dataclass(frozen=True, eq=False)
class ShardSpec:
    """A shard that is not loaded yet: its source, its inputs and its thinning."""

    source: ShardSource
    noise: Noise
    inputs: IntArray | None = None  # all by default
    every: int = 1
    offset: int = 0

    @property
    def key(self) -> str:
        """Unique key."""
        inputs = "" if self.inputs is None else self.inputs.tolist()
        return f"{self.source.key}-{self.noise}-{inputs}-{self.every}-{self.offset}"

    def prepare(self) -> Shard | None:
        """Load and prepare the shard; None where thinning leaves nothing."""
        try:
            data = self.source.load()
        except OSError as error:
            raise type(error)(f"{self.source.name}: {error}") from None
        except UNREADABLE as error:
            raise ValueError(f"{self.source.name}: {error}") from None
        if self.inputs is not None and len(self.inputs) < data.n_dims:
            data = data.take_inputs(self.inputs)
        if self.every > 1:
            try:
                data = data.thin(self.every, self.offset)
            except ValueError:  # no segment is that long
                return None
        return Shard.of(data, self.noise)


class Cache:
    """Prepared shards, as many as fit into `limit` bytes; the one unused for longest goes first."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._kept: OrderedDict[str, Shard | None] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is empty."""
        return Cache, (self.limit,)

    def get(self, spec: ShardSpec) -> Shard | None:
        """The shard of a spec, prepared now or before."""
        key = spec.key
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        shard = spec.prepare()
        with self._lock:
            self._kept[key] = shard
            while len(self._kept) > 1 and sum(s.nbytes for s in self._kept.values() if s is not None) > self.limit:
                self._kept.popitem(last=False)
        return shard


def make_backend(executor: Any) -> Backend:
    """Backend that uses `executor`: none for threads of our own, else one of `concurrent.futures`, or Dask's client."""
    if executor is None or isinstance(executor, ThreadPoolExecutor):
        return Threads(executor)
    client = getattr(executor, "_client", executor)
    if type(client).__module__.startswith("distributed.") and hasattr(client, "submit"):
        return Dask(client)
    if not isinstance(executor, Executor):
        raise TypeError(
            f"executor must be a concurrent.futures.Executor, such as ProcessPoolExecutor() or Dask's "
            f"client.get_executor(), or None; got {type(executor).__name__}."
        )
    return Processes(executor)


class Backend:
    """Runs a function on many shards."""

    n_workers: int
    on_shard: Callable[[int, int], None] | None = None  # called with the number of shards done, and of all

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model cannot share an executor: it has threads."""
        return Threads, (None,)

    def map(self, function: ShardFunction, specs: Sequence[ShardSpec], arguments: tuple[Any, ...]) -> Iterator[Any]:
        """Results in the order of the specs; few more shards than there are workers are under way at a time."""
        under_way: deque[Future[Any]] = deque()
        try:
            for spec in specs:
                under_way.append(self.submit(function, spec, arguments))
                if len(under_way) > 2 * self.n_workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenExecutor as error:
            raise ExecutorError(f"the executor died in the middle of the work: {brief(error)}") from error
        finally:
            for future in under_way:
                future.cancel()

    def submit(self, function: ShardFunction, spec: ShardSpec, arguments: tuple[Any, ...]) -> Future[Any]:
        """Run the function on one shard, at some time."""
        raise NotImplementedError


def _submit(executor: Executor, *task: Any) -> Future[Any]:
    try:
        return executor.submit(*task)
    except BrokenExecutor as error:
        raise ExecutorError(f"the executor is dead: {brief(error)}") from error
    except RuntimeError as error:  # how executors say that they were shut down
        raise ExecutorError(f"the executor takes no more work ({brief(error)}): give fit a running one.") from error


class Threads(Backend):
    """Threads of this process: NumPy and BLAS release the interpreter lock while they work."""

    def __init__(self, executor: ThreadPoolExecutor | None) -> None:
        self.n_workers = count_cores() if executor is None else executor._max_workers
        self._given = executor
        self._cache = Cache(0.25 * _memory())

    def map(self, function: ShardFunction, specs: Sequence[ShardSpec], arguments: tuple[Any, ...]) -> Iterator[Any]:
        """Results in order; a single shard needs no thread of its own."""
        if self._given is None and (len(specs) == 1 or self.n_workers == 1):
            for spec in specs:
                yield self._work(function, spec, arguments)
            return
        own = ThreadPoolExecutor(self.n_workers) if self._given is None else nullcontext(self._given)
        with own as self._pool:
            yield from super().map(function, specs, arguments)

    def submit(self, function: ShardFunction, spec: ShardSpec, arguments: tuple[Any, ...]) -> Future[Any]:
        """Run it in a thread."""
        return _submit(self._pool, self._work, function, spec, arguments)

    @one_blas_thread()
    def _work(self, function: ShardFunction, spec: ShardSpec, arguments: tuple[Any, ...]) -> Any:
        shard = self._cache.get(spec)
        return None if shard is None else function(shard, *arguments)


class Processes(Backend):
    """Any other executor. Its workers read shards from files, so trajectories in memory are written to some first."""

    def __init__(self, executor: Executor) -> None:
        self.n_workers = getattr(executor, "_max_workers", None) or count_cores()
        self._executor = executor
        self._folder = TemporaryFolder()
        self._written: dict[str, File] = {}

    def submit(self, function: ShardFunction, spec: ShardSpec, arguments: tuple[Any, ...]) -> Future[Any]:
        """Send the spec, not the data."""
        source = spec.source
        if isinstance(source, InMemory):
            if source.key not in self._written:
                path = source.data.save(self._folder.path / f"{source.key}.npz")
                self._written[source.key] = File(str(path), source.name, source.key)
            spec = replace(spec, source=self._written[source.key])
        return _submit(self._executor, _work_in_process, function, spec, arguments)


_of_this_process: Cache | None = None


@one_blas_thread()
def _work_in_process(function: ShardFunction, spec: ShardSpec, arguments: tuple[Any, ...]) -> Any:
    global _of_this_process
    if _of_this_process is None:
        _of_this_process = Cache(0.25 * _memory() / count_cores())
    shard = _of_this_process.get(spec)
    return None if shard is None else function(shard, *arguments)


class Dask(Backend):
    """A Dask cluster: shards are futures on its workers, and the scheduler sends each pass to where its shard is."""

    def __init__(self, client: Any) -> None:
        if client.status != "running":
            raise ExecutorError(f"the Dask client is {client.status}: give fit a running one.")
        self.n_workers = max(1, sum(client.nthreads().values()))
        self._client = client
        self._placed: dict[str, Any] = {}

    def map(self, function: ShardFunction, specs: Sequence[ShardSpec], arguments: tuple[Any, ...]) -> Iterator[Any]:
        """Results in order; the work of a lost worker is done again."""
        import dask

        todo = deque(specs)
        under_way: deque[tuple[ShardSpec, Any, int]] = deque()
        # All goes through `submit`, nothing through `scatter`: the scheduler then knows how to make it again.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"}):
            sent = self._client.submit(_together, *arguments, pure=False)
            while todo or under_way:
                while todo and len(under_way) <= 2 * self.n_workers:
                    spec = todo.popleft()
                    under_way.append((spec, self._start(function, spec, sent), 1))
                spec, future, attempt = under_way.popleft()
                try:
                    result = future.result()
                except self._losses as loss:
                    if attempt == ATTEMPTS or self._client.status != "running":
                        raise ExecutorError(
                            f"{spec.source.name} was lost {attempt} times on the Dask cluster: {brief(loss)}"
                        ) from loss
                    self._placed.pop(spec.key, None)
                    sent = self._client.submit(_together, *arguments, pure=False)
                    under_way.appendleft((spec, self._start(function, spec, sent), attempt + 1))
                    continue
                yield result

    def _start(self, function: ShardFunction, spec: ShardSpec, sent: Any) -> Any:
        if spec.key not in self._placed:
            self._placed[spec.key] = self._client.submit(ShardSpec.prepare, spec, pure=False)
        return self._client.submit(_work_with, function, self._placed[spec.key], sent, pure=False)

    @property
    def _losses(self) -> tuple[type[BaseException], ...]:
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        return (CancelledError, KilledWorker, CommClosedError)


def _together(*arguments: Any) -> tuple[Any, ...]:
    return arguments


@one_blas_thread()
def _work_with(function: ShardFunction, shard: Shard | None, arguments: tuple[Any, ...]) -> Any:
    return None if shard is None else function(shard, *arguments)


def _memory() -> float:
    """Bytes of memory that are free, or a modest guess where the system does not tell."""
    return available_bytes() or 4 * 2**30
