"""The player of recorded episodes: pictures beside the value, its interval, the critic and what followed."""

from __future__ import annotations

import base64
from html import escape
from typing import Any

import numpy as np

from gptd_rl.report import charts, html, scripts, texts
from gptd_rl.report.hover import positions, resolutions, shown_inputs
from gptd_rl.report.numbers import MISSING, count, number
from gptd_rl.report.recorded import Recording, Recordings
from gptd_rl.report.records import EvaluationResults
from gptd_rl.report.svg import to_svg

HEIGHT = 2.6  # of a plot, in inches
CONTROLS = (
    '<div class="controls" hidden><button type="button" class="play" aria-label="Play">▶</button>'
    '<input type="range" min="0" max="0" value="0" step="1" aria-label="Moment of the episode"></div>'
)


def player(evaluation: EvaluationResults) -> list[str]:
    """A section to watch episodes, with or without pictures; nothing but a note if there are none."""
    found = evaluation.recordings
    note = f'<p class="faint">{escape(found.note)}</p>' if found.note else ""
    if not found.episodes:
        return [note] if note else []
    drawn = [_figure(recording, i, found.n_candidates) for i, recording in enumerate(found.episodes)]
    values = [_values(evaluation, r) for r in found.episodes]
    episodes = [
        axes | {"values": rows, "frames": _frames(r), "frame": _frame_of_moments(r)}
        for r, (_, axes), rows in zip(found.episodes, drawn, values, strict=True)
    ]
    labels = _labels(evaluation)
    terms = "".join(
        f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in zip(labels, values[0][0], strict=True)
    )
    return [
        f'<h2 id="watch">{escape(texts.HEADINGS["watch"])}</h2>',
        f"<p>{escape(texts.WATCH.format(n=found.n_candidates))}</p>",
        note,
        f'<section id="player" class="player" aria-label="{escape(texts.HEADINGS["watch"])}">',
        _tabs(found),
        _screen(found),
        f'<div class="curves">{"".join(figure for figure, _ in drawn)}</div>',
        CONTROLS,
        f'<dl class="readout">{terms}</dl>',
        "</section>",
        scripts.data("episodes", {"type": found.media_type, "episodes": episodes}),
    ]


def _tabs(found: Recordings) -> str:
    buttons = [
        f'<button type="button" data-name="{r.name}" aria-pressed="{"true" if i == 0 else "false"}">{r.name} '
        f"<small>return {number(r.total)}</small></button>"
        for i, r in enumerate(found.episodes)
    ]
    return f'<div class="tabs" role="group" aria-label="Episode" hidden>{"".join(buttons)}</div>'


def _screen(found: Recordings) -> str:
    frames = found.episodes[0].frames
    if not frames:
        return ""
    source = f"data:{found.media_type};base64,{_base64(frames[0].data)}"
    return f'<div class="screen"><img src="{source}" alt="The environment at the start of the best episode"></div>'


def _figure(recording: Recording, i: int, n: int) -> tuple[str, dict[str, Any]]:
    """Plot of an episode with its caption; x of each moment and the ends of the y-axis, in the units of the SVG."""
    r = recording
    ax = charts.plot_episode(r.steps, r.predicted, r.lower, r.upper, r.critic, r.followed, height=HEIGHT)
    drawing = to_svg(ax, f"episode{i}", texts.ALTERNATIVES["episode"].format(name=r.name))
    caption = texts.CAPTIONS["episode"].format(
        rank=texts.RANKS[r.name], n=n, total=number(r.total), steps=count(r.n_steps, "step"), end=r.end, seed=r.seed
    )
    low, high = ax.get_ylim()
    x = positions(ax, r.steps.astype(np.float64), np.full(len(r.steps), low))[:, 0]
    y = positions(ax, np.zeros(2), np.array([low, high]))[:, 1]
    return html.figure(drawing, caption), {"x": np.round(x, 1).tolist(), "y": np.round(y, 1).tolist()}


def _labels(evaluation: EvaluationResults) -> list[str]:
    names = evaluation.config.inputs
    critic = ["critic"] if evaluation.recordings.episodes[0].critic is not None else []
    values = ["step", "value V", "95 % interval", *critic, "return from here", "reward"]
    if evaluation.config.is_categorical:
        return [*values, "state"]
    return [*values, *(charts.short(names[i]) for i in shown_inputs(evaluation))]


def _values(evaluation: EvaluationResults, r: Recording) -> list[list[str]]:
    """What is to be read at each moment, in the order of the labels."""
    names, shown = evaluation.config.inputs, shown_inputs(evaluation)
    spreads = 0.1 * evaluation.data.states.std(axis=0)
    rows = []
    for i, (step, width) in enumerate(zip(r.steps.tolist(), resolutions(r.predicted, r.lower, r.upper), strict=True)):
        critic = [] if r.critic is None else [number(float(r.critic[i]), width)]
        low, high = number(float(r.lower[i]), width), number(float(r.upper[i]), width)
        interval = f"{low} to {high}" if np.isfinite(r.predicted[i]) else MISSING
        value = [str(step), number(float(r.predicted[i]), width), interval, *critic]
        state = (
            [names[int(np.argmax(r.states[i]))]]
            if evaluation.config.is_categorical
            else [number(float(r.states[i, j]), float(spreads[j])) for j in shown]
        )
        rows.append([*value, number(float(r.followed[i]), width), number(float(r.rewards[i])), *state])
    return rows


def _frames(r: Recording) -> list[str]:
    return [_base64(frame.data) for frame in r.frames]


def _frame_of_moments(r: Recording) -> list[int]:
    """The latest frame at each moment."""
    if not r.frames:
        return []
    moments = np.array([frame.moment for frame in r.frames])
    latest = np.searchsorted(moments, np.arange(len(r.steps)), side="right") - 1
    return np.maximum(latest, 0).tolist()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
