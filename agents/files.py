"""An agent in one file: arrays and a JSON header, no code in it, nothing unpickled when it is read.

The file holds all that learning depends on, the state of the random generator included: a loaded agent goes on as if it
had never been saved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gptd_rl.agents.base import BaseAgent
from gptd_rl.agents.history import Iteration
from gptd_rl.agents.planning import Planning, planning_from_dict
from gptd_rl.agents.pool_files import QTable, pool_to_dict, restore_pool
from gptd_rl.agents.replay import Experience, ReplayBuffer
from gptd_rl.agents.trial_pool import TrialPool
from gptd_rl.checks import as_count, as_flags, as_indices, as_numbers, as_states, check_finite, one_line
from gptd_rl.data import files
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.dynamics.outcomes import ModelErrors
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.estimators.storage import check_storable
from gptd_rl.exceptions import brief
from gptd_rl.kernels import registry
from gptd_rl.rollouts.actions import ActionSet
from gptd_rl.selection.regression import KernelSelection
from gptd_rl.types import EnvLike

FORMAT = "gptd-rl agent"
VERSION = 3  # 3: model of the dynamics, all policies on record, state of the random generator
PARAMETERS = (
    "gamma",
    "seed",
    "model",
    "action_correlation",
    "noise_share",
    "subset_size",
    "refit_every",
    "reselect_kernel",
)
COUNTERS = ("num_timesteps", "_n_selected", "_n_fitted", "_n_streams")

Agent = TypeVar("Agent", bound=BaseAgent)


def save(agent_class: type[BaseAgent], agent: BaseAgent, path: str | os.PathLike[str]) -> Path:
    """Write `agent` to `path`, atomically; it must be of the class that `load` makes."""
    _check_classes(agent_class, agent)
    if agent.planning.lookahead:
        raise ValueError("a policy with lookahead cannot be saved: Planning(lookahead=False) can.")
    if agent._buffer is None:
        raise ValueError("the agent has not learnt anything yet: call learn first.")
    actions, selection, planner = agent._action_set, agent._selection, agent._planner
    table, is_fitted = QTable(), hasattr(agent.estimator, "posterior_")
    estimator, estimator_arrays = agent.estimator.to_arrays() if is_fitted else (None, {})
    header: dict[str, Any] = dict(
        format=FORMAT,
        version=VERSION,
        parameters={name: getattr(agent, name) for name in PARAMETERS},
        planning=asdict(agent.planning),
        counters={name: getattr(agent, name) for name in COUNTERS},
        random_state=agent._rng.bit_generator.state,
        history=[asdict(iteration) for iteration in agent.history],
        episodes=agent.episodes,
        is_continuous=actions.is_continuous,
        estimator=estimator,
        selection=None if selection is None else selection.to_dict(),
        pool=pool_to_dict(agent.pool, table),
        planner=dict(
            time_limit=planner.time_limit,
            kernel=None if planner.kernel is None else registry.describe(planner.kernel),
            n_selected=planner.n_selected,
            newest=table.add(planner.newest),
            has_gain=planner.has_gain,
        ),
        model_errors=[asdict(errors) for errors in agent.model_errors_],
    )
    arrays = _with_prefix("estimator_", estimator_arrays)
    if agent.dynamics_ is not None:
        header["dynamics"], dynamics = agent.dynamics_.to_arrays()
        arrays |= _with_prefix("dynamics_", dynamics)
    header["q_functions"] = table.descriptions
    arrays |= table.arrays | dict(header=files.encode_header(header), actions=actions.actions)
    if planner.simulated is not None:
        arrays["simulated"] = planner.simulated
    if agent.candidates is not None:
        arrays["candidates"] = agent.candidates
    arrays |= {f"buffer_{f.name}": getattr(agent._buffer.experience, f.name) for f in fields(Experience)}
    return files.write(path, arrays)


def _check_classes(agent_class: type[BaseAgent], agent: BaseAgent) -> None:
    """Refuse subclasses: they would come back as their bases."""
    for thing, known in ((agent, agent_class), (agent.planning, Planning)):
        if type(thing) is not known:
            raise TypeError(f"class {type(thing).__name__} cannot be saved: save a {known.__name__}.")
    check_storable(agent.estimator)
    if agent.dynamics_ is not None:
        check_storable(agent.dynamics_)


def load(agent_class: type[Agent], path: str | os.PathLike[str], env: EnvLike | None) -> Agent:
    """Read a file of `save`."""
    path = Path(path)
    try:
        arrays = files.read(path)
        with files.strict_arithmetic():
            agent = _build(agent_class, arrays)
        arrays.check_all_read()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {one_line(path)}.") from None
    except files.UNREADABLE as error:
        what = "does not hold an agent as PolicyIteration.save writes it"
        raise ValueError(f"{one_line(path)} {what}: {brief(error)}") from None
    agent.set_env(env)
    return agent


def _build(agent_class: type[Agent], arrays: files.Members) -> Agent:
    header = files.decode_header(arrays)
    if header["format"] != FORMAT or header["version"] != VERSION:
        raise ValueError(f"it is a {header['format']} of version {header['version']}")
    options: dict[str, Any] = dict(planning=planning_from_dict(header["planning"]), candidates=arrays.get("candidates"))
    agent = agent_class(**options, **header["parameters"])
    check_finite(arrays["actions"], "actions")
    agent._actions = ActionSet(arrays["actions"], bool(header["is_continuous"]))
    n_actions = len(agent._actions.actions)
    for name in COUNTERS:
        setattr(agent, name, as_count(header["counters"][name], name, 0))
    agent.history = [Iteration(**i | dict(relevances=tuple(i["relevances"]))) for i in header["history"]]
    agent.episodes = [(int(made), float(total)) for made, total in header["episodes"]]
    agent._buffer = ReplayBuffer(_experience(arrays.part("buffer_"), n_actions))
    agent._rng.bit_generator.state = header["random_state"]
    if header["selection"] is not None:
        agent._selection = KernelSelection.from_dict(header["selection"])
    if header["estimator"] is not None:
        agent.estimator = GPTDQ.from_arrays(header["estimator"], arrays.part("estimator_"))
    if "dynamics" in header:
        agent.dynamics_ = DynamicsModel.from_arrays(header["dynamics"], arrays.part("dynamics_"))
    agent.model_errors_ = [_errors(kept) for kept in header["model_errors"]]
    table = QTable.restored(header["q_functions"], arrays, n_actions)
    restore_pool(agent.pool, header["pool"], table)
    if header["pool"].get("simulates") and isinstance(agent.pool, TrialPool):
        agent.pool.simulate = agent._simulated_return
    kept, planner = header["planner"], agent._planner
    planner.time_limit = as_count(kept["time_limit"], "time_limit", 0)
    planner.n_selected = as_count(kept["n_selected"], "n_selected", 0)
    planner.kernel = None if kept["kernel"] is None else registry.build(kept["kernel"])
    planner.newest, planner.simulated = table.get(kept["newest"]), arrays.get("simulated")
    if planner.simulated is not None:
        check_finite(planner.simulated, "simulated")
    planner.has_gain = bool(kept["has_gain"])
    return agent


def _experience(kept: Mapping[str, Any], n_actions: int) -> Experience:
    """The transitions of a file."""
    n, n_dims = as_states(kept["states"]).shape
    return Experience(
        states=as_numbers(kept["states"], (n, n_dims), "states"),
        actions=as_indices(kept["actions"], n_actions, "actions"),
        rewards=as_numbers(kept["rewards"], (n,), "rewards"),
        next_states=as_numbers(kept["next_states"], (n, n_dims), "next_states"),
        terminated=as_flags(kept["terminated"], (n,), "terminated"),
        done=as_flags(kept["done"], (n,), "done"),
        streams=as_indices(kept["streams"], np.iinfo(np.int64).max, "streams"),
    )


def _errors(kept: dict[str, Any]) -> ModelErrors:
    return ModelErrors(**dict(kept, relative=np.array(kept["relative"]), median=np.array(kept["median"])))


def _with_prefix(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {prefix + name: array for name, array in arrays.items()}
