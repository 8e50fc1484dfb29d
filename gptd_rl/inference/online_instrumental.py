"""Values by instruments, kept up to date while the policy runs: recursive LSTD with the regulariser of the batch.

The estimate and its variance are those of `instrumental`, with the features ψ of a dictionary that grows (`growing`).
The statistics of a transition take O(m²) time (`running_moments`). What follows from them, the eigenvectors of G and
the factors of A + R, takes O(m³) and is computed when a prediction is asked for, once until the next update.

A transition into a terminal state has x = ψ(x), but whether a state is terminal is known only after the step into it:
the last row of the running segment is *pending*, and counts in predictions as if the segment were cut off there, until
the next step or the end of the segment confirms it.

W = Σ(δ_t/(1 − h_t))²ψ_tψ_tᵀ needs the TD errors of the present weights at all past transitions. With a history they
are computed when a variance is asked for, in O(n·m²) time. Without, W is a recursion, W ← λW + δ²ψψᵀ, in which δ is
the error of weights from before the transition: left out of its own prediction without a correction by h.

With forgetting a transition of age k has the weight ω = λᵏ in all sums, as if the variance of its TD error were s²/ω:
W = Σω(δ/(1 − ωh))²ψψᵀ. The smallest 1 − γ is that of all transitions ever seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gptd_rl import linalg
from gptd_rl.checks import as_count, as_discount, as_numbers, check_number
from gptd_rl.inference.growing import GrowingPosterior
from gptd_rl.inference.instrumental import InstrumentalPosterior, MomentSolution, summarize_noise
from gptd_rl.inference.posterior import in_chunks
from gptd_rl.inference.running_moments import (
    InstrumentedRow,
    RecursiveNoise,
    RunningMoments,
    TransitionTable,
    row_weights,
)
from gptd_rl.kernels import Kernel
from gptd_rl.types import Array

# The weights behind the TD errors of W, where there is no history, are solved for anew after so many more data.
REFRESH = 0.1

# What files keep of `RunningMoments` beside Σζζᵀ.
SCALARS = ("n_rows", "total_loss", "smallest_loss")


@dataclass(frozen=True, eq=False)
class OpenSegment:
    """The segment under way: its last state, and the row into that state, which a terminal state would change."""

    state: Array
    psi: Array  # of the last state  [m']
    pending: InstrumentedRow | None = None


class OnlineInstrumentalPosterior(GrowingPosterior):
    """Values by instruments that take in one transition at a time.

    Parameters
    ----------
    kernel : Kernel
    noise_variance : float
        s² as long as all rewards are 0, and TD errors therefore unknown; later s² is estimated.
    tolerance : float
        ε, the share of the prior variance that the dictionary may leave unexplained.
    max_size : int or None
        Size at which the dictionary stops growing.
    keep_history : bool
        Whether past transitions are kept, so that new features and all TD errors are exact.
    forgetting : float
        λ, the weight of the past at each new row.
    """

    trace_decay = 0.0

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        tolerance: float,
        max_size: int | None,
        keep_history: bool,
        forgetting: float,
    ) -> None:
        super().__init__(kernel, tolerance, max_size)
        self.noise_variance, self.forgetting = noise_variance, forgetting
        self.moments = RunningMoments(len(self.features), forgetting)
        self.history = TransitionTable(self.features.split) if keep_history else None
        self.noise = None if keep_history else RecursiveNoise(len(self.features), forgetting)
        self.running: OpenSegment | None = None
        self._solution: MomentSolution | None = None
        self._batch: InstrumentalPosterior | None = None

    # ---------------------------------------------------------------------------------- learning

    def start(self, state: Array) -> None:
        """Begin a segment at its first state; one under way counts as truncated."""
        self._close(None)
        self.running = OpenSegment(state, self._enter(state))
        self._keep(state)

    def step(self, reward: float, discount: float, next_state: Array) -> None:
        """Add the row V(x) − γV(x') = r, where x is the last state of the running segment."""
        assert self.running is not None
        is_first = self.running.pending is None
        self._confirm()
        next_psi = self._enter(next_state)
        if self.history is not None:
            self.history.set_row(1.0, discount, reward, is_first)
        pending = InstrumentedRow(self.running.psi, next_psi, reward, discount)
        self.running = OpenSegment(next_state, next_psi, pending)
        self._keep(next_state)

    def stop(self, terminated: bool, reward: float = 0.0) -> None:
        """End the segment.

        The row into a terminal state has γ = 0. If that state has a reward, or is alone, it is a regression target
        V(x) = r instead, with a row of its own (as in `Transitions`).
        """
        self._close(reward if terminated else None)

    def _close(self, terminal_reward: float | None) -> None:
        """End the running segment, if there is one; `terminal_reward` is None if it is truncated."""
        self._forget_answers()
        if self.running is None:
            return
        run = self.running
        if terminal_reward is None:
            self._confirm()
        elif run.pending is None or terminal_reward != 0.0:
            self._confirm()
            self._add(InstrumentedRow(run.psi, np.zeros_like(run.psi), terminal_reward, 0.0))
            if self.history is not None:
                self.history.set_row(1.0, 0.0, terminal_reward, run.pending is None)
        else:
            self._add(replace(run.pending, discount=0.0))
            if self.history is not None:
                self.history.end_in_last_state()
        self.running = None

    def _confirm(self) -> None:
        """Take in the pending row as it is."""
        self._forget_answers()
        assert self.running is not None
        if self.running.pending is not None:
            self._add(self.running.pending)
            self.running = replace(self.running, pending=None)

    def _add(self, row: InstrumentedRow) -> None:
        self.moments.add(row)
        if self.noise is not None:
            self.noise.add(row)
            if self.noise.age >= REFRESH * self.moments.n_rows:
                self.noise.refresh(self._solve(self.moments).weights)

    def _keep(self, state: Array) -> None:
        if self.history is not None:
            self.history.append(state)

    def _grow(self) -> None:
        # Without a history the new feature is 0 at past states, but not at the one where the segment stands.
        rows = np.zeros((2, 1 + 2 * len(self.features)))
        if self.history:
            rows = self.history.new_moments(self.features, self.forgetting)
        self.moments.grow(rows)
        if self.noise is not None:
            self.noise.grow()
        if self.running is not None:
            self.running = replace(self.running, psi=self.features(self.running.state[None])[0])

    # ---------------------------------------------------------------------------------- solving

    def _forget_answers(self) -> None:
        self._solution = self._batch = None

    def _solve(self, moments: RunningMoments) -> MomentSolution:
        """The weights, in O(m³) time."""
        known = moments.statistics()
        if not known.n_rows:
            return MomentSolution.prior(known, self.noise_variance)
        return MomentSolution.of(known, None if known.squared_rewards > 0.0 else self.noise_variance)

    @property
    def _pending(self) -> InstrumentedRow | None:
        return None if self.running is None else self.running.pending

    @property
    def solution(self) -> MomentSolution:
        """The weights given all transitions, solved for once until the next update."""
        if self._solution is None:
            pending = self._pending
            self._solution = self._solve(self.moments if pending is None else self.moments.with_row(pending))
        return self._solution

    @property
    def batch(self) -> InstrumentalPosterior:
        """The batch posterior of all transitions with the dictionary as its inducing points."""
        if self._batch is None:
            self._batch = InstrumentalPosterior(self.features, self.solution, self._noise_moments(), is_exact=False)
        return self._batch

    def _noise_moments(self) -> Array:
        """W, of shape (m', m')."""
        if self.noise is not None:
            pending = self._pending
            noise = self.noise if pending is None else self.noise.with_row(pending)
            return linalg.symmetrise_in_place(noise.moments.copy())
        assert self.history is not None
        rows = self.history.transitions()
        return summarize_noise(rows, self.features, self.solution, row_weights(len(rows), self.forgetting))

    # ---------------------------------------------------------------------------------- predicting

    def mean(self, states: Array) -> Array:
        """Estimate of V, of shape (n,)."""
        weights = self.solution.weights
        return in_chunks(lambda x: self.features(x) @ weights, states)

    def variance(self, states: Array) -> Array:
        """Variance of the error of the mean, of shape (n,)."""
        return self.batch.variance(states)

    def interval_variance(self, states: Array) -> Array:
        """The variance for intervals, of shape (n,)."""
        return self.batch.interval_variance(states)

    def covariance(self, states: Array) -> Array:
        """Covariance of the errors between all pairs of states, of shape (n, n)."""
        return self.batch.covariance(states)

    def sample(self, states: Array, n: int, rng: np.random.Generator) -> Array:
        """Joint samples, of shape (n, m)."""
        return self.batch.sample(states, n, rng)

    # ---------------------------------------------------------------------------------- files

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was learnt but the dictionary, as plain data and arrays."""
        m = self.moments
        header: dict[str, Any] = {name: getattr(m, name) for name in SCALARS}
        arrays: dict[str, Any] = dict(moments=m.gram)
        if self.history is not None:
            arrays["history"] = self.history.table
        if self.noise is not None:
            header["age"] = self.noise.age
            arrays |= dict(noise=self.noise.moments, weights=self.noise.weights)
        if self.running is not None:
            arrays["psi"] = self.running.psi
        if (row := self._pending) is not None:
            header["pending"] = dict(reward=row.reward, discount=row.discount)
            arrays |= dict(left_psi=row.psi, next_psi=row.next_psi)
        return header, arrays

    def restore(
        self, inducing_points: Array, running_state: Array | None, header: dict[str, Any], arrays: Mapping[str, Any]
    ) -> None:
        """Take back what `to_arrays` kept; the running segment, if there is one, stands at `running_state`."""
        super().restore(inducing_points, running_state, header, arrays)
        m = len(self.features)
        self.moments.gram = as_numbers(arrays["moments"], (1 + 2 * m, 1 + 2 * m), "moments")
        for name in SCALARS:
            check_number(name, header[name], minimum=0.0)
            setattr(self.moments, name, header[name])
        if self.history is not None:
            self.history.table = arrays["history"]
        if self.noise is not None:
            self.noise.moments = as_numbers(arrays["noise"], (m, m), "noise")
            self.noise.weights = as_numbers(arrays["weights"], (m,), "weights")
            self.noise.age = as_count(header["age"], "age", 0)
        pending = None
        if "pending" in header:
            left, right = (as_numbers(arrays[name], (m,), name) for name in ("left_psi", "next_psi"))
            check_number("reward", header["pending"]["reward"])
            as_discount(header["pending"]["discount"])
            pending = InstrumentedRow(left, right, **header["pending"])
        if running_state is not None:
            self.running = OpenSegment(running_state, as_numbers(arrays["psi"], (m,), "psi"), pending)
        self._forget_answers()
