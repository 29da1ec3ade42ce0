"""The roofline: hand-computed ratios, its identities, and faults that it must name."""

import math

import made_groups as made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_eval.core.errors import RecordError, UnknownNameError
from precision_eval.measure.peaks import DTYPES, PUBLISHED, Peaks, peaks_of, published_peaks, rows_of
from precision_eval.report.roofline import correlation_line, peaks_lines, prediction_table, reason_lines
from precision_eval.results.roofline import (
    correlations,
    full_times,
    predicted_groups,
    predictions,
    timed_works,
)

GIB = 1e9
FLAT = Peaks(name="flat", source="made", bandwidth={1: GIB}, flops=dict.fromkeys(DTYPES, 1e12))


def operation(kind, dtype, size, *, flops=0, count=1):
    return {"kind": kind, "dtype": dtype, "count": count, "flops": flops, "bytes": size}


def work(*operations, fresh=0, touched=1):
    return {"operations": list(operations), "touched_bytes": touched, "fresh_bytes": fresh}


WIDE = work(operation("attention", "float32", 4000, flops=2000))
HALF = work(operation("attention", "float16", 2000, flops=2000))
CAST = work(operation("cast", "float16 to float32", 6000), *WIDE["operations"])
WORKS = {"full_float32": WIDE, "float16": HALF, "kv_to_query": CAST}


def by_fix(peaks, works=WORKS, **rest):
    return {row.fix: row for row in predictions(works, peaks, baseline="full_float32", **rest)}


def test_what_memory_bounds_costs_its_bytes():
    rows = by_fix(FLAT)
    assert {fix: (row.bare, row.bytes_ratio) for fix, row in rows.items()} == {
        "full_float32": (1.0, 1.0),
        "float16": (0.5, 0.5),
        "kv_to_query": (2.5, 2.5),
    }
    assert list(rows) == ["float16", "full_float32", "kv_to_query"]


def test_what_products_bound_costs_its_flops_by_hand():
    slow = Peaks(
        name="t4-like", source="", bandwidth={1: 1e12}, flops={"float32": 1e9, "float16": 4e9, "bfloat16": 1e9}
    )
    assert by_fix(slow)["float16"].bare == 0.25


@given(st.floats(1e-3, 1e3))
def test_ratios_do_not_depend_on_how_fast_the_machine_is(speed):
    faster = with_kernels(
        bandwidth={1: speed * GIB},
        flops=dict.fromkeys(DTYPES, speed * 1e12),
        roofs={"attention float16": [(1.0, speed * 1e9)]},
        casts={"float16 to float32": speed * 5e8},
        call_s=1e-6 / speed,
        page_fault_s=1e-7 / speed,
    )
    one, other = by_fix(with_kernels()), by_fix(faster)
    for fix, row in one.items():
        assert math.isclose(other[fix].full, row.full, rel_tol=1e-9)


def with_kernels(**rest):
    figures = {"roofs": {"attention float16": [(1.0, 1e9)]}, "casts": {"float16 to float32": 5e8}}
    costs = {"bandwidth": FLAT.bandwidth, "flops": FLAT.flops, "call_s": 1e-6, "page_fault_s": 1e-7}
    return Peaks(name="made", source="by hand", **figures | costs | rest)


def test_the_full_model_by_hand():
    times = full_times(CAST | {"fresh_bytes": 8192}, with_kernels())
    assert dict(times) == pytest.approx(
        {
            ("call", ""): 2e-6,
            ("cast", "float16 to float32"): 6000 / 5e8,
            ("attention", "float32"): 4000 / GIB,  # no roof of its own
            ("page faults", ""): 2e-7,
        }
    )
    assert full_times(HALF, with_kernels())["attention", "float16"] == pytest.approx(2000 / 1e9)
    assert rows_of(2000.0, 2000.0, 2) == 1.0
    in_cache = with_kernels(roofs={"attention float16": [(1.0, 1e15)]})
    assert full_times(HALF, in_cache)["attention", "float16"] == pytest.approx(2000 / GIB)  # memory is slower


def test_the_reason_names_what_is_beyond_bytes():
    planted = with_kernels(
        roofs={"attention float16": [(1.0, 1e7)]}, emulated={"float16": "computed in float32"}, call_s=0.0
    )
    assert by_fix(planted)["float16"].reasons == (
        "float16 is emulated: computed in float32",
        "torch's attention in float16 takes 100.0 × what its bytes would",
    )
    assert by_fix(planted)["full_float32"].reasons == ()
    faulty = {**WORKS, "kv_to_query": CAST | {"fresh_bytes": 4096 * 1000}}
    (reason,) = by_fix(with_kernels(call_s=0.0, page_fault_s=1e-6), faulty)["kv_to_query"].reasons
    assert reason == "page faults take 98 % of its time"


def test_a_miss_names_what_the_peaks_do_not_hold():
    half = work(operation("attention", "float16", 3 * GIB, flops=1), operation("other", "float16", GIB))
    (row,) = predictions({"float16": half}, with_kernels(call_s=0.0), baseline="float16")
    other = "other operations beyond their bytes (25 % of its time)"
    assert row.unmeasured == ("attention in float16 from memory (75 % of its time)", other)
    held = with_kernels(call_s=0.0, streams={"attention float16": [(1.0, float(GIB))]})
    assert predictions({"float16": half}, held, baseline="float16")[0].unmeasured == (other,)


def test_roofs_are_interpolated_and_end_flat():
    peaks = with_kernels(roofs={"product float32": [(16.0, 16e9), (1.0, 1e9)]})
    assert peaks.roof("product", "float32", 4.0, 1.0) == pytest.approx(4e9)
    assert peaks.roof("product", "float32", 0.1, 1.0) == pytest.approx(1e9)
    assert peaks.roof("product", "float32", 99.0, 1.0) == pytest.approx(16e9)
    assert peaks.roof("attention", "float32", 1.0, 1.0) is None
    sized = with_kernels(roofs={"product float32": [(1.0, 4e9, 100.0), (1.0, 1e9, 10000.0), (9.0, 4e9, 100.0)]})
    assert sized.roof("product", "float32", 1.0, 1000.0) == pytest.approx(2e9)
    assert sized.roof("product", "float32", 9.0, 10.0) == pytest.approx(4e9)


def test_a_kernel_reads_memory_at_its_own_rate_and_an_untransposed_product_is_another_kernel():
    peaks = with_kernels(bandwidth={1: 8e9, 100: 2e9}, streams={"attention float16": [(50.0, 1e9)]})
    assert peaks.bandwidth_at(100.0, "attention float16", 7.0) == pytest.approx(1e9)
    assert peaks.bandwidth_at(1.0, "attention float16", 7.0) == pytest.approx(4e9)
    assert peaks.bandwidth_at(100.0, "attention float32", 7.0) == pytest.approx(2e9)
    roofs = {"product float16": [(1.0, 1e9)], "untransposed product float16": [(1.0, 1e7)]}
    call = work(operation("untransposed product", "float16", 2000, flops=2000))
    for own, times in ((roofs, 100.0), ({"product float16": [(1.0, 1e9)]}, 50.0)):  # stored before: `flops` was it
        slow = with_kernels(roofs=own, flops=dict.fromkeys(DTYPES, 2e7), call_s=0.0)
        assert full_times(call, slow)["untransposed product", "float16"] == pytest.approx(2e-6 * times)


def test_heads_that_share_a_key_count_by_the_rows_of_the_query():
    grouped = {**operation("attention", "float16", 500, flops=2000), "rows": 1}
    peaks = with_kernels(roofs={"attention float16": [(1.0, 1e7), (4.0, 1e9)]})
    assert full_times(work(grouped), peaks)["attention", "float16"] == pytest.approx(2000 / 1e7)


def test_page_faults_and_cold_caches_are_those_of_the_timing():
    cold = with_kernels(bandwidth={1: 9e9, 9000: 1e9}, casts={}, roofs={"x": [(1, 1)]}, call_s=0.0, page_fault_s=1e-6)
    for calls, faults, rate in ((1, 3.0, 1e9), (9, 8.0, cold.bandwidth_at(3000))):
        rows = []
        for fix, own in WORKS.items():
            counted = own | {"touched_bytes": 3000, "fresh_bytes": 99 * 4096}
            timed = made.latency([0.999, 1.001, 0.9995, 1.0005]) | {
                "calls_per_block": calls,
                "page_faults_per_call": faults,
            }
            data = {"trace": {"backend": "flash", "casts": [], "work": counted}, "latency": timed}
            records = {measure: made.record(fix, measure, content) for measure, content in data.items()}
            rows.append(made.contender(fix, time=1.5, drift=1e-3, records=records))
        seconds = full_times(timed_works(made.group(*rows))["full_float32"], cold).total()
        assert seconds == pytest.approx(1e-6 * faults + 4000 / rate)


def measured_group(ratios):
    """A group whose traces hold the work of the three fixes, with times as given."""
    rows = []
    for fix, ratio in ratios.items():
        record = made.record(fix, "trace", {"backend": "flash", "casts": [], "work": WORKS[fix]})
        rows.append(made.contender(fix, time=ratio, drift=1e-3, records={"trace": record}))
    return made.group(*rows)


def test_predictions_stand_beside_measurements_and_never_for_another_device():
    group = measured_group({"full_float32": 1.0, "float16": 0.6, "kv_to_query": 9.0})
    (own,) = predicted_groups([group], with_kernels())
    assert {row.fix: row.measured for row in own.rows} == {"full_float32": 1.0, "float16": 0.6, "kv_to_query": 9.0}
    found = correlations([own])
    assert found["bare_factor"] == pytest.approx(3.6)  # 9 / 2.5, of 1.2 and 3.6
    assert found["bare"] is None  # two fixes have an order by chance
    assert correlations([own, own])["bare"] == pytest.approx(1.0)
    (absent,) = predicted_groups([group], published_peaks("t4"))
    assert {(row.measured, row.full) for row in absent.rows} == {(None, None)}
    table = prediction_table(absent, published_peaks("t4"))
    assert "PREDICTION for t4, not measured" in table.title
    assert "measured" not in table.columns
    assert prediction_table(own, with_kernels()).columns[-1] == "measured"
    missed = [line for line in reason_lines(own) if "misses" in line]
    assert [line.partition(":")[0] for line in missed] == ["kv_to_query"]


def test_autocast_picks_its_dtype_by_the_device_and_is_not_predicted_for_another(monkeypatch):
    monkeypatch.setitem(WORKS, "autocast", WORKS["float16"])
    group = measured_group({"full_float32": 1.0, "float16": 0.6, "autocast": 0.7})
    for peaks, predicted in ((with_kernels(), True), (published_peaks("t4"), False)):
        (found,) = predicted_groups([group], peaks)
        assert ("autocast" in {row.fix for row in found.rows}) is predicted


def test_a_missed_target_is_said():
    found = {
        "bytes_ratio": 0.1,
        "bytes_ratio_factor": 2.0,
        "bare": None,
        "bare_factor": None,
        "full": 0.9,
        "full_factor": 1.1,
    }
    assert correlation_line(found) == (
        "Rank correlation with the measured ratios (target 0.8): bytes 0.10 (missed), off by 2.00 ×; "
        "kernels 0.90, off by 1.10 ×."
    )


def test_traces_without_work_predict_nothing():
    group = made.group(made.base(), made.contender("float16", time=0.5))
    assert predicted_groups([group], FLAT) == []


def test_published_peaks_have_sources_and_say_what_is_emulated():
    assert [peaks.name for peaks in PUBLISHED] == ["t4", "a10g", "a100", "h100", "h200"]
    for peaks in PUBLISHED:
        assert peaks.source
        assert peaks.flops["float16"] >= peaks.flops["float32"]
        assert not peaks.roofs
    t4 = published_peaks("t4")
    assert t4.flops["bfloat16"] == t4.flops["float32"] == 8.1e12
    assert any("bfloat16 is emulated there" in line for line in peaks_lines(t4))
    with pytest.raises(UnknownNameError, match="a100"):
        published_peaks("a10")


def test_stored_peaks_are_checked():
    data = with_kernels().to_dict()
    assert peaks_of(data, where="x").roof("attention", "float16", 1.0, 1.0) == pytest.approx(1e9)
    for change in (
        {"bandwidth": {}},
        {"bandwidth": {"-1": 1e9}},
        {"flops": {"float32": 1e9}},
        {"call_s": math.nan},
        {"roofs": {"attention float16": [[1.0]]}},
        {"casts": 3},
    ):
        with pytest.raises(RecordError, match="x holds no peaks"):
            peaks_of(data | change, where="x")
    with pytest.raises(RecordError, match="x holds no peaks"):
        peaks_of(None, where="x")
