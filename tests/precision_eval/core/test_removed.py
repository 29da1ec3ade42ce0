import re

import pytest

import precision_eval
from precision_eval.cases.systems import CASES
from precision_eval.cli.commands import COMMANDS, command_named
from precision_eval.core import removed
from precision_eval.core.errors import UnknownNameError, unknown_name
from precision_eval.fixes.catalog import ALL_FIXES
from precision_eval.measure.registry import MEASURES


def test_nothing_that_exists_is_called_removed():
    assert not removed.COMMANDS.keys() & COMMANDS.keys()
    assert not removed.PUBLIC_NAMES.keys() & {*precision_eval.__all__}
    assert not removed.CASES.keys() & {case.id for case in CASES}
    assert not removed.FIXES.keys() & {fix.id for fix in ALL_FIXES}
    assert not removed.MEASURES.keys() & {measure.name for measure in MEASURES}
    options = {f"{name} {option}" for name in COMMANDS for entry in command_named(name).params for option in entry.opts}
    assert not removed.OPTIONS.keys() & options


@pytest.mark.parametrize("kind", ["case", "fix", "measure"])
def test_a_removed_entry_says_what_replaces_it(kind, monkeypatch):
    monkeypatch.setitem(removed.REMOVED, kind, {"old": "use new"})
    error = unknown_name(kind, "old", ["older"])
    assert isinstance(error, UnknownNameError)
    assert str(error) == f"the {kind} 'old' was removed in 1.0; use new"


@pytest.mark.parametrize(("words"), [["--workload", "x"], ["--workload=x"]])
def test_a_removed_option_is_one_line(refused, words):
    refused("the option 'run --workload' was removed in 1.0; use --case", "run", *words)


def test_a_removed_command_is_one_line(refused, monkeypatch):
    monkeypatch.setitem(removed.REMOVED, "command", {"measure": "use run"})
    refused("the command 'measure' was removed in 1.0; use run", "measure", "--all")


def test_a_removed_public_name_says_what_replaces_it():
    with pytest.raises(AttributeError, match=r"'Workload' was removed in 1\.0; use Case"):
        _ = precision_eval.Workload


@pytest.mark.parametrize(("row", "remedy"), removed.OPTIONS.items())
def test_what_replaces_an_option_exists(row, remedy):
    command = command_named(row.partition(" ")[0])
    options = {name: option for option in command.params for name in option.opts + option.secondary_opts}
    elsewhere = re.search(r"`precision-eval ([\w-]+)", remedy)
    if elsewhere:
        assert elsewhere[1] in COMMANDS
    elif setting := re.search(r"--set (\w+)=", remedy):
        assert re.search(rf"\b{setting[1]}\b", options["--set"].help)
    else:
        assert {*re.findall(r"--[a-z][a-z-]*", remedy)} <= options.keys() | {"--github"}
