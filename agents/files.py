"""An agent in one file: arrays and a JSON header, no code in it, nothing unpickled when it is read."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gptd_rl.agents.base import BaseAgent
from gptd_rl.agents.history import Iteration
from gptd_rl.agents.policy_pool import Episode, NewestQ, PolicyPool, PolicyRecord
from gptd_rl.agents.replay import Experience, ReplayBuffer
from gptd_rl.data import files
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.estimators.greedy import GreedyFit
from gptd_rl.inference.by_action import QFunction
from gptd_rl.kernels import registry
from gptd_rl.rollouts.actions import ActionSet
from gptd_rl.selection.regression import KernelSelection
from gptd_rl.types import EnvLike

FORMAT = "gptd-rl agent"
VERSION = 2  # 2: the newest Q as `GPTDQ.to_arrays` writes it
PARAMETERS = ("gamma", "seed", "action_correlation", "noise_share", "subset_size", "refit_every", "reselect_kernel")
COUNTERS = ("num_timesteps", "_n_selected", "_n_fitted", "_n_streams")

Agent = TypeVar("Agent", bound=BaseAgent)


def save(agent: BaseAgent, path: str | os.PathLike[str]) -> Path:
    """Write `agent` to `path`, atomically."""
    incumbent_q, actions, newest = agent.q, agent._action_set, agent.pool.newest_q  # fits Q if there is none yet
    incumbent, selection = agent.pool.incumbent, agent._selection
    assert newest is not None and agent._buffer is not None
    estimator, estimator_arrays = agent.estimator.to_arrays()
    header: dict[str, Any] = dict(
        format=FORMAT,
        version=VERSION,
        parameters={name: getattr(agent, name) for name in PARAMETERS},
        counters={name: getattr(agent, name) for name in COUNTERS},
        history=[asdict(iteration) for iteration in agent.history],
        episodes=agent.episodes,
        is_continuous=actions.is_continuous,
        estimator=estimator,
        selection=None if selection is None else selection.to_dict(),
        incumbent=dict(
            is_newest=incumbent.q is None,
            n_before=incumbent.n_before,
            kernel=registry.describe(incumbent_q.kernel),
            prior_mean=incumbent_q.prior_mean,
        ),
    )
    arrays: dict[str, Any] = dict(header=np.array(json.dumps(header)), actions=actions.actions)
    arrays |= {f"estimator_{name}": array for name, array in estimator_arrays.items()}
    arrays |= dict(
        sample_weights=newest.sample.weights,
        incumbent_inducing_points=incumbent_q.inducing_points,
        incumbent_weights=incumbent_q.weights,
        incumbent_returns=np.array([episode.total for episode in incumbent.episodes]),
        incumbent_starts=np.array([episode.start for episode in incumbent.episodes]),
        incumbent_met_prediction=np.array([episode.met_prediction for episode in incumbent.episodes], dtype=bool),
    )
    if agent.candidates is not None:
        arrays["candidates"] = agent.candidates
    experience = agent._buffer.experience
    arrays |= {f"buffer_{f.name}": getattr(experience, f.name) for f in fields(experience)}
    return files.write(path, arrays)


def load(agent_class: type[Agent], path: str | os.PathLike[str], env: EnvLike | None) -> Agent:
    """Read a file of `save`."""
    try:
        agent = _build(agent_class, files.read(path))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}.") from None
    except files.UNREADABLE as error:
        text = " ".join(str(error).split())
        raise ValueError(f"{path} does not hold an agent as PolicyIteration.save writes it: {text}") from None
    agent.set_env(env)
    return agent


def _build(agent_class: type[Agent], arrays: dict[str, Any]) -> Agent:
    header = json.loads(str(arrays["header"]))
    if header["format"] != FORMAT or header["version"] != VERSION:
        raise ValueError(f"it is a {header['format']} of version {header['version']}")
    agent = agent_class(candidates=arrays.get("candidates"), **header["parameters"])
    agent._actions = ActionSet(arrays["actions"], header["is_continuous"])
    for name in COUNTERS:
        setattr(agent, name, int(header["counters"][name]))
    agent.history = [Iteration(**i | dict(relevances=tuple(i["relevances"]))) for i in header["history"]]
    agent.episodes = [(int(made), float(total)) for made, total in header["episodes"]]
    agent._buffer = ReplayBuffer(Experience(*(arrays[f"buffer_{f.name}"] for f in fields(Experience))))
    agent._rng = np.random.default_rng([agent.seed, agent.num_timesteps])
    if header["selection"] is not None:
        agent._selection = KernelSelection.from_dict(header["selection"])
    prefix = "estimator_"
    kept = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    agent.estimator = GPTDQ.from_arrays(header["estimator"], kept)
    assert agent.estimator.greedy_ is not None
    _restore_pool(agent.pool, agent.estimator.greedy_, arrays, header["incumbent"])
    return agent


def _restore_pool(pool: PolicyPool, fit: GreedyFit, arrays: dict[str, Any], incumbent: dict[str, Any]) -> None:
    mean = fit.posterior.mean_function
    sample = QFunction(mean.kernel, mean.inducing_points, arrays["sample_weights"], mean.prior_mean)
    pool.newest_q = NewestQ.of(mean, sample, fit.posterior.targets)
    columns = (arrays[f"incumbent_{name}"] for name in ("returns", "starts", "met_prediction"))
    episodes = [Episode(float(total), start, bool(met)) for total, start, met in zip(*columns, strict=True)]
    if incumbent["is_newest"]:
        pool.newest.episodes, pool.newest.n_before = episodes, incumbent["n_before"]
        return
    kernel, points = registry.build(incumbent["kernel"]), arrays["incumbent_inducing_points"]
    q = QFunction(kernel, points, arrays["incumbent_weights"], incumbent["prior_mean"])
    pool.incumbent = PolicyRecord(q, episodes, incumbent["n_before"])
    pool.records, pool.newest.episodes = [pool.incumbent], episodes[-1:]
