"""The pool of policies: who acts next, and which policy is the incumbent."""

from typing import Any

import numpy as np

from gptd_rl.agents.policy_pool import (
    MAX_POLICIES,
    MIN_EPISODES,
    N_RECENT,
    SHORTFALL_TOLERANCE,
    Episode,
    EpisodeState,
    NewestQ,
    PolicyPool,
    PolicyRecord,
)


def no_value(starts: np.ndarray) -> np.ndarray:
    return np.zeros((len(starts), 1))


def first_coordinate(starts: np.ndarray) -> np.ndarray:
    return starts[:, :1]


def episode(total: float, start: float = 0.0, met_prediction: bool = True) -> Episode:
    return Episode(total, np.array([start]), met_prediction)


def policy() -> Any:
    """The pool does not evaluate the Q-functions of policies, it only compares them."""
    return object()


def make_pool(value: Any = no_value) -> PolicyPool:
    """A pool whose newest Q has this value function."""
    pool = PolicyPool()
    pool.newest_q = NewestQ(value, policy(), 0.0)
    return pool


def chosen(pool: PolicyPool, n: int) -> list[Any]:
    """Q-functions of the next policies, without episodes in between."""
    return [record.q for record in (pool.choose() for _ in range(n)) if record is not None]


def add(pool: PolicyPool, record: PolicyRecord | None, *totals: float) -> None:
    for total in totals:
        pool.add_episode(record, episode(total))


def test_incumbent_is_the_newest_while_all_returns_are_equal():
    pool = make_pool()
    for _ in range(10):
        add(pool, PolicyRecord(policy()), -5.0)
        assert pool.incumbent is pool.newest
    assert pool.newest.returns_since_selection == [-5.0] * N_RECENT


def test_incumbent_is_the_newest_while_differences_may_be_chance():
    rng = np.random.default_rng(0)
    is_newest = []
    for _ in range(40):
        pool = make_pool()
        for _ in range(12):
            add(pool, PolicyRecord(policy()), *rng.normal(size=3))
        is_newest.append(pool.incumbent is pool.newest)
    assert np.mean(is_newest) > 0.7


def test_incumbent_is_a_policy_with_much_larger_returns():
    pool, rng, good = make_pool(), np.random.default_rng(0), PolicyRecord(policy())
    for _ in range(3):
        add(pool, PolicyRecord(policy()), rng.normal(0.0, 1.0))
    add(pool, good, *rng.normal(100.0, 1.0, size=4))
    for _ in range(N_RECENT):  # newer ones are no better than the first
        add(pool, PolicyRecord(policy()), rng.normal(0.0, 1.0))
    assert pool.incumbent is good
    assert pool.incumbent.q is good.q


def pool_with_incumbent() -> tuple[PolicyPool, PolicyRecord]:
    pool, good = make_pool(), PolicyRecord(policy())
    for _ in range(3):
        add(pool, PolicyRecord(policy()), 0.0, 1.0)
    add(pool, good, 100.0, 101.0, 99.0)
    for _ in range(N_RECENT):
        add(pool, PolicyRecord(policy()), 0.0, 1.0)
    assert pool.incumbent is good
    return pool, good


def test_incumbent_whose_returns_drop_is_replaced_by_the_newest():
    pool, good = pool_with_incumbent()
    add(pool, good, *[-500.0] * 6)
    assert pool.incumbent is pool.newest


def test_returns_since_selection_leave_out_those_that_led_to_it():
    pool, good = make_pool(), PolicyRecord(policy())
    for _ in range(6):
        add(pool, PolicyRecord(policy()), 0.0)
    add(pool, good, 100.0, 90.0)
    for _ in range(N_RECENT):
        add(pool, PolicyRecord(policy()), 1.0)
    assert pool.incumbent is good
    assert good.returns_since_selection == []
    add(pool, good, 80.0, 70.0)
    assert pool.incumbent is good
    assert good.returns_since_selection == [80.0, 70.0]
    assert good.mean == 85.0


def test_returns_since_selection_of_the_newest_start_again_when_it_is_selected_again():
    pool, good = pool_with_incumbent()
    add(pool, good, *[-500.0] * 6)
    assert pool.incumbent is pool.newest and pool.newest.returns_since_selection == []
    add(pool, PolicyRecord(policy()), 2.0)
    add(pool, PolicyRecord(policy()), 3.0)
    assert pool.incumbent is pool.newest
    assert pool.newest.returns_since_selection == [2.0, 3.0]


def test_newest_is_judged_by_its_last_episodes_and_by_those_of_switched_policies():
    pool = make_pool()
    add(pool, PolicyRecord(policy()), 1.0)
    add(pool, None, *[float(i) for i in range(2, 9)])
    assert [e.total for e in pool.newest.episodes] == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert len(pool.records) == 1


def test_further_episodes_of_a_policy_do_not_count_for_the_newest():
    pool, old = make_pool(), PolicyRecord(policy())
    add(pool, old, 1.0, 2.0, 3.0)
    assert len(pool.records) == 1 and pool.records[0] is old
    assert [e.total for e in old.episodes] == [1.0, 2.0, 3.0]
    assert [e.total for e in pool.newest.episodes] == [1.0]


def test_choose_repeats_the_policy_with_the_best_mean_until_it_has_enough_episodes():
    pool, leader = make_pool(), PolicyRecord(policy())
    add(pool, PolicyRecord(policy()), 0.0)
    add(pool, leader, 10.0)
    add(pool, PolicyRecord(policy()), 0.0)
    for n in range(1, MIN_EPISODES):
        assert len(leader.episodes) == n
        assert pool.choose() is leader
        add(pool, leader, 10.0)
    assert leader.q not in chosen(pool, 4)


def test_choose_explores_where_predictions_are_missed():
    pool = make_pool()
    assert pool.newest_q is not None
    mean, sample = pool.newest_q.mean, pool.newest_q.sample
    pool.add_episode(PolicyRecord(policy()), episode(10.0, met_prediction=False))
    assert chosen(pool, 4) == [sample] * 4
    pool.add_episode(PolicyRecord(policy()), episode(0.0, met_prediction=True))
    both = chosen(pool, 4)
    assert both.count(mean) == both.count(sample) == 2  # every second episode explores in any case


def test_choose_takes_a_sample_before_the_first_episode():
    pool = make_pool()
    assert pool.newest_q is not None and chosen(pool, 1) == [pool.newest_q.sample]


def test_choose_is_random_before_the_first_improvement():
    assert PolicyPool().choose() is None


def test_choose_continues_the_record_of_a_policy_that_is_still_the_newest():
    pool = make_pool()
    record = pool.choose()
    add(pool, record, *[0.0] * MIN_EPISODES)
    assert record in [pool.choose() for _ in range(2)]


def test_incumbent_is_not_selected_for_its_start_states():
    """Returns are the value of the start, and one policy only starts in valuable states."""
    q, starts = [policy() for _ in range(8)], np.random.default_rng(0).uniform(0.0, 10.0, size=8)

    def run(pool: PolicyPool) -> PolicyRecord:
        fortunate = PolicyRecord(policy())
        for each, start in zip(q, starts, strict=True):
            pool.add_episode(PolicyRecord(each), episode(start, start))
        for start in (99.0, 100.0, 101.0):
            pool.add_episode(fortunate, episode(start, start))
        for each, start in zip(q, starts, strict=True):
            pool.add_episode(PolicyRecord(each), episode(start, start))
        return fortunate

    pool = make_pool(first_coordinate)
    run(pool)
    assert pool.incumbent is pool.newest
    unaware = make_pool()
    assert run(unaware) is unaware.incumbent  # without a value function


def test_incumbent_is_found_in_spite_of_its_start_states():
    pool, rng, good = make_pool(first_coordinate), np.random.default_rng(0), PolicyRecord(policy())
    for _ in range(8):
        start = rng.uniform(0.0, 1000.0)
        pool.add_episode(PolicyRecord(policy()), episode(start + rng.normal(), start))
    for _ in range(4):
        start = rng.uniform(0.0, 1000.0)
        pool.add_episode(good, episode(start + 30.0 + rng.normal(), start))
    for _ in range(N_RECENT):
        start = rng.uniform(0.0, 1000.0)
        pool.add_episode(PolicyRecord(policy()), episode(start + rng.normal(), start))
    assert pool.incumbent is good


def test_pool_drops_the_worst_policies_but_not_the_incumbent():
    pool, good = make_pool(), PolicyRecord(policy())
    for _ in range(3):
        add(pool, PolicyRecord(policy()), 0.0)
    add(pool, good, *[100.0] * 3)
    for i in range(2 * MAX_POLICIES):
        add(pool, PolicyRecord(policy()), float(i % 3))
    assert len(pool.records) <= MAX_POLICIES + 1
    assert good in pool.records and pool.incumbent is good


def test_shortfall_compares_the_return_with_the_prediction():
    q: Any = first_coordinate  # V(x) = x
    running = EpisodeState(PolicyRecord(q), np.array([10.0]))
    running.add_reward(1.0, 0.5)
    running.add_reward(2.0, 0.5)
    assert running.total == 3.0
    # V(x₀) − (r₀ + γr₁ + γ²V(x₂))
    assert running.shortfall(np.array([8.0])) == 10.0 - (1.0 + 0.5 * 2.0 + 0.25 * 8.0)
    running.add_reward(4.0, 0.0)
    assert running.shortfall(np.array([8.0])) == 10.0 - (1.0 + 0.5 * 2.0 + 0.25 * 4.0)
    assert EpisodeState(None, np.array([10.0])).shortfall(np.array([8.0])) == np.inf


def test_newest_q_has_a_tolerance_in_units_of_the_targets():
    q: Any = first_coordinate
    assert NewestQ.of(q, q, np.array([0.0, 20.0])).tolerance == SHORTFALL_TOLERANCE * 10.0
