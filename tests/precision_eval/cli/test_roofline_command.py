"""roofline and choose --device t4: what is predicted says so, and what it cannot answer is refused."""

import json

import made_groups as made
import pytest

from precision_eval.core.environment import collect, store_environment
from precision_eval.core.records import RecordFile
from precision_eval.measure import peaks as peaks_module
from precision_eval.measure.peaks import DTYPES, Peaks

SLOWER = 1  # factor of the bytes of float16


def work(dtype, size):
    moved = size * SLOWER if dtype == "float16" else size
    own = {"kind": "attention", "dtype": dtype, "count": 1, "flops": size, "bytes": moved}
    return {"operations": [own], "touched_bytes": size, "fresh_bytes": 0}


def make_run(folder, environment):
    sha = store_environment(environment, folder)
    records = []
    for fix, dtype, size, ratio in (("full_float32", "float32", 8192, 1.0), ("float16", "float16", 4096, 3.0)):
        trace = {"backend": "flash", "casts": [], "work": work(dtype, size)}
        times = [ratio * factor for factor in (0.999, 1.001, 0.9995, 1.0005)]
        latency = made.latency(times, verdict="slower")
        drift = {"relative_error": 1e-3}
        for measure, data in (("trace", trace), ("latency", latency), ("drift", drift)):
            records.append(made.record(fix, measure, data, environment=sha))
    RecordFile(folder / "records.jsonl").append(records)
    return folder


@pytest.fixture(scope="module")
def here():
    return collect("cpu")


@pytest.fixture
def run_dir(tmp_path, here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    made_peaks = Peaks(
        name="made", source="made", bandwidth={1: 1e9}, flops=dict.fromkeys(DTYPES, 1e12),
        roofs={"attention float16": [(1.0, 1e8)]},
    )  # fmt: skip
    monkeypatch.setattr(peaks_module, "measure_peaks", lambda name, threads: made_peaks)
    return make_run(tmp_path / "run", here)


def test_predictions_stand_beside_measurements_and_peaks_are_kept(program, refused, run_dir):
    code, out, _ = program("roofline", run_dir)
    assert code == 0
    assert "torch's attention in float16 takes 10.0 × what its bytes would" in out
    code, out, _ = program("roofline", run_dir, "--json")
    (group,) = json.loads(out)["groups"]
    figures = {row["fix"]: (row["bare"], row["full"], round(row["measured"], 3)) for row in group["rows"]}
    assert figures == {"full_float32": (1.0, 1.0, 1.0), "float16": (0.5, pytest.approx(5.0), 3.0)}
    stored = json.loads((run_dir / "peaks.json").read_text())
    assert stored["peaks"]["name"] == "made"
    (run_dir / "peaks.json").write_text(json.dumps(stored | {"machine": {"hardware": "another"}}))
    refused("is of another machine than the run", "roofline", run_dir)
    (run_dir / "peaks.json").write_text(json.dumps(stored | {"peaks": {}}))
    refused("holds no peaks", "roofline", run_dir)


def test_the_work_of_another_run_of_the_same_cells_is_taken(program, run_dir, here, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SLOWER", 3)
    other = make_run(tmp_path / "other", here)
    figures = []
    for more in ((), ("--work", other)):
        code, out, _ = program("roofline", run_dir, "--json", *more)
        assert code == 0
        figures.append([row["bytes_ratio"] for row in json.loads(out)["groups"][0]["rows"]])
    assert figures == [[1.0, 0.5], [1.0, 1.5]]


def test_the_peaks_of_another_machine_are_not_measured_here(program, refused, tmp_path, here):
    folder = make_run(tmp_path / "run", here | {"cpu": {"model": "Another", "usable_cores": 64}})
    refused("the peaks of Another", "roofline", folder)
    code, out, _ = program("roofline", folder, "--device", "a100")
    assert code == 0
    assert "PREDICTION for a100, not measured" in " ".join(out.split())


def test_choose_predicts_time_for_a_published_gpu_alone(program, refused, run_dir):
    code, out, _ = program("choose", run_dir, "--device", "t4")
    assert code == 0
    assert "PREDICTION for t4, not measured" in out
    assert "bare roofline" not in out
    refused("is predicted, in time alone", "choose", run_dir, "--device", "t4", "--max-drift", "1e-3")


def test_a_run_without_work_says_what_to_measure(refused, tmp_path, here):
    sha = store_environment(here, tmp_path)
    data = {"backend": "flash", "casts": []}
    records = [made.record(fix, "trace", data, environment=sha) for fix in ("full_float32", "float16")]
    RecordFile(tmp_path / "records.jsonl").append(records)
    refused("no trace here holds the work of a call", "roofline", tmp_path, "--device", "t4")


@pytest.mark.parametrize(("model", "name"), [("NVIDIA H200", "h200"), ("Tesla T4", "t4"), ("NVIDIA A100-SXM4", "a100")])
def test_a_run_on_a_gpu_is_held_to_its_published_peaks(program, tmp_path, here, model, name):
    on_gpu = here | {"device": {"name": "cuda:0", "model": model}}
    code, out, _ = program("roofline", make_run(tmp_path / "run", on_gpu), "--json")
    found = json.loads(out)
    (group,) = found["groups"]
    assert (code, found["peaks"]["name"]) == (0, name)
    assert {row["fix"]: (row["bare"], round(row["measured"], 3)) for row in group["rows"]} == {
        "full_float32": (1.0, 1.0),
        "float16": (0.5, 3.0),
    }


def test_a_gpu_without_published_peaks_is_named(refused, tmp_path, here):
    unknown = here | {"device": {"name": "cuda:0", "model": "NVIDIA H20"}}
    refused("no peaks of NVIDIA H20 are published here; give --device", "roofline", make_run(tmp_path / "run", unknown))
