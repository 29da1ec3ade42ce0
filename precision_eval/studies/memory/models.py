"""Configurations that a memory plan is made of, and those of the published models, with their sources.

Conventions: plain data, no torch; dtypes are named as torch names them; widths and counts are elements, not bytes.
A model is an *encoder* stack, a *decoder* stack or both. Linear layers have no bias unless a stack says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from precision_eval.core.errors import unknown_name

Norm = Literal["rms", "rms_fused", "t5", "layer"]
Positions = Literal["learned", "rope", "relative", "none"]
Attention = Literal["sdpa", "explicit"]
CacheWrite = Literal["index_put", "slice"]
Activation = Literal["fused", "gelu_new"]
Landed = Literal["nothing", "norms_cast", "planned"]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Embeddings, layers, final norm and output head of one stack."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocabulary: int
    max_length: int
    gated: bool = True
    fused_qkv: bool = False
    fused_gate: bool = False
    qkv_bias: bool = False
    bias: bool = False
    head_norms: bool = False
    norm: Norm = "rms"
    tables: int = 1
    outputs: int = 0
    positions: Positions = "rope"
    relative_buckets: int = 0
    condition_width: int = 0
    cross_heads: int = 0
    cross_kv_heads: int = 0
    cross_head_dim: int = 0
    cross_width: int = 0
    attention: Attention = "sdpa"
    masked_cache: bool = True
    cache_write: CacheWrite = "index_put"
    activation: Activation = "fused"
    casting_linear: bool = False


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """Dtypes in which a model is held as shipped."""

    weights: str = "float32"
    norms: str = "float32"
    cache: str = "float32"
    mlp_out: str = ""
    condition: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model that a plan can be made for."""

    name: str
    source: str
    encoder: Stack | None = None
    decoder: Stack | None = None
    encoder_length: int = 0
    guidance_rows: int = 1
    shipped: Shipped = field(default_factory=Shipped)
    landed: Landed = "nothing"
    published_parameters: int | None = None
    published_source: str = ""
    pins_math: bool = False
    beside: str = ""

    @property
    def main(self) -> Stack:
        """The stack whose length is planned: the decoder where there is one."""
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack

    @property
    def float16_mlp_out(self) -> str:
        """Dtype of the MLP's output projection where the rest is loaded in float16; empty: float16 too."""
        return self.shipped.mlp_out or ("float32" if self.main.norm == "t5" else "")


MODELS: tuple[ModelConfig, ...] = (
    ModelConfig(
        name="metavoice-1b",
        source="metavoiceio/metavoice-src, fam/llm/fast_model.py and fast_inference_utils.py (first stage)",
        decoder=Stack(
            layers=24, width=2048, heads=16, kv_heads=16, head_dim=128, mlp_width=5632, vocabulary=2562, outputs=2562,
            max_length=2048, positions="learned", condition_width=256, fused_qkv=True,
        ),
        guidance_rows=2,
        shipped=Shipped(weights="bfloat16", norms="bfloat16", cache="float16", condition="float16"),
        published_parameters=1_200_000_000,
        published_source="metavoiceio/metavoice-src, README.md: 1.2B parameter base model",
        pins_math=True,
        beside=(
            "the second stage, the speaker encoder and the codec, whose multi-band diffusion takes some 5 GB "
            "(metavoice-src #66); and fam/llm/sample.py loads each checkpoint onto the device beside its model"
        ),
    ),
    ModelConfig(
        name="dia-1.6b",
        source="nari-labs/dia, dia/config.py and dia/layers.py at d4790dd (PR #88)",
        encoder=Stack(
            layers=12, width=1024, heads=16, kv_heads=16, head_dim=128, mlp_width=4096, vocabulary=256,
            max_length=1024, fused_gate=True, norm="rms_fused", casting_linear=True,
        ),
        decoder=Stack(
            layers=18, width=2048, heads=16, kv_heads=4, head_dim=128, mlp_width=8192, vocabulary=1028, tables=9,
            outputs=9 * 1028, max_length=3072, fused_gate=True, norm="rms_fused", cross_heads=16, cross_kv_heads=16,
            cross_head_dim=128, cross_width=1024, masked_cache=False, cache_write="slice",
            casting_linear=True,
        ),
        encoder_length=1024,
        guidance_rows=2,
        shipped=Shipped(weights="float16", norms="float32", cache="float16"),
        landed="norms_cast",
        published_parameters=1_611_000_000,
        published_source="transformers, DiaForConditionalGeneration with the default configuration",
    ),
    ModelConfig(
        name="t5-xxl",
        source="google/t5-v1_1-xxl, config.json: the encoder with its own norm, as CogVideoX uses it; apex's raises",
        encoder=Stack(
            layers=24, width=4096, heads=64, kv_heads=64, head_dim=64, mlp_width=10240, vocabulary=32128,
            max_length=512, positions="relative", relative_buckets=32, norm="t5", attention="explicit",
            activation="gelu_new",
        ),
        shipped=Shipped(weights="float16", norms="float16", cache="float16", mlp_out="float32"),
        landed="planned",
        published_parameters=4_760_000_000,
        published_source="zai-org/CogVideo #170: T5 v1.1 XXL encoder, 4.76 B",
    ),
)  # fmt: skip


def model_by_name(name: str) -> ModelConfig:
    """Look a published configuration up."""
    for model in MODELS:
        if model.name == name:
            return model
    raise unknown_name("model", name, (model.name for model in MODELS))


def _linears(stack: Stack, rows_in: int, sizes: tuple[int, ...], *, bias: bool) -> int:
    return sum(rows_in * size + size * bias for size in sizes)


def layer_parameters(stack: Stack) -> dict[str, int]:
    """Count the parameters of one layer."""
    inner, cached = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    linear = _linears(stack, stack.width, (inner, cached, cached), bias=stack.qkv_bias or stack.bias)
    linear += _linears(stack, inner, (stack.width,), bias=stack.bias)
    linear += _linears(stack, stack.width, (stack.mlp_width,) * (1 + stack.gated), bias=stack.bias)
    if stack.cross_heads:
        cross, cross_cached = stack.cross_heads * stack.cross_head_dim, stack.cross_kv_heads * stack.cross_head_dim
        linear += _linears(stack, stack.width, (cross,), bias=stack.bias)
        linear += _linears(stack, stack.cross_width, (cross_cached, cross_cached), bias=stack.bias)
        linear += _linears(stack, cross, (stack.width,), bias=stack.bias)
    norms = (3 if stack.cross_heads else 2) * stack.width * (1 + stack.bias) + 2 * stack.head_dim * stack.head_norms
    return {
        "linear": linear,
        "mlp_out": _linears(stack, stack.mlp_width, (stack.width,), bias=stack.bias),
        "norms": norms,
    }


def parameter_groups(config: ModelConfig) -> dict[str, int]:
    """Count a model's parameters by the dtype group they are stored in."""
    total = {"linear": 0, "mlp_out": 0, "norms": 0}
    for stack in (config.encoder, config.decoder):
        if stack is None:
            continue
        for group, count in layer_parameters(stack).items():
            total[group] += stack.layers * count
        total["norms"] += stack.width * (1 + stack.bias)
        total["linear"] += stack.tables * stack.vocabulary * stack.width + stack.outputs * stack.width
        total["linear"] += stack.condition_width * stack.width + stack.relative_buckets * stack.heads
        total["linear"] += stack.max_length * stack.width if stack.positions == "learned" else 0
    return total


def parameter_count(config: ModelConfig) -> int:
    """Count all parameters of a model."""
    return sum(parameter_groups(config).values())
