"""A bank of short streams: renderings under many noise seeds, planted degradations of some, and the controls.

A trial is one batch of 16 passages of 5 s under one condition, as the measure ``sound`` speaks and hears them. The bank
is spoken in float32, twice as fast as the float64 reference, whose tokens it has; the planted degradations are of the
audio of its first seed, laid end to end so that what happens once a minute happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from precision_eval.cases.voice.codec import SAMPLE_RATE_HZ
from precision_eval.cases.voice.synthesis import Stream
from precision_eval.measure.shipped_voice import (
    BATCH_STREAMS,
    Listener,
    original_tokens,
    passages,
    spoken_tokens,
    stream_frames,
    waveforms,
)
from validation.audio_ladder import degrade
from validation.audio_ladder.rungs import Rung, family
from validation.frame import Data, Options, Trial

N_FRAMES = stream_frames(0.25)
MOST_PASSAGES = 192
RENDERING = "full_float32"
CONTROLS = ("control_rope_bfloat16", "control_long_window")
FIXES = ("query_to_half", "kv_to_query", "bfloat16", "float16")

PLANTED: tuple[Rung, ...] = (
    *family("drop-outs of 20 ms", "/min", degrade.drop_out, "per_minute", (6, 15, 30, 60, 120, 300), length_s=0.02),
    *family("noise", "dB SNR", degrade.add_noise, "snr_db", (60, 50, 45, 40, 35, 30)),
    *family("tilt", "dB/octave", degrade.tilt, "db_per_octave", (-0.1, -0.25, -0.5, -1, -2, -3)),
    *family("clipped", "% of samples", degrade.clip, "share", (0.01, 0.03, 0.1, 0.3, 1), scale=0.01),
    *family("low-pass", "Hz", degrade.low_pass, "cutoff_hz", (7500, 7000, 6500, 6000)),
)
# What it does to a metric is the metric's margin (:mod:`precision_eval.results.sound`).
MARGIN_RUNG = "drop-outs of 20 ms 60 /min"


def trials(options: Options) -> list[Trial]:
    """The first seed with its degradations, the controls, the fixes, then the further seeds."""
    parts = range(options["passages"] // BATCH_STREAMS)
    planted = range(options["planted"] // BATCH_STREAMS)
    return [
        *(Trial(f"{RENDERING}/0/{part}", (RENDERING, 0, part, part in planted)) for part in parts),
        *(Trial(f"{name}/0/{part}", (name, 0, part, False)) for part in planted for name in (*CONTROLS, *FIXES)),
        *(
            Trial(f"{RENDERING}/{seed}/{part}", (RENDERING, seed, part, False))
            for seed in range(1, options["seeds"])
            for part in parts
        ),
    ]


def run(todo: Iterator[Trial], options: Options) -> Iterator[Data]:
    for key, (condition, seed, part, planted), _ in todo:
        streams, listener = _batch(part)
        tokens = spoken_tokens(condition, streams, n_frames=N_FRAMES, seed=1000 * seed + part)
        renderings = waveforms(tokens)
        line: dict[str, Any] = {"key": key, "heard": shortened(listener.heard(renderings))}
        if planted:
            line["planted"] = {rung.name: shortened(listener.heard(degraded(rung, renderings))) for rung in PLANTED}
        yield line


@cache
def _batch(part: int) -> tuple[list[Stream], Listener]:
    every = passages(MOST_PASSAGES, n_frames=N_FRAMES)
    streams = every[part :: MOST_PASSAGES // BATCH_STREAMS]
    return streams, Listener(streams, waveforms(original_tokens(streams, n_frames=N_FRAMES)))


def degraded(rung: Rung, renderings: np.ndarray) -> np.ndarray:
    whole = rung.apply(renderings.reshape(-1).astype(np.float64), sample_rate_hz=SAMPLE_RATE_HZ)
    return np.asarray(whole, dtype=np.float32).reshape(renderings.shape)


def shortened(heard: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [float(f"{value:.6g}") for value in values] for name, values in heard.items()}
