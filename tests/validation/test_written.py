"""Fixes from outside give the bits of the same written into the source; another source is told from it."""

import json

import pytest
import torch

from validation import written
from validation.report import stored_markdown


@pytest.mark.parametrize("fix_id", written.WRITTEN)
def test_outside_and_source_give_the_same_bits(fix_id):
    assert written.has_same_bits(fix_id, 16)


def row(low, high, *, same=True):
    ratios = {"outside": [1, low, high], "source again": [1, 1, 1]}
    return {"fix": "layercast", "length": 2048, "same_bits": same, **ratios}


def test_a_ratio_holds_to_the_target_where_its_whole_interval_does_and_the_bits_are_the_sources():
    def met(low, high, *, same=True):
        (figure,) = written.EXPERIMENT.figures({"rows": [row(low, high, same=same)]})
        return figure.met

    assert met(0.991, 1.009)
    assert not met(0.995, 1.011)
    assert not met(0.991, 1.009, same=False)


def test_the_table_says_where_it_was_measured(tmp_path):
    stored = {"machine": {"processor": "A CPU", "torch": "2.13.0", "threads": 1}, "rows": [row(0.991, 1.009)]}
    path = tmp_path / "written.json"
    path.write_text(json.dumps(stored), encoding="utf-8")
    text = stored_markdown("written", path)
    assert "| 1.000 [0.991, 1.009]; the same bits | yes | 1.000 (1.000 to 1.000) |" in text
    assert text.endswith("A CPU, torch 2.13.0, 1 thread.")


def test_a_source_that_rounds_once_more_gives_other_bits(monkeypatch):
    class RoundedScale(written.Int8Cache):
        def __init__(self, length, seed=0):
            super().__init__(length, seed)
            self.v_scale = self.v_scale.to(torch.bfloat16).float()

    monkeypatch.setitem(written.WRITTEN, "cache_int8_token", RoundedScale)
    assert not written.has_same_bits("cache_int8_token", 16)
