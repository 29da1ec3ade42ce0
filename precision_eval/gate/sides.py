"""The two sides of a gate, from run folders or from asv's results, and what must be alike before they are compared.

Conventions: a figure's *identity* is what makes it comparable (digest of the case, version of the benchmark, seed,
unit); a side's *facts* are those of machine and build, which must agree, and its *remarks* those that may differ and
are shown (commit, torch version, Python).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from precision_eval.core.environment import stored_environments
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.formatting import command_line
from precision_eval.core.records import RECORDS_NAME, Record, RecordFile, latest
from precision_eval.core.targets import is_target
from precision_eval.gate.source_trees import commit_of
from precision_eval.results.asv import AsvPoint, ResultSet, compared_hardware, read_results, status_of, version_key
from precision_eval.results.model import figure_of

Judgement = Literal["status", "paired", "drift", "memory", "shown"]

METRICS: Mapping[str, Judgement] = {
    "status": "status",
    "latency_ratio": "paired",
    "latency_to_anchor": "paired",
    "latency": "paired",
    "drift": "drift",
    "teacher_forced_drift": "drift",
    "peak_bytes": "memory",
    "stored_bytes": "memory",
    "audio_degradation": "shown",
    "divergence": "shown",
    "time": "shown",
    "peakmem": "shown",
}
"""How each metric is judged; of all of them more is worse. Others are shown. ``time`` and ``peakmem`` are a process's
own, with the machine's state in them, so that they cannot carry a verdict."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "status": ("status",),
    "latency": ("latency_ratio", "latency"),
    "absolute-speed": ("latency_to_anchor", "latency"),
    "drift": ("drift", "teacher_forced_drift"),
    "memory": ("peak_bytes", "stored_bytes"),
}
"""What can be required of a gate, and the metrics that judge it."""


class GateCell(NamedTuple):
    """Where a figure belongs."""

    case: str
    fix: str
    mode: str
    size: str
    device: str = ""
    environment: str = ""

    @property
    def label(self) -> str:
        """The cell's id: ``metavoice-decode/kv_to_query/eager@cpu:2048``."""
        device = f"@{self.device}" if self.device else ""
        environment = f" [{self.environment}]" if self.environment else ""
        return f"{self.case}/{self.fix}/{self.mode}{device}:{self.size}{environment}"


@dataclass(frozen=True, kw_only=True)
class GateFigure:
    """One metric of one place on one side."""

    state: str
    value: float | None = None
    status: str | None = None
    samples: tuple[float, ...] = ()
    unit: str = ""
    identity: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One result set."""

    name: str
    facts: Mapping[str, str]
    remarks: Mapping[str, str]
    figures: Mapping[tuple[GateCell, str], GateFigure]
    damage: tuple[str, ...] = ()


def check_alike(base: Mapping[str, str], head: Mapping[str, str], *, names: tuple[str, str]) -> None:
    """Refuse sides of other machines or builds."""
    differing = [f"{name} ({base[name]} against {head[name]})" for name in sorted(unlike(base, head))]
    if differing:
        raise ParameterError(
            f"{names[0]} and {names[1]} differ in {', '.join(differing)}: their latency and memory cannot be compared; "
            "measure both on one machine with builds of one kind"
        )


def unlike(base: Mapping[str, str], head: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that both mappings state and state differently."""
    return tuple(name for name in base if name in head and base[name] != head[name])


_FREE_OPTIONS = ("budget_s", "processes", "candidate_digest", "weights_digest")
"""Options that say how long was measured, and not what; and the source of a candidate, which may be what changed."""


def side_of_run(folder: Path, *, name: str) -> Side:
    """Read a run folder."""
    path = folder / RECORDS_NAME
    if not path.is_file():
        raise RecordError(f"{folder} holds no {RECORDS_NAME}; give a folder that `precision-eval run --out` has filled")
    reading = RecordFile(path).read()
    records = [record for record in latest(reading.records).values() if record.role == "fix"]
    if not records:
        raise RecordError(f"{path} holds no record of a fix; run `{command_line('run', '--out', folder)}` first")
    environments = stored_environments(folder)
    used = sorted({record.environment for record in records})
    missing = [sha for sha in used if sha not in environments]
    if missing:
        raise RecordError(
            f"{folder} lacks the file of the environment {missing[0][:12]} that its records were measured under; "
            "restore environment*.json, or measure again"
        )
    facts = _agreed([_facts(environments[sha]) for sha in used], folder)
    remarks = _joined([_remarks(environments[sha]) for sha in used])
    weights = {record.case: record.options.get("weights_digest") for record in records if is_target(record.case)}
    remarks |= {f"weights of {case}": str(digest) for case, digest in weights.items() if digest}
    figures = {key: figure for record in records for key, figure in _figures(record)}
    torn = (f"{path} ends in a torn record of {reading.torn_bytes} bytes",) if reading.torn_bytes else ()
    return Side(name=name, facts=facts, remarks=remarks, figures=figures, damage=(*torn, *reading.faults))


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return what must agree; what this platform did not tell is left out."""
    try:
        platform, cpu, torch = environment["platform"], environment["cpu"], environment["torch"]
        device = environment["device"]
        facts = {
            "system": f"{platform['system']} {platform['machine']}",
            "processor": cpu["model"],
            "cores": cpu["usable_cores"],
            "build of torch": build_kind(torch),
            "device": device.get("model", device["name"].partition(":")[0]),
            "variables": ", ".join(f"{k}={v}" for k, v in sorted(environment["variables"].items())) or "none",
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"an environment file is not as this suite writes it ({error!r}); measure again") from error
    return {name: str(value) for name, value in facts.items() if value is not None}


def build_kind(torch: Mapping[str, Any]) -> str:
    """Return ``CPU``, ``CUDA`` or ``ROCm``, and whether it is a debug build."""
    kind = "CUDA" if torch.get("cuda") else "ROCm" if torch.get("hip") else "CPU"
    return f"{kind} debug" if torch.get("debug") else kind


def _remarks(environment: Mapping[str, Any]) -> dict[str, str]:
    commit = environment.get("package", {}).get("git_commit")
    return {
        "torch": str(environment["torch"].get("version")),
        "commit": str(commit)[:12] + ("+changes" if str(commit).endswith("+changes") else "") if commit else "unknown",
        "Python": str(environment["platform"].get("python")),
        "numpy": str(environment.get("libraries", {}).get("numpy")),
    }


def _agreed(values: list[dict[str, str]], folder: Path) -> dict[str, str]:
    for other in values[1:]:
        differing = unlike(values[0], other)
        if differing:
            raise ParameterError(
                f"{folder} was measured under unlike conditions: {', '.join(differing)} changed between its records; "
                "measure again into one folder per machine and build"
            )
    return values[0]


def _joined(found: list[dict[str, str]]) -> dict[str, str]:
    return {name: " and ".join(sorted({one[name] for one in found})) for name in found[0]}


def _figures(record: Record) -> Iterable[tuple[tuple[GateCell, str], GateFigure]]:
    """Yield the figures of one record."""
    place = GateCell(record.case, record.fix, record.mode, record.size, record.device)
    identity = {"threads": str(record.threads)}
    if not is_target(record.case):  # of a case from outside, the source is what changes between the two sides
        identity["digest of the case"] = record.case_digest
    identity |= {f"option {name}": str(value) for name, value in record.options.items() if name not in _FREE_OPTIONS}
    if record.measure == "trace":
        status = GateFigure(state="measured", status=record.status, identity=identity, reason=record.reason)
        yield (place, "status"), status
    for metric, path in _PATHS.get(record.measure, {}).items():
        yield (place, metric), _figure(record, path, identity)


def _figure(record: Record, path: tuple[str, ...], identity: dict[str, str]) -> GateFigure:
    if record.status != "passed" or record.data is None:
        state = "not_applicable" if record.status == "unsupported" else "failed"
        return GateFigure(state=state, identity=identity, reason=f"{record.status}: {record.reason}")
    value = figure_of(record.data, *path)
    if value is None:
        return GateFigure(state="not_applicable", identity=identity, reason="not defined here")
    samples = tuple(map(float, record.data.get("process_ratios", ()))) if record.measure == "latency" else ()
    return GateFigure(state="measured", value=value, samples=samples, identity=identity)


_PATHS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "latency": {"latency_ratio": ("ratio",)},
    "drift": {"drift": ("relative_error",)},
    "teacher_forced_drift": {"teacher_forced_drift": ("relative_error",)},
    "memory": {
        "peak_bytes": ("allocated_peak_bytes",),
        "stored_bytes": ("storage_bytes",),
        "peakmem": ("rss_peak_bytes",),
    },
    "divergence": {"divergence": ("token_difference_fraction",)},
    "audio": {"audio_degradation": ("against_reference", "log_spectral_distance_db", "ratio_to_null")},
}
"""Where a measure's data hold figures."""


DEFAULT_RESULTS = Path(".asv/results")


def open_sides(base: str, head: str, *, results: Path | None, machine: str | None = None) -> tuple[Side, Side]:
    """Read both sides, and refuse those that are not alike."""
    folders = [(Path(name) / RECORDS_NAME).is_file() for name in (base, head)]
    if all(folders):
        sides = side_of_run(Path(base), name=base), side_of_run(Path(head), name=head)
        check_alike(sides[0].facts, sides[1].facts, names=(base, head))
        return sides
    if any(folders):
        other = head if folders[0] else base
        raise RecordError(f"{other} is no run folder, the other side is one; give a folder that holds {RECORDS_NAME}")
    for name in (base, head):
        if _reads_like_a_folder(name):
            raise RecordError(
                f"{name} holds no {RECORDS_NAME}; give a run folder, or a commit or torch version of asv's results"
            )
    folder = results or DEFAULT_RESULTS
    if not folder.is_dir():
        raise RecordError(
            f"{base} and {head} are no run folders, and there are no results of asv in {folder}; name asv's "
            "results_dir with --results"
        )
    if base == head and not is_torch_version(base):
        raise ParameterError(f"'{base}' is given twice; give two commits, two torch versions or two run folders")
    return sides_of_asv(base, head, folder=folder, machine=machine)


def _reads_like_a_folder(name: str) -> bool:
    path = Path(name)
    return path.is_dir() or path.is_file() or name.startswith(("./", "../", "/", "runs/"))


Pair = tuple[ResultSet, ResultSet]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\+\w+)?")
_HASH = re.compile(r"[0-9a-f]{4,40}")


def is_torch_version(name: str) -> bool:
    """Say whether a name reads like ``2.13`` or ``2.13.0``."""
    return _VERSION.fullmatch(name) is not None


def sides_of_asv(base: str, head: str, *, folder: Path, machine: str | None = None) -> tuple[Side, Side]:
    """Read both sides from asv's results."""
    sets = read_results(folder, machine=machine)
    by_version = [_stands_for_a_version(name, sets) for name in (base, head)]
    if by_version[0] != by_version[1]:
        raise ParameterError(f"'{base}' and '{head}' are a commit and a torch version; give two of one kind")
    chosen = [_matching(name, sets, version=by_version[0]) for name in (base, head)]
    here = _one_machine(chosen[0], chosen[1], names=(base, head))
    sides = [[one for one in some if one.machine == here] for some in chosen]
    pairs = _same_commit(*sides, names=(base, head)) if by_version[0] else _same_environment(*sides, names=(base, head))
    for first, second in pairs:
        check_alike(_asv_facts(first), _asv_facts(second), names=(base, head))
    return tuple(side_of_sets(name, [pair[index] for pair in pairs]) for index, name in enumerate((base, head)))  # type: ignore[return-value]


def _stands_for_a_version(name: str, sets: Sequence[ResultSet]) -> bool:
    """Tell a torch version from a tag that reads like one: ``v0.1.0``."""
    return is_torch_version(name) and (_known_version(name, sets) is not None or commit_of(Path.cwd(), name) is None)


def _known_version(name: str, sets: Sequence[ResultSet]) -> str | None:
    """Return the torch version with results that a name means, the last patch of ``2.13``; None where there is none."""
    match = _VERSION.fullmatch(name)
    assert match is not None
    wanted = tuple(int(part) for part in match.groups() if part is not None)
    known = {version_key(one.torch_version): one.torch_version for one in sets}
    return known.get(max((numbers for numbers in known if numbers[: len(wanted)] == wanted), default=()))


def _matching(name: str, sets: Sequence[ResultSet], *, version: bool) -> list[ResultSet]:
    """Return the sets that a name stands for."""
    if version:
        wanted = _known_version(name, sets)
        matching = [result for result in sets if result.torch_version == wanted]
        known = ", ".join(dict.fromkeys(result.torch_version for result in sets))
    else:
        digits = name if _HASH.fullmatch(name) else commit_of(Path.cwd(), name)
        matching = [result for result in sets if digits and result.commit.startswith(digits)]
        known = ", ".join(dict.fromkeys(result.commit[:8] for result in sets))
    if not matching:
        kind = "torch version" if version else "commit"
        raise ParameterError(f"there are no results of the {kind} '{name}'; there are some of {known}; run asv for it")
    commits = sorted({result.commit for result in matching})
    if not version and len(commits) > 1:
        raise ParameterError(f"'{name}' may be {' or '.join(commit[:12] for commit in commits)}; give more digits")
    return matching


def _one_machine(base: Sequence[ResultSet], head: Sequence[ResultSet], *, names: tuple[str, str]) -> str:
    """Return the machine that has results of both."""
    ours, theirs = ({one.machine for one in some} for some in (base, head))
    common = sorted(ours & theirs)
    if not common:
        raise ParameterError(
            f"{names[0]} was measured on {', '.join(sorted(ours))} and {names[1]} on {', '.join(sorted(theirs))}; "
            "results of different machines are not compared: measure both on one"
        )
    if len(common) > 1:
        raise ParameterError(f"{', '.join(common)} have results of both; name one with --machine {common[0]}")
    return common[0]


def _same_environment(base: list[ResultSet], head: list[ResultSet], *, names: tuple[str, str]) -> list[Pair]:
    """Pair two commits' sets by environment."""
    by_name = {one.environment: one for one in head}
    pairs = [(one, by_name[one.environment]) for one in base if one.environment in by_name]
    if not pairs:
        ours, theirs = (", ".join(sorted({one.environment for one in some})) for some in (base, head))
        raise ParameterError(
            f"{names[0]} was measured in {ours} and {names[1]} in {theirs}: no environment has both; run asv in one "
            "environment for both commits"
        )
    return pairs


def _same_commit(base: list[ResultSet], head: list[ResultSet], *, names: tuple[str, str]) -> list[Pair]:
    """Pair two torch versions' sets by commit and Python, at the newest commit that has both."""
    pairs = [(one, two) for one in base for two in head if (one.commit, one.python) == (two.commit, two.python)]
    if not pairs:
        raise ParameterError(
            f"no commit was measured with torch {names[0]} and torch {names[1]} under one Python; run asv for both"
        )
    newest = max(one.date_ms for one, _ in pairs)
    pairs = [pair for pair in pairs if pair[0].date_ms == newest]
    pythons = [one.python for one, _ in pairs]
    if len(set(pythons)) < len(pythons):
        described = ", ".join(sorted(f"{one.environment} against {two.environment}" for one, two in pairs))
        raise ParameterError(f"torch {names[0]} and {names[1]} have several environments each ({described}); keep one")
    return pairs


def _asv_facts(result: ResultSet) -> dict[str, str]:
    facts = {"machine": result.machine} | {
        f"machine's {name}": value for name, value in compared_hardware(result).items()
    }
    if result.cuda_build is not None:
        facts["build of torch"] = "CUDA" if result.cuda_build else "CPU"
    return facts


def side_of_sets(name: str, sets: Sequence[ResultSet]) -> Side:
    """Return one side of result files that are compared together; the caller has seen to it that they are alike."""
    several = len(sets) > 1
    figures = {}
    for result in sets:
        for point in result.points.values():
            environment = (result.python if is_torch_version(name) else result.environment) if several else ""
            place = GateCell(point.case, point.fix, point.mode, point.size, environment=environment)
            if point.state != "absent":
                figures[place, point.metric] = _asv_figure(point)
    remarks = {
        "torch": " and ".join(dict.fromkeys(result.torch_version for result in sets)),
        "commit": " and ".join(dict.fromkeys(result.commit[:12] for result in sets)),
        "Python": " and ".join(dict.fromkeys(result.python for result in sets)),
        "machine": sets[0].machine,
    }
    return Side(name=name, facts=_asv_facts(sets[0]), remarks=remarks, figures=figures)


def _asv_figure(point: AsvPoint) -> GateFigure:
    identity = {"version of the benchmark": point.benchmark_version, "unit": point.unit}
    if point.metric == "status" and point.state == "measured":
        return GateFigure(state="measured", status=status_of(point), identity=identity)
    return GateFigure(
        state=point.state,
        value=point.value,
        samples=point.samples,
        unit=point.unit,
        identity=identity,
    )
