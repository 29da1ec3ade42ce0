"""The expectation table: its arithmetic on tables made by hand, a toy case, and the table that is committed."""

import json

import pytest
import torch
import typer
from torch import nn

from precision_eval.cases.base import BuiltCase, Case
from precision_eval.cases.systems import CASES
from precision_eval.cli.expect import expect
from precision_eval.core.errors import ParameterError, RecordError, UnsupportedError
from precision_eval.fixes.catalog import FIXES
from precision_eval.results.expectations import (
    MODES,
    Column,
    Expectation,
    ExpectationChange,
    changes,
    column_for,
    differences,
    load_table,
    observe,
    release,
    save_table,
    updated,
)

PASSED, RAISED = Expectation("passed"), Expectation("raised", "expected scalar type Float but found Half")


def table_by_hand():
    return {
        "2.6.0": Column({"toy": "d1"}, {"toy/as_shipped/eager": RAISED, "toy/autocast/eager": PASSED}),
        "2.10.0": Column({"toy": "d1"}, {"toy/as_shipped/eager": PASSED, "toy/autocast/eager": PASSED}),
    }


def test_the_table_survives_a_file(tmp_path):
    path = tmp_path / "table.json"
    save_table(table_by_hand(), path)
    assert load_table(path) == table_by_hand()
    assert list(load_table(path)) == ["2.6.0", "2.10.0"]  # by number, not by letter
    first = path.read_bytes()
    save_table(load_table(path), path)
    assert path.read_bytes() == first
    assert load_table(tmp_path / "missing.json") == {}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "is damaged"),
        ("[]", "does not hold what this suite writes"),
        ('{"schema_version": 9, "columns": {}}', "has schema 9, expected 1"),
        (
            '{"schema_version": 1, "columns": {"2.6.0": {"digests": {}, "cells": {"a/b/eager": ["fine", null]}}}}',
            "has the status 'fine'",
        ),
    ],
)
def test_a_damaged_table_is_named(tmp_path, content, match):
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(RecordError, match=match):
        load_table(path)


def test_the_nearest_lower_version_stands_in():
    table = table_by_hand()
    assert column_for(table, "2.10.0+cpu")[0] == "2.10.0"
    assert column_for(table, "2.9.1")[0] == "2.6.0"
    assert column_for(table, "2.15.0a0+git123")[0] == "2.10.0"
    with pytest.raises(ParameterError, match=r"no expectations for torch 2\.5\.1 or older.*expect --record"):
        column_for(table, "2.5.1")
    assert release("2.13.0+cpu") == "2.13.0"


def test_changes_between_versions_are_listed():
    assert changes(table_by_hand()) == [
        ExpectationChange("toy/as_shipped/eager", (("2.6.0", RAISED), ("2.10.0", PASSED)))
    ]
    assert changes({"2.6.0": table_by_hand()["2.6.0"]}) == []


def test_each_kind_of_difference_is_named():
    expected = Column({"toy": "d1"}, {"toy/a/eager": RAISED, "toy/b/eager": PASSED, "toy/c/eager": PASSED})
    found = Column({"toy": "d2"}, {"toy/a/eager": PASSED, "toy/b/eager": PASSED, "toy/d/eager": PASSED})
    notes = {one.cell: one.note for one in differences(expected, found, same_version=True)}
    assert notes == {
        "toy/a/eager": "another status, and the case has changed",
        "toy/d/eager": "not in the table",
        "toy/c/eager": "no longer there",
    }
    assert differences(expected, expected, same_version=True) == []


def test_messages_are_compared_within_a_version_only():
    other = Column({}, {"toy/a/eager": Expectation("raised", "another sentence")})
    expected = Column({}, {"toy/a/eager": RAISED})
    assert [one.note for one in differences(expected, other, same_version=True)] == ["another message"]
    assert differences(expected, other, same_version=False) == []


def test_what_was_not_run_is_not_missed():
    expected = Column({"toy": "d"}, {"toy/a/eager": PASSED, "toy/a/compiled-inductor": PASSED, "big/a/eager": PASSED})
    assert differences(expected, Column({"toy": "d"}, {"toy/a/eager": PASSED}), same_version=True) == []


def test_recording_replaces_what_was_run_and_keeps_the_rest():
    known = CASES[0].id
    old = Column(
        {known: "d", "gone": "d"},
        {
            f"{known}/a/eager": RAISED,
            f"{known}/b/eager": PASSED,
            f"{known}/a/compiled-inductor": PASSED,
            "gone/a/eager": PASSED,
        },
    )
    found = Column({known: "new"}, {f"{known}/a/eager": PASSED})
    table = updated({"2.13.0": old, "2.6.0": old}, "2.13.0+cpu", found)
    assert table["2.13.0"] == Column(
        {known: "new"}, {f"{known}/a/eager": PASSED, f"{known}/a/compiled-inductor": PASSED}
    )
    assert table["2.6.0"] is old


class Toy(nn.Module):
    """A half Linear that gets a float32 input; in bfloat16 it returns NaN."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4, bias=False).half()
        self.called = 0

    def forward(self, x):
        y = self.out(x)
        return y / 0 * 0 if self.out.weight.dtype is torch.bfloat16 else y

    def upstream(self):
        raise UnsupportedError("nothing to apply: the thread is open")


TOY = Case(
    id="toy", title="", explanation="", source="", sizes=("tiny",), default_sizes=("tiny",), measures=(), definition=(),
    make=lambda size, *, device, seed: BuiltCase(Toy().eval(), (torch.ones(2, 4),)),
)  # fmt: skip


@pytest.fixture(scope="module")
def toy():
    return observe(("eager", "compiled-aot_eager"), cases=[TOY])


@pytest.mark.parametrize("mode", ["eager", "compiled-aot_eager"])
def test_statuses_are_what_each_fix_comes_to(toy, mode):
    statuses = {key.split("/")[1]: one.status for key, one in toy.cells.items() if key.split("/")[2] == mode}
    expected = {fix.id: "passed" for fix in FIXES if mode.partition("-")[0] in fix.modes}
    expected |= {"as_shipped": "raised", "bfloat16": "non_finite", "upstream": "unsupported"}
    expected |= {"dynamo_fallback": "raised"} if mode != "eager" else {}
    assert statuses == expected


def test_a_raised_cell_holds_the_familys_sentence(toy):
    message = "expected m1 and m2 to have the same dtype, but got: float != c10::Half"
    assert toy.cells["toy/as_shipped/eager"] == Expectation("raised", message)
    assert toy.cells["toy/as_shipped/compiled-aot_eager"] == Expectation("raised", message)
    assert toy.digests == {"toy": TOY.digest}


def test_an_inductor_that_cannot_compile_at_all_is_no_result_of_a_fix(monkeypatch):
    def broken(function, *, backend):
        def call(*inputs):
            raise RuntimeError("C++ compile error\nfatal error: torch/csrc/inductor/cpp_prefix.h: No such file")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(UnsupportedError, match=r"inductor cannot compile .*C\+\+ compile error.*leave the mode"):
        observe(("compiled-inductor",), cases=[TOY])


def test_the_command_records_compares_and_ends_with_1_where_something_differs(tmp_path, capsys):
    path = tmp_path / "table.json"
    expect(case=["attention-decode"], table=path, record=True)
    expect(case=["attention-decode"], table=path)
    assert "as recorded" in capsys.readouterr().out
    content = json.loads(path.read_text())
    column = content["columns"][release(torch.__version__)]
    column["cells"]["attention-decode/as_shipped/eager"] = ["passed", None]  # planted
    path.write_text(json.dumps(content))
    with pytest.raises(typer.Exit) as end:
        expect(case=["attention-decode"], table=path)
    assert end.value.exit_code == 1
    out = "".join(capsys.readouterr().out.split())
    assert "1differ" in out
    assert "expect--record" in out


def test_the_committed_table_is_whole():
    table = load_table()
    missing = [w.id for w in CASES if "tiny" in w.sizes and w.id not in column_for(table, torch.__version__)[1].digests]
    assert missing == [], f"{missing} not recorded: precision-eval expect --record"
    for version, column in table.items():
        for key in column.cells:
            case, fix, mode = key.split("/")
            assert case in column.digests, (version, key)
            assert fix in {fix.id for fix in FIXES}, (version, key)
            assert mode in MODES, (version, key)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled-aot_eager", marks=pytest.mark.slow)])
def test_the_torch_at_hand_does_as_the_committed_table_says(mode):
    recorded, column = column_for(load_table(), torch.__version__)
    known = [w for w in CASES if w.id in column.digests]
    assert known
    found = observe((mode,), cases=known)
    same_version = recorded == release(torch.__version__)
    differing = differences(column, found, same_version=same_version)
    lines = "\n".join(f"{one.cell}: {one.note}: recorded {one.expected}, found {one.found}" for one in differing)
    assert not differing, f"{lines}\nif that is right: precision-eval expect --record"
