"""What an evaluation fits: calibration and samples for model selection."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.estimators.conformal import calibrate, cross_val_predict
from gptd_rl.evaluation import fitting
from gptd_rl.temporal.returns import Returns
from tests.mdps import Spiral, Walk


def test_fit_calibrates_on_left_out_episodes():
    data = Walk().sample(150, np.random.default_rng(0))
    found = fitting.fit(data, None, is_categorical=False, analyse_inputs=True, tick=lambda done, total: None)
    returns = Returns.of(data)
    for value, is_local in ((found.value, True), (found.monte_carlo, False)):
        left_out = cross_val_predict(list(value.estimator_.learners.values()), data) @ value.estimator_.weights_
        assert_array_equal(value.cross_val_values_, left_out)
        errors = (returns.y - returns.difference(left_out))[returns.usable]
        relevances = value.estimator_.relevances_
        assert (relevances is not None) == is_local
        weights = None if relevances is None else np.sqrt(relevances + 1e-9 * relevances.max())
        _, expected = calibrate(left_out, data, weights)
        assert_array_equal(value.errors_[0].ratios, expected.ratios)
        assert is_local or sorted(np.abs(errors)) == value.errors_[0].ratios.tolist()
    assert dict(zip(found.value.estimator_.learners, found.value.estimator_.weights_, strict=True)) == found.learners
    rest = returns.z * found.value.cross_val_values_[returns.end]
    assert_allclose(found.start_values, (returns.y + rest)[data.starts])


def test_contiguous_sample_has_whole_episodes():
    data = Walk().sample(2000, np.random.default_rng(0))
    part = fitting.contiguous_sample(data, 900)
    assert 900 <= len(part) < 900 + data.lengths.max()
    starts = {tuple(data.states[s : s + n, 0]) for s, n in zip(data.starts, data.lengths, strict=True)}
    assert all(tuple(part.states[s : s + n, 0]) in starts for s, n in zip(part.starts, part.lengths, strict=True))
    assert fitting.contiguous_sample(data, len(data)) is data
    long = Spiral(time_limit=500).sample(2000, np.random.default_rng(0))
    pieces = fitting.contiguous_sample(long, 400)
    assert pieces.lengths.max() <= 51 and 400 <= len(pieces) <= 451
