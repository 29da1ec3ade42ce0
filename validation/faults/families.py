"""Four families of attention operands, drawn from a seed.

B = 1 call, H heads, L query rows, S keys, D head dimensions. The rows are the last L of S positions under
a causal mask, as in a prefill on a filled cache: row i sees keys 0 … S − L + i. Draws are made in float64 (captured
ones in float32) and rounded to the dtype last, so that one seed gives the same operands in every dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from precision_eval.cases.voice.assets import load_model, load_streams
from precision_eval.cases.voice.model import Positions, sequence_mask
from precision_eval.cases.voice.synthesis import stacked, teacher_forced_inputs
from precision_eval.core.errors import ParameterError, unknown_name

FAMILIES = ("gaussian", "outlier_channels", "long_tailed", "voice")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
CALIBRATION_SEED = 10_000
"""First seed of those that belong to the judge's calibration."""

HEADS, ROWS, KEYS, WIDTH = 4, 32, 96, 32
LOGIT_STD = (0.5, 6.0)
OUTLIER_CHANNELS = 2
OUTLIER_GAIN = (20.0, 50.0)
STUDENT_DF = 3
VOICE_SHARPENING = (1.0, 4.0)
_VOICE_FRAMES = 512
_VOICE_STREAMS = 4  # in the trials, and as many others in the calibration


@dataclass(frozen=True)
class Operands:
    """Query, key and value of one attention call."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor
    scale: float
    family: str
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        """What the operands are stored in."""
        return self.q.dtype

    def generator(self, salt: int) -> torch.Generator:
        """Random numbers that depend on the seed and on `salt` alone."""
        return torch.Generator().manual_seed(self.seed * 1_000 + salt)


def sample(family: str, *, seed: int, dtype: torch.dtype, rows: int = ROWS, keys: int = KEYS) -> Operands:
    """Draw the operands of one call."""
    if family not in FAMILIES:
        raise unknown_name("input family", family, FAMILIES)
    if dtype not in DTYPES or seed < 0 or not 1 <= rows <= keys <= _VOICE_FRAMES:
        raise ParameterError(
            f"found seed {seed}, {dtype}, {rows} rows on {keys} keys; "
            f"expected seed ≥ 0, one of {DTYPES}, and 1 ≤ rows ≤ keys ≤ {_VOICE_FRAMES}"
        )
    generator = torch.Generator().manual_seed(seed * len(FAMILIES) + FAMILIES.index(family))
    draw = _captured if family == "voice" else _drawn
    q, k, v = (t.to(dtype) for t in draw(family, seed, rows, keys, generator))
    mask = torch.ones(rows, keys, dtype=torch.bool).tril(diagonal=keys - rows)
    return Operands(q, k, v, mask, q.shape[-1] ** -0.5, family, seed)


def in_float64(operands: Operands) -> Operands:
    """The same stored numbers in float64, for the reference."""
    return replace(operands, q=operands.q.double(), k=operands.k.double(), v=operands.v.double())


def _log_uniform(low_high: tuple[float, float], generator: torch.Generator, size: int = 1) -> Tensor:
    low, high = (math.log(bound) for bound in low_high)
    return (low + (high - low) * torch.rand(size, generator=generator, dtype=torch.float64)).exp()


def _drawn(family: str, seed: int, rows: int, keys: int, generator: torch.Generator) -> list[Tensor]:
    """Independent draws, the query scaled to the peakiness of this seed."""
    q, k, v = (_normal((1, HEADS, count, WIDTH), generator) for count in (rows, keys, keys))
    if family == "outlier_channels":
        k, v = (_with_outliers(t, generator) for t in (k, v))
    if family == "long_tailed":  # over √(χ²/df) a normal draw is Student's t
        q, k, v = (t / _normal((STUDENT_DF, *t.shape), generator).square().mean(0).sqrt() for t in (q, k, v))
    logits = q @ k.mT * WIDTH**-0.5
    return [q * (float(_log_uniform(LOGIT_STD, generator)) / float(logits.std())), k, v]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _with_outliers(x: Tensor, generator: torch.Generator) -> Tensor:
    """Two channels of each head 20 to 50 times as large, as trained keys and values have them."""
    gain = torch.ones(HEADS, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        channels = torch.randperm(WIDTH, generator=generator)[:OUTLIER_CHANNELS]
        gain[head, channels] = _log_uniform(OUTLIER_GAIN, generator, OUTLIER_CHANNELS)
    return x * gain[:, None, :]


def _captured(family: str, seed: int, rows: int, keys: int, generator: torch.Generator) -> list[Tensor]:
    """A stretch of one layer of the voice on one stream of speech."""
    captured = _voice_operands(calibration=seed >= CALIBRATION_SEED)

    def pick(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    queries, all_keys, all_values = captured[pick(len(captured))]  # each (streams, H, T, D)
    stream, end = pick(len(queries)), keys + pick(queries.shape[2] - keys + 1)
    sharpening = float(_log_uniform(VOICE_SHARPENING, generator)) if seed % 2 else 1.0
    return [
        queries[stream : stream + 1, :, end - rows : end] * sharpening,
        all_keys[stream : stream + 1, :, end - keys : end],
        all_values[stream : stream + 1, :, end - keys : end],
    ]


@cache
def _voice_operands(*, calibration: bool) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """Operands of every layer's attention, float32, on held-out speech, teacher-forced in one pass."""
    streams = load_streams(2 * _VOICE_STREAMS, n_frames=_VOICE_FRAMES)[int(calibration) :: 2]
    model = load_model()
    tokens = teacher_forced_inputs(streams, n_frames=_VOICE_FRAMES, empty=model.config.codebook_size)
    frames = stacked([stream.conditioning[:_VOICE_FRAMES] for stream in streams])
    cos, sin = Positions(model.config, dtype=torch.float32)(0, _VOICE_FRAMES)
    mask = sequence_mask(_VOICE_FRAMES, model.config.window_frames)
    captured: list[tuple[Tensor, Tensor, Tensor]] = []
    call_on = F.scaled_dot_product_attention

    def observed(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
        captured.append((query.clone(), key.clone(), value.clone()))
        return call_on(query, key, value, *rest, **options)

    with torch.inference_mode(), mock.patch.object(F, "scaled_dot_product_attention", observed):
        model(tokens, *frames, cos, sin, mask, None)
    return tuple(captured)
