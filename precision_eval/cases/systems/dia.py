"""Dia-1.6B's decoder and encoder in the states in which they raised: sizes, cases, and how a case is built.

The architecture, the sizes and the states were read in nari-labs/dia, ``dia/layers.py``, ``dia/state.py`` and
``dia/model.py``. One call of the decoder is one decode step of both guidance rows: 9 channel tokens under the delay
pattern, a static cache whose last filled slot the call writes again, cross attention to keys and values computed
beforehand. One call of the encoder reads a whole padded text. Attention has scale 1.0; there is no 1/√d.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from precision_eval.cases.base import SYSTEM_MEASURES, BuiltCase, Case

if TYPE_CHECKING:
    import torch
from precision_eval.cases.systems.dia_sizes import (
    ATTENTION_LOGIT_STD,
    BEFORE_PR45,
    BOS,
    BYTES,
    CHANNELS,
    CODES,
    D4790DD,
    DECODER_PARAMETERS,
    DECODER_SIZES,
    DELAYS,
    ENCODER_PARAMETERS,
    ENCODER_SIZES,
    GUIDANCE_ROWS,
    LOGIT_STD,
    NORM_GAIN_STD,
    TEXT_SHARE,
    VOCABULARY,
    DecoderSize,
    DiaState,
    EncoderSize,
)


def _padding(text_length: int) -> torch.Tensor:
    """True where the text is in use: shape (text_length,)."""
    import torch

    return torch.arange(text_length) < round(text_length * TEXT_SHARE)


def decode_case(size: DecoderSize, *, device: str, seed: int, state: DiaState) -> BuiltCase:
    """Build a decode step of any size; the cases are those of ``DECODER_SIZES``, a sweep has its own."""
    import torch

    from precision_eval.cases.systems.dia_model import DiaDecoder, apply_delay, fill_caches, fill_weights

    generator = torch.Generator().manual_seed(seed)
    model = DiaDecoder(size, state)
    fill_weights(model, generator)
    fill_caches(model, generator, padding=_padding(size.text_length))
    first = torch.full((1, 1, CHANNELS), BOS)
    codes = torch.randint(CODES, (1, size.filled - 1, CHANNELS), generator=generator)
    delayed = apply_delay(torch.cat((first, codes), dim=1), delays=DELAYS, bos=BOS)
    tokens = delayed[:, -1:].expand(GUIDANCE_ROWS, 1, CHANNELS).contiguous()
    return BuiltCase(model.eval().to(device), (tokens.to(device),))


def encode_case(size: EncoderSize, *, device: str, seed: int, state: DiaState) -> BuiltCase:
    """Build the reading of a text of any size."""
    import torch

    from precision_eval.cases.systems.dia_model import DiaEncoder, fill_weights

    generator = torch.Generator().manual_seed(seed)
    model = DiaEncoder(size, state)
    fill_weights(model, generator)
    padding = _padding(size.text_length)
    text = torch.randint(1, BYTES, (size.text_length,), generator=generator) * padding
    tokens = torch.stack((torch.zeros_like(text), text))
    return BuiltCase(model.eval().to(device), (tokens.to(device), padding.repeat(GUIDANCE_ROWS, 1).to(device)))


def _build_decoder(size: str, *, device: str, seed: int, state: DiaState) -> BuiltCase:
    return decode_case(DECODER_SIZES[size], device=device, seed=seed, state=state)


def _build_encoder(size: str, *, device: str, seed: int, state: DiaState) -> BuiltCase:
    return encode_case(ENCODER_SIZES[size], device=device, seed=seed, state=state)


_DRAW = (CHANNELS, VOCABULARY, DELAYS, ATTENTION_LOGIT_STD, LOGIT_STD, NORM_GAIN_STD, TEXT_SHARE, "randn, v1")
_SOURCE = "nari-labs/dia, dia/layers.py and dia/state.py"

DIA_DECODE = Case(
    id="dia-decode",
    title="Dia decoder, one step",
    explanation=(
        "Half weights and a half static cache, but float32 gains in nn.RMSNorm: where torch's norm returns float32 "
        "(2.6), queries are float32 and meet the float16 cache, which slice assignment filled with a silent cast. "
        "Where it returns half (2.13) the step passes, so the status is a fact about the torch version. There CPU "
        "autocast raises instead: the rotation's cat is half, which its promotion knows only on CUDA."
    ),
    source=f"{_SOURCE} at d4790dd (PR #88); #108, #113, #158; landed: 4a9e29b (PR #127)",
    sizes=tuple(DECODER_SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=(
        "decode", asdict(D4790DD), {name: asdict(size) for name, size in DECODER_SIZES.items()}, *_DRAW
    ),
    make=partial(_build_decoder, state=D4790DD),
    full_parameters=DECODER_PARAMETERS,
    by_default=False,
    upstream="PR #127 (4a9e29b)",
)  # fmt: skip

DIA_DECODE_PR45 = Case(
    id="dia-decode-pr45",
    title="Dia decoder, one step, before PR #45",
    explanation=(
        "The opposite error: activations bfloat16, weights and cache float32. The step's own keys are appended to the "
        "float32 cache, which promotes them; where torch's norm returns bfloat16 the query is narrower than they are. "
        "Where it returns float32 (2.6) the step passes."
    ),
    source=f"{_SOURCE} before 9d0e434; PR #45; landed: 9d0e434",
    sizes=tuple(DECODER_SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=(
        "decode", asdict(BEFORE_PR45), {name: asdict(size) for name, size in DECODER_SIZES.items()}, *_DRAW
    ),
    make=partial(_build_decoder, state=BEFORE_PR45),
    full_parameters=DECODER_PARAMETERS,
    bytes_per_parameter=4.0,  # the embeddings alone are narrower
    by_default=False,
    upstream="PR #45 (9d0e434)",
)  # fmt: skip

DIA_ENCODE = Case(
    id="dia-encode",
    title="Dia encoder, one text",
    explanation=(
        "Half weights and float32 gains in nn.RMSNorm, no cache: query, key and value come from one norm and never "
        "disagree. As shipped it passes; where torch's norm returns float32 (2.6) attention silently runs in float32."
    ),
    source=f"{_SOURCE} at d4790dd (PR #88); landed: 4a9e29b (PR #127)",
    sizes=tuple(ENCODER_SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=(
        "encode", asdict(D4790DD), {name: asdict(size) for name, size in ENCODER_SIZES.items()}, *_DRAW
    ),
    make=partial(_build_encoder, state=D4790DD),
    full_parameters=ENCODER_PARAMETERS,
    by_default=False,
    upstream="PR #127 (4a9e29b)",
)  # fmt: skip
