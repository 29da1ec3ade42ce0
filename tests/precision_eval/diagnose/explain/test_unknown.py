"""Texts that are no dtype mismatch are not claimed; real shape and device errors of the torch at hand among them."""

import pytest
import torch
from torch.nn import functional as F

from precision_eval.core.errors import ParameterError
from precision_eval.diagnose.explain import explain

OTHERS = [
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "RuntimeError: Expected query, key, and value to have the same device type, but got query.device: cuda:0 "
    "key.device: cpu and value.device: cpu instead.",
    "RuntimeError: Expected query, key, and value to all be  at least 2 dimensional, but got query.dim(): 1",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: result type Float can't be cast to the desired output type Long",
    "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'",
    "RuntimeError: CUDA error: device-side assert triggered",
    "RuntimeError: shape '[2, 3]' is invalid for input of size 5",
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation",
    "ValueError: Attempting to unscale FP16 gradients.",
    "RuntimeError: No available kernel. Aborting execution.",
    "RuntimeError: Unsupported dtype Half",
    "RuntimeError: mean(): could not infer output dtype. Got: Bool",
    "RuntimeError: could not create a primitive descriptor for the LSTM forward propagation primitive",
    "AssertionError: All tensors must have the same shape.",
    "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
    "RuntimeError: Expected key.size(1) == value.size(1) to be true, but got false.",
    "The dtype of query and key should agree, I think; mine are float and half.",
]

# the sentence is a member's, what it says is not: devices, shapes or integers
LOOK_ALIKES = [
    "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    "error: input types 'tensor<1x3x4xf32>' and 'tensor<5xf32>' are not broadcast compatible",
    "Expected tensor for argument #2 'weight' to have the same type as tensor for argument #1 'input'; but type "
    "torch.cuda.FloatTensor does not equal torch.FloatTensor (while checking arguments for cudnn_batch_norm)",
    "RuntimeError: expected scalar type Long but found Int",
]


@pytest.mark.parametrize("text", OTHERS)
def test_other_errors_are_not_claimed(text):
    found = explain(text)
    assert not found.known
    assert (found.member, found.op, found.causes, found.fixes) == (None, None, (), ())
    assert found.reason == "no sentence of the family is in the text"
    assert found.nearest is not None
    assert 0 <= found.nearest.likeness < 1


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_a_known_sentence_about_something_else_is_refused_with_its_reason(text):
    found = explain(text)
    assert not found.known
    assert found.reason.startswith("the sentence is that of '")


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


def test_the_nearest_sentence_is_that_of_a_near_miss():
    found = explain("RuntimeError: mat1 and mat2 must have the same shape, but got 2x3 and 4x5")
    assert found.nearest.sentence.startswith("mat1 and mat2 must have the same dtype")


@pytest.mark.parametrize("nothing", ["", "  \n", None, 3])
def test_nothing_to_explain_is_bad_input(nothing):
    with pytest.raises(ParameterError, match="expected an exception, or the text of its message"):
        explain(nothing)
