"""Everything that knows Stable-Baselines3: safe loading, critics, logging. Importing this does not import it."""

from gptd_rl.sb3.loading import load_agent, load_statistics
from gptd_rl.sb3.policies import NormalizedPolicy

__all__ = ["NormalizedPolicy", "load_agent", "load_statistics"]
