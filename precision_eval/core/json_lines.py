"""Strict JSON, as one document or as lines of a file that several processes append to.

Conventions: NaN and infinity are not JSON and are refused, on writing and on reading. A file of lines is UTF-8, one
object per line; a block of lines is appended in a single ``write`` under a lock, whole or not at all. Whatever follows
the last line that is a JSON object (half a line, zeros or other bytes that a crash left) is *torn*: it is reported on
reading, and moved to ``NAME.torn`` on the next append; everything before it stays.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import RecordError
from precision_eval.core.files import NO_SPACE, written_whole


def to_json(data: Any, *, what: str, indent: int | None = None) -> str:
    """Return data as strict JSON, without a newline at its end."""
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=separators, indent=indent)
        if text.isascii() or _can_be_encoded(text):
            return text
        return json.dumps(data, allow_nan=False, separators=separators, indent=indent)  # a lone surrogate, as \udc80
    except (TypeError, ValueError) as error:
        raise RecordError(f"{what} is not strict JSON: {error}; give plain finite numbers") from error


def from_json(text: str | bytes, *, where: str) -> Any:
    """Read strict JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # of text: no JSON, no UTF-8; brackets without end
        raise RecordError(f"{where} is damaged: {error}; mend or remove it") from error


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
            with _locked(self.path) as descriptor:
                size = _repaired_size(descriptor, self.path)
                _write_whole(descriptor, block, size=size)
        except OSError as error:
            remedy = (
                "free space and run the same command again" if error.errno in NO_SPACE else "mend that and run again"
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
        """Append one line."""
        JsonLines(self.path).append([to_json(line, what=f"{line.get('key')}")])


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder for one run; the hold ends with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise RecordError(f"cannot use {folder}: {error.strerror}; mend that, or give another --out") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RecordError(f"another run is under way in {folder}; wait until it ends, or give another --out") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        os.close(descriptor)


_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP)
"""What a file system says (NFS, FUSE) that cannot lock a folder; two runs at once are then the user's to avoid."""


def _can_be_encoded(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
def _locked(path: Path) -> Iterator[int]:
    """Open a file for appending under an exclusive lock that ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _repaired_size(descriptor: int, path: Path) -> int:
    """Move a torn tail away, and end a whole last line with its newline; return the size in bytes."""
    content = path.read_bytes()
    whole, torn = _split_tail(content)
    if torn:
        with path.with_name(f"{path.name}.torn").open("ab") as file:
            file.write(torn + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.ftruncate(descriptor, len(whole))
    if whole and not whole.endswith(b"\n"):
        _write_whole(descriptor, b"\n", size=len(whole))
        return len(whole) + 1
    return len(whole)


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
