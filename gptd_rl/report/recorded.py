"""Frozen records of episodes to watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gptd_rl.types import Array, IntArray


@dataclass(frozen=True)
class Frame:
    """A small picture of the environment.

    Attributes
    ----------
    moment : int
        Index of the moment that it shows.
    data : bytes
        The encoded picture.
    """

    moment: int
    data: bytes


@dataclass(frozen=True, eq=False)
class Recording:
    """A fresh episode, at some moments of it.

    Attributes
    ----------
    name : {"best", "typical", "worst"}
        Rank of its return: the highest, the median, the lowest.
    seed : int
        Of the environment's reset.
    total : float
        Undiscounted return.
    n_steps : int
    end : {"terminated", "truncated"}
    steps : ndarray of shape (k,)
        The step of each moment; the first and the last state are among them.
    states : ndarray of shape (k, n_dims)
    rewards : ndarray of shape (k,)
        Received on leaving each state; NaN at the last one.
    followed : ndarray of shape (k,)
        Discounted return from there on. After a truncated end, the predicted value stands for the rest.
    predicted, lower, upper : ndarray of shape (k,)
        V with its 95 % interval; NaN at a terminal state.
    critic : ndarray of shape (k,) or None
        Values of the agent's own critic; NaN at a terminal state.
    frames : tuple of Frame
        In order of time; empty without pictures. They are not part of the JSON file.
    """

    name: Literal["best", "typical", "worst"]
    seed: int
    total: float
    n_steps: int
    end: Literal["terminated", "truncated"]
    steps: IntArray
    states: Array
    rewards: Array
    followed: Array
    predicted: Array
    lower: Array
    upper: Array
    critic: Array | None
    frames: tuple[Frame, ...] = field(default=(), metadata={"json": False})


@dataclass(frozen=True)
class Recordings:
    """Recorded episodes.

    Attributes
    ----------
    episodes : tuple of Recording
        Empty if none could be recorded.
    n_candidates : int
        Number of fresh episodes that they were chosen from.
    media_type : str
        Of the frames, such as "image/webp".
    note : str
        Why there are no pictures, or no episodes; empty otherwise.
    """

    episodes: tuple[Recording, ...] = ()
    n_candidates: int = 0
    media_type: str = ""
    note: str = ""
