"""https://github.com/groxaxo/Local-VoiceMode-LLM/pull/3 (2026)

Sentence-chunked TTS playback: every phrase has an audible click at its start; the first sample of each chunk
sits at 60 to 99 % of the peak.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile as sf


def speech(sr, seconds, seed=0):
    """Voiced syllables with formants and hiss in between, about the level of a TTS voice."""
    rng = np.random.default_rng(seed)
    n = int(sr * seconds)
    t = np.arange(n) / sr
    f0 = 120 + 18 * np.sin(2 * np.pi * 0.45 * t) + 6 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(f0) / sr
    out = np.zeros(n)
    for k in range(1, 36):
        f = 120 * k
        amp = sum(g / (1 + ((f - c) / b) ** 2) for c, b, g in ((550, 120, 1.0), (1500, 180, 0.5), (2600, 250, 0.25)))
        out += amp * np.sin(k * phase + rng.uniform(0, 6.28))
    gate = np.clip(np.sin(2 * np.pi * 2.1 * t + 0.4 * np.sin(2 * np.pi * 0.6 * t)) * 3, 0, 1)
    hiss = np.diff(rng.standard_normal(n + 1)) * np.clip(-np.sin(2 * np.pi * 2.1 * t + 0.9), 0, 1) ** 6
    out = out * gate / np.abs(out).max() + 0.25 * hiss / np.abs(hiss).max()
    return 0.5 * out / np.abs(out).max()

def fade_wav_edges(chunk, sr, ms=6):
    n = int(sr * ms / 1000)
    chunk = chunk.copy()
    chunk[:n] *= np.linspace(0, 1, n)
    chunk[-n:] *= np.linspace(1, 0, n)
    return chunk


out, sr = Path(sys.argv[1]), 24000
voice = speech(sr, 5.0)
voice += 0.08 * np.cos(2 * np.pi * 95 * np.arange(len(voice)) / sr)
loud = np.flatnonzero(np.abs(voice) > 0.3)
starts = [int(loud[np.searchsorted(loud, int(s * sr))]) for s in (0.2, 1.4, 2.6, 3.8)]
chunks = [voice[s : s + int(0.9 * sr)] for s in starts]
gap = np.zeros(int(0.25 * sr))
sf.write(out / "reference.wav", np.concatenate([np.concatenate([gap, fade_wav_edges(c, sr)]) for c in chunks] + [gap]), sr)
sf.write(out / "degraded.wav", np.concatenate([np.concatenate([gap, c]) for c in chunks] + [gap]), sr)
