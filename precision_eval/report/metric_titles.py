"""Readable names of metrics, made from their identifiers."""

from __future__ import annotations

_SUFFIXES = ("_dbfs", "_db_per_octave", "_db_per_min", "_db", "_hz", "_s", "_cents", "_ppm", "_bits", "_per_min")
_WORDS = {"mcd": "MCD", "snr": "SNR", "si sdr": "SI-SDR", "ltas": "LTAS", "rms": "RMS", "dc": "DC", "l1": "L1"}
_WORDS |= {"f0": "F0", "stft": "STFT", "stoi": "STOI", "pesq": "PESQ", "frechet": "Fréchet", "js": "JS"}


def title_of(name: str) -> str:
    """Return ``mel MCD`` for ``mel_mcd_db``: no unit, spaces, abbreviations in their usual case."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            name = name.removesuffix(suffix)
            break
    words = f" {name.replace('_', ' ')} "
    for word, written in _WORDS.items():
        words = words.replace(f" {word} ", f" {written} ")
    return words.strip()
