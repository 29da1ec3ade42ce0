"""Runs of several machines side by side: what is compared, what is kept apart, what is refused, what is concluded."""

import json
import math
import shutil
from dataclasses import replace

import pytest
from made_machines import LAPTOP, SERVER, machine

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.records import RecordFile
from precision_eval.report.machines import comparison_tables, conclusion_lines, machines_table, to_dict, write_machines
from precision_eval.results.machines import merged
from precision_eval.results.reading import load_run


def orders(runs):
    return {
        (pair.axis, pair.first, pair.second): pair.verdict
        for comparison in runs.comparisons
        for pair in comparison.orders
    }


def test_orders_hold_or_turn_over_by_each_machines_own_ratios(machines):
    runs = merged(machines)
    (comparison,) = runs.comparisons
    assert [own.name for own in runs.machines] == ["AMD EPYC", "Intel Xeon"]
    assert {name: comparison.fastest(name) for name in comparison.groups} == {
        "AMD EPYC": ("float16",),
        "Intel Xeon": ("kv_to_query",),
    }
    assert orders(runs) == {
        ("time", "kv_to_query", "full_float32"): "holds",
        ("time", "kv_to_query", "float16"): "turns over",
        ("time", "full_float32", "float16"): "turns over",
        ("drift", "kv_to_query", "full_float32"): "not called everywhere",
        ("drift", "kv_to_query", "float16"): "holds",
        ("drift", "full_float32", "float16"): "holds",
    }
    turned = next(pair for pair in comparison.orders if pair.second == "float16" and pair.first == "kv_to_query")
    assert [round(ratio, 3) for ratio in turned.ratios.values()] == [1.6, 0.3]  # 0.8 / 0.5 and 0.9 / 3
    assert list(comparison.depends_on_machine) == ["float16"]
    text = "\n".join(conclusion_lines(comparison))
    assert "Depends on the machine: time of float16 / full_float32: 0.50 on AMD EPYC; 3.00 on " in text
    assert "On every machine that runs it, faster than full_float32: kv_to_query." in text
    assert "time of kv_to_query / float16: 1.60 on AMD EPYC; 0.30 on Intel Xeon" in text


def test_it_is_a_view_of_the_runs_whatever_their_order(machines):
    runs = merged(machines)
    for own, folder in zip(runs.machines, machines, strict=True):
        assert own.groups == load_run(folder).groups
    assert orders(merged(machines[::-1])) == orders(runs)


def test_the_half_formats_of_a_processor_stand_beside_it_and_make_no_other_machine(tmp_path):
    told = {"float16": ["avx512_fp16"], "bfloat16": []}
    folder = machine(machine(tmp_path / "a", LAPTOP), LAPTOP, half_formats=told)
    runs = merged([folder, machine(tmp_path / "b", SERVER, cpu="Intel Xeon")])
    table = machines_table(runs)
    column = table.columns.index("half formats")
    assert [row[column] for row in table.rows] == ["bfloat16: none; float16: avx512_fp16", "–"]


def test_what_is_within_noise_turns_nothing_over(tmp_path):
    quiet = machine(tmp_path / "a", {"full_float32": 1.0, "float16": 0.97}, spread=60.0)
    noisy = machine(tmp_path / "b", {"full_float32": 1.0, "float16": 1.03}, spread=60.0, cores=4)
    assert orders(merged([quiet, noisy]))["time", "full_float32", "float16"] == "not called everywhere"
    sure = machine(tmp_path / "c", {"full_float32": 1.0, "float16": 0.97}, cores=8)
    surely = machine(tmp_path / "d", {"full_float32": 1.0, "float16": 1.03}, cores=16)
    assert orders(merged([sure, surely]))["time", "full_float32", "float16"] == "turns over"


def test_two_runs_of_one_machine_are_two_rows(tmp_path):
    runs = merged([machine(tmp_path / "a", LAPTOP), machine(tmp_path / "b", SERVER, started_at="2026-01-02")])
    assert [own.name for own in runs.machines] == [f"AMD EPYC, {tmp_path / name}" for name in "ab"]


def test_a_folder_of_two_machines_is_taken_apart(tmp_path):
    folder = machine(tmp_path / "a", LAPTOP)
    machine(folder, SERVER, torch="2.6.0")
    runs = merged([folder])
    assert [own.name for own in runs.machines] == ["AMD EPYC, torch 2.13.0", "AMD EPYC, torch 2.6.0"]
    assert orders(runs)["time", "full_float32", "float16"] == "turns over"


@pytest.mark.parametrize(
    ("unlike", "why"),
    [({"case_digest": "other"}, "definition other"), ({"memory": "kept"}, "memory kept"), ({"size": "big"}, "alone")],
)
def test_unlike_groups_are_kept_apart_by_name(machines, tmp_path, unlike, why):
    third = machine(tmp_path / "c", SERVER, cpu="ARM", **unlike)
    runs = merged([*machines, third])
    assert [sorted(comparison.groups) for comparison in runs.comparisons] == [[own.name for own in runs.machines[:2]]]
    (line,) = runs.apart
    assert "ARM" in line
    assert why in line


def edited(folder, change):
    path = folder / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_what_was_tampered_with_is_refused(machines):
    first, second = machines
    (first / "environment.json").write_text((first / "environment.json").read_text().replace("EPYC", "Xeon"))
    with pytest.raises(RecordError, match="whose file is not there"):
        merged(machines)
    edited(second, lambda lines: lines[4]["data"].update(ratio=0.4, ratio_low=0.39, ratio_high=0.41))
    with pytest.raises(RecordError, match=r"is 0\.4, beyond all its samples"):
        merged([second, first])
    edited(second, lambda lines: lines[4].update(fix="bfloat16"))
    with pytest.raises(RecordError, match=r"float16/eager@cpu:dia#latency holds .*bfloat16"):
        merged([second, first])


@pytest.mark.parametrize(
    ("ratio", "spread", "verdict", "marked"), [(0.5, 1.0, "undecided", False), (0.99, 60.0, "faster", True)]
)
def test_what_is_marked_as_not_told_apart_is_in_no_sentence(tmp_path, ratio, spread, verdict, marked):
    """Whatever a record's own verdict, which has another error rate: table and sentences go by one rule."""

    def judge(lines):
        for line in lines:
            line["data"].update({"verdict": verdict} if line["measure"] == "latency" else {})

    folders = [machine(tmp_path / cpu, {"full_float32": 1.0, "float16": ratio}, cpu=cpu, spread=spread) for cpu in "ab"]
    for folder in folders:
        edited(folder, judge)
    (comparison,) = merged(folders).comparisons
    times = next(comparison_tables(comparison))
    column = times.columns.index("float16")
    assert [row[column].startswith("≈") for row in times.rows] == [marked, marked]
    text = "\n".join(conclusion_lines(comparison))
    assert ("faster than full_float32: float16" in text) is not marked


def test_one_machine_or_one_measurement_twice_is_refused(machines, tmp_path):
    with pytest.raises(ParameterError, match="records of one machine"):
        merged(machines[:1])
    for again in (machines[0], shutil.copytree(machines[0], tmp_path / "copy")):
        with pytest.raises(RecordError, match=r"hold the same measurement of .*; give one of the two"):
            merged([machines[0], again])


def test_the_files_hold_no_absolute_time_and_write_strange_names_out(machines, tmp_path):
    strange = machine(tmp_path / "c", SERVER, cpu="<script>\x1b[31m|")
    runs = merged([*machines, strange])
    (markdown, html, data) = write_machines(runs, tmp_path / "out")
    assert "median_s" not in data.read_text()
    assert json.loads(data.read_text()) == json.loads(json.dumps(to_dict(runs)))
    assert "**0.50 [0.50, 0.50]**" in markdown.read_text()
    assert "<script>" not in html.read_text()
    assert "\x1b" not in html.read_text() + markdown.read_text()


def test_a_name_leaves_out_what_names_nothing(tmp_path):
    runs = merged([machine(tmp_path / name, LAPTOP, cpu=f"{name}(R) CPU Xeon(TM) Processor 8481C") for name in "ab"])
    assert [own.name for own in runs.machines] == ["a Xeon 8481C", "b Xeon 8481C"]


def test_a_fix_that_cures_on_one_machine_only_is_named(machines):
    records = RecordFile(machines[1] / "records.jsonl")
    last = records.read().records[-1]
    failed = replace(last, status="raised", reason="no such kernel", data=None)
    records.append([failed, replace(failed, cell=failed.cell.replace("#drift", "#latency"), measure="latency")])
    runs = merged(machines)
    assert runs.comparisons[0].cured_on_some == {"float16": {"AMD EPYC": "passed", "Intel Xeon": "raised"}}
    assert ("time", "full_float32", "float16") not in orders(runs)


def test_what_differs_in_how_a_fix_ran_stands_beside_what_turns_over(tmp_path):
    runs = []
    for name, ratios, faults in (("a", LAPTOP, 2.0), ("b", SERVER, 9000.0)):
        folder = machine(tmp_path / name, ratios, cpu=name)
        edited(
            folder,
            lambda lines, faults=faults: [
                line["data"].update(page_faults_per_call=faults)
                for line in lines
                if line["measure"] == "latency" and line["fix"] == "float16"
            ],
        )
        runs.append(folder)
    (comparison,) = merged(runs).comparisons
    text = "\n".join(conclusion_lines(comparison))
    assert "Differs: page faults per call of float16: 2 on a; 9000 on b." in text
    assert math.isclose(comparison.row("a", "float16").time.value, 0.5, rel_tol=1e-3)
