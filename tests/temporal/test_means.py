"""Prior means: V = m + f, so that r − H m = H f + noise."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.actions import DiscreteActions
from gptd_rl.data.logged_pairs import logged_pairs
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.temporal.means import check_mean, evaluate_mean, subtract_mean, values_at


def two_segments() -> Trajectories:
    """One terminated, one truncated."""
    return Trajectories(
        states=np.arange(5.0)[:, None],
        rewards=np.array([1.0, 2.0, 0.0, 3.0, 0.0]),
        discounts=np.array([0.9, 0.9, 0.0, 0.5, 0.0]),
        lengths=np.array([3, 2]),
        terminated=np.array([True, False]),
    )


def quadratic(states: np.ndarray) -> np.ndarray:
    return 1.0 + states[:, 0] ** 2


def test_values_at_is_zero_at_terminal_states_only() -> None:
    assert_array_equal(values_at(quadratic, two_segments()), [1.0, 2.0, 0.0, 10.0, 17.0])
    assert_array_equal(values_at(3.0, two_segments()), [3.0, 3.0, 0.0, 3.0, 3.0])
    assert_array_equal(values_at(None, two_segments()), np.zeros(5))


def test_values_at_zeroes_every_row_of_a_terminal_state() -> None:
    assert_array_equal(values_at(3.0, two_segments(), n_terminal=2), [3.0, 0.0, 0.0, 3.0, 3.0])


def test_subtract_mean_against_a_dense_h() -> None:
    data = two_segments()
    H = TemporalDifference.of(data).sparse().toarray()
    expected = data.rewards[data.has_row] - H @ values_at(quadratic, data)
    found = subtract_mean(data, quadratic)
    assert_allclose(found.rewards[data.has_row], expected)
    assert_array_equal(found.rewards[~data.has_row], 0.0)
    assert_array_equal(found.states, data.states)
    assert_array_equal(found.discounts, data.discounts)


def test_subtract_mean_of_a_function_that_is_v_leaves_nothing() -> None:
    walk = dict(observations=np.arange(4.0)[:, None], rewards=-np.ones(3), terminated=True)
    data = Trajectories.from_episodes([walk], gamma=1.0)
    assert_allclose(subtract_mean(data, lambda x: x[:, 0] - 3.0).rewards, 0.0, atol=1e-15)


def test_subtract_mean_keeps_the_mean_at_regression_targets() -> None:
    target = Trajectories._trusted(
        states=np.array([[2.0]]),
        rewards=np.array([7.0]),
        discounts=np.zeros(1),
        lengths=np.array([1]),
        terminated=np.array([True]),
        actions=None,
    )
    assert_allclose(subtract_mean(target, quadratic).rewards, [2.0])  # V(x) = 7 is f(x) = 7 − 5


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        ("critic", TypeError, "mean must be None, a number, or a function of states; got str."),
        (True, TypeError, "got bool"),
        ([1.0], TypeError, "got list"),
        (np.nan, ValueError, "mean must be finite; got nan."),
        (np.inf, ValueError, "mean must be finite; got inf."),
    ],
)
def test_check_mean_names_what_came(mean: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_mean(mean)


@pytest.mark.parametrize("mean", [None, 0, 1.5, np.float32(2), np.int64(3), quadratic])
def test_check_mean_takes_numbers_and_functions(mean: object) -> None:
    check_mean(mean)


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (lambda x: x, ValueError, r"one number for each of 3 states, shape \(3,\); got shape \(3, 1\)\."),
        (lambda x: 1.0, ValueError, r"got shape \(\)"),
        (lambda x: np.log(x[:, 0]), ValueError, "finite values; it returned -inf for state 0"),
        (lambda x: ["a"] * len(x), ValueError, "mean must return numbers: could not convert"),
        (lambda x: None, ValueError, r"got shape \(\)"),
    ],
)
def test_evaluate_mean_names_bad_answers(mean: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text), np.errstate(divide="ignore"):
        evaluate_mean(mean, np.arange(3.0)[:, None])  # type: ignore[arg-type]


def test_evaluate_mean_does_not_ask_about_no_states() -> None:
    assert evaluate_mean(lambda x: 1 / 0, np.zeros((0, 2))).shape == (0,)


# ------------------------------------------------------------------------------------------ logged pairs


def critic(pairs: np.ndarray) -> np.ndarray:
    return np.sin(pairs[:, 0]) + pairs[:, 1] * (1.0 + pairs[:, 2])


class Lazy:
    """A stochastic policy of two actions."""

    def action_probabilities(self, states: np.ndarray) -> np.ndarray:
        up = 1.0 / (1.0 + np.exp(-states[:, 0]))
        return np.column_stack([1.0 - up, up])


def pairs_of(policy: object) -> tuple[Trajectories, Trajectories]:
    """Regression targets, terminated and truncated segments with actions, and their pairs."""
    rng = np.random.default_rng(0)
    lengths, terminated = np.array([1, 5, 4, 3, 2]), np.array([True, True, False, True, False])
    last = np.cumsum(lengths) - 1
    rewards, discounts = rng.normal(size=15), rng.uniform(0.5, 1.0, size=15)
    discounts[last] = rewards[last[1:]] = 0.0
    actions = rng.integers(2, size=15)
    actions[last[1:]] = 0
    data = Trajectories(rng.normal(size=(15, 2)), rewards, discounts, lengths, terminated, actions)
    pairs = logged_pairs(data, DiscreteActions(2), policy)  # type: ignore[arg-type]
    assert pairs is not None
    return data, pairs


@pytest.mark.parametrize("policy", [Lazy(), lambda x: int(x[1] > 0)], ids=["stochastic", "deterministic"])
def test_subtract_mean_of_logged_pairs_by_a_loop(policy) -> None:
    """The reward becomes r − m(x, a) + γ Σ π(a'|x') m(x', a'), without what follows a terminal state."""
    data, pairs = pairs_of(policy)

    def m(x: np.ndarray, a: int) -> float:
        return float(critic(np.array([[*x, a]]))[0])

    def follows(x: np.ndarray) -> float:
        if not isinstance(policy, Lazy):
            return m(x, policy(x))
        return sum(p * m(x, a) for a, p in enumerate(policy.action_probabilities(x[None])[0]))

    assert data.actions is not None
    expected = np.zeros(len(data))
    for start, length, terminated in zip(data.starts, data.lengths, data.terminated, strict=True):
        for i in range(start, start + max(1, length - 1)):
            into_terminal = terminated and i + 2 == start + length
            expected[i] = data.rewards[i] - m(data.states[i], int(data.actions[i]))
            if length > 1 and not into_terminal:
                expected[i] += data.discounts[i] * follows(data.states[i + 1])
    found = subtract_mean(pairs, critic)
    assert_allclose(found.rewards, expected, rtol=1e-12, atol=1e-14)
    assert_array_equal(found.states, pairs.states)
    assert_allclose(subtract_mean(pairs, None).rewards, pairs.rewards)


def test_subtract_mean_of_the_logging_policy_is_r_minus_h_m() -> None:
    """Without a policy the next pair follows: the same as for states, segment by segment."""
    _, pairs = pairs_of(None)
    plain = Trajectories(pairs.states, pairs.rewards, pairs.discounts, pairs.lengths, pairs.terminated)
    assert_allclose(subtract_mean(pairs, critic).rewards, subtract_mean(plain, critic).rewards, rtol=1e-12, atol=1e-14)


def test_subtract_mean_of_the_q_of_the_policy_leaves_nothing() -> None:
    """Q of a walk that always goes on is −(3 − x): no reward is left, whatever the data did."""
    walk = dict(observations=[[0.0], [0.0], [1.0], [2.0], [2.0], [3.0]], actions=[0, 1, 1, 0, 1], rewards=-np.ones(5))
    data = Trajectories.from_episodes([walk | dict(terminated=True)], gamma=1.0)
    pairs = logged_pairs(data, DiscreteActions(2), lambda x: 1)
    assert pairs is not None
    q = lambda rows: rows[:, 0] - 3.0 - (rows[:, 1] == 0)  # noqa: E731
    assert_allclose(subtract_mean(pairs, q).rewards, 0.0, atol=1e-15)
