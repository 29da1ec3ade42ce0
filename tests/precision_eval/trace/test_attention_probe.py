import math

import pytest
import torch
from torch.nn import functional as F

from precision_eval.trace import attention as attention_probe
from precision_eval.trace.attention import AttentionSharpness, probing


def independent(query, key, mask, scale):
    """The definition in float64, the logarithm of every p included."""
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query.double() @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    p = scores.softmax(-1)
    entropy = -torch.where(p > 0, p * p.clamp(min=1e-300).log(), 0.0).sum(-1).mean()
    return float(scores[scores.isfinite()].abs().max()), float(entropy)


def seen(query, key, mask=None, scale=None):
    sharpness = AttentionSharpness()
    sharpness.add(query, key, mask, scale)
    return sharpness.max_abs_logit, sharpness.entropy_nats


def test_equal_scores_by_hand():
    query, key = torch.ones(1, 1, 1, 4), torch.ones(1, 1, 8, 4)
    assert seen(query, key) == (2.0, pytest.approx(math.log(8), rel=1e-6))
    mask = torch.tensor([True, True] + [False] * 6)
    assert seen(query, key, mask) == (2.0, pytest.approx(math.log(2), rel=1e-6))


def test_one_dominant_key_has_no_entropy():
    key = torch.zeros(1, 1, 8, 4)
    key[..., 3, :] = 100.0
    largest, entropy = seen(torch.ones(1, 1, 1, 4), key)
    assert (largest, entropy) == (200.0, pytest.approx(0.0, abs=1e-6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("part", [1, 1 << 18])
def test_beside_the_definition_in_float64(monkeypatch, dtype, masked, part):
    monkeypatch.setattr(attention_probe, "_PART_ELEMENTS", part)
    generator = torch.Generator().manual_seed(1)
    query = (3 * torch.randn(2, 6, 5, 16, generator=generator)).to(dtype)
    key = torch.randn(2, 2, 40, 16, generator=generator).to(dtype)
    mask = (torch.arange(40) <= torch.arange(30, 35)[:, None])[None, None] if masked else None
    expected = independent(query, key, mask, 0.3)
    assert seen(query, key, mask, 0.3) == pytest.approx(expected, rel=2e-5)


def test_autocast_does_not_reach_the_probe():
    query, key = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 40, 16)
    plain = seen(query, key)
    with torch.autocast("cpu"):
        assert seen(query, key) == plain


def test_what_is_not_finite_has_no_part_in_the_largest():
    key = torch.ones(1, 1, 8, 4)
    key[0, 0, 2] = math.inf
    assert seen(torch.ones(1, 1, 1, 4), key)[0] == 2.0


def test_every_second_call_and_outputs_untouched():
    query, key = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 40, 16)
    expected = F.scaled_dot_product_attention(query, key, key)
    original = F.scaled_dot_product_attention
    with probing(every=2) as sharpness:
        found = [F.scaled_dot_product_attention(query, key, key) for _ in range(5)]
    assert sharpness.calls == 2
    assert all(torch.equal(one, expected) for one in found)
    assert F.scaled_dot_product_attention is original
