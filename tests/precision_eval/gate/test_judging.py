"""From sides to changes: status, drift, memory, latency, and what cannot be compared."""

import dataclasses

import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.gate import GateCell, GateFigure, Margins, Side, compare_sides

CELL = GateCell("metavoice-decode", "kv_to_query", "eager", "2048", "cpu")
PROCESSES = (1.5, 1.501, 1.499, 1.5005, 1.4995)


def side(name="base", **figures):
    """A side of one place; a figure is a number, a status or a :class:`GateFigure`."""
    return Side(name=name, facts={}, remarks={}, figures={(CELL, key): as_figure(one) for key, one in figures.items()})


def as_figure(one):
    if isinstance(one, GateFigure):
        return one
    if isinstance(one, str):
        return GateFigure(state="measured", status=one)
    if isinstance(one, tuple):
        return GateFigure(state="measured", value=sum(one) / len(one), samples=one)
    return GateFigure(state="measured", value=one)


def verdicts(base, head, **margins):
    found = compare_sides(side("base", **base), side("head", **head), margins=Margins(**margins))
    return {one.metric: one.verdict for one in found.changes}


def test_a_against_a_has_no_change():
    figures = {"status": "passed", "drift": 1e-6, "peak_bytes": 1000, "latency_ratio": PROCESSES, "time": 0.1}
    found = compare_sides(side(**figures), side(**figures), margins=Margins())
    assert not found.failed
    assert {one.ratio for one in found.changes if one.metric != "status"} == {1.0}
    assert {one.verdict for one in found.changes} == {"no worse", "shown"}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ("passed", "raised", "regression"),
        ("passed", "unsupported", "regression"),
        ("raised", "passed", "improvement"),
        ("raised", "non_finite", "shown"),
        ("raised", "raised", "no worse"),
    ],
)
def test_a_status(before, after, verdict):
    assert verdicts({"status": before}, {"status": after}) == {"status": verdict}


def test_figures_that_go_with_the_status_are_not_counted_again():
    lost = GateFigure(state="failed")
    assert verdicts({"status": "passed", "drift": 1e-6}, {"status": "raised", "drift": lost}) == {
        "status": "regression"
    }
    assert verdicts({"status": "passed", "drift": 1e-6}, {"status": "passed", "drift": lost})["drift"] == "regression"
    assert verdicts({"status": "passed", "drift": lost}, {"status": "passed", "drift": 1e-6})["drift"] == "improvement"


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.0, "no worse"), (1.19, "no worse"), (1.21, "regression"), (0.8, "improvement")]
)
def test_drift_has_a_factor_for_margin(ratio, verdict):
    assert verdicts({"drift": 1e-6}, {"drift": ratio * 1e-6}) == {"drift": verdict}
    assert verdicts({"drift": 1e-6}, {"drift": ratio * 1e-6}, drift=1.3) == {
        "drift": "no worse" if ratio > 1 / 1.3 else verdict
    }


@pytest.mark.parametrize(
    ("head", "verdict"), [(1000, "no worse"), (1010, "no worse"), (1011, "regression"), (980, "improvement")]
)
def test_memory_is_exact_up_to_its_margin(head, verdict):
    assert verdicts({"peak_bytes": 1000}, {"peak_bytes": head}) == {"peak_bytes": verdict}


def test_something_from_nothing_is_a_regression():
    found = compare_sides(side(peak_bytes=0), side(peak_bytes=64), margins=Margins())
    assert found.of("regression")[0].note == "from exactly 0"
    assert verdicts({"peak_bytes": 0}, {"peak_bytes": 0}) == {"peak_bytes": "no worse"}


@pytest.mark.parametrize(
    ("metric", "name", "default"), [("latency_ratio", "latency", 0.01), ("latency_to_anchor", "anchor", 0.1)]
)
def test_latency_with_its_margin(metric, name, default):
    slower, hardly = (tuple((1 + factor * default) * one for one in PROCESSES) for factor in (2, 0.5))
    assert verdicts({metric: PROCESSES}, {metric: slower}) == {metric: "regression"}
    assert verdicts({metric: PROCESSES}, {metric: hardly}) == {metric: "no worse"}
    assert verdicts({metric: PROCESSES}, {metric: slower}, **{name: 0.3}) == {metric: "no worse"}
    assert verdicts({metric: slower}, {metric: PROCESSES}) == {metric: "improvement"}


def test_a_latency_change_carries_what_is_needed_to_judge_it():
    found = compare_sides(
        side(latency_ratio=PROCESSES), side(latency_ratio=tuple(1.03 * one for one in PROCESSES)), margins=Margins()
    )
    (one,) = found.changes
    assert one.ratio == pytest.approx(1.03)
    assert 1.01 < one.low < one.ratio < one.high
    assert one.processes == (5, 5)
    assert one.detectable > one.margin == 0.01
    assert found.priors["latency_ratio"].variance > 0


def test_one_process_is_shown_and_not_judged():
    found = compare_sides(side(latency_ratio=(1.5,)), side(latency_ratio=(3.0,)), margins=Margins())
    assert found.outcome == "could not tell"
    assert found.changes[0].verdict == "shown"
    assert "1 and 1 processes" in found.changes[0].note
    assert "--processes 5" in found.doubts[0]


def test_times_with_the_machine_in_them_are_shown_only():
    assert verdicts({"time": 1.0, "peakmem": 1e6}, {"time": 2.0, "peakmem": 2e6}) == {
        "time": "shown",
        "peakmem": "shown",
    }


@pytest.mark.parametrize("metric", ["divergence", "audio_degradation"])
def test_a_free_running_stream_is_shown_whatever_comes_with_it(metric):
    """One stream tells no spread; a third more of it is no verdict, also beside a latency that has one."""
    base, head = (GateFigure(state="measured", value=v) for v in (1.0, 1.3))
    figures = {metric: base, "latency_ratio": PROCESSES}
    found = compare_sides(side(**figures), side(**(figures | {metric: head})), margins=Margins())
    shown = next(one for one in found.changes if one.metric == metric)
    assert (shown.verdict, shown.ratio, shown.margin, shown.low) == ("shown", pytest.approx(1.3), None, None)
    assert not found.failed
    assert found.doubts == ()


def test_unlike_figures_are_set_aside_by_name():
    before, after = (
        GateFigure(state="measured", value=1e-6, identity={"digest of the case": digest, "threads": "1"})
        for digest in ("a", "b")
    )
    found = compare_sides(side(drift=before, peak_bytes=10), side(drift=after, peak_bytes=10), margins=Margins())
    assert found.set_aside == (((CELL, "drift"), "digest of the case"),)
    assert [one.metric for one in found.changes] == ["peak_bytes"]
    with pytest.raises(ParameterError, match="differ in digest of the case"):
        compare_sides(side(drift=before), side(drift=after), margins=Margins())


def test_no_common_cell_is_refused():
    with pytest.raises(ParameterError, match="no cell in common"):
        compare_sides(side(drift=1e-6), side(time=1.0), margins=Margins())


def test_all_ratios_moving_together_point_at_their_denominator():
    places = [dataclasses.replace(side(latency_ratio=PROCESSES)) for _ in range(1)]
    fixes = ("query_to_half", "bfloat16", "autocast")
    keys = [(CELL._replace(fix=fix), "latency_ratio") for fix in fixes]
    twin = {(CELL._replace(fix="full_float32"), "latency_ratio"): as_figure((1.0, 1.001, 0.999, 1.0005, 0.9995))}
    slower = tuple(1.1 * one for one in PROCESSES)
    base = dataclasses.replace(places[0], figures={key: as_figure(PROCESSES) for key in keys} | twin)
    head = dataclasses.replace(places[0], figures={key: as_figure(slower) for key in keys} | twin)
    found = compare_sides(base, head, margins=Margins())
    assert any("full_float32 itself may have become faster" in doubt for doubt in found.doubts)


@pytest.mark.parametrize(
    ("fix_to_anchor", "verdict", "failed"), [(1.0, "shown", False), (0.5, "shown", False), (1.3, "regression", True)]
)
def test_a_faster_baseline_is_no_regression_of_a_fix(fix_to_anchor, verdict, failed):
    """full_float32 takes half as long; the fix takes as long as before, half as long, or longer, by the anchor."""
    fix, baseline = CELL, CELL._replace(fix="full_float32")

    def made(name, fix_s, baseline_s):
        ratios = [tuple(scale * one for one in PROCESSES) for scale in (fix_s / baseline_s, fix_s, baseline_s)]
        keys = [(fix, "latency_ratio"), (fix, "latency_to_anchor"), (baseline, "latency_to_anchor")]
        figures = {key: as_figure(ratio) for key, ratio in zip(keys, ratios, strict=True)}
        return Side(name=name, facts={}, remarks={}, figures=figures)

    # the ratio must rise to be a verdict at all: beside a fix of half the time, a baseline of a quarter
    after = 0.25 if fix_to_anchor == 0.5 else 0.5
    found = compare_sides(made("base", 1.0, 1.0), made("head", fix_to_anchor, after), margins=Margins())
    one = next(one for one in found.changes if (one.place, one.metric) == (fix, "latency_ratio"))
    assert one.verdict == verdict
    assert (one.note == "full_float32 became faster, by the anchor") is (verdict == "shown")
    assert found.failed is failed


@pytest.mark.parametrize(
    "margins", [{"latency": -0.1}, {"memory": 1.5}, {"anchor": 2.0}, {"drift": 0.9}, {"drift": float("inf")}]
)
def test_margins_out_of_range_are_refused(margins):
    with pytest.raises(ParameterError, match="margin of"):
        Margins(**margins)
