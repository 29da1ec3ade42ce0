"""Files of a run, written whole or not at all.

Conventions: a file is written under a temporary name beside its own, flushed to the disk and renamed, so that a process
killed at any moment leaves the old file, the new one or none, and at most a ``.partial`` beside it, which
:func:`sweep` removes. A record names the files that it stands for with their SHA-256, so that one that was lost, cut
short or exchanged afterwards is noticed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from precision_eval.core.errors import PrecisionEvalError

NO_SPACE: tuple[int, ...] = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk, a quota or a file size limit that is exhausted."""

PARTIAL = ".partial"
"""How the name of an unfinished file or folder ends."""


class UnwritableFileError(PrecisionEvalError, OSError):
    """A file of the run could not be written whole; nothing was left under its name."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Let a block write a file under a temporary name, then flush and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield partial
        move_whole(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def move_whole(partial: Path, path: Path) -> None:
    """Flush a finished file to the disk and give it its name, in one step for every other process."""
    _flush(partial)
    partial.replace(path)
    with suppress(OSError):  # some file systems cannot flush a folder; the rename is atomic without it
        _flush(path.parent)


def described(run_dir: Path, *paths: Path) -> list[dict[str, str]]:
    """Return path (relative to the run's folder) and SHA-256 of files, for a record's data under ``files``."""
    return [{"path": path.relative_to(run_dir).as_posix(), "sha256": _sha256(path)} for path in paths]


def intact(run_dir: Path, files: Sequence[Mapping[str, str]]) -> bool:
    """Say whether every file is there and is byte for byte what :func:`described` saw."""
    paths = [(run_dir / file["path"], file["sha256"]) for file in files]
    return all(path.is_file() and _sha256(path) == sha256 for path, sha256 in paths)


def sweep(run_dir: Path) -> None:
    """Remove what killed workers left unfinished; only while no run is under way in the folder."""
    for path in sorted(run_dir.rglob(f"*{PARTIAL}"), reverse=True):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
