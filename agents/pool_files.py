"""A pool of policies as plain data and arrays for a file: each Q-function once, policies by its number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from gptd_rl.agents.policy_pool import Episode, NewestQ, PolicyPool, PolicyRecord, StateValues
from gptd_rl.agents.trial_pool import TrialPool
from gptd_rl.checks import as_numbers
from gptd_rl.inference.by_action import QFunction
from gptd_rl.kernels import registry


@dataclass(eq=False)
class QTable:
    """Numbered Q-functions."""

    functions: list[QFunction] = field(default_factory=list)

    def add(self, values: StateValues | None) -> int | None:
        """Number of a Q-function; None of None."""
        if values is None:
            return None
        assert isinstance(values, QFunction)
        for number, known in enumerate(self.functions):
            if known is values:
                return number
        self.functions.append(values)
        return len(self.functions) - 1

    def get(self, number: int | None) -> QFunction | None:
        """The Q-function of a number."""
        return None if number is None else self.functions[number]

    @property
    def descriptions(self) -> list[dict[str, Any]]:
        """Kernels and prior means."""
        return [dict(kernel=registry.describe(q.kernel), prior_mean=q.prior_mean) for q in self.functions]

    @property
    def arrays(self) -> dict[str, Any]:
        """Inducing states and weights by name."""
        points = {f"q{i}_inducing_points": q.inducing_points for i, q in enumerate(self.functions)}
        return points | {f"q{i}_weights": q.weights for i, q in enumerate(self.functions)}

    @classmethod
    def restored(cls, descriptions: list[dict[str, Any]], arrays: Mapping[str, Any], n_actions: int) -> QTable:
        """The table again."""
        functions = []
        for i, kept in enumerate(descriptions):
            points, weights = arrays[f"q{i}_inducing_points"], arrays[f"q{i}_weights"]
            kernel = registry.build(kept["kernel"])
            functions.append(QFunction.checked(kernel, points, weights, kept["prior_mean"], n_actions))
        return cls(functions)


def pool_to_dict(pool: PolicyPool, table: QTable) -> dict[str, Any]:
    """A pool as plain data; its Q-functions go to `table`."""
    newest = pool.newest_q
    places = {id(record): i for i, record in enumerate(pool.records)}
    kept: dict[str, Any] = dict(
        newest_q=None if newest is None else [table.add(newest.mean), table.add(newest.sample), newest.tolerance],
        newest=_describe(pool.newest, table),
        records=[_describe(record, table) for record in pool.records],
        # a place among the records, a policy that left them, or None: the newest policy
        incumbent=None if pool.incumbent is pool.newest else places.get(id(pool.incumbent), -1),
        n_choices=pool._n_choices,
    )
    if kept["incumbent"] == -1:
        kept["incumbent_record"] = _describe(pool.incumbent, table)
    if isinstance(pool, TrialPool):
        counts = (pool._n_chosen, pool._n_explored)
        kept |= dict(trusts=pool.trusts_model, has_plan=pool.has_plan, counts=counts, is_noisy=pool.is_noisy)
        kept |= dict(compared=pool.compared, simulates=pool.simulate is not None)
        # null: no episode yet
        kept["return_range"] = pool.return_range if np.isfinite(pool.return_range).all() else None
    return kept


def restore_pool(pool: PolicyPool, kept: dict[str, Any], table: QTable) -> None:
    """Fill a new pool with what `pool_to_dict` kept."""
    if kept["newest_q"] is not None:
        mean, sample, tolerance = kept["newest_q"]
        pool.newest_q = NewestQ(table.functions[mean], table.functions[sample], float(tolerance))
    pool.newest = _restored(kept["newest"], table)
    pool.records = [_restored(record, table) for record in kept["records"]]
    place = kept["incumbent"]
    pool.incumbent = pool.newest if place is None else pool.records[place] if place >= 0 else pool.newest
    if place == -1:
        pool.incumbent = _restored(kept["incumbent_record"], table)
    pool._n_choices = int(kept["n_choices"])
    if isinstance(pool, TrialPool):
        pool.trusts_model, pool.has_plan = bool(kept["trusts"]), bool(kept["has_plan"])
        pool._n_chosen, pool._n_explored = (int(count) for count in kept["counts"])
        pool.is_noisy = bool(kept["is_noisy"])
        pool.compared = [(int(policy), float(d)) for policy, d in kept["compared"]]
        if kept["return_range"] is not None:
            low, high = kept["return_range"]
            pool.return_range = float(low), float(high)


def _describe(record: PolicyRecord, table: QTable) -> dict[str, Any]:
    return dict(
        q=table.add(record.q),
        episodes=[asdict(episode) for episode in record.episodes],
        n_before=record.n_before,
        trial_return=record.trial_return,
        score=record.score,
        n_transitions=record.n_transitions,
        explores=record.explores,
    )


def _restored(kept: dict[str, Any], table: QTable) -> PolicyRecord:
    episodes = [Episode(**dict(e, start=as_numbers(e["start"], (None,), "start"))) for e in kept["episodes"]]
    numbers = {name: kept[name] for name in ("n_before", "trial_return", "score", "n_transitions", "explores")}
    return PolicyRecord(table.get(kept["q"]), episodes, **numbers)
