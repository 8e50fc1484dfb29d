"""Everything that knows Stable-Baselines3: safe loading, critics, logging."""
