"""The sampler by itself: exact in float64, coarse in half, and nothing of the model's own rounding in it."""

import pytest
import torch

from precision_eval.cases.systems import case_by_id
from precision_eval.core.errors import ParameterError
from precision_eval.measure.generic import sampler_drift


@pytest.fixture(scope="module")
def built():
    return case_by_id("metavoice-prefill").build("tiny", device="cpu", seed=5)


def test_float64_has_no_rounding_of_its_own(built):
    found = sampler_drift(built, torch.float64, settings=torch.float64)
    assert found["positions"] == built.inputs[0].shape[1]
    assert found["changed_nucleus"] == found["total_variation"] == found["cast_total_variation"] == 0.0
    assert found["kept"] == found["kept_in_float64"] >= 1.0


def test_fewer_bits_round_more(built):
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    by_dtype = [sampler_drift(built, dtype, settings=dtype) for dtype in dtypes]
    variations = [found["total_variation"] for found in by_dtype]
    assert variations == sorted(variations)
    assert 0.0 < variations[0] < 1e-4 < variations[-1] < 1.0
    assert all(0.0 <= found["changed_nucleus"] <= 1.0 for found in by_dtype)


def test_settings_have_a_dtype_of_their_own(built):
    coarse = sampler_drift(built, torch.float64, settings=torch.bfloat16)
    assert (coarse["dtype"], coarse["settings_dtype"]) == ("float64", "bfloat16")
    assert coarse["kept"] <= coarse["kept_in_float64"]  # top-p is 0.9492 then, so the nucleus can only lose tokens


def test_a_model_without_a_sampler_is_named():
    built = case_by_id("attention-decode").build("tiny", device="cpu", seed=0)
    with pytest.raises(ParameterError, match="CachedAttention has no sampler"):
        sampler_drift(built, torch.float16, settings=torch.float16)
