"""Files of a run, written whole or not at all, in folders that are the suite's own; and JSON Lines, appended whole.

A file is written under a temporary name next to its own, flushed to the disk and renamed, so that a process killed at
any moment leaves the old file, the new one or none, and at most a file or folder named ``.*.precision-eval-partial``,
which :func:`remove_unfinished` removes. A record names its files with their SHA-256, so that a later change is noticed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError

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
    return [{"path": path.relative_to(run_dir).as_posix(), "sha256": sha256_of(path)} for path in paths]


def intact(run_dir: Path, files: Sequence[Mapping[str, str]]) -> bool:
    """Say whether every file is there and is byte for byte what :func:`described` saw."""
    paths = [(run_dir / file["path"], file["sha256"]) for file in files]
    return all(path.is_file() and sha256_of(path) == sha256 for path, sha256 in paths)


def remove_unfinished(run_dir: Path) -> None:
    """Remove what killed processes left unfinished; what another process that lives is writing stays."""
    for folder in (run_dir, *(run_dir / name for name in RUN_FOLDERS)):
        if folder.is_symlink() and folder != run_dir:
            continue
        for path in folder.glob(f".*{PARTIAL}"):
            if _is_being_written(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _is_being_written(name: str) -> bool:
    """Say whether the process whose number stands in a partial file's name lives, and is not this one."""
    number = re.search(rf"\.(\d+){re.escape(PARTIAL)}$", name)
    if number is None or int(number[1]) in (0, os.getpid()):
        return False
    try:
        os.kill(int(number[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def check_own_folder(folder: Path, *records: str) -> None:
    """Refuse to write results into a folder that holds something else.

    Allowed are a folder that is new or empty, one that holds one of the JSON Lines files `records`, and one that a
    stopped command left with nothing but the description of the environment.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ParameterError(f"--out {folder} is a file; give a folder")
    names = {path.name for path in folder.iterdir() if not _PARTIAL.fullmatch(path.name)} - set(_NOBODYS)
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


_PARTIAL = re.compile(rf"\..*{re.escape(PARTIAL)}")
_BEGUN = re.compile(
    r"environment(-[0-9a-f]{12})?\.json|self-test\.json|[\w.-]+\.jsonl(\.torn)?|engine|logs|streams|audio"
)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(data: Any, *, what: str, indent: int | None = None) -> str:
    """Return data as strict JSON, without a newline at its end."""
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=separators, indent=indent)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{what} is not strict JSON: {error}; give plain finite numbers") from error
    return _UNSEEN.sub(lambda char: ascii(char[0])[1:-1].replace("\\x", "\\u00"), text)


_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Control and direction characters, and lone surrogates, which no UTF-8 has: JSON writes them as escapes."""


def null_where_not_finite(value: Any) -> Any:
    """Return data as JSON has it: dicts and lists, with None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(name): null_where_not_finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [null_where_not_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(text: str | bytes, *, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # of text: no JSON, no UTF-8; brackets without end
        raise RecordError(f"{where} is damaged: {error}; repair or remove it") from error


def read_json(path: Path) -> Any:
    """Read a file that is one JSON document."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}; give a file that exists and may be read") from error
    return from_json(content, where=str(path))


def write_json(path: Path, data: Any, *, indent: int | None = 1) -> None:
    """Write a file that is one JSON document, whole or not at all."""
    text = to_json(data, what=str(path), indent=indent) + "\n"
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Lines:
    """The whole lines of a file, with their numbers from 1, and how many bytes of a torn one follow."""

    lines: tuple[tuple[int, bytes], ...]
    torn_bytes: int = 0


@dataclass(frozen=True)
class JsonLines:
    """A file of JSON objects, one per line, shared safely by processes of one machine."""

    path: Path

    def read(self) -> Lines:
        """Read every whole line, unparsed."""
        if not self.path.exists():
            return Lines(())
        whole, torn = _split_tail(self.path.read_bytes())
        lines = tuple((number, line) for number, line in enumerate(whole.split(b"\n"), start=1) if line.strip())
        return Lines(lines, len(torn))

    def append(self, lines: Sequence[str]) -> None:
        """Append lines in one write, after moving a torn tail out of the way."""
        if not lines:
            return
        block = "".join(f"{line}\n" for line in lines).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path) as descriptor:
                size = _repaired_size(descriptor, self.path)
                _write_whole(descriptor, block, size=size)
        except OSError as error:
            remedy = (
                "free space and run the same command again" if error.errno in NO_SPACE else "correct that and run again"
            )
            raise RecordError(
                f"cannot write {self.path}: {error.strerror}; what was already recorded is intact, {remedy}"
            ) from error


@dataclass(frozen=True)
class TrialFile:
    """Lines with a ``key`` (str) that names everything a line depends on: what is recorded is not measured again."""

    path: Path

    def read(self) -> list[dict[str, Any]]:
        """Return every whole line; where a key was recorded twice, the later one."""
        latest: dict[str, dict[str, Any]] = {}
        for number, line in JsonLines(self.path).read().lines:
            where = f"{self.path} line {number}"
            content = from_json(line, where=where)
            key = content.get("key") if isinstance(content, dict) else None
            if not isinstance(key, str):
                raise RecordError(f"{where} has no key; remove that line and run again")
            latest[key] = content
        return list(latest.values())

    def keys(self) -> set[str]:
        """Return the keys that need not be measured again."""
        return {line["key"] for line in self.read()}

    def append(self, line: dict[str, Any]) -> None:
        JsonLines(self.path).append([to_json(line, what=f"{line.get('key')}")])


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder for one command that measures; the hold ends with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RecordError(f"cannot use {folder}: {error.strerror}; correct that, or give another folder") from error
    try:
        _claim(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _claim(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RecordError(
            f"another run is under way in {folder}{_holder(descriptor)}; wait until it ends, or give another folder"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        with tempfile.TemporaryFile(dir=folder) as file:  # what locks no folder may lock files, which appending needs
            _lock(file.fileno(), folder)


def _holder(descriptor: int) -> str:
    """Name the process that holds a folder; empty where the system does not tell, as it does on Linux alone."""
    inode = str(os.fstat(descriptor).st_ino)
    with suppress(OSError):  # such as ``3: FLOCK  ADVISORY  WRITE 717 fe:00:3678 0 EOF``
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode and words[4] != "0":
                return f" (process {words[4]})"
    return ""


_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system says (NFS, FUSE) that cannot lock a folder; two runs at once are then the user's to avoid."""


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not strict JSON")


def _split_tail(content: bytes) -> tuple[bytes, bytes]:
    """Split a file into what ends with its last whole line, and a torn tail."""
    end = len(content)
    while end:
        start = content.rfind(b"\n", 0, end - 1) + 1
        if _is_object(content[start:end]):
            break
        end = start
    tail = content[end:]
    return (content[:end], tail) if tail.strip() else (content, b"")


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):  # of text: no JSON, no UTF-8; brackets without end
        return False


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Open a file for appending under an exclusive lock, which ends with the block or the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _lock(descriptor, path.parent)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise RecordError(
            f"files in {folder} cannot be locked ({error.strerror}), which keeps processes from writing at once; what "
            "is there is intact, give a folder of a file system with locks, such as a local disk"
        ) from error


_TAIL_BYTES = 1 << 20
"""How much of a file's end is read before a line is appended; the whole of it where no line ends there."""


def _repaired_size(descriptor: int, path: Path) -> int:
    """Move a torn tail away, and end a whole last line with its newline; return the size in bytes."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - _TAIL_BYTES)
    whole, torn = _split_tail(os.pread(descriptor, size - start, start))
    if start and not whole:
        start, (whole, torn) = 0, _split_tail(path.read_bytes())
    if torn:
        with path.with_name(f"{path.name}.torn").open("ab") as file:
            file.write(torn + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.ftruncate(descriptor, start + len(whole))
    if whole and not whole.endswith(b"\n"):
        _write_whole(descriptor, b"\n", size=start + len(whole))
        return start + len(whole) + 1
    return start + len(whole)


def _write_whole(descriptor: int, block: bytes, *, size: int) -> None:
    """Write all of `block` at the end of a file of `size` bytes, or leave the file at that size and raise."""
    try:
        written = os.write(descriptor, block)
        if written != len(block):
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({written} of {len(block)} bytes fitted)")
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
