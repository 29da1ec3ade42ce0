"""``precision-eval gate``: exit codes, files, messages."""

import json
from pathlib import Path

import made_results
import pytest

SLOWER = (1.6, 1.601, 1.599, 1.6002, 1.5998)


@pytest.fixture
def runs(tmp_path):
    same = [str(made_results.made_run(tmp_path / name)) for name in ("a", "b")]
    return [*same, str(made_results.made_run(tmp_path / "slow", ratios=SLOWER))]


@pytest.fixture
def gate(program):
    return lambda *arguments: program("gate", *arguments)


def test_no_change_exits_0(gate, runs):
    code, out, err = gate(runs[0], runs[1])
    assert (code, err) == (0, "")
    assert out.startswith("**No regression beyond the margins in 5 figures")


def cut(folder, keep):
    """Keep the lines of a run's records that `keep` names."""
    path = Path(folder) / "records.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if keep(json.loads(line))))


def tear(folder):
    path = Path(folder) / "records.jsonl"
    path.write_text(path.read_text() + '{"cell": "torn')


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: cut(run, lambda record: record["measure"] == "latency"), "5 missing in head"),
        (tear, "torn record of 14 bytes"),
    ],
)
def test_a_damaged_head_exits_4(gate, runs, damage, reason):
    damage(runs[1])
    code, out, _ = gate(runs[0], runs[1])
    assert code == 4
    assert out.startswith("**Could not tell: no regression beyond the margins in ")
    assert reason in out.splitlines()[0]
    code, out, _ = gate(runs[0], runs[1], "--json")
    assert (code, json.loads(out)["verdict"]) == (4, "could not tell")


def test_a_regression_counts_before_what_is_missing(gate, runs):
    cut(runs[2], lambda record: record["measure"] == "latency")
    code, out, _ = gate(runs[0], runs[2])
    assert code == 1
    assert "5 missing in head" in out.splitlines()[0]


def test_a_slowdown_seen_by_one_process_exits_4(gate, tmp_path):
    runs = [made_results.made_run(tmp_path / str(ratio), ratios=(ratio,)) for ratio in (1.5, 150.0)]
    code, out, _ = gate(*runs)
    assert code == 4
    assert "1 not judged for want of processes" in out.splitlines()[0]
    assert "no verdict on latency" in out.splitlines()[0]
    assert gate(*runs, "--require", "none")[0] == 4


@pytest.mark.parametrize(("kinds", "code"), [("latency,drift,memory,status", 0), ("absolute-speed", 4), ("none", 0)])
def test_what_is_required_must_have_a_verdict(gate, runs, kinds, code):
    found, out, _ = gate(runs[0], runs[1], "--require", kinds)
    assert found == code
    assert "Not compared: absolute speed (a slowdown of everything alike" in out.splitlines()[0]


def test_a_regression_exits_1_and_is_written(gate, runs, tmp_path):
    code, out, _ = gate(runs[0], runs[2], "--markdown", tmp_path / "new" / "summary.md")
    assert code == 1
    assert (tmp_path / "new" / "summary.md").read_text() == out
    assert "+6.67 %" in out


def test_asv_results(gate, tmp_path):
    made_results.made_asv(tmp_path, commit="a" * 40)
    made_results.made_asv(tmp_path, commit="b" * 40, ratios=SLOWER)
    assert gate("aaaaaaaa", "bbbbbbbb", "--results", tmp_path)[0] == 1
    assert gate("bbbbbbbb", "aaaaaaaa", "--results", tmp_path)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{0}", "{0}-missing"], "no run folder"),
        (["{0}", "{1}", "--margin-latency", "much"], "--margin-latency is 'much'"),
        (["{0}", "{1}", "--margin-drift", "0.5"], "margin of drift is 0.5"),
        (["{0}", "{1}", "--require", "speed"], "unknown kind of figures 'speed'"),
        (["deadbeef", "cafecafe", "--results", "{0}"], "holds no result file of asv"),
        (["{0}", "{1}", "--markdown", "{0}/records.jsonl/x.md"], "records.jsonl: File exists; mend that"),
    ],
)
def test_bad_input_exits_2_in_one_line(refused, runs, arguments, message):
    refused(message, "gate", *(one.format(*runs) for one in arguments))
