"""Arrays that took a while to compute, kept on disk from one run to the next."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


def cache_directory() -> Path:
    """Folder of this project in the user's cache directory.

    Returns
    -------
    pathlib.Path
        ``$GPTD_RL_CACHE`` if set; else ``gptd-rl`` where the platform keeps caches.
    """
    if chosen := os.environ.get("GPTD_RL_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gptd-rl"


def cached_array(
    name: str, settings: Mapping[str, object], compute: Callable[[], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Array computed before with the same settings, or computed now and kept.

    A file that cannot be read, or holds something else, is computed again and replaced.

    Parameters
    ----------
    name : str
        Beginning of the file's name.
    settings : mapping
        All that the array depends on, as JSON can write it.
    compute : callable
        Called without arguments if there is nothing to read.

    Returns
    -------
    ndarray
    """
    key = json.dumps(settings, sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = cache_directory() / f"{name}-{digest}.npz"
    try:
        return _read(path, key)
    except _UNREADABLE:
        array = compute()
    try:
        _write(path, key, array)
    except OSError as error:
        warnings.warn(
            f"could not keep the result in {path} ({error}), so it will be computed again next "
            "time; set GPTD_RL_CACHE to a folder that can be written.",
            stacklevel=3,
        )
    return array


def _read(path: Path, key: str) -> NDArray[np.float64]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if str(archive["key"]) != key:
            raise ValueError(f"{path} was computed with other settings.")
        array: NDArray[np.float64] = archive["array"]
        return array


def _write(path: Path, key: str, array: NDArray[np.float64]) -> None:
    """Write to a file beside it, then rename: no reader ever meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            np.savez(file, key=np.array(key), array=array)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            file.close()
            os.unlink(file.name)
            raise
