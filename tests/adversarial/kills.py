"""kill −9 at a random moment of a writer: the old or the new content is there, and the next writer succeeds."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tests.adversarial.harness import Attack, Category, pick
from tests.adversarial.writers import WRITERS, answers, visible, which_is_there

N_EVENTS = 1500  # calls of functions, Python's and C's, in the longest writer, about


class Kill:
    """Ends this process at the n-th call of a function, as the kernel would: nothing is cleaned up."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def killed_writer(name: str, path: Path, n: int) -> None:
    """Write the new content; killed at the n-th call."""
    answers(name)  # makes the contents
    sys.setprofile(Kill(n))
    WRITERS[name].write(path, 1)
    sys.setprofile(None)


def prepare(folder: Path) -> Attack:
    # Children of a server that has imported all there is: quick to start, and without this process's threads.
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.adversarial.kills"])

    def attack(rng: np.random.Generator) -> str | None:
        own = folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        name, n = pick(rng, list(WRITERS)), int(rng.integers(1, N_EVENTS))
        WRITERS[name].write(own / "file", 0)
        process = context.Process(target=killed_writer, args=(name, own / "file", n))
        process.start()
        process.join()
        if process.exitcode not in (0, -signal.SIGKILL):
            return f"{name}: the writer ended with {process.exitcode}"
        there = which_is_there(name, own / "file")
        if there is None or (process.exitcode == 0 and there == 0):
            return f"{name}: neither the old nor the new content is there"
        if visible(own) != ["file"]:
            return f"{name}: a killed writer left {visible(own)}"
        WRITERS[name].write(own / "file", 1)
        return None if which_is_there(name, own / "file") == 1 else f"{name}: the next writer did not succeed"

    return attack


CATEGORY = Category("kill -9", prepare, 0.005)
