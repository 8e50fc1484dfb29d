"""Time, memory and quality of sparse GPTD, beside other libraries and beside what BLAS allows.

    python benchmarks/sparse.py                            everything, about an hour
    python benchmarks/sparse.py --parts evaluations        one bound and gradient: time and memory
    python benchmarks/sparse.py --parts growth             the same for n = 10⁴ … 10⁶, without other libraries
    python benchmarks/sparse.py --parts fits               whole fits: time, bound, error on new states
    python benchmarks/sparse.py --sizes 20000 --m 100 --peers "GPflow SGPR"

All solve the problem of `sparse_peers`: on terminated episodes GPTD is Gaussian-process regression on returns.
An evaluation is the collapsed variational bound with its gradient, at the same θ and with the same m inducing states.
In a whole fit the other libraries keep these states, which were chosen at a θ near the truth; this project chooses its
own, again and again. Every library has a process of its own on one core, and seconds are processor seconds.

The *floor* is what the mathematics cannot do without: per row one dsyrk and one dgemm with m columns, and m exps.
The other libraries hold several n×m matrices, so at n = 10⁶ they do not fit into this machine's memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import sparse_peers
from exact import (
    NOISE_STD,
    Array,
    Problem,
    _smooth_value,
    fix_threads,
    held_bytes,
    load,
    peak_bytes,
    process,
    processor_name,
    reset_peak,
    table,
)
from sparse_peers import Fit, Peer, without_bias

LARGEST_PEER = 100_000
AGREEMENT = 1e-5  # relative, between bounds
TEST_SIZE = 5_000
GROWTH = (10_000, 30_000, 100_000, 300_000, 1_000_000)


@dataclass(frozen=True)
class Data:
    """States and centred returns for fitting and for testing, and the inducing states."""

    problem: Problem
    y: Array
    Z: Array
    tests: Array
    truth: Array  # V at the test states, centred alike
    y_tests: Array

    @classmethod
    def sample(cls, n: int, m: int, n_dims: int, seed: int) -> Data:
        from gptd_rl.inference.inducing import incomplete_cholesky
        from gptd_rl.kernels import ARD, SquaredExponential

        problem = Problem.sample(n, n_dims, seed)
        level = problem.returns.mean()
        candidates = problem.states[:: max(1, n // 8000)]
        kernel = SquaredExponential(ARD(np.exp(problem.theta[3:])))
        Z = candidates[incomplete_cholesky(kernel, candidates, m, rng=np.random.default_rng(seed)).indices]
        rng = np.random.default_rng(seed + 1)
        tests = rng.normal(size=(TEST_SIZE, n_dims))
        truth = _smooth_value(tests) - level
        y_tests = truth + NOISE_STD * rng.normal(size=TEST_SIZE)
        return cls(problem, problem.returns - level, Z, tests, truth, y_tests)


# -------------------------------------------------------------------------------------- the contestants


class Floor(Peer):
    """BLAS alone: the products and the exponentials of one evaluation, in blocks that stay in the cache."""

    name, imports, packages = "BLAS floor", "scipy.linalg.blas", ("numpy", "scipy")
    BLOCK = 1024

    def bound_and_gradient(self, theta: Array) -> None:
        from scipy.linalg import blas

        n, m = len(self.X), len(self.Z)
        rows, product = np.full((self.BLOCK, m), -1.0), np.empty((self.BLOCK, m))
        gram, weights = np.zeros((m, m), order="F"), np.ones((m, m))
        for start in range(0, n, self.BLOCK):
            c = min(self.BLOCK, n - start)
            blas.dsyrk(1.0, rows[:c].T, beta=1.0, c=gram, overwrite_c=1)
            np.matmul(rows[:c], weights, out=product[:c])
            np.exp(rows[:c], out=product[:c])


class Ours(Peer):
    """This project."""

    name, imports, packages = "gptd-rl", "gptd_rl", ("gptd-rl",)

    def __init__(self, X: Array, y: Array, Z: Array, lengths: Any) -> None:
        self.lengths = lengths
        super().__init__(X, y, Z)

    def _set_up(self) -> None:
        from gptd_rl.sharding.dataset import open_dataset

        self.data = Problem(self.X, self.y, self.lengths).trajectories()
        self.dataset = open_dataset(self.data, "stochastic")

    def _model(self, theta: Array) -> Any:
        from gptd_rl.inference.model import Model
        from gptd_rl.kernels import ARD, paper_kernel

        v0, noise, *a = np.exp(theta)
        return Model(paper_kernel(ARD(a), v0, 0.0), noise)

    def bound_and_gradient(self, theta: Array) -> tuple[float, Array]:
        from gptd_rl.selection.bound import FixedBound

        bound = FixedBound([self.dataset], self.Z, self.data.n_rows)  # a new one, since it remembers its last value
        value, gradient = bound(self._model(theta))
        return -value, -without_bias(gradient)

    def fit(self, theta0: Array, max_seconds: float) -> Fit:
        from gptd_rl import GPTD
        from gptd_rl.selection.bound import FixedBound

        kernel, n_evaluations = self._model(theta0).kernel, 0
        evaluate = FixedBound.__call__

        def counted(bound: FixedBound, model: Any) -> tuple[float, Array]:
            nonlocal n_evaluations
            n_evaluations += bound.n_rows == self.data.n_rows
            return evaluate(bound, model)

        FixedBound.__call__ = counted  # type: ignore[method-assign]
        began = time.process_time()
        options: dict[str, Any] = dict(objective="marginal_likelihood", method="sparse", subset_size=len(self.Z))
        self.v = GPTD(kernel, **options).fit(self.data)
        seconds = time.process_time() - began
        FixedBound.__call__ = evaluate  # type: ignore[method-assign]
        bound, theta = float(self.v.log_marginal_likelihood_), without_bias(self.v.theta_)
        self.theta = np.concatenate([theta[:2], theta[2:]])
        return Fit(theta=theta, bound=bound, seconds=seconds, n_evaluations=n_evaluations, converged=True)

    def predict(self, X: Array) -> tuple[Array, Array]:
        mean, std = self.v.predict(X, return_std=True)
        return mean, std**2


CONTESTANTS: dict[str, type[Peer]] = {c.name: c for c in (Floor, Ours, *sparse_peers.PEERS)}


# -------------------------------------------------------------------------------------- measuring, in a process


@dataclass(frozen=True)
class Evaluation:
    """One bound with its gradient."""

    name: str
    n: int
    seconds: float
    peak_bytes: int  # above what the process held once its library was imported; data included
    bound: float


@dataclass(frozen=True)
class WholeFit:
    """A model selected and judged on new states."""

    name: str
    n: int
    seconds: float
    n_evaluations: int
    converged: bool
    peak_bytes: int
    bound: float
    rmse: float  # of V
    nlpd: float  # of new returns


def open_contestant(name: str, n: int, options: argparse.Namespace) -> tuple[Any, Data, int] | str:
    contestant = CONTESTANTS[name]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core: no library gains by more threads
    if absent := contestant.available():
        return absent
    at_rest = held_bytes()
    data = Data.sample(n, options.m, options.dims, options.seed)
    arguments = (data.problem.states, data.y, data.Z)
    opened = Ours(*arguments, data.problem.lengths) if contestant is Ours else contestant(*arguments)
    return opened, data, at_rest


def measure_evaluation(name: str, n: int, options: argparse.Namespace) -> Evaluation | str:
    opened = open_contestant(name, n, options)
    if isinstance(opened, str):
        return opened
    contestant, data, at_rest = opened
    theta = without_bias(data.problem.theta)
    seconds, found = [], None
    reset_peak()
    for _ in range(options.repeats + 1):  # the first one compiles
        began = time.process_time()
        found = contestant.bound_and_gradient(theta)
        seconds.append(time.process_time() - began)
        if found is None and name != Floor.name:
            return "no collapsed bound"
    return Evaluation(name, n, min(seconds), peak_bytes() - at_rest, found[0] if found else math.nan)


def measure_fit(name: str, n: int, options: argparse.Namespace) -> WholeFit | str:
    opened = open_contestant(name, n, options)
    if isinstance(opened, str):
        return opened
    contestant, data, at_rest = opened
    reset_peak()
    if name != Ours.name:
        contestant.bound_and_gradient(without_bias(data.problem.start))  # compiles
    fit = contestant.fit(without_bias(data.problem.start), options.max_seconds)
    peak = peak_bytes() - at_rest
    mean, variance = contestant.predict(data.tests)
    rmse = float(np.sqrt(((mean - data.truth) ** 2).mean()))
    total = variance + np.exp(fit["theta"][1])
    nlpd = float(0.5 * (np.log(2.0 * np.pi * total) + (data.y_tests - mean) ** 2 / total).mean())
    return WholeFit(name, n, fit["seconds"], fit["n_evaluations"], fit["converged"], peak, fit["bound"], rmse, nlpd)


def in_own_process(function: Any, *arguments: Any) -> Any:
    with process() as pool:
        return pool.submit(function, *arguments).result()


# -------------------------------------------------------------------------------------- the parts


def evaluations(options: argparse.Namespace) -> list[Evaluation]:
    measured = []
    for n in options.sizes:
        results = {}
        for name in [Floor.name, Ours.name, *(options.peers if n <= options.largest_peer else ())]:
            result = in_own_process(measure_evaluation, name, n, options)
            if isinstance(result, str):
                print(f"{name}, n={n}: left out ({result})", flush=True)
                continue
            results[name] = result
            print(f"{name}, n={n}: {result.seconds:.2f} s, {result.peak_bytes / 1e6:.0f} MB", flush=True)
        ours, floor = results[Ours.name], results[Floor.name]
        for result in results.values():
            if not math.isnan(result.bound) and abs(result.bound - ours.bound) > AGREEMENT * abs(ours.bound):
                print(f"DISAGREE: {result.name} {result.bound:.4f}, gptd-rl {ours.bound:.4f}")
        rows = [
            [
                r.name,
                f"{r.seconds:.2f} s",
                f"{r.seconds / floor.seconds:.2f}",
                f"{r.seconds / ours.seconds:.1f}",
                f"{r.peak_bytes / 1e6:.0f} MB",
                "" if math.isnan(r.bound) else f"{r.bound:.3f}",
            ]
            for r in results.values()
        ]
        print(f"\nOne bound + gradient, n={n}, m={options.m}, D={options.dims}\n")
        print(table(["", "time", "× floor", "× ours", "peak", "bound"], rows), "\n", flush=True)
        measured += results.values()
    return measured


def growth(options: argparse.Namespace) -> list[Evaluation]:
    sizes = [n for n in GROWTH if n <= max(options.sizes)]
    measured = [in_own_process(measure_evaluation, Ours.name, n, options) for n in sizes]
    rows = [
        [f"{r.n:,}", f"{r.seconds:.2f} s", f"{1e6 * r.seconds / r.n:.1f} µs", f"{r.peak_bytes / 1e6:.0f} MB"]
        for r in measured
    ]
    print(f"gptd-rl, one bound + gradient, m={options.m}, D={options.dims}\n")
    print(table(["n", "time", "per state", "peak"], rows), "\n", flush=True)
    return measured


def fits(options: argparse.Namespace) -> list[WholeFit]:
    measured = []
    for n in options.sizes:
        for name in [Ours.name, *(options.peers if n <= options.largest_peer else ())]:
            result = in_own_process(measure_fit, name, n, options)
            if isinstance(result, str):
                print(f"{name}, n={n}: left out ({result})", flush=True)
                continue
            measured.append(result)
            print(f"{name}, n={n}: {result.seconds:.1f} s, bound {result.bound:.2f}", flush=True)
    ours = {r.n: r.seconds for r in measured if r.name == Ours.name}
    rows = [
        [
            r.name,
            f"{r.n:,}",
            f"{r.seconds:.1f} s" + ("" if r.converged else " (stopped)"),
            f"{r.seconds / ours[r.n]:.1f}",
            f"{r.n_evaluations}",
            f"{r.peak_bytes / 1e6:.0f} MB",
            f"{r.bound:.2f}",
            f"{r.rmse:.5f}",
            f"{r.nlpd:.5f}",
        ]
        for r in measured
    ]
    head = ["", "n", "whole fit", "× ours", "evaluations", "peak", "bound", "RMSE of V", "NLPD of new returns"]
    least = math.log(NOISE_STD) + 0.5 * math.log(2.0 * math.pi * math.e)
    print(f"\nWhole fits, m={options.m}, D={options.dims}; the noise alone makes an expected NLPD of {least:.5f}\n")
    print(table(head, rows), "\n", flush=True)
    return measured


PARTS = dict(evaluations=evaluations, growth=growth, fits=fits)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[100_000, 1_000_000], metavar="N")
    parser.add_argument("--m", type=int, default=500, help="inducing states")
    parser.add_argument("--dims", type=int, default=4, help="inputs")
    parser.add_argument("--peers", nargs="*", default=[p.name for p in sparse_peers.PEERS], help="other libraries")
    parser.add_argument("--largest-peer", type=int, default=LARGEST_PEER, help="largest n for other libraries")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-seconds", type=float, default=900.0, help="of another library's fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.peers) - set(CONTESTANTS)):
        parser.error(f"unknown peers {', '.join(unknown)}; there are {', '.join(p.name for p in sparse_peers.PEERS)}")
    fix_threads(1)
    print(f"{processor_name()}, {os.cpu_count()} cores, one used; {load()}\n", flush=True)
    measured = {part: [asdict(r) for r in PARTS[part](options)] for part in options.parts}
    print(load())
    if options.json:
        with open(options.json, "w") as file:
            json.dump(measured, file, indent=1)


if __name__ == "__main__":
    main()
