"""The systems' pages: markers, one line per fix over both modes, shares of the drift."""

import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.results.data import load_run
from tools.readme.pages import main, system_table, write_page

SPLIT = {
    "input_cast_mse": 6.0,
    "compute_mse": 2.5,
    "output_rounding_mse": 1.0,
    "cross_mse": 0.5,
    "total_mse": 10.0,
}


@pytest.fixture
def run_dir(synthetic, tmp_path):
    run = synthetic(tmp_path / "run")
    run.attention("dia-decode", "cpu", "eager")
    run.attention("dia-decode", "cpu", "compiled")
    for record in run.records:
        if record["measure"] == "drift" and record["fix"] == "kv_to_query":
            record["data"] |= {"relative_error": 1.25e-3, "split": SPLIT}
    run.write()
    return run.run_dir


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "dia.md"
    path.write_text("# Dia\n\n<!-- dia-decode:begin -->\nold\n<!-- dia-decode:end -->\n\nafter\n", encoding="utf-8")
    return path


def test_one_line_per_fix_over_both_modes(run_dir):
    table = system_table(load_run(run_dir), "dia-decode")
    assert table.columns[:5] == ("fix", "eager", "compiled", "drift", "cast / compute / rounding / cross, %")
    cells = {row[0]: row for row in table.rows}
    assert cells["kv_to_query"][1:5] == ("passed", "passed", "1.3e-3", "60 / 25 / 10 / 5")
    assert cells["dynamo_fallback"][1:4] == ("–", "raised", "–")
    assert cells["full_float32"][5].startswith("A/A 1.00 [")
    notes = " ".join(table.notes)
    assert "as_shipped (eager), as_shipped (compiled), dynamo_fallback (compiled): raised: Expected query, key" in notes


def test_the_samplers_share_is_shown_over_many_positions_only(run_dir, synthetic, tmp_path):
    for positions, shown in ((64, True), (1, False)):
        run = synthetic(tmp_path / str(positions))
        run.add("m", "cpu", "eager", "float16", "sampler", {"positions": positions, "changed_nucleus": 0.125})
        run.add("m", "cpu", "eager", "float16", "memory", {"storage_bytes": 2**20, "peak_allocated_bytes": 2**10})
        run.write()
        table = system_table(load_run(run.run_dir), "m")
        assert ("nucleus moved by the sampler alone" in table.columns) == shown
        assert ("12 % of 64" in table.rows[0]) == shown
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_what_stands_outside_the_markers_stays(run_dir, page, capsys):
    assert main([str(run_dir), str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Dia\n\n<!-- dia-decode:begin -->\n**dia-decode · cpu · cpu, 1 thread**\n")
    assert text.endswith("<!-- dia-decode:end -->\n\nafter\n")
    assert "old" not in text
    assert not write_page(page, load_run(run_dir))
    assert "written" in capsys.readouterr().out


def test_bad_input_is_named(run_dir, page, capsys):
    page.write_text("<!-- voice:begin -->\n<!-- voice:end -->\n", encoding="utf-8")
    assert main([str(run_dir), str(page)]) == 2
    assert "holds nothing of the case 'voice'; it holds dia-decode" in capsys.readouterr().err
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(ParameterError, match="has no markers"):
        write_page(page, load_run(run_dir))
