"""A Hugging Face model card of an evaluated agent, in the layout of Stable-Baselines3's cards."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gptd_rl.report.numbers import number, percent
from gptd_rl.report.output import complete_or_nothing
from gptd_rl.report.records import LEVELS, EvaluationResults, Interval
from gptd_rl.report.verdict import verdict
from gptd_rl.sb3.loading import ALGORITHMS, CONTRIB
from gptd_rl.version import __version__

TASK = "reinforcement-learning"


def write_card(
    evaluation: EvaluationResults,
    path: Path,
    *,
    model_name: str | None = None,
    library_name: str | None = None,
    license: str | None = None,
) -> Path:
    """Write the card to `path`, or to README.md in the folder `path`; see `Evaluation.write_card`."""
    hub = import_hub()
    target = path / "README.md" if path.is_dir() else path
    name = model_name or evaluation.config.agent
    library = library_name or library_of(evaluation.config.agent)
    tags = [evaluation.config.env, "deep-reinforcement-learning", TASK, library, "gptd-rl"]
    data = hub.ModelCardData(
        model_name=name,
        library_name=library,
        license=license,
        tags=list(dict.fromkeys(tags)),
        eval_results=list(results(evaluation, hub)),
    )
    text = "\n".join([f"---\n{data.to_yaml()}\n---\n", *body(evaluation, name)]) + "\n"
    with complete_or_nothing(target.parent) as unfinished:
        (unfinished / target.name).write_text(str(hub.ModelCard(text)), encoding="utf-8")
    return target


def import_hub() -> Any:
    """Import huggingface_hub, or say how to install it."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError('model cards need huggingface_hub: pip install "gptd-rl[hub]"') from error
    return huggingface_hub


def library_of(agent: str) -> str:
    """The library that an agent of this name is read with."""
    if agent in CONTRIB:
        return "sb3-contrib"
    return "stable-baselines3" if agent in ALGORITHMS else "gptd-rl"


def results(evaluation: EvaluationResults, hub: Any) -> Iterable[Any]:
    """The metadata: return and discounted value with their intervals, and coverage of the check."""
    start, check, env = evaluation.start, evaluation.check, evaluation.config.env

    def result(metric: str, value: Any, **arguments: Any) -> Any:
        return hub.EvalResult(
            task_type=TASK,
            task_name=TASK,
            dataset_type=env,
            dataset_name=env,
            metric_type=metric,
            metric_name=metric,
            metric_value=value,
            metric_args=arguments or None,
            verified=False,
        )

    if start.returns is not None:
        # The layout of Stable-Baselines3: mean and standard deviation of episodes. The interval stands beside it.
        value = f"{start.mean:.2f} +/- {start.std:.2f}"
        yield result("mean_reward", value, **_interval(start.returns), n_episodes=start.n_episodes)
    estimate = round(start.value.estimate, 4)
    yield result("discounted_value", estimate, **_interval(start.value), discount=evaluation.config.gamma)
    if check.scores and check.scores[0].coverage:
        coverage = round(float(check.scores[0].coverage[-1]), 4)
        arguments = dict(n_states=len(check.states), n_episodes=check.n_episodes)
        yield result(f"coverage_of_{LEVELS[-1]:.0%}_intervals".replace("%", "_percent"), coverage, **arguments)


def body(evaluation: EvaluationResults, name: str) -> Iterable[str]:
    """What the card says."""
    config, start, check = evaluation.config, evaluation.start, evaluation.check
    yield f"# **{_plain(name)}** agent playing **{_plain(config.env)}**\n"
    actions = "its most likely actions" if config.deterministic else "sampled actions"
    yield f"Evaluated by gptd-rl {__version__} on {config.n_transitions} transitions, {actions}, seed {config.seed}.\n"
    yield "## How good is it?\n"
    yield "| | estimate | 95 % interval |\n|---|---|---|"
    if start.returns is not None:
        yield _row(f"mean return of {start.n_episodes} episodes", start.returns)
    yield _row(f"discounted value of the start states, γ = {config.gamma:g}", start.value)
    if start.returns is not None:
        yield (
            f"\nStable-Baselines3 reports {start.mean:.2f} ± {start.std:.2f}: the standard deviation of *episodes*, "
            "which does not shrink with more of them.\n"
        )
    yield f"## Can it be believed?\n\n{verdict(check)[1]}\n"
    yield "| value function | RMSE | 95 % intervals hold |\n|---|---|---|"
    for score in check.scores:
        held = percent(score.coverage[-1]) if score.coverage else "—"
        yield f"| {_plain(score.name)} | {number(score.rmse)} | {held} |"
    if not config.is_categorical:
        yield "\n## What it looks at\n\nShare of the value's variance that is lost without an observation:\n"
        yield "| observation | share |\n|---|---|"
        for i in evaluation.relevance.order:
            share = float(evaluation.relevance.importances.total_effects[i])
            yield f"| {_plain(config.inputs[i])} | {percent(share)} |"
    if evaluation.warnings:
        yield "\n## Limits\n"
        yield from (f"- {_plain(text)}" for text in evaluation.warnings)


def _interval(found: Interval) -> dict[str, Any]:
    """Bounds and their level; infinite bounds, which JSON and YAML of others may not know, are left out."""
    bounds = dict(lower=found.lower, upper=found.upper)
    return dict(confidence_level=0.95) | {name: round(x, 4) for name, x in bounds.items() if math.isfinite(x)}


def _row(what: str, found: Interval) -> str:
    width = found.half_width
    ends = f"{number(found.lower, width)} to {number(found.upper, width)}"
    return f"| {what} | {number(found.estimate, width)} | {ends} |"


def _plain(text: str) -> str:
    """A text in a line of Markdown, with nothing in it that marks up."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    for mark in "\\`*_[]|#":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped
