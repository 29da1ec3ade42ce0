"""The judge of numeric error, from outside: verdicts, reasons, descriptions and errors."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_eval.core.errors import ParameterError
from precision_eval.measure.assess import assess

EXPECTED, WORSE, NON_FINITE = "as expected of the format", "worse", "non-finite"
HALVES = (torch.float16, torch.bfloat16)


def operands(seed=1, dtype=torch.float16, shape=(1, 4, 64, 48)):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    return q * 1.5, k, v


def attention(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def stand(seed=1, dtype=torch.float16):
    """Fused attention, its reference and its yardstick."""
    q, k, v = operands(seed, dtype)
    return (
        attention(q.float(), k.float(), v.float()).to(dtype),
        attention(q.double(), k.double(), v.double()),
        attention(q, k, v),
    )


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_honest_computations_are_as_expected(dtype):
    q, k, v = operands(3, dtype)
    fused, reference, plain = stand(3, dtype)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    reordered = attention(q, k[:, :, order], v[:, :, order])
    for candidate in (fused, plain, reordered, reference.to(dtype)):
        found = assess(candidate, reference, plain)
        assert (found.verdict, found.reasons) == (EXPECTED, ())
        assert max(found.scores.values()) <= found.score_limit
        json.dumps(found.to_dict(), allow_nan=False)


def test_by_hand():
    # ULP of float16 in [2, 4): 2**-9; errors of 1, 0, −2 and 0 ULP; the yardstick errs by one everywhere
    u = 2.0**-9
    reference = torch.tensor([2.5, -3.0, 3.0, 2.25], dtype=torch.float64)
    candidate = (reference + u * torch.tensor([1.0, 0.0, -2.0, 0.0], dtype=torch.float64)).half()
    yardstick = (reference + u).half()
    found = assess(candidate, reference, yardstick)
    assert found.rms_ratio == pytest.approx(math.sqrt(5 / 4), rel=1e-12)
    assert found.ulp_quantiles == {"0.5": 0.0, "0.99": 2.0, "0.999": 2.0, "1.0": 2.0}
    assert found.bias.ulp == 0.0  # +1 and −2, the latter counted as −1
    assert found.tails.max_ratio == 2.0
    assert found.statistics["mean_ratio"] == pytest.approx(3 / 4)
    assert found.statistics["missed_within_one"] == pytest.approx((0.5 + 0.002) / (0.25 + 0.002))
    assert (found.worst_channel.index, found.worst_channel.rms_ratio) == ((0, 2), pytest.approx(2.0))
    assert found.worst_head.rms_ratio == found.worst_row.rms_ratio == pytest.approx(math.sqrt(5 / 4), rel=1e-12)
    assert (found.dtype, found.calls, found.elements) == ("float16", 1, 4)


def test_against_numpy():
    candidate, reference, plain = stand(5, torch.bfloat16)
    found = assess(candidate, reference, plain)
    c, o, y = (t.double().numpy() for t in (candidate, reference, plain))
    ulp = 2.0 ** (np.floor(np.log2(np.abs(o))) - 7)
    error, own = c - o, y - o
    assert found.rms_ratio == pytest.approx(math.sqrt((error**2).mean() / (own**2).mean()), rel=1e-9)
    for q, value in found.ulp_quantiles.items():
        expected = np.quantile(np.abs(error) / ulp, float(q), method="inverted_cdf")
        assert value == pytest.approx(expected, rel=1e-6)
    outward = np.clip(error * np.sign(o) / ulp, -1, 1).mean()
    assert found.bias.ulp == pytest.approx(outward, rel=1e-6)
    far = 4 * math.sqrt((own**2).mean())
    assert found.tails.beyond_4_rms == pytest.approx((np.abs(error) > far).mean())
    by_head = (error**2).mean((0, 2, 3)) / (own**2).mean((0, 2, 3))
    assert found.worst_head.index == (by_head.argmax(),)
    assert found.worst_head.rms_ratio == pytest.approx(math.sqrt(by_head.max()), rel=1e-9)


def swap_heads(x):
    return x[:, [1, 0, 2, 3]]


def stale_row(x):
    y = x.clone()
    y[0, 2, 17] = x[0, 2, 16]
    return y


def flip(x):
    y = x.clone()
    y[0, 1, 5, 3] *= 1.5
    return y


def truncated(reference, dtype):
    near = reference.to(dtype)
    return torch.where(near.double().abs() > reference.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("plant", "points_to"),
    [
        (swap_heads, "heads exchanged"),
        (stale_row, "stale slot"),
        (flip, "flipped bit"),
        (lambda x: (x.float() * 1.01).to(x.dtype), "a gain"),
        (lambda x: (x.float() + 0.01).to(x.dtype), "constant"),
        (torch.zeros_like, "yardstick's"),
    ],
)
def test_planted_faults_are_caught_and_named(dtype, plant, points_to):
    fused, reference, plain = stand(7, dtype)
    found = assess(plant(fused), reference, plain)
    assert found.verdict == WORSE
    assert any(points_to in reason for reason in found.reasons), found.reasons


@pytest.mark.parametrize("dtype", HALVES)
def test_truncation_is_caught_and_named(dtype):
    _, reference, plain = stand(7, dtype)
    found = assess(truncated(reference, dtype), reference, plain)
    assert found.verdict == WORSE
    assert any("truncation" in reason for reason in found.reasons)
    assert found.bias.ulp == pytest.approx(-0.5, abs=0.02)


@pytest.mark.parametrize("coarse", [torch.bfloat16, torch.float16])
def test_another_format_posing_as_float32_is_caught_and_named(coarse):
    fused, reference, plain = stand(7, torch.float32)
    found = assess(fused.to(coarse).float(), reference, plain)
    assert found.verdict == WORSE
    assert any("another format posing" in reason for reason in found.reasons)
    assert found.rms_ratio > 100


def test_stochastic_rounding_is_caught():
    _, reference, plain = stand(7)
    down = truncated(reference, torch.float16)
    up = torch.nextafter(down, down.sign() * math.inf)
    share = (reference - down.double()) / (up.double() - down.double())
    draw = torch.rand(share.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = assess(torch.where(draw < share, up, down), reference, plain)
    assert found.verdict == WORSE
    assert any("stochastic" in reason for reason in found.reasons)
    assert found.statistics["rounding_share"] == pytest.approx(2.0, abs=0.2)  # its variance is twice that of rounding


def test_flushed_subnormals_are_caught_and_named():
    _, reference, plain = stand(7)
    reference, plain = reference * 2.0**-13, (reference * 2.0**-13).half()
    flushed = torch.where(plain.abs() < 2.0**-14, 0.0, plain)
    assert assess(plain, reference, plain).verdict == EXPECTED
    found = assess(flushed, reference, plain)
    assert found.verdict == WORSE
    assert any("flushed" in reason for reason in found.reasons)


def test_the_yardstick_is_needed_as_it_is():
    """A coarser candidate passes beside a coarser yardstick, and not beside an exact one."""
    _, reference, plain = stand(7, torch.bfloat16)
    assert assess(plain, reference, plain).verdict == EXPECTED
    assert assess(plain, reference, reference.bfloat16()).verdict == WORSE


def test_nan_and_infinity():
    fused, reference, plain = stand(2)
    bad = fused.clone()
    bad[0, 1, 2, 3], bad[0, 1, 2, 4] = math.nan, math.inf
    found = assess(bad, reference, plain)
    assert found.verdict == NON_FINITE
    assert (found.non_finite.invented, found.non_finite.hidden, found.non_finite.first) == (2, 0, (0, 0, 1, 2, 3))
    assert found.elements == fused.numel() - 2
    assert found.reasons[0].startswith("2 elements are NaN or infinite where the reference is finite")
    json.dumps(found.to_dict(), allow_nan=False)


def test_nan_set_to_zero_is_caught():
    fused, reference, plain = stand(2)
    reference[0, 0, :, 5] = math.nan
    hidden, plain = fused.clone(), plain.clone()
    hidden[0, 0, :, 5], plain[0, 0, :, 5] = 0.0, math.nan
    found = assess(hidden, reference, plain)
    assert found.verdict == NON_FINITE
    assert (found.non_finite.hidden, found.non_finite.hidden_zero, found.non_finite.invented) == (64, 64, 0)
    assert "64 elements are finite where the reference is NaN or infinite, 64 of them zero" in found.reasons[0]
    assert assess(plain, reference, plain).verdict == EXPECTED  # NaN where it belongs


def test_overflow_of_the_format_is_expected_of_it():
    _, reference, plain = stand(2)
    reference = reference.clone()
    reference[0, 0, 0, 0] = 1e6
    candidate = reference.half()
    found = assess(candidate, reference, candidate)
    assert candidate[0, 0, 0, 0].isinf()
    assert (found.verdict, found.non_finite.overflowed, found.non_finite.invented) == (EXPECTED, 1, 0)
    del plain


def test_the_split_closes():
    q, k, v = operands(4, torch.float32)
    reference = attention(q.double(), k.double(), v.double())
    cast = [t.half() for t in (q, k, v)]
    on_cast = attention(*(t.double() for t in cast))
    candidate, plain = attention(*(t.float() for t in cast)).half(), attention(*cast)
    split = assess(candidate, reference, plain, on_cast_inputs=on_cast).split
    parts = split.input_cast_mse + split.compute_mse + split.output_rounding_mse + split.cross_mse
    assert parts == pytest.approx(split.total_mse, rel=1e-9)
    assert split.total_mse == pytest.approx(float((candidate.double() - reference).square().mean()), rel=1e-12)
    assert split.input_cast_mse == pytest.approx(float((on_cast - reference).square().mean()), rel=1e-12)
    assert split.compute_mse < 0.1 * split.input_cast_mse  # float32 inside
    pooled = assess([candidate] * 2, [reference] * 2, [plain] * 2, on_cast_inputs=[on_cast] * 2)
    assert pooled.split.total_mse == pytest.approx(split.total_mse, rel=1e-12)
    assert assess(candidate, reference, plain).split is None


def test_pooling_sees_a_smaller_gain():
    """A gain that one call hides in its noise shows in eight."""
    runs = [stand(seed) for seed in range(20, 28)]
    shifted = [(o * (1 + 1.2e-4)).half() for _, o, _ in runs]
    single = [assess(c, o, y).floor.gain_eps for c, (_, o, y) in zip(shifted, runs, strict=True)]
    found = assess(shifted, [o for _, o, _ in runs], [y for *_, y in runs])
    assert found.calls == 8
    assert found.floor.gain_eps < min(single)
    assert found.bias.gain_eps == pytest.approx(1.2e-4 * 1024, rel=0.2)
    honest = assess([c for c, *_ in runs], [o for _, o, _ in runs], [y for *_, y in runs])
    assert honest.verdict == EXPECTED


def test_the_floor_is_named():
    fused, reference, plain = stand(9)
    found = assess(fused, reference, plain)
    assert found.floor.rows == 256
    assert "noise of up to" in found.undetectable
    assert "gain of up" in found.undetectable
    noise = torch.randn(reference.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rms = float((plain.double() - reference).square().mean().sqrt())
    above = (reference + 1.5 * found.floor.rms_ratio * rms * noise).half()
    assert assess(above, reference, plain).verdict == WORSE
    gain = 2.0 * found.floor.gain_eps * 2.0**-10
    assert assess((reference * (1 + gain)).half(), reference, plain).verdict == WORSE


@settings(max_examples=15)
@given(seed=st.integers(0, 2**20), power=st.integers(-3, 4), gain=st.sampled_from([1.0, 1.0, 1.003]))
def test_scale_sign_and_order_change_nothing(seed, power, gain):
    dtype = torch.bfloat16
    q, k, v = operands(seed, dtype, (1, 2, 40, 16))
    candidate = (attention(q.float(), k.float(), v.float()) * gain).to(dtype)
    reference, plain = attention(q.double(), k.double(), v.double()), attention(q, k, v)
    found = assess(candidate, reference, plain)
    factor = 2.0**power
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    for moved in (
        [t * factor for t in (candidate, reference, plain)],
        [-t for t in (candidate, reference, plain)],
        [t[:, :, order] for t in (candidate, reference, plain)],
    ):
        again = assess(*moved)
        assert again.verdict == found.verdict
        assert again.statistics == pytest.approx(found.statistics, rel=1e-3, abs=1e-4)


def test_errors():
    reference = torch.tensor([1.0, 2.0], dtype=torch.float64)
    half = reference.half()
    with pytest.raises(ParameterError, match="differ in shape"):
        assess(half, reference, half[:1])
    with pytest.raises(ParameterError, match=r"the reference is torch.float32; compute it in float64"):
        assess(half, reference.float(), half)
    with pytest.raises(ParameterError, match=r"both have to be of one dtype"):
        assess(half, reference, reference.bfloat16())
    with pytest.raises(ParameterError, match=r"one of float16, bfloat16, float32"):
        assess(reference, reference, reference)
    with pytest.raises(ParameterError, match="nothing to judge in shape"):
        assess(half[:0], reference[:0], half[:0])
    with pytest.raises(ParameterError, match="2 candidates, 1 references and 2 yardsticks"):
        assess([half, half], [reference], [half, half])
    with pytest.raises(ParameterError, match="found 0 candidates"):
        assess([], [], [])
    with pytest.raises(ParameterError, match="holds a float"):
        assess([1.0], [reference], [half])
    with pytest.raises(ParameterError, match="no element is finite"):
        assess(half * math.nan, reference * math.nan, half)
    with pytest.raises(ParameterError, match="on_cast_inputs holds 1 tensors"):
        assess(half, reference, half, on_cast_inputs=reference.float())
