"""What a result file of asv holds, as frozen data, and what may be compared.

Conventions: a *point* is one fix at one size of one benchmark; times are seconds, sizes bytes. ``null`` in a file is
*failed*, NaN is *not_applicable*, and what ``benchmarks.json`` names but a file does not hold is *absent*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.records import STATUSES

STATES = ("measured", "failed", "not_applicable", "absent")

COMPARED_HARDWARE = ("arch", "cpu", "num_cpu")
"""What makes a machine another one; the system's version and the memory it reports change with a kernel."""

Key = tuple[str, str, str, str, str]
"""Mode, case, metric, fix, size."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One parameter combination of one benchmark."""

    mode: str
    case: str
    metric: str
    fix: str
    size: str
    state: str
    value: float | None
    samples: tuple[float, ...]
    interval_99: tuple[float, float] | None
    unit: str
    benchmark_version: str
    visits: tuple[float, ...] = ()

    @property
    def key(self) -> Key:
        """Where it lies in :attr:`ResultSet.points`."""
        return (self.mode, self.case, self.metric, self.fix, self.size)


@dataclass(frozen=True, kw_only=True)
class ResultSet:
    """One result file: a machine, a commit and an environment."""

    machine: str
    commit: str
    environment: str
    python: str
    torch_version: str
    cuda_build: bool | None
    date_ms: int
    source: Path
    hardware: Mapping[str, str]
    points: Mapping[Key, Point]
    build: str | None = None


def compared_hardware(one: ResultSet) -> dict[str, str]:
    """Return what is known of :data:`COMPARED_HARDWARE`."""
    return {name: one.hardware[name] for name in COMPARED_HARDWARE if one.hardware.get(name)}


def check_one_machine(sets: Iterable[ResultSet]) -> str:
    """Return the machine of all sets; hardware that a set does not state is not held against it."""
    sets = tuple(sets)
    names = sorted({one.machine for one in sets})
    if len(names) != 1:
        raise ParameterError(
            f"results of {len(names)} machines ({', '.join(names) or 'none'}) where one is needed; "
            f"name one with --machine{' ' + names[0] if names else ''}"
        )
    for fact in COMPARED_HARDWARE:
        files = {one.hardware[fact]: one.source.name for one in sets if one.hardware.get(fact)}
        if len(files) > 1:
            described = " against ".join(f"{value} ({files[value]})" for value in sorted(files))
            raise ParameterError(
                f"machine {names[0]} is several machines: {fact} {described}; keep the results of one, and give each "
                "machine its own name with asv's --machine"
            )
    return names[0]


def check_one_build(sets: Iterable[ResultSet]) -> bool | None:
    """Say whether all sets ran a CUDA build of torch; None where that was never recorded."""
    sets = tuple(sets)
    cuda, cpu = ([one for one in sets if one.cuda_build is kind] for kind in (True, False))
    if cuda and cpu:
        raise ParameterError(
            f"{cpu[0].environment} is a CPU build of torch and {cuda[0].environment} a CUDA build, which differ in "
            "speed and memory on the same CPU; compare builds of one kind, each from its own results folder"
        )
    return True if cuda else False if cpu else None


def build_words(sets: Iterable[ResultSet]) -> str:
    """Return which builds of torch ran, for a heading."""
    sets = tuple(sets)
    cuda, kinds = check_one_build(sets), {one.build for one in sets}
    if kinds == {"slim"}:
        return "slim builds (CUDA builds without CUDA's libraries)"
    if cuda is None and len(kinds) == 1:
        cuda = {"cpu": False, "cuda": True}.get(str(*kinds))
    return {True: "CUDA builds, run on the CPU", False: "CPU builds", None: "build not recorded"}[cuda]


def status_of(point: Point | None) -> str | None:
    """Return the status that a point of the metric ``status`` holds; None where it holds none."""
    if point is None or point.value is None:
        return None
    try:
        return status_name(point.value)
    except RecordError as error:
        raise RecordError(f"{point.mode} {point.case}/{point.fix}:{point.size}: {error}") from error


def status_name(number: float) -> str:
    """Return the status that a number stands for."""
    if number != int(number) or not 1 <= number <= len(STATUSES):
        raise RecordError(f"{number:g} is no status; expected 1 to {len(STATUSES)} ({', '.join(STATUSES)})")
    return STATUSES[int(number) - 1]
