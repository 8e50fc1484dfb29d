"""Where a command writes: checked before any work is done, and left as it was found if the work fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gptd_rl.cli.terminal import FAILED, Refusal, refusing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def writing_folder(folder: Path) -> Iterator[None]:
    """Make `folder` if it is not there, see that it can be written to, and take it away again after an error."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _make_writable(folder)
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def writing_file(path: Path) -> Iterator[None]:
    """See that there can be a file `path`; folders made for it go away again after an error."""
    if path.is_dir():
        raise Refusal(f"cannot write to {path}: it is a folder")
    with writing_folder(path.parent):
        yield


def check_picture(path: Path) -> None:
    """Refuse a picture whose format matplotlib does not know."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if path.suffix[1:].lower() not in FigureCanvasAgg.get_supported_filetypes():
        raise Refusal(f"cannot write a picture to {path}: its name must end in .png or another format's name")


def save_picture(figure: Figure, path: Path) -> Path:
    """Write a figure, atomically: the file is whole, or as it was before."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        figure.savefig(temporary, dpi=120)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def saving(path: Path) -> AbstractContextManager[None]:
    """Tell in one line that writing failed after all: the disk is full."""
    return refusing(OSError, code=FAILED, before=f"cannot write to {path}: ")


def _make_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Refusal(f"cannot write to {folder}: {error.strerror or error}") from error
