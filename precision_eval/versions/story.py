"""All that the results of a folder say over torch versions or commits, as one frozen object: what a page shows.

Conventions: a *position* is a place on the axis: a torch version (``"2.13.0"``) or the first eight characters of a
commit. Ratios are to the float32 fix of the same process, below 1 = faster; sizes are bytes. Everything here is
computed already; a page or a table only lays it out.

Contents: :class:`VersionsStory`, :class:`WorkloadStory`, :class:`FixTable`, :class:`Cell`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .changes import ChangePoint
from .points import ResultSet
from .series import Series
from .statuses import StatusChange
from .upstream import Release, UpstreamChange


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a fix comes to at one position.

    Attributes
    ----------
    status : str or None
        One of ``precision_eval.record.STATUSES``; ``"failed"`` where the benchmark of the status itself broke off,
        ``"not_applicable"`` where the fix cannot be used there, None where it was not run.
    drift : float or None
        Relative error of a call to float64.
    ratio : float or None
        Latency to ``full_float32``, over all processes.
    ratio_interval : tuple of float or None
        95 %, from the noise pooled over versions and fixes; None where no samples were kept.
    peak_bytes, stored_bytes : float or None
    values : mapping of str to float
        All metrics that were measured, by name, those above among them.
    """

    status: str | None
    drift: float | None
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    peak_bytes: float | None
    stored_bytes: float | None
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FixTable:
    """Fix × position, for one mode and size of a workload.

    Attributes
    ----------
    mode, size : str
    fixes : tuple of str
        In the order of the catalogue; unknown ones last.
    cells : mapping of (fix, position) to Cell
        Complete: every fix at every position of the story.
    """

    mode: str
    size: str
    fixes: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]


@dataclass(frozen=True, kw_only=True)
class WorkloadStory:
    """One workload over all positions.

    Attributes
    ----------
    workload : str
    tables : tuple of FixTable
        By mode (eager first) and size.
    series : tuple of Series
        One per mode, metric, fix and size that was measured anywhere.
    changes : tuple of ChangePoint
        Where a metric changes, in the order of the axis.
    status_changes : tuple of StatusChange
        Where a status turns over, in the order of the axis.
    """

    workload: str
    tables: tuple[FixTable, ...]
    series: tuple[Series, ...]
    changes: tuple[ChangePoint, ...]
    status_changes: tuple[StatusChange, ...]


@dataclass(frozen=True, kw_only=True)
class VersionsStory:
    """A result folder over its axis.

    Attributes
    ----------
    axis : str
        ``"torch"`` or ``"commit"``.
    positions : tuple of str
        Oldest first.
    sets : tuple of ResultSet
        One per position, in the same order.
    releases : mapping of str to Release
        Of the torch versions that are known; their dates may be unknown.
    machine : str
    hardware : mapping of str to str
    cuda_build : bool or None
    workloads : tuple of WorkloadStory
    upstream : tuple of UpstreamChange
        Those that explain a change shown here.
    notes : tuple of str
        What a reader must know: result sets left aside, metrics that cannot be judged, …
    """

    axis: str
    positions: tuple[str, ...]
    sets: tuple[ResultSet, ...]
    releases: Mapping[str, Release]
    machine: str
    hardware: Mapping[str, str]
    cuda_build: bool | None
    workloads: tuple[WorkloadStory, ...]
    upstream: tuple[UpstreamChange, ...]
    notes: tuple[str, ...]
