"""Collecting straight into a Minari dataset, so that a kill costs no more than the episode under way.

Streams use Minari's Arrow format, in which every episode is a folder of its own: a kill can at worst spoil the episode
that is being written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from gptd_rl.data.minari import (
    begin_dataset,
    dataset_path,
    finish_dataset,
    import_minari,
    open_storage,
    to_buffers,
    vectors,
)
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.collect import checked_count, checked_discount, policy_of, start, with_progress
from gptd_rl.rollouts.environments import SB3Vector, Source, open_source

NOTE = "gptd_rl.json"  # what is needed to take up the work again, beside Minari's own data


def collect_to_minari(
    env: Any,
    policy: Any = None,
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

    If the dataset exists already, collecting goes on from what it has. So, after a kill, the same call takes up the
    work where it was left: all that is lost is the episode under way, in each sub-environment.

    Parameters
    ----------
    env, policy, gamma, deterministic, progress_bar
        As for `collect`.
    dataset_id : str
        Such as ``"pendulum/random-v0"``.
    n_transitions : int
        Number of transitions that the dataset is to have in the end.
    seed : int, optional
        As for `collect`; work that is taken up again goes on with a seed made of this one and the number of episodes
        there are.
    chunk : int
        Transitions kept in memory for each sub-environment, about: a longer episode is written in pieces, as truncated
        segments that share their end states. At most 32,000.
    metadata : mapping, optional
        As for `to_minari`; of no effect on a dataset that exists.

    Returns
    -------
    dataset : minari.MinariDataset

    Raises
    ------
    CollectionError
        As for `collect`; what was collected until then is in the dataset.
    """
    minari = import_minari()
    n_transitions, chunk = checked_count(n_transitions, "n_transitions"), checked_count(chunk, "chunk")
    if chunk > 32_000:
        raise ValueError(f"chunk must be at most 32000, as Minari cannot read longer episodes; got {chunk}.")
    with open_source(env) as source:
        stream = _Stream(dataset_id, source, checked_discount(gamma), metadata)
        written = stream.n_transitions
        if written < n_transitions:
            seed = stream.next_seed(seed)
            rollout = start(source, policy_of(env, policy), gamma, seed, deterministic, room=1000)
            run = rollout.run(n_transitions - written, "transitions", eager=True)
            try:
                for _ in with_progress(run, n_transitions, "transitions", written) if progress_bar else run:
                    rollout.cut(longer_than=chunk)
                    stream.write(rollout.take())
            except CollectionError as error:
                stream.write(error.trajectories)
                raise
            finally:
                stream.close()
    return minari.load_dataset(dataset_id)


class _Stream:
    """A dataset that episodes are added to.

    Minari's own account of the whole, ``metadata.json``, may be spoilt by a kill while it is written, so it is never
    relied on. The note has all of it that does not change, and what does is counted from the episodes on disk.
    """

    def __init__(self, dataset_id: str, source: Source, gamma: float, metadata: Mapping[str, Any] | None) -> None:
        self.spaces = source.observation_space, source.action_space
        if isinstance(source, SB3Vector) and source.normalisers:  # its space is that of before
            self.spaces = vectors(spaces.flatdim(source.observation_space)), source.action_space
        path = dataset_path(dataset_id)
        if not path.exists():
            partial = begin_dataset(dataset_id, *self.spaces, source.spec, "arrow", metadata)
            fixed = json.loads((partial / "data" / "metadata.json").read_text())
            (partial / NOTE).write_text(json.dumps({"gamma": gamma, "metadata": fixed}))
            finish_dataset(partial, dataset_id)
        self.n_episodes, self.n_transitions = self._recover(path, gamma)
        self.storage = open_storage(path)
        # Minari adds up the sizes of all files after every episode, which takes longer and longer.
        self.storage.get_size = lambda: 0.0

    def _recover(self, path: Path, gamma: float) -> tuple[int, int]:
        if not (path / NOTE).exists():
            raise ValueError(
                f"the dataset at {path} was not begun by collect_to_minari, so it cannot be added to: "
                "choose another id."
            )
        note = json.loads((path / NOTE).read_text())
        from minari.serialization import serialize_space

        found = [gamma, *(serialize_space(space) for space in self.spaces)]
        expected = [note["gamma"], note["metadata"]["observation_space"], note["metadata"]["action_space"]]
        for name, is_now, was in zip(("gamma", "observations", "actions"), found, expected, strict=True):
            if is_now != was:
                raise ValueError(f"the dataset at {path} was begun with other {name}: {was}, not {is_now}.")
        data, n_transitions = path / "data", 0
        for episode in count():
            try:  # written when all else of the episode is
                account = json.loads((data / str(episode) / "metadata.json").read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                break
            n_transitions += account["total_steps"]
        shutil.rmtree(data / str(episode), ignore_errors=True)
        whole = note["metadata"] | {"total_episodes": episode, "total_steps": n_transitions}
        (path / "metadata.json").write_text(json.dumps(whole))
        os.replace(path / "metadata.json", data / "metadata.json")
        return episode, n_transitions

    def next_seed(self, seed: int | None) -> int | None:
        """Give another seed than any that the episodes on disk came from."""
        if seed is None or self.n_episodes == 0:
            return seed
        return int(np.random.SeedSequence([seed, self.n_episodes]).generate_state(1)[0])

    def write(self, data: Trajectories | None) -> None:
        if data is not None:
            self.storage.update_episodes(to_buffers(data, *self.spaces))

    def close(self) -> None:
        del self.storage.get_size
        self.storage.update_metadata({"dataset_size": self.storage.get_size()})
