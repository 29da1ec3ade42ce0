"""Which sounds a run has: the WAV of every condition, held against the record that names it.

Conventions: a WAV is taken only where it is whole, has the SHA-256 and the length of its record, and every sample is
finite; else the condition is *unheard*, with the file, what is wrong with it and the remedy. Two conditions are
identical where all their samples are; the files differ all the same, since a WAV of floats bears the second in which
it was written. Conditions of one case, size, device and pins form a group: they share the script, the frame grid
and so the cursor. A condition *leaves* the reference at the first frame of which a token differs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from audio_metrics.errors import AudioMetricsError
from audio_metrics.signal import ArraySource, FileSource, FirstPart, Source, clean
from audio_metrics.tokens import first_token_divergence
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, SAMPLE_RATE_HZ
from precision_eval.core.files import sha256_of
from precision_eval.core.records import Record
from precision_eval.explain.messages import short_reason
from precision_eval.fixes.catalog import FIXES
from precision_eval.results.model import Group, Row
from precision_eval.results.reading import Run

ORIGINAL = "original speech"
"""Label of the recording whose script the voice speaks; it never went through the codec."""

REMEDY = "the command that made the run makes it again"

_SPOKEN = "voice"  # the case whose script has a recording
_READ_SAMPLES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Sound:
    """A condition that can be heard."""

    label: str
    fix: str
    role: str
    explanation: str
    shown_path: str
    path: Path | None
    sample_rate_hz: int
    n_samples: int
    digest: str
    peak: float
    leaves_s: float | None = None
    measured: Record | None = field(default=None, repr=False)

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.n_samples / self.sample_rate_hz


@dataclass(frozen=True, kw_only=True)
class Unheard:
    """A condition without sound, and why."""

    label: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SoundGroup:
    """Conditions that share a cursor.

    Attributes
    ----------
    title : str
        Such as ``voice · default · cpu``.
    sounds : tuple of Sound
        The reference first, then fixes, noise floor, controls and the recording; all of one sample rate.
    unheard : tuple of Unheard
    """

    title: str
    sounds: tuple[Sound, ...]
    unheard: tuple[Unheard, ...]

    @property
    def reference(self) -> Sound | None:
        """The reference, where it can be heard."""
        return next((sound for sound in self.sounds if sound.role == "reference"), None)

    @property
    def n_samples(self) -> int:
        """Length of the longest sound in samples."""
        return max((sound.n_samples for sound in self.sounds), default=0)

    @property
    def duration_s(self) -> float:
        """Length of the longest sound in seconds."""
        return max((sound.duration_s for sound in self.sounds), default=0.0)

    def first_alike(self, sound: Sound) -> Sound:
        """Return the first sound of the group with the very samples of `sound`; itself where there is no other."""
        return next(other for other in self.sounds if other.digest == sound.digest)


def has_wavs(run: Run) -> bool:
    """Say whether any WAV that a record names is there at all."""
    names = {name for record in run.records if (name := _wav_name(record))}
    return any((run.directory / name).is_file() for name in names)


def groups_of(run: Run) -> tuple[SoundGroup, ...]:
    """Read, check and arrange every WAV of a run."""
    places: dict[tuple[str, str, str, str], list[tuple[Group, Row]]] = {}
    for section in run.sections:
        key = (section.case, section.size, section.device, section.pins)
        places.setdefault(key, []).extend((section, row) for row in section.rows if "synthesis" in row.records)
    groups = (_group(run, key, rows) for key, rows in places.items() if rows)
    return tuple(group for group in groups if group.sounds or group.unheard)


@contextmanager
def opened(sound: Sound) -> Iterator[Source]:
    """Open a sound for reading in blocks, float32."""
    if sound.path is None:
        yield FirstPart(_recording(), sound.n_samples)
        return
    with FileSource(sound.path, dtype="float32", name=sound.label) as source:
        yield source


def _group(run: Run, key: tuple[str, str, str, str], rows: Sequence[tuple[Group, Row]]) -> SoundGroup:
    case, size, device, pins = key
    found = [_examined(run, section, row) for section, row in rows]
    sounds = [one for one in found if isinstance(one, Sound)]
    unheard = [one for one in found if isinstance(one, Unheard)]
    rate = sounds[0].sample_rate_hz if sounds else 0
    for other in [sound for sound in sounds if sound.sample_rate_hz != rate]:
        sounds.remove(other)
        reason = f"{other.shown_path} has {other.sample_rate_hz} Hz, {sounds[0].shown_path} {rate} Hz; {REMEDY}"
        unheard.append(Unheard(label=other.label, reason=reason))
    order = ("reference", "fix", "noise_floor", "control")
    sounds.sort(key=lambda sound: order.index(sound.role))  # stable: fixes stay in the order of the tables
    sounds = _with_leaving(run, sounds, rows)
    if sounds and case == _SPOKEN and rate == SAMPLE_RATE_HZ:
        sounds.append(_original(max(sound.n_samples for sound in sounds)))
    title = " · ".join((case, size, device)) + pins.replace(",", ", ").replace("=", " ")
    return SoundGroup(title=title, sounds=tuple(sounds), unheard=tuple(unheard))


def _examined(run: Run, section: Group, row: Row) -> Sound | Unheard:
    """Check what a row's record of its synthesis names."""
    record = row.records["synthesis"]
    label = row.fix if section.mode == "eager" else f"{row.fix} ({section.mode})"
    name = _wav_name(record)
    if record.status != "passed" or not name:
        status = record.status.replace("_", " ")
        return Unheard(label=label, reason=f"not synthesised, {status}: {short_reason(record.reason)}")
    try:
        n_samples, rate, digest, peak = _read(run.directory, name, record)
    except (AudioMetricsError, _UnusableError) as error:
        return Unheard(label=label, reason=str(error).replace(f"{run.directory}/", "").removeprefix(f"{name}: "))
    return Sound(
        label=label,
        fix=row.fix,
        role=row.role,
        explanation=_explanation(row.fix),
        shown_path=name,
        path=run.directory / name,
        sample_rate_hz=rate,
        n_samples=n_samples,
        digest=digest,
        peak=peak,
        measured=row.records.get("audio") if row.data("audio") else None,
    )


class _UnusableError(Exception):
    """A WAV is not what its record says."""


def _read(run_dir: Path, name: str, record: Record) -> tuple[int, int, str, float]:
    """Return length, sample rate, digest of the samples and peak of a WAV that is what its record says."""
    path = _inside(run_dir, name)
    if path is None:
        raise _UnusableError(f"the record names {name!r}, which lies outside the run's folder; it is not read")
    if not path.is_file():
        raise _UnusableError(f"{name} is missing; {REMEDY}")
    with FileSource(path, dtype="float32", name=name) as source:
        n_samples, rate = source.n_samples, source.sample_rate_hz
        digest, peak, bad_s = _samples_of(source)
    promised = (record.data or {}).get("duration_s")
    if isinstance(promised, int | float) and round(promised * rate) != n_samples:
        raise _UnusableError(f"{name} lasts {n_samples / rate:.3f} s, its record says {promised:.3f} s; {REMEDY}")
    if not _is_recorded(run_dir, name, record):
        raise _UnusableError(f"{name} is not the file that was measured (its SHA-256 is not the record's); {REMEDY}")
    if bad_s is not None:
        raise _UnusableError(f"{name} has a sample that is not finite at {bad_s:.3f} s; it cannot be played")
    return n_samples, rate, digest, peak


def _samples_of(source: Source) -> tuple[str, float, float | None]:
    """Return digest, peak and the time of the first sample that is not finite."""
    digest, peak, bad_s = hashlib.sha256(), 0.0, None
    for start in range(0, source.n_samples, _READ_SAMPLES):
        samples = source.read(start, min(start + _READ_SAMPLES, source.n_samples))
        _, bad, highest = clean(samples)
        if bad is not None and bad_s is None:
            bad_s = (start + int(np.argmax(bad))) / source.sample_rate_hz
        digest.update(np.ascontiguousarray(samples).tobytes())
        peak = max(peak, highest)
    return digest.hexdigest(), peak, bad_s


def _is_recorded(run_dir: Path, name: str, record: Record) -> bool:
    """Say whether a file has the SHA-256 of its record; also yes where the record holds none."""
    promised = _files_of(record).get(name)
    if promised is None:
        return True
    path = _inside(run_dir, name)
    return path is not None and sha256_of(path) == promised


def _inside(run_dir: Path, name: str) -> Path | None:
    """Return the file that a record names; None where it lies outside the run's folder, links followed."""
    path = run_dir / name
    return path if path.resolve().is_relative_to(run_dir.resolve()) else None


def _files_of(record: Record) -> dict[str, str]:
    """Return path → SHA-256 of a record's files."""
    return {file["path"]: file["sha256"] for file in (record.data or {}).get("files", ())}


def _wav_name(record: Record) -> str:
    """Return the WAV that a record of a synthesis names; empty where there is none."""
    if record.measure != "synthesis" or record.status != "passed":
        return ""
    return str((record.data or {}).get("wav", ""))


def _with_leaving(run: Run, sounds: Sequence[Sound], rows: Iterable[tuple[Group, Row]]) -> list[Sound]:
    """Add to each sound when its tokens leave the reference's."""
    records = {_wav_name(row.records["synthesis"]): row.records["synthesis"] for _, row in rows}
    tokens = {sound.shown_path: _tokens(run.directory, records[sound.shown_path]) for sound in sounds}
    reference = next((tokens[sound.shown_path] for sound in sounds if sound.role == "reference"), None)
    return [replace(sound, leaves_s=_leaving_s(tokens[sound.shown_path], reference)) for sound in sounds]


def _tokens(run_dir: Path, record: Record) -> np.ndarray | None:
    """Return the tokens of a synthesis, (frames, codebooks); None where they are not there as they were recorded."""
    names = [name for name in _files_of(record) if name.endswith(".npy")]
    if not names or _inside(run_dir, names[0]) is None or not (run_dir / names[0]).is_file():
        return None
    if not _is_recorded(run_dir, names[0], record):
        return None
    try:  # mapped, so that no size that a file claims is taken from memory
        tokens = np.load(run_dir / names[0], allow_pickle=False, mmap_mode="r")
    except (EOFError, OSError, ValueError):
        return None
    return tokens if isinstance(tokens, np.ndarray) and tokens.ndim == 2 and tokens.dtype.kind in "iu" else None


def _leaving_s(tokens: np.ndarray | None, reference: np.ndarray | None) -> float | None:
    if tokens is None or reference is None or tokens.shape[1] != reference.shape[1]:
        return None
    # one sequence per codebook; NaN where it never differs
    firsts = [
        first_token_divergence(np.ascontiguousarray(expected), np.ascontiguousarray(found))
        for expected, found in zip(reference.T, tokens.T, strict=True)
    ]
    known = [first for first in firsts if not math.isnan(first)]
    return min(known) / FRAME_RATE_HZ if known else math.inf


def _explanation(fix: str) -> str:
    from precision_eval.cases.voice.conditions import comparator_by_id

    comparator = comparator_by_id(fix)
    if comparator is not None:
        return comparator.explanation
    return next((one.title for one in FIXES if one.id == fix), "")


@cache
def _recording() -> ArraySource:
    """The recording of the script that the voice speaks, from where the synthesis starts."""
    from precision_eval.cases.voice.assets import original_speech
    from precision_eval.measure.voice import PROMPT_FRAMES

    samples, sample_rate_hz = original_speech()
    return ArraySource(samples[PROMPT_FRAMES * HOP_SAMPLES :], sample_rate_hz=sample_rate_hz, name=ORIGINAL)


def _original(n_samples: int) -> Sound:
    source = FirstPart(_recording(), n_samples)
    digest, peak, _ = _samples_of(source)
    return Sound(
        label=ORIGINAL,
        fix="original",
        role="original",
        explanation="the recording of the same script, not through the codec",
        shown_path="speech.flac",
        path=None,
        sample_rate_hz=source.sample_rate_hz,
        n_samples=source.n_samples,
        digest=digest,
        peak=peak,
    )
