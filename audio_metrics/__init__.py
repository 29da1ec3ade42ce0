"""Audio metrics for long speech: streaming, exact about their definitions, honest about silence and noise.

Conventions: numpy arrays, mono, float32 or float64, full scale = 1.0; nothing is resampled, normalised, trimmed or
warped. :func:`compare` measures an estimate against an aligned reference in one pass, with the course over time;
:func:`inspect` describes one signal; every metric is also a plain function, listed in :data:`METRICS`. Importing the
package loads no deep-learning framework. A *null* is what chance alone does: another rendering of the reference.
"""

from __future__ import annotations

from typing import NoReturn

from audio_metrics.catalog import METRICS, Metric, metric_by_name
from audio_metrics.comparison import AudioComparison, compare, compare_files, ratio_to_null
from audio_metrics.detectors import jumps_per_min, loop_score, repeat_fraction
from audio_metrics.distribution import frechet_distance
from audio_metrics.errors import (
    AudioMetricsError,
    AudioParameterError,
    SignalFileError,
    UndefinedMetricError,
)
from audio_metrics.flags import Flag
from audio_metrics.inspection import Inspection, inspect, inspect_file
from audio_metrics.lag import lag_s
from audio_metrics.longform import Series, Summary, theil_sen
from audio_metrics.spectral import (
    level_error_db,
    log_magnitude_l1_db,
    log_spectral_distance_db,
    ltas_distance_db,
    mel_mcd_db,
    spectral_centroid_hz,
    spectral_convergence,
    spectral_flatness_db,
)
from audio_metrics.tokens import first_token_divergence, longest_token_run
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
    "AudioComparison",
    "AudioMetricsError",
    "AudioParameterError",
    "Flag",
    "Inspection",
    "Metric",
    "Series",
    "SignalFileError",
    "Summary",
    "UndefinedMetricError",
    "clipping_fraction",
    "compare",
    "compare_files",
    "dc_offset",
    "first_token_divergence",
    "frechet_distance",
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
    "mel_mcd_db",
    "metric_by_name",
    "ratio_to_null",
    "repeat_fraction",
    "rms_dbfs",
    "si_sdr_db",
    "silence_fraction",
    "snr_db",
    "spectral_centroid_hz",
    "spectral_convergence",
    "spectral_flatness_db",
    "theil_sen",
]

# Public names that are gone, and what to do instead.
_REMOVED: dict[str, str] = {
    "Comparison": "use AudioComparison",
    "ParameterError": "use AudioParameterError",
    "free_running_distances": "no replacement",
    "describe": "no replacement",
    "describe_file": "no replacement",
    "Description": "no replacement",
    "NullModel": "no replacement",
    "band_level_distance_db": "no replacement",
    "tilt_difference_db_per_octave": "no replacement",
    "noise_floor_difference_db": "no replacement",
    "course_difference_db_per_min": "no replacement",
    "clock_skew_ppm": "no replacement",
    "OPTIONAL": "no replacement",
    "BackendError": "no replacement",
    "maximum_mean_discrepancy": "no replacement",
    "mel_mean_difference_db": "no replacement",
    "mel_mean_drift_db": "no replacement",
    "mel_spread_difference_db": "no replacement",
    "mel_spread_drift_db": "no replacement",
    "multi_resolution_stft_distance": "use auraloss",
    "stoi": "use pystoi",
    "pesq": "use pesq",
    "f0_error_cents": "use librosa.pyin and mir_eval.melody",
    "f0_frame_error": "use librosa.pyin and mir_eval.melody",
    "gross_pitch_error": "use librosa.pyin and mir_eval.melody",
    "voicing_decision_error": "use librosa.pyin and mir_eval.melody",
    "ngram_repetition": "no replacement",
    "token_entropy_bits": "no replacement",
    "token_js_divergence": "no replacement",
}


def __getattr__(name: str) -> NoReturn:
    if name in _REMOVED:
        raise AttributeError(f"audio_metrics.{name} was removed in 1.0; {_REMOVED[name]}")
    raise AttributeError(f"module 'audio_metrics' has no attribute '{name}'")
