"""What depends on the torch version, in a run's own report: from a table, beside what the run found."""

import json

import pytest

from precision_eval.report.tables import version_table
from precision_eval.results.expectations import MODES, Column, Expectation
from precision_eval.results.operations import PROBES, operations_table
from precision_eval.results.reading import load_run

RAISED, PASSED = Expectation("raised", "why"), Expectation("passed")


@pytest.fixture
def run_dir(synthetic, tmp_path):
    made = synthetic(tmp_path)
    for mode in ("eager", "compiled"):
        made.add("dia-decode", "cpu", mode, "as_shipped", "trace", {"backend": "flash"})
        made.add("dia-decode", "cpu", mode, "float16", "trace", {"backend": "flash"})
        made.add("dia-decode", "cpu", mode, "autocast", "trace", status="raised", reason="RuntimeError: no")
    made.write()
    (tmp_path / "environment.json").write_text(json.dumps({"torch": {"version": "2.13.0+cpu"}}))
    return tmp_path


def column(**cells):
    return Column({}, {f"dia-decode/{key.replace('__', '/').replace('aot', 'compiled-aot_eager')}": value
                       for key, value in cells.items()})  # fmt: skip


TABLE = {
    "2.6.0": column(as_shipped__eager=RAISED, autocast__eager=PASSED, as_shipped__aot=RAISED, float16__eager=PASSED),
    "2.8.0": column(as_shipped__eager=PASSED, autocast__eager=RAISED, as_shipped__aot=PASSED, float16__eager=PASSED),
    "2.13.0": column(as_shipped__eager=PASSED, autocast__eager=PASSED, as_shipped__aot=PASSED, float16__eager=PASSED),
}


def notes_of(run_dir, table=TABLE):
    rows = version_table(load_run(run_dir), table=table).rows
    return {str(cell): rest for cell, *rest in rows}


def test_only_what_turns_over_is_listed_and_held_to_its_own_column(run_dir):
    assert notes_of(run_dir) == {
        "dia-decode/as_shipped/eager": ["cpu", "passed", "raised up to 2.6.0, passed from 2.8.0", "as recorded"],
        "dia-decode/autocast/eager": [
            "cpu",
            "raised",
            "passed up to 2.6.0, raised in 2.8.0, passed from 2.13.0",
            "differs from the record (passed)",  # the planted difference
        ],
        "dia-decode/as_shipped/compiled": ["cpu", "passed", "raised up to 2.6.0, passed from 2.8.0", "as recorded"],
    }
    table = version_table(load_run(run_dir), table=TABLE)
    assert sorted(table.kinds) == ["failed", "passed", "passed"]
    assert version_table(load_run(run_dir), case="dia-prefill", table=TABLE) is None


def test_what_inductor_was_recorded_to_do_goes_before_aot_eager(run_dir):
    own = TABLE["2.13.0"]
    inductor = Column({}, {**own.cells, "dia-decode/as_shipped/compiled-inductor": RAISED})
    notes = notes_of(run_dir, {**TABLE, "2.13.0": inductor})
    assert notes["dia-decode/as_shipped/compiled"][-1] == "differs from the record (raised)"


@pytest.mark.parametrize(("version", "held"), [("2.14.1", "as recorded"), ("2.5.0", "–")])
def test_another_torch_is_held_to_the_nearest_lower_column(run_dir, version, held):
    (run_dir / "environment.json").write_text(json.dumps({"torch": {"version": version}}))
    assert notes_of(run_dir)["dia-decode/as_shipped/eager"][-1] == held


def test_pinned_cells_have_no_notes(run_dir):
    records = [json.loads(line) for line in (run_dir / "records.jsonl").read_text().splitlines()]
    for record in records:
        record["options"] = {"sdpa_backend": "math"}
    (run_dir / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert version_table(load_run(run_dir), table=TABLE) is None


def test_a_run_of_an_unknown_torch_has_none(run_dir):
    (run_dir / "environment.json").unlink()
    assert version_table(load_run(run_dir), table=TABLE) is None


def test_operations_are_told_by_version_and_mode():
    keys = [f"{probe.id}/{mode}" for probe in PROBES for mode in MODES]
    outcomes = {version: dict.fromkeys(keys, "raised") for version in ("2.6.0", "2.9.1", "2.10.0")}
    outcomes["2.6.0"]["matmul-3d/compiled-inductor"] = "float32"
    table = operations_table(outcomes)
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert cells["matmul-3d"]["compiled by Inductor"] == "float32 up to 2.6.0, raised from 2.9.1"
    assert cells["matmul-3d"]["eager"] == "raised in each"
    assert cells["matmul-3d"]["upstream"] == "pytorch #172183"
    assert operations_table({}).rows[0][2] == "–"
