"""Evaluate an agent: collect transitions, fit V, check it on fresh episodes."""

from __future__ import annotations

import copy
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import stdtrit

from gptd_rl.checks import as_count, as_discount
from gptd_rl.data.spaces import flattener, stack
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.conformal import Calibrated, Values
from gptd_rl.estimators.markov import MarkovTest, markov_test
from gptd_rl.evaluation.calls import agent_name, call_text
from gptd_rl.evaluation.candidates import Chosen, learnt
from gptd_rl.evaluation.environments import Environment, open_environment
from gptd_rl.evaluation.fitting import Starts, Tick, fit
from gptd_rl.evaluation.ground_truth import GroundTruth, collect_ground_truth
from gptd_rl.evaluation.off_policy import compare_policies, fit_target
from gptd_rl.evaluation.random_state import seeded
from gptd_rl.evaluation.recordings import record_episodes
from gptd_rl.evaluation.results import Evaluation
from gptd_rl.evaluation.scoring import CrossFitted, check, disagreements, recalibrated
from gptd_rl.evaluation.value_models import monte_carlo
from gptd_rl.report.recorded import Recordings
from gptd_rl.report.records import (
    Check,
    EvaluationConfig,
    Interval,
    OffPolicy,
    Relevance,
    StartReturn,
    Timing,
    ValueFunction,
)
from gptd_rl.rollouts.collect import collect
from gptd_rl.rollouts.policies import StatePolicy
from gptd_rl.sb3.critics import critic_name, critic_of
from gptd_rl.sb3.normalization import expects_normalized
from gptd_rl.sb3.policies import NormalizedPolicy, check_spaces, is_recurrent
from gptd_rl.seeds import CHECK, derived_seed
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, EnvLike, Policy

StageProgress = Callable[[str, int, int], None]

FEW_EPISODES = 20
N_STARTS = 500  # resets over which V is averaged
START_KEY = 2


@one_blas_thread()
def evaluate_agent(
    agent: Policy,
    env: EnvLike | None = None,
    *,
    n_transitions: int = 10_000,
    gamma: float | None = None,
    deterministic: bool = True,
    seed: int = 0,
    target: Policy = None,
    n_episodes: int = 40,
    n_states: int = 160,
    env_kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    analyse_inputs: bool = True,
    frames: bool = True,
    progress: StageProgress | None = None,
) -> Evaluation:
    """Evaluate an agent: its value with intervals, the relevance of observations, and a check on fresh episodes.

    Parameters
    ----------
    agent : Stable-Baselines3 model, object with ``predict``, callable, or None
        As for `gptd_rl.collect`. The critic of a Stable-Baselines3 model serves as a prior mean, and is checked, too.
    env : str, function, gymnasium.Env or VectorEnv, or Stable-Baselines3 VecEnv, optional
        By default the environment of the model. Behind a `VecNormalize`, states are those inside it: all results are in
        the units of the environment. A function is called for each environment, and returns a new one.
    n_transitions : int
        Transitions to collect and learn from.
    gamma : float, optional
        Discount; the agent's own by default, or 0.99.
    deterministic : bool
        Whether the agent takes its most likely action, as in Stable-Baselines3's `evaluate_policy`.
    seed : int
    target : as `agent`, optional
        Target policy: evaluate this one, by its most likely actions, from the data of `agent`. The estimate is biased
        if transitions are stochastic.
    n_episodes : int
        Fresh episodes for the check.
    n_states : int
        States of these episodes from which rollouts start. If returns are random, half of them recalibrate the
        intervals, and only the others check them.
    env_kwargs : mapping, optional
        Arguments of the environment, if `env` is an id, or of the function.
    input_names : sequence of str, optional
        Names of the observations.
    analyse_inputs : bool
        Whether to leave out each input, and compare evidence and left-out errors: about a second of processor time.
    frames : bool
        Whether to draw pictures of three more episodes, the best, a typical and the worst of ten, for the page.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` with the stages "collect", "fit", "check" and "record".

    Returns
    -------
    Evaluation
        ``evaluation.write("folder")`` writes a page.

    Raises
    ------
    AgentError
        If agent and environment have different spaces.
    CollectionError
        If the environment or the agent fails.

    Examples
    --------
    >>> policy = lambda obs: int(obs[2] + obs[3] > 0)
    >>> found = evaluate_agent(policy, "CartPole-v1", n_transitions=300, n_episodes=5, analyse_inputs=False)
    >>> found.check.scores[0].name
    'GPTD'
    """
    call = call_text(evaluate_agent, locals())
    tell = progress or (lambda stage, done, total: None)
    seed = operator.index(seed)
    n_transitions = as_count(n_transitions, "n_transitions")
    n_episodes, n_states = as_count(n_episodes, "n_episodes"), as_count(n_states, "n_states")
    with seeded(seed, agent), open_environment(env, agent, n_transitions, env_kwargs) as (opened, policy):
        run = _Run.of(opened, policy, target, gamma, deterministic, seed)
        times = [time.perf_counter()]
        data, names = _collect(run, n_transitions, input_names, partial(tell, "collect"))
        hints = (*_unnormalized(run, data), *_hidden_state(run))
        times.append(time.perf_counter())
        fit_stage = _fit if target is None else _fit_off_policy
        fitted = fit_stage(run, data, analyse_inputs, partial(tell, "fit"))
        markov = markov_test(data)
        times.append(time.perf_counter())
        checked = _check(run, fitted, n_episodes, n_states, partial(tell, "check"))
        times.append(time.perf_counter())
        recordings = _record(run, checked.value, fitted.critic, frames, partial(tell, "record"))
        times.append(time.perf_counter())
    return Evaluation(
        config=replace(_config(run, data, names, fitted), call=call),
        start=_start(fitted, _start_states(run), checked.truth.returns),
        relevance=fitted.relevance,
        markov=markov,
        check=checked.check,
        disagreements=disagreements(checked.check),
        off_policy=fitted.off_policy,
        value=checked.value,
        critic=fitted.critic,
        data=data,
        warnings=(*hints, *_warnings(data, checked.truth, fitted.off_policy, markov, names)),
        timing=Timing(*np.diff(times).tolist()),
        recordings=recordings,
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """Who is evaluated, where and how."""

    env: Environment
    policy: Policy  # collects the data
    subject: Policy  # is evaluated
    gamma: float
    deterministic: bool  # of the data
    subject_deterministic: bool
    seed: int

    @classmethod
    def of(
        cls, env: Environment, policy: Policy, target: Policy, gamma: float | None, deterministic: bool, seed: int
    ) -> _Run:
        subject = policy if target is None else _normalized_like(policy, target)
        check_spaces(subject, env)
        gamma = as_discount(getattr(policy, "gamma", 0.99) if gamma is None else gamma)
        # A target policy is evaluated by its most likely actions: sampled ones would differ at each query.
        return cls(env, policy, subject, gamma, deterministic, deterministic or target is not None, seed)


def _collect(
    run: _Run, n_transitions: int, input_names: Sequence[str] | None, tick: Tick
) -> tuple[Trajectories, tuple[str, ...]]:
    """Transitions of the policy, and the names of their inputs."""
    tick(0, n_transitions)
    data = collect(
        run.env.vector_env,
        run.policy,
        n_transitions=n_transitions,
        gamma=run.gamma,
        seed=run.seed,
        deterministic=run.deterministic,
    )
    names = run.env.input_names if input_names is None else tuple(input_names)
    if len(names) != data.n_dims:
        raise ValueError(f"input_names must have {data.n_dims} entries, one for each observation; got {len(names)}.")
    tick(n_transitions, n_transitions)
    return data, names


@dataclass(frozen=True, eq=False)
class _Learnt:
    """Result of a fit: V, and value functions to compare it with."""

    value: ValueFunction
    others: dict[str, ValueFunction]
    critic: Values | None
    starts: Starts
    relevance: Relevance
    candidates: dict[str, float]
    chosen: str
    off_policy: OffPolicy | None = None


def _fit(run: _Run, data: Trajectories, analyse_inputs: bool, tick: Tick) -> _Learnt:
    """Fit V to the data of the policy itself."""
    critic = critic_of(run.subject, run.subject_deterministic)
    fitted = fit(data, critic, is_categorical=run.env.is_categorical, analyse_inputs=analyse_inputs, tick=tick)
    others: dict[str, ValueFunction] = {}
    if fitted.critic is not None:
        others[critic_name(run.subject)] = fitted.critic
    others["Monte Carlo"] = fitted.monte_carlo
    known = fitted.starts, fitted.relevance, fitted.candidates, fitted.chosen
    return _Learnt(fitted.value, others, critic, *known)


def _fit_off_policy(run: _Run, data: Trajectories, analyse_inputs: bool, tick: Tick) -> _Learnt:
    """Fit V of the target policy to the data of another policy."""
    critic = critic_of(run.subject, run.subject_deterministic)
    target = StatePolicy(run.subject, run.env.observation_space, run.env.action_space)
    comparison = compare_policies(data, target, run.env.action_space, f"the target ({agent_name(run.subject)})")
    tick(1, 3)
    average = Calibrated(Chosen(learnt("Monte Carlo", monte_carlo, data))).fit(data)
    tick(2, 3)
    value, relevance = fit_target(data, target)
    tick(3, 3)
    others: dict[str, ValueFunction] = {} if critic is None else {critic_name(run.subject): _WithoutIntervals(critic)}
    at_starts = value.predict(data.states[data.starts])
    starts = Starts(at_starts, at_starts)  # the returns of the data are of another policy
    return _Learnt(value, others | {"Monte Carlo": average}, critic, starts, relevance, {}, "GPTDQ", comparison)


@dataclass(frozen=True, eq=False)
class _Checked:
    """Result of a check: fresh episodes, V with its final intervals, and scores."""

    truth: GroundTruth
    value: ValueFunction
    check: Check


def _check(run: _Run, fitted: _Learnt, n_episodes: int, n_states: int, tick: Tick) -> _Checked:
    """Compare predictions with rollouts of fresh episodes."""
    truth = collect_ground_truth(
        run.env,
        run.subject,
        fitted.value,
        n_episodes=n_episodes,
        n_states=n_states,
        gamma=run.gamma,
        seed=derived_seed(run.seed, CHECK),
        deterministic=run.subject_deterministic,
        tick=tick,
    )
    value, judged = fitted.value, {"GPTD": fitted.value} | fitted.others
    if truth.n_rollouts and len(np.unique(truth.episodes)) > 1:
        # All states of the check calibrate the intervals. Their coverage is that of half of them by the other half.
        judged = {name: CrossFitted(v, truth) if isinstance(v, Calibrated) else v for name, v in judged.items()}
        value = recalibrated(value, truth) if isinstance(value, Calibrated) else value
    checked = check(truth, judged, fitted.critic)
    tick(1, 1)
    return _Checked(truth, value, checked)


def _record(run: _Run, value: ValueFunction, critic: Values | None, frames: bool, tick: Tick) -> Recordings:
    """Episodes to watch."""
    recordings = record_episodes(
        run.env,
        run.subject,
        value,
        critic,
        gamma=run.gamma,
        seed=run.seed,
        deterministic=run.subject_deterministic,
        frames=frames,
        tick=tick,
    )
    tick(2, 2)
    return recordings


def _config(run: _Run, data: Trajectories, names: tuple[str, ...], fitted: _Learnt) -> EvaluationConfig:
    return EvaluationConfig(
        agent=agent_name(run.policy),
        env=run.env.name,
        gamma=run.gamma,
        deterministic=run.deterministic,
        n_transitions=data.n_transitions,
        n_episodes=data.n_segments,
        n_terminated=int(data.terminated.sum()),
        inputs=names,
        is_categorical=run.env.is_categorical,
        seed=run.seed,
        candidates=fitted.candidates,
        chosen=fitted.chosen,
    )


def _start_states(run: _Run) -> Array:
    """Start states of resets, of shape (n, n_dims); none if the environment cannot be copied."""
    if run.env.template_env is None:
        return np.zeros((0, 0))
    env, space = copy.deepcopy(run.env.template_env), run.env.observation_space
    first = int(np.random.SeedSequence([run.seed, START_KEY]).generate_state(1)[0])
    observations = [env.reset(seed=first if i == 0 else None)[0] for i in range(N_STARTS)]
    return np.asarray(flattener(space)(stack(space, observations)), dtype=np.float64)


def _start(fitted: _Learnt, states: Array, returns: Array) -> StartReturn:
    """Value from the start, and the returns of fresh episodes; the unit of all intervals is the episode.

    The mean of V at many start states, corrected by its mean error at the episodes seen, learnt without them: what V
    explains of the difference between start states does not scatter.
    """
    value, starts = _student(fitted.starts.returns), fitted.starts
    if len(states):
        at_resets = fitted.value.predict(states)
        value = _student(starts.returns - starts.values + at_resets.mean(), at_resets.var(ddof=1) / len(states))
    return StartReturn(
        value=value,
        returns=_student(returns) if len(returns) > 1 else None,
        mean=float(returns.mean()) if len(returns) else np.nan,
        std=float(returns.std()) if len(returns) else np.nan,
        n_episodes=len(returns),
    )


def _student(sample: Array, variance: float = 0.0) -> Interval:
    """Mean of independent numbers with Student's 95 % interval; `variance` is that of an offset that they share."""
    mean, n = float(sample.mean()), len(sample)
    half = float(stdtrit(n - 1, 0.975) * np.sqrt(sample.var(ddof=1) / n + variance)) if n > 1 else np.inf
    return Interval(mean, mean - half, mean + half)


def _unnormalized(run: _Run, data: Trajectories) -> Iterator[str]:
    """A warning if an agent that was trained on normalized observations is given raw ones."""
    if hasattr(run.env.vector_env, "normalize_obs"):  # a VecNormalize inside another wrapper
        return
    agents = [("The agent", run.policy)] + ([("The target", run.subject)] if run.subject is not run.policy else [])
    for role, policy in agents:
        if not isinstance(policy, NormalizedPolicy) and expects_normalized(policy, data):
            yield (
                f"{role} ({agent_name(policy)}) seems to be trained behind a VecNormalize, and none was given: it "
                "expects normalized observations and got raw ones. Give the VecNormalize as environment, or its file "
                "with --vecnormalize, unless it normalized rewards only."
            )


def _hidden_state(run: _Run) -> Iterator[str]:
    """A warning if V is a function of less than the policy knows."""
    if is_recurrent(run.subject):
        yield (
            f"The agent ({agent_name(run.subject)}) remembers earlier observations, and V is a function of the "
            "present one alone: an average over what it remembers. States that look alike may have different values."
        )


def _warnings(
    data: Trajectories, truth: GroundTruth, off_policy: OffPolicy | None, markov: MarkovTest, names: Sequence[str]
) -> Iterator[str]:
    """Limits of this evaluation, a sentence or two each."""
    if off_policy is not None and off_policy.warning:
        yield off_policy.warning
    if markov.is_rejected:
        yield markov.summary(names)
    n = data.n_segments
    if not data.terminated.any():
        yield (
            "No episode terminated. Values assume that behaviour after the time limit continues unchanged; "
            f"{n} episodes without a failure only show that fewer than {min(100, 300 / n):.0f} % fail, with 95 % "
            "confidence."
        )
    if n < FEW_EPISODES:
        yield f"Only {n} episodes: the 95 % interval depends on the few largest errors. Collect more transitions."
    if truth.n_rollouts == 0:
        yield (
            "States of the environment cannot be restored, so values were checked against single returns of fresh "
            "episodes: coverage is that of returns."
        )
    yield from truth.warnings


class _WithoutIntervals:
    """A value function whose errors are unknown."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def predict(self, states: Any) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        return self.values(np.asarray(states))

    def confidence_interval(self, states: Any, level: float = 0.95) -> tuple[Array, Array]:
        """NaN."""
        unknown = np.full(len(np.asarray(states)), np.nan)
        return unknown, unknown


def _normalized_like(policy: Policy, target: Policy) -> Policy:
    """The target, with the normalization of the policy unless it has its own."""
    if isinstance(policy, NormalizedPolicy) and not isinstance(target, NormalizedPolicy):
        return NormalizedPolicy(target, policy.statistics)
    return target
