"""What ``gate`` does: compare two result sets, say what became worse, and end with a code that says so."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from precision_eval.cli import EXIT_COULD_NOT_TELL, EXIT_DONE, EXIT_VERDICT
from precision_eval.core.errors import ParameterError, RecordError

EXIT_CODES = {"regression": EXIT_VERDICT, "could not tell": EXIT_COULD_NOT_TELL, "no regression": EXIT_DONE}


def gate_command(
    base: str,
    head: str,
    *,
    results: Path | None,
    machine: str | None,
    margins: Mapping[str, str],
    required: tuple[str, ...],
    summary_path: Path | None,
    as_json: bool,
) -> None:
    """Compare, print, write."""
    from precision_eval.results.gate import Margins, compare_sides, markdown, open_sides, to_json

    allowed = Margins(
        drift=_number("--margin-drift", margins["drift"]),
        **{name: _fraction(f"--margin-{name}", margins[name]) for name in ("latency", "memory", "anchor")},
    )
    sides = open_sides(base, head, results=results, machine=machine)
    found = compare_sides(*sides, margins=allowed, required=required)
    summary = markdown(found)
    if summary_path is not None:
        _write(summary_path, summary)
    sys.stdout.write(to_json(found) if as_json else summary)
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
