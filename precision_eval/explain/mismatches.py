"""``FAMILY``: every sentence that says two dtypes do not fit together, and how one is found in a text; loads no torch.

A *sentence* is the literal text that is raised, with placeholders: ``{name}`` is a dtype, which becomes the operand of
that name; ``{#}`` is a number; ``{*}`` is any short run of text within a line; ``{|}`` is nothing, and marks where a
sentence that is cut off is still known. White space may be folded differently in the text searched, or stand there
escaped, and capitals do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

CallSite = Literal[
    "sdpa", "kernel", "linear", "matmul", "norm", "cache_write", "conv", "rnn", "index", "gradient", "other"
]
Role = Literal["activation", "storage", "either"]
Kind = Literal["mismatch", "format", "index"]
Verdict = Literal["applies", "depends", "does_not_cure", "out_of_reach"]
_CUT = "{|}"


@dataclass(frozen=True)
class Operand:
    """One operand that a sentence names."""

    name: str
    role: Role
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of the family.

    `versions` are torch's in which a program raised it; `seen_on` is what a program needs to raise it, and where
    that is not ``"cpu"``, none was run here. `advice` goes before the rules of its site: (fixes, verdict, reason), the
    fixes being an id, a storage dtype, ``"one dtype"`` or ``"casts"``.
    """

    id: str
    site: CallSite
    kind: Kind = "mismatch"
    ops: tuple[str, ...]
    operands: tuple[Operand, ...] = ()
    templates: tuple[str, ...]
    asks: str
    sources: tuple[str, ...]
    where: str = "every device"
    versions: str = "2.6–2.15"
    seen_on: str = "cpu"
    advice: tuple[tuple[str, Verdict, str], ...] = ()

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The whole sentences, without marks."""
        return tuple(template.replace(_CUT, "") for template in self.templates)

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """What precedes a mark: a sentence that was cut off there is still known."""
        parts = (template.split(_CUT) for template in self.templates)
        return tuple("".join(part[:end]) for part in parts for end in range(1, len(part)))


# fmt: off
_QUERY = Operand("query", "activation", "what the current tokens were projected to")
_KEY = Operand("key", "storage", "in decoding, the KV cache")
_VALUE = Operand("value", "storage", "in decoding, the KV cache")

_HALF_ONLY: tuple[tuple[str, Verdict, str], ...] = (("float32", "does_not_cure", "the kernel takes half formats only"),)
_WHERE_REACHED: tuple[tuple[str, Verdict, str], ...] = (
    ("casts", "depends", "where the operation is a Linear, a matmul, a bmm, attention or a norm"),
)
_WHERE_LISTED: tuple[tuple[str, Verdict, str], ...] = (
    ("autocast", "depends", "only where the operation is on autocast's lists for the device"),
)

_ATTENTION: tuple[Member, ...] = (
    Member(id="sdpa", site="sdpa", ops=("scaled_dot_product_attention",), operands=(_QUERY, _KEY, _VALUE),
        asks="one dtype for query, key and value",
        where="every device; checked before a backend is chosen; the form with commas is flex_attention's",
        templates=(
            "Expected query, key, and value to have the same dtype{|}, but got query.dtype: {query}{|} key.dtype: "
            "{key}{|} and value.dtype: {value} instead",
            "Expected query, key, and value to have the same dtype, but got query.dtype: {query}, key.dtype: {key}{|}, "
            "and value.dtype: {value} instead"),
        sources=("pytorch aten/src/ATen/native/transformers/attention.cpp (validate_sdpa_input)",
            "metavoiceio/metavoice-src #187", "nari-labs/dia #158")),
    Member(id="sdpa_mask", site="sdpa", ops=("scaled_dot_product_attention",),
        operands=(Operand("attn_mask", "either", "the mask, added to the logits"), _QUERY),
        asks="a mask that is bool, float32 or of the query's dtype",
        where="every device; a float32 mask beside a half query is accepted since 2.5",
        templates=(
            "Expected attn_mask dtype to be bool or float or to match query dtype{|}, but got attn_mask.dtype: "
            "{attn_mask} and query.dtype: {query} instead",
            "Expected attn_mask dtype to be bool or to match query dtype{|}, but got attn_mask.dtype: {attn_mask} and "
            "query.dtype: {query} instead",
            "scaled_dot_product_attention_flash_attention: Attention mask is the same data type as query"),
        sources=("Comfy-Org/ComfyUI #8118", "mahmoodlab/TITAN #11")),
    Member(id="sdpa_backend", site="sdpa", kind="format", ops=("scaled_dot_product_attention",),
        operands=(_QUERY, _KEY, _VALUE), asks="a format that the pinned attention backend computes",
        where="CUDA; a warning before 'No available kernel. Aborting execution.'", seen_on="cuda", advice=_HALF_ONLY,
        templates=(
            "Expected query, key and value to all be of dtype: {*}. Got Query dtype: {query}, Key dtype: {key}, and "
            "Value dtype: {value} instead",),
        sources=("pytorch aten/src/ATen/native/transformers/sdp_utils_cpp.h (check_tensor_dtype)",)),
    Member(id="flash_attn_format", site="kernel", kind="format", ops=("flash_attn_func",),
        asks="float16 or bfloat16 queries", where="the flash-attn package", seen_on="flash-attn", advice=_HALF_ONLY,
        templates=(
            "FlashAttention only support fp16 and bf16 data type",
            "FlashAttention only supports fp16 and bf16 data type",
            "FlashAttention only support fp16, bf16, and fp8_e4m3 data type",
            "FlashAttention only supports fp16, bf16, and fp8_e4m3 data type"),
        sources=("QwenLM/Qwen3 #406", "Dao-AILab/flash-attention #622", "huggingface/diffusers #14104")),
    Member(id="flash_attn_same", site="kernel", ops=("flash_attn_func",), asks="one dtype for query, key and value",
        where="the flash-attn package and its ports", seen_on="flash-attn",
        templates=("query and key must have the same dtype", "query and value must have the same dtype"),
        sources=("Dao-AILab/flash-attention #732",)),
    Member(id="xformers", site="kernel", ops=("memory_efficient_attention",), operands=(_QUERY, _KEY, _VALUE),
        asks="one dtype for query, key and value", where="the xformers package", seen_on="xformers",
        templates=(
            "Query/Key/Value should either all have the same dtype{|}, or (in the quantized case) Key/Value should "
            "have dtype torch.int32 query.dtype: {query} key.dtype : {key} value.dtype: {value}",
            "Query/Key/Value should either all have the same dtype, or (in the quantized case) Key/Value should have "
            "dtype torch.int32",
            "Query/Key/Value should all have the same dtype{|} query.dtype: {query} key.dtype : {key} value.dtype: "
            "{value}"),
        sources=("huggingface/diffusers #6727", "facebookresearch/xformers #1046")),
    Member(id="triton_dot", site="kernel", ops=("tl.dot",),
        operands=(Operand("left", "either", "the left factor of a kernel's product"),
            Operand("right", "either", "the right factor of a kernel's product")),
        asks="one dtype for both factors of a product",
        where="Triton kernels: flash linear attention, quantised experts, attention written in Triton",
        seen_on="triton",
        templates=(
            "Both operands must be same dtype. Got {left} and {right}",
            "First input ({left}) and second input ({right}) must have the same dtype"),
        sources=("triton python/triton/language/semantic.py (dot)", "vllm-project/vllm #6884",
            "thu-ml/SageAttention #44")),
    Member(id="triton_loop", site="kernel", ops=("a Triton kernel's loop",),
        operands=(Operand("initial", "either", "the accumulator before the loop"),
            Operand("assigned", "either", "what the loop assigns to it")), asks="an accumulator of one dtype",
        where="Triton kernels: an operand promotes the accumulator", seen_on="triton",
        templates=(
            "Loop-carried variable {*} has initial type <[{*}], {initial}> but is re-assigned to <[{*}], {assigned}> "
            "in loop",
            "Loop-carried variable {*} has initial type {initial} but is re-assigned to {assigned} in loop"),
        sources=("triton python/triton/compiler/code_generator.py (visit_For)",)),
    Member(id="flex_mixed", site="kernel", ops=("flex_attention",), operands=(_QUERY, _KEY, _VALUE),
        asks="one dtype for query, key and value, where the device's template does not promote",
        where="Inductor on a CPU; eager flex_attention computes it, CUDA's template promotes; before, `sdpa` is raised",
        versions="2.13–2.15",
        advice=(("autocast", "depends", "flex_attention follows autocast in newer versions only; 2.9 does not"),
            ("casts", "depends", "a cast before the call cures it; from outside, flex_attention is not reached")),
        templates=(
            "Mixed query, key, and value dtype is not supported on this platform{|}, got query.dtype: {query}, "
            "key.dtype: {key}, and value.dtype: {value}",),
        sources=("pytorch torch/nn/attention/_utils.py (allow_lowp_kv)", "pytorch torch/_inductor/kernel/flex")),
    Member(id="diffusers_attention", site="kernel", ops=("diffusers' attention dispatch",),
        asks="one dtype for query, key and value",
        where="diffusers' attention backends, where their checks are on; the sentence names no dtype", versions="any",
        templates=("Query, key, and value must have the same dtype",),
        sources=("diffusers src/diffusers/models/attention_dispatch.py",)),
    Member(id="sageattention", site="kernel", ops=("sageattn",), asks="one dtype for query, key and value",
        where="the sageattention package", seen_on="sageattention",
        templates=("All tensors must have the same dtype",),
        sources=("kijai/ComfyUI-CogVideoXWrapper #343",)),
    Member(id="sageattention_format", site="kernel", kind="format", ops=("sageattn",),
        asks="float16 or bfloat16 operands", where="the sageattention package", seen_on="sageattention",
        advice=_HALF_ONLY,
        templates=("Input tensors must be in dtype of torch.float16 or torch.bfloat16",),
        sources=("kijai/ComfyUI-CogVideoXWrapper #350", "Comfy-Org/ComfyUI #11258")),
    Member(id="score_retrieval", site="other", ops=("score_retrieval",), asks="embeddings of one dtype",
        where="transformers' ColPali and kin; the sentence names no dtype", versions="any",
        templates=("Queries and passages must have the same dtype",),
        sources=("transformers models/colpali/processing_colpali.py",)),
)

_MAT1 = Operand("mat1", "activation", "the left factor; a Linear's input")
_MAT2 = Operand("mat2", "storage", "the right factor; a Linear's weight")
_SELF = Operand("self", "storage", "what the product is added to; a Linear's bias")

_PRODUCTS: tuple[Member, ...] = (
    Member(id="mat1_mat2", site="linear", ops=("linear",), operands=(_MAT1, _MAT2),
        asks="one dtype for input and weight",
        where="every device; a Linear with bias (addmm); the form without dtypes is older",
        templates=(
            "mat1 and mat2 must have the same dtype, but got {mat1} and {mat2}",
            "mat1 and mat2 must have the same dtype"),
        sources=("pytorch/pytorch #105243", "huggingface/diffusers #4860")),
    Member(id="self_mat2", site="linear", ops=("addmm",), operands=(_SELF, _MAT2),
        asks="one dtype for what is added and for the right factor",
        where="every device; a Linear whose bias has another dtype than its weight, addmm, addbmm",
        advice=_WHERE_REACHED,
        templates=(
            "self and mat2 must have the same dtype, but got {self} and {mat2}",
            "self and mat2 must have the same dtype"),
        sources=("modelscope/ms-swift #2124", "modelscope/ms-swift #30")),
    Member(id="m1_m2", site="linear", ops=("mm", "linear"), operands=(_MAT1, _MAT2), asks="one dtype for both factors",
        where="CPU; a Linear without bias, mm, 2-D matmul",
        templates=("expected m1 and m2 to have the same dtype{|}, but got: {mat1} != {mat2}",),
        sources=("pytorch aten/src/ATen/native/LinearAlgebra.cpp (addmm_impl_cpu_)", "metavoiceio/metavoice-src #187")),
    Member(id="cuda_mat1_mat2", site="linear", ops=("mm", "linear"), operands=(_MAT1, _MAT2),
        asks="one dtype for both factors", where="CUDA; a Linear without bias, mm, 2-D matmul", seen_on="cuda",
        templates=(
            "expected mat1 and mat2 to have the same dtype{|}, but got: {mat1} != {mat2}",
            "expected mat1 and mat2 to have the same dtype, but got: {mat1}!= {mat2}"),
        sources=("hiyouga/LlamaFactory #4432", "ToTheBeginning/PuLID #162", "cubiq/ComfyUI_IPAdapter_plus #140")),
    Member(id="scalar_type", site="matmul",
        ops=("bmm", "baddbmm", "mv", "layer_norm", "group_norm", "apex fused norm", "conv", "grid_sample", "nll_loss",
            "cross_entropy", "cdist", "cross", "sparse.mm", "_weight_int8pack_mm", "_weight_int4pack_mm"),
        operands=(Operand("expected", "either", "the dtype of the operand that was read first, usually the input"),
            Operand("found", "either", "the dtype of the other, usually a weight or the right factor")),
        asks="one dtype for the operands that one kernel reads",
        where="many operations, apex's norms; mv up to 2.10; bmm while tracing from 2.12 on, as torch.float32",
        templates=("expected scalar type {expected} but found {found}",),
        sources=("zai-org/CogVideo #170", "huggingface/transformers #34264", "pytorch/pytorch #173459")),
    Member(id="addmv", site="matmul", ops=("mv", "addmv"),
        operands=(_SELF, _MAT1, Operand("mat2", "storage", "the vector")),
        asks="one dtype for matrix, vector and what is added",
        where="CPU, from 2.12 on; matmul of a matrix and a vector", versions="2.12–2.15", advice=_WHERE_REACHED,
        templates=("addmv input tensors must have the same dtype{|}, but got {self}, {mat1}, and {mat2}",),
        sources=("pytorch aten/src/ATen/native/Blas.cpp (addmv)",)),
    Member(id="dot", site="matmul", ops=("dot",),
        operands=(Operand("left", "activation", "the left vector"), Operand("right", "storage", "the right vector")),
        asks="one dtype for both vectors", where="CPU and CUDA; dot, vdot, 1-D matmul", advice=_WHERE_LISTED,
        templates=("dot : expected both vectors to have same dtype{|}, but found {left} and {right}",),
        sources=("pytorch aten/src/ATen/native/Blas.cpp (dot_check)",)),
    Member(id="tensordot", site="matmul", ops=("tensordot", "inner"), asks="one dtype for both factors",
        where="every device; the sentence names no dtype", advice=_WHERE_LISTED,
        templates=("both inputs should have same dtype",),
        sources=("pytorch aten/src/ATen/native/Linear.cpp (tensordot)",)),
    Member(id="multi_dot", site="matmul", ops=("linalg.multi_dot",),
        operands=(Operand("left", "either", "the first factor"), Operand("right", "either", "another factor")),
        asks="one dtype for all factors",
        templates=(
            "multi_dot(): all tensors must have be the same dtype{|} but tensor {#} is {left} and tensor {#} {right}",),
        sources=("pytorch aten/src/ATen/native/LinearAlgebra.cpp (multi_dot_impl)",)),
    Member(id="baddbmm", site="matmul", ops=("baddbmm",),
        operands=(Operand("self", "storage", "what the product is added to; in attention, the bias or mask"), _MAT1,
            _MAT2), asks="one dtype for both factors and for what is added",
        where="every device; with 'input:' while tracing",
        templates=(
            "Input dtypes must be the same, got: input {self}, batch1: {mat1}, batch2: {mat2}",
            "Input dtypes must be the same, got: input: {self}, batch1: {mat1}, batch2: {mat2}"),
        sources=("pytorch aten/src/ATen/native/LinearAlgebra.cpp (baddbmm)",)),
    Member(id="bilinear", site="other", ops=("bilinear",),
        operands=(Operand("left", "activation", "the first input"), Operand("right", "activation", "the second input"),
            Operand("weight", "storage", "the weight"), Operand("bias", "storage", "the bias")),
        asks="one dtype for inputs, weight and bias", where="every device, newer versions",
        templates=(
            "All tensors must have the same dtype, got input1: {left}, input2: {right}, weight: {weight}{|}, bias: "
            "{bias}",),
        sources=("pytorch aten/src/ATen/native/Linear.cpp (bilinear)",)),
    Member(id="linalg", site="other",
        ops=("linalg.solve", "linalg.solve_triangular", "linalg.lstsq", "linalg.lu_solve", "linalg.ldl_solve",
            "cholesky_solve", "ormqr", "linalg.householder_product"),
        operands=(Operand("left", "either", "the matrix A"), Operand("right", "either", "the right-hand side B")),
        asks="one dtype for matrix and right-hand side", where="every device; most name the function",
        templates=(
            "Expected A and B to have the same dtype{|}, but found A of type {left} and B of type {right} instead",
            "Expected b and A to have the same dtype, but found b of type {right} and A of type {left} instead",
            "linalg.lu_solve: Expected LU and B to have the same dtype, but found LU of type {left} and B of type "
            "{right} instead",
            "linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype {left} and other's "
            "dtype {right}",
            "linalg.ldl_solve: LD dtype {left} does not match b dtype {right}",
            "ormqr: Expected input and tau to have the same dtype, but input has dtype{left} and tau has dtype {right}",
            "ormqr: Expected input and tau to have the same dtype, but input has dtype {left} and tau has dtype "
            "{right}",
            "ormqr: Expected input and other to have the same dtype, but input has dtype{left} and other has dtype "
            "{right}",
            "ormqr: Expected input and other to have the same dtype, but input has dtype {left} and other has dtype "
            "{right}",
            "linalg.householder_product: tau dtype {right} does not match input dtype {left}"),
        sources=("pytorch aten/src/ATen/native/LinearAlgebraUtils.h (checkSameDtype)",)),
    Member(id="grouped_mm", site="matmul", ops=("grouped_mm",), operands=(_MAT1, _MAT2),
        asks="one dtype for both factors", where="mixtures of experts; up to 2.13 the CPU raises `m1_m2`",
        versions="2.14–2.15",
        templates=("Expected mat_a and mat_b to have the same dtype, got {mat1} and {mat2}",),
        sources=("pytorch aten/src/ATen/native/GroupedMMUtils.h",)),
    Member(id="vecdot", site="matmul", ops=("linalg.vecdot",),
        operands=(Operand("left", "activation", "the left vectors"), Operand("right", "storage", "the right vectors")),
        asks="one dtype for both", advice=_WHERE_LISTED,
        templates=(
            "Expected x and y to have the same dtype, but found x of type {left} and y of type {right} instead",),
        sources=("pytorch aten/src/ATen/native/LinearAlgebra.cpp (linalg_vecdot)",)),
    Member(id="sampled_addmm", site="matmul", ops=("sparse.sampled_addmm",),
        operands=(_MAT1, Operand("other", "storage", "the right factor, or what is added")),
        asks="one dtype for factors and pattern", advice=_WHERE_LISTED,
        templates=(
            "sampled_addmm: Expected mat1 and mat2 to have the same dtype, but got {mat1} and {other}",
            "sampled_addmm: Expected mat1 and self to have the same dtype, but got {mat1} and {other}"),
        sources=("pytorch aten/src/ATen/native/sparse/SparseBlas.cpp (sampled_addmm_check_inputs)",)),
    Member(id="sparse_mm_reduce", site="matmul", ops=("sparse.mm",),
        operands=(Operand("sparse", "storage", "the sparse matrix"), Operand("other", "activation", "the dense one")),
        asks="one dtype for both factors", where="CPU; torch.sparse.mm with a reduction", advice=_WHERE_LISTED,
        templates=("Expected tensor for argument #{#} 'other' to have scalar type {sparse}; but got {other} instead",),
        sources=("pytorch aten/src/ATen/TensorUtils.cpp (checkScalarType)",)),
    Member(id="mps_product", site="matmul", ops=("an MPS matrix product",), asks="one dtype for factors and bias",
        where="MPS; ends the process; the sentence names no dtype", seen_on="mps",
        templates=(
            "Destination NDArray and Accumulator NDArray cannot have different datatype in "
            "MPSNDArrayMatrixMultiplication",),
        sources=("pytorch/pytorch #154887",)),
    Member(id="mps_graph", site="other", ops=("an MPS graph operation",),
        operands=(Operand("left", "either", "the first operand"), Operand("right", "either", "the second operand")),
        asks="one element type for the operands of a graph operation",
        where="MPS; ends the process ('Failed to infer result type(s)'); the location before it names the operation",
        seen_on="mps",
        templates=(
            "input types 'tensor<{*}{left}>' and 'tensor<{*}{right}>' are not broadcast compatible",
            "output type 'tensor<{*}{left}>' and mean type 'tensor<{*}{right}>' are not broadcast compatible"),
        sources=("huggingface/diffusers #2521", "pytorch/pytorch #154887", "Comfy-Org/ComfyUI #1352")),
)

_INPUT = Operand("input", "activation", "the layer's input")
_WEIGHT = Operand("weight", "storage", "the layer's weight")

_LAYERS: tuple[Member, ...] = (
    Member(id="norm_cpu", site="norm", kind="format", ops=("layer_norm", "group_norm", "batch_norm"),
        operands=(Operand("weight", "storage", "what the norm's parameters must be, given this input"),),
        asks="parameters in the input's dtype, or float32 ones beside a half input",
        where="CPU; float32 or bfloat16 input into a norm stored in another half format; always says Float",
        advice=(("float16", "depends", "only where the input is float16 too; one made float32 on the way raises"),
            ("bfloat16", "depends", "only where the input is bfloat16 too; one made float32 on the way raises")),
        templates=("mixed dtype (CPU): expect parameter to have scalar type of {weight}",),
        sources=("pytorch aten/src/ATen/native/cpu/mixed_data_type.h", "Kosinkadink/ComfyUI-AnimateDiff-Evolved #535")),
    Member(id="norm_cpu_input", site="norm", kind="format", ops=("layer_norm", "group_norm", "batch_norm"),
        operands=(_INPUT,), asks="one dtype, or float32 parameters beside a half input",
        where="CPU; a float64 input into a float32 norm; the form that names BFloat16 is older",
        templates=(
            "mixed dtype (CPU): expect input to have scalar type of {input}",
            "mixed dtype (CPU): all inputs must share same datatype"),
        sources=("pytorch/pytorch #102922",)),
    Member(id="conv_bias", site="conv", ops=("conv1d", "conv2d", "conv3d", "conv_transpose"),
        operands=(_INPUT, Operand("bias", "storage", "the convolution's bias; its weight usually too")),
        asks="one dtype for input, weight and bias",
        where="every device; a convolution with bias; on Windows 'struct c10::Half'",
        templates=("Input type ({input}) and bias type ({bias}) should be the same",),
        sources=("nvidia-cosmos/cosmos-transfer1 #137", "vladmandic/sdnext #1978", "kadirnar/whisper-plus #58")),
    Member(id="conv_weight", site="conv", ops=("conv1d", "conv2d", "conv3d", "conv_transpose"),
        operands=(_INPUT, _WEIGHT), asks="one dtype and one device for input and weight",
        where="CUDA, while tracing, and on a CPU in backward; it tells of two devices where the dtypes agree",
        templates=("Input type ({input}) and weight type ({weight}) should be the same",),
        sources=("hpcaitech/ColossalAI #2392", "Yu-Fangxu/COLD-Attack #20")),
    Member(id="rnn", site="rnn", ops=("lstm", "gru", "rnn"), operands=(_INPUT, _WEIGHT),
        asks="an input of the weights' dtype",
        where="every device; a ValueError of torch.nn.RNNBase; the second form up to 2.10, the first from 2.12 on",
        templates=(
            "RNN input dtype ({input}) does not match weight dtype ({weight})",
            "input must have the type {weight}, got type {input}"),
        sources=("pytorch torch/nn/modules/rnn.py (check_input)",)),
    Member(id="rnn_tensors", site="rnn", ops=("lstm", "gru", "rnn"),
        operands=(_INPUT, _WEIGHT, Operand("hidden", "activation", "the state handed in")),
        asks="one dtype for input, parameters and state",
        where="every device; an LSTMCell whose c is float32 passes silently and returns float32", seen_on="cuda",
        templates=(
            "Input and parameter tensors are not the same dtype{|}, found input tensor with {input} and parameter "
            "tensor with {weight}",
            "Input and hidden tensors are not the same dtype{|}, found input tensor with {input} and hidden tensor "
            "with {hidden}"),
        sources=("pytorch aten/src/ATen/native/RNN.h (check_attributes)",)),
    Member(id="indices", site="index", kind="index", ops=("embedding",),
        operands=(Operand("indices", "activation", "the token numbers"),), asks="integer token numbers",
        advice=(("one dtype", "does_not_cure", "the indices must be integers, whatever the model is stored in"),
            ("casts", "does_not_cure", "the indices must be integers")),
        templates=(
            "Expected tensor for argument #{#} 'indices' to have one of the following scalar types: Long, Int; but got "
            "{indices} instead",
            "Expected tensor for argument #{#} 'indices' to have scalar type Long; but got {indices} instead"),
        sources=("QwenLM/Qwen3 #44", "intel/auto-round #1380")),
    Member(id="argument_types", site="other", ops=("a cuDNN layer", "embedding_bag"),
        operands=(Operand("left", "either", "the first argument named"), Operand("right", "either", "the second")),
        asks="one dtype for the two arguments",
        where="CUDA (cudnn_batch_norm and kin) and embedding_bag; the words after it name the function",
        templates=(
            "Expected tensor for argument #{#} '{*}' to have the same type as tensor for argument #{#} '{*}'; but type "
            "{left} does not equal {right}",),
        sources=("pytorch aten/src/ATen/TensorUtils.cpp (checkSameType)",)),
    Member(id="object_type", site="other", ops=("complex", "polar", "an older kernel"),
        operands=(Operand("left", "either", "the first argument"), Operand("right", "either", "the argument named")),
        asks="one dtype for the arguments",
        templates=(
            "Expected object of scalar type {left} but got scalar type {right} for",
            "Expected object of scalar type {left} but found {right}",
            "Expected both inputs to be Half, Float or Double tensors but got {left} and {right}"),
        sources=("pytorch aten/src/ATen/native/TensorFactories.cpp (complex_check_dtype)",)),
    Member(id="autocast_other_half", site="other", kind="format",
        ops=("cat", "stack", "index_copy", "index_put", "another operation on autocast's list of those that promote"),
        asks="operands in float32 or in autocast's own half format",
        where="inside autocast: float16 tensors under a bfloat16 autocast, which is the CPU's default, or the reverse",
        advice=(("autocast", "does_not_cure", "autocast itself raised this: its dtype is not that of the tensors"),
            ("float16", "depends", "where autocast's dtype is float16 too, or autocast is off"),
            ("bfloat16", "depends", "where autocast's dtype is bfloat16 too, or autocast is off")),
        templates=("Unexpected floating ScalarType in at::autocast::prioritize",),
        sources=("pytorch aten/src/ATen/autocast_mode.h (prioritize)", "pytorch/pytorch #132715", "Parskatt/RoMa #2")),
    Member(id="autocast_no_bfloat16", site="other", kind="format", ops=("torch.autocast",),
        asks="another dtype for autocast than bfloat16",
        where="CUDA below compute capability 8.0; newer versions count emulation there, and do not raise",
        seen_on="cuda",
        advice=(("autocast", "depends", "where it replaces the autocast that raised: on CUDA it computes float16"),
            ("bfloat16", "does_not_cure",
             "the autocast that raised asks for bfloat16 too; stored so, it runs by emulation"),
            ("one dtype", "depends", "once the source's own autocast is out of the way, or asks for float16"),
            ("casts", "does_not_cure", "autocast refused its dtype before any operand was there")),
        templates=(
            "Current CUDA Device does not support bfloat16. Please switch dtype to float16",
            "Current CUDA Device does not support bfloat16"),
        sources=("pytorch torch/amp/autocast_mode.py (autocast.__init__)", "metavoiceio/metavoice-src #27",
            "pytorch/pytorch #148322")),
    Member(id="prelu", site="other", ops=("prelu",), operands=(_INPUT, _WEIGHT), asks="one dtype for input and slope",
        templates=("prelu: Type promoting not supported. Got {input} and {weight}",),
        sources=("pytorch aten/src/ATen/native/Activation.cpp (prelu)",)),
    Member(id="lerp", site="other", ops=("lerp",),
        operands=(_INPUT, Operand("other", "either", "the end or the weight")),
        asks="one dtype for start, end and weight", where="every device; guidance and schedulers interpolate with it",
        templates=(
            "expected dtype {input} for `end` but got dtype {other}",
            "expected dtype {input} for `end`, but got dtype {other}",
            "expected dtype {input} for `weight` but got dtype {other}",
            "expected dtype {input} for `weight`, but got dtype {other}"),
        sources=("pytorch aten/src/ATen/native/Lerp.cpp",)),
    Member(id="grid_sampler", site="other", ops=("grid_sample",),
        operands=(_INPUT, Operand("grid", "activation", "the sampling grid, often made in float32")),
        asks="one dtype for input and grid", where="older versions; newer ones raise 'expected scalar type'",
        seen_on="torch before 2.6",
        templates=(
            "grid_sampler(): expected input and grid to have same dtype{|}, but input has {input} and grid has "
            "{grid}",),
        sources=("pytorch aten/src/ATen/native/GridSampler.cpp",)),
)

_DESTINATION = Operand("destination", "storage", "the tensor written to; in decoding, the KV cache")
_SOURCE = Operand("source", "activation", "the values written")

_WRITES: tuple[Member, ...] = (
    Member(id="index_put", site="cache_write", ops=("index_put",), operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        where="every device, eager; x[index_tensor] = y; a plain slice casts silently instead, fake tensors accept it",
        templates=(
            "Index put requires the source and destination dtypes match{|}, got {destination} for the destination and "
            "{source} for the source",),
        sources=("continue-revolution/sd-webui-animatediff #168", "zai-org/VisionReward #7")),
    Member(id="index_copy", site="cache_write", ops=("index_copy",), operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype", where="every device; transformers' StaticCache writes with it",
        templates=(
            "index_copy_(): self and source expected to have the same dtype{|}, but got (self) {destination} and "
            "(source) {source}",),
        sources=("pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp (index_copy)",)),
    Member(id="index_add", site="cache_write", ops=("index_add", "index_reduce"), operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        where="every device; mixtures of experts gather their outputs with it",
        templates=(
            "index_add_(): self ({destination}) and source ({source}) must have the same scalar type",
            "index_reduce_(): self ({destination}) and source ({source}) must have the same scalar type"),
        sources=("pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp (index_add)",)),
    Member(id="scatter", site="cache_write", ops=("scatter", "scatter_add", "scatter_reduce"),
        asks="values of the destination's dtype",
        where="every device; the sentence names no dtype; under autocast the two often come from different lists",
        templates=(
            "scatter(): Expected self.dtype to be equal to src.dtype",
            "scatter_cuda_(): Expected self.dtype to be equal to src.dtype",
            "scatter_add(): Expected self.dtype to be equal to src.dtype",
            "gather(): Expected self.dtype to be equal to src.dtype"),
        sources=("pytorch/pytorch #51730", "flairNLP/flair #3651")),
    Member(id="masked_scatter", site="cache_write", ops=("masked_scatter",), operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        where="every device; merges image features into text embeddings; the first dtype sticks to 'got'",
        templates=(
            "masked_scatter: expected self and source to have same dtypes{|} but got{destination} and {source}",
            "masked_scatter: expected self and source to have same dtypes but got {destination} and {source}"),
        sources=("pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp (masked_scatter)",)),
    Member(id="put", site="cache_write", ops=("put",), operands=(_DESTINATION, _SOURCE),
        asks="values of the destination's dtype",
        templates=(
            "put_(): self and source expected to have the same dtype{|}, but got self.dtype = {destination} and "
            "source.dtype = {source}",),
        sources=("pytorch aten/src/ATen/native/TensorAdvancedIndexing.cpp (put_)",)),
    Member(id="out", site="other", ops=("an operation with out=",),
        operands=(Operand("expected", "activation", "the result's dtype"), _DESTINATION),
        asks="an out= tensor of the result's dtype",
        templates=(
            "Expected out tensor to have dtype {expected}, but got {destination} instead",
            "take(): self and out expected to have the same dtype, but got self.dtype = {expected} and out.dtype = "
            "{destination}",
            "Expected the dtype for input and out to match, but got {expected} for input's dtype and {destination} for "
            "out's dtype",
            "index_select(): self and result must have the same scalar type",
            "masked_select(): self and result must have the same scalar type",
            "quantile() out tensor must be same dtype as the input tensor"),
        sources=("pytorch torchgen (structured kernels, resize_out)",)),
    Member(id="gradient", site="gradient", ops=("Tensor.grad =",),
        operands=(Operand("source", "activation", "the gradient"), Operand("destination", "storage", "the parameter")),
        asks="a gradient of its parameter's dtype", where="every device; the form with grad_dtype is newer",
        templates=(
            "attempting to assign a gradient with dtype '{source}' to a tensor with dtype '{destination}'",
            "attempting to assign a gradient with dtype '{source}' to a tensor with grad_dtype '{destination}'"),
        sources=("pytorch torch/csrc/autograd/python_variable.cpp (THPVariable_set_grad)",)),
    Member(id="found_dtype", site="gradient", ops=("an elementwise kernel or its backward",),
        operands=(Operand("found", "activation", "the operand that differs"),
            Operand("expected", "storage", "the dtype of the others")),
        asks="one dtype where a kernel does not promote",
        where="every device; binary_cross_entropy, optimisers, and in torch 2.6 backward passes of losses",
        templates=("Found dtype {found} but expected {expected}",),
        sources=("Lightning-AI/pytorch-lightning #16303",)),
)

_LEFT, _RIGHT = Operand("left", "either", "the one named first"), Operand("right", "either", "the one named second")

_OTHERS: tuple[Member, ...] = (
    Member(id="float8_promotion", site="other", ops=("an elementwise operation", "cat"), operands=(_LEFT, _RIGHT),
        asks="a cast of the float8 operand to the other's dtype",
        where="every device; a cache or weight kept in float8",
        advice=(("casts", "out_of_reach", "from outside, elementwise operations and cat are not reached"),),
        templates=("Promotion for Float8 Types is not supported, attempted to promote {left} and {right}",),
        sources=("pytorch c10/core/ScalarType.cpp (promoteTypes)",)),
    Member(id="dtypes_not_named", site="other",
        ops=("meshgrid", "_chunk_cat", "heaviside", "quantile", "nested tensor", "quantized.add", "quantized.mul"),
        asks="one dtype for all operands", where="every device; the sentence names no dtype; FSDP calls _chunk_cat",
        templates=(
            "meshgrid expects all tensors to have the same dtype",
            "_chunk_cat expects all input tensors with the same dtype",
            "heaviside is not yet implemented for tensors with different dtypes",
            "quantile() q tensor must be same dtype as the input tensor",
            "When constructing a nested_tensor, all tensors in list must have the same dtype",
            "When constructing a nested tensor, all tensors in list must have the same dtype",
            "Add operands should have same data type",
            "Mul operands should have same data type"),
        sources=("pytorch aten/src/ATen/native",)),
    Member(id="allclose", site="other", ops=("allclose", "isclose"), operands=(_LEFT, _RIGHT),
        asks="one dtype for both",
        templates=("{left} did not match {right}",),
        sources=("pytorch aten/src/ATen/native/TensorCompare.cpp (isclose)",)),
    Member(id="histogram", site="other", ops=("histogram",), operands=(_LEFT, _RIGHT),
        asks="one dtype for input, bins and weight",
        templates=(
            "input tensor and bins tensors should have the same dtype, but got input with dtype {left} and bins for "
            "dimension {#} with dtype {right}",
            "input tensor and weight tensor should have the same dtype, but got input({left}), and weight({right})"),
        sources=("pytorch aten/src/ATen/native/Histogram.cpp",)),
    Member(id="int_mm", site="matmul", kind="format", ops=("_int_mm",),
        operands=(Operand("found", "either", "the factor that is no int8"),), asks="int8 factors",
        where="CPU; quantised Linears",
        templates=(
            "Expected mat2 dtype to be of type int8 but got {found}",
            "Expected self dtype to be int8 or uint8 but got {found}"),
        sources=("pytorch aten/src/ATen/native/LinearAlgebra.cpp",)),
    Member(id="scaled_mm", site="matmul", kind="format", ops=("_scaled_mm",),
        operands=(_MAT1, _MAT2, Operand("scale_a", "either", "the left scale"),
            Operand("scale_b", "either", "the right one")), asks="float8 factors and float32 scales",
        where="every device that has float8 products", versions="2.13–2.15",
        templates=(
            "Got mat_a.dtype()={mat1}, scale_a.dtype()={scale_a}, {*}mat_b.dtype()={mat2}, scale_b.dtype()={scale_b}",),
        sources=("pytorch aten/src/ATen/native/cuda/ScaledBlas.cpp",)),
    Member(id="quantised_scale", site="other", kind="format",
        ops=("fake_quantize_per_channel_affine", "quantize_per_channel"),
        operands=(Operand("found", "either", "the scale, or what is quantised"),), asks="float32",
        where="every device; a model that was made half before it is quantised",
        templates=(
            "Scale must be Float or BFloat16, found {found}",
            "Scale must be Float, found {found}",
            "Quantize only works on Float Tensor, got {found}"),
        sources=("pytorch aten/src/ATen/native/quantized",)),
    Member(id="torchao", site="other", ops=("torchao's tensors",), operands=(_LEFT, _RIGHT), asks="one dtype",
        where="the torchao package; most sentences name no dtype", seen_on="torchao",
        templates=(
            "bias dtype must match output dtype",
            "Expecting all chunks to be of the same dtype",
            "Expecting both Float8TrainingTensors to be of the same dtype",
            "qdata.dtype must match elem_dtype for MXFP8 tensors, got qdata.dtype={left} and elem_dtype={right}"),
        sources=("torchao float8/float8_ops.py", "torchao prototype/mx_formats/mx_tensor.py")),
    Member(id="recomputed", site="gradient", ops=("torch.utils.checkpoint",),
        operands=(Operand("saved", "either", "what the forward pass made"),
            Operand("recomputed", "either", "what its repetition in backward made")),
        asks="a recomputation in the dtypes of the forward pass", where="every device; gradient checkpointing",
        advice=(("autocast", "depends", "around both, the forward pass and the backward; around one it is the cause"),),
        templates=("saved metadata: {*}'dtype': {saved}, {*} recomputed metadata: {*}'dtype': {recomputed},",),
        sources=("pytorch torch/utils/checkpoint.py (check_recomputed_tensors_match)",)),
    Member(id="collective", site="other", ops=("a collective",), operands=(_LEFT, _RIGHT),
        asks="one dtype for all tensors of a collective", where="torch.distributed",
        templates=(
            "Invalid usage of tensors with different dtypesFound {left} and {right}",
            "invalid tensor type at index {#} (expected TensorOptions(dtype={left}, {*} got "
            "TensorOptions(dtype={right}"),
        sources=("pytorch torch/distributed/distributed_c10d.py (_ensure_all_tensors_same_dtype)",)),
    Member(id="fsdp", site="other", ops=("FSDP",), operands=(_LEFT, _RIGHT),
        asks="parameters of one dtype in each group that is sharded as one",
        templates=(
            "Must flatten tensors with uniform dtype but got {left} and {right}",
            "FSDP expects uniform original parameter dtype but got {{left}, {right}}"),
        sources=("pytorch torch/distributed/fsdp/_flat_param.py", "pytorch torch/distributed/fsdp/_fully_shard")),
    Member(id="optimizer", site="gradient", ops=("an optimizer's step",),
        asks="state and gradients of the parameters' dtype", where="fused and foreach optimizers; no dtype is named",
        templates=("Tensors of the same index must be on the same device and the same dtype except `step` tensors",),
        sources=("pytorch aten/src/ATen/native/ForeachUtils.h (_group_tensors_by_first_tensors_device_and_dtype)",)),
    Member(id="reference", site="other", ops=("a decomposition",),
        operands=(Operand("found", "either", "the operand that differs"), Operand("expected", "either", "the others'")),
        asks="operands of one dtype", where="torch._prims and _refs, which compilers and export use",
        templates=("Tensor with dtype {found} is not the expected dtype of {expected}",),
        sources=("pytorch torch/_prims_common (check_same_dtype)",)),
    Member(id="fake_implementation", site="other", ops=("torch.library.opcheck",), operands=(_LEFT, _RIGHT),
        asks="a fake implementation that gives the real one's dtype", where="custom operators, compiled or exported",
        templates=("Dtypes {left} and {right} are not equal",),
        sources=("pytorch torch/_prims_common (compare_tensor_meta)",)),
    Member(id="branches", site="other", ops=("cond", "while_loop", "scan"), operands=(_LEFT, _RIGHT),
        asks="one dtype from every branch and step", where="torch.cond, while_loop and scan", versions="2.7–2.15",
        templates=(
            "in torch.cond, expected same dtype but got {left} and {right}",
            "differ in 'dtype: {left} vs {right}'",
            "The dtype of the new_carry[{#}] {left} doesn't match that of the init[{#}] {right}"),
        sources=("pytorch torch/_higher_order_ops",)),
    Member(id="parametrization", site="other", ops=("register_parametrization",), operands=(_LEFT, _RIGHT),
        asks="a parametrization that keeps the dtype", where="every device; weight_norm, LoRA as a parametrization",
        templates=(
            "unparametrized dtype: {left} parametrized dtype: {right}",
            "may not change the dtype. original.dtype: {left} right_inverse(original).dtype: {right}"),
        sources=("pytorch torch/nn/utils/parametrize.py",)),
    Member(id="set_data", site="other", ops=("Tensor.set_",), operands=(_SOURCE, _DESTINATION),
        asks="data of the tensor's dtype", where="every device; loading by pointer",
        templates=(
            "Could not set tensor of type {source} to a tensor of type {destination}",
            "Expected a Storage of type {destination} or an UntypedStorage, but got type {source} for"),
        sources=("pytorch aten/src/ATen/native/TensorShape.cpp (set_)",)),
    Member(id="assert_close", site="other", ops=("torch.testing.assert_close",), operands=(_LEFT, _RIGHT),
        asks="one dtype, or check_dtype=False", where="tests",
        templates=("The values for attribute 'dtype' do not match: {left} != {right}",),
        sources=("pytorch torch/testing/_comparison.py",)),
)
# fmt: on

#: Order matters only where two sentences begin at one place: the longer one is taken. Read from the sources; those
#: `seen_on` a CPU were raised there with torch 2.6, 2.9, 2.13 and 2.15.
FAMILY: tuple[Member, ...] = (*_ATTENTION, *_PRODUCTS, *_WRITES, *_LAYERS, *_OTHERS)
