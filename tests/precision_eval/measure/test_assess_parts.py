"""The parts of the judge of numeric error: spacing, what mixtures explain, statistics by hand, drawn yardsticks."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from precision_eval.core.errors import ParameterError
from precision_eval.core.formats import format_by_name, ulp
from precision_eval.measure.assess.pooled import DTYPES, pool, spacing
from precision_eval.measure.assess.statistics import LEAST, STATISTICS, UNSEEN, Range
from precision_eval.measure.assess.yardsticks import (
    OtherOrder,
    _at_other_heights,
    attention_yardsticks,
    operation_yardsticks,
    sample_rows,
)


def draw(seed=0, shape=(2, 3, 16, 8)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def span(reference, *yardsticks, dtype=torch.float16):
    return Range(pool(reference, list(yardsticks), dtype))


@pytest.mark.parametrize("name", DTYPES)
def test_spacing_is_the_ulp(name):
    powers = 2.0 ** torch.arange(-160, 130, dtype=torch.float64)
    x = torch.cat([powers, -1.4 * powers, 1.999 * powers, torch.zeros(1, dtype=torch.float64)])
    torch.testing.assert_close(spacing(x, format_by_name(name)), ulp(x, name), rtol=0, atol=0)


def test_a_mixture_of_yardsticks_leaves_no_rest_and_a_stranger_does():
    """Also where the parts are known before the output was rounded, and the mixture after."""
    reference = draw(1)
    parts = [1e-2 * draw(seed) for seed in (2, 3)]
    held_to = span(reference, *((reference + part).float() for part in parts))
    mixture = (reference + 0.5 * parts[0] + 0.4 * parts[1]).half().double()
    rounding = float((reference - reference.half().double()).square().mean().sqrt())
    left = float(held_to._rests(mixture[None].float())[0].square().mean().sqrt())
    assert left < 0.5 * rounding
    strange = (reference + 1e-2 * draw(4)).half().double()
    assert float(held_to._rests(strange[None].float())[0].square().mean().sqrt()) == pytest.approx(1e-2, rel=0.1)
    assert held_to._rests((reference + parts[0]).half().float()[None])[0].abs().max() == 0.0


def test_gain_over_clusters_against_numpy():
    reference = draw(3)
    held_to = span(reference, *((reference + 1e-3 * draw(seed)).half() for seed in (4, 5, 6)))
    candidate = (reference * 1.01).half().double()
    rest, scale = held_to._rests(candidate[None].float())[0].numpy(), held_to.scale.numpy()
    z, w = rest * scale, reference.numpy() * scale
    products, sizes = (z * w).sum(-1), (w * w).sum(-1)
    gain = products.sum() / sizes.sum()
    spread = ((products - gain * sizes) ** 2).sum() + LEAST * sizes.sum()
    assert held_to.statistics(candidate)["gain"] == pytest.approx(abs(products.sum()) / math.sqrt(spread), rel=1e-4)
    by_channel = z.sum((0, 2)) ** 2 / (z.shape[0] * z.shape[2])
    expected = by_channel.mean() / max((z**2).mean(), LEAST)
    assert held_to.statistics(candidate)["channel_offset"] == pytest.approx(expected, rel=1e-4)


def test_what_depends_on_the_position_the_channel_or_the_size_shows_in_its_own_statistic():
    """Each change is as small as the honest noise and has no mean."""
    reference, drawn = draw(3, (8, 4, 16, 32)), draw(11, (8, 4, 16, 32))
    held_to = span(reference, *(reference + 3e-3 * draw(seed, (8, 4, 16, 32)) for seed in (4, 5, 6, 7)))
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    noise = 3e-3 * drawn
    plain = held_to.statistics((reference + noise).half().double())
    for name, change in (
        ("gain_by_position", 1e-3 * reference * signs.repeat(8)[:, None]),
        ("gain_by_channel", 2e-3 * reference * signs.repeat(16)),
        ("proportional", 3e-3 * reference * draw(12, (8, 4, 16, 32))),
    ):
        changed = held_to.statistics((reference + noise + change).half().double())
        limit = next(held_to.limit(s) for s in STATISTICS if s.name == name)
        assert plain[name] < limit < changed[name], name
        assert changed["rms"] < 1.6 * plain["rms"]


def test_signs_grids_and_flushes_by_hand():
    reference = torch.tensor([[1.1, -1.3, 1.7, -1.9], [1.2, -1.4, 1.6, -1.8]], dtype=torch.float64)
    rounded = reference.half()
    held_to = span(reference, rounded, reference)
    inward = torch.where(rounded.double().abs() > reference.abs(), torch.nextafter(rounded, 0 * rounded), rounded)
    by_row = ((reference - inward.double()) * reference.sign() * 2**10).mean(-1)
    expected = float(by_row.mean() - 3.0 * by_row.std() / math.sqrt(2))
    found = held_to.statistics(inward.double()[None, None])
    assert found["outward"] == pytest.approx(max(expected, 0.0), abs=1e-9)
    coarse = held_to.statistics(reference.bfloat16().half().double()[None, None])["coarse"]
    off = int(((rounded.double() * 2**8) != (rounded.double() * 2**8).round()).sum())
    assert coarse == pytest.approx(off / (off + 8))
    small = reference * 2.0**-16
    zeros = span(small, small.half(), small).statistics(torch.zeros(1, 1, 2, 4, dtype=torch.float64))
    assert zeros["flushed"] == 8


def test_limits_are_the_largest_yardsticks_widened_and_doubly_for_one_alone():
    reference = draw(7)
    several = span(reference, *((reference + 1e-3 * draw(seed)).half() for seed in (8, 9)))
    alone = span(reference, (reference + 1e-3 * draw(8)).half())
    for statistic in STATISTICS:
        for held_to, width in ((several, 1.0), (alone, 2.0)):
            highest = held_to.highest[statistic.name]
            margin = width * (statistic.margin[0] + UNSEEN[0])
            expected = (highest + statistic.offset) * math.exp(margin) - statistic.offset
            assert held_to.limit(statistic) == pytest.approx(max(expected, statistic.chance), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 7, 32])
def test_drawn_attention_is_attention(dtype, rows):
    q, k, v = (draw(seed, (1, 2, 32, 16)).to(dtype) for seed in (1, 2, 3))
    q, mask = q[:, :, -rows:], torch.ones(rows, 32, dtype=torch.bool).tril(32 - rows)
    exact = F.scaled_dot_product_attention(*(t.double() for t in (q, k, v)), attn_mask=mask, scale=0.3)
    drawn = attention_yardsticks(q, k, v, mask=mask, scale=0.3)
    assert "torch's math" in drawn
    assert set(attention_yardsticks(q, k, v, backends=False)) < set(drawn)
    for name, found in drawn.items():
        assert (found.double() - exact).abs().max() < 30 * torch.finfo(dtype).eps, name
    unlike = {tuple(np.asarray(found.float()).ravel().tolist()) for found in drawn.values()}
    assert len(unlike) >= 5


def test_the_sum_of_weights_as_they_are_stored_by_hand():
    """Logits 1 and 0, values 0 and 4: bfloat16 has e⁻¹ as 188/512."""
    q, k, v = torch.tensor([[1.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [4.0]])
    drawn = attention_yardsticks(*(t.bfloat16() for t in (q, k, v)), scale=1.0, backends=False)
    assert drawn["wide, divided late"].item() == pytest.approx(4 * 188 / 512 / (1.0 + math.exp(-1.0)), rel=1e-6)
    assert drawn["wide, divided late, by stored weights"].item() == pytest.approx(4 * 188 / (512 + 188), rel=1e-6)


def test_drawn_operations_are_the_operation_in_other_orders():
    x, w = draw(1, (64, 512)).float(), draw(2, (32, 512)).float()
    both, by_another, equal, pairs = ("reversed", "halves"), ("halves",), [], 0
    for function, operands, orders in (
        (lambda x, w: x @ w.mT, (x, w), both),
        (lambda x, w: F.linear(x, w, w[:, 0]), (x, w), both),
        (lambda x: F.layer_norm(x, (512,), x[0], x[1]), (x,), both),
        (lambda x: F.group_norm(x[None], 8, x[:, 0], x[:, 1]), (x,), both),
        (lambda x: F.group_norm(x, 512), (x.mT.reshape(1, 512, 64),), both),
        (lambda x: x.softmax(-1), (x,), both),
        (lambda x: x.square().mean(-1, keepdim=True), (x,), both),
        (lambda x: x.cumsum(0), (x,), both),
        (F.gelu, (x,), by_another),
        (F.silu, (x,), by_another),
        (lambda x: x.abs().log10() + x.exp() + x.sigmoid(), (x,), by_another),
        (lambda x: x.square().rsqrt().log2().exp2().log(), (x,), by_another),
    ):
        exact = function(*(t.double() for t in operands))
        drawn = operation_yardsticks(function, *operands)
        assert set(drawn) == {"in float64", "stored", "stored, transposed", *(f"stored, {order}" for order in orders)}
        for name, found in drawn.items():
            assert found.dtype is (torch.float64 if name == "in float64" else torch.float32)
            assert (found.double() - exact).abs().max() < 1e-4 * (1.0 + exact.abs().max()), name
        equal += [f"{function}, {order}" for order in orders if torch.equal(drawn["stored"], drawn[f"stored, {order}"])]
        pairs += len(orders)
    assert len(equal) < pairs / 4, equal  # two orders may agree on one machine; here none does
    with OtherOrder("reversed") as order:
        assert torch.equal(torch.eye(3) @ torch.eye(3), torch.eye(3))
    assert order.changed


def test_whole_numbers_and_float64_have_no_other_order():
    """Positions that are counted, and what an operation computes wider on its own."""
    x = torch.ones(6, 5)
    with OtherOrder("halves") as order:
        assert (x > 0).cumsum(-1).dtype is torch.int64
        assert x.double().exp().dtype is torch.float64
    assert not order.changed
    assert set(operation_yardsticks(lambda x: x + (x > 0).cumsum(-1), x)) == {
        "in float64", "stored", "stored, transposed"
    }  # fmt: skip


def test_softmax_on_logits_that_lie_elsewhere_is_softmax_under_any_mask():
    logits = draw(4, (3, 40)).float() * 5.0
    masked = logits.masked_fill(torch.arange(40) > 30, -math.inf)
    for one in (logits, masked, logits.masked_fill(torch.arange(40) > 30, torch.finfo(torch.float32).min)):
        for name, weights in _at_other_heights(one).items():
            torch.testing.assert_close(weights.double(), one.double().softmax(-1), rtol=3e-5, atol=1e-9, msg=name)


def test_every_step_that_the_operation_stores_is_stored_alone():
    """A bias is added to the product as stored, and a norm's weight to the row as stored; each at its own step."""
    x, w = draw(1, (8, 32)).half(), draw(2, (16, 32)).half()
    drawn = operation_yardsticks(lambda x, w: F.linear(x, w, w[:, 0]), x, w)
    unfused = (x.float() @ w.float().mT).half().float() + w.float()[:, 0]
    assert sum(torch.equal(found.half(), unfused.half()) for found in drawn.values()) == 1

    def norm(x, w):
        return x * x.square().mean(-1, keepdim=True).rsqrt() * w

    drawn = operation_yardsticks(norm, x, w[0])
    wide = x.float()
    cast = (wide * wide.square().mean(-1, keepdim=True).rsqrt()).half().float() * w[0].float()
    assert sum("step" in name for name in drawn) == 4  # square, mean, rsqrt, product; the last is the output
    assert any(torch.equal(found, cast) for name, found in drawn.items() if "step" in name)


def test_rows_are_drawn_with_the_first_and_the_last():
    heads, rows = sample_rows(100, 16, most_rows=8, seed=3)
    assert (len(heads), len(rows), rows[0], rows[-1]) == (4, 8, 0, 99)
    assert len(heads.unique()) == 4
    assert [x.tolist() for x in sample_rows(1, 2)] == [[0, 1], [0]]
    assert sample_rows(5)[1].tolist() == [0, 1, 2, 3, 4]
    assert not torch.equal(sample_rows(100, seed=4)[1], sample_rows(100, seed=5)[1])
    with pytest.raises(ParameterError, match="found 0 rows, 1 heads"):
        sample_rows(0)
