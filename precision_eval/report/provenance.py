"""What a run's figures were measured with: environments, and how sure its latencies are.

Conventions: a run resumed after a change of code or machine holds records of several environments, each kept as
``environment-SHA.json`` beside ``environment.json``; a record names its own by SHA-256. Where a cell was recorded
twice, the later record counts, so an environment is named for what it measured that still stands.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from precision_eval.core.formatting import join
from precision_eval.core.records import Record
from precision_eval.results.model import Group, Row
from precision_eval.results.reading import Run

_FACTS = (
    ("torch", "torch.version"),
    ("python", "platform.python"),
    ("system", "platform.system"),
    ("processor", "cpu.model"),
    ("usable cores", "cpu.usable_cores"),
    ("device", "device.name"),
    ("device model", "device.model"),
    ("commit", "package.git_commit"),
)
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?")
_SLOT = "\x00"
_LONGEST_DOUBT = 200


def facts_line(environment: Mapping[str, Any]) -> str:
    """Return what matters of an environment in one line; empty where it is empty."""
    return _listed(_facts(environment))


def environment_lines(run: Run, cases: Collection[str] | None = None) -> list[str]:
    """Return what a run was measured with: one line, and one per environment where there are several."""
    records = [record for record in run.records if cases is None or record.case in cases]
    by_sha: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.started_at):
        by_sha.setdefault(record.environment, []).append(record)
    stored = _stored(run)
    if len(by_sha) < 2:
        line = facts_line(stored.get(next(iter(by_sha), ""), run.environment))
        return [line] if line else []
    facts = {sha: _facts(stored.get(sha, {})) for sha in by_sha}
    known = [found for found in facts.values() if found]
    common = set.intersection(*(set(found.items()) for found in known)) if known else set()
    shared = {name: value for name, value in (known[0] if known else {}).items() if (name, value) in common}
    lines = [_listed(shared)] if shared else []
    for sha, own in by_sha.items():
        apart = {name: value for name, value in facts[sha].items() if name not in shared}
        name = _listed(apart).replace("+changes", " with changes not committed") or f"environment {sha[:12]}"
        name += "" if facts[sha] else ", whose file is not here"
        lines.append(f"{name}: {_measured(own, records)}")
    return lines


def _stored(run: Run) -> dict[str, Mapping[str, Any]]:
    """Environments in a run's folder, by the SHA-256 of their file; one that cannot be read counts as missing."""
    found = {}
    for path in sorted(run.directory.glob("environment*.json")):
        content = path.read_bytes()
        try:
            found[hashlib.sha256(content).hexdigest()] = json.loads(content)
        except ValueError:
            continue
    return found


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, path in _FACTS:
        node: Any = environment
        for part in path.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        if node is not None:
            found[name] = str(node)
    return found


def _listed(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in facts.items())


def _measured(own: Iterable[Record], records: Iterable[Record]) -> str:
    """Say what an environment measured: ``eager: drift and latency; compiled: latency of `dia-decode```."""
    mine, all_of = _cells(own), _cells(records)
    groups: dict[tuple[str, str], list[str]] = {}
    for (mode, measure), cells in mine.items():
        rest = all_of[mode, measure]
        part = "" if cells == rest else _part(cells, rest)
        groups.setdefault((mode, part), []).append(measure.replace("_", " "))
    by_mode: dict[str, list[str]] = {}
    for (mode, part), measures in sorted(groups.items()):
        by_mode.setdefault(mode, []).append(join(sorted(measures)) + part)
    return "; ".join(f"{mode}: {', '.join(texts)}" for mode, texts in sorted(by_mode.items(), reverse=True))


def _cells(records: Iterable[Record]) -> dict[tuple[str, str], set[tuple[str, str, str]]]:
    found: dict[tuple[str, str], set[tuple[str, str, str]]] = {}
    for record in records:
        found.setdefault((record.mode, record.measure), set()).add((record.case, record.fix, record.cell))
    return found


def _part(cells: set[tuple[str, str, str]], rest: set[tuple[str, str, str]]) -> str:
    """Name the cases of a part of the cells, and the fixes where a case is split as well."""
    texts = []
    for case in sorted({name for name, _, _ in cells}):
        split = any(cell not in cells for cell in rest if cell[0] == case)
        fixes = sorted({f"`{fix}`" for name, fix, _ in cells if name == case})
        texts.append(f"`{case}`" + (f" ({', '.join(fixes)})" if split else ""))
    return f" of {join(texts)}"


def latency_notes(sections: Sequence[Group]) -> list[str]:
    """Return how the latencies of a table were measured, one line per mode."""
    notes = []
    for section in sections:
        ways = {_way(row.records["latency"]) for row in section.rows if row.data("latency")}
        known = sorted(way for way in ways if way)
        if known:
            notes.append(f"Latency, {section.mode}: {' or '.join(known)}.")
    return notes


def _way(record: Record) -> str:
    processes, budget_s = record.options.get("processes"), record.options.get("budget_s")
    if not isinstance(processes, int) or not isinstance(budget_s, int | float):
        return ""
    if processes == 1:
        return f"1 process, {budget_s:g} s for all fixes together, its intervals without what differs between processes"
    return f"{processes} processes, {budget_s:g} s for all fixes and processes together"


def doubt_notes(sections: Sequence[Group]) -> list[str]:
    """Return the doubts that a table's records carry, alike ones in one line with the range of their numbers."""
    notes = []
    for section in sections:
        shared: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
        for row in section.rows:
            for measure, doubt in _doubts(row):
                kind = (measure, _NUMBER.sub(_SLOT, doubt))
                shared.setdefault(kind, []).append((row.fix, _NUMBER.findall(doubt)))
        for (measure, template), found in shared.items():
            fixes = list(dict.fromkeys(f"`{fix}`" for fix, _ in found))
            having = section.having(measure)
            who = "every fix" if len(fixes) == len(having) > 1 else join(fixes)
            text = _filled(template, [numbers for _, numbers in found])
            notes.append(f"Doubt, {section.mode} {measure.replace('_', ' ')} of {who}: {text}")
    return notes


def _doubts(row: Row) -> list[tuple[str, str]]:
    """Doubts of a row with their measures; the first line of each, shortened."""
    found = []
    for measure, record in row.records.items():
        for doubt in (record.data or {}).get("doubts") or () if record.status == "passed" else ():
            first = (str(doubt).strip().splitlines() or [""])[0]
            found.append((measure, first if len(first) <= _LONGEST_DOUBT else first[: _LONGEST_DOUBT - 1] + "…"))
    return found


def _filled(template: str, numbers: Sequence[Sequence[str]]) -> str:
    """Put numbers back into a template: the one that all share, or the smallest and the largest."""
    columns = iter(zip(*numbers, strict=True))

    def text(_: re.Match[str]) -> str:
        found = sorted(set(next(columns)), key=lambda number: float(number.replace("−", "-")))
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    return re.sub(_SLOT, text, template)
