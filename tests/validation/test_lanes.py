"""Lanes beside one lane: what figures say of verdicts, speed and time lost, and one real pair."""

import pytest

from validation import frame
from validation.lanes import ENGINES, EXPERIMENT


def side(verdicts=(), *, seconds=10.0, lanes=1, calls_s=8.0, cells=4):
    named = {f"cell {number}": verdict for number, verdict in enumerate(verdicts)}
    return {"seconds": seconds, "lanes": lanes, "calls_s": calls_s, "cells": cells, "failed": [], "verdicts": named}


def line(kind, one, other, number=0):
    engine = kind if kind in ENGINES else "local:2"
    known = {"key": f"{kind} {number}", "kind": kind, "engine": engine, "cores": 2, "load": 1.0}
    return known | {"one": one, "other": other}


def figures_of(*lines):
    return EXPERIMENT.figures(EXPERIMENT.summary(list(lines), None))


@pytest.mark.parametrize(
    ("other", "met", "text"),
    [
        (["slower"] * 99 + ["undecided"], True, "99 of 100 alike, 1 undecided on one side, 0 unlike; load 1"),
        (["slower"] * 97 + ["undecided"] * 3, False, "97 of 100 alike, 3 undecided on one side, 0 unlike; load 1"),
        (["slower"] * 99 + ["equivalent"], False, "99 of 100 alike, 0 undecided on one side, 1 unlike; load 1"),
        (["slower"] * 99, False, "99 of 100 alike, 0 undecided on one side, 1 unlike; load 1"),
    ],
)
def test_verdicts_are_alike_undecided_or_unlike(other, met, text):
    found, itself = figures_of(line("verdicts", side(["slower"] * 100), side(other)))
    assert (found.met, found.found) == (met, text)
    assert itself.met is None


def test_the_speed_of_untimed_cells_is_a_share_of_the_lanes():
    (fast,) = figures_of(line("untimed", side(seconds=10.0), side(seconds=5.5, lanes=2)))
    assert fast.met
    assert fast.found.startswith("0.91 × 2 lanes")
    (slow,) = figures_of(line("untimed", side(seconds=10.0), side(seconds=5.6, lanes=2)))
    assert not slow.met


def test_what_an_engine_loses_is_lane_time_without_calls():
    (figure,) = figures_of(line("dask", side(), side(seconds=8.0, lanes=2, calls_s=8.0)))
    assert figure.found.startswith("2.00 s a cell on 2 workers; local:1 0.50 s")
    assert figure.met


@pytest.mark.slow
def test_a_pair_of_runs_has_the_same_verdicts(tmp_path):
    options = EXPERIMENT.options({"kinds": "verdicts", "repeats": "1"}, out=tmp_path)
    frame.run(EXPERIMENT, options, progress=lambda *step: None)
    (stored,) = frame.content_of(EXPERIMENT, options)["trials"]
    assert stored["one"]["verdicts"].keys() == stored["other"]["verdicts"].keys()
    assert len(stored["one"]["verdicts"]) == 10
