"""Members of the family that layers raise: norms, convolutions, recurrent layers, embeddings, activations."""

from __future__ import annotations

from precision_eval.diagnose.explain.members import Member, Operand

_INPUT = Operand("input", "activation", "the layer's input")
_WEIGHT = Operand("weight", "storage", "the layer's weight")

LAYERS: tuple[Member, ...] = (
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
