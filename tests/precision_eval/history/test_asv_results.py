"""Reading asv's result folders: files that asv itself wrote, and the ways in which a folder can be wrong."""

import json
import math

import pytest
from made_versions import Run, write_runs

from precision_eval.core.errors import ParameterError, RecordError, UnknownNameError
from precision_eval.history.asv_results import Key, read_results, status_name

DRIFT = "eager.metavoice_decode.track_drift"
CELL = ("kv_to_query", "tiny")


def key_of(metric, fix="kv_to_query", case="metavoice-decode", mode="eager"):
    return Key(case, mode, "tiny", fix, metric)


def test_a_file_is_read_as_it_was_written(tmp_path):
    values = {
        DRIFT: {CELL: 1e-3, ("as_shipped", "tiny"): None, ("autocast", "tiny"): math.nan},
        "eager.metavoice_decode.track_latency_ratio": {CELL: [1.2, 1.1, 1.4]},
        "compiled.dia_decode.track_status": {CELL: 2},
        "attention.Suite.time_sdpa": {CELL: 1.0},
        "cuda.metavoice_decode.track_device_ratio": {CELL: 0.4},
        "cuda.metavoice_decode.track_launched_ratio": {CELL: 1.1},
    }
    write_runs(tmp_path, [Run(torch="2.8.0", values=values)])
    (result,) = read_results(tmp_path)
    assert (result.machine, result.torch_version, result.cuda_build) == ("lab", "2.8.0", False)
    assert (result.commit, result.hardware["cpu"]) == ("a" * 40, "Testium 1")
    assert len(result.points) == 7
    clocks = {name: result.points[key_of(f"{name}_ratio", mode="cuda")].value for name in ("device", "launched")}
    assert clocks == {"device": 0.4, "launched": 1.1}
    ratio = result.points[key_of("latency_ratio")]
    assert (ratio.value, ratio.samples, ratio.state) == (1.2, (1.2, 1.1, 1.4), "measured")
    states = [result.points[key_of("drift", fix)].state for fix in ("kv_to_query", "as_shipped", "autocast")]
    assert states == ["measured", "failed", "not_applicable"]
    status = result.points[key_of("status", case="dia-decode", mode="compiled")]
    assert status_name(status.value) == "raised"
    with pytest.raises(RecordError, match="9 is no status; expected 1 to 7"):
        status_name(9)


def test_what_asv_writes_is_read(tmp_path):
    """A user's factory, written by asv itself: one parameter, and a case with a colon."""
    results = pytest.importorskip("asv.results")
    from asv.runner import BenchmarkResult

    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "machine.json").write_text(json.dumps({"machine": "lab", "version": 1}))
    params = {"machine": "lab", "torch": "2.9.1+cpu", "python": "3.11"}
    written = results.Results(params, {"torch": "2.9.1"}, "b" * 40, 5, "3.11", "virtualenv-py3.11-torch2.9.1", {})
    benchmark = {"name": "eager.mine:factory.time_call", "version": "v7", "params": [["'float16'", "'bfloat16'"]]}
    numbers = {"samples": [[1.0, 1.5], None], "number": [1, None]}
    outcome = BenchmarkResult(result=[1.0, math.nan], errcode=0, stderr="", profile=None, **numbers)
    written.add_result(benchmark, outcome, duration=3.0, record_samples=True)
    written.save(str(tmp_path))
    (result,) = read_results(tmp_path)
    assert (result.torch_version, result.cuda_build) == ("2.9.1", None)
    point = result.points[Key("mine:factory", "eager", "own", "float16", "time")]
    assert (point.value, point.samples, point.benchmark_version) == (1.25, (1.0, 1.5), "v7")


def test_one_machine_and_one_kind_of_build_are_asked_for(tmp_path):
    values = {DRIFT: {CELL: 1.0}}
    write_runs(tmp_path / "a", [Run(torch="2.8.0", machine=name, values=values) for name in ("lab", "laptop")])
    with pytest.raises(
        ParameterError, match=r"results of 2 machines \(lab, laptop\); name one with --set machine=NAME"
    ):
        read_results(tmp_path / "a")
    assert read_results(tmp_path / "a", machine="laptop")[0].machine == "laptop"
    with pytest.raises(UnknownNameError, match="unknown machine 'labtop'; did you mean"):
        read_results(tmp_path / "a", machine="labtop")
    write_runs(tmp_path / "b", [Run(torch="2.8.0", values=values), Run(torch="2.9.0", cuda=True, values=values)])
    with pytest.raises(ParameterError, match=r"torch2\.8\.0 is a CPU build of torch and .*torch2\.9\.0 a CUDA build"):
        read_results(tmp_path / "b")


def damage(change):
    def apply(path):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_text('{"version": 2, "resul'), "is not as asv writes it"),
        (lambda path: path.write_text("[1]"), "is not as asv writes it"),
        (damage(lambda c: c.pop("commit_hash")), "commit_hash.*; remove it"),
        (damage(lambda c: c["results"].update({DRIFT: [["fast"], [["'a'"], ["'b'"]]]})), "is not as asv writes it"),
        (damage(lambda c: (c["results"].clear(), c["params"].pop("torch"))), "does not say which torch it ran"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, change, message):
    write_runs(tmp_path, [Run(torch="2.8.0", values={DRIFT: {CELL: 1.0}})])
    (path,) = (path for path in (tmp_path / "lab").glob("*.json") if path.name != "machine.json")
    change(path)
    with pytest.raises(RecordError, match=message) as error:
        read_results(tmp_path)
    assert "\n" not in str(error.value)
