"""The figures of candidates: interval, pairs by seed, a status where nothing was measured, and the second run."""

import math

import pytest

from validation.candidates import interval, run, table


def test_the_interval_by_hand():
    # logarithms 0 and 2: mean 1, standard deviation √2 over √2, t(0.975, 1) = 12.706
    mean, low, high = interval([1.0, math.e**2])
    assert mean == pytest.approx(math.e)
    assert (math.log(low), math.log(high)) == pytest.approx((1 - 12.7062, 1 + 12.7062), rel=1e-4)


def test_pairs_are_by_seed():
    rows = [
        {"case": "c", "size": "s", "fix": f"cache_int8_token_{part}", "status": "passed", "storage_bytes": 1000,
         "seed": seed, "drift": drift}
        for part, drifts in (("keys", (0.2, 2.0)), ("values", (0.1, 1.0)))
        for seed, drift in enumerate(drifts)
    ]  # fmt: skip
    assert "by seed: × 2.00 [2.00, 2.00]" in table(rows)


def test_statuses_bytes_and_drift_are_of_the_case_and_are_not_measured_twice(tmp_path):
    given = ([("attention-decode", "tiny")], ("as_shipped", "kv_to_query", "cache_int8_tensor", "weights_int8"), 2)
    file = run(tmp_path / "rows.jsonl", *given)
    rows = {(row["fix"], row["seed"]): row for row in file.read()}
    assert [rows[fix, 0]["status"] for fix in given[1]] == ["raised", "passed", "passed", "unsupported"]
    wide, narrow = rows["kv_to_query", 0], rows["cache_int8_tensor", 0]
    # keys and values, 2 bytes each, less one byte each and a float32 scale each
    assert wide["storage_bytes"] - narrow["storage_bytes"] == (wide["storage_bytes"] - 64) // 2 - 8
    assert wide["drift"] < 1e-6 < narrow["drift"]
    text = table(file.read())
    assert "- `weights_int8`: unsupported: no weights to keep in int8" in text
    before = file.path.read_text(encoding="utf-8")
    run(file.path, *given)
    assert file.path.read_text(encoding="utf-8") == before
