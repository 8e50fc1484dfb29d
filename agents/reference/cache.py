"""Arrays that are slow to compute, kept on disk between runs."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from gptd_rl.data import files
from gptd_rl.types import Array


def cache_directory() -> Path:
    """Folder of this project in the user's cache directory.

    Returns
    -------
    pathlib.Path
        `$GPTD_RL_CACHE` if set; else `gptd-rl` in the platform's folder for caches.
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


def cached_array(name: str, settings: Mapping[str, object], compute: Callable[[], Array]) -> Array:
    """An array from the cache if it was computed with the same settings, else computed and written there.

    A file that cannot be read, or was computed with other settings, is replaced.

    Parameters
    ----------
    name : str
        Beginning of the file's name.
    settings : mapping
        Everything the array depends on, as JSON can write it.
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
    except (OSError, *files.UNREADABLE):
        array = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, dict(key=np.array(key), array=array), compressed=False)
    except OSError as error:
        warnings.warn(
            f"could not keep the result in {path} ({error}), so it will be computed again next "
            "time; set GPTD_RL_CACHE to a folder that can be written.",
            stacklevel=3,
        )
    return array


def _read(path: Path, key: str) -> Array:
    arrays = files.read(path)
    if str(arrays["key"]) != key:
        raise ValueError(f"{path} was computed with other settings.")
    array: Array = arrays["array"]
    return array
