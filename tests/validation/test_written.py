"""Fixes from outside give the bits of the same written into the source; another source is told from it."""

import pytest
import torch

from validation import written


@pytest.mark.parametrize("fix_id", written.WRITTEN)
def test_outside_and_source_give_the_same_bits(fix_id):
    assert written.has_same_bits(fix_id, 16)


def test_a_source_that_rounds_once_more_gives_other_bits(monkeypatch):
    class RoundedScale(written.Int8Cache):
        def __init__(self, length, seed=0):
            super().__init__(length, seed)
            self.v_scale = self.v_scale.to(torch.bfloat16).float()

    monkeypatch.setitem(written.WRITTEN, "cache_int8_token", RoundedScale)
    assert not written.has_same_bits("cache_int8_token", 16)
