"""Members of the family that attention raises: torch's own, flash-attn, xformers, kernels written in Triton."""

from __future__ import annotations

from precision_eval.diagnose.explain.members import Member, Operand

_QUERY = Operand("query", "activation", "what the current tokens were projected to")
_KEY = Operand("key", "storage", "in decoding, the KV cache")
_VALUE = Operand("value", "storage", "in decoding, the KV cache")

ATTENTION: tuple[Member, ...] = (
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
