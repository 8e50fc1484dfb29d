"""Compare agents: the same start states and the same random numbers for all, and differences with intervals."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

import numpy as np

from gptd_rl.checks import as_count, as_discount
from gptd_rl.evaluation.compare_states import LEVEL, CommonRun, FinishedAgent, StageProgress, compare_states
from gptd_rl.evaluation.comparison import AgentComparison
from gptd_rl.evaluation.differences import (
    mean_interval,
    paired_interval,
    pairwise_differences,
    simultaneous_quantile,
    student_quantile,
)
from gptd_rl.evaluation.environments import Environment, open_environment
from gptd_rl.evaluation.evaluate import evaluate_agent
from gptd_rl.exceptions import AgentError
from gptd_rl.report.comparison_records import AgentValues, ComparisonConfig, Difference, StateComparison
from gptd_rl.report.slices import subsample
from gptd_rl.sb3.policies import NormalizedPolicy
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, EnvLike, Policy

N_VISITED = 2000  # states that are kept, of all agents together
N_CHECK: dict[str, Any] = dict(n_episodes=12, n_states=40)  # of each agent's evaluation
PARTS = ("collect", "fit", "check")  # of an agent's progress; its rollouts follow


@one_blas_thread()
def compare_agents(
    agents: Mapping[str, Policy] | Sequence[Policy],
    env: EnvLike | None = None,
    *,
    n_transitions: int = 5_000,
    n_starts: int = 100,
    n_states: int = 80,
    gamma: float | None = None,
    deterministic: bool = True,
    seed: int = 0,
    reference: str | None = None,
    input_names: Sequence[str] | None = None,
    progress: StageProgress | None = None,
) -> AgentComparison:
    """Compare agents: values and returns from the same starts, state by state, and what each relies on.

    All agents start in the same states, and meet the same random numbers of the environment. So much of what is random
    is common to them, and the interval of the difference is narrower than that of unpaired episodes.

    Parameters
    ----------
    agents : mapping of str to agent, or list of agents
        At least two; each as for `evaluate_agent`. A Stable-Baselines3 model with a `VecNormalize` of its own is given
        observations normalized by that.
    env : str, gymnasium.Env or VectorEnv, or Stable-Baselines3 VecEnv, optional
        The one environment for all; by default that of the first model.
    n_transitions : int
        Transitions of each agent from which its value function is learnt.
    n_starts : int
        Start states, the same for all agents.
    n_states : int
        States at which the values are compared, about, in equal shares from episodes of each agent.
    gamma : float, optional
        The one discount of all values; by default that of the first agent, or 0.99.
    deterministic : bool
        Whether agents take their most likely actions.
    seed : int
    reference : str, optional
        Name of the agent that the others are compared with. By default, of two agents the second, and of more the one
        with the highest value: the intervals then hold for all pairs together, so that this choice does no harm.
    input_names : sequence of str, optional
        Names of the observations.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` with the stages "agents" and "states".

    Returns
    -------
    AgentComparison
        ``comparison.write("folder")`` writes a page. After an interrupt (Ctrl-C) it holds the agents that were
        finished, if these are two or more.

    Raises
    ------
    AgentError
        If the agents and the environment have different spaces.
    CollectionError
        If the environment or an agent fails.

    Examples
    --------
    >>> careful, hasty = lambda obs: int(obs[2] + obs[3] > 0), lambda obs: int(obs[2] > 0)
    >>> found = compare_agents(
    ...     {"careful": careful, "hasty": hasty}, "CartPole-v1", n_transitions=300, n_starts=20, n_states=20
    ... )
    >>> found.differences[0].credible
    'better'
    """
    began, tell = time.perf_counter(), progress or (lambda stage, done, total: None)
    named = _named(agents)
    if reference is not None and reference not in named:
        raise ValueError(f"reference must be one of {', '.join(map(repr, named))}; got {reference!r}.")
    discounts = {name: getattr(agent, "gamma", None) for name, agent in named.items()}
    gamma = as_discount(next((g for g in discounts.values() if g is not None), 0.99) if gamma is None else gamma)
    n_starts, n_states = as_count(n_starts, "n_starts", 2), as_count(n_states, "n_states")
    env = getattr(next(iter(named.values())), "get_env", lambda: None)() if env is None else env
    if env is None:
        raise AgentError("there is no environment: the first agent has none of its own, so give one.")
    named = {name: _with_own_statistics(agent) for name, agent in named.items()}
    seed = operator.index(seed)
    options: dict[str, Any] = dict(gamma=gamma, deterministic=deterministic, seed=seed, input_names=input_names)
    found: list[FinishedAgent] = []
    with ExitStack() as stack:
        opened = {name: stack.enter_context(_open(env, name, agent)) for name, agent in named.items()}
        run = CommonRun(next(iter(opened.values()))[0], gamma, deterministic, seed)
        at_states, is_complete = None, True
        try:
            for i, (name, agent) in enumerate(named.items()):
                part = _parts(tell, i, len(named))
                evaluation = evaluate_agent(
                    agent, env, n_transitions=n_transitions, analyse_inputs=False, progress=part, **N_CHECK, **options
                )
                rollouts = run.starts(opened[name][1], n_starts)
                found.append(FinishedAgent(name, opened[name][1], discounts[name], evaluation, rollouts))
                part("rollouts", 1, 1)
            chosen = _reference(found, reference)
            at_states = compare_states(run, found, chosen, n_states, tell)
        except KeyboardInterrupt:
            if len(found) < 2:
                raise
            is_complete = False
            chosen = _reference(found, reference)
    return _comparison(run, named, found, chosen, reference, at_states, is_complete, time.perf_counter() - began)


def _named(agents: Mapping[str, Policy] | Sequence[Policy]) -> dict[str, Policy]:
    """Agents by name."""
    if isinstance(agents, Mapping):
        named = {str(name): agent for name, agent in agents.items()}
    elif isinstance(agents, list | tuple):
        names = [_algorithm(agent) for agent in agents]
        numbers = {name: count(1) for name in names}
        numbered = [f"{name} {next(numbers[name])}" if names.count(name) > 1 else name for name in names]
        named = dict(zip(numbered, agents, strict=True))
    else:
        raise TypeError(f"agents must be a mapping of names to agents, or a list; got {type(agents).__name__}.")
    if len(named) < 2:
        raise ValueError(f"expected two agents or more to compare; got {len(named)}.")
    return named


def _algorithm(policy: Policy) -> str:
    if policy is None:
        return "random actions"
    inner = policy.model if isinstance(policy, NormalizedPolicy) else policy
    return str(getattr(inner, "__name__", type(inner).__name__))


def _with_own_statistics(agent: Any) -> Any:
    """The agent, on observations normalized by its own `VecNormalize` if it has one."""
    statistics = getattr(agent, "get_vec_normalize_env", lambda: None)()
    return agent if statistics is None else NormalizedPolicy(agent, statistics)


class _open:
    """`open_environment` for one agent; errors say which."""

    def __init__(self, env: Any, name: str, agent: Policy) -> None:
        self.name, self.context = name, open_environment(env, agent, 1)

    def __enter__(self) -> tuple[Environment, Policy]:
        try:
            return self.context.__enter__()
        except AgentError as error:
            raise AgentError(f"{self.name}: {error}") from None

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)


def _parts(tell: StageProgress, i: int, n: int) -> StageProgress:
    """Progress of agent i of n: its parts count as one step each."""
    size = len(PARTS) + 1

    def part(name: str, done: int, total: int) -> None:
        before = PARTS.index(name) if name in PARTS else len(PARTS)
        tell("agents", size * i + before + int(done >= total), size * n)

    return part


def _reference(found: Sequence[FinishedAgent], reference: str | None) -> int:
    """Row of the agent that the others are compared with."""
    names = [agent.name for agent in found]
    if reference in names:
        return names.index(reference)
    if len(found) == 2:
        return 1
    return int(np.argmax([agent.start_values()[0].mean() for agent in found]))


# ------------------------------------------------------------------------------------ records


def _comparison(
    run: CommonRun,
    named: Mapping[str, Policy],
    found: Sequence[FinishedAgent],
    chosen: int,
    reference: str | None,
    at_states: StateComparison | None,
    is_complete: bool,
    seconds: float,
) -> AgentComparison:
    first = found[0].evaluation.config
    is_best = len(found) > 2 and reference not in [agent.name for agent in found]
    differences, agents = _differences(found, chosen, is_best), tuple(map(_record, found))
    config = ComparisonConfig(
        env=first.env,
        gamma=run.gamma,
        deterministic=run.deterministic,
        n_transitions=first.n_transitions,
        n_starts=len(agents[0].start_values),
        inputs=first.inputs,
        is_categorical=first.is_categorical,
        seed=run.seed,
        reference=found[chosen].name,
        is_best=is_best,
    )
    return AgentComparison(
        config=config,
        agents=agents,
        differences=differences,
        at_states=at_states,
        values={agent.name: agent.evaluation.value for agent in found},
        visited=np.concatenate([subsample(a.evaluation.data.states, N_VISITED // len(found)) for a in found]),
        warnings=tuple(_warnings(run, named, found, agents, differences, at_states, is_complete)),
        seconds=seconds,
        is_complete=is_complete,
    )


def _differences(found: Sequence[FinishedAgent], chosen: int, all_pairs: bool) -> tuple[Difference, ...]:
    """Each other agent less the reference; of all pairs together if the reference was chosen by the same values."""
    values, errors = (np.array(part) for part in zip(*(agent.start_values() for agent in found), strict=True))
    returns = np.array([agent.rollouts.undiscounted for agent in found])
    quantiles = [_quantile(rows, chosen, all_pairs) for rows in (values, returns)]
    n = values.shape[1]
    made = []
    for i, agent in enumerate(found):
        if i == chosen:
            continue
        value, own_returns = values[i] - values[chosen], returns[i] - returns[chosen]
        error = errors[i] + errors[chosen]
        unpaired = np.sqrt((values[i].var(ddof=1) + values[chosen].var(ddof=1)) / n)
        is_higher, is_lower = (float(np.mean(sign * value > error)) for sign in (1.0, -1.0))
        made.append(
            Difference(
                agent=agent.name,
                reference=found[chosen].name,
                value=paired_interval(value, quantiles[0], float(error.mean())),
                returns=paired_interval(own_returns, quantiles[1]) if np.isfinite(own_returns).all() else None,
                unpaired_half_width=float(quantiles[0] * unpaired + error.mean()),
                higher=is_higher,
                lower=is_lower,
            )
        )
    return tuple(made)


def _quantile(rows: Array, chosen: int, all_pairs: bool) -> float:
    """Quantile for all differences that are looked at, of rows of shape (k, n); those without NaN."""
    if all_pairs:
        samples = pairwise_differences(rows[np.isfinite(rows).all(axis=1)])
    else:
        samples = np.delete(rows - rows[chosen], chosen, axis=0).T
        samples = samples[:, np.isfinite(samples).all(axis=0)]
    return simultaneous_quantile(samples.reshape(rows.shape[1], -1), LEVEL)


def _record(agent: FinishedAgent) -> AgentValues:
    values, errors = agent.start_values()
    returns, quantile = agent.rollouts.undiscounted, student_quantile(len(values), LEVEL)
    return AgentValues(
        name=agent.name,
        algorithm=_algorithm(agent.policy),
        gamma=None if agent.gamma is None else float(agent.gamma),
        value=mean_interval(values, quantile, float(errors.mean())),
        returns=mean_interval(returns, quantile) if np.isfinite(returns).all() else None,
        start_values=values,
        start_returns=returns,
        importances=agent.evaluation.relevance.importances,
        rmse=agent.evaluation.check.scores[0].rmse,
    )


def _warnings(
    run: CommonRun,
    named: Mapping[str, Policy],
    found: Sequence[FinishedAgent],
    agents: Sequence[AgentValues],
    differences: Sequence[Difference],
    at_states: StateComparison | None,
    is_complete: bool,
) -> Iterator[str]:
    """Limits of this comparison, a sentence or two each."""
    if not is_complete:
        states = "" if at_states else ", and no states"
        yield f"Interrupted: {len(found)} of {len(named)} agents were compared{states}."
    trained = {agent.gamma for agent in agents if agent.gamma is not None} - {run.gamma}
    if trained:
        own = ", ".join(f"{agent.name} {agent.gamma:g}" for agent in agents if agent.gamma is not None)
        yield f"Agents were trained with other discounts than γ = {run.gamma:g}, at which all are compared: {own}."
    n = len(agents[0].start_values)
    for d in differences:
        if d.higher == d.lower == 0.0:
            yield (
                f"{d.agent} and {d.reference} had equal returns from all {n} start states. That shows only that fewer "
                f"than {min(100, 300 / n):.0f} % of the starts make a difference, with 95 % confidence."
            )
    if any(agent.returns is None for agent in agents):
        yield "Some episodes did not end, so returns are not compared: give the environment a time limit."
    if at_states is not None and at_states.kind == "models":
        yield (
            "The environment cannot be copied, so values of single states are those of the agents' value functions, "
            "with an interval for each state alone."
        )
    texts: dict[str, list[str]] = {}
    for agent in found:
        for text in agent.evaluation.warnings:
            texts.setdefault(text, []).append(agent.name)
    for text, names in texts.items():
        yield f"{', '.join(names)}: {text}"
