"""Data in other formats as the arrays of `Trajectories`: the paper's chain, Gymnasium-like episodes, plain values.

Every reader checks its input and returns the arrays of a record by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import as_array, as_discounts, as_floats, as_states, as_vector, one_line
from gptd_rl.types import Array


def from_chain(states: ArrayLike, rewards: ArrayLike, gammas: ArrayLike) -> dict[str, Any]:
    """Read one chain of states in which `gamma = 0` marks a reset; see `Trajectories.from_chain`."""
    x = as_states(states)
    n = len(x)
    if n < 2:
        raise ValueError(f"a chain needs at least two states (one transition); got {n}.")
    r, g = as_vector(rewards, n - 1, "rewards"), as_discounts(gammas, n - 1, "gammas")
    ends = np.flatnonzero(g == 0) + 1  # a segment ends behind each reset
    n_kept = n - 1 if ends.size and ends[-1] == n - 1 else n
    boundaries = np.unique(np.concatenate([[0], ends, [n_kept]]))
    terminated = np.ones(len(boundaries) - 1, dtype=bool)
    terminated[-1] = n_kept == n - 1
    return dict(
        states=x[:n_kept].copy(),
        rewards=np.append(r, 0.0)[:n_kept],
        discounts=np.append(g, 0.0)[:n_kept],
        lengths=np.diff(boundaries),
        terminated=terminated,
        actions=None,
    )


def from_values(states: ArrayLike, values: ArrayLike, actions: ArrayLike | None = None) -> dict[str, Any]:
    """Read regression targets V(x) = y; see `Trajectories.from_values`."""
    x = as_states(states)
    n = len(x)
    if n == 0:
        raise ValueError("empty data: expected at least one state with a value, got none.")
    y = as_vector(values, n, "values")
    a = None if actions is None else as_array(actions, "actions")
    if a is not None and a.shape[:1] != (n,):
        raise ValueError(f"actions must have one entry per state ({n}); got shape {a.shape}.")
    return dict(
        states=x,
        rewards=y,
        discounts=np.zeros(n),
        lengths=np.ones(n, dtype=np.int64),
        terminated=np.ones(n, dtype=bool),
        actions=a,
    )


def from_episodes(episodes: Iterable[Mapping[str, Any] | object], gamma: float | None = None) -> dict[str, Any]:
    """Read Gymnasium-like episodes; see `Trajectories.from_episodes`."""
    parts = [_Episode.read(e, i, gamma) for i, e in enumerate(episodes)]
    if not parts:
        raise ValueError("empty data: expected at least one episode, got none.")
    widths = {p.observations.shape[1] for p in parts}
    if len(widths) > 1:
        raise ValueError(f"all episodes must have states of one width; got widths {sorted(widths)}.")
    if len({p.actions is None for p in parts}) > 1:
        raise ValueError("either every episode has actions or none has.")
    with_actions = [_pad_last(p.actions) for p in parts if p.actions is not None]
    return dict(
        states=np.concatenate([p.observations for p in parts]),
        rewards=np.concatenate([np.append(p.rewards, 0.0) for p in parts]),
        discounts=np.concatenate([np.append(p.discounts, 0.0) for p in parts]),
        lengths=np.array([len(p.observations) for p in parts], dtype=np.int64),
        terminated=np.array([p.terminated for p in parts]),
        actions=np.concatenate(with_actions) if with_actions else None,
    )


@dataclass(frozen=True)
class _Episode:
    """One checked episode of T steps."""

    observations: Array  # [T + 1, n_dims]
    rewards: Array  # [T]
    discounts: Array  # [T]
    actions: NDArray[Any] | None  # [T, ...]
    terminated: bool

    @classmethod
    def read(cls, episode: Mapping[str, Any] | object, number: int, gamma: float | None) -> _Episode:
        def get(name: str) -> Any:
            return episode.get(name) if isinstance(episode, Mapping) else getattr(episode, name, None)

        where = f"episode {number}: "
        if get("observations") is None or get("rewards") is None:
            raise ValueError(f"{where}expected observations [T+1] and rewards [T].")
        observations = as_states(get("observations"), name=f"{where}observations")
        n = len(observations) - 1
        if n < 1:
            raise ValueError(
                f"{where}{len(observations)} observation(s) make no transition: expected the state left and "
                "the state reached. Leave the episode out."
            )
        return cls(
            observations,
            as_vector(get("rewards"), n, f"{where}rewards"),
            _read_discounts(get("discounts"), gamma, n, where),
            _read_actions(get("actions"), n, where),
            _last_flag(get("terminated"), n, where),
        )


def _read_discounts(discounts: ArrayLike | None, gamma: float | None, n: int, where: str) -> Array:
    """Discounts of an episode: its own, or else `gamma` at every step."""
    given = discounts
    if given is None:
        if gamma is None:
            raise ValueError(f"{where}no discount: pass gamma=… or give the episode discounts [T].")
        given = np.broadcast_to(as_floats(gamma, f"{where}gamma"), n)
    checked = as_vector(given, n, f"{where}discounts")
    if (bad := checked[(checked < 0) | (checked > 1)]).size:
        raise ValueError(f"{where}the discount gamma must lie in [0, 1]; got {bad[0]:g}.")
    return checked


def _read_actions(actions: ArrayLike | None, n: int, where: str) -> NDArray[Any] | None:
    if actions is None:
        return None
    array = as_array(actions, f"{where}actions")
    if array.shape[:1] != (n,):
        came = len(array) if array.ndim else one_line(array)
        raise ValueError(f"{where}expected {n} actions, one per reward; got {came}.")
    return array


def _last_flag(flag: Any, n: int, where: str) -> bool:
    flags = np.asarray(False if flag is None else flag)
    if flags.ndim and flags.size != n:
        raise ValueError(f"{where}terminated must be one flag, or {n}, one per reward; got {flags.size}.")
    return bool(flags.reshape(-1)[-1])


def _pad_last(actions: NDArray[Any]) -> NDArray[Any]:
    """Add a zero: no action follows the last state."""
    return np.concatenate([actions, np.zeros_like(actions[:1])])
