"""Files of a run, written whole or not at all, in folders that are the suite's own.

A file is written under a temporary name next to its own, flushed to the disk and renamed, so that a process killed at
any moment leaves the old file, the new one or none, and at most a file or folder named ``.*.precision-eval-partial``,
which :func:`remove_unfinished` removes. A record names its files with their SHA-256, so that a later change is noticed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from precision_eval.core.errors import ParameterError, PrecisionEvalError

NO_SPACE: tuple[int, ...] = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk, a quota or a file size limit that is exhausted."""

PARTIAL = ".precision-eval-partial"
"""How the name of an unfinished file or folder ends; nobody else's does, so that only ours are ever removed."""

RUN_FOLDERS: tuple[str, ...] = ("audio", "figures", "streams")
"""Subfolders of a run in which files are written under temporary names."""

_NOBODYS: tuple[str, ...] = (".gitignore", ".gitkeep", ".DS_Store")
"""Names that do not make a folder somebody's."""


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


def remove_unfinished(run_dir: Path) -> None:
    """Remove what killed workers left unfinished; only while no run is under way in the folder."""
    for folder in (run_dir, *(run_dir / name for name in RUN_FOLDERS)):
        if folder.is_symlink() and folder != run_dir:
            continue
        for path in folder.glob(f".*{PARTIAL}"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def check_own_folder(folder: Path, *records: str) -> None:
    """Refuse to write results into a folder that holds something else.

    Allowed are a folder that is new or empty, one that holds one of the JSON Lines files `records`, and one that a
    stopped command left with nothing but the description of the environment.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ParameterError(f"--out {folder} is a file; give a folder")
    names = {path.name for path in folder.iterdir()} - set(_NOBODYS)
    if not names or any(_is_json_lines(folder / name) for name in records) or _is_only_begun(folder, names):
        return
    raise ParameterError(
        f"--out {folder} is not empty and holds no {' or '.join(records)}, so nothing is written there; "
        f"give a new folder, such as {folder / 'precision'}"
    )


def _is_json_lines(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(1) in (b"", b"{")


def _is_only_begun(folder: Path, names: set[str]) -> bool:
    """Say whether a command was stopped here before its first result."""
    environment = folder / "environment.json"
    if not environment.is_file() or not all(_BEGUN.fullmatch(name) for name in names):
        return False
    try:
        return "package" in json.loads(environment.read_bytes())
    except (ValueError, TypeError):
        return False


_BEGUN = re.compile(
    rf"environment(-[0-9a-f]{{12}})?\.json|[\w.-]+\.jsonl(\.torn)?|logs|streams|audio|\..*{re.escape(PARTIAL)}"
)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
