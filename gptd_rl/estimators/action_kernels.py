"""Kernels over pairs of a state and an action, from kernels over coordinates."""

from __future__ import annotations

from gptd_rl.data.actions import Actions, DiscreteActions
from gptd_rl.kernels.stationary import ActionKernel, SquaredExponential


def action_kernel(kernel: SquaredExponential, actions: Actions) -> SquaredExponential:
    """The kernel over pairs [x, a] that belongs to a kernel over coordinates.

    Discrete actions multiply k(x, x') by 1 where actions are equal and by ρ where they differ. The metric of `kernel`
    covers continuous actions already, so that it is returned as it is.
    """
    if isinstance(actions, DiscreteActions):
        return ActionKernel(
            kernel.metric, kernel.signal_variance, kernel.bias, kernel.fixed, actions.n, actions.correlation
        )
    return kernel
