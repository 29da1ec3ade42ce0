"""Is an audio file whole? Its own sizes against what is there; libsndfile takes what it finds for all there was.

Conventions: WAV, RF64, W64, AIFF, AU and Ogg say how long they are; FLAC is found torn when it is decoded, MP3 says
nothing. A size of 0 or of all ones is that of a stream whose length was not known, and is no fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from audio_metrics.errors import SignalFileError

_OGG_TAIL = 65_536  # no page is longer
_LAST_PAGE = 0x04


def check_whole(path: Path, name: str) -> None:
    """Refuse a file that is shorter than it says, or whose sizes do not agree."""
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(40)
        if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
            promised = _riff_end(file, n_bytes, size_bytes=4, order="little")
        elif head[:4] == b"riff" and head[24:28] == b"wave":
            promised = _w64_end(file, n_bytes)
        elif head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
            promised = _riff_end(file, n_bytes, size_bytes=4, order="big")
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


def _riff_end(file: BinaryIO, n_bytes: int, *, size_bytes: int, order: str) -> int:
    """Where the chunks of a RIFF, RF64 or AIFF file end; −1 where what follows the sound is no chunk."""
    file.seek(4)
    whole = int.from_bytes(file.read(size_bytes), order)  # type: ignore[arg-type]
    file.seek(12)
    end, sound_size = 0 if _unknown(whole, 4) else whole + 8, None
    while file.tell() + 8 <= n_bytes:
        start = file.tell()
        kind, size = file.read(4), int.from_bytes(file.read(4), order)  # type: ignore[arg-type]
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
