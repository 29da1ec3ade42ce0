"""Settings of the arithmetic: attention written out is attention, and torch's switches are as they were."""

import pytest
import torch
from torch.nn import functional as F

from precision_eval.core.errors import UnknownNameError, UnsupportedError
from precision_eval.fixes.compute import SETTINGS, computed_as


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("setting", ["scores_stored", "softmax_float32", "scores_float32"])
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
    assert moved == (not setting.startswith(("scores", "softmax")))
    assert switches() == before


def test_what_is_not_known_is_refused():
    with pytest.raises(UnknownNameError, match="softmax_float32"):
        computed_as("softmax_float3")
    with computed_as("scores_stored"), pytest.raises(UnsupportedError, match=r"dropout_p 0\.1"):
        F.scaled_dot_product_attention(*(drawn(1, 1, 2, 4),) * 3, dropout_p=0.1)
