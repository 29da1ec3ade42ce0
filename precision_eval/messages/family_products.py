"""Members of the family that matrix products raise: Linear, mm, bmm, addmm, einsum and what is built on them."""

from __future__ import annotations

from .members import Member, Operand

_MAT1 = Operand("mat1", "activation", "the left factor; a Linear's input")
_MAT2 = Operand("mat2", "storage", "the right factor; a Linear's weight")
_SELF = Operand("self", "storage", "what the product is added to; a Linear's bias")

PRODUCTS: tuple[Member, ...] = (
    Member(
        id="mat1_mat2",
        sentences=(
            "mat1 and mat2 must have the same dtype, but got {mat1} and {mat2}",
            "mat1 and mat2 must have the same dtype",
        ),
        ops=("linear",),
        site="linear",
        operands=(_MAT1, _MAT2),
        asks="one dtype for input and weight",
        where="every device; a Linear with bias (addmm); the form without dtypes is older",
        sources=("pytorch/pytorch #105243", "huggingface/diffusers #4860"),
    ),
    Member(
        id="self_mat2",
        sentences=(
            "self and mat2 must have the same dtype, but got {self} and {mat2}",
            "self and mat2 must have the same dtype",
        ),
        ops=("addmm",),
        site="linear",
        operands=(_SELF, _MAT2),
        asks="one dtype for what is added and for the right factor",
        where="every device; a Linear whose bias has another dtype than its weight, addmm, addbmm",
        sources=("modelscope/ms-swift #2124", "modelscope/ms-swift #30"),
    ),
    Member(
        id="m1_m2",
        sentences=("expected m1 and m2 to have the same dtype, but got: {mat1} != {mat2}",),
        ops=("mm", "linear"),
        site="linear",
        operands=(_MAT1, _MAT2),
        asks="one dtype for both factors",
        where="CPU; a Linear without bias, mm, 2-D matmul",
        sources=("pytorch aten/src/ATen/native/LinearAlgebra.cpp (addmm_impl_cpu_)", "metavoiceio/metavoice-src #187"),
    ),
    Member(
        id="cuda_mat1_mat2",
        sentences=(
            "expected mat1 and mat2 to have the same dtype, but got: {mat1} != {mat2}",
            "expected mat1 and mat2 to have the same dtype, but got: {mat1}!= {mat2}",
        ),
        ops=("mm", "linear"),
        site="linear",
        operands=(_MAT1, _MAT2),
        asks="one dtype for both factors",
        where="CUDA; a Linear without bias, mm, 2-D matmul",
        sources=("hiyouga/LlamaFactory #4432", "ToTheBeginning/PuLID #162", "cubiq/ComfyUI_IPAdapter_plus #140"),
    ),
    Member(
        id="scalar_type",
        sentences=("expected scalar type {expected} but found {found}",),
        ops=(
            "bmm",
            "baddbmm",
            "mv",
            "layer_norm",
            "group_norm",
            "apex fused norm",
            "conv",
            "grid_sample",
            "nll_loss",
            "cross_entropy",
            "cdist",
        ),
        site="matmul",
        operands=(
            Operand("expected", "either", "the dtype of the operand that was read first, usually the input"),
            Operand("found", "either", "the dtype of the other, usually a weight or the right factor"),
        ),
        asks="one dtype for the operands that one kernel reads",
        where="many operations, apex's norms; mv up to 2.10; bmm while tracing from 2.12 on, as torch.float32",
        sources=("zai-org/CogVideo #170", "huggingface/transformers #34264", "pytorch/pytorch #173459"),
    ),
    Member(
        id="addmv",
        sentences=("addmv input tensors must have the same dtype, but got {self}, {mat1}, and {mat2}",),
        ops=("mv", "addmv"),
        site="matmul",
        operands=(_SELF, _MAT1, Operand("mat2", "storage", "the vector")),
        asks="one dtype for matrix, vector and what is added",
        where="CPU, from 2.12 on; matmul of a matrix and a vector",
        sources=("pytorch aten/src/ATen/native/Blas.cpp (addmv)",),
    ),
    Member(
        id="dot",
        sentences=("dot : expected both vectors to have same dtype, but found {left} and {right}",),
        ops=("dot",),
        site="matmul",
        operands=(Operand("left", "activation", "the left vector"), Operand("right", "storage", "the right vector")),
        asks="one dtype for both vectors",
        where="CPU and CUDA; dot, vdot, 1-D matmul",
        sources=("pytorch aten/src/ATen/native/Blas.cpp (dot_check)",),
    ),
    Member(
        id="tensordot",
        sentences=("both inputs should have same dtype",),
        ops=("tensordot", "inner"),
        site="matmul",
        asks="one dtype for both factors",
        where="every device; the sentence names no dtype",
        sources=("pytorch aten/src/ATen/native/Linear.cpp (tensordot)",),
    ),
    Member(
        id="multi_dot",
        sentences=(
            "multi_dot(): all tensors must have be the same dtype but tensor {#} is {left} and tensor {#} {right}",
        ),
        ops=("linalg.multi_dot",),
        site="matmul",
        operands=(Operand("left", "either", "the first factor"), Operand("right", "either", "another factor")),
        asks="one dtype for all factors",
        where="every device",
        sources=("pytorch aten/src/ATen/native/LinearAlgebra.cpp (multi_dot_impl)",),
    ),
    Member(
        id="baddbmm",
        sentences=(
            "Input dtypes must be the same, got: input {self}, batch1: {mat1}, batch2: {mat2}",
            "Input dtypes must be the same, got: input: {self}, batch1: {mat1}, batch2: {mat2}",
        ),
        ops=("baddbmm",),
        site="matmul",
        operands=(
            Operand("self", "storage", "what the product is added to; in attention, the bias or mask"),
            _MAT1,
            _MAT2,
        ),
        asks="one dtype for both factors and for what is added",
        where="every device; with 'input:' while tracing",
        sources=("pytorch aten/src/ATen/native/LinearAlgebra.cpp (baddbmm)",),
    ),
    Member(
        id="bilinear",
        sentences=(
            "All tensors must have the same dtype, got input1: {left}, input2: {right}, weight: {weight}, bias: {bias}",
        ),
        ops=("bilinear",),
        site="other",
        operands=(
            Operand("left", "activation", "the first input"),
            Operand("right", "activation", "the second input"),
            Operand("weight", "storage", "the weight"),
            Operand("bias", "storage", "the bias"),
        ),
        asks="one dtype for inputs, weight and bias",
        where="every device, newer versions",
        sources=("pytorch aten/src/ATen/native/Linear.cpp (bilinear)",),
    ),
    Member(
        id="linalg",
        sentences=(
            "Expected A and B to have the same dtype, but found A of type {left} and B of type {right} instead",
        ),
        ops=("linalg.solve", "linalg.solve_triangular", "linalg.lstsq"),
        site="other",
        operands=(Operand("left", "either", "the matrix A"), Operand("right", "either", "the right-hand side B")),
        asks="one dtype for matrix and right-hand side",
        where="every device; the name of the function stands before it",
        sources=("pytorch aten/src/ATen/native/LinearAlgebraUtils.h (checkSameDtype)",),
    ),
    Member(
        id="mps_graph",
        sentences=(
            "input types 'tensor<{*}{left}>' and 'tensor<{*}{right}>' are not broadcast compatible",
            "output type 'tensor<{*}{left}>' and mean type 'tensor<{*}{right}>' are not broadcast compatible",
        ),
        ops=("an MPS graph operation",),
        site="other",
        operands=(Operand("left", "either", "the first operand"), Operand("right", "either", "the second operand")),
        asks="one element type for the operands of a graph operation",
        where="MPS; ends the process ('Failed to infer result type(s)'); the location before it names the operation",
        sources=("huggingface/diffusers #2521", "pytorch/pytorch #154887", "Comfy-Org/ComfyUI #1352"),
    ),
)
