"""Errors of the signal library.

Each says what was found, what was expected and the remedy, and each also derives from the builtin that a caller would
expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations


class AudioMetricsError(Exception):
    """Base of every error that this package raises on purpose."""


class AudioParameterError(AudioMetricsError, ValueError):
    """An argument has a value, shape, dtype or sample rate that cannot be used."""


class UndefinedMetricError(AudioMetricsError, ArithmeticError):
    """The metric has no value for this signal (digital silence, no frame left); never answered with 0 dB or an eps."""


class SignalFileError(AudioMetricsError, OSError):
    """An audio file is missing, unreadable or shorter than its header says."""
