"""Records: what a run has measured, one strict JSON object per line, appended whole or not at all.

Conventions: ``records.jsonl`` is UTF-8, one :class:`Record` per line, each line ended by a newline that is written with
it in a single ``write``. NaN and infinity are not JSON and are refused. Whatever follows the last line that is a JSON
object (half a line, zeros or other bytes that a crash left) is *torn*: it is reported on reading, and moved to
``records.jsonl.torn`` on the next append; everything before it stays. Where a cell was recorded more than once, the
last record counts (:func:`latest`), whatever the clock said.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from precision_eval.core.errors import RecordError
from precision_eval.core.files import NO_SPACE

SCHEMA_VERSION = 2

_RENAMED_FIELDS = {"workload": "case", "workload_digest": "case_digest"}
_RENAMED_VALUES = {"oracle": "reference", "null": "noise_floor", "witness": "trace"}
_RENAMED_DATA = {"against_oracle": "against_reference"}

STATUSES: tuple[str, ...] = (
    "passed",
    "raised",
    "non_finite",
    "unsupported",
    "out_of_memory",
    "timed_out",
    "crashed",
)

ROLES: tuple[str, ...] = ("fix", "reference", "noise_floor", "control")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement of one cell.

    Attributes
    ----------
    cell : str
        ``case/fix/mode@device:size#measure``.
    case, case_digest, fix, role, mode, device, size, measure : str
        What was measured; the digest changes whenever the case's definition does. `role` is one of ``ROLES``.
    threads : int
        Intra-op threads.
    status : str
        One of ``STATUSES``.
    reason : str or None
        Why there is no figure; None where the status is passed.
    data : dict or None
        The figures, as the measure defines them; None where there are none.
    options : dict
        Options of the run that this measure depends on (minutes, streams, seed, …).
    wall_s : float
        Time the cell took.
    started_at : str
        ISO 8601 with offset.
    environment : str
        SHA-256 of the environment file it was measured under.
    schema_version : int
        Of this layout.
    """

    cell: str
    case: str
    case_digest: str
    fix: str
    role: str
    mode: str
    device: str
    size: str
    threads: int
    measure: str
    status: str
    reason: str | None
    data: dict[str, Any] | None
    wall_s: float
    started_at: str
    environment: str
    options: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for name, value, known in (("status", self.status, STATUSES), ("role", self.role, ROLES)):
            if value not in known:
                raise RecordError(f"record of {self.cell}: {name} is '{value}'; expected one of {', '.join(known)}")

    def to_json(self) -> str:
        """Return one line of strict JSON, without the newline.

        Raises
        ------
        RecordError
            The data hold NaN, infinity or something that is not plain data.
        """
        try:
            return json.dumps(asdict(self), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise RecordError(
                f"record of {self.cell} is not strict JSON: {error}; give plain finite numbers"
            ) from error

    @classmethod
    def from_json(cls, line: str, *, where: str = "record") -> Record:
        """Read one line.

        Parameters
        ----------
        line : str
            Without its newline.
        where : str
            File and line, for the error.

        Raises
        ------
        RecordError
            The line is no JSON object, has another schema version, or lacks or adds a field.
        """
        try:
            found = json.loads(line, parse_constant=_refuse_constant)
        except ValueError as error:
            raise RecordError(f"{where} is damaged: {error}; mend or remove that line") from error
        if not isinstance(found, dict):
            raise RecordError(f"{where} holds a JSON {type(found).__name__}; expected an object")
        version = found.get("schema_version")
        if version == 1:
            found = _from_version_1(found)
        elif version != SCHEMA_VERSION:
            raise RecordError(
                f"{where} has schema version {version}, this precision-eval reads 1 and {SCHEMA_VERSION}; "
                "use the version that wrote it, or another --out"
            )
        known = {item.name for item in fields(cls)}
        if set(found) != known:
            missing, extra = sorted(known - set(found)), sorted(set(found) - known)
            raise RecordError(
                f"{where} lacks {missing or 'nothing'} and adds {extra or 'nothing'}; it was edited or damaged"
            )
        return cls(**found)


@dataclass(frozen=True)
class Reading:
    """What a records file holds."""

    records: tuple[Record, ...]
    torn_bytes: int = 0


@dataclass(frozen=True)
class RecordFile:
    """A records file, shared safely by processes of one machine."""

    path: Path

    def read(self) -> Reading:
        """Read every whole record."""
        if not self.path.exists():
            return Reading(())
        content = self.path.read_bytes()
        whole, torn = _split_tail(content)
        records = tuple(
            Record.from_json(_decoded(line, where=f"{self.path} line {number}"), where=f"{self.path} line {number}")
            for number, line in enumerate(whole.split(b"\n"), start=1)
            if line.strip()
        )
        return Reading(records, len(torn))

    def append(self, records: Sequence[Record]) -> None:
        """Append records in one write, after moving a torn tail out of the way."""
        if not records:
            return
        block = "".join(record.to_json() + "\n" for record in records).encode()
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

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the file's folder for one run; the hold ends with the process, however that ends."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise RecordError(f"cannot use {folder}: {error.strerror}; mend that, or give another --out") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise RecordError(
                f"another run is under way in {folder}; wait until it ends, or give another --out"
            ) from error
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


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """Return the last record of each cell, in the order in which the cells first appeared."""
    found: dict[str, Record] = {}
    for record in records:
        found[record.cell] = record
    return found


def _from_version_1(found: dict[str, Any]) -> dict[str, Any]:
    """Return a record of schema version 1 in the words of version 2: case, reference, noise floor, trace."""
    renamed = {_RENAMED_FIELDS.get(name, name): value for name, value in found.items()}
    for name in ("fix", "role", "measure"):
        if isinstance(value := renamed.get(name), str):
            renamed[name] = _RENAMED_VALUES.get(value, value)
    if isinstance(cell := renamed.get("cell"), str):
        for old, new in _RENAMED_VALUES.items():
            cell = re.sub(rf"(?<=[/#]){old}(?=/|$)", new, cell)
        renamed["cell"] = cell
    if isinstance(data := renamed.get("data"), dict):
        renamed["data"] = {_RENAMED_DATA.get(name, name): value for name, value in data.items()}
    return {**renamed, "schema_version": SCHEMA_VERSION}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not strict JSON")


def _decoded(line: bytes, *, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{where} is damaged: {error}; mend or remove that line") from error


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
