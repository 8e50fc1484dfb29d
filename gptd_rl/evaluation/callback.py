"""Evaluations while an agent of Stable-Baselines3 learns, as a callback: error bars in its logs and TensorBoard."""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gptd_rl.checks import as_count, as_discount
from gptd_rl.evaluation.environments import opened
from gptd_rl.evaluation.evaluate import evaluate_agent
from gptd_rl.evaluation.results import Evaluation
from gptd_rl.exceptions import EvaluationWarning
from gptd_rl.sb3.loading import Normalised

try:
    import torch
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecNormalize
except ModuleNotFoundError as error:
    raise ImportError('GPTDEvalCallback needs Stable-Baselines3: pip install "gptd-rl[sb3]".') from error


class GPTDEvalCallback(BaseCallback):
    """Evaluate a Stable-Baselines3 model now and then while it learns, with error bars, and log what was found.

    The log gets ``gptd/value`` with its 95 % interval ``gptd/value_lower`` and ``gptd/value_upper``, the discounted
    value of the policy from the start; ``gptd/coverage``, the share of values by fresh rollouts inside the 95 %
    interval, ``gptd/rmse`` beside them, and ``gptd/critic_rmse``, that of the model's own critic, if it has one; and
    ``gptd/relevance/<input>``, how much each observation matters for the value.

    Training goes on as if nothing had happened: the same seed leads to the same weights with the callback and without.

    Parameters
    ----------
    eval_env : str, gymnasium.Env or VectorEnv, or Stable-Baselines3 VecEnv
        Where to evaluate: not where the model is trained, since evaluating resets it. The model sees its observations
        as in training, by the statistics that a `VecNormalize` there has at the time; one around `eval_env` is ignored.
    eval_freq : int
        Evaluate at every so many calls, that is, after ``eval_freq * n_envs`` steps, as `EvalCallback` does.
    n_transitions, gamma, deterministic, seed, n_episodes, n_states
        As for `gptd_rl.evaluate_agent`; smaller amounts, as this is done again and again.
    verbose : int
        Whether to print a line for each evaluation.

    Attributes
    ----------
    evaluations : list of dict
        What was logged: a number for each key, one dict for each evaluation, with ``time/total_timesteps``.
    last : Evaluation or None
        The newest one with all that was found, about the model as it was then: ``last.write("folder")`` makes a page.

    Warns
    -----
    EvaluationWarning
        If an evaluation fails, because the environment or the agent does: it is left out, and training goes on. Who
        would rather stop makes it an error: ``warnings.simplefilter("error", EvaluationWarning)``. What could never
        work, such as an environment that does not fit the model, is refused before training begins.

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
        eval_env: Any,
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
            thorough=False,
        )
        self.evaluations: list[dict[str, float]] = []
        self.last: Evaluation | None = None

    def _init_callback(self) -> None:
        """Refuse what could not work, before training begins."""
        if not isinstance(self.model, BaseAlgorithm):
            raise TypeError(f"expected a Stable-Baselines3 model; got {type(self.model).__name__}.")
        if self.eval_env is None:  # which would stand for the one of the training
            raise TypeError("expected an environment to evaluate in; got None.")
        with opened(self.eval_env, snapshot(self.model), self.options["n_transitions"]):
            pass  # whether it can be made and fits the model
        mine = _cores(self.eval_env) if hasattr(self.eval_env, "unwrapped") else []  # else it is made anew each time
        if any(a is b for a in mine for b in _cores(self.training_env)):
            raise ValueError("eval_env is the environment of the training, which evaluating would reset: make another.")

    def _on_step(self) -> bool:
        if self.n_calls % self.eval_freq == 0:
            try:
                with random_numbers_kept(self.model.device):
                    self.last = evaluate_agent(snapshot(self.model), self.eval_env, **self.options)
            except Exception as error:  # noqa: BLE001  (whatever it is, it should not cost hours of training)
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
    """What goes into the log."""
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
    for name, strength in zip(evaluation.setting.inputs, evaluation.relevance.strengths.tolist(), strict=True):
        found["gptd/relevance/" + re.sub(r"[^\w.-]+", "_", name)] = strength
    return found


def snapshot(model: Any) -> Any:
    """The model as a policy that stays as it is, whatever training does to the model; it sees raw observations."""
    twin = copy.copy(model)
    # Distributions hold tensors of the last step, which PyTorch will not copy; every step puts new ones in their place.
    held = [module.action_dist for module in model.policy.modules() if hasattr(module, "action_dist")]
    twin.policy = copy.deepcopy(model.policy, {id(one): copy.copy(one) for one in held})
    twin.action_space = copy.deepcopy(model.action_space)  # DQN explores by drawing from it
    statistics = model.get_vec_normalize_env()
    return twin if statistics is None else Normalised(twin, copy.deepcopy(statistics))


@contextmanager
def random_numbers_kept(device: Any) -> Iterator[None]:
    """Leave everybody's random numbers as they were: Python's, NumPy's, and PyTorch's on CPU and on `device`."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  (DQN explores by it)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002


def _cores(env: Any) -> list[Any]:
    """Environments, without what is wrapped around them."""
    core = env.unwrapped
    return [one.unwrapped for one in core.envs] if hasattr(core, "envs") else [core]
