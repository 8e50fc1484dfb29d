"""Output files and folders of the commands: checked before the work starts, left unchanged if it fails."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gptd_rl.cli.terminal import FAILED, CommandError, as_command_error
from gptd_rl.report.output import complete_or_nothing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def writing_folder(folder: Path) -> Iterator[None]:
    """Create `folder` if missing and check that it is writable; after an error, remove it again."""
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
    """Check that a file `path` can be written; folders created for it are removed again after an error."""
    if path.is_dir():
        raise CommandError(f"cannot write to {path}: it is a folder")
    with writing_folder(path.parent):
        yield


def check_picture(path: Path) -> None:
    """Raise an error if matplotlib does not know the format of a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if path.suffix[1:].lower() not in FigureCanvasAgg.get_supported_filetypes():
        raise CommandError(f"cannot write a picture to {path}: its name must end in .png or another image format")


def save_picture(figure: Figure, path: Path) -> Path:
    """Write a figure atomically."""
    with complete_or_nothing(path.parent) as unfinished:
        figure.savefig(unfinished / path.name, dpi=120)
    return path


def saving(path: Path) -> AbstractContextManager[None]:
    """Context in which a failed write, such as on a full disk, ends the command."""
    return as_command_error(OSError, code=FAILED, prefix=f"cannot write to {path}: ")


def _make_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(f"cannot write to {folder}: {error.strerror or error}") from error
