"""What the divergence experiment runs: groups of conditions, and the split of the scripts.

Each speaker's script is cut into equal segments. The first frames of a segment are a calibration window
(prompt and teacher-forced steps); the held-out streams begin in the rest of it, evenly spaced, and none reaches into
the next segment. So no frame that the prediction has seen is spoken by a held-out stream. Held-out streams of one
segment may read overlapping stretches of script, from other prompts and with other noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from validation.frame import Size

PROMPT_FRAMES = 100  # 2 s, as in the suite's own streams
N_SPEAKERS = 12
BIN_STEPS = 4  # hazards are recorded per bin, which resolves medians from about 10 steps on
SEED = 20_260_000  # of the sampling noise; chunk c of held-out streams draws from SEED + c
FIXES = ("query_to_half", "kv_to_query", "full_float32", "bfloat16", "float16", "autocast")


@dataclass(frozen=True)
class Group:
    """Conditions that share one reference; `steps` says until when a stream is observed under each."""

    checkpoint_dtype: str
    temperature: float
    steps: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.checkpoint_dtype}@T{self.temperature:g}"


@dataclass(frozen=True, kw_only=True)
class Design:
    segments: int
    held_out: int
    calibration_steps: int
    chunk_streams: int
    groups: tuple[Group, ...]

    @property
    def n_streams(self) -> int:
        return N_SPEAKERS * self.segments * self.held_out

    @property
    def longest(self) -> int:
        return max(max(group.steps.values()) for group in self.groups)


DESIGNS: Mapping[Size, Design] = {
    # Half formats leave within 50 to 400 steps, the casts around 1500. float32 stays for hundreds of thousands: it is
    # censored at any affordable length, so it is cut where that is plain.
    "full": Design(
        segments=2,
        held_out=9,
        calibration_steps=412,  # until the ring of 512 is full
        chunk_streams=54,
        groups=(
            Group("float32", 0.65, dict.fromkeys(FIXES, 2000)
                  | dict.fromkeys(("full_float32", "noise_floor", "control_rope_bfloat16"), 400)),
            Group("bfloat16", 1.0, dict.fromkeys(("bfloat16", "float16", "autocast"), 400)),
        ),
    ),
    "quick": Design(
        segments=1,
        held_out=3,
        calibration_steps=60,
        chunk_streams=36,
        groups=(Group("float32", 0.65, dict.fromkeys(FIXES, 200)),),
    ),
}  # fmt: skip


def window_starts(script_frames: int, design: Design, *, stream_frames: int) -> tuple[list[int], list[int]]:
    """First frames of the calibration windows and of the held-out streams in one speaker's script."""
    segment, window = script_frames // design.segments, PROMPT_FRAMES + design.calibration_steps
    spare = segment - window - stream_frames
    begins = [number * segment for number in range(design.segments)]
    gaps = [spare * place // max(1, design.held_out - 1) for place in range(design.held_out)]
    return begins, [begin + window + gap for begin in begins for gap in gaps]
