"""The rule of t_div, tried on the ladder.

Conventions: the rule looks at half windows of 0.5 s that are active in the reference for a quarter of their frames; it
calls one *another sound* where the mel MCD exceeds one threshold and the SNR is under another. A *rule* here is such a
pair. On rungs whose words are the same every hit is a false alarm, on rungs with other words every active half window
after the onset should be hit; t_div itself needs the first one only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from audio_metrics.frames import FrameBlock
from audio_metrics.longform import DIVERGED_ACTIVE_FRACTION, DIVERGED_MCD_DB, DIVERGED_SNR_DB
from audio_metrics.signal import ArraySource
from audio_metrics.spectra import FLOOR
from audio_metrics.spectral import frame_mel_mcd_db
from audio_metrics.table import table_of
from audio_metrics.waveform import projection_sums

RULES: tuple[tuple[float, float], ...] = tuple(
    (mcd_db, snr_db) for mcd_db in (5.0, 7.0, 8.0, 9.0, 10.0, 12.0) for snr_db in (0.0, 3.0, 6.0, np.inf)
)
"""(mel MCD above, SNR below); an infinite SNR asks for the MCD alone."""

CURRENT_RULE = (DIVERGED_MCD_DB, DIVERGED_SNR_DB)


@dataclass(frozen=True)
class HalfWindows:
    """What the rule sees."""

    start_s: np.ndarray
    mcd_db: np.ndarray
    snr_db: np.ndarray

    def hits(self, rule: tuple[float, float]) -> np.ndarray:
        """Half windows that a rule calls another sound, shape (n_halves,) of bool."""
        return np.asarray((self.mcd_db > rule[0]) & (self.snr_db < rule[1]))


def half_windows(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> HalfWindows:
    """Mel MCD and SNR of the active half windows of an aligned pair, float64."""
    sources = [
        ArraySource(samples, sample_rate_hz=sample_rate_hz, name=name)
        for samples, name in ((reference, "reference"), (estimate, "estimate"))
    ]
    table = table_of(sources, {"mcd": frame_mel_mcd_db}, sample_kernel=_snr_db, halved=("mcd",), floor=FLOOR)
    used = table.frames > 0
    active = used & (table.active_frames >= DIVERGED_ACTIVE_FRACTION * table.frames)
    starts = table.grid.half_starts(0, table.grid.n_started_windows)
    active = active[: len(starts)]
    mcd_db = table.half_sums["mcd"][: len(starts)][active] / table.frames[: len(starts)][active]
    return HalfWindows(starts[active] / sample_rate_hz, mcd_db, table.samples["snr"][: len(starts)][active])


def _snr_db(block: FrameBlock) -> dict[str, np.ndarray]:
    reference, estimate = block.samples
    return {"snr": projection_sums(reference, estimate, block.half_starts).snr_db}


def firing(halves: HalfWindows, *, onset_s: float) -> dict[str, Any]:
    """How each rule answers one rung."""
    after = halves.start_s >= onset_s
    rules = {}
    for rule in RULES:
        hits = halves.hits(rule)
        late_s = float(halves.start_s[hits & after][0] - onset_s) if (hits & after).any() else None
        rules[rule_name(rule)] = [int((hits & after).sum()), int((hits & ~after).sum()), late_s]
    return {"after": int(after.sum()), "before": int((~after).sum()), "rules": rules}


def rule_name(rule: tuple[float, float]) -> str:
    """``"MCD > 9 dB, SNR < 3 dB"``."""
    alone = f"MCD > {rule[0]:g} dB"
    return alone if np.isinf(rule[1]) else f"{alone}, SNR < {rule[1]:g} dB"
