"""The limit on BLAS threads: nested, overlapping, forked, and always undone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gptd_rl import GPTD, GPTDQ, OnlineGPTD, Trajectories, Transition, linalg, threads
from gptd_rl.threads import LARGE, BlasLimit, count_cores, count_spare_cores, one_blas_thread, spare_cores
from tests.helpers import sample


def labelled(data: Trajectories) -> Trajectories:
    """The same data with two actions in turn."""
    return replace(data, actions=np.arange(len(data)) % 2)


DATA = labelled(sample([(6, True), (8, False), (7, True)], n_dims=2, gamma=0.9))
STATES = DATA.states[:3]
ACTIONS = np.array([0, 1, 0])

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


class Library:
    """A BLAS that only counts its threads."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def get_num_threads(self) -> int:
        return self.n_threads

    def set_num_threads(self, n_threads: int) -> None:
        self.n_threads = n_threads


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """One BLAS with eight threads, in place of those of this process."""
    library = Library(8)
    monkeypatch.setattr(threads, "_limit", BlasLimit([library]))
    return library


# ------------------------------------------------------------------------------------- the limit


def test_one_blas_thread_limits_and_restores(library: Library):
    with one_blas_thread():
        assert library.n_threads == 1
    assert library.n_threads == 8


def test_one_blas_thread_restores_after_an_exception(library: Library):
    with pytest.raises(KeyboardInterrupt), one_blas_thread(), one_blas_thread():
        raise KeyboardInterrupt
    assert library.n_threads == 8


def test_one_blas_thread_nests(library: Library):
    with one_blas_thread():
        with one_blas_thread():
            assert library.n_threads == 1
        assert library.n_threads == 1
    assert library.n_threads == 8


def test_one_blas_thread_decorates(library: Library):
    @one_blas_thread()
    def count(depth: int) -> int:
        """Recurse."""
        return count(depth - 1) if depth else library.n_threads

    assert count(3) == 1
    assert library.n_threads == 8
    assert (count.__name__, count.__doc__) == ("count", "Recurse.")


def test_at_most_follows_the_innermost_block(library: Library):
    limit = BlasLimit([library])
    with limit.at_most(1):
        with limit.at_most(4):
            assert library.n_threads == 4
        assert library.n_threads == 1
    assert library.n_threads == 8


@pytest.mark.parametrize("given", [1, 3])
def test_at_most_respects_a_lower_setting(given: int):
    library = Library(given)
    with BlasLimit([library]).at_most(5):
        assert library.n_threads == given
    assert library.n_threads == given


def test_at_most_restores_each_library_to_its_own_setting():
    libraries = [Library(2), Library(6)]
    with BlasLimit(libraries).at_most(3):
        assert [library.n_threads for library in libraries] == [2, 3]
    assert [library.n_threads for library in libraries] == [2, 6]


def test_at_most_reads_the_setting_anew(library: Library):
    limit = BlasLimit([library])
    with limit.at_most(1):
        pass
    library.n_threads = 5  # the user changes it between two calls
    with limit.at_most(1):
        assert library.n_threads == 1
    assert library.n_threads == 5


def test_at_most_without_a_known_blas():
    with BlasLimit([]).at_most(1):
        pass


def test_at_most_survives_generators_closed_out_of_order(library: Library):
    def work():
        with one_blas_thread():
            yield library.n_threads

    first, second = work(), work()
    assert (next(first), next(second)) == (1, 1)
    first.close()
    assert library.n_threads == 1
    second.close()
    assert library.n_threads == 8


def test_at_most_may_be_left_in_another_thread(library: Library):
    stack = ExitStack()
    stack.enter_context(one_blas_thread())
    other = threading.Thread(target=stack.close)
    other.start()
    other.join()
    assert library.n_threads == 8


# ------------------------------------------------------------------------------------- overlapping threads


def test_overlapping_threads_restore_when_the_last_is_done(library: Library):
    entered, may_leave = threading.Barrier(2), threading.Event()

    def first() -> None:
        with one_blas_thread():
            entered.wait(10)
            assert may_leave.wait(10)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first)
        entered.wait(10)
        with one_blas_thread():
            may_leave.set()
            done.result(10)
            assert library.n_threads == 1  # the other thread has left, this one has not
        assert library.n_threads == 8


def test_overlapping_threads_share_the_smallest_limit(library: Library):
    limit = BlasLimit([library])
    with limit.at_most(4), ThreadPoolExecutor(1) as pool:
        inner = limit.at_most(2)
        pool.submit(inner.__enter__).result()
        assert library.n_threads == 2
        with limit.at_most(6):  # this thread would take more
            assert library.n_threads == 2
        pool.submit(inner.__exit__, None, None, None).result()
        assert library.n_threads == 4
    assert library.n_threads == 8


def test_many_overlapping_threads(library: Library):
    def work(seed: int) -> None:
        for depth in np.random.default_rng(seed).integers(1, 4, size=200):
            with ExitStack() as stack:
                for _ in range(depth):
                    stack.enter_context(one_blas_thread())
                assert library.n_threads == 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert library.n_threads == 8


# ------------------------------------------------------------------------------------- forks


def in_child(check) -> bool:
    """Whether `check()` holds in a forked child."""
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def forked(library: Library) -> Library:
    threads._limit.follow_forks()
    return library


@needs_fork
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_fork_inside_the_limit_keeps_it_and_restores_the_setting(forked: Library):
    stack = ExitStack()
    stack.enter_context(one_blas_thread())

    def check() -> bool:
        before = forked.n_threads
        stack.close()
        return (before, forked.n_threads) == (1, 8)

    assert in_child(check)
    assert forked.n_threads == 1  # the parent is still inside
    stack.close()
    assert forked.n_threads == 8


@needs_fork
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_fork_beside_a_limited_thread_restores_the_setting(forked: Library):
    def check() -> bool:
        before = forked.n_threads
        with one_blas_thread():
            inside = forked.n_threads
        return (before, inside, forked.n_threads) == (8, 1, 8)

    inner = one_blas_thread()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(inner.__enter__).result()
        assert forked.n_threads == 1
        assert in_child(check)  # the other thread is not there
        pool.submit(inner.__exit__, None, None, None).result()
    assert forked.n_threads == 8


# ------------------------------------------------------------------------------------- spare cores


def test_spare_cores_leaves_small_matrices_alone(library: Library, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "count_spare_cores", lambda: 4)
    with one_blas_thread(), spare_cores(LARGE - 1):
        assert library.n_threads == 1
    with spare_cores(LARGE - 1):
        assert library.n_threads == 8


@pytest.mark.parametrize("idle", [1, 4, 64])
def test_spare_cores_takes_the_idle_ones_for_large_matrices(
    idle: int, library: Library, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(threads, "count_spare_cores", lambda: idle)
    with one_blas_thread():
        with spare_cores(LARGE):
            assert library.n_threads == min(idle, 8)
        assert library.n_threads == 1


@pytest.mark.parametrize(
    ("loadavg", "states", "spare"),
    [
        ("0.00 0.00 0.00 1/300 77", "RSS", 4),
        ("9.00 9.00 9.00 3/300 77", "RSS", 2),
        ("9.00 9.00 9.00 3/300 77", "RRR", 4),  # all of them are ours
        ("9.00 9.00 9.00 30/300 77", "R", 1),
        ("0.00 0.00 0.00 0/0 77", "R", 1),  # a sandbox that does not count
        ("", "R", 1),
    ],
)
def test_count_spare_cores(loadavg: str, states: str, spare: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "_PROC", tmp_path)
    monkeypatch.setattr(threads, "count_cores", lambda: 4)
    assert count_spare_cores() == 1  # there is no such file
    (tmp_path / "loadavg").write_text(loadavg)
    for number, state in enumerate(states):
        (tmp_path / "self" / "task" / str(number)).mkdir(parents=True)
        (tmp_path / "self" / "task" / str(number) / "stat").write_text(f"{number} (python (3)) {state} 1 2 3")
    (tmp_path / "self" / "task" / "gone").mkdir()
    assert count_spare_cores() == spare


def test_count_spare_cores_of_this_machine():
    assert 1 <= count_spare_cores() <= count_cores()


def test_cholesky_and_inverse_use_spare_cores(library: Library, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "LARGE", 5)
    monkeypatch.setattr(threads, "count_spare_cores", lambda: 3)
    seen: list[int] = []
    monkeypatch.setattr(library, "set_num_threads", seen.append)
    linalg.inverse_in_place(linalg.cholesky(lambda: np.eye(5)))
    assert seen == [3, 3]


# ------------------------------------------------------------------------------------- the estimators


def changes(library: Library, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[int]:
    """Every number of threads that is set during `call`."""
    seen: list[int] = []
    original = library.set_num_threads

    def record(n_threads: int) -> None:
        seen.append(n_threads)
        original(n_threads)

    with monkeypatch.context() as patched:
        patched.setattr(library, "set_num_threads", record)
        call()
    return seen


CALLS: dict[str, Callable[[Any], object]] = {
    "fit": lambda v: v.fit(DATA),
    "partial_fit": lambda v: v.partial_fit(DATA),
    "predict": lambda v: v.predict(STATES, return_std=True),
    "confidence_interval": lambda v: v.confidence_interval(STATES),
    "prune": lambda v: v.prune(),
    "log_marginal_likelihood": lambda v: v.log_marginal_likelihood(v.theta_, eval_gradient=True),
}
Q_CALLS: dict[str, Callable[[Any], object]] = CALLS | {
    "predict": lambda q: q.predict(STATES, ACTIONS, return_std=True),
    "confidence_interval": lambda q: q.confidence_interval(STATES, ACTIONS),
    "q_values": lambda q: q.q_values(STATES),
    "greedy_actions": lambda q: q.greedy_actions(STATES),
    "sample": lambda q: q.sample(STATES, seed=0),
}
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "exact": lambda: GPTD(n_restarts=0, method="exact"),
    "sparse": lambda: GPTD(n_restarts=0, method="sparse", subset_size=5),
    "Q": lambda: GPTDQ(n_restarts=0),
}


@pytest.mark.parametrize(
    ("kind", "method"),
    [(kind, method) for kind in ESTIMATORS for method in (Q_CALLS if kind == "Q" else CALLS)],
)
def test_estimators_limit_blas_once_a_call(kind: str, method: str, library: Library, monkeypatch: pytest.MonkeyPatch):
    model = ESTIMATORS[kind]().fit(DATA)
    call = (Q_CALLS if kind == "Q" else CALLS)[method]
    assert changes(library, monkeypatch, lambda: call(model)) == [1, 8]


def test_online_estimator_limits_blas_once_a_call(library: Library, monkeypatch: pytest.MonkeyPatch):
    online = OnlineGPTD.from_batch(ESTIMATORS["exact"]().fit(DATA))
    step = Transition(STATES[0], 1.0, STATES[1], 0.9)
    assert changes(library, monkeypatch, lambda: online.update(step)) == [1, 8]
    assert changes(library, monkeypatch, lambda: online.predict(STATES, return_std=True)) == [1, 8]


def test_failed_fit_restores_the_setting(library: Library):
    with pytest.raises(ValueError, match="subset_size"):
        GPTD(subset_size=0).fit(DATA)
    assert library.n_threads == 8


def test_fits_in_a_thread_pool_restore_the_setting(library: Library):
    with ThreadPoolExecutor(4) as pool:
        fits = list(pool.map(lambda _: ESTIMATORS["exact"]().fit(DATA), range(8)))
    assert library.n_threads == 8
    assert len({fit.log_marginal_likelihood_ for fit in fits}) == 1


# ------------------------------------------------------------------------------------- the BLAS of NumPy and SciPy

PROGRAM = """
import os, threading
import numpy as np, threadpoolctl
from gptd_rl import GPTD, Trajectories, threads

def setting():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

def fit():
    rng = np.random.default_rng(0)
    GPTD(n_restarts=0).fit(Trajectories.from_chain(rng.normal(size=(20, 2)), rng.normal(size=19), np.full(19, 0.9)))

def hold():
    with threads.one_blas_thread():
        entered.set()
        leave.wait(60)

before, entered, leave = setting(), threading.Event(), threading.Event()
with threads.one_blas_thread():
    print(*before, *setting(), flush=True)
fit()
assert setting() == before
holder = threading.Thread(target=hold)
holder.start()
assert entered.wait(60)
if hasattr(os, "fork"):
    child = os.fork()
    if not child:  # has all its threads back, and they work
        product = np.ones((500, 500)) @ np.ones((500, 500))
        fit()
        os._exit(0 if setting() == before and product[0, 0] == 500 else 1)
    assert os.waitpid(child, 0)[1] == 0
leave.set()
holder.join()
assert setting() == before
"""


@pytest.mark.parametrize("given", [1, 2])
def test_blas_of_this_process_is_limited_and_restored(given: int):
    variables = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    run = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM],
        env=os.environ | dict.fromkeys(variables, str(given)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    if not run.stdout.split():
        pytest.skip("threadpoolctl knows no BLAS here")
    assert run.stdout.split() == [str(min(given, count_cores())), "1"]
