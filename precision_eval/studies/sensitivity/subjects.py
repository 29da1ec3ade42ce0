"""The models whose sites are mapped, each with the inputs of all its units, its reference and its drift; imports torch.

Conventions: weights of transformers' T5 and Dia are drawn in float32 and then stored as the systems store them. Dia's
texts differ in length; their padding counts among the encoder's positions, as the model computes it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from precision_eval.cases.adapters.dia import drawn_dia
from precision_eval.cases.adapters.models import T5Hidden, WrappedModel
from precision_eval.cases.adapters.t5 import CONFIG, drawn_encoder
from precision_eval.cases.systems.attention import SHAPES, build_attention
from precision_eval.cases.systems.system import System
from precision_eval.cases.voice.model import Positions, VoiceModel
from precision_eval.core.errors import ParameterError
from precision_eval.fixes.packing import in_dtype
from precision_eval.trace.sites import Rule

T5_VOCABULARY = 512
BYTES = 256
CODES = 1024
BOS = 1026


@dataclass(frozen=True)
class MapSubject:
    """A model as it ships, ready to be mapped."""

    model: nn.Module
    inputs: tuple[Any, ...]
    rules: tuple[Rule, ...]
    units: int
    rows: Callable[[torch.Tensor], torch.Tensor]

    @cached_property
    def twin(self) -> nn.Module:
        """A copy of the model with everything floating in float64."""
        return self.model.in_float64() if isinstance(self.model, System) else copy.deepcopy(self.model).double()

    @property
    def wide_inputs(self) -> tuple[Any, ...]:
        """The inputs, floating ones in float64."""
        return tuple(in_dtype(self.inputs, torch.float64))

    @torch.no_grad()
    def reference(self) -> torch.Tensor:
        """Run the model in float64, by itself and on no tape."""
        output: torch.Tensor = copy.deepcopy(self.twin)(*self.wide_inputs)
        return output

    def drift(self, output: torch.Tensor, reference: torch.Tensor) -> np.ndarray:
        """Relative error of each unit; see :func:`unit_drift`."""
        return unit_drift(self.rows(output), self.rows(reference))


def unit_drift(output: torch.Tensor, reference: torch.Tensor) -> np.ndarray:
    """Relative error ‖output − reference‖ / ‖reference‖ over the features, mean over the positions."""
    if output.shape != reference.shape or reference.dtype is not torch.float64 or not bool(reference.isfinite().all()):
        raise ParameterError(
            f"the output is {tuple(output.shape)}, the reference {tuple(reference.shape)} of "
            f"{reference.dtype}; expected outputs of the same call, the reference's finite and in float64"
        )
    relative = (output.double() - reference).norm(dim=-1) / reference.norm(dim=-1)  # (units, positions)
    drift: np.ndarray = relative.mean(dim=-1).cpu().numpy()
    return np.where(np.isfinite(drift), drift, np.inf)


class VoiceWindow(System):
    """Teacher-forced frames 0 … T − 1 of B streams in one call, which fills the ring cache and attends to it."""

    not_landed = "nothing landed for metavoiceio/metavoice-src #187, which this stands for"

    def __init__(self, voice: VoiceModel, frames: int) -> None:
        super().__init__()
        self.voice = voice
        self.frames = frames
        self.cos, self.sin = Positions(voice.config, dtype=torch.float32)(0, frames)
        self.mask = torch.ones(frames, frames, dtype=torch.bool).tril()

    def in_float64(self) -> Self:
        """Copy the model in float64, its angles' cosines and sines too."""
        twin = copy.deepcopy(self).double()
        twin.cos, twin.sin = Positions(self.voice.config, dtype=torch.float64)(0, self.frames)
        return twin

    def forward(
        self, tokens: torch.Tensor, phoneme: torch.Tensor, next_phoneme: torch.Tensor, progress: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits, (B, T, K, codebook_size)."""
        logits: torch.Tensor = self.voice(tokens, phoneme, next_phoneme, progress, self.cos, self.sin, self.mask, 0)
        return logits


def voice_subject(*, streams: int, frames: int, rules: tuple[Rule, ...], seed: int) -> MapSubject:
    """Build the trained voice with float32 weights and a float16 cache, on held-out speech."""
    from precision_eval.cases.voice.assets import load_model, load_streams
    from precision_eval.cases.voice.synthesis import stacked, teacher_forced_inputs

    model = load_model()
    model.allocate_cache(streams, window_frames=frames)
    chosen = load_streams((seed + 1) * streams, n_frames=frames)[-streams:]
    tokens = teacher_forced_inputs(chosen, n_frames=frames, empty=model.config.codebook_size)
    given = (tokens, *stacked([stream.conditioning[:frames] for stream in chosen]))
    return MapSubject(VoiceWindow(model, frames).eval(), given, rules, streams, lambda logits: logits.flatten(2))


def t5_subject(
    *, layers: int, width: int, heads: int, head_dim: int, hidden: int, tokens: int, units: int,
    rules: tuple[Rule, ...], seed: int,
) -> MapSubject:  # fmt: skip
    """Build T5-v1.1's encoder as ``from_pretrained(dtype=float16)`` leaves it."""
    config = {
        **CONFIG, "vocab_size": T5_VOCABULARY, "d_model": width, "d_kv": head_dim, "d_ff": hidden, "num_layers": layers,
        "num_heads": heads,
    }  # fmt: skip
    model = T5Hidden(drawn_encoder(config, seed=seed), working_dtype=torch.float16).eval().requires_grad_(False)
    ids = torch.randint(2, T5_VOCABULARY, (units, tokens), generator=torch.Generator().manual_seed(seed))
    ids[:, -1] = 1
    return MapSubject(model, (ids,), rules, units, lambda hidden_states: hidden_states)


class DiaText(WrappedModel):
    """Bytes in, the encoder's last hidden states out."""

    in_use: torch.Tensor

    def __init__(self, encoder: Any, in_use: torch.Tensor, *, working_dtype: torch.dtype) -> None:
        super().__init__(working_dtype=working_dtype)
        self.encoder = encoder
        self.register_buffer("in_use", in_use, persistent=False)

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Encode (units, tokens) int64; result (units, tokens, width)."""
        hidden_states: torch.Tensor = self.encoder(inputs[0], attention_mask=self.in_use)[0]
        return hidden_states


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
) -> MapSubject:  # fmt: skip
    """Build Dia's text encoder."""
    encoder = _encoder_config(layers, width, heads, head_dim, hidden, tokens)
    dia = drawn_dia(encoder, _decoder_config(1, 32, 2, 1, 16, 32, 8, width), seed=seed)
    _as_stored(dia)
    text, in_use = _text(units, tokens, torch.Generator().manual_seed(seed))
    model = DiaText(dia.model.encoder, in_use, working_dtype=torch.float16).eval()
    return MapSubject(model, (text,), rules, units, lambda hidden_states: hidden_states)


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
) -> MapSubject:  # fmt: skip
    """Build Dia at one decode step, its caches filled by the model itself in float32 and stored in float16."""
    from transformers.cache_utils import EncoderDecoderCache, StaticCache

    from precision_eval.cases.adapters.models import DiaStep
    from precision_eval.cases.systems.dia_model import apply_delay

    dia = drawn_dia(
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
    return MapSubject(step, (delayed[:, -1:].contiguous(),), rules, units, lambda logits: logits.flatten(2))


def attention_subject(*, shape: str, rules: tuple[Rule, ...], seed: int) -> MapSubject:
    """Build attention of one token on a float16 cache."""
    case = build_attention(shape, device="cpu", seed=seed, prefill=False)
    units = SHAPES[shape].batch * SHAPES[shape].query_heads
    return MapSubject(case.model, case.inputs, rules, units, lambda output: output.reshape(units, 1, -1))
