"""Audio metrics for long speech: streaming, exact about their definitions, honest about silence and noise.

Conventions: numpy arrays, mono, float32 or float64, full scale = 1.0; nothing is resampled, normalised, trimmed or
warped. :func:`compare` measures an estimate against an aligned reference in one pass, with the course over time;
:func:`inspect` describes one signal; every metric is also a plain function, listed in :data:`METRICS`. Importing the
package loads no deep-learning framework.
"""

from __future__ import annotations

from audio_metrics.catalog import METRICS, Metric, metric_by_name
from audio_metrics.cepstral import level_error_db, mel_mcd_db
from audio_metrics.comparison import Comparison, compare, compare_files, ratio_to_null
from audio_metrics.distribution import frechet_distance
from audio_metrics.errors import AudioMetricsError, ParameterError, SignalFileError, UndefinedMetricError
from audio_metrics.flags import Flag
from audio_metrics.inspection import Inspection, inspect, inspect_file
from audio_metrics.lag import lag_s
from audio_metrics.longform import Series, Summary, theil_sen
from audio_metrics.spectral import (
    log_magnitude_l1_db,
    log_spectral_distance_db,
    ltas_distance_db,
    spectral_centroid_hz,
    spectral_convergence,
    spectral_flatness_db,
)
from audio_metrics.waveform import (
    clipping_fraction,
    dc_offset,
    longest_silence_s,
    rms_dbfs,
    si_sdr_db,
    silence_fraction,
    snr_db,
)

__all__ = [
    "METRICS",
    "AudioMetricsError",
    "Comparison",
    "Flag",
    "Inspection",
    "Metric",
    "ParameterError",
    "Series",
    "SignalFileError",
    "Summary",
    "UndefinedMetricError",
    "clipping_fraction",
    "compare",
    "compare_files",
    "dc_offset",
    "frechet_distance",
    "inspect",
    "inspect_file",
    "lag_s",
    "level_error_db",
    "log_magnitude_l1_db",
    "log_spectral_distance_db",
    "longest_silence_s",
    "ltas_distance_db",
    "mel_mcd_db",
    "metric_by_name",
    "ratio_to_null",
    "rms_dbfs",
    "si_sdr_db",
    "silence_fraction",
    "snr_db",
    "spectral_centroid_hz",
    "spectral_convergence",
    "spectral_flatness_db",
    "theil_sen",
]
