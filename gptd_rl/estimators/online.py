"""The sparse posterior kept up to date while the policy runs: O(m²) for each transition, however many came before.

A dictionary Z of m states stands for all others. It grows by each state that it leaves more than a share ε of
unexplained. The posterior is that of `sparse`, in coordinates in which the prior of the weights is white: with
``C(Z, Z) = LLᵀ`` and V(x) = φ(x)ᵀw,

    φ(x) = [√b, √v₀·L⁻¹C(Z, x)]        w ~ N(0, I)        A = S + σ²I        S = Σ ggᵀ        s = Σ g·t
    mean(x) = φᵀA⁻¹s                   var(x) = σ²φᵀA⁻¹φ + v₀(1 − ‖L⁻¹C(Z, x)‖²)

So no eigenvalue of A falls below σ², and a new dictionary state adds a feature but leaves the others as they are.

Each reward r on the way from x to x' gives one row g with target t. Rewards with the noise σ²HHᵀ are correlated along a
segment; the rows are made independent by three sums over the segment so far: f of features, q of squared weights and h
of returns, in which each state counts κ times what the next one does:

    g = (f/√q − γ√q·φ(x'))/√q'       t = (h + rq)/√(qq')       q' = κ²q + 1       f' = κf + φ(x')       h' = κ(h + rq)

with κ = γ, and f = φ(x), q = 1, h = 0 at the first state. For the noise σ²I κ = 0: there is nothing to undo, and g is
φ(x) − γφ(x'). A terminal state has the row of a step with γ = 0; where a segment is cut off nothing is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import blas

from gptd_rl import linalg
from gptd_rl.checks import as_states
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.gptd import GPTD, NOISES
from gptd_rl.exceptions import NotFittedError
from gptd_rl.inference.exact import in_chunks
from gptd_rl.inference.inducing import UNPIVOTED_ROUNDING, Dictionary
from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.temporal.shards import BLOCK
from gptd_rl.temporal.targets import Noise
from gptd_rl.types import Array


class Transition(NamedTuple):
    """One step of the policy; if both flags are set, termination wins."""

    state: ArrayLike
    reward: float
    next_state: ArrayLike
    discount: float
    terminated: bool = False
    truncated: bool = False


class OnlineGPTD:
    """Gaussian-process temporal-difference learning of V, one transition at a time, with a kernel that is given.

    Parameters
    ----------
    kernel : SquaredExponential
        The prior covariance of V; `from_batch` takes it from a fitted model.
    noise_variance : float
        σ², of the noise σ²HHᵀ or σ²I.
    noise : {"stochastic", "deterministic"}
        As in `GPTD`.
    tolerance : float
        ε: a state enters the dictionary if those in it leave more than this share of v₀ unexplained there.
    max_size : int, optional
        Size at which the dictionary stops growing.
    keep_history : bool
        Whether to keep all n states seen, in O(n·n_dims) memory. A state that enters the dictionary is then compared
        with each of them, in O(n·m) time, and the posterior is exactly the batch one. Without them memory is O(m²), and
        the posterior is approximate to ε: of the variance of each earlier state, that much at most goes unused.
    forgetting : float
        λ: the weight of all that was seen is multiplied by this before each new row, for a policy that changes. The
        prior is not forgotten; below 1, the first prediction after an update therefore costs O(m³).

    Attributes
    ----------
    dictionary_ : ndarray of shape (m, n_dims)
        The states that stand for all others.
    n_transitions_ : int
        Transitions taken in.
    n_dims_ : int
        Width of a state.

    Examples
    --------
    >>> from gptd_rl import Isotropic, SquaredExponential
    >>> v = OnlineGPTD(SquaredExponential(Isotropic(0.1, n_dims=1), signal_variance=10.0), noise_variance=1e-3)
    >>> for x in range(5):  # a corridor: one step costs 1, the end is terminal
    ...     v = v.update(Transition([x], -1.0, [x + 1], discount=1.0, terminated=x == 4))
    >>> v.predict([[2.0]]).round(1)
    array([-3.])
    """

    def __init__(
        self,
        kernel: SquaredExponential,
        noise_variance: float,
        *,
        noise: Noise = "stochastic",
        tolerance: float = 1e-3,
        max_size: int | None = None,
        keep_history: bool = True,
        forgetting: float = 1.0,
    ) -> None:
        _expect(isinstance(kernel, SquaredExponential), "kernel must be a SquaredExponential", type(kernel), TypeError)
        _expect(0.0 < noise_variance < np.inf, "noise_variance must be positive and finite", noise_variance)
        _expect(noise in NOISES, f"noise must be one of {', '.join(map(repr, NOISES))}", noise)
        _expect(0.0 < tolerance < 1.0, "tolerance is a share of v₀ and must lie between 0 and 1", tolerance)
        _expect(0.0 < forgetting <= 1.0, "forgetting must lie in (0, 1], where 1 forgets nothing", forgetting)
        _expect(max_size is None or max_size >= 1, "max_size must be 1 or more, or None for no limit", max_size)
        self.kernel, self.noise_variance, self.noise = kernel, noise_variance, noise
        self.tolerance, self.max_size = tolerance, max_size
        self.keep_history, self.forgetting = keep_history, forgetting
        self._read(np.arange(kernel.metric.n_dims), kernel.metric.n_dims)

    def _read(self, inputs: NDArray[np.int64], n_dims: int) -> None:
        """Begin with no data, of which only the columns `inputs` are used."""
        self._inputs, self.n_dims_, self.n_transitions_ = inputs, n_dims, 0
        self._chosen: list[Array] = []
        self._dictionary = Dictionary.empty(replace(self.kernel, signal_variance=1.0, bias=0.0))
        self._weights = _Weights(self.noise_variance, self.forgetting)
        self._history = _History(len(inputs)) if self.keep_history else None
        self._running: _Running | None = None

    @classmethod
    def from_batch(cls, v: GPTD, *, data: Trajectories | None = None, **options: Any) -> Self:
        """The paper's hybrid: model selection on a batch, updates online.

        Parameters
        ----------
        v : GPTD
            A fitted model, of which the kernel, the noise and the inputs in use are taken.
        data : Trajectories, optional
            Taken in first: what `v` was fitted to, to go on from there. Without, online learning starts from the prior.
        **options
            `tolerance`, `max_size`, `keep_history` and `forgetting`.
        """
        _expect(isinstance(v, GPTD), "from_batch expects a fitted GPTD", type(v), TypeError)
        if not hasattr(v, "kernel_"):
            raise NotFittedError("this GPTD has not been fitted yet: call fit(data) first.")
        new = cls(v.kernel_, v.thinning_ * v.noise_variance_, noise=v.noise, **options)
        new._read(v.inputs_, v.n_dims_)
        return new if data is None else new.update(data)

    @property
    def dictionary_(self) -> Array:
        """The states that stand for all others, of shape (m, n_dims)."""
        return np.array(self._chosen).reshape(-1, self.n_dims_)

    def __repr__(self) -> str:
        return f"OnlineGPTD({self.n_transitions_} transitions, {len(self._chosen)} states in the dictionary)"

    # ---------------------------------------------------------------------------------- learning

    def update(self, seen: Transition | Trajectories) -> Self:
        """Take in one transition, or whole segments; input that is refused changes nothing.

        Parameters
        ----------
        seen : Transition or Trajectories
            A transition goes on with the running segment if it starts where that one stands. If not, the running
            segment counts as truncated and a new one begins; so it does with each segment of `Trajectories`.
        """
        if isinstance(seen, Trajectories):
            self._check_width(seen.n_dims)
            for first, last, terminated in zip(seen.starts, seen.last, seen.terminated, strict=True):
                self._start(seen.states[first])
                for i in range(first, last):
                    self._step(seen.rewards[i], seen.discounts[i], seen.states[i + 1])
                self._stop(terminated, seen.rewards[last])
            return self
        _expect(isinstance(seen, Transition), "update expects a Transition or Trajectories", type(seen), TypeError)
        state = _finite("state", seen.state, (self.n_dims_,))
        reward = float(_finite("reward", seen.reward, ()))
        next_state = _finite("next_state", seen.next_state, (self.n_dims_,))
        discount = float(_finite("discount", seen.discount, ()))
        _expect(0.0 <= discount <= 1.0, "discount must lie in [0, 1]", discount)
        if self._running is None or not np.array_equal(self._running.state, state):
            self._start(state)
        self._step(reward, discount, next_state)
        if seen.terminated or seen.truncated:
            self._stop(seen.terminated)
        return self

    def _start(self, state: Array) -> None:
        """Begin a segment at its first state."""
        self._running = _Running(state, f=self._enter(state), q=1.0, h=0.0)
        self._remember(state)

    def _step(self, reward: float, discount: float, next_state: Array) -> None:
        """Add the row V(x) − γV(x') = r, where x is the state that the running segment has come to."""
        phi = self._enter(next_state)
        self._add_row(reward, discount, next_state, phi)
        self._remember(next_state)
        self.n_transitions_ += 1

    def _stop(self, terminated: bool, reward: float = 0.0) -> None:
        """End the segment; a terminal state has the row V(x) = r, that of a step with γ = 0, no matter where to."""
        assert self._running is not None
        if terminated:
            self._add_row(reward, 0.0, self._running.state, np.zeros_like(self._running.f))
        self._running = None

    def _add_row(self, reward: float, discount: float, next_state: Array, phi: Array) -> None:
        assert self._running is not None
        f, q, h = self._running.f, self._running.q, self._running.h
        carry = discount if self.noise == "stochastic" else 0.0  # κ
        # q' = κ²q + 1
        q_next = carry**2 * q + 1.0
        # g = αf − βφ(x')        t = α(h + rq)
        alpha, beta = 1.0 / np.sqrt(q * q_next), discount * np.sqrt(q / q_next)
        summed = h + reward * q
        self._weights.add(alpha * f - beta * phi, alpha * summed)
        if self._history is not None:
            self._history.set_row(alpha, beta, carry, alpha * summed)
        # f' = κf + φ(x')        h' = κ(h + rq)
        self._running = _Running(next_state, carry * f + phi, q_next, carry * summed)

    def _remember(self, state: Array) -> None:
        if self._history is not None:
            self._history.append(state[self._inputs])

    # ---------------------------------------------------------------------------------- the dictionary

    def _features(self, states: Array) -> tuple[Array, Array]:
        """Φ, of shape (n, m + 1), and the share of v₀ that the dictionary leaves unexplained, of shape (n,)."""
        unexplained, half = self._dictionary.residuals(states)
        Phi = np.empty((len(states), len(half) + 1))
        Phi[:, 0] = np.sqrt(self.kernel.bias)
        Phi[:, 1:] = np.sqrt(self.kernel.signal_variance) * half.T
        return Phi, unexplained

    def _enter(self, state: Array) -> Array:
        """φ of a state, which first joins the dictionary if that cannot express it, of shape (m + 1,)."""
        x = state[self._inputs]
        (phi,), (unexplained,) = self._features(x[None])
        is_full = self.max_size is not None and len(self._chosen) >= self.max_size
        if is_full or unexplained <= max(self.tolerance, UNPIVOTED_ROUNDING):
            return np.asarray(phi)
        self._dictionary = self._dictionary.extended(x)
        self._chosen.append(state.copy())
        # Without a history: c(x, z) ≈ C(x, Z)C(Z, Z)⁻¹c(Z, z), so that what z adds to Z is nothing at past states.
        column, moment, new_in_f = np.zeros(len(phi) + 1), 0.0, 0.0
        if self._history:
            column, moment, new_in_f = self._history.column(self.kernel, self._dictionary, self.forgetting)
        self._weights.grow(column, moment)
        if self._running is not None:
            self._running = replace(self._running, f=np.append(self._running.f, new_in_f))
        return np.append(phi, np.sqrt(self.kernel.signal_variance * unexplained))

    # ---------------------------------------------------------------------------------- predicting

    @overload
    def predict(self, states: ArrayLike, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def predict(self, states: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...

    def predict(self, states: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Posterior mean of V and, if asked, its standard deviation.

        Parameters
        ----------
        states : array-like of shape (n, n_dims)
        return_std : bool
            That of the projected process, which knows what the dictionary cannot express. As in `GPTD.predict`, it
            takes the residuals of the returns for independent.

        Returns
        -------
        mean : ndarray of shape (n,)
        std : ndarray of shape (n,)
            Only if `return_std`.
        """
        if not self._chosen:
            raise NotFittedError("this OnlineGPTD has seen no transition yet: call update(…) first.")
        x = as_states(states, name="states")
        self._check_width(x.shape[1])
        x = x[:, self._inputs]
        # φᵀA⁻¹s
        weights = self._weights.mean()
        mean = in_chunks(lambda part: self._features(part)[0] @ weights, x)
        return (mean, np.sqrt(in_chunks(self._variance, x))) if return_std else mean

    def _check_width(self, width: int) -> None:
        if width != self.n_dims_:
            raise ValueError(f"states must have {self.n_dims_} columns; got {width}. A single state is [[x1, x2, …]].")

    def _variance(self, states: Array) -> Array:
        Phi, unexplained = self._features(states)
        half = Phi @ self._weights.root()
        # σ²φᵀA⁻¹φ + v₀(1 − ‖L⁻¹C‖²)
        within = self.noise_variance * np.einsum("nm,nm->n", half, half)
        return np.asarray(within + self.kernel.signal_variance * unexplained)


@dataclass(frozen=True, eq=False)
class _Running:
    """The segment under way: its last state, and the sums over it that its next row needs."""

    state: Array
    f: Array  # Φᵀz, where z is the null vector of the segment so far: 1 at its last state, z_i = κ_i z_{i+1}  [m+1]
    q: float  # zᵀz
    h: float  # zᵀy, with y the returns so far


class _Weights:
    """Posterior of w ~ N(0, I) from rows ``t = gᵀw + ε``, ε ~ N(0, σ²).

    A root R of the inverse, ``RRᵀ = A⁻¹``, is taken along from row to row. It is better conditioned than A⁻¹, and what
    it stands for cannot become indefinite. After some time it is made anew from S, lest rounding errors pile up.
    """

    def __init__(self, noise_variance: float, forgetting: float) -> None:
        self.noise_variance, self.forgetting = noise_variance, forgetting
        self.gram, self.moment = np.zeros((1, 1)), np.zeros(1)  # S, its lower triangle, and s
        self._root: Array | None = None
        self._age = 0

    def add(self, g: Array, t: float) -> None:
        """Take in one row: S ← λS + ggᵀ, s ← λs + g·t."""
        if self.forgetting < 1.0:
            self.gram *= self.forgetting
            self.moment *= self.forgetting
        linalg.add_outer_in_place(self.gram, 1.0, g)
        self.moment += t * g
        self._age += 1
        if self.forgetting < 1.0 or self._age > max(len(g), 50):
            self._root = None
        if self._root is not None:
            # (A + ggᵀ)⁻¹ = R(I − uuᵀ/d²)Rᵀ = R(I − uuᵀ/(d² + d))²Rᵀ with u = Rᵀg, d² = 1 + uᵀu
            u = g @ self._root
            d = np.sqrt(1.0 + u @ u)
            blas.dger(-1.0 / (d * d + d), u, self._root @ u, a=self._root.T, overwrite_a=1)

    def grow(self, column: Array, moment: float) -> None:
        """Give each row one feature more, where `column` is the new last column of S."""
        m = len(self.gram)
        self.gram = np.pad(self.gram, (0, 1))
        self.gram[m], self.moment = column, np.append(self.moment, moment)
        if self._root is not None:
            # A⁻¹ bordered, where no Schur complement is smaller than σ²
            u = column[:m] @ self._root
            schur = max(column[m] + self.noise_variance - u @ u, self.noise_variance)
            new = np.append(-self._root @ u, 1.0) / np.sqrt(schur)
            self._root = np.pad(self._root, (0, 1))
            self._root[:, m] = new

    def mean(self) -> Array:
        """A⁻¹s, of shape (m + 1,)."""
        R = self.root()
        return R @ (self.moment @ R)

    def root(self) -> Array:
        """R, of shape (m + 1, m + 1)."""
        if self._root is None:
            I = np.eye(len(self.gram))
            L = linalg.cholesky(lambda: self.gram + self.noise_variance * I)
            self._root, self._age = np.ascontiguousarray(linalg.half_solve_transposed(L, I)), 0
        return self._root


class _History:
    """Past states and how each row is made of them: ``g = αf − βφ(x')`` with ``f' = κf + φ(x')``."""

    def __init__(self, n_dims: int) -> None:
        self._table, self._n = np.zeros((64, 4 + n_dims)), 0  # α, β, κ, t (0 where there is no row) and the state

    def __len__(self) -> int:
        return self._n

    def append(self, state: Array) -> None:
        """Add a state, as yet without a row."""
        if self._n == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[self._n, 4:] = state
        self._n += 1

    def set_row(self, alpha: float, beta: float, carry: float, target: float) -> None:
        """Give the last state its row."""
        self._table[self._n - 1, :4] = alpha, beta, carry, target

    def column(
        self, kernel: SquaredExponential, dictionary: Dictionary, forgetting: float
    ) -> tuple[Array, float, float]:
        """Last column of S, of shape (m + 1,), last entry of s and last entry of f, in O(n·m) time."""
        states, (alpha, beta, carry, target) = self._table[: self._n, 4:], self._table[: self._n, :4].T
        Z, L, scale = dictionary.states, dictionary.L, np.sqrt(kernel.signal_variance)
        chain = TemporalDifference(carry, alpha > 0, np.zeros(self._n, dtype=np.int64), 1)
        blocks = [slice(i, i + BLOCK) for i in range(0, self._n, BLOCK)]
        # The last feature of each state, √v₀·C(X, Z)L⁻ᵀe_m
        newest = np.zeros(len(Z))
        newest[-1] = scale
        onto_newest = linalg.half_solve_transposed(L, newest)
        p = np.concatenate([kernel.correlation(states[rows], Z) @ onto_newest for rows in blocks])  # [n]
        # … and of each row, g_m = αf − βp'
        f = chain.solve_transposed(p)
        g = alpha * f
        g[:-1] -= beta[:-1] * p[1:]
        # Σ λ^age g_m g = Φᵀa: the same steps transposed
        age = np.cumsum((alpha > 0)[::-1])[::-1] - 1
        weighted = g * forgetting**age
        a = chain.solve(alpha * weighted)
        a[1:] -= (beta * weighted)[:-1]
        Ca = sum((a[rows] @ kernel.correlation(states[rows], Z) for rows in blocks), np.zeros(len(Z)))
        column = np.append(np.sqrt(kernel.bias) * a.sum(), scale * linalg.half_solve(L, Ca))
        return column, float(weighted @ target), float(f[-1])


def _finite(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """A copy of `value` as floats of this shape; one number may have any shape."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be made of numbers: {error}.") from None
    if array.size == 1 == np.prod(shape):
        array = array.reshape(shape)
    _expect(array.shape == shape, f"{name} must have shape {shape}, flattened if need be", array.shape)
    bad = array[~np.isfinite(array)]
    if bad.size:
        raise ValueError(f"{name} must be finite; it holds {bad[0]}. Leave this transition out.")
    return array


def _expect(holds: bool, what: str, came: object, error: type[Exception] = ValueError) -> None:
    if not holds:
        raise error(f"{what}; got {came!r}.")
