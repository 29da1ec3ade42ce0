"""Errors of the signal library.

Each says what was found, what was expected and the remedy, and each also derives from the builtin that a caller would
expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class AudioMetricsError(Exception):
    """Base of every error that this package raises on purpose."""


class AudioParameterError(AudioMetricsError, ValueError):
    """An argument has a value, shape, dtype or sample rate that cannot be used."""


class UndefinedMetricError(AudioMetricsError, ArithmeticError):
    """The metric has no value for this signal (digital silence, no frame left); never answered with 0 dB or an eps."""


class SignalFileError(AudioMetricsError, OSError):
    """An audio file is missing, unreadable or shorter than its header says."""


class BackendError(AudioMetricsError, ImportError):
    """An optional library that this metric needs is not installed; the message names the extra that brings it."""


def backend(module: str, metric: str, *, extra: str) -> ModuleType:
    """Import an optional library that a metric needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendError(
            f"{metric} needs {module}, which is not installed; install it, or the extra '{extra}': "
            f"pip install 'audio-metrics[{extra}]'"
        ) from error
