"""Numbers that name where they come from.

Conventions: a path is a JSON pointer (RFC 6901) into the record's line of ``records.jsonl``. The value is as recorded,
unrounded; the text is for reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from precision_eval.core.records import Record
from precision_eval.results.model import figure_of

Write = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of the HTML report."""

    value: float
    text: str
    records: tuple[str, ...]
    paths: tuple[str, ...]
    operation: str = ""

    @property
    def attributes(self) -> Markup:
        """The attributes that name the origin, for an element of HTML or SVG."""
        made = Markup(' data-op="{}"').format(self.operation) if self.operation else Markup("")
        return (
            Markup('data-v="{}" data-record="{}" data-path="{}"').format(
                repr(self.value), " ".join(self.records), " ".join(self.paths)
            )
            + made
        )

    def __html__(self) -> Markup:
        return Markup("<span {}>{}</span>").format(self.attributes, self.text)

    @property
    def tspan(self) -> Markup:
        """The same inside SVG text."""
        return Markup("<tspan {}>{}</tspan>").format(self.attributes, self.text)


@dataclass(frozen=True, kw_only=True)
class Ranged:
    """A number with its interval; either end may be missing."""

    middle: Figure
    low: Figure | None = None
    high: Figure | None = None

    @property
    def text(self) -> str:
        """Text such as ``0.83 [0.82, 0.84]``."""
        ends = "" if self.low is None or self.high is None else f" [{self.low.text}, {self.high.text}]"
        return self.middle.text + ends

    def __html__(self) -> Markup:
        if self.low is None or self.high is None:
            return escape(self.middle)
        return Markup('{} <span class="ci">[{}, {}]</span>').format(self.middle, self.low, self.high)


def figure(record: Record | None, *path: str, write: Write, root: str = "data") -> Figure | None:
    """Return the number at a path of a record, or None where there is no finite one."""
    content: Mapping[str, Any] | None = None if record is None else getattr(record, root)
    value = figure_of(content, *path)
    if record is None or value is None:
        return None
    return Figure(value=value, text=write(value), records=(record.cell,), paths=(pointer(root, *path),))


def ranged(record: Record | None, middle: tuple[str, ...], low: str, high: str, *, write: Write) -> Ranged | None:
    """Return a number with the interval that stands beside it under other names."""
    found = figure(record, *middle, write=write)
    if found is None:
        return None
    ends = [figure(record, *middle[:-1], name, write=write) for name in (low, high)]
    return Ranged(middle=found, low=ends[0], high=ends[1])


def combined(operation: str, first: Figure, second: Figure, *, write: Write) -> Figure:
    """Return the sum or difference of two figures."""
    value = first.value + second.value if operation == "sum" else first.value - second.value
    return Figure(
        value=value,
        text=write(value),
        records=first.records + second.records,
        paths=first.paths + second.paths,
        operation=operation,
    )


def pointer(*path: str | int) -> str:
    """Return a JSON pointer: ``/data/ulp_quantiles/0.5``."""
    return "".join(f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in path)
