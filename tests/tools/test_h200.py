"""The rows of an H200: their import, the clocks in the tables, counts of trials, the group of the README's figure."""

import json
from pathlib import Path

import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import memory_text
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.studies.memory import PlannedCall, Planner, planned_model
from precision_eval.studies.memory.devices import device_named
from tools.h200 import (
    FIGURE,
    FILES,
    device_group,
    fixes_markdown,
    import_rows,
    memory_table,
    overview_markdown,
    plain_markdown,
    read_fixes,
    trials_markdown,
    write_report,
)

ROOT = Path(__file__).resolve().parents[2] / "results"
PLAIN = {
    "case": "decode dia", "fix": "float16", "events_us": 34.0, "do_bench_us": 27.0, "graph_same_us": 18.0,
    "graph_rotating_us": 19.0,
}  # fmt: skip
CELL = {"case": "dia-decode", "size": "full", "mode": "eager", "session": "second"}


def timed(fix, kind, ratio, *, cache="warm"):
    row = {"kind": kind, "cache": cache, "ratio": ratio, "low": ratio - 0.001, "high": ratio + 0.001}
    return CELL | row | {"fix": fix, "us": 1000 * ratio, "baseline_us": 1000.0, "blocks": 9}


@pytest.fixture
def folder(tmp_path):
    """A folder of results with two fixes of one case, one of which cannot be captured."""
    folder = tmp_path / "h200"
    folder.mkdir()
    (tmp_path / "gpu").symlink_to(ROOT / "gpu")
    (folder / "environment.json").write_bytes((ROOT / "h200" / "environment.json").read_bytes())
    write(folder / "fixes.jsonl", [
        timed("bfloat16", "graph", 0.4), timed("bfloat16", "graph", 0.9, cache="cold"),
        timed("bfloat16", "launched", 1.2),
        timed("autocast", "launched", 1.3), CELL | {"fix": "autocast", "graph_error": "Cannot copy"},
        CELL | {"fix": "float16", "status": "raised", "reason": "mat1 and mat2"},
        CELL | {"fix": "full_float32", "storage_mib": 9.0, "call_peak_mib": 2.0},
    ])  # fmt: skip
    trial = {"graph": True, "said": {"faster": 1, "slower": 0}, "ratios": [[0.99, 0.98, 0.995], [1.001, 0.999, 1.003]]}
    write(folder / "trials.jsonl", [trial | {"fault": fault} for fault in ("none", "same", "plus1")])
    return folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def cells(markdown, first):
    line = next(line for line in markdown.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_rows_are_imported_byte_for_byte_and_an_unexplained_field_is_refused(folder, tmp_path):
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / "environment.json").write_bytes((folder / "environment.json").read_bytes())
    write(folder / "plain-torch.jsonl", [PLAIN])
    import_rows(folder, copied)
    assert all((copied / name).read_bytes() == (folder / name).read_bytes() for name in FILES)
    write(folder / "trials.jsonl", [{"watts": 3}])
    with pytest.raises(ParameterError, match=r"has the fields watts; expected only fields that .* explains; add what"):
        import_rows(folder, copied)


def test_each_case_has_a_line_and_says_why_a_ratio_is_missing(folder):
    text = overview_markdown(folder, folder)
    ratios = dict(zip(cells(text, "case, size"), cells(text, "dia-decode full"), strict=True))
    assert ratios == {
        "bfloat16": "0.400",
        "autocast": "not captured",
        "float16": "raised",
        "bfloat16, launched": "1.200",
    }
    assert "NVIDIA H200" in text


def test_the_tables_hold_intervals_reasons_and_the_peak_of_a_call(folder):
    text = fixes_markdown(folder, folder)
    assert cells(text, "bfloat16")[:3] == ["0.400 [0.399, 0.401]", "400 µs", "1.200 [1.199, 1.201]"]
    assert cells(text, "full_float32") == ["1", "1 ms", "1", "2 MiB"]
    assert {"1. mat1 and mat2", "2. Cannot copy"} == set(text.splitlines()[-2:])


def test_trials_count_verdicts_and_intervals_that_hold_one(folder):
    text = trials_markdown(folder, folder)
    assert cells(text, "equal calls, separate tensors") == ["2", "1", "1", "0.9900", "1.0010"]
    assert cells(text, "1 % more work")[:3] == ["2", "1", "–"]


def test_plain_torch_has_a_column_for_each_clock(folder):
    assert cells(plain_markdown([PLAIN]), "decode dia") == ["float16", "34 µs", "27 µs", "18 µs", "19 µs"]


def test_the_figure_has_the_drift_of_one_run_and_the_device_time_of_the_other():
    group = device_group(ROOT / "h200")[1]
    graphs = {fix: rows.clocks["graph"] for fix, rows in read_fixes(ROOT / "h200")[FIGURE].items() if rows.clocks}
    assert {row.fix for row in group.curing} == {"full_float32", *graphs} - {"twin"}
    for row in group.curing:
        assert row.drift is not None
        assert row.time.value == (1.0 if row.fix == "full_float32" else graphs[row.fix]["ratio"])
    assert group.noise_floor.value == graphs["twin"]["ratio"]


def test_the_published_rows_have_no_field_without_a_meaning(tmp_path):
    (tmp_path / "environment.json").write_bytes((ROOT / "h200" / "environment.json").read_bytes())
    import_rows(ROOT / "h200", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((*FILES, "environment.json"))
    (tmp_path.parent / "gpu").symlink_to(ROOT / "gpu")
    assert write_report(tmp_path).read_text() == (ROOT / "h200" / "report.md").read_text(), "run `make docs`"


def test_measured_memory_stands_beside_the_plan_of_the_same_call(tmp_path):
    planner = Planner(planned_model("attention-decode", size="tiny"), device=device_named("h200"))
    call, fix = PlannedCall(length=1), fix_by_id("kv_to_query")
    plan, held = planner.plan(call, fix), planner.held_bytes(call, fix)
    peak = plan.call_bytes
    row = {"case": "attention-decode", "size": "tiny", "mode": "eager", "fix": fix.id}
    pairs = [(held, peak), (held + (32 << 20), peak), (2 * held, 2 * peak)]
    write(tmp_path / "fixes.jsonl", [
        row | {"storage_mib": stored / 2**20, "call_peak_mib": peak / 2**20} for stored, peak in pairs
    ])  # fmt: skip
    rows = memory_table(tmp_path).rows
    assert [cells[-1] for cells in rows] == ["+0.00 %", "+0.00 %", "-50.00 %"]
    assert {cells[-2] for cells in rows} == {memory_text(peak + plan.workspace_bytes)}
