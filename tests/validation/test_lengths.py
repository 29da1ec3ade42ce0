"""The figures of drift by length: the reference, growth by hand, and what is on file."""

import math

import pytest
import torch
from torch.nn import functional as F

from validation import lengths
from validation.frame import content_of, run


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_the_reference_is_attention_in_float64(kind):
    built = lengths.case_of(kind, 96, seed=1)
    model = built.model
    expected = F.scaled_dot_product_attention(
        built.inputs[0].double(), model.key.double(), model.value.double(), attn_mask=model.mask
    )
    torch.testing.assert_close(lengths.exact(built), expected, rtol=1e-12, atol=1e-14)


def test_growth_by_hand_and_where_it_begins():
    # by seed × 2 and × 8: logarithms' mean log 4, t(0.975, 1) · s/√2 = 12.706 · log 2
    drifts = {10: {0: 1.0, 1: 2.0}, 20: {0: 2.0, 1: 16.0}}
    mean, low, high = lengths.growth(drifts)[20]
    assert mean == pytest.approx(4.0)
    assert math.log(high / mean) == pytest.approx(12.7062 * math.log(2.0), rel=1e-4)
    assert low == pytest.approx(mean**2 / high)
    steady = {0: 1.0, 1: 1.0, 2: 1.0}
    twice = {seed: 2.0 + 0.01 * seed for seed in steady}
    assert lengths.grows_from({10: steady, 20: steady, 40: twice, 80: twice}) == 40
    assert lengths.grows_from({10: steady, 20: twice, 40: steady}) is None


def test_an_8_bit_cache_is_measured_and_found_again(tmp_path):
    options = lengths.EXPERIMENT.options({"kinds": "decode", "lengths": "64,128", "seeds": "2"}, out=tmp_path)
    run(lengths.EXPERIMENT, options, progress=lambda *_: None)
    rows = content_of(lengths.EXPERIMENT, options)
    assert {row["status"] for row in rows} == {"passed"}
    found = {(row["fix"], row["length"]): row for row in rows if row["seed"] == 0}
    assert found["cache_int8_tensor", 128]["cache_bytes"] == 2 * (2 * 128 * 128 + 4)  # codes, and one scale each
    assert found["cache_int8_token", 128]["drift"] > 100 * found["kv_to_query", 128]["drift"]
    text = lengths.table(rows)
    assert "| `cache_int8_token` | 528.0 |" in text
    assert len(lengths.EXPERIMENT.figures(rows)) == len(lengths.FIXES)
    before = (tmp_path / "lengths.jsonl").read_bytes()
    run(lengths.EXPERIMENT, options, progress=lambda *_: None)
    assert (tmp_path / "lengths.jsonl").read_bytes() == before
