"""Texts that are no dtype mismatch are not claimed; real shape and device errors of the torch at hand among them."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from precision_eval.explain import explain

MESSAGES = json.loads(Path(__file__).with_name("messages.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", MESSAGES["others"])
def test_other_errors_are_not_claimed(text):
    found = explain(text)
    assert not found.known
    assert (found.member, found.op, found.causes, found.fixes) == (None, None, (), ())
    assert found.other or found.reason.startswith("no sentence of the family is in the text")


OTHERS = [
    (MESSAGES["on_cpu"], "devices", "index is on cpu, others on cuda:0"),
    ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
     "devices", "cuda:0 and cpu"),
    ("Input type (MPSBFloat16Type) and weight type (CPUBFloat16Type) should be the same", "devices", "MPS"),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", "shapes", "2x3 and 4x5"),
    ("RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
     "shapes", "3 and 4 in dimension 1"),
    ("RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans "
     "across two contiguous subspaces). Use .reshape(...) instead.", "strides", "contiguous"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "memory", "2.00 GiB"),
    ("RuntimeError: CUDA error: device-side assert triggered", "assert", "assertion"),
    ("IndexError: index out of range in self", "index", "out of range"),
    ("IndexError: index 12 is out of bounds for dimension 0 with size 10", "index", "12 in dimension 0 of size 10"),
    ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "card", "Ampere"),
]  # fmt: skip


OTHERS += [
    ("AssertionError: No inf checks were recorded for this optimizer.", "no_gradients", "backward"),
    ("ValueError: numpy.dtype size changed, may indicate binary incompatibility", "import", "another numpy"),
    ("`torch_dtype` is deprecated! Use `dtype` instead!", "renamed", "name"),
    ("RuntimeError: This flash attention build does not support headdim not being a multiple of 32.", "shapes", "32"),
]


@pytest.mark.parametrize(("text", "kind", "detail"), OTHERS)
def test_an_error_of_another_kind_is_named_with_its_next_step(text, kind, detail):
    found = explain(text)
    assert (found.known, found.other) == (False, kind)
    assert detail in found.reason
    lines = str(found).splitlines()
    assert lines[0].startswith("Not a dtype error: ")
    assert found.next_step.split()[0] in lines[1]


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: could not create a primitive descriptor for the matmul primitive.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, CUDA_R_16BF )`",
    ],
)
def test_what_may_be_of_dtypes_is_not_claimed_either_way(text):
    found = explain(text)
    assert not found.known
    assert str(found).startswith("Perhaps a dtype error: ")
    assert found.next_step


def test_a_notice_does_not_speak_for_an_error_that_is_unknown():
    notice = "UserWarning: TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled."
    assert explain(notice).kind == "notice"
    assert not explain(f"{notice}\nTraceback (most recent call last):\nRuntimeError: frobnicated\n").known


def test_an_unknown_text_that_names_a_format_gets_the_next_step():
    assert "precision-eval doctor" in explain("frobnication of a torch.float16 tensor is not allowed").next_step
    plain = explain("the frobnication of a must match")
    assert (plain.reason, plain.next_step) == ("no sentence of the family is in the text", None)


@pytest.mark.parametrize("text", MESSAGES["look_alikes"])
def test_a_known_sentence_about_something_else_is_refused_with_its_reason(text):
    """It is a member's, and speaks of devices, shapes or integers."""
    found = explain(text)
    assert not found.known
    assert found.other == "devices" or found.reason.startswith("the sentence is that of '")


SHAPES = [
    lambda: F.linear(torch.ones(2, 3), torch.ones(4, 5)),
    lambda: torch.bmm(torch.ones(1, 2, 3), torch.ones(1, 4, 5)),
    lambda: torch.ones(2, 3) + torch.ones(2, 4),
    lambda: F.scaled_dot_product_attention(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8)),
    lambda: F.conv1d(torch.ones(1, 3, 4), torch.ones(2, 2, 1)),
    lambda: F.layer_norm(torch.ones(2, 4), (3,)),
    lambda: torch.ones(4).index_copy_(0, torch.tensor([0, 1]), torch.ones(3)),
    lambda: torch.ones(2, device="meta") + torch.ones(2),
]


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_shape_and_device_errors_of_this_torch_are_not_claimed(number):
    with pytest.raises((RuntimeError, IndexError)) as caught:
        SHAPES[number]()
    assert not explain(caught.value).known


XFORMERS = """\
NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:
     query       : shape=(200, 9126, 1, 64) (torch.{dtype})
     key         : shape=(200, 9126, 1, 64) (torch.{dtype})
     value       : shape=(200, 9126, 1, 64) (torch.{dtype})
     attn_bias   : <class 'NoneType'>
     p           : 0.0
"""


def test_xformers_reasons_are_read_and_the_one_of_dtype_is_named():
    """`flshattF` refuses the format alone, `smallkF` the head's size too: the first is what a cast would reach."""
    found = explain(
        XFORMERS.format(dtype="float32")
        + "`flshattF@v2.5` is not supported because:\n"
        + "    dtype=torch.float32 (supported: {torch.float16, torch.bfloat16})\n"
        + "`smallkF` is not supported because:\n    max(query.shape[-1] != value.shape[-1]) > 32\n"
        + "    unsupported embed per head: 64\n"
    )
    assert (found.known, found.member) == (True, "xformers_none")
    assert "flshattF" in found.do
    assert "bfloat16 or float16" in found.do


def test_xformers_on_an_old_card_is_told_to_take_float16():
    found = explain(
        XFORMERS.format(dtype="bfloat16")
        + "`fa2F@v2.6.3` is not supported because:\n    requires device with capability > (8, 0) but your GPU has "
        "capability (7, 5) (too old)\n    bf16 is only supported on A100+ GPUs\n"
        "`cutlassF-pt` is not supported because:\n    bf16 is only supported on A100+ GPUs\n"
    )
    assert "cutlassF-pt: float16" in found.do
    assert {fix.fix: fix.verdict for fix in found.fixes}["bfloat16"] == "does_not_cure"


def test_xformers_reasons_without_a_dtype_are_no_dtype_error():
    found = explain(
        XFORMERS.format(dtype="float16")
        + "`fa2F@2.5.7-pt` is not supported because:\n    attn_bias type is <class 'torch.Tensor'>\n"
        "`cutlassF-pt` is not supported because:\n    attn_bias.stride(-2) % 8 != 0\n"
    )
    assert (found.known, found.other) == (False, "kernel")
    assert "attn_bias type" in found.reason
