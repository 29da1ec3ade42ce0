"""What of a run can be heard: a player and a spectrogram for each recording.

A WAV is taken only where it is inside the run's folder and has the SHA-256 of its record. Players hold FLAC as long as
the page stays below its limit; beyond it they play the WAVs in the run's folder. Identical recordings are named so.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from audio_metrics.errors import AudioMetricsError
from audio_metrics.frames import Wanted, blocks
from audio_metrics.signal import FileSource
from audio_metrics.spectra import DB_PER_NEPER_OF_POWER, N_MELS
from precision_eval.core.files import sha256_of
from precision_eval.core.formatting import duration_long, grouped, status_text
from precision_eval.core.records import Record
from precision_eval.explain.messages import short_reason
from precision_eval.fixes.catalog import FIXES
from precision_eval.results.model import Group, Row
from precision_eval.results.reading import Run

LARGEST_BYTES = 15_000_000
"""Size of all players of a page together, up to which they are part of it."""

N_COLUMNS = 800
LEVEL_DB = 60.0
"""What a spectrogram shows below its loudest percent."""

_FRAMES_PER_COLUMN = 4  # at least, in a short sound
_ROLES = ("reference", "fix", "noise_floor", "control")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A condition with its picture and its player, or why it cannot be heard."""

    name: str
    explanation: str
    wav: str = ""
    length: str = ""
    digest: str = ""
    same_as: str = ""
    picture: str = ""
    source: str = ""
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class SoundSection:
    title: str
    recordings: tuple[Recording, ...]

    @property
    def in_page(self) -> bool:
        return any(recording.source.startswith("data:") for recording in self.recordings)


def sound_sections(run: Run) -> list[SoundSection]:
    """Return the recordings of a run that are there, case by case; empty where none is."""
    rows = [(group, row) for group in run.sections for row in group.rows if "synthesis" in row.records]
    if not any(_wav_name(row.records["synthesis"]) for _, row in rows):
        return []
    by_case = grouped(
        (f"{group.case} · {group.size} · {group.device}{group.pins}", (group, row)) for group, row in rows
    )
    sections = []
    for title, members in by_case.items():
        ordered = sorted(members, key=lambda member: _ROLES.index(member[1].role))
        recordings = _without_twins(_read(run.directory, group, row) for group, row in ordered)
        sections.append(SoundSection(title=title, recordings=tuple(recordings)))
    return _with_players(run.directory, sections)


def _wav_name(record: Record) -> str:
    return str((record.data or {}).get("wav", "")) if record.status == "passed" else ""


def _read(run_dir: Path, group: Group, row: Row) -> Recording:
    record = row.records["synthesis"]
    label = row.fix if group.mode == "eager" else f"{row.fix} ({group.mode})"
    recording = Recording(name=label, explanation=_explain(row.fix), wav=_wav_name(record))
    if why := _why_not(run_dir, recording.wav, record):
        return replace(recording, why_not=why)
    try:
        with FileSource(run_dir / recording.wav, dtype="float32", name=recording.wav) as source:
            length = duration_long(source.n_samples / source.sample_rate_hz)
            picture, digest = spectrogram(source), _digest(source)
    except AudioMetricsError as error:
        return replace(recording, why_not=str(error).replace(f"{run_dir}/", ""))
    return replace(recording, length=length, digest=digest, picture=picture)


def _why_not(run_dir: Path, wav: str, record: Record) -> str:
    """Say why a recording is not played; empty where it is."""
    if not wav:
        return f"not synthesized, {status_text(record.status)}: {short_reason(record.reason)}"
    path = run_dir / wav
    if not path.resolve().is_relative_to(run_dir.resolve()):
        return f"the record names {wav!r}, which lies outside the run's folder; it is not read"
    if not path.is_file():
        return f"{wav} is missing; the command that made the run makes it again"
    promised = {file["path"]: file["sha256"] for file in (record.data or {}).get("files", ())}.get(wav)
    if promised is not None and sha256_of(path) != promised:
        return f"{wav} is not the file that was measured: its SHA-256 is not the record's"
    return ""


def _explain(fix: str) -> str:
    from precision_eval.cases.voice.conditions import comparator_by_id

    comparator = comparator_by_id(fix)
    return comparator.explanation if comparator else next((known.title for known in FIXES if known.id == fix), "")


def _digest(source: FileSource) -> str:
    return hashlib.sha256(np.ascontiguousarray(source.read(0, source.n_samples)).tobytes()).hexdigest()


def _without_twins(recordings: Iterable[Recording]) -> list[Recording]:
    """Leave out picture and player of a recording whose every sample equals an earlier one's."""
    first: dict[str, str] = {}
    kept = []
    for recording in recordings:
        name = first.setdefault(recording.digest, recording.name) if recording.digest else recording.name
        twin = name != recording.name
        kept.append(replace(recording, same_as=name, picture="") if twin else recording)
    return kept


def _with_players(run_dir: Path, sections: list[SoundSection]) -> list[SoundSection]:
    """Give every recording its player: FLAC inside the page where all fit, else the WAV in the run's folder."""
    names = {one.wav for section in sections for one in section.recordings if one.picture}
    flacs = {name: _flac_address(run_dir / name) for name in sorted(names)}
    if sum(map(len, flacs.values())) > LARGEST_BYTES:
        flacs = {name: name for name in names}
    return [
        replace(section, recordings=tuple(replace(one, source=flacs.get(one.wav, "")) for one in section.recordings))
        for section in sections
    ]


def _flac_address(path: Path) -> str:
    import soundfile

    samples, rate = soundfile.read(path, dtype="float32")
    buffer = io.BytesIO()
    soundfile.write(buffer, np.clip(samples, -1.0, 1.0), rate, format="FLAC", subtype="PCM_16")
    return f"data:audio/flac;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def spectrogram(source: FileSource) -> str:
    """Return a spectrogram as the address of a PNG: mean level in 80 mel bands over time, low bands at the bottom."""
    from matplotlib.image import imsave

    levels = level_columns(source)
    top = float(np.nanpercentile(levels, 99)) if np.isfinite(levels).any() else 0.0
    buffer = io.BytesIO()
    imsave(buffer, levels, cmap="magma", vmin=top - LEVEL_DB, vmax=top, origin="lower", format="png")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def level_columns(source: FileSource, *, n_columns: int = N_COLUMNS) -> np.ndarray:
    """Return the mean level of each mel band in each column of time, shape (80, n_columns), in dB re full scale."""
    sums: np.ndarray | None = None
    for grid, block in blocks((source,), wanted=Wanted(attributes=("log_bands",))):
        if sums is None:
            n_columns = max(1, min(n_columns, grid.n_frames // _FRAMES_PER_COLUMN))
            sums, counts = np.zeros((n_columns, N_MELS)), np.zeros((n_columns, 1))
        levels = DB_PER_NEPER_OF_POWER * block.spectra.log_bands[0]  # (n_frames, 80)
        starts = (block.first_frame + np.arange(len(levels))) * grid.hop_samples
        column = np.minimum((starts + grid.frame_samples // 2) * n_columns // grid.n_samples, n_columns - 1)
        np.add.at(sums, column, levels)
        counts[:, 0] += np.bincount(column, minlength=n_columns)
    assert sums is not None  # a source has at least one block
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0).T
