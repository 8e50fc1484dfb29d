"""Evaluate an agent: collect, fit, check."""

from __future__ import annotations

import operator
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from scipy import stats

from gptd_rl.checks import as_count, as_discount
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.evaluation.calibration import Calibrated
from gptd_rl.evaluation.checking import Observed, check, disagreements, observe
from gptd_rl.evaluation.environments import opened
from gptd_rl.evaluation.fitting import fit
from gptd_rl.evaluation.off_policy import OnStates, compare_policies, fit_target
from gptd_rl.evaluation.results import Evaluation, Interval, Setting, StartReturn, Timing, ValueFunction
from gptd_rl.rollouts.collect import collect
from gptd_rl.sb3.critics import critic_name, critic_of
from gptd_rl.sb3.loading import Normalised, check_spaces
from gptd_rl.types import Array

Progress = Callable[[str, int, int], None]

FEW_EPISODES = 20
FRESH = 1_000_000  # seeds of episodes for the check begin here


def evaluate_agent(
    agent: Any,
    env: Any = None,
    *,
    n_transitions: int = 10_000,
    gamma: float | None = None,
    deterministic: bool = True,
    seed: int = 0,
    target: Any = None,
    n_episodes: int = 40,
    n_states: int = 160,
    input_names: Sequence[str] | None = None,
    thorough: bool = True,
    progress: Progress | None = None,
) -> Evaluation:
    """Say how good an agent is, with error bars, which observations matter, and whether that can be believed.

    Parameters
    ----------
    agent : Stable-Baselines3 model, object with ``predict``, callable, or None
        As for `gptd_rl.collect`. The critic of a Stable-Baselines3 model serves as a first guess, and is judged, too.
    env : str, gymnasium.Env or VectorEnv, or Stable-Baselines3 VecEnv, optional
        By default the environment that the model carries. Behind a `VecNormalize`, states are those inside it, so that
        everything is told in the environment's own units.
    n_transitions : int
        How many to learn from.
    gamma : float, optional
        The agent's own by default, or 0.99.
    deterministic : bool
        Whether the agent takes its most likely action, as in Stable-Baselines3's `evaluate_policy`.
    seed : int
    target : as `agent`, optional
        Evaluate this policy, by its most likely actions, from what `agent` does. Biased where transitions are random.
    n_episodes : int
        Fresh episodes for the check.
    n_states : int
        States of theirs from which rollouts start. Where returns are random, half of them set the widths of the
        intervals, and only the others judge them.
    input_names : sequence of str, optional
        Names of the observations.
    thorough : bool
        Whether to see what leaving out inputs costs, and whether combinations of inputs matter more than single ones,
        which takes about half of the time.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` with the stages "collect", "fit" and "check".

    Returns
    -------
    Evaluation
        ``evaluation.write("folder")`` makes a page of it.

    Raises
    ------
    AgentError
        If agent and environment do not fit together.
    CollectionError
        If the environment or the agent fails.

    Examples
    --------
    >>> policy = lambda obs: int(obs[2] + obs[3] > 0)
    >>> found = evaluate_agent(policy, "CartPole-v1", n_transitions=300, n_episodes=5, thorough=False)
    >>> found.check.scores[0].name
    'GPTD'
    """
    tell = progress or (lambda stage, done, total: None)
    seed = operator.index(seed)
    n_transitions = as_count(n_transitions, "n_transitions")
    n_episodes, n_states = as_count(n_episodes, "n_episodes"), as_count(n_states, "n_states")
    with opened(env, agent, n_transitions) as (place, policy), _seeded(seed, policy):
        aim = policy if target is None else _like(policy, target)
        check_spaces(aim, place)
        gamma = as_discount(getattr(policy, "gamma", 0.99) if gamma is None else gamma)
        names = place.input_names if input_names is None else tuple(input_names)
        began = time.perf_counter()
        tell("collect", 0, n_transitions)
        data = collect(
            place.many, policy, n_transitions=n_transitions, gamma=gamma, seed=seed, deterministic=deterministic
        )
        if len(names) != data.n_dims:
            raise ValueError(
                f"input_names must have {data.n_dims} entries, one for each observation; got {len(names)}."
            )
        tell("collect", n_transitions, n_transitions)
        collected = time.perf_counter()

        # A target is known by its most likely actions: drawn ones would be others each time it is asked.
        deterministic_aim = deterministic or target is not None
        critic = critic_of(aim, deterministic_aim)
        others: dict[str, ValueFunction] = {}
        off_policy = None
        fitted = fit(
            data,
            critic if target is None else None,
            is_categorical=place.is_categorical,
            thorough=thorough and target is None,
            tick=lambda done, total: tell("fit", done, total),
        )
        value: ValueFunction = fitted.value
        relevance, learners = fitted.relevance, fitted.learners
        if target is not None:
            act = OnStates(aim, place.observation_space, place.action_space)
            off_policy = compare_policies(data, act, place.action_space, f"the target ({_agent_name(aim)})")
            value, relevance = fit_target(data, act)
            learners = {"GPTDQ": 1.0}
        if fitted.critic is not None:
            others[critic_name(aim)] = fitted.critic
        elif critic is not None:
            others[critic_name(aim)] = _Bare(critic)
        others["Monte Carlo"] = fitted.monte_carlo
        learnt = time.perf_counter()

        observed = observe(
            place,
            aim,
            value,
            n_episodes=n_episodes,
            n_states=n_states,
            gamma=gamma,
            seed=seed + FRESH,
            deterministic=deterministic_aim,
            tick=lambda done, total: tell("check", done, total),
        )
        judged = observed
        if observed.n_rollouts > 1 and isinstance(value, Calibrated) and len(np.unique(observed.episodes)) > 1:
            # Returns are random: half of the true values set the widths, the other half judges them.
            known, judged = observed.halves()
            value = value.knowing(known.states, known.values, known.errors)
        checked = check(judged, {"GPTD": value} | others, critic)
        tell("check", 1, 1)
        done = time.perf_counter()
    setting = Setting(
        agent=_agent_name(policy),
        env=place.name,
        gamma=gamma,
        deterministic=deterministic,
        n_transitions=data.n_transitions,
        n_episodes=data.n_segments,
        n_terminated=int(data.terminated.sum()),
        inputs=names,
        is_categorical=place.is_categorical,
        seed=seed,
        learners=learners,
    )
    starts = fitted.start_values if target is None else value.predict(data.states[data.starts])
    return Evaluation(
        setting=setting,
        start=_start(starts, observed),
        relevance=relevance,
        check=checked,
        disagreements=disagreements(checked),
        off_policy=off_policy,
        value=value,
        critic=critic,
        data=data,
        warnings=tuple(_warnings(data, observed, off_policy.warning if off_policy else "")),
        timing=Timing(collected - began, learnt - collected, done - learnt),
    )


def _start(start_values: Array, observed: Observed) -> StartReturn:
    """Value from the start, and the returns of fresh episodes; the unit of all intervals is the episode."""
    returns = observed.returns
    return StartReturn(
        value=_student(start_values),
        returns=_student(returns) if len(returns) > 1 else None,
        mean=float(returns.mean()) if len(returns) else np.nan,
        std=float(returns.std()) if len(returns) else np.nan,
        n_episodes=len(returns),
    )


def _student(sample: Array) -> Interval:
    """Mean of independent numbers with Student's 95 % interval."""
    mean, n = float(sample.mean()), len(sample)
    half = float(stats.t.ppf(0.975, n - 1) * sample.std(ddof=1) / np.sqrt(n)) if n > 1 else np.inf
    return Interval(mean, mean - half, mean + half)


def _warnings(data: Trajectories, observed: Observed, off_policy: str) -> Iterator[str]:
    """What a reader should know before believing any of it."""
    if off_policy:
        yield off_policy
    n = data.n_segments
    if not data.terminated.any():
        yield (
            "No episode ended by itself. Values take it that life beyond the cut goes on as it did before; "
            f"{n} episodes without a failure only say that fewer than {min(100, 300 / n):.0f} % fail (95 % sure)."
        )
    if n < FEW_EPISODES:
        yield f"Only {n} episodes: the 95 % interval rests on the largest errors of very few. Collect more transitions."
    if observed.n_rollouts == 0:
        yield (
            "The environment cannot be copied, so values were checked against single returns of fresh episodes: "
            "coverage is that of returns."
        )


class _Bare:
    """Values that come without intervals."""

    def __init__(self, values: Callable[[Array], Array]) -> None:
        self.values = values

    def predict(self, states: Any) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        return self.values(np.asarray(states))

    def confidence_interval(self, states: Any, level: float = 0.95) -> tuple[Array, Array]:
        """Not a number: nothing is known about errors."""
        nothing = np.full(len(np.asarray(states)), np.nan)
        return nothing, nothing


def _like(policy: Any, target: Any) -> Any:
    """The target, behind the same normalisation as the policy, unless it has its own."""
    if isinstance(policy, Normalised) and not isinstance(target, Normalised):
        return Normalised(target, policy.statistics)
    return target


def _agent_name(policy: Any) -> str:
    if policy is None:
        return "random actions"
    inner = policy.model if isinstance(policy, Normalised) else policy
    return str(getattr(inner, "__name__", type(inner).__name__))


@contextmanager
def _seeded(seed: int, policy: Any) -> Iterator[None]:
    """Agents that draw their actions do it from this seed; nobody else's random numbers change.

    Stable-Baselines3's draw from PyTorch's generator, and DQN from NumPy's and from its space of actions.
    """
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    space = getattr(policy, "action_space", None)
    if isinstance(space, gym.Space):
        space.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        if "torch" not in sys.modules:
            yield
            return
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
