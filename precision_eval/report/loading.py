"""Runs in Python: :func:`load` reads one, and what it returns shows itself in a notebook.

Conventions: tables have one row per fix of a group, or one per record, with the columns of ``results.csv``: the cell's
identity, then ``measure.path.to.scalar`` with the unit in the name, as in the records. Missing is ``None``. Lists
(series, raw samples) stay in the records. pandas is no dependency; it is imported where a data frame is asked for.
"""

from __future__ import annotations

import fnmatch
import html
import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, PrecisionEvalError, check_known
from precision_eval.core.formatting import MISSING, join, memory_text, one_line, scientific, visible
from precision_eval.core.records import Record
from precision_eval.core.table import make_table, to_html, to_text
from precision_eval.report.choice_text import COLUMNS, doubt_lines, headline, table_rows, time_text
from precision_eval.report.tables import IDENTITY, launched_cell, lines_of, scalars_of
from precision_eval.results.choose import Answer, Choice, Group, Question, Row, answer, choose_from
from precision_eval.results.choose.comparing import constraints_of
from precision_eval.results.reading import Run, load_run, pins_of

_AXES = ("time", "drift", "memory")


@dataclass(frozen=True, kw_only=True, repr=False)
class LoadedRecord(Record):
    """A record that shows itself in short; every field of :class:`~precision_eval.core.records.Record` is there."""

    @property
    def scalars(self) -> dict[str, Any]:
        """The figures that are no lists: path to value."""
        return dict(scalars_of(self.data or {}))

    def __repr__(self) -> str:
        return f"<{self.cell}: {self.status}{_after(self.reason)}; {len(self.scalars)} figures>"

    def _repr_html_(self) -> str:
        rows = [("status", f"{self.status}{_after(self.reason)}"), *((n, str(v)) for n, v in self.scalars.items())]
        return to_html(make_table(("figure", "value"), rows, title=self.cell))


@dataclass(frozen=True, kw_only=True, repr=False)
class LoadedChoice(Choice):
    """A choice that shows itself in short; every field of :class:`~precision_eval.results.choose.Choice` is there."""

    @property
    def headline(self) -> str:
        """The answer in one sentence, with its reason."""
        return headline(self)

    def __repr__(self) -> str:
        lines = [f"{self.group.title}, {self.policy}: {self.headline}"]
        return visible("\n".join(lines))

    def _repr_html_(self) -> str:
        title = f"{self.group.title}, {self.policy}"
        doubts = [f"doubt: {line}" for line in doubt_lines(self)]
        return (
            f"<p><b>{html.escape(visible(self.headline))}</b></p>"
            + to_html(make_table(COLUMNS, table_rows(self), title=title))
            + paragraphs(doubts)
        )


def loaded_choice(choice: Choice) -> LoadedChoice:
    return LoadedChoice(**{item.name: getattr(choice, item.name) for item in fields(Choice)})


@dataclass(frozen=True, kw_only=True)
class FixComparison:
    """The fixes of one group, side by side.

    Attributes
    ----------
    group : Group
        What the records say about each of them, or why they cannot be compared.
    noun : str
        What is compared, for the head of the table.
    """

    group: Group = field(repr=False)
    noun: str = "fix"

    def choose(self, *, policy: str = "balanced", **limits: Any) -> LoadedChoice:
        """Choose in this group; limits as in :func:`choose`."""
        return loaded_choice(choose_from(self.group, constraints_of(**limits), policy=policy))

    def __repr__(self) -> str:
        if self.group.fault:
            return self.group.fault
        table = to_text(make_table(*_comparison_table(self.group, self.noun)))
        return visible("\n".join([self.group.title, table, *_failing_lines(self.group)]))

    def _repr_html_(self) -> str:
        if self.group.fault:
            return paragraphs([self.group.fault])
        doubts = [f"doubt: {doubt}" for doubt in self.group.doubts]
        table = to_html(make_table(*_comparison_table(self.group, self.noun), title=self.group.title))
        return table + paragraphs([*_failing_lines(self.group), *doubts])


def paragraphs(lines: Sequence[str]) -> str:
    """Return lines as HTML, each escaped."""
    return "".join(f"<p>{html.escape(visible(line))}</p>" for line in lines)


def _failing_lines(group: Group) -> list[str]:
    return [f"{join(fixes)}: {status}: {reason}" for (status, reason), fixes in group.failing_by_reason.items()]


def _comparison_table(group: Group, noun: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows; an axis that no row has a figure for has no column."""
    axes = [axis for axis in _AXES if any(row.estimate(axis) is not None for row in group.fixes)]
    launched = [launched_cell(group, row) for row in group.fixes]
    clock = "device " if any(launched) else ""
    heads = [f"{clock}time / {group.baseline}" if axis == "time" else axis for axis in axes]
    rows = [(row.fix, row.status, *_figures(row, axes)) for row in group.fixes]
    if any(launched):
        heads.append("launched")
        rows = [(*row, text or MISSING) for row, text in zip(rows, launched, strict=True)]
    return (noun, "status", *heads), rows


def _figures(row: Row, axes: Sequence[str]) -> Iterator[str]:
    for axis in axes:
        estimate = row.estimate(axis)
        if estimate is None or axis == "time":
            yield time_text(estimate)
        else:
            yield memory_text(estimate.value) if axis == "memory" else scientific(estimate.value)


def _after(reason: str | None) -> str:
    return "" if not reason else f" ({one_line(reason.strip())[:80]})"


KINDS = ("fixes", "records")


class MissingPackageError(PrecisionEvalError, ImportError):
    """A package that this one does not depend on is asked for and not installed."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Choices(Sequence[Choice]):
    """What :func:`choose` found: one :class:`~precision_eval.results.choose.Choice` per group."""

    answer: Answer

    def __getitem__(self, index: Any) -> Any:
        return self._choices[index]

    def __len__(self) -> int:
        return len(self.answer.choices)

    @property
    def fix(self) -> str | None:
        """The fix to take, where it is the same everywhere; None where none keeps the limits."""
        found = {choice.fix for choice in self if choice.group.curing}
        if len(found) > 1:
            each = "; ".join(f"{choice.group.title}: {choice.fix}" for choice in self)
            raise ParameterError(f"no one fix is the answer everywhere ({each}); give case, size or mode")
        return next(iter(found), None)

    @cached_property
    def _choices(self) -> tuple[LoadedChoice, ...]:
        return tuple(loaded_choice(choice) for choice in self.answer.choices)

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self), *self._unanswered()])

    def _repr_html_(self) -> str:
        return "".join(choice._repr_html_() for choice in self._choices) + paragraphs(self._unanswered())

    def _unanswered(self) -> list[str]:
        return [f"{group.title}: {reason}" for group, reason in self.answer.unanswered]


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A run that was read.

    Attributes
    ----------
    run : Run
        Its records in groups.
    path : Path
        Its folder.
    records : mapping of str to LoadedRecord
        Cell id, such as ``voice/kv_to_query/eager@cpu:default#latency``, to its last record.
    environment : mapping
        What it was measured with; empty where that is not stored.
    torn_bytes : int
        Length of a torn last record, which is not among the records.
    faults : tuple of str
        What is wrong with each line that is no record, with its number; :func:`load` warns of them.
    """

    run: Run = field(repr=False)
    path: Path
    records: Mapping[str, LoadedRecord] = field(repr=False)
    environment: Mapping[str, Any] = field(repr=False)
    torn_bytes: int
    faults: tuple[str, ...]

    @cached_property
    def comparisons(self) -> tuple[FixComparison, ...]:
        """The fixes side by side, one comparison per case × size × mode × device × threads."""
        return tuple(FixComparison(group=group) for group in self.run.groups if group.fixes)

    def comparison(self, case: str, *, size: str = "*", mode: str = "*", device: str = "*") -> FixComparison:
        """Return the one comparison of that place.

        Parameters
        ----------
        case, size, mode, device : str
            Names or globs.

        Returns
        -------
        FixComparison

        Raises
        ------
        ParameterError
            None is there, or more than one; the message names them.
        """
        asked = (case, size, mode, device)
        found = [comparison for comparison in self.comparisons if _is_of(comparison.group, asked)]
        if len(found) == 1:
            return found[0]
        there = "; ".join(one.group.title for one in found or self.comparisons)
        what = f"{len(found)} comparisons are of" if found else "no comparison is of"
        raise ParameterError(f"{what} {' · '.join(asked)}; give case, size, mode and device of one of: {there}")

    def choose(self, **question: Any) -> Choices:
        """Choose a fix; see :func:`choose`."""
        return choose(self, **question)

    def to_dicts(self, *, kind: str = "fixes") -> list[dict[str, Any]]:
        """Return the run as rows of plain data.

        Parameters
        ----------
        kind : {"fixes", "records"}
            One row per fix (reference, noise floor, control) of a group with the figures of all its measures; or one
            per record.

        Returns
        -------
        list of dict
            All rows have the same keys.

        Raises
        ------
        UnknownNameError
            No such kind.
        """
        check_known("kind of rows", kind, KINDS)
        rows = lines_of(self.run) if kind == "fixes" else [_record_row(record) for record in self.records.values()]
        keys = dict.fromkeys(key for row in rows for key in row)
        return [{key: row.get(key) for key in keys} for row in rows]

    def to_dataframe(self, *, kind: str = "fixes") -> Any:
        """Return the same as a pandas data frame; see :meth:`to_dicts`.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingPackageError(
                "to_dataframe needs pandas, which is not installed; pip install pandas, or use to_dicts()"
            ) from error
        return pandas.DataFrame(self.to_dicts(kind=kind))

    def __repr__(self) -> str:
        lines = [f"<run {self.path}: {len(self.records)} records>"]
        lines += [f"  {line}" for line in self._summary()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        tables = "".join(comparison._repr_html_() for comparison in self.comparisons)
        return f"<p><b>{html.escape(str(self.path))}</b>: {len(self.records)} records</p>{tables}"

    def _summary(self) -> Iterator[str]:
        for comparison in self.comparisons:
            group = comparison.group
            failing = f", {len(group.failing)} do not run" if group.failing else ""
            yield group.fault or f"{group.title}: {len(group.curing)} fixes run{failing}"


def load(path: str | Path) -> LoadedRun:
    """Read a run.

    Parameters
    ----------
    path : str or Path
        Folder that ``precision-eval run --out`` wrote.

    Returns
    -------
    LoadedRun

    Raises
    ------
    RecordError
        No records there, or they or the environment cannot be read.

    Examples
    --------
    >>> run = load("results/cpu")  # doctest: +SKIP
    >>> run.choose(case="voice", mode="eager", policy="quality").fix  # doctest: +SKIP
    'full_float32'
    """
    run = load_run(Path(path))
    for line in run.damage:
        warnings.warn(one_line(line), stacklevel=2)
    names = [item.name for item in fields(Record)]
    records = {record.cell: LoadedRecord(**{name: getattr(record, name) for name in names}) for record in run.records}
    given: dict[str, Any] = {name: getattr(run, name) for name in ("environment", "torn_bytes", "faults")}
    return LoadedRun(run=run, path=run.directory, records=records, **given)


def choose(
    run: LoadedRun | str | Path,
    *,
    policy: str = "balanced",
    max_drift: float | None = None,
    max_memory: str | int | None = None,
    min_speed: float | None = None,
    case: str = "*",
    size: str = "*",
    mode: str = "*",
    device: str | None = None,
    threads: int | None = None,
) -> Choices:
    """Say which fix to take, and why.

    Parameters
    ----------
    run : LoadedRun, str or Path
        What :func:`load` returned, or the folder.
    policy : {"quality", "balanced", "speed"}
        See :mod:`precision_eval.results.choose.choosing`.
    max_drift : float or None
        Largest relative error to float64.
    max_memory : str, int or None
        A size (``"2GiB"``), bytes, or a ratio to full_float32's (``"0.6x"``).
    min_speed : float or None
        Ratio to full_float32; above 1 is faster.
    case, size, mode : str
        Names or globs.
    device : str or None
    threads : int or None

    Returns
    -------
    Choices
        One per group.

    Raises
    ------
    MissingMeasureError
        What the policy or a limit needs was not measured; the message has the command.
    ParameterError
        Nothing in the run is what is asked for, or a limit cannot be used.
    """
    loaded = run if isinstance(run, LoadedRun) else load(run)
    question = Question(
        policy=policy,
        constraints=constraints_of(max_drift=max_drift, max_memory=max_memory, min_speed=min_speed),
        cases=(case,),
        sizes=(size,),
        modes=(mode,),
        device=device,
        threads=threads,
    )
    return Choices(answer=answer([comparison.group for comparison in loaded.comparisons], question))


def _record_row(record: LoadedRecord) -> dict[str, Any]:
    names = (*IDENTITY[:-2], "cell", "measure", "status", "reason", "wall_s", "started_at", "environment")
    row = {name: getattr(record, name) for name in names if name != "pins"}
    return {name: pins_of(record).lstrip(",") if name == "pins" else row[name] for name in names} | record.scalars


def _is_of(group: Group, asked: tuple[str, ...]) -> bool:
    names = (group.case, group.size, group.mode, group.device)
    return all(fnmatch.fnmatchcase(name, glob) for name, glob in zip(names, asked, strict=True))
