"""How far apart two states are: the paper's three metrics Ω in ``d²(x, x') = (x − x')ᵀ Ω (x − x')`` (Section 5.2).

A metric knows three things: the coordinates in which its distance is the ordinary one (`whiten`), its own parameters
as a vector θ (log for positive ones, raw for factor loadings), and how a gradient with respect to the D×D matrix Ω
becomes one with respect to θ (`pull_back`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import as_count, as_floats, one_line
from gptd_rl.kernels.base import short
from gptd_rl.kernels.metric import Metric
from gptd_rl.kernels.scale import DataScale, ParameterSpace
from gptd_rl.types import Array, IntArray

# A relevance below this, per variance of its input, bends the value function so little that its effect is linear.
LINEAR_BELOW = 1e-2

# Relevances to consider, in units of 1/variance of an input.
SMALLEST, LARGEST = 1e-8, 1e4


class _Spectrum:
    """The eigendecomposition Ω = U diag(s) Uᵀ, largest eigenvalue first: the paper's s_i and u_i."""

    @property
    def matrix(self) -> Array:
        raise NotImplementedError

    @property
    def eigenvalues(self) -> Array:
        """The s_i, of shape (n_dims,): how fast the value may vary along each direction."""
        return np.asarray(np.linalg.eigvalsh(self.matrix)[::-1], dtype=np.float64)

    @property
    def directions(self) -> Array:
        """The u_i as rows, of shape (n_dims, n_dims), each with its largest component positive."""
        rows = np.linalg.eigh(self.matrix)[1].T[::-1]
        largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)
        return np.asarray(rows * np.sign(largest))

    @property
    def relevances(self) -> Array:
        """Diagonal of Ω, of shape (n_dims,): how relevant each state variable is on its own."""
        return np.diagonal(self.matrix).copy()


@dataclass(frozen=True, eq=False, repr=False)
class Isotropic(_Spectrum):
    """Ω = h·I: every state variable counts alike.

    Parameters
    ----------
    h : float
        Inverse squared lengthscale.
    n_dims : int
        Width of a state.
    """

    h: float
    n_dims: int

    def __post_init__(self) -> None:
        values = as_floats([self.h], "h")
        if values.shape != (1,):
            raise ValueError(f"h must be one number; got shape {values.shape[1:]}.")
        _refuse_negative(values, "h")
        as_count(self.n_dims, "n_dims")

    def __repr__(self) -> str:
        return f"Isotropic({short(self.h)}, n_dims={self.n_dims})"

    @property
    def matrix(self) -> Array:
        """Ω, of shape (n_dims, n_dims)."""
        return self.h * np.eye(self.n_dims)

    @property
    def theta(self) -> Array:
        """[log h]."""
        return _log(np.array([self.h]))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """("h",)."""
        return ("h",)

    @property
    def is_log(self) -> NDArray[np.bool_]:
        """Which entries of θ are logarithms."""
        return np.array([True])

    def with_theta(self, theta: Array) -> Isotropic:
        """Return the same metric with other parameters."""
        return Isotropic(float(np.exp(theta[0])), self.n_dims)

    @property
    def label(self) -> str:
        """The paper's variant I."""
        return "isotropic"

    @property
    def rank(self) -> int:
        """No directions."""
        return 0

    def space(self, scale: DataScale) -> ParameterSpace:
        """H by the largest and the smallest spread of an input."""
        variances = scale.input_std**2
        return ParameterSpace.log(SMALLEST / variances.max(), LARGEST / variances.min())

    def initial(self, scale: DataScale, relevance: float, rng: np.random.Generator) -> Isotropic:
        """Geometric mean of what `ARD` would guess."""
        return Isotropic(float(np.exp(np.log(_guess(scale, relevance)).mean())), self.n_dims)

    def grow(self, column: Array) -> FactorAnalysis:
        """The metric with one direction."""
        return FactorAnalysis(self.relevances, column)

    def take_inputs(self, inputs: IntArray) -> Isotropic:
        """The metric of some of the inputs."""
        return Isotropic(self.h, len(inputs))

    def whiten(self, states: Array) -> Array:
        """Coordinates in which d² is the ordinary squared distance."""
        return np.sqrt(self.h) * states

    def pull_back(self, gradient: Array) -> Array:
        """∂L/∂log h = h·tr(∂L/∂Ω)."""
        return np.array([self.h * np.trace(gradient)])


@dataclass(frozen=True, eq=False, repr=False)
class ARD(_Spectrum):
    """Ω = diag(a₁ … a_D): automatic relevance determination, one inverse squared lengthscale per state variable.

    Parameters
    ----------
    a : array-like of shape (n_dims,)
        The relevances; a value near zero says that the variable can be left out.
    """

    a: Array

    def __init__(self, a: ArrayLike) -> None:
        values = as_floats(a, "a").reshape(-1)
        _refuse_negative(values, "a")
        object.__setattr__(self, "a", values)

    def __repr__(self) -> str:
        return f"ARD({short(self.a)})"

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return len(self.a)

    @property
    def matrix(self) -> Array:
        """Ω, of shape (n_dims, n_dims)."""
        return np.diag(self.a)

    @property
    def theta(self) -> Array:
        """[log a₁ … log a_D]."""
        return _log(self.a)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """("a1", …, "aD")."""
        return tuple(f"a{d + 1}" for d in range(self.n_dims))

    @property
    def is_log(self) -> NDArray[np.bool_]:
        """Which entries of θ are logarithms."""
        return np.ones(self.n_dims, dtype=bool)

    def with_theta(self, theta: Array) -> ARD:
        """Return the same metric with other parameters."""
        return ARD(np.exp(theta))

    @property
    def label(self) -> str:
        """The paper's variant II."""
        return "ard"

    @property
    def rank(self) -> int:
        """No directions."""
        return 0

    def space(self, scale: DataScale) -> ParameterSpace:
        """Relevances by the spread of each input; linear where they are small."""
        return _relevance_space(scale)

    def initial(self, scale: DataScale, relevance: float, rng: np.random.Generator) -> ARD:
        """Every input alike, in units of its spread."""
        return ARD(_guess(scale, relevance))

    def grow(self, column: Array) -> FactorAnalysis:
        """The metric with one direction."""
        return FactorAnalysis(self.a, column)

    def take_inputs(self, inputs: IntArray) -> ARD:
        """The metric of some of the inputs."""
        return ARD(self.a[inputs])

    def whiten(self, states: Array) -> Array:
        """Coordinates in which d² is the ordinary squared distance."""
        return states * np.sqrt(self.a)

    def pull_back(self, gradient: Array) -> Array:
        """∂L/∂log a_ν = a_ν·[∂L/∂Ω]_νν."""
        return self.a * np.diag(gradient)


@dataclass(frozen=True, eq=False, repr=False)
class FactorAnalysis(_Spectrum):
    """Ω = M Mᵀ + diag(a): relevant *directions*, linear combinations of state variables.

    Parameters
    ----------
    a : array-like of shape (n_dims,)
        Relevance that each variable has on its own.
    loadings : array-like of shape (n_dims, rank)
        The columns m₁ … m_k of M.
    """

    a: Array
    loadings: Array

    def __init__(self, a: ArrayLike, loadings: ArrayLike) -> None:
        values = as_floats(a, "a").reshape(-1)
        _refuse_negative(values, "a")
        columns = as_floats(loadings, "loadings")
        columns = columns[:, None] if columns.ndim == 1 else columns
        if columns.ndim != 2 or len(columns) != len(values):
            raise ValueError(f"loadings must have shape ({len(values)}, rank), as a has; got {np.shape(loadings)}.")
        if not np.isfinite(columns).all():
            raise ValueError(f"loadings must be finite; got {one_line(columns)}.")
        object.__setattr__(self, "a", values)
        object.__setattr__(self, "loadings", columns)

    def __repr__(self) -> str:
        return f"FactorAnalysis({short(self.a)}, {short(self.loadings)})"

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return len(self.a)

    @property
    def rank(self) -> int:
        """Number k of directions."""
        return int(self.loadings.shape[1])

    @property
    def matrix(self) -> Array:
        """Ω, of shape (n_dims, n_dims)."""
        return self.loadings @ self.loadings.T + np.diag(self.a)

    @property
    def theta(self) -> Array:
        """[log a₁ … log a_D, m₁ … m_k], the loadings raw and column by column."""
        return np.concatenate([_log(self.a), self.loadings.T.ravel()])

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """("a1", …, "aD", "m1_1", …, "mk_D")."""
        dims = range(1, self.n_dims + 1)
        own = [f"a{d}" for d in dims]
        return (*own, *(f"m{k}_{d}" for k in range(1, self.rank + 1) for d in dims))

    @property
    def is_log(self) -> NDArray[np.bool_]:
        """Which entries of θ are logarithms."""
        return np.arange(self.n_dims * (1 + self.rank)) < self.n_dims

    def with_theta(self, theta: Array) -> FactorAnalysis:
        """Return the same metric with other parameters."""
        d = self.n_dims
        return FactorAnalysis(np.exp(theta[:d]), np.reshape(theta[d:], (self.rank, d)).T)

    @property
    def label(self) -> str:
        """The paper's variant III."""
        return "factor"

    def space(self, scale: DataScale) -> ParameterSpace:
        """Relevances as in `ARD`; loadings in units of 1/std of their input."""
        limit = np.tile(np.where(scale.is_constant, 0.0, 100.0) / scale.input_std, self.rank)
        unit = np.tile(1.0 / scale.input_std, self.rank)
        return _relevance_space(scale) + ParameterSpace(-limit, limit, unit, np.full(len(limit), np.nan))

    def initial(self, scale: DataScale, relevance: float, rng: np.random.Generator) -> FactorAnalysis:
        """Random orthogonal directions, and a tenth of what `ARD` would guess."""
        directions = np.linalg.qr(rng.normal(size=(self.n_dims, self.rank)))[0]
        loadings = directions * np.sqrt(relevance) / scale.input_std[:, None]
        return FactorAnalysis(0.1 * _guess(scale, relevance), loadings)

    def grow(self, column: Array) -> FactorAnalysis:
        """The metric with one more direction."""
        return FactorAnalysis(self.a, np.column_stack([self.loadings, column]))

    def take_inputs(self, inputs: IntArray) -> FactorAnalysis:
        """The metric of some of the inputs."""
        return FactorAnalysis(self.a[inputs], self.loadings[inputs])

    def whiten(self, states: Array) -> Array:
        """Coordinates (n_dims + rank of them) in which d² is the ordinary squared distance."""
        return np.hstack([states * np.sqrt(self.a), states @ self.loadings])

    def pull_back(self, gradient: Array) -> Array:
        """∂L/∂log a_ν = a_ν·[∂L/∂Ω]_νν and ∂L/∂M = 2·(∂L/∂Ω)·M."""
        return np.concatenate([self.a * np.diag(gradient), (2.0 * gradient @ self.loadings).T.ravel()])


def _guess(scale: DataScale, relevance: float) -> Array:
    """Relevances with d² = `relevance` between states one standard deviation apart, of shape (n_dims,)."""
    return np.where(scale.is_constant, SMALLEST, relevance / len(scale.input_std)) / scale.input_std**2


def _relevance_space(scale: DataScale) -> ParameterSpace:
    """Bounds of log a₁ … log a_D."""
    variances = scale.input_std**2
    lower, upper = np.log(SMALLEST / variances), np.log(np.where(scale.is_constant, SMALLEST, LARGEST) / variances)
    return ParameterSpace(lower, upper, np.ones(len(lower)), np.log(LINEAR_BELOW / variances))


def describe_metric(metric: Metric) -> dict[str, Any]:
    """A metric of this module as plain numbers and strings."""
    name = type(metric).__name__
    if _CLASSES.get(name) is not type(metric):
        raise TypeError(f"metric class {name} is not one of {', '.join(_CLASSES)}, so it cannot be saved.")
    values = {field.name: np.asarray(getattr(metric, field.name)).tolist() for field in fields(metric)}  # type: ignore[arg-type]
    return dict(type=name, **values)


def build_metric(description: dict[str, Any]) -> Metric:
    """The metric that `describe_metric` described, to the last digit."""
    arguments = dict(description)
    metric: Metric = _CLASSES[arguments.pop("type")](**arguments)
    return metric


_CLASSES = dict(Isotropic=Isotropic, ARD=ARD, FactorAnalysis=FactorAnalysis)


def _log(values: Array) -> Array:
    """Logarithms; −inf of a relevance that is exactly 0, which stays there."""
    with np.errstate(divide="ignore"):
        return np.log(values)


def _refuse_negative(values: Array, name: str) -> None:
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(f"{name} must be finite and not negative; got {one_line(values)}.")
