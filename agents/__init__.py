"""Agents, and the true values of policies in the environments of :mod:`gptd_rl.envs`."""

from gptd_rl.agents.dynamic_programming import OptimalPendulum, solve_pendulum
from gptd_rl.agents.grid import GridValue
from gptd_rl.agents.gridworld import TowardsMiddle
from gptd_rl.agents.policy_evaluation import policy_value
from gptd_rl.agents.policy_iteration import LearningError, PolicyIteration

__all__ = [
    "GridValue",
    "LearningError",
    "OptimalPendulum",
    "PolicyIteration",
    "TowardsMiddle",
    "policy_value",
    "solve_pendulum",
]
