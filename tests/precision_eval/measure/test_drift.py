import copy
import json
import math
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from precision_eval.cases.systems import case_by_id
from precision_eval.core.errors import UnsupportedError
from precision_eval.fixes import FIXES, fix_by_id
from precision_eval.measure import assess
from precision_eval.measure.drift import over_seeds, split_noise, tensor_drift
from precision_eval.measure.system_drift import attention_drift, exact_attention

CURES = [fix.id for fix in FIXES if fix.id not in ("as_shipped", "dynamo_fallback", "upstream")]


def wide(*values):
    return torch.tensor(values, dtype=torch.float64)


def drift_of(found, reference, **kwargs):
    return tensor_drift(found, reference, yardstick=reference.to(found.dtype), **kwargs)


def test_by_hand():
    # noise 0.5, 0, -1, 0 on 3, 4, -4, 3 (norm √50)
    found = drift_of(wide(3.5, 4, -5, 3).half(), wide(3, 4, -4, 3))
    assert found.rms_error == pytest.approx(math.sqrt(1.25 / 4), rel=1e-15)
    assert found.relative_error == pytest.approx(math.sqrt(1.25 / 50), rel=1e-15)
    assert found.relative_bias == pytest.approx((1.5 + 4) / 50, rel=1e-15)
    assert found.max_abs_error == 1.0
    # along the reference's sign: 0.5, 0, 1, 0: mean 0.375, standard deviation √(0.6875/3)
    assert found.bias_z == pytest.approx(0.375 / math.sqrt(0.6875 / 3 / 4), rel=1e-12)
    assert found.ulp_quantiles == {"0.5": 0.0, "0.99": 256.0, "1.0": 256.0}  # ULP at 4: 2**-8; at 3: 2**-9
    cosine = (3 * 3.5 + 16 + 20 + 9) / math.sqrt(50 * (12.25 + 16 + 25 + 9))
    assert found.cosine_distance == pytest.approx(1 - cosine, rel=1e-12)
    assert found.rms_ratio is None
    assert found.split is None


def test_what_is_not_finite_in_float64_holds_nothing_and_is_no_failure_of_the_suite():
    with pytest.raises(UnsupportedError, match="the reference itself is not finite"):
        tensor_drift(wide(1.0).half(), wide(math.inf), yardstick=wide(1.0).half())


def test_rounding_is_at_most_half_a_ulp_and_the_yardstick_is_one():
    reference = torch.randn(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = drift_of(reference.bfloat16(), reference)
    assert 0.24 < found.ulp_quantiles["0.5"] < 0.26  # uniform in [0, 1/2]
    assert 0.49 < found.ulp_quantiles["1.0"] <= 0.5
    assert found.rms_ratio == 1.0
    assert abs(found.bias_z) < 4


def test_the_split_closes_on_the_total_and_each_part_is_known():
    generator = torch.Generator().manual_seed(1)
    reference = torch.randn(2000, dtype=torch.float64, generator=generator)
    cast = reference + 1e-3 * torch.randn(2000, dtype=torch.float64, generator=generator)
    only_cast = split_noise(cast, reference, cast)
    assert (only_cast.compute_mse, only_cast.output_rounding_mse, only_cast.cross_mse) == (0, 0, 0)
    rounded = split_noise(cast.half(), reference, cast)
    assert rounded.compute_mse < 1e-32
    assert rounded.output_rounding_mse == pytest.approx(float((cast.half().double() - cast).square().mean()))
    for found in (cast.half(), (cast * 1.01).half(), cast.bfloat16() + 1):
        split = split_noise(found, reference, cast)
        parts = split.input_cast_mse + split.compute_mse + split.output_rounding_mse + split.cross_mse
        assert parts == pytest.approx(split.total_mse, rel=1e-12)
        assert split.total_mse == pytest.approx(float((found.double() - reference).square().mean()), rel=1e-12)


@pytest.mark.parametrize("case", ["attention-decode", "attention-prefill"])
def test_the_reference_is_torchs_attention_in_float64(case):
    for size in ("tiny", "dia") if case == "attention-decode" else ("tiny",):
        built = case_by_id(case).build(size, device="cpu", seed=1)
        m = built.model
        expected = F.scaled_dot_product_attention(
            built.inputs[0].double(), m.key.double(), m.value.double(), m.mask, scale=m.scale, enable_gqa=True
        )
        torch.testing.assert_close(exact_attention(built), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("fix_id", CURES)
def test_every_fix_on_attention(fix_id):
    built = case_by_id("attention-prefill").build("tiny", device="cpu", seed=1)
    with fix_by_id(fix_id).applied(copy.deepcopy(built.model)) as call:
        found = attention_drift(built, call)
        again = attention_drift(built, call)
    assert found == again
    json.dumps(asdict(found), allow_nan=False)
    low, high = {
        "query_to_half": (1e-5, 1e-3),
        "float16": (1e-5, 1e-3),
        "bfloat16": (5e-4, 1e-2),
        "autocast": (5e-4, 1e-2),
    }.get(fix_id, (1e-9, 1e-6))
    assert low < found.relative_error < high
    assert 0.2 < found.rms_ratio < 1.5  # a fused kernel keeps its scores in float32, the plain one in the dtype
    split = found.split
    parts = split.input_cast_mse + split.compute_mse + split.output_rounding_mse + split.cross_mse
    assert parts == pytest.approx(split.total_mse, rel=1e-9)
    assert found.assessment == {"verdict": "as expected of the format", "reasons": []}
    # stored operands are float32 and float16, so only a cast to less than that costs anything
    assert (split.input_cast_mse == 0) == (fix_id in ("kv_to_query", "full_float32"))


def test_a_fault_in_the_attention_that_runs_is_assessed(monkeypatch):
    """The planted fault: a kernel that answers 0.5 % too large."""
    built = case_by_id("attention-prefill").build("tiny", device="cpu", seed=1)
    plain = F.scaled_dot_product_attention
    monkeypatch.setattr(assess, "F", SimpleNamespace(scaled_dot_product_attention=plain))  # the yardsticks stay right
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **kwargs: plain(*args, **kwargs) * 1.005)
    with fix_by_id("query_to_half").applied(copy.deepcopy(built.model)) as call:
        found = attention_drift(built, call)
    assert found.assessment["verdict"] == "worse"
    assert len(found.assessment["reasons"]) == 2


def test_planted_faults_are_seen():
    built = case_by_id("attention-prefill").build("tiny", device="cpu", seed=1)
    reference = exact_attention(built)
    half = exact_attention(built, dict.fromkeys(("query", "key", "value"), "float16"))
    honest = tensor_drift(half.half(), reference, yardstick=half.half(), on_cast_inputs=half)
    gain = tensor_drift((half * 1.0005).half(), reference, yardstick=half.half(), on_cast_inputs=half)
    truncated = (half.half().double() - half).sign() == half.sign()
    down = torch.where(truncated, torch.from_numpy(np.nextafter(half.half().numpy(), np.float16(0))), half.half())
    biased = tensor_drift(down, reference, yardstick=half.half(), on_cast_inputs=half)
    assert abs(honest.bias_z) < 5
    assert gain.bias_z > 5
    assert gain.relative_bias == pytest.approx(5e-4, rel=0.1)
    assert biased.bias_z < -5
    assert biased.rms_ratio > 1.3 > honest.rms_ratio == 1
    assert gain.split.compute_mse > 100 * honest.split.compute_mse


def test_the_mean_over_seeds_by_hand():
    found = over_seeds([1e-3, 2e-3])
    half = 12.70620 * math.log(2.0) / 2.0  # Student's t at 97.5 %, one degree of freedom; s / sqrt(2) = log(2) / 2
    middle = math.sqrt(2.0) * 1e-3
    assert [found[f"relative_error{end}"] for end in ("_low", "", "_high")] == pytest.approx(
        [middle * math.exp(-half), middle, middle * math.exp(half)], rel=1e-5
    )
    assert (found["seeds"], found["relative_error_by_seed"]) == (2, [1e-3, 2e-3])
    assert over_seeds([1e-3]) == over_seeds([1e-3, 1e-3, 1e-3]) == over_seeds([0.0, 1e-3]) == {}


def test_the_interval_over_seeds_is_scipys():
    errors = np.exp(np.random.default_rng(0).normal(size=7)).tolist()
    logs, found = np.log(errors), over_seeds(errors)
    theirs = stats.t.interval(0.95, 6, loc=logs.mean(), scale=stats.sem(logs))
    assert np.log([found["relative_error_low"], found["relative_error_high"]]) == pytest.approx(theirs)
