"""Attention against a static KV cache, in the two states in which two text-to-speech systems raised.

Both keep keys and values in a float16 cache of fixed length and attend over all of its slots under a boolean mask of
those filled so far, with a float32 query: metavoiceio/metavoice-src #187 (q float32, k and v ``(2,16,2048,128)``
float16, mask ``(1,1,s,2048)``) and nari-labs/dia #158 (16 query heads on 4 key/value heads of 128, cache
``(2,4,3072,128)``, attention scale 1.0). One call attends with *s* queries: s = 1 in decode, s = 64 in prefill.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

from precision_eval.cases.base import BuiltCase, Case

QUERY_DTYPE = "float32"
CACHE_DTYPE = "float16"
PREFILL_TOKENS = 64
MEASURES = ("trace", "latency", "memory", "drift")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one system's attention."""

    batch: int
    query_heads: int
    cache_heads: int
    slots: int
    head_dim: int
    filled: int
    scale: float | None
    prefill_tokens: int


SHAPES: dict[str, Shape] = {
    "metavoice": Shape(
        batch=2, query_heads=16, cache_heads=16, slots=2048, head_dim=128, filled=1536, scale=None,
        prefill_tokens=PREFILL_TOKENS,
    ),
    "dia": Shape(
        batch=2, query_heads=16, cache_heads=4, slots=3072, head_dim=128, filled=2304, scale=1.0,
        prefill_tokens=PREFILL_TOKENS,
    ),
    "tiny": Shape(
        batch=2, query_heads=4, cache_heads=2, slots=64, head_dim=16, filled=48, scale=None, prefill_tokens=8,
    ),
}  # fmt: skip

# MetaVoice's heads over caches of other lengths, one row, so that 64 Ki positions fit in a float64 reference's memory.
LENGTHS: dict[str, Shape] = {
    str(slots): replace(SHAPES["metavoice"], batch=1, slots=slots, filled=slots)
    for slots in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
}


def build_attention(size: str, *, device: str, seed: int, prefill: bool) -> BuiltCase:
    """Build attention over a static cache."""
    return attention_case((SHAPES | LENGTHS)[size], device=device, seed=seed, prefill=prefill)


def attention_case(
    shape: Shape, *, device: str, seed: int, prefill: bool, cache_dtype_name: str = CACHE_DTYPE
) -> BuiltCase:
    """Build attention over a static cache of any shape; see :func:`build_attention`."""
    import torch

    from precision_eval.cases.systems.system import CachedAttention

    queries = shape.prefill_tokens if prefill else 1
    generator = torch.Generator().manual_seed(seed)
    used = (torch.arange(shape.slots) < shape.filled)[:, None]  # (slots, 1)
    cache_size = (shape.batch, shape.cache_heads, shape.slots, shape.head_dim)
    key, value = (torch.randn(cache_size, generator=generator) * used for _ in range(2))
    positions = torch.arange(shape.filled - queries, shape.filled)
    mask = torch.arange(shape.slots) <= positions[:, None]  # (s, slots)
    cache_dtype = getattr(torch, cache_dtype_name)
    model = CachedAttention(key.to(cache_dtype), value.to(cache_dtype), mask[None, None], scale=shape.scale)
    query_std = 1.0 if shape.scale is None else shape.head_dim**-0.5 / shape.scale
    query = torch.randn((shape.batch, shape.query_heads, queries, shape.head_dim), generator=generator) * query_std
    return BuiltCase(model.eval().to(device), (query.to(device, getattr(torch, QUERY_DTYPE)),))


_DEFINITION = (QUERY_DTYPE, CACHE_DTYPE, {name: asdict(shape) for name, shape in SHAPES.items()}, "randn, masked, v1")
_SOURCE = "metavoiceio/metavoice-src #187 (fam/llm/fast_model.py); nari-labs/dia #158 (d4790dd)"

ATTENTION_DECODE = Case(
    id="attention-decode",
    title="attention, one token",
    explanation=(
        "One float32 query per head attends to a float16 KV cache. Casting the query touches kilobytes; casting the "
        "cache reads and writes all of it."
    ),
    source=_SOURCE,
    sizes=(*SHAPES, *LENGTHS),
    default_sizes=("metavoice", "dia"),
    measures=MEASURES,
    definition=("decode", *_DEFINITION),
    make=partial(build_attention, prefill=False),
)

ATTENTION_PREFILL = replace(
    ATTENTION_DECODE,
    id="attention-prefill",
    sizes=tuple(SHAPES),
    title="attention, 64 tokens",
    explanation=(
        "64 float32 queries per head, each with its own causal row of the mask, attend to a float16 KV cache: many "
        "queries share the cost of a cast."
    ),
    definition=("prefill", *_DEFINITION),
    make=partial(build_attention, prefill=True),
)
