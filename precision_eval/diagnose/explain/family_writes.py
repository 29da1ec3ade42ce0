"""Members of the family that writes into an existing tensor raise: index_put, index_copy, scatter, out=, gradients."""

from __future__ import annotations

from precision_eval.diagnose.explain.members import Member, Operand

_DESTINATION = Operand("destination", "storage", "the tensor written to; in decoding, the KV cache")
_SOURCE = Operand("source", "activation", "the values written")

WRITES: tuple[Member, ...] = (
    Member(
        id="index_put",
        sentences=(
            "Index put requires the source and destination dtypes match, got {destination} for the destination and "
            "{source} for the source",
        ),
        beginnings=("Index put requires the source and destination dtypes match",),
        ops=("index_put",),
        site="cache_write",
        operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        where="every device, eager; x[index_tensor] = y; a plain slice casts silently instead, fake tensors accept it",
        sources=("continue-revolution/sd-webui-animatediff #168", "zai-org/VisionReward #7"),
    ),
    Member(
        id="index_copy",
        sentences=(
            "index_copy_(): self and source expected to have the same dtype, but got (self) {destination} and "
            "(source) {source}",
        ),
        beginnings=("index_copy_(): self and source expected to have the same dtype",),
        ops=("index_copy",),
        site="cache_write",
        operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        where="every device; transformers' StaticCache writes with it",
        sources=("pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp (index_copy)",),
    ),
    Member(
        id="index_add",
        sentences=(
            "index_add_(): self ({destination}) and source ({source}) must have the same scalar type",
            "index_reduce_(): self ({destination}) and source ({source}) must have the same scalar type",
        ),
        ops=("index_add", "index_reduce"),
        site="cache_write",
        operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        where="every device; mixtures of experts gather their outputs with it",
        sources=("pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp (index_add)",),
    ),
    Member(
        id="scatter",
        sentences=(
            "scatter(): Expected self.dtype to be equal to src.dtype",
            "scatter_cuda_(): Expected self.dtype to be equal to src.dtype",
            "scatter_add(): Expected self.dtype to be equal to src.dtype",
            "gather(): Expected self.dtype to be equal to src.dtype",
        ),
        ops=("scatter", "scatter_add", "scatter_reduce"),
        site="cache_write",
        asks="values of the destination's dtype",
        where="every device; the sentence names no dtype; under autocast the two often come from different lists",
        sources=("pytorch/pytorch #51730", "flairNLP/flair #3651"),
    ),
    Member(
        id="masked_scatter",
        sentences=(
            "masked_scatter: expected self and source to have same dtypes but got{destination} and {source}",
            "masked_scatter: expected self and source to have same dtypes but got {destination} and {source}",
        ),
        beginnings=("masked_scatter: expected self and source to have same dtypes",),
        ops=("masked_scatter",),
        site="cache_write",
        operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        where="every device; merges image features into text embeddings; the first dtype sticks to 'got'",
        sources=("pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp (masked_scatter)",),
    ),
    Member(
        id="put",
        sentences=(
            "put_(): self and source expected to have the same dtype, but got self.dtype = {destination} and "
            "source.dtype = {source}",
        ),
        beginnings=("put_(): self and source expected to have the same dtype",),
        ops=("put",),
        site="cache_write",
        operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        where="every device",
        sources=("pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp (put_)",),
    ),
    Member(
        id="out",
        sentences=("Expected out tensor to have dtype {expected}, but got {destination} instead",),
        ops=("an operation with out=",),
        site="other",
        operands=(Operand("expected", "activation", "the result's dtype"), _DESTINATION),
        asks="an out= tensor of the result's dtype",
        where="every device",
        sources=("pytorch torchgen (structured kernels, resize_out)",),
    ),
    Member(
        id="gradient",
        sentences=(
            "attempting to assign a gradient with dtype '{source}' to a tensor with dtype '{destination}'",
            "attempting to assign a gradient with dtype '{source}' to a tensor with grad_dtype '{destination}'",
        ),
        ops=("Tensor.grad =",),
        site="gradient",
        operands=(Operand("source", "activation", "the gradient"), Operand("destination", "storage", "the parameter")),
        asks="a gradient of its parameter's dtype",
        where="every device; the form with grad_dtype is newer",
        sources=("pytorch torch/csrc/autograd/python_variable.cpp (THPVariable_set_grad)",),
    ),
    Member(
        id="found_dtype",
        sentences=("Found dtype {found} but expected {expected}",),
        ops=("an elementwise kernel or its backward",),
        site="gradient",
        operands=(
            Operand("found", "activation", "the operand that differs"),
            Operand("expected", "storage", "the dtype of the others"),
        ),
        asks="one dtype where a kernel does not promote",
        where="every device; binary_cross_entropy, optimisers, and in torch 2.6 backward passes of losses",
        sources=("Lightning-AI/pytorch-lightning #16303",),
    ),
)
