"""The trials of the gate that measures both sides in one process: their repository, and what is counted."""

import runpy
import subprocess

import pytest
import torch

from validation.frame import Options
from validation.gate import paired_gate


def line(fault, *, outcome="no regression", worse=()):
    content = {"decided": 9, "cells": 10, "seconds": 50.0, "detectable": 0.01, "processes": 8, "budget_s": 4.0}
    return {"fault": fault, "outcome": outcome, "worse": [list(one) for one in worse], **content}


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
    assert changed == (set() if fault == "none" else set(head) if whole else {paired_gate.PLANTED})


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
    options = Options(out=None, settings={"processes": 8, "budget_s": 4.0})
    content = paired_gate._summary(lines, options)
    assert (content["rates"]["none"]["red"], content["rates"]["none"]["false_latency"]) == (1, 1)
    assert (content["rates"]["slower_2"]["caught"], content["rates"]["slower_2"]["false_latency"]) == (1, 1)
    figures = {figure.name: figure for figure in paired_gate._figures(content)}
    assert figures["A/A gates that are red"].found.endswith("1 of 2")
    assert figures["A/A gates that are red"].met is None  # too few to tell
    assert figures["slower_2: cells that are named"].found.endswith("1 of 4")
    assert figures["slowest gate of ten cells"].met
