"""The figures of narrow caches: interval, pairs by seed, and a status where nothing was measured."""

import math

import pytest

from validation.caches import interval, measured, table


def test_the_interval_by_hand():
    # logarithms 0 and 2: mean 1, standard deviation √2 over √2, t(0.975, 1) = 12.706
    mean, low, high = interval([1.0, math.e**2])
    assert mean == pytest.approx(math.e)
    assert (math.log(low), math.log(high)) == pytest.approx((1 - 12.7062, 1 + 12.7062), rel=1e-4)


def test_pairs_are_by_seed_and_a_fix_without_a_cache_has_a_status():
    rows = [
        {"case": "c", "size": "s", "fix": f"cache_int8_token_{part}", "storage_bytes": 1000, "drift": drifts}
        for part, drifts in (("keys", [0.2, 2.0]), ("values", [0.1, 1.0]))
    ]
    text = table([*rows, measured("imaginairy-time-embed", "tiny", "cache_int8_token", 1)])
    assert "by seed: × 2.00 [2.00, 2.00]" in text
    assert "| `cache_int8_token` | 0 | unsupported |" in text
