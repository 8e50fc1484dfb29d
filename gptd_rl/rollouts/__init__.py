"""Rollouts of any policy in any environment, as `Trajectories` or as a Minari dataset.

`collect` and `streaming` are what users call. They rest on `policies` (any policy as one batched function), `actions`
(actions of a space), `environments` (any environment as one batched step), `recorder` and `validation` (steps in
arrays, and checks of them), and `rollout` (the loop).
"""
