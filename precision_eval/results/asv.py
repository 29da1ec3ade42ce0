"""Result folders of asv, read without asv: every machine, commit and environment as frozen data.

Conventions: a *folder* is asv's ``results_dir``: one folder per machine with ``machine.json`` and one JSON file per
commit and environment, format version 2, and ``benchmarks.json`` beside the machines. A benchmark is named
``MODE.CASE.METRIC`` (``compiled.metavoice_decode.track_drift``) with the parameters ``fix`` and ``size``, or of a
user's factory ``eager.FACTORY.METRIC`` with the parameter ``fix``; others are left alone. A *point* is one fix at one
size of one benchmark: ``null`` in a file is *failed*, NaN is *not_applicable*, and what ``benchmarks.json`` names but a
file does not hold is *absent*. When samples were taken, where versions were measured in turn, is in ``rounds.jsonl``.
Times are seconds, sizes bytes. Files are only read. Importing this loads neither torch nor numpy.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from precision_eval.core.errors import ParameterError, RecordError, check_known
from precision_eval.core.formatting import visible
from precision_eval.core.records import STATUSES

COMPARED_HARDWARE = ("arch", "cpu", "num_cpu")
"""What makes a machine another one; the system's version and the memory it reports change with a kernel."""

Key = tuple[str, str, str, str, str]
"""Mode, case, metric, fix, size."""

FORMAT_VERSION = 2
_UPDATE = "run `asv update`, or the asv that wrote it"
PARAMETERS = ("fix", "size")
OWN_SIZE = "own"
"""The one size of a user's factory."""
_NAME = re.compile(r"(?:.+\.)?(?P<mode>eager|compiled)\.(?P<case>[^.]+|.+:\w+)\.(?P<method>[^.]+)")
HARDWARE = ("arch", "cpu", "num_cpu", "os", "ram")
BUILD_VERSION = "track_torch_version"
BUILD_CUDA = "track_is_cuda_build"

UNITS: Mapping[str, str] = {
    "time": "seconds",
    "peakmem": "bytes",
    "drift": "relative error to float64",
    "peak_bytes": "bytes",
    "stored_bytes": "bytes",
    "latency_ratio": "ratio to full_float32",
    "latency_to_anchor": "ratio to the anchor",
}
"""Of a metric where the folder has no ``benchmarks.json``."""


ROUNDS_NAME = "rounds.jsonl"
"""Beside asv's results; asv takes every ``.json`` there for a result."""


@dataclass(frozen=True, kw_only=True)
class AsvPoint:
    """One parameter combination of one benchmark."""

    mode: str
    case: str
    metric: str
    fix: str
    size: str
    state: str
    value: float | None
    samples: tuple[float, ...]
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
    points: Mapping[Key, AsvPoint]
    build: str | None = None


def compared_hardware(result: ResultSet) -> dict[str, str]:
    """Return what is known of :data:`COMPARED_HARDWARE`."""
    return {name: result.hardware[name] for name in COMPARED_HARDWARE if result.hardware.get(name)}


def check_one_machine(sets: Iterable[ResultSet]) -> str:
    """Return the machine of all sets; hardware that a set does not state is not held against it."""
    sets = tuple(sets)
    names = sorted({result.machine for result in sets})
    if len(names) != 1:
        raise ParameterError(
            f"results of {len(names)} machines ({', '.join(names) or 'none'}) where one is needed; "
            f"name one with --machine{' ' + names[0] if names else ''}"
        )
    for fact in COMPARED_HARDWARE:
        files = {result.hardware[fact]: result.source.name for result in sets if result.hardware.get(fact)}
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
    cuda, cpu = ([result for result in sets if result.cuda_build is kind] for kind in (True, False))
    if cuda and cpu:
        raise ParameterError(
            f"{cpu[0].environment} is a CPU build of torch and {cuda[0].environment} a CUDA build, which differ in "
            "speed and memory on the same CPU; compare builds of one kind, each from its own results folder"
        )
    return True if cuda else False if cpu else None


def build_words(sets: Iterable[ResultSet]) -> str:
    """Return which builds of torch ran, for a heading."""
    sets = tuple(sets)
    cuda, kinds = check_one_build(sets), {result.build for result in sets}
    if kinds == {"slim"}:
        return "slim builds (CUDA builds without CUDA's libraries)"
    if cuda is None and len(kinds) == 1:
        cuda = {"cpu": False, "cuda": True}.get(str(*kinds))
    return {True: "CUDA builds, run on the CPU", False: "CPU builds", None: "build not recorded"}[cuda]


def status_of(point: AsvPoint | None) -> str | None:
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


def read_results(folder: Path, *, machine: str | None = None) -> tuple[ResultSet, ...]:
    """Read a result folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"{folder} is no folder; give asv's results_dir, such as .asv/results, or run asv first")
    machines = _machine_folders(folder)
    files = {home: _result_files(home) for home in machines}
    if not any(files.values()):
        raise RecordError(_nothing_in(folder))
    if machine is not None:
        names = {_machine_name(home): home for home in machines if files[home]}
        check_known("machine", machine, names)
        files = {names[machine]: files[names[machine]]}
    sets = [
        _read_file(path, _hardware_file(home), _benchmarks(home.parent), read_visits(home.parent))
        for home, paths in files.items()
        for path in paths
    ]
    return tuple(sorted(sets, key=lambda s: (s.machine, version_key(s.torch_version), s.date_ms, s.environment)))


def _machine_folders(folder: Path) -> tuple[Path, ...]:
    if (folder / "machine.json").is_file():
        return (folder,)
    return tuple(sorted(path for path in folder.iterdir() if (path / "machine.json").is_file()))


def _result_files(home: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in home.glob("*.json") if path.name not in ("machine.json", "benchmarks.json")))


def _nothing_in(folder: Path) -> str:
    """Say what a folder without results looks like, and where the results may be."""
    inner = folder / "results"
    if inner.is_dir() and _machine_folders(inner):
        return f"{folder} holds no machine's results but {inner} does; give that folder"
    return f"{folder} holds no result file of asv (MACHINE/machine.json, MACHINE/COMMIT-ENV.json); run asv"


def _load(path: Path, *, what: str = "") -> dict[str, Any]:
    """Read a JSON object, of the version that is known where `what` has one; asv's NaN and Infinity are let through."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; mend that, or give another folder") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is no JSON ({error}); remove it and run asv again for that environment") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path} holds a JSON {type(content).__name__}; expected asv's object, remove the file")
    if what and content.get("version") != FORMAT_VERSION:
        raise RecordError(f"{path} has {what} version {content.get('version')}, expected {FORMAT_VERSION}; {_UPDATE}")
    return content


def _printable(value: object) -> str:
    return visible(str(value))  # control characters of a result file reach no terminal


def _machine_name(home: Path) -> str:
    return _printable(_hardware_file(home).get("machine", home.name))


def _hardware_file(home: Path) -> dict[str, Any]:
    return _load(home / "machine.json")


def _benchmarks(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what ``benchmarks.json`` says of each benchmark; empty where there is none."""
    path = folder / "benchmarks.json"
    content = _load(path, what="format") if path.is_file() else {}
    return {name: value for name, value in content.items() if isinstance(value, dict)}


def _read_file(
    path: Path, hardware: dict[str, Any], benchmarks: Mapping[str, dict[str, Any]], visits: Sequence[Visit]
) -> ResultSet:
    content = _load(path, what="result format")
    try:
        rows = {
            name: dict(zip(content["result_columns"], row, strict=False)) for name, row in content["results"].items()
        }
        params = dict(content["params"])
        where = {"machine": params["machine"], "commit": content["commit_hash"], "environment": content["env_name"]}
        return ResultSet(
            machine=_printable(params["machine"]),
            commit=_printable(content["commit_hash"]),
            environment=_printable(content["env_name"]),
            python=_printable(content["python"]),
            torch_version=_torch_version(path, params, content["requirements"], rows),
            cuda_build=_cuda_build(params, content["requirements"], rows),
            date_ms=int(content["date"]),
            source=path,
            hardware={
                name: _printable(known[name])
                for known in (dict(hardware) | params,)
                for name in HARDWARE
                if name in known
            },
            points=_points(rows, benchmarks, visit_times(visits, **where)),
            build=build if isinstance(build := (content.get("env_vars") or {}).get("TORCH_BUILD"), str) else None,
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        if isinstance(error, RecordError):
            raise
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is not as asv writes it ({error})"
        raise RecordError(f"{path} {what}; remove it and run asv again for that environment") from error


def _build_number(rows: Mapping[str, dict[str, Any]], method: str) -> float | None:
    """Return what a benchmark of the build found; None where it did not run or failed."""
    for name, row in rows.items():
        values = row.get("result")
        if name.rsplit(".", 1)[-1] == method and values and values[0] is not None and not math.isnan(values[0]):
            return float(values[0])
    return None


def _asked_version(*holders: Mapping[str, Any]) -> str | None:
    names = ("torch", "pip+torch")
    return next((str(h[name]) for h in holders for name in names if h.get(name)), None)


def _torch_version(
    path: Path, params: Mapping[str, Any], requirements: Mapping[str, Any], rows: Mapping[str, dict[str, Any]]
) -> str:
    """Return what ran; the environment's request where that was not recorded."""
    asked, number = _asked_version(params, requirements), _build_number(rows, BUILD_VERSION)
    wanted = None if asked is None else _three_numbers(asked)
    if number is None and wanted is None:
        raise RecordError(
            f"{path} does not say which torch it ran: neither its params nor {BUILD_VERSION} do; "
            "name torch in the matrix of asv.conf.json, or import track_torch_version from precision_eval.asv in the "
            "suite, and run its benchmark too"
        )
    if number is None:
        return str(wanted)
    ran = f"{int(number) // 1_000_000}.{int(number) // 1000 % 1000}.{int(number) % 1000}"
    if wanted not in (None, ran):
        raise RecordError(
            f"{path} asked for torch {asked} and ran {ran}; remove it and that environment, run asv again"
        )
    return ran


def version_key(version: str) -> tuple[int, ...]:
    """Sort torch versions as numbers: 2.10 after 2.9."""
    return Version(version).release


def _three_numbers(version: str) -> str:
    parts = str(Version(version).base_version).split(".")
    return ".".join([*parts, "0", "0"][: max(3, len(parts))])


def _cuda_build(
    params: Mapping[str, Any], requirements: Mapping[str, Any], rows: Mapping[str, dict[str, Any]]
) -> bool | None:
    number = _build_number(rows, BUILD_CUDA)
    if number is not None:
        return bool(number)
    label = (_asked_version(params, requirements) or "").partition("+")[2]
    return True if label.startswith("cu") else False if label == "cpu" else None


Times = Mapping[tuple[str, str], tuple[float, ...]]


def _points(
    rows: Mapping[str, dict[str, Any]], benchmarks: Mapping[str, dict[str, Any]], times: Times
) -> dict[Key, AsvPoint]:
    """Return the points of a file, and those that ``benchmarks.json`` names beyond them as absent."""
    points: dict[Key, AsvPoint] = {}
    for name in sorted({*rows, *benchmarks}):
        parts, known = _NAME.fullmatch(name), benchmarks.get(name, {})
        if parts is None:
            continue  # another benchmark
        case, metric = parts["case"], parts["method"].removeprefix("track_").removesuffix("_call")
        absent = AsvPoint(
            mode=parts["mode"],
            case=case if ":" in case else case.replace("_", "-"),
            metric=metric,
            fix="",
            size="",
            state="absent",
            value=None,
            samples=(),
            unit=str(known.get("unit") or UNITS.get(metric, "")),
            benchmark_version=str(known.get("version", "")),
        )
        measured = _points_of(name, absent, rows[name], known, times) if name in rows else []
        points |= {point.key: point for point in measured}
        for fix, size in _combinations(name, known.get("params") or [], known):
            missing = replace(absent, fix=fix, size=size)
            points.setdefault(missing.key, missing)
    return points


def _combinations(name: str, params: Sequence[Sequence[str]], known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (fix, size) of each value, in asv's order."""
    names = tuple(known.get("param_names") or PARAMETERS)
    if not params:
        return []
    if names == ("fix",) and len(params) == 1:
        return [(_text(value), OWN_SIZE) for value in params[0]]
    if sorted(names) != sorted(PARAMETERS) or len(params) != len(PARAMETERS):
        raise RecordError(
            f"benchmark {name} has {len(params)} parameters ({', '.join(names)}); expected {' and '.join(PARAMETERS)}"
        )
    fix, size = names.index("fix"), names.index("size")
    return [(_text(values[fix]), _text(values[size])) for values in itertools.product(*params)]


def _text(value: str) -> str:
    """Return a parameter's value: asv stores its ``repr``."""
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return str(value)


def _points_of(
    name: str, absent: AsvPoint, row: Mapping[str, Any], known: Mapping[str, Any], times: Times
) -> list[AsvPoint]:
    combinations = _combinations(name, row["params"], known)
    values, samples = (_each(name, row, column, len(combinations)) for column in ("result", "samples"))
    version = str(row.get("version") or known.get("version") or "")
    visits = times.get((name, version), ())
    points = []
    for (fix, size), value, kept in zip(combinations, values, samples, strict=True):
        point = replace(absent, fix=fix, size=size, benchmark_version=version)
        if value is None or math.isnan(value):
            points.append(replace(point, state="failed" if value is None else "not_applicable"))
            continue
        numbers = tuple(float(number) for number in kept or ())
        point = replace(
            point,
            state="measured",
            value=float(value),
            samples=numbers,
            visits=visits[: len(numbers)] if len(visits) >= len(numbers) else (),
        )
        points.append(point)
    return points


def _each(name: str, row: Mapping[str, Any], column: str, size: int) -> list[Any]:
    """Return one entry per combination; asv writes null for a list of nulls, and leaves trailing columns out."""
    values = row.get(column)
    if values is None:
        return [None] * size
    if len(values) != size:
        raise RecordError(f"benchmark {name} has {len(values)} entries of {column} for {size} parameter combinations")
    return list(values)


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A run of asv in one version's turn."""

    machine: str
    commit: str
    environment: str
    round: int
    at_s: float
    benchmarks: Mapping[str, str]


def read_visits(results: Path) -> tuple[Visit, ...]:
    """Return all visits; none where no sweep was in rounds."""
    path = results / ROUNDS_NAME
    if not path.is_file():
        return ()
    visits = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            visit = Visit(**json.loads(line))
            visits.append(visit)
            sorted(visit.benchmarks.items())
            visit.round + visit.at_s
        except (ValueError, TypeError, AttributeError) as error:
            raise RecordError(f"{path} line {number} is no visit of a sweep ({error!r}); remove that line") from error
    return tuple(visits)


def visit_times(
    visits: Iterable[Visit], *, machine: str, commit: str, environment: str
) -> dict[tuple[str, str], tuple[float, ...]]:
    """Return when each benchmark of a result file was measured, round by round."""
    times: dict[tuple[str, str], dict[int, float]] = {}
    for visit in visits:
        if (visit.machine, visit.commit, visit.environment) == (machine, commit, environment):
            for item in visit.benchmarks.items():
                times.setdefault(item, {})[visit.round] = visit.at_s
    whole = {}
    for benchmark, by_round in times.items():
        first_missing = next(number for number in range(1, len(by_round) + 2) if number not in by_round)
        whole[benchmark] = tuple(by_round[number] for number in range(1, first_missing))
    return whole
