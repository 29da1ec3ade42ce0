"""Every metric as data: what it is called, its unit, range, direction, formula and source.

Aligned pairs come first, then distances that need no alignment, single signals, and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from audio_metrics import (
    cepstral,
    detectors,
    distribution,
    drift,
    free_running,
    lag,
    multiresolution,
    perceptual,
    pitch,
    spectral,
    tokens,
    waveform,
)
from audio_metrics.errors import ParameterError
from audio_metrics.longform import Direction


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes
    ----------
    function : callable
        The plain function on arrays; its name is the metric's and that of its field in results.
    unit : str
        Empty for a pure number.
    low, high : float
        Range of possible values.
    direction : {"lower", "higher"} or None
        Which is better, if either is.
    aligned : bool
    n_signals : int
    formula : str
    source : str
        Where the formula is from.
    takes : {"signal", "tokens"}
        What the arrays hold.
    extra : str
        The extra of the package that brings a library it needs; empty for none.
    """

    function: Callable[..., float]
    unit: str
    formula: str
    source: str
    low: float = 0.0
    high: float = math.inf
    direction: Direction | None = "lower"
    aligned: bool = False
    n_signals: int = 2
    takes: Literal["signal", "tokens"] = "signal"
    extra: str = ""

    @property
    def name(self) -> str:
        """Also the name of its function and of its field in results."""
        return self.function.__name__


# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric(
        function=spectral.log_spectral_distance_db, unit="dB", aligned=True,
        formula="mean_t sqrt(mean_f (10 log10(P/P'))^2)",
        source="Gray, Markel: Distance measures for speech processing, IEEE Trans. ASSP 24(5), 1976",
    ),
    Metric(
        function=spectral.log_magnitude_l1_db, unit="dB", aligned=True,
        formula="mean_tf |20 log10(A/A')|",
        source="Arik et al.: Fast spectrogram inversion using multi-head CNNs, IEEE SPL 26(1), 2019",
    ),
    Metric(
        function=spectral.spectral_convergence, unit="", aligned=True,
        formula="sqrt(sum (A - A')^2 / sum A^2)",
        source="Arik et al.: Fast spectrogram inversion using multi-head CNNs, IEEE SPL 26(1), 2019",
    ),
    Metric(
        function=multiresolution.multi_resolution_stft_distance, unit="", aligned=True,
        formula="mean over 3 resolutions of sqrt(sum (A - A')^2 / sum A^2) + mean_tf |ln A - ln A'|",
        source="Yamamoto et al.: Parallel WaveGAN, ICASSP 2020; sizes as in auraloss",
    ),
    Metric(
        function=cepstral.mel_mcd_db, unit="dB", aligned=True,
        formula="mean_t (10/ln 10) sqrt(sum_{i=1..24} (c_i - c'_i)^2 / 80)",
        source="after Kubichek: Mel-cepstral distance measure, IEEE PacRim 1993; constant of the mel spectrum's level",
    ),
    Metric(
        function=cepstral.level_error_db, unit="dB", aligned=True,
        formula="mean_t (10/ln 10) |c_0 - c'_0| / sqrt(80)",
        source="the coefficient that the mel-cepstral distortion leaves out",
    ),
    Metric(
        function=waveform.snr_db, unit="dB", low=-math.inf, direction="higher", aligned=True,
        formula="10 log10(sum r^2 / sum (e - r)^2)",
        source="definition",
    ),
    Metric(
        function=waveform.si_sdr_db, unit="dB", low=-math.inf, direction="higher", aligned=True,
        formula="10 log10(|a r|^2 / |e - a r|^2), a = <e, r>/<r, r>",
        source="Le Roux et al.: SDR - half-baked or well done?, ICASSP 2019",
    ),
    Metric(
        function=pitch.f0_error_cents, unit="cent", aligned=True,
        formula="median_t |1200 log2(f' / f)|, frames voiced in both",
        source="Salamon et al.: Melody extraction from polyphonic music signals, IEEE SPM 31(2), 2014; tracker pYIN",
    ),
    Metric(
        function=pitch.voicing_decision_error, unit="", high=1.0, aligned=True,
        formula="frames voiced in one only / frames",
        source="Nakatani et al.: A method for fundamental frequency estimation, Speech Communication 50(3), 2008",
    ),
    Metric(
        function=pitch.gross_pitch_error, unit="", high=1.0, aligned=True,
        formula="frames with |f'/f - 1| > 0.2 / frames voiced in both",
        source="Nakatani et al.: A method for fundamental frequency estimation, Speech Communication 50(3), 2008",
    ),
    Metric(
        function=pitch.f0_frame_error, unit="", high=1.0, aligned=True,
        formula="(frames voiced in one only + gross errors) / frames",
        source="Chu, Alwan: Reducing F0 frame error, ICASSP 2009",
    ),
    Metric(
        function=perceptual.stoi, unit="", low=-1.0, high=1.0, direction="higher", aligned=True, extra="perceptual",
        formula="mean over 10 s of the correlation of short-time band envelopes",
        source="Taal et al.: IEEE Trans. ASLP 19(7), 2011; library pystoi",
    ),
    Metric(
        function=perceptual.pesq, unit="", low=1.0, high=4.65, direction="higher", aligned=True, extra="perceptual",
        formula="mean over 10 s of MOS-LQO",
        source="ITU-T P.862.1 (8 kHz), P.862.2 (16 kHz); library pesq",
    ),
    Metric(
        function=lag.lag_s, unit="s", low=-lag.MAX_LAG_S, high=lag.MAX_LAG_S, direction=None, aligned=True,
        formula="argmax |sum_n r[n] e[n + lag]|",
        source="definition; scipy.signal.correlate",
    ),
    Metric(
        function=spectral.ltas_distance_db, unit="dB",
        formula="std_f 10 log10(mean_t P / mean_t P')",
        source="long-term average speech spectrum, level removed",
    ),
    Metric(
        function=distribution.frechet_distance, unit="Np^2",
        formula="|m - m'|^2 + tr(C + C' - 2 (C^1/2 C' C^1/2)^1/2) of c_0..c_24",
        source="Dowson, Landau: J. Multivariate Analysis 12(3), 1982",
    ),
    Metric(
        function=distribution.maximum_mean_discrepancy, unit="", low=-2.0, high=2.0,
        formula="E k(x, x') + E k(y, y') - 2 E k(x, y) of c_0..c_24, k = exp(-d^2 / 2 s^2), s the reference's median d",
        source="Gretton et al.: A kernel two-sample test, JMLR 13, 2012",
    ),
    Metric(
        function=drift.mel_mean_difference_db, unit="dB",
        formula="mean over 60 s of rms_m (m - m'), m the mean level of a mel band",
        source="definition",
    ),
    Metric(
        function=drift.mel_spread_difference_db, unit="dB",
        formula="mean over 60 s of rms_m (s - s'), s the standard deviation of the level of a mel band",
        source="definition",
    ),
    Metric(
        function=free_running.band_level_distance_db, unit="dB",
        formula="std_m (m - m') of the mean levels in dB",
        source="definition",
    ),
    Metric(
        function=free_running.tilt_difference_db_per_octave, unit="dB/octave",
        formula="|slope over log2 f of m - m'|, 150 to 7000 Hz",
        source="definition",
    ),
    Metric(
        function=free_running.noise_floor_difference_db, unit="dB",
        formula="rms_m (q - q'), q the 1 % quantile of the level of a mel band",
        source="definition",
    ),
    Metric(
        function=free_running.course_difference_db_per_min, unit="dB/min",
        formula="rms_m (b - b'), b the slope over time of the level of a mel band",
        source="definition",
    ),
    Metric(
        function=free_running.clock_skew_ppm, unit="ppm",
        formula="1e6 |slope over time of the lag between the courses of c_1..c_24|",
        source="definition; slope by Theil and Sen",
    ),
    Metric(
        function=spectral.spectral_flatness_db, unit="dB", low=-math.inf, high=0.0, direction=None, n_signals=1,
        formula="mean_t 10 log10(geometric mean_f P / mean_f P)",
        source="Gray, Markel: A spectral-flatness measure, IEEE Trans. ASSP 22(3), 1974",
    ),
    Metric(
        function=spectral.spectral_centroid_hz, unit="Hz", direction=None, n_signals=1,
        formula="mean_t (sum f P / sum P)",
        source="definition, weighted by power",
    ),
    Metric(
        function=waveform.rms_dbfs, unit="dB", low=-math.inf, direction=None, n_signals=1,
        formula="10 log10(mean x^2)",
        source="definition",
    ),
    Metric(
        function=waveform.silence_fraction, unit="", high=1.0, direction=None, n_signals=1,
        formula="fraction of frames with 10 log10(sum (w x)^2 / sum w^2) < -60",
        source="definition",
    ),
    Metric(
        function=waveform.longest_silence_s, unit="s", direction=None, n_signals=1,
        formula="hop times the longest run of such frames",
        source="definition",
    ),
    Metric(
        function=waveform.clipping_fraction, unit="", high=1.0, n_signals=1,
        formula="fraction of samples with |x| >= 1",
        source="definition",
    ),
    Metric(
        function=waveform.dc_offset, unit="", low=-math.inf, direction=None, n_signals=1,
        formula="mean x",
        source="definition",
    ),
    Metric(
        function=detectors.jumps_per_min, unit="1/min", n_signals=1,
        formula="runs of cells of 10 ms with max |4th difference| > 16 times the rms around, per minute",
        source="definition",
    ),
    Metric(
        function=detectors.repeat_fraction, unit="", high=1.0, n_signals=1,
        formula="stretches of 50 ms that occurred before bit for bit / stretches over -60 dB",
        source="definition; stretches chosen by their content",
    ),
    Metric(
        function=detectors.loop_score, unit="", low=-1.0, high=1.0, n_signals=1,
        formula="max over 20 s windows and lags of 0.3 to 8 s of the normalised autocorrelation of c_1..c_24",
        source="definition",
    ),
    Metric(
        function=drift.mel_mean_drift_db, unit="dB", n_signals=1,
        formula="mean over 60 s windows of rms_m (m - m_first)",
        source="definition",
    ),
    Metric(
        function=drift.mel_spread_drift_db, unit="dB", n_signals=1,
        formula="mean over 60 s windows of rms_m (s - s_first)",
        source="definition",
    ),
    Metric(
        function=tokens.token_js_divergence, unit="bit", high=1.0, takes="tokens",
        formula="H((p + q) / 2) - (H(p) + H(q)) / 2",
        source="Lin: Divergence measures based on the Shannon entropy, IEEE Trans. IT 37(1), 1991",
    ),
    Metric(
        function=tokens.first_token_divergence, unit="token", direction="higher", aligned=True, takes="tokens",
        formula="first n with r[n] != e[n]",
        source="definition",
    ),
    Metric(
        function=tokens.token_entropy_bits, unit="bit", direction=None, n_signals=1, takes="tokens",
        formula="-sum p log2 p",
        source="Shannon: A mathematical theory of communication, 1948",
    ),
    Metric(
        function=tokens.longest_token_run, unit="token", low=1.0, n_signals=1, takes="tokens",
        formula="length of the longest run of one token",
        source="definition",
    ),
    Metric(
        function=tokens.ngram_repetition, unit="", high=1.0, n_signals=1, takes="tokens",
        formula="1 - distinct n-grams / n-grams, n = 4",
        source="Welleck et al.: Neural text generation with unlikelihood training, ICLR 2020",
    ),
)
# fmt: on


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
