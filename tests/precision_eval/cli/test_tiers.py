"""What a run measures that names neither case nor measure: what the terminal shows; with --thorough everything."""

from dataclasses import replace

import pytest

from precision_eval.cli import run as command
from precision_eval.measure.registry import MEASURES
from precision_eval.run.session import plan_of

EVERYTHING = {measure.name for measure in MEASURES} - {"transcription"}  # of cases not in by default


@pytest.fixture
def planned(program, monkeypatch, tmp_path):
    """Return what a command would run: the cells of its plan."""
    plans = []

    def kept(selection, execution, *, tier, checkpoint_dtype, listener):
        plans.append(plan_of(replace(selection, device="cpu"), tier, checkpoint_dtype))
        return ()

    monkeypatch.setattr(command, "run_selection", kept)

    def plan(*arguments):
        code, _, err = program("run", "--out", tmp_path, *arguments)
        assert code == 0, err
        return plans.pop().cells

    return plan


def names(cells, case=None):
    return {cell.measure for cell in cells if case in (None, cell.case)}


def test_the_default_measures_every_column_of_the_terminal_and_not_what_only_the_page_shows(planned):
    cells = planned()
    assert names(cells) == EVERYTHING - {"streams", "divergence", "synthesis", "audio"}
    heard = {fix for cell in cells if cell.measure == "sound" for fix in cell.fixes}
    assert {"reference", "noise_floor", "control_rope_bfloat16"} < heard  # what shows that damage would be heard
    assert "control_long_window" not in heard


def test_a_case_that_is_named_is_measured_whole_and_so_is_everything_with_thorough(planned):
    for arguments in (("--case", "voice"), ("--thorough",)):
        cells = planned(*arguments)
        assert names(cells, "voice") == EVERYTHING - {"drift"}
        assert any("control_long_window" in cell.fixes for cell in cells if cell.measure == "sound")
    assert {cell.case for cell in cells} == {"attention-decode", "attention-prefill", "voice"}


def test_quick_is_less_still_and_a_measure_that_is_named_is_measured(planned):
    quick = planned("--quick")
    assert {cell.case for cell in quick} == {"attention-decode", "voice"}
    assert names(quick) == EVERYTHING - {"streams", "divergence", "synthesis", "audio", "sound"}
    assert {"synthesis", "audio"} <= names(planned("--measure", "audio"))


@pytest.mark.parametrize(
    ("arguments", "limit_s"),
    [
        ((), 900.0),
        (("--thorough",), 900.0),
        (("--set", "minutes=60"), 3600.0),
        (("--set", "minutes=60", "--set", "timeout=20"), 20.0),
    ],
)
def test_an_hour_of_audio_has_an_hour_unless_a_limit_is_given(program, monkeypatch, tmp_path, arguments, limit_s):
    limits = []
    monkeypatch.setattr(command, "run_selection", lambda _, execution, **rest: limits.append(execution.timeout_s) or ())
    code, _, err = program("run", "--out", tmp_path, *arguments)
    assert code == 0, err
    assert limits == [limit_s]
