"""Agents, and the true values of policies in the environments of `gptd_rl.envs`."""

from gptd_rl.agents.policy_iteration import PolicyIteration
from gptd_rl.agents.reference.dynamic_programming import OptimalPendulum, solve_pendulum
from gptd_rl.agents.reference.grid import GridValue
from gptd_rl.agents.reference.gridworld import TowardsMiddle
from gptd_rl.agents.reference.policy_value import policy_value
from gptd_rl.exceptions import LearningError

__all__ = [
    "GridValue",
    "LearningError",
    "OptimalPendulum",
    "PolicyIteration",
    "TowardsMiddle",
    "policy_value",
    "solve_pendulum",
]
