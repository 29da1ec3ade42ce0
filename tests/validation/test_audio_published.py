from dataclasses import replace
from pathlib import Path

import pytest

from validation.audio import published
from validation.audio.published import CHECKS, EXPERIMENT
from validation.frame import run

HERE = [check for check in CHECKS if not check.repository and not check.module]
NOWHERE = Path("nowhere")


def figure_of(check, differences, missing=""):
    return published._figure(check, {"missing": missing, **published._worst(differences)})


@pytest.mark.parametrize("check", HERE, ids=[check.name for check in HERE])
def test_what_needs_no_download_agrees(check):
    differences = [float(value) for value in check.differences(lambda path: b"")]
    assert differences
    assert figure_of(check, differences).met


def test_one_digit_off_is_a_disagreement():
    for check in CHECKS:
        assert figure_of(check, [0.0, -2 * check.digit]).met is False, check.name
        assert figure_of(check, [float("nan")]).met is False, check.name


def test_what_is_not_there_is_not_tried(tmp_path):
    check = next(check for check in CHECKS if check.repository == "PESQ")
    assert figure_of(check, [], missing=check.missing(NOWHERE)).met is None
    options = EXPERIMENT.options({"folder": str(NOWHERE)}, out=tmp_path)
    run(EXPERIMENT, options, progress=lambda *_: None)
    figures = published._figures(published._summary(published_lines(options), options))
    tried = {figure.name: figure.met for figure in figures}
    assert tried["mel filters"] is None
    assert tried["snr_db, si_sdr_db"]
    assert "git clone https://github.com/ludlows/PESQ" in figures[0].found


def published_lines(options):
    from precision_eval.core.files import TrialFile

    return TrialFile(EXPERIMENT.path(options.out)).read()


def test_a_check_tried_later_replaces_that_it_was_not():
    check = replace(HERE[0], name="later")
    lines = [
        {"key": "later", "name": "later", "missing": "", "differences": [0.5]},
        {"key": "later: not tried", "name": "later", "missing": "git clone …", "differences": []},
    ]
    found = published._summary(lines, None)["checks"][check.name]
    assert found == {"missing": "", "figures": 1, "largest": 0.5}


def test_results_that_are_older_than_a_check_are_still_reported():
    kept = {check.name: {"missing": "", "figures": 1, "largest": 0.0} for check in HERE}
    figures = published._figures({"checks": kept})
    assert [figure.name for figure in figures] == [check.name for check in HERE]
    (note,) = published._notes({"checks": kept})
    assert "`snr_db`" not in note
    assert "`stoi`" in note
