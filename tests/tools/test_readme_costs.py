"""README blocks of what sweeps and asv cost."""

import json
from pathlib import Path

import pytest

from precision_eval.core.errors import RecordError
from tools.readme.costs import asv_cost_markdown, sweep_cost_markdown

ROOT = Path(__file__).resolve().parents[2]
NOTE = {"version": "2.8.0", "torch_version": "2.8.0+cu1", "build": "slim", "seconds": 12.4, "bytes": 2_310_000_000}
ENVIRONMENT = {
    "cpu": {"model": None, "usable_cores": 2},
    "package": {"git_commit": None},
    "platform": {"python": "3.11.7"},
    "torch": {"version": "2.13.0+cpu"},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vm").mkdir()
    content = {
        "result_columns": ["result", "params", "version", "started_at", "duration"],
        "results": {"eager.a.track_status": [[1], [], "1", 0, 100.0], "eager.b.track_status": [[1], [], "1", 0]},
        "durations": {"<setup_cache generator:100>": 20.0},
    }
    (tmp_path / "vm" / "cccccccc-torch-py3.11-torch2.8.0.json").write_text(json.dumps(content), encoding="utf-8")
    old = {**NOTE, "seconds": 99.0, "bytes": 1}  # made anew later: the last note counts
    others = [{**NOTE, "version": "2.9.1"}]  # installed, never measured
    lines = [json.dumps(one) + "\n" for one in (old, *others, NOTE)]
    (tmp_path / "environments.jsonl").write_text("".join(lines), encoding="utf-8")
    return tmp_path


def test_what_notes_and_results_say(folder):
    assert sweep_cost_markdown(folder).splitlines() == [
        "| torch | environment made in | on disk | benchmarks | their time |",
        "|---|---|---|---|---|",
        "| 2.8.0+cu1, slim | 12 s | 2.31 GB | 2 | 2.0 min |",
        "",
        "Their time is asv's count; its start, its list of benchmarks and the project's install come on top.",
    ]


def test_what_a_sweep_writes_down_is_added(folder):
    lines = [{"version": "2.8.0", "seconds": 60.0, "shared_bytes": 1}, {"version": "2.8.0", "seconds": 120.0}]
    lines[1]["shared_bytes"] = 1_500_000_000
    (folder / "costs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    assert sweep_cost_markdown(folder).splitlines()[2] == (
        "| 2.8.0+cu1, slim | 12 s | 2.31 GB | 1.50 GB | 2 | 2.0 min | 3.0 min |"
    )


@pytest.mark.parametrize("line", ["{", "3", '{"version": "2.8.0"}'])
def test_a_damaged_line_is_named(folder, line):
    path = folder / "environments.jsonl"
    path.write_text(path.read_text() + line + "\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"environments\.jsonl line 4 (is no|lacks)"):
        sweep_cost_markdown(folder)


def test_a_folder_without_notes_has_no_table(tmp_path):
    assert sweep_cost_markdown(tmp_path) == ""


def test_the_committed_sweep_says_what_it_cost():
    folder = ROOT / "results" / "torch-versions"
    notes = [json.loads(line) for line in (folder / "environments.jsonl").read_text().splitlines()]
    text = sweep_cost_markdown(folder)
    for note in notes:
        assert f"| {note['torch_version']}, {note['build']} | {note['seconds']:.0f} s |" in text


def run(seconds, target_s):
    return {
        "command": "asv run --quick",
        "target_s": target_s,
        "seconds": seconds,
        "benchmarks": 7,
        "environment_bytes": 1_250_000_000,
        "environment": ENVIRONMENT,
    }


def test_what_asv_takes_beside_its_target(tmp_path):
    path = tmp_path / "asv-cost.json"
    path.write_text(json.dumps({"runs": [run(120.0, 120.0), run(121.0, 120.0), run(9.0, None)]}), encoding="utf-8")
    rows = asv_cost_markdown(path).splitlines()[2:5]
    assert [row.split(" | ")[1:] for row in rows] == [
        ["≤ 2 min", "2.0 min, 7 benchmarks, 1.25 GB", "yes |"],
        ["≤ 2 min", "2.0 min, 7 benchmarks, 1.25 GB", "**no** |"],
        ["–", "0.1 min, 7 benchmarks, 1.25 GB", "– |"],
    ]
    assert asv_cost_markdown(path).count("unnamed processor, 2 usable cores") == 1
    path.write_text('{"runs": [{"command": "asv run"}]}', encoding="utf-8")
    with pytest.raises(RecordError, match=r"is not as `python -m benchmarks\.cost"):
        asv_cost_markdown(path)
    assert asv_cost_markdown(tmp_path / "none.json").startswith("Not measured: there is no `none.json` yet.")
