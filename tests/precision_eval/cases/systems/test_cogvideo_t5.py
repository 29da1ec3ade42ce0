import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from precision_eval.cases.systems import cogvideo_t5_model
from precision_eval.cases.systems.cogvideo_t5 import COGVIDEO_T5_ENCODER, COGVIDEO_T5_ENCODER_STOCK, SIZES
from precision_eval.cases.systems.cogvideo_t5_model import FusedNorm, StockNorm, clamped, gelu_new, relative_buckets
from precision_eval.fixes import fix_by_id

FUSED, STOCK = COGVIDEO_T5_ENCODER, COGVIDEO_T5_ENCODER_STOCK
NORM = r"^expected scalar type Float but found Half$"
LARGEST = 65504.0


def build(case=STOCK, size="tiny", seed=0):
    return case.build(size, device="cpu", seed=seed)


def status(case, fix_id, size="tiny", seed=0):
    built = build(case, size, seed)
    try:
        with fix_by_id(fix_id).applied(built.model) as call:
            return "passed" if call(*call.prepare(built.inputs)).isfinite().all() else "non_finite"
    except RuntimeError as error:
        return f"raised: {error}"


def test_published_sizes():
    full, cpu = SIZES["full"], SIZES["cpu"]
    assert dataclasses.astuple(full) == (24, 64, 64, 4096, 10240, 32128, 226, 60)
    assert (cpu.head_dim, cpu.vocabulary, cpu.tokens) == (full.head_dim, full.vocabulary, full.tokens)
    assert cpu.hidden / cpu.dim == full.hidden / full.dim
    assert cpu.heads * cpu.head_dim == cpu.dim


def test_only_wo_is_kept_in_float32():
    built = build(size="cpu")
    dtypes = {name: p.dtype for name, p in built.model.named_parameters()}
    assert {name for name, dtype in dtypes.items() if dtype is torch.float32} == {
        f"blocks.{block}.feed_forward.wo.weight" for block in range(2)
    }
    assert set(dtypes.values()) == {torch.float16, torch.float32}
    (ids,) = built.inputs
    assert ids.shape == (1, 226)
    assert ids[0, 59] == 1
    assert not ids[0, 60:].any()
    assert (ids[0, :59] > 1).all()


# ---- the report


@pytest.mark.parametrize("size", ["tiny", "cpu"])
def test_the_second_block_raises_the_reported_message(size):
    built = build(FUSED, size)
    finished, dtypes = [], []
    built.model.blocks[0].register_forward_hook(lambda _, __, out: finished.append(out.dtype))
    built.model.blocks[1].attention_norm.register_forward_pre_hook(
        lambda m, a: dtypes.append((a[0].dtype, m.weight.dtype))
    )
    with pytest.raises(RuntimeError, match=NORM):
        built.model(*built.inputs)
    assert finished == [torch.float32]
    assert dtypes == [(torch.float32, torch.float16)]


def test_both_norms_are_one_function_in_float64():
    """The stock encoder is held to transformers' own class by the tests of the adapters."""
    fused, stock = build(FUSED), build(STOCK)
    truth = stock.model.in_float64()(*stock.inputs)
    assert truth.dtype is torch.float64
    assert (fused.model.in_float64()(*fused.inputs) - truth).abs().max() < 1e-12


def test_upstream_is_the_stock_norm():
    fused, stock = build(FUSED), build(STOCK)
    assert "PR #45723" in fused.model.landed
    with fused.model.upstream():
        found = fused.model(*fused.inputs)
    assert torch.equal(found, stock.model(*stock.inputs))
    with pytest.raises(RuntimeError, match=NORM):
        fused.model(*fused.inputs)


# ---- the overflow that float32 in wo prevents


@pytest.mark.parametrize(("size", "seed"), [("tiny", 1), ("tiny", 2), ("tiny", 3), ("cpu", 0)])
def test_float16_overflows_and_wo_in_float32_does_not(size, seed):
    assert status(STOCK, "as_shipped", size, seed) == "passed"
    assert status(STOCK, "float16", size, seed) == "non_finite"


def watched(model):
    """Record what each block's feed-forward multiplies, writes and leaves: largest magnitudes, NaN if any is there."""
    seen = []

    def watch(name):
        return lambda _, __, out: seen.append((name, float(out.abs().max()), out.dtype))

    for block in model.blocks:
        block.feed_forward.wo.register_forward_pre_hook(
            lambda _, args: seen.append(("product", float(args[0].abs().max()), args[0].dtype))
        )
        block.feed_forward.wo.register_forward_hook(watch("wo"))
        block.register_forward_hook(watch("hidden"))
    return seen


def test_how_float16_comes_to_nan():
    built = build()
    seen = watched(built.model.half())
    built.model(*built.inputs)
    first, second = seen[:3], seen[3:]
    assert [value for _, value, _ in first][1:] == [math.inf, 64512.0]  # wo overflows, the clamp brings it back
    assert first[0][1] < LARGEST / 3
    assert second[0][1] == math.inf  # the norm, rescaled by the clamp, drives the product over
    assert math.isnan(second[1][1])
    assert math.isnan(second[2][1])  # which no clamp undoes


def test_a_missing_clamp_is_seen(monkeypatch):
    monkeypatch.setattr(cogvideo_t5_model, "clamped", lambda hidden: hidden)
    built = build()
    seen = watched(built.model.half())
    built.model(*built.inputs)
    assert seen[2][1] == math.inf


def test_the_clamp_by_hand():
    half = torch.tensor([1.0, -math.inf, 65504.0], dtype=torch.float16)
    assert clamped(half).tolist() == [1.0, -64512.0, 64512.0]
    assert clamped(half[[0, 2]]).tolist() == [1.0, 65504.0]
    assert math.isnan(clamped(torch.tensor([math.nan, math.inf], dtype=torch.float16))[0])
    for dtype in (torch.float32, torch.bfloat16):
        assert clamped(half.to(dtype))[1] == -math.inf


# ---- the norms


def norm_of(kind, weight):
    norm = kind(len(weight))
    norm.weight = torch.nn.Parameter(weight)
    return norm


@pytest.mark.parametrize("kind", [StockNorm, FusedNorm])
def test_norms_by_hand(kind):
    found = norm_of(kind, torch.tensor([1.0, 2.0], dtype=torch.float64))(
        torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    )
    expected = torch.tensor([[3.0, 8.0]], dtype=torch.float64) / math.sqrt(12.5 + 1e-6)
    assert torch.allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("given", "stored", "message"),
    [
        (torch.float32, torch.float16, "expected scalar type Float but found Half"),
        (torch.float16, torch.float32, "expected scalar type Half but found Float"),
        (torch.bfloat16, torch.float16, "expected scalar type BFloat16 but found Half"),
    ],
)
def test_the_fused_norm_refuses(given, stored, message):
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        norm_of(FusedNorm, torch.ones(8, dtype=stored))(torch.ones(2, 8, dtype=given))


def test_the_fused_norm_casts_under_autocast():
    norm = norm_of(FusedNorm, torch.ones(8, dtype=torch.float16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm(torch.ones(2, 8)).dtype is torch.bfloat16


# ---- positions and activation

FIRST_DISTANCES = (8, 12, 16, 23, 32, 46, 64, 91)  # of buckets 8 to 15: 8·√2ⁿ, rounded up


def bucket(distance):
    """By the table, not by logarithms."""
    far = 7 + sum(distance >= first for first in FIRST_DISTANCES)
    return distance if distance < 8 else far


def test_buckets_by_hand():
    found = relative_buckets(226)
    assert found[0].tolist() == [0] + [16 + bucket(key) for key in range(1, 226)]
    assert found[225].tolist() == [bucket(225 - key) for key in range(226)]
    assert found[100, [99, 100, 101, 92, 108]].tolist() == [1, 0, 17, 8, 24]
    assert torch.equal(found.diagonal(3), torch.full((223,), 19))


def test_a_bucket_off_by_one_is_seen(monkeypatch):
    built = build()
    truth = built.model.in_float64()(*built.inputs)
    right = cogvideo_t5_model.relative_buckets
    monkeypatch.setattr(cogvideo_t5_model, "relative_buckets", lambda *args: (right(*args) + 1).clamp(max=31))
    assert (built.model.in_float64()(*built.inputs) - truth).abs().max() > 1e-3


def test_gelu_new():
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    assert torch.allclose(gelu_new(x), F.gelu(x, approximate="tanh"), rtol=0, atol=1e-14)
    assert float(gelu_new(torch.tensor(1.0, dtype=torch.float64))) == pytest.approx(0.8411919906082768, abs=1e-15)
    large = torch.tensor([-100.0, 100.0, 520.0], dtype=torch.float16)
    assert gelu_new(large).tolist() == [0.0, 100.0, 520.0]  # though the cube is infinite
