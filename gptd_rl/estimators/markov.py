"""A test of the Markov property: whether the observations tell all that matters for what comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.overidentification import (
    Neighbours,
    OveridentificationTest,
    Regressions,
    Restrictions,
    instrument_statistics,
    products,
    restrictions,
)
from gptd_rl.inference.witnesses import Instruments, Steps
from gptd_rl.sharding.dataset import ShardedDataset, open_dataset
from gptd_rl.sharding.summary import PIECE, contiguous_sample, summarize
from gptd_rl.temporal.shards import Shard
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, DataLike

# States in the sample that scales, features and neighbours come from.
SAMPLE_SIZE = 4000

# With fewer steps that have a past, the test says nothing.
FEWEST_STEPS = 30

# Level of the test in the sentence it prints.
LEVEL = 0.01

# Sums a function of trajectories and further arguments over all data.
Sum = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class MarkovTest:
    """Result of `markov_test`.

    Attributes
    ----------
    statistic : float
        J, how far TD errors are from being uncorrelated with what happened before.
    dof : int
        Restrictions that were tested: at most two per input. 0 if the state explains the past of every input, or if
        there are no TD errors to explain; then `statistic` is 0 and `pvalue` 1.
    pvalue : float
        Probability of such a statistic if the observations tell all. 1 where the data are too few to say anything.
    n_effective : float
        Steps that carry the result, counted as if all carried alike.
    input_statistics, input_pvalues : ndarray of shape (n_dims,)
        The same of each input by itself.
    input : int or None
        The input whose recent change predicts best what the state does not; None if no input does.
    n_steps : int
        Transitions with a transition before.
    """

    statistic: float
    dof: int
    pvalue: float
    n_effective: float
    input_statistics: Array
    input_pvalues: Array
    input: int | None
    n_steps: int

    @property
    def is_rejected(self) -> bool:
        """Whether the data speak against the Markov property, at the level of 1 %."""
        return self.input is not None and self.n_steps >= FEWEST_STEPS and self.pvalue < LEVEL

    def summary(self, names: Sequence[str] | None = None) -> str:
        """What the test found, in two sentences, and what to try; `names` are those of the inputs."""
        found = f"p = {self.pvalue:.2g} from {self.n_steps} steps"
        if self.n_steps < FEWEST_STEPS:
            return (
                "The data are too few to say whether the observations tell all that matters for what comes next: "
                f"{self.n_steps} steps have one before them, and it wants {FEWEST_STEPS}. Collect more or longer runs."
            )
        if self.input is None:
            return (
                "Nothing speaks against the observations telling all that matters for what comes next: what happened "
                "before follows from them, or nothing is left to explain. That is no proof."
            )
        if not self.is_rejected:
            return (
                f"Nothing speaks against the observations telling all that matters for what comes next ({found}). That "
                "is no proof: more data may show more."
            )
        name = f"input {self.input}" if names is None else names[self.input]
        return (
            f"The observations do not tell all that matters for what comes next ({found}): the latest change of {name} "
            "predicts rewards or next states better than the observation alone. Stack frames, add the velocity or the "
            "difference to the last observation, or the state of a recurrent policy."
        )

    def __str__(self) -> str:
        return self.summary()


def markov_test(data: DataLike, *, gamma: float | None = None, executor: Any = None) -> MarkovTest:
    """Test whether the observations tell all that matters for what comes next (the Markov property).

    If they do, TD errors are uncorrelated with anything that happened before, once what the current state says about it
    is taken away (`gptd_rl.inference.overidentification`). The test looks for a correlation with the change of each
    input since the last step: a hidden velocity is exactly that. Nothing has to be fitted before.

    Parameters
    ----------
    data : Trajectories, path, Minari dataset, or an iterable of these
        As for `GPTD.fit`. All transitions must be of one policy, one that acts by the observations alone: whatever else
        it acts by is hidden, too. Actions are not looked at.
    gamma : float, optional
        Discount, for Minari datasets that do not keep it.
    executor : concurrent.futures.Executor or Dask client, optional
        Where shards are worked on.

    Returns
    -------
    MarkovTest
        `pvalue`, `statistic`, `input` and others; `print(test)` says what they mean and what to try.

    Notes
    -----
    A small p-value says that something is hidden, not what. A large one does not say that nothing is: what is hidden
    may have left no trace in the latest changes, or one too weak to be told from errors of fit: more than 2 000 steps
    make the estimate better, but count as 2 000, and as 250 where TD errors are next to nothing beside the values, as
    in a deterministic system. The result does not depend on how data are cut into shards.

    Examples
    --------
    A point that keeps its speed for a while, seen with and without it:

    >>> rng = np.random.default_rng(0)
    >>> episodes = []
    >>> for _ in range(20):
    ...     speed = np.zeros(51)
    ...     for t in range(50):
    ...         speed[t + 1] = 0.8 * speed[t] + rng.normal()
    ...     place = np.sin(np.cumsum(0.3 * np.r_[0.0, speed[:-1]]))
    ...     states = np.column_stack([place, np.cos(np.cumsum(0.3 * np.r_[0.0, speed[:-1]])), speed])
    ...     episodes.append(dict(observations=states, rewards=place[:-1]))
    >>> data = Trajectories.from_episodes(episodes, gamma=0.9)
    >>> markov_test(data).pvalue > 0.05
    True
    >>> markov_test(data.take_inputs([0, 1])).pvalue < 1e-3
    True
    """
    if isinstance(data, Trajectories) and len(data) <= SAMPLE_SIZE:
        return _test(data.cut(PIECE))
    try:
        dataset = open_dataset(data, "stochastic", gamma, executor)
    except TypeError as error:
        raise TypeError(str(error).replace("fit expects", "markov_test expects")) from None
    return markov_test_of_shards(dataset)


def markov_test_of_shards(dataset: ShardedDataset) -> MarkovTest:
    """The same for data that are open already: a sample, and two passes over all shards if it is not all there is."""
    dataset = dataset.changed(noise="stochastic")  # whole segments
    summary = summarize(dataset, limit=1)
    sample = contiguous_sample(dataset, summary, SAMPLE_SIZE)
    if summary.n_states <= SAMPLE_SIZE:
        return _test(sample)
    return _test(sample, lambda function, *arguments: dataset.sum(_on_shard, function, *arguments))


def _on_shard(shard: Shard, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(shard.data, *arguments)


@one_blas_thread()
def _test(sample: Trajectories, total: Sum | None = None) -> MarkovTest:
    """Test with scales, features and neighbours from a sample; `total` sums over all data if these are more."""
    steps = Steps.of(sample)
    if not len(steps):
        raise ValueError("markov_test needs transitions; got regression targets only (segments of one state).")
    if total is None and steps.has_past.sum() < FEWEST_STEPS:
        nothing, ones = np.zeros(sample.n_dims), np.ones(sample.n_dims)
        return MarkovTest(0.0, 0, 1.0, 0.0, nothing, ones, None, int(steps.has_past.sum()))
    instruments = Instruments.of(steps)
    known = instrument_statistics(sample, instruments) if total is None else total(instrument_statistics, instruments)
    regressions = Regressions.of(known)
    neighbours = Neighbours.of(steps, instruments, regressions)
    a = products(steps, instruments, regressions, neighbours)
    if total is None:
        return _result(Restrictions.of(a, steps), regressions, a)
    return _result(total(restrictions, instruments, regressions, neighbours), regressions, a)


def _result(sums: Restrictions, regressions: Regressions, sample: Array) -> MarkovTest:
    k = len(regressions.shares)
    says = regressions.counted & regressions.has_errors & (sums.n_past >= FEWEST_STEPS)  # [k]
    groups = [*np.arange(k).reshape(2, -1).T, np.arange(k)]  # the witnesses of each input, and all
    most = regressions.most_steps
    *by_input, joint = [OveridentificationTest.of(sums, group[says[group]], sample, most) for group in groups]
    pvalues = np.array([test.pvalue for test in by_input])
    return MarkovTest(
        joint.statistic,
        joint.dof,
        joint.pvalue,
        joint.n_effective,
        np.array([test.statistic for test in by_input]),
        pvalues,
        int(pvalues.argmin()) if joint.dof else None,
        sums.n_past,
    )
