"""What a model of one's own asks of its user: the case has the bug, its fix cures it, and lines are counted as said."""

import pytest

from precision_eval.cases.own import own_case
from precision_eval.measure.admission import admitted_candidate, admitted_case
from validation import own_model


def test_lines_with_code_are_counted():
    text = '"""Title.\n\nMore.\n"""\n\n# why\nx = 1\n\ndef f():\n    """Say."""\n    return "# no comment"\n'
    assert own_model.code_lines(text) == 3
    assert own_model.code_lines("name: a\n# b\non: c # d\n") == 2


def test_the_model_has_ten_million_parameters_and_the_bug_and_the_fix_cures_it(tmp_path):
    (tmp_path / "my_case.py").write_text(own_model.CASE)
    (tmp_path / "mine.py").write_text(own_model.FIX)
    case, fix = f"{tmp_path / 'my_case.py'}:factory", f"{tmp_path / 'mine.py'}:wide_cache"
    own = own_case(case)
    assert sum(parameter.numel() for parameter in own.model.parameters()) >= 10_000_000
    with pytest.raises(RuntimeError, match="same dtype"):
        own.model(*own.arguments())
    assert admitted_case(case, "cpu", 0).digest
    assert admitted_candidate(fix, case, "own", "cpu", 0).storage == "as_shipped"


def test_figures_are_held_to_their_targets():
    lines = [
        {"what": "lines", "case": 16, "fix": 2, "repository": 30},
        {"what": "wait", "seconds": [290.0, 20.0], "statuses": {"a": "passed", "b": "raised"}, "load": 3.0},
        {"what": "classes", "passed": 12, "failed": 1},
    ]
    met = {figure.name: figure.met for figure in own_model._figures(lines)}
    assert not met["lines of code, case"]
    assert met["lines of code, fix"]
    assert met["lines of code, repository"]
    assert not met["wait, 10 M parameters"]
    assert not met["real classes run, cured and reported"]
    assert own_model._figures(lines)[5].found == "1: a"
