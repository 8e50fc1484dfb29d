"""Logged pairs with the actions of the evaluated policy: against loops over segments, states and actions."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTDQ, Trajectories
from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.data.logged_pairs import N_SAMPLES, logged_pairs, policy_actions
from gptd_rl.temporal.means import subtract_mean
from gptd_rl.temporal.transitions import Transitions
from tests.helpers import MIXES, sample, segments

N_ACTIONS = 3
DISCRETE = DiscreteActions(N_ACTIONS)
ASKED = np.random.default_rng(3).normal(size=(9, 2))
KINDS = {**MIXES, "targets and runs": [(1, True), (5, False), (1, True), (3, True), (2, False)]}

every_mix = pytest.mark.parametrize("mix", KINDS)


def with_actions(mix: str, seed: int = 0, shape: tuple[int, ...] | None = None) -> Trajectories:
    """Random data with a discrete action, or a continuous one of some shape, in each state that is left."""
    data = sample(KINDS[mix], seed, n_dims=2, terminal_rewards=mix == "targets and runs")
    rng = np.random.default_rng(seed + 10)
    actions: Any = rng.integers(N_ACTIONS, size=len(data)) if shape is None else rng.normal(size=(len(data), *shape))
    actions[data.last[data.lengths > 1]] = 0
    return Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)


# ------------------------------------------------------------------------------------------ policies


def towards(x: np.ndarray) -> int:
    return int(x[0] > 0) + int(x[1] > 0)


def towards_all(states: np.ndarray) -> np.ndarray:
    return (states > 0).sum(axis=1)


towards_all.batched = True  # type: ignore[attr-defined]


class Predicts:
    """A policy as in Stable-Baselines3."""

    def predict(self, observations: np.ndarray, deterministic: bool = False) -> tuple[np.ndarray, None]:
        assert deterministic
        return towards_all(observations), None


class Softmax:
    """A stochastic policy that tells its probabilities, and must not be asked for actions."""

    def action_probabilities(self, states: np.ndarray) -> np.ndarray:
        weights = np.exp(np.outer(states[:, 0], np.arange(N_ACTIONS)))
        return weights / weights.sum(axis=1, keepdims=True)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("probabilities are known")


class Answers:
    """Probabilities that are given."""

    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def action_probabilities(self, states: np.ndarray) -> Any:
        return np.array(self.rows)


class Dice:
    """A policy that answers differently each time, and remembers what."""

    def __init__(self, seed: int = 0, shape: tuple[int, ...] | None = None) -> None:
        self.rng, self.shape, self.answers = np.random.default_rng(seed), shape, []  # type: ignore[var-annotated]

    batched = True

    def __call__(self, states: np.ndarray) -> np.ndarray:
        n = len(states)
        drawn: Any = (
            self.rng.integers(N_ACTIONS, size=n) if self.shape is None else self.rng.normal(size=(n, *self.shape))
        )
        self.answers.append(drawn)
        return np.asarray(drawn)


# ------------------------------------------------------------------------------------------ pairs


def naive_pairs(data: Trajectories, keeps_ends: bool) -> list[tuple[int, float, float, bool]]:
    """Place, reward, discount and whether the segment starts there, of all pairs that are kept, by a loop."""
    rows = []
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        kept = list(places)
        if not terminated and not keeps_ends:
            kept = kept[:-1]
            if len(kept) == 1:
                continue
        for i in kept:
            nothing_follows = i == kept[-1] and not terminated
            rows.append(
                (
                    i,
                    0.0 if nothing_follows else float(data.rewards[i]),
                    0.0 if nothing_follows else float(data.discounts[i]),
                    i == kept[0],
                )
            )
    return rows


def assert_pairs(pairs: Trajectories, data: Trajectories, keeps_ends: bool, chosen: np.ndarray) -> None:
    """Against the loop; the action of a last state is arbitrary, `chosen` holds the policy's in all states."""
    rows = naive_pairs(data, keeps_ends)
    places = np.array([i for i, *_ in rows])
    assert_array_equal(pairs.states[:, :2], data.states[places])
    assert data.actions is not None
    is_taken = data.has_transition | (data.lengths == 1)[data.segment_of]
    taken = np.asarray(data.actions, dtype=float).reshape(len(data), -1)
    assert_array_equal(pairs.states[is_taken[places], 2:], taken[places][is_taken[places]])
    assert_array_equal(pairs.rewards, [r for _, r, _, _ in rows])
    assert_array_equal(pairs.discounts, [g for _, _, g, _ in rows])
    assert_array_equal(pairs.starts, np.flatnonzero([first for *_, first in rows]))
    assert_array_equal(pairs.terminated, data.terminated[data.segment_of[places[pairs.starts]]])
    assert pairs.policy_actions is not None and pairs.actions is None
    assert_allclose(pairs.policy_actions, chosen[places], rtol=1e-12)
    assert pairs.policy_actions.shape[2] == 1 + pairs.n_dims - 2


@every_mix
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", [None, (), (2,)], ids=["discrete", "number", "vector"])
def test_logged_pairs_of_the_policy_that_made_the_data(mix, seed, shape):
    """The logged action is its action; the transition into the last state of a truncated segment is dropped."""
    data = with_actions(mix, seed, shape)
    pairs = logged_pairs(data, DISCRETE if shape is None else ContinuousActions(shape))
    if not naive_pairs(data, keeps_ends=False):
        assert pairs is None
        return
    assert pairs is not None and data.actions is not None
    taken = np.asarray(data.actions, dtype=float).reshape(len(data), -1)
    chosen = np.concatenate([np.ones((len(data), 1)), taken], axis=1)[:, None]
    # what follows is asked of transitions only: nothing follows a terminal state, whose action is arbitrary
    assert_pairs(pairs, data, keeps_ends=False, chosen=chosen)


@every_mix
@pytest.mark.parametrize("policy", [towards, towards_all, Predicts()], ids=["one", "batched", "predict"])
def test_logged_pairs_of_a_deterministic_policy(mix, policy):
    data = with_actions(mix)
    pairs = logged_pairs(data, DISCRETE, policy)
    assert pairs is not None
    chosen = np.array([[[1.0, towards(x)]] for x in data.states])
    assert_pairs(pairs, data, keeps_ends=True, chosen=chosen)


@every_mix
def test_logged_pairs_of_a_policy_that_tells_probabilities(mix):
    data = with_actions(mix)
    pairs = logged_pairs(data, DISCRETE, Softmax())
    assert pairs is not None
    chosen = []
    for x in data.states:
        weights = [np.exp(a * x[0]) for a in range(N_ACTIONS)]
        chosen.append([[w / sum(weights), a] for a, w in enumerate(weights)])
    assert_pairs(pairs, data, keeps_ends=True, chosen=np.array(chosen))


@pytest.mark.parametrize("shape", [None, (), (2,)], ids=["discrete", "number", "vector"])
def test_logged_pairs_of_a_policy_that_answers_differently(shape):
    """Samples of equal weight, all of them answers that it gave."""
    data, dice = with_actions("targets and runs", shape=shape), Dice(shape=shape)
    pairs = logged_pairs(data, DISCRETE if shape is None else ContinuousActions(shape), dice)
    assert pairs is not None and pairs.policy_actions is not None
    found = pairs.policy_actions
    assert found.shape[1] == N_SAMPLES
    assert_allclose(found[:, :, 0], 1.0 / N_SAMPLES)
    answers = np.array(dice.answers).reshape(len(dice.answers), len(data), -1)  # [asked, n, n_columns]
    for i in range(len(data)):
        for sampled in found[i, :, 1:]:
            assert (answers[:, i] == sampled).all(axis=1).any()
    assert len(np.unique(found[:, :, 1:].reshape(-1, found.shape[2] - 1), axis=0)) > 1


def test_policy_actions_average_to_the_probabilities_of_a_sampled_policy():
    found = policy_actions(Dice(), np.zeros((3000, 2)), DISCRETE)
    shares = [found[:, :, 0][found[:, :, 1] == a].sum() / 3000 for a in range(N_ACTIONS)]
    assert_allclose(shares, 1.0 / N_ACTIONS, atol=5 * np.sqrt(2 / 9 / (3000 * N_SAMPLES)))


def test_policy_actions_takes_rounding_for_the_same_answer():
    calls = iter([1.0, 1.0 + 1e-9])
    found = policy_actions(lambda x: next(calls), np.zeros((1, 2)), ContinuousActions(()))
    assert_allclose(found, [[[1.0, 1.0]]])


def test_policy_actions_asks_for_actions_where_probabilities_would_be_densities():
    """Probabilities are of discrete actions: a policy of continuous ones is asked what it does."""

    class Both(Softmax):
        def predict(self, observations: np.ndarray, deterministic: bool = False) -> tuple[np.ndarray, None]:
            return observations[:, 0], None

    found = policy_actions(Both(), ASKED, ContinuousActions(()))
    assert_allclose(found, np.column_stack([np.ones(9), ASKED[:, 0]])[:, None])


def test_policy_actions_makes_probabilities_sum_to_one_exactly():
    """A policy in single precision misses 1 by a little: that is no error, and Q is no larger for it."""
    rough = np.array([0.2, 0.3, 0.5], dtype=np.float32) * np.float32(1.00001)
    found = policy_actions(Answers(rough), ASKED[:1], DISCRETE)  # type: ignore[arg-type]
    assert abs(found[0, :, 0].sum() - 1.0) < 1e-15
    assert_allclose(found[0, :, 0], [0.2, 0.3, 0.5], rtol=1e-6)


def test_logged_pairs_obey_the_rules_of_trajectories():
    for mix in MIXES:
        data = with_actions(mix)
        for policy in (None, towards):
            pairs = logged_pairs(data, DISCRETE, policy)
            if pairs is not None:
                Trajectories(**pairs._fields())  # checks


def test_logged_pairs_leave_the_data_as_they_are():
    data = with_actions("mixed")
    before = {name: None if a is None else a.copy() for name, a in data._fields().items()}
    logged_pairs(data, DISCRETE)
    logged_pairs(data, DISCRETE, towards)
    for name, array in data._fields().items():
        assert_array_equal(array, before[name], err_msg=name)


# ------------------------------------------------------------------------------------------ errors


def assert_one_line(error: Any) -> None:
    assert "\n" not in str(error.value)


def test_logged_pairs_need_actions():
    with pytest.raises(ValueError, match="the data have no actions, and Q needs them") as error:
        logged_pairs(sample(MIXES["mixed"]), DISCRETE)
    assert_one_line(error)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[0.5, 0.5]], r"must have shape \(1, 3\).*got \(1, 2\)\. GPTDQ\(n_actions=…\)"),
        ([0.5, 0.2, 0.3], r"must have shape \(1, 3\).*got \(3,\)"),
        ([[1.0, 0.0, 0.0]] * 2, r"must have shape \(1, 3\).*got \(2, 3\)"),
        ([[-0.1, 0.6, 0.5]], r"at least 0 and sum to 1 in each state; in state 0 they are \[-0.1  0.6  0.5\]"),
        ([[0.2, 0.2, 0.2]], r"sum to 1 in each state; in state 0 .* with sum 0\.6\."),
        ([[0.0, 0.0, 0.0]], r"with sum 0\."),
        ([[np.nan, 0.5, 0.5]], r"in state 0 they are \[nan 0.5 0.5\], with sum nan\."),
        ([[np.inf, 0.0, 0.0]], r"in state 0 they are \[inf"),
    ],
    ids=["too few", "flat", "too many states", "negative", "small", "zero", "nan", "inf"],
)
def test_policy_actions_names_bad_probabilities(rows, text):
    with pytest.raises(ValueError, match=text) as error:
        policy_actions(Answers(*rows), ASKED[:1], DISCRETE)  # type: ignore[arg-type]
    assert_one_line(error)


def test_policy_actions_names_the_state_of_bad_probabilities():
    rows = np.tile([0.2, 0.3, 0.5], (9, 1))
    rows[4] *= 0.5
    with pytest.raises(ValueError, match=r"in state 4 they are \[0.1  0.15 0.25\], with sum 0\.5\."):
        policy_actions(Answers(*rows), ASKED, DISCRETE)  # type: ignore[arg-type]


def test_policy_actions_of_many_actions_fail_in_one_line():
    """NumPy breaks the print of a long row."""
    rows = np.full((1, 60), 0.123456789)
    with pytest.raises(ValueError, match="sum to 1") as error:
        policy_actions(Answers(*rows), ASKED[:1], DiscreteActions(60))  # type: ignore[arg-type]
    assert_one_line(error)


@pytest.mark.parametrize(("answer", "text"), [(3, r"actions\[0\] is 3, but the 3 actions are 0 to 2"), (-1, "is -1")])
def test_policy_actions_outside_of_the_data(answer, text):
    with pytest.raises(ValueError, match=text) as error:
        policy_actions(lambda x: answer, ASKED, DISCRETE)
    assert_one_line(error)
    with pytest.raises(ValueError, match=text):
        GPTDQ(n_restarts=0).fit(with_actions("mixed"), policy=lambda x: answer)


@pytest.mark.parametrize(
    ("policy", "actions", "error"),
    [
        (lambda x: 0.5, DISCRETE, ValueError),
        (lambda x: "left", DISCRETE, TypeError),
        (lambda x: [0.0, 1.0], ContinuousActions(()), ValueError),
        (lambda x: np.nan, ContinuousActions(()), ValueError),
        ("left", DISCRETE, TypeError),
        (Answers, ContinuousActions(()), TypeError),
    ],
    ids=["half", "word", "two numbers", "nan", "no policy", "a class"],
)
def test_policy_actions_refuses_answers_that_are_no_actions(policy, actions, error):
    with pytest.raises(error) as caught:
        policy_actions(policy, ASKED, actions)
    assert_one_line(caught)


# ------------------------------------------------------------------------------------------ parts and copies


def softmax_pairs() -> Trajectories:
    pairs = logged_pairs(with_actions("targets and runs"), DISCRETE, Softmax())
    assert pairs is not None
    return pairs


PAIRS = softmax_pairs()


def choices_of(data: Trajectories) -> np.ndarray:
    assert data.policy_actions is not None
    return data.policy_actions


def assert_own_choices(data: Trajectories) -> None:
    """Every state still has what the policy does in it, by its first input."""
    for x, chosen in zip(data.states, choices_of(data), strict=True):
        weights = np.exp(x[0] * np.arange(N_ACTIONS))
        assert_allclose(chosen, np.column_stack([weights / weights.sum(), np.arange(N_ACTIONS)]), rtol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d[1],
        lambda d: d[1:4],
        lambda d: d[[4, 0, 3]],
        lambda d: d[np.array([True, False, True, False, True])],
        lambda d: d.cut(1),
        lambda d: d.cut(2),
        lambda d: d.thin(2, 1),
        lambda d: d + d[[0, 2]],
        lambda d: Trajectories.concatenate(list(d)),
        lambda d: pickle.loads(pickle.dumps(d)),
        lambda d: d.take_inputs([0, 2]),
        lambda d: subtract_mean(d, lambda pairs: np.sin(pairs).sum(axis=1)),
    ],
    ids=["one", "slice", "numbers", "mask", "cut1", "cut2", "thin", "add", "join", "pickle", "inputs", "mean"],
)
def test_policy_actions_stay_with_their_states(change):
    changed = change(PAIRS)
    assert_own_choices(changed)
    assert choices_of(changed).shape[1:] == (N_ACTIONS, 2)
    with pytest.raises(ValueError, match="read-only"):
        choices_of(changed)[0] = 0.0


def test_policy_actions_there_and_back(tmp_path):
    again = Trajectories.load(PAIRS.save(tmp_path / "pairs.npz"))
    for name, array in PAIRS._fields().items():
        assert_array_equal(getattr(again, name), array, err_msg=name)


def test_trajectories_concatenate_of_policies_with_more_and_fewer_choices():
    """A policy that seemed deterministic in one shard: what it does not choose has no weight."""
    one = logged_pairs(with_actions("mixed"), DISCRETE, towards)
    assert one is not None
    joined = one + PAIRS
    found = Transitions.of(joined)

    def q(pairs: np.ndarray) -> np.ndarray:
        return np.sin(pairs @ [1.0, 2.0, 3.0])

    apart = [Transitions.of(part) for part in (one, PAIRS)]
    expected = np.concatenate([part.difference(q(part.points)) for part in apart])
    assert_allclose(found.difference(q(found.points)), expected, rtol=1e-12)
    assert found.successors.nnz == sum(part.successors.nnz for part in apart)
    assert_allclose(choices_of(joined)[:, :, 0].sum(axis=1), 1.0)


def test_trajectories_concatenate_refuses_pairs_without_a_policy():
    plain = Trajectories(**(PAIRS._fields() | dict(policy_actions=None)))
    with pytest.raises(ValueError, match="cannot join trajectories with actions to trajectories without"):
        PAIRS + plain


@pytest.mark.parametrize("shape", [(3, 2), (len(PAIRS) - 1, 3, 2)])
def test_trajectories_check_the_shape_of_policy_actions(shape):
    with pytest.raises(ValueError, match=r"policy_actions must have shape \(\d+, n_choices, 1 \+ n_columns\)"):
        Trajectories(**(PAIRS._fields() | dict(policy_actions=np.zeros(shape))))
