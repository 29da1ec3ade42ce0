"""transformers' ``DiaForConditionalGeneration`` at one decode step, with Dia's split of dtypes put in from outside.

The class never had the bug: it keeps one dtype throughout, and its norm gives back its input's dtype times the gain.
What d4790dd of nari-labs/dia stored is stored here without an edit: projections, embeddings and both static caches in
half, the norms' gains in float32. The norm's product is then float32, and where Dia's own projections cast their input
in silence, ``nn.Linear`` refuses it: the same split, first met one operation earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.adapters.base import Adapter, imported, load_checked
from precision_eval.cases.adapters.checkpoints import check_whole_number
from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.dia import BYTES, CODES
from precision_eval.core.errors import ParameterError

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
PUBLISHED = "nari-labs/Dia-1.6B-0626"
"""Dia's weights as transformers names them; nari-labs/Dia-1.6B itself has the source's own names."""

#: The smallest that a step can use of what a config says.
LEAST = {
    **dict.fromkeys((f"{part}.{name}" for part in ("encoder_config", "decoder_config") for name in ENCODER), 1),
    **dict.fromkeys((f"decoder_config.cross_{name}" for name in ("num_attention_heads", "num_key_value_heads")), 1),
    "encoder_config.vocab_size": BYTES,
    "decoder_config.vocab_size": CODES,
    "decoder_config.num_channels": 1,
    "decoder_config.bos_token_id": 0,
    "decoder_config.max_position_embeddings": LOADED_FRAMES,
}


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


def _check_config(config: Any, path: Path) -> None:
    """Refuse what transformers' config takes and a step cannot use: see :func:`load_checked`."""
    for name, least in LEAST.items():
        check_whole_number(config, name, least=least, path=path)
    encoder, decoder = config.encoder_config, config.decoder_config
    for part, heads, shared in (
        (encoder, "num_attention_heads", "num_key_value_heads"),
        (decoder, "num_attention_heads", "num_key_value_heads"),
        (decoder, "cross_num_attention_heads", "cross_num_key_value_heads"),
    ):
        if getattr(part, heads) % getattr(part, shared):
            raise ParameterError(
                f"{path} says {heads} {getattr(part, heads)} and {shared} {getattr(part, shared)}; expected the first "
                "to be a multiple of the second; correct the config"
            )
    if decoder.cross_hidden_size != encoder.hidden_size:
        raise ParameterError(
            f"{path} says decoder_config.cross_hidden_size {decoder.cross_hidden_size} and encoder_config.hidden_size "
            f"{encoder.hidden_size}; expected them to be equal; correct the config"
        )
    if decoder.bos_token_id >= decoder.vocab_size:
        raise ParameterError(
            f"{path} says decoder_config.bos_token_id {decoder.bos_token_id}; expected one below its vocab_size, "
            f"{decoder.vocab_size}; correct the config"
        )
    if min(config.delay_pattern) < 0:
        raise ParameterError(
            f"{path} says delay_pattern {config.delay_pattern}; expected delays of 0 or more frames; correct the config"
        )


def _load(path_or_name: str | Path, *, dtype: torch.dtype, device: str, seed: int) -> BuiltCase:
    from transformers import DiaForConditionalGeneration

    from precision_eval.cases.adapters.models import step_case

    model = load_checked(DiaForConditionalGeneration, path_or_name, dtype=dtype, check=_check_config, example=PUBLISHED)
    return step_case(model, dtype=dtype, device=device, seed=seed, frames=LOADED_FRAMES)


DIA = Adapter(
    id="zoo-dia",
    title="transformers' Dia, one step",
    explanation=(
        "transformers' own class, unedited, with half weights and static caches and float32 gains in its norms, as "
        "Dia stored them. Its norm returns the product's dtype, float32, and the first Linear refuses it."
    ),
    source="transformers, models/dia/modeling_dia.py; the split: nari-labs/dia d4790dd",
    needs=("transformers.models.dia.modeling_dia",),
    definition=(ENCODER, DECODER, TINY_FRAMES, DTYPE, "randn, v1"),
    make=_make,
    load=_load,
)
