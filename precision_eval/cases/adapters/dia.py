"""transformers' ``DiaForConditionalGeneration`` at one decode step, with Dia's split of dtypes put in from outside.

The class never had the bug: it keeps one dtype throughout, and its norm gives back its input's dtype times the gain.
What d4790dd of nari-labs/dia stored is stored here without an edit: projections, embeddings and both static caches in
half, the norms' gains in float32. The norm's product is then float32, and where Dia's own projections cast their input
in silence, ``nn.Linear`` refuses it: the same split, first met one operation earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_eval.cases.adapters.base import imported, tiny_case
from precision_eval.cases.base import BuiltCase

ENCODER: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
    "intermediate_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
DECODER: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "cross_num_attention_heads": 4, "cross_num_key_value_heads": 4,
    "cross_head_dim": 16, "cross_hidden_size": 64, "max_position_embeddings": 256,
}  # fmt: skip
TINY_FRAMES = 40
DTYPE = "float16"


def drawn_dia(encoder: Mapping[str, Any], decoder: Mapping[str, Any], *, seed: int) -> Any:
    """Draw a model in float32."""
    import torch

    transformers = imported("transformers")
    from precision_eval.cases.adapters.models import draw_weights

    config = transformers.DiaConfig(
        encoder_config=transformers.DiaEncoderConfig(**encoder), decoder_config=transformers.DiaDecoderConfig(**decoder)
    )
    with torch.random.fork_rng(devices=[]):  # the library draws weights, which are then drawn again
        model: Any = transformers.DiaForConditionalGeneration(config).eval().requires_grad_(False)
    draw_weights(model, seed=seed)
    return model


def _make(*, device: str, seed: int) -> BuiltCase:
    import torch

    from precision_eval.cases.adapters.models import step_case

    model = drawn_dia(ENCODER, DECODER, seed=seed)
    return step_case(model, dtype=getattr(torch, DTYPE), device=device, seed=seed, frames=TINY_FRAMES)


DIA = tiny_case(
    _make,
    id="zoo-dia",
    title="transformers' Dia, one step",
    explanation=(
        "transformers' own class, unedited, with half weights and static caches and float32 gains in its norms, as "
        "Dia stored them. Its norm returns the product's dtype, float32, and the first Linear refuses it."
    ),
    source="transformers, models/dia/modeling_dia.py; the split: nari-labs/dia d4790dd",
    needs="transformers.models.dia.modeling_dia",
    definition=(ENCODER, DECODER, TINY_FRAMES, DTYPE, "randn, v1"),
)
