"""What a run was measured with, and how sure its latencies are: from records, nothing invented."""

import hashlib
import json

import pytest
from made_runs import synthetic

from precision_eval.report.text import environment_lines, environment_markdown
from precision_eval.results.reading import load_run
from tools.docs.systems import doubt_notes, latency_notes

__all__ = ["synthetic"]


def environment(commit):
    return {"torch": {"version": "2.13.0"}, "device": {"name": "cpu"}, "package": {"git_commit": commit}}


@pytest.fixture
def run_dir(synthetic, tmp_path):
    """Two environments: all of eager under the first, compiled latency of w2 under the second."""
    made = synthetic(tmp_path)
    for case in ("w1", "w2"):
        made.add(case, "cpu", "eager", "float16", "drift", {"relative_error": 1e-3})
        made.add(case, "cpu", "eager", "float16", "latency", made.latency(1.5, "float16"))
        for fix in ("float16", "bfloat16"):
            made.add(case, "cpu", "compiled", fix, "latency", made.latency(1.5, fix))
    shas = []
    for name, commit in (("environment-old.json", "aaa+changes"), ("environment.json", "bbb")):
        text = json.dumps(environment(commit))
        (tmp_path / name).write_text(text, encoding="utf-8")
        shas.append(hashlib.sha256(text.encode()).hexdigest())
    for record in made.records:
        late = record["mode"] == "compiled" and record["case"] == "w2"
        record["environment"] = shas[late]
        record["started_at"] = f"2026-11-2{1 + late}T10:00:00+00:00"
        if record["measure"] == "latency":
            eager = record["mode"] == "eager"
            record["options"] = {"seed": 0, "processes": 5 if eager else 1, "budget_s": 5.0 if eager else 2.0}
    made.write()
    return tmp_path


def rewritten(run_dir, change):
    lines = [json.loads(line) for line in (run_dir / "records.jsonl").read_text().splitlines()]
    for record in lines:
        change(record)
    (run_dir / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines))
    return load_run(run_dir)


def test_each_environment_is_said_to_have_measured_what_it_did(run_dir):
    shared, old, new = environment_lines(load_run(run_dir))
    assert shared == "torch: 2.13.0; device: cpu"
    assert old == "commit: aaa with changes not committed: eager: drift and latency; compiled: latency of w1"
    assert new == "commit: bbb: compiled: latency of w2"
    assert environment_markdown(load_run(run_dir)).endswith("\n- commit: bbb: compiled: latency of `w2`")


def test_how_latency_was_measured(run_dir):
    sections = [section for section in load_run(run_dir).sections if section.case == "w1"]
    assert latency_notes(sections) == [
        "Latency, eager: 5 processes, 5 s for all fixes and processes together.",
        "Latency, compiled: 1 process, 2 s for all fixes together, its intervals without what differs between "
        "processes.",
    ]
    run = rewritten(run_dir, lambda record: record.update(options={}))
    assert latency_notes(run.sections) == []


def test_doubts_of_any_measure_are_kept_and_alike_ones_share_a_line(run_dir):
    said = {
        "float16": "loaded: 46 % of 5 blocks, -3.5 % in float16 (#2)",
        "bfloat16": "loaded: 9 % of 5 blocks, 1 % in float16 (#2)",
    }

    def change(record):
        record["data"]["doubts"] = []
        if record["case"] == "w1" and record["mode"] == "compiled":
            record["data"]["doubts"] = [said[record["fix"]]]
        if record["measure"] == "drift":
            record["data"]["doubts"] = ["no yardstick\n\nWhile executing 4711"]

    run = rewritten(run_dir, change)
    w1 = [section for section in run.sections if section.case == "w1"]
    assert doubt_notes(w1) == [
        "Doubt, eager drift of `float16`: no yardstick",
        "Doubt, compiled latency of every fix: loaded: 9 to 46 % of 5 blocks, -3.5 to 1 % in float16 (#2)",
    ]
    assert doubt_notes([section for section in run.sections if section.case == "w2"][1:]) == []
