"""A policy-iteration agent in one file: arrays and a JSON header, no code in it, nothing unpickled on the way back."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gptd_rl.agents.fitted_q import Fit, QFunction
from gptd_rl.agents.history import Iteration
from gptd_rl.agents.multiscale import MultiScale
from gptd_rl.agents.policy_pool import Episode, Trial
from gptd_rl.agents.relevance import Selection
from gptd_rl.agents.replay import Memory, Transitions
from gptd_rl.data import files as archive
from gptd_rl.rollouts.actions import ActionSet

if TYPE_CHECKING:
    from gptd_rl.agents.policy_iteration import PolicyIteration

FORMAT = "gptd-rl agent"
VERSION = 1
PARAMETERS = ("gamma", "seed", "subset_size", "refit_every", "reselect")
COUNTERS = ("num_timesteps", "_n_selected", "_n_fitted", "_n_runs")

Agent = TypeVar("Agent", bound="PolicyIteration")


def save(agent: PolicyIteration, path: str | os.PathLike[str]) -> Path:
    """Write `agent` to `path`, atomically: the file is whole or as it was before."""
    served, newest, selection = agent.q, agent._newest, agent._selection
    assert agent._choices is not None and newest is not None
    champion = agent.trials.champion
    header: dict[str, Any] = dict(
        format=FORMAT,
        version=VERSION,
        parameters={name: getattr(agent, name) for name in PARAMETERS} | asdict(agent.critic),
        counters={name: getattr(agent, name) for name in COUNTERS},
        history=[asdict(iteration) for iteration in agent.history],
        episodes=agent.episodes,
        is_box=agent._choices.is_continuous,
        prior_means=dict(served=served.prior_mean, newest=newest.q.prior_mean),
        fit=dict(bounds=newest.bounds, n_sweeps=newest.n_sweeps, residual=newest.residual),
        champion=dict(is_newest=champion.q is None, n_before=champion.n_before),
        selection=None
        if selection is None
        else {f.name: getattr(selection, f.name) for f in fields(selection) if f.name != "kernel"},
    )
    arrays: dict[str, Any] = dict(header=np.array(json.dumps(header)), choices=agent._choices.actions)
    for name, q in (("served", served), ("newest", newest.q)):
        arrays |= {f"{name}_relevances": q.kernel.relevances, f"{name}_subset": q.subset, f"{name}_weights": q.weights}
    arrays |= dict(draw_weights=newest.draw.weights, targets=newest.targets)
    arrays |= {
        "champion_returns": np.array([episode.total for episode in champion.episodes]),
        "champion_starts": np.array([episode.start for episode in champion.episodes]),
        "champion_kept_word": np.array([episode.kept_word for episode in champion.episodes], dtype=bool),
    }
    if selection is not None:
        arrays["selection_relevances"] = selection.kernel.relevances
    if agent.candidates is not None:
        arrays["candidates"] = agent.candidates
    seen = agent._all.transitions
    arrays |= {f"seen_{f.name}": getattr(seen, f.name) for f in fields(seen)}
    return archive.write(path, arrays)


def load(kind: type[Agent], path: str | os.PathLike[str], env: Any) -> Agent:
    """Read what `save` wrote."""
    try:
        arrays = archive.read(path)
        header = json.loads(str(arrays["header"]))
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise ValueError(f"it is a {header['format']} of version {header['version']}")
        agent = kind(None, candidates=arrays.get("candidates"), **header["parameters"])
        agent._choices = ActionSet(arrays["choices"], header["is_box"])
        for name in COUNTERS:
            setattr(agent, name, int(header["counters"][name]))
        agent.history = [Iteration(**i | dict(relevances=tuple(i["relevances"]))) for i in header["history"]]
        agent.episodes = [(int(made), float(total)) for made, total in header["episodes"]]
        newest = _q_function(arrays, header, "newest")
        draw = QFunction(newest.kernel, newest.subset, arrays["draw_weights"], newest.prior_mean)
        bounds = header["fit"].pop("bounds")
        agent._newest = Fit(newest, draw, arrays["targets"], tuple(bounds), **header["fit"])
        _restore_champion(agent, arrays, header)
        if header["selection"] is not None:
            agent._selection = Selection(kernel=MultiScale(arrays["selection_relevances"]), **header["selection"])
        agent._memory = Memory(Transitions(*(arrays[f"seen_{f.name}"] for f in fields(Transitions))))
        agent._rng = np.random.default_rng([agent.seed, agent.num_timesteps])
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}.") from None
    except archive.UNREADABLE as error:
        raise ValueError(f"{path} does not hold an agent as PolicyIteration.save writes it: {error}") from None
    agent.set_env(env)
    return agent


def _restore_champion(agent: PolicyIteration, arrays: dict[str, Any], header: dict[str, Any]) -> None:
    columns = (arrays[f"champion_{name}"] for name in ("returns", "starts", "kept_word"))
    episodes = [Episode(float(total), start, bool(kept)) for total, start, kept in zip(*columns, strict=True)]
    if header["champion"]["is_newest"]:
        agent.trials.newest.episodes, agent.trials.newest.n_before = episodes, header["champion"]["n_before"]
        return
    champion = Trial(_q_function(arrays, header, "served"), episodes, header["champion"]["n_before"])
    agent.trials.champion, agent.trials.tried = champion, [champion]
    agent.trials.newest.episodes = episodes[-1:]


def _q_function(arrays: dict[str, Any], header: dict[str, Any], name: str) -> QFunction:
    kernel = MultiScale(arrays[f"{name}_relevances"])
    return QFunction(kernel, arrays[f"{name}_subset"], arrays[f"{name}_weights"], header["prior_means"][name])
