"""Settings of the arithmetic: attention written out is attention, and torch's switches are as they were."""

import inspect

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import _utils

from precision_eval.core.errors import UnknownNameError, UnsupportedError
from precision_eval.fixes.compute import SETTINGS, computed_as


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("setting", ["scores_stored", "softmax_float32", "scores_float32", "flex", "batch_invariant"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": drawn(5, 5, seed=4) > -1.5},
        {"attn_mask": drawn(5, 5, seed=4).float()},
        {"enable_gqa": True},
    ],
    ids=str,
)
def test_written_out_is_attention(setting, options):
    heads = 2 if "enable_gqa" in options else 4
    q, k, v = (drawn(2, n, 5, 8, seed=i, dtype=torch.float32) for i, n in enumerate((4, heads, heads)))
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    with computed_as(setting):
        found = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_only_float32_scores_outlive_halfs_range():
    q, k, v = (drawn(1, 1, 4, 64, seed=i, dtype=torch.float16) * scale for i, scale in enumerate((100, 100, 1)))
    finite = {}
    for setting in ("scores_stored", "softmax_float32", "scores_float32"):
        with computed_as(setting):
            finite[setting] = bool(F.scaled_dot_product_attention(q, k, v, scale=1.0).isfinite().all())
    assert finite == {"scores_stored": False, "softmax_float32": False, "scores_float32": True}


def switches():
    return (
        torch.get_float32_matmul_precision(),
        torch.get_deterministic_debug_mode(),
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
    )


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name])
def test_switches_are_put_back(setting):
    before = switches()
    with computed_as(setting):
        moved = switches() != before
    assert moved == setting.startswith(("half", "matmul", "deterministic"))
    assert switches() == before


@pytest.mark.skipif(
    "allow_lowp_kv" not in inspect.signature(_utils._validate_sdpa_input).parameters,
    reason="older flex attention wants one dtype",
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_flex_takes_a_cache_narrower_than_the_query(dtype):
    q, k, v = (drawn(2, 4, rows, 16, seed=i, dtype=torch.float32) for i, rows in enumerate((1, 9, 9)))
    k, v = k.to(dtype), v.to(dtype)
    with pytest.raises(RuntimeError, match="same dtype"):
        F.scaled_dot_product_attention(q, k, v)
    with computed_as("flex"):
        found = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k.float(), v.float()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["math", "flash"])
def test_a_pinned_kernel_is_the_one_that_runs(backend):
    q = drawn(1, 2, 8, 16, dtype=torch.float32)
    with computed_as(f"sdpa_{backend}"), torch.profiler.profile() as profile:
        F.scaled_dot_product_attention(q, q, q)
    ran = {event.key for event in profile.key_averages() if "scaled_dot_product" in event.key}
    assert any({"math": "attention_math", "flash": "flash_attention"}[backend] in name for name in ran), ran


def test_batch_invariant_gives_each_row_what_it_has_alone():
    x, weight, bias = (
        drawn(*shape, seed=i, dtype=torch.float32) for i, shape in enumerate([(7, 3, 96), (50, 96), (50,)])
    )
    y, z = (drawn(7, 5, 96, seed=i, dtype=torch.float32) for i in (5, 6))
    with computed_as("batch_invariant"):
        whole = F.linear(x, weight, bias), x @ z.mT, F.scaled_dot_product_attention(x, y, z)
    for row in range(len(x)):
        one = slice(row, row + 1)
        alone = (
            F.linear(x[one], weight, bias),
            x[one] @ z[one].mT,
            F.scaled_dot_product_attention(x[one], y[one], z[one]),
        )
        for found, expected in zip(whole, alone, strict=True):
            assert torch.equal(found[one], expected)


def test_what_is_not_known_is_refused():
    with pytest.raises(UnknownNameError, match="softmax_float32"):
        computed_as("softmax_float3")
    for setting in ("scores_stored", "flex"):
        with computed_as(setting), pytest.raises(UnsupportedError, match=r"dropout_p 0\.1"):
            F.scaled_dot_product_attention(*(drawn(1, 1, 2, 4),) * 3, dropout_p=0.1)
