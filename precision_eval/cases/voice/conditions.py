"""The conditions under which the voice runs: every fix, and the four references that each figure stands beside.

``reference`` is float64 throughout; ``noise_floor`` is the reference with another noise seed: what two equally good
renderings of one script differ by. The two controls are known to degrade audio, so that "no degradation seen" means
something:
``control_rope_bfloat16`` computes the rotary angles in bfloat16, ``control_long_window`` attends over 3000 frames where
the model was trained on 512.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from precision_eval.cases.voice.assets import load_model
from precision_eval.cases.voice.synthesis import Decoder
from precision_eval.fixes import fix_by_id

LONG_WINDOW_FRAMES = 3000


@dataclass(frozen=True, kw_only=True)
class Comparator:
    """A run that is no fix."""

    id: str
    explanation: str
    dtype: torch.dtype = torch.float32
    angle_dtype: torch.dtype = torch.float64
    window_frames: int | None = None
    noise_seed_offset: int = 0


COMPARATORS: tuple[Comparator, ...] = (
    Comparator(id="reference", dtype=torch.float64, explanation="the model in float64"),
    Comparator(
        id="noise_floor",
        dtype=torch.float64,
        noise_seed_offset=1_000_003,
        explanation="the model in float64 with another noise seed: an equally good rendering of the same script",
    ),
    Comparator(
        id="control_rope_bfloat16",
        angle_dtype=torch.bfloat16,
        explanation="rotary angles computed in bfloat16: known to degrade",
    ),
    Comparator(
        id="control_long_window",
        window_frames=LONG_WINDOW_FRAMES,
        explanation=f"attention over {LONG_WINDOW_FRAMES} frames, beyond the 512 trained: known to degrade",
    ),
)


def comparator_by_id(condition: str) -> Comparator | None:
    """The reference of that id, or None where the condition is a fix."""
    return next((comparator for comparator in COMPARATORS if comparator.id == condition), None)


@contextmanager
def open_voice(
    condition: str,
    *,
    n_streams: int,
    n_frames: int | None = None,
    mode: str = "eager",
    device: str = "cpu",
    checkpoint_dtype: str = "float32",
) -> Iterator[Decoder]:
    """Load the voice, put it into a condition and yield a fresh decoder."""
    model = load_model(checkpoint_dtype=checkpoint_dtype).to(device)
    comparator = comparator_by_id(condition)
    if comparator is not None:
        model.to(comparator.dtype)
        window_frames = _ring_frames(comparator.window_frames or model.config.window_frames, n_frames)
        model.allocate_cache(n_streams, window_frames=window_frames, dtype=comparator.dtype)
        yield Decoder(model, angle_dtype=comparator.angle_dtype)
        return
    model.allocate_cache(n_streams, window_frames=_ring_frames(model.config.window_frames, n_frames))
    with fix_by_id(condition).applied(model, mode=mode) as applied:
        yield Decoder(model, call=applied)


def _ring_frames(window_frames: int, n_frames: int | None) -> int:
    return window_frames if n_frames is None else min(window_frames, n_frames)


def noise_seed(condition: str, seed: int) -> int:
    """Noise seed of a condition: the run's own, shared by all but the noise floor."""
    comparator = comparator_by_id(condition)
    return seed + (comparator.noise_seed_offset if comparator is not None else 0)
