"""Records: round trip, strictness, torn tails, other schemas, a full disk, several writers."""

import errno
import fcntl
import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_eval.core.errors import RecordError
from precision_eval.core.figures import figures_of
from precision_eval.core.records import Record, RecordFile, latest

RECORD = Record(
    cell="voice/kv_to_query/eager@cpu:default#drift", case="voice", case_digest="d", fix="kv_to_query", role="fix",
    mode="eager", device="cpu", size="default", threads=1, measure="drift", status="passed", reason=None,
    data={"relative_error": 0.5, "text": "größer\n"}, options={"seed": 0}, wall_s=1.5,
    started_at="2026-01-01T00:00:00+00:00", environment="e",
)  # fmt: skip

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_round_trip(data):
    record = replace(RECORD, measure="of_somebody_else", data=data)
    line = record.to_json()
    assert "\n" not in line
    assert Record.from_json(line) == record


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}])
def test_strict(tmp_path, value):
    file = RecordFile(tmp_path / "records.jsonl")
    with pytest.raises(RecordError, match="is not strict JSON"):
        file.append([RECORD, replace(RECORD, data={"value": value})])
    assert file.read().records == ()


def test_append_and_read(tmp_path):
    file = RecordFile(tmp_path / "new" / "records.jsonl")
    assert file.read().records == ()
    file.append([])
    file.append([RECORD, replace(RECORD, cell="b")])
    file.append([replace(RECORD, wall_s=9.0)])
    records = file.read().records
    assert [record.cell for record in records] == [RECORD.cell, "b", RECORD.cell]
    assert latest(records)[RECORD.cell].wall_s == 9.0


@pytest.mark.parametrize(
    "tail",
    [
        b"\x00" * 700,
        b"\xff\xfe\x00\n\x80 rubbish \n\n\x00",
        '{"cell":"grö'.encode()[:-1],
        b"17",
        b"null\n",
        b"[" * 100_000,
        RECORD.to_json().encode()[:200] + b"\n" + b"\x00" * 50 + b"\n",
    ],
    ids=["zeros", "bytes with newlines", "cut character", "number", "noise_floor", "brackets", "half a line, ended"],
)
def test_whatever_a_crash_leaves_at_the_end_is_moved_away(tmp_path, tail):
    file = RecordFile(tmp_path / "records.jsonl")
    file.append([RECORD, replace(RECORD, cell="b")])
    whole = file.path.read_bytes()
    file.path.write_bytes(whole + tail)
    reading = file.read()
    assert ([record.cell for record in reading.records], reading.torn_bytes) == ([RECORD.cell, "b"], len(tail))
    file.append([replace(RECORD, cell="c")])
    assert file.path.read_bytes().startswith(whole)
    assert [record.cell for record in file.read().records] == [RECORD.cell, "b", "c"]
    assert (tmp_path / "records.jsonl.torn").read_bytes() == tail + b"\n"  # nothing is thrown away


@pytest.mark.parametrize("tail", [b"", b'{"torn', b"\x00" * 500, b"[" * 100])
@pytest.mark.parametrize("read_bytes", [1, 40, 333, 4096])
def test_a_long_file_is_read_from_its_end_alone_with_the_same_outcome(tmp_path, monkeypatch, tail, read_bytes):
    whole = RecordFile(tmp_path / "whole" / "records.jsonl")
    short = RecordFile(tmp_path / "short" / "records.jsonl")
    for file, limit in ((whole, 1 << 20), (short, read_bytes)):
        monkeypatch.setattr("precision_eval.core.files._TAIL_BYTES", limit)
        file.append([RECORD, replace(RECORD, cell="b")])
        file.path.write_bytes(file.path.read_bytes() + tail)
        file.append([replace(RECORD, cell="c")])
    assert short.path.read_bytes() == whole.path.read_bytes()
    assert [record.cell for record in short.read().records] == [RECORD.cell, "b", "c"]


@settings(max_examples=40)
@given(st.binary(max_size=60))
def test_any_tail_keeps_every_record_before_it(tmp_path_factory, tail):
    file = RecordFile(tmp_path_factory.mktemp("tail") / "records.jsonl")
    file.append([RECORD])
    with file.path.open("ab") as stream:
        stream.write(tail)
    assert file.read().records == (RECORD,)
    file.append([RECORD])
    assert file.read().records == (RECORD, RECORD)


def test_whole_last_line_without_newline_is_kept(tmp_path):
    file = RecordFile(tmp_path / "records.jsonl")
    file.path.write_text(RECORD.to_json())
    assert file.read().records == (RECORD,)
    file.append([RECORD])
    assert file.read().records == (RECORD, RECORD)


def test_a_line_that_is_no_record_is_named_and_the_rest_is_read(tmp_path):
    file = RecordFile(tmp_path / "records.jsonl")
    whole = RECORD.to_json()
    wrong = whole.replace('"relative_error":0.5', '"relative_error":"much"')
    file.path.write_text("\n".join([whole, "{broken", wrong, "[1]", whole]) + "\n")
    reading = file.read()
    assert reading.records == (RECORD, RECORD)
    assert [re.search(r"line \d", fault)[0] for fault in reading.faults] == ["line 2", "line 3", "line 4"]
    assert "record.data.relative_error is 'much'; expected a number" in reading.faults[1]
    file.path.write_bytes(b"\xff\xfe\n" + b'{"cell":1}\n')
    with pytest.raises(RecordError, match="line 1 is damaged"):
        file.read()


def test_fields_of_a_later_version_are_kept():
    line = {**json.loads(RECORD.to_json()), "novel": [1], "data": {"relative_error": 0.5, "also": {"x": None}}}
    assert json.loads(Record.from_json(json.dumps(line)).to_json()) == line


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"ratio": 1.0, "baseline": "b", "ratio_low": 1.5}, "fall from one to the next"),
        ({"ratio": 1.0, "baseline": "b", "block_median_s": [1.0], "baseline_block_median_s": []}, "differ in length"),
        ({"ratio": 1.0}, "lacks baseline"),
        ({"ratio": 0.0, "baseline": "b"}, "data.ratio is '0.0'; expected a number >= 1e-12"),
        ({"ratio": 1.0, "baseline": "b", "confidence": 0.0}, "data.confidence is '0.0'; expected a number"),
        ({"ratio": 1.0, "baseline": "b", "process_ratios": [1.0, None]}, r"process_ratios\[1\] is 'None'; expected a"),
        ({"ratio": 1.0, "baseline": "b", "doubts": "text"}, "doubts is 'text'; expected a list"),
    ],
)
def test_figures_of_a_measure_fit_its_shape(value, expected):
    with pytest.raises(RecordError, match=expected):
        figures_of("latency", value)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("[1]", "holds a JSON list"),
        ('{"schema_version":2}', "record lacks cell"),
        ('{"schema_version":1}', "schema version 1, this precision-eval reads 2; use the version that wrote it"),
        (RECORD.to_json().replace('"passed"', '"great"'), "status is 'great'; expected one of passed, raised"),
        (RECORD.to_json().replace('"role":"fix"', '"role":"boss"'), "role is 'boss'"),
        (RECORD.to_json().replace("0.5", "NaN"), "NaN is not strict JSON"),
        (RECORD.to_json().replace("0.5", "1e400"), "holds the number inf"),
        (RECORD.to_json().replace("0.5", "1" + "0" * 400), "holds the number 1000"),
        (RECORD.to_json().replace("0.5", "true"), "relative_error is 'True'; expected a number"),
        (RECORD.to_json().replace("0.5", "[" * 60 + "]" * 60), "nested more than 40 deep"),
        (
            RECORD.to_json().replace('"case":"voice"', r'"case":"\u001b[2J"'),
            r"case is '\\x1b\[2J'; expected a text of printable characters",
        ),
        (RECORD.to_json().replace('"threads":1', '"threads":0'), "threads is '0'; expected a whole number >= 1"),
    ],
)
def test_wrong_lines(line, match):
    with pytest.raises(RecordError, match=match):
        Record.from_json(line)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from precision_eval.core.errors import RecordError
from precision_eval.core.records import Record, RecordFile
file = RecordFile(Path(sys.argv[1]))
(record,) = file.read().records
size = file.path.stat().st_size
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))  # part of the next line fits
try:
    file.append([record])
except RecordError as error:
    print(error)
assert file.path.stat().st_size == size, "the half-written line was left behind"
"""


def test_full_disk_loses_nothing(tmp_path):
    file = RecordFile(tmp_path / "records.jsonl")
    file.append([RECORD])
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(file.path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "what was already recorded is intact, free space and run the same command again" in done.stdout
    assert file.read().records == (RECORD,)


HOLDER = """
import sys, time
from pathlib import Path
from precision_eval.core.records import RecordFile
with RecordFile(Path(sys.argv[1])).claimed():
    print("held", flush=True)
    time.sleep(100)
"""


def test_one_run_per_folder_until_it_ends_however_it_ends(tmp_path):
    file = RecordFile(tmp_path / "new" / "records.jsonl")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(file.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        named = rf" \(process {holder.pid}\)" if Path("/proc/locks").exists() else ""
        with pytest.raises(RecordError, match=rf"another run is under way in .*new{named}; wait"), file.claimed():
            pass
        file.append([RECORD])  # a report or a single append is not kept out
    finally:
        holder.kill()
        holder.communicate()
    with file.claimed():
        assert file.read().records == (RECORD,)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot use"), RecordFile(tmp_path / "file" / "records.jsonl").claimed():
        pass


def test_a_folder_without_locks_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    file = RecordFile(tmp_path / "records.jsonl")
    file.append([RECORD])
    of_files, flock = [True], fcntl.flock

    def refuse(descriptor, operation):
        if not of_files[0] or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOLCK, "No locks available")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    with file.claimed():  # as NFS has it, which locks files alone
        file.append([RECORD])
    of_files[0] = False
    for use in (file.claimed().__enter__, lambda: file.append([RECORD])):
        with pytest.raises(RecordError, match=r"cannot be locked \(No locks available\).*is intact, give a folder of"):
            use()
    assert len(file.read().records) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
from pathlib import Path
from precision_eval.core.records import Record, RecordFile
record = Record.from_json(sys.argv[3])
for _ in range(50):
    data = {"relative_error": 0.5, "text": "x" * 3000}
    RecordFile(Path(sys.argv[1])).append([replace(record, cell=sys.argv[2], data=data)])
"""


def test_writers_do_not_mix(tmp_path):
    path = tmp_path / "records.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, RECORD.to_json()]) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    cells = [record.cell for record in RecordFile(path).read().records]
    assert sorted(cells) == ["a"] * 50 + ["b"] * 50
