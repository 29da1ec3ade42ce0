"""Blocks of the gate, of change points and of ``choose``, from small made-up files."""

import copy
import hashlib
import json
import math

import pytest

from precision_eval.core.environment import environment_json, environment_sha
from precision_eval.core.errors import RecordError
from tools.docs.trials import change_points_markdown, choose_markdown, gate_markdown

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


def figure(rule, what, count, trials, low, high, **more):
    numbers = {"rate": count / trials, "low": low, "high": high, "count": count, "trials": trials}
    return {"rule": rule, "what": what, **numbers, "independent_pairs": 2, **more}


@pytest.fixture
def gate():
    alarm, slower = "false alarms of a gate, A/A", "found, slower_2 in one cell"
    return {
        "conditions": {"sets": 5, "pairs": 20, "processes": 10, "budget_s": 0.4, "cpu": "Testium", "torch": "2.13.0"},
        "figures": [
            figure("gate, 3 processes a side", alarm, 1, 20, 0.01, 0.7),
            figure("gate, 3 processes a side", slower, 10, 100, 0.02, 0.7, by_cell={"w/a": 0.0}),
            figure("gate, 10 processes a side", alarm, 0, 20, 0.0, 0.65762, target="≤ 0.01", met=True),
            figure(
                "gate, 10 processes a side",
                slower,
                93,
                100,
                0.41,
                0.99,
                target="≥ 0.95",
                met=False,
                by_cell={"w/a": 0.99, "w/b": 0.87},
            ),
            figure("asv compare, its times, factor 1.1", alarm, 0, 20, 0.0, 0.66),
            figure("asv compare, its times, factor 1.1", slower, 0, 100, 0.0, 0.66),
            figure("asv compare, its times, factor 1.02", alarm, 5, 20, 0.03, 0.8),
            figure("asv compare, its times, factor 1.02", slower, 20, 100, 0.03, 0.8),
            figure("asv compare, drift, factor 1.1", "found, drift in one cell", 100, 100, 0.34, 1.0),
        ],
        "simulated": [
            {"what": "made up", "rate": 0.011, "low": 0.00846, "high": 0.01429, "trials": 5000}
            | {"target": "≤ 0.01", "met": False}
        ],
        "spreads": {
            "w/a to_baseline": {"process_sd": 0.009, "sets_over_processes": 1.02, "slower_2": 1.02},
            "w/a to_anchor": {"process_sd": 0.05, "sets_over_processes": 4.25, "slower_2": 1.02},
        },
        "environment": ENVIRONMENT,
    }


def test_the_gates_block_by_hand(tmp_path, gate):
    assert gate_markdown(write(tmp_path / "gate.json", gate)).split("\n\n") == [
        "| figure | target | found | met |\n|---|---|---|---|\n"
        "| A/A: gate fires, gate, 10 processes a side | ≤ 1 % | 0 of 20, 0.0 % [0.0, 65.8] | yes |\n"
        "| +2 % time found, gate, 10 processes a side | ≥ 95 % | 93 of 100, 93.0 % [41.0, 99.0] | **no** |\n"
        "| made up | ≤ 1 % | 55 of 5,000, 1.1 % [0.8, 1.4] | **no** |",
        "| rule, same pairs | A/A: gate fires | +2 % time found | more drift found |\n|---|---|---|---|\n"
        "| gate, 3 / 10 processes a side | 5 / 0 % | 10 / 93 % | – |\n"
        "| asv compare, its times, factor 1.1 / 1.02 | 0 / 25 % | 0 / 20 % | – |\n"
        "| asv compare, drift, factor 1.1 | – | – | 100 % |",
        "5 sets of 10 processes, 20 pairs of them; 95 % intervals of 2 trials, the pairs without a common set. One "
        "process scatters by 0.9 to 5 % (SD of a cell's ratio); sets of equal code differ by 1 to 4.2 times the "
        "variance that this explains. Least of a single cell: 87.0 % (+2 % time found, w/b).",
        "Measured with `python -m validation gate --size full --out results --set sets=5 --set processes=10 "
        f"--set budget_s=0.4 --set pairs=20` {WHERE}",
    ]


def scores(recall, wrong, *, small=(1, 2), noise_floors=(0, 4)):
    return {
        "recall": recall,
        "recall_near": recall,
        "recall_by_size": {"10": [1, 1], "3": list(small)},
        "series_without_step_flagged": [1, 8],
        "false_among_reports": wrong,
        "far_among_reports": [0, wrong[1]],
        "tables_without_steps_flagged": list(noise_floors),
    }


@pytest.fixture
def change_points():
    rules = {"precision-eval versions": scores([9, 10], [1, 20]), "factor 1.1": scores([0, 10], [0, 0])}
    short = {"precision-eval versions": scores([8, 10], [2, 20]), "asv step detection": scores([5, 10], [3, 4])}
    metric = {
        "session_sd": {"w/a": 0.0, "w/b": 0.011},
        "process_sd": {"w/a": 0.02, "w/b": 0.03},
        "largest_difference": 0.0432,
        "margin": 0.02,
        "as_measured": {"with": [0, 9], "without": [3, 9]},
    }
    return {
        "settings": {"tables": 60, "noise_floor_tables": 100, "seed": 0},
        "targets": {"recall": 0.9, "false": 0.05},
        "conditions": {"normal noise": {"rules": rules}, "sessions": {"rules": short}},
        "sessions": {
            "source": {"cpu": "Testium", "torch": "2.13.0", "commit": "abc"},
            "count": 12,
            "cases": ["w/cpu"],
            "metrics": {"latency_ratio": metric},
        },
        "environment": ENVIRONMENT,
    }


def test_the_block_of_change_points_by_hand(tmp_path, change_points):
    """Just at both targets is met, one step or report beyond is not; Wilson's ends from the closed form."""
    ours, doubt, others, sessions, who = change_points_markdown(write(tmp_path / "found.json", change_points)).split(
        "\n\n"
    )
    assert "share their noise" in doubt
    low, high = wilson(9, 10)
    first, second = ours.splitlines()[2:]
    assert first == (
        f"| normal noise | 9 of 10, 90.0 % [{low:.1f}, {high:.1f}] | yes | 1 of 2, 50.0 % | 1 of 20, 5.0 % "
        "[0.9, 23.6] | yes | 0 of 20, 0.0 % | 1 of 8, 12.5 % | 0 of 4, 0.0 % |"
    )
    assert [cell.strip() for cell in second.split("|")][3:7:3] == ["**no**", "**no**"]
    assert others.splitlines() == [
        "| the same tables: found; false among reports | factor 1.1 | asv step detection |",
        "|---|---|---|",
        "| normal noise | 0.0 %; no report | – |",
        "| sessions | – | 50.0 %; 75.0 % |",
    ]
    assert sessions == (
        "Tables of sessions are 12 sessions of equal code in random order, so no two tables are independent (w/cpu; "
        "Testium, torch 2.13.0, commit abc). "
        "latency_ratio: beyond what processes explain, sessions scatter by 0 to 1.1 % (SD), a process by 2 to 3 %; two "
        "sessions differ by up to 4.3 %. The sessions as measured, in order: with the margin of 2 % a change is "
        "reported in 0 of 9, 0.0 % series, without it in 3 of 9, 33.3 %."
    )
    assert who.startswith("Measured with `python -m validation versions --size full --out results --set tables=60")
    assert who.endswith(WHERE)


def wilson(hits, trials, z=1.959964):
    share = hits / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    return 100 * (centre - half), 100 * (centre + half)


@pytest.fixture
def choose():
    rows = [
        {"name": "agree", "found": "99.5 % [98.6, 100.0]", "target": "≥ 95 %", "met": True},
        {"name": "ties", "found": "49.5 % [47.2, 52.1]", "target": "", "met": None},
    ]
    case = {"case": "w", "size": "s", "policy": "speed", "limits": "no limit", "answers": ["a", "a", "b"]}
    campaign = f"{hashlib.sha256(environment_json(ENVIRONMENT).encode()).hexdigest()[:12]}/1.5s/3p"
    return {"campaign": campaign, "figures": rows, "cases": [case, case | {"policy": "quality"}]}


def ours(content):
    return content["conditions"]["sessions"]["rules"]["precision-eval versions"]


MAKERS = {"gate": gate_markdown, "change-points": change_points_markdown, "choose": choose_markdown}


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_that_is_not_there_is_not_measured(tmp_path, name):
    text = MAKERS[name](tmp_path / f"{name}.json")
    assert text.startswith(f"Not measured: there is no `{name}.json` yet. `python -m validation ")


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("content", "message"), [("{", "is no JSON"), ("[]", "lacks"), ('{"a": 1}', "lacks")])
def test_a_file_of_another_format_is_named(tmp_path, name, content, message):
    path = tmp_path / "other.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RecordError, match=rf"other\.json {message}.*python -m validation "):
        MAKERS[name](path)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("gate", lambda one: one["figures"][0].pop("rate")),
        ("gate", lambda one: one["environment"].pop("cpu")),
        ("change_points", lambda one: one["conditions"]["sessions"]["rules"].clear()),
        (
            "change_points",
            lambda one: one["conditions"]["sessions"]["rules"]["precision-eval versions"].update(recall=3),
        ),
        ("choose", lambda one: one.update(campaign="pilot")),
        ("choose", lambda one: one["figures"][0].pop("met")),
    ],
)
def test_a_file_that_is_spoilt_inside_is_an_error_and_no_half_a_block(tmp_path, request, name, spoil):
    content = copy.deepcopy(request.getfixturevalue(name))
    path = write(tmp_path / "found.json", content)
    assert MAKERS[name.replace("_", "-")](path)
    spoil(content)
    write(path, content)
    with pytest.raises(
        RecordError, match=r"found\.json is not as `python -m validation \S+ --size full --out \S+` writes it"
    ):
        MAKERS[name.replace("_", "-")](path)
