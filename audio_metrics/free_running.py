"""What can be told from two recordings that are not copies of each other: the same voice, another reading.

Conventions: recordings of one window, 60 s meant and 10 s at least, are described once and then compared in pairs;
everything is of active frames (absolute gate) but for the floor. Mel bands are in dB with a floor at −140 dB, so that
quiet pauses keep their level; windows of digital silence are left out. Distances between two honest readings are not
0: a null of pairs of references gives the scale (:class:`NullModel`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audio_metrics.distribution import Moments, frechet_distance_of
from audio_metrics.errors import AudioParameterError, UndefinedMetricError
from audio_metrics.frames import FrameGrid, blocks
from audio_metrics.longform import theil_sen
from audio_metrics.signal import ArraySource, FileSource, FloatName, Source, checked_pair, refuse_bad_samples
from audio_metrics.spectra import DB_PER_NEPER_OF_POWER, FLOOR, N_MELS, band_centres_hz, cosine_basis
from audio_metrics.spectral import ltas_distance_of

DESCRIPTION_FLOOR = 1e-14
MIN_DURATION_S = 10.0
FLOOR_QUANTILE = 0.01
TILT_BAND_HZ = (150.0, 7000.0)

SKEW_CELL_S = 2.5
SKEW_MAX_LAG_S = 0.12
SKEW_LEAST_CORRELATION = 0.3

_COEFFICIENTS = {"level": 8, "noise_floor": 6, "course": 6}
_SHRINKAGE = 0.1
MIN_NULL_PAIRS = 20


@dataclass(frozen=True, kw_only=True)
class Description:
    """One recording, as far as free-running distances need it.

    Attributes
    ----------
    sample_rate_hz : int
    level_db, noise_floor_db : np.ndarray, shape (80,)
    course_db_per_min : np.ndarray, shape (80,)
    moments : Moments
        For the Fréchet and long-term average spectrum distances; of the shared floor of −100 dB.
    steps : np.ndarray, shape (n_frames - 1, 24)
        Change of c1 to c24 from frame to frame.
    hop_s : float
    """

    sample_rate_hz: int
    level_db: np.ndarray
    noise_floor_db: np.ndarray
    course_db_per_min: np.ndarray
    moments: Moments
    steps: np.ndarray
    hop_s: float


def describe(signal: np.ndarray, *, sample_rate_hz: int, name: str = "signal") -> Description:
    """Describe one recording, of some minutes at most: memory grows by 80 kB per second.

    Parameters
    ----------
    signal : np.ndarray, shape (n_samples,)
        10 s or more, float32 or float64.
    sample_rate_hz : int
    name : str
        What an error calls the signal.

    Raises
    ------
    AudioParameterError
        Unusable signal, shorter than 10 s, or a sample is not finite.
    UndefinedMetricError
        Less than a second of active frames.
    """
    return _checked_description(ArraySource(signal, sample_rate_hz=sample_rate_hz, name=name))


def describe_file(path: Path | str, *, dtype: FloatName = "float32", name: str = "signal") -> Description:
    """Describe one mono audio file; otherwise as :func:`describe`.

    Parameters
    ----------
    path : Path or str
        Any format that libsndfile reads.
    dtype : {"float32", "float64"}
        What samples are read as.
    name : str
        What an error calls the signal.

    Raises
    ------
    SignalFileError
        The file is missing, unreadable or torn.
    AudioParameterError, UndefinedMetricError
        See :func:`describe`.
    """
    with FileSource(path, dtype=dtype, name=name) as source:
        return _checked_description(source)


def _checked_description(source: Source) -> Description:
    refuse_bad_samples(source)
    if source.n_samples < MIN_DURATION_S * source.sample_rate_hz:
        duration_s = source.n_samples / source.sample_rate_hz
        raise AudioParameterError(f"{source.name} has {duration_s:.2f} s; expected {MIN_DURATION_S:.0f} s or more")
    return _describe(source)


def _describe(source: Source) -> Description:
    grid = FrameGrid(source.sample_rate_hz, source.n_samples)
    hop_s = grid.hop_samples / grid.sample_rate_hz
    moments = Moments(grid.n_bins, cepstra=True)
    level_parts, shape_parts, active_parts, sounding_parts = [], [], [], []
    basis = cosine_basis().T
    for _, block in blocks([source], floor=DESCRIPTION_FLOOR):
        sounding = block.outside_silence(0) & (block.spectra.bin_sum[0] > 0.0)
        level_parts.append((DB_PER_NEPER_OF_POWER * block.spectra.log_bands[0]).astype(np.float32))
        cepstra = np.maximum(block.spectra.log_bands[0], np.log(FLOOR)) @ basis
        shape_parts.append(cepstra[:, 1:].astype(np.float32))
        active_parts.append(block.spectra.active[0] & sounding)
        sounding_parts.append(sounding)
        moments.add_values(block.spectra.power[0], cepstra, block.outside_silence(0))
    level_db, active = np.concatenate(level_parts), np.concatenate(active_parts)
    if active.sum() * hop_s < 1.0:
        raise UndefinedMetricError(f"{source.name} has {active.sum() * hop_s:.2f} s of active frames; expected 1 s")
    minutes = np.flatnonzero(active) * (hop_s / 60.0)
    minutes = minutes - minutes.mean()
    loud = level_db[active].astype(np.float64)
    return Description(
        sample_rate_hz=source.sample_rate_hz,
        level_db=loud.mean(axis=0),
        noise_floor_db=np.quantile(level_db[np.concatenate(sounding_parts)].astype(np.float64), FLOOR_QUANTILE, axis=0),
        course_db_per_min=np.einsum("t,tb->b", minutes, loud) / np.sum(minutes**2),
        moments=moments,
        steps=np.diff(np.concatenate(shape_parts), axis=0),
        hop_s=hop_s,
    )


def _check_alike(reference: Description, estimate: Description) -> None:
    if reference.sample_rate_hz != estimate.sample_rate_hz:
        raise AudioParameterError(
            f"sample rates differ: {reference.sample_rate_hz} Hz and {estimate.sample_rate_hz} Hz; describe both at one"
        )


def _band_level_distance(reference: Description, estimate: Description) -> float:
    return float(np.std(estimate.level_db - reference.level_db))


def _tilt_difference(reference: Description, estimate: Description) -> float:
    centres_hz = band_centres_hz(reference.sample_rate_hz)
    inside = (centres_hz >= TILT_BAND_HZ[0]) & (centres_hz <= TILT_BAND_HZ[1])
    octaves = np.log2(centres_hz[inside])
    octaves = octaves - octaves.mean()
    difference = (estimate.level_db - reference.level_db)[inside]
    return float(abs(octaves @ difference) / (octaves @ octaves))


def _noise_floor_difference(reference: Description, estimate: Description) -> float:
    return float(np.sqrt(np.mean(np.square(estimate.noise_floor_db - reference.noise_floor_db))))


def _course_difference(reference: Description, estimate: Description) -> float:
    return float(np.sqrt(np.mean(np.square(estimate.course_db_per_min - reference.course_db_per_min))))


def _clock_skew(reference: Description, estimate: Description) -> float:
    return abs(signed_clock_skew_ppm(reference, estimate))


def signed_clock_skew_ppm(reference: Description, estimate: Description) -> float:
    """Slope of the lag of the estimate in millionths (positive: it runs slow), NaN where the scripts differ in time."""
    hop_s = reference.hop_s
    cell, most = round(SKEW_CELL_S / hop_s), round(SKEW_MAX_LAG_S / hop_s)
    n_frames = min(len(reference.steps), len(estimate.steps))
    times, lags, correlations = [], [], []
    for first in range(most, n_frames - cell - most + 1, cell // 2):
        lag, correlation = _cell_lag(
            reference.steps[first : first + cell], estimate.steps[first - most : first + cell + most]
        )
        times.append(first * hop_s)
        lags.append(lag * hop_s)
        correlations.append(correlation)
    if len(lags) < 3 or not np.median(correlations) >= SKEW_LEAST_CORRELATION:
        return float("nan")
    return 1e6 * theil_sen(np.array(times), np.array(lags))[0]


def _cell_lag(cell: np.ndarray, around: np.ndarray) -> tuple[float, float]:
    """Lag in frames at which a cell fits best into what lies around it in the other signal, and the correlation."""
    n_lags = len(around) - len(cell) + 1
    energy = np.concatenate([[0.0], np.cumsum(np.square(around, dtype=np.float64).sum(axis=1))])
    own = float(np.square(cell, dtype=np.float64).sum())
    fits = np.array([np.vdot(cell, around[lag : lag + len(cell)]) for lag in range(n_lags)], np.float64)
    scale = np.sqrt(own * (energy[len(cell) :] - energy[:n_lags]))
    fits = np.divide(fits, scale, out=np.zeros(n_lags), where=scale > 0.0)
    best = 1 + int(np.argmax(fits[1:-1]))
    left, middle, right = fits[best - 1 : best + 2]
    curvature = left - 2.0 * middle + right
    shift = 0.5 * (left - right) / curvature if curvature < 0.0 else 0.0
    return best + min(max(shift, -1.0), 1.0) - (n_lags - 1) / 2, float(middle)


def _frechet(reference: Description, estimate: Description) -> float:
    return frechet_distance_of(reference.moments, estimate.moments)


def _ltas(reference: Description, estimate: Description) -> float:
    return ltas_distance_of(reference.moments.mean_power, estimate.moments.mean_power, floor=FLOOR)


FREE_RUNNING: dict[str, Callable[[Description, Description], float]] = {
    "band_level_distance_db": _band_level_distance,
    "tilt_difference_db_per_octave": _tilt_difference,
    "noise_floor_difference_db": _noise_floor_difference,
    "course_difference_db_per_min": _course_difference,
    "clock_skew_ppm": _clock_skew,
    "frechet_distance": _frechet,
    "ltas_distance_db": _ltas,
}
"""Distances of two descriptions, lower is nearer; NaN where undefined."""


def free_running_distances(reference: Description, estimate: Description) -> dict[str, float]:
    """Every distance of :data:`FREE_RUNNING`.

    Raises
    ------
    AudioParameterError
        The sample rates differ.
    """
    _check_alike(reference, estimate)
    return {name: distance(reference, estimate) for name, distance in FREE_RUNNING.items()}


@dataclass(frozen=True)
class NullModel:
    """How far apart two honest readings are, learnt from pairs of references.

    Attributes
    ----------
    spread : dict of str to np.ndarray, shape (d,)
        Per group of features, the RMS of each one's difference.
    precision : dict of str to np.ndarray, shape (d, d)
        Inverse of their correlation, shrunk by a tenth towards independence.
    centre, scale : dict of str to float
        Median and standard deviation (from the quartiles) of a group's distance over the null.
    """

    spread: dict[str, np.ndarray]
    precision: dict[str, np.ndarray]
    centre: dict[str, float]
    scale: dict[str, float]

    @classmethod
    def fit(cls, pairs: Sequence[tuple[Description, Description]]) -> NullModel:
        """Learn from pairs of references that never shared a window with what will be judged.

        Parameters
        ----------
        pairs : sequence of (Description, Description)
            20 or more, each of one voice. Pairs of several voices together make a sharper null than every pair of a
            few windows of one voice, which say the same thing many times.

        Raises
        ------
        AudioParameterError
            Fewer than 20 pairs, or pairs that do not differ.
        """
        if len(pairs) < MIN_NULL_PAIRS:
            raise AudioParameterError(f"{len(pairs)} pairs of references; expected {MIN_NULL_PAIRS} or more")
        rows = [_features(*pair) for pair in pairs]
        model = cls({}, {}, {}, {})
        for group in rows[0]:
            values = np.array([row[group] for row in rows])
            values = values[~np.isnan(values).any(axis=1)]
            if len(values) < MIN_NULL_PAIRS:
                continue
            if group != "clock_skew" and not np.any(values, axis=1).all():
                raise AudioParameterError(
                    f"a pair of references has no difference in {group}: it is one recording twice; give two renderings"
                )
            model._learn(group, values)
        return model

    def _learn(self, group: str, values: np.ndarray) -> None:
        spread = np.sqrt(np.mean(np.square(values), axis=0)) + 1e-12
        scaled = values / spread
        correlation = (1.0 - _SHRINKAGE) * (scaled.T @ scaled / len(values)) + _SHRINKAGE * np.eye(len(spread))
        self.spread[group], self.precision[group] = spread, np.linalg.inv(correlation)
        distances = np.array([self._distance(group, row) for row in values])
        quartiles = np.quantile(distances, [0.25, 0.5, 0.75])
        self.centre[group] = float(quartiles[1])
        self.scale[group] = float(quartiles[2] - quartiles[0]) / 1.349 + 1e-12

    def _distance(self, group: str, values: np.ndarray) -> float:
        scaled = values / self.spread[group]
        return float(np.sqrt(scaled @ self.precision[group] @ scaled / len(scaled)))

    def scores(self, reference: Description, estimate: Description) -> dict[str, float]:
        """Per group of features, how many standard deviations of the null a pair is beyond the null's median.

        Returns
        -------
        dict of str to float
            ``level``, ``noise_floor``, ``course`` and ``clock_skew``; NaN where the pair or the null has no value.
        """
        features = _features(reference, estimate)
        scores = {}
        for group, values in features.items():
            known = group in self.spread and not np.isnan(values).any()
            scores[group] = (
                (self._distance(group, values) - self.centre[group]) / self.scale[group] if known else float("nan")
            )
        return scores

    def score(self, reference: Description, estimate: Description) -> float:
        """The largest of :meth:`scores`; compare it with its own quantile over held-out pairs of references."""
        return float(np.nanmax(list(self.scores(reference, estimate).values())))


def _features(reference: Description, estimate: Description) -> dict[str, np.ndarray]:
    _check_alike(reference, estimate)
    differences = {
        "level": estimate.level_db - reference.level_db,
        "noise_floor": estimate.noise_floor_db - reference.noise_floor_db,
        "course": estimate.course_db_per_min - reference.course_db_per_min,
    }
    features = {
        group: cosine_basis(N_MELS, _COEFFICIENTS[group]) @ difference for group, difference in differences.items()
    }
    features["clock_skew"] = np.array([signed_clock_skew_ppm(reference, estimate)])
    return features


def _described_pair(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int
) -> tuple[Description, Description]:
    checked_pair(reference, estimate, sample_rate_hz=sample_rate_hz, aligned=False)
    return (
        describe(reference, sample_rate_hz=sample_rate_hz, name="reference"),
        describe(estimate, sample_rate_hz=sample_rate_hz, name="estimate"),
    )


def band_level_distance_db(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> float:
    """RMS over mel bands of the difference of mean levels, its mean removed.

    Of levels in dB, so quiet active frames count as much as loud ones; the long-term average spectrum is ruled by the
    loud ones.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,) each
        Same dtype; neither alignment nor equal length is needed. 10 s or more, 60 s meant.
    sample_rate_hz : int

    Returns
    -------
    float
        dB, lower is better; 0 for a pure gain that moves no frame across the gate.

    Raises
    ------
    AudioParameterError
        The signals cannot be compared, are shorter than 10 s, or a sample is not finite.
    UndefinedMetricError
        Less than a second of active frames.
    """
    return _band_level_distance(*_described_pair(reference, estimate, sample_rate_hz=sample_rate_hz))


def tilt_difference_db_per_octave(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> float:
    """Slope over octaves (150 to 7000 Hz) of the difference of mean band levels; as :func:`band_level_distance_db`."""
    return _tilt_difference(*_described_pair(reference, estimate, sample_rate_hz=sample_rate_hz))


def noise_floor_difference_db(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> float:
    """RMS over bands of the difference of 1 % quantiles of level; as :func:`band_level_distance_db`, level counts."""
    return _noise_floor_difference(*_described_pair(reference, estimate, sample_rate_hz=sample_rate_hz))


def course_difference_db_per_min(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> float:
    """RMS over bands of the difference of slopes of level over time; as :func:`band_level_distance_db`."""
    return _course_difference(*_described_pair(reference, estimate, sample_rate_hz=sample_rate_hz))


def clock_skew_ppm(reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int) -> float:
    """Difference of clocks of two readings of one script, from the slope of the lag of their spectral changes.

    Parameters
    ----------
    reference, estimate : np.ndarray, shape (n_samples,) each
        Same dtype; they follow one script in time to within 0.12 s, but need not be copies. 10 s or more, 60 s meant.
    sample_rate_hz : int

    Returns
    -------
    float
        Millionths, ≥ 0; two readings of one script are some 20 apart over 60 s.

    Raises
    ------
    AudioParameterError
        As :func:`band_level_distance_db`.
    UndefinedMetricError
        The two do not follow one script in time.
    """
    value = _clock_skew(*_described_pair(reference, estimate, sample_rate_hz=sample_rate_hz))
    if np.isnan(value):
        raise UndefinedMetricError("the two recordings do not follow one script in time; a clock skew has no value")
    return value
