"""``FAMILY``: every sentence that says two dtypes do not fit together, and how one is found in a text; loads no torch.

A *sentence* is the literal text that is raised, with placeholders: ``{name}`` is a dtype, which becomes the operand of
that name; ``{#}`` is a number; ``{*}`` is any short run of text within a line. White space may be folded differently in
the text searched, or stand there escaped, and capitals do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CallSite = Literal[
    "sdpa", "kernel", "linear", "matmul", "norm", "cache_write", "conv", "rnn", "index", "gradient", "other"
]
Role = Literal["activation", "storage", "either"]
Kind = Literal["mismatch", "format", "index"]


@dataclass(frozen=True)
class Operand:
    """One operand that a sentence names."""

    name: str
    role: Role
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of the family."""

    id: str
    sentences: tuple[str, ...]
    ops: tuple[str, ...]
    site: CallSite
    operands: tuple[Operand, ...] = ()
    kind: Kind = "mismatch"
    asks: str
    where: str
    sources: tuple[str, ...]
    beginnings: tuple[str, ...] = ()


_QUERY = Operand("query", "activation", "what the current tokens were projected to")
_KEY = Operand("key", "storage", "in decoding, the KV cache")
_VALUE = Operand("value", "storage", "in decoding, the KV cache")

_ATTENTION: tuple[Member, ...] = (
    Member(
        id="sdpa",
        sentences=(
            "Expected query, key, and value to have the same dtype, but got query.dtype: {query} key.dtype: {key} and "
            "value.dtype: {value} instead",
            "Expected query, key, and value to have the same dtype, but got query.dtype: {query}, key.dtype: {key}, "
            "and "
            "value.dtype: {value} instead",
        ),
        beginnings=(
            "Expected query, key, and value to have the same dtype, but got query.dtype: {query} key.dtype: {key}",
            "Expected query, key, and value to have the same dtype, but got query.dtype: {query}, key.dtype: {key}",
            "Expected query, key, and value to have the same dtype, but got query.dtype: {query}",
            "Expected query, key, and value to have the same dtype",
        ),
        ops=("scaled_dot_product_attention",),
        site="sdpa",
        operands=(_QUERY, _KEY, _VALUE),
        asks="one dtype for query, key and value",
        where="every device; checked before a backend is chosen; the form with commas is flex_attention's",
        sources=(
            "pytorch aten/src/ATen/native/transformers/attention.cpp (validate_sdpa_input)",
            "metavoiceio/metavoice-src #187",
            "nari-labs/dia #158",
        ),
    ),
    Member(
        id="sdpa_mask",
        sentences=(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            "{attn_mask} and query.dtype: {query} instead",
            "Expected attn_mask dtype to be bool or to match query dtype, but got attn_mask.dtype: {attn_mask} and "
            "query.dtype: {query} instead",
        ),
        beginnings=(
            "Expected attn_mask dtype to be bool or float or to match query dtype",
            "Expected attn_mask dtype to be bool or to match query dtype",
        ),
        ops=("scaled_dot_product_attention",),
        site="sdpa",
        operands=(Operand("attn_mask", "either", "the mask, added to the logits"), _QUERY),
        asks="a mask that is bool, float32 or of the query's dtype",
        where="every device; a float32 mask beside a half query is accepted since 2.5",
        sources=("Comfy-Org/ComfyUI #8118", "mahmoodlab/TITAN #11"),
    ),
    Member(
        id="sdpa_backend",
        sentences=(
            "Expected query, key and value to all be of dtype: {*}. Got Query dtype: {query}, Key dtype: {key}, and "
            "Value dtype: {value} instead",
        ),
        ops=("scaled_dot_product_attention",),
        site="sdpa",
        operands=(_QUERY, _KEY, _VALUE),
        kind="format",
        asks="a format that the pinned attention backend computes",
        where="CUDA; a warning before 'No available kernel. Aborting execution.'",
        sources=("pytorch aten/src/ATen/native/transformers/sdp_utils_cpp.h (check_tensor_dtype)",),
    ),
    Member(
        id="flash_attn_format",
        sentences=(
            "FlashAttention only support fp16 and bf16 data type",
            "FlashAttention only supports fp16 and bf16 data type",
            "FlashAttention only support fp16, bf16, and fp8_e4m3 data type",
            "FlashAttention only supports fp16, bf16, and fp8_e4m3 data type",
        ),
        ops=("flash_attn_func",),
        site="kernel",
        kind="format",
        asks="float16 or bfloat16 queries",
        where="the flash-attn package",
        sources=("QwenLM/Qwen3 #406", "Dao-AILab/flash-attention #622", "huggingface/diffusers #14104"),
    ),
    Member(
        id="flash_attn_same",
        sentences=("query and key must have the same dtype", "query and value must have the same dtype"),
        ops=("flash_attn_func",),
        site="kernel",
        asks="one dtype for query, key and value",
        where="the flash-attn package and its ports",
        sources=("Dao-AILab/flash-attention #732",),
    ),
    Member(
        id="xformers",
        sentences=(
            "Query/Key/Value should either all have the same dtype, or (in the quantized case) Key/Value should have "
            "dtype torch.int32 query.dtype: {query} key.dtype : {key} value.dtype: {value}",
            "Query/Key/Value should either all have the same dtype, or (in the quantized case) Key/Value should have "
            "dtype torch.int32",
            "Query/Key/Value should all have the same dtype query.dtype: {query} key.dtype : {key} value.dtype: "
            "{value}",
        ),
        beginnings=(
            "Query/Key/Value should all have the same dtype",
            "Query/Key/Value should either all have the same dtype",
        ),
        ops=("memory_efficient_attention",),
        site="kernel",
        operands=(_QUERY, _KEY, _VALUE),
        asks="one dtype for query, key and value",
        where="the xformers package",
        sources=("huggingface/diffusers #6727", "facebookresearch/xformers #1046"),
    ),
    Member(
        id="triton_dot",
        sentences=("Both operands must be same dtype. Got {left} and {right}",),
        ops=("tl.dot",),
        site="kernel",
        operands=(
            Operand("left", "either", "the left factor of a kernel's product"),
            Operand("right", "either", "the right factor of a kernel's product"),
        ),
        asks="one dtype for both factors of a product",
        where="Triton kernels: flash linear attention, quantised experts, attention written in Triton",
        sources=("triton python/triton/language/semantic.py (dot)",),
    ),
)

_MAT1 = Operand("mat1", "activation", "the left factor; a Linear's input")
_MAT2 = Operand("mat2", "storage", "the right factor; a Linear's weight")
_SELF = Operand("self", "storage", "what the product is added to; a Linear's bias")

_PRODUCTS: tuple[Member, ...] = (
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
        beginnings=("expected m1 and m2 to have the same dtype",),
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
        beginnings=("expected mat1 and mat2 to have the same dtype",),
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
        beginnings=("addmv input tensors must have the same dtype",),
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
        beginnings=("dot : expected both vectors to have same dtype",),
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
        beginnings=("multi_dot(): all tensors must have be the same dtype",),
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
        beginnings=("Expected A and B to have the same dtype",),
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

_INPUT = Operand("input", "activation", "the layer's input")
_WEIGHT = Operand("weight", "storage", "the layer's weight")

_LAYERS: tuple[Member, ...] = (
    Member(
        id="norm_cpu",
        sentences=("mixed dtype (CPU): expect parameter to have scalar type of {weight}",),
        ops=("layer_norm", "group_norm", "batch_norm"),
        site="norm",
        operands=(Operand("weight", "storage", "what the norm's parameters must be, given this input"),),
        kind="format",
        asks="parameters in the input's dtype, or float32 ones beside a half input",
        where="CPU; float32 or bfloat16 input into a norm stored in another half format; always says Float",
        sources=("pytorch aten/src/ATen/native/cpu/mixed_data_type.h", "Kosinkadink/ComfyUI-AnimateDiff-Evolved #535"),
    ),
    Member(
        id="norm_cpu_input",
        sentences=(
            "mixed dtype (CPU): expect input to have scalar type of {input}",
            "mixed dtype (CPU): all inputs must share same datatype",
        ),
        ops=("layer_norm", "group_norm", "batch_norm"),
        site="norm",
        operands=(_INPUT,),
        kind="format",
        asks="one dtype, or float32 parameters beside a half input",
        where="CPU; a float64 input into a float32 norm; the form that names BFloat16 is older",
        sources=("pytorch/pytorch #102922",),
    ),
    Member(
        id="conv_bias",
        sentences=("Input type ({input}) and bias type ({bias}) should be the same",),
        ops=("conv1d", "conv2d", "conv3d", "conv_transpose"),
        site="conv",
        operands=(_INPUT, Operand("bias", "storage", "the convolution's bias; its weight usually too")),
        asks="one dtype for input, weight and bias",
        where="every device; a convolution with bias; on Windows 'struct c10::Half'",
        sources=("nvidia-cosmos/cosmos-transfer1 #137", "vladmandic/sdnext #1978", "kadirnar/whisper-plus #58"),
    ),
    Member(
        id="conv_weight",
        sentences=("Input type ({input}) and weight type ({weight}) should be the same",),
        ops=("conv1d", "conv2d", "conv3d", "conv_transpose"),
        site="conv",
        operands=(_INPUT, _WEIGHT),
        asks="one dtype and one device for input and weight",
        where="CUDA and while tracing; the same sentence tells of two devices where the dtypes agree",
        sources=("hpcaitech/ColossalAI #2392", "Yu-Fangxu/COLD-Attack #20"),
    ),
    Member(
        id="rnn",
        sentences=(
            "RNN input dtype ({input}) does not match weight dtype ({weight})",
            "input must have the type {weight}, got type {input}",
        ),
        ops=("lstm", "gru", "rnn"),
        site="rnn",
        operands=(_INPUT, _WEIGHT),
        asks="an input of the weights' dtype",
        where="every device; a ValueError of torch.nn.RNNBase; the second form up to 2.10, the first from 2.12 on",
        sources=("pytorch torch/nn/modules/rnn.py (check_input)",),
    ),
    Member(
        id="rnn_tensors",
        sentences=(
            "Input and parameter tensors are not the same dtype, found input tensor with {input} and parameter tensor "
            "with {weight}",
            "Input and hidden tensors are not the same dtype, found input tensor with {input} and hidden tensor with "
            "{hidden}",
        ),
        beginnings=(
            "Input and parameter tensors are not the same dtype",
            "Input and hidden tensors are not the same dtype",
        ),
        ops=("lstm", "gru", "rnn"),
        site="rnn",
        operands=(_INPUT, _WEIGHT, Operand("hidden", "activation", "the state handed in")),
        asks="one dtype for input, parameters and state",
        where="every device; an LSTMCell whose c is float32 passes silently and returns float32",
        sources=("pytorch aten/src/ATen/native/RNN.h (check_attributes)",),
    ),
    Member(
        id="indices",
        sentences=(
            "Expected tensor for argument #{#} 'indices' to have one of the following scalar types: Long, Int; but got "
            "{indices} instead",
            "Expected tensor for argument #{#} 'indices' to have scalar type Long; but got {indices} instead",
        ),
        ops=("embedding",),
        site="index",
        operands=(Operand("indices", "activation", "the token numbers"),),
        kind="index",
        asks="integer token numbers",
        where="every device",
        sources=("QwenLM/Qwen3 #44", "intel/auto-round #1380"),
    ),
    Member(
        id="argument_types",
        sentences=(
            "Expected tensor for argument #{#} '{*}' to have the same type as tensor for argument #{#} '{*}'; but type "
            "{left} does not equal {right}",
        ),
        ops=("a cuDNN layer", "embedding_bag"),
        site="other",
        operands=(Operand("left", "either", "the first argument named"), Operand("right", "either", "the second")),
        asks="one dtype for the two arguments",
        where="CUDA (cudnn_batch_norm and kin) and embedding_bag; the words after it name the function",
        sources=("pytorch aten/src/ATen/TensorUtils.cpp (checkSameType)",),
    ),
    Member(
        id="object_type",
        sentences=(
            "Expected object of scalar type {left} but got scalar type {right} for",
            "Expected object of scalar type {left} but found {right}",
        ),
        ops=("complex", "polar", "an older kernel"),
        site="other",
        operands=(Operand("left", "either", "the first argument"), Operand("right", "either", "the argument named")),
        asks="one dtype for the arguments",
        where="every device",
        sources=("pytorch aten/src/ATen/native/TensorFactories.cpp (complex_check_dtype)",),
    ),
    Member(
        id="autocast_other_half",
        sentences=("Unexpected floating ScalarType in at::autocast::prioritize",),
        ops=("cat", "stack", "index_copy", "index_put", "another operation on autocast's list of those that promote"),
        site="other",
        kind="format",
        asks="operands in float32 or in autocast's own half format",
        where="inside autocast: float16 tensors under a bfloat16 autocast, which is the CPU's default, or the reverse",
        sources=("pytorch aten/src/ATen/autocast_mode.h (prioritize)", "pytorch/pytorch #132715", "Parskatt/RoMa #2"),
    ),
    Member(
        id="autocast_no_bfloat16",
        sentences=(
            "Current CUDA Device does not support bfloat16. Please switch dtype to float16",
            "Current CUDA Device does not support bfloat16",
        ),
        ops=("torch.autocast",),
        site="other",
        kind="format",
        asks="another dtype for autocast than bfloat16",
        where="CUDA below compute capability 8.0; newer versions count emulation there, and do not raise",
        sources=(
            "pytorch torch/amp/autocast_mode.py (autocast.__init__)",
            "metavoiceio/metavoice-src #27",
            "pytorch/pytorch #148322",
        ),
    ),
    Member(
        id="prelu",
        sentences=("prelu: Type promoting not supported. Got {input} and {weight}",),
        ops=("prelu",),
        site="other",
        operands=(_INPUT, _WEIGHT),
        asks="one dtype for input and slope",
        where="every device",
        sources=("pytorch aten/src/ATen/native/Activation.cpp (prelu)",),
    ),
    Member(
        id="lerp",
        sentences=(
            "expected dtype {input} for `end` but got dtype {other}",
            "expected dtype {input} for `end`, but got dtype {other}",
            "expected dtype {input} for `weight` but got dtype {other}",
            "expected dtype {input} for `weight`, but got dtype {other}",
        ),
        ops=("lerp",),
        site="other",
        operands=(_INPUT, Operand("other", "either", "the end or the weight")),
        asks="one dtype for start, end and weight",
        where="every device; guidance and schedulers interpolate with it",
        sources=("pytorch aten/src/ATen/native/Lerp.cpp",),
    ),
    Member(
        id="grid_sampler",
        sentences=(
            "grid_sampler(): expected input and grid to have same dtype, but input has {input} and grid has {grid}",
        ),
        beginnings=("grid_sampler(): expected input and grid to have same dtype",),
        ops=("grid_sample",),
        site="other",
        operands=(_INPUT, Operand("grid", "activation", "the sampling grid, often made in float32")),
        asks="one dtype for input and grid",
        where="older versions; newer ones raise 'expected scalar type'",
        sources=("pytorch aten/src/ATen/native/GridSampler.cpp",),
    ),
)

_DESTINATION = Operand("destination", "storage", "the tensor written to; in decoding, the KV cache")
_SOURCE = Operand("source", "activation", "the values written")

_WRITES: tuple[Member, ...] = (
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

#: Order matters only where two sentences begin at one place: the longer one is taken. Read from the sources or raised
#: with torch 2.6, 2.13 and 2.15 on a CPU.
FAMILY: tuple[Member, ...] = (*_ATTENTION, *_PRODUCTS, *_WRITES, *_LAYERS)


def member_by_id(member_id: str) -> Member:
    """Look a member up."""
    return {member.id: member for member in FAMILY}[member_id]
