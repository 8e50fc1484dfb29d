"""The frozen record of what was sampled: states, rewards, discounts, cut into segments.

A *segment* is an unbroken run of the policy. It ends in one of two ways, and the two are never mixed up:

- **terminated**: its last state is terminal. The state has a row of its own, ``V(x_L) = 0``, the zero-reward transition
  with discount 0 that the paper uses as a reset.
- **truncated** (a time limit, or the data just stops): its last state is an ordinary state of which we only know that
  the run came there. It has no row: nothing says what follows.

Everything downstream (the operator H, the posterior, the evidence) sees the data only through this record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.data import files as archive
from gptd_rl.types import Array


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Sampled transitions of one policy, as segments laid end to end.

    Parameters
    ----------
    states : ndarray of shape (n_states, n_dims)
        Every state visited, final states included.
    rewards : ndarray of shape (n_states,)
        Reward received on leaving each state; 0 where nothing follows.
    discounts : ndarray of shape (n_states,)
        Discount γ of the step that leaves each state; 0 where nothing follows.
    lengths : ndarray of shape (n_segments,)
        Number of states in each segment.
    terminated : ndarray of shape (n_segments,)
        Whether the last state of each segment is terminal (True) or the run was cut off there (False).
    actions : ndarray of shape (n_states, ...), optional
        Action taken in each state; zero where nothing follows.

    Examples
    --------
    >>> walk = Trajectories.from_episodes(
    ...     [dict(observations=[[0.0], [1.0], [2.0]], rewards=[-1.0, -1.0], terminated=True)], gamma=0.9
    ... )
    >>> len(walk), walk.n_transitions, walk.n_rows
    (3, 2, 3)
    """

    states: Array
    rewards: Array
    discounts: Array
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    actions: NDArray[Any] | None = field(default=None)

    def __post_init__(self) -> None:
        self._check()

    def _check(self, shortest_terminated: int = 2) -> None:
        """Refuse what makes no sense; thinning can leave a terminal state by itself, nothing else can."""
        states = as_states(self.states, name="states")
        n = len(states)
        if n == 0:
            raise ValueError("empty data: expected at least one transition, got no states.")
        rewards = _as_finite_vector(self.rewards, n, "rewards")
        discounts = _as_finite_vector(self.discounts, n, "discounts")
        outside = np.flatnonzero((discounts < 0) | (discounts > 1))
        if outside.size:
            i = outside[0]
            raise ValueError(f"discounts must lie in [0, 1]; discounts[{i}] is {discounts[i]:g}.")
        lengths = np.array(self.lengths, dtype=np.int64).reshape(-1)
        terminated = np.array(self.terminated, dtype=bool).reshape(-1)
        if len(lengths) != len(terminated):
            raise ValueError(
                f"lengths and terminated must have one entry per segment; got {len(lengths)} lengths "
                f"and {len(terminated)} flags."
            )
        if (short := np.flatnonzero(lengths < np.where(terminated, shortest_terminated, 2))).size:
            raise ValueError(
                f"segment {short[0]} has {lengths[short[0]]} state(s), but a transition needs two: "
                "the state left and the state reached. Leave the segment out."
            )
        if lengths.sum() != n:
            raise ValueError(f"lengths add up to {lengths.sum()} states, but {n} were given.")
        last = np.cumsum(lengths) - 1
        if (loose := np.flatnonzero(discounts[last] != 0)).size:
            raise ValueError(
                f"nothing follows the last state of segment {loose[0]}, so its discount must be 0, "
                f"not {discounts[last[loose[0]]]:g}."
            )
        cut = last[~terminated]
        if (paid := np.flatnonzero(rewards[cut] != 0)).size:
            raise ValueError(
                f"state {cut[paid[0]]} is the last of a truncated segment: no reward follows it, "
                f"yet rewards[{cut[paid[0]]}] is {rewards[cut[paid[0]]]:g}."
            )
        actions = None if self.actions is None else np.array(self.actions)
        if actions is not None and len(actions) != n:
            raise ValueError(f"actions must have one entry per state ({n}); got {len(actions)}.")
        self._freeze(states, rewards, discounts, lengths, terminated, actions)

    def _freeze(
        self,
        states: Array,
        rewards: Array,
        discounts: Array,
        lengths: NDArray[np.int64],
        terminated: NDArray[np.bool_],
        actions: NDArray[Any] | None,
    ) -> None:
        named = dict(
            states=states,
            rewards=rewards,
            discounts=discounts,
            lengths=lengths,
            terminated=terminated,
            actions=actions,
        )
        for name, array in named.items():
            if array is not None:
                array = array.view()
                array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def _trusted(cls, **arrays: Any) -> Trajectories:
        """Build from arrays this module made itself, without checking them again."""
        new = object.__new__(cls)
        new._freeze(**arrays)
        return new

    # ---------------------------------------------------------------------------------- making them

    @classmethod
    def from_chain(cls, states: ArrayLike, rewards: ArrayLike, gammas: ArrayLike) -> Trajectories:
        """Read the paper's own format: one chain of states in which ``gamma = 0`` marks a reset.

        ``gammas[i] = 0`` says that ``states[i]`` is terminal and ``states[i+1]`` starts the next episode. What comes
        after the last reset is a truncated segment; a lone state there carries no information and is left out.

        Parameters
        ----------
        states : array-like of shape (n, n_dims)
        rewards : array-like of shape (n - 1,)
        gammas : array-like of shape (n - 1,)
        """
        x = as_states(states, name="states")
        n = len(x)
        if n < 2:
            raise ValueError(f"a chain needs at least two states (one transition); got {n}.")
        r = _as_finite_vector(rewards, n - 1, "rewards")
        g = _as_finite_vector(gammas, n - 1, "gammas")
        outside = np.flatnonzero((g < 0) | (g > 1))
        if outside.size:
            raise ValueError(f"gammas must lie in [0, 1]; gammas[{outside[0]}] is {g[outside[0]]:g}.")
        ends = np.flatnonzero(g == 0) + 1  # a segment ends behind each reset
        n_kept = n - 1 if ends.size and ends[-1] == n - 1 else n
        boundaries = np.unique(np.concatenate([[0], ends, [n_kept]]))
        terminated = np.ones(len(boundaries) - 1, dtype=bool)
        terminated[-1] = n_kept == n - 1
        return cls._trusted(
            states=x[:n_kept].copy(),
            rewards=np.append(r, 0.0)[:n_kept],
            discounts=np.append(g, 0.0)[:n_kept],
            lengths=np.diff(boundaries),
            terminated=terminated,
            actions=None,
        )

    @classmethod
    def from_episodes(cls, episodes: Iterable[Mapping[str, Any] | object], gamma: float | None = None) -> Trajectories:
        """Read Gymnasium-like episodes; if both flags are set, termination wins.

        Parameters
        ----------
        episodes : iterable of mappings or objects
            Each with ``observations`` [T+1, n_dims] and ``rewards`` [T], optionally ``actions`` [T], ``terminated``,
            ``truncated`` (a flag, or one flag per step of which the last counts) and ``discounts`` [T].
        gamma : float, optional
            The discount of every step; an episode's own ``discounts`` take precedence.
        """
        parts = [_Episode.read(e, i, gamma) for i, e in enumerate(episodes)]
        if not parts:
            raise ValueError("empty data: expected at least one episode, got none.")
        widths = {p.observations.shape[1] for p in parts}
        if len(widths) > 1:
            raise ValueError(f"all episodes must have states of one width; got widths {sorted(widths)}.")
        if len({p.actions is None for p in parts}) > 1:
            raise ValueError("either every episode has actions or none has.")
        return cls._trusted(
            states=np.concatenate([p.observations for p in parts]),
            rewards=np.concatenate([np.append(p.rewards, 0.0) for p in parts]),
            discounts=np.concatenate([np.append(p.discounts, 0.0) for p in parts]),
            lengths=np.array([len(p.observations) for p in parts], dtype=np.int64),
            terminated=np.array([p.terminated for p in parts]),
            actions=None
            if parts[0].actions is None
            else np.concatenate([_pad_last(p.actions) for p in parts if p.actions is not None]),
        )

    @classmethod
    def from_minari(cls, dataset: Any, gamma: float | None = None) -> Trajectories:
        """Read a Minari dataset, or the one with this id: see `gptd_rl.data.minari.from_minari`."""
        from gptd_rl.data.minari import from_minari

        return from_minari(dataset, gamma)

    def to_minari(self, dataset_id: str, **options: Any) -> Any:
        """Write a Minari dataset, both flags kept: see `gptd_rl.data.minari.to_minari` for the options."""
        from gptd_rl.data.minari import to_minari

        return to_minari(self, dataset_id, **options)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trajectories:
        """Read what `save` wrote; the arrays are checked as any others are."""
        try:
            arrays = archive.read(path)
            unknown = sorted(set(arrays) - {field.name for field in fields(cls)})
            if unknown:
                raise ValueError(f"it holds {', '.join(unknown)}")
            new = object.__new__(cls)
            for name in (field.name for field in fields(cls)):
                object.__setattr__(new, name, arrays.get(name))
            new._check(shortest_terminated=1)
            return new
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no file {path}.") from None
        except archive.UNREADABLE as error:
            raise ValueError(f"{path} does not hold trajectories as Trajectories.save writes them: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the arrays to one file (NumPy's npz): a shard for `GPTD.fit`, which takes paths."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return archive.write(
            path, {name: array for name, array in named.items() if array is not None}, compressed=False
        )

    # ---------------------------------------------------------------------------------- looking at them

    def __len__(self) -> int:
        """Number of states, final states included."""
        return len(self.states)

    def __repr__(self) -> str:
        n_terminated = int(self.terminated.sum())
        return (
            f"Trajectories({self.n_transitions} transitions in {self.n_segments} segments, "
            f"{n_terminated} terminated, {self.n_segments - n_terminated} truncated; {self.n_dims} dimensions)"
        )

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return int(self.states.shape[1])

    @property
    def n_segments(self) -> int:
        """Number of unbroken runs."""
        return len(self.lengths)

    @property
    def n_transitions(self) -> int:
        """Number of real environment transitions; the rows that pin terminal states are not counted."""
        return len(self) - self.n_segments

    @property
    def n_rows(self) -> int:
        """Number of rows of H: real transitions plus one row per terminal state."""
        return int(self.has_row.sum())

    @property
    def starts(self) -> NDArray[np.int64]:
        """Index of the first state of each segment, of shape (n_segments,)."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def last(self) -> NDArray[np.int64]:
        """Index of the last state of each segment, of shape (n_segments,)."""
        return np.cumsum(self.lengths) - 1

    @property
    def segment_of(self) -> NDArray[np.int64]:
        """Segment that each state belongs to, of shape (n_states,)."""
        return np.repeat(np.arange(self.n_segments), self.lengths)

    @property
    def has_row(self) -> NDArray[np.bool_]:
        """False only at the last state of a truncated segment, of shape (n_states,)."""
        rows = np.ones(len(self), dtype=bool)
        rows[self.last[~self.terminated]] = False
        return rows

    # ---------------------------------------------------------------------------------- cutting and joining

    def __add__(self, other: Trajectories) -> Trajectories:
        """Lay the segments of `other` behind these."""
        if not isinstance(other, Trajectories):
            return NotImplemented
        return Trajectories.concatenate([self, other])

    @classmethod
    def concatenate(cls, parts: Sequence[Trajectories]) -> Trajectories:
        """Lay the segments of all `parts` end to end."""
        if not parts:
            raise ValueError("empty data: expected at least one part to concatenate, got none.")
        widths = {p.n_dims for p in parts}
        if len(widths) > 1:
            raise ValueError(f"cannot join states of different widths: got {sorted(widths)}.")
        with_actions = [p.actions for p in parts if p.actions is not None]
        if with_actions and len(with_actions) < len(parts):
            raise ValueError("cannot join trajectories with actions to trajectories without.")
        return cls._trusted(
            states=np.concatenate([p.states for p in parts]),
            rewards=np.concatenate([p.rewards for p in parts]),
            discounts=np.concatenate([p.discounts for p in parts]),
            lengths=np.concatenate([p.lengths for p in parts]),
            terminated=np.concatenate([p.terminated for p in parts]),
            actions=np.concatenate(with_actions) if with_actions else None,
        )

    def __getitem__(self, segments: int | slice | ArrayLike) -> Trajectories:
        """Pick segments by number, slice, index array or mask."""
        if isinstance(segments, (int, np.integer)):
            if not -self.n_segments <= segments < self.n_segments:
                raise IndexError(f"segment {segments} of {self.n_segments}.")
            segments = [int(segments)]
        picked: Any = segments if isinstance(segments, slice) else np.asarray(segments)
        if not isinstance(picked, slice) and picked.size == 0:
            picked = slice(0)
        chosen = np.arange(self.n_segments)[picked]
        if chosen.size == 0:
            raise ValueError("empty data: the selection holds no segment.")
        starts = self.starts
        rows: Any
        if (np.diff(chosen) == 1).all():  # neighbours: a view, not a copy
            rows = slice(int(starts[chosen[0]]), int(starts[chosen[-1]] + self.lengths[chosen[-1]]))
        else:
            rows = np.concatenate([np.arange(starts[s], starts[s] + self.lengths[s]) for s in chosen])
        return self._pick(rows, lengths=self.lengths[chosen], terminated=self.terminated[chosen])

    def __iter__(self) -> Iterator[Trajectories]:
        """Yield each segment as `Trajectories` of its own."""
        return (self[s] for s in range(self.n_segments))

    def take_inputs(self, columns: ArrayLike) -> Trajectories:
        """Keep only some state variables; everything else stays as it is."""
        return self._pick(slice(None), states=self.states[:, np.atleast_1d(columns)])

    def thin(self, every: int, offset: int = 0) -> Trajectories:
        """Keep every `every`-th state of each segment, from `offset` on, *with the returns it has now*.

        A step of the result spans `every` steps of the data: its reward is their discounted sum, its discount their
        product. A terminated segment's last kept state is paid all that was still to come. The tail of a truncated
        segment behind its last kept state says nothing about the value there, and goes. Over all offsets each state is
        kept once, so the offsets partition the data. Segments that keep no row are left out.

        Parameters
        ----------
        every : int
            The thinning τ.
        offset : int
            From 0 to ``every - 1``: the step of each segment to start from.
        """
        if every < 1 or not 0 <= offset < every:
            raise ValueError(f"every must be 1 or more, and offset from 0 to every − 1; got {every} and {offset}.")
        step = np.arange(len(self)) - np.repeat(self.starts, self.lengths)  # place within the segment
        kept = np.flatnonzero((step >= offset) & ((step - offset) % every == 0))
        lengths = np.bincount(self.segment_of[kept], minlength=self.n_segments)
        rowless = (lengths == 0) | ((lengths == 1) & ~self.terminated)
        kept = kept[~rowless[self.segment_of[kept]]]
        if kept.size == 0:
            raise ValueError(f"no segment is long enough to keep every {every}th state from offset {offset}.")
        lengths, terminated = lengths[~rowless], self.terminated[~rowless]
        rewards, discounts = self._over_steps(every)
        last = np.cumsum(lengths) - 1
        rewards, discounts = rewards[kept], discounts[kept]
        rewards[last[~terminated]] = 0.0
        discounts[last] = 0.0
        return self._pick(kept, rewards=rewards, discounts=discounts, lengths=lengths, terminated=terminated)

    def cut(self, max_transitions: int) -> Trajectories:
        """Cut long segments into pieces that share their end states; all but the last piece are truncated.

        No transition is lost: only the knowledge that one piece continues in the next.
        """
        rows: list[NDArray[np.int64]] = []
        terminated: list[bool] = []
        for start, last, ends in zip(self.starts, self.last, self.terminated, strict=True):
            if last == start:  # a lone terminal state
                rows.append(np.array([start]))
                terminated.append(True)
                continue
            for first in range(start, last, max_transitions):
                stop = min(first + max_transitions, last)
                rows.append(np.arange(first, stop + 1))
                terminated.append(bool(ends) and stop == last)
        lengths = np.array([len(r) for r in rows], dtype=np.int64)
        index = np.concatenate(rows)
        rewards, discounts = self.rewards[index], self.discounts[index]
        flags = np.array(terminated)
        open_ends = (np.cumsum(lengths) - 1)[~flags]
        rewards[open_ends] = discounts[open_ends] = 0.0
        pieces = self._pick(index, rewards=rewards, discounts=discounts, lengths=lengths, terminated=flags)
        if pieces.actions is None:
            return pieces
        actions = np.array(pieces.actions)
        actions[open_ends] = 0
        return pieces._pick(slice(None), actions=actions)

    def _over_steps(self, steps: int) -> tuple[Array, Array]:
        """Discounted reward and discount product over the next `steps` steps of each state's segment."""
        rewards, discounts = np.zeros(len(self)), np.ones(len(self))
        index = np.arange(len(self))
        last = np.repeat(self.last, self.lengths)
        inside = np.ones(len(self), dtype=bool)
        for _ in range(min(steps, int(self.lengths.max()))):
            here = index[inside]
            rewards[inside] += discounts[inside] * self.rewards[here]
            discounts[inside] *= self.discounts[here]
            index = index + 1
            inside &= index <= last
        return rewards, discounts

    def _pick(self, rows: Any, **changed: Any) -> Trajectories:
        """Take some states, replacing the arrays given by name."""
        arrays: dict[str, Any] = dict(
            states=self.states[rows],
            rewards=self.rewards[rows],
            discounts=self.discounts[rows],
            lengths=self.lengths,
            terminated=self.terminated,
            actions=None if self.actions is None else self.actions[rows],
        )
        return Trajectories._trusted(**(arrays | changed))


@dataclass(frozen=True)
class _Episode:
    """One checked episode on its way into `Trajectories`."""

    observations: Array
    rewards: Array
    discounts: Array
    actions: NDArray[Any] | None
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
        rewards = _as_finite_vector(get("rewards"), n, f"{where}rewards")
        discounts = get("discounts")
        if discounts is None and gamma is None:
            raise ValueError(f"{where}no discount: pass gamma=… or give the episode discounts [T].")
        given = np.full(n, gamma, dtype=np.float64) if discounts is None else discounts
        discounts = _as_finite_vector(given, n, f"{where}discounts")
        if ((discounts < 0) | (discounts > 1)).any():
            bad = discounts[(discounts < 0) | (discounts > 1)][0]
            raise ValueError(f"{where}the discount gamma must lie in [0, 1]; got {bad:g}.")
        actions = get("actions")
        if actions is not None:
            actions = np.asarray(actions)
            if actions.shape[:1] != (n,):
                came = len(actions) if actions.ndim else actions
                raise ValueError(f"{where}expected {n} actions, one per reward; got {came}.")
        return cls(observations, rewards, discounts, actions, _last_flag(get("terminated"), n, where))


def as_states(values: ArrayLike, *, name: str) -> Array:
    """Check and convert states to floats of shape (n, n_dims); a flat list counts as one dimension."""
    try:
        states = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers in an array of shape (n, n_dims): {error}.") from None
    if states.ndim == 1:
        states = states[:, None]
    if states.ndim != 2 or states.shape[1] == 0:
        raise ValueError(
            f"{name} must have shape (n, n_dims); got {states.shape}. Flatten images and nested observations first."
        )
    _refuse_non_finite(states, name)
    return states


def _as_finite_vector(values: ArrayLike, n: int, name: str) -> Array:
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers: {error}.") from None
    if vector.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},); got {vector.shape}.")
    _refuse_non_finite(vector, name)
    return vector


def _refuse_non_finite(array: Array, name: str) -> None:
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        index = ", ".join(str(i) for i in bad[0])
        raise ValueError(f"{name} must be finite; {name}[{index}] is {array[tuple(bad[0])]}.")


def _last_flag(flag: Any, n: int, where: str) -> bool:
    flags = np.asarray(False if flag is None else flag)
    if flags.ndim and flags.size != n:
        raise ValueError(f"{where}terminated must be one flag, or {n}, one per reward; got {flags.size}.")
    return bool(flags.reshape(-1)[-1])


def _pad_last(actions: NDArray[Any]) -> NDArray[Any]:
    """No action follows the last state: a zero stands in its place."""
    return np.concatenate([actions, np.zeros_like(actions[:1])])
