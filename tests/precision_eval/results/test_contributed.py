"""A run as one file: what it holds is what was measured, and anything else is refused in one line."""

import hashlib
import json

import pytest
from made_machines import LAPTOP, machine, machines

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.report.machines import to_dict
from precision_eval.results import contributed
from precision_eval.results.contributed import pack
from precision_eval.results.machines import merged

__all__ = ["machines"]


@pytest.fixture
def packed(machines, tmp_path):
    file = tmp_path / "laptop.jsonl"
    pack(machines[0], file)
    return file


def without_places(runs):
    content = to_dict(runs)
    for own in content["machines"]:
        del own["run"]
    return content


def test_a_packed_run_is_merged_as_its_folder_is(machines, packed):
    assert without_places(merged([packed, machines[1]])) == without_places(merged(machines))
    assert [own.run for own in merged([packed, machines[1]]).machines] == [packed, machines[1]]
    with pytest.raises(RecordError, match="hold the same measurement"):
        merged([packed, machines[0]])


def test_of_a_cell_measured_twice_the_last_is_sent(tmp_path):
    folder = machine(machine(tmp_path / "a", LAPTOP), {"full_float32": 1.0, "kv_to_query": 0.7, "float16": 0.4})
    pack(folder, tmp_path / "a.jsonl")
    head, *lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert (json.loads(head)["environments"], json.loads(head)["records"], len(lines)) == (1, 6, 7)
    assert "0.8" not in lines[3]


def resealed(file, change):
    """Change the lines after the first, and make the first agree, as who forges a file would."""
    head, *lines = file.read_text().splitlines()
    content = [json.loads(line) for line in lines]
    change(content)
    body = "".join(f"{json.dumps(line)}\n" for line in content).encode()
    digest = {"sha256": hashlib.sha256(body).hexdigest(), "records": len(content) - 1}
    file.write_bytes(json.dumps(json.loads(head) | digest).encode() + b"\n" + body)


FORGERIES = {
    "environment": (lambda lines: lines[0]["cpu"].update(model="Intel Xeon"), "the environment of .* is not in it"),
    "half a character": (lambda lines: lines[0]["cpu"].update(model="\ud800"), "line 2 holds no text"),
    "no environment": (lambda lines: lines[0].update(cpu="a lot"), "line 2 describes no environment"),
    "schema": (lambda lines: lines[1].update(schema_version=9), "has schema version 9"),
    "field": (lambda lines: lines[1].pop("fix"), "lacks fix"),
    "cell": (lambda lines: lines[5].update(fix="bfloat16"), "holds attention-decode/bfloat16"),
    "ratio": (
        lambda lines: lines[5]["data"].update(ratio=0.3, ratio_low=0.2, ratio_high=0.4),
        "beyond all its samples",
    ),
    "path": (lambda lines: lines[1].update(environment="../../../etc/passwd"), "the environment of .* is not in it"),
}


@pytest.mark.parametrize(("change", "why"), FORGERIES.values(), ids=FORGERIES)
def test_what_was_forged_is_refused(machines, packed, change, why):
    resealed(packed, change)
    with pytest.raises(RecordError, match=why) as refused:
        merged([packed, machines[1]])
    assert "\n" not in str(refused.value)
    assert str(packed) in str(refused.value)


def test_damage_is_refused(machines, packed):
    content = packed.read_bytes()
    for damaged, why in (
        (content.replace(b"0.8", b"0.7", 1), "its SHA-256 differs"),
        (content[:-9], "its SHA-256 differs"),
        (b"PK\x03\x04 a zip", "is no run as one file"),
        (b"", "is no run as one file"),
        (content.replace(b'run":1', b'run":2', 1), "is of version '2'"),
        (content.replace(b'"environments":1', b'"environments":"1"', 1), "does not say how many"),
        (content.replace(b'"environments":1', b'"environments":9', 1), "announces 15 lines and has 7"),
    ):
        assert damaged != content
        packed.write_bytes(damaged)
        with pytest.raises(RecordError, match=why):
            merged([packed, machines[1]])


def test_size_is_limited_both_ways(machines, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(contributed, "LARGEST_BYTES", 1000)
    with pytest.raises(RecordError, match="has 1000 at most"):
        merged([packed, machines[1]])
    with pytest.raises(ParameterError, match="more than 1000 are not taken"):
        pack(machines[0], tmp_path / "again.jsonl")


def test_nothing_is_written_beside_it_or_over_it(machines, packed, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    merged([packed, machines[1]])
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ParameterError, match="is there already"):
        pack(machines[0], packed)
    (machines[0] / "environment.json").unlink()
    with pytest.raises(RecordError, match="lacks the file of environment"):
        pack(machines[0], tmp_path / "new.jsonl")
