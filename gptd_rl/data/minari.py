"""Trajectories on disk, as Minari datasets.

Minari stores both flags of episode ends. Discounts, which it has no field for, are stored in the infos of the episodes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from gptd_rl.data.hdf5 import refuse_links
from gptd_rl.data.locks import exclusive
from gptd_rl.data.record import SegmentedData
from gptd_rl.data.spaces import describe, flatten, require_flat, unflatten
from gptd_rl.types import IntArray

# What Minari and the libraries below it raise for damaged files.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AssertionError, RuntimeError)

MAX_EPISODE_STATES = 32_768  # Minari 0.5 silently reads longer Arrow episodes wrongly


def write_dataset(
    data: SegmentedData,
    dataset_id: str,
    *,
    env: str | EnvSpec | gym.Env[Any, Any] | None = None,
    observation_space: Space[Any] | None = None,
    action_space: Space[Any] | None = None,
    data_format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Write a Minari dataset.

    Parameters
    ----------
    data : Trajectories
        With actions.
    dataset_id : str
        Such as `"pendulum/random-v0"`; must not exist yet.
    env : str, EnvSpec or gymnasium.Env, optional
        The environment, for its spaces and for the specification in the dataset.
    observation_space : gymnasium.Space, optional
        Space of the observations that were flattened into states; by default that of `env`, or else real vectors.
    action_space : gymnasium.Space, optional
        By default that of `env`, or else a space that holds the actions.
    data_format : {"arrow", "hdf5", "parquet"}, optional
        By default Arrow, or HDF5 if there are segments of more than 32,768 states, which Arrow datasets cannot hold.
    metadata : mapping, optional
        Minari's, such as `author`, `algorithm_name`, `description` or `code_permalink`.

    Returns
    -------
    dataset : minari.MinariDataset
    """
    import_minari()
    if data.actions is None:
        raise ValueError("Minari episodes have actions, but these trajectories have none.")
    if env is not None:
        made = gym.make(env) if isinstance(env, str | EnvSpec) else env
        observation_space = observation_space or made.observation_space
        action_space = action_space or made.action_space
        if made is not env:
            made.close()
        env = made.spec
    observation_space = observation_space or vectors(data.states.shape[1])
    action_space = action_space or _space_of(data.actions)
    if data_format is None:
        data_format = "arrow" if data.lengths.max() <= MAX_EPISODE_STATES else "hdf5"
    with only_writer(dataset_id):
        partial = begin_dataset(dataset_id, observation_space, action_space, env, data_format, metadata)
        try:
            open_storage(partial).update_episodes(to_buffers(data, observation_space, action_space))
            finish_dataset(partial, dataset_id)
        except BaseException:
            shutil.rmtree(partial)
            raise
    return load_dataset(dataset_id)


# ------------------------------------------------------------------------------------------- episodes


def read_episodes(dataset: Any, gamma: float | None = None) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a dataset or of the one with this id, as `Trajectories.from_episodes` takes them.

    Discounts that this package wrote are used unless `gamma` is given.
    """
    import_minari()
    dataset = load_dataset(dataset) if isinstance(dataset, str) else dataset
    require_flat(dataset.observation_space)
    refuse_external_data(dataset)
    summaries = dataset.storage.get_episode_metadata(dataset.episode_indices)
    for episode, summary in _read(dataset, lambda: zip(dataset.iterate_episodes(), summaries, strict=True)):
        if len(episode.rewards) != summary["total_steps"]:
            raise ValueError(
                f"episode {summary['id']} of {dataset.id} has {summary['total_steps']} steps, but Minari returned "
                f"{len(episode.rewards)}: it cannot read Arrow episodes of more than {MAX_EPISODE_STATES} states."
            )
        discounts = (episode.infos or {}).get("discount")
        yield dict(
            observations=flatten(dataset.observation_space, episode.observations),
            actions=episode.actions,
            rewards=episode.rewards,
            terminated=episode.terminations,
            truncated=episode.truncations,
            discounts=discounts[:-1] if discounts is not None and gamma is None else None,
        )


def load_dataset(dataset_id: str) -> Any:
    """Open a dataset on this computer."""
    try:
        return import_minari().load_dataset(dataset_id)
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise _damaged(dataset_id, error) from None


def refuse_external_data(dataset: Any) -> None:
    """Refuse an HDF5 dataset whose episodes refer to other files."""
    if dataset.storage.FORMAT == "hdf5":
        path = Path(dataset.storage.data_path) / "main_data.hdf5"
        try:
            refuse_links(path, (f"episode_{i}" for i in dataset.episode_indices))
        except OSError as error:
            raise _damaged(dataset.id, error) from None


def episode_lengths(dataset: Any) -> IntArray:
    """Number of states of each episode of a dataset, of shape (n_episodes,)."""
    refuse_external_data(dataset)
    accounts = _read(dataset, lambda: dataset.storage.get_episode_metadata(dataset.episode_indices))
    return np.array([account["total_steps"] + 1 for account in accounts], dtype=np.int64)


def _read(dataset: Any, episodes: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the episodes; what cannot be read is an error of one line."""
    try:
        yield from episodes()
    except UNREADABLE as error:
        raise _damaged(dataset.id, error) from None


def _damaged(dataset_id: str, error: Exception) -> ValueError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return ValueError(
        f"the dataset {dataset_id!r} cannot be read, so it is damaged ({reason}): collect_to_minari continues its own "
        "datasets if only their end is; restore others."
    )


def to_buffers(data: SegmentedData, observation_space: Space[Any], action_space: Space[Any]) -> list[Any]:
    """Segments as Minari's episode buffers."""
    from minari.data_collector import EpisodeBuffer

    assert data.actions is not None, "checked before"
    if (data.lengths < 2).any() or data.rewards[data.last].any():
        raise ValueError("Minari has no place for what follows a terminal state, nor for episodes without a step.")
    observations = unflatten(observation_space, data.states)
    actions = data.actions.astype(action_space.dtype)
    if not np.array_equal(flatten(observation_space, observations), data.states):
        raise ValueError(f"the states are no observations from {describe(observation_space)}.")
    if not np.array_equal(actions, data.actions) or actions.shape[1:] != action_space.shape:
        raise ValueError(f"the actions are not from {describe(action_space)}.")
    buffers = []
    for first, last, terminated in zip(data.starts, data.last, data.terminated, strict=True):
        at_end = np.arange(first, last) == last - 1
        buffers.append(
            EpisodeBuffer(
                observations=_rows(observations, slice(first, last + 1)),
                actions=actions[first:last],
                rewards=data.rewards[first:last],
                terminations=at_end & terminated,
                truncations=at_end & ~terminated,
                infos={"discount": data.discounts[first : last + 1].tolist()},
            )
        )
    return buffers


def _rows(batch: Any, rows: slice) -> Any:
    if isinstance(batch, dict):
        return {key: _rows(part, rows) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_rows(part, rows) for part in batch)
    return batch[rows]


def vectors(n_dims: int) -> Space[Any]:
    """Space of all states."""
    return spaces.Box(-np.inf, np.inf, (n_dims,), np.float64)


def _space_of(actions: NDArray[Any]) -> Space[Any]:
    """A space that holds these actions."""
    if actions.dtype.kind not in "iu":
        return spaces.Box(-np.inf, np.inf, actions.shape[1:], actions.dtype.type)
    low, high = int(actions.min()), int(actions.max())
    if actions.ndim == 1:
        return spaces.Discrete(high - min(low, 0) + 1, start=min(low, 0))
    return spaces.Box(low, high, actions.shape[1:], actions.dtype.type)


# ------------------------------------------------------------------------------------------- folders


def dataset_path(dataset_id: str) -> Path:
    """Folder of a dataset, which need not exist."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage.datasets_root_dir import get_dataset_path

    try:
        parse_dataset_id(dataset_id)
    except (TypeError, ValueError):
        raise ValueError(f"expected a dataset id such as 'pendulum/random-v0'; got {dataset_id!r}.") from None
    return Path(get_dataset_path(dataset_id))


@contextmanager
def only_writer(dataset_id: str) -> Iterator[None]:
    """Keep other writers of a dataset out while the context lasts."""
    path = dataset_path(dataset_id)
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path))
        except BlockingIOError:
            raise BlockingIOError(
                f"another process or thread is writing the dataset {dataset_id!r} at {path}: wait until it has ended, "
                "or choose another id."
            ) from None
        yield


def begin_dataset(
    dataset_id: str,
    observation_space: Space[Any],
    action_space: Space[Any],
    env_spec: EnvSpec | None,
    data_format: str,
    metadata: Mapping[str, Any] | None,
) -> Path:
    """Make an empty dataset in a hidden folder, which Minari does not list."""
    import minari
    from minari.dataset.minari_storage import MinariStorage

    path = dataset_path(dataset_id)
    if path.exists():
        raise ValueError(f"the dataset {dataset_id!r} exists already, at {path}: choose another id or delete it.")
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    storage = MinariStorage.new(
        partial / "data",
        observation_space=observation_space,
        action_space=action_space,
        env_spec=env_spec if _is_json(env_spec) else None,
        data_format=data_format,
    )
    metadata = dict(metadata or {})
    for name in {"author", "author_email"} & metadata.keys():
        metadata[name] = {metadata[name]} if isinstance(metadata[name], str) else set(metadata[name])
    storage.update_metadata(metadata | {"dataset_id": dataset_id, "minari_version": minari.__version__})
    return partial


def finish_dataset(partial: Path, dataset_id: str) -> None:
    """Move a dataset to the folder where Minari finds it."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = parse_dataset_id(dataset_id)[0]
    if namespace is not None and namespace not in list_local_namespaces():
        try:
            create_namespace(namespace)
        except ValueError:
            if namespace not in list_local_namespaces():  # or else another process was faster
                raise
    partial.rename(dataset_path(dataset_id))


def open_storage(path: Path) -> Any:
    """Open a dataset to add episodes."""
    from minari.dataset.minari_storage import MinariStorage

    return MinariStorage.read(path / "data")


def _is_json(env_spec: EnvSpec | None) -> bool:
    """Whether the specification of an environment can be written as JSON."""
    try:
        return env_spec is not None and bool(env_spec.to_json())
    except TypeError:
        return False


def import_minari() -> Any:
    """Import Minari, or say how to install it."""
    try:
        import minari
    except ImportError as error:
        raise ImportError('Minari datasets need more packages: pip install "gptd-rl[minari]"') from error
    return minari
