"""transformers' T5 encoder and Dia with random weights, at stated sizes, as they ship; imports torch.

Conventions: weights are drawn in float32 and then stored as the systems store them. Dia's texts differ in length; their
padding counts among the encoder's positions, as the model computes it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from precision_eval.cases.adapters.base import imported
from precision_eval.cases.adapters.models import WrappedModel
from precision_eval.cases.adapters.t5 import T5_ENCODER
from precision_eval.studies.sensitivity.subject import Subject
from precision_eval.trace.sites import Rule

T5_VOCABULARY = 512
BYTES = 256
CODES = 1024
BOS = 1026


def t5_subject(
    *, layers: int, width: int, heads: int, head_dim: int, hidden: int, tokens: int, units: int,
    rules: tuple[Rule, ...], seed: int,
) -> Subject:  # fmt: skip
    """Build T5-v1.1's encoder as ``from_pretrained(dtype=float16)`` leaves it."""
    transformers = imported("transformers")
    config = transformers.T5Config(
        vocab_size=T5_VOCABULARY, d_model=width, d_kv=head_dim, d_ff=hidden, num_layers=layers, num_heads=heads,
        feed_forward_proj="gated-gelu", dropout_rate=0.0,
    )  # fmt: skip
    log = imported("transformers.utils.logging")
    log.disable_progress_bar()
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        transformers.T5EncoderModel(config).save_pretrained(folder)
        model = T5_ENCODER.from_pretrained(Path(folder), dtype="float16").model
    ids = torch.randint(2, T5_VOCABULARY, (units, tokens), generator=torch.Generator().manual_seed(seed))
    ids[:, -1] = 1
    return Subject(model, (ids,), rules, units, lambda hidden_states: hidden_states)


class DiaText(WrappedModel):
    """Bytes in, the encoder's last hidden states out."""

    in_use: torch.Tensor

    def __init__(self, encoder: Any, in_use: torch.Tensor, *, working_dtype: torch.dtype) -> None:
        super().__init__(working_dtype=working_dtype)
        self.encoder = encoder
        self.register_buffer("in_use", in_use, persistent=False)

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Encode (units, tokens) int64; result (units, tokens, width)."""
        found: torch.Tensor = self.encoder(inputs[0], attention_mask=self.in_use)[0]
        return found


def _dia(encoder: dict[str, Any], decoder: dict[str, Any], *, seed: int) -> Any:
    """Draw a Dia in float32."""
    transformers = imported("transformers")
    from precision_eval.cases.adapters.models import draw_weights

    config = transformers.DiaConfig(
        encoder_config=transformers.DiaEncoderConfig(**encoder), decoder_config=transformers.DiaDecoderConfig(**decoder)
    )
    with torch.random.fork_rng(devices=[]):  # the library draws weights, which are then drawn again
        dia: Any = transformers.DiaForConditionalGeneration(config).eval().requires_grad_(False)
    draw_weights(dia, seed=seed)
    return dia


def _as_stored(dia: Any) -> None:
    """Store projections and embeddings in float16 and the norms' gains in float32, as Dia's d4790dd did."""
    for parameter in dia.parameters():  # not the buffers: a cast would round the inverse timescales
        parameter.data = parameter.data.half()
    for module in dia.modules():
        if type(module).__name__ == "DiaRMSNorm":
            module.float()


def _text(units: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes and which of them are in use, each (units, length); lengths from a half to the whole."""
    lengths = torch.randint(length // 2, length + 1, (units, 1), generator=generator)
    in_use = (torch.arange(length) < lengths).long()
    return torch.randint(1, BYTES, (units, length), generator=generator) * in_use, in_use


def dia_encoder_subject(
    *, layers: int, width: int, heads: int, head_dim: int, hidden: int, tokens: int, units: int,
    rules: tuple[Rule, ...], seed: int,
) -> Subject:  # fmt: skip
    """Build Dia's text encoder."""
    encoder = _encoder_config(layers, width, heads, head_dim, hidden, tokens)
    dia = _dia(encoder, _decoder_config(1, 32, 2, 1, 16, 32, 8, width), seed=seed)
    _as_stored(dia)
    text, in_use = _text(units, tokens, torch.Generator().manual_seed(seed))
    model = DiaText(dia.model.encoder, in_use, working_dtype=torch.float16).eval()
    return Subject(model, (text,), rules, units, lambda hidden_states: hidden_states)


def _encoder_config(layers: int, width: int, heads: int, head_dim: int, hidden: int, text: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads,
        "head_dim": head_dim, "intermediate_size": hidden, "max_position_embeddings": text,
    }  # fmt: skip


def _decoder_config(
    layers: int, width: int, heads: int, cache_heads: int, head_dim: int, hidden: int, slots: int, cross: int
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": width, "intermediate_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": cache_heads, "head_dim": head_dim, "cross_num_attention_heads": heads,
        "cross_num_key_value_heads": heads, "cross_head_dim": head_dim, "cross_hidden_size": cross,
        "max_position_embeddings": slots,
    }  # fmt: skip


@torch.no_grad()
def dia_decoder_subject(
    *, layers: int, width: int, heads: int, cache_heads: int, head_dim: int, hidden: int, text: int, slots: int,
    frames: int, units: int, rules: tuple[Rule, ...], seed: int,
) -> Subject:  # fmt: skip
    """Build Dia at one decode step, its caches filled by the model itself in float32 and stored in float16."""
    from transformers.cache_utils import EncoderDecoderCache, StaticCache

    from precision_eval.cases.adapters.models import DiaStep
    from precision_eval.cases.systems.dia_delay import apply_delay

    dia = _dia(
        _encoder_config(layers, width, heads, head_dim, hidden, text),
        _decoder_config(layers, width, heads, cache_heads, head_dim, hidden, slots, width),
        seed=seed,
    )
    config, generator = dia.config.decoder_config, torch.Generator().manual_seed(seed)
    read, in_use = _text(units, text, generator)
    codes = torch.randint(CODES, (units, frames, config.num_channels), generator=generator)
    codes[:, 0] = BOS
    delayed = apply_delay(codes, delays=dia.config.delay_pattern, bos=BOS)
    encoded = dia.model.encoder(input_ids=read, attention_mask=in_use)[0]
    cache: Any = EncoderDecoderCache(
        StaticCache(config=config, max_cache_len=slots), StaticCache(config=config, max_cache_len=text)
    )
    given = {"encoder_outputs": (encoded,), "attention_mask": in_use, "past_key_values": cache}
    dia(decoder_input_ids=delayed[:, :-1], use_cache=True, **given)
    _as_stored(dia)
    for layer in (*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers):
        layer.keys, layer.values = layer.keys.half(), layer.values.half()
    step = DiaStep(dia, cache, text=encoded.half(), in_use=in_use, position=frames - 1).eval()
    return Subject(step, (delayed[:, -1:].contiguous(),), rules, units, lambda logits: logits.flatten(2))
