"""Spectrograms as small pictures: the reference's level, and how much louder or quieter a condition is, over time.

Conventions: the 80 mel bands and the frames of :mod:`audio_metrics` (a band's power never below its floor, −100 dB),
a frame at its middle. A column of levels is the mean over its frames, of decibels. One of differences is their root
mean square with the sign of their mean: frames that are louder and quieter by turns do not cancel, and a strip of ten
minutes is as strong as one of ten seconds. Low bands are at the bottom. Nothing is drawn where nothing differs: colours
grow from fully transparent, so that a picture suits light and dark paper alike. The scale of differences is the same in
every picture, and what exceeds it has its last colour. A signal is read in blocks.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import to_rgb

from audio_metrics.frames import Wanted, blocks
from audio_metrics.signal import FirstPart, Source
from audio_metrics.spectra import DB_PER_NEPER_OF_POWER, N_MELS

DIFFERENCE_DB = 20.0
"""Where the scale of differences ends, either way."""

LEVEL_DB = 50.0
"""What a picture of levels shows below its loudest percent."""

N_COLUMNS = 1000
_FRAMES_PER_COLUMN = 4  # at least, in a short sound

LOUDER, QUIETER, LEVEL = "#D55E00", "#1F83C6", "#7350B8"
_STEPS = 20  # of colour, to either side
_DATA = "data:image/png;base64,"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture with its place on the axis of time."""

    data: str
    share: float


def level_columns(source: Source, *, n_columns: int = N_COLUMNS) -> np.ndarray:
    """Mean level of each mel band in each column, in dB re full scale."""
    means, _ = _columns((source,), n_columns=n_columns)
    return means


def difference_columns(comparator: Source, estimate: Source, *, n_columns: int = N_COLUMNS) -> np.ndarray:
    """Root mean square of what each band of the estimate has more than the reference's, with the sign of its
    mean, dB.
    """
    n_samples = min(comparator.n_samples, estimate.n_samples)
    pair = tuple(FirstPart(source, n_samples) for source in (comparator, estimate))
    means, squares = _columns(pair, n_columns=n_columns)
    return np.asarray(np.copysign(np.sqrt(squares), means))


def _columns(sources: Sequence[Source], *, n_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and mean squares of level or difference over each column's frames, shape (80, n_columns) each."""
    sums: np.ndarray | None = None
    for grid, block in blocks(sources, wanted=Wanted(attributes=("log_bands",))):
        if sums is None:
            n_columns = max(1, min(n_columns, grid.n_frames // _FRAMES_PER_COLUMN))
            sums, counts = np.zeros((2, n_columns, N_MELS)), np.zeros((n_columns, 1))
        bands = block.spectra.log_bands  # (n_signals, n_frames, 80)
        if bands.shape[1] == 0:
            continue
        values = DB_PER_NEPER_OF_POWER * (bands[0] if len(bands) == 1 else bands[1] - bands[0])
        starts = (block.first_frame + np.arange(len(values))) * grid.hop_samples
        column = (starts + grid.frame_samples // 2) * n_columns // grid.n_samples
        first = np.flatnonzero(np.diff(column, prepend=-1))  # frame of each column, in this block
        for total, added in zip(sums, (values, values**2), strict=True):
            total[column[first]] += np.add.reduceat(added, first, axis=0)
        counts[:, 0] += np.bincount(column, minlength=n_columns)
    assert sums is not None  # a source has at least one block
    means, squares = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return means.T, squares.T


def level_picture(columns: np.ndarray, *, share: float) -> Picture:
    """Draw levels, shape (80, n_columns) in dB: clear from :data:`LEVEL_DB` below the loudest percent, full there."""
    top = np.nanpercentile(columns, 99)
    steps = np.clip((columns - top) / LEVEL_DB + 1.0, 0.0, 1.0) * 2 * _STEPS
    alphas = np.linspace(0.0, 1.0, 2 * _STEPS + 1)
    palette = [(*to_rgb(LEVEL), alpha) for alpha in alphas]
    return Picture(data=_png(steps, palette), share=share)


def difference_picture(columns: np.ndarray, *, share: float) -> Picture:
    """Draw differences, shape (80, n_columns) in dB: clear at 0, full colour from :data:`DIFFERENCE_DB` on."""
    steps = (np.clip(columns / DIFFERENCE_DB, -1.0, 1.0) + 1.0) * _STEPS
    palette = [(*to_rgb(LOUDER if step > 0 else QUIETER), abs(step) / _STEPS) for step in range(-_STEPS, _STEPS + 1)]
    return Picture(data=_png(steps, palette), share=share)


def _png(steps: np.ndarray, palette: Sequence[tuple[float, ...]]) -> str:
    """Write a picture of palette entries, NaN as the clear one; low bands at the bottom."""
    from PIL import Image

    clear = int(np.argmin([alpha for *_, alpha in palette]))
    entries = np.rint(np.where(np.isnan(steps), clear, steps)).astype(np.uint8)
    image = Image.fromarray(np.ascontiguousarray(entries[::-1]))
    image = image.convert("P") if image.mode != "P" else image
    colours = np.rint(np.asarray(palette) * 255).astype(np.uint8)
    image.putpalette(colours[:, :3].tobytes())
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True, transparency=colours[:, 3].tobytes())
    return _DATA + base64.b64encode(buffer.getvalue()).decode("ascii")
