"""Hostile result files: seeded mutations end in no exception but the suite's own; what is planted is found."""

from pathlib import Path

import pytest

from precision_eval.core.errors import RecordError
from precision_eval.report.drawing import new_figure, save
from validation import attack


@pytest.mark.parametrize("seed", range(3))
def test_mutated_records_are_refused_or_read(seed):
    assert attack.attack("records", seed, mutations=100)["faults"] == []


@pytest.mark.parametrize(
    ("target", "mutations"),
    [("asv", 20), ("merge", 10)],
)
def test_other_result_files(target, mutations):
    assert attack.attack(target, 1, mutations=mutations)["faults"] == []


def test_an_exception_of_pythons_own_and_a_control_character_are_counted():
    def broken():
        return {}["ratio"]

    def refused():
        raise RecordError("line 3")

    assert attack._fault(broken).startswith("KeyError")
    assert attack._fault(refused) is None
    assert attack._fault(lambda: "a\x1b[2J") == "character '\\x1b' reaches the output"
    assert attack._fault(lambda: "line\nline\t") == ""


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("report.md", "of `<script>alert(1)</script>`", []),
        ("report.md", "of <script>alert(1)</script>", ["report.md holds '<script>alert(1)'"]),
        ("results.csv", "<script>alert(1)</script>,1", []),
        ("results.csv", "1,=cmd|' /C calc'!A0", ["results.csv holds ',=cmd'"]),
        ("report.html", "a\x1b", ["report.html holds '\\x1b'"]),
    ],
)
def test_what_would_run_is_counted_where_it_would_run(tmp_path, name, text, found):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert attack._leaks(tmp_path, ()) == found


@pytest.mark.parametrize(("target", "seed"), [("asv", 403), ("records", 159)])
def test_characters_of_control_that_once_reached_an_output(target, seed):
    assert attack.attack(target, seed)["faults"] == []


def test_each_target_is_summed_with_what_was_refused():
    line = {"target": "merge", "mutations": 3, "readings": 2, "refused": 1, "faults": []}
    lines = [line, line | {"faults": ["merge: KeyError"]}, {"target": "commands", "mutations": 6, "faults": []}]
    merged, commands = attack.EXPERIMENT.figures(attack.EXPERIMENT.summary(lines, None))
    assert (merged.name, merged.met) == ("uncaught in 6 mutations of merge", False)
    assert merged.found == "1; 50% of 4 readings refused in one line"
    assert (commands.name, commands.found, commands.met) == ("uncaught in 6 random commands", "0", True)


def test_a_run_of_limited_time_has_trials_of_every_target():
    trials = attack.EXPERIMENT.trials(attack.EXPERIMENT.options({}, out=Path()))
    assert {trial.spec[0] for trial in trials[: len(trials) // 10]} == {*attack.TARGETS, "commands"}


@pytest.mark.parametrize(
    "target",
    [
        *("records", "merge"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("report", "asv")),
    ],
)
def test_what_is_not_mutated_is_read(target, tmp_path):
    lay, readers, _ = attack.TARGETS[target]
    lay(tmp_path)
    for _, call in readers(tmp_path, tmp_path):
        assert call()


@pytest.mark.parametrize("wanted", [False, True])
def test_figures_are_rendered_or_only_built(tmp_path, wanted):
    figure = new_figure(1, 1)
    figure.subplots()
    with attack._rendering(wanted):
        paths = save(figure, tmp_path, "one")
    assert [path.stat().st_size > 500 for path in paths] == [wanted, wanted]


def test_a_call_that_no_command_understands_is_counted():
    assert attack._fault(attack._command("gate", "--report")).startswith("AssertionError")


def test_random_commands_end_with_a_documented_code():
    done = attack.attack_commands(3, count=4)
    assert (done["faults"], done["mutations"]) == ([], 4)


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("raise SystemExit(7)", "exit code 7"),
        ("print('\\x1b[2J')", "character '\\x1b'"),
        ("print('internal error: KeyError')", "printed 'internal error"),
        ("1 / 0", "exit code 99"),
    ],
)
def test_a_command_that_ends_otherwise_is_counted(tmp_path, monkeypatch, program, fault):
    monkeypatch.setattr("precision_eval.cli.commands.main", lambda: exec(program))
    assert attack._command_fault(["list"], tmp_path).startswith(fault)
    monkeypatch.setattr("precision_eval.cli.commands.main", lambda: None)
    assert attack._command_fault(["list"], tmp_path) == ""
