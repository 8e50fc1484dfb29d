"""Value functions with honest error bars, from sampled transitions alone."""

from gptd_rl.trajectories import Trajectories

__all__ = ["Trajectories"]
