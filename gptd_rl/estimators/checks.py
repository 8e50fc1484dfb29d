"""Checks of estimators' parameters: each says in one line what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from gptd_rl.checks import LARGEST, as_float, check_choice, is_count, is_positive, one_line
from gptd_rl.data.actions import Actions, DiscreteActions
from gptd_rl.kernels import ActionDelta, Kernel
from gptd_rl.selection.variants import VARIANTS
from gptd_rl.temporal.means import check_mean

NOISES = ("stochastic", "deterministic")
OBJECTIVES = ("auto", "marginal_likelihood", "thinned", "loo", "leave_one_episode_out")
METHODS = ("auto", "exact", "sparse")
SPARSE_VARIANCES = ("projected_process", "subset_of_regressors")


def check_parameters(v: Any) -> None:
    """Refuse parameters of an estimator that make no sense."""
    if not isinstance(v.kernel, Kernel):
        check_choice("kernel", v.kernel, VARIANTS, "or a kernel object, such as gptd_rl.kernels.Matern52(…)")
    check_mean(v.mean)
    check_choice("noise", v.noise, NOISES)
    check_bootstrap(v.bootstrap)
    check_choice("objective", v.objective, OBJECTIVES)
    check_choice("method", v.method, METHODS)
    check_choice("sparse_variance", v.sparse_variance, SPARSE_VARIANCES)
    if not is_count(v.subset_size):
        raise ValueError(f"subset_size must be a whole number of 1 or more; got {one_line(repr(v.subset_size))}.")
    if v.tolerance is not None and not _is_share(v.tolerance):
        raise ValueError(
            f"tolerance is a share of the prior variance, from 0 to below 1; got {one_line(repr(v.tolerance))}."
        )
    if v.thinning is not None and not (v.objective == "thinned" and is_count(v.thinning)):
        raise ValueError(f"thinning={one_line(v.thinning)} needs objective='thinned' and a whole number of 1 or more.")
    for name in ("noise_variance", "noise_floor"):
        value = getattr(v, name)
        if value is not None and not is_positive(value):
            raise ValueError(f"{name} must be positive; got {one_line(value)}.")
        if value is not None and as_float(value) > LARGEST:
            raise ValueError(f"{name} must be at most {LARGEST:g}; got {one_line(value)}.")
    if v.max_rank is not None and not is_count(v.max_rank):
        raise ValueError(f"max_rank must be 1 or more, or None for n_dims − 1; got {one_line(v.max_rank)}.")
    if not is_count(v.n_restarts, 0):
        raise ValueError(f"n_restarts must be 0 or more; got {one_line(v.n_restarts)}.")
    check_n_jobs(v.n_jobs)
    softness = getattr(v, "softness", 0.0)  # of GPTDQ
    if not (isinstance(softness, float | int | np.number) and 0.0 <= softness <= 1.0):
        raise ValueError(f"softness must lie in [0, 1]; got {one_line(repr(softness))}.")


def check_bootstrap(bootstrap: object) -> None:
    """Refuse what is neither a flag nor "auto"."""
    if not (isinstance(bootstrap, bool | np.bool_) or bootstrap == "auto"):
        raise ValueError(f"bootstrap must be 'auto', True or False; got {bootstrap!r}.")


def check_n_jobs(n_jobs: object) -> None:
    """Refuse a number of jobs that joblib does not take."""
    if n_jobs is not None and (not isinstance(n_jobs, int | np.integer) or isinstance(n_jobs, bool) or n_jobs == 0):
        raise ValueError(
            f"n_jobs must be None, a positive whole number, or −1 for all cores; got {one_line(repr(n_jobs))}."
        )


def check_kernel_width(kernel: str | Kernel, n_coordinates: int, actions: Actions) -> None:
    """Refuse a kernel object of another width than the data, or for fewer actions."""
    if not isinstance(kernel, Kernel):
        return
    if kernel.n_dims not in (None, n_coordinates):
        raise ValueError(f"the kernel has {kernel.n_dims} dimensions; got states of width {n_coordinates}.")
    if kernel.n_categorical > actions.n_categorical:
        raise ValueError("the kernel reads discrete actions, and there are none in these states: use GPTDQ.")
    if isinstance(actions, DiscreteActions):
        for delta in _action_kernels(kernel):
            if delta.n_actions < actions.n:
                raise ValueError(f"the kernel knows {delta.n_actions} actions; got {actions.n}.")


def _action_kernels(kernel: Any) -> list[ActionDelta]:
    if isinstance(kernel, ActionDelta):
        return [kernel]
    return [delta for part in getattr(kernel, "parts", ()) for delta in _action_kernels(part)]


def _is_share(value: object) -> bool:
    return isinstance(value, float | int | np.number) and bool(0.0 <= value < 1.0)
