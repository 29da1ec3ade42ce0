"""Reading asv's result folders: against files that asv itself wrote, and every way in which a folder can be wrong."""

import json
import math

import pytest

from precision_eval.core.errors import ParameterError, RecordError, UnknownNameError
from precision_eval.results.asv import check_one_build, check_one_machine, read_results, status_of

DRIFT = "eager.metavoice_decode.track_drift"
STATUS = "compiled.dia_decode.track_status"
CELL = ("kv_to_query", "tiny")


def one_point(folder, key):
    (found,) = read_results(folder)
    return found.points[key]


def test_a_file_is_read_as_it_was_written(tmp_path, write, run_type):
    values = {
        DRIFT: {CELL: 1e-3, ("as_shipped", "tiny"): None, ("autocast", "tiny"): math.nan},
        "eager.metavoice_decode.track_latency_ratio": {CELL: [1.2, 1.1, 1.4]},
        "eager.metavoice_decode.time_call": {CELL: 0.25},
        STATUS: {CELL: 2},
        "attention.Suite.time_sdpa": {CELL: 1.0},
    }
    write(tmp_path, [run_type(torch="2.8.0", values=values)])
    (found,) = read_results(tmp_path)
    assert (found.machine, found.torch_version, found.cuda_build) == ("lab", "2.8.0", False)
    assert (found.commit, found.python, found.hardware["cpu"]) == ("a" * 40, "3.11", "Testium 1")
    assert {key[2] for key in found.points} == {"drift", "latency_ratio", "time", "status"}
    ratio = found.points["eager", "metavoice-decode", "latency_ratio", *CELL]
    assert (ratio.value, ratio.samples, ratio.state) == (1.2, (1.2, 1.1, 1.4), "measured")
    drift = found.points["eager", "metavoice-decode", "drift", *CELL]
    assert (drift.value, drift.samples, drift.unit) == (1e-3, (), "relative error to float64")
    assert found.points["eager", "metavoice-decode", "drift", "as_shipped", "tiny"].state == "failed"
    assert found.points["eager", "metavoice-decode", "drift", "autocast", "tiny"].state == "not_applicable"
    assert found.points["eager", "metavoice-decode", "time", *CELL].value == 0.25
    assert status_of(found.points["compiled", "dia-decode", "status", *CELL]) == "raised"
    assert all(point.key == key for key, point in found.points.items())


def test_asv_wrote_it_and_asv_reads_the_same(tmp_path):
    """An independent implementation: asv's own writer and loader."""
    results = pytest.importorskip("asv.results")
    from asv.runner import BenchmarkResult

    folder = tmp_path / "results"
    (folder / "lab").mkdir(parents=True)
    (folder / "lab" / "machine.json").write_text(json.dumps({"machine": "lab", "version": 1}))
    params = {"machine": "lab", "torch": "2.9.1", "python": "3.11"}
    written = results.Results(params, {"torch": "2.9.1"}, "b" * 40, 5, "3.11", "virtualenv-py3.11-torch2.9.1", {})
    axes = [["'as_shipped'", "'kv_to_query'"], ["'tiny'", "'small'"]]
    benchmark = {"name": "eager.dia_decode.track_latency_ratio", "version": "v7", "params": axes}
    samples = [None, [1.0, 1.5, 1.1, 1.2, 1.3], None, [2.0, 2.5]]
    outcome = BenchmarkResult(
        result=[None, 1.0, math.nan, 2.0],
        samples=samples,
        number=[None, 1, None, 1],
        errcode=0,
        stderr="",
        profile=None,
    )
    written.add_result(benchmark, outcome, duration=3.0, record_samples=True)
    written.save(str(folder))
    (ours,) = read_results(folder)
    theirs = results.Results.load(str(ours.source))
    values = theirs.get_result_value(benchmark["name"], axes)
    keys = [(fix, size) for fix in ("as_shipped", "kv_to_query") for size in ("tiny", "small")]
    for key, value, kept in zip(keys, values, samples, strict=True):
        point = ours.points["eager", "dia-decode", "latency_ratio", *key]
        assert point.samples == tuple(kept or ())
        assert point.benchmark_version == "v7"
        if value is None or math.isnan(value):
            assert point.state == ("failed" if value is None else "not_applicable")
            assert point.value is None
        else:
            assert point.value == value


def test_units_and_absent_cells_come_from_the_benchmarks(tmp_path, write, run_type):
    write(tmp_path, [run_type(torch="2.8.0", values={DRIFT: {CELL: 1.0}})])
    write(tmp_path, [run_type(torch="2.9.0", values={DRIFT: {("full_float32", "tiny"): 1.0}})])
    old, new = read_results(tmp_path)
    key = ("eager", "metavoice-decode", "drift", *CELL)
    assert (old.points[key].state, new.points[key].state, new.points[key].value) == ("measured", "absent", None)
    (tmp_path / "benchmarks.json").unlink()
    old, new = read_results(tmp_path)
    assert key not in new.points
    assert old.points[key].unit == "relative error to float64"


def test_what_ran_counts_and_must_be_what_was_asked_for(tmp_path, write, run_type):
    values = {DRIFT: {CELL: 1.0}}
    write(tmp_path / "a", [run_type(torch=None, ran="2.13.0", values=values)])
    assert read_results(tmp_path / "a")[0].torch_version == "2.13.0"
    write(tmp_path / "b", [run_type(torch="2.13.0+cpu", recorded=False, values=values)])
    assert (read_results(tmp_path / "b")[0].torch_version, read_results(tmp_path / "b")[0].cuda_build) == (
        "2.13.0",
        False,
    )
    write(tmp_path / "c", [run_type(torch="2.13.0", ran="2.12.1", values=values)])
    with pytest.raises(RecordError, match=r"asked for torch 2\.13\.0 and ran 2\.12\.1; remove"):
        read_results(tmp_path / "c")
    write(tmp_path / "d", [run_type(torch=None, recorded=False, values=values)])
    with pytest.raises(RecordError, match="does not say which torch it ran"):
        read_results(tmp_path / "d")


def test_one_machine_is_asked_for(tmp_path, write, run_type):
    values = {DRIFT: {CELL: 1.0}}
    write(tmp_path, [run_type(torch="2.8.0", machine=name, values=values) for name in ("lab", "laptop")])
    with pytest.raises(ParameterError, match=r"results of 2 machines \(lab, laptop\).*--machine lab"):
        check_one_machine(read_results(tmp_path))
    assert check_one_machine(read_results(tmp_path, machine="laptop")) == "laptop"
    assert check_one_machine(read_results(tmp_path / "lab")) == "lab"
    with pytest.raises(UnknownNameError, match="unknown machine 'labtop'; did you mean"):
        read_results(tmp_path, machine="labtop")


def recorded(folder, torch, **facts):
    """Change what a result file itself says of the hardware; None takes it away."""
    (path,) = folder.glob(f"lab/*torch{torch}.json")
    content = json.loads(path.read_text())
    kept = {**content["params"], **facts}
    content["params"] = {name: value for name, value in kept.items() if value is not None}
    path.write_text(json.dumps(content))


def test_cpu_and_cuda_builds_are_not_compared(tmp_path, write, run_type):
    values = {DRIFT: {CELL: 1.0}}
    write(tmp_path, [run_type(torch="2.8.0", values=values), run_type(torch="2.9.0", cuda=True, values=values)])
    sets = read_results(tmp_path)
    with pytest.raises(ParameterError, match=r"torch2\.8\.0 is a CPU build of torch and .*torch2\.9\.0 a CUDA build"):
        check_one_build(sets)
    assert check_one_build(sets[:1]) is False
    assert check_one_build(sets[1:]) is True
    assert check_one_build(()) is None


def damage(change):
    def apply(path):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_text('{"version": 2, "resul'), "is no JSON .*; remove it and run asv again"),
        (lambda path: path.write_text("[1]"), "holds a JSON list; expected asv's object"),
        (damage(lambda c: c.update(version=1)), "has result format version 1, expected 2; run `asv update`"),
        (damage(lambda c: c.pop("version")), "has result format version None, expected 2"),
        (damage(lambda c: c.pop("commit_hash")), "lacks 'commit_hash'; remove it"),
        (damage(lambda c: c["results"][DRIFT][0].append(1.0)), "2 entries of result for 1 parameter combinations"),
        (damage(lambda c: c["results"][DRIFT][1].append(["'x'"])), "has 3 parameters .*; expected fix and size"),
        (damage(lambda c: c["results"].update({DRIFT: [["fast"], [["'a'"], ["'b'"]]]})), "is not as asv writes it"),
        (damage(lambda c: c.update(results=[])), "is not as asv writes it"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, write, run_type, change, message):
    write(tmp_path, [run_type(torch="2.8.0", values={DRIFT: {CELL: 1.0}})])
    (tmp_path / "benchmarks.json").unlink()
    (path,) = [one for one in (tmp_path / "lab").glob("*.json") if one.name != "machine.json"]
    change(path)
    with pytest.raises(RecordError, match=message) as found:
        read_results(tmp_path)
    assert "\n" not in str(found.value)


def test_a_build_that_is_no_text_is_not_recorded(tmp_path, write, run_type):
    write(tmp_path, [run_type(torch="2.8.0", values={DRIFT: {CELL: 1.0}})])
    (path,) = [one for one in (tmp_path / "lab").glob("*.json") if one.name != "machine.json"]
    damage(lambda c: c.update(env_vars={"TORCH_BUILD": ["slim"]}))(path)
    assert [result.build for result in read_results(tmp_path)] == [None]


def test_a_number_that_is_no_status_is_refused(tmp_path, write, run_type):
    write(tmp_path, [run_type(torch="2.8.0", values={STATUS: {CELL: 9}})])
    with pytest.raises(RecordError, match=r"dia-decode/kv_to_query:tiny: 9 is no status; expected 1 to 7"):
        status_of(one_point(tmp_path, ("compiled", "dia-decode", "status", *CELL)))
