"""The expectation table: what every fix comes to on every case, in each mode, per torch version.

Conventions: everything at size ``tiny`` on the CPU, seed 0. A key reads ``case/fix/mode``; the modes are
``eager`` and ``compiled-BACKEND`` of ``torch.compile``: ``aot_eager`` traces as the default does and then runs
torch's own operations, ``inductor`` also generates code and may accept what they refuse. A *column* is one torch
version (``2.13.0``, its build left out). A message is the sentence of the family where it is one, else the first
line, addresses and paths left out. Only statuses are compared with a column of another version. Importing this loads
no torch.
"""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from precision_eval.cases.systems import CASES, Case
from precision_eval.core.cells import Cell, Options, failure_of
from precision_eval.core.errors import ParameterError, RecordError, UnsupportedError, check_known
from precision_eval.core.files import read_json, worked_out_from, written_whole
from precision_eval.core.records import STATUSES
from precision_eval.explain.messages import cleaned, find_members
from precision_eval.fixes.catalog import FIXES, Fix

if TYPE_CHECKING:
    from precision_eval.cases.base import BuiltCase

TABLE = Path(__file__).with_name("expectations.json")
SCHEMA_VERSION = 1
SIZE = "tiny"
SEED = 0
BACKENDS = ("aot_eager", "inductor")
MODES = ("eager", *(f"compiled-{backend}" for backend in BACKENDS))
MESSAGE_LENGTH = 200
REMEDY = "if that is right, record it with `precision-eval expect --record`"


@dataclass(frozen=True)
class Expectation:
    """What a fix comes to on a case in a mode."""

    status: str
    message: str | None = None


@dataclass(frozen=True)
class Column:
    """What one torch version does."""

    digests: dict[str, str] = field(default_factory=dict)
    cells: dict[str, Expectation] = field(default_factory=dict)


Table = dict[str, Column]


@dataclass(frozen=True)
class ExpectationDifference:
    """A cell that is not as the table says."""

    cell: str
    expected: Expectation | None
    found: Expectation | None
    note: str


@dataclass(frozen=True)
class ExpectationChange:
    """A cell whose status depends on the torch version."""

    cell: str
    by_version: tuple[tuple[str, Expectation], ...]


def version_key(version: str) -> tuple[int, ...]:
    """Order torch versions: ``"2.10.0"`` after ``"2.9.1"``."""
    match = re.match(r"\d+(\.\d+)*", version)
    if match is None:
        raise ParameterError(f"'{version}' is no torch version; expected one such as 2.13.0")
    return tuple(int(part) for part in match.group().split("."))


def release(version: str) -> str:
    """Return a version without its build: ``"2.13.0"`` of ``"2.13.0+cpu"``."""
    return ".".join(str(part) for part in version_key(version))


def load_table(path: Path = TABLE) -> Table:
    """Read the table."""
    if not path.exists():
        return {}
    content, columns = read_json(path), {}
    with worked_out_from(path, remedy="restore it, or record anew"):
        if content["schema_version"] != SCHEMA_VERSION:
            raise RecordError(f"{path} has schema {content['schema_version']}, expected {SCHEMA_VERSION}; record anew")
        for version in sorted(content["columns"], key=version_key):
            column = content["columns"][version]
            cells = {key: Expectation(*value) for key, value in column["cells"].items()}
            columns[version] = Column(dict(column["digests"]), cells)
            if strange := [key for key, cell in cells.items() if cell.status not in STATUSES]:
                raise RecordError(
                    f"{path}: {version} {strange[0]} has the status '{cells[strange[0]].status}'; "
                    f"known: {', '.join(STATUSES)}"
                )
    return columns


def save_table(table: Table, path: Path = TABLE) -> None:
    """Write the table as strict JSON, one line per cell, in a fixed order."""
    lines = ["{", f' "schema_version": {SCHEMA_VERSION},', ' "columns": {']
    versions = sorted(table, key=version_key)
    for version in versions:
        column = table[version]
        lines.append(f"  {json.dumps(version)}: {{")
        lines.append(f'   "digests": {json.dumps(column.digests, sort_keys=True)},')
        lines.append('   "cells": {')
        cells = [
            f"    {json.dumps(key)}: {json.dumps([cell.status, cell.message], ensure_ascii=False)}"
            for key, cell in sorted(column.cells.items())
        ]
        lines += [*",\n".join(cells).splitlines(), "   }", "  }" + ("," if version != versions[-1] else "")]
    with written_whole(path) as partial:
        partial.write_text("\n".join([*lines, " }", "}"]) + "\n", encoding="utf-8")


def observe(
    modes: Iterable[str], *, cases: Iterable[Case] = CASES, on_cell: Callable[[str], None] = lambda cell: None
) -> Column:
    """Run every fix on every case that has the size ``tiny``, in this process."""
    modes = tuple(modes)
    for mode in modes:
        check_known("mode", mode, MODES)
    if "compiled-inductor" in modes:
        check_inductor()
    column = Column()
    for case in cases:
        if SIZE not in case.sizes:
            continue
        column.digests[case.id] = case.digest
        built = case.build(SIZE, device="cpu", seed=SEED)
        for fix in FIXES:
            for mode in modes:
                if mode.partition("-")[0] in fix.modes:
                    key = f"{case.id}/{fix.id}/{mode}"
                    on_cell(key)
                    column.cells[key] = _observed(built, case.id, fix, mode)
    return column


def check_inductor() -> None:
    """Compile something trivial."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(lambda x: x * 2 + 1, backend="inductor")(torch.ones(4))
    except Exception as error:
        first = " ".join((str(error).splitlines() or [""])[0].split())[:MESSAGE_LENGTH]
        raise UnsupportedError(
            f"inductor cannot compile x * 2 + 1 here ({type(error).__name__}: {first}); mend its C++ compiler and "
            "torch's headers, or leave the mode compiled-inductor out"
        ) from error


def _observed(built: BuiltCase, case: str, fix: Fix, mode: str) -> Expectation:
    """Put a fix on a copy of a model, call it once and say what came of it."""
    import torch

    from precision_eval.measure.generic import called

    kind, _, backend = mode.partition("-")
    if backend:
        torch._dynamo.reset()
    cell = Cell(
        case=case, fixes=(fix.id,), mode=kind, device="cpu", size=SIZE, threads=1, measure="trace", options=Options()
    )
    try:
        with warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")  # a model's warnings are no status
            own = replace(built, model=copy.deepcopy(built.model))
            outcome = called(cell, fix.id, own, stack, backend=backend or "inductor")
    except Exception as error:  # noqa: BLE001 - whatever a model raises under a fix is that fix's status
        return Expectation(failure_of(fix.id, error).status, message_of(error))
    return Expectation(getattr(outcome, "status", "passed"))


def message_of(error: BaseException) -> str:
    """Return the family's sentence in an error, or the first line of what it says, addresses and paths left out."""
    text = f"{type(error).__name__}: {error}"
    matches, _ = find_members(cleaned(text))
    if matches:
        return matches[-1].sentence.replace("struct ", "")
    first = re.sub(r"0x[0-9a-fA-F]+", "0x…", " ".join((text.splitlines() or [""])[0].split()))
    return re.sub(r"(?<![\w.])/[\w./-]*/", "…/", first)[:MESSAGE_LENGTH]


def column_for(table: Table, version: str) -> tuple[str, Column]:
    """Return the column of a torch version, or that of the nearest lower one."""
    lower = [recorded for recorded in table if version_key(recorded) <= version_key(version)]
    if not lower:
        known = ", ".join(table) or "none"
        raise ParameterError(f"no expectations for torch {version} or older, recorded: {known}; {REMEDY}")
    recorded = max(lower, key=version_key)
    return recorded, table[recorded]


def differences(expected: Column, observed: Column, *, same_version: bool) -> list[ExpectationDifference]:
    """Compare what was found with a column."""
    result = []
    changed = {w for w, digest in observed.digests.items() if expected.digests.get(w, digest) != digest}
    modes = {key.rpartition("/")[2] for key in observed.cells}
    for key, now in observed.cells.items():
        before = expected.cells.get(key)
        if before is None:
            result.append(ExpectationDifference(key, None, now, "not in the table"))
        elif before.status != now.status:
            note = "another status" + (", and the case has changed" if _case(key) in changed else "")
            result.append(ExpectationDifference(key, before, now, note))
        elif same_version and before.message != now.message:
            result.append(ExpectationDifference(key, before, now, "another message"))
    for key, before in expected.cells.items():
        if _case(key) in observed.digests and key.rpartition("/")[2] in modes and key not in observed.cells:
            result.append(ExpectationDifference(key, before, None, "no longer there"))
    return result


def _case(key: str) -> str:
    return key.partition("/")[0]


def changes(table: Mapping[str, Column]) -> list[ExpectationChange]:
    """List the cells whose status depends on the torch version."""
    keys = sorted({key for column in table.values() for key in column.cells})
    versions = sorted(table, key=version_key)
    changing = []
    for key in keys:
        by_version = tuple((v, table[v].cells[key]) for v in versions if key in table[v].cells)
        if len({expectation.status for _, expectation in by_version}) > 1:
            changing.append(ExpectationChange(key, by_version))
    return changing


def updated(table: Table, version: str, observed: Column) -> Table:
    """Return the table with what was found recorded for a version."""
    old = table.get(release(version), Column())
    known = {case.id for case in CASES} | set(observed.digests)
    modes = {key.rpartition("/")[2] for key in observed.cells}
    kept = {
        key: cell
        for key, cell in old.cells.items()
        if _case(key) in known and not (_case(key) in observed.digests and key.rpartition("/")[2] in modes)
    }
    digests = {w: digest for w, digest in old.digests.items() if w in known} | observed.digests
    return {**table, release(version): Column(digests, kept | observed.cells)}


def spans_text(change: ExpectationChange) -> str:
    """Say which versions do what: ``"raised up to 2.6.0, passed from 2.8.0"``."""
    return spans_of([(version, expectation.status) for version, expectation in change.by_version])


def spans_of(by_version: Sequence[tuple[str, str]]) -> str:
    """Write (version, outcome) in ascending order as spans of equal outcomes."""
    spans: list[tuple[str, list[str]]] = []
    for version, outcome in by_version:
        if spans and spans[-1][0] == outcome:
            spans[-1][1].append(version)
        else:
            spans.append((outcome, [version]))
    return ", ".join(_span(number, len(spans), *span) for number, span in enumerate(spans))


def _span(number: int, count: int, status: str, versions: Sequence[str]) -> str:
    if number == count - 1:
        return f"{status} from {versions[0]}"
    if number == 0:
        return f"{status} up to {versions[-1]}"
    return f"{status} in {versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else "")
