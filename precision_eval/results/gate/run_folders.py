"""A run folder of this suite as a side of the gate.

Conventions: the last record of a cell counts; reference, noise floor and controls are left out. Facts come from the
environment file that each record names by its SHA-256. Latency figures carry one paired ratio per process, where
several measured (``run --processes 5``). Bytes and relative errors are as recorded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.records import Record, RecordFile, latest
from precision_eval.core.targets import is_target
from precision_eval.results.gate.sides import GateCell, GateFigure, Side, unlike

RECORDS = "records.jsonl"

_FREE_OPTIONS = ("budget_s", "processes", "candidate_digest")
"""Options that say how long was measured, and not what; and the source of a candidate, which may be what changed."""


def side_of_run(folder: Path, *, name: str) -> Side:
    """Read a run folder."""
    path = folder / RECORDS
    if not path.is_file():
        raise RecordError(f"{folder} holds no {RECORDS}; give a folder that `precision-eval run --out` has filled")
    reading = RecordFile(path).read()
    records = [record for record in latest(reading.records).values() if record.role == "fix"]
    if not records:
        raise RecordError(f"{path} holds no record of a fix; run `precision-eval run --out {folder}` first")
    environments = _environments(folder)
    used = sorted({record.environment for record in records})
    missing = [sha for sha in used if sha not in environments]
    if missing:
        raise RecordError(
            f"{folder} lacks the file of the environment {missing[0][:12]} that its records were measured under; "
            "restore environment*.json, or measure again"
        )
    facts = _agreed([_facts(environments[sha]) for sha in used], folder)
    remarks = _joined([_remarks(environments[sha]) for sha in used])
    figures = {key: figure for record in records for key, figure in _figures(record)}
    damage = (f"{path} ends in a torn record of {reading.torn_bytes} bytes",) if reading.torn_bytes else ()
    return Side(name=name, facts=facts, remarks=remarks, figures=figures, damage=damage)


def _environments(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(folder.glob("environment*.json")):
        content = path.read_bytes()
        try:
            found[hashlib.sha256(content).hexdigest()] = dict(json.loads(content))
        except (ValueError, TypeError) as error:
            raise RecordError(f"{path} is damaged: {error}; restore it, or measure again") from error
    return found


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return what must agree; what this platform did not tell is left out."""
    try:
        platform, cpu, torch = environment["platform"], environment["cpu"], environment["torch"]
        device = environment["device"]
        found = {
            "system": f"{platform['system']} {platform['machine']}",
            "processor": cpu["model"],
            "cores": cpu["usable_cores"],
            "build of torch": build_kind(torch),
            "device": device.get("model", device["name"].partition(":")[0]),
            "variables": ", ".join(f"{k}={v}" for k, v in sorted(environment["variables"].items())) or "none",
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"an environment file is not as this suite writes it ({error!r}); measure again") from error
    return {name: str(value) for name, value in found.items() if value is not None}


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


def _agreed(found: list[dict[str, str]], folder: Path) -> dict[str, str]:
    for other in found[1:]:
        differing = unlike(found[0], other)
        if differing:
            raise ParameterError(
                f"{folder} was measured under unlike conditions: {', '.join(differing)} changed between its records; "
                "measure again into one folder per machine and build"
            )
    return found[0]


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
    for metric, read in _READ.get(record.measure, {}).items():
        yield (place, metric), _figure(record, read, identity)


def _figure(record: Record, read: Callable[[dict[str, Any]], Any], identity: dict[str, str]) -> GateFigure:
    if record.status != "passed" or record.data is None:
        state = "not_applicable" if record.status == "unsupported" else "failed"
        return GateFigure(state=state, identity=identity, reason=f"{record.status}: {record.reason}")
    try:
        value = read(record.data)
        samples = tuple(map(float, record.data.get("process_ratios", ()))) if record.measure == "latency" else ()
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"the record of {record.cell} is not as this suite writes it ({error!r}); measure again"
        ) from error
    if value is None:
        return GateFigure(state="not_applicable", identity=identity, reason="not defined here")
    return GateFigure(state="measured", value=float(value), samples=samples, identity=identity)


_READ: Mapping[str, Mapping[str, Callable[[dict[str, Any]], Any]]] = {
    "latency": {"latency_ratio": lambda data: data["ratio"]},
    "drift": {"drift": lambda data: data["relative_error"]},
    "teacher_forced_drift": {"teacher_forced_drift": lambda data: data["relative_error"]},
    "memory": {
        "peak_bytes": lambda data: data["allocated_peak_bytes"],
        "stored_bytes": lambda data: data["storage_bytes"],
        "peakmem": lambda data: data["rss_peak_bytes"],
    },
    "divergence": {"divergence": lambda data: data["token_difference_fraction"]},
    "audio": {
        "audio_degradation": lambda data: data["against_reference"]["log_spectral_distance_db"].get("ratio_to_null"),
    },
}
"""Figures that a measure's data hold."""
