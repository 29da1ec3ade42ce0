"""The map: planted faults, resuming, and the figures by hand."""

import json

import numpy as np
import pytest

from precision_eval.core.errors import RecordError
from precision_eval.core.files import TrialFile
from precision_eval.studies.sensitivity.mapping import map_target
from precision_eval.studies.sensitivity.report import summarise


def of_kind(summary, kind):
    return [effect for effect in summary["effects"] if effect["kind"] == kind]


def made(target, folder, formats=("bfloat16",)):
    file = TrialFile(folder / "runs.jsonl")
    map_target(target, size="tiny", seed=1, formats=formats, file=file)
    return file


@pytest.mark.parametrize("worst", [0, 1, 2])
def test_the_branch_that_is_scaled_up_is_ranked_first(tmp_path, worst, branches_target):
    scales = [30.0 if index == worst else 1.0 for index in range(3)]
    (one,) = summarise(made(branches_target(scales), tmp_path).read())
    assert one["bit_identical"]
    first, second = of_kind(one, "layer")[:2]
    assert first["layer"] == str(worst)
    assert not first["tied_with_next"]
    assert first["added"] > 10 * second["added"]
    assert first["carried_low"] > 0.9
    assert of_kind(one, "site")[0]["name"] == f"{worst}.mlp"


def test_equal_branches_add_alike_and_in_squares(tmp_path, branches_target):
    (one,) = summarise(made(branches_target([1.0, 1.0, 1.0]), tmp_path, ("float16",)).read())
    added = [effect["added"] for effect in of_kind(one, "site") if effect["role"] == "mlp"]
    assert max(added) / min(added) < 1.25
    assert one["additivity"] == pytest.approx(1.0, abs=0.08)


def test_a_second_call_makes_nothing_and_a_torn_line_is_made_again(tmp_path, branches_target):
    target = branches_target([1.0, 2.0])
    file = made(target, tmp_path)
    before = file.path.read_bytes()
    done = []
    map_target(target, size="tiny", seed=1, formats=("bfloat16",), file=file, progress=lambda *a: done.append(a))
    assert file.path.read_bytes() == before
    assert done[-1][0] == done[-1][1] == len(file.read())
    file.path.write_bytes(before[:-20])
    made(target, tmp_path)
    assert file.path.read_bytes() == before


def test_a_stopped_map_keeps_what_it_has(tmp_path, branches_target):
    class StopError(Exception):
        pass

    def stop(done, total, what):
        if done == 3:
            raise StopError

    file = TrialFile(tmp_path / "runs.jsonl")
    target = branches_target([1.0, 2.0])
    with pytest.raises(StopError):
        map_target(target, size="tiny", seed=1, formats=("bfloat16",), file=file, progress=stop)
    assert len(file.read()) == 3
    with pytest.raises(RecordError, match=r"lacks fused, fused_emulated; run it again"):
        summarise(file.read())


def run(direction, name, drift, kind="site", **more):
    layer, _, role = name.partition(".")
    facts = {"target": "t", "size": "s", "seed": 0, "format": "f", "direction": direction, "kind": kind, "name": name}
    return {**facts, "drift": drift, "sites": [[layer, role]], **more}


def by_hand():
    checks = {"uniform": [5.0, 5.0], "float32": [0.1, 0.1], "native": [5.0, 5.2], "fused": [4.0, 4.0]}
    checks["fused_emulated"] = [4.0, 4.0]
    facts = {"bit_identical": True, "identical_fraction": 0.5}
    return [
        *(run("check", name, drift, kind="all", **facts) for name, drift in checks.items()),
        run("drop", "0.q", [2.5, 3.5]),
        run("drop", "0.k", [4.0, 4.0]),
        run("rescue", "0.q", [4.0, 4.5]),
        run("rescue", "0.k", [3.0, 3.0]),
    ]


def test_ranking_by_hand():
    (one,) = summarise(by_hand())
    first, second = one["effects"]
    assert (first["name"], first["rank"], first["added"], first["carried"]) == ("0.k", 1, 4.0, 0.4)
    assert (second["name"], second["rank"], second["added"]) == ("0.q", 2, 3.0)
    assert second["carried"] == pytest.approx((0.2 + 0.1) / 2)
    assert (second["added_low"], second["added_high"]) == (2.5, 3.5)
    assert one["additivity"] == pytest.approx(1.0)  # √(3² + 4²) / 5
    assert one["agreement"] == pytest.approx(1.0)
    assert one["native_drift"] == pytest.approx(5.1)
    json.dumps(one, allow_nan=False)


def test_a_site_that_overflows_is_ranked_first_and_not_hidden():
    runs = by_hand()
    for trial in runs:
        if trial["direction"] == "drop" and trial["name"] == "0.q":
            trial["drift"] = [None, 3.5]
    (one,) = summarise(runs)
    assert one["effects"][0]["name"] == "0.q"
    assert one["effects"][0]["added"] == np.inf
    assert one["additivity"] is None


def test_dropped_but_not_held_is_an_incomplete_map():
    with pytest.raises(RecordError, match="2 groups were dropped and 1 held"):
        summarise(by_hand()[:-1])
