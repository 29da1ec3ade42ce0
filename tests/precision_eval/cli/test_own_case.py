"""A user's own model and fix through the command line, from a folder outside the package."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import own_files
import pytest
import typer
from programs import printed_by, run_python

from precision_eval import ParameterError, evaluate
from precision_eval.cases.own import own_case
from precision_eval.core.cells import SUITE_FAILED
from precision_eval.core.records import RecordFile, latest
from precision_eval.studies.compare import compared_factories

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_case.py").write_text(own_files.CASE)
    (tmp_path / "slips.py").write_text(own_files.SLIPS)
    return tmp_path


def command(folder, *arguments):
    return run_python("-m", "precision_eval.cli", *arguments, cwd=folder)


def records(folder):
    return latest(RecordFile(folder / "out" / "records.jsonl").read().records)


@pytest.mark.slow
def test_from_a_file_to_a_report_and_again_after_an_edit(folder):
    arguments = ["run", "my_case.py:factory", "--candidate", "my_case.py:wide_cache", "--fix", "as_shipped,float16"]
    arguments += ["--set", "budget=0.3", "--out", "out"]
    done = command(folder, *arguments, "--measure", "trace,drift,latency")
    assert done.returncode == 0, done.stderr
    first = records(folder)
    drifts = {r.fix: r.data["relative_error"] for r in first.values() if r.measure == "drift" and r.data}
    assert drifts["my_case.py:wide_cache"] < 1e-6 < drifts["float16"]
    timed = {r.fix for r in first.values() if r.measure == "latency" and r.status == "passed"}
    assert timed >= {"my_case.py:wide_cache", "float16"}
    assert {r.status for r in first.values() if r.fix == "as_shipped"} == {"raised"}
    assert "my_case.py:factory" in (folder / "out" / "report.html").read_text()
    assert "add synthesize to your OwnCase" in " ".join(done.stdout.split())
    lines = done.stdout.splitlines()
    assert len(lines) <= 30
    assert lines[-1].startswith("Next: precision-eval ")

    traces = [*arguments, "--measure", "trace"]
    again = command(folder, *traces)
    assert "3 of 3 already measured" in again.stdout
    chosen = command(folder, "choose", "out", "--policy", "quality")
    assert chosen.returncode == 0, chosen.stderr
    assert "my_case.py:wide_cache" in chosen.stdout

    (folder / "my_case.py").write_text(own_files.CASE.replace("* scale", "* 3.0 * scale"))
    edited = command(folder, *traces)
    assert "already measured" not in edited.stdout
    digests = {r.case_digest for r in records(folder).values() if r.measure == "trace"}
    assert digests.isdisjoint({r.case_digest for r in first.values()})


@pytest.mark.slow
def test_a_case_that_decodes_and_speaks_has_players_and_keeps_to_its_tolerances(folder):
    (folder / "speaker.py").write_text(own_files.SPEAKER)
    arguments = ["run", "speaker.py:factory", "--fix", "full_float32,float16", "--mode", "eager"]
    done = command(folder, *arguments, "--set", "budget=0.3", "--set", "streams=3", "--set", "steps=50", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "<audio" in (folder / "out" / "report.html").read_text()
    assert list((folder / "out" / "figures").glob("survival-speaker*.svg"))
    chosen = command(folder, "choose", "out", "--policy", "speed")
    assert "Take full_float32" in chosen.stdout, chosen.stdout


def test_a_slip_in_a_factory_is_one_line_and_code_2_and_nothing_is_written(folder, refused, monkeypatch):
    monkeypatch.chdir(folder)
    refused("keeps state", "run", "slips.py:keeps", "--out", "out")
    assert not (folder / "out" / "records.jsonl").exists()


def test_a_bad_candidate_is_a_row_with_its_error_and_the_others_are_measured(folder, program, monkeypatch):
    monkeypatch.chdir(folder)
    bad = {
        "slips.py:fails": "raises AttributeError: 'Attention' object has no attribute 'missing'",
        "slips.py:absent": "has no 'absent'",
        "nowhere.py:f": "there is no file nowhere.py",
    }
    arguments = ["run", "my_case.py:factory", "--fix", "full_float32", "--measure", "trace", "--out", "out"]
    names = ",".join((*bad, "my_case.py:wide_cache"))
    code, printed, err = program(*arguments, "--candidate", names)
    assert code == 0, err
    traces = {record.fix: record for record in records(folder).values()}
    assert {fix for fix, record in traces.items() if record.status == "passed"} == {
        "full_float32",
        "my_case.py:wide_cache",
    }
    for fix, message in bad.items():
        assert traces[fix].status == "raised"
        assert message in traces[fix].reason
        assert fix in printed
    assert not re.search("dynamo_fallback|upstream|Nothing measured cures", printed)

    (folder / "nowhere.py").write_text(own_files.CASE + "\n\nf = wide_cache\n")
    _, printed, _ = program(*arguments, "--candidate", "nowhere.py:f,slips.py:fails")
    assert "2 of 3 already measured" in printed
    assert {record.fix: record.status for record in records(folder).values()}["nowhere.py:f"] == "passed"


def test_two_calls_side_by_side(folder):
    shipped, wide = f"{folder / 'my_case.py'}:factory", f"{folder / 'my_case.py'}:passes"
    (folder / "edited.py").write_text(own_files.CASE.replace("* scale", "* 1.001 * scale"))
    edited = f"{folder / 'edited.py'}:passes"
    text = compared_factories([wide, edited, shipped], budget_s=0.2)
    assert f"{edited} is 0.00" in text
    assert "Expected query, key, and value to have the same dtype" in text
    with pytest.raises(ParameterError, match="return different inputs"):
        compared_factories([wide, f"{folder / 'slips.py'}:plain"])


@pytest.mark.parametrize("given", [{}, {"quick": True}, {"thorough": True, "steps": 7, "budget_s": 0.5}])
def test_evaluate_asks_for_what_run_does(folder, monkeypatch, given):
    from precision_eval import evaluation
    from precision_eval.cli import run as command

    asked = []
    for module in (command, evaluation):
        monkeypatch.setattr(
            module, "run_selection", lambda selection, *rest, tier, **more: asked.append((selection, tier)) or ()
        )
    for name in ("loading.load", "writer.write_report"):
        monkeypatch.setattr(f"precision_eval.report.{name}", lambda folder: folder)
    flags = {name: value for name, value in given.items() if value is True}
    settings = [f"{name.removesuffix('_s')}={value}" for name, value in given.items() if value is not True]
    command.run(["my_case.py:factory"], out=folder / "out", **flags, setting=settings)
    evaluate("my_case.py:factory", out=folder / "out", **given)
    assert asked[0] == asked[1]


@pytest.mark.slow
def test_a_script_without_a_guard_runs_once(folder):
    call = "evaluate('my_case.py:factory', out='out', quick=True, fixes=['full_float32'], measures=['trace'])"
    (folder / "script.py").write_text(f"from precision_eval import evaluate\nprint('runs')\n{call}\n")
    assert printed_by("script.py", cwd=folder).split().count("runs") == 1
    assert {record.status for record in records(folder).values()} == {"passed"}


def test_a_script_without_a_guard_that_holds_the_factory_is_told_how(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("script.py").write_text(f"{own_files.CASE}\nfrom precision_eval import evaluate\nevaluate(factory, out='o')\n")
    with pytest.raises(ParameterError, match=r"script.py calls evaluate\(\) .* below `if __name__ == '__main__':`"):
        own_case("script.py:factory")
    assert not Path("o").exists()
    Path("guarded.py").write_text(f"{own_files.CASE}\nif __name__ == '__main__':\n    raise SystemExit\n")
    assert own_case("guarded.py:factory").inputs


def test_classes_of_the_callers_script_are_read_from_its_file(folder, monkeypatch):
    call = "from precision_eval.cases.own import write_case\n    print(write_case(factory(), Path('out')))"
    text = f"from pathlib import Path\n{own_files.CASE}\nif __name__ == '__main__':\n    {call}\n"
    (folder / "script.py").write_text(text)
    monkeypatch.chdir(folder)
    model = own_case(printed_by("script.py", cwd=folder).strip()).model
    assert inspect.getfile(type(model)) == str(folder / "script.py")


def test_what_the_suite_failed_to_measure_ends_with_its_own_code(capsys):
    from precision_eval.cli.run import _check_suite_failures

    lost = SimpleNamespace(cell="a/b/eager@cpu:own#drift", reason=f"{SUITE_FAILED}KeyError: 'x'")
    fine = SimpleNamespace(cell="a/c/eager@cpu:own#drift", reason=None)
    _check_suite_failures((fine, fine))
    with pytest.raises(typer.Exit) as ended:
        _check_suite_failures((fine, lost))
    assert ended.value.exit_code == 3
    assert (
        "1 of 2 measurements failed in the suite itself, the first a/b/eager@cpu:own#drift" in capsys.readouterr().err
    )
