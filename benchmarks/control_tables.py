"""Tables of the benchmark of policy iteration, as Markdown.

Intervals are percentiles of a stratified bootstrap: seeds are drawn again within every task, as in rliable (Agarwal et
al. 2021). Its interquartile mean leaves out the lowest and the highest quarter of the seeds. (rliable itself would need
arch, pandas, seaborn and absl-py for these lines.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from control_tasks import N_SERVED, ControlTask, Run
from exact import table
from scipy.stats import trim_mean

from gptd_rl.types import Array

OURS = "ours"
LABELS = {OURS: "policy iteration (ours)", "dqn": "DQN", "ppo": "PPO", "qrdqn": "QR-DQN"}
PEERS = tuple(name for name in LABELS if name != OURS)

# What is aimed at.
FRACTION = 0.9  # of the seeds, at the last stop, on every task that the agent was designed on
EARLY_FRACTION = 0.8  # of the seeds, already after the steps below
EARLY = {
    "CartPole-v1": 1000,
    "Pendulum-v1": 1000,
    "MountainCar-v0": 1000,
    "Acrobot-v1": 1000,
    "LatentGridworld-1": 1000,
    "LatentGridworld-10": 1500,
}
RATIO = 20.0  # DQN's steps over ours
LIMIT_STEPS, LIMIT_SECONDS = 5000, 180.0  # of training on one core

Runs = dict[str, dict[str, list[Run]]]  # of an algorithm, on a task

PUBLISHED = """**Published counts**, on other terms, so not in the tables:

- PILCO (Deisenroth & Rasmussen 2011) learns the swing-up of the cart pole from about 17.5 s of interaction, 175 steps
  of 0.1 s; CartPoleSwingUp has steps of 0.05 s. PILCO knows the reward, its forces are continuous, its trials are short
  and start from one narrow distribution, and its rail has no ends.
- GP-MPC (Kamthe & Deisenroth 2018; the same task, reward known) and GP-RMAX (Jung & Stone 2010; deterministic systems):
  no count is quoted, as none could be checked.
- PETS and MBPO are not in the tables: beside Gymnasium 1.1 or newer, which this project needs, pip installs neither
  mbrl 0.2.0 (both agents; it asks for gymnasium==0.26.3) nor OmniSafe 0.5.0 (PETS; by safety-gymnasium the same), and
  TorchRL 0.14 has Dreamer, but neither of the two."""


# What was seen of the tasks that the design did not use.
SEEN = " (failures of earlier versions on MountainCarContinuous-v0, FrozenLake8x8-v1 were looked at: `control_tasks`)"


# -------------------------------------------------------------------------------------- statistics


def interquartile_mean(scores: Array) -> float:
    """Mean of the middle half of all scores."""
    return float(trim_mean(scores, 0.25, axis=None))


def bootstrap(
    scores: Sequence[Array], statistic: Callable[[Array], float], n_samples: int = 5000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of a statistic of all scores.

    Parameters
    ----------
    scores : sequence of ndarray of shape (n_seeds,)
        One array for each task; its seeds are drawn again with replacement.
    statistic : callable
        All scores in one array → a number.
    """
    rng = np.random.default_rng(seed)
    draws = [task[rng.integers(len(task), size=(n_samples, len(task)))] for task in scores]  # [n_samples, n_seeds] each
    found = [statistic(sample) for sample in np.concatenate(draws, axis=1)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def with_interval(scores: Sequence[Array], statistic: Callable[[Array], float], form: str = ".4g") -> str:
    """A statistic and its interval; without seeds to draw from, the statistic alone."""
    value = statistic(np.concatenate(scores))
    if max(len(task) for task in scores) < 2:
        return f"{value:{form}}"
    low, high = bootstrap(scores, statistic)
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


@dataclass(frozen=True)
class Steps:
    """Median number of steps to attain the level, or to hold it.

    Attributes
    ----------
    median : float
        With a run that never did so counted at its budget.
    censored : bool
        Whether the median is such a run, and the truth therefore more.
    """

    median: float
    censored: bool

    @classmethod
    def of(cls, runs: Sequence[Run], what: Literal["first", "held"] = "held") -> Steps:
        """Of at least one run."""
        counts = [getattr(run, what) for run in runs]
        counted = [run.budget if count is None else count for run, count in zip(runs, counts, strict=True)]
        uncounted = [np.inf if count is None else count for count in counts]
        return cls(float(np.median(counted)), bool(np.isinf(np.median(uncounted))))

    def __str__(self) -> str:
        return ("≥ " if self.censored else "") + f"{self.median:,.0f}"


@dataclass(frozen=True)
class Ratio:
    """How many times our steps another needs.

    Attributes
    ----------
    value : float
    at_least, at_most : bool
        Whether it is a bound, the other's or our median being a run that never held the level.
    """

    value: float
    at_least: bool
    at_most: bool

    @classmethod
    def of(cls, theirs: Sequence[Run], ours: Sequence[Run]) -> Ratio:
        """Ratio of the medians."""
        a, b = Steps.of(theirs), Steps.of(ours)
        return cls(a.median / b.median, a.censored, b.censored)

    @classmethod
    def geometric_mean(cls, ratios: Sequence[Ratio]) -> Ratio:
        """Of at least one; it bounds what one of them bounds."""
        mean = float(np.exp(np.mean([np.log(ratio.value) for ratio in ratios])))
        return cls(mean, any(ratio.at_least for ratio in ratios), any(ratio.at_most for ratio in ratios))

    def __str__(self) -> str:
        sign = {(True, False): "≥ ", (False, True): "≤ ", (True, True): "? ", (False, False): ""}
        return f"{sign[self.at_least, self.at_most]}{self.value:.1f}"


# -------------------------------------------------------------------------------------- the served policy


def stops_of(runs: Sequence[Run]) -> list[int]:
    """Steps at which all of the runs served a policy."""
    stops = [set(run.served) for run in runs]
    return sorted(set.intersection(*stops)) if stops else []


def share_attained(runs: Sequence[Run], steps: int) -> float:
    """Share of the runs whose policy attained the level when `learn` returned."""
    return float(np.mean([run.served[steps].attained for run in runs]))


def last_evaluation(runs: Sequence[Run], steps: int) -> str:
    """Mean return of other agents at their last evaluation until then; one that holds the level has stopped."""
    found = [run.returns[int(np.searchsorted(run.steps, steps, side="right")) - 1] for run in runs]
    early = any(run.steps[0] > steps for run in runs)
    return "–" if early or not runs else f"{np.mean(found):.4g}"


def served_table(runs: Runs, tasks: Sequence[ControlTask]) -> str:
    """The policy that `learn` returned: a row for each task and stop."""
    rows = []
    for task in tasks:
        ours = runs[OURS][task.name]
        for steps in stops_of(ours):
            means = np.array([run.served[steps].mean for run in ours])
            n_attained = sum(run.served[steps].attained for run in ours)
            rows.append(
                [
                    task.name if steps == stops_of(ours)[0] else "",
                    f"{task.level:g}",
                    f"{steps:,}",
                    f"{n_attained} of {len(ours)}",
                    with_interval([means], lambda x: float(np.mean(x))),
                    with_interval([means], interquartile_mean),
                    f"{means.min():.4g}",
                    *(last_evaluation(runs[peer][task.name], steps) for peer in PEERS),
                ]
            )
    head = ["task", "level", "steps", "seeds at the level", "mean (95 %)", "interquartile mean (95 %)", "worst seed"]
    return table([*head, *(LABELS[peer] for peer in PEERS)], rows)


def aggregate(runs: Runs, tasks: Sequence[ControlTask]) -> str:
    """Share of all trainings at the level, over the designed and the other tasks."""
    rows = []
    for name, group in groups(tasks).items():
        ours = [runs[OURS][task.name] for task in group if runs[OURS][task.name]]
        common = set.intersection(*(set(stops_of(r)) for r in ours)) if ours else set()
        for steps in sorted(common):
            flags = [np.array([float(run.served[steps].attained) for run in r]) for r in ours]
            share = with_interval(flags, lambda x: float(np.mean(x)), ".2f")
            rows.append([f"{name} ({len(ours)})", f"{steps:,}", share])
    return table(["tasks", "steps", "share of trainings at the level (95 %)"], rows)


def groups(tasks: Sequence[ControlTask]) -> dict[str, list[ControlTask]]:
    """The tasks that the agent was designed on, and the others."""
    parts = {"designed on": [t for t in tasks if t.designed], "not tuned on": [t for t in tasks if not t.designed]}
    return {name: part for name, part in parts.items() if part}


# -------------------------------------------------------------------------------------- steps


def steps_table(runs: dict[str, list[Run]], tasks: Sequence[ControlTask]) -> str:
    """Steps to the level, and time of training, of one algorithm."""
    head = ["task", "level", "first reached", "held", "seeds that held it", "final return", "training", "processor"]
    return table(head, [[task.name, f"{task.level:g}", *cells(runs[task.name])] for task in tasks if runs[task.name]])


def cells(runs: Sequence[Run]) -> list[str]:
    """Steps until the level is reached and held, seeds that held it, final return, and time of some trainings."""
    n_held = sum(run.held is not None for run in runs)
    seconds = [run.seconds for run in runs]
    processor = [run.processor_seconds for run in runs]
    return [
        str(Steps.of(runs, "first")),
        str(Steps.of(runs)),
        f"{n_held} of {len(runs)}",
        with_interval([np.array([run.final for run in runs])], lambda x: float(np.mean(x))),
        f"{np.median(seconds):.0f} s",
        f"{np.median(processor):.0f} s" if max(processor) > 0 else "–",
    ]


def comparison(runs: Runs, tasks: Sequence[ControlTask]) -> str:
    """Steps of all to hold the level, and how many times ours the others need."""
    factors = {peer: ratios(runs, tasks, peer) for peer in PEERS}
    rows = []
    for task in tasks:
        steps = [str(Steps.of(runs[a][task.name])) if runs[a][task.name] else "–" for a in LABELS]
        rows.append([task.name, *steps, *(str(factors[peer].get(task.name, "–")) for peer in PEERS)])
    for name, group in {**groups(tasks), "all": tasks}.items():
        chosen = [[factors[peer][t.name] for t in group if t.name in factors[peer]] for peer in PEERS]
        means = [str(Ratio.geometric_mean(found)) if found else "–" for found in chosen]
        rows.append([f"geometric mean, {name}", *[""] * len(LABELS), *means])
    return table(["task", *LABELS.values(), *(f"{LABELS[peer]} / ours" for peer in PEERS)], rows)


def ratios(runs: Runs, tasks: Sequence[ControlTask], algorithm: str) -> dict[str, Ratio]:
    """How many times our steps an algorithm needs, on the tasks that both have been trained on."""
    pairs = {task.name: (runs[algorithm][task.name], runs[OURS][task.name]) for task in tasks}
    return {name: Ratio.of(theirs, ours) for name, (theirs, ours) in pairs.items() if theirs and ours}


# -------------------------------------------------------------------------------------- all of them


def tables(runs: Runs, tasks: Sequence[ControlTask]) -> str:
    """All tables."""
    seeds = sorted({run.seed for task in tasks for run in runs[OURS][task.name]})
    unseen = [task.name for task in tasks if not task.designed]
    others = ", ".join(unseen) + SEEN if unseen else "none"
    title = f"**The policy when `learn` returns, on {N_SERVED} fresh episodes.**"
    parts = [
        f"Seeds of ours: {', '.join(map(str, seeds)) or 'none'}. Not tuned on: {others}.",
        f"{title} Beside it the mean return of other agents at their last evaluation (20 episodes) until then.",
        served_table(runs, tasks),
        aggregate(runs, tasks),
    ]
    for algorithm, label in LABELS.items():
        if any(runs[algorithm][task.name] for task in tasks):
            parts += [f"**Steps to the level (medians), {label}**", steps_table(runs[algorithm], tasks)]
    parts += [
        "**Steps to hold the level, side by side**",
        comparison(runs, tasks),
        "**Targets**",
        reach(runs, tasks),
        PUBLISHED,
    ]
    return "\n\n".join(part for part in parts if part)


def reach(runs: Runs, tasks: Sequence[ControlTask]) -> str:
    """Whether what is aimed at is reached."""
    ours = {task.name: runs[OURS][task.name] for task in tasks}
    last = {task.name: task.budget for task in tasks if task.designed}
    early = {name: steps for name, steps in EARLY.items() if name in ours}
    when = ", ".join(f"{name} at {steps:,}" for name, steps in early.items())
    lines = [
        f"- {FRACTION:.0%} of the seeds at the last stop, tasks of the design: {verdict(ours, last, FRACTION)}",
        f"- {EARLY_FRACTION:.0%} of the seeds early ({when}): {verdict(ours, early, EARLY_FRACTION)}",
        speed(ours),
    ]
    if factors := ratios(runs, [task for task in tasks if task.designed], "dqn"):
        mean = Ratio.geometric_mean([*factors.values()])
        answer = "**no**" if mean.value < RATIO else "not shown" if mean.at_most else "yes"
        lines.append(f"- at least {RATIO:g} times fewer steps than DQN, geometric mean: {answer}, {mean}")
    lines.append("- A run that never held the level counts at its budget; ≥, ≤ and ? mark what such a run decides.")
    return "\n".join(lines)


def verdict(runs: dict[str, list[Run]], steps: dict[str, int], fraction: float) -> str:
    """Yes, or the tasks in which too few seeds attained the level after so many steps."""
    missed = {}
    for name, n in steps.items():
        share = share_attained(runs[name], n) if n in stops_of(runs[name]) else np.nan
        if not share >= fraction - 1e-9:
            missed[name] = "not run" if np.isnan(share) else f"{share:.0%}"
    return "**no**, " + ", ".join(f"{name} {share}" for name, share in missed.items()) if missed else "yes"


def speed(runs: dict[str, list[Run]]) -> str:
    """The longest training, in processor seconds."""
    found = [
        (run.served[LIMIT_STEPS].processor_seconds, name)
        for name, some in runs.items()
        for run in some
        if LIMIT_STEPS in run.served
    ]
    start = f"- training of {LIMIT_STEPS:,} steps takes at most {LIMIT_SECONDS:.0f} processor seconds: "
    if not found:
        return start + "not run"
    longest, name = max(found)
    return start + ("yes" if longest <= LIMIT_SECONDS else "**no**") + f", the longest {longest:.0f} ({name})"
