import io
import itertools
import re

import pytest
from rich.console import Console

from precision_eval.core.table import to_markdown
from precision_eval.report.findings import findings_of
from precision_eval.report.tables import (
    audio_table,
    cost_table,
    tables_of,
)
from precision_eval.report.text import family_wise_line, findings, markdown_report, print_report, reading_guide
from precision_eval.results.choose.comparing import leaders, value_front
from precision_eval.results.reading import load_run


def latency(ratio, low, high, *, verdict="faster", baseline="full_float32"):
    return {
        "baseline": baseline,
        "ratio": ratio,
        "ratio_low": low,
        "ratio_high": high,
        "confidence": 0.95,
        "verdict": verdict,
        "minimum_detectable_effect": 0.01,
        "median_s": 1e-3,
        "doubts": [],
    }


@pytest.fixture
def small(synthetic, tmp_path):
    """Write fixes given as id -> (latency triple, drift) and return the only section."""

    def build(fixes):
        run = synthetic(tmp_path)
        for fix, (triple, drift) in fixes.items():
            run.add("w", "s", "eager", fix, "latency", latency(*triple))
            run.add("w", "s", "eager", fix, "drift", {"relative_error": drift})
        return load_run(run.write())

    return build


def names(rows):
    return [row.fix for row in rows]


def test_fastest_calls_overlap_a_tie_and_distance_none(small):
    fixes = {
        "bfloat16": ((0.80, 0.78, 0.82), 1e-3),
        "float16": ((0.83, 0.81, 0.85), 1e-4),
        "kv_to_query": ((1.90, 1.88, 1.92), 1e-5),
    }
    run = small(fixes)
    assert names(leaders(run.sections[0], "time")) == ["bfloat16", "float16"]
    text = " ".join(findings_of(run, run.sections[0]))
    assert "Fastest is bfloat16 at 0.800 [0.780, 0.820] of full_float32's time, a tie within uncertainty with" in text


def test_a_verdict_is_held_to_what_the_baseline_shows_against_itself(synthetic, tmp_path):
    run = synthetic(tmp_path)
    run.add("w", "s", "eager", "full_float32", "latency", latency(0.94, 0.93, 0.95, verdict="faster"))
    run.add("w", "s", "eager", "kv_to_query", "latency", latency(0.94, 0.92, 0.95, verdict="faster"))
    run.add("w", "s", "eager", "float16", "latency", latency(1.25, 1.24, 1.26, verdict="slower"))
    section = load_run(run.write()).sections[0]
    assert {row.fix: section.verdict_of(row) for row in section.rows} == {
        "full_float32": "noise floor off",
        "kv_to_query": "undecided",  # its interval is the noise floor's own
        "float16": "slower",
    }


def test_the_baseline_is_one_with_the_noise_of_its_own_comparison(synthetic, tmp_path):
    run = synthetic(tmp_path)
    run.add("w", "s", "eager", "full_float32", "latency", latency(0.53, 0.33, 1.8, verdict="undecided"))
    run.add("w", "s", "eager", "kv_to_query", "latency", latency(0.90, 0.89, 0.91))
    loaded = load_run(run.write())
    rows = {row.fix: row for row in loaded.sections[0].rows}
    assert loaded.sections[0].time_interval(rows["full_float32"]) == (1.0, 0.33, 1.8)
    assert names(leaders(loaded.sections[0], "time")) == ["kv_to_query"]
    text = " ".join(findings_of(loaded, loaded.sections[0]))
    assert "Even the baseline is not told from itself with certainty" in text
    assert "undecided against" not in text


def test_drifts_without_interval_tie_within_ten_per_cent(small):
    triple = (1.0, 0.99, 1.01)
    run = small({"float16": (triple, 1.00e-4), "kv_to_query": (triple, 1.08e-4), "bfloat16": (triple, 1.2e-4)})
    assert names(leaders(run.sections[0], "drift")) == ["float16", "kv_to_query"]


def test_pareto_front_equals_its_definition(full_run):
    for section in load_run(full_run).sections:
        points = {
            row.fix: (section.time_interval(row)[0], row.drift.value)
            for row in section.curing
            if section.time_interval(row) and row.drift
        }
        beaten = {
            a
            for a, b in itertools.permutations(points, 2)
            if points[b] != points[a] and all(q <= p for p, q in zip(points[a], points[b], strict=True))
        }
        assert set(names(value_front(section))) == set(points) - beaten


def test_failing_fixes_never_win(small, synthetic, tmp_path):
    run = synthetic(tmp_path / "other")
    run.add("w", "s", "eager", "float16", "latency", latency(0.1, 0.1, 0.1))
    run.add("w", "s", "eager", "float16", "drift", status="non_finite", reason="output holds inf")
    run.add("w", "s", "eager", "bfloat16", "latency", latency(0.9, 0.9, 0.9))
    loaded = load_run(run.write())
    assert names(leaders(loaded.sections[0], "time")) == ["bfloat16"]
    assert "float16 does not cure it: non_finite" in findings_of(loaded, loaded.sections[0])[0]


def test_raised_fixes_stand_in_the_table_with_their_message(full_run):
    section = next(s for s in load_run(full_run).sections if s.mode == "compiled")
    table = cost_table(section)
    raised = [row[0] for row in table.rows if row[1] == "raised"]
    assert raised == ["as_shipped", "dynamo_fallback"]
    assert any(
        note.startswith("as_shipped and dynamo_fallback: raised: Expected query, key, and value to have the same dtype")
        for note in table.notes
    )


def test_audio_stands_beside_reference_null_and_both_controls(full_run):
    run = load_run(full_run)
    section = next(s for s in run.sections if s.case == "voice" and s.mode == "eager")
    table = audio_table(run, section)
    found = [row[0] for row in table.rows]
    assert found[0] == "reference"
    assert found[-3:] == ["noise_floor", "control_long_window", "control_rope_bfloat16"]
    assert not any(note.startswith("Not in these records") for note in table.notes)


@pytest.mark.parametrize("width", [60, 120])
def test_no_figure_is_cut_at_any_width(full_run, width):
    run = load_run(full_run)
    console = Console(width=width, file=io.StringIO())
    print_report(run, findings(run), console=console, files=[])
    text = console.file.getvalue()
    printed = set(re.findall(r"[^\s]+", text))
    for section in run.sections:
        for table in tables_of(run, section):
            for row in table.rows:
                assert row[0] in printed
                missing = [word for cell in row for word in cell.split() if word not in printed]
                assert not missing, (table.title, row, missing)
    assert max(len(line) for line in text.splitlines()) <= width


def test_markdown_tables_are_well_formed(full_run):
    run = load_run(full_run)
    for section in run.sections:
        for table in tables_of(run, section):
            lines = [line for line in to_markdown(table, heading=False).splitlines() if line.startswith("|")]
            assert len(lines) == len(table.rows) + 2
            assert {line.count("|") for line in lines} == {len(table.columns) + 1}
    text = markdown_report(run, findings(run), figures=[full_run / "figures" / "a.png"], left_out=["b: not measured"])
    assert "![a](figures/a.png)" in text
    assert "- Left out: b: not measured" in text


def sound_cells(synthetic, tmp_path, changes, *, minutes=1.0):
    """Return the row of float16 by column, and the notes, with the audio record changed."""
    run = synthetic(tmp_path, minutes=minutes)
    data = run.audio(0.4, 3.8)
    for path, value in changes.items():
        *nodes, name = path.split("/")
        node = data
        for key in nodes:
            node = node[key]
        node[name] = value
    run.add("voice", "default", "eager", "float16", "audio", data)
    loaded = load_run(run.write())
    table = audio_table(loaded, loaded.sections[0])
    return dict(zip(table.columns, table.rows[0], strict=True)), table.notes


def test_si_sdr_is_the_whole_file_s_where_windows_are_identical(synthetic, tmp_path):
    summary = {"mean": None, "whole_file": 5.435, "ratio_to_null": 0.09, "n_windows": 60, "n_infinite": 33}
    cells, notes = sound_cells(synthetic, tmp_path, {"against_reference/si_sdr_db": summary})
    assert cells["SI-SDR to reference, dB"] == "5.43 (× 0.09)"
    assert any(note.startswith("SI-SDR is of the whole file") for note in notes)


def test_family_wise_error_is_stated(synthetic, tmp_path):
    run = synthetic(tmp_path)
    for size in ("s", "m", "l"):
        run.add("w", size, "eager", "float16", "latency", {**latency(1.25, 1.24, 1.26), "error_rate": 0.01})
    loaded = load_run(run.write())
    assert "within a latency group (3 here)" in family_wise_line(loaded)
    assert "at most 1 % over all" in family_wise_line(loaded)
    assert family_wise_line(loaded).endswith("at most 3 %.")
    assert family_wise_line(loaded) in reading_guide(loaded)
