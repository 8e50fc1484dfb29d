"""Independent computations side by side, through joblib."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(function: Callable[[T], R], items: Iterable[T], n_jobs: int | None) -> list[R]:
    """`function` of each item, in order, in threads unless `joblib.parallel_config` says otherwise.

    Parameters
    ----------
    function : callable
    items : iterable
    n_jobs : int or None
        As in joblib: None is one, unless a `parallel_config` is active; −1 is all cores.
    """
    if n_jobs in (None, 1) and "joblib" not in sys.modules:  # without the import, which takes a while
        return [function(item) for item in items]
    from joblib import Parallel, delayed

    return list(Parallel(n_jobs=n_jobs, prefer="threads")(delayed(function)(item) for item in items))
