"""Families of attention operands, drawn from a seed.

B = 1 call, H heads, L query rows, S keys, D head dimensions. The rows are the last L of S positions under
a causal mask, as in a prefill on a filled cache: row i sees keys 0 … S − L + i. Draws are made in float64 (captured
ones in float32) and rounded to the dtype last, so that one seed gives the same operands in every dtype.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from precision_eval.cases.voice.assets import load_model, load_streams
from precision_eval.cases.voice.model import Positions
from precision_eval.cases.voice.synthesis import stacked, teacher_forced_inputs
from precision_eval.core.errors import ParameterError, unknown_name
from validation.faults.shapes import KINDS


class Family(NamedTuple):
    """How operands are drawn, their shape, and the range of the logits' standard deviation."""

    kind: str
    heads: int
    rows: int
    keys: int
    width: int
    logit_std: tuple[float, float] = (0.5, 6.0)


FAMILIES: dict[str, Family] = {
    "gaussian": Family("gaussian", 4, 32, 96, 32),
    "outlier_channels": Family("outlier_channels", 4, 32, 96, 32),
    "long_tailed": Family("long_tailed", 4, 32, 96, 32),
    "voice": Family("voice", 4, 32, 96, 64),
    "decode": Family("gaussian", 8, 1, 1024, 128),
    "decode_outliers": Family("outlier_channels", 8, 1, 2048, 64, (6.0, 20.0)),
    "decode_one_key": Family("one_key", 8, 1, 512, 128),
    "prefill": Family("gaussian", 2, 128, 512, 64),
    "prefill_outliers": Family("outlier_channels", 4, 64, 256, 128, (2.0, 20.0)),
    "prefill_one_key": Family("one_key", 4, 96, 192, 64),
    "one_key_outliers": Family("one_key_outliers", 4, 64, 128, 128),
    "diffuse": Family("gaussian", 4, 32, 768, 64, (0.05, 0.5)),
    "sink": Family("sink", 4, 48, 320, 64),
    "tailed_decode": Family("long_tailed", 8, 2, 256, 64, (1.0, 8.0)),
    "whole_prefill": Family("gaussian", 4, 96, 96, 128, (0.5, 10.0)),
    "low_rank": Family("low_rank", 4, 40, 224, 80),
    "clustered_decode": Family("clustered", 6, 1, 1536, 64),
    "positive_values": Family("positive_values", 4, 48, 144, 96),
    "sparse_prefill": Family("sparse_values", 2, 72, 360, 64),
    "grouped": Family("grouped", 6, 4, 640, 64),
    "cancelling": Family("cancelling", 4, 40, 200, 64),
    "repeated": Family("repeated", 4, 56, 280, 96),
    "local_decode": Family("local", 8, 1, 1200, 64),
    "speech": Family("speech", 4, 40, 184, 64, (1.0, 4.0)),
    "window": Family("window", 4, 64, 160, 64),
    "cross_padded": Family("cross_padded", 4, 33, 150, 64),
    "normed_and_rotated": Family("normed_and_rotated", 4, 32, 200, 128),
    "packed": Family("packed", 4, 72, 72, 80),
    "massive": Family("massive", 4, 24, 130, 96, (1.0, 8.0)),
    "awkward": Family("awkward", 3, 7, 19, 40),
    "long": Family("long", 2, 1, 4000, 64),
    "bidirectional": Family("bidirectional", 4, 60, 60, 64, (0.5, 4.0)),
    "shared_decode": Family("shared_decode", 8, 1, 700, 128),
    "sink_and_window": Family("sink_and_window", 4, 48, 170, 64),
    "int8_cache": Family("int8_cache", 4, 24, 260, 64, (1.0, 8.0)),
    "prefix": Family("prefix", 2, 90, 90, 256),
}
UNSEEN: dict[str, Family] = {
    "four_share": Family("four_share", 8, 12, 210, 128),
    "latent_decode": Family("latent", 16, 1, 300, 96),
    "draft_tree": Family("draft_tree", 4, 15, 203, 64),
    "strided": Family("strided", 4, 66, 130, 48),
    "from_bfloat16": Family("from_bfloat16", 4, 37, 165, 80, (1.0, 8.0)),
    "unscaled": Family("unscaled", 6, 20, 77, 64, (0.06, 0.6)),
    "uneven_values": Family("uneven_values", 4, 20, 140, 192),
}
"""Families that the judge was settled without. Five held-out parts before this one have been scored and looked at,
and are what it was settled on since."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)

OUTLIER_CHANNELS = 2
OUTLIER_GAIN = (20.0, 50.0)
STUDENT_DF = 3
VOICE_SHARPENING = (1.0, 4.0)
_VOICE_FRAMES = 512
_VOICE_STREAMS = 4


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


def sample(family: str, *, seed: int, dtype: torch.dtype, rows: int | None = None, keys: int | None = None) -> Operands:
    """Draw the operands of one call."""
    known = {**FAMILIES, **UNSEEN}
    if family not in known:
        raise unknown_name("input family", family, known)
    how = known[family]
    how = how._replace(rows=how.rows if rows is None else rows, keys=how.keys if keys is None else keys)
    if dtype not in DTYPES or seed < 0 or not 1 <= how.rows <= how.keys:
        raise ParameterError(
            f"found seed {seed}, {dtype}, {how.rows} rows on {how.keys} keys; "
            f"expected seed ≥ 0, one of {DTYPES}, and 1 ≤ rows ≤ keys"
        )
    generator = torch.Generator().manual_seed(seed * 1_000 + zlib.crc32(family.encode()) % 997)
    draw = _captured if how.kind == "voice" else _drawn
    q, k, v = (t.to(dtype) for t in draw(how, seed, generator))
    mask = torch.ones(how.rows, how.keys, dtype=torch.bool).tril(diagonal=how.keys - how.rows)
    mask = KINDS[how.kind][1](how.rows, how.keys) if how.kind in KINDS else mask
    return Operands(q, k, v, mask, 1.0 if how.kind == "unscaled" else q.shape[-1] ** -0.5, family, seed)


def in_float64(operands: Operands) -> Operands:
    """The same stored numbers in float64, for the reference."""
    return replace(operands, q=operands.q.double(), k=operands.k.double(), v=operands.v.double())


def _log_uniform(low_high: tuple[float, float], generator: torch.Generator, size: int = 1) -> Tensor:
    low, high = (math.log(bound) for bound in low_high)
    return (low + (high - low) * torch.rand(size, generator=generator, dtype=torch.float64)).exp()


def _drawn(how: Family, seed: int, generator: torch.Generator) -> list[Tensor]:
    """Independent draws, the query scaled to the peakiness of this seed."""
    q, k, v = (_normal((1, how.heads, count, how.width), generator) for count in (how.rows, how.keys, how.keys))
    if how.kind.endswith("outliers") or how.kind == "outlier_channels":
        k, v = (_with_outliers(t, generator) for t in (k, v))
    if how.kind == "long_tailed":  # over √(χ²/df) a normal draw is Student's t
        q, k, v = (t / _normal((STUDENT_DF, *t.shape), generator).square().mean(0).sqrt() for t in (q, k, v))
    if how.kind.startswith("one_key"):  # each row asks for one key that it sees, and mostly finds it
        seen = how.keys - how.rows + 1
        wanted = torch.randint(seen, (1, how.heads, how.rows, 1), generator=generator).expand_as(q)
        found = k.gather(2, wanted)
        strength = _log_uniform((4.0, 30.0), generator)
        size = (found * k.gather(2, wanted)).sum(-1, keepdim=True)
        return [found / size * strength * how.width**0.5 + 0.1 * q, k, v]
    if how.kind == "sink":  # the first key draws most of the weight and holds next to nothing
        k[:, :, 0] *= 0.1
        k[:, :, 0, 0] = 8.0
        q[..., 0] = how.width**0.5 / 2.0
        v[:, :, 0] *= 0.01
    if how.kind == "low_rank":  # queries and keys in six dimensions of all
        q, k = (t[..., :6] @ _normal((1, how.heads, 6, how.width), generator) for t in (q, k))
    if how.kind == "clustered":  # keys near one of nine, so that logits are nearly tied
        k = 0.05 * k + k[:, :, :9].repeat(1, 1, -(-how.keys // 9), 1)[:, :, : how.keys]
    if how.kind == "positive_values":
        v = 1.0 + 0.3 * v
    if how.kind == "sparse_values":
        v = v * (torch.rand(v.shape, generator=generator, dtype=torch.float64) < 0.1)
    if how.kind == "grouped":  # two heads share their keys and values
        k, v = (t[:, ::2].repeat_interleave(2, 1) for t in (k, v))
    if how.kind == "cancelling":  # neighbouring values nearly cancel, so that results are small
        v[:, :, 1::2] = 0.02 * v[:, :, 1::2] - v[:, :, ::2]
        k[:, :, 1::2] = 0.1 * k[:, :, 1::2] + k[:, :, ::2]
    if how.kind == "repeated":  # runs of seven equal keys and values, as silence makes them
        k, v = (t[:, :, ::7].repeat_interleave(7, 2)[:, :, : how.keys] for t in (k, v))
    if how.kind == "local":  # logits fall with the distance
        k[..., 0] = torch.linspace(-3.0, 3.0, how.keys, dtype=torch.float64)
        q[..., 0] = how.width**0.5
    if how.kind in KINDS:
        q, k, v = KINDS[how.kind][0](q, k, v, generator)
    logits = q @ k.mT * how.width**-0.5
    return [q * (float(_log_uniform(how.logit_std, generator)) / float(logits.std())), k, v]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _with_outliers(x: Tensor, generator: torch.Generator) -> Tensor:
    """Two channels of each head 20 to 50 times as large, as trained keys and values have them."""
    _, heads, _, width = x.shape
    gain = torch.ones(heads, width, dtype=torch.float64)
    for head in range(heads):
        channels = torch.randperm(width, generator=generator)[:OUTLIER_CHANNELS]
        gain[head, channels] = _log_uniform(OUTLIER_GAIN, generator, OUTLIER_CHANNELS)
    return x * gain[:, None, :]


def _captured(how: Family, seed: int, generator: torch.Generator) -> list[Tensor]:
    """A stretch of one layer of the voice on one stream of speech."""
    captured = _voice_operands()
    rows, keys = how.rows, how.keys

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
def _voice_operands() -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """Operands of every layer's attention, float32, on held-out speech, teacher-forced in one pass."""
    streams = load_streams(_VOICE_STREAMS, n_frames=_VOICE_FRAMES)
    model = load_model()
    tokens = teacher_forced_inputs(streams, n_frames=_VOICE_FRAMES, empty=model.config.codebook_size)
    frames = stacked([stream.conditioning[:_VOICE_FRAMES] for stream in streams])
    cos, sin = Positions(model.config, dtype=torch.float32)(0, _VOICE_FRAMES)
    distance = torch.arange(_VOICE_FRAMES)[:, None] - torch.arange(_VOICE_FRAMES)[None, :]
    mask = (distance >= 0) & (distance < model.config.window_frames)
    captured: list[tuple[Tensor, Tensor, Tensor]] = []
    call_on = F.scaled_dot_product_attention

    def observed(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
        captured.append((query.clone(), key.clone(), value.clone()))
        return call_on(query, key, value, *rest, **options)

    with torch.inference_mode(), mock.patch.object(F, "scaled_dot_product_attention", observed):
        model(tokens, *frames, cos, sin, mask, None)
    return tuple(captured)
