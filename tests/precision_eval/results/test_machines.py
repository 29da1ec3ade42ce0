"""Several machines side by side: groups by machine, names, and what is refused."""

import json

import pytest
from made_machines import LAPTOP, SERVER, machine

from precision_eval.core.errors import RecordError
from precision_eval.core.table import Strong
from precision_eval.report.side_by_side import machine_tables
from precision_eval.results.machines import load_machines, side_by_side


def names_of(*folders):
    return [machine.name for machine in load_machines(folders)]


def test_a_column_for_each_machine(machines):
    """The order of float16 and float32 differs between the two: another fix is fastest on each."""
    places, times = machine_tables(load_machines(machines))
    assert [row[0] for row in places.rows] == ["AMD EPYC", "Intel Xeon"]
    assert times.columns == ("fix", "AMD EPYC", "Intel Xeon")
    rows = {row[0]: row[1:] for row in times.rows}
    assert rows["full_float32"] == ("1", "1")
    assert [cell.partition(" ")[0] for cell in rows["float16"]] == ["0.50", "3.00"]
    fastest = [next(fix for fix, cells in rows.items() if isinstance(cells[at], Strong)) for at in (0, 1)]
    assert fastest == ["float16", "kv_to_query"]


def test_a_group_knows_its_machine(machines):
    (groups,) = side_by_side(group for machine in load_machines(machines) for group in machine.groups)
    assert {name: group.machine for name, group in groups.items()} == {name: name for name in groups}
    assert groups["Intel Xeon"].title.endswith(" · Intel Xeon")


def test_what_was_measured_otherwise_is_a_table_of_its_own(tmp_path):
    folders = [
        machine(tmp_path / "a", LAPTOP),
        machine(tmp_path / "b", SERVER, cpu="Intel Xeon"),
        machine(tmp_path / "c", SERVER, cpu="Apple M3", memory="kept"),
    ]
    together = side_by_side(group for machine in load_machines(folders) for group in machine.groups)
    assert [set(groups) for groups in together] == [{"AMD EPYC", "Intel Xeon"}, {"Apple M3"}]


def test_machines_are_named_by_what_distinguishes_them(tmp_path):
    one = machine(tmp_path / "a", LAPTOP, cpu="Intel(R) Xeon(R) Processor 8481C")
    newer = machine(tmp_path / "b", LAPTOP, cpu="Intel(R) Xeon(R) Processor 8481C", torch="2.14.0")
    larger = machine(tmp_path / "c", LAPTOP, cpu="Intel(R) Xeon(R) Processor 8481C", cores=8)
    assert names_of(one) == ["Intel Xeon 8481C"]
    assert names_of(one, newer) == ["Intel Xeon 8481C, torch 2.13.0", "Intel Xeon 8481C, torch 2.14.0"]
    assert names_of(one, larger) == ["Intel Xeon 8481C, 2 cores", "Intel Xeon 8481C, 8 cores"]


def test_a_folder_with_records_of_two_machines_is_taken_apart(tmp_path):
    folder = machine(tmp_path / "a", LAPTOP)
    machine(folder, SERVER, cpu="Intel Xeon")
    assert names_of(folder) == ["AMD EPYC", "Intel Xeon"]
    assert [len(machine.groups) for machine in load_machines([folder])] == [1, 1]


def test_a_measurement_is_not_given_twice(tmp_path, machines):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in machines[0].iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    for path in (copy / "records.jsonl", machines[0] / "records.jsonl"):
        lines = [json.loads(line) | {"wall_s": 2.5} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RecordError, match=r"hold the same measurement of .*; give one of the two"):
        load_machines([machines[0], copy])


def test_report_of_two_runs(program, refused, machines, tmp_path):
    code, out, _ = program("report", *machines)
    assert code == 0
    assert "Intel Xeon" in out
    content = json.loads(program("report", *machines, "--json")[1])
    assert [one["name"] for one in content["machines"]] == ["AMD EPYC", "Intel Xeon"]
    assert [group["machine"] for group in content["groups"]] == ["AMD EPYC", "Intel Xeon"]
    refused("holds no records.jsonl", "report", machines[0], tmp_path / "nowhere")
