"""Parts of the drift and the sampler's rounding, in every report of a run."""

import io

import pytest
from rich.console import Console

from precision_eval.report.tables import parts_table, shares_of
from precision_eval.report.text import findings, markdown_report, print_report
from precision_eval.results.reading import load_run

SPLIT = {
    "input_cast_mse": 6.0, "compute_mse": 4.5, "output_rounding_mse": 1.0, "cross_mse": -1.5, "total_mse": 10.0,
}  # fmt: skip
SAMPLER = {"dtype": "bfloat16", "positions": 64, "changed_nucleus": 0.34375, "total_variation": 0.0365}


@pytest.fixture
def run(synthetic, tmp_path):
    made = synthetic(tmp_path)
    made.add("m", "cpu", "eager", "as_shipped", "drift", status="raised", reason="no")
    made.add("m", "cpu", "eager", "bfloat16", "drift", {"relative_error": 8.4e-3, "split": SPLIT})
    made.add("m", "cpu", "eager", "bfloat16", "sampler", SAMPLER)
    made.add("m", "cpu", "eager", "float16", "drift", {"relative_error": 1e-3, "split": SPLIT | {"total_mse": 0.0}})
    return load_run(made.write())


def test_by_hand(run):
    table = parts_table(run.sections[0])
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert [row[0] for row in table.rows] == ["bfloat16"]  # the others have neither
    assert cells == {
        "fix": "bfloat16", "drift": "8.4e-3", "input cast, %": "60", "compute, %": "45", "output rounding, %": "10",
        "cross-term, %": "−15", "sampler in": "bfloat16", "nucleus moved": "22 of 64", "its total variation": "0.036",
    }  # fmt: skip
    assert sum(shares_of({"split": SPLIT})) == pytest.approx(100.0)
    assert len(table.notes) == 2


def test_the_report_and_the_terminal_show_it(run):
    text = markdown_report(run, findings(run), figures=[], left_out=[])
    assert "| `bfloat16` | 8.4e-3 | 60 | 45 | 10 | −15 | bfloat16 | 22 of 64 | 0.036 |" in text
    console = Console(file=io.StringIO(), width=200)
    print_report(run, findings(run), console=console, files=[])
    assert "What the drift consists of" in console.file.getvalue()
