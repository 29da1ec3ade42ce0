"""Run folders and asv's results as sides, and what is refused."""

import json
from dataclasses import replace

import made_results as made
import pytest

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.records import RecordFile
from precision_eval.gate import Margins, compare_sides, open_sides
from precision_eval.gate.sides import side_of_run, sides_of_asv

BASE, HEAD = "a" * 40, "b" * 40
SLOWER = (1.6, 1.601, 1.599, 1.6002, 1.5998)


def regressions(sides):
    return {one.metric for one in compare_sides(*sides, margins=Margins()).of("regression")}


def test_two_run_folders_with_everything_worse(tmp_path):
    sides = open_sides(
        str(made.made_run(tmp_path / "a")),
        str(made.made_run(tmp_path / "b", ratios=SLOWER, drift=2e-6, peak=2000, torch="2.14.0")),
        results=None,
    )
    assert regressions(sides) == {"latency_ratio", "drift", "peak_bytes"}


def test_a_run_that_raises_now(tmp_path):
    sides = [side_of_run(made.made_run(tmp_path / s, status=s), name=s) for s in ("passed", "raised")]
    found = compare_sides(*sides, margins=Margins())
    assert [(one.metric, one.base, one.head) for one in found.of("regression")] == [("status", "passed", "raised")]
    assert "same dtype" in found.of("regression")[0].note


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"cpu": "Model Two"}, "processor \\(Model One against Model Two\\)"),
        ({"cuda": "12.8"}, "build of torch \\(CPU against CUDA\\)"),
        ({"device": {"name": "cuda:0", "model": "H200"}}, "device \\(cpu against H200\\)"),
    ],
)
def test_unlike_machines_and_builds_are_refused(tmp_path, other, match):
    a, b = made.made_run(tmp_path / "a"), made.made_run(tmp_path / "b", **other)
    with pytest.raises(ParameterError, match=match):
        open_sides(str(a), str(b), results=None)


def test_another_digest_is_named(tmp_path):
    a, b = made.made_run(tmp_path / "a"), made.made_run(tmp_path / "b", digest="e" * 64)
    with pytest.raises(ParameterError, match="differ in digest of the case"):
        compare_sides(*open_sides(str(a), str(b), results=None), margins=Margins())


def test_other_inputs_of_a_case_from_outside_are_refused_and_other_weights_are_said(tmp_path):
    def side(name, **digests):
        folder = made.made_run(tmp_path / name)
        records = [
            replace(record, case="my.py:factory", case_digest=name * 64, options={**record.options, **digests})
            for record in RecordFile(folder / "records.jsonl").read().records
        ]
        (folder / "records.jsonl").unlink()
        RecordFile(folder / "records.jsonl").append(records)
        return side_of_run(folder, name=name)

    base = side("a", inputs_digest="1", weights_digest="1")
    other_weights = side("b", inputs_digest="1", weights_digest="2")
    assert not compare_sides(base, other_weights, margins=Margins()).of("regression")
    name = "weights of my.py:factory"
    assert (base.remarks[name], other_weights.remarks[name]) == ("1", "2")
    with pytest.raises(ParameterError, match="differ in option inputs_digest"):
        compare_sides(base, side("c", inputs_digest="2", weights_digest="1"), margins=Margins())


def test_bad_run_folders_are_named(tmp_path):
    run = str(made.made_run(tmp_path / "a"))
    with pytest.raises(RecordError, match=r"no run folder, the other side is one"):
        open_sides(run, str(tmp_path / "missing"), results=None)
    with pytest.raises(RecordError, match=r"holds no records\.jsonl"):
        open_sides(str(tmp_path), str(tmp_path), results=None)
    (tmp_path / "a" / "environment.json").unlink()
    with pytest.raises(RecordError, match="lacks the file of the environment"):
        open_sides(run, run, results=None)
    (tmp_path / "a" / "records.jsonl").write_text('{"cell": 1}\n')
    with pytest.raises(RecordError, match="schema version"):
        open_sides(run, run, results=None)
    (tmp_path / "a" / "records.jsonl").write_text("")
    with pytest.raises(RecordError, match="no record of a fix"):
        open_sides(run, run, results=None)


def test_two_commits_of_asv(tmp_path):
    made.made_asv(tmp_path, commit=BASE)
    made.made_asv(tmp_path, commit=HEAD, ratios=SLOWER, peak=2000.0)
    sides = open_sides("aaaaaaaa", "bbbb", results=tmp_path)
    assert regressions(sides) == {"latency_ratio", "peak_bytes"}
    assert sides[0].remarks["commit"] == "a" * 12


def test_two_commits_in_several_environments_are_one_family(tmp_path):
    for torch in ("2.12.0", "2.13.0"):
        made.made_asv(tmp_path, commit=BASE, torch=torch)
        made.made_asv(tmp_path, commit=HEAD, torch=torch, ratios=SLOWER if torch == "2.13.0" else (1.5, 1.5001))
    found = compare_sides(*sides_of_asv(BASE, HEAD, folder=tmp_path), margins=Margins())
    (one,) = found.of("regression")
    assert one.place.environment == "virtualenv-py3.11-torch2.13.0"
    assert one.place.label.endswith("[virtualenv-py3.11-torch2.13.0]")


def test_two_torch_versions_of_asv_at_the_newest_common_commit(tmp_path):
    made.made_asv(tmp_path, commit=BASE, torch="2.12.0", date=1)
    made.made_asv(tmp_path, commit=BASE, torch="2.13.0", date=1, ratios=SLOWER)
    made.made_asv(tmp_path, commit=HEAD, torch="2.12.0", date=2)
    made.made_asv(tmp_path, commit=HEAD, torch="2.13.0", date=2)
    sides = sides_of_asv("2.12", "v2.13.0", folder=tmp_path)
    assert sides[0].remarks["commit"] == sides[1].remarks["commit"] == "b" * 12
    assert [one.remarks["torch"] for one in sides] == ["2.12.0", "2.13.0"]
    assert regressions(sides) == set()


def test_bad_names_of_asv_are_explained(tmp_path):
    made.made_asv(tmp_path, commit=BASE)
    made.made_asv(tmp_path, commit="ab" * 20)
    with pytest.raises(ParameterError, match="no results of the commit 'dddddddd'; there are some of"):
        open_sides(BASE, "dddddddd", results=tmp_path)
    with pytest.raises(ParameterError, match=r"no results of the torch version '2\.9'"):
        open_sides("2.13", "2.9", results=tmp_path)
    with pytest.raises(ParameterError, match="a commit and a torch version"):
        open_sides(BASE, "2.13", results=tmp_path)
    with pytest.raises(ParameterError, match="given twice"):
        open_sides(BASE, BASE, results=tmp_path)
    with pytest.raises(RecordError, match="name asv's results_dir with --results"):
        open_sides(BASE, HEAD, results=tmp_path / "nowhere")
    made.made_asv(tmp_path, commit="aaaa" + "c" * 36)
    with pytest.raises(ParameterError, match="give more digits"):
        open_sides("aaaa", HEAD, results=tmp_path)


def test_unlike_asv_results_are_refused(tmp_path):
    made.made_asv(tmp_path, commit=BASE, machine="one")
    made.made_asv(tmp_path, commit=HEAD, machine="two")
    with pytest.raises(ParameterError, match=r"was measured on one and .* on two"):
        open_sides(BASE, HEAD, results=tmp_path)
    made.made_asv(tmp_path, commit=HEAD, machine="one", cuda=True)
    with pytest.raises(ParameterError, match="build of torch \\(CPU against CUDA\\)"):
        open_sides(BASE, HEAD, results=tmp_path)
    made.made_asv(tmp_path, commit=BASE, machine="two")
    with pytest.raises(ParameterError, match="--machine one"):
        open_sides(BASE, HEAD, results=tmp_path)
    assert open_sides(BASE, HEAD, results=tmp_path, machine="two")[0].facts["machine"] == "two"


def test_two_machines_of_one_name_are_refused_and_a_new_kernel_is_not(tmp_path):
    for commit, facts in ((BASE, {"cpu": "Model One", "os": "Linux 6"}), (HEAD, {"cpu": "Model One", "os": "Linux 7"})):
        made.made_asv(tmp_path, commit=commit)
        path = next((tmp_path / "box").glob(f"{commit[:8]}*"))
        content = json.loads(path.read_text())
        content["params"] |= facts
        path.write_text(json.dumps(content))
    assert open_sides(BASE, HEAD, results=tmp_path)[0].facts["machine's cpu"] == "Model One"
    content["params"]["cpu"] = "Model Two"
    path.write_text(json.dumps(content))
    with pytest.raises(ParameterError, match=r"machine's cpu \(Model One against Model Two\)"):
        open_sides(BASE, HEAD, results=tmp_path)


def test_another_benchmark_version_is_set_aside(tmp_path):
    made.made_asv(tmp_path, commit=BASE)
    made.made_asv(tmp_path, commit=HEAD, version="v2")
    with pytest.raises(ParameterError, match="differ in version of the benchmark"):
        compare_sides(*open_sides(BASE, HEAD, results=tmp_path), margins=Margins())
