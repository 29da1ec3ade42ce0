"""The program in this process."""

import sys

import pytest

from precision_eval.cli.commands import main


@pytest.fixture
def program(monkeypatch, capsys):
    """Run ``precision-eval`` with arguments; return its exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["precision-eval", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def refused(program):
    """Run it with bad input: exit code 2, nothing on the output, one line of errors that holds a text."""

    def check(text, *arguments):
        code, out, err = program(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert text in err

    return check
