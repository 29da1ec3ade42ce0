"""The trials of the gate that measures both sides in one process: their repository, and what is counted."""

import runpy
import subprocess

import pytest
import torch

from precision_eval import ParameterError, fixed
from precision_eval.core.table import to_markdown
from validation.frame import Options
from validation.gate import paired_gate
from validation.gate.asv_continuous import asv_answers
from validation.report import rival_tables

PLACE = "An EPYC, 8 processes, 4 s a cell"


def line(fault, *, outcome="no regression", worse=(), cpu="An EPYC"):
    content = {"decided": 9, "cells": 10, "seconds": 50.0, "detectable": 0.01, "processes": 8, "budget_s": 4.0}
    content |= {"key": f"{fault}/0/8/4/{cpu}/2.13.0", "fault": fault, "outcome": outcome}
    return content | {"worse": [list(one) for one in worse]}


@pytest.mark.parametrize("fault", paired_gate.FAULTS)
def test_head_has_the_fault_and_base_has_not(tmp_path, fault, monkeypatch):
    paired_gate.make_repository(tmp_path, fault)
    log = subprocess.run(["git", "log", "--format=%s"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert log.split() == ["head", "base"]
    monkeypatch.syspath_prepend(str(tmp_path))
    head = runpy.run_path(str(tmp_path / "planted.py"))["AMOUNTS"]
    plain = (paired_gate.UNITS, 1.0, 1_000_000)
    changed = {name for name, amounts in head.items() if amounts != plain}
    whole = paired_gate.FAULTS[fault].get("all")
    assert changed == (set() if fault.endswith("none") else set(head) if whole else {paired_gate.PLANTED})


def test_a_users_model_has_the_bug_and_each_fix_that_is_gated_cures_it(tmp_path, monkeypatch):
    paired_gate.make_repository(tmp_path, "own_slower_5")
    monkeypatch.syspath_prepend(str(tmp_path))
    case = runpy.run_path(str(tmp_path / "case.py"))
    assert case["planted"].AMOUNTS["own"][0] == 1.05 * paired_gate.UNITS
    case["planted"].AMOUNTS = {"own": (1,)}
    model, inputs = case["own"]()
    with pytest.raises(RuntimeError, match="same dtype"):
        model(*inputs)
    for fix in paired_gate.CURING:
        assert fixed(model, fix)(*inputs).isfinite().all()


def test_gates_of_a_users_model_are_counted_apart():
    cells = [("case.py:own", fix, "latency") for fix in paired_gate.CURING]
    lines = [line("own_none"), line("own_slower_5", outcome="regression", worse=cells)]
    settings = {
        "processes": 8,
        "budget_s": 4.0,
        "beside": "",
        "faults": ("own_none", "own_slower_5"),
        "equal": 3,
        "gates": 2,
        "asv": 0,
    }
    options = Options(out=None, settings=settings)
    rates = paired_gate._summary(lines, options)["rates"][PLACE]
    assert (rates["own_slower_5"]["caught"], rates["own_slower_5"]["caught_cells"]) == (1, len(cells))
    assert rates["own_slower_5"]["planted_cells"] == len(cells)
    assert rates["own_none"]["caught"] == 0
    assert [trial.spec[0] for trial in paired_gate._trials(options)] == [*settings["faults"] * 2, "own_none"]
    with pytest.raises(ParameterError, match="unknown fault 'slowest'"):
        paired_gate._trials(Options(out=None, settings=settings | {"faults": ("slowest",)}))


def test_a_planted_drift_is_as_large_as_it_says(tmp_path, monkeypatch):
    paired_gate.make_repository(tmp_path, "drift")
    monkeypatch.syspath_prepend(str(tmp_path))
    case = runpy.run_path(str(tmp_path / "case.py"))
    model, (query,) = case["decode"]()
    exact = model(query).double()
    errors = {}
    for drift in (1.0, 1.2):
        model.name = "bfloat16"
        case["planted"].AMOUNTS = {"bfloat16": (1, drift, 0)}
        errors[drift] = torch.linalg.norm(model.to(torch.bfloat16)(query).double() - exact)
    assert errors[1.2] / errors[1.0] == pytest.approx(1.2, rel=0.01)


def test_what_is_counted():
    hit = ("case.py:decode", paired_gate.PLANTED, "latency")
    other = ("case.py:decode", "float16", "latency")
    lines = [
        line("none"),
        line("none", outcome="regression", worse=[other]),
        line("slower_2", outcome="regression", worse=[hit]),
        line("slower_2", outcome="regression", worse=[other]),
    ]
    settings = {"processes": 8, "budget_s": 4.0, "faults": tuple(paired_gate.FAULTS)}
    options = Options(out=None, settings=settings)
    cleared = line("none", outcome="no regression") | {"cleared": 0.01}
    content = paired_gate._summary([*lines, line("none", cpu="A Xeon"), cleared], options)
    rates = content["rates"][PLACE]
    assert (rates["none"]["red"], rates["none"]["false_latency"]) == (1, 1)
    assert (rates["slower_2"]["caught"], rates["slower_2"]["false_latency"]) == (1, 1)
    figures = {figure.name: figure for figure in paired_gate._figures(content)}
    assert figures[f"{PLACE}: unchanged: red"].found.endswith("1 of 2")
    assert figures[f"{PLACE}: unchanged: red"].met is None  # too few to tell
    assert figures[f"{PLACE.replace('An EPYC', 'A Xeon')}: unchanged: red"].found.endswith("0 of 1")
    green = figures[f"{PLACE}, cleared below 1 %: unchanged: red"].rivals["gates that are green"]
    assert green == "1 of 1 (20.7 to 100.0 %)"
    slower = figures[f"{PLACE}: 2 % more work in one fix: named"]
    assert slower.found.endswith("1 of 2")
    assert slower.rivals["changed fixes named"].startswith("1 of 4 (")
    assert figures[f"{PLACE}: slowest gate"].met
    assert figures[f"{PLACE}: slowest gate"].rivals["latencies left undecided"].startswith("4 of 40 (")
    assert figures["all unchanged gates, whatever their effort: red"].found.endswith("1 of 4")


def test_each_effort_and_fault_is_one_row_and_no_column_is_cut_short():
    hit = ("case.py:decode", paired_gate.PLANTED, "latency")
    lines = [line("none"), line("slower_2", outcome="regression", worse=[hit]), line("drift") | {"seconds": 71.0}]
    content = paired_gate._summary(lines, Options(out=None, settings={}))
    by_fault, by_effort, over_all = (to_markdown(table) for table in rival_tables(paired_gate._figures(content)))
    assert by_fault.splitlines()[0] == (
        "| figure | target | found | met | gates that are green | changed fixes named | slowest gate "
        "| slowdown found in 80 % (median cell) |"
    )
    assert len(by_fault.splitlines()) == 2 + 3
    assert (
        f"| {PLACE}: 2 % more work in one fix: named | ≥ 95 % | 100.0 % [20.7, 100.0], 1 of 1 | – "
        "| 0 of 1 (0.0 to 79.3 %) | 1 of 2 (9.5 to 90.5 %) | 50 s | 1.00 % |"
    ) in by_fault.splitlines()
    assert by_effort.splitlines()[2:] == [
        f"| {PLACE}: slowest gate | ≤ 60 s | 71 s | **no** | 3 of 30 (3.5 to 25.6 %) |"
    ]
    assert len(over_all.splitlines()) == 3


def test_asv_is_counted_by_factor():
    def answer(fault, *worse):
        own = {"1.1": list(map(list, worse[:1])), "1.01": list(map(list, worse))}
        named = {"key": f"asv/{fault}/0/8/4/An EPYC/2.13.0", "tool": "asv", "fault": fault, "beside": ""}
        return named | {"seconds": 40.0, "worse": own}

    hit, other = ("decode", paired_gate.PLANTED), ("decode", "float16")
    lines = [answer("none"), answer("none", other), answer("slower_2", other, hit), answer("slower_2", hit)]
    content = paired_gate._summary(lines, Options(out=None, settings={}))
    assert content["asv"]["An EPYC"]["none"]["false"] == {"1.1": 1, "1.01": 1}
    assert content["asv"]["An EPYC"]["slower_2"]["caught"] == {"1.1": 1, "1.01": 2}
    assert content["asv"]["An EPYC"]["slower_2"]["false"] == {"1.1": 1, "1.01": 1}
    equal, slower = (figure for figure in paired_gate._figures(content) if "asv" in figure.name)
    assert (equal.found, equal.rivals["name something else"]) == ("–", "1 / 1 of 2")
    assert (slower.found, slower.rivals["name something else"]) == ("1 / 2 of 2", "1 / 1 of 2")


@pytest.mark.slow
def test_asv_names_a_head_that_is_far_slower(tmp_path, monkeypatch):
    monkeypatch.setitem(paired_gate.FAULTS, "slower_much", {"units": 20 * paired_gate.UNITS})
    repository, folder = tmp_path / "repository", tmp_path / "asv"
    repository.mkdir()
    folder.mkdir()
    paired_gate.make_repository(repository, "slower_much")
    answers = asv_answers(repository, folder, ("decode",), ("float32", paired_gate.PLANTED))
    assert answers["worse"]["1.1"] == [["decode", paired_gate.PLANTED]]
