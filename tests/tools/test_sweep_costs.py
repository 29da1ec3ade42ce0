"""Time and disk per version: what is written down, also of a stopped sweep, and what is shared."""

import json
import os

import pytest

from precision_eval.core.errors import RecordError
from tools.torch_versions.sweep_notes import cost_kept, read_costs, shared_bytes


def blocks(path):
    return path.stat().st_blocks * 512


def test_only_names_outside_make_a_file_shared(tmp_path):
    cache, environment = tmp_path / "cache", tmp_path / "environment"
    cache.mkdir()
    (environment / "deep").mkdir(parents=True)
    sizes = {"own": 50_000, "cached": 90_000, "twice": 30_000}
    for name, size in sizes.items():
        (environment / name).write_bytes(os.urandom(size))
    os.link(environment / "twice", environment / "deep" / "twice")  # two names, both inside
    assert shared_bytes(environment) == 0
    os.link(environment / "cached", cache / "cached")
    os.link(environment / "cached", environment / "deep" / "cached")  # counted once
    assert shared_bytes(environment) == blocks(environment / "cached") >= 90_000
    assert shared_bytes(tmp_path / "none") == 0


def keep(results, folder, **more):
    return cost_kept(results, **{"version": "2.8.0", "commit": "c", "folder": folder, "on_disk": 7} | more)


def test_a_stopped_measuring_is_written_down_too(tmp_path):
    results = tmp_path / "results"
    with pytest.raises(KeyboardInterrupt), keep(results, tmp_path):
        raise KeyboardInterrupt
    with keep(results, tmp_path):
        pass
    lines = [json.loads(line) for line in (results / "costs.jsonl").read_text().splitlines()]
    assert [one["finished"] for one in lines] == [False, True]
    assert all(one["seconds"] >= 0.0 and one["bytes"] == 7 and one["commit"] == "c" for one in lines)


def test_costs_are_of_measured_versions_in_their_order(tmp_path):
    (tmp_path / "vm").mkdir()
    row = {"result_columns": ["result", "duration"], "results": {"a": [[1], 5.0]}}
    for version in ("2.10.0", "2.9.1"):
        (tmp_path / "vm" / f"c-torch-py3.11-torch{version}.json").write_text(json.dumps(row))
    notes = [{"version": one, "seconds": 1.0, "bytes": 2, "build": "cpu"} for one in ("2.10.0", "2.9.1", "2.6.0")]
    (tmp_path / "environments.jsonl").write_text("".join(json.dumps(one) + "\n" for one in notes))
    costs = read_costs(tmp_path)
    assert [one.version for one in costs] == ["2.9.1", "2.10.0"]
    assert {(one.benchmarks, one.benchmarks_s, one.sweep_s, one.shared_bytes) for one in costs} == {
        (1, 5.0, None, None)
    }
    (tmp_path / "vm" / "c-torch-py3.11-torch2.9.1.json").write_text("{}")
    with pytest.raises(RecordError, match=r"torch2\.9\.1\.json does not hold .*run the sweep"):
        read_costs(tmp_path)
