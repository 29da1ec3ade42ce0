"""The figures of candidates: interval, pairs by seed, a status where nothing was measured, and the second run."""

import math

import pytest

from validation.candidates import EXPERIMENT, interval, provenance, summary, table
from validation.frame import content_of, run


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


def test_the_summary_is_over_cases_and_leaves_out_what_raises():
    def rows(case, fix, drift, size):
        found = {"case": case, "size": "s", "fix": fix, "storage_bytes": size}
        passed = drift is not None
        return [found | {"seed": seed, "status": "passed" if passed else "raised", "drift": drift} for seed in (0, 1)]

    given = [
        *rows("a", "full_float32", 1e-7, 100), *rows("a", "bfloat16", 1e-2, 50), *rows("a", "kv_to_query", 1e-4, 60),
        *rows("b", "full_float32", 1e-7, 100), *rows("b", "bfloat16", 1e-2, 50), *rows("b", "kv_to_query", 4e-2, 80),
        *rows("c", "full_float32", 1e-7, 100), *rows("c", "bfloat16", 1e-2, 50), *rows("c", "kv_to_query", None, None),
        *rows("c", "cache_int8_head_keys", 1e-3, 70),
    ]  # fmt: skip
    (line,) = [line for line in summary(given).splitlines() if "kv_to_query" in line]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == [
        "`kv_to_query`", "2 of 3", "70 % (60 % to 80 %)", "2.0e-02 (1.0e-04 to 4.0e-02)", "2 (0.01 to 4)",
    ]  # fmt: skip
    assert "_keys" not in summary(given)  # each half has its own line case by case


def measured(tmp_path, fixes):
    given = {"cases": "attention-decode:tiny", "fixes": ",".join(fixes), "seeds": "2"}
    options = EXPERIMENT.options(given, out=tmp_path / "out")
    run(EXPERIMENT, options, progress=lambda *_: None)
    return content_of(EXPERIMENT, options)


def test_what_no_commit_is_known_of_is_named(tmp_path):
    older = {"case": "old", "size": "s", "fix": "kv_to_query", "status": "raised"}
    lines = provenance([*measured(tmp_path, ["kv_to_query"]), older], tmp_path, tmp_path / "out").splitlines()
    assert len(lines) == 2
    assert sum("attention-decode:tiny" in line for line in lines) == 1
    assert "- the commit was not recorded: old:s" in lines


def test_statuses_bytes_and_drift_are_of_the_case_and_are_not_measured_twice(tmp_path):
    fixes = ("as_shipped", "kv_to_query", "cache_int8_tensor", "weights_int8")
    lines = measured(tmp_path, fixes)
    rows = {(row["fix"], row["seed"]): row for row in lines}
    assert [rows[fix, 0]["status"] for fix in fixes] == ["raised", "passed", "passed", "unsupported"]
    wide, narrow = rows["kv_to_query", 0], rows["cache_int8_tensor", 0]
    # keys and values, 2 bytes each, less one byte each and a float32 scale each
    assert wide["storage_bytes"] - narrow["storage_bytes"] == (wide["storage_bytes"] - 64) // 2 - 8
    assert wide["drift"] < 1e-6 < narrow["drift"]
    text = table(lines)
    assert "- `weights_int8`: unsupported: no weights to keep in int8" in text
    found = {figure.name: figure.found for figure in EXPERIMENT.figures(lines)}
    assert found["attention-decode · tiny: as_shipped"] == "raised"
    assert measured(tmp_path, fixes) == lines
