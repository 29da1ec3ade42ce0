"""One call of each kind of stack, written as its source writes it, on tensors without values.

Conventions: as in :mod:`precision_eval.studies.memory.machine`. A local name holds its tensor as long as it does in the
source, and that is the point: do not inline or rename across a step without looking at the source again. Shapes:
x (B, s, width) with s tokens per call; caches (B, kv_heads, slots, head_dim).
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_eval.studies.memory.ledger import Sized, promoted
from precision_eval.studies.memory.machine import Machine
from precision_eval.studies.memory.models import Stack


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Sizes of one call."""

    rows: int
    tokens: int
    slots: int
    cross: int = 0


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """Storage dtypes in force."""

    weights: str
    norms: str
    mlp_out: str
    cache: str
    condition: str
    norm_output: str = ""


def _norm(m: Machine, stack: Stack, dtypes: Dtypes, x: Sized) -> Sized:
    y = m.norm(x, stack.norm, dtypes.norms)
    return m.cast(y, dtypes.norm_output, "activations") if dtypes.norm_output else y


def _linear(m: Machine, stack: Stack, x: Sized, width: int, dtype: str, what: str) -> Sized:
    return m.linear(x, width, dtype, casting=stack.casting_linear, what=what)


def _embedded(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes) -> Sized:
    shape = (dims.rows, dims.tokens, stack.width)
    x = m.new(shape, dtypes.weights)
    for _ in range(stack.tables - 1):
        x = m.combined(x, m.new(shape, dtypes.weights))
    if stack.positions == "learned":
        x = m.combined(x, m.new(shape[1:], dtypes.weights))
    if stack.condition_width:
        condition = Sized((1, stack.condition_width), dtypes.condition)
        projected = m.linear(condition, stack.width, dtypes.weights, what="speaker projection")
        x = m.combined(x, m.combined(projected, Sized((2, 1, stack.width), "bool")))
    return x


def _rotated(m: Machine, stack: Stack, x: Sized, *, wide: bool) -> Sized:
    """Rotary positions in x's dtype, or in float32 and cast back; the halves are views."""
    if stack.positions != "rope":
        return x
    dtype = promoted(x.dtype, "float32") if wide else x.dtype
    held = m.cast(x, dtype, "activations")
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first = m.combined(m.new(half, dtype), m.new(half, dtype))
    second = m.combined(m.new(half, dtype), m.new(half, dtype))
    turned = m.concatenated(first, x.shape)
    del held, first, second
    return m.cast(turned, x.dtype, "activations")


def _heads(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes, x: Sized) -> tuple[Sized, Sized, Sized]:
    """Query, key and value of the tokens at hand: (B, H, s, D) views of what the projections return."""
    counts = (stack.heads, stack.kv_heads, stack.kv_heads)
    fused = None
    if stack.fused_qkv:
        fused = _linear(m, stack, x, sum(counts) * stack.head_dim, dtypes.weights, "qkv projection")
    found = []
    for place, count in enumerate(counts):
        y = fused or _linear(m, stack, x, count * stack.head_dim, dtypes.weights, "qkv projection")
        y = y.view(dims.rows, count, dims.tokens, stack.head_dim)
        if stack.head_norms and place < 2:
            y = m.norm(y, stack.norm, dtypes.norms)
        found.append(_rotated(m, stack, y, wide=bool(dtypes.norm_output)) if place < 2 else y)
    return found[0], found[1], found[2]


def _self_attention(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes, x: Sized, mask: Sized | None) -> Sized:
    q, k, v = _heads(m, stack, dims, dtypes, x)
    cache = Sized((dims.rows, stack.kv_heads, dims.slots, stack.head_dim), dtypes.cache)
    m.write(cache, k, stack.cache_write)
    m.write(cache, v, stack.cache_write)
    y = m.attend(q, cache, cache, mask)
    return _projected(m, stack, y, dtypes)


def _projected(m: Machine, stack: Stack, y: Sized, dtypes: Dtypes) -> Sized:
    """Heads side by side, contiguous (a copy where there are several tokens), and projected."""
    rows, heads, tokens, width = y.shape
    if tokens > 1:
        y = m.mapped(y)
    return _linear(m, stack, y.view(rows, tokens, heads * width), stack.width, dtypes.weights, "output projection")


def _cross_attention(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes, x: Sized, mask: Sized) -> Sized:
    q = _linear(m, stack, x, stack.cross_heads * stack.cross_head_dim, dtypes.weights, "cross query projection")
    q = q.view(dims.rows, stack.cross_heads, dims.tokens, stack.cross_head_dim)
    q = _rotated(m, stack, q, wide=bool(dtypes.norm_output))
    cache = Sized((dims.rows, stack.cross_kv_heads, dims.cross, stack.cross_head_dim), dtypes.cache)
    return _projected(m, stack, m.attend(q, cache, cache, mask), dtypes)


def _activated(m: Machine, stack: Stack, x: Sized) -> Sized:
    """Apply the activation; ``gelu_new`` is 0.5·x·(1 + tanh(c·(x + 0.044715·x³))), one tensor per step."""
    if stack.activation == "fused":
        return m.mapped(x)
    half = m.mapped(x)
    y = m.mapped(m.mapped(x))  # the cube, then its multiple
    for _ in range(4):  # + x, · c, tanh, + 1
        y = m.mapped(y)
    return m.combined(half, y)


def _mlp(m: Machine, stack: Stack, dtypes: Dtypes, x: Sized) -> Sized:
    inner = (*x.shape[:-1], stack.mlp_width)
    if stack.gated and stack.fused_gate:
        fused = _linear(m, stack, x, 2 * stack.mlp_width, dtypes.weights, "MLP input")
        hidden = m.combined(_activated(m, stack, fused.view(*inner)), fused.view(*inner))
    elif stack.gated:
        gate = _activated(m, stack, _linear(m, stack, x, stack.mlp_width, dtypes.weights, "MLP input"))
        hidden = m.combined(gate, _linear(m, stack, x, stack.mlp_width, dtypes.weights, "MLP input"))
        del gate
    else:
        hidden = _activated(m, stack, _linear(m, stack, x, stack.mlp_width, dtypes.weights, "MLP input"))
    if stack.norm == "t5":  # casts to its output projection's dtype itself
        hidden = m.cast(hidden, dtypes.mlp_out, "activations")
    elif stack.casting_linear:  # Dia brings the product to the dtype of its embeddings
        hidden = m.cast(hidden, dtypes.weights, "activations")
    return _linear(m, stack, hidden, stack.width, dtypes.mlp_out, "MLP output")


def decode(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes) -> tuple[Sized, ...]:
    """One step of a decoder over its static caches."""
    mask = m.new((1, 1, dims.tokens, dims.slots), "bool") if stack.masked_cache else None
    cross_mask = Sized((dims.rows, 1, 1, dims.cross), "bool")
    x = _embedded(m, stack, dims, dtypes)
    for _ in range(stack.layers):
        x = _layer(m, stack, dims, dtypes, x, mask, cross_mask)
    x = _norm(m, stack, dtypes, x)
    if not stack.outputs:
        return (x,)
    logits = _linear(m, stack, x, stack.outputs, dtypes.weights, "head")
    return (m.cast(logits, "float32", "activations") if stack.casting_linear else logits), x


def _layer(
    m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes, x: Sized, mask: Sized | None, cross_mask: Sized
) -> Sized:
    h = m.combined(x, _self_attention(m, stack, dims, dtypes, _norm(m, stack, dtypes, x), mask))
    if stack.cross_heads:
        h = m.combined(h, _cross_attention(m, stack, dims, dtypes, _norm(m, stack, dtypes, h), cross_mask))
    return m.combined(h, _mlp(m, stack, dtypes, _norm(m, stack, dtypes, h)))


def _explicit_attention(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes, x: Sized, bias: Sized) -> Sized:
    """T5's: two products around a softmax in float32, no scale; the bias is added in place."""
    q, k, v = _heads(m, stack, dims, dtypes, x)
    scores = m.added(m.product(q, k.view(*k.shape[:2], k.shape[3], k.shape[2])), bias)
    weights = m.mapped(m.cast(scores, promoted(scores.dtype, "float32"), "activations"))
    weights = m.cast(weights, scores.dtype, "activations")
    return _projected(m, stack, m.product(weights, v), dtypes)


def _clamped(m: Machine, stack: Stack, x: Sized) -> Sized:
    """T5 clamps infinities where its hidden states are float16."""
    return m.mapped(x) if stack.norm == "t5" and x.dtype == "float16" else x


def _encoder_layer(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes, x: Sized, mask: Sized) -> Sized:
    h = _clamped(m, stack, m.combined(x, _encoder_attention(m, stack, dims, dtypes, _norm(m, stack, dtypes, x), mask)))
    return _clamped(m, stack, m.combined(h, _mlp(m, stack, dtypes, _norm(m, stack, dtypes, h))))


def _encoder_attention(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes, x: Sized, mask: Sized) -> Sized:
    if stack.attention == "explicit":
        return _explicit_attention(m, stack, dims, dtypes, x, mask)
    q, k, v = _heads(m, stack, dims, dtypes, x)
    return _projected(m, stack, m.attend(q, k, v, mask), dtypes)


def _relative_buckets(m: Machine, tokens: int) -> Sized:
    """Bucket of each pair of positions, int64; on the way six tensors of that shape are alive."""
    shape = (tokens, tokens)
    offset, distance, octaves, far = (m.new(shape, d) for d in ("int64", "int64", "float32", "int64"))
    side, near = m.new(shape, "int64"), m.new(shape, "int64")
    buckets = m.new(shape, "int64")
    del offset, distance, octaves, far, side, near
    return buckets


def encode(m: Machine, stack: Stack, dims: Dims, dtypes: Dtypes) -> tuple[Sized, ...]:
    """One pass of an encoder over all its tokens."""
    if stack.positions == "relative":
        buckets = _relative_buckets(m, dims.tokens)
        mask = m.new((dims.tokens, dims.tokens, stack.heads), dtypes.weights)
        mask = mask.view(1, stack.heads, dims.tokens, dims.tokens)
    else:
        buckets = None
        mask = m.new((dims.rows, 1, dims.tokens, dims.tokens), "bool")
    x = _embedded(m, stack, dims, dtypes)
    for _ in range(stack.layers):
        x = _encoder_layer(m, stack, dims, dtypes, x, mask)
    y = _norm(m, stack, dtypes, x)
    del buckets  # kept for every layer, as the source's local is
    return (y,)
