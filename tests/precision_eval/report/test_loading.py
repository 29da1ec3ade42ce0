"""load: records by id, rows as in results.csv, data frames where pandas is, reprs for notebooks, choosing."""

import csv
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import made_runs as made
import pytest

from precision_eval.core.errors import ParameterError, RecordError, UnknownNameError
from precision_eval.core.records import Record
from precision_eval.report.loading import FixComparison, LoadedRecord, MissingPackageError, choose, load
from precision_eval.results.reading import Run

LATENCY = "voice/kv_to_query/eager@cpu:default#latency"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made_up = made.Synthetic(tmp_path_factory.mktemp("run"), minutes=1.0)
    made_up.attention("attention-decode", "dia", "eager")
    for mode in ("eager", "compiled"):
        made_up.voice(mode)
    return made_up.write()


@pytest.fixture(scope="module")
def run(folder):
    return load(folder)


def cells_of(page):
    return list(ElementTree.fromstring(f"<body>{page}</body>").itertext())


def test_records_by_id(run):
    record = run.records[LATENCY]
    assert isinstance(record, Record)
    assert isinstance(record, LoadedRecord)
    assert record.data["baseline"] == "full_float32"
    assert record.scalars["ratio"] == record.data["ratio"]
    assert "block_median_s" not in record.scalars
    assert repr(record).startswith(f"<{LATENCY}: passed; ")
    assert len(repr(record)) < 200


def test_rows_are_those_of_results_csv(run, folder, tmp_path):
    from precision_eval.core.table import to_csv
    from precision_eval.report.tables import results_table
    from precision_eval.results.reading import load_run

    path = tmp_path / "results.csv"
    path.write_text(to_csv(results_table(load_run(folder))), encoding="utf-8", newline="")
    with path.open(encoding="utf-8", newline="") as file:
        expected = {(row["case"], row["size"], row["mode"], row["fix"]): row for row in csv.DictReader(file)}
    rows = run.to_dicts()
    assert len(rows) == len(expected)
    for row in rows:
        other = expected[row["case"], row["size"], row["mode"], row["fix"]]
        assert set(row) == set(other)
        assert {key: "" if value is None else str(value) for key, value in row.items()} == other


def test_one_row_per_record(run):
    rows = run.to_dicts(kind="records")
    assert len(rows) == len(run.records)
    assert all(rows[0].keys() == row.keys() for row in rows)
    (latency,) = (row for row in rows if row["cell"] == LATENCY)
    assert latency["ratio"] == run.records[LATENCY].data["ratio"]
    with pytest.raises(UnknownNameError, match="unknown kind of rows 'fix'; did you mean fixes"):
        run.to_dicts(kind="fix")


def test_a_data_frame_where_pandas_is(run, monkeypatch):
    made = []
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda rows: made.append(rows) or "a frame"
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert run.to_dataframe() == "a frame"
    assert made == [run.to_dicts()]


def test_without_pandas_the_remedy_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"pip install pandas, or use to_dicts\(\)") as raised:
        run.to_dataframe()
    assert isinstance(raised.value, ImportError)


def test_everything_shows_itself(run, folder):
    assert repr(run).startswith(f"<run {folder}: {len(run.records)} records>\n")
    assert "voice · default · eager · cpu, 1 thread: 6 fixes run, 1 do not run" in repr(run)
    (voice,) = (one for one in run.comparisons if one.group.case == "voice" and one.group.mode == "eager")
    assert isinstance(voice, FixComparison)
    lines = repr(voice).splitlines()
    assert lines[0] == "voice · default · eager · cpu, 1 thread"
    assert lines[1].split() == ["fix", "status", "time", "/", "full_float32", "drift", "memory"]
    ratio = run.records[LATENCY].data["ratio"]
    assert f"{ratio:.3f} [" in next(line for line in lines if line.startswith("kv_to_query"))
    assert f"{ratio:.3f} [" in " ".join(cells_of(voice._repr_html_()))
    assert str(folder) in cells_of(run._repr_html_())
    assert str(run.records[LATENCY].data["ratio"]) in cells_of(run.records[LATENCY]._repr_html_())


def test_one_comparison_by_its_place(run):
    voice = run.comparison("voice", mode="eager")
    assert (voice.group.case, voice.group.mode) == ("voice", "eager")
    assert run.comparison("attention-dec*", size="dia", mode="eager").group.size == "dia"
    with pytest.raises(ParameterError, match=r"2 comparisons are of voice .* compiled · cpu, 1 thread; voice"):
        run.comparison("voice")
    with pytest.raises(ParameterError, match=r"no comparison is of vioce .* one of: .*voice · default · eager"):
        run.comparison("vioce")


def test_a_choice_shows_itself_in_short(run):
    found = run.choose(case="voice", mode="eager", policy="quality")
    for choice in (found[0], run.comparison("voice", mode="eager").choose(policy="quality")):
        first, *rest = repr(choice).splitlines()
        assert first == f"voice · default · eager · cpu, 1 thread, quality: {choice.headline}"
        assert choice.headline.startswith("Take full_float32: smallest drift")
        assert rest == []
        assert len(repr(choice)) < 1500  # not every field of every fix
        assert choice.to_dict() == found.answer.choices[0].to_dict()
        assert choice.headline in cells_of(choice._repr_html_())
    assert repr(found).startswith(repr(found[0]))


def test_no_control_character_of_a_record_is_shown(run):
    from dataclasses import replace

    group = next(one for one in run.run.groups if one.failing)
    failing = {row.fix for row in group.failing}
    hostile = {id(row): replace(row, reason="\u202eexe.\x00\ud800") for row in group.rows if row.fix in failing}
    shown = FixComparison(group=replace(group, rows=tuple(hostile.get(id(row), row) for row in group.rows)))
    record = replace(run.records[LATENCY], reason="\u202eexe.\x00<script>", status="raised", data=None)
    assert "<script>" not in record._repr_html_()
    for text in (repr(shown), shown._repr_html_(), repr(record), record._repr_html_()):
        assert "exe." in text
        assert not {"\u202e", "\x00", "\ud800"} & set(text)


def test_choosing_in_python(run, folder):
    found = run.choose(case="voice", mode="eager", policy="quality")
    assert (len(found), found.fix, found[0].outcome) == (1, "full_float32", "one")
    assert "full_float32" in cells_of(found._repr_html_())
    limits = {"mode": "eager", "max_drift": 2e-3}  # of the two within 17 MB, bfloat16 is beyond it
    assert choose(folder, case="voice", max_memory="17MB", **limits).fix == "float16"
    assert choose(run, case="voice", max_memory=17_000_000, **limits).fix == "float16"
    assert choose(run, case="voice", mode="eager", max_drift=1e-9).fix is None


def test_unlike_answers_are_no_one_fix(run):
    found = choose(run, max_memory="40MB", policy="quality")  # float32 fits in for the voice, not for attention
    with pytest.raises(ParameterError, match="no one fix is the answer everywhere"):
        _ = found.fix


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"does not exist; measure first: precision-eval run --out"):
        load(tmp_path)
    (tmp_path / "records.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(RecordError, match="holds no record"):
        load(tmp_path)


@pytest.fixture
def copied(tmp_path, folder):
    (tmp_path / "records.jsonl").write_bytes((folder / "records.jsonl").read_bytes())
    return tmp_path


def test_a_torn_environment_is_named(copied):
    assert load(copied).environment == {}
    (copied / "environment.json").write_text('{"torch": ', encoding="utf-8")
    with pytest.raises(
        RecordError, match=r"environment\.json is damaged.*; remove it, or write it again: precision-eval"
    ):
        load(copied)


def test_what_cannot_be_compared_is_told_and_blocks_nothing_else(copied, run):
    path = copied / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    old = next(one for one in lines if one["cell"] == LATENCY)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in (*lines, old | {"case_digest": "<old>"})), "utf-8")
    mixed = load(copied)
    (voice,) = (one for one in mixed.comparisons if one.group.fault)
    assert "voice · default · eager · cpu, 1 thread holds unlike case digests" in repr(mixed)
    assert repr(voice) == voice.group.fault
    assert "<old>" not in mixed._repr_html_()
    assert len(mixed.to_dicts()) == len(run.to_dicts())
    assert mixed.choose(case="attention-decode", mode="eager", policy="quality").fix
    with pytest.raises(RecordError, match="unlike case digests"):
        voice.choose()


def test_lines_that_are_refused_for_one_reason_are_told_once():
    faults = [f"records.jsonl line {number} has schema version 1; use what wrote it" for number in range(1, 9)]
    run = Run(directory=Path(), records=(), environment={}, faults=(*faults, "records.jsonl line 9: it was edited"))
    assert run.damage == (f"{faults[0]}; the same of 7 more lines", "records.jsonl line 9: it was edited")
