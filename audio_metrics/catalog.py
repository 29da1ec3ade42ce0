"""METRICS: every metric of the package as data.

Conventions: `direction` says which is better; None where neither is (a description of a signal). `aligned` says
whether sample n of the estimate has to belong to sample n of the reference. `n_signals` is 1 for a description of one
signal.

Contents: :class:`Metric`, :data:`METRICS`, :func:`metric_by_name`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from audio_metrics import cepstral, distribution, lag, spectral, waveform
from audio_metrics.errors import ParameterError
from audio_metrics.longform import Direction


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes
    ----------
    name : str
        Also the name of its function and of its field in results.
    unit : str
        Empty for a pure number.
    low, high : float
        Range of possible values.
    direction : {"lower", "higher"} or None
    aligned : bool
    n_signals : int
    formula : str
    source : str
        Where the formula is from.
    function : callable
        The plain function on arrays.
    """

    name: str
    unit: str
    low: float
    high: float
    direction: Direction | None
    aligned: bool
    n_signals: int
    formula: str
    source: str
    function: Callable[..., float]


METRICS: tuple[Metric, ...] = (
    Metric(
        name="log_spectral_distance_db",
        unit="dB",
        low=0.0,
        high=math.inf,
        direction="lower",
        aligned=True,
        n_signals=2,
        formula="mean_t sqrt(mean_f (10 log10(P/P'))^2)",
        source="Gray, Markel: Distance measures for speech processing, IEEE Trans. ASSP 24(5), 1976",
        function=spectral.log_spectral_distance_db,
    ),
    Metric(
        name="log_magnitude_l1_db",
        unit="dB",
        low=0.0,
        high=math.inf,
        direction="lower",
        aligned=True,
        n_signals=2,
        formula="mean_tf |20 log10(A/A')|",
        source="Arik et al.: Fast spectrogram inversion using multi-head CNNs, IEEE SPL 26(1), 2019",
        function=spectral.log_magnitude_l1_db,
    ),
    Metric(
        name="spectral_convergence",
        unit="",
        low=0.0,
        high=math.inf,
        direction="lower",
        aligned=True,
        n_signals=2,
        formula="sqrt(sum (A - A')^2 / sum A^2)",
        source="Arik et al.: Fast spectrogram inversion using multi-head CNNs, IEEE SPL 26(1), 2019",
        function=spectral.spectral_convergence,
    ),
    Metric(
        name="mel_mcd_db",
        unit="dB",
        low=0.0,
        high=math.inf,
        direction="lower",
        aligned=True,
        n_signals=2,
        formula="mean_t (10/ln 10) sqrt(sum_{i=1..24} (c_i - c'_i)^2 / 80)",
        source="after Kubichek: Mel-cepstral distance measure, IEEE PacRim 1993; constant of the mel spectrum's level",
        function=cepstral.mel_mcd_db,
    ),
    Metric(
        name="level_error_db",
        unit="dB",
        low=0.0,
        high=math.inf,
        direction="lower",
        aligned=True,
        n_signals=2,
        formula="mean_t (10/ln 10) |c_0 - c'_0| / sqrt(80)",
        source="the coefficient that the mel-cepstral distortion leaves out",
        function=cepstral.level_error_db,
    ),
    Metric(
        name="snr_db",
        unit="dB",
        low=-math.inf,
        high=math.inf,
        direction="higher",
        aligned=True,
        n_signals=2,
        formula="10 log10(sum r^2 / sum (e - r)^2)",
        source="definition",
        function=waveform.snr_db,
    ),
    Metric(
        name="si_sdr_db",
        unit="dB",
        low=-math.inf,
        high=math.inf,
        direction="higher",
        aligned=True,
        n_signals=2,
        formula="10 log10(|a r|^2 / |e - a r|^2), a = <e, r>/<r, r>",
        source="Le Roux et al.: SDR - half-baked or well done?, ICASSP 2019",
        function=waveform.si_sdr_db,
    ),
    Metric(
        name="lag_s",
        unit="s",
        low=-lag.MAX_LAG_S,
        high=lag.MAX_LAG_S,
        direction=None,
        aligned=True,
        n_signals=2,
        formula="argmax |sum_n r[n] e[n + lag]|",
        source="definition; scipy.signal.correlate",
        function=lag.lag_s,
    ),
    Metric(
        name="ltas_distance_db",
        unit="dB",
        low=0.0,
        high=math.inf,
        direction="lower",
        aligned=False,
        n_signals=2,
        formula="std_f 10 log10(mean_t P / mean_t P')",
        source="long-term average speech spectrum, level removed",
        function=spectral.ltas_distance_db,
    ),
    Metric(
        name="frechet_distance",
        unit="Np^2",
        low=0.0,
        high=math.inf,
        direction="lower",
        aligned=False,
        n_signals=2,
        formula="|m - m'|^2 + tr(C + C' - 2 (C^1/2 C' C^1/2)^1/2) of c_0..c_24",
        source="Dowson, Landau: J. Multivariate Analysis 12(3), 1982",
        function=distribution.frechet_distance,
    ),
    Metric(
        name="spectral_flatness_db",
        unit="dB",
        low=-math.inf,
        high=0.0,
        direction=None,
        aligned=False,
        n_signals=1,
        formula="mean_t 10 log10(geometric mean_f P / mean_f P)",
        source="Gray, Markel: A spectral-flatness measure, IEEE Trans. ASSP 22(3), 1974",
        function=spectral.spectral_flatness_db,
    ),
    Metric(
        name="spectral_centroid_hz",
        unit="Hz",
        low=0.0,
        high=math.inf,
        direction=None,
        aligned=False,
        n_signals=1,
        formula="mean_t (sum f P / sum P)",
        source="definition, weighted by power",
        function=spectral.spectral_centroid_hz,
    ),
    Metric(
        name="rms_dbfs",
        unit="dB",
        low=-math.inf,
        high=math.inf,
        direction=None,
        aligned=False,
        n_signals=1,
        formula="10 log10(mean x^2)",
        source="definition",
        function=waveform.rms_dbfs,
    ),
    Metric(
        name="silence_fraction",
        unit="",
        low=0.0,
        high=1.0,
        direction=None,
        aligned=False,
        n_signals=1,
        formula="fraction of frames with 10 log10(sum (w x)^2 / sum w^2) < -60",
        source="definition",
        function=waveform.silence_fraction,
    ),
    Metric(
        name="longest_silence_s",
        unit="s",
        low=0.0,
        high=math.inf,
        direction=None,
        aligned=False,
        n_signals=1,
        formula="hop times the longest run of such frames",
        source="definition",
        function=waveform.longest_silence_s,
    ),
    Metric(
        name="clipping_fraction",
        unit="",
        low=0.0,
        high=1.0,
        direction="lower",
        aligned=False,
        n_signals=1,
        formula="fraction of samples with |x| >= 1",
        source="definition",
        function=waveform.clipping_fraction,
    ),
    Metric(
        name="dc_offset",
        unit="",
        low=-math.inf,
        high=math.inf,
        direction=None,
        aligned=False,
        n_signals=1,
        formula="mean x",
        source="definition",
        function=waveform.dc_offset,
    ),
)


def metric_by_name(name: str) -> Metric:
    """The metric of that name.

    Raises
    ------
    ParameterError
        There is none.
    """
    for metric in METRICS:
        if metric.name == name:
            return metric
    raise ParameterError(f"unknown metric {name!r}; known: {', '.join(metric.name for metric in METRICS)}")
