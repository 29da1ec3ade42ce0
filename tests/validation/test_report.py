"""Figures as tables: shares by hand, a column per rival, stored summaries of earlier runs, and files that are none."""

import copy
import json

import pytest

from precision_eval.core.environment import environment_json, environment_sha
from precision_eval.core.errors import RecordError
from precision_eval.core.table import to_markdown
from validation.frame import Figure
from validation.report import plain_share, reported_markdown, rival_tables, share_text, span, stored_markdown

ENVIRONMENT = {
    "cpu": {"model": "Testium", "logical_cores": 4, "usable_cores": 2},
    "package": {"git_commit": "abc123"},
    "platform": {"python": "3.11.7"},
    "torch": {"version": "2.13.0+cpu"},
}
SHA = environment_sha(ENVIRONMENT)[:12]
WHERE = f"on Testium, 2 usable cores; Python 3.11.7; torch 2.13.0+cpu; commit abc123; environment {SHA}."


def write(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def versions():
    return {"shares": {"1": {"precision-eval versions": [1, 20]}, "2": {"precision-eval versions": [8, 10]}}}


def test_a_campaign_is_found_beside_its_file(tmp_path):
    case = {"case": "w", "size": "s", "policy": "speed", "limits": "no limit", "answers": ["a", "a", "b"]}
    row = {"name": "ties", "found": "49.5 % [47.2, 52.1]", "target": "", "met": None}
    path = write(tmp_path / "choose.json", {"campaign": f"{SHA}/1.5s/3p", "figures": [row], "cases": [case]})
    (tmp_path / "environment.json").write_text("{}", encoding="utf-8")
    assert stored_markdown("choose", path).endswith(
        "1 questions, each asked to 3 re-runs of 3 processes and 1.5 s: w/s."
    )
    (tmp_path / "environment-1.json").write_text(environment_json(ENVIRONMENT), encoding="utf-8")
    assert stored_markdown("choose", path).endswith(WHERE)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("versions", lambda content: content["shares"]["2"].clear()),
        ("versions", lambda content: content.update(shares=3)),
    ],
)
def test_a_spoilt_summary_is_an_error_and_no_half_a_block(tmp_path, request, name, spoil):
    content = copy.deepcopy(request.getfixturevalue(name))
    spoil(content)
    with pytest.raises(RecordError, match=rf"found\.json does not hold .*trials of {name}"):
        stored_markdown(name, write(tmp_path / "found.json", content))


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path):
    assert stored_markdown("gate", tmp_path / "gate.json").startswith(
        "Not measured: there is no `gate.json` yet. `python"
    )
    (tmp_path / "gate.json").write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=r"gate\.json is damaged"):
        stored_markdown("gate", tmp_path / "gate.json")


def test_a_table_per_set_of_rivals(tmp_path):
    def figure(name, **rivals):
        return Figure(name, "1 [0, 2]", "0", met=True, rivals=rivals)

    figures = [figure("alone"), figure("a", asv="33.3 % [6.1, 79.2], 1 of 3", t="5 of 9"), figure("b", t="7")]
    assert [to_markdown(table) for table in rival_tables(figures)] == [
        "| figure | target | found | met | asv | t |\n|---|---|---|---|---|---|\n"
        "| a | 0 | 1 [0, 2] | yes | 33.3 %, 1 of 3 | 5 of 9 |\n| b | 0 | 1 [0, 2] | yes | – | 7 |",
        "| figure | target | found | met |\n|---|---|---|---|\n| alone | 0 | 1 [0, 2] | yes |",
    ]
    rows = [
        {"name": name, "found": "1", "target": "", "met": met, "rivals": {}}
        for name, met in (("n", False), ("s", None))
    ]
    written = reported_markdown(write(tmp_path / "figures.json", {"memory": rows, "overhead": rows[1:]}))
    assert written == "**memory**\n\n| figure | target | found | met |\n|---|---|---|---|\n| n | – | 1 | **no** |"


def test_shares_and_spans():
    assert (share_text(0, 0), plain_share(0, 0)) == ("–", "–")
    assert share_text(1500, 3000) == "50.0 % [48.2, 51.8], 1,500 of 3,000"
    assert share_text(1, 2, interval=(0.25, 0.75), digits=2) == "50.00 % [25.00, 75.00], 1 of 2"
    assert (span([2, 1], "d"), span([0.5, 0.501], ".2g")) == ("1 to 2", "0.5")
