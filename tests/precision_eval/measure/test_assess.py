"""The rule for the error of an attention: correct orders of the same sums pass, planted faults do not."""

import math

import pytest
import torch
import torch.nn.functional as F

from precision_eval.measure.assess import assess_attention, bias_z, plain_attention

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
DECODE, PREFILL = (2, 8, 1, 64, 64), (1, 4, 64, 64, 32)


def make_call(dtype, shape, *, seed=1):
    batch, heads, rows, keys, channels = shape
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, heads, rows, channels, generator=generator).to(dtype)
    key, value = (torch.randn(batch, heads, keys, channels, generator=generator).to(dtype) for _ in range(2))
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    return (query, key, value), {"mask": mask, "scale": channels**-0.5}


def float64_attention(operands, setting):
    return plain_attention(*(tensor.double() for tensor in operands), **setting)


def online_softmax(query, key, value, *, mask, scale):
    """Weights stored before they are divided, as fused kernels do."""
    logits = (query.float() @ key.float().mT * scale).masked_fill(~mask, -math.inf)
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    return (weights.to(query.dtype).float() @ value.float() / weights.sum(-1, keepdim=True)).to(query.dtype)


def in_float32(query, key, value, **setting):
    return plain_attention(query.float(), key.float(), value.float(), **setting).to(query.dtype)


def scaled_query(query, key, value, *, mask, scale):
    return plain_attention(query * scale, key, value, mask=mask, scale=1.0)


def by_torch(query, key, value, *, mask, scale):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


@pytest.mark.parametrize("attention", [online_softmax, in_float32, scaled_query, by_torch])
@pytest.mark.parametrize("shape", [DECODE, PREFILL])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE])
def test_a_correct_order_of_the_same_sums_is_as_expected(dtype, shape, attention):
    for seed in range(5):
        operands, setting = make_call(dtype, shape, seed=seed)
        assessed = assess_attention(
            attention(*operands, **setting), float64_attention(operands, setting), operands, **setting
        )
        assert assessed == {"verdict": "as expected of the format", "reasons": []}


def test_plain_attention_is_torchs():
    operands, setting = make_call(SINGLE, PREFILL)
    torch.testing.assert_close(plain_attention(*operands, **setting), by_torch(*operands, **setting))
    setting["scale"] = None
    torch.testing.assert_close(plain_attention(*operands, **setting), by_torch(*operands, **setting))


@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE])
def test_a_gain_of_two_epsilons_is_a_bias_and_a_place_written_wrongly_a_large_error(dtype):
    operands, setting = make_call(dtype, PREFILL)
    exact = float64_attention(operands, setting)
    gained, misplaced = (exact * (1 + 2 * torch.finfo(dtype).eps)).to(dtype), exact.to(dtype)
    misplaced[0, 1, 7, 3] += 0.5
    bias, large = (assess_attention(output, exact, operands, **setting) for output in (gained, misplaced))
    assert bias["verdict"] == large["verdict"] == "worse"
    assert "too large by" in bias["reasons"][-1]
    assert large["reasons"][0].startswith("largest error 0.")


def test_one_row_has_no_standard_error():
    operands, setting = make_call(HALF, (1, 1, 1, 16, 16))
    exact = float64_attention(operands, setting)
    assert assess_attention(exact.half(), exact, operands, **setting)["reasons"] == []


def test_the_bias_by_hand():
    exact = torch.tensor([[1.0, 2.0], [2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    output = torch.tensor([[1.5, 2.25], [2.5, 9.0], [1.0, 1.0]], dtype=torch.float64)
    # gains per row: (0.5 + 0.5) / 5, 1 / 4, 0; mean 0.15, standard deviation sqrt(0.0175)
    assert bias_z(output, exact) == pytest.approx(0.15 / math.sqrt(0.0175 / 3), rel=1e-12)
    assert bias_z(exact, exact) == 0.0
