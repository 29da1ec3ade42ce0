"""Records of one run, arranged as a report reads them.

A *section* is case × size × mode × device × pinned settings; a *row* is everything that was recorded about one fix
(or reference, noise floor, control) in that section. Where a cell was recorded twice, the later record counts.
Nothing is computed here beyond selection; units are those of the records (seconds, bytes, dB, nats).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from precision_eval.core.cells import pins_text
from precision_eval.core.errors import RecordError
from precision_eval.core.records import Record, RecordFile, latest
from precision_eval.fixes.catalog import FIXES
from precision_eval.results.choose.reading import status_of

RECORDS_NAME = "records.jsonl"
ENVIRONMENT_NAME = "environment.json"

ROLE_ORDER = ("reference", "fix", "noise_floor", "control")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Everything recorded about one fix in one section."""

    fix: str
    role: str
    records: Mapping[str, Record]

    @property
    def status(self) -> str:
        """One status for the row; see :func:`~precision_eval.results.choose.reading.status_of`."""
        return status_of(list(self.records.values()))[0]

    @property
    def reason(self) -> str | None:
        """The message that came with :attr:`status`, or None."""
        return status_of(list(self.records.values()))[1]

    @property
    def incomplete(self) -> dict[str, tuple[str, str | None]]:
        """Measures whose status differs from the row's: measure to (status, reason)."""
        return {
            measure: (record.status, record.reason)
            for measure, record in self.records.items()
            if record.status not in (self.status, "passed")
        }

    def data(self, *measures: str) -> Mapping[str, Any] | None:
        """Data of the first of `measures` that passed, or None."""
        for measure in measures:
            record = self.records.get(measure)
            if record is not None and record.status == "passed" and record.data:
                return record.data
        return None

    @property
    def drift(self) -> Mapping[str, Any] | None:
        """Drift data, of whichever kind the case has."""
        return self.data("teacher_forced_drift", "drift")


@dataclass(frozen=True, kw_only=True)
class Section:
    """One case × size × mode × device × pinned settings of a run."""

    case: str
    size: str
    mode: str
    device: str
    threads: int | None
    rows: tuple[Row, ...]
    pins: str = ""

    @property
    def title(self) -> str:
        """Text such as ``voice · default · eager · cpu, 1 thread``, with what is pinned after it."""
        threads = "" if self.threads is None else f", {self.threads} thread{'' if self.threads == 1 else 's'}"
        pins = self.pins.replace(",", ", ").replace("=", " ")
        return f"{self.case} · {self.size} · {self.mode} · {self.device}{threads}{pins}"

    @property
    def slug(self) -> str:
        """Name for files, such as ``voice-default-eager-cpu``."""
        pins = self.pins.replace(",", "-").replace("=", "-")
        return "-".join((self.case, self.size, self.mode, self.device)).replace(":", "") + pins

    @property
    def fixes(self) -> tuple[Row, ...]:
        """The rows of fixes alone."""
        return tuple(row for row in self.rows if row.role == "fix")

    @property
    def curing(self) -> tuple[Row, ...]:
        """The fixes with which the case runs and stays finite."""
        return tuple(row for row in self.fixes if row.status == "passed")

    @property
    def failing(self) -> tuple[Row, ...]:
        """The fixes with which it does not."""
        return tuple(row for row in self.fixes if row.status != "passed")

    def having(self, *measures: str) -> tuple[Row, ...]:
        """Rows of any role that have data of one of `measures`."""
        return tuple(row for row in self.rows if row.data(*measures) is not None)


@dataclass(frozen=True, kw_only=True)
class Run:
    """All sections of a run, in a stable order."""

    directory: Path
    records: tuple[Record, ...] = field(repr=False)
    environment: Mapping[str, Any] = field(repr=False)
    torn_bytes: int = 0

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Sections ordered by case, size, mode (eager first) and device."""
        groups: dict[tuple[str, str, str, str, str], list[Record]] = {}
        for record in self.records:
            key = (record.case, record.size, record.mode, record.device, pins_of(record))
            groups.setdefault(key, []).append(record)
        ordered = sorted(groups, key=lambda key: (key[0], key[1], key[2] != "eager", *key[2:]))
        return tuple(_section(key, groups[key]) for key in ordered)

    def comparators(self, section: Section, measure: str) -> tuple[Row, ...]:
        """Reference, noise floor and control rows for `section`.

        They are computed once, eagerly, so a compiled section borrows those of its case, size and device.
        """
        own = [row for row in section.rows if row.role != "fix" and row.data(measure)]
        known = {row.fix for row in own}
        for other in self.sections:
            same = (other.case, other.size, other.device, other.pins) == (
                section.case,
                section.size,
                section.device,
                section.pins,
            )
            for row in other.rows if same else ():
                if row.role != "fix" and row.fix not in known and row.data(measure):
                    own.append(row)
                    known.add(row.fix)
        return tuple(sorted(own, key=_row_order))

    def grids(self) -> Iterator[tuple[str, str, tuple[Section, ...]]]:
        """Yield (case, device and pins, its sections): what belongs into one figure."""
        keys = dict.fromkeys((section.case, section.device, section.pins) for section in self.sections)
        for key in keys:
            own = tuple(section for section in self.sections if (section.case, section.device, section.pins) == key)
            yield key[0], key[1] + key[2].replace(",", " ").replace("=", " "), own


def load_run(run_dir: Path) -> Run:
    """Read a run's folder."""
    path = run_dir / RECORDS_NAME
    reading = RecordFile(path).read()
    if not reading.records:
        found = "holds no record" if path.exists() else "does not exist"
        raise RecordError(f"{path} {found}; measure first: precision-eval run --out {run_dir}")
    return Run(
        directory=run_dir,
        records=tuple(latest(reading.records).values()),
        environment=read_environment(run_dir),
        torn_bytes=reading.torn_bytes,
    )


def read_environment(run_dir: Path) -> Mapping[str, Any]:
    """Return what a run was measured with; empty where that is not stored."""
    path = run_dir / ENVIRONMENT_NAME
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(
            f"{path} is no JSON ({error}); remove it, or write it again: precision-eval run --out {run_dir}"
        ) from error
    return found if isinstance(found, Mapping) else {}


def figure_of(data: Mapping[str, Any] | None, *path: str) -> float | None:
    """Return the finite number at `path` inside `data`, or None where there is none."""
    value: Any = data
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def series_of(data: Mapping[str, Any] | None, *path: str, value: str) -> tuple[list[float], list[float]] | None:
    """Return times (s) and values of the series at `path`, gaps left out; None where fewer than two points exist."""
    node: Any = data
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping):
        return None
    times, values = node.get("time_s"), node.get(value)
    if not isinstance(times, Sequence) or not isinstance(values, Sequence):
        return None
    pairs = [(float(t), float(v)) for t, v in zip(times, values, strict=False) if v is not None and math.isfinite(v)]
    if len(pairs) < 2:
        return None
    return [t for t, _ in pairs], [v for _, v in pairs]


def memory_bytes(row: Row) -> tuple[float, float] | None:
    """Return (storage, extra at the peak of a call) in bytes, or None where memory was not measured."""
    data = row.data("memory")
    peak = figure_of(data, "allocated_peak_bytes")
    if peak is None:
        return None
    return figure_of(data, "storage_bytes") or 0.0, peak


def is_identical(row: Row) -> bool:
    """Tell whether a row's audio equals the reference's: no spectral distance at all, no finite distortion ratio."""
    data = row.data("audio")
    distance = figure_of(data, "against_reference", "log_spectral_distance_db", "mean")
    return distance == 0.0 and figure_of(data, "against_reference", "si_sdr_db", "whole_file") is None


def pins_of(record: Record) -> str:
    """Return the settings that a record was measured under, as in its cell's id; empty where nothing was pinned."""
    return pins_text(record.options.get("sdpa_backend"), record.options.get("tf32"))


def _section(key: tuple[str, str, str, str, str], records: list[Record]) -> Section:
    by_fix: dict[str, dict[str, Record]] = {}
    roles: dict[str, str] = {}
    for record in records:
        by_fix.setdefault(record.fix, {})[record.measure] = record
        roles[record.fix] = record.role
    rows = [Row(fix=fix, role=roles[fix], records=measures) for fix, measures in by_fix.items()]
    threads = {record.threads for record in records}
    case, size, mode, device, pins = key
    return Section(
        case=case,
        size=size,
        mode=mode,
        device=device,
        threads=threads.pop() if len(threads) == 1 else None,
        rows=tuple(sorted(rows, key=_row_order)),
        pins=pins,
    )


def _row_order(row: Row) -> tuple[int, int, str]:
    role = ROLE_ORDER.index(row.role) if row.role in ROLE_ORDER else len(ROLE_ORDER)
    order = [fix.id for fix in FIXES]
    place = order.index(row.fix) if row.fix in order else len(order)
    return role, place, row.fix
