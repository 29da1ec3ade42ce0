"""Audio metrics for long speech: streaming, exact about their definitions, honest about silence and noise.

Conventions: numpy arrays, mono, float32 or float64, full scale = 1.0; nothing is resampled, normalised, trimmed or
warped. :func:`compare` measures an estimate against an aligned reference in one pass, with the course over time;
:func:`inspect` describes one signal; every metric is also a plain function, listed in :data:`METRICS`. Importing the
package loads no deep-learning framework. :func:`describe` and :class:`NullModel` tell readings apart that are not
aligned. A *null* is what chance alone does: another rendering of the reference, held against it.
"""

from __future__ import annotations

from typing import NoReturn

from audio_metrics.catalog import METRICS, Metric, metric_by_name
from audio_metrics.comparison import AudioComparison, compare, compare_files, ratio_to_null
from audio_metrics.detectors import jumps_per_min, loop_score, repeat_fraction
from audio_metrics.distribution import (
    frechet_distance,
    maximum_mean_discrepancy,
    mel_mean_difference_db,
    mel_mean_drift_db,
    mel_spread_difference_db,
    mel_spread_drift_db,
)
from audio_metrics.errors import (
    AudioMetricsError,
    AudioParameterError,
    BackendError,
    SignalFileError,
    UndefinedMetricError,
)
from audio_metrics.flags import Flag
from audio_metrics.free_running import (
    Description,
    NullModel,
    band_level_distance_db,
    clock_skew_ppm,
    course_difference_db_per_min,
    describe,
    describe_file,
    free_running_distances,
    noise_floor_difference_db,
    tilt_difference_db_per_octave,
)
from audio_metrics.inspection import Inspection, inspect, inspect_file
from audio_metrics.lag import lag_s
from audio_metrics.longform import Series, Summary, theil_sen
from audio_metrics.optional import OPTIONAL
from audio_metrics.perceptual import pesq, stoi
from audio_metrics.pitch import f0_error_cents, f0_frame_error, gross_pitch_error, voicing_decision_error
from audio_metrics.spectral import (
    level_error_db,
    log_magnitude_l1_db,
    log_spectral_distance_db,
    ltas_distance_db,
    mel_mcd_db,
    multi_resolution_stft_distance,
    spectral_centroid_hz,
    spectral_convergence,
    spectral_flatness_db,
)
from audio_metrics.tokens import (
    first_token_divergence,
    longest_token_run,
    ngram_repetition,
    token_entropy_bits,
    token_js_divergence,
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

Comparison, ParameterError = AudioComparison, AudioParameterError  # their former names

__all__ = [
    "METRICS",
    "OPTIONAL",
    "AudioComparison",
    "AudioMetricsError",
    "AudioParameterError",
    "BackendError",
    "Description",
    "Flag",
    "Inspection",
    "Metric",
    "NullModel",
    "Series",
    "SignalFileError",
    "Summary",
    "UndefinedMetricError",
    "band_level_distance_db",
    "clipping_fraction",
    "clock_skew_ppm",
    "compare",
    "compare_files",
    "course_difference_db_per_min",
    "dc_offset",
    "describe",
    "describe_file",
    "f0_error_cents",
    "f0_frame_error",
    "first_token_divergence",
    "frechet_distance",
    "free_running_distances",
    "gross_pitch_error",
    "inspect",
    "inspect_file",
    "jumps_per_min",
    "lag_s",
    "level_error_db",
    "log_magnitude_l1_db",
    "log_spectral_distance_db",
    "longest_silence_s",
    "longest_token_run",
    "loop_score",
    "ltas_distance_db",
    "maximum_mean_discrepancy",
    "mel_mcd_db",
    "mel_mean_difference_db",
    "mel_mean_drift_db",
    "mel_spread_difference_db",
    "mel_spread_drift_db",
    "metric_by_name",
    "multi_resolution_stft_distance",
    "ngram_repetition",
    "noise_floor_difference_db",
    "pesq",
    "ratio_to_null",
    "repeat_fraction",
    "rms_dbfs",
    "si_sdr_db",
    "silence_fraction",
    "snr_db",
    "spectral_centroid_hz",
    "spectral_convergence",
    "spectral_flatness_db",
    "stoi",
    "theil_sen",
    "tilt_difference_db_per_octave",
    "token_entropy_bits",
    "token_js_divergence",
    "voicing_decision_error",
]

# Public names that are gone, and what to do instead.
_REMOVED: dict[str, str] = {}


def __getattr__(name: str) -> NoReturn:
    """Answer a removed name with what replaces it."""
    if name in _REMOVED:
        raise AttributeError(f"audio_metrics.{name} was removed in 1.0; {_REMOVED[name]}")
    raise AttributeError(f"module 'audio_metrics' has no attribute '{name}'")
