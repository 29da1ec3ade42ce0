"""A diagnosis in a console and in a notebook: one line, plain text, HTML; a finding and a patch by themselves."""

import io
import json

import pytest
import torch
from torch import nn

from precision_eval import examine


class Splits(nn.Module):
    """A float32 gain in a half model: the product is promoted, and the next layer refuses it."""

    def __init__(self):
        super().__init__()
        self.first, self.gain, self.last = nn.Linear(8, 8).half(), nn.Parameter(torch.ones(8)), nn.Linear(8, 8).half()

    def forward(self, x):
        scaled = self.first(x) * self.gain
        return self.last(scaled)


@pytest.fixture(scope="module")
def diagnosis():
    return examine(Splits().eval().requires_grad_(False), torch.ones(2, 8).half(), latency=False, compiled=False)


def test_one_line(diagnosis):
    line = repr(diagnosis)
    assert "\n" not in line
    assert line.startswith("<Splits raises; dtypes first split at mul in the model itself (")
    assert "test_shows_itself.py:" in line
    cures = [remedy.fix for remedy in diagnosis.remedies if remedy.cures]
    assert cures
    assert line.endswith(f"; cured by {', '.join(cures)}>")


def test_json_is_strict(diagnosis):
    data = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert (data["is_clean"], data["first_split"]["op"]) == (False, "mul")


def test_a_clean_model_in_one_line():
    found = examine(nn.Linear(8, 8), torch.ones(2, 8), fixes=False, compiled=False)
    assert repr(found) == "<Linear runs; no fault>"


def test_the_first_split_by_itself(diagnosis):
    text = str(diagnosis.first_split)
    assert text.splitlines()[0] == "silent promotion: mul in the model itself (Splits)"
    assert "scaled = self.first(x) * self.gain" in text
    assert "self.gain: float32 by parameter gain" in text
    assert text in "\n".join(line.removeprefix("  ") for line in str(diagnosis).splitlines())


def test_the_patch_by_itself(diagnosis):
    lines = str(diagnosis.patch).splitlines()
    assert "-        scaled = self.first(x) * self.gain" in lines
    assert lines[-1].startswith("or, at its origin: store parameter gain in float16")


def test_html_holds_the_text_and_no_markup_of_ours(diagnosis):
    page = diagnosis._repr_html_()
    assert page.startswith("<pre style=")
    assert page.endswith("</pre>")
    assert "style=" in page.partition(">")[2]  # colours
    assert "[bold" not in page
    for line in ("Dtypes first split", "scaled = self.first(x) * self.gain", "kv_to_query"):
        assert line in page


def test_html_is_escaped():
    class Odd(nn.Linear):
        pass

    Odd.__name__ = "<script>"
    assert "<script>" not in examine(Odd(8, 8), torch.ones(2, 8), fixes=False, compiled=False)._repr_html_()


def test_rich_prints_it_as_the_command_line_does(diagnosis):
    from rich.console import Console

    from precision_eval.diagnose.doctor.text import WIDTH

    out = io.StringIO()
    Console(file=out, width=WIDTH, highlight=False).print(diagnosis, crop=False)
    assert [line.rstrip() for line in out.getvalue().splitlines()] == str(diagnosis).splitlines()
