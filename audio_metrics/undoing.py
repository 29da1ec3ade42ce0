"""Changes of an estimate that are shown by undoing them: what is left then is the reference.

Conventions: at most the first minute is looked at, in memory. A change counts as shown where undoing it leaves less
than a hundredth of the reference's energy (20 dB), or a correlation of 0.9 after resampling; thresholds that no
arithmetic gives were chosen after looking at the shipped speech. Nothing here is looked for where two sounds agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import scipy.fft

from audio_metrics.flags import Flag, clock
from audio_metrics.lag import read_around
from audio_metrics.reading import misread
from audio_metrics.signal import Source

_LOOKED_AT_S = 60.0
_LEFT = 0.01  # of the energy: 20 dB
_GAIN_OVER_LINEAR = 4.0  # a curve, or a course of the level, leaves a quarter of what one gain leaves
_SHORTEST_GAP, _AFTER_GAP = 16, 64  # samples of zeros, shorter runs occur in soft speech; and compared after them
_STRETCH_S, _COURSE_S = 0.1, 0.02
_FEWEST_STRETCHES = 3
_SAME_PLAYED = 0.9
_PERIODIC = 0.02  # of the usual distance
_PIECE_S = 2.0
_RATES_HZ = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_LARGEST_SPEED = 3
_KNOTS = 64
_FILTER_S, _FILTER_LEFT, _FILTER_FRAMES = 1.0, 0.1, 6
_ECHO_AFTER_S, _ECHO = 0.005, 0.2
_LINES, _LINE_SHARE, _FLAT_DB, _STEADY_DB = 5, 0.9, -4.5, 3.0
_LEAST_FILTER_DB = 1.0
_FOLD_BAND_HZ, _FOLDED, _LEAST_FOLDED, _FOLDS_DB = 500.0, 0.5, 1e-3, -25.0
_IN_TIME = 2.0  # samples
_HEARD = 1e-8  # mean square of samples that are no rounding of zero
_RIPPLE_S, _PHASES, _SAME_AGAIN, _OWN_PITCH = 0.001, 32, 0.8, 0.3


def flag(kind: str, message: str, *, time_s: float | None = None, count: int = 1) -> Flag:
    return Flag(kind=kind, signal="estimate", time_s=time_s, count=count, message=message)


def moved_or_misread(pair: tuple[Source, Source], *, correlation: float) -> list[Flag]:
    """Name silence put between the samples, bytes read in another way, or another speed; takes what is not aligned."""
    r, e = _excerpts(pair)
    if not np.square(r).sum() > 0.0:
        return []
    rate = pair[0].sample_rate_hz
    flags = list(_gaps(r, e, rate)) or list(_mutes(r, e, rate)) or list(_readings(r, e, rate))
    flags = flags or misread(r, e)
    if not flags and abs(correlation) < 0.5:
        flags = list(_speeds(r, e, rate, Fraction(pair[0].n_samples, pair[1].n_samples)))
    return flags


def rest_of(pair: tuple[Source, Source], late: float) -> str:
    """Say where one of the two goes on alone, where they are in time but for that, and what is heard there."""
    (reference, estimate), rate = pair, pair[0].sample_rate_hz
    longer = estimate.n_samples - reference.n_samples
    place = "end" if abs(late) <= _IN_TIME else "start" if abs(late - longer) <= _IN_TIME else ""
    if longer < 0 or not place:
        return f", cut off at its {place}" if place else ""
    start = reference.n_samples if place == "end" else 0
    rest = read_around(estimate, start, start + min(longer, round(_LOOKED_AT_S * rate)))
    r, _ = _excerpts(pair)
    if np.square(rest).mean() <= _HEARD:
        what = "silence"
    elif len(rest) >= round(_STRETCH_S * rate) and rest in _Heard(r, rate):
        what = "a part of the reference once more"
    else:
        power = np.square(np.abs(np.fft.rfft(rest * np.hanning(len(rest))))) + 1e-30
        bands = np.array([part.mean() for part in np.array_split(power, min(64, len(power)))])
        is_noise = np.mean(np.log10(bands)) - np.log10(bands.mean()) > 0.1 * _FLAT_DB
        what = "noise" if is_noise else "another sound"
    return f", {what} at its {place}"


def muted(pair: tuple[Source, Source]) -> list[Flag]:
    """Name zeros in the place of samples; takes what is in time."""
    return list(_mutes(*_excerpts(pair), pair[0].sample_rate_hz))


def bent(pair: tuple[Source, Source]) -> list[Flag]:
    """Name a curve on the samples, or a level that ripples; takes what is in time."""
    r, e = _excerpts(pair)
    return list(_curve(r, e)) or list(_ripple(r, e, pair[0].sample_rate_hz))


def faded(pair: tuple[Source, Source]) -> list[Flag]:
    """Name a level that changes on the way; takes what is in time."""
    return list(_course(*_excerpts(pair), pair[0].sample_rate_hz))


def filtered(pair: tuple[Source, Source], *, by_gain_db: float) -> list[Flag]:
    """Name an echo or a filter where one transfer function explains far more than one gain (`by_gain_db`) does."""
    r, e = _excerpts(pair)
    rate = pair[0].sample_rate_hz
    n = 2 ** round(np.log2(_FILTER_S * rate))
    if len(r) < _FILTER_FRAMES * n // 2:
        return []
    frames = [_frames(x, n, n // 4) for x in (r, e)]
    power, heard = (np.square(np.abs(x)).sum(axis=0) for x in frames)
    product = (np.conj(frames[0]) * frames[1]).sum(axis=0)
    left = float((heard - np.abs(product) ** 2 / np.maximum(power, 1e-12 * power.max())).sum() / heard.sum())
    if left > _FILTER_LEFT or left > 0.25 * 10.0 ** (-by_gain_db / 10.0):
        return []
    response = np.abs(scipy.fft.irfft(product / np.maximum(power, 1e-6 * power.max()), n))[: n // 2]
    after = round(_ECHO_AFTER_S * rate)
    late = after + int(np.argmax(response[after:]))
    is_pitch = abs(float(r[late:] @ r[:-late])) > 0.5 * float(r @ r)
    if response[late] >= _ECHO * response[:after].max() and not is_pitch:
        return [flag("filter", f"an echo {1e3 * late / rate:.3g} ms later is in the estimate")]
    gain_db = 10.0 * np.log10(np.maximum(heard, 1e-30) / np.maximum(power, 1e-30))
    loud = power > 1e-5 * power.max()
    if np.ptp(gain_db[loud]) < _LEAST_FILTER_DB:
        return []
    return [flag("filter", f"the spectrum is filtered: {_where(gain_db[loud], np.flatnonzero(loud) * rate / n)}")]


def added(pair: tuple[Source, Source]) -> list[Flag]:
    """Say what is left once the reference is taken off: an offset, a tone, noise, or where in the spectrum it lies."""
    import scipy.signal  # takes half a second

    r, e = _excerpts(pair)
    rate = pair[0].sample_rate_hz
    energy = float(r @ r)
    if not energy > 0.0:
        return []
    left = e - float(r @ e) / energy * r
    if not left.any():
        return []
    level_db = 10.0 * np.log10(max(float(left @ left) / energy, 1e-30))
    power = scipy.signal.welch(left, rate, nperseg=min(len(left), 8192))[1]
    hz = np.linspace(0.0, rate / 2, len(power))
    peaks = np.convolve(power, np.ones(_LINES), "same")
    if peaks.max() >= _LINE_SHARE * power.sum():
        near = slice(max(0, int(np.argmax(power)) - 2), int(np.argmax(power)) + 3)
        return [
            flag("added", f"a tone at {np.average(hz[near], weights=power[near]):.3g} Hz is added, {_below(level_db)}")
        ]
    period = _period(left, rate)
    if period and abs(float(r[period:] @ r[:-period])) < _OWN_PITCH * energy:
        hz_s = f"{rate / period:.3g} Hz (every {1e3 * period / rate:.3g} ms)"
        return [flag("added", f"a buzz or hum of {hz_s} is added, {_below(level_db)}")]
    stretch = max(1, round(_STRETCH_S * rate))
    courses = np.square(left[: len(left) // stretch * stretch]).reshape(-1, stretch).sum(axis=1)
    flatness_db = float(np.mean(10.0 * np.log10(power + 1e-30)) - 10.0 * np.log10(power.mean() + 1e-30))
    if len(courses) and flatness_db > _FLAT_DB and np.std(10.0 * np.log10(courses + 1e-30)) < _STEADY_DB:
        return [flag("added", f"steady noise is added, {_below(level_db)}")]
    low, high = np.interp((0.1, 0.9), np.cumsum(power) / power.sum(), hz)
    folds = low >= 0.1 * rate / 2 and high >= 0.6 * rate / 2 and level_db > _FOLDS_DB
    above = f"{_hz(rate - high)} to {_hz(rate - low)}, folded about {_hz(rate / 2)}, would lie"
    hint = f", where aliases of {above} (a resampler whose low-pass is too shallow)" * int(folds)
    return [flag("added", f"what differs lies mostly from {_hz(low)} to {_hz(high)}, {_below(level_db)}{hint}")]


def offset(pair: tuple[Source, Source]) -> list[Flag]:
    """Name an offset where nothing else is left once the reference is taken off."""
    r, e = _excerpts(pair)
    (gain, mean), *_ = np.linalg.lstsq(np.stack([r, np.ones(len(r))], axis=1), e, rcond=None)
    left = e - gain * r - mean
    if len(r) * mean**2 > _LEFT * float(e @ e) and float(left @ left) <= _LEFT * len(r) * mean**2:
        return [flag("offset", f"an offset of {mean:+.2g} of full scale is added")]
    return []


def folded(pair: tuple[Source, Source]) -> list[Flag]:
    """Name energy that is folded about a frequency: it is there as the mirrored reference, in amplitude and phase."""
    r, e = _excerpts(pair)
    rate = pair[0].sample_rate_hz
    n = 2 ** round(np.log2(0.043 * rate))
    frames = [_frames(x, n, n // 2) for x in (r, e)]
    bands = np.arange(0, n // 2 + 1, max(1, round(_FOLD_BAND_HZ * n / rate)))

    def explained(regressor: np.ndarray, left: np.ndarray) -> np.ndarray:
        """The part of each band that is the regressor, at one complex gain."""
        product = np.add.reduceat((np.conj(regressor) * left).sum(axis=0), bands)
        power = np.add.reduceat(np.square(np.abs(regressor)).sum(axis=0), bands)
        gain = product / np.maximum(power, 1e-12 * power.max() + 1e-30)
        return np.repeat(gain, np.diff(np.append(bands, n // 2 + 1))) * regressor

    left = frames[1] - explained(*frames)
    energy = float(np.square(np.abs(left)).sum())
    whole = float(np.square(np.abs(frames[1])).sum())
    if len(left) < _FILTER_FRAMES or energy <= _LEAST_FOLDED * whole:
        return []
    starts = np.arange(len(left)) * (n // 2) / rate
    best, about, mirrored = 0.0, 0.0, left
    for hz in sorted({rate / 4, rate / 6, rate / 8, *(other / 2 for other in _RATES_HZ if other < rate)}):
        there = np.round(2.0 * hz * n / rate - np.arange(n // 2 + 1)).astype(int)
        inside = (there >= 0) & (there <= n // 2)
        turn = np.exp(4j * np.pi * hz * starts)[:, None]
        mirror = np.where(inside, np.conj(frames[0][:, np.where(inside, there, 0)]) * turn, 0.0)
        part = explained(mirror, left)
        share = float(np.square(np.abs(part)).sum()) / energy
        if share > best:
            best, about, mirrored = share, hz, part
    if best < _FOLDED:
        return []
    power = np.square(np.abs(mirrored)).sum(axis=0)
    hz = np.arange(n // 2 + 1) * rate / n
    low, high = np.interp((0.1, 0.9), np.cumsum(power) / power.sum(), hz)
    is_alias = power[hz < about].sum() > 0.5 * power.sum()
    if about == rate / 4 and power.sum() > 0.9 * whole:
        return [flag("fold", f"the spectrum is mirrored about {_hz(about)}: every second sample has the other sign")]
    side, what, why = (
        ("above", "aliases", "before every n-th sample is taken")
        if is_alias
        else ("below", "images", "after zeros or copies are put between the samples")
    )
    level_db = 10.0 * np.log10(power.sum() / whole)
    return [
        flag(
            "fold",
            f"what lies {side} {_hz(about)} is folded about it ({what} from {_hz(low)} to {_hz(high)}, "
            f"{_below(level_db)}): a low-pass is missing {why}",
        )
    ]


def follows(pair: tuple[Source, Source]) -> float:
    """How far the estimate's spectrum over time follows the reference's, whatever its phase: 1 for a copy."""
    r, e = (x[: min(map(len, _excerpts(pair)))] for x in _excerpts(pair))
    n = 2 ** round(np.log2(0.03 * pair[0].sample_rate_hz))
    if len(r) < 8 * n:
        return 0.0
    edges = np.unique(np.geomspace(2, n // 2, 24).astype(int))
    levels = []
    for x in (r, e):
        power = np.add.reduceat(np.square(np.abs(_frames(x, n, n // 2))), edges, axis=1)
        level = np.log(power + 1e-4 * power.mean(axis=0) + 1e-30)
        levels.append(level - level.mean(axis=0))
    return float(
        (levels[0] * levels[1]).sum() / np.sqrt(np.square(levels[0]).sum() * np.square(levels[1]).sum() + 1e-30)
    )


def _below(level_db: float) -> str:
    return f"{abs(level_db):.2g} dB {'below' if level_db <= 0.0 else 'above'} the sound"


def _excerpts(pair: tuple[Source, Source]) -> tuple[np.ndarray, np.ndarray]:
    stop = round(_LOOKED_AT_S * pair[0].sample_rate_hz)
    r, e = (read_around(source, 0, min(source.n_samples, stop)) for source in pair)
    return r, e


def _frames(x: np.ndarray, n: int, hop: int) -> np.ndarray:
    return np.asarray(scipy.fft.rfft(np.lib.stride_tricks.sliding_window_view(x, n)[::hop] * np.hanning(n), axis=1))


def _is_same(r: np.ndarray, e: np.ndarray) -> bool:
    """Whether an estimate is the reference at some gain."""
    n = min(len(r), len(e))
    r, e = r[:n], e[:n]
    product = float(r @ e)
    return product > 0.0 and product**2 >= (1.0 - _LEFT) * float(r @ r) * float(e @ e)


def _zero_runs(x: np.ndarray) -> np.ndarray:
    """Starts and lengths of runs of zeros, shape (n, 2), without those at either end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], x == 0.0, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    runs = runs[(runs[:, 0] > 0) & (runs[:, 1] < len(x)) & (runs[:, 1] - runs[:, 0] >= _SHORTEST_GAP)]
    return np.stack([runs[:, 0], runs[:, 1] - runs[:, 0]], axis=1)


def _gaps(r: np.ndarray, e: np.ndarray, rate: int) -> Iterator[Flag]:
    """Silence between the samples, of a length that occurs more often than in the reference."""
    runs = _zero_runs(e)
    more = Counter(runs[:, 1].tolist())
    more.subtract(_zero_runs(r)[:, 1].tolist())
    for length, count in more.most_common(3):
        if count < 1:
            return
        starts = _inserted(r, e, runs, length)
        keep = np.ones(len(e), bool)
        for start in starts.tolist():
            keep[start : start + length] = False
        if len(starts) and _is_same(r, e[keep]):
            alone = runs[runs[:, 1] == length, 0]  # beside samples that are zero, a gap begins nobody knows where
            every = np.diff(alone[np.isin(alone, starts)])
            usual = float(np.median(every)) if len(every) else 0.0
            is_regular = len(every) >= 2 and np.abs(every / usual - np.round(every / usual)).max() < _PERIODIC
            period = f", one after every {1e3 * (usual - length) / rate:.4g} ms" if is_regular else ""
            gaps = f"{len(starts)} gaps" if len(starts) > 1 else "a gap"
            each = f" of {length:,} samples ({1e3 * length / rate:.3g} ms)"
            message = f"{gaps} of silence{each} in the estimate, whose samples go on after{period}"
            yield flag("gap", message, time_s=float(starts[0]) / rate, count=len(starts))
            return


def _inserted(r: np.ndarray, e: np.ndarray, runs: np.ndarray, length: int) -> np.ndarray:
    """Where silence of one length was put in: after it the estimate goes on as the reference would without it."""
    starts: list[int] = []
    for start, run in runs[runs[:, 1] >= length].tolist():
        stop, before = start + run, len(starts) * length
        after = e[stop : stop + _AFTER_GAP]
        lefts = [np.square(after - _at(r, stop - before - cut, len(after))).sum() for cut in (0, length)]
        if lefts[1] < lefts[0]:
            starts.append(start)
    return np.array(starts, int)


def _at(x: np.ndarray, start: int, length: int) -> np.ndarray:
    """Samples from a place on, zeros beyond the end."""
    part = x[max(start, 0) : start + length]
    return np.concatenate([part, np.zeros(length - len(part))])


def _mutes(r: np.ndarray, e: np.ndarray, rate: int) -> Iterator[Flag]:
    """Zeros in the place of samples, where the rest is the reference."""
    n = min(len(r), len(e))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], e[:n] == 0.0, [False]]).astype(np.int8))).reshape(-1, 2)
    lost = [(a, b) for a, b in edges.tolist() if b - a >= _SHORTEST_GAP and np.square(r[a:b]).mean() > _HEARD]
    keep = np.ones(n, bool)
    for a, b in lost:
        keep[a:b] = False
    if not lost or not _is_same(r[:n][keep], e[:n][keep]):
        return
    there, least = r[:n][~keep], np.abs(e[:n][e[:n] != 0.0]).min()
    if np.abs(there).max() <= 2.0 * least or not 0.05 < np.mean(there > 0.0) < 0.95:
        return  # coarse steps make zeros of what is soft, a rectifier of one sign
    lengths = np.array([b - a for a, b in lost])
    each = f"{1e3 * np.median(lengths) / rate:.3g} ms each" if np.ptp(lengths) <= 0.1 * np.median(lengths) else ""
    each = each or f"{lengths.sum() / rate:.2g} s in all"
    how = f"{len(lost)} times, {each}" if len(lost) > 1 else f"for {lengths[0] / rate:.2g} s"
    how += ", to its end" if len(lost) == 1 and lost[0][1] == n else ""
    why = "lost parts, a gate, or NaN written as 0"
    message = f"the estimate is zero {how}, where the reference goes on, and the same elsewhere ({why})"
    yield flag("mute", message, time_s=lost[0][0] / rate, count=len(lost))


def _readings(r: np.ndarray, e: np.ndarray, rate: int) -> Iterator[Flag]:
    """Bytes of 16-bit samples that were read in another way, from somewhere on."""
    scaled = e * 32768.0
    integers = np.round(scaled)
    if np.abs(scaled - integers).max(initial=0.0) > 1e-3 or np.abs(integers).max(initial=0.0) > 32768.0:
        return
    data = np.clip(integers, -32768, 32767).astype("<i2")
    raw = data.tobytes()
    readings = {
        "one byte off": [np.frombuffer(b"\0" + raw[:-1], "<i2"), np.frombuffer(raw[1:] + b"\0", "<i2")],
        "in the other byte order": [data.byteswap()],
        "as unsigned, or unsigned ones as signed": [data ^ np.int16(-32768)],
    }
    loud = _loud(r, rate)
    plain = _left(r, [e], rate)
    lefts = {name: _left(r, [way / 32768.0 for way in ways], rate) for name, ways in readings.items()}
    name = min(lefts, key=lambda name: np.nansum(np.minimum(lefts[name], loud)))
    apart = plain > _LEFT * loud
    mended = apart & (lefts[name] <= _LEFT * loud)
    if mended.sum() >= max(_FEWEST_STRETCHES, 0.5 * apart.sum()):
        time_s = float(np.flatnonzero(mended)[0]) * _STRETCH_S
        yield flag("reading", f"16-bit samples of the estimate are read {name}", time_s=time_s or None)


def _loud(r: np.ndarray, rate: int) -> np.ndarray:
    """Energies of stretches, NaN where soft."""
    stretch = round(_STRETCH_S * rate)
    energy = np.square(r[: len(r) // stretch * stretch]).reshape(-1, stretch).sum(axis=1)
    return np.where(energy > 1e-3 * energy.mean(), energy, np.nan)


def _left(r: np.ndarray, candidates: list[np.ndarray], rate: int) -> np.ndarray:
    """Energy of each stretch that is left where the nearest candidate is taken off, up to a sample early or late."""
    stretch = round(_STRETCH_S * rate)
    n = len(r) // stretch * stretch
    least = np.full(n // stretch, np.inf)
    for candidate in candidates:
        padded = np.concatenate([np.zeros(1), candidate, np.zeros(max(0, n - len(candidate)) + 2)])
        for shift in range(3):
            left = np.square(r[:n] - padded[shift : shift + n]).reshape(-1, stretch).sum(axis=1)
            least = np.minimum(least, left)
    return least


def _speeds(r: np.ndarray, e: np.ndarray, rate: int, lengths: Fraction) -> Iterator[Flag]:
    """The reference at another speed, or backwards."""
    import scipy.signal  # takes half a second

    ratios = {Fraction(a, b) for a in _RATES_HZ for b in _RATES_HZ if a != b}
    ratios = {ratio for ratio in ratios if Fraction(1, _LARGEST_SPEED) <= ratio <= _LARGEST_SPEED}
    of_lengths = Fraction(lengths).limit_denominator(200)
    if of_lengths != 1 and of_lengths.numerator <= 600:
        ratios.add(of_lengths)
    heard = _Heard(r, rate)
    if e[::-1] in heard:
        yield flag("speed", "the estimate is the reference backwards")
        return
    head = e[: round(4 * _PIECE_S * rate)]
    for ratio in sorted(ratios, key=lambda ratio: (ratio != of_lengths, abs(np.log(float(ratio))))):
        if scipy.signal.resample_poly(head, ratio.numerator, ratio.denominator) in heard:
            slow = float(1 / ratio)
            how = f"{slow:.4g} times too slow" if slow > 1.0 else f"{1.0 / slow:.4g} times too fast"
            pairs = sorted(
                ((a, b) for a in _RATES_HZ for b in _RATES_HZ if Fraction(b, a) == ratio),
                key=lambda ab: (ab[1] != rate, -ab[0]),
            )
            why = [f"{a} Hz played as {b} Hz" for a, b in pairs[:1]]
            why += ["two channels read as one"] if ratio == Fraction(1, 2) else []
            yield flag("speed", f"the estimate plays {how}{', as ' + ' or '.join(why) + ' would' if why else ''}")
            return


class _Heard:
    """Whether the loudest piece of a sound stands somewhere in the reference, whose spectrum is taken once."""

    def __init__(self, r: np.ndarray, rate: int) -> None:
        self.r, self.longest = r, min(round(_PIECE_S * rate), len(r))
        self.n = scipy.fft.next_fast_len(len(r) + self.longest, real=True)
        self.spectrum = scipy.fft.rfft(r, self.n)
        self.energy = np.concatenate([[0.0], np.cumsum(np.square(r))])

    def __contains__(self, e: np.ndarray) -> bool:
        length = min(self.longest, len(e))
        energy = np.concatenate([[0.0], np.cumsum(np.square(e))])
        start = int(np.argmax(energy[length:] - energy[:-length]))
        piece = e[start : start + length]
        product = scipy.fft.irfft(self.spectrum * scipy.fft.rfft(piece, self.n).conj(), self.n)
        product = product[: len(self.r) - length + 1]
        scale = (self.energy[length:] - self.energy[:-length]) * float(piece @ piece)
        return bool(np.max(np.square(product) / np.maximum(scale, 1e-3 * scale.max() + 1e-30)) >= _SAME_PLAYED**2)


def _curve(r: np.ndarray, e: np.ndarray) -> Iterator[Flag]:
    """One curve that every sample goes through: saturation, companding, a coarse step is none."""
    energy = float(e @ e)
    if not energy > 0.0 or not float(r @ r) > 0.0:
        return
    linear = energy - float(r @ e) ** 2 / float(r @ r)
    knots = np.linspace(0.0, 1.0, _KNOTS + 1)
    edges = np.unique(
        np.concatenate([np.quantile(r, knots), r.min() + knots * np.ptp(r)])
    )  # steep where samples are few
    if len(edges) < _KNOTS // 2:
        return
    places = np.clip(np.searchsorted(edges, r, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(places, minlength=len(edges) - 1)
    x, y = (np.bincount(places, weights=v, minlength=len(edges) - 1)[counts > 0] / counts[counts > 0] for v in (r, e))
    left = float(np.square(e - np.interp(r, x, y)).sum())
    rises = np.diff(y) >= -1e-3 * np.abs(y).max()
    if left <= _LEFT * energy and _GAIN_OVER_LINEAR * left <= linear and rises.all() and linear > _LEFT * energy:
        yield flag("curve", "loud and soft samples have another ratio: saturation, clipping or companding")


def _course(r: np.ndarray, e: np.ndarray, rate: int) -> Iterator[Flag]:
    """A level that changes on the way."""
    length = round(_COURSE_S * rate)
    n = min(len(r), len(e)) // length * length
    a, b = (x[:n].reshape(-1, length) for x in (r, e))
    energies, products = np.square(a).sum(axis=1), (a * b).sum(axis=1)
    total = np.square(b).sum()
    if not energies.sum() > 0.0 or not total > 0.0:
        return
    loud = energies > 1e-2 * energies.mean()
    coherence = products**2 / np.maximum(energies * np.square(b).sum(axis=1), 1e-30)
    turned = products[loud] < 0.0
    if 0.02 < turned.mean() < 0.98 and np.mean(coherence[loud] >= 1.0 - _LEFT) > 0.9:
        first = float(np.flatnonzero(loud)[np.flatnonzero(np.diff(turned))[0] + 1]) * _COURSE_S
        yield flag("polarity", "the polarity of the estimate changes on the way", time_s=first)
        return
    left = total - (products**2 / np.maximum(energies, 1e-30)).sum()
    linear = total - products.sum() ** 2 / energies.sum()
    if left <= 2 * _LEFT * total and _GAIN_OVER_LINEAR * left <= linear and linear > _LEFT * total:
        if np.quantile(coherence[loud], 0.1) < 1.0 - _LEFT:  # softer, and another sound
            return
        gain_db = 20.0 * np.log10(np.maximum(np.abs(products[loud] / energies[loud]), 1e-5))
        low, high = np.quantile(gain_db, (0.02, 0.98))
        first = int(np.argmax(np.abs(gain_db - gain_db[0]) > 1.0))
        begins = f", first at {clock(float(np.flatnonzero(loud)[first]) * _COURSE_S)}" if first else ""
        yield flag("course", f"the level changes on the way, between {low:+.2g} and {high:+.2g} dB{begins}")


def _ripple(r: np.ndarray, e: np.ndarray, rate: int) -> Iterator[Flag]:
    """A level that goes up and down at one rate from 20 to 200 a second, such as that of a model's frames."""
    cell = max(1, round(_RIPPLE_S * rate))
    n = min(len(r), len(e)) // cell * cell
    gain = float(r[:n] @ e[:n]) / max(float(r[:n] @ r[:n]), 1e-30)
    course = (r[:n] * (e[:n] - gain * r[:n])).reshape(-1, cell).sum(axis=1)
    hz = np.fft.rfftfreq(len(course), cell / rate)
    lines = np.where((hz >= 20.0) & (hz <= 200.0), np.abs(np.fft.rfft(course * np.hanning(len(course)))), 0.0)
    if not lines.any():
        return
    place = int(np.argmax(lines))
    a, b, c = lines[max(place - 1, 0)], lines[place], lines[min(place + 1, len(lines) - 1)]
    own = np.abs(np.fft.rfft(np.square(r[:n]).reshape(-1, cell).sum(axis=1) * np.hanning(len(course))))
    if own[max(place - 2, 0) : place + 3].max() > _OWN_PITCH * own[0]:
        return  # the reference has that period itself, and any change of it goes up and down with it
    line_hz = (place + 0.5 * (a - c) / min(a - 2.0 * b + c, -1e-30)) * hz[1]
    phase = (np.arange(n) * line_hz / rate % 1.0 * _PHASES).astype(int)
    products, energies = (np.bincount(phase, weights=w, minlength=_PHASES) for w in (r[:n] * e[:n], r[:n] ** 2))
    gains = products / np.maximum(energies, 1e-30)
    left = float(np.square(e[:n] - gains[phase] * r[:n]).sum())
    if _GAIN_OVER_LINEAR * left <= float(np.square(e[:n] - gain * r[:n]).sum()):
        depth_db = 20.0 * np.log10(max(gains.max(), 1e-5) / max(gains.min(), 1e-5))
        rate_of = f"every {1e3 / line_hz:.3g} ms ({line_hz:.3g} Hz)"
        yield flag(
            "course", f"the level ripples by {depth_db:.2g} dB {rate_of}: windows of frames that do not add up to one"
        )


def _period(x: np.ndarray, rate: int) -> int:
    """The period of a sound that comes again unchanged, from 2 to 50 ms; 0 if there is none."""
    n_fft = scipy.fft.next_fast_len(2 * len(x), real=True)
    correlation = scipy.fft.irfft(np.square(np.abs(scipy.fft.rfft(x, n_fft))), n_fft)[: len(x) // 2]
    correlation /= correlation[0] * np.maximum(1.0 - np.arange(len(correlation)) / len(x), 0.5)
    apart = np.flatnonzero(correlation < 0.5 * _SAME_AGAIN)
    first, last = max(round(0.002 * rate), int(apart[0]) if len(apart) else len(x)), round(0.05 * rate)
    if len(correlation) <= last + 1 or first >= last:
        return 0
    inner = correlation[first : last + 1]
    is_peak = (inner >= correlation[first - 1 : last]) & (inner >= correlation[first + 1 : last + 2])
    found = np.flatnonzero(is_peak & (inner >= max(_SAME_AGAIN, 0.97 * inner.max())))
    return first + int(found[0]) if len(found) else 0


def _where(gain_db: np.ndarray, hz: np.ndarray) -> str:
    """Where a filter takes more than 10 dB off, or how far its gain goes."""
    import scipy.signal  # takes half a second

    gain_db = scipy.signal.medfilt(gain_db - np.quantile(gain_db, 0.9), 5)
    cut = np.flatnonzero(gain_db < -10.0)
    if len(cut) < 3 or len(cut) < 0.5 * (cut[-1] - cut[0] + 1):
        return f"from {gain_db.min():+.2g} to {gain_db.max():+.2g} dB"
    low, high = (_hz(hz[place]) for place in (cut[0], cut[-1]))
    if cut[0] <= 3:
        return f"little is left below {high}"
    return f"little is left above {low}" if cut[-1] >= len(hz) - 4 else f"little is left from {low} to {high}"


def _hz(hz: float) -> str:
    return f"{hz / 1000.0:.2g} kHz" if hz >= 1000.0 else f"{hz:.0f} Hz"
