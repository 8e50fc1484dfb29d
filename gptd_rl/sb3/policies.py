"""Policies on normalized observations, and whether an agent belongs to an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from gptd_rl.data.spaces import describe, require_flat
from gptd_rl.exceptions import AgentError


class NormalizedPolicy:
    """An agent that was trained on normalized observations, as a policy of raw ones.

    So states, relevances and plots are in the units of the environment.

    Parameters
    ----------
    model : object with predict
        A Stable-Baselines3 model, or anything that predicts like one.
    statistics : stable_baselines3.common.vec_env.VecNormalize
        From `load_statistics`, or the wrapper itself.

    Attributes
    ----------
    gamma : float
        Discount of the model.
    observation_space, action_space : gymnasium.Space
        Of raw observations, and of the model's actions.
    """

    def __init__(self, model: Any, statistics: Any) -> None:
        self.model, self.statistics = model, statistics
        expected = getattr(model, "observation_space", self.observation_space)
        if not _fits(expected, self.observation_space):
            raise AgentError(
                f"the agent observes {_short(expected)} and the statistics are of {_short(self.observation_space)}: "
                "were they saved together?"
            )

    @property
    def gamma(self) -> float:
        """Discount of the model."""
        return self.model.gamma

    @property
    def observation_space(self) -> Space[Any]:
        """Space of raw observations."""
        return self.statistics.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Space of the model's actions."""
        return self.model.action_space

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False, **more: Any
    ) -> tuple[Any, Any]:
        """Actions at raw observations, one or a batch; see Stable-Baselines3's `predict`."""
        seen = self.statistics.normalize_obs(observation)
        return self.model.predict(seen, state=state, episode_start=episode_start, deterministic=deterministic, **more)


def is_recurrent(policy: Any) -> bool:
    """Whether a policy is one of Stable-Baselines3's that remember earlier observations, such as RecurrentPPO."""
    model = policy.model if isinstance(policy, NormalizedPolicy) else policy
    return hasattr(getattr(model, "policy", model), "lstm_actor")


def check_spaces(model: Any, env: Any) -> None:
    """Refuse an agent whose spaces are not those of an environment, and observations that are images.

    Bounds may differ, as wrappers change them. Spaces that the agent does not declare are not checked.

    Parameters
    ----------
    model : object
        A policy, maybe with `observation_space` and `action_space`.
    env : gymnasium.Env, gymnasium.vector.VectorEnv or stable_baselines3.common.vec_env.VecEnv
    """
    for kind, does, gives in (("observation", "observes", "gives"), ("action", "acts in", "takes")):
        space = getattr(env, f"single_{kind}_space" if hasattr(env, f"single_{kind}_space") else f"{kind}_space")
        expected = getattr(model, f"{kind}_space", space)
        if kind == "observation":
            try:
                require_flat(expected)
            except ValueError as error:
                raise AgentError(str(error)) from None
        if not _fits(expected, space):
            raise AgentError(
                f"the agent {does} {_short(expected)} and {_name(env)} {gives} {_short(space)}: was it trained there?"
            )


def _fits(a: Space[Any], b: Space[Any]) -> bool:
    """Whether two spaces have elements of the same form, whatever the bounds."""
    if isinstance(a, spaces.Dict) and isinstance(b, spaces.Dict):
        # In the same order too, since this is the order of the states.
        return list(a) == list(b) and all(_fits(a[key], b[key]) for key in a)
    if isinstance(a, spaces.Tuple) and isinstance(b, spaces.Tuple):
        return len(a) == len(b) and all(map(_fits, a, b))
    if isinstance(a, spaces.Box) and isinstance(b, spaces.Box):
        return a.shape == b.shape and np.dtype(a.dtype).kind == np.dtype(b.dtype).kind
    return a == b


def _short(space: Space[Any]) -> str:
    """Name a space without its bounds."""
    if isinstance(space, spaces.Box):
        kind = np.dtype(space.dtype)
        return f"Box{space.shape}" if kind.kind == "f" else f"Box{space.shape} of {kind}"
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {_short(part)}' for key, part in space.items())})"
    return describe(space)


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return "the environment" if spec is None else str(spec.id)
