"""Doubts and findings that go with a result, the one line that sums them up, and strict JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from audio_metrics.lag import Lag
from audio_metrics.signal import FileSource
from audio_metrics.table import HalfWindowTable, by_window
from audio_metrics.waveform import CLIP_LEVEL

SIGNALS = ("reference", "estimate")

# Kinds that say how far to believe a figure, and nothing against the recording.
NOTES = frozenset({"short", "quantised", "floored", "left_out", "aligned"})

# Kinds that are no fault of a pair where the reference has them.
OF_THE_MATERIAL = frozenset({"jump", "repeat", "loop", "stuck", "clipped", "full_scale"})

# What was done to an estimate, see audio_metrics.changes: the two differ.
CHANGES = frozenset(
    {"other", "order", "seam", "lag_drift", "polarity", "gain", "band_limit", "codec", "filter", "wrapped", "click"}
    | {"stretch", "rate", "stuck", "gap", "reading", "speed", "curve", "course", "offset", "added"}
    | {"mute", "fold", "resynthesis"}
)

# What a change explains, so that it is not said twice.
_EXPLAINED = {
    "lag": {"other", "order", "seam", "lag_drift", "gap", "speed", "reading", "fold", "resynthesis"},
    "length": {"other", "seam", "gap", "speed", "reading"},
    "dropout": {"gap", "mute", "course"},
    "jump": {"click", "wrapped", "gap", "reading", "curve", "mute", "seam"},
    "full_scale": {"wrapped", "reading", "curve"},
    "clipped": {"wrapped", "reading"},
    "repeat": {"stuck"},
    "stretch": {"stuck"},
    "silent": {"stretch", "mute"},
}

_SIXTEEN_BITS = 2.0**-32  # mean square of half their step
_MANY_FLOORED = 0.01
_MAX_LAG_COST_DB = 0.1
#: Correlation from which a lag, or a polarity, is sure.
SURE_CORRELATION = 0.5
_LONG_ENOUGH_S = 60.0
_ODD_SCALE = 100.0
_LOSSLESS_SUBTYPES = frozenset({"FLOAT", "DOUBLE", "PCM_24", "PCM_32", "ALAC_20", "ALAC_24", "ALAC_32"})


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Something a reader has to know about a result.

    Attributes
    ----------
    kind : str
        ``"non_finite"``, ``"silent"``, ``"left_out"`` (windows silent in both), ``"full_scale"``, ``"clipped"``,
        ``"dropout"``, ``"lag"``, ``"length"``, ``"jump"``, ``"repeat"``, ``"loop"``, ``"floored"``, ``"short"``,
        ``"quantised"``, ``"aligned"``, or a change of :data:`CHANGES`.
    signal : str
        ``"reference"``, ``"estimate"``, ``"null"``, ``"signal"`` or ``"pair"``.
    time_s : float or None
        Where it first happens, if it happens at a time.
    count : int
        How often: windows for ``silent``, ``left_out`` and ``loop``, samples for ``non_finite`` and ``clipped``, bins
        for ``floored``, stretches for ``repeat``, cells for ``jump`` and ``dropout``, otherwise 1.
    message : str
        A clause that names the signal.
    """

    kind: str
    signal: str
    time_s: float | None
    count: int
    message: str

    @property
    def is_failure(self) -> bool:
        """Whether the recording cannot be used: not finite anywhere, or dead where the reference is not."""
        return self.kind == "non_finite" or (self.kind == "silent" and self.signal == "estimate")

    def to_dict(self) -> dict[str, object]:
        """As plain data for strict JSON."""
        return asdict(self)


def clock(seconds: float) -> str:
    """``61.5`` → ``1:01.5``."""
    tenths = round(10.0 * seconds)
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    start = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{start}:{tenths // 10:02d}.{tenths % 10}"


def headline(flags: Iterable[Flag], *, differs: bool = False, unknown: str = "") -> str:
    """The first line of every report: what failed, what was done, what is doubtful, or that no fault was found."""
    faults = _faults(flags)
    if not faults and not differs:
        return "no fault found: finite, no silence, repeat, jump, dropout, clipping or lag"
    clauses = [
        flag.message + ("" if flag.time_s is None or flag.kind == "seam" else f", from {clock(flag.time_s)}")
        for flag in faults
    ]
    if differs and all(flag.kind in ("full_scale", "jump") for flag in faults):
        clauses.insert(0, unknown)
    word = "FAILED" if faults and faults[0].is_failure else "DIFFERS" if differs else "WARNING"
    return f"{word}: {'; '.join(clauses)}"


def _faults(flags: Iterable[Flag]) -> list[Flag]:
    """Return what speaks against a recording: failures first, then what was done to it."""
    flags = tuple(flags)
    changes = {flag.kind for flag in flags if flag.kind in CHANGES and flag.signal != "reference"}
    return [
        flag
        for flag in sorted(
            flags, key=lambda flag: (not flag.is_failure, flag.kind not in CHANGES, flag.signal == "reference")
        )
        if flag.kind not in NOTES
        and not (flag.signal == "reference" and flag.kind in OF_THE_MATERIAL)
        and not _EXPLAINED.get(flag.kind, set()) & changes
    ]


def news_of(flags: Iterable[Flag]) -> tuple[Flag, ...]:
    flags = tuple(flags)
    known = {flag.kind: flag.count for flag in flags if flag.signal == "reference"}
    return tuple(flag for flag in flags if flag.signal != "estimate" or flag.count > known.get(flag.kind, 0))


def json_number(value: float) -> float | None:
    """The number, or None where it is NaN or infinite (strict JSON has neither)."""
    return float(value) if math.isfinite(value) else None


def json_numbers(values: Iterable[float]) -> list[float | None]:
    return [json_number(value) for value in values]


def pair_flags(table: HalfWindowTable, lag: Lag) -> tuple[Flag, ...]:
    flags = [flag for index, name in enumerate(SIGNALS) for flag in signal_flags(table, index, name)]
    both = np.flatnonzero(table.silent_windows.all(axis=0))
    if len(both):
        message = f"{len(both)} windows of 1 s are digital silence in both and are left out"
        flags.append(_flag("left_out", "pair", message, time_s=_window_s(table, both[0]), count=len(both)))
    if lag.cost_db > _MAX_LAG_COST_DB and abs(lag.correlation) >= SURE_CORRELATION:
        side = "late" if lag.fine_lag_s > 0.0 else "early"
        message = (
            f"the estimate is {1e3 * abs(lag.fine_lag_s):.4g} ms {side}, which alone costs {lag.cost_db:.3g} dB of "
            'SI-SDR: add --align lag, or align="lag" in Python'
        )
        flags.append(_flag("lag", "pair", message))
    duration_s = table.grid.n_samples / table.grid.sample_rate_hz
    if duration_s < _LONG_ENOUGH_S:
        message = (
            f"{duration_s:.1f} s are under {_LONG_ENOUGH_S:.0f} s; unaligned distances of short recordings are large"
        )
        flags.append(_flag("short", "pair", message))
    return tuple(flags)


def alignment_flags(moved_samples: float, longer: int, sample_rate_hz: int, rest: str = "") -> tuple[Flag, ...]:
    flags = []
    ms = 1e3 / sample_rate_hz
    if longer:
        where = f", {abs(moved_samples) * ms:.4g} ms {'late' if moved_samples > 0 else 'early'}" * (
            moved_samples != 0.0
        )
        message = f"the estimate is {abs(longer):,} samples {'longer' if longer > 0 else 'shorter'}{where}"
        flags.append(_flag("length", "pair", f"{message}{rest}; compared where both are"))
    elif moved_samples:
        flags.append(
            _flag("aligned", "pair", f"the estimate was {moved_samples * ms:+.4g} ms late and was moved, as asked")
        )
    return tuple(flags)


def signal_flags(table: HalfWindowTable, index: int, name: str) -> list[Flag]:
    """Flags of one of the signals of a table; `name` is what they call it."""
    grid = table.grid
    flags = []
    silent = table.silent_windows[index]
    alone = np.flatnonzero(silent & ~table.silent_windows.all(axis=0) if table.n_signals > 1 else silent)
    if (
        name == "estimate" and "reference" in table.samples
    ):  # 16 bits make zeros of a pause that is softer than they are
        energy = by_window(table.samples["reference"]).sum(axis=-1)
        alone = alone[energy[alone] >= _SIXTEEN_BITS * grid.window_samples]
    if len(alone):
        other = f" in which the {SIGNALS[1 - index]} is not" if table.n_signals > 1 else ""
        message = f"{name} is digital silence in {len(alone)} windows of 1 s{other}"
        if other and silent.all():
            message += (
                ": it holds nothing at all; NaN becomes 0 where samples are written as integers, so check before that "
                "whether what the model returns is finite, as that of a codec that overflows float16 is not"
            )
        flags.append(_flag("silent", name, message, time_s=_window_s(table, alone[0]), count=len(alone)))
    first_bad = table.first_bad_sample[index]
    if first_bad is not None:
        count = int(table.bad_samples[index].sum())
        message = f"{name} has {count} samples that are not finite"
        flags.append(_flag("non_finite", name, message, time_s=first_bad / grid.sample_rate_hz, count=count))
    peak = table.peak[index]
    if peak >= CLIP_LEVEL:
        message = f"{name} reaches full scale (peak {peak:.4g})"
        if peak > _ODD_SCALE:
            message += ": integers read as floats, or an overflow? full scale is 1.0, so divide 16-bit samples by 32768"
        flags.append(_flag("full_scale", name, message))
    floored = int(table.floored_bins[index])
    if floored > _MANY_FLOORED * grid.n_frames * grid.n_bins:
        share = floored / (grid.n_frames * grid.n_bins)
        message = f"{share:.1%} of the bins of {name} are under the floor, where differences are not seen"
        flags.append(_flag("floored", name, message, count=floored))
    return flags


def _window_s(table: HalfWindowTable, window: int) -> float:
    return float(window) * table.grid.window_samples / table.grid.sample_rate_hz


def _flag(kind: str, signal: str, message: str, *, time_s: float | None = None, count: int = 1) -> Flag:
    return Flag(kind=kind, signal=signal, time_s=time_s, count=count, message=message)


def storage_flags(sources: Iterable[FileSource]) -> tuple[Flag, ...]:
    """A flag for each file whose storage rounds coarsely or is lossy."""
    coarse = [source for source in sources if source.subtype not in _LOSSLESS_SUBTYPES]
    return tuple(
        _flag(
            "quantised",
            source.name,
            f"{source.name} is stored as {source.subtype}, whose rounding counts as noise; store float32",
        )
        for source in coarse
    )
