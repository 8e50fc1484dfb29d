"""How trajectories are sampled: every kind of environment and policy as one, episode ends kept apart, Minari too.

`gptd_rl.collect` is the way in. Below it, in this order: `spaces` (observations and actions as arrays), `policies`
(any policy as one batched function), `sources` (any environment as one batched step), `recording` and `faults` (what
was seen, and what was wrong with it), `rollouts` (the loop), `minari_io` and `streaming` (datasets on disk).
"""
