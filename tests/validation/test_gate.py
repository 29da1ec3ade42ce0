"""The trials of the gate: their repository, and what is counted."""

import runpy
import subprocess

import pytest
import torch

from precision_eval import fixed
from validation import gate
from validation.frame import Options

PLACE = "An EPYC, 8 processes, 4 s a cell, paired t"


def line(fault, *, outcome="no regression", worse=(), cpu="An EPYC"):
    return {
        "decided": 9, "cells": 10, "seconds": 50.0, "detectable": 0.01, "processes": 8, "budget_s": 4.0,
        "rule": gate.RULE, "key": f"{fault}/0/8/4/{cpu}/2.13.0", "fault": fault, "outcome": outcome,
        "worse": [list(change) for change in worse],
    }  # fmt: skip


@pytest.mark.parametrize("fault", gate.FAULTS)
def test_head_has_the_fault_and_base_has_not(tmp_path, fault, monkeypatch):
    gate.make_repository(tmp_path, fault)
    log = subprocess.run(["git", "log", "--format=%s"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert log.split() == ["head", "base"]
    monkeypatch.syspath_prepend(str(tmp_path))
    head = runpy.run_path(str(tmp_path / "planted.py"))["AMOUNTS"]
    plain = (gate.UNITS, 1.0, 1_000_000)
    changed = {name for name, amounts in head.items() if amounts != plain}
    whole = gate.FAULTS[fault].get("all")
    assert changed == (set() if fault.endswith("none") else set(head) if whole else {gate.PLANTED})


def test_a_users_model_has_the_bug_and_each_fix_that_is_gated_cures_it(tmp_path, monkeypatch):
    gate.make_repository(tmp_path, "own_slower_5")
    monkeypatch.syspath_prepend(str(tmp_path))
    case = runpy.run_path(str(tmp_path / "case.py"))
    assert case["planted"].AMOUNTS["own"][0] == 1.05 * gate.UNITS
    case["planted"].AMOUNTS = {"own": (1,)}
    model, inputs = case["own"]()
    with pytest.raises(RuntimeError, match="same dtype"):
        model(*inputs)
    for fix in gate.CURING:
        assert fixed(model, fix)(*inputs).isfinite().all()


def test_a_planted_drift_is_as_large_as_it_says(tmp_path, monkeypatch):
    gate.make_repository(tmp_path, "drift")
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
    hit = ("case.py:decode", gate.PLANTED, "latency")
    other = ("case.py:decode", "float16", "latency")
    lines = [
        line("none"),
        line("none", outcome="regression", worse=[other]),
        line("slower_2", outcome="regression", worse=[hit]),
        line("slower_2", outcome="regression", worse=[other]),
    ]
    earlier = line("none") | {"cleared": 0.01}
    del earlier["rule"]
    content = gate._summary([*lines, line("none", cpu="A Xeon"), earlier], Options(out=None, settings={}))
    rates = content["rates"][PLACE]
    assert (rates["none"]["red"], rates["slower_2"]["caught"]) == (1, 1)
    figures = {figure.name: figure for figure in gate._figures(content)}
    assert figures[f"{PLACE}: unchanged: red"].found.endswith("1 of 2")
    assert figures[f"{PLACE}: unchanged: red"].met is None  # too few to tell
    assert figures[f"{PLACE.replace('An EPYC', 'A Xeon')}: unchanged: red"].found.endswith("0 of 1")
    old = "An EPYC, 8 processes, 4 s a cell, an earlier rule, cleared below 1 %: unchanged: red"
    assert figures[old].rivals["gates that are green"] == "1 of 1 (20.7 to 100.0 %)"
    slower = figures[f"{PLACE}: 2 % more work in one fix: named"]
    assert slower.found.endswith("1 of 2")
    assert slower.rivals["changed fixes named"].startswith("1 of 4 (")
    assert figures["slowest gate"].met
    assert figures[f"{PLACE}: slowest gate"].rivals["latencies left undecided"].startswith("4 of 40 (")
    assert figures["all unchanged gates: red"].found.endswith("1 of 4")
