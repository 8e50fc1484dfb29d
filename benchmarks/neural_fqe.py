"""Fitted Q evaluation with a neural network, as in d3rlpy: Adam on TD errors against a target network."""

from __future__ import annotations

import copy

import numpy as np
import torch
from action_value_estimators import DecisionCase
from least_squares import discounts_of
from numpy.typing import NDArray
from scores import Prediction
from torch import nn

N_STEPS, BATCH, TARGET_INTERVAL = 8000, 128, 50


def neural_fqe(case: DecisionCase) -> Prediction:
    """Q of two hidden layers of 64 units; inputs standardised, rewards scaled so that values are of order 1."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data, system, i = case.data, case.system, np.flatnonzero(case.data.has_transition)
    mean, scale = data.states.mean(axis=0), data.states.std(axis=0) + 1e-6
    unit = float(np.abs(data.rewards).mean()) / (1 - system.gamma) + 1e-12
    n_actions = system.n_actions

    def inputs(x: NDArray, a: NDArray) -> torch.Tensor:
        encoded = a[:, None] if n_actions is None else np.eye(n_actions)[a]
        return torch.as_tensor(np.column_stack([(x - mean) / scale, encoded]), dtype=torch.float32)

    def ahead() -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs (x', a') of all actions, [n, k, d], and their probabilities under the target, [n, k]."""
        following = data.states[i + 1]
        if n_actions is None:
            return inputs(following, system.target(following))[:, None], torch.ones(len(i), 1)
        every = [inputs(following, np.full(len(i), a)) for a in range(n_actions)]
        return torch.stack(every, dim=1), torch.as_tensor(system.target_probabilities(following), dtype=torch.float32)

    now, (following, probabilities) = inputs(data.states[i], case.actions_taken), ahead()
    rewards = torch.as_tensor(data.rewards[i] / unit, dtype=torch.float32)
    discounts = torch.as_tensor(discounts_of(data), dtype=torch.float32)
    q = nn.Sequential(nn.Linear(now.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimiser = torch.optim.Adam(q.parameters(), lr=1e-3)
    for step in range(N_STEPS):
        if step % TARGET_INTERVAL == 0:
            frozen = copy.deepcopy(q)
            with torch.no_grad():
                targets = rewards + discounts * (frozen(following)[..., 0] * probabilities).sum(dim=1)
        rows = torch.randint(len(i), (BATCH,))
        loss = ((q(now[rows])[:, 0] - targets[rows]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return Prediction(unit * q(inputs(case.states, case.actions))[:, 0].numpy().astype(np.float64))
