"""The judge of numeric error, from outside: verdicts, reasons, descriptions and errors."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from precision_eval.core.errors import ParameterError
from precision_eval.measure.assess import HonestRange, assess, attention_yardsticks, operation_yardsticks
from precision_eval.measure.assess.statistics import STATISTICS

EXPECTED, WORSE, NON_FINITE = "as expected of the format", "worse", "non-finite"
ONE_MORE = "worse, by one more rounding"
HALVES = (torch.float16, torch.bfloat16)


def operands(seed=1, dtype=torch.float16, shape=(1, 4, 64, 48)):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    return q * 1.5, k, v


def attention(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def stand(seed=1, dtype=torch.float16):
    """Fused attention, its reference and the yardsticks that the suite draws."""
    q, k, v = operands(seed, dtype)
    return (
        attention(q.float(), k.float(), v.float()).to(dtype),
        attention(q.double(), k.double(), v.double()),
        attention_yardsticks(q, k, v, backends=False),
    )


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_honest_computations_are_as_expected(dtype):
    q, k, v = operands(3, dtype)
    fused, reference, yardsticks = stand(3, dtype)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    reordered = attention(q, k[:, :, order], v[:, :, order])
    torchs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    for candidate in (fused, attention(q, k, v), reordered, torchs, reference.to(dtype)):
        found = assess(candidate, reference, yardsticks)
        assert (found.verdict, found.reasons) == (EXPECTED, ())
        assert 5 < int(found.held_to.removesuffix(" yardsticks")) <= len(yardsticks)
        json.dumps(found.to_dict(), allow_nan=False)


def test_by_hand():
    # ULP of float16 in [2, 4): 2**-9; errors of 1, 0, −2 and 0 ULP; the yardstick errs by one everywhere
    u = 2.0**-9
    reference = torch.tensor([2.5, -3.0, 3.0, 2.25], dtype=torch.float64)
    candidate = (reference + u * torch.tensor([1.0, 0.0, -2.0, 0.0], dtype=torch.float64)).half()
    found = assess(candidate, reference, (reference + u).half())
    assert found.rms_ratio == pytest.approx(math.sqrt(5 / 4), rel=1e-6)
    assert found.statistics["max"] == pytest.approx(2.0)
    assert found.ulp_quantiles == {"0.5": 0.0, "0.99": 2.0, "0.999": 2.0, "1.0": 2.0}
    assert found.bias.ulp == 0.0  # +1 and −2, the latter counted as −1
    assert (found.worst_channel.index, found.worst_channel.rms_ratio) == ((0, 2), pytest.approx(2.0))
    assert found.worst_head.rms_ratio == found.worst_row.rms_ratio == pytest.approx(math.sqrt(5 / 4), rel=1e-12)
    assert (found.dtype, found.calls, found.elements) == ("float16", 1, 4)
    assert "single yardstick, with stored margins" in found.held_to


def test_against_numpy():
    candidate, reference, yardsticks = stand(5, torch.bfloat16)
    found = assess(candidate, reference, yardsticks)
    c, o = candidate.double().numpy(), reference.numpy()
    distinct = {y.float().numpy().tobytes(): y for y in yardsticks.values()}
    own = np.stack([y.bfloat16().double().numpy() for y in distinct.values()]) - o
    ulp = 2.0 ** (np.floor(np.log2(np.abs(o))) - 7)
    error, roughest = c - o, (own**2).mean((1, 2, 3, 4)).max()
    assert found.rms_ratio == pytest.approx(math.sqrt((error**2).mean() / roughest), rel=1e-6)
    for q, value in found.ulp_quantiles.items():
        expected = np.quantile(np.abs(error) / ulp, float(q), method="inverted_cdf")
        assert value == pytest.approx(expected, rel=1e-6)
    assert found.bias.ulp == pytest.approx(np.clip(error * np.sign(o) / ulp, -1, 1).mean(), rel=1e-6)
    assert found.bias.gain_eps == pytest.approx((error * o).sum() / (o * o).sum() * 128, rel=1e-6)
    by_head = (error**2).mean((0, 2, 3)) / (own**2).mean((0, 1, 3, 4))
    assert found.worst_head.index == (by_head.argmax(),)
    assert found.worst_head.rms_ratio == pytest.approx(math.sqrt(by_head.max()), rel=1e-6)


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
        (torch.zeros_like, "no yardstick shares"),
    ],
)
def test_planted_faults_are_caught_and_named(dtype, plant, points_to):
    fused, reference, yardsticks = stand(7, dtype)
    found = assess(plant(fused), reference, yardsticks)
    assert found.verdict == WORSE
    assert any(points_to in reason for reason in found.reasons), found.reasons


@pytest.mark.parametrize("dtype", HALVES)
def test_truncation_is_caught_and_named(dtype):
    _, reference, yardsticks = stand(7, dtype)
    found = assess(truncated(reference, dtype), reference, yardsticks)
    assert found.verdict == WORSE
    assert any("truncation" in reason for reason in found.reasons)
    assert found.bias.ulp == pytest.approx(-0.5, abs=0.02)


@pytest.mark.parametrize("coarse", [torch.bfloat16, torch.float16])
def test_another_format_posing_as_float32_is_caught_and_named(coarse):
    fused, reference, yardsticks = stand(7, torch.float32)
    found = assess(fused.to(coarse).float(), reference, yardsticks)
    assert found.verdict == WORSE
    assert any("another format posing" in reason for reason in found.reasons)
    assert found.rms_ratio > 100


def test_stochastic_rounding_is_one_more():
    fused, reference, _ = stand(7)
    down = truncated(reference, torch.float16)
    up = torch.nextafter(down, torch.copysign(torch.full_like(down, math.inf), reference.half()))
    share = (reference - down.double()) / (up.double() - down.double())
    draw = torch.rand(share.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = assess(torch.where(draw < share, up, down), reference, [fused, reference.half(), reference])
    assert found.verdict == ONE_MORE  # its variance is twice that of rounding
    assert any("no yardstick shares" in reason for reason in found.reasons)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_an_honest_order_that_rounds_once_more_is_told_from_a_fault(dtype):
    """A bias added after the product was stored; a bias of another channel is a fault."""
    x, w, b = operands(5, dtype, (1, 1, 128, 128))
    b = b[0, 0, 0]

    def linear(x, w, b):
        return torch.nn.functional.linear(x[0, 0], w[0, 0], b)

    reference = linear(x.double(), w.double(), b.double())
    held_to = HonestRange(reference, operation_yardsticks(linear, x, w, b), dtype)
    assert held_to.assess(linear(x.float(), w.float(), b.float()).to(dtype)).verdict == EXPECTED
    assert held_to.assess(linear(x, w, torch.zeros_like(b)) + b).verdict in (ONE_MORE, EXPECTED)
    assert held_to.assess(linear(x, w, b.roll(1))).verdict == WORSE


def in_tiles(q, k, v, *, of_sum=slice(None)):
    """As FlashInfer has it: tiles of 16 keys, their sum by a product of stored weights with ones."""
    found = []
    for one, x, y in zip(q[0], k[0], v[0], strict=True):
        result, total, top = torch.zeros(64, 48), torch.zeros(64), torch.full((64,), -math.inf)
        for tile in range(0, 64, 16):
            logits = one.float() @ x[tile : tile + 16].float().mT * 48**-0.5
            newest = torch.maximum(top, logits.amax(1))
            weights = (logits - newest[:, None]).exp().to(q.dtype).float()
            fade, top = (top - newest).exp(), newest
            total = total * fade + weights[:, of_sum] @ torch.ones(16)[of_sum]
            result = result * fade[:, None] + weights @ y[tile : tile + 16].float()
        found.append((result / total[:, None]).to(q.dtype))
    return torch.stack(found)[None]


@pytest.mark.parametrize("dtype", HALVES)
def test_kernels_that_sum_stored_weights_scale_keys_or_turn_round_are_honest(dtype):
    (q, k, v), (_, reference, yardsticks) = operands(11, dtype), stand(11, dtype)
    scale, held_to = 48**-0.5, HonestRange(reference, yardsticks, dtype)
    turned = (v.mT @ (k @ q.mT * scale).softmax(-2)).mT
    for candidate in (in_tiles(q, k, v), (q @ (k * scale).mT).softmax(-1) @ v, turned):
        assert held_to.assess(candidate).verdict == EXPECTED
    fewer = in_tiles(q, k, v, of_sum=slice(15))  # the last key of each tile is not in the sum
    assert held_to.assess(fewer).verdict == WORSE
    coarse = float(torch.tensor(scale).to(torch.float8_e5m2))
    assert held_to.assess((q @ (k * coarse).mT).softmax(-1) @ v).verdict == WORSE


def test_flushed_subnormals_are_caught_and_named():
    fused, reference, yardsticks = stand(7)
    reference = reference * 2.0**-13
    small = {name: y * 2.0**-13 for name, y in yardsticks.items()}
    honest = (fused.double() * 2.0**-13).half()
    assert assess(honest, reference, small).verdict == EXPECTED
    found = assess(torch.where(honest.abs() < 2.0**-14, 0.0, honest), reference, small)
    assert found.verdict == WORSE
    assert any("flushed" in reason for reason in found.reasons)


def test_the_yardsticks_are_needed_as_they_are():
    """A coarser candidate passes beside coarser yardsticks, and not beside exact ones."""
    _, reference, yardsticks = stand(7, torch.bfloat16)
    plain = yardsticks["stored"].bfloat16()
    assert assess(plain, reference, yardsticks).verdict == EXPECTED
    assert assess(plain, reference, [reference, reference.bfloat16()]).verdict == WORSE


def test_nan_and_infinity():
    fused, reference, yardsticks = stand(2)
    bad = fused.clone()
    bad[0, 1, 2, 3], bad[0, 1, 2, 4] = math.nan, math.inf
    found = assess(bad, reference, yardsticks)
    assert found.verdict == NON_FINITE
    assert (found.non_finite.invented, found.non_finite.hidden, found.non_finite.first) == (2, 0, (0, 0, 1, 2, 3))
    assert found.elements == fused.numel() - 2
    assert found.reasons[0].startswith("2 elements are NaN or infinite where the reference is finite")
    json.dumps(found.to_dict(), allow_nan=False)


def test_nan_set_to_zero_is_caught():
    fused, reference, yardsticks = stand(2)
    reference[0, 0, :, 5] = math.nan
    hidden = fused.clone()
    hidden[0, 0, :, 5], fused[0, 0, :, 5] = 0.0, math.nan
    found = assess(hidden, reference, yardsticks)
    assert found.verdict == NON_FINITE
    assert (found.non_finite.hidden, found.non_finite.hidden_zero, found.non_finite.invented) == (64, 64, 0)
    assert "64 elements are finite where the reference is NaN or infinite, 64 of them zero" in found.reasons[0]
    assert assess(fused, reference, yardsticks).verdict == EXPECTED  # NaN where it belongs


def test_overflow_of_the_format_is_expected_of_it():
    _, reference, yardsticks = stand(2)
    reference = reference.clone()
    reference[0, 0, 0, 0] = 1e6
    candidate = reference.half()
    found = assess(candidate, reference, yardsticks)
    assert candidate[0, 0, 0, 0].isinf()
    assert (found.verdict, found.non_finite.overflowed, found.non_finite.invented) == (EXPECTED, 1, 0)


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
    pooled = assess([candidate] * 2, [reference] * 2, [[plain] * 2], on_cast_inputs=[on_cast] * 2)
    assert pooled.split.total_mse == pytest.approx(split.total_mse, rel=1e-12)
    assert assess(candidate, reference, plain).split is None


def test_pooling_sees_a_smaller_gain():
    """A gain that some single calls hide in their noise shows in eight."""
    runs = [stand(seed) for seed in range(20, 28)]
    reference, by_call = [o for _, o, _ in runs], [one for *_, one in runs]
    held_to = HonestRange(reference, by_call, torch.float16)
    by_name = {name: [one[name] for one in by_call] for name in by_call[0]}
    gained = [(o * (1 + 1.5e-4)).half() for o in reference]
    by_call[-1] = {name: one for name, one in by_call[-1].items() if name != "online"}  # which drops it of all calls
    alike = [HonestRange(reference, one, torch.float16).assess(gained) for one in (by_name, by_call)]
    assert alike[0] == held_to.assess(gained) != alike[1]
    found = held_to.assess([(o * (1 + 1.5e-4)).half() for _, o, _ in runs])
    assert (found.calls, found.verdict) == (8, WORSE)
    single = assess((runs[0][1] * (1 + 1.5e-4)).half(), *runs[0][1:])
    assert single.statistics["gain"] < 0.8 * found.statistics["gain"]
    assert found.bias.gain_eps == pytest.approx(1.5e-4 * 1024, rel=0.2)
    assert held_to.assess([c for c, *_ in runs]).verdict == EXPECTED


def test_what_could_not_be_seen_is_said():
    fused, reference, yardsticks = stand(9)
    found = assess(fused, reference, yardsticks)
    assert found.undetectable.startswith("with 256 rows, noise of up to")
    noise = float(found.undetectable.split("up to ")[1].split(" ")[0])
    drawn = torch.randn(reference.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    roughest = max(float((y.half().double() - reference).square().mean().sqrt()) for y in yardsticks.values())
    above = (fused.double() + 2.0 * noise * roughest * drawn).half()
    assert assess(above, reference, yardsticks).verdict != EXPECTED


# ---- invariants, on drawn inputs


def drawn(seed, dtype, peak, rows):
    """Attention that averages, or finds one key, or has one large channel."""
    q, k, v = operands(seed, dtype, (1, 2, 32, 16))
    v = v.clone()
    v[..., 0] *= 30.0 if seed % 2 else 1.0
    q = (q * peak)[:, :, :rows]
    return q, k, v, attention(q.double(), k.double(), v.double())


INPUTS = {
    "seed": st.integers(0, 2**20),
    "dtype": st.sampled_from([*HALVES, torch.float32]),
    "peak": st.sampled_from([0.1, 1.0, 20.0]),
    "rows": st.sampled_from([1, 5, 32]),
}


@settings(max_examples=12)
@given(**INPUTS, alone=st.booleans())
def test_what_equals_a_yardstick_bit_for_bit_passes(seed, dtype, peak, rows, alone):
    q, k, v, reference = drawn(seed, dtype, peak, rows)
    yardsticks = attention_yardsticks(q, k, v)
    chosen = list(yardsticks.values())[seed % len(yardsticks)].to(dtype)
    assert assess(chosen, reference, chosen if alone else yardsticks).verdict == EXPECTED


@settings(max_examples=12)
@given(**INPUTS, share=st.sampled_from([0.0, 0.3, 0.9, 1.1]), gain=st.sampled_from([1.0, 1.004]))
def test_what_errs_less_than_a_yardstick_in_every_statistic_passes(seed, dtype, peak, rows, share, gain):
    """A part of a yardstick's error is left, or grown, with or without a gain."""
    q, k, v, reference = drawn(seed, dtype, peak, rows)
    yardsticks = attention_yardsticks(q, k, v, backends=False)
    held_to = HonestRange(reference, yardsticks, dtype)
    candidate = (reference + share * (yardsticks["scaled query"].double() - reference)) * gain
    found = held_to.assess(candidate.to(dtype))
    highest = held_to.highest
    if all(value <= highest[name] for name, value in found.statistics.items()):
        assert found.verdict == EXPECTED
    assert (found.verdict == EXPECTED) == all(value <= found.limits[name] for name, value in found.statistics.items())
    assert all(found.limits[name] >= highest[name] for name in highest)


@settings(max_examples=12)
@given(**INPUTS)
def test_a_yardstick_that_is_given_twice_changes_nothing(seed, dtype, peak, rows):
    q, k, v, reference = drawn(seed, dtype, peak, rows)
    yardsticks = attention_yardsticks(q, k, v, backends=False)
    once, twice = HonestRange(reference, yardsticks, dtype), HonestRange(reference, [*yardsticks.values()] * 2, dtype)
    assert once.highest == twice.highest
    candidate = (reference * 1.003).to(dtype)
    found, again = once.assess(candidate), twice.assess(candidate)
    assert (found.limits, found.statistics, found.held_to) == (again.limits, again.statistics, again.held_to)


def as_limited(found):
    """Statistics on the scale of a limit's margin."""
    offsets = {statistic.name: statistic.offset for statistic in STATISTICS}
    return {name: math.log(value + offsets[name]) for name, value in found.statistics.items()}


@settings(max_examples=12)
@example(seed=1, dtype=torch.float16, peak=1.0, rows=32, power=0, gain=1.003)
@example(seed=0, dtype=torch.float16, peak=20.0, rows=5, power=0, gain=1.003)
@given(**INPUTS, power=st.integers(-3, 4), gain=st.sampled_from([1.0, 1.0, 1.003]))
def test_scale_sign_and_the_order_of_rows_and_heads_change_nothing(seed, dtype, peak, rows, power, gain):
    q, k, v, reference = drawn(seed, dtype, peak, rows)
    yardsticks = attention_yardsticks(q, k, v, backends=False)
    candidate = (attention(q.float(), k.float(), v.float()) * gain).to(dtype)
    found = assess(candidate, reference, yardsticks)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    least_margin = min(statistic.margin[0] for statistic in STATISTICS)
    moves = [lambda t: -t, lambda t: t[:, :, order], lambda t: t.flip(1)]
    if dtype != torch.float16:  # small outputs leave its normal numbers, below which the grid does not scale with them
        moves.append(lambda t: t * 2.0**power)
    for move in moves:
        again = assess(move(candidate), move(reference), {name: move(y) for name, y in yardsticks.items()})
        assert again.verdict == found.verdict
        # half formats are judged in float32: sums and the fit to the yardsticks hang on the order, 0.028 was seen
        assert as_limited(again) == pytest.approx(as_limited(found), abs=least_margin)


def test_errors():
    reference = torch.tensor([1.0, 2.0], dtype=torch.float64)
    half = reference.half()
    for given_, match in (
        ((half, reference, half[:1]), r"yardstick 'yardstick' holds 1 tensors for 1 calls .* shapes \(1,\), \(2,\)"),
        ((half, reference.float(), half), r"the reference is torch.float32; expected torch.float64"),
        ((half, reference, reference.bfloat16()), r"the yardstick 'yardstick' is torch.bfloat16"),
        ((reference, reference, reference), r"candidate is float64; expected one of float16, bfloat16, float32"),
        ((half[:0], reference[:0], half[:0]), "nothing to judge in shape"),
        (([half, half], [reference], half), "candidate holds 2 tensors for 1 calls"),
        (([], [], []), "the candidate holds NoneType"),
        ((half, reference, []), "found no yardsticks"),
        ((half, reference, [[]]), "yardstick '1' holds no tensor"),
        (([1.0], [reference], half), "holds float"),
        ((half * math.nan, reference * math.nan, half), "no element is finite"),
    ):
        with pytest.raises(ParameterError, match=match):
            assess(*given_)
    with pytest.raises(ParameterError, match=r"on_cast_inputs is torch\.float32; expected torch\.float64"):
        assess(half, reference, half, on_cast_inputs=reference.float())
    with pytest.raises(ParameterError, match=r"the operands are torch\.float16, torch\.float32"):
        attention_yardsticks(half, half, reference.float())
    with pytest.raises(ParameterError, match=r"the operands are torch\.float64"):
        operation_yardsticks(torch.neg, reference)
