"""Tables: typed cells, the pick first, columns only where they are filled, each doubt one footnote of the report."""

from dataclasses import replace

import made_groups as made
import pytest

from precision_eval.core.figures import LatencyFigures
from precision_eval.core.table import FigureCell
from precision_eval.report import doubts, side_by_side
from precision_eval.report.doubts import Footnotes, drift_doubts, shared_doubts, time_doubts
from precision_eval.report.next_step import budget_to_decide, next_command
from precision_eval.report.tables import AnsweredGroup, answer_of, group_table, recordings_table, sound_table
from precision_eval.results.model import exact
from precision_eval.results.reading import EMPTIED_CACHE, groups_of, load_run


def table_of(*records, short=False):
    notes = Footnotes()
    (group,) = groups_of(records)
    return group_table(answer_of(group), notes, short=short), notes


def column(table, heading):
    at = next(i for i, name in enumerate(table.columns) if name.startswith(heading))
    return {row[0].removeprefix("≈ "): row[at] for row in table.rows}


def a_group(**doubted):
    """Records of three fixes; `doubted` maps a fix to the doubts of its latency."""
    ratios = {"full_float32": 1.0, "kv_to_query": 1.3, "bfloat16": 0.7}
    drifts = {"full_float32": 1e-7, "kv_to_query": 1e-4, "bfloat16": 0.08}
    timed = [
        made.record(fix, "latency", made.latency([ratio] * 4, doubts=list(doubted.get(fix, ()))))
        for fix, ratio in ratios.items()
    ]
    memory = [made.record("bfloat16", "memory", {"storage_bytes": 2**20, "allocated_peak_bytes": 2**19})]
    return [*timed, *memory, *(made.record(fix, "drift", {"relative_error": d}) for fix, d in drifts.items())]


def test_cells_hold_the_numbers_as_recorded():
    table, _ = table_of(*a_group())
    assert table.rows[0][0] == "full_float32"
    assert table.kinds[0] == "chosen"
    time, memory = column(table, "time ratio")["kv_to_query"], column(table, "memory")["bfloat16"]
    assert isinstance(time, FigureCell)
    assert time.value == pytest.approx(1.3)
    assert time.low <= time.value <= time.high
    assert (memory, memory.value) == ("1.5 MiB", 1.5 * 2**20)
    assert column(table, "memory")["kv_to_query"] == "–"
    assert "sound" not in table.columns


def test_what_a_gpu_reserves_has_a_column_where_a_record_says_what_was_there_before():
    sizes = {"storage_bytes": 2**20, "allocated_peak_bytes": 2**19, "reserved_peak_bytes": 6 * 2**20}
    records = [made.record(fix, "memory", sizes) for fix in ("bfloat16", "float16")]
    assert "reserved" not in table_of(*records)[0].columns
    records[0] = made.record("bfloat16", "memory", {**sizes, "allocated_before_bytes": 3 * 2**20})
    assert column(table_of(*records)[0], "reserved") == {"bfloat16": "4 MiB", "float16": "–"}


class TestClocks:
    """A GPU's own time is judged, launched times have a column of their own; records without a clock are launched."""

    BOUND = "launch-bound: the host took 97 % of the time of bfloat16 to launch it while the GPU waited; …"

    def records(self, clock, **launched):
        def data(fix, ratio):
            ratios = {fix: made.latency([launched[fix]] * 4, clock="launched", doubts=[self.BOUND]) for fix in launched}
            nested = {"launched": ratios[fix]} if launched else {}
            return made.latency([ratio] * 4, clock=clock, **nested)

        ratios = {"full_float32": 1.0, "bfloat16": 0.33}
        return [made.record(fix, "latency", data(fix, ratio), device="cuda:0") for fix, ratio in ratios.items()]

    def test_both_are_shown_and_the_devices_is_judged(self):
        table, notes = table_of(*self.records("cuda-graph-warm", full_float32=1.0, bfloat16=1.26))
        assert column(table, "device time ratio")["bfloat16"].value == pytest.approx(0.33)
        launched = column(table, "launched ratio")["bfloat16"]
        assert launched.value == pytest.approx(1.26)
        assert launched.note
        assert column(table, "result")["bfloat16"] == "faster"
        assert doubts.RECORDED["launch-bound"] in notes.texts

    @pytest.mark.parametrize("clock", [None, "cuda-warm", "launched", "wall"])
    def test_what_names_no_clock_of_the_device_is_a_launched_time(self, clock):
        table, _ = table_of(*self.records(clock))
        assert any(heading.startswith("launched time ratio") for heading in table.columns)
        assert "launched ratio" not in table.columns

    def test_a_call_that_is_judged_cold_says_so(self):
        texts = [table_of(*self.records(f"cuda-graph-{cache}"))[1].texts for cache in ("cold", "warm")]
        assert [f"{EMPTIED_CACHE}." in text for text in texts] == [True, False]

    def test_a_column_of_launched_times_beside_other_machines_says_so(self):
        device, launched, cpu = (
            groups_of(records)[0] for records in (self.records("cuda-graph-warm"), self.records("cuda-warm"), a_group())
        )
        table = side_by_side._table({"H200": device, "T4": launched, "EPYC": cpu})
        assert table.columns == ("fix", "H200", "T4, launched", "EPYC")

    def test_ratios_of_unlike_clocks_are_not_paired_round_by_round(self):
        records = [*self.records("cuda-graph-warm"), *self.records("cuda-kernels")[1:]]
        records[2] = replace(records[2], fix="float16", cell=records[2].cell.replace("bfloat16", "float16"))
        (group,) = groups_of(records)
        assert group.row("full_float32").session == group.row("bfloat16").session != group.row("float16").session

    @pytest.mark.parametrize(
        ("clock", "timed_by"),
        [
            (None, "launched"),
            ("wall/cpu", "launched"),
            ("cuda-graph-cold", "graph"),
            ("cuda-graph-warm/cuda-kernels", "graph/kernels"),
            ("cuda-kernels/launched", "launched"),
        ],
    )
    def test_a_clock_over_processes(self, clock, timed_by):
        assert LatencyFigures(baseline="full_float32", ratio=1.0, clock=clock).timed_by == timed_by


def test_parts_of_a_drift_are_shares_of_its_mean_square_error():
    split = {
        "input_cast_mse": 2.0,
        "compute_mse": 5.0,
        "output_rounding_mse": 4.0,
        "cross_mse": -1.0,
        "total_mse": 10.0,
    }
    record = made.record("float16", "drift", {"relative_error": 1e-3, "split": split})
    table, _ = table_of(record)
    parts = [column(table, name)["float16"] for name in ("input cast", "compute", "output", "cross")]
    assert parts == ["20", "50", "40", "−10"]
    assert sum(part.value for part in parts) == pytest.approx(100.0)


def test_a_doubt_is_one_footnote_whatever_it_applies_to():
    doubted = {
        "kv_to_query": ["in 2 of 5 processes: fresh memory: 8,193 page faults"],
        "bfloat16": ["over budget: 9 s"],
    }
    table, notes = table_of(*a_group(**doubted))
    times = column(table, "time ratio")
    marks = {fix: cell.note.strip() for fix, cell in times.items()}
    assert marks["full_float32"] == ""
    assert len({marks["kv_to_query"], marks["bfloat16"]}) == 2
    assert doubts.RECORDED["fresh memory"] in notes.texts
    again, both = table_of(*a_group(**{fix: ["over budget: 9 s"] for fix in times}))
    assert both.texts.count(doubts.RECORDED["over budget"]) == 1
    assert all(cell.note == "" for cell in column(again, "time ratio").values())  # shared: at the title
    assert doubts.FEW_DIGITS in both.texts


def test_messages_and_gaps_are_footnotes_of_the_result():
    raised = made.record("as_shipped", "trace", status="raised", reason="RuntimeError: Expected the same dtype")
    gap = made.record("float16", "memory", status="timed_out", reason="over 60 s")
    table, notes = table_of(raised, gap, made.record("float16", "drift", {"relative_error": 1e-3}))
    assert column(table, "result")["as_shipped"].startswith("raised ")
    assert "RuntimeError: Expected the same dtype" in notes.texts
    assert "memory timed out: over 60 s" in notes.texts


def test_what_speaks_against_a_whole_group():
    one_process = made.latency([], blocks=[1.0, 1.1, 1.2, 1.1])
    records = [made.record(fix, "latency", one_process, environment=fix) for fix in ("kv_to_query", "float16")]
    (group,) = groups_of([*records, made.record("float16", "drift", {"relative_error": 1e-3})])
    assert shared_doubts(group)[:3] == [doubts.UNLIKE_ENVIRONMENTS, doubts.ONE_PROCESS_TEXT, doubts.ONE_INPUT_TEXT]
    off = replace(group, noise_floor_off=True)
    assert doubts.A_A_FAILED in shared_doubts(off)
    row = group.row("float16")
    strange = replace(
        row, records={"latency": made.record("float16", "latency", one_process | {"doubts": ["a new kind: 3"]})}
    )
    assert time_doubts(strange.latency) == ["a new kind: 3"]
    assert drift_doubts(replace(row, records={})) == []


def test_a_plugin_measure_has_columns_and_a_removed_one_has_none(monkeypatch):
    monkeypatch.setattr("precision_eval.report.tables.REMOVED_MEASURES", {"old": "removed"})
    data = {"output": {"largest": 3.25}, "name": "x"}
    table, _ = table_of(made.record("float16", "size", data), made.record("float16", "old", data), short=True)
    assert column(table, "size.output.largest")["float16"].value == 3.25
    assert not any(name.startswith("old") for name in table.columns)


def test_a_tie_and_the_pick_are_marked():
    (group,) = groups_of(a_group())
    answer = answer_of(group)
    tied = AnsweredGroup(group=group, choice=replace(answer.choice, tied=(answer.pick, "kv_to_query")))
    table = group_table(tied, Footnotes())
    assert "take full_float32 ≈ kv_to_query" in table.title
    assert {row[0] for row in table.rows} >= {"full_float32", "≈ kv_to_query"}


def test_sound_has_controls_margins_and_what_was_detectable(full_run):
    run = load_run(full_run)
    group = next(one for one in run.sections if one.case == "voice" and one.mode == "eager")
    table, recordings = sound_table(run, group), recordings_table(run, group, Footnotes())
    names = [row[0] for row in recordings.rows]
    assert names[-3:] == ["noise_floor", "control_long_window", "control_rope_bfloat16"]
    if table is not None:
        assert [row[0] for row in table.rows][-2:] == ["margin of no worse", "detectable in 80 %"]


def undecided(ratio, **data):
    settled = {"minimum_detectable_effect": 0.04, "elapsed_s": 2.0, "verdict": "undecided"}
    record = made.record("kv_to_query", "latency", made.latency([ratio] * 4) | settled | data)
    (group,) = groups_of([record])
    (row,) = group.rows
    row = replace(row, time=exact(ratio), verdict="undecided")
    return replace(group, rows=(row,)), row


@pytest.mark.parametrize(
    ("ratio", "data", "budget_s"),
    [
        (1.01, {}, 32.0),  # (ln 1.04 / ln 1.01)² × 2 s, rounded up
        (1.01, {"settling_s": 20.0}, 20.0),
        (1.001, {}, None),  # within the margin
        (1.05, {}, None),  # should have been seen
        (1.01, {"doubts": ["fresh memory: a call had 9,000 page faults"]}, None),
    ],
)
def test_what_would_decide_follows_from_the_detectable_effect(ratio, data, budget_s):
    group, row = undecided(ratio, **data)
    assert budget_to_decide(group, row) == budget_s
    assert budget_to_decide(replace(group, noise_floor_off=True), row) is None


def test_the_next_command_decides_what_is_undecided_else_chooses(full_run):
    run = load_run(full_run)

    def next_of(*groups):
        return next_command(_with_sections(run, groups))

    assert next_of(undecided(1.01)[0]).partition("  ")[0].endswith("--measure latency --out runs/again --set budget=32")
    assert "--set processes=5" in next_of(undecided(1.5, doubts=["fresh memory: 9 faults"])[0])
    assert next_of(*groups_of(a_group())).startswith("precision-eval choose ")


def _with_sections(run, groups):
    changed = replace(run)
    vars(changed)["sections"] = tuple(groups)
    return changed
