"""A callback of Stable-Baselines3 that evaluates the agent during training and logs values with intervals."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import numpy as np

from gptd_rl.checks import as_count, as_discount
from gptd_rl.evaluation.environments import open_environment
from gptd_rl.evaluation.evaluate import evaluate_agent
from gptd_rl.evaluation.random_state import preserved_random_state
from gptd_rl.evaluation.results import Evaluation
from gptd_rl.exceptions import EvaluationWarning
from gptd_rl.sb3.policies import NormalizedPolicy
from gptd_rl.types import EnvLike

try:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecNormalize
except ModuleNotFoundError as error:
    raise ImportError('GPTDEvalCallback needs Stable-Baselines3: pip install "gptd-rl[sb3]".') from error


class GPTDEvalCallback(BaseCallback):
    """Evaluate a Stable-Baselines3 model at regular steps of training, with intervals, and log the results.

    The log gets ``gptd/value`` with its 95 % interval ``gptd/value_lower`` and ``gptd/value_upper``, the discounted
    value of the policy from the start; ``gptd/coverage``, the share of values by fresh rollouts inside the 95 %
    interval, ``gptd/rmse`` beside them, and ``gptd/critic_rmse``, that of the model's own critic, if it has one; and
    ``gptd/importance/<input>``, how much of the value's variance is lost without the observation.

    Training is not disturbed: the same seed leads to the same weights with the callback and without.

    Parameters
    ----------
    eval_env : str, gymnasium.Env or VectorEnv, or Stable-Baselines3 VecEnv
        Where to evaluate: not the training environment, since evaluating resets it. Observations are normalized by the
        present statistics of a `VecNormalize` around the training environment; one around `eval_env` is ignored.
    eval_freq : int
        Evaluate every `eval_freq` calls, that is, every ``eval_freq * n_envs`` steps, as `EvalCallback` does.
    n_transitions, gamma, deterministic, seed, n_episodes, n_states
        As for `gptd_rl.evaluate_agent`; the defaults are smaller.
    verbose : int
        Whether to print a line for each evaluation.

    Attributes
    ----------
    evaluations : list of dict
        The numbers logged, one dict for each evaluation, with ``time/total_timesteps``.
    last : Evaluation or None
        The latest evaluation, of the model as it was then: ``last.write("folder")`` writes a page.

    Warns
    -----
    EvaluationWarning
        If an evaluation fails, because the environment or the agent does: it is skipped, and training continues. To
        stop instead, make it an error: ``warnings.simplefilter("error", EvaluationWarning)``. An environment whose
        spaces are not those of the model is refused before training begins.

    Examples
    --------
    >>> from stable_baselines3 import A2C
    >>> model = A2C("MlpPolicy", "CartPole-v1", seed=0, tensorboard_log="runs")  # doctest: +SKIP
    >>> callback = GPTDEvalCallback("CartPole-v1", eval_freq=20_000)
    >>> model.learn(100_000, callback=callback)  # doctest: +SKIP
    >>> callback.last.write("page")  # doctest: +SKIP
    """

    def __init__(
        self,
        eval_env: EnvLike,
        eval_freq: int = 10_000,
        n_transitions: int = 2_000,
        gamma: float | None = None,
        deterministic: bool = True,
        seed: int = 0,
        verbose: int = 0,
        *,
        n_episodes: int = 20,
        n_states: int = 50,
    ) -> None:
        super().__init__(verbose)
        self.eval_env = eval_env.venv if isinstance(eval_env, VecNormalize) else eval_env
        self.eval_freq = as_count(eval_freq, "eval_freq")
        self.options: dict[str, Any] = dict(
            n_transitions=as_count(n_transitions, "n_transitions"),
            gamma=gamma if gamma is None else as_discount(gamma),
            deterministic=deterministic,
            seed=seed,
            n_episodes=as_count(n_episodes, "n_episodes"),
            n_states=as_count(n_states, "n_states"),
            analyse_inputs=False,
            frames=False,
        )
        self.evaluations: list[dict[str, float]] = []
        self.last: Evaluation | None = None

    def _init_callback(self) -> None:
        """Refuse a bad environment before training begins."""
        if not isinstance(self.model, BaseAlgorithm):
            raise TypeError(f"expected a Stable-Baselines3 model; got {type(self.model).__name__}.")
        if self.eval_env is None:  # `evaluate_agent` would use that of the training
            raise TypeError("expected an environment to evaluate in; got None.")
        with open_environment(self.eval_env, snapshot(self.model), self.options["n_transitions"]):
            pass  # raises if it cannot be made or has other spaces than the model
        mine = _cores(self.eval_env) if hasattr(self.eval_env, "unwrapped") else []  # else each evaluation makes one
        if any(a is b for a in mine for b in _cores(self.training_env)):
            raise ValueError("eval_env is the environment of the training, which evaluating would reset: make another.")

    def _on_step(self) -> bool:
        if self.n_calls % self.eval_freq == 0:
            try:
                with preserved_random_state(self.model.device):
                    self.last = evaluate_agent(snapshot(self.model), self.eval_env, **self.options)
            except Exception as error:  # noqa: BLE001  (no error of an evaluation may end the training)
                text = f"the evaluation after {self.num_timesteps} steps failed: {type(error).__name__}: {error}"
                warnings.warn(" ".join(text.split()), EvaluationWarning, stacklevel=2)
            else:
                self._log(numbers(self.last))
        return True

    def _log(self, found: dict[str, float]) -> None:
        self.evaluations.append(found | {"time/total_timesteps": self.num_timesteps})
        if self.verbose:
            value, lower, upper = (found[f"gptd/value{end}"] for end in ("", "_lower", "_upper"))
            print(f"{self.num_timesteps} steps: value {value:.4g}, 95 % interval {lower:.4g} to {upper:.4g}")  # noqa: T201
        for key, number in found.items():
            self.logger.record(key, number)
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)


def numbers(evaluation: Evaluation) -> dict[str, float]:
    """The numbers to log."""
    value, check = evaluation.start.value, evaluation.check
    found = {
        "gptd/value": value.estimate,
        "gptd/value_lower": value.lower,
        "gptd/value_upper": value.upper,
        "gptd/coverage": check.scores[0].coverage[-1],
        "gptd/rmse": check.scores[0].rmse,
    }
    if check.critic is not None:
        found["gptd/critic_rmse"] = float(np.sqrt(np.mean((check.critic - check.observed) ** 2)))
    effects = evaluation.relevance.importances.total_effects.tolist()
    for name, effect in zip(evaluation.config.inputs, effects, strict=True):
        found["gptd/importance/" + re.sub(r"[^\w.-]+", "_", name)] = effect
    return found


def snapshot(model: Any) -> Any:
    """A frozen copy of the model, as a policy of raw observations."""
    twin = copy.copy(model)
    # Distributions hold tensors of the last step, which PyTorch cannot copy; every step replaces them.
    held = [module.action_dist for module in model.policy.modules() if hasattr(module, "action_dist")]
    twin.policy = copy.deepcopy(model.policy, {id(one): copy.copy(one) for one in held})
    twin.action_space = copy.deepcopy(model.action_space)  # DQN explores by sampling from it
    statistics = model.get_vec_normalize_env()
    return twin if statistics is None else NormalizedPolicy(twin, copy.deepcopy(statistics))


def _cores(env: Any) -> list[Any]:
    """Environments without their wrappers."""
    core = env.unwrapped
    return [one.unwrapped for one in core.envs] if hasattr(core, "envs") else [core]
