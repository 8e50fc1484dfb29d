"""The critics of Stable-Baselines3's algorithms, as value functions of states."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.data.spaces import unflatten
from gptd_rl.sb3.policies import NormalizedPolicy
from gptd_rl.types import Array

N_ACTIONS = 8  # sampled in each state, if actions are
CHUNK = 4096  # states at once


def critic_of(policy: Any, deterministic: bool = True, *, seed: int = 0) -> SB3Critic | None:
    """The agent's own critic, as a function of states.

    Its policy is the one that the algorithm evaluates: with exploration for A2C, PPO, MaskablePPO and TRPO, greedy for
    DQN and QRDQN, that of the actor for the others. Values of SAC, TQC and CrossQ include a bonus for the entropy of
    the actions, so they do not estimate the return alone. TQC's are means without the largest quantiles, as it learns.

    Parameters
    ----------
    policy : object
        A Stable-Baselines3 model or its policy, or `NormalizedPolicy`.
    deterministic : bool
        For SAC, TQC and CrossQ, whose actions are evaluated: the mean action, or the average over a few sampled ones.
        Others ignore it.
    seed : int
        Of the sampled actions; global random numbers do not change.

    Returns
    -------
    critic : SB3Critic or None
        A function from raw states of shape (m, n_dims), flattened as `gptd_rl.collect` does, to values of shape (m,);
        None if the agent has no critic, or a recurrent one. If `VecNormalize` scaled the rewards in training, the
        values are scaled back to the original unit by its last standard deviation: an approximation, since the critic
        learnt while that was changing, and rewards were clipped.
    """
    network = _network(policy)
    value = _value(network, deterministic) or _contrib_value(_model(policy), deterministic)
    return None if value is None else SB3Critic(policy, network, value, seed)


class SB3Critic:
    """The critic of one agent; see `critic_of`."""

    def __init__(self, policy: Any, network: Any, value: Callable[[Any], Any], seed: int) -> None:
        self._policy, self._network, self._value, self._seed = policy, network, value, seed
        self._space = getattr(policy, "observation_space", network.observation_space)
        self._scale = _reward_scale(policy, _model(policy))

    def __call__(self, states: ArrayLike) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        return self._scale * self._ask(states)

    def features(self, states: ArrayLike) -> Array:
        """Inputs of the last layer, those of several critics side by side, of shape (m, n_features)."""
        last = _last_layers(self._network)
        caught: list[list[Any]] = [[] for _ in last]
        hooks = [
            layer.register_forward_hook(lambda _, inputs, __, into=into: into.append(inputs[0].cpu().numpy()))
            for layer, into in zip(last, caught, strict=True)
        ]
        try:
            n = len(self._ask(states))
        finally:
            for hook in hooks:
                hook.remove()
        # With sampled actions, each chunk of states passes several times: average.
        return np.column_stack([_averaged(np.concatenate(parts), n, CHUNK) for parts in caught])

    def _ask(self, states: ArrayLike) -> Array:
        """Values in the units of the network, of shape (m,)."""
        import torch

        states = np.asarray(states)
        was_training = self._network.training
        self._network.set_training_mode(False)
        found = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(self._seed)
            for start in range(0, max(len(states), 1), CHUNK):
                batch = unflatten(self._space, states[start : start + CHUNK])
                if isinstance(self._policy, NormalizedPolicy):
                    batch = self._policy.statistics.normalize_obs(batch)
                found.append(self._value(self._network.obs_to_tensor(batch)[0]).reshape(-1).cpu().numpy())
        self._network.set_training_mode(was_training)
        return np.concatenate(found).astype(np.float64)


def _averaged(rows: Any, n: int, chunk: int) -> Array:
    """Mean over repetitions for each of `n` states; rows come in chunks, each repeated several times."""
    times = len(rows) // max(n, 1)
    parts, start = [], 0
    while start < len(rows):
        size = min(chunk, n - start // times)
        parts.append(rows[start : start + times * size].reshape(times, size, -1).mean(axis=0, dtype=np.float64))
        start += times * size
    return np.concatenate(parts) if parts else np.zeros((0, rows.shape[1]))


def _last_layers(network: Any) -> list[Any]:
    """The last layers of the critics that `_value` uses."""
    if hasattr(network, "value_net"):
        return [network.value_net]
    if hasattr(network, "q_net"):
        return [network.q_net.q_net[-1]]
    if hasattr(network, "quantile_net"):
        return [network.quantile_net.quantile_net[-1]]
    return [q[-1] for q in network.critic.q_networks]


def critic_name(policy: Any) -> str:
    """Name of the critic: "A2C's critic", "DQN's max Q", "SAC's critics"."""
    network, name = _network(policy), type(_model(policy)).__name__
    if hasattr(network, "q_net") or hasattr(network, "quantile_net"):
        return f"{name}'s max Q"
    several = getattr(getattr(network, "critic", None), "n_critics", 1) > 1
    return f"{name}'s critics" if several else f"{name}'s critic"


def _model(policy: Any) -> Any:
    return policy.model if isinstance(policy, NormalizedPolicy) else policy


def _network(policy: Any) -> Any:
    """The PyTorch policy of a model, or the object itself if it has none."""
    model = _model(policy)
    return getattr(model, "policy", model)


def _value(network: Any, deterministic: bool) -> Callable[[Any], Any] | None:
    """Values of shape (m,) or (m, 1) at a tensor of observations; None if `network` is not one of SB3's."""
    if "stable_baselines3" not in sys.modules:
        return None
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.dqn.policies import DQNPolicy
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import TD3Policy

    if isinstance(network, ActorCriticPolicy):
        # Recurrent ones, of sb3-contrib, need a hidden state, which states do not hold.
        is_recurrent = len(inspect.signature(network.predict_values).parameters) > 1
        return None if is_recurrent else network.predict_values
    if isinstance(network, DQNPolicy):
        return lambda seen: network.q_net(seen).amax(dim=1)
    if isinstance(network, TD3Policy):
        return lambda seen: _least(network.critic(seen, network.actor(seen)))
    if isinstance(network, SACPolicy):
        return _of_actor(network, _least, deterministic)
    return None


def _contrib_value(model: Any, deterministic: bool) -> Callable[[Any], Any] | None:
    """As `_value`, for the algorithms of sb3-contrib that have policies of their own."""
    if "sb3_contrib" not in sys.modules:
        return None
    from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
    from sb3_contrib.qrdqn.policies import QRDQNPolicy
    from sb3_contrib.tqc.policies import TQCPolicy

    network = _network(model)
    if isinstance(network, MaskableActorCriticPolicy):
        return network.predict_values
    if isinstance(network, QRDQNPolicy):
        return lambda seen: network.quantile_net(seen).mean(dim=1).amax(dim=1)
    if isinstance(network, TQCPolicy):
        dropped = getattr(model, "top_quantiles_to_drop_per_net", 0)
        return _of_actor(network, lambda quantiles: _truncated_mean(quantiles, dropped), deterministic)
    if type(network).__name__ == "CrossQPolicy":  # which not every release has
        return _of_actor(network, _least, deterministic)
    return None


def _of_actor(network: Any, pooled: Callable[[Any], Any], deterministic: bool) -> Callable[[Any], Any]:
    """Pooled values of the critics at the actor's mean actions, or averages over sampled ones."""

    def value(seen: Any, deterministic: bool) -> Any:
        return pooled(network.critic(seen, network.actor(seen, deterministic=deterministic)))

    if deterministic:
        return lambda seen: value(seen, True)
    return lambda seen: sum(value(seen, False) for _ in range(N_ACTIONS)) / N_ACTIONS


def _truncated_mean(quantiles: Any, dropped: int) -> Any:
    """Mean over the quantiles of all critics, of shape (m, n_critics, n_quantiles), without the largest."""
    n_kept = quantiles.shape[1] * (quantiles.shape[2] - dropped)
    return quantiles.flatten(start_dim=1).sort(dim=1).values[:, :n_kept].mean(dim=1)


def _least(values: tuple[Any, ...]) -> Any:
    """The smallest of several critics' values, as these algorithms use them."""
    import torch

    return torch.cat(values, dim=1).amin(dim=1)


def _reward_scale(policy: Any, model: Any) -> float:
    """Divisor of the rewards in training."""
    statistics = None
    if isinstance(policy, NormalizedPolicy):
        statistics = policy.statistics
    elif hasattr(model, "get_vec_normalize_env"):
        statistics = model.get_vec_normalize_env()
    if statistics is None or not statistics.norm_reward:
        return 1.0
    return float(np.sqrt(statistics.ret_rms.var + statistics.epsilon))
