"""``CAUSES``: the known ways in which dtypes come apart, each with how to tell it from the others.

Conventions: a literal tuple, the most specific first. A cause *fits* where the site and the dtypes do; it is *named*
where the text also shows one of its words (a file, a class, a library). The message alone rarely decides: several
causes fit most messages, and each says what to look at. This module loads no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from precision_eval.explain.messages import SentenceMatch

HALF = ("float16", "bfloat16")
FLOATS = (*HALF, "float32")


@dataclass(frozen=True)
class When:
    """A condition under which a cause raises."""

    members: tuple[str, ...]
    activation: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One known cause."""

    id: str
    title: str
    explanation: str
    tell: str
    when: tuple[When, ...]
    words: tuple[str, ...]
    fix: str
    sources: tuple[str, ...]
    case: str | None = None
    only_named: bool = False


_ATTENTION = ("sdpa", "flash_attn_same", "xformers")
_LINEAR = ("mat1_mat2", "m1_m2", "cuda_mat1_mat2", "self_mat2")
_WRITES = ("index_put", "index_copy", "index_add", "scatter", "masked_scatter", "put")

CAUSES: tuple[Cause, ...] = (
    Cause(
        id="metavoice_fast",
        title="weights in bfloat16, cache and speaker embedding in float16",
        explanation=(
            "MetaVoice's fast path loads its weights as bfloat16 whatever the precision asked for, while the KV cache "
            "and the speaker embedding follow the device's default, float16 on a T4. bfloat16 + float16 promotes to "
            "float32, so the query becomes a dtype that nothing was stored in."
        ),
        tell=(
            "The query is float32 although no parameter is: print {p.dtype for p in model.parameters()} and the "
            "caches'. In eager the same state fails earlier, in a Linear."
        ),
        when=(
            When(_ATTENTION, activation=("float32",), storage=("float16",)),
            When(_LINEAR, activation=("float16",), storage=("bfloat16",)),
        ),
        words=(r"fam/llm/fast_", r"fast_inference", r"metavoice"),
        fix="none landed: the threads are open; one dtype everywhere cures it, the casts at attention only move it",
        sources=("metavoiceio/metavoice-src #187", "metavoiceio/metavoice-src #106", "metavoiceio/metavoice-src #108"),
        case="metavoice-*",
    ),
    Cause(
        id="metavoice_cpu",
        title="float32 weights, float16 KV cache, no autocast",
        explanation=(
            "On a CPU the weights stay float32 and autocast is off, but the cache is made float16. Filling it by slice "
            "assignment casts silently; attention then sees a float32 query."
        ),
        tell="Every parameter is float32 and only the caches are half; the write before it did not raise.",
        when=(When(_ATTENTION, activation=("float32",), storage=HALF),),
        words=(r"fam/llm/inference", r"fam/llm/layers", r"metavoice"),
        fix="none landed; make the cache in the weights' dtype, or run under autocast",
        sources=("metavoiceio/metavoice-src #128", "metavoiceio/metavoice-src #172"),
        case="metavoice-*",
    ),
    Cause(
        id="norm_promotes",
        title="a norm with float32 weights returns float32",
        explanation=(
            "A norm stored in float32 gets a half input. Dia's RMSNorm before the query (commit d4790dd) promoted the "
            "query to float32 while the cache stayed half. torch.nn.RMSNorm did that in torch 2.6 and returns the "
            "input's dtype from 2.7 on (pytorch PR #147203)."
        ),
        tell="The projection's output is half and the norm's is float32: print both; a newer torch may not raise.",
        when=(When((*_ATTENTION, *_LINEAR, "scalar_type"), activation=("float32",), storage=HALF),),
        words=(r"\bdia/", r"nari-labs", r"RMSNorm", r"rms_norm", r"Xq_BxNxTxH"),
        fix="nari-labs/dia PR #127 (4a9e29b): the norm's output is cast to the compute dtype",
        sources=("nari-labs/dia #158", "nari-labs/dia #108", "nari-labs/dia #113"),
        case="dia-*",
    ),
    Cause(
        id="cache_wider",
        title="a cache, or another part's output, in float32 beside a half query",
        explanation=(
            "Key and value come from where nobody cast them: a cache made with the default dtype (Dia before PR #45), "
            "an adapter or an encoder of its own that stayed float32 (IPAdapter, InstantID)."
        ),
        tell="Query and model are half; key and value are float32. Look at where they are made, not at attention.",
        when=(When(_ATTENTION, activation=HALF, storage=("float32", "bfloat16", "float16")),),
        words=(r"IPAdapter", r"InstantID", r"\bdia/", r"nari-labs"),
        fix="nari-labs/dia PR #45 (9d0e434) cast key and value to the query's dtype; making them so costs less",
        sources=("nari-labs/dia PR #45", "cubiq/ComfyUI_IPAdapter_plus #183", "cubiq/ComfyUI_InstantID #97"),
        case="dia-*",
    ),
    Cause(
        id="narrow_cache",
        title="a cache or a weight is kept in 8 bits, and what reads it does not widen it",
        explanation=(
            "An fp8 cache halves what is read at every step, and its kernel multiplies by a scale. Another kernel gets "
            "the codes themselves, and torch promotes no float8."
        ),
        tell="One operand is float8 or uint8: look for kv_cache_dtype, a scale, or .to(torch.float8_e4m3fn).",
        when=(
            When((*_ATTENTION, *_LINEAR, *_WRITES, "triton_dot"), storage=("float8_e4m3fn", "float8_e5m2", "uint8")),
            When(("float8_promotion", "scaled_mm")),
        ),
        words=(r"kv_cache_dtype|kv-cache-dtype", r"fp8|float8"),
        fix="widen it where it is read, with its scale: `--fix 'cache_*'` measures what 8 bits cost",
        sources=("vllm-project/vllm #6884", "vllm-project/vllm #11329"),
        case="metavoice-*",
    ),
    Cause(
        id="mixed_parameters",
        title="parameters of two dtypes in one group",
        explanation="Norms or adapters kept in float32 beside a half model, flattened or sent as one.",
        tell="Print {p.dtype for p in module.parameters()} of the module that is wrapped.",
        when=(When(("fsdp", "collective", "dtypes_not_named", "optimizer")),),
        words=(r"fsdp|FullyShard", r"\blora|peft", r"all_gather|all_reduce"),
        fix="one dtype for a group, with mixed precision by FSDP's own policy; or groups by dtype",
        sources=("pytorch torch/distributed/fsdp (MixedPrecision)",),
    ),
    Cause(
        id="recomputed_elsewhere",
        title="the recomputation ran under another autocast than the forward pass",
        explanation="Gradient checkpointing repeats the forward pass in backward, in the dtypes of the autocast there.",
        tell="autocast surrounds the forward pass only, or is entered inside the part that is repeated.",
        when=(When(("recomputed",)),),
        words=(r"autocast|accelerate",),
        fix="enter autocast outside of the checkpointed part, or give checkpoint a context_fn",
        sources=("pytorch torch/utils/checkpoint.py (context_fn)",),
    ),
    Cause(
        id="float32_embedding",
        title="a float32 timestep embedding meets half weights",
        explanation=(
            "A sinusoidal embedding is computed in float32 and goes uncast into a half Linear; imaginAIry met it when "
            "autocast was switched off."
        ),
        tell="The Linear is the first layer after the embedding of a timestep or a position; other inputs are half.",
        when=(When(_LINEAR, activation=("float32",), storage=HALF),),
        words=(r"time_embed", r"timestep_embedding", r"imaginairy", r"emb_layers", r"embeddings\.py"),
        fix=(
            "cast after the embedding, never before: bfloat16 turns timestep 999 into 1000. "
            "brycedrennan/imaginAIry PR #443 put autocast back instead"
        ),
        sources=("brycedrennan/imaginAIry #442", "brycedrennan/imaginAIry PR #443", "huggingface/diffusers #4860"),
        case="imaginairy-*",
    ),
    Cause(
        id="t5_fused_norm",
        title="T5's float32 residual meets apex's fused norm",
        explanation=(
            "transformers keeps T5's wo in float32 when it loads float16, so the residual is float32; with apex "
            "installed the norm is swapped for apex's, which refuses a float32 input beside a half weight. The stock "
            "norm accepts it."
        ),
        tell="The traceback passes through apex or FusedRMSNorm; without apex there is no error.",
        when=(When(("scalar_type",)),),
        words=(r"apex", r"fused_rms_norm", r"FusedRMSNorm", r"modeling_t5", r"\bT5|\bt5"),
        fix=(
            "uninstall apex, or load the encoder in bfloat16 or float32; .half() afterwards loses what wo's "
            "float32 is for"
        ),
        sources=("zai-org/CogVideo #170", "huggingface/transformers #34264", "xdit-project/xDiT #226"),
        case="cogvideo-*",
    ),
    Cause(
        id="autocast_norm",
        title="autocast runs the norms of query and key in float32",
        explanation=(
            "Under autocast layer_norm is a float32 operation, and rms_norm is one on CUDA since torch 2.12. Query and "
            "key leave their norms float32, the value stays half. torch's own attention casts them back; flash-attn, "
            "xformers and other kernels from outside are not covered by autocast."
        ),
        tell="Query and key are float32, only the value is half, and autocast is on.",
        when=(When((*_ATTENTION, "flash_attn_format", "sdpa_backend")),),
        words=(r"norm_q|norm_k|qk_norm|q_norm|k_norm", r"autocast|accelerate"),
        fix="cast query and key to the value's dtype after the norms",
        sources=("huggingface/diffusers #14104", "pytorch/pytorch #174824", "facebookresearch/xformers #1046"),
    ),
    Cause(
        id="mps_autocast",
        title="autocast on MPS did not cover attention",
        explanation="On MPS, autocast left scaled_dot_product_attention alone where CUDA's casts its operands.",
        tell="The device is mps and autocast is on.",
        when=(When(("sdpa",)),),
        words=(r"\bmps\b",),
        fix="cast the operands, or a newer torch",
        sources=("pytorch/pytorch #141774",),
        only_named=True,
    ),
    Cause(
        id="kernel_needs_half",
        title="the model is float32 and the kernel takes half only",
        explanation="flash attention computes float16 and bfloat16 only; a model loaded without a dtype is float32.",
        tell="Every parameter is float32: no dtype was given at loading, or autocast is off at this call.",
        when=(When(("flash_attn_format", "sdpa_backend")),),
        words=(r"flash_attn", r"flash_attention_2"),
        fix="load in half, or choose attention that computes float32",
        sources=("QwenLM/Qwen3 #406", "unslothai/unsloth #827", "Dao-AILab/flash-attention #622"),
    ),
    Cause(
        id="input_not_cast",
        title="the model was made half, its input was not (or the other way round)",
        explanation=(
            "model.half() or a checkpoint's dtype changes parameters and buffers only. A tensor made in the forward "
            "pass or handed in keeps its own dtype, and the first layer that meets it raises."
        ),
        tell="The layer is the first to see that input; cast the input and the error is gone or moves on.",
        when=(When((*_LINEAR, "conv_bias", "conv_weight", "rnn", "rnn_tensors", "norm_cpu", "scalar_type", "prelu")),),
        words=(r"\.half\(\)", r"_conv_forward", r"conv_in"),
        fix="cast the input where it enters, or run under autocast",
        sources=("vladmandic/sdnext #1978", "nvidia-cosmos/cosmos-transfer1 #137"),
    ),
    Cause(
        id="adapter_weights",
        title="an adapter's or a quantised layer's weights have another dtype than the base's",
        explanation="LoRA and quantised layers bring weights of their own, float32 or float16 beside a bfloat16 base.",
        tell="The traceback passes through peft, lora, adapters, gptq or bitsandbytes.",
        when=(When((*_LINEAR, "scalar_type", *_ATTENTION), activation=FLOATS, storage=(*FLOATS, "int8", "uint8")),),
        words=(r"\blora|lora_", r"peft", r"adapter", r"gptq", r"bitsandbytes", r"qlora"),
        fix="load base and adapter in one dtype, or cast inside the adapter",
        sources=("hiyouga/LlamaFactory #4432", "adapter-hub/adapters #766", "modelscope/ms-swift #2124"),
        only_named=True,
    ),
    Cause(
        id="autocast_write",
        title="autocast made the values half, the tensor written to is float32 (or the other way round)",
        explanation=(
            "A buffer is made in one dtype, and what is written into it comes from an operation on autocast's half or "
            "float32 list. A write with a tensor index refuses; a plain slice casts silently."
        ),
        tell="The destination is made by zeros or empty without a dtype; the values come from a layer.",
        when=(When(_WRITES),),
        words=(r"autocast", r"zeros_like", r"inputs_embeds"),
        fix="make the destination in the values' dtype, or cast the values at the write",
        sources=("pytorch/pytorch #51730", "continue-revolution/sd-webui-animatediff #168", "zai-org/VisionReward #7"),
    ),
    Cause(
        id="autocast_other_half",
        title="autocast computes in one half format, the tensors are in the other",
        explanation=(
            "Operations that promote, such as cat and stack, take float32 and autocast's own half format only. On a "
            "CPU autocast is bfloat16 unless told otherwise; weights, caches or inputs in float16 do not fit."
        ),
        tell="The sentence says so; compare torch.get_autocast_dtype(device) with the tensors' dtypes.",
        when=(When(("autocast_other_half",)),),
        words=(r"autocast\(",),
        fix="give autocast the dtype of the tensors, or store them in autocast's",
        sources=("pytorch/pytorch #132715", "pytorch/pytorch PR #191125", "Parskatt/RoMa #2"),
    ),
    Cause(
        id="no_bfloat16",
        title="autocast asks for bfloat16 on a card without it",
        explanation=(
            "Cards below compute capability 8.0 (T4, V100, P100) do not compute bfloat16 natively. The first release "
            "of MetaVoice asked for it by default, and torch refused when autocast's context was made: no tensor was "
            "looked at."
        ),
        tell=(
            "torch.cuda.get_device_capability() is below (8, 0). torch.cuda.is_bf16_supported() does not tell: newer "
            "versions say True there, as emulation counts; ask with including_emulation=False."
        ),
        when=(When(("autocast_no_bfloat16",)),),
        words=(r"fam/llm/sample", r"metavoice"),
        fix=(
            "float16 throughout or in autocast, which may then run out of memory or of float16's range: "
            "`precision-eval plan --device t4` shows what fits. Nothing landed in metavoice-src but float16 as the "
            "default on such cards"
        ),
        sources=("metavoiceio/metavoice-src #27", "metavoiceio/metavoice-src #66", "pytorch/pytorch #148322"),
        case="metavoice-t4",
    ),
    Cause(
        id="mask_dtype",
        title="the mask was made in another dtype than the query",
        explanation="A mask made as int64, or in the half format of another part of the model.",
        tell="Only attn_mask differs; a bool mask never raises.",
        when=(When(("sdpa_mask",)),),
        words=(r"attn_mask", r"attention_mask"),
        fix="make the mask bool, or cast it to the query's dtype",
        sources=("Comfy-Org/ComfyUI #8118", "mahmoodlab/TITAN #11"),
    ),
    Cause(
        id="numpy_float64",
        title="a float64 array from numpy",
        explanation="numpy computes in float64; torch.from_numpy and mixed products bring it into the model.",
        tell="One operand is float64.",
        when=(
            When(
                (
                    *_LINEAR,
                    *_ATTENTION,
                    "conv_bias",
                    "conv_weight",
                    "rnn",
                    "rnn_tensors",
                    "scalar_type",
                    "norm_cpu_input",
                ),
                activation=("float64",),
            ),
        ),
        words=(r"numpy|np\.",),
        fix="cast once where the array enters; autocast leaves float64 alone",
        sources=("pytorch/pytorch #105243",),
    ),
    Cause(
        id="float_indices",
        title="token numbers became floats",
        explanation=(
            "A cast of everything (.half(), a data collator, a quantiser's calibration) took the indices with it."
        ),
        tell="What goes into the embedding is floating: cast by type, not everything.",
        when=(When(("indices",)),),
        words=(r"embedding",),
        fix=".long() on the indices; float16 holds no odd number above 2048",
        sources=("QwenLM/Qwen3 #44", "intel/auto-round #1380"),
    ),
    Cause(
        id="compiled_default_dtype",
        title="torch.compile under torch.set_default_dtype changed a dtype that eager keeps",
        explanation="Traced under another default dtype than it runs under, a graph made constants of the wrong one.",
        tell="Eager runs, only the compiled call raises.",
        when=(When(("sdpa",)),),
        words=(r"set_default_dtype",),
        fix="set the default dtype before compiling and keep it, or name dtypes explicitly",
        sources=("pytorch/pytorch #119162",),
        only_named=True,
    ),
)


def fits(cause: Cause, matched: SentenceMatch) -> bool:
    """Say whether site and dtypes of a sentence are those of a cause."""
    dtypes = matched.dtypes
    if cause.id == "numpy_float64" and "float64" not in dtypes.values():
        return False
    if cause.id == "autocast_norm" and dtypes and not _only_value_is_half(dtypes):
        return False
    return any(_holds(when, matched) for when in cause.when)


def _only_value_is_half(dtypes: dict[str, str]) -> bool:
    """Whether the dtypes named are those; a sentence that was cut names fewer."""
    wide = {dtypes.get(name, "float32") for name in ("query", "key")}
    return wide == {"float32"} and dtypes.get("value", HALF[0]) in HALF


def _holds(when: When, matched: SentenceMatch) -> bool:
    if matched.member.id not in when.members:
        return False
    wanted = {"activation": when.activation, "storage": when.storage}
    roles = {operand.name: operand.role for operand in matched.member.operands}
    for name, dtype in matched.dtypes.items():
        among = wanted.get(roles[name], ())
        if among and dtype not in among:
            return False
    return True


def is_named(cause: Cause, text: str) -> bool:
    """Say whether a text shows one of a cause's words."""
    return any(re.search(word, text, re.IGNORECASE) for word in cause.words)
