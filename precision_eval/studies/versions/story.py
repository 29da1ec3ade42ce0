"""All that the results of a folder say over torch versions or commits, as one frozen object: what a page shows.

Conventions: a *position* is a place on the axis: a torch version (``"2.13.0"``) or the first eight characters of a
commit. Ratios are to the float32 fix of the same process, below 1 = faster; sizes are bytes. Everything here is
computed already; a page or a table only lays it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precision_eval.studies.versions.changes import ChangePoint
from precision_eval.studies.versions.points import ResultSet
from precision_eval.studies.versions.series import Series
from precision_eval.studies.versions.statuses import StatusChange
from precision_eval.studies.versions.upstream import Release, UpstreamChange


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a fix comes to at one position."""

    status: str | None
    drift: float | None
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    peak_bytes: float | None
    stored_bytes: float | None
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FixTable:
    """Fix × position, for one mode and size of a case."""

    mode: str
    size: str
    fixes: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]


@dataclass(frozen=True, kw_only=True)
class CaseStory:
    """One case over all positions."""

    case: str
    tables: tuple[FixTable, ...]
    series: tuple[Series, ...]
    changes: tuple[ChangePoint, ...]
    status_changes: tuple[StatusChange, ...]


@dataclass(frozen=True, kw_only=True)
class VersionsStory:
    """A result folder over its axis."""

    axis: str
    positions: tuple[str, ...]
    sets: tuple[ResultSet, ...]
    releases: Mapping[str, Release]
    machine: str
    hardware: Mapping[str, str]
    cuda_build: bool | None
    cases: tuple[CaseStory, ...]
    upstream: tuple[UpstreamChange, ...]
    notes: tuple[str, ...]
