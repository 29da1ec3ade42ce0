"""What would change a choice: each named move is made, and leads where it says; a little less does not."""

import math
from dataclasses import replace

import pytest
from made_groups import around, base, contender, group, random_group

from precision_eval.results.choose import POLICIES, Constraints, choose_from

FIELD = {"drift": "max_drift", "memory": "max_memory_bytes", "time": "min_speed"}


def limited(constraints, axis, value):
    given = 1.0 / value if axis == "time" else value
    if axis == "memory":
        return replace(constraints, max_memory_bytes=given, max_memory_ratio=None)
    return replace(constraints, **{FIELD[axis]: given})


def test_by_hand():
    rows = (
        base(drift=1e-6, memory=64),
        contender("float16", logs=around(0.8), drift=1e-3, memory=32),
        contender("kv_to_query", logs=around(1.5), drift=1e-4, memory=48),
    )
    found = choose_from(group(*rows), Constraints(max_memory_bytes=50), policy="quality")
    assert found.fix == "kv_to_query"
    moves = [(one.kind, one.axis, one.fix, one.leads_to) for one in found.changes]
    assert moves[:4] == [
        ("limit", "memory", None, "float16"),  # 50 → below 48
        ("figure", "memory", "kv_to_query", "float16"),  # 48 → 50
        ("limit", "memory", None, "full_float32"),  # 50 → 64
        ("figure", "drift", "float16", "float16"),  # 1e-3 → 1e-4
    ]
    assert [one.factor for one in found.changes[:4]] == pytest.approx([50 / 48, 50 / 48, 64 / 50, 10.0])
    free = {one.axis: one.leads_to for one in found.changes if one.now is None}
    assert free == {"time": "float16", "drift": None}


@pytest.mark.parametrize("policy", POLICIES)
def test_moving_a_limit_there_changes_the_choice_and_less_does_not(rng, policy):
    tried = 0
    for _ in range(8):
        found = random_group(rng)
        for limits in (
            Constraints(max_drift=1e-3),
            Constraints(min_speed=0.8),
            Constraints(max_memory_bytes=6 * 10**7),
        ):
            choice = choose_from(found, limits, policy=policy)
            for change in (one for one in choice.changes if one.kind == "limit"):
                tighter = change.now is None or change.then <= change.now
                beyond = change.then * (1 - 1e-9) if tighter else change.then * (1 + 1e-9)
                before = change.then * (1 + 1e-9) if tighter else change.then * (1 - 1e-9)
                moved = choose_from(found, limited(limits, change.axis, beyond), policy=policy)
                assert moved.fix == change.leads_to != choice.fix
                still = choose_from(found, limited(limits, change.axis, before), policy=policy)
                assert still.fix == choice.fix
                tried += 1
    assert tried > 6


@pytest.mark.parametrize("policy", POLICIES)
def test_moving_a_figure_well_past_there_changes_the_choice(rng, policy):
    tried = 0
    for _ in range(10):
        found = random_group(rng)
        choice = choose_from(found, policy=policy)
        for change in (one for one in choice.changes if one.kind == "figure" and one.axis == "time"):
            row = found.row(change.fix)
            if row.fix == found.baseline:
                continue
            factor = change.then / row.time.value
            level = scaled(row, factor)
            rows = [level if one.fix == row.fix else one for one in found.rows]
            again = choose_from(replace(found, rows=tuple(rows)), policy=policy)
            if choice.outcome == "one":
                assert {choice.fix, row.fix} <= {*again.tied}  # level: the two tie
            ahead = scaled(row, factor * math.exp(-3.0))
            rows = [ahead if one.fix == row.fix else one for one in found.rows]
            assert choose_from(replace(found, rows=tuple(rows)), policy=policy).fix == row.fix
            tried += 1
    assert tried > 10 or policy == "quality"


def scaled(row, factor):
    time = replace(row.time, value=row.time.value * factor, low=row.time.low * factor, high=row.time.high * factor)
    return replace(row, time=time, time_logs=tuple(one + math.log(factor) for one in row.time_logs))
