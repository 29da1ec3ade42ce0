"""Settings of the arithmetic: attention written out is attention, and torch's switches are as they were."""

import pytest
import torch
from torch.nn import functional as F

from precision_eval.core.errors import UnknownNameError, UnsupportedError
from precision_eval.fixes.catalog import FIXES, MORE_FIXES
from precision_eval.fixes.compute import compute_with
from precision_eval.run.plan import Selection, make_plan


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


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
def test_written_out_is_attention(options):
    heads = 2 if "enable_gqa" in options else 4
    q, k, v = (drawn(2, n, 5, 8, seed=i, dtype=torch.float32) for i, n in enumerate((4, heads, heads)))
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    with compute_with("softmax_float32"):
        found = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_softmax_alone_is_in_float32():
    q, k, v = (drawn(1, 1, 4, 8, seed=i, dtype=torch.float16) for i in range(3))
    scores = torch.einsum("...qd,...kd->...qk", q, k)
    with compute_with("softmax_float32"):
        output = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    expected = torch.einsum("...qk,...kd->...qd", scores.softmax(-1, dtype=torch.float32).half(), v)
    assert torch.equal(output, expected)


@pytest.mark.parametrize("backend", ["math", "flash"])
def test_a_pinned_kernel_is_the_one_that_runs(backend):
    q = drawn(1, 2, 8, 16, dtype=torch.float32)
    with compute_with(f"sdpa_{backend}"), torch.profiler.profile() as profile:
        F.scaled_dot_product_attention(q, q, q)
    ran = {event.key for event in profile.key_averages() if "scaled_dot_product" in event.key}
    assert any({"math": "attention_math", "flash": "flash_attention"}[backend] in name for name in ran), ran


def test_what_is_not_known_is_refused():
    with pytest.raises(UnknownNameError, match="softmax_float32"):
        compute_with("softmax_float3")
    with compute_with("softmax_float32"), pytest.raises(UnsupportedError, match=r"dropout_p 0\.1"):
        F.scaled_dot_product_attention(*(drawn(1, 1, 2, 4),) * 3, dropout_p=0.1)


def test_more_fixes_are_measured_where_they_are_named():
    ids = [fix.id for fix in (*FIXES, *MORE_FIXES)]
    assert len(ids) == len(set(ids))

    def planned(*patterns):
        cells = make_plan(Selection(cases=("attention-decode",), sizes=("tiny",), fixes=patterns)).cells
        return {fix for cell in cells if cell.measure == "drift" for fix in cell.fixes}

    assert planned("*") == {fix.id for fix in FIXES if "eager" in fix.modes} - {"upstream"}
    assert planned("sdpa_*") == {fix for fix in ids if fix.startswith("sdpa_")}
    assert planned("*", "softmax_float32") == planned("*") | {"softmax_float32"}
