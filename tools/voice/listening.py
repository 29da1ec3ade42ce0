"""Does the trained voice still say what its script says? The recogniser listens to it, stream by stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision_eval.cases.voice.assets import asset_path, load_streams, original_speech
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, Codec
from precision_eval.cases.voice.conditions import opened
from precision_eval.cases.voice.recogniser import PhonemeAccuracy, Recogniser
from precision_eval.cases.voice.script import Conditioning, segments_of
from precision_eval.cases.voice.synthesis import Stream, free_run
from precision_eval.cases.voice.vocoder import vocode

PROMPT_FRAMES = 200


@dataclass(frozen=True, kw_only=True)
class VoiceQuality:
    """What the recogniser hears, one entry per stream (speaker)."""

    minutes: float
    free_running: list[PhonemeAccuracy]
    resynthesised: list[PhonemeAccuracy]
    original: PhonemeAccuracy

    @property
    def gap_points(self) -> float:
        """Percentage points that the free-running voice lies below the original speech of the same stream."""
        return 100 * (self.original.value - self.free_running[0].value)

    @property
    def mean_gap_points(self) -> float:
        """The same over all streams, against their resynthesised originals."""
        return 100 * float(
            np.mean([o.value - v.value for o, v in zip(self.resynthesised, self.free_running, strict=True)])
        )

    @property
    def decline_points(self) -> float:
        """Percentage points lost from the first third to the last, mean over streams, less the script's own change."""
        own = np.mean([a.first_third - a.last_third for a in self.free_running])
        scripts = np.mean([a.first_third - a.last_third for a in self.resynthesised])
        return 100 * float(own - scripts)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON: every accuracy as a fraction, gaps in percentage points."""

        def parts(heard: PhonemeAccuracy) -> dict[str, float]:
            return {name: float(getattr(heard, name)) for name in ("value", "first_third", "last_third")}

        return {
            "minutes": self.minutes,
            "free_running": [parts(heard) for heard in self.free_running],
            "resynthesised": [parts(heard) for heard in self.resynthesised],
            "original": parts(self.original),
            "gap_points": self.gap_points,
            "mean_gap_points": self.mean_gap_points,
            "decline_points": self.decline_points,
        }


def _accuracy(recogniser: Recogniser, codec: Codec, tokens: np.ndarray, script: Conditioning) -> PhonemeAccuracy:
    return recogniser.phoneme_accuracy(vocode(codec.decode(tokens)), segments_of(script))


def check_voice(
    *,
    minutes: float,
    n_streams: int,
    seed: int = 0,
    condition: str = "full_float32",
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> VoiceQuality:
    """Let the voice speak held-out scripts and have the recogniser listen."""
    n_frames = round(minutes * 60 * FRAME_RATE_HZ)
    streams: list[Stream] = load_streams(n_streams, n_frames=PROMPT_FRAMES + n_frames)
    n_frames = min(n_frames, *(len(s.tokens) - PROMPT_FRAMES for s in streams))
    spoken = np.empty((n_frames, n_streams, 4), np.uint8)
    with opened(condition, n_streams=n_streams) as decoder:
        frames = free_run(decoder, streams, prompt_frames=PROMPT_FRAMES, n_frames=n_frames, seed=seed)
        for index, tokens in enumerate(frames):
            spoken[index] = tokens
            if index % 100 == 99:
                on_progress((index + 1) / n_frames)
    codec = Codec.load(asset_path("codec.safetensors"))
    recogniser = Recogniser.load(asset_path("recogniser.safetensors"))
    here = slice(PROMPT_FRAMES, PROMPT_FRAMES + n_frames)
    original = original_speech()[0][PROMPT_FRAMES * HOP_SAMPLES :][: n_frames * HOP_SAMPLES]
    original_frames = slice(PROMPT_FRAMES, PROMPT_FRAMES + len(original) // HOP_SAMPLES)
    return VoiceQuality(
        minutes=n_frames / FRAME_RATE_HZ / 60,
        free_running=[_accuracy(recogniser, codec, spoken[:, b], s.conditioning[here]) for b, s in enumerate(streams)],
        resynthesised=[_accuracy(recogniser, codec, s.tokens[here], s.conditioning[here]) for s in streams],
        original=recogniser.phoneme_accuracy(
            original[: len(original) // HOP_SAMPLES * HOP_SAMPLES],
            segments_of(streams[0].conditioning[original_frames]),
        ),
    )
