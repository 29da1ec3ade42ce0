"""Bytes of one format that were read as another: the header's width or coding against the data's.

Conventions: an estimate on the grid of 8, 16, 24 or 32 bits, or on the levels of G.711, may have been read so. Its
bytes are read once more in every other way; one counts as shown where what comes of it is the reference, to 20 dB.
"""

from __future__ import annotations

import numpy as np

from audio_metrics.flags import Flag

_SAME, _SMOOTH = 0.99, 0.9  # of the energy
_SOUND = 0.25  # squared correlation with the next sample: the lower half of wider samples has none
_GRIDS = (7, 15, 23, 31)
_NAMES = {
    "u1": "unsigned 8-bit samples", "i1": "signed 8-bit samples", "<i2": "16-bit samples", "<i3": "24-bit samples",
    "<i4": "32-bit samples", "<f4": "32-bit floats", "mu-law": "mu-law codes", "A-law": "A-law codes",
}  # fmt: skip


def _mu_law() -> np.ndarray:
    """Samples of the 256 codes of G.711."""
    code = ~np.arange(256) & 255
    size = (((code & 15) << 3) + 132 << (code >> 4 & 7)) - 132
    return np.where(code & 128, -size, size) / 32768.0


def _a_law() -> np.ndarray:
    code = np.arange(256) ^ 0x55
    step, low = code >> 4 & 7, (code & 15) << 4
    size = np.where(step == 0, low + 8, (low + 264) << np.maximum(step - 1, 0))
    return np.where(code & 128, size, -size) / 32768.0


_LAWS = {"mu-law": _mu_law(), "A-law": _a_law()}


def _decode(raw: bytes, name: str) -> np.ndarray:
    if name in _LAWS:
        return np.asarray(_LAWS[name][np.frombuffer(raw, np.uint8)])
    if name == "<i3":
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw[: len(raw) // 3 * 3], np.uint8).reshape(-1, 3)
        return wide.view("<i4").ravel() / 2.0**31
    dtype = np.dtype(name)
    with np.errstate(invalid="ignore"):  # any bits may be a NaN
        samples = np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype).astype(np.float64)
    return samples if dtype.kind == "f" else samples / 2.0 ** (8 * dtype.itemsize - 1) - (dtype.kind == "u")


def _raw(e: np.ndarray) -> list[tuple[str, bytes]]:
    """What the bytes of an estimate may have been read as, and these bytes."""
    if not np.abs(e).max(initial=0.0) <= 1.0:
        return [("<f4", e.astype("<f4").tobytes())]
    ways = []
    for bits in (bits for bits in _GRIDS if not np.any(np.abs(e * 2.0**bits - np.round(e * 2.0**bits)) > 1e-3)):
        whole = np.clip(np.round(e * 2.0**bits), -(2.0**bits), 2.0**bits - 1.0).astype("<i8")
        raw = whole.view(np.uint8).reshape(-1, 8)[:, : (bits + 1) // 8].tobytes()
        ways.append((f"<i{(bits + 1) // 8}" if bits > 7 else "i1", raw))
        if bits == 7:
            ways.append(("u1", (whole + 128).astype(np.uint8).tobytes()))
    for name, levels in _LAWS.items():
        order = np.argsort(levels)
        places = order[np.minimum(np.searchsorted(levels[order], e), 255)]
        if np.array_equal(levels[places], e):
            ways.append((name, places.astype(np.uint8).tobytes()))
    return ways or [("<f4", e.astype("<f4").tobytes())]


def misread(r: np.ndarray, e: np.ndarray) -> list[Flag]:
    """Name the width or coding that the bytes of an estimate have, where it is not the one that they were read in."""
    first, second = (e[turn : 2 * len(e[1::2]) : 2] for turn in (0, 1))
    if max(_alike(r, second), _alike(first[:-1] + first[1:], second[:-1])) > _SMOOTH and _alike(r, first) > _SMOOTH:
        return []  # every sample twice, or one between each two: another speed
    other = second if _alike(r, first) >= _SAME else first
    channels = [_flag("two channels, a sample of each in turn, are read as one")]
    channels *= len(e) > 0.8 * len(r) and max(_alike(r, first), _alike(r, second)) >= _SAME
    if channels and _alike(other[1:], other[:-1]) > _SOUND:
        return channels
    for was, raw in _raw(e):
        for name in _NAMES.keys() - {was}:
            samples = _decode(raw, name)
            if np.isfinite(samples).all() and len(samples) >= 0.5 * len(r) and _alike(r, samples) >= _SAME:
                return [_flag(f"the samples of the estimate are {_NAMES[name]} that are read as {_NAMES[was]}")]
    return channels


def _alike(r: np.ndarray, e: np.ndarray) -> float:
    """Squared correlation of what both have; 0 where it is negative."""
    n = min(len(r), len(e))
    product, scale = float(r[:n] @ e[:n]), float(r[:n] @ r[:n]) * float(e[:n] @ e[:n])
    return product**2 / scale if product > 0.0 and np.isfinite(scale) else 0.0


def _flag(message: str) -> Flag:
    return Flag(kind="reading", signal="estimate", time_s=None, count=1, message=message)
