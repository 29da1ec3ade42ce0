"""Pinned settings: what runs is what was pinned, what has no kernel is unsupported, and a record says so."""

import warnings
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from made_cells import cell as made_cell
from torch.nn import functional as F

from precision_eval.core.cells import Options, failure_of, sdpa_refusal
from precision_eval.core.errors import ParameterError, UnknownNameError, UnsupportedError
from precision_eval.fixes import pins
from precision_eval.fixes.apply import AppliedFix
from precision_eval.measure import generic
from precision_eval.measure.registry import run_cell
from precision_eval.run.plan import Selection, make_plan

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
needs_fused_cpu = pytest.mark.skipif(TORCH < (2, 13), reason="older ones fuse no grouped heads on the CPU")


def cell_of(measure, *fixes, backend, **rest):
    return made_cell(
        measure, *fixes, **({"case": "metavoice-decode", "budget_s": 0.05, "sdpa_backend": backend} | rest)
    )


def outcomes(tmp_path, *args, **kwargs):
    threads = torch.get_num_threads()
    try:
        return {found.fix: found for found in run_cell(cell_of(*args, **kwargs), tmp_path).outcomes}
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("backend", ["math", pytest.param("flash", marks=needs_fused_cpu)])
def test_the_trace_sees_the_pinned_backend(tmp_path, backend):
    found = outcomes(tmp_path, "trace", "bfloat16", backend=backend)["bfloat16"]
    assert (found.status, found.data["backend"]) == ("passed", backend)


@pytest.mark.slow
@needs_fused_cpu
def test_a_compiled_call_is_pinned_whatever_was_compiled_before(tmp_path):
    for backend in ("math", "flash", "math"):  # ahead-of-time autograd's cache would hand the first graph to the second
        torch._dynamo.reset()
        found = outcomes(tmp_path, "trace", "bfloat16", backend=backend, mode="compiled")["bfloat16"]
        assert (found.status, found.data["backend"]) == ("passed", backend), found.reason


@pytest.mark.parametrize("backend", ["cudnn", "efficient"])
@pytest.mark.parametrize("measure", ["trace", "drift", "memory", "latency"])
def test_a_backend_without_a_kernel_is_unsupported_with_torchs_words(tmp_path, backend, measure):
    found = outcomes(tmp_path, measure, "bfloat16", backend=backend)["bfloat16"]
    assert found.status == "unsupported"
    assert found.reason.startswith(("No viable backend for scaled_dot_product_attention", "No available kernel"))


def _warn_and_raise(error):
    warnings.simplefilter("always")
    with pins.pin_sdpa("math"):
        warnings.warn("Flash attention kernel not used because:", stacklevel=1)
        warnings.warn("unrelated", stacklevel=1)
        raise error


def test_what_torch_warns_of_is_the_reason_and_another_error_is_none():
    error = RuntimeError("No available kernel. Aborting execution.")
    assert sdpa_refusal(error) == "No available kernel: torch gives no further reason"
    with pytest.raises(RuntimeError), warnings.catch_warnings(record=True):
        _warn_and_raise(error)
    assert sdpa_refusal(error) == "No available kernel: Flash attention kernel not used because:"
    assert failure_of("bfloat16", error).status == "unsupported"
    assert sdpa_refusal(RuntimeError("mat1 and mat2 must have the same dtype")) is None


def test_a_pin_that_does_not_hold_is_found_out(tmp_path, monkeypatch):
    """Planted: the pin is not put around the call, so torch's own choice runs."""
    monkeypatch.setattr(AppliedFix, "around_call", lambda self: nullcontext())
    found = outcomes(tmp_path, "trace", "full_float32", backend="efficient")["full_float32"]
    assert found.status == "unsupported"
    assert "pinned to efficient, but" in found.reason


def test_a_call_without_attention_has_nothing_to_pin(tmp_path):
    found = outcomes(tmp_path, "trace", "full_float32", backend="math", case="imaginairy-time-embed")
    assert found["full_float32"].status == "unsupported"
    assert "no scaled_dot_product_attention" in found["full_float32"].reason


def test_the_reference_keeps_torchs_choice_and_drift_is_of_the_pinned_call(tmp_path, monkeypatch):
    seen = []
    real = F.scaled_dot_product_attention

    def noting(query, *args, **kwargs):
        seen.append((query.dtype, torch.backends.cuda.flash_sdp_enabled()))
        return real(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    found = outcomes(tmp_path, "drift", "bfloat16", backend="math")["bfloat16"]
    assert found.status == "passed", found.reason
    assert {flash for dtype, flash in seen if dtype is torch.float64} == {True}
    assert (torch.bfloat16, False) in seen


def test_latency_times_under_the_pin_and_leaves_the_flags_as_they_were(tmp_path, monkeypatch):
    flags = []
    real = generic.compare_latency

    def spying(candidates, **kwargs):
        for candidate in (*candidates.values(), kwargs["noise_floor"]):
            with candidate.block():
                flags.append((torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()))
        return real(candidates, **kwargs)

    monkeypatch.setattr(generic, "compare_latency", spying)
    found = outcomes(tmp_path, "latency", "bfloat16", "full_float32", backend="math")
    assert {one.status for one in found.values()} == {"passed"}
    assert flags == [(False, True)] * 3  # both candidates and the baseline's twin
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_baseline_that_the_backend_refuses_runs_free_and_the_data_say_so(tmp_path, monkeypatch):
    """A kernel for half formats alone, as flash is on CUDA."""
    real = F.scaled_dot_product_attention

    def halves_only(query, *args, **kwargs):
        if query.dtype is torch.float32 and not torch.backends.cuda.math_sdp_enabled():
            raise RuntimeError("No available kernel. Aborting execution.")
        return real(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", halves_only)
    found = outcomes(tmp_path, "latency", "bfloat16", "full_float32", backend="flash")
    assert found["bfloat16"].status == "passed", found["bfloat16"].reason
    assert any("ran with torch's own choice" in doubt for doubt in found["bfloat16"].data["doubts"])
    assert (found["full_float32"].status, found["full_float32"].data) == ("unsupported", None)  # not what ran free
    assert found["full_float32"].reason.startswith("No available kernel")


def test_ids_and_records_tell_pins_apart_and_plain_cells_are_as_before():
    pinned = cell_of("latency", "bfloat16", backend="math", tf32="on")
    plain = replace(pinned, options=Options())
    assert pinned.id == "metavoice-decode/bfloat16/eager@cpu:tiny,sdpa=math,tf32=on#latency"
    assert plain.id == "metavoice-decode/bfloat16/eager@cpu:tiny#latency"
    assert pinned.options.chosen(("seed", *pins.PINS)) == {"seed": 0, "sdpa_backend": "math", "tf32": "on"}
    assert plain.options.chosen(("seed", *pins.PINS)) == {"seed": 0}


def planned(**kwargs):
    return make_plan(Selection(cases=("metavoice-decode",), fixes=("bfloat16",), sizes=("tiny",), **kwargs))


def test_each_backend_has_cells_of_its_own_that_wait_for_their_own_trace():
    plan = planned(measures=("trace", "memory"), sdpa_backends=("any", "math"))
    assert [cell.options.sdpa_backend for cell in plan.cells] == [None, None, "math", "math"]
    assert all(before.count("sdpa=math") == cell.count("sdpa=math") for cell, b in plan.after.items() for before in b)
    assert sum(map(len, plan.after.values())) == 2


def test_bad_pins_are_named():
    with pytest.raises(UnknownNameError, match="unknown attention backend 'flsh'; did you mean flash"):
        planned(sdpa_backends=("flsh",))
    with pytest.raises(
        ParameterError, match="--set tf32=on is a mode of CUDA devices, the device is cpu; leave it out"
    ):
        planned(options=Options(tf32="on"))
    assert planned(options=Options(tf32="on"), device="auto").cells  # not known yet


def test_tf32_is_set_by_flags_that_agree_and_do_not_warn(monkeypatch):
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    operations = [getattr(cudnn, n) for n in ("conv", "rnn") if hasattr(getattr(cudnn, n, None), "fp32_precision")]
    before = [operation.fp32_precision for operation in operations]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for state, allowed in (("on", True), ("off", False)):
                pins.set_tf32(state, "cuda:0")
                assert torch.backends.cuda.matmul.allow_tf32 is allowed  # raises where the old and new flags differ
                assert {operation.fp32_precision for operation in operations} <= {"tf32" if allowed else "ieee"}
    finally:
        torch.set_float32_matmul_precision(precision)
        for operation, was in zip(operations, before, strict=True):
            operation.fp32_precision = was


def test_tf32_is_no_mode_of_amds_cards(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 4))
    with pytest.raises(UnsupportedError, match="a mode of NVIDIA's cards"):
        pins.set_tf32("on", "cuda:0")


@pytest.mark.cuda
@pytest.mark.filterwarnings("default")  # torch gives its reasons as warnings
@pytest.mark.parametrize("backend", list(pins.SDPA_BACKENDS))
def test_on_cuda_a_backend_runs_or_says_why_not(tmp_path, backend):
    cell = replace(cell_of("trace", "bfloat16", backend=backend), device="cuda:0")
    (found,) = run_cell(cell, tmp_path).outcomes
    assert found.status in ("passed", "unsupported"), found.reason
    if found.status == "passed":
        assert found.data["backend"] == backend
