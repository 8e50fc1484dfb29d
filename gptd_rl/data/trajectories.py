"""The frozen record of sampled data: states, rewards and discounts in segments.

A *segment* is an unbroken run of the policy. It ends in one of two ways, which are never merged:

- **terminated**: its last state is terminal. The state has a row of its own, `V(x_L) = 0`, the zero-reward transition
  with discount 0 that the paper uses as a reset.
- **truncated** (a time limit, or the data stop): its last state is an ordinary state without a row, since nothing is
  known about what follows.

The operator H, the posterior and the evidence depend on the data through this record only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import as_index, one_line
from gptd_rl.data import files, frames, readers, resampling
from gptd_rl.data.record import check_record
from gptd_rl.exceptions import brief
from gptd_rl.types import Array, BoolArray, IntArray


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
        Number of states in each segment: two or more, or one if it is a terminal state by itself.
    terminated : ndarray of shape (n_segments,)
        Whether the last state of each segment is terminal (True) or the run was cut off there (False).
    actions : ndarray of shape (n_states, ...), optional
        Action taken in each state; zero where nothing follows.
    policy_actions : ndarray of shape (n_states, n_choices, 1 + n_columns), optional
        For states that are pairs [x, a]: weights and actions of the evaluated policy in x (`data.logged_pairs`).

    Notes
    -----
    All arrays, derived ones included, are read-only.

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
    lengths: IntArray
    terminated: BoolArray
    actions: NDArray[Any] | None = field(default=None)
    policy_actions: Array | None = field(default=None)

    def __post_init__(self) -> None:
        self._set(check_record(**self._fields()))

    def _fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def _set(self, arrays: Mapping[str, Any]) -> None:
        """Set read-only views of all arrays."""
        for name, array in arrays.items():
            object.__setattr__(self, name, None if array is None else _read_only(array))

    @classmethod
    def _trusted(cls, **arrays: Any) -> Trajectories:
        """Build from arrays that obey the rules already, without checks or copies."""
        new = object.__new__(cls)
        new._set({"actions": None, "policy_actions": None} | arrays)
        return new

    def __getstate__(self) -> dict[str, Any]:
        return self._fields()  # cached properties are computed again

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set(state)

    # ---------------------------------------------------------------------------------- readers

    @classmethod
    def from_chain(cls, states: ArrayLike, rewards: ArrayLike, gammas: ArrayLike) -> Trajectories:
        """Read the paper's own format: one chain of states in which `gamma = 0` marks a reset.

        `gammas[i] = 0` says that `states[i]` is terminal and `states[i+1]` starts the next episode. The states
        after the last reset form a truncated segment; a single state there carries no information and is left out.

        Parameters
        ----------
        states : array-like of shape (n, n_dims)
        rewards : array-like of shape (n - 1,)
        gammas : array-like of shape (n - 1,)
        """
        return cls._trusted(**readers.from_chain(states, rewards, gammas))

    @classmethod
    def from_episodes(cls, episodes: Iterable[Mapping[str, Any] | object], gamma: float | None = None) -> Trajectories:
        """Read Gymnasium-like episodes; an episode with both flags set terminated.

        Parameters
        ----------
        episodes : iterable of mappings or objects
            Each with `observations` [T+1, n_dims] and `rewards` [T], optionally `actions` [T], `terminated`,
            `truncated` (a flag, or one flag per step of which the last counts) and `discounts` [T].
        gamma : float, optional
            The discount of every step; an episode's own `discounts` take precedence.
        """
        return cls._trusted(**readers.from_episodes(episodes, gamma))

    @classmethod
    def from_values(cls, states: ArrayLike, values: ArrayLike, actions: ArrayLike | None = None) -> Trajectories:
        """Read regression targets: V(x) = y plus noise, one independent observation per state.

        Each state becomes a terminated segment of its own. Its only row is V(x) = y, so `n_transitions` is 0 and
        `n_rows` the number of targets. Both noise models of the estimators reduce to the σ²I of plain Gaussian-process
        regression.

        Parameters
        ----------
        states : array-like of shape (n, n_dims)
        values : array-like of shape (n,)
            The target y of each state: a return, a bootstrapped value, or any other estimate of V.
        actions : array-like of shape (n, ...), optional
            Actions taken in the states, if y is an estimate of Q(x, a).

        Examples
        --------
        >>> data = Trajectories.from_values([[0.0], [1.0]], [2.0, 3.0])
        >>> data.n_rows, data.n_transitions
        (2, 0)
        """
        return cls._trusted(**readers.from_values(states, values, actions))

    @classmethod
    def from_minari(cls, dataset: Any, gamma: float | None = None) -> Trajectories:
        """Read a Minari dataset.

        Parameters
        ----------
        dataset : minari.MinariDataset or str
            A dataset, or the id of one on this computer.
        gamma : float, optional
            Discount of every step. May be left out if the dataset was written by this package and holds discounts.

        Returns
        -------
        trajectories : Trajectories
            A segment per episode, with observations flattened as by `gymnasium.spaces.flatten`. An episode that has
            both flags set terminated; one that has none is truncated.
        """
        from gptd_rl.data.minari import read_episodes

        return cls.from_episodes(read_episodes(dataset, gamma), gamma)

    def to_minari(self, dataset_id: str, **options: Any) -> Any:
        """Write a Minari dataset with both flags: see `gptd_rl.data.minari.write_dataset` for the options."""
        from gptd_rl.data.minari import write_dataset

        return write_dataset(self, dataset_id, **options)

    # ---------------------------------------------------------------------------------- files

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trajectories:
        """Read a file that `save` wrote; its arrays are checked like those of any other source."""
        path = Path(path)
        try:
            arrays = files.read(path)
            unknown = sorted(set(arrays) - {f.name for f in fields(cls)})
            if unknown:
                raise ValueError(f"it holds {', '.join(unknown)}")
            return cls._trusted(**check_record(**arrays))
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no file {one_line(path)}.") from None
        except files.UNREADABLE as error:
            raise ValueError(
                f"{one_line(path)} does not hold trajectories as Trajectories.save writes them: {brief(error)}"
            ) from None

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the arrays to one file (NumPy's npz), which `GPTD.fit` takes as a shard by its path."""
        arrays = {name: array for name, array in self._fields().items() if array is not None}
        return files.write(path, arrays, compressed=False)

    # ---------------------------------------------------------------------------------- sizes and indices

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
        """Number of environment transitions; the rows of terminal states are not counted."""
        return len(self) - self.n_segments

    @cached_property
    def n_rows(self) -> int:
        """Number of rows of H: one per transition and one per terminal state."""
        return self.n_transitions + int(self.terminated.sum())

    @cached_property
    def starts(self) -> IntArray:
        """Index of the first state of each segment, of shape (n_segments,)."""
        return _read_only(np.cumsum(self.lengths) - self.lengths)

    @cached_property
    def last(self) -> IntArray:
        """Index of the last state of each segment, of shape (n_segments,)."""
        return _read_only(np.cumsum(self.lengths) - 1)

    @cached_property
    def segment_of(self) -> IntArray:
        """Segment of each state, of shape (n_states,)."""
        return _read_only(np.repeat(np.arange(self.n_segments), self.lengths))

    @cached_property
    def has_row(self) -> BoolArray:
        """Whether H has a row for each state: not at the last state of a truncated segment; of shape (n_states,)."""
        rows = np.ones(len(self), dtype=bool)
        rows[self.last[~self.terminated]] = False
        return _read_only(rows)

    @cached_property
    def has_transition(self) -> BoolArray:
        """Whether a transition leaves each state: not at the last state of any segment; of shape (n_states,)."""
        left = np.ones(len(self), dtype=bool)
        left[self.last] = False
        return _read_only(left)

    # ---------------------------------------------------------------------------------- parts and sums

    def __add__(self, other: Trajectories) -> Trajectories:
        """Append the segments of `other`."""
        if not isinstance(other, Trajectories):
            return NotImplemented
        return Trajectories.concatenate([self, other])

    @classmethod
    def concatenate(cls, parts: Sequence[Trajectories]) -> Trajectories:
        """Lay the segments of all `parts` end to end."""
        if not parts:
            raise ValueError("empty data: expected at least one part to concatenate, got none.")
        if kinds := {type(part).__name__ for part in parts if not hasattr(part, "segment_of")}:
            raise TypeError(f"expected Trajectories to concatenate; got {min(kinds)}.")
        widths = {p.n_dims for p in parts}
        if len(widths) > 1:
            raise ValueError(f"cannot join states of different widths: got {sorted(widths)}.")
        with_actions = [p.actions for p in parts if p.actions is not None]
        chosen = [p.policy_actions for p in parts if p.policy_actions is not None]
        if any(known and len(known) < len(parts) for known in (with_actions, chosen)):
            raise ValueError("cannot join trajectories with actions to trajectories without.")
        return cls._trusted(
            states=np.concatenate([p.states for p in parts]),
            rewards=np.concatenate([p.rewards for p in parts]),
            discounts=np.concatenate([p.discounts for p in parts]),
            lengths=np.concatenate([p.lengths for p in parts]),
            terminated=np.concatenate([p.terminated for p in parts]),
            actions=np.concatenate(with_actions) if with_actions else None,
            policy_actions=_join_choices(chosen) if chosen else None,
        )

    def __getitem__(self, segments: int | slice | ArrayLike) -> Trajectories:
        """Select segments by number, slice, index array or mask."""
        return Trajectories._trusted(**resampling.select_segments(self, segments))

    def __iter__(self) -> Iterator[Trajectories]:
        """Yield each segment as `Trajectories` of its own."""
        return (self[s] for s in range(self.n_segments))

    def take_inputs(self, columns: ArrayLike) -> Trajectories:
        """Keep only some state variables.

        Parameters
        ----------
        columns : int, array-like of int, or mask of shape (n_dims,)
        """
        states = self.states[:, as_index(columns, self.n_dims, "columns")]
        return Trajectories._trusted(**resampling.take_rows(self, slice(None), states=states))

    def thin(self, every: int, offset: int = 0) -> Trajectories:
        """Keep every `every`-th state of each segment from `offset` on, *with its present return*.

        A step of the result spans `every` steps of the data: its reward is their discounted sum, its discount their
        product. The last kept state of a terminated segment receives the discounted sum of all rewards that remain. The
        rewards of a truncated segment behind its last kept state carry no information about that state and are dropped.
        Each state is kept at exactly one offset, so the offsets partition the data. Segments without a row are left
        out.

        Parameters
        ----------
        every : int
            The thinning τ.
        offset : int
            From 0 to `every - 1`: the first step of each segment to keep.
        """
        return Trajectories._trusted(**resampling.thin(self, every, offset))

    def cut(self, max_transitions: int) -> Trajectories:
        """Cut long segments into pieces that share their end states; all but the last piece are truncated.

        No transition is lost, only the information that a piece continues in the next one.
        """
        return Trajectories._trusted(**resampling.cut(self, max_transitions))

    def to_pandas(self, names: Sequence[str] | None = None) -> Any:
        """A table with one row for each state; it needs pandas.

        Parameters
        ----------
        names : sequence of str, optional
            Names of the state variables; "input 0", "input 1", … by default.

        Returns
        -------
        table : pandas.DataFrame
            Columns segment, step, one for each state variable, action (or action 0, …), reward, discount, terminated
            and truncated. Reward and discount of a truncated segment's last state, and actions of last states, are
            missing.
        """
        return frames.trajectories_frame(self, names)


def _join_choices(parts: Sequence[Array]) -> Array:
    """Weights and actions of all parts; those with fewer choices repeat their first one with weight 0."""
    n_choices = max(part.shape[1] for part in parts)
    filled = []
    for part in parts:
        more = np.repeat(part[:, :1], n_choices - part.shape[1], axis=1)
        more[:, :, 0] = 0.0
        filled.append(np.concatenate([part, more], axis=1))
    return np.concatenate(filled)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
