"""Are these files a pair? What is checked before ``precision-eval audio`` works, from the headers alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from audio_metrics.errors import AudioParameterError, SignalFileError


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says of itself."""

    role: str
    path: Path
    sample_rate_hz: int
    channels: int
    n_samples: int
    subtype: str

    @property
    def text(self) -> str:
        """One line that names the file."""
        return f"{self.role}: {self.path} ({self.subtype})"

    def to_dict(self) -> dict[str, str]:
        """As plain data."""
        return {"path": str(self.path), "format": self.subtype}


AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".w64", ".rf64", ".au", ".caf"})


def pairs_of(reference: Path, estimate: Path) -> tuple[list[tuple[str, Path, Path]], list[str]]:
    """Files of two folders that bear one name, whatever their suffix, and the names that only one folder has."""
    folders = []
    for folder in (reference, estimate):
        files: dict[str, Path] = {}
        for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES):
            name = str(path.relative_to(folder).with_suffix(""))
            if name in files:
                raise AudioParameterError(
                    f"{files[name]} and {path} have one name; expected one recording of each name"
                )
            files[name] = path
        folders.append(files)
    first, second = folders
    pairs = [(name, first[name], second[name]) for name in first if name in second]
    if not pairs:
        raise AudioParameterError(
            f"no recording of {reference} has a partner of its name in {estimate}; pairs go by name"
        )
    return pairs, sorted(str(files[name]) for files in folders for name in set(files) - {pair[0] for pair in pairs})


def read_header(role: str, path: Path) -> Header:
    """Read the header of an audio file."""
    import soundfile

    if path.is_dir():
        raise SignalFileError(f"{role}: {path} is a folder; give an audio file in it")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except FileNotFoundError:
        raise SignalFileError(f"{role}: no file at {path}; check the path") from None
    except OSError as error:
        raise SignalFileError(f"{role}: {path} cannot be read ({error.strerror}); check its permissions") from error
    if empty:
        raise SignalFileError(f"{role}: {path} is empty (0 bytes); write it again")
    try:
        with soundfile.SoundFile(path) as sound:
            return Header(
                role=role,
                path=path,
                sample_rate_hz=sound.samplerate,
                channels=sound.channels,
                n_samples=int(sound.frames),
                subtype=str(sound.subtype),
            )
    except soundfile.LibsndfileError as error:
        raise SignalFileError(
            f"{role}: {path} is not a readable audio file ({error.error_string.rstrip('.')}); expected WAV, FLAC or "
            "another format of libsndfile"
        ) from error


def check_headers(reference: Path, estimate: Path, noise_floor: Path | None) -> list[Header]:
    """Read every header and refuse files that cannot be compared."""
    named = [("reference", reference), ("estimate", estimate)] + (
        [] if noise_floor is None else [("noise floor", noise_floor)]
    )
    headers = [read_header(role, path) for role, path in named]
    for header in headers[1:]:
        _check_pair(headers[0], header)
    return headers


def _check_pair(reference: Header, other: Header) -> None:
    from audio_metrics.signal import MIN_SAMPLE_RATE_HZ

    pair = (reference, other)
    if any(header.channels != 1 for header in pair):
        raise AudioParameterError(
            f"channels: {_both(pair, lambda h: str(h.channels))}; expected 1 each: choose a channel, or mix down, first"
        )
    if reference.sample_rate_hz != other.sample_rate_hz:
        raise AudioParameterError(
            f"sample rates differ: {_both(pair, lambda h: f'{h.sample_rate_hz} Hz')}; resample one of them, knowingly, "
            "first"
        )
    if reference.sample_rate_hz < MIN_SAMPLE_RATE_HZ:
        raise AudioParameterError(
            f"sample rate: {_both(pair, lambda h: f'{h.sample_rate_hz} Hz')}; expected at least {MIN_SAMPLE_RATE_HZ} Hz"
        )
    if any(header.n_samples == 0 for header in pair):
        raise AudioParameterError(
            f"no samples: {_both(pair, lambda h: f'{h.n_samples} samples')}; expected at least one frame of 43 ms each"
        )
    _refuse_torn(pair)
    if reference.n_samples != other.n_samples:
        raise AudioParameterError(
            f"lengths differ: {_both(pair, lambda h: f'{h.n_samples} samples')}; nothing is trimmed: cut both to the "
            "part that belongs together"
        )
    _check_frame(pair)


def _refuse_torn(pair: tuple[Header, Header]) -> None:
    """A file that was cut off is said to be, rather than to be shorter than the other."""
    from audio_metrics.signal import FileSource

    for header in pair:
        with FileSource(header.path, dtype="float32", name=header.role):
            pass


def _check_frame(pair: tuple[Header, Header]) -> None:
    from audio_metrics.frames import FrameGrid

    reference = pair[0]
    try:
        FrameGrid(reference.sample_rate_hz, reference.n_samples)
    except AudioParameterError as error:
        raise AudioParameterError(f"too short: {_both(pair, lambda h: f'{h.n_samples} samples')}; {error}") from None


def _both(pair: tuple[Header, Header], said: Callable[[Header], str]) -> str:
    return ", ".join(f"{header.role} {header.path} has {said(header)}" for header in pair)
