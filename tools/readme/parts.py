"""What the README's blocks of figures share: tables, shares with their intervals, and who measured.

Conventions: a share is a count of trials, shown in per cent with its 95 % Wilson interval. A file that is not there
makes a block that says so and names the command; one that its command did not write is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from precision_eval.core.environment import environment_sha
from precision_eval.core.errors import PrecisionEvalError, RecordError
from precision_eval.stats import wilson_interval

SHORT_SHA = 12


def read_figures(path: Path, command: str, *, keys: Sequence[str]) -> dict[str, Any] | None:
    """Return what a command stored; None where the file is not there."""
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}); give the file that `{command}` writes") from error
    except ValueError as error:
        raise RecordError(f"{path} is no JSON ({error}); give the file that `{command}` writes") from error
    lacking = [key for key in keys if key not in stored] if isinstance(stored, dict) else list(keys)
    if lacking:
        raise RecordError(f"{path} lacks {', '.join(lacking)}; give the file that `{command}` writes")
    return dict(stored)


@contextmanager
def as_written(path: Path, command: str) -> Iterator[None]:
    """Turn what goes wrong in reading a file's inside into a named error."""
    try:
        yield
    except PrecisionEvalError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise RecordError(
            f"{path} is not as `{command}` writes it ({error!r}); give that file, or measure it again"
        ) from error


def not_measured(path: Path, command: str) -> str:
    """Return the block of figures that nobody has measured yet."""
    return f"Not measured: there is no `{path.name}` yet. `{command}` makes it."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    shown = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in shown]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def met_word(is_met: bool | None) -> str:
    """Return ``yes``, ``**no**``, or a dash where there is no target."""
    return "–" if is_met is None else "yes" if is_met else "**no**"


def percent(share: float, *, digits: int = 1) -> str:
    """Return a share in per cent."""
    return f"{100.0 * share:.{digits}f} %"


def share_text(hits: int, trials: int) -> str:
    """Return ``9 of 10, 90.0 % [59.6, 98.2]``; a dash without trials."""
    if not trials:
        return "–"
    low, high = wilson_interval(hits / trials, trials)
    return f"{hits:,} of {trials:,}, {percent(hits / trials)} [{100 * low:.1f}, {100 * high:.1f}]"


def span(values: Sequence[float], form: str) -> str:
    """Return ``least to largest``, or the value where they read the same."""
    low, high = (format(end, form) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def measured_with(command: str, environment: Mapping[str, Any] | None) -> str:
    """Return the line that says who measured: the command, the machine, the build, the commit."""
    if not environment:
        return f"Measured with `{command}`; on which machine is not on record."
    cpu, package = environment["cpu"], environment["package"]
    parts = [
        f"{cpu['model'] or 'unnamed processor'}, {cpu['usable_cores']} usable cores",
        f"Python {environment['platform']['python']}",
        f"torch {environment['torch']['version']}",
        f"commit {package['git_commit'] or 'unknown'}",
        f"environment {environment_sha(dict(environment))[:SHORT_SHA]}",
    ]
    return f"Measured with `{command}` on {'; '.join(parts)}."
