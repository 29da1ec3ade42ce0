"""What ``gate`` does: compare two result sets, say what became worse, and end with a code that says so."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from precision_eval.cli import EXIT_COULD_NOT_TELL, EXIT_DONE, EXIT_VERDICT
from precision_eval.core.errors import ParameterError, RecordError

EXIT_CODES = {"regression": EXIT_VERDICT, "could not tell": EXIT_COULD_NOT_TELL, "no regression": EXIT_DONE}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for."""

    base: str
    head: str
    results: Path | None = None
    machine: str | None = None
    margin_latency: str = "1%"
    margin_anchor: str = "10%"
    margin_drift: str = "1.2"
    margin_memory: str = "1%"
    required: tuple[str, ...] = ("latency",)
    markdown: Path | None = None
    as_json: bool = False


def gate_command(request: Request) -> None:
    """Compare, print, write."""
    from precision_eval.results.gate import Margins, compare_sides, markdown, open_sides, to_json

    margins = Margins(
        latency=_fraction("--margin-latency", request.margin_latency),
        drift=_number("--margin-drift", request.margin_drift),
        memory=_fraction("--margin-memory", request.margin_memory),
        anchor=_fraction("--margin-anchor", request.margin_anchor),
    )
    base, head = open_sides(request.base, request.head, results=request.results, machine=request.machine)
    found = compare_sides(base, head, margins=margins, required=request.required)
    summary = markdown(found)
    if request.markdown is not None:
        _write(request.markdown, summary)
    sys.stdout.write(to_json(found) if request.as_json else summary)
    sys.exit(EXIT_CODES[found.outcome])


def _fraction(name: str, text: str) -> float:
    """Read ``1%`` or ``0.01``."""
    number = text.strip()
    if number.endswith("%"):
        return _number(name, number[:-1], shown=text) / 100.0
    return _number(name, number, shown=text)


def _number(name: str, text: str, *, shown: str | None = None) -> float:
    try:
        return float(text.strip().removeprefix("×").removeprefix("x"))
    except ValueError as error:
        raise ParameterError(f"{name} is '{shown or text}'; expected a number such as 1% or 1.2") from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}; give another file with --markdown") from error
