"""Sparse Gaussian processes of other libraries, for benchmarks/sparse.py to measure beside this project's.

    python benchmarks/sparse_peers.py --n 3000 --m 30     are they all the same model? about a minute

On returns y of terminated episodes GPTD is Gaussian-process regression: here with covariance
v₀·exp(−½ Σ a_ν (x_ν − x'_ν)²), no mean, noise σ², and inducing inputs Z that stay where they are. The parameters are
θ = [log v₀, log σ², log a…]. Every library is a `Peer`, in double precision and with one thread; for JAX and BLAS this
needs `exact.fix_threads(1)` before the process starts. Seconds are processor seconds, as in benchmarks/exact.py.

Before K_ZZ is factorised, GPflow and GPJax add 1e-6 to its diagonal, GPyTorch nothing unless it must, and the bound
differs by nats. Here all add the same: a share of the variance of y, whatever θ is.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypedDict

import numpy as np
from exact import Array, Problem, fix_threads, process, table

# On the diagonal of K_ZZ, in units of the variance of y. At n=10 000, m=200 it changes the bound by 5e-6 of itself
# (1e-8 by 4e-4); at n=3000, m=500 fits succeed even with 1e-12.
JITTER = 1e-10
STEP = 1e-5  # of the central differences


class Fit(TypedDict):
    """What a fit took and gave."""

    theta: Array
    bound: float
    seconds: float
    n_evaluations: int  # of the bound and its gradient; of SVGP, steps
    converged: bool  # by its own rule; of SVGP, all steps taken


class Peer:
    """A library set up for one problem; it predicts once it is fitted."""

    name: ClassVar[str]
    imports: ClassVar[str]  # the module that must be there
    packages: ClassVar[tuple[str, ...]]  # whose versions matter
    theta: Array  # selected by `fit`

    def __init__(self, X: Array, y: Array, Z: Array, jitter: float = JITTER) -> None:
        """Take states [n, D], centred returns [n], inducing inputs [m, D]; jitter is in units of the variance of y."""
        self.X, self.y, self.Z, self.jitter = X, y, Z, jitter * float(y.var())
        self._set_up()

    def _set_up(self) -> None:
        """Build the model."""

    @classmethod
    def available(cls) -> str | None:
        """None, or why the library is absent. It is imported, since what is installed may not fit together."""
        try:
            importlib.import_module(cls.imports)
        except (ImportError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    @classmethod
    def versions(cls) -> str:
        return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in cls.packages)

    def bound_and_gradient(self, theta: Array) -> tuple[float, Array] | None:
        """Collapsed variational bound on the log evidence (Titsias 2009) and its gradient; None if there is none."""
        raise NotImplementedError

    def fit(self, theta0: Array, max_seconds: float) -> Fit:
        """Select θ as is customary, here by SciPy's L-BFGS."""
        from scipy.optimize import minimize

        def minus(theta: Array) -> tuple[float, Array]:
            value, gradient = self.bound_and_gradient(theta)  # type: ignore[misc]
            return -value, -gradient

        def search(stop: Callable[[Any], None]) -> Any:
            return minimize(minus, theta0, jac=True, method="L-BFGS-B", callback=stop)

        found = in_time(search, max_seconds)
        self.theta = found["theta"]
        return found

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Mean and variance of f, without noise."""
        raise NotImplementedError


def in_time(search: Callable[[Callable[[Any], None]], Any], max_seconds: float) -> Fit:
    """What a minimisation by SciPy finds if it is stopped, by its callback, after the first step that ends too late."""
    began = time.process_time()

    def stop(_: Any) -> None:
        if time.process_time() - began > max_seconds:
            raise StopIteration

    found = search(stop)
    seconds = time.process_time() - began
    done, bound = bool(found.success), -float(found.fun)
    return Fit(theta=found.x, bound=bound, seconds=seconds, n_evaluations=found.nfev, converged=done)


def to_lengthscales(theta: Array) -> Array:
    """[log v₀, log σ², log ℓ…], where a = 1/ℓ²; and a gradient with respect to these becomes one with respect to θ."""
    return np.concatenate([theta[:2], -0.5 * theta[2:]])


def from_lengthscales(logs: Array) -> Array:
    """θ again."""
    return np.concatenate([logs[:2], -2.0 * logs[2:]])


# -------------------------------------------------------------------------------------- GPflow


class GPflowSGPR(Peer):
    """SGPR, compiled by TensorFlow, with GPflow's own L-BFGS; compiling is not timed if an evaluation comes first.

    Positive parameters are exponentials, one of GPflow's two choices, so that it searches where the others do; with the
    other, softplus, it needs twice as many evaluations (91 instead of 43 at n=5000, m=50).
    """

    name = "GPflow SGPR"
    imports = "gpflow"
    packages = ("gpflow", "tensorflow")

    def _set_up(self) -> None:
        import gpflow
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        exponentials = dict(positive_bijector="exp", likelihood_positive_minimum=0.0)
        gpflow.config.set_config(gpflow.config.Config(jitter=self.jitter, **exponentials))
        kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(self.X.shape[1]))
        self.model = gpflow.models.SGPR((self.X, self.y[:, None]), kernel, self.Z)
        positive = kernel.variance, self.model.likelihood.variance, kernel.lengthscales
        self.logs = [parameter.unconstrained_variable for parameter in positive]  # Z is not among them
        self.optimizer = gpflow.optimizers.Scipy()
        self.loss_and_gradient = self.optimizer.eval_func(self.model.training_loss, self.logs, tf_fun_args={})

    def bound_and_gradient(self, theta: Array) -> tuple[float, Array]:
        loss, gradient = self.loss_and_gradient(to_lengthscales(theta))
        return -float(loss), -to_lengthscales(gradient)

    def _move_to(self, theta: Array) -> None:
        self.optimizer.assign_tensors(self.logs, self.optimizer.unpack_tensors(self.logs, to_lengthscales(theta)))

    def fit(self, theta0: Array, max_seconds: float) -> Fit:
        self._move_to(theta0)

        def search(stop: Callable[[Any], None]) -> Any:
            return self.optimizer.minimize(self.model.training_loss, self.logs, callback=stop)

        found = in_time(search, max_seconds)
        self.theta = found["theta"] = from_lengthscales(found["theta"])
        return found

    def predict(self, X: Array) -> tuple[Array, Array]:
        self._move_to(self.theta)
        mean, variance = self.model.predict_f(X)
        return mean.numpy()[:, 0], variance.numpy()[:, 0]


# -------------------------------------------------------------------------------------- GPyTorch


class GPyTorch(Peer):
    """What both of its models share. Its raw parameters are logarithms here, as those of GPflow are."""

    imports = "gpytorch"
    packages = ("gpytorch", "torch")

    def _set_up(self) -> None:
        import gpytorch
        import torch

        torch.set_num_threads(1)
        self.tensors = tuple(map(torch.from_numpy, (self.X, self.y, self.Z)))
        exponential = gpytorch.constraints.Positive(transform=torch.exp, inv_transform=torch.log)
        shape = gpytorch.kernels.RBFKernel(ard_num_dims=self.X.shape[1], lengthscale_constraint=exponential)
        self.kernel = gpytorch.kernels.ScaleKernel(shape, outputscale_constraint=exponential).double()
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=exponential).double()
        self.logs = [self.kernel.raw_outputscale, self.likelihood.raw_noise, shape.raw_lengthscale]

    def _move_to(self, theta: Array) -> None:
        import torch

        logs = torch.from_numpy(to_lengthscales(theta))
        with torch.no_grad():
            for log, value in zip(self.logs, (logs[0], logs[1], logs[2:]), strict=True):
                log.copy_(value.reshape(log.shape))
                log.grad = None


class GPyTorchSGPR(GPyTorch):
    """ExactGP with an InducingPointKernel, and SciPy's L-BFGS as BoTorch fits it.

    The Adam of its documentation (lr 0.1) is left out: at n=5000, m=50 it is 17 nats short after 300 evaluations, where
    L-BFGS is done after 43.
    """

    name = "GPyTorch SGPR"

    def _set_up(self) -> None:
        import gpytorch
        import torch

        super()._set_up()
        X, y, Z = self.tensors
        jitter = self.jitter * torch.eye(len(Z), dtype=torch.float64)

        class InducingPoints(gpytorch.kernels.InducingPointKernel):
            @property
            def _inducing_mat(self) -> Any:
                return super()._inducing_mat + jitter

        class Regression(gpytorch.models.ExactGP):
            def forward(self, x: Any) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

        self.model = Regression(X, y, self.likelihood)
        self.model.mean = gpytorch.means.ZeroMean()
        self.model.covariance = InducingPoints(self.kernel, Z, self.likelihood)
        self.model.covariance.inducing_points.requires_grad_(False)
        self.objective = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.model)

    def bound_and_gradient(self, theta: Array) -> tuple[float, Array]:
        self._move_to(theta)
        self.model.train()
        X, y, _ = self.tensors
        value = self.objective(self.model(X), y) * len(y)
        value.backward()
        return value.item(), to_lengthscales(np.concatenate([log.grad.numpy().reshape(-1) for log in self.logs]))

    def predict(self, X: Array) -> tuple[Array, Array]:
        import gpytorch
        import torch

        self._move_to(self.theta)
        self.model.train().eval()  # forgets another θ
        tests, corrected = torch.from_numpy(X), gpytorch.settings.sgpr_diagonal_correction
        with torch.no_grad():
            with corrected(False):  # or else it would be fitted as Titsias has it, and predict as FITC
                _ = self.model(tests[:1]).variance  # what it keeps of the data
            with corrected(True):  # or else GPyTorch 1.15 leaves out what Z cannot express
                f = self.model(tests)
                return f.mean.numpy(), f.variance.numpy()


class GPyTorchSVGP(GPyTorch):
    """A free Gaussian over f(Z), fitted together with θ by Adam on small batches: there is no collapsed bound."""

    name = "GPyTorch SVGP"
    n_steps = 1000
    batch_size = 1024
    learning_rate = 0.01
    moves_inducing_inputs = False

    def bound_and_gradient(self, theta: Array) -> None:
        return None

    def _new_model(self) -> Any:
        import gpytorch

        variational = gpytorch.variational
        settings = dict(jitter_val=self.jitter, learn_inducing_locations=self.moves_inducing_inputs)
        kernel, (_, _, Z) = self.kernel, self.tensors

        class Regression(gpytorch.models.ApproximateGP):
            def __init__(self) -> None:
                q = variational.CholeskyVariationalDistribution(len(Z))
                super().__init__(variational.VariationalStrategy(self, Z, q, **settings))
                self.mean, self.covariance = gpytorch.means.ZeroMean(), kernel

            def forward(self, x: Any) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

        return Regression().double()

    def fit(self, theta0: Array, max_seconds: float) -> Fit:
        """Take `n_steps` steps. The bound is that of the Gaussian reached, on all data; it is not timed."""
        import gpytorch
        import torch

        began = time.process_time()
        X, y, _ = self.tensors
        self._move_to(theta0)
        self.model = self._new_model().train()
        objective = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=len(y))
        adam = torch.optim.Adam([*self.model.parameters(), *self.likelihood.parameters()], lr=self.learning_rate)
        random, size = torch.Generator().manual_seed(0), (min(self.batch_size, len(y)),)
        n_steps = 0
        while n_steps < self.n_steps and time.process_time() - began <= max_seconds:
            rows = torch.randint(len(y), size, generator=random)
            adam.zero_grad()
            (-objective(self.model(X[rows]), y[rows])).backward()
            adam.step()
            n_steps += 1
        seconds = time.process_time() - began
        self.theta = from_lengthscales(np.concatenate([log.detach().numpy().reshape(-1) for log in self.logs]))
        done = n_steps == self.n_steps
        return Fit(theta=self.theta, bound=self._bound(), seconds=seconds, n_evaluations=n_steps, converged=done)

    def _bound(self) -> float:
        import torch

        self.model.eval()
        batches = zip(*(part.split(self.batch_size) for part in self.tensors[:2]), strict=True)
        with torch.no_grad():
            expected = sum(self.likelihood.expected_log_prob(y, self.model(X)).sum() for X, y in batches)
            return float(expected - self.model.variational_strategy.kl_divergence())

    def predict(self, X: Array) -> tuple[Array, Array]:
        import torch

        self.model.eval()
        with torch.no_grad():
            parts = [self.model(part) for part in torch.from_numpy(X).split(self.batch_size)]
            return torch.cat([f.mean for f in parts]).numpy(), torch.cat([f.variance for f in parts]).numpy()


# -------------------------------------------------------------------------------------- GPJax


class GPJaxCollapsed(Peer):
    """CollapsedVariationalGaussian, compiled by JAX (not timed, as with GPflow), with SciPy's L-BFGS.

    GPJax's own `fit_scipy` is left out: it would move Z, too, by BFGS, and evaluate once more after each step.
    """

    name = "GPJax collapsed"
    imports = "gpjax"
    packages = ("gpjax", "jax")

    def _set_up(self) -> None:
        import gpjax
        import jax

        jax.config.update("jax_enable_x64", True)

        def posterior(theta: Any, data: Any, Z: Any) -> Any:
            kernel = gpjax.kernels.RBF(lengthscale=jax.numpy.exp(-0.5 * theta[2:]), variance=jax.numpy.exp(theta[0]))
            prior = gpjax.gps.Prior(kernel, gpjax.mean_functions.Zero(), jitter=self.jitter)
            model = prior * gpjax.likelihoods.Gaussian(jax.numpy.exp(0.5 * theta[1]))
            return gpjax.variational_families.CollapsedVariationalGaussian(model, Z).condition(data)

        def bound(theta: Any, data: Any, Z: Any) -> Any:
            return posterior(theta, data, Z).elbo_bound

        def marginals(theta: Any, data: Any, Z: Any, X: Any) -> Any:
            f = posterior(theta, data, Z)(X, covariance="diagonal")
            return f.mean, f.variance

        X, y, Z = map(jax.numpy.asarray, (self.X, self.y, self.Z))
        self.given = gpjax.Dataset(X, y[:, None]), Z
        self.value_and_grad, self.marginals = jax.jit(jax.value_and_grad(bound)), jax.jit(marginals)

    def bound_and_gradient(self, theta: Array) -> tuple[float, Array]:
        value, gradient = self.value_and_grad(theta, *self.given)
        return float(value), np.array(gradient)

    def predict(self, X: Array) -> tuple[Array, Array]:
        mean, variance = self.marginals(self.theta, *self.given, X)
        return np.array(mean), np.array(variance)


PEERS: tuple[type[Peer], ...] = (GPflowSGPR, GPyTorchSGPR, GPyTorchSVGP, GPJaxCollapsed)


# -------------------------------------------------------------------------------------- are they right?


class Naive(Peer):
    """The textbook's formulas with all their n×n matrices, and central differences."""

    def _low_rank(self, theta: Array, X: Array, Y: Array) -> Array:
        """Q(X, Y) = K_XZ K_ZZ⁻¹ K_ZY."""
        K_ZZ = kernel(theta, self.Z, self.Z) + self.jitter * np.eye(len(self.Z))
        return kernel(theta, X, self.Z) @ np.linalg.solve(K_ZZ, kernel(theta, self.Z, Y))

    def bound(self, theta: Array) -> float:
        """log N(y; 0, Q + σ²I) − tr(K − Q)/2σ²."""
        n, noise, Q = len(self.y), np.exp(theta[1]), self._low_rank(theta, self.X, self.X)
        S = Q + noise * np.eye(n)
        log_density = -0.5 * (np.linalg.slogdet(S)[1] + self.y @ np.linalg.solve(S, self.y) + n * np.log(2.0 * np.pi))
        return float(log_density - 0.5 * (n * np.exp(theta[0]) - np.trace(Q)) / noise)

    def bound_and_gradient(self, theta: Array) -> tuple[float, Array]:
        steps = STEP * np.eye(len(theta))
        differences = [self.bound(theta + step) - self.bound(theta - step) for step in steps]
        return self.bound(theta), np.array(differences) / (2.0 * STEP)

    def predict(self, X: Array) -> tuple[Array, Array]:
        S = self._low_rank(self.theta, self.X, self.X) + np.exp(self.theta[1]) * np.eye(len(self.y))
        Q = self._low_rank(self.theta, X, self.X)
        return Q @ np.linalg.solve(S, self.y), np.exp(self.theta[0]) - np.sum(Q.T * np.linalg.solve(S, Q.T), axis=0)


def kernel(theta: Array, X: Array, Y: Array) -> Array:
    r2 = sum(a * np.subtract.outer(x, y) ** 2 for a, x, y in zip(np.exp(theta[2:]), X.T, Y.T, strict=True))
    return np.exp(theta[0] - 0.5 * r2)


def sample(options: argparse.Namespace) -> tuple[Problem, Array, Array]:
    """The problem of benchmarks/exact.py, its returns centred, and a random subset of its states."""
    problem = Problem.sample(options.n, options.dims, options.seed)
    Z = np.random.default_rng(options.seed).choice(problem.states, options.m, replace=False)
    return problem, problem.returns - problem.returns.mean(), Z


def without_bias(theta: Array) -> Array:
    """Leave out log b."""
    return np.delete(theta, 1)


def compute_naively(options: argparse.Namespace) -> tuple[float, Array]:
    problem, y, Z = sample(options)
    return Naive(problem.states, y, Z).bound_and_gradient(without_bias(problem.theta))


def check(peer: type[Peer], slopes: Array, options: argparse.Namespace) -> list[str]:
    """A row of the table."""
    if absent := peer.available():
        return [peer.name, f"absent: {absent}", *[""] * (len(HEAD) - 2)]
    problem, y, Z = sample(options)
    library, naive = peer(problem.states, y, Z), Naive(problem.states, y, Z)
    found = library.bound_and_gradient(without_bias(problem.theta))
    compared = [f"{found[0]:.6f}", f"{np.abs(found[1] - slopes).max():.1e}"] if found else ["", ""]
    fit = library.fit(without_bias(problem.start), options.max_seconds)
    steps = f"{fit['n_evaluations']} in {fit['seconds']:.1f} s{'' if fit['converged'] else ', stopped'}"
    naive.theta, tests = fit["theta"], np.random.default_rng(options.seed + 1).normal(size=(500, options.dims))
    moments = zip(library.predict(tests), naive.predict(tests), strict=True)
    apart = [f"{np.abs(theirs - right).max():.1e}" for theirs, right in moments]
    return [peer.name, peer.versions(), *compared, f"{fit['bound']:.4f}", steps, *apart]


HEAD = ("", "versions", "bound", "gradient: off by", "fitted bound", "evaluations", "mean: off by", "variance: off by")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=3000, help="states")
    parser.add_argument("--m", type=int, default=30, help="inducing inputs")
    parser.add_argument("--dims", type=int, default=4, help="inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float, default=60.0, help="of a fit")
    options = parser.parse_args(arguments)
    fix_threads(1)
    with process() as pool:
        bound, slopes = pool.submit(compute_naively, options).result()
    rows = []
    for peer in PEERS:
        with process() as pool:
            rows.append(pool.submit(check, peer, slopes, options).result())
    gradient = ", ".join(f"{slope:.6g}" for slope in slopes)
    print(f"n={options.n}, m={options.m}, D={options.dims}; naively the bound is {bound:.6f}, its slopes {gradient}\n")
    print(table(HEAD, rows))


if __name__ == "__main__":
    main()
