import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from precision_eval.core import formats
from precision_eval.core.errors import ParameterError, UnknownNameError
from precision_eval.core.formats import FORMATS, cast_account, format_by_name, support, ulp

PATTERNS = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)


@pytest.mark.parametrize("entry", FORMATS, ids=lambda f: f.name)
def test_constants_are_torchs(entry):
    info = torch.finfo(getattr(torch, entry.name))
    assert (entry.bits, entry.eps, entry.largest, entry.smallest_normal) == (info.bits, info.eps, info.max, info.tiny)
    assert entry.smallest_subnormal == torch.tensor(info.tiny, dtype=torch.float64).item() * info.eps


def test_ulp_by_hand():
    x = torch.tensor([1.0, 1.5, 2.0, -1000.0, 65504.0, 1e9, 2.0**-14, 2.0**-15, 1e-9, 0.0], dtype=torch.float64)
    expected = [2**-10, 2**-10, 2**-9, 0.5, 32.0, 32.0, 2**-24, 2**-24, 2**-24, 2**-24]
    assert ulp(x, "float16").tolist() == expected
    assert ulp(torch.tensor([1.0, 1000.0]), "bfloat16").tolist() == [2**-7, 4.0]
    assert ulp(torch.tensor([math.inf, math.nan]), "float32").isnan().all()


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("float32", np.float32), ("float64", np.float64)])
def test_ulp_is_numpys_spacing(name, dtype):
    rng = np.random.default_rng(0)
    limit = {"float16": 15.9, "float32": 127.9, "float64": 1023.9}[name]
    x = (rng.choice([-1, 1], 5000) * 2.0 ** rng.uniform(-1.1 * limit, limit, 5000)).astype(dtype)
    found = ulp(torch.from_numpy(x), name).numpy()
    np.testing.assert_array_equal(found, np.spacing(np.abs(x)).astype(np.float64))


def decode(pattern, name):
    """Value of one bit pattern from the definition of the format, without torch or numpy."""
    entry = format_by_name(name)
    fraction_bits = entry.significand_bits - 1
    sign = -1.0 if pattern >> 15 else 1.0
    exponent, fraction = (pattern & 0x7FFF) >> fraction_bits, pattern & ((1 << fraction_bits) - 1)
    if exponent == 2 * entry.max_exponent + 1:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * fraction * entry.smallest_subnormal
    return sign * (1 + fraction * entry.eps) * 2.0 ** (exponent - entry.max_exponent)


def account_by_hand(source, target):
    """Round every one of the 65,536 patterns to nearest even, in exact arithmetic on Python floats."""
    entry = format_by_name(target)
    counts = dict.fromkeys(("exact", "rounded", "subnormal", "flushed", "overflowed", "non_finite"), 0)
    for pattern in range(1 << 16):
        x = abs(decode(pattern, source))
        if not math.isfinite(x):
            counts["non_finite"] += 1
            continue
        exponent = max(math.frexp(x)[1] - 1, entry.min_exponent) if x else entry.min_exponent
        unit = 2.0 ** (exponent + 1 - entry.significand_bits)
        y = round(x / unit) * unit  # Python rounds half to even, and the quotient is exact
        if y > entry.largest:
            counts["overflowed"] += 1
        elif y == x:
            counts["exact"] += 1
        elif y == 0:
            counts["flushed"] += 1
        elif y < entry.smallest_normal:
            counts["subnormal"] += 1
        else:
            counts["rounded"] += 1
    return counts


@pytest.mark.parametrize(("source", "target"), [("float16", "bfloat16"), ("bfloat16", "float16")])
def test_every_pattern_of_one_half_format_cast_to_the_other(source, target):
    tensor = PATTERNS.view(getattr(torch, source))
    found = asdict(cast_account(tensor, target))
    assert found.pop("total") == 1 << 16
    assert found == account_by_hand(source, target)
    assert sum(found.values()) == 1 << 16


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
@pytest.mark.parametrize("target", ["float32", "float64"])
def test_widening_is_exact(source, target):
    found = cast_account(PATTERNS.view(getattr(torch, source)), target)
    assert found.exact + found.non_finite == found.total
    assert found.non_finite == {"float16": 2 * 1024, "bfloat16": 2 * 128}[source]


def test_each_category_from_float32_and_float64():
    x = [0.0, 1.0, 1.0001, 65504.0, 65519.0, 65520.0, 1e-8, 3e-8, 6e-8, 2.0**-24, math.inf, -math.inf, math.nan]
    # to float16: 65519 rounds to 65504, 65520 to infinity; 1e-8 and 3e-8 are at or above half of 2**-24 or not
    for dtype in (torch.float32, torch.float64):
        found = cast_account(torch.tensor(x, dtype=dtype), "float16")
        assert found == formats.CastAccount(13, 4, 2, 2, 1, 1, 3)
    found = cast_account(torch.tensor([1e-40, 1e-46, 1e39, 0.1, 0.5], dtype=torch.float64), "float32")
    assert found == formats.CastAccount(5, 1, 1, 1, 1, 1, 0)


def test_a_planted_fault_in_the_cast_is_counted():
    x = torch.linspace(1, 2, 1001)
    good = cast_account(x, "float16")
    assert good.rounded > 0
    assert cast_account(x.half().float(), "float16").rounded == 0


def test_errors():
    with pytest.raises(ParameterError, match=r"needs a floating tensor, found torch\.int64"):
        cast_account(torch.arange(3), "float16")
    with pytest.raises(UnknownNameError, match="did you mean bfloat16"):
        support("cpu", "bfloat61")
    with pytest.raises(ParameterError, match="no device that torch knows"):
        support("gpu", "float16")


def test_cpu_support_follows_the_processors_flags(monkeypatch):
    assert support("cpu", "float64").kind == support("cpu", "float32").kind == "native"
    monkeypatch.setattr(formats, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    assert support("cpu", "bfloat16").kind == "native"
    found = support("cpu", "float16")
    assert (found.kind, "computed in float32" in found.reason) == ("emulated", True)


def test_a_t4_only_emulates_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert support("cuda", "bfloat16") == formats.Support("emulated", "compute capability 7.5 is below 8.0")
    assert support("cuda", "float16").kind == "native"
    assert support("cuda:3", "float16") == formats.Support("absent", "torch sees 1 CUDA devices")


@pytest.mark.cuda
def test_cuda_support_of_this_machine():
    native = torch.cuda.get_device_capability()[0] >= 8
    assert (support("cuda", "bfloat16").kind == "native") is native
