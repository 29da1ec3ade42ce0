"""Doubts and findings that go with a result, and strict JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from audio_metrics.lag import Lag
from audio_metrics.signal import FileSource
from audio_metrics.table import HalfWindowTable
from audio_metrics.waveform import CLIP_LEVEL

SIGNALS = ("reference", "estimate")

_MANY_FLOORED = 0.01
_SURE_CORRELATION = 0.5
_LONG_ENOUGH_S = 60.0
_COARSE_SUBTYPES = ("PCM_S8", "PCM_U8", "PCM_16", "ULAW", "ALAW")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Something a reader has to know about a result.

    Attributes
    ----------
    kind : str
        ``"silent"``, ``"non_finite"``, ``"full_scale"``, ``"floored"``, ``"lag"``, ``"short"``, ``"quantised"``,
        ``"jump"``, ``"repeat"`` or ``"loop"``.
    signal : str
        ``"reference"``, ``"estimate"``, ``"signal"`` or ``"pair"``.
    time_s : float or None
        Where it first happens, if it happens at a time.
    count : int
        How often: windows for ``silent`` and ``loop``, samples for ``non_finite``, bins for ``floored``, stretches for
        ``repeat``, cells for ``jump``, otherwise 1.
    message : str
    """

    kind: str
    signal: str
    time_s: float | None
    count: int
    message: str

    def to_dict(self) -> dict[str, object]:
        """As plain data for strict JSON."""
        return asdict(self)


def json_number(value: float) -> float | None:
    """The number, or None where it is NaN or infinite (strict JSON has neither)."""
    return float(value) if math.isfinite(value) else None


def json_numbers(values: Iterable[float]) -> list[float | None]:
    """As :func:`json_number`, of each."""
    return [json_number(value) for value in values]


def pair_flags(table: HalfWindowTable, lag: Lag) -> tuple[Flag, ...]:
    """Flags of an aligned pair."""
    flags = [flag for index, name in enumerate(SIGNALS) for flag in signal_flags(table, index, name)]
    hop_s = table.grid.hop_samples / table.grid.sample_rate_hz
    if abs(lag.lag_s) > hop_s and abs(lag.correlation) >= _SURE_CORRELATION:
        message = f"the estimate is {lag.lag_s:+.4f} s late; every aligned metric measures that too: align it first"
        flags.append(Flag(kind="lag", signal="pair", time_s=None, count=1, message=message))
    duration_s = table.grid.n_samples / table.grid.sample_rate_hz
    if duration_s < _LONG_ENOUGH_S:
        message = (
            f"{duration_s:.1f} s are under {_LONG_ENOUGH_S:.0f} s; unaligned distances of short recordings are large"
        )
        flags.append(Flag(kind="short", signal="pair", time_s=None, count=1, message=message))
    return tuple(flags)


def signal_flags(table: HalfWindowTable, index: int, name: str) -> list[Flag]:
    """Flags of one of the signals of a table; `name` is what they call it."""
    grid = table.grid
    flags = []
    silent = np.flatnonzero(table.silent_windows[index])
    if len(silent):
        start_s = float(silent[0]) * grid.window_samples / grid.sample_rate_hz
        message = f"{len(silent)} windows of {name} are exactly zero and are left out"
        flags.append(Flag(kind="silent", signal=name, time_s=start_s, count=len(silent), message=message))
    first_bad = table.first_bad_sample[index]
    if first_bad is not None:
        count = int(table.bad_samples[index].sum())
        message = f"{count} samples of {name} are not finite; the frames they touch are left out"
        time_s = first_bad / grid.sample_rate_hz
        flags.append(Flag(kind="non_finite", signal=name, time_s=time_s, count=count, message=message))
    if table.peak[index] >= CLIP_LEVEL:
        message = f"{name} reaches full scale (peak {table.peak[index]:.4g}); it may be clipped"
        flags.append(Flag(kind="full_scale", signal=name, time_s=None, count=1, message=message))
    floored = int(table.floored_bins[index])
    if floored > _MANY_FLOORED * grid.n_frames * grid.n_bins:
        share = floored / (grid.n_frames * grid.n_bins)
        message = f"{share:.1%} of the bins of {name} are under the floor, where differences are not seen"
        flags.append(Flag(kind="floored", signal=name, time_s=None, count=floored, message=message))
    return flags


def storage_flags(pair: tuple[FileSource, ...]) -> tuple[Flag, ...]:
    """A flag for each file whose storage format rounds coarsely."""
    return tuple(
        Flag(
            kind="quantised",
            signal=source.name,
            time_s=None,
            count=1,
            message=f"{source.name} is stored as {source.subtype}, whose rounding counts as noise; store float32",
        )
        for source in pair
        if source.subtype in _COARSE_SUBTYPES
    )
