"""Time and memory of exact GPTD, beside other libraries and beside what LAPACK allows.

    python benchmarks/exact.py                         everything but the long fits, about fifteen minutes
    python benchmarks/exact.py --skip-fit              evaluations, memory and repeated states only
    python benchmarks/exact.py --sizes 2000:8 --peers tinygp
    python benchmarks/exact.py --full                  also fits the other libraries at n > 2000

All of them solve the same problem: on terminated episodes GPTD is Gaussian-process regression on returns, here with the
covariance v₀·exp(−½ Σ a_ν (x_ν − x'_ν)²) + b and noise σ². Every library lives in a process of its own, with as many
threads as `--threads` says, and they take turns. The fastest repeat counts: in processor seconds for one thread, which
other work on the machine disturbs least, in seconds by the clock for more.

The *floor* is what the mathematics cannot do without: dpotrf and dpotri in place, and one exp for each of n² numbers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SIZES = ("1000:2", "2000:8", "4000:4")  # n:D
LARGEST_PEER_FIT = 2000  # above this, other libraries are fitted only if asked to
EPISODE = 50  # states
GAMMA = 0.95
NOISE_STD = 0.3
AGREEMENT = 1e-6  # relative, between libraries
SAME_EVIDENCE = 1.0  # nats between fits that count as equally good
GRIDWORLD_GAMMA = 0.9
PREFIX = 1000  # states for which the dense formula is affordable
STATUS = Path("/proc/self/status")


# -------------------------------------------------------------------------------------- the problem


@dataclass(frozen=True, eq=False)
class Problem:
    """Terminated episodes of a walk in D standardised inputs, of which at most three matter to V.

    Along an episode the state is an autoregressive walk; the return of each state is a smooth V plus independent noise,
    so the model that every library fits is right. Rewards are the differences of the returns, and the last row of an
    episode pays all that remains.
    """

    states: Array  # [n, D]
    returns: Array  # [n]
    lengths: NDArray[np.int64]  # of the episodes

    @classmethod
    def sample(cls, n: int, n_dims: int, seed: int) -> Problem:
        """Draw `n` states in episodes of about `EPISODE`."""
        rng = np.random.default_rng(seed)
        lengths = np.array([len(part) for part in np.array_split(np.arange(n), max(1, n // EPISODE))])
        walk = rng.normal(size=(n, n_dims))
        starts = set((np.cumsum(lengths) - lengths).tolist())
        for t in range(n):
            if t not in starts:
                walk[t] = 0.9 * walk[t - 1] + np.sqrt(1.0 - 0.9**2) * walk[t]
        return cls(walk, _smooth_value(walk) + NOISE_STD * rng.normal(size=n), lengths)

    @property
    def theta(self) -> Array:
        """Where everybody evaluates: [log v₀, log b, log σ², log a…]."""
        relevances = 0.5 / (1.0 + np.arange(self.states.shape[1]))
        return np.log(np.concatenate([[2.0, 100.0, 1.5 * NOISE_STD**2], relevances]))

    @property
    def start(self) -> Array:
        """Where the other libraries start to fit: scaled to the data, lengthscales √D spreads, a tenth noise."""
        variance, level = self.returns.var(), self.returns.mean()
        relevances = 1.0 / (self.states.var(axis=0) * self.states.shape[1])
        return np.log(np.concatenate([[variance, variance + level**2, 0.1 * variance], relevances]))

    def trajectories(self) -> Any:
        """The episodes as this project reads them."""
        from gptd_rl import Trajectories

        discounts = np.full(len(self.states), GAMMA)
        discounts[np.cumsum(self.lengths) - 1] = 0.0
        rewards = self.returns - discounts * np.append(self.returns[1:], 0.0)
        return Trajectories(self.states, rewards, discounts, self.lengths, np.ones(len(self.lengths), dtype=bool))


def _smooth_value(states: Array) -> Array:
    """V: waves in the first input, bent in the second, and, where there is a third, tilted by it."""
    V = -10.0 + 2.0 * np.sin(states[:, 0]) + np.cos(1.5 * states[:, 1])
    return V + 0.5 * np.tanh(states[:, 2]) if states.shape[1] > 2 else V


# -------------------------------------------------------------------------------------- the contestants


@dataclass
class Contestant:
    """A library set up for one problem."""

    problem: Problem
    name: ClassVar[str]
    imports: ClassVar[str]  # the module that must be there
    packages: ClassVar[tuple[str, ...]] = ()  # whose versions matter

    def prepare(self) -> None:
        """Do what comes before an evaluation and is not part of it."""

    def evaluate(self) -> tuple[float, Array]:
        """Log evidence at `problem.theta`, and its gradient."""
        raise NotImplementedError

    def fit(self) -> float:
        """Select all parameters as is customary, and give the log evidence reached."""
        raise NotImplementedError


@dataclass
class Ours(Contestant):
    """This project; an evaluation takes fresh memory, as `GPTD.log_marginal_likelihood` does."""

    name = "gptd-rl"
    imports = "gptd_rl"

    def __post_init__(self) -> None:
        from gptd_rl.inference.model import Model
        from gptd_rl.kernels import ARD, paper_kernel
        from gptd_rl.temporal.targets import build_targets

        self.data = self.problem.trajectories()
        self.targets = build_targets(self.data, "stochastic")
        blank = Model(paper_kernel(ARD(np.ones(self.data.n_dims))), 1.0)
        self.model = blank.with_theta(self.problem.theta)

    def evaluate(self) -> tuple[float, Array]:
        from gptd_rl.inference import exact

        value, gradient = exact.evidence_and_gradient(self.model, self.targets)
        return value.log_likelihood, -gradient

    def fit(self) -> float:
        from gptd_rl import GPTD

        return GPTD(kernel="ard", objective="marginal_likelihood").fit(self.data).log_marginal_likelihood_


@dataclass
class ScikitLearn(Contestant):
    """GaussianProcessRegressor with its own L-BFGS."""

    name = "scikit-learn"
    imports = "sklearn.gaussian_process"
    packages = ("scikit-learn",)

    def _regressor(self, theta: Array) -> Any:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        shape = RBF(np.ones(self.problem.states.shape[1]))
        kernel = ConstantKernel() * shape + ConstantKernel() + WhiteKernel()
        return GaussianProcessRegressor(kernel.clone_with_theta(self._to_sklearn(theta)), alpha=0.0)

    @staticmethod
    def _to_sklearn(theta: Array) -> Array:
        v0, b, noise, *a = theta
        return np.array([v0, *(-0.5 * np.array(a)), b, noise])  # a = 1/lengthscale²

    def prepare(self) -> None:
        """What scikit-learn's own fit sets before it asks for the first evaluation."""
        self.regressor = self._regressor(self.problem.theta)
        self.regressor.kernel_ = self.regressor.kernel
        self.regressor.X_train_, self.regressor.y_train_ = self.problem.states, self.problem.returns

    def evaluate(self) -> tuple[float, Array]:
        theta = self._to_sklearn(self.problem.theta)
        value, g = self.regressor.log_marginal_likelihood(theta, eval_gradient=True, clone_kernel=False)
        return float(value), np.array([g[0], g[-2], g[-1], *(-0.5 * g[1:-2])])

    def fit(self) -> float:
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():  # an irrelevant input belongs at its bound
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = self._regressor(self.problem.start).fit(self.problem.states, self.problem.returns)
        return float(fitted.log_marginal_likelihood_value_)


def lbfgs(log_evidence: Callable[[Array], tuple[float, Array]], start: Array) -> float:
    """Largest log evidence that SciPy's L-BFGS finds, with its own settings."""
    from scipy.optimize import minimize

    def minus(theta: Array) -> tuple[float, Array]:
        value, gradient = log_evidence(theta)
        return -value, -gradient

    return -float(minimize(minus, start, jac=True, method="L-BFGS-B").fun)


@dataclass
class GPyTorch(Contestant):
    """ExactGP in double precision by Cholesky, with SciPy's L-BFGS as BoTorch fits it.

    The Adam of its documentation (lr 0.1) is left out: at n=1000, D=8 it is 21 nats short after 200 evaluations.
    """

    name = "GPyTorch"
    imports = "gpytorch"
    packages = ("gpytorch", "torch")

    def __post_init__(self) -> None:
        import gpytorch
        import torch

        X, y = torch.from_numpy(self.problem.states), torch.from_numpy(self.problem.returns)
        self.shape = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1])
        self.scale = gpytorch.kernels.ScaleKernel(self.shape)
        self.constant = gpytorch.kernels.ConstantKernel()
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        prior = gpytorch.means.ZeroMean(), self.scale + self.constant

        class Regression(gpytorch.models.ExactGP):
            def __init__(self, likelihood: Any) -> None:
                super().__init__(X, y, likelihood)
                self.mean_module, self.covar_module = prior

            def forward(self, x: Any) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        self.model = Regression(self.likelihood).double().train()
        self.objective = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.model)

    def _at(self, theta: Array) -> tuple[float, Array]:
        self._move_to(theta)
        value = self._log_evidence()
        value.backward()
        by_v0 = _by_log(self.scale.raw_outputscale, self.scale.outputscale)
        by_b = _by_log(self.constant.raw_constant, self.constant.constant)
        by_noise = _by_log(self.likelihood.raw_noise, self.likelihood.noise)
        by_a = -0.5 * _by_log(self.shape.raw_lengthscale, self.shape.lengthscale)
        return value.item(), np.concatenate([by_v0, by_b, by_noise, by_a])

    def _move_to(self, theta: Array) -> None:
        import torch

        v0, b, noise, *a = torch.from_numpy(np.exp(theta))
        self.scale.outputscale, self.constant.constant, self.likelihood.noise = v0, b, noise
        self.shape.lengthscale = torch.stack(a) ** -0.5
        self.model.zero_grad(set_to_none=True)

    def _log_evidence(self) -> Any:
        import gpytorch

        (X,), y = self.model.train_inputs, self.model.train_targets
        exactly = gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False)
        with exactly:  # Cholesky: no conjugate gradients, no Lanczos
            return self.objective(self.model(X), y) * len(y)

    def evaluate(self) -> tuple[float, Array]:
        return self._at(self.problem.theta)

    def fit(self) -> float:
        return lbfgs(self._at, self.problem.start)


def _by_log(raw: Any, value: Any) -> Array:
    """∂L/∂log value of a GPyTorch parameter, whose value is softplus(raw) plus a bound."""
    return (raw.grad / raw.detach().sigmoid() * value.detach()).numpy().reshape(-1)


@dataclass
class TinyGP(Contestant):
    """tinygp, compiled by JAX, with SciPy's L-BFGS as in its tutorials; compiling is not timed."""

    name = "tinygp"
    imports = "tinygp"
    packages = ("tinygp", "jax")

    @cached_property
    def _value_and_grad(self) -> Any:
        import jax
        import jax.numpy as jnp
        from tinygp import GaussianProcess, kernels, transforms

        def log_evidence(theta: Any, X: Any, y: Any) -> Any:
            shape = transforms.Linear(jnp.exp(0.5 * theta[3:]), kernels.ExpSquared())
            kernel = jnp.exp(theta[0]) * shape + kernels.Constant(jnp.exp(theta[1]))
            return GaussianProcess(kernel, X, diag=jnp.exp(theta[2])).log_probability(y)

        return jax.jit(jax.value_and_grad(log_evidence))

    def evaluate(self) -> tuple[float, Array]:
        return self._at(self.problem.theta)

    def _at(self, theta: Array) -> tuple[float, Array]:
        value, gradient = self._value_and_grad(theta, self.problem.states, self.problem.returns)
        return float(value), np.array(gradient)

    def fit(self) -> float:
        return lbfgs(self._at, self.problem.start)


@dataclass
class Floor(Contestant):
    """Factorise and invert in place, and one exp for each of n² numbers: no library does the same with less."""

    name = "LAPACK floor"
    imports = "scipy.linalg.lapack"
    packages = ("numpy", "scipy")

    def __post_init__(self) -> None:
        n = len(self.problem.returns)
        self.buffer = np.empty((n, n), order="F")

    def prepare(self) -> None:
        """½(I + 11ᵀ), positive definite as any."""
        self.buffer.fill(0.5)
        np.fill_diagonal(self.buffer, 1.0)

    def evaluate(self) -> tuple[float, Array]:
        from scipy.linalg import lapack

        _, info = lapack.dpotrf(self.buffer, lower=0, clean=0, overwrite_a=1)
        assert info == 0
        _, info = lapack.dpotri(self.buffer, lower=0, overwrite_c=1)
        assert info == 0
        np.exp(self.buffer, out=self.buffer)
        return float("nan"), np.empty(0)


PEERS: tuple[type[Contestant], ...] = (ScikitLearn, GPyTorch, TinyGP)
CONTESTANTS = {c.name: c for c in (Floor, Ours, *PEERS)}


# -------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Measured:
    """What one call took and gave."""

    seconds: float
    peak_bytes: int  # above what the process held once its library was imported
    value: float
    gradient: list[float] = field(default_factory=list)


class Meter:
    """Measures a contestant, in the process that this is."""

    def __init__(self, name: str, n: int, n_dims: int, seed: int, threads: int) -> None:
        importlib.import_module(CONTESTANTS[name].imports)
        importlib.import_module("scipy.optimize")  # gptd-rl imports it at its first use
        self.at_rest = held_bytes()
        self.contestant = CONTESTANTS[name](Problem.sample(n, n_dims, seed))
        self.clock = time.process_time if threads == 1 else time.perf_counter

    def evaluation(self) -> Measured:
        self.contestant.prepare()
        reset_peak()
        began = self.clock()
        value, gradient = self.contestant.evaluate()
        return Measured(self.clock() - began, peak_bytes() - self.at_rest, value, gradient.tolist())

    def fit(self) -> Measured:
        reset_peak()
        began = self.clock()
        value = self.contestant.fit()
        return Measured(self.clock() - began, peak_bytes() - self.at_rest, value)


_meter: Meter


def _open_meter(*arguments: Any) -> None:
    global _meter
    _meter = Meter(*arguments)


def _read_meter(what: str) -> Measured:
    return getattr(_meter, what)()


def process(*arguments: Any) -> ProcessPoolExecutor:
    """A fresh process; with arguments, one that holds a `Meter` made of them."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, _open_meter if arguments else None, arguments)


def fix_threads(threads: int) -> None:
    """Set what BLAS, OpenMP and XLA read when a process starts."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "PJRT_NPROC"):
        os.environ[name] = str(threads)
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    os.environ["JAX_ENABLE_X64"], os.environ["JAX_PLATFORMS"] = "1", "cpu"


def held_bytes() -> int:
    """Memory of this process now."""
    return _status_bytes("VmRSS")


def peak_bytes() -> int:
    """Most memory that this process had since `reset_peak`."""
    return _status_bytes("VmHWM")


def reset_peak() -> None:
    """Forget the high-water mark of this process."""
    if STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(key: str) -> int:
    """Read /proc; where there is none, the most memory that this process ever had has to do."""
    if not STATUS.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with STATUS.open() as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


# -------------------------------------------------------------------------------------- one size


@dataclass(frozen=True)
class Row:
    """A contestant at one size."""

    seconds: float  # of its fastest evaluation
    first: Measured  # its first evaluation, which takes memory that later ones find already there
    fit: Measured | None

    @property
    def peaks(self) -> list[int]:
        """Peak memory of the first evaluation and, if there was one, of the fit."""
        return [m.peak_bytes for m in (self.first, self.fit) if m]


@dataclass(frozen=True)
class Size:
    """All contestants at one size."""

    n: int
    n_dims: int
    rows: dict[str, Row]

    def __str__(self) -> str:
        return f"n={self.n}, D={self.n_dims}"

    @property
    def matrix_bytes(self) -> int:
        """Size of n² doubles."""
        return 8 * self.n**2

    @property
    def floor(self) -> Row:
        return self.rows[Floor.name]

    @property
    def ours(self) -> Row:
        return self.rows[Ours.name]

    @property
    def peers(self) -> list[Row]:
        return [row for name, row in self.rows.items() if name not in (Floor.name, Ours.name)]


def measure_size(n: int, n_dims: int, names: Sequence[str], fitted: Sequence[str], options: argparse.Namespace) -> Size:
    """Evaluate in turns, check that all agree, then fit one after the other."""
    with ExitStack() as stack:
        meters = {name: stack.enter_context(process(name, n, n_dims, options.seed, options.threads)) for name in names}

        def take_turns(what: str, names: Sequence[str]) -> dict[str, Measured]:
            return {name: meters[name].submit(_read_meter, what).result() for name in names}

        first = take_turns("evaluation", names)
        check_agreement(first)
        turns = [take_turns("evaluation", names) for _ in range(options.repeats)]
        fits = take_turns("fit", fitted)
    fastest = {name: min(turn[name].seconds for turn in turns) for name in names}
    return Size(n, n_dims, {name: Row(fastest[name], first[name], fits.get(name)) for name in names})


def check_agreement(measured: dict[str, Measured]) -> None:
    """Assert that all libraries computed the same evidence and the same gradient."""
    ours = measured[Ours.name]
    for name, theirs in measured.items():
        if name == Floor.name:
            continue
        np.testing.assert_allclose(theirs.value, ours.value, rtol=AGREEMENT, err_msg=f"evidence of {name}")
        size = AGREEMENT * np.abs(ours.gradient).max()
        np.testing.assert_allclose(theirs.gradient, ours.gradient, rtol=0, atol=size, err_msg=f"gradient of {name}")


# -------------------------------------------------------------------------------------- repeated states


def gridworld(n_transitions: int, seed: int = 0) -> Any:
    """Whole episodes in the paper's gridworld, about `n_transitions`, of a walker that mostly heads for the goal."""
    from gptd_rl import Trajectories
    from gptd_rl.envs.gridworld import LatentGridworld

    world, rng = LatentGridworld(), np.random.default_rng(seed)
    n_walkers = max(2, n_transitions // 4)  # an episode takes five steps or so
    path = [world.sample_states(n_walkers, rng)]
    walking = [np.ones(n_walkers, dtype=bool)]
    while (still := walking[-1] & ~world.is_terminal(path[-1])).any():
        astray = rng.random(n_walkers) < 0.2
        reached, _, _ = world.step(path[-1], (path[-1][:, 0] < world.middle) ^ astray, rng)
        path.append(np.where(still[:, None], reached, path[-1]))
        walking.append(still)
    seen = np.array(walking).T  # [walkers, steps]
    lengths = seen.sum(axis=1)
    n_kept = 1 + int(np.searchsorted(np.cumsum(lengths - 1), n_transitions))
    seen, lengths = seen[:n_kept], lengths[:n_kept]
    states = np.array(path).transpose(1, 0, 2)[:n_kept][seen]
    ends = np.isin(np.arange(len(states)), np.cumsum(lengths) - 1)
    rewards, discounts = np.where(ends, 0.0, world.step_reward), np.where(ends, 0.0, GRIDWORLD_GAMMA)
    return Trajectories(states, rewards, discounts, lengths, np.ones(len(lengths), dtype=bool))


def dense_evidence(model: Any, data: Any, noise: str) -> float:
    """log p(r) as the paper writes it: Q = HKHᵀ + Σ, nothing merged, nothing clever."""
    from gptd_rl.temporal.differences import TemporalDifference

    operator = TemporalDifference.of(data)
    H = operator.sparse().toarray()
    sigma = model.noise_variance * (H @ H.T if noise == "stochastic" else np.eye(len(H)))
    Q = H @ model.kernel(data.states) @ H.T + sigma
    r = data.rewards[operator.has_row]
    _, log_det = np.linalg.slogdet(Q)
    return -0.5 * float(log_det + r @ np.linalg.solve(Q, r) + len(r) * np.log(2.0 * np.pi))


@dataclass(frozen=True)
class Repeated:
    """A fit to many visits of few states, and its evidence of a prefix of them, merged and dense."""

    noise: str
    n_transitions: int
    n_distinct: int
    fit_seconds: float
    evidence: float
    prefix_states: int
    prefix_merged: float
    prefix_dense: float


def repeated_states(n_transitions: int, noise: str) -> Repeated:
    """Fit the gridworld, and compare both formulas on its first episodes."""
    from gptd_rl import GPTD
    from gptd_rl.inference import exact
    from gptd_rl.temporal.targets import build_targets

    data = gridworld(n_transitions)
    began = time.perf_counter()
    v = GPTD(kernel="ard", noise=noise, objective="marginal_likelihood").fit(data)
    seconds = time.perf_counter() - began
    prefix = data[: 1 + int(np.searchsorted(np.cumsum(data.lengths), PREFIX))]
    merged = exact.evidence(v.model_, build_targets(prefix, noise)).log_likelihood
    dense = dense_evidence(v.model_, prefix, noise)
    np.testing.assert_allclose(merged, dense, rtol=AGREEMENT)
    n_distinct = len(np.unique(data.states, axis=0))
    return Repeated(
        noise, data.n_transitions, n_distinct, seconds, v.log_marginal_likelihood_, len(prefix), merged, dense
    )


def measure_repeated(n_transitions: int) -> list[Repeated]:
    """Both noise models, in a process whose threads are fixed."""
    with process() as pool:
        runs = [pool.submit(repeated_states, n_transitions, noise) for noise in ("stochastic", "deterministic")]
        return [run.result() for run in runs]


# -------------------------------------------------------------------------------------- targets


@dataclass(frozen=True)
class Target:
    """A ratio to reach, and the one reached."""

    what: str
    wanted: str  # ≤ or ≥
    limit: float
    reached: float

    @property
    def met(self) -> bool:
        return self.reached <= self.limit if self.wanted == "≤" else self.reached >= self.limit


def targets(size: Size) -> list[Target]:
    """What this project set out to reach, at one size."""
    ours = size.ours
    found = [Target(f"{size}: evaluation / floor", "≤", 1.3, ours.seconds / size.floor.seconds)]
    if size.peers:
        fastest = min(row.seconds for row in size.peers)
        found.append(Target(f"{size}: fastest peer's evaluation / ours", "≥", 5.0, fastest / ours.seconds))
    if (ratio := fit_ratio(size)) is not None:
        found.append(Target(f"{size}: fastest peer's fit / ours, at the same evidence", "≥", 10.0, ratio))
    found.append(Target(f"{size}: peak memory / n² doubles", "≤", 2.0, max(ours.peaks) / size.matrix_bytes))
    return found


def fit_ratio(size: Size) -> float | None:
    """Time of the fastest peer whose fit is as good as the best, over ours; 0 if ours is not as good."""
    fits = [row.fit for row in size.peers if row.fit]
    if not fits or not size.ours.fit:
        return None
    good_enough = max(fit.value for fit in [size.ours.fit, *fits]) - SAME_EVIDENCE
    if size.ours.fit.value < good_enough:
        return 0.0
    fastest = min((fit.seconds for fit in fits if fit.value >= good_enough), default=np.inf)
    return fastest / size.ours.fit.seconds


# -------------------------------------------------------------------------------------- printing


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in (head, *rows)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def by_contestant(sizes: Sequence[Size], cell: Callable[[Size, Row], str]) -> str:
    """A table with a row for each contestant and a column for each size; rows without text are left out."""
    rows = [[name, *(cell(size, size.rows[name]) for size in sizes)] for name in sizes[0].rows]
    return table(["", *map(str, sizes)], [row for row in rows if any(row[1:])])


def evaluation_cell(size: Size, row: Row) -> str:
    return f"{row.seconds:.3g} s ({row.seconds / size.floor.seconds:.2f} × floor)"


def fit_cell(size: Size, row: Row) -> str:
    if not (row.fit and size.ours.fit):
        return ""
    return f"{row.fit.seconds:.3g} s ({row.fit.seconds / size.ours.fit.seconds:.1f} × ours), {row.fit.value:.2f}"


def memory_cell(size: Size, row: Row) -> str:
    return "; ".join(f"{peak / 1e6:.0f} MB ({peak / size.matrix_bytes:.2f} n²)" for peak in row.peaks)


def repeated_table(parts: Sequence[Repeated]) -> str:
    rows = {
        "noise": [p.noise for p in parts],
        "transitions": [f"{p.n_transitions}" for p in parts],
        "distinct states": [f"{p.n_distinct}" for p in parts],
        "whole fit": [f"{p.fit_seconds:.2f} s" for p in parts],
        "evidence": [f"{p.evidence:.2f}" for p in parts],
        "prefix": [f"{p.prefix_states} states" for p in parts],
        "its evidence, merged": [f"{p.prefix_merged:.8f}" for p in parts],
        "its evidence, dense": [f"{p.prefix_dense:.8f}" for p in parts],
    }
    return table(list(rows), list(zip(*rows.values(), strict=True)))


def target_table(reached: Sequence[Target]) -> str:
    rows = [[t.what, f"{t.wanted} {t.limit:g}", f"{t.reached:.2f}", "yes" if t.met else "NO"] for t in reached]
    return table(["ratio", "target", "reached", "met"], rows)


def describe_machine(names: Sequence[str], threads: int) -> str:
    """Versions, processor, BLAS, threads and load."""
    import scipy

    packages = [package for name in names for package in CONTESTANTS[name].packages]
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    blas = scipy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    clock = "processor seconds" if threads == 1 else "seconds by the clock"
    return (
        f"Python {platform.python_version()}, {versions}\n"
        f"{processor_name()}, {os.cpu_count()} cores, SciPy with {blas['name']} {blas['version']}\n"
        f"threads: {threads}, {clock}; {load()}"
    )


def processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def load() -> str:
    """How much else the machine does."""
    return "load average " + ", ".join(f"{x:.1f}" for x in os.getloadavg())


# -------------------------------------------------------------------------------------- the run


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    known = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="n:D", help="states and inputs")
    parser.add_argument("--repeats", type=int, default=5, help="evaluations of which the fastest counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the data, to see how far the figures hang on them")
    parser.add_argument("--peers", nargs="*", default=known, metavar="NAME", choices=known, help=", ".join(known))
    parser.add_argument("--skip-fit", action="store_true", help="no whole fits")
    parser.add_argument("--full", action="store_true", help=f"fit other libraries at n > {LARGEST_PEER_FIT}, too")
    parser.add_argument("--transitions", type=int, default=100_000, help="of the gridworld")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args(arguments)


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(CONTESTANTS[name].imports.partition(".")[0]) is not None


def measure_sizes(peers: Sequence[str], options: argparse.Namespace) -> list[Size]:
    """All sizes asked for, with the news on stderr."""
    sizes = []
    for text in options.sizes:
        n, n_dims = map(int, text.split(":"))
        fits_peers = options.full or n <= LARGEST_PEER_FIT
        fitted = [] if options.skip_fit else [Ours.name, *(peers if fits_peers else ())]
        sizes.append(measure_size(n, n_dims, [Floor.name, Ours.name, *peers], fitted, options))
        print(f"{sizes[-1]} done; {load()}", file=sys.stderr)
    return sizes


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    fix_threads(options.threads)
    peers = [name for name in options.peers if is_installed(name)]
    print(describe_machine([Floor.name, Ours.name, *peers], options.threads))
    for name in sorted(set(options.peers) - set(peers)):
        print(f"{name} is not installed: skipped (see benchmarks/requirements.txt)")
    sizes = measure_sizes(peers, options)
    repeated = measure_repeated(options.transitions)
    reached = [target for size in sizes for target in targets(size)]

    print(f"\nOne evaluation of the evidence and its gradient, fastest of {options.repeats}:\n")
    print(by_contestant(sizes, evaluation_cell))
    if not options.skip_fit:
        print("\nOne whole fit, and the log evidence reached:\n")
        print(by_contestant(sizes, fit_cell))
    print("\nPeak memory above the import, of the first evaluation; of the fit:\n")
    print(by_contestant(sizes, memory_cell))
    print("\nRepeated states, the gridworld (seconds by the clock):\n")
    print(repeated_table(repeated))
    print("\nTargets (that of the floor is meant for n = 4000):\n")
    print(target_table(reached))
    print(f"\n{load()} at the end")
    if options.json:
        figures = dict(threads=options.threads, sizes=sizes, repeated=repeated, targets=reached)
        options.json.write_text(json.dumps(figures, default=asdict, indent=1))


if __name__ == "__main__":
    main()
