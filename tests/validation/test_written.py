"""Fixes from outside give the bits of the same written into the source; another source is told from it."""

import json

import pytest
import torch

from validation import written


@pytest.mark.parametrize("fix_id", written.WRITTEN)
def test_outside_and_source_give_the_same_bits(fix_id):
    assert written.has_same_bits(fix_id, 16)


def test_the_table_says_what_is_shown_to_hold_to_the_target(tmp_path):
    def row(fix, low, high):
        return {"fix": fix, "length": 2048, "same_bits": True, "outside": [1.0, low, high], "source again": [1, 1, 1]}

    stored = {
        "machine": {"processor": "A CPU", "torch": "2.13.0", "threads": 1},
        "rows": [row("layercast", 0.991, 1.009), row("weights_int8", 0.995, 1.011)],
    }
    path = tmp_path / "written.json"
    path.write_text(json.dumps(stored), encoding="utf-8")
    text = written.markdown(path)
    assert "| `layercast` | 2,048 | 1.000 [0.991, 1.009] |" in text
    assert "Shown to be within 1 %: layercast at 2,048; not shown: weights_int8 at 2,048. A CPU, torch 2.13.0" in text


def test_a_source_that_rounds_once_more_gives_other_bits(monkeypatch):
    class RoundedScale(written.Int8Cache):
        def __init__(self, length, seed=0):
            super().__init__(length, seed)
            self.v_scale = self.v_scale.to(torch.bfloat16).float()

    monkeypatch.setitem(written.WRITTEN, "cache_int8_token", RoundedScale)
    assert not written.has_same_bits("cache_int8_token", 16)
