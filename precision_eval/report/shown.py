"""What shows itself in a console or a notebook: a record, a comparison of fixes, a choice.

Conventions: ``repr`` is plain text, a line for a record or a choice and a table for a comparison; ``_repr_html_`` is a
table with every text escaped, and holds the doubts too. Every field of what is shown stays within reach.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from precision_eval.core.formatting import MISSING, fixed, join, memory_text, scientific, with_interval
from precision_eval.core.records import Record
from precision_eval.core.table import make_table, to_html, to_text
from precision_eval.diagnose.explain.reading import short_reason
from precision_eval.report.choice_text import COLUMNS, change_lines, doubt_lines, headline, table_rows
from precision_eval.report.tables import scalars_of
from precision_eval.results.choose import Choice, Constraints, Group, Row, choose_from
from precision_eval.results.choose import parse_memory as _parse_memory

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
        return "\n".join([*lines, *(f"  would change it: {line}" for line in change_lines(self))])

    def _repr_html_(self) -> str:
        title = f"{self.group.title}, {self.policy}"
        changes = [f"would change it: {line}" for line in change_lines(self)]
        doubts = [f"doubt: {line}" for line in doubt_lines(self)]
        return (
            f"<p><b>{html.escape(self.headline)}</b></p>"
            + to_html(make_table(COLUMNS, table_rows(self), title=title))
            + paragraphs([*changes, *doubts])
        )


def shown(choice: Choice) -> LoadedChoice:
    """Return the same choice as one that shows itself."""
    return LoadedChoice(**{item.name: getattr(choice, item.name) for item in fields(Choice)})


@dataclass(frozen=True, kw_only=True)
class Comparison:
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
        return shown(choose_from(self.group, constraints_of(**limits), policy=policy))

    def __repr__(self) -> str:
        if self.group.fault:
            return self.group.fault
        table = to_text(make_table(*_comparison_table(self.group, self.noun)))
        return "\n".join([self.group.title, table, *_failing_lines(self.group)])

    def _repr_html_(self) -> str:
        if self.group.fault:
            return paragraphs([self.group.fault])
        doubts = [f"doubt: {doubt}" for doubt in self.group.doubts]
        table = to_html(make_table(*_comparison_table(self.group, self.noun), title=self.group.title))
        return table + paragraphs([*_failing_lines(self.group), *doubts])


def constraints_of(
    *, max_drift: float | None = None, max_memory: str | int | None = None, min_speed: float | None = None
) -> Constraints:
    """Return limits as the engine holds them; see :func:`precision_eval.choose`."""
    if isinstance(max_memory, str):
        memory: dict[str, Any] = _parse_memory(max_memory)
    else:
        memory = {"max_memory_bytes": max_memory}
    return Constraints(max_drift=max_drift, min_speed=min_speed, **memory)


def _failing_lines(group: Group) -> list[str]:
    """Return one line per distinct message of what does not run."""
    shared: dict[tuple[str, str], list[str]] = {}
    for row in group.failing:
        shared.setdefault((row.status, short_reason(row.reason)), []).append(row.fix)
    return [f"{join(fixes)}: {status}: {reason}" for (status, reason), fixes in shared.items()]


def paragraphs(lines: Sequence[str]) -> str:
    """Return lines as HTML, each escaped."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _comparison_table(group: Group, noun: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows; an axis that no row has a figure for has no column."""
    axes = [axis for axis in _AXES if any(row.estimate(axis) is not None for row in group.fixes)]
    heads = [f"time / {group.baseline}" if axis == "time" else axis for axis in axes]
    return (noun, "status", *heads), [(row.fix, row.status, *_figures(row, axes)) for row in group.fixes]


def _figures(row: Row, axes: Sequence[str]) -> Iterator[str]:
    for axis in axes:
        found = row.estimate(axis)
        if found is None:
            yield MISSING
        elif axis == "memory":
            yield memory_text(found.value)
        elif axis == "time":
            texts = [fixed(value, decimals=3) for value in (found.value, found.low, found.high)]
            yield texts[0] if found.low == found.high else with_interval(texts[0], texts[1], texts[2])
        else:
            yield scientific(found.value)


def _after(reason: str | None) -> str:
    return "" if not reason else f" ({' '.join(reason.split())[:80]})"
