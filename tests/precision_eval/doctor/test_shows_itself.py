"""A diagnosis as one line, as text and as HTML; a finding by itself; the sections that have something to say."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from precision_eval import examine
from precision_eval.doctor.diagnosis import Price, SilentCost


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


def test_where_nothing_splits_the_line_does_not_say_so():
    class Squares(nn.Module):
        def forward(self, x):
            return x / x.square().mean().sqrt()

    found = examine(Squares(), torch.full((2, 8), 900.0).half(), fixes=False)
    assert [fault.kind for fault in found.faults] == ["drift"]
    assert "; a fault at square in the model itself (" in repr(found)
    assert "first split" not in repr(found) + str(found)


def test_the_text_is_where_why_and_a_patch_that_was_run_then_the_history(diagnosis):
    text = str(diagnosis)
    lines = [line for line in text.splitlines() if line.split()[:1] in (["where"], ["why"], ["patch"])]
    assert [line.split()[0] for line in lines] == ["where", "why", "patch"]
    assert "self.gain is float32 by parameter gain" in lines[1]
    assert "run on a copy: no fault left" in lines[2]
    assert str(diagnosis.first_split) in "\n".join(line.removeprefix("  ") for line in text.splitlines())


def test_sections_without_content_are_left_out_and_the_title_of_costs_follows_the_answer(diagnosis):
    clean = examine(nn.Linear(8, 8), torch.ones(2, 8), fixes=False)
    assert len(str(clean).splitlines()) == 2
    patch = replace(diagnosis.patch, diff="", code="model.bfloat16()")
    price = Price(
        latency_ratio=0.5,
        latency_low=0.4,
        latency_high=0.6,
        saved_bytes=0,
        relative_error=None,
        relative_error_now=None,
    )
    cost = SilentCost(
        kind="wide_product", reason="linear in float32", module="", place=None, count=1, patch=patch, price=price
    )
    text = str(replace(diagnosis, costs=(cost,)))
    assert "Costs, apart from the fault" in text
    assert "nothing is wrong" not in text
    assert "nothing is wrong here" in str(replace(clean, costs=(cost,)))


def test_where_and_why_are_told_before_anything_is_tried():
    told = []
    model, x = Splits().eval().requires_grad_(False), torch.ones(2, 8).half()
    found = examine(model, x, fixes=False, first=told.append)
    assert [(early.findings, early.patches) for early in told] == [(found.findings, ())]
    assert found.patches


def test_html_is_the_text_escaped(diagnosis):
    page = replace(diagnosis, model="<script>")._repr_html_()
    assert page.startswith("<pre>&lt;script&gt; raises")
    assert "scaled = self.first(x) * self.gain" in page
