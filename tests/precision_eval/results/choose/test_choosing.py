"""Choices worked out by hand, ties, limits within noise, and what must not matter."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from made_groups import STEADY, around, base, contender, group, random_group
from scipy import stats

from precision_eval.core.errors import ParameterError
from precision_eval.core.figures import LatencyFigures, figures_of
from precision_eval.measure.drift import over_seeds
from precision_eval.report.choice_text import headline, tie_lines
from precision_eval.results.choose import POLICIES, Constraints, MissingMeasureError, choose_from, parse_memory
from precision_eval.results.choose import choosing as policies_module
from precision_eval.results.choose.comparing import Difference, bounds, difference, state_of
from precision_eval.results.model import SAME_TIME, Estimate

MIB = 2**20


def wide_apart():
    """Three fixes that no noise confuses; 13 bits of drift lie between the first and the others."""
    return group(
        base(drift=1e-6, memory=64 * MIB),
        contender("float16", logs=around(0.8), drift=1e-6 * 2**13, memory=32 * MIB),
        contender("bfloat16", logs=around(0.4), drift=1e-6 * 2**13, memory=32 * MIB),
    )


@pytest.mark.parametrize(
    ("time", "outcome", "tied"),
    [(0.45, "one", ("float16",)), (0.55, "one", ("full_float32",)), (0.5, "tie", ("full_float32", "float16"))],
)
def test_thirteen_bits_are_worth_a_factor_two(time, outcome, tied):
    rows = (base(drift=2.0**-24), contender("float16", logs=around(time), drift=2.0**-11))
    found = choose_from(group(*rows), policy="balanced")
    assert (found.outcome, found.fix, found.tied) == (outcome, tied[0], tied)
    assert (found.tie_break, found.tie_break_called) == (("drift", True) if outcome == "tie" else ("", False))


def test_within_noise_is_a_tie_and_its_tie_break_claims_nothing():
    rows = (
        base(),
        contender("float16", logs=(-0.30, -0.10, -0.25, -0.05), drift=3.0e-4),
        contender("kv_to_query", logs=(-0.02, -0.35, -0.10, -0.30), drift=2.9e-4),
    )
    found = choose_from(group(*rows), policy="speed")
    assert (found.outcome, found.tied) == ("tie", ("full_float32", "kv_to_query", "float16"))
    rest = choose_from(group(*rows), Constraints(min_speed=0.5), policy="speed")
    assert rest.tie_break == "drift"
    without = choose_from(group(rows[1], rows[2]), policy="speed")
    assert (without.fix, without.tie_break, without.tie_break_called) == ("kv_to_query", "drift", False)


def test_what_is_timed_together_is_compared_pair_by_pair():
    wobble = np.array([0.3, -0.3, 0.2, -0.2])  # of the baseline: both share it
    rows = (
        base(),
        contender("float16", logs=tuple(wobble), drift=1e-3),
        contender("bfloat16", logs=tuple(wobble - 0.05 + np.array(STEADY)), drift=1e-3),
    )
    together = group(*rows)
    found = difference(together, "time", rows[2], rows[1])
    assert found.relation == "better"
    apart = difference(together, "time", replace(rows[2], session="another"), rows[1])
    assert apart.relation == "unclear"


def test_the_interval_of_a_pair_is_that_of_the_paired_t_test():
    first, second = (0.10, 0.12, 0.11, 0.13), (0.02, 0.09, 0.04, 0.03)
    rows = (contender("float16", logs=first), contender("bfloat16", logs=second))
    found = difference(group(base(), *rows), "time", *rows)
    interval = stats.ttest_rel(first, second).confidence_interval(0.99)
    reach = math.log1p(SAME_TIME)
    assert found.log == pytest.approx((interval.low + interval.high) / 2)
    assert found.half == pytest.approx((interval.high - interval.low) / 2 + reach)
    # by hand: mean 0.115, standard error 0.00645497, t(3, 1 %) = 5.84091
    low, high = bounds(group(base(), *rows), "time", rows[0])
    assert math.log(high) - 0.115 == pytest.approx(5.84091 * 0.00645497 + reach, rel=1e-5)
    assert 0.115 - math.log(low) == pytest.approx(5.84091 * 0.00645497 + reach, rel=1e-5)


def test_an_engine_that_ignores_intervals_is_caught(monkeypatch):
    rows = (base(), contender("float16", logs=(-0.3, 0.2, -0.2, 0.25), drift=1e-3))
    assert choose_from(group(*rows), policy="speed").outcome == "tie"
    honest = policies_module.difference

    def careless(*arguments, **how):
        found = honest(*arguments, **how)
        return None if found is None else Difference(found.log, 0.0, found.log == 0.0)

    monkeypatch.setattr(policies_module, "difference", careless)
    assert choose_from(group(*rows), policy="speed").outcome == "one"  # so the assertion above tells them apart


def test_a_null_that_is_off_reaches_the_choice():
    fast = contender("float16", logs=around(0.93), drift=1e-3)
    noise_floor = Estimate(value=0.95, low=0.92, high=0.98, degrees=3.0)
    assert choose_from(group(base(), fast), policy="speed").outcome == "one"
    off = group(base(), fast, noise_floor=noise_floor, noise_floor_off=True, doubts=("the noise floor is off",))
    found = choose_from(off, policy="speed")
    assert (found.outcome, found.fix, found.doubts) == ("could not tell", None, ("the noise floor is off",))
    assert headline(found).startswith(
        "Could not tell: run again on an idle machine, because full_float32 against its own"
    )
    assert choose_from(off, Constraints(min_speed=0.1), policy="quality").untold
    assert choose_from(off, Constraints(max_drift=1e-9), policy="speed").outcome == "none"  # whatever the times are


def test_what_does_not_rest_on_time_is_chosen_although_the_noise_floor_is_off():
    rows = (base(), contender("float16", logs=around(0.5), drift=1e-6, memory=2**20))
    assert choose_from(group(*rows), policy="quality").tie_break == "time"
    off = group(*rows, noise_floor=Estimate(value=1.5, low=1.4, high=1.6, degrees=3.0), noise_floor_off=True)
    found = choose_from(off, policy="quality")
    assert (found.fix, found.tie_break) == ("float16", "memory")
    assert choose_from(off, Constraints(max_memory_ratio=0.5), policy="quality").tied == ("float16",)


def test_a_tie_that_a_verdict_calls_slower_says_what_a_choice_asks_for():
    slower = replace(contender("kv_to_query", logs=around(1.04), drift=1e-4), verdict="slower")
    settled = group(base(), slower)
    assert choose_from(settled, policy="speed").tied == ("full_float32",)
    once = group(base(), replace(slower, processes=1))
    found = choose_from(once, policy="speed")
    assert found.tied == ("full_float32", "kv_to_query")
    (line,) = tie_lines(found)
    assert line.startswith(
        "kv_to_query is slower, 1.040 [1.038, 1.042], but a tie: a choice needs a difference of more than 5 % "
    )
    assert line.endswith("99 % confidence, as one process timed it; with --set processes=5 it needs more than 0.2 %")
    assert tie_lines(choose_from(once, policy="quality")) == []  # time plays no part
    undecided = choose_from(group(base(), replace(slower, processes=1, verdict="undecided")), policy="speed")
    assert undecided.tied == found.tied
    assert tie_lines(undecided) == []


def with_fresh_memory(ratio, doubt="fresh memory: a call had 16,386 page faults", *, fix="float16", drift=1e-3):
    row = contender(fix, logs=around(ratio), drift=drift)
    return replace(
        row,
        records={"latency": SimpleNamespace(figures=LatencyFigures(baseline="b", ratio=1.0, doubts=[doubt]))},
        verdict="faster",
    )


def test_a_doubt_makes_a_tie_and_no_order():
    fast, doubted = (
        contender("bfloat16", logs=around(0.9), drift=4e-3),
        with_fresh_memory(1.5, fix="kv_to_query", drift=1e-7),
    )
    found = choose_from(group(base(), fast, doubted), policy="speed")
    assert (found.fix, found.tied, found.tie_break) == ("bfloat16", ("bfloat16", "kv_to_query"), "time")


def test_fresh_memory_in_one_process_calls_no_difference_below_a_factor_of_two():
    near, far = with_fresh_memory(0.6), with_fresh_memory(0.4)
    assert choose_from(group(base(), near), policy="speed").outcome == "tie"
    assert group(base(), near).verdict_of(near) == "undecided"
    assert choose_from(group(base(), far), policy="speed").fix == "float16"
    assert group(base(), far).verdict_of(far) == "faster"
    several = with_fresh_memory(0.6, "in 2 of 5 processes: fresh memory: a call had 16,386 page faults")
    assert choose_from(group(base(), several), policy="speed").outcome == "one"


def test_drift_over_seeds_is_compared_seed_by_seed():
    def over(fix, errors, by_seed=True):
        data = over_seeds(errors) | ({} if by_seed else {"relative_error_by_seed": []})
        ends = {end: data[f"relative_error_{end}"] for end in ("low", "high")}
        figure = Estimate(value=data["relative_error"], **ends, degrees=3.0)
        record = SimpleNamespace(figures=figures_of("drift", data))
        return replace(contender(fix, time=1.0, drift=figure), records={"drift": record}, paired_drift=True)

    errors, less = [1.0e-3, 2.0e-3, 0.7e-3, 1.4e-3], [0.96e-3, 1.95e-3, 0.68e-3, 1.36e-3]
    found = difference(group(base()), "drift", over("float16", less), over("bfloat16", errors))
    assert found.relation == "better"
    assert found.log == pytest.approx(np.mean(np.log(less) - np.log(errors)))
    unpaired = difference(group(base()), "drift", over("float16", less, False), over("bfloat16", errors, False))
    assert unpaired.relation == "unclear"


def test_limits_hold_by_their_intervals():
    slow, edge = contender("float16", logs=around(0.8), drift=1e-3), contender("bfloat16", logs=around(0.5), drift=1e-3)
    both = group(base(), slow, edge)
    assert state_of(both, "time", 0.55, edge) == "meets"
    assert state_of(both, "time", 0.5, edge) == "doubtful"
    assert state_of(both, "time", 0.45, edge) == "fails"
    assert state_of(both, "drift", 1.06e-3, slow) == "meets"  # a drift of one input may be 5 % more
    assert state_of(both, "drift", 1.04e-3, slow) == "doubtful"
    assert state_of(both, "memory", 100.0, base(memory=100)) == "meets"  # memory is exact
    assert state_of(both, "memory", 100.0, base(memory=101)) == "fails"


def test_a_fix_within_noise_of_a_limit_is_taken_only_where_none_surely_keeps_it():
    found = choose_from(wide_apart(), Constraints(max_drift=1e-6 * 2**13), policy="speed")
    assert (found.outcome, found.fix, found.surely) == ("one", "full_float32", True)
    assert ("bfloat16", "near limit", "--max-drift") in [(out.fix, out.why, out.reason) for out in found.left_out]
    alone = choose_from(wide_apart(), Constraints(max_drift=1e-6 * 2**13, min_speed=1.5), policy="speed")
    assert (alone.outcome, alone.fix, alone.surely) == ("tie", "bfloat16", False)
    sure = choose_from(wide_apart(), Constraints(max_drift=1.06e-6 * 2**13), policy="speed")
    assert (sure.outcome, sure.fix) == ("one", "bfloat16")


def test_no_fix_keeps_the_limits():
    found = choose_from(wide_apart(), Constraints(max_drift=2e-6, min_speed=2.0), policy="balanced")
    assert (found.outcome, found.fix) == ("none", None)
    nearest = found.left_out[0]
    assert (nearest.fix, nearest.reason) == ("full_float32", "--min-speed")
    assert nearest.excess == pytest.approx(2.0)


def test_memory_as_a_ratio_is_of_full_float32():
    found = choose_from(wide_apart(), Constraints(max_memory_ratio=0.5), policy="quality")
    assert found.tied == ("bfloat16", "float16")
    none = choose_from(wide_apart(), Constraints(max_memory_ratio=0.49), policy="quality")
    assert none.outcome == "none"
    rows = [row for row in wide_apart().rows if row.fix != "full_float32"]
    with pytest.raises(MissingMeasureError, match=r"needs that of full_float32.*--fix full_float32"):
        choose_from(group(*rows), Constraints(max_memory_ratio=0.5))


def test_what_does_not_run_or_was_not_measured_is_listed_with_its_reason():
    raised = replace(contender("as_shipped"), status="raised", reason="Expected query …")
    bare = contender("autocast", logs=around(0.3))
    found = choose_from(group(*wide_apart().rows, raised, bare), policy="balanced")
    assert [(out.fix, out.why, out.reason) for out in found.left_out] == [
        ("autocast", "not measured", "not measured"),
        ("as_shipped", "raised", "Expected query …"),
    ]
    nothing = choose_from(group(raised))
    assert (nothing.outcome, nothing.fix) == ("none", None)


@pytest.mark.parametrize(
    ("policy", "limits", "measure"),
    [("quality", {}, "drift"), ("balanced", {}, "drift"), ("speed", {"max_drift": 1.0}, "drift"),
     ("speed", {"max_memory_bytes": 1}, "memory")],
)  # fmt: skip
def test_a_missing_measure_is_named_with_its_command(policy, limits, measure):
    bare = group(contender("full_float32", time=1.0), contender("float16", logs=around(0.8)))
    with pytest.raises(MissingMeasureError) as raised:
        choose_from(bare, Constraints(**limits), policy=policy)
    assert f"the measure '{measure}'" in str(raised.value)
    assert "precision-eval run --case attention-decode --size dia --mode eager --device cpu" in str(raised.value)
    assert f"--measure {measure} --out runs/x" in str(raised.value)
    assert isinstance(raised.value, LookupError)


@pytest.mark.parametrize(
    ("limits", "text"),
    [({"max_drift": 0.0}, "max_drift is 0.0"), ({"min_speed": math.nan}, "min_speed is nan"),
     ({"max_memory_bytes": 1, "max_memory_ratio": 1.0}, "give one of the two")],
)  # fmt: skip
def test_limits_that_mean_nothing_are_refused(limits, text):
    with pytest.raises(ParameterError, match=text):
        Constraints(**limits)


def test_sizes_are_read():
    assert parse_memory("2GiB") == {"max_memory_bytes": 2 * 2**30}
    assert parse_memory("1.5 MB") == {"max_memory_bytes": 1_500_000}
    assert parse_memory("0.6x") == parse_memory(".6×") == {"max_memory_ratio": 0.6}
    for text in ("2", "2 furlongs", "x", "-1GiB"):
        with pytest.raises(ParameterError, match="is no size"):
            parse_memory(text)


LIMITS = (
    Constraints(), Constraints(max_drift=1e-4), Constraints(min_speed=1.1), Constraints(max_memory_ratio=0.8),
    Constraints(max_drift=1e-3, min_speed=0.9),
)  # fmt: skip


def essence(choice):
    return choice.outcome, choice.fix, choice.tied, choice.surely


def worsened(row):
    """The same fix, surely worse on every axis."""
    return replace(
        row,
        fix="worsened",
        time=replace(row.time, value=row.time.value * 1.5, low=row.time.low * 1.5, high=row.time.high * 1.5),
        time_logs=tuple(one + math.log(1.5) for one in row.time_logs),
        drift=replace(row.drift, value=row.drift.value * 3, low=row.drift.low * 3, high=row.drift.high * 3),
        stored_bytes=2 * row.stored_bytes,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dominated_fix_changes_nothing(rng, policy):
    for _ in range(6):
        found = random_group(rng)
        victim = found.rows[int(rng.integers(1, len(found.rows)))]
        more = replace(found, rows=(*found.rows, worsened(victim)))
        for limits in LIMITS:
            assert essence(choose_from(more, limits, policy=policy)) == essence(
                choose_from(found, limits, policy=policy)
            ), (policy, limits)
        stands = choose_from(more, policy=policy).standing_of("worsened")
        assert stands.standing == "dominated"


@pytest.mark.parametrize("policy", POLICIES)
def test_order_and_names_do_not_matter(rng, policy):
    for _ in range(6):
        found = random_group(rng)
        rows = tuple(found.rows[place] for place in rng.permutation(len(found.rows)))
        names = {row.fix: f"fix_{place}" for place, row in enumerate(rows)}
        renamed = replace(
            found, rows=tuple(replace(row, fix=names[row.fix]) for row in rows), baseline=names["full_float32"]
        )
        for limits in (one for one in LIMITS if one.max_memory_ratio is None):
            first, second = (choose_from(one, limits, policy=policy) for one in (found, replace(found, rows=rows)))
            assert essence(first)[:3] == essence(second)[:3]
            third = choose_from(renamed, limits, policy=policy)
            assert third.fix == (None if first.fix is None else names[first.fix])
            assert third.tied == tuple(names[fix] for fix in first.tied)


def test_what_is_taken_is_never_beaten(rng):
    """Against a straightforward reading of the rule, over all pairs."""
    for _ in range(15):
        found = random_group(rng)
        choice = choose_from(found, policy="speed")
        expected = set()
        for one in found.rows:
            beaten = False
            for other in found.rows:
                ours = np.zeros(5) if one.fix == "full_float32" else np.array(one.time_logs)
                theirs = np.zeros(5) if other.fix == "full_float32" else np.array(other.time_logs)
                each = ours - theirs
                if one.fix != other.fix:
                    interval = stats.ttest_1samp(each, 0.0).confidence_interval(0.99)
                    beaten |= interval.low > math.log(1.002)
            if not beaten:
                expected.add(one.fix)
        assert set(choice.tied) == expected
        drifts = {row.fix: row.drift.value for row in found.rows}
        assert choice.fix == min(expected, key=drifts.get)
