"""Every metric as data: what it is called, its unit, range, direction, formula and source.

Aligned pairs come first, then distances that need no alignment, single signals, and tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from audio_metrics import detectors, distribution, lag, spectral, tokens, waveform
from audio_metrics.errors import AudioParameterError
from audio_metrics.longform import Direction


@dataclass(frozen=True)
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

    @property
    def name(self) -> str:
        """Also the name of its function and of its field in results."""
        return self.function.__name__


_ARIK = "Arik et al.: Fast spectrogram inversion using multi-head CNNs, IEEE SPL 26(1), 2019"

# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric(spectral.log_spectral_distance_db, "dB", "mean_t sqrt(mean_f (10 log10(P/P'))^2)",
           "Gray, Markel: Distance measures for speech processing, IEEE Trans. ASSP 24(5), 1976", aligned=True),
    Metric(spectral.log_magnitude_l1_db, "dB", "mean_tf |20 log10(A/A')|", _ARIK, aligned=True),
    Metric(spectral.spectral_convergence, "", "sqrt(sum (A - A')^2 / sum A^2)", _ARIK, aligned=True),
    Metric(spectral.mel_mcd_db, "dB", "mean_t (10/ln 10) sqrt(sum_{i=1..24} (c_i - c'_i)^2 / 80)",
           "after Kubichek: Mel-cepstral distance measure, IEEE PacRim 1993; constant of the mel spectrum's level",
           aligned=True),
    Metric(spectral.level_error_db, "dB", "mean_t (10/ln 10) |c_0 - c'_0| / sqrt(80)",
           "the coefficient that the mel-cepstral distortion leaves out", aligned=True),
    Metric(waveform.snr_db, "dB", "10 log10(sum r^2 / sum (e - r)^2)", "definition", low=-math.inf, direction="higher",
           aligned=True),
    Metric(waveform.si_sdr_db, "dB", "10 log10(|a r|^2 / |e - a r|^2), a = <e, r>/<r, r>",
           "Le Roux et al.: SDR - half-baked or well done?, ICASSP 2019", low=-math.inf, direction="higher",
           aligned=True),
    Metric(lag.lag_s, "s", "argmax |sum_n r[n] e[n + lag]|", "definition; scipy.signal.correlate", low=-lag.MAX_LAG_S,
           high=lag.MAX_LAG_S, direction=None, aligned=True),
    Metric(spectral.ltas_distance_db, "dB", "std_f 10 log10(mean_t P / mean_t P')",
           "long-term average speech spectrum, level removed"),
    Metric(distribution.frechet_distance, "Np^2", "|m - m'|^2 + tr(C + C' - 2 (C^1/2 C' C^1/2)^1/2) of c_0..c_24",
           "Dowson, Landau: J. Multivariate Analysis 12(3), 1982"),
    Metric(spectral.spectral_flatness_db, "dB", "mean_t 10 log10(geometric mean_f P / mean_f P)",
           "Gray, Markel: A spectral-flatness measure, IEEE Trans. ASSP 22(3), 1974", low=-math.inf, high=0.0,
           direction=None, n_signals=1),
    Metric(spectral.spectral_centroid_hz, "Hz", "mean_t (sum f P / sum P)", "definition, weighted by power",
           direction=None, n_signals=1),
    Metric(waveform.rms_dbfs, "dB", "10 log10(mean x^2)", "definition", low=-math.inf, direction=None, n_signals=1),
    Metric(waveform.silence_fraction, "", "fraction of frames with 10 log10(sum (w x)^2 / sum w^2) < -60", "definition",
           high=1.0, direction=None, n_signals=1),
    Metric(waveform.longest_silence_s, "s", "hop times the longest run of such frames", "definition", direction=None,
           n_signals=1),
    Metric(waveform.clipping_fraction, "", "fraction of samples with |x| >= 1", "definition", high=1.0, n_signals=1),
    Metric(waveform.dc_offset, "", "mean x", "definition", low=-math.inf, direction=None, n_signals=1),
    Metric(detectors.jumps_per_min, "1/min",
           "runs of cells of 10 ms with max |4th difference| > 16 times the rms around, per minute", "definition",
           n_signals=1),
    Metric(detectors.repeat_fraction, "", "stretches of 50 ms that occurred before bit for bit / stretches over -60 dB",
           "definition; stretches chosen by their content", high=1.0, n_signals=1),
    Metric(detectors.loop_score, "",
           "max over 20 s windows and lags of 0.3 to 8 s of the normalized autocorrelation of c_1..c_24", "definition",
           low=-1.0, high=1.0, n_signals=1),
    Metric(tokens.first_token_divergence, "token", "first n with r[n] != e[n]", "definition", direction="higher",
           aligned=True, takes="tokens"),
    Metric(tokens.longest_token_run, "token", "length of the longest run of one token", "definition", low=1.0,
           n_signals=1, takes="tokens"),
)
# fmt: on


def metric_by_name(name: str) -> Metric:
    """The metric of that name.

    Raises
    ------
    AudioParameterError
        There is none.
    """
    for metric in METRICS:
        if metric.name == name:
            return metric
    raise AudioParameterError(f"unknown metric {name!r}; known: {', '.join(metric.name for metric in METRICS)}")
