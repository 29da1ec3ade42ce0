"""Does the trained voice still say what its script says? The recogniser listens to it, stream by stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.cases.voice.assets import asset_path, load_streams, original_speech
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, Codec
from precision_eval.cases.voice.conditions import opened
from precision_eval.cases.voice.recogniser import Recogniser
from precision_eval.cases.voice.script import Conditioning
from precision_eval.cases.voice.synthesis import Stream, free_run
from precision_eval.cases.voice.vocoder import vocode

PROMPT_FRAMES = 200


def check_voice(
    voice: Path | None = None,
    *,
    minutes: float,
    n_streams: int,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> dict[str, Any]:
    """Let a voice speak held-out scripts and have the recogniser listen; plain data, accuracies as fractions.

    The recogniser is the shipped voice's, and knows espeak-ng's speech.

    *Gap*: percentage points that the free-running voice lies below the original speech of stream 0, and its mean below
    the resynthesised originals of all streams. *Decline*: points lost from the first third to the last, mean over
    streams, less the script's own change.
    """
    n_frames = round(minutes * 60 * FRAME_RATE_HZ)
    streams: list[Stream] = load_streams(n_streams, n_frames=PROMPT_FRAMES + n_frames, voice=voice)
    n_frames = min(n_frames, *(len(s.tokens) - PROMPT_FRAMES for s in streams))
    spoken = np.empty((n_frames, n_streams, 4), np.uint8)
    with opened("full_float32", n_streams=n_streams, voice=voice) as decoder:
        frames = free_run(decoder, streams, prompt_frames=PROMPT_FRAMES, n_frames=n_frames, seed=seed)
        for index, tokens in enumerate(frames):
            spoken[index] = tokens
            if index % 100 == 99:
                on_progress((index + 1) / n_frames)
    codec = Codec.load(asset_path("codec.safetensors", voice))
    recogniser = Recogniser.load(asset_path("recogniser.safetensors"))
    here = slice(PROMPT_FRAMES, PROMPT_FRAMES + n_frames)

    def heard(audio: np.ndarray, script: Conditioning) -> dict[str, float]:
        found = recogniser.phoneme_accuracy(audio, script.phoneme)
        return {name: float(getattr(found, name)) for name in ("value", "first_third", "last_third")}

    scripts = [stream.conditioning[here] for stream in streams]
    free = [heard(vocode(codec.decode(spoken[:, b])), script) for b, script in enumerate(scripts)]
    again = [heard(vocode(codec.decode(s.tokens[here])), script) for s, script in zip(streams, scripts, strict=True)]
    speech = original_speech(voice)[0][PROMPT_FRAMES * HOP_SAMPLES :][: n_frames * HOP_SAMPLES]
    n_heard = len(speech) // HOP_SAMPLES
    original = heard(speech[: n_heard * HOP_SAMPLES], streams[0].conditioning[PROMPT_FRAMES : PROMPT_FRAMES + n_heard])

    def mean(rows: list[dict[str, float]], part: str) -> float:
        return float(np.mean([row[part] for row in rows]))

    lost = [mean(rows, "first_third") - mean(rows, "last_third") for rows in (free, again)]
    return {
        "minutes": n_frames / FRAME_RATE_HZ / 60,
        "free_running": free,
        "resynthesised": again,
        "original": original,
        "gap_points": 100 * (original["value"] - free[0]["value"]),
        "mean_gap_points": 100 * (mean(again, "value") - mean(free, "value")),
        "decline_points": 100 * (lost[0] - lost[1]),
    }
