"""Attention as trials compute it, against arithmetic by hand and torch's own; the families of its operands."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from precision_eval.core.errors import UnknownNameError
from validation.faults.families import DTYPES, FAMILIES, Operands, in_float64, sample
from validation.faults.honest import HONEST
from validation.faults.kernels import FLASH, FUSED, PLAIN, attend, exact, kept_bits, stored, yardstick

ALL_HONEST = [variation for variation in HONEST if not variation.id.startswith("compiled")]


def rms(x):
    return float(x.double().square().mean().sqrt())


def tiny(dtype=torch.float32):
    """One query on two keys with logits 1 and 0; values 0 and 4."""
    q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    v = torch.tensor([[0.0, 0.0], [4.0, 4.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    return Operands(q[None, None].to(dtype), k[None, None].to(dtype), v[None, None].to(dtype), mask, 1.0, "gaussian", 0)


KERNELS = (PLAIN, FUSED, FLASH, replace(FLASH, block=1), replace(FLASH, block=1, reverse=True))


@pytest.mark.parametrize("kernel", KERNELS)
def test_two_keys_by_hand_and_weights_that_sum_to_one(kernel):
    expected = 4.0 / (1.0 + math.e)  # 4·e⁰/(e¹ + e⁰)
    assert attend(tiny(), kernel).flatten().tolist() == pytest.approx([expected, expected], rel=1e-6)
    reference = exact(tiny(torch.float16))
    assert reference.dtype is torch.float64
    assert reference.flatten().tolist() == pytest.approx([expected, expected], rel=1e-15)
    operands = sample("long_tailed", seed=3, dtype=torch.float32)
    assert rms(attend(replace(operands, v=torch.ones_like(operands.v)), kernel) - 1.0) < 3e-7


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_is_torchs_attention_in_float64(family):
    operands = sample(family, seed=5, dtype=torch.bfloat16)
    wide = in_float64(operands)
    theirs = F.scaled_dot_product_attention(wide.q, wide.k, wide.v, attn_mask=wide.mask, scale=wide.scale)
    assert rms(exact(operands) - theirs) < 1e-13 * rms(theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_yardstick_is_eager_attention_in_the_dtype(dtype):
    operands = sample("gaussian", seed=1, dtype=dtype)
    logits = (operands.q @ operands.k.mT * operands.scale).masked_fill(~operands.mask, -math.inf)
    eager = logits.softmax(-1) @ operands.v
    truth, plain = exact(operands), yardstick(operands)
    assert plain.dtype is dtype
    assert rms(eager - truth) == pytest.approx(rms(plain - truth), rel=0.15)
    if dtype is not torch.float32:  # the same steps are stored, so the errors are the same and not only as large
        assert rms(eager.double() - plain.double()) < 0.2 * rms(plain - truth)


@pytest.mark.parametrize("dtype", DTYPES)
def test_directed_rounding_has_a_direction(dtype):
    x = (3.0 * torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).float()
    down, up = stored(x, "truncated", dtype), stored(x, "upward", dtype)
    assert (down.abs() <= x.abs()).all()
    assert (up >= x).all()
    assert (up != x).float().mean() > 0.4
    assert (down != x).float().mean() > 0.4
    assert torch.equal(down, down.to(dtype).float())
    assert torch.equal(up, up.to(dtype).float())
    assert (up - x).abs().max() <= 2 * torch.finfo(dtype).eps * 16


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_stochastic_rounding_is_right_on_average(dtype):
    eps = torch.finfo(dtype).eps
    rounded = stored(torch.full((40_000,), 1.0 + 0.3 * eps), "stochastic", dtype)
    assert set(rounded.tolist()) == {1.0, 1.0 + eps}
    assert float((rounded - 1.0).mean() / eps) == pytest.approx(0.3, abs=0.012)  # five standard errors


def test_storage_by_hand():
    ties = torch.tensor([1.0 + 2**-11, 1.0 + 3 * 2**-11, -1.0 - 3 * 2**-12, math.inf, 0.0])  # to even
    assert kept_bits(ties, 11).tolist() == [1.0, 1.0 + 2**-9, -1.0 - 2**-10, math.inf, 0.0]
    x = torch.tensor([[[[127.0, 1.4, 70000.0]]]])
    assert stored(x, "float16", torch.float32).flatten().tolist() == [127.0, 1.400390625, math.inf]
    assert stored(x, "saturated", torch.float16).flatten().tolist()[2] == 65504.0
    assert stored(x[..., :2], "int8", torch.float16).flatten().tolist() == [127.0, 1.0]
    assert stored(torch.tensor([2.0**-15, 2.0**-14]), "flushed", torch.float16).tolist() == [0.0, 2.0**-14]
    with pytest.raises(UnknownNameError, match="unknown storage 'float17'"):
        stored(x, "float17", torch.float16)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_gives_the_same_operands_in_every_dtype(family):
    wide, half = (sample(family, seed=7, dtype=dtype) for dtype in (torch.float32, torch.float16))
    assert torch.equal(wide.q.half(), half.q)
    assert torch.equal(wide.v.half(), half.v)
    assert not torch.equal(wide.q, sample(family, seed=8, dtype=torch.float32).q)
    assert torch.equal(wide.mask, half.mask)
    rows, keys = FAMILIES[family].rows, FAMILIES[family].keys
    if family not in ("window", "cross_padded", "packed", "bidirectional", "sink_and_window", "prefix"):
        assert half.mask.sum(-1).tolist() == list(range(keys - rows + 1, keys + 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_honest_variations_are_as_good_as_plain(family):
    for dtype in DTYPES:
        operands = sample(family, seed=11, dtype=dtype)
        truth = exact(operands)
        own = rms(yardstick(operands) - truth)
        for variation in ALL_HONEST:
            if dtype in variation.dtypes:
                found = variation.apply(operands)
                assert found.dtype is dtype, variation.id
                assert found.shape == operands.q.shape, variation.id
                assert rms(found - truth) < (4.0 if dtype is not torch.float32 else 12.0) * own, (
                    variation.id
                )  # few rows


def test_rows_that_see_nothing_of_a_part_do_not_become_nan():
    operands = sample("gaussian", seed=0, dtype=torch.float16, rows=32, keys=32)  # the first row sees one key
    for variation in ALL_HONEST:
        if torch.float16 in variation.dtypes:
            assert variation.apply(operands).isfinite().all(), variation.id
