"""What was sampled: trajectories, their files, pairs of states and actions."""
