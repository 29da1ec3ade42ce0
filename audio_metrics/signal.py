"""Input contract, block reader, and the check that a file is whole.

Conventions: a signal is mono, float32 or float64, full scale = 1.0, time in samples from 0. Two signals that are
compared have the same sample rate, dtype and (where aligned) length. Nothing is resampled or mixed down unless it is
asked for, and nothing is normalised, trimmed or warped; what does not fit raises an error. Samples that are not finite
are no input error: they are measured around and reported with their time.

libsndfile takes what it finds for all there was, so a file's own sizes are held against what is there: WAV, RF64, W64,
AIFF, AU and Ogg say how long they are; FLAC is found torn when it is decoded, MP3 says nothing. A size of 0 or of all
ones is that of a stream whose length was not known, and is no fault.
"""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np

from audio_metrics.errors import AudioParameterError, SignalFileError

_OGG_TAIL = 65_536  # no page is longer
_LAST_PAGE = 0x04


def check_whole(path: Path, name: str) -> None:
    """Refuse a file that is shorter than it says, or whose sizes do not agree."""
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(40)
        if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
            promised = _riff_end(file, n_bytes, "little")
        elif head[:4] == b"riff" and head[24:28] == b"wave":
            promised = _w64_end(file, n_bytes)
        elif head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
            promised = _riff_end(file, n_bytes, "big")
        elif head[:4] == b".snd":
            promised = _au_end(head)
        elif head[:4] == b"OggS":
            _check_ogg_end(file, n_bytes, path, name)
            return
        else:
            return
    if promised > n_bytes + 1:  # a last byte of padding is often left out
        raise SignalFileError(
            f"{name}: {path} has {n_bytes} bytes, its header promises {promised}; it is torn: write the file again"
        )
    if promised < 0:
        raise SignalFileError(
            f"{name}: {path} has sound after the end that its header gives; its sizes lie: write the file again"
        )


def _unknown(size: int, n_bytes: int) -> bool:
    return size in (0, 256**n_bytes - 1)


def _riff_end(file: BinaryIO, n_bytes: int, order: Literal["little", "big"]) -> int:
    """Where the chunks of a RIFF, RF64 or AIFF file end; −1 where what follows the sound is no chunk."""
    file.seek(4)
    whole = int.from_bytes(file.read(4), order)
    file.seek(12)
    end, sound_size = 0 if _unknown(whole, 4) else whole + 8, None
    while file.tell() + 8 <= n_bytes:
        start = file.tell()
        kind, size = file.read(4), int.from_bytes(file.read(4), order)
        if not all(32 <= letter < 127 for letter in kind):
            return -1 if sound_size is not None and start < n_bytes - 16 else max(end, start)
        if kind == b"ds64":
            sizes = file.read(16)
            sound_size = int.from_bytes(sizes[8:], "little")
        if kind in (b"data", b"SSND"):
            if _unknown(size, 4):
                if sound_size is None:
                    return 0  # a stream
                size = sound_size
            sound_size = size
        end = max(end, start + 8 + size)
        file.seek(start + 8 + size + size % 2)
    return end


def _w64_end(file: BinaryIO, n_bytes: int) -> int:
    file.seek(16)
    end = int.from_bytes(file.read(8), "little")
    file.seek(40)
    while file.tell() + 24 <= n_bytes:
        start = file.tell()
        kind, size = file.read(16), int.from_bytes(file.read(8), "little")
        if size < 24:
            break
        if kind[:4] == b"data":
            end = max(end, start + size)
        file.seek(start + size + -size % 8)
    return end


def _au_end(head: bytes) -> int:
    offset, size = int.from_bytes(head[4:8], "big"), int.from_bytes(head[8:12], "big")
    return 0 if _unknown(size, 4) else offset + size


def _check_ogg_end(file: BinaryIO, n_bytes: int, path: Path, name: str) -> None:
    """An Ogg stream ends with a whole page that says it is the last."""
    file.seek(max(0, n_bytes - _OGG_TAIL))
    tail = file.read()
    page = tail.rfind(b"OggS")
    flags = tail[page + 5] if 0 <= page < len(tail) - 27 else 0
    if not flags & _LAST_PAGE:
        raise SignalFileError(f"{name}: {path} does not end with a last Ogg page; it is torn: write the file again")
    n_segments = tail[page + 26]
    body = sum(tail[page + 27 : page + 27 + n_segments])
    if page + 27 + n_segments + body > len(tail):
        raise SignalFileError(f"{name}: {path} ends within its last Ogg page; it is torn: write the file again")


MIN_SAMPLE_RATE_HZ = 8000  # below it the lowest of the 80 mel bands would hold no bin

MAX_SAMPLE_RATE_HZ = 768_000  # a header that claims more is damaged

MAX_ABS_SAMPLE = 1e12  # larger samples overflow float32 power; they count as not finite

_CHECKED_SAMPLES = 1 << 16

FloatName = Literal["float32", "float64"]


class Source(Protocol):
    """Anything that reads ranges of one mono signal."""

    @property
    def name(self) -> str:
        """What an error calls the signal."""

    @property
    def sample_rate_hz(self) -> int:
        """Samples per second."""

    @property
    def n_samples(self) -> int:
        """Length in samples."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """Samples ``start`` to ``stop`` (exclusive), shape (stop - start,)."""


class ArraySource:
    def __init__(self, samples: np.ndarray, *, sample_rate_hz: int, name: str) -> None:
        check_samples(samples, name)
        self.name = name
        self.sample_rate_hz = _checked_rate(sample_rate_hz)
        self.n_samples = len(samples)
        self.dtype = samples.dtype
        self._samples = samples

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._samples[start:stop]


class Relabelled:
    """The samples of a source at another sample rate than it says."""

    def __init__(self, source: Source, sample_rate_hz: int) -> None:
        self.name = source.name
        self.sample_rate_hz = sample_rate_hz
        self.n_samples = source.n_samples
        self.dtype = source.dtype
        self.read = source.read


class Resampled:
    """A source at another sample rate: scipy's polyphase filter, block by block, the same whatever the blocks."""

    def __init__(self, source: Source, sample_rate_hz: int) -> None:
        common = math.gcd(source.sample_rate_hz, sample_rate_hz)
        self._up, self._down = sample_rate_hz // common, source.sample_rate_hz // common
        self._reach = self._down * (2 + 20 * max(self._up, self._down) // (self._up * self._down))
        self._source = source
        self.name = source.name
        self.sample_rate_hz = sample_rate_hz
        self.n_samples = -(-source.n_samples * self._up // self._down)
        self.dtype = source.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        from scipy.signal import resample_poly

        first = max(0, start // self._up * self._down - self._reach)  # a whole number of steps: the phase stays
        last = min(self._source.n_samples, -(-stop // self._up) * self._down + self._reach)
        samples = resample_poly(self._source.read(first, last).astype(np.float64), self._up, self._down)
        offset = first // self._down * self._up
        return np.asarray(samples[start - offset : stop - offset].astype(self.dtype))


class FileSource:
    """An audio file that libsndfile reads, block by block; a context manager.

    With `mono`, channels are mixed to their mean; otherwise there must be one.
    """

    def __init__(self, path: Path | str, *, dtype: FloatName, name: str, mono: bool = False) -> None:
        import soundfile

        if dtype not in ("float32", "float64"):
            raise AudioParameterError(f"dtype is {dtype!r}; expected 'float32' or 'float64'")
        if not isinstance(path, (str, PathLike)):
            raise AudioParameterError(f"{name} is a {type(path).__name__}; expected the path of an audio file")
        self.path = Path(path)
        if not self.path.is_file():
            raise SignalFileError(f"{name}: no file at {self.path}; check the path")
        try:
            self._file = soundfile.SoundFile(self.path)
        except soundfile.LibsndfileError as error:
            raise SignalFileError(f"{name}: {self.path} is not a readable audio file ({error})") from error
        self.name = name
        self.subtype = str(self._file.subtype)
        self.dtype = np.dtype(dtype)
        self._error = soundfile.LibsndfileError
        self._mono = mono
        try:
            check_whole(self.path, name)
            self._check_header()
        except (AudioParameterError, SignalFileError):
            self._file.close()
            raise

    def _check_header(self) -> None:
        if self._file.channels != 1 and not self._mono:
            raise AudioParameterError(
                f"{self.name}: {self.path} has {self._file.channels} channels; expected 1; add --mono (mono=True in "
                "Python) to mix them, or choose a channel first"
            )
        self.sample_rate_hz = _checked_rate(self._file.samplerate)
        self.n_samples = int(self._file.frames)
        if self.n_samples == 0:
            raise AudioParameterError(f"{self.name}: {self.path} has no samples; expected at least one frame")

    def read(self, start: int, stop: int) -> np.ndarray:
        try:
            if self._file.tell() != start:
                self._file.seek(start)
            samples = self._file.read(stop - start, dtype=self.dtype.name)
        except self._error as error:
            raise SignalFileError(
                f"{self.name}: {self.path} cannot be decoded at sample {start} of {self.n_samples} "
                f"({error.error_string.rstrip('.')}); it is torn or damaged: write it again"
            ) from error
        if len(samples) != stop - start:
            raise SignalFileError(
                f"{self.name}: {self.path} ends at sample {start + len(samples)}, its header promises "
                f"{self.n_samples}; write the file again"
            )
        return np.asarray(samples if samples.ndim == 1 else samples.mean(axis=1, dtype=self.dtype))

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def checked_pair(
    reference: np.ndarray, estimate: np.ndarray, *, sample_rate_hz: int, aligned: bool
) -> tuple[ArraySource, ArraySource]:
    pair = (
        ArraySource(reference, sample_rate_hz=sample_rate_hz, name="reference"),
        ArraySource(estimate, sample_rate_hz=sample_rate_hz, name="estimate"),
    )
    check_alike(*pair, aligned=aligned)
    return pair


def check_alike(reference: Source, estimate: Source, *, aligned: bool) -> None:
    """Refuse two sources of different sample rate, dtype or (with `aligned`) length."""
    if reference.sample_rate_hz != estimate.sample_rate_hz:
        raise AudioParameterError(
            f"sample rates differ: {_named(reference)} {reference.sample_rate_hz} Hz, {_named(estimate)} "
            f"{estimate.sample_rate_hz} Hz; add --resample (resample=True in Python) to resample the second"
        )
    _check_same_dtype(reference.dtype, estimate.dtype)
    if aligned:
        _check_same_length(reference.n_samples, estimate.n_samples)


def _named(source: Source) -> str:
    return f"{source.name} {source.path}" if isinstance(source, FileSource) else source.name


def check_aligned_samples(reference: np.ndarray, estimate: np.ndarray) -> None:
    """Refuse two arrays that are no signals, or of different dtype or length; for metrics that need no sample rate."""
    check_samples(reference, "reference")
    check_samples(estimate, "estimate")
    _check_same_dtype(reference.dtype, estimate.dtype)
    _check_same_length(len(reference), len(estimate))


def clean(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Replace samples that are not finite by zero, and say where they were."""
    if len(samples) == 0:
        return samples, None, 0.0
    peak = max(float(samples.max()), -float(samples.min()))  # NaN propagates through max and min
    if peak <= MAX_ABS_SAMPLE:
        return samples, None, peak
    bad = ~(np.abs(samples) <= MAX_ABS_SAMPLE)
    finite = np.where(bad, samples.dtype.type(0), samples)
    return finite, bad, float(np.abs(finite).max())


def refuse_bad_samples(*sources: Source) -> None:
    """Refuse sources that hold a sample that is not finite; for plain functions, which report no flags."""
    for source in sources:
        for start in range(0, source.n_samples, _CHECKED_SAMPLES):
            _, bad, _ = clean(source.read(start, min(start + _CHECKED_SAMPLES, source.n_samples)))
            if bad is not None:
                sample = start + int(np.argmax(bad))
                raise AudioParameterError(
                    f"{source.name}: sample {sample} is not finite; cut or repair the signal first"
                )


def _check_same_dtype(reference: np.dtype[Any], estimate: np.dtype[Any]) -> None:
    if reference != estimate:
        raise AudioParameterError(
            f"dtypes differ: reference {reference}, estimate {estimate}; convert one of them first"
        )


def _check_same_length(reference: int, estimate: int) -> None:
    if reference != estimate:
        raise AudioParameterError(
            f"lengths differ: reference {reference} samples, estimate {estimate}; aligned metrics need equal length: "
            'cut both to the part that belongs together, or compare with align="lag"'
        )


def check_samples(samples: np.ndarray, name: str) -> None:
    """Refuse what is no mono floating signal; `name` is what the error calls it."""
    if not isinstance(samples, np.ndarray):
        raise AudioParameterError(f"{name} is a {type(samples).__name__}; expected a numpy array of shape (n_samples,)")
    if isinstance(samples, np.ma.MaskedArray):
        raise AudioParameterError(
            f"{name} is a masked array, whose mask would not be seen; cut or fill the samples first"
        )
    if samples.ndim != 1:
        raise AudioParameterError(
            f"{name} has shape {samples.shape}; expected mono, shape (n_samples,); choose or mix a channel first"
        )
    if samples.dtype not in (np.float32, np.float64):
        raise AudioParameterError(
            f"{name} has dtype {samples.dtype}; expected float32 or float64 with full scale 1.0; convert it first"
        )
    if len(samples) == 0:
        raise AudioParameterError(f"{name} is empty; expected at least one frame of samples")


def _checked_rate(sample_rate_hz: int) -> int:
    if isinstance(sample_rate_hz, bool) or not isinstance(sample_rate_hz, (int, np.integer)):
        raise AudioParameterError(f"sample_rate_hz is {sample_rate_hz!r}; expected an integer in Hz")
    if not MIN_SAMPLE_RATE_HZ <= sample_rate_hz <= MAX_SAMPLE_RATE_HZ:
        limit = (
            f"at least {MIN_SAMPLE_RATE_HZ}" if sample_rate_hz < MIN_SAMPLE_RATE_HZ else f"at most {MAX_SAMPLE_RATE_HZ}"
        )
        raise AudioParameterError(f"sample_rate_hz is {sample_rate_hz}; expected {limit}")
    return int(sample_rate_hz)
