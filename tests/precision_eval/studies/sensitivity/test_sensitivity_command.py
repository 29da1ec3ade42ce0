"""The command: bad input in one line, a small run from end to end, its tables and figures."""

import csv
import json

import pytest

from precision_eval.cli.studies import run_sensitivity
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.studies.sensitivity.campaign import SensitivityPlan, run_campaign
from precision_eval.studies.sensitivity.report import markdown, number


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"targets": ("vioce",)}, r"unknown target 'vioce'; did you mean voice\?"),
        ({"formats": ("float8",)}, "unknown format to map: 'float8'"),
        ({"size": "huge"}, "unknown size: 'huge'; known: cpu, tiny"),
        ({"processes": 0}, "processes is 0 and budget 1.5 s; expected at least 1"),
        ({}, "holds no runs; make some with"),
    ],
)
def test_bad_input_is_one_line(tmp_path, wrong, message):
    with pytest.raises(PrecisionEvalError, match=message) as error:
        run_sensitivity(SensitivityPlan(**wrong), tmp_path / "out", report_only=True)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sensitivity") / "out"
    plan = SensitivityPlan(targets=("attention-decode",), formats=("bfloat16",), size="tiny", policies=False)
    run_sensitivity(plan, folder)
    return folder


def test_tables_say_what_the_summary_says(out):
    summary = json.loads((out / "sensitivity.json").read_text(encoding="utf-8"))
    (one,) = summary["maps"]
    rows = list(csv.DictReader((out / "sensitivity.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["name"] for row in rows] == [effect["name"] for effect in one["effects"]]
    assert [float(row["added"]) for row in rows] == [effect["added"] for effect in one["effects"]]
    assert rows[0]["rank"] == "1"
    text = (out / "sensitivity.md").read_text(encoding="utf-8")
    assert text.strip() == markdown(summary)
    for effect in one["effects"]:
        assert number(effect["added"]) in text
    assert one["bit_identical"]
    assert "bit for bit the float32 call" in text


def test_a_whole_campaign_searches_and_proves(tmp_path, monkeypatch):
    """The contest is of the finalists that the search has written, read back from the file."""
    from precision_eval.studies.sensitivity import search
    from precision_eval.studies.sensitivity.policies import MixedPolicy

    chosen, proven = MixedPolicy(format="float32", cache="float16"), []
    monkeypatch.setattr(search, "search", lambda *_, **__: [])
    monkeypatch.setattr(search, "finalists", lambda points: {"equal_drift": chosen})
    monkeypatch.setattr(search, "contest", lambda target, policies, **_: proven.append((target, policies)) or [])
    plan = SensitivityPlan(targets=("attention-decode",), formats=("bfloat16",), size="tiny")
    for _ in range(2):  # the second finds everything done
        run_campaign(plan, tmp_path)
    assert proven == [("attention-decode", {"equal_drift": chosen})]
