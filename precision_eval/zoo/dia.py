"""transformers' ``DiaForConditionalGeneration`` at one decode step, with Dia's split of dtypes put in from outside.

The class never had the bug: it keeps one dtype throughout, and its norm gives back its input's dtype times the gain.
What d4790dd of nari-labs/dia stored is stored here without an edit: projections, embeddings and both static caches in
half, the norms' gains in float32. The norm's product is then float32, and where Dia's own projections cast their input
in silence, ``nn.Linear`` refuses it: the same split, first met one operation earlier.

The caches are what the model itself wrote, in one dtype, over a seeded text and seeded codes under the delay pattern.
This module loads neither torch nor transformers until a case is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.workloads.base import Case
from precision_eval.zoo.base import ZooEntry, load_checked

if TYPE_CHECKING:
    import torch

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
LOADED_FRAMES = 128
DTYPE = "float16"


def _make(*, device: str, seed: int) -> Case:
    import torch
    from transformers import DiaConfig, DiaDecoderConfig, DiaEncoderConfig, DiaForConditionalGeneration

    from precision_eval.zoo.dia_wrapped import draw_weights, step_case

    config = DiaConfig(encoder_config=DiaEncoderConfig(**ENCODER), decoder_config=DiaDecoderConfig(**DECODER))
    with torch.random.fork_rng(devices=[]):  # the library draws weights, which are then drawn again
        model: Any = DiaForConditionalGeneration(config).eval()
    draw_weights(model, seed=seed)
    return step_case(model, dtype=getattr(torch, DTYPE), device=device, seed=seed, frames=TINY_FRAMES)


def _load(path_or_name: str | Path, *, dtype: torch.dtype, device: str, seed: int) -> Case:
    from transformers import DiaForConditionalGeneration

    from precision_eval.zoo.dia_wrapped import step_case

    model = load_checked(DiaForConditionalGeneration, path_or_name, dtype=dtype)
    return step_case(model, dtype=dtype, device=device, seed=seed, frames=LOADED_FRAMES)


DIA = ZooEntry(
    id="zoo-dia",
    title="transformers' Dia, one step",
    explanation=(
        "transformers' own class, unedited, with half weights and static caches and float32 gains in its norms, as "
        "Dia stored them. Its norm returns the product's dtype, float32, and the first Linear refuses it."
    ),
    source="transformers, models/dia/modeling_dia.py; the split: nari-labs/dia d4790dd",
    needs=("transformers",),
    definition=(ENCODER, DECODER, TINY_FRAMES, DTYPE, "randn, v1"),
    make=_make,
    load=_load,
)
