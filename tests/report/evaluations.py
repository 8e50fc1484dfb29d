"""Made-up evaluations for the tests of pages and summaries."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any, Literal

import numpy as np

import gptd_rl
from gptd_rl import GPTD, Trajectories
from gptd_rl.agents.reference.gridworld import TowardsMiddle
from gptd_rl.estimators.exclusions import Cost
from gptd_rl.estimators.importances import Importances
from gptd_rl.estimators.markov import MarkovTest
from gptd_rl.evaluation.frames import encode
from gptd_rl.evaluation.results import Evaluation
from gptd_rl.report import page
from gptd_rl.report.recorded import Frame, Recording, Recordings
from gptd_rl.report.records import (
    Check,
    Disagreement,
    EvaluationConfig,
    Interval,
    OffPolicy,
    Relevance,
    Score,
    StartReturn,
    Timing,
)

GAMMA = 0.98
INPUTS = ("cart position", "cart velocity", "pole angle", "pole angular velocity")
SHARES = np.linspace(0.05, 0.95, 19)


@functools.cache
def cartpole() -> tuple[GPTD, Trajectories, Trajectories]:
    """A small model of a simple policy, its data, and episodes it has not seen."""
    rng = np.random.default_rng(0)

    def balance(obs):
        return int(obs[2] + 0.4 * obs[3] > 0) if rng.random() < 0.3 else int(rng.integers(2))

    data = gptd_rl.collect("CartPole-v1", balance, n_transitions=700, gamma=GAMMA, seed=0)
    fresh = gptd_rl.collect("CartPole-v1", balance, n_episodes=20, gamma=GAMMA, seed=100)
    return GPTD(kernel="ard", objective="thinned", thinning=8, random_state=0).fit(data), data, fresh


def critic(states: np.ndarray) -> np.ndarray:
    return 30 - 20 * np.abs(states[:, min(2, states.shape[1] - 1)])


def check_of(value: Any, data: Trajectories, n: int = 120, with_critic: bool = True) -> Check:
    """Predictions, and observations made up around them."""
    rng = np.random.default_rng(1)
    some = np.linspace(0, len(data) - 1, n).astype(int)
    states = data.states[some]
    predicted = value.predict(states)
    lower, upper = value.confidence_interval(states)
    observed = predicted + 0.5 * (upper - lower) / 1.96 * rng.normal(size=n)
    theirs = critic(states) if with_critic else None
    names = ["GPTD", "Monte Carlo"] if theirs is None else ["GPTD", "A2C's critic", "Monte Carlo"]
    scores = [
        Score(name, 1.234 * 3**i, (1.1 * 3**i, 1.4 * 3**i), -0.321 * i, 1.5 + i, (0.51, 0.79, 0.942 - 0.2 * i), 2.5)
        for i, name in enumerate(names)
    ]
    reliability = {name: SHARES ** (1.05 + i) for i, name in enumerate(names)}
    episodes = data.segment_of[some]
    errors = np.full(n, 0.05)
    return Check(
        "rollouts", states, observed, errors, episodes, predicted, lower, upper, theirs, SHARES, reliability,
        tuple(scores), 200,
    )  # fmt: skip


MARKOV = MarkovTest(4.2, 4, 0.38, 600.0, np.full(4, 1.0), np.full(4, 0.6), 2, 690)


def effects_of(scaled: Any) -> Importances:
    """In the order of the relevances; those of inputs that are removed are negligible."""
    effects = np.where(scaled < 1e-3, 0.0, np.minimum(0.9, 0.1 * np.sqrt(scaled)))
    return Importances(effects, 0.9 * effects, 1.1 * effects)


def relevance_of(scaled: Any, n: int = 2000) -> Relevance:
    """Inputs of small relevance cost nothing, the others the more the more relevant they are."""
    irrelevant = tuple(int(i) for i in np.flatnonzero(scaled < 1e-3))
    costs = tuple(Cost(-0.7 if i in irrelevant else 10.0 + 100.0 * a, 0.1 * a, 0.01) for i, a in enumerate(scaled))
    out = Cost(-0.7, 0.0001, 0.001) if irrelevant else None
    return Relevance("ard", scaled, effects_of(scaled), n, costs, irrelevant, out, (), -2345.6, 600)


def make(value: Any = None, data: Trajectories | None = None, inputs=INPUTS, with_critic=True, **changes) -> Evaluation:
    """An evaluation; `changes` are to its fields."""
    v, cart, fresh = cartpole()
    value, seen, held_out = (v, cart, fresh) if value is None else (value, data, data)
    assert seen is not None and held_out is not None
    d = seen.n_dims
    scaled = np.array([10.0 ** (1 - 1.5 * i) for i in (2, 1, 0, 3)] if d == 4 else 10.0 ** -np.arange(d) + 1e-9)
    relevance = relevance_of(scaled)
    check = check_of(value, held_out, min(120, len(held_out)), with_critic)
    found = [
        Disagreement(tuple(float(x) for x in s), float(p + 9), float(p), float(p - 2), float(p + 2), float(o))
        for s, p, o in zip(check.states[:6], check.predicted[:6], check.observed[:6], strict=True)
    ]
    evaluation = Evaluation(
        config=EvaluationConfig("A2C", "CartPole-v1", GAMMA, True, seen.n_transitions, seen.n_segments,
                                int(seen.terminated.sum()), inputs, inputs[0] == "state 0", 7, {"GPTD": 1.2}, "GPTD"),
        start=StartReturn(Interval(31.42, 30.87, 31.97), Interval(59.7, 48.2, 71.2), 59.7, 27.1, 22),
        relevance=relevance,
        markov=MARKOV,
        check=check,
        disagreements=tuple(found) if with_critic else (),
        off_policy=None,
        value=value,
        critic=critic if with_critic else None,
        data=seen,
        warnings=(),
        timing=Timing(3.2, 11.8, 7.4),
    )  # fmt: skip
    return replace(evaluation, **changes)


@functools.cache
def small(d: int, one_hot: bool = False, terminated: bool = True) -> tuple[GPTD, Trajectories]:
    """A random walk in d dimensions, or over d discrete states."""
    rng = np.random.default_rng(d)

    def episode() -> dict[str, Any]:
        states = np.cumsum(rng.normal(size=(12, d)), axis=0)
        states = np.eye(d)[rng.integers(d - 2, size=12)] if one_hot else states
        return dict(observations=states, rewards=-np.abs(states[1:, 0]) - 1, terminated=terminated)

    data = Trajectories.from_episodes([episode() for _ in range(8)], gamma=0.9)
    return GPTD(kernel="isotropic", random_state=0).fit(data), data


def isotropic(d: int) -> Relevance:
    return Relevance("isotropic", np.full(d, 0.7), effects_of(np.ones(d)), 88)


def one_input() -> Evaluation:
    return make(*small(1), inputs=("position",))


def discrete() -> Evaluation:
    return make(*small(12, True), inputs=tuple(f"state {i}" for i in range(12)), relevance=isotropic(12))


def many_inputs() -> Evaluation:
    names = tuple(f"joint_{i}_of_the_left_front_leg_angular_velocity_in_the_world_frame" for i in range(30))
    return make(*small(30), inputs=names)


def alike() -> Evaluation:
    """The two angles tell the same."""
    found = make().relevance
    effects = Importances(np.array([0.1, 0.2, 0.001, 0.002]), np.zeros(4), np.array([0.12, 0.3, 0.002, 0.003]))
    costs = (*found.costs[:2], Cost(0.1, 0.0, 0.001), Cost(0.2, 0.0, 0.001))
    return make(
        relevance=replace(found, importances=effects, costs=costs, irrelevant=(), irrelevant_cost=None, alike=((2, 3),))
    )


def without_numbers() -> Evaluation:
    """All that can be missing is."""
    nan = float("nan")
    plain = make()
    scores = tuple(Score(s.name, nan, (nan, nan), nan, nan, (nan, nan, nan), nan) for s in plain.check.scores)
    unseen = np.full(len(plain.check.observed), nan)
    relevance = replace(
        plain.relevance,
        scaled_relevances=np.array([nan, 1.0, 0.0, nan]),
        evidence=nan,
        costs=tuple(Cost(nan, nan, nan) for _ in range(4)),
        irrelevant=(),
        irrelevant_cost=None,
        importances=Importances(*np.full((3, 4), nan)),
    )
    return replace(
        plain,
        start=StartReturn(Interval(nan, nan, nan), None, nan, nan, 0),
        check=replace(plain.check, scores=scores, observed=unseen, critic=unseen),
        relevance=relevance,
        disagreements=tuple(replace(d, observed=nan) for d in plain.disagreements),
        timing=Timing(nan, nan, nan),
    )


def unchecked() -> Evaluation:
    """Nothing was held out, and no episode terminated."""
    value, data = small(3, terminated=False)
    plain = make(value, data, inputs=("a", "b", "c"))
    none = np.zeros(0)
    check = Check(
        "returns", np.zeros((0, 3)), none, none, np.zeros(0, np.int64), none, none, none, None, SHARES, {}, (), 0
    )
    return replace(plain, check=check, disagreements=(), start=replace(plain.start, returns=None, n_episodes=1))


def off_policy() -> Evaluation:
    warning = "The two policies differ at 34 % of the states: intervals may be too narrow."
    return make(off_policy=OffPolicy("PPO", 500, 0.34, 0.12, warning))


def warned() -> Evaluation:
    return make(warnings=("Only 9 episodes were complete.", "The kernel is <smooth> & V may jump."))


def nasty_names() -> Evaluation:
    names = ("<script>x</script>", "a & b", "quo\"te's $x^2$", "速度 ☃")
    plain = make(inputs=names)
    return replace(plain, config=replace(plain.config, agent="<b>A&B</b>", env="<img src=x>"))


def in_gridworld(**changes: Any) -> Evaluation:
    """Few data, in an environment whose name looks like markup; the value function is missing."""
    data = gptd_rl.collect("gptd_rl/LatentGridworld-v0", TowardsMiddle(), n_transitions=20, gamma=0.9, seed=0)
    config = EvaluationConfig(
        "A2C", "Grid[red]-v0", 0.95, True, 20, 5, 4, tuple("abcdefgh"), False, 0, {"GPTD": 1.2}, "GPTD"
    )
    scaled = np.array([0.5, 3.0, *[0.01] * 5, 1e-9])
    relevance = relevance_of(scaled, 20)
    start = StartReturn(Interval(-4.5, -5.0, -4.0), Interval(-20.0, -23.0, -17.0), -20, 7.5, 4)
    scores = (
        Score("GPTD", 0.1234, (0.1, 0.14), 0.0, -0.5, (0.5, 0.8, 0.947), 0.25),
        Score("A2C's critic", 12345.6, (1e4, 1.3e4), 0.1, float("nan"), (0.1, 0.2, 0.3), 1e-5),
        Score("Monte Carlo", 2.0, (1.0, 3.0), 0.1, 3.0, (0.4, 0.7, 0.9), 2.5),
    )
    zeros = np.zeros(3)
    check = Check(
        "rollouts", np.zeros((3, 8)), zeros, zeros, np.arange(3), zeros, zeros, zeros, None, zeros, {}, scores, 200
    )
    timing = Timing(1.0, 2.0, 3.0)
    made: dict[str, Any] = dict(
        config=config,
        start=start,
        relevance=relevance,
        markov=MARKOV,
        check=check,
        disagreements=(),
        off_policy=None,
        value=None,
        critic=None,
        data=data,
        warnings=("Few episodes.",),
        timing=timing,
    )
    return Evaluation(**made | changes)


def recorded(with_frames: bool = True, **changes: Any) -> Evaluation:
    """Three episodes of different lengths to watch, with pictures of one colour each."""
    plain = make(**changes)
    episodes = []
    names: tuple[Literal["best", "typical", "worst"], ...] = ("best", "typical", "worst")
    for segment, name in enumerate(names):
        states = plain.data.states[plain.data.segment_of == segment]
        n = len(states) - 1
        moments = range(0, n + 1, 2)
        colours = [np.full((20, 30, 3), (255 * m // (n + 1), 90 * segment, 128), np.uint8) for m in moments]
        drawn = encode([colours])[1][0] if with_frames else []
        unknown = np.append(np.zeros(n), np.nan)
        lower, upper = plain.value.confidence_interval(states)
        episodes.append(
            Recording(
                name=name,
                seed=segment,
                total=float(n),
                n_steps=n,
                end="terminated",
                steps=np.arange(n + 1),
                states=states,
                rewards=1.0 + unknown,
                followed=np.arange(n, -1, -1.0),
                predicted=plain.value.predict(states) + unknown,
                lower=lower + unknown,
                upper=upper + unknown,
                critic=None if plain.critic is None else plain.critic(states) + unknown,
                frames=tuple(Frame(moments[i], data) for i, data in drawn),
            )
        )
    media_type = encode([colours])[0] if with_frames else ""
    note = "" if with_frames else "The episodes have no pictures: there is <no> pygame."
    return replace(plain, recordings=Recordings(tuple(episodes), 10, media_type, note))


VARIANTS: dict[str, Callable[[], Evaluation]] = {
    "plain": make,
    "recorded": recorded,
    "without frames": lambda: recorded(with_frames=False, with_critic=False),
    "no critic": lambda: make(with_critic=False),
    "one input": one_input,
    "discrete": discrete,
    "many inputs": many_inputs,
    "alike": alike,
    "without numbers": without_numbers,
    "unchecked": unchecked,
    "off policy": off_policy,
    "warned": warned,
    "nasty names": nasty_names,
}


@functools.cache
def rendered(name: str) -> str:
    return page.render(VARIANTS[name]())


class Tags(HTMLParser):
    """What a page refers to, its ids, and whether each tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.references += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset") and v]
        self.references += [u for _, v in attrs for u in re.findall(r"url\(([^)]*)\)", v or "")]
        self.ids += [v for k, v in attrs if k == "id" and v]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, with plain spaces."""
        return re.sub(r"\s+", " ", "".join(self.texts))
