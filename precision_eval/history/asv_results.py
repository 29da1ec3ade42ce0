"""Result folders of asv, read with asv's own reader: one set of figures per machine, commit and environment.

A benchmark is named ``MODE.CASE.METRIC`` (``compiled.metavoice_decode.track_drift``; the mode ``cuda`` is eager on a
GPU) with the parameters ``fix`` and ``size``, or of a user's factory ``eager.FACTORY.METRIC`` with the parameter
``fix``; others are left alone. ``null`` in a file is *failed*, NaN is *not_applicable*. Seconds and bytes.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from precision_eval.core.errors import ParameterError, RecordError, UnsupportedError, check_known
from precision_eval.core.formatting import visible
from precision_eval.core.records import STATUSES

OWN_SIZE = "own"  # the one size of a user's factory
COMPARED_HARDWARE = ("arch", "cpu", "num_cpu")  # the system's version and its memory change with a kernel
_NAME = re.compile(r"(?:.+\.)?(?P<mode>eager|compiled|cuda)\.(?P<case>[^.]+|.+:\w+)\.(?P<method>[^.]+)")
_TORCH_VERSION = "track_torch_version"
_IS_CUDA_BUILD = "track_is_cuda_build"


class Key(NamedTuple):
    case: str
    mode: str
    size: str
    fix: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class AsvPoint:
    """One figure; `state` is ``"measured"``, ``"failed"`` or ``"not_applicable"``."""

    state: str
    value: float | None
    samples: tuple[float, ...]
    benchmark_version: str


@dataclass(frozen=True, kw_only=True)
class ResultSet:
    machine: str
    hardware: Mapping[str, str]
    commit: str
    date_ms: int
    environment: str
    torch_version: str
    cuda_build: bool | None
    source: Path
    points: Mapping[Key, AsvPoint]


def read_results(folder: Path, *, machine: str | None = None) -> tuple[ResultSet, ...]:
    """Read asv's results folder, of one machine; sorted by torch version, then by date."""
    if not folder.is_dir():
        raise RecordError(f"{folder} is no folder; give asv's results_dir, such as .asv/results, or run asv first")
    homes = {path.parent.name: path.parent for path in sorted(folder.rglob("machine.json"))}
    if machine is not None:
        check_known("machine", machine, homes)
        homes = {machine: homes[machine]}
    files = [path for home in homes.values() for path in sorted(home.glob("*.json")) if path.name != "machine.json"]
    if not files:
        raise RecordError(f"{folder} holds no result file of asv (MACHINE/COMMIT-ENVIRONMENT.json); run asv")
    sets = sorted(map(_read_file, files), key=lambda result: (Version(result.torch_version), result.date_ms))
    _check_one_machine(sets)
    _check_one_build(sets)
    return tuple(sets)


def _read_file(path: Path) -> ResultSet:
    try:
        from asv.results import Results
        from asv.util import UserError
    except ImportError as error:
        raise UnsupportedError("reading asv's results needs asv, which is not installed; pip install asv") from error
    try:
        results = Results.load(str(path))
        return ResultSet(
            machine=visible(str(results.params["machine"])),
            hardware={name: visible(str(results.params.get(name, ""))) for name in COMPARED_HARDWARE},
            commit=visible(results.commit_hash),
            date_ms=int(results.date),
            environment=visible(results.env_name),
            torch_version=_torch_version(results, path),
            cuda_build=None if (cuda := _figure_of(results, _IS_CUDA_BUILD)) is None else bool(cuda),
            source=path,
            points=dict(_points(results)),
        )
    except RecordError:
        raise
    except (UserError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise RecordError(
            f"{path} is not as asv writes it ({error}); remove it and run asv again for that environment"
        ) from error


def _figure_of(results: Any, method: str) -> float | None:
    """Return the one value of a benchmark without parameters."""
    for name in results.get_all_result_keys():
        values = results.get_result_value(name, []) if name.endswith(f".{method}") else None
        if values and values[0] is not None and not math.isnan(values[0]):
            return float(values[0])
    return None


def _torch_version(results: Any, path: Path) -> str:
    """Return the version that ran, as the benchmark of the build or else the environment's name says."""
    number = _figure_of(results, _TORCH_VERSION)
    if number is not None:
        return f"{int(number) // 1_000_000}.{int(number) // 1000 % 1000}.{int(number) % 1000}"
    try:
        return Version(str(results.params["torch"])).base_version
    except (KeyError, InvalidVersion) as error:
        raise RecordError(
            f"{path} does not say which torch it ran; name torch in the matrix of asv.conf.json, or import "
            f"{_TORCH_VERSION} from precision_eval.asv in the suite, and run its benchmark too"
        ) from error


def _points(results: Any) -> Iterator[tuple[Key, AsvPoint]]:
    for name in results.get_all_result_keys():
        parts = _NAME.fullmatch(name)
        if parts is None:
            continue  # another benchmark
        params = results.get_result_params(name)
        count = math.prod(len(values) for values in params)
        values = results.get_result_value(name, params) or [None] * count
        samples = results.get_result_samples(name, params) or [None] * count
        metric = parts["method"].removeprefix("track_").removesuffix("_call")
        case = parts["case"] if ":" in parts["case"] else parts["case"].replace("_", "-")
        version = str(results.benchmark_version.get(name) or "")
        for (fix, size), value, sample in zip(_combinations(params), values, samples, strict=True):
            yield Key(case, parts["mode"], size, fix, metric), _point(value, sample, version)


def _combinations(params: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield (fix, size) of each value; asv stores parameters as their ``repr``, in the order of a product."""
    for values in itertools.product(*params):
        fix, *size = map(str, map(ast.literal_eval, values))
        yield fix, size[0] if size else OWN_SIZE


def _point(value: float | None, samples: Sequence[float] | None, version: str) -> AsvPoint:
    state = "failed" if value is None else "not_applicable" if math.isnan(value) else "measured"
    return AsvPoint(
        state=state,
        value=float(value) if value is not None and state == "measured" else None,
        samples=tuple(samples or ()),
        benchmark_version=version,
    )


def status_name(number: float) -> str:
    if number != int(number) or not 1 <= number <= len(STATUSES):
        raise RecordError(f"{number:g} is no status; expected 1 to {len(STATUSES)} ({', '.join(STATUSES)})")
    return STATUSES[int(number) - 1]


def _check_one_machine(sets: Iterable[ResultSet]) -> None:
    machines = {result.machine: result for result in sets}
    if len(machines) > 1:
        raise ParameterError(
            f"results of {len(machines)} machines ({', '.join(machines)}); name one with --set machine=NAME"
        )
    for fact in COMPARED_HARDWARE:
        values = {result.hardware[fact] for result in sets} - {""}
        if len(values) > 1:
            raise ParameterError(
                f"machine {next(iter(machines))} is several machines: {fact} {' and '.join(sorted(values))}; keep the "
                "results of one, and give each machine its own name with asv's --machine"
            )


def _check_one_build(sets: Iterable[ResultSet]) -> None:
    cuda, cpu = ([result for result in sets if result.cuda_build is kind] for kind in (True, False))
    if cuda and cpu:
        raise ParameterError(
            f"{cpu[0].environment} is a CPU build of torch and {cuda[0].environment} a CUDA build, which differ in "
            "speed and memory on the same CPU; compare builds of one kind, each from its own results folder"
        )
