"""Every member on text that was really raised, whole, cut, folded or in JSON; a mutated pattern must be caught."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_eval.diagnose.explain import FAMILY, explain
from precision_eval.results import messages
from precision_eval.results.messages import lowered

SDPA = "Expected query, key, and value to have the same dtype, but got query.dtype: "

# text, member, operation, dtypes; the comment is where it was found
REAL = [
    # metavoiceio/metavoice-src #187
    (
        "TorchRuntimeError: Failed running call_function <built-in function "
        "scaled_dot_product_attention>(*(FakeTensor(..., "
        "device='cuda:0', size=(2, s6, s0, (s5//s6))), FakeTensor(..., device='cuda:0', size=(2, 16, 2048, 128), "
        "dtype=torch.float16), FakeTensor(..., device='cuda:0', size=(2, 16, 2048, 128), dtype=torch.float16)), "
        "**{'attn_mask': FakeTensor(..., device='cuda:0', size=(1, 1, s0, 2048), dtype=torch.bool), 'dropout_p': "
        "0.0}):\n"
        f"{SDPA}float key.dtype: c10::Half and value.dtype: c10::Half instead.\n\nfrom user code:\n"
        '   File "/content/metavoice-src/fam/llm/fast_inference_utils.py", line 131, in prefill\n',
        "sdpa",
        "scaled_dot_product_attention",
        {"query": "float32", "key": "float16", "value": "float16"},
    ),
    # intel/torch-xpu-ops #1878: Windows, compiled
    (
        "torch._dynamo.exc.TorchRuntimeError: Dynamo failed to run FX node with fake tensors: call_function <built-in "
        "function scaled_dot_product_attention>(*(FakeTensor(..., device='xpu:0', size=(1, 24, s99, 128), "
        f"dtype=torch.float16)), **{{'dropout_p': 0.0}}): got RuntimeError('{SDPA}struct c10::Half key.dtype: struct "
        "c10::BFloat16 and value.dtype: struct c10::BFloat16 instead.')",
        "sdpa",
        "scaled_dot_product_attention",
        {"query": "float16", "key": "bfloat16", "value": "bfloat16"},
    ),
    # nari-labs/dia #158, with commas; nari-labs/dia PR #45
    (
        f"{SDPA}float, key.dtype: struct c10::Half, and value.dtype: struct c10::Half instead.",
        "sdpa",
        "scaled_dot_product_attention",
        {"query": "float32", "key": "float16", "value": "float16"},
    ),
    (
        f"{SDPA}c10::BFloat16 key.dtype: float and value.dtype: float instead.",
        "sdpa",
        "scaled_dot_product_attention",
        {"query": "bfloat16", "key": "float32", "value": "float32"},
    ),
    # raised by torch with an int64 and an uint16 query
    (
        f"{SDPA}long int key.dtype: c10::Half and value.dtype: c10::Half instead.",
        "sdpa",
        "scaled_dot_product_attention",
        {"query": "int64", "key": "float16", "value": "float16"},
    ),
    (
        f"{SDPA}short unsigned int key.dtype: float and value.dtype: float instead.",
        "sdpa",
        "scaled_dot_product_attention",
        {"query": "uint16", "key": "float32", "value": "float32"},
    ),
    # Comfy-Org/ComfyUI #8118; mahmoodlab/TITAN #11
    (
        "RuntimeError: Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
        "struct c10::BFloat16 and  query.dtype: struct c10::Half instead.",
        "sdpa_mask",
        "scaled_dot_product_attention",
        {"attn_mask": "bfloat16", "query": "float16"},
    ),
    (
        "RuntimeError: Expected attn_mask dtype to be bool or to match query dtype, but got attn_mask.dtype: "
        "float and  "
        "query.dtype: struct c10::BFloat16 instead.",
        "sdpa_mask",
        "scaled_dot_product_attention",
        {"attn_mask": "float32", "query": "bfloat16"},
    ),
    # the warning before "No available kernel", all three float32: a format, not a mismatch
    (
        "UserWarning: Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float, Key "
        "dtype: float, and Value dtype: float instead.\nRuntimeError: No available kernel. Aborting execution.",
        "sdpa_backend",
        "scaled_dot_product_attention",
        {"query": "float32", "key": "float32", "value": "float32"},
    ),
    ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "flash_attn_format", "flash_attn_func", {}),
    (
        "RuntimeError: [address=0.0.0.0:37093, pid=1304] FlashAttention only support fp16 and bf16 data type",
        "flash_attn_format",
        "flash_attn_func",
        {},
    ),
    ("RuntimeError: query and key must have the same dtype", "flash_attn_same", "flash_attn_func", {}),
    # huggingface/diffusers #6727
    (
        "ValueError: Query/Key/Value should either all have the same dtype, or (in the quantized case) Key/Value "
        "should "
        "have dtype torch.int32\n  query.dtype: torch.float32\n  key.dtype  : torch.float16\n  value.dtype: "
        "torch.float16",
        "xformers",
        "memory_efficient_attention",
        {"query": "float32", "key": "float16", "value": "float16"},
    ),
    ("AssertionError: Both operands must be same dtype. Got fp32 and fp16", "triton_dot", "tl.dot", {
        "left": "float32", "right": "float16",
    }),
    ("RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half", "mat1_mat2", "linear", {
        "mat1": "float32", "mat2": "float16",
    }),
    ("RuntimeError: mat1 and mat2 must have the same dtype", "mat1_mat2", "linear", {}),
    # modelscope/ms-swift #2514
    ("RuntimeError: self and mat2 must have the same dtype, but got BFloat16 and Char", "self_mat2", "addmm", {
        "self": "bfloat16", "mat2": "int8",
    }),
    ("expected m1 and m2 to have the same dtype, but got: c10::Half != c10::BFloat16", "m1_m2", None, {
        "mat1": "float16", "mat2": "bfloat16",
    }),
    # cubiq/ComfyUI_IPAdapter_plus #140; ToTheBeginning/PuLID #162, as its title has it
    (
        "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: struct c10::Half != float",
        "cuda_mat1_mat2",
        None,
        {"mat1": "float16", "mat2": "float32"},
    ),
    ("expected mat1 and mat2 to have the same dtype, but got: float!= c10::Half", "cuda_mat1_mat2", None, {
        "mat1": "float32", "mat2": "float16",
    }),
    # xdit-project/xDiT #226
    (
        '[rank0]:   File "/usr/local/lib/python3.10/dist-packages/apex/normalization/fused_layer_norm.py", line 75, in '
        "forward\n[rank0]:     output, invvar = fused_layer_norm_cuda.rms_forward_affine(\n"
        "[rank0]: RuntimeError: expected scalar type Float but found Half",
        "scalar_type",
        "apex fused norm",
        {"expected": "float32", "found": "float16"},
    ),
    ("RuntimeError: expected scalar type torch.float16 but found torch.float32", "scalar_type", None, {
        "expected": "float16", "found": "float32",
    }),
    ("addmv input tensors must have the same dtype, but got Half, Float, and Half", "addmv", None, {
        "self": "float16", "mat1": "float32", "mat2": "float16",
    }),
    ("dot : expected both vectors to have same dtype, but found Float and Half", "dot", "dot", {
        "left": "float32", "right": "float16",
    }),
    ("RuntimeError: both inputs should have same dtype", "tensordot", None, {}),
    (
        "multi_dot(): all tensors must have be the same dtype but tensor 0 is float and tensor 1 c10::Half",
        "multi_dot",
        "linalg.multi_dot",
        {"left": "float32", "right": "float16"},
    ),
    ("Input dtypes must be the same, got: input c10::Half, batch1: float, batch2: float", "baddbmm", "baddbmm", {
        "self": "float16", "mat1": "float32", "mat2": "float32",
    }),
    (
        "All tensors must have the same dtype, got input1: float, input2: float, weight: c10::Half, bias: c10::Half",
        "bilinear",
        "bilinear",
        {"left": "float32", "right": "float32", "weight": "float16", "bias": "float16"},
    ),
    (
        "linalg.solve: Expected A and B to have the same dtype, but found A of type Float and B of type Double instead",
        "linalg",
        None,
        {"left": "float32", "right": "float64"},
    ),
    # huggingface/diffusers #2521; pytorch/pytorch #154887
    (
        "error: input types 'tensor<1x77x1xf16>' and 'tensor<1xf32>' are not broadcast compatible\n"
        "LLVM ERROR: Failed to infer result type(s).",
        "mps_graph",
        "an MPS graph operation",
        {"left": "float16", "right": "float32"},
    ),
    (
        "error: output type 'tensor<2x3x4xbf16>' and mean type 'tensor<1x3x1xf32>' are not broadcast compatible",
        "mps_graph",
        "an MPS graph operation",
        {"left": "bfloat16", "right": "float32"},
    ),
    # zai-org/VisionReward #7
    (
        "Index put requires the source and destination dtypes match, got BFloat16 for the destination and Float "
        "for the "
        "source.",
        "index_put",
        "index_put",
        {"destination": "bfloat16", "source": "float32"},
    ),
    (
        "index_copy_(): self and source expected to have the same dtype, but got (self) Half and (source) Float",
        "index_copy",
        "index_copy",
        {"destination": "float16", "source": "float32"},
    ),
    ("index_add_(): self (Half) and source (Float) must have the same scalar type", "index_add", None, {
        "destination": "float16", "source": "float32",
    }),
    # hkchengrex/MiVOS #19
    ("RuntimeError: scatter_cuda_(): Expected self.dtype to be equal to src.dtype", "scatter", None, {}),
    (
        "masked_scatter: expected self and source to have same dtypes but gotHalf and Float",
        "masked_scatter",
        "masked_scatter",
        {"destination": "float16", "source": "float32"},
    ),
    (
        "put_(): self and source expected to have the same dtype, but got self.dtype = Half and source.dtype = Float",
        "put",
        "put",
        {"destination": "float16", "source": "float32"},
    ),
    ("Expected out tensor to have dtype float, but got c10::Half instead", "out", "an operation with out=", {
        "expected": "float32", "destination": "float16",
    }),
    (
        "attempting to assign a gradient with dtype 'c10::Half' to a tensor with dtype 'float'. Please ensure that the "
        "gradient and the tensor have the same dtype",
        "gradient",
        "Tensor.grad =",
        {"source": "float16", "destination": "float32"},
    ),
    ("RuntimeError: Found dtype Half but expected Float", "found_dtype", "an elementwise kernel or its backward", {
        "found": "float16", "expected": "float32",
    }),
    ("RuntimeError: mixed dtype (CPU): expect parameter to have scalar type of Float", "norm_cpu", None, {
        "weight": "float32",
    }),
    # pytorch/pytorch #102922
    ("RuntimeError: mixed dtype (CPU): expect input to have scalar type of BFloat16", "norm_cpu_input", None, {
        "input": "bfloat16",
    }),
    ("Input type (float) and bias type (struct c10::Half) should be the same", "conv_bias", None, {
        "input": "float32", "bias": "float16",
    }),
    # hpcaitech/ColossalAI #2392
    (
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
        "conv_weight",
        None,
        {"input": "float32", "weight": "float16"},
    ),
    (
        "RNN input dtype (torch.float32) does not match weight dtype (torch.float16). Convert input: "
        "input.to(torch.float16), or convert model: model.to(torch.float32)",
        "rnn",
        None,
        {"input": "float32", "weight": "float16"},
    ),
    ("ValueError: input must have the type torch.float16, got type torch.float32", "rnn", None, {
        "input": "float32", "weight": "float16",
    }),
    (
        "Input and parameter tensors are not the same dtype, found input tensor with Float and parameter tensor "
        "with Half",
        "rnn_tensors",
        None,
        {"input": "float32", "weight": "float16"},
    ),
    # Comfy-Org/ComfyUI #7370; intel/auto-round #1380
    (
        "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
        "torch.cuda.HalfTensor instead (while checking arguments for embedding)",
        "indices",
        "embedding",
        {"indices": "float16"},
    ),
    (
        "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
        "CUDABFloat16Type instead",
        "indices",
        "embedding",
        {"indices": "bfloat16"},
    ),
    (
        "Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 "
        "'per_sample_weights'; "
        "but type torch.FloatTensor does not equal torch.HalfTensor (while checking arguments for embedding_bag)",
        "argument_types",
        None,
        {"left": "float32", "right": "float16"},
    ),
    ("Expected object of scalar type Float but got scalar type Half for second argument", "object_type", None, {
        "left": "float32", "right": "float16",
    }),
    # raised by torch 2.8 to 2.15 for Dia's decoder in float16 under the CPU's autocast
    ("RuntimeError: Unexpected floating ScalarType in at::autocast::prioritize", "autocast_other_half", None, {}),
    ("prelu: Type promoting not supported. Got Half and Float", "prelu", "prelu", {
        "input": "float16", "weight": "float32",
    }),
    ("expected dtype float for `end` but got dtype c10::Half", "lerp", "lerp", {
        "input": "float32", "other": "float16",
    }),
    (
        "grid_sampler(): expected input and grid to have same dtype, but input has c10::Half and grid has float",
        "grid_sampler",
        "grid_sample",
        {"input": "float16", "grid": "float32"},
    ),
    # metavoiceio/metavoice-src #27
    (
        '  File "/content/metavoice-src/fam/llm/sample.py", line 81, in __init__\n'
        '    nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)\n'
        "RuntimeError: Current CUDA Device does not support bfloat16. Please switch dtype to float16.",
        "autocast_no_bfloat16",
        "torch.autocast",
        {},
    ),
]  # fmt: skip


def dtypes_of(found):
    return {operand.name: operand.dtype for operand in found.operands if operand.dtype is not None}


@pytest.mark.parametrize(("text", "member", "op", "dtypes"), REAL)
def test_real_text_is_read(text, member, op, dtypes):
    found = explain(text)
    assert (found.member, found.op, dtypes_of(found)) == (member, op, dtypes)
    assert found.op is not None or len(found.candidates) > 1


def test_every_member_has_a_real_text():
    assert {member for _, member, _, _ in REAL} == {member.id for member in FAMILY}


def test_members_are_named_once_and_say_where_they_come_from():
    ids = [member.id for member in FAMILY]
    assert len(ids) == len(set(ids))
    for member in FAMILY:
        assert member.sources
        assert member.asks
        assert member.where
        named = {name for sentence in member.sentences for name in messages.compiled_sentence(sentence).groupindex}
        assert named == {operand.name for operand in member.operands}, member.id


@pytest.mark.parametrize(("text", "member", "op", "dtypes"), REAL)
def test_capitals_do_not_count(text, member, op, dtypes):
    for changed in (text.lower(), text.upper()):
        found = explain(changed)
        assert (found.member, dtypes_of(found)) == (member, dtypes)
        assert found.sentence in " ".join(changed.split())


def mutated(sentence):
    """Change one letter of the longest literal word."""
    words = [word for word in sentence.split() if word.isalpha()]
    longest = max(words, key=len)
    return sentence.replace(longest, longest[:-1] + ("x" if longest[-1] != "x" else "y"))


@pytest.mark.parametrize(("text", "member", "op", "dtypes"), REAL)
def test_a_mutated_pattern_is_caught(text, member, op, dtypes, monkeypatch):
    broken = [
        replace(m, sentences=tuple(map(mutated, m.sentences)), beginnings=tuple(map(mutated, m.beginnings)))
        if m.id == member
        else m
        for m in FAMILY
    ]
    monkeypatch.setattr(messages, "FAMILY", tuple(broken))
    assert explain(text).member != member


LINES = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl',
        "    return self._call_impl(*args, **kwargs)",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        '  File "C:\\ai\\automatic\\modules\\sd_unet.py", line 91, in forward',
        "[2026-01-02 03:04:05] INFO loading pipeline components: 100%|██████| 5/5",
        "│ ❱ 1553 │   │   │   return self._call_impl(*args, **kwargs)        │",
        "The above exception was the direct cause of the following exception:",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
        "",
    ]
)


@settings(max_examples=25, derandomize=True)
@given(real=st.sampled_from(REAL), before=st.lists(LINES, max_size=60), after=st.lists(LINES, max_size=30))
def test_a_sentence_is_found_anywhere_in_a_long_log(real, before, after):
    text, member, _, dtypes = real
    found = explain("\n".join([*before, text, *after]))
    assert (found.member, dtypes_of(found)) == (member, dtypes)


@settings(max_examples=15, derandomize=True)
@given(text=st.text(max_size=300))
def test_arbitrary_text_is_not_claimed(text):
    if text.strip():
        assert not explain(text).known


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_sentence_folded_by_a_terminal_is_found(width):
    text = f"{SDPA}float key.dtype: c10::Half and value.dtype: c10::Half instead."
    folded, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) > width:
            folded.append(f"│ {line} │")
            line = ""
        line += f" {word}"
    found = explain("\n".join([*folded, f"│ {line} │"]))
    assert dtypes_of(found) == {"query": "float32", "key": "float16", "value": "float16"}


def test_the_last_of_several_sentences_is_the_one_that_surfaced():
    first = f"{SDPA}float key.dtype: c10::Half and value.dtype: c10::Half instead."
    found = explain(
        f"suppressed: {first}\n\nRuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half"
    )
    assert found.member == "mat1_mat2"
    assert found.also == (first.removesuffix("."),)


def as_raised(member, sentence):
    """Fill a sentence's placeholders, with unlike dtypes."""
    for operand, dtype in zip(member.operands, ("float", "c10::Half", "c10::Half", "c10::Half"), strict=False):
        sentence = sentence.replace(f"{{{operand.name}}}", dtype)
    return sentence.replace("{#}", "1").replace("{*}", "1x")


@pytest.mark.parametrize("member", [m for m in FAMILY if m.beginnings], ids=lambda member: member.id)
def test_a_beginning_begins_a_sentence(member):
    whole = [lowered(as_raised(member, sentence)) for sentence in member.sentences]
    for beginning in member.beginnings:
        cut = messages.compiled_sentence(beginning)
        assert any(cut.match(sentence) for sentence in whole), beginning
        assert set(cut.groupindex) <= {operand.name for operand in member.operands}


@pytest.mark.parametrize("member", [m for m in FAMILY if m.beginnings], ids=lambda member: member.id)
def test_a_sentence_that_was_cut_is_known(member):
    for beginning in member.beginnings:
        found = explain(f"RuntimeError: {as_raised(member, beginning)} · Issue #1")
        assert found.member == member.id
        assert set(dtypes_of(found)) == set(messages.compiled_sentence(beginning).groupindex)
    for sentence in member.sentences:  # the whole one wins where it is there
        assert set(dtypes_of(explain(as_raised(member, sentence)))) == set(
            messages.compiled_sentence(sentence).groupindex
        )


WHOLE = f"{SDPA}float key.dtype: c10::Half and value.dtype: c10::Half instead."


def test_the_sentence_of_attention_is_known_wherever_it_was_cut():
    whole = {"query": "float32", "key": "float16", "value": "float16"}
    for length in range(len("Expected query, key, and value to have the same dtype"), len(WHOLE)):
        found = explain(f"RuntimeError: {WHOLE[:length]}...")
        named = (("query", "float"), ("key", "c10::Half"))
        least = sum(f"{name}.dtype: {spelling} " in WHOLE[:length] for name, spelling in named)
        assert found.member == "sdpa"
        assert dtypes_of(found).items() <= whole.items()
        assert len(dtypes_of(found)) >= least
        assert found.causes


def test_a_log_of_json_is_read():
    traceback = (
        'Traceback (most recent call last):\n  File "C:\\new\\layers.py", line 7, in forward\n    y = attend(q)\n'
        f"RuntimeError: {WHOLE}"
    )
    inside = json.dumps({"level": "error", "text": traceback})
    found, plain = explain(inside), explain(traceback)
    assert (found.sentence, found.how, found.frame) == (plain.sentence, "eager", "new/layers.py line 7 in forward")
    folded = json.dumps("RuntimeError: " + WHOLE.replace(" key", "\n  key"))
    assert dtypes_of(explain(folded)) == dtypes_of(plain)
    assert explain(folded).sentence == plain.sentence
    written = 'File "C:\\new\\table.py", line 1, in f\nRuntimeError: ' + WHOLE  # a path is not unescaped
    assert explain(written).frame == "new/table.py line 1 in f"
