"""What asv discovers, held to the registries; and asv's own configuration."""

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest
from programs import printed_by

from precision_eval.cases.systems import CASES, case_by_id
from precision_eval.fixes import FIXES

ROOT = Path(__file__).resolve().parents[2]

LIST = """
import json, sys
from asv_runner.discovery import _discover
_discover((sys.argv[1], sys.argv[2]))
print(json.dumps([name for name in ("pytest", "asv", "torch") if name in sys.modules]))
"""

TIMED = {"time_call", "peakmem_call", "track_latency_ratio", "track_latency_to_anchor"}
TIMED_CASES = {
    "attention-decode",
    "attention-prefill",
    "voice",
    "metavoice-decode",
    "dia-decode",
    "imaginairy-time-embed",
    "cogvideo-t5-encoder",
}


@pytest.fixture(scope="module")
def discovered(tmp_path_factory):
    out = tmp_path_factory.mktemp("asv") / "list.json"
    loaded = printed_by("-c", LIST, ROOT / "benchmarks", out, cwd=out.parent)
    assert loaded.strip().splitlines()[-1] == "[]"  # asv's environments lack two; torch is for its fork server
    found = json.loads(out.read_text())
    assert len({one["name"] for one in found}) == len(found)
    return {one["name"]: one for one in found}


def expected_names():
    for case in CASES:
        name = case.id.replace("-", "_")
        methods = {"track_status", "track_drift", "track_peak_bytes", "track_stored_bytes"}
        if case.id in TIMED_CASES:
            methods |= TIMED
        if case.id == "voice":
            methods |= {"track_divergence", "track_audio_degradation"}
        yield from (f"eager.{name}.{method}" for method in methods)
    compiled = ("track_status", "track_drift", "track_latency_ratio", "track_latency_to_anchor")
    yield from (f"compiled.attention_decode.{method}" for method in compiled)
    yield "compiled.metavoice_decode.track_status"
    yield from ("build.torch_build.track_torch_version", "build.torch_build.track_is_cuda_build")


def test_asv_discovers_what_the_registries_hold(discovered):
    assert set(discovered) == set(expected_names())


def test_every_benchmark_says_what_it_is(discovered):
    for name, one in discovered.items():
        mode, class_name, method = name.split(".")
        assert one.get("pretty_name"), name
        if mode == "build":
            continue
        case = case_by_id(next(w.id for w in CASES if w.id.replace("-", "_") == class_name))
        fixes, sizes = one["params"]
        assert one["param_names"] == ["fix", "size"]
        assert fixes == [repr(fix.label) for fix in FIXES if case.takes(fix.id)], name
        assert set(sizes) <= {repr(size) for size in case.default_sizes}, name
        assert sizes
        assert re.fullmatch(r"[0-9a-f]{64}", one["version"])
        assert one["timeout"] >= 60
        assert one["unit"] != "unit"
        expected = {"time_call": "time", "peakmem_call": "peakmemory"}.get(method, "track")
        assert one["type"] == expected


def test_versions_differ_wherever_the_meaning_does(discovered):
    versions = [one["version"] for name, one in discovered.items() if not name.startswith("build")]
    assert len(set(versions)) == len(versions)


def test_the_matrix_agrees_with_the_constraints():
    config = json.loads((ROOT / "asv.conf.json").read_text())
    constraints = dict(
        line.split(";")[0].strip().split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    matrix = config["matrix"]["req"]
    assert set(matrix) == {"torch", "numpy"}
    for package, versions in matrix.items():
        assert versions == [constraints[package]], package


@pytest.mark.parametrize("card", [True, False])
def test_benchmarks_of_a_gpu_are_there_where_nvidias_tools_are(monkeypatch, card):
    monkeypatch.setattr(shutil, "which", lambda name: name if card else None)
    module = runpy.run_path(str(ROOT / "benchmarks" / "cuda.py"))
    assert ("metavoice_decode" in module) == card
    if card:
        methods = {name for name in vars(module["metavoice_decode"]) if name.endswith("_call") or "track_" in name}
        times = {"track_device_time", "track_device_ratio", "track_launched_ratio"}
        assert methods == times | {"track_status", "track_drift", "track_peak_bytes", "track_stored_bytes"}
