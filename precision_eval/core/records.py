"""Records: what a run has measured, one line of :mod:`precision_eval.core.files` each.

Conventions: where a cell was recorded more than once, the last record counts (:func:`latest`), whatever the clock said.
A line is checked once, here: what does not fit :class:`Record`, or the figures of its measure in
:mod:`precision_eval.core.figures`, is no record, and is named with its line while the others are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from precision_eval.core.cells import Options
from precision_eval.core.errors import RecordError
from precision_eval.core.figures import Amount, Figures, Name, Text, figures_of, fit
from precision_eval.core.files import JsonLines, claimed, from_json, to_json
from precision_eval.core.formatting import visible

RECORDS_NAME = "records.jsonl"
SCHEMA_VERSION = 2

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
    extra : dict
        Fields of the line that this version does not know; they are written back as they were read.
    """

    cell: Name
    case: Name
    case_digest: Text
    fix: Name
    role: Name
    mode: Name
    device: Name
    size: Name
    threads: Annotated[int, Meta(ge=1, le=2**20)]
    measure: Name
    status: Name
    reason: str | None
    data: dict[str, Any] | None
    wall_s: Amount
    started_at: Name
    environment: Text
    options: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, known in (("status", self.status, STATUSES), ("role", self.role, ROLES)):
            if value not in known:
                raise RecordError(f"record of {self.cell}: {name} is '{value}'; expected one of {', '.join(known)}")

    @cached_property
    def figures(self) -> Figures | None:
        """The data as the measure's struct; None where the measure has none, or did not pass."""
        return figures_of(self.measure, self.data) if self.status == "passed" and self.data else None

    def to_json(self) -> str:
        """Return one line of strict JSON, without the newline; raises where the data are not plain and finite."""
        content = asdict(self)
        return to_json(content.pop("extra") | content, what=f"record of {self.cell}")

    @classmethod
    def from_json(cls, line: str | bytes, *, where: str = "record") -> Record:
        """Read one line without its newline; what is no record of this version raises and names `where`."""
        content = from_json(line, where=where)
        if not isinstance(content, dict):
            raise RecordError(f"{where} holds a JSON {type(content).__name__}; expected an object")
        version = content.get("schema_version")
        if version != SCHEMA_VERSION:
            raise RecordError(
                f"{where} has schema version {visible(str(version)[:40])}, this precision-eval reads {SCHEMA_VERSION}; "
                "use the version that wrote it, or another --out"
            )
        known = {item.name for item in fields(cls)} - {"extra"}
        extra = {name: value for name, value in content.items() if name not in known}
        try:
            record = fit({name: content[name] for name in known & set(content)} | {"extra": extra}, cls, where="record")
            fit(record.options, Options, where="record.options")
            _ = record.figures
        except RecordError as error:
            raise RecordError(f"{where}: {error}; it was edited or damaged, measure that cell again") from error
        return record


@dataclass(frozen=True)
class RecordsRead:
    """What a records file holds: its records, the length of a torn tail, and what is wrong with each unfit line."""

    records: tuple[Record, ...]
    torn_bytes: int = 0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordFile:
    """A records file, shared safely by processes of one machine."""

    path: Path

    def read(self) -> RecordsRead:
        """Read every whole line that is a record; raises where there are lines and none of them is one."""
        content = JsonLines(self.path).read()
        records, faults = [], []
        for number, line in content.lines:
            try:
                records.append(Record.from_json(line, where=f"{self.path} line {number}"))
            except RecordError as error:
                faults.append(str(error))
        if faults and not records:
            raise RecordError(faults[0])
        return RecordsRead(tuple(records), content.torn_bytes, tuple(faults))

    def append(self, records: Sequence[Record]) -> None:
        """Append records in one write, after moving a torn tail out of the way."""
        JsonLines(self.path).append([record.to_json() for record in records])

    def claimed(self) -> AbstractContextManager[None]:
        return claimed(self.path.parent)


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """Return the last record of each cell, in the order in which the cells first appeared."""
    newest: dict[str, Record] = {}
    for record in records:
        newest[record.cell] = record
    return newest
