"""Bad arguments: public calls with one or two arguments replaced."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gptd_rl
from gptd_rl import ARD, GPTD, GPTDQ, FactorAnalysis, Isotropic, OnlineGPTD, SquaredExponential, Trajectories
from gptd_rl.agents import PolicyIteration
from gptd_rl.estimators.conformal import Calibrated
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.kernels import ActionDelta, Constant, Matern52
from tests.adversarial.harness import Attack, Category, pick
from tests.adversarial.nonsense import spoiled
from tests.estimators.test_edited_files import DATA, KERNEL, MODELS, QUICK, with_actions

STATES = np.array(DATA.states[:4])
ACTIONS = np.array([0, 1, 1, 0])
CARTPOLE = "CartPole-v1"


@dataclass(frozen=True)
class Call:
    """A public call and arguments that it takes; `work` names those that are amounts of work or memory."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    work: tuple[str, ...] = ()


def fitting(kind: Any, data: Any, options: dict[str, Any], work: tuple[str, ...] = ()) -> Call:
    return Call(lambda **given: kind(**given).fit(data), options, work)


def arrays_of(data: Any) -> dict[str, Any]:
    names = ("states", "rewards", "discounts", "lengths", "terminated", "actions")
    return {name: np.array(getattr(data, name)) for name in names}


def episode() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return dict(
        observations=rng.normal(size=(5, 3)), rewards=rng.normal(size=4), terminated=True, truncated=False,
        actions=np.array([0, 1, 0, 1]), discounts=np.full(4, 0.9),
    )  # fmt: skip


def segments_of(data: Trajectories, segments: Any) -> Any:
    """Some of the segments; IndexError is what Python itself raises for the number of one that is not there."""
    try:
        return data[segments]
    except IndexError as error:
        if not isinstance(segments, int | np.integer):
            raise
        raise ValueError(str(error)) from error


def data_calls(data: Trajectories) -> list[Call]:
    chain = dict(states=np.array(DATA.states), rewards=np.ones(len(DATA)), gammas=np.full(len(DATA), 0.9))
    return [
        Call(Trajectories, arrays_of(data)),
        Call(lambda **one: Trajectories.from_episodes([episode(), one]), episode()),
        Call(Trajectories.from_episodes, dict(episodes=[episode()], gamma=None)),
        Call(Trajectories.from_chain, chain),
        Call(Trajectories.from_values, dict(states=STATES, values=np.ones(4), actions=ACTIONS)),
        Call(data.thin, dict(every=2, offset=1)),
        Call(data.cut, dict(max_transitions=3)),
        Call(data.take_inputs, dict(columns=np.array([0, 2]))),
        Call(lambda segments: segments_of(data, segments), dict(segments=np.array([0, 1]))),
        Call(Trajectories.concatenate, dict(parts=[data, data])),
        Call(Trajectories.load, dict(path="nowhere")),
        Call(gptd_rl.load, dict(path="nowhere")),
        Call(GPTD.load, dict(path="nowhere")),
        Call(GPTDQ.load, dict(path="nowhere")),
        Call(OnlineGPTD.load, dict(path="nowhere")),
        Call(DynamicsModel.load, dict(path="nowhere")),
        Call(PolicyIteration.load, dict(path="nowhere", env=None)),
        Call(gptd_rl.markov_test, dict(data=data, gamma=None, executor=None)),
    ]


def kernel_calls() -> list[Call]:
    relevances, loadings = np.ones(3), np.ones((3, 2))
    return [
        Call(ARD, dict(relevances=relevances)),
        Call(lambda relevance, n_dims: Isotropic(relevance, n_dims), dict(relevance=1.0, n_dims=3), ("n_dims",)),
        Call(lambda a, u: FactorAnalysis(a, u), dict(a=relevances, u=loadings)),
        Call(lambda metric, v0: SquaredExponential(metric, v0), dict(metric=ARD(relevances), v0=1.0)),
        Call(lambda metric, v0: Matern52(metric, v0), dict(metric=ARD(relevances), v0=1.0)),
        Call(lambda b: Constant(b), dict(b=1.0)),
        Call(lambda n: ActionDelta(n), dict(n=2), ("n",)),
        Call(lambda name: KERNEL.fix(name), dict(name="b")),
    ]


def fitting_calls(data: Trajectories) -> list[Call]:
    work, given = ("n_restarts", "n_jobs", "max_rank"), dict(
        kernel="isotropic", mean=None, noise="stochastic", bootstrap=False, thinning=None, method="exact",
        subset_size=5, tolerance=None, noise_variance=None, max_rank=1, warm_start=False, random_state=0, n_jobs=1,
        sparse_variance="projected_process", **QUICK,
    )  # fmt: skip
    online = dict(kernel=KERNEL, noise_variance=0.1, tolerance=0.1, bootstrap=False, keep_history=True)
    return [
        fitting(GPTD, DATA, given, work),
        fitting(GPTD, DATA, given | dict(method="sparse"), work),
        fitting(GPTDQ, data, given | dict(n_actions=2), work),
        fitting(GPTDQ, data, dict(kernel="ard", softness=0.1, n_actions=2, random_state=0), ("n_actions",)),
        Call(lambda **given: GPTDQ("ard").fit(data, **given), dict(policy="greedy", model=None, gamma=None)),
        fitting(DynamicsModel, data, dict(max_rows=50, subset_size=10, n_actions=2, bounds=None, random_state=0)),
        fitting(Calibrated, DATA, dict(estimator=GPTD(KERNEL, **QUICK), n_folds=2, random_state=0)),
        Call(lambda **options: OnlineGPTD(**options).update(DATA), online),
        Call(lambda **options: PolicyIteration(**options), dict(env=CARTPOLE, gamma=0.9, seed=0, candidates=None)),
        Call(
            gptd_rl.collect,
            dict(env=CARTPOLE, policy=None, n_transitions=10, n_episodes=None, gamma=0.9, seed=0, deterministic=True),
            ("n_transitions", "n_episodes"),
        ),
        Call(
            lambda state, reward, next_state, discount: OnlineGPTD(KERNEL, 0.1).update(
                gptd_rl.Transition(state, reward, next_state, discount)
            ),
            dict(state=STATES[0], reward=1.0, next_state=STATES[1], discount=0.9),
        ),
    ]


def asking_calls() -> list[Call]:
    v, q, online, dynamics = (MODELS[name]() for name in ("exact", "pairs", "online", "dynamics"))
    greedy, sparse = MODELS["greedy"](), MODELS["sparse"]()
    calibrated = Calibrated(GPTD(KERNEL, **QUICK), n_folds=2).fit(DATA)
    calls = [
        # What changes a model changes a copy, so that cases do not depend on each other.
        Call(lambda **given: deepcopy(v).prune(**given), dict(threshold=0.1)),
        Call(lambda **given: deepcopy(v).partial_fit(**given), dict(data=DATA, gamma=None)),
        Call(lambda **given: deepcopy(v).fit(**given), dict(data=DATA)),
        Call(lambda **given: deepcopy(q).fit(**given), dict(data=with_actions(), policy=None)),
        Call(v.condition, dict(data=DATA, gamma=None)),
        Call(v.log_marginal_likelihood, dict(theta=np.array(v.theta_))),
        Call(dynamics.predict, dict(states=STATES, actions=ACTIONS, return_std=True)),
        Call(dynamics.outcomes, dict(states=STATES)),
        Call(dynamics.errors, dict(data=with_actions())),
        Call(dynamics.complete, dict(data=with_actions(), states=STATES, seed=0)),
        Call(dynamics.simulate, dict(policy=None, starts=STATES, n_steps=3, seed=0, gamma=0.9), ("n_steps",)),
        Call(calibrated.predict, dict(states=STATES)),
        Call(calibrated.confidence_interval, dict(states=STATES, level=0.9)),
        Call(
            lambda **given: deepcopy(calibrated).recalibrate(**given),
            dict(states=STATES, values=np.ones(4), errors=0.1),
        ),
    ]
    for model in (v, sparse, online):
        calls += [
            Call(model.predict, dict(states=STATES, return_std=True)),
            Call(model.confidence_interval, dict(states=STATES, level=0.9)),
            Call(model.sample, dict(states=STATES, n=2, seed=0), ("n",)),
            Call(model.score, dict(states=STATES, values=np.ones(4))),
        ]
    for model in (q, greedy):
        calls += [
            Call(model.predict, dict(states=STATES, actions=ACTIONS, return_std=True)),
            Call(model.confidence_interval, dict(states=STATES, actions=ACTIONS, level=0.9)),
            Call(model.q_values, dict(states=STATES, return_std=True)),
            Call(model.greedy_actions, dict(states=STATES)),
        ]
    return calls


def is_finite(result: Any) -> bool:
    """Whether no array of floats in a result has a NaN."""
    if isinstance(result, tuple | list):
        return all(map(is_finite, result))
    return not (isinstance(result, np.ndarray) and result.dtype.kind == "f" and np.isnan(result).any())


def prepare(folder: Path) -> Attack:
    data = with_actions()
    calls = data_calls(data) + kernel_calls() + fitting_calls(data) + asking_calls()

    def attack(rng: np.random.Generator) -> str | None:
        call = pick(rng, calls)
        given = dict(call.arguments)
        for _ in range(1 + (rng.random() < 0.3)):
            name = pick(rng, list(given))
            given[name] = spoiled(given[name], rng, name in call.work)
        result = call.function(**given)
        return None if is_finite(result) else f"{call.function} of {given} is not finite"

    return attack


CATEGORY = Category("bad arguments", prepare, 0.28, may_refuse=True)
