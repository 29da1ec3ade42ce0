"""Audio that is not finite is a status of the cell, read off the flags of its comparison."""

from types import SimpleNamespace

import numpy as np
import soundfile

from precision_eval.cases.voice.codec import SAMPLE_RATE_HZ
from precision_eval.measure import voice


def test_audio_that_is_not_finite_makes_the_cell_non_finite(tmp_path):
    sound = 0.1 * np.random.default_rng(0).standard_normal(2 * SAMPLE_RATE_HZ).astype(np.float32)
    broken = np.where(np.arange(len(sound)) < SAMPLE_RATE_HZ, sound, np.nan).astype(np.float32)
    (tmp_path / "audio").mkdir()
    for name, samples in (("reference", sound), ("noise_floor", sound[::-1]), ("float16", broken)):
        soundfile.write(tmp_path / "audio" / f"{name}.wav", samples, SAMPLE_RATE_HZ, subtype="FLOAT")
    cell = SimpleNamespace(case="voice", fixes=("float16",), mode="eager", size="default")
    (outcome,) = voice.audio(cell, tmp_path)
    assert outcome.status == "non_finite"
    assert outcome.reason == f"estimate has {SAMPLE_RATE_HZ} samples that are not finite"
