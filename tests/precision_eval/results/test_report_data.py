from pathlib import Path

import made_groups
import pytest

from precision_eval.results.reading import Run, load_run


def test_the_later_record_of_a_cell_counts(synthetic, tmp_path):
    run = synthetic(tmp_path)
    run.add("w", "s", "eager", "kv_to_query", "memory", status="timed_out", reason="60 s")
    run.add("w", "s", "eager", "kv_to_query", "memory", {"allocated_peak_bytes": 7, "storage_bytes": 5})
    (section,) = load_run(run.write()).sections
    (row,) = section.rows
    assert row.status == "passed"
    assert (row.stored_bytes, row.peak_bytes) == (5, 7)


def test_how_long_a_measure_ran_counts_what_ran_side_by_side_once():
    times = [("a", "00:00:00", 5.0), ("b", "00:00:02", 4.0), ("c", "00:01:00", 1.5), ("d", "00:00:01", 2.0)]
    records = [made_groups.record(f, "sound", {}, started_at=f"2026-01-01T{t}+00:00", wall_s=s) for f, t, s in times]
    other = made_groups.record("a", "latency", {}, started_at="yesterday")
    assert Run(directory=Path(), records=(*records, other), environment={}).busy_s == {"sound": 7.5}


def test_a_torn_last_line_is_counted_and_left_out(synthetic, tmp_path):
    run = synthetic(tmp_path)
    run.add("w", "s", "eager", "float16", "memory", {"allocated_peak_bytes": 7, "storage_bytes": 5})
    path = run.write() / "records.jsonl"
    path.write_text(path.read_text() + '{"schema_version":1,"cel')
    loaded = load_run(tmp_path)
    assert len(loaded.records) == 1
    assert loaded.torn_bytes == 24


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("passed", "raised"), "passed"),
        (("passed", "non_finite"), "non_finite"),
        (("raised", "unsupported"), "raised"),
        (("timed_out", "crashed"), "crashed"),
        (("unsupported",), "unsupported"),
        (("unsupported", "passed"), "unsupported"),  # the first is the trace's
        (("unsupported", "non_finite"), "non_finite"),
    ],
)
def test_one_status_per_row(synthetic, tmp_path, statuses, expected):
    run = synthetic(tmp_path)
    for measure, status in zip(("trace", "memory"), statuses, strict=False):
        run.add("w", "s", "eager", "float16", measure, {"x": 1}, status=status, reason=f"why {status}")
    (row,) = load_run(run.write()).sections[0].rows
    assert row.status == expected
    assert row.reason == f"why {expected}"


def test_failed_measures_of_a_passing_row_are_kept(synthetic, tmp_path):
    run = synthetic(tmp_path)
    run.add("w", "s", "eager", "float16", "trace", {"x": 1})
    run.add("w", "s", "eager", "float16", "latency", status="timed_out", reason="over 60 s")
    (row,) = load_run(run.write()).sections[0].rows
    assert row.incomplete == {"latency": ("timed_out", "over 60 s")}


def test_compiled_sections_borrow_the_references_of_eager(synthetic, tmp_path):
    run = synthetic(tmp_path)
    run.voice()
    run.add("voice", "default", "compiled", "float16", "audio", run.audio(0.4, 3.8))
    loaded = load_run(run.write())
    compiled = next(section for section in loaded.sections if section.mode == "compiled")
    found = [row.fix for row in loaded.comparators(compiled, "audio")]
    assert found == ["reference", "noise_floor", "control_long_window", "control_rope_bfloat16"]


def timed(ratio, low, high, *, verdict):
    return {"baseline": "full_float32", "ratio": ratio, "ratio_low": low, "ratio_high": high, "verdict": verdict}


def test_no_verdict_on_time_stands_where_the_baseline_differs_from_itself(synthetic, tmp_path):
    run = synthetic(tmp_path)
    run.add("w", "s", "eager", "full_float32", "latency", timed(0.94, 0.93, 0.95, verdict="faster"))
    run.add("w", "s", "eager", "kv_to_query", "latency", timed(0.94, 0.92, 0.95, verdict="faster"))
    run.add("w", "s", "eager", "float16", "latency", timed(1.25, 1.24, 1.26, verdict="slower"))
    section = load_run(run.write()).sections[0]
    assert {row.fix: section.verdict_of(row) for row in section.rows} == {
        "full_float32": "noise floor off",
        "kv_to_query": "undecided",
        "float16": "undecided",
    }


def test_the_baseline_is_one_with_the_noise_of_its_own_comparison(synthetic, tmp_path):
    run = synthetic(tmp_path)
    run.add("w", "s", "eager", "full_float32", "latency", timed(0.53, 0.33, 1.8, verdict="undecided"))
    section = load_run(run.write()).sections[0]
    assert section.time_interval(section.row("full_float32")) == (1.0, 0.33, 1.8)


def test_lengths_are_ordered_as_numbers(synthetic, tmp_path):
    run = synthetic(tmp_path)
    for size in ("1024", "dia", "256", "metavoice-64"):
        run.add("w", size, "eager", "float16", "trace", {"x": 1})
    assert [section.size for section in load_run(run.write()).sections] == ["256", "1024", "dia", "metavoice-64"]
