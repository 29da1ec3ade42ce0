"""What was done to an estimate: a cause is named only where measuring or undoing it shows it.

Conventions: the two are in time up to the changes of the lag that are named here; gains are amplitudes, energies are
sums over 0.1 s or over cells of 2.5 ms. The spectra are those of at most 120 s, evenly spread. Every threshold was
chosen after looking at the shipped speech, at made-up speech, and at MP3 and Vorbis of them; equal pairs (what formats
do, noise 50 dB down, soft pauses) stay far from each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from audio_metrics.flags import Flag, clock
from audio_metrics.lag import MAX_LAG_S, Lag, aligned_by_lag, overlap, read_around
from audio_metrics.matching import Match, match
from audio_metrics.signal import Source
from audio_metrics.spectra import inner_product
from audio_metrics.undoing import added, bent, faded, filtered, folded, follows, muted, offset

SAME_DB = 20.0
"""SI-SDR from which two signals are one once a change is undone."""

_NOISE_FLATNESS_DB = -4.5  # white noise has −2.5, speech less than −10
_ELSEWHERE = 0.25  # share of the pieces under which nothing of the reference is there
_HALF = 0.05  # of the length, in which a half begins
_STEADY_SAMPLES = 3.0

_RELABELLED = 1 << 20  # samples that are held against those at another rate

_EXCERPTS = 120
_BAND_HZ = 250.0
_LOUD_FRAME = 1e-4  # of the loudest of an excerpt
_HEARD_BAND = 1e-8  # of the loudest band: under it an estimate may have nothing
_CUT_DB, _KEPT_DB, _EDGE_DB = -15.0, -10.0, -3.0
_HOLE, _LOUD_CELL, _HOLES, _CODEC_DB = 0.03, 1e-6, 0.02, 3.0
_LEAST_GAIN_DB, _UNDONE_DB, _LEAST_UNDONE_DB = 0.5, 3.0, 10.0
_RESYNTHESIZED = 0.5  # other parts of the shipped speech stay under 0.3
_COHERENT, _FILTERED_DB = 0.95, 3.0

_WALK_S = 10.0
_CELLS_PER_S = 400
_CLICK_RATIO, _CLICK_SHARE, _CLICK_LEAST = 50.0, 1e-4, 1e-9
_CLICK_CELLS, _MANY_CLICKS, _CLICK_ENERGY = 4, 0.1, 0.75
_CLICK_EDGE, _SIDE_S, _PAUSE = 0.02, 0.05, 1e-3
_NEIGHBOURS = 20
_PERIODIC = 0.02
_STRETCH_S, _LEAST_STRETCHES, _STRETCH_SNR, _ONLY_THERE = 0.1, 3, 0.1, 0.001
_MOST_STRETCHES = 0.8
_SOFT = 1e-5  # mean square: −50 dBFS


def changes_of(
    pair: tuple[Source, Source], *, differs: bool, found: Match | None = None, flatness_db: float = float("nan")
) -> list[Flag]:
    """Name what was done to the estimate; nothing where nothing is shown."""
    late: list[Flag] = []
    if differs:
        found = match(*pair) if found is None else found
        moved = list(_moves(found, pair, flatness_db))
        if moved:
            return moved
        late_s = found.lag / pair[0].sample_rate_hz
        if abs(late_s) > MAX_LAG_S:
            late.append(_flag("lag", f"the estimate is {abs(late_s):.4g} s {'late' if late_s > 0.0 else 'early'}"))
        pair = overlap(*pair, found.lag)
        aligned, shift = aligned_by_lag(*pair)
        if abs(shift) <= 2.0 or not found.is_sure.any():  # where pieces agree, only a fraction is left to take out
            pair = aligned
    residual = _walk(pair)
    shown = list(residual.flags()) or ([] if differs else muted(pair))
    if differs and not any(flag.kind == "wrapped" for flag in shown):
        shown = offset(pair) or bent(pair) or shown
    if not shown and (stretches := list(residual.stretches())):
        shown = faded(pair) or stretches
    if not shown:
        shown = (folded(pair) if differs else []) or list(_spectral_changes(pair, differs=differs))
        if differs and not {flag.kind for flag in shown} & {"band_limit", "codec", "filter", "fold"}:
            shown = faded(pair) or shown
    return late + (shown or (added(pair) if differs else []))


def wraps_in_time(pair: tuple[Source, Source], lag: Lag) -> list[Flag]:
    """Name the wraps of an estimate that is the reference, in time, once they are undone."""
    # Many wraps move the peak of the correlation, and a copy that is late looks wrapped where both are square waves:
    # what is left once the wraps are undone has to be far less than what is left once the lag is.
    same, left_by_lag = 10.0 ** (-SAME_DB / 10.0), 1.0 - lag.correlation**2
    if lag.lag_s != 0.0 and left_by_lag <= same:
        return []
    residual = _walk(pair)
    is_same = residual.unwrapped <= min(same, 0.1 * left_by_lag) * residual.stretch[1].sum()
    return [flag for flag in residual.flags() if flag.kind == "wrapped" and is_same]


def is_relabelled(reference: Source, estimate: Source) -> bool:
    """Whether sample by sample the estimate is the reference, whatever sample rate its header says."""
    if abs(reference.n_samples - estimate.n_samples) > 0.1 * reference.n_samples:
        return False
    r, e = (read_around(source, 0, min(reference.n_samples, _RELABELLED)) for source in (reference, estimate))
    product, energy = inner_product(r, e), inner_product(r, r)
    left = inner_product(e, e) - product**2 / energy if energy > 0.0 else 0.0
    return energy > 0.0 and product**2 / energy >= 10.0 ** (SAME_DB / 10.0) * max(left, 1e-30)


def _flag(kind: str, message: str, *, time_s: float | None = None, count: int = 1) -> Flag:
    return Flag(kind=kind, signal="estimate", time_s=time_s, count=count, message=message)


def _moves(found: Match, pair: tuple[Source, Source], flatness_db: float) -> Iterator[Flag]:
    rate, n_samples = pair[0].sample_rate_hz, pair[0].n_samples
    if len(found.starts) == 0:
        return
    lags, starts = found.lags[found.is_sure], found.starts[found.is_sure]
    if found.share < _ELSEWHERE and (alike := follows(pair)) >= _RESYNTHESIZED:
        about = f"has the reference's spectrum over time (correlation {alike:.2f}) and another waveform"
        yield _flag(
            "resynthesis", f"the estimate {about}: made anew by a codec, with other phases, or much reverberation"
        )
    elif found.share < _ELSEWHERE:
        what = "noise" if flatness_db > _NOISE_FLATNESS_DB else "another recording"
        yield _flag("other", f"the estimate is {what}: no part of the reference is heard in it")
    elif not found.in_order:
        swapped = np.abs(np.abs(lags) - n_samples / 2) < _HALF * n_samples
        if swapped.mean() > 1.0 - 2.0 * _HALF:
            yield _flag("order", "the halves of the estimate are swapped")
        else:
            first = int(np.flatnonzero(np.abs(lags) > 0.1 * rate)[0])
            here, there = clock(starts[first] / rate), clock((starts[first] + lags[first]) / rate)
            yield _flag("order", f"parts of the estimate are in another order: {here} of the reference is at {there}")
    elif len(found.seams) or np.ptp(lags) > 2:
        yield from _lag_changes(found, rate)
    else:
        is_sure = found.is_sure[found.starts + found.lag < pair[1].n_samples - rate // 2]
        split = int(np.argmax(np.cumsum(np.where(is_sure, 1, -1)))) + 1
        if len(is_sure) - split >= max(2, 0.1 * split) and not is_sure[split:].any():
            yield _flag("other", "the estimate is another sound", time_s=float(found.starts[split]) / rate)


def _lag_changes(found: Match, rate: int) -> Iterator[Flag]:
    places = (
        found.track
        if len(found.track) > found.is_sure.sum()
        else np.stack([found.starts, found.lags], 1)[found.is_sure]
    )
    starts, lags = places.T
    slope, offset = np.polyfit(starts, lags, 1)
    grows = f"the lag grows by {1e3 * abs(slope):.3g} ms a second"
    steps = np.array([seam.samples for seam in found.seams])
    is_line = np.quantile(np.abs(lags - slope * starts - offset), 0.9) <= _STEADY_SAMPLES
    size = np.abs(steps)
    to_and_fro = len(steps) >= 5 and abs(steps.sum()) < 0.5 * size.sum() and size.max() < 0.005 * rate
    if to_and_fro or (len(steps) == 0 and not is_line):
        low, high = 1e3 * np.quantile(lags, (0.05, 0.95)) / rate
        yield _flag("lag_drift", f"the lag wanders between {low:+.2g} and {high:+.2g} ms: the speed is not steady")
        return
    if len(steps) == 0 and abs(slope) * np.ptp(starts) < _STEADY_SAMPLES:
        return  # a stray piece
    if len(steps) == 0 or is_line:
        yield _flag("lag_drift", f"{grows}: the estimate gets {'late' if slope > 0.0 else 'early'}")
        return
    total, unit = int(steps.sum()), int(np.abs(steps).min())
    if abs(total) <= 2 * len(steps) and np.abs(steps).max() > 0.1 * rate:
        first, last = (clock(found.seams[place].at / rate) for place in (0, -1))
        about = f"what lies from {first} to {last} is {1e3 * np.abs(steps).max() / rate:.3g} ms off, and in time around"
        yield _flag("order", f"parts of the estimate are in another order: {about}")
        return
    turns = np.round(steps / unit)
    what = "are missing from the estimate" if total > 0 else "are too many in the estimate"
    at = ", ".join(clock(seam.at / rate) for seam in found.seams[:3]) + (" …" if len(steps) > 3 else "")
    message = f"{abs(total):,} samples {what}, at {at}"
    if len(steps) > 1:
        each = (
            f"{unit:,} samples each"
            if np.abs(steps - unit * turns).max() <= 2 * np.abs(turns).max()
            else "unequal sizes"
        )
        n_seams = int(np.abs(turns).sum()) if each != "unequal sizes" else len(steps)
        message = f"{abs(total):,} samples {what}: {n_seams} seams of {each}, at {at}; {grows}"
    yield _flag("seam", message, time_s=found.seams[0].at / rate, count=len(steps))


@dataclass(frozen=True)
class _Bands:
    """Energies of both and their product in bands of frequency, and the share of cells that the estimate has lost."""

    width_hz: float
    reference: np.ndarray  # (n_bands,)
    estimate: np.ndarray
    product: np.ndarray  # complex
    holes: np.ndarray  # cells of the time-frequency plane that are empty in the estimate alone
    cells: np.ndarray


def _bands(pair: tuple[Source, Source]) -> _Bands:
    reference, _ = pair
    rate = reference.sample_rate_hz
    n = 2 ** round(np.log2(0.043 * rate))
    step = max(1, round(_BAND_HZ * n / rate))
    edges = np.arange(0, n // 2 + 2 - step, step)
    starts = np.arange(0, max(1, reference.n_samples - rate + 1), rate)
    starts = starts[np.linspace(0, len(starts) - 1, min(len(starts), _EXCERPTS)).round().astype(int)]
    sums: list[np.ndarray] = []
    holes = np.zeros((2, len(edges)))
    for start in starts.tolist():
        spectra = [_frames(read_around(source, start, start + rate), n) for source in pair]
        r, e = (np.add.reduceat(np.square(np.abs(x)), edges, axis=1) for x in spectra)
        product = np.add.reduceat(np.conj(spectra[0]) * spectra[1], edges, axis=1)
        level = r.sum(axis=1)
        loud = level > _LOUD_FRAME * max(level.max(), 1e-30)
        sums.append(np.array([x[loud].sum(axis=0) for x in (r, e, product)]))
        gain = np.minimum(e.sum(axis=1) / np.maximum(level, 1e-30), np.median(e / np.maximum(r, 1e-30), axis=1))
        here = loud[:, None] & (r > _LOUD_CELL * level[:, None])
        holes += [(here & (e < _HOLE * gain[:, None] * r)).sum(axis=0), here.sum(axis=0)]
    r, e, product = np.sum(sums, axis=0)
    return _Bands(step * rate / n, r.real, e.real, product, holes[0], holes[1])


def _frames(samples: np.ndarray, n: int) -> np.ndarray:
    return np.fft.rfft(np.lib.stride_tricks.sliding_window_view(samples, n)[:: n // 2] * np.hanning(n), axis=1)


def _db(ratio: float) -> float:
    return float(10.0 * np.log10(max(ratio, 1e-30)))


def _spectral_changes(pair: tuple[Source, Source], *, differs: bool) -> Iterator[Flag]:
    bands = _bands(pair)
    heard = bands.reference > _HEARD_BAND * bands.reference.max()
    if not heard.any() or not bands.estimate.any():
        return
    n = int(np.flatnonzero(heard)[-1]) + 1
    level_db = 10.0 * np.log10(np.maximum(bands.estimate[:n], 1e-30) / np.maximum(bands.reference[:n], 1e-30))
    level_db -= float(level_db[np.argsort(bands.reference[:n])[-4:]].max())
    kept = int(np.flatnonzero(level_db > _KEPT_DB)[-1]) + 1
    is_cut = n - kept >= 2 and bool((level_db[kept + 1 :] < _CUT_DB).all())
    within = slice(0, kept)
    r, e, product = bands.reference[within].sum(), bands.estimate[within].sum(), bands.product[within].real.sum()
    gain = float(product / r)
    apart, residual = e - 2.0 * product + r, e - product**2 / r  # before and after the gain is undone
    inner = slice(0, max(1, kept - 2))  # the edge of a filter is neither a hole nor a tilt
    holes = bands.holes[inner].sum() / max(bands.cells[inner].sum(), 1.0)
    undone_db = _db(gain**2 * r / max(residual, 1e-30))
    gained_db = undone_db - _db(r / max(apart, 1e-30))
    is_undone = gained_db >= _UNDONE_DB and undone_db >= _LEAST_UNDONE_DB
    if is_undone and gain < 0.0:
        yield _flag("polarity", "the polarity is inverted")
    gain_db = 2.0 * _db(abs(gain))
    if is_undone and abs(gain_db) >= _LEAST_GAIN_DB:
        yield _flag("gain", f"the level is {abs(gain_db):.3g} dB {'higher' if gain_db > 0.0 else 'lower'}")
    edge = int(np.flatnonzero(level_db > _EDGE_DB)[-1]) + 1
    cut = f"{edge * bands.width_hz / 1000.0:.2g} kHz"
    if differs and undone_db < SAME_DB and (by_filter := filtered(pair, by_gain_db=max(undone_db, 0.0))):
        yield from by_filter
        return
    if holes >= _HOLES and undone_db >= _CODEC_DB:
        above = f", and nothing above {cut}" if is_cut else ""
        yield _flag("codec", f"a lossy codec, or a loss like it: {100 * holes:.0f} % of the spectrum are holes{above}")
    elif is_cut and undone_db >= SAME_DB:
        yield _flag("band_limit", f"the band is limited: nothing above {cut}")
    coherence = np.abs(bands.product[inner]) ** 2 / np.maximum(bands.reference[inner] * bands.estimate[inner], 1e-30)
    audible = bands.reference[inner] > 1e-5 * r
    alike = audible & (coherence >= _COHERENT)
    if holes < _HOLES and alike.sum() > 0.9 * audible.sum():
        shape = level_db[inner][alike]
        if np.ptp(shape) >= _FILTERED_DB:
            yield _flag("filter", f"the spectrum is filtered, from {shape.min():+.2g} to {shape.max():+.2g} dB")


@dataclass
class _Residual:
    """What is left of the estimate once the reference, at its gain, is taken off: where, when and how much."""

    rate: int
    clicks: list[int]
    widths: list[int]
    sides: list[tuple[float, float]]  # mean squares of the reference ahead of each click and after it
    click_energy: float
    energy: float
    hot_share: float
    n_wrapped: int
    first_wrapped: int
    unwrapped: float
    stretch: np.ndarray  # (3, n): energies of the residual, the reference and the estimate in 0.1 s

    def flags(self) -> Iterator[Flag]:
        if self.n_wrapped and self.unwrapped <= 0.25 * self.energy:
            plural = "s" * (self.n_wrapped > 1)
            message = (
                f"the estimate wraps: {self.n_wrapped:,} sample{plural} beyond full scale, back at its other end "
                "(clip, and scale by 32767, before the cast to int16)"
            )
            yield _flag("wrapped", message, time_s=self.first_wrapped / self.rate, count=self.n_wrapped)
        elif self.clicks and self.hot_share < _MANY_CLICKS and self.click_energy >= _CLICK_ENERGY * self.energy:
            gaps = np.diff(self.clicks) / self.rate
            every = ""
            if len(gaps) >= 3:
                turns = np.maximum(np.round(gaps / np.median(gaps)), 1.0)
                period = float((gaps / turns).mean())
                if np.abs(gaps / turns / period - 1.0).max() < _PERIODIC:
                    every = f", every {1e3 * period:.3g} ms"
            clicks = f"click{'s' * (len(self.clicks) > 1)} of {self._width()}{self._place()}"
            message = f"the estimate has {len(self.clicks)} {clicks}{every}"
            yield _flag("click", message, time_s=self.clicks[0] / self.rate, count=len(self.clicks))

    def _width(self) -> str:
        width = int(np.median(self.widths))
        return (
            f"{width} sample{'s' * (width > 1)}"
            if np.ptp(self.widths) <= width
            else f"up to {max(self.widths)} samples"
        )

    def _place(self) -> str:
        """Where nearly all clicks stand: at either end of the pauses, or in them."""
        soft = np.array(self.sides) < _PAUSE * self.stretch[1].mean() / (_STRETCH_S * self.rate)
        places = {
            ", where a pause begins": (False, True),
            ", where a pause ends": (True, False),
            " in pauses": (True, True),
        }
        shares = {name: float((soft == wanted).all(axis=1).mean()) for name, wanted in places.items()}
        name = max(shares, key=lambda name: shares[name])
        return name if shares[name] >= 0.8 and len(soft) > 1 else ""

    def stretches(self) -> Iterator[Flag]:
        """A stretch that is another sound, where the two agree around it."""
        noise, reference, estimate = self.stretch
        apart = (noise > _STRETCH_SNR * reference) & (noise > 0.0)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], apart, [False]]).astype(int)))
        runs = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a >= _LEAST_STRETCHES]
        if not runs or sum(b - a for a, b in runs) > _MOST_STRETCHES * len(noise):
            return
        inside = np.zeros(len(noise), bool)
        for a, b in runs:
            inside[a:b] = True
        if noise[~inside].mean() > _ONLY_THERE * noise[inside].mean():
            return
        a, b = runs[0]
        per_sample = _STRETCH_S * self.rate
        level = float(estimate[a:b].mean()) / per_sample
        what = f"noise at {_db(level):.0f} dBFS" if 0.0 < level < _SOFT else "another sound" if level else "silent"
        seconds = float(inside.sum()) * _STRETCH_S
        yield _flag(
            "stretch", f"the estimate is {what} for {seconds:.1f} s, and the same around", time_s=float(a) * _STRETCH_S
        )


def _gain(pair: tuple[Source, Source]) -> tuple[float, float]:
    """The ratio that most samples have that are not soft, which no other sound moves, and the estimate's peak."""
    rate, n_samples = pair[0].sample_rate_hz, pair[0].n_samples
    starts = np.linspace(0, max(0, n_samples - rate), 16).astype(int)
    parts = [[read_around(source, s, s + rate) for source in pair] for s in starts.tolist()]
    r, e = (np.concatenate(samples) for samples in zip(*parts, strict=True))
    loud = np.abs(r) > 0.1 * np.abs(r).max()
    if not loud.any():
        return 1.0, float(np.abs(e).max())
    ratios = np.sort(e[loud] / r[loud])
    quarter = max(1, len(ratios) // 4)
    densest = int(np.argmin(ratios[quarter - 1 :] - ratios[: len(ratios) - quarter + 1]))
    return float(np.median(ratios[densest : densest + quarter])), float(np.abs(e).max())


def _walk(pair: tuple[Source, Source]) -> _Residual:
    """Take the reference off the estimate, block by block."""
    reference, estimate = pair
    rate = reference.sample_rate_hz
    gain, peak = _gain(pair)
    turn = 2.0 if peak > 0.5 else 2.0 * peak
    cell, stretch = rate // _CELLS_PER_S, round(_STRETCH_S * rate)
    result = _Residual(rate, [], [], [], 0.0, 0.0, 0.0, 0, 0, 0.0, np.zeros((3, 0)))
    stretches, n_cells = [], 0
    block, side = round(_WALK_S * rate), round(_SIDE_S * rate)
    for start in range(0, reference.n_samples, block):
        stop = min(start + block, reference.n_samples)
        r, e = gain * read_around(reference, start, stop), read_around(estimate, start, stop)
        d = e - r
        turns = np.round(-d / turn) if turn > 0.0 else np.zeros(len(d))
        if turns.any():
            if not result.n_wrapped:
                result.first_wrapped = start + int(np.flatnonzero(turns)[0])
            result.n_wrapped += int(np.count_nonzero(turns))
        result.energy += float(np.square(d).sum())
        result.unwrapped += float(np.square(d + turn * turns).sum())
        hot = _hot_cells(d, r, e, cell)
        n_cells += max(1, len(hot))
        result.hot_share += float(hot.sum())
        edges = np.flatnonzero(np.diff(np.concatenate([[False], hot, [False]]).astype(int)))
        for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            part = np.square(d[a * cell : b * cell])
            if b - a <= _CLICK_CELLS:
                steep = a * cell + np.flatnonzero(part > _CLICK_EDGE * part.max())
                beside = slice(max(0, steep[0] - side), steep[0]), slice(steep[-1] + 1, steep[-1] + 1 + side)
                result.clicks.append(start + a * cell + int(np.argmax(part)))
                result.widths.append(int(np.ptp(steep)) + 1)
                ahead, after = (float(np.square(r[place]).mean()) if r[place].size else 0.0 for place in beside)
                result.sides.append((ahead, after))
                result.click_energy += float(part.sum())
        whole = len(d) // stretch * stretch
        stretches.append([np.square(x[:whole]).reshape(-1, stretch).sum(axis=1) for x in (d, r, e)])
    result.hot_share /= max(1, n_cells)
    result.stretch = np.concatenate(stretches, axis=1) if stretches else result.stretch
    return result


def _hot_cells(d: np.ndarray, r: np.ndarray, e: np.ndarray, cell: int) -> np.ndarray:
    """Cells of the residual that stand out of those around and of the sound there."""
    n = len(d) // cell
    if n <= 2 * _NEIGHBOURS:
        return np.zeros(0, bool)
    noise, sound, heard = (np.square(x[: n * cell]).reshape(n, cell).sum(axis=1) for x in (d, r, e))
    padded = np.pad(noise, _NEIGHBOURS, mode="reflect")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEIGHBOURS + 1), axis=1)
    around = np.convolve(sound, np.full(2 * _NEIGHBOURS + 1, 1.0 / (2 * _NEIGHBOURS + 1)), mode="same")
    loud = noise > np.maximum(np.maximum(_CLICK_RATIO * usual, _CLICK_SHARE * around), _CLICK_LEAST * cell)
    return np.asarray(loud & (heard > 1e-3 * sound))
