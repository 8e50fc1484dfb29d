"""`collect_to_minari`: transitions written to a Minari dataset while they are collected.

The datasets use Minari's Arrow format, in which every episode is a folder of its own: killing the process can damage
only the episode that is being written. Minari's summary of the whole dataset is replaced in one step.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from gptd_rl.checks import as_count, as_discount
from gptd_rl.data.minari import (
    begin_dataset,
    dataset_path,
    finish_dataset,
    import_minari,
    load_dataset,
    only_writer,
    open_storage,
    to_buffers,
    vectors,
)
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.collect import policy_of, start_rollout, with_progress
from gptd_rl.rollouts.environments import EnvAdapter, SB3VecEnvAdapter, open_adapter
from gptd_rl.types import EnvLike, Policy

NOTE = "gptd_rl.json"  # settings needed to continue a dataset, beside Minari's own data


def collect_to_minari(
    env: EnvLike,
    policy: Policy = None,
    *,
    dataset_id: str,
    n_transitions: int,
    gamma: float,
    seed: int | None = None,
    deterministic: bool = True,
    chunk: int = 10_000,
    progress_bar: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Sample transitions of a policy into a Minari dataset, each episode as soon as it ends.

    If the dataset exists already, collecting continues it. So the same call resumes after a kill: only the running
    episode of each sub-environment is lost.

    Parameters
    ----------
    env, policy, gamma, deterministic, progress_bar
        As for `collect`.
    dataset_id : str
        Such as `"pendulum/random-v0"`.
    n_transitions : int
        Total number of transitions in the dataset at the end.
    seed : int, optional
        As for `collect`; a continued dataset uses a new seed that depends on this one and on the number of episodes.
    chunk : int
        Approximate number of transitions kept in memory per sub-environment: a longer episode is written in pieces, as
        truncated segments that share their end states. At most 32,000.
    metadata : mapping, optional
        As for `Trajectories.to_minari`; ignored if the dataset exists.

    Returns
    -------
    dataset : minari.MinariDataset

    Raises
    ------
    CollectionError
        As for `collect`; the transitions until then are in the dataset.
    BlockingIOError
        If another process or thread is writing the dataset.
    ValueError
        If an episode is damaged that was complete: nothing is changed.
    """
    import_minari()
    n_transitions, chunk = as_count(n_transitions, "n_transitions"), as_count(chunk, "chunk")
    if chunk > 32_000:
        raise ValueError(f"chunk must be at most 32000, as Minari cannot read longer episodes; got {chunk}.")
    gamma = as_discount(gamma)
    with open_adapter(env) as adapter, only_writer(dataset_id):
        stream = _Stream(dataset_id, adapter, gamma, metadata)
        written = stream.n_transitions
        if written < n_transitions:
            seed = stream.next_seed(seed)
            rollout = start_rollout(adapter, policy_of(env, policy), gamma, seed, deterministic, capacity=1000)
            run = rollout.run(n_transitions - written, "transitions", eager=True)
            try:
                for _ in with_progress(run, n_transitions, "transitions", written) if progress_bar else run:
                    rollout.truncate(longer_than=chunk)
                    stream.write(rollout.pop())
            except CollectionError as error:
                stream.write(error.trajectories)
                raise
            finally:
                stream.close()
        return load_dataset(dataset_id)


class _Stream:
    """A dataset that episodes are added to.

    Minari's summary of the whole dataset, `metadata.json`, may be lost. The file `NOTE` holds its constant part; the
    rest is counted from the episodes on disk.
    """

    def __init__(self, dataset_id: str, env: EnvAdapter, gamma: float, metadata: Mapping[str, Any] | None) -> None:
        self.spaces = env.observation_space, env.action_space
        if isinstance(env, SB3VecEnvAdapter) and env.normalizers:  # its space is that of unnormalised observations
            self.spaces = vectors(spaces.flatdim(env.observation_space)), env.action_space
        path = dataset_path(dataset_id)
        if not path.exists():
            begun = begin_dataset(dataset_id, *self.spaces, env.spec, "arrow", metadata)
            fixed = json.loads((begun / "data" / "metadata.json").read_text())
            (begun / NOTE).write_text(json.dumps({"gamma": gamma, "metadata": fixed}))
            finish_dataset(begun, dataset_id)
        self.n_episodes, self.n_transitions = self._recover(path, gamma)
        self.storage = open_storage(path)
        # Minari sums the sizes of all files after every episode, which takes longer and longer.
        self.storage.get_size = lambda: 0.0
        self.storage.update_metadata = partial(_update_summary, path)

    def _recover(self, path: Path, gamma: float) -> tuple[int, int]:
        if not (path / NOTE).exists():
            raise ValueError(
                f"the dataset at {path} was not begun by collect_to_minari, so it cannot be added to: "
                "choose another id."
            )
        try:
            note = json.loads((path / NOTE).read_text())
            expected = [note["gamma"], note["metadata"]["observation_space"], note["metadata"]["action_space"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path / NOTE} is damaged ({error!r}): choose another id, or restore the file.") from None
        from minari.serialization import serialize_space

        found = [gamma, *(serialize_space(space) for space in self.spaces)]
        for name, is_now, was in zip(("gamma", "observations", "actions"), found, expected, strict=True):
            if is_now != was:
                raise ValueError(f"the dataset at {path} was begun with other {name}: {was}, not {is_now}.")
        lengths = _complete_episodes(path / "data")
        shutil.rmtree(path / "data" / str(len(lengths)), ignore_errors=True)  # the one that was being written
        _write_summary(path, note["metadata"] | {"total_episodes": len(lengths), "total_steps": sum(lengths)})
        return len(lengths), sum(lengths)

    def next_seed(self, seed: int | None) -> int | None:
        """A seed that differs from those of the episodes on disk."""
        if seed is None or self.n_episodes == 0:
            return seed
        return int(np.random.SeedSequence([seed, self.n_episodes]).generate_state(1)[0])

    def write(self, data: Trajectories | None) -> None:
        if data is not None:
            self.storage.update_episodes(to_buffers(data, *self.spaces))

    def close(self) -> None:
        del self.storage.get_size
        self.storage.update_metadata({"dataset_size": self.storage.get_size()})


def _complete_episodes(data: Path) -> list[int]:
    """Numbers of transitions of the episodes on disk, without the one that was being written.

    That is the last one, if Minari's summary does not count it yet. Any other that cannot be read was damaged later.
    """
    n_folders = 1 + max((int(folder.name) for folder in data.iterdir() if folder.name.isdecimal()), default=-1)
    lengths: list[int] = []
    while (length := _length(data / str(len(lengths)))) is not None:
        lengths.append(length)
    n_complete = max(n_folders - 1, _counted_episodes(data))
    if len(lengths) < n_complete:
        raise ValueError(
            f"episode {len(lengths)} of the dataset at {data.parent} is damaged or missing: nothing was changed. "
            "Restore it, or go on without it and those behind it by deleting their folders and "
            f"{data / 'metadata.json'}, or choose another id."
        )
    return lengths


def _counted_episodes(data: Path) -> int:
    """Number of episodes in Minari's summary; 0 if it cannot be read."""
    try:
        return int(json.loads((data / "metadata.json").read_text())["total_episodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _length(episode: Path) -> int | None:
    """Number of transitions of an episode; None if a part of it is missing."""
    from pyarrow import ArrowException, ipc, memory_map

    try:
        # Written after all other files of the episode.
        n_transitions = json.loads((episode / "metadata.json").read_text())["total_steps"]
        with memory_map(str(episode / "part-0.arrow")) as source:
            n_rows = ipc.open_file(source).read_all().num_rows
    except (OSError, ValueError, KeyError, TypeError, ArrowException):
        return None
    return n_transitions if n_rows == n_transitions + 1 else None


def _update_summary(path: Path, changes: Mapping[str, Any]) -> None:
    """Change Minari's summary of a dataset, in one step: who reads it sees the old one or the new one."""
    _write_summary(path, json.loads((path / "data" / "metadata.json").read_text()) | dict(changes))


def _write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    (path / "metadata.json").write_text(json.dumps(summary))
    os.replace(path / "metadata.json", path / "data" / "metadata.json")
