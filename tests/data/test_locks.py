"""Locks: one holder at a time, free again however the holder ends."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from gptd_rl.data.locks import exclusive

HOLD = """
import sys, time
from pathlib import Path
from gptd_rl.data.locks import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_exclusive_has_one_holder_at_a_time(tmp_path):
    path = tmp_path / "new" / "thing"
    with exclusive(path):
        with pytest.raises(BlockingIOError), exclusive(path):
            pass
        with exclusive(path.with_name("other")):
            pass
    with exclusive(path):
        pass
    assert not list(path.parent.iterdir()), "nothing is left over"


def test_exclusive_is_free_again_after_a_kill(tmp_path):
    path = tmp_path / "thing"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    with pytest.raises(BlockingIOError), exclusive(path):
        pass
    process.kill()
    process.communicate()
    with exclusive(path):
        pass


def test_exclusive_is_never_held_twice_by_threads_that_take_turns(tmp_path):
    holders, most, n_taken = [0], [0], [0]

    def work() -> None:
        for _ in range(200):
            try:
                with exclusive(tmp_path / "thing"):
                    holders[0] += 1
                    most[0] = max(most[0], holders[0])
                    n_taken[0] += 1
                    holders[0] -= 1
            except BlockingIOError:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and n_taken[0] > 0


def test_exclusive_does_not_follow_a_symbolic_link(tmp_path):
    (tmp_path / ".thing.lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError), exclusive(tmp_path / "thing"):  # noqa: PT011  (the system's own words)
        pass
    assert not (tmp_path / "target").exists()
