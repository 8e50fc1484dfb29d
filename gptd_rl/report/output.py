"""Files that appear together, and only once all are complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def complete_or_nothing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder inside `folder`; move its files there at the end, unless there was an error.

    Parameters
    ----------
    folder : Path
        Created if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as unfinished:
        yield Path(unfinished)
        for path in sorted(Path(unfinished).iterdir()):
            os.replace(path, folder / path.name)
