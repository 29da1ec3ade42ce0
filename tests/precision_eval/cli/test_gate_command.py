"""``precision-eval gate``: exit codes, files, messages."""

import json
import subprocess
import sys

import made_results
import pytest

import precision_eval.cli.app_gate  # noqa: F401 - registers the command
from precision_eval.cli import main

MADE = vars(made_results)
SLOWER = (1.6, 1.601, 1.599, 1.6002, 1.5998)


@pytest.fixture
def runs(tmp_path):
    same = [str(MADE["made_run"](tmp_path / name)) for name in ("a", "b")]
    return [*same, str(MADE["made_run"](tmp_path / "slow", ratios=SLOWER))]


@pytest.fixture
def gate(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["precision-eval", "gate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_no_change_exits_0(gate, runs):
    code, out, err = gate(runs[0], runs[1])
    assert (code, err) == (0, "")
    assert out.startswith("**No regression beyond the margins in 5 figures")


def test_a_regression_exits_1_and_is_written(gate, runs, tmp_path):
    code, out, _ = gate(runs[0], runs[2], "--markdown", tmp_path / "new" / "summary.md")
    assert code == 1
    assert (tmp_path / "new" / "summary.md").read_text() == out
    assert "+6.67 %" in out


def test_the_other_way_round_it_is_an_improvement(gate, runs):
    code, out, _ = gate(runs[2], runs[0], "--json")
    assert code == 0
    assert [one["verdict"] for one in json.loads(out)["changes"] if one["metric"] == "latency_ratio"] == ["improvement"]


@pytest.mark.parametrize("margin", ["10%", "0.1"])
def test_a_wider_margin_lets_it_through(gate, runs, margin):
    assert gate(runs[0], runs[2], "--margin-latency", margin)[0] == 0


def test_asv_results(gate, tmp_path):
    MADE["made_asv"](tmp_path, commit="a" * 40)
    MADE["made_asv"](tmp_path, commit="b" * 40, ratios=SLOWER)
    assert gate("aaaaaaaa", "bbbbbbbb", "--results", tmp_path)[0] == 1
    assert gate("bbbbbbbb", "aaaaaaaa", "--results", tmp_path)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}", "{0}-missing"], "no run folder"),
        (["{0}", "{1}", "--margin-latency", "much"], "--margin-latency is 'much'"),
        (["{0}", "{1}", "--margin-drift", "0.5"], "margin of drift is 0.5"),
        (["deadbeef", "cafecafe", "--results", "{0}"], "holds no result file of asv"),
        (["{0}", "{1}", "--markdown", "{0}/records.jsonl/x.md"], "cannot write"),
    ],
)
def test_bad_input_exits_2_in_one_line(gate, runs, arguments, message):
    code, out, err = gate(*(one.format(*runs) for one in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_another_machine_exits_2(gate, runs, tmp_path):
    other = MADE["made_run"](tmp_path / "other", cpu="Model Two")
    code, _, err = gate(runs[0], other)
    assert code == 2
    assert "processor (Model One against Model Two)" in err


def test_help_loads_neither_torch_nor_numpy():
    code = (
        "import sys, precision_eval.cli.app_gate\n"
        "from typer.testing import CliRunner\n"
        "from precision_eval.cli.commands import app\n"
        "found = CliRunner().invoke(app, ['gate', '--help'])\n"
        "assert found.exit_code == 0 and 'BASE' in found.output, found.output\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
