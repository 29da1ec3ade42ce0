"""Tables of figures that commands stored under ``results/``, as Markdown.

Conventions: a share is a count of trials, shown in per cent with its 95 % Wilson interval. A file that is not there
makes a block that says so and names the command; one that its command did not write is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from precision_eval.core.environment import environment_sha
from precision_eval.core.errors import PrecisionEvalError, RecordError
from precision_eval.stats import wilson_interval

SHORT_SHA = 12
FIGURE = ("figure", "target", "found", "met")
ASV_COST_COMMAND = "python -m validation cost --out results"
_SWEEP_SECTIONS = ("Where the order turns", "Which cast is faster")


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


def claims_markdown(path: Path) -> str:
    """Return the table of claims that ``precision-eval claims --out`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = [(row["claim"], row["target"], row["found"], met_word(row["met"])) for row in stored["claims"]]
    return table(("claim", "target", "found", "met"), rows)


def voice_markdown(path: Path) -> str:
    """Return what ``precision-eval check-voice --out`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))

    def mean(group: str, part: str) -> str:
        return f"{100 * sum(heard[part] for heard in stored[group]) / len(stored[group]):.1f} %"

    speakers = len(stored["free_running"])
    groups = (("the voice, free-running", "free_running"), ("original tokens, resynthesised", "resynthesised"))
    parts = ("value", "first_third", "last_third")
    rows = [(name, *(mean(group, part) for part in parts)) for name, group in groups]
    lines = [
        f"Phonemes right, {speakers} speakers × {stored['minutes']:g} minutes:",
        table(("speech", "whole", "first third", "last third"), rows),
        f"Mean of all speakers: {stored['mean_gap_points']:.1f} points below the original through the same codec and "
        f"vocoder. Speaker 0, whose untouched speech ships: {stored['gap_points']:.1f} points below that. Lost from "
        f"the first third to the last, less what the script itself loses: {stored['decline_points']:.1f} points.",
    ]
    return "\n\n".join(lines)


def sweep_markdown(folder: Path, *, relative_to: Path) -> str:
    """Return what ``precision-eval sweep`` found: its crossings and findings, the figure, and where the rest stands."""
    place = Path(os.path.relpath(folder, relative_to)).as_posix()
    sections = (folder / "summary.md").read_text(encoding="utf-8").split("\n## ")[1:]
    shown = [text.split("\n", 1)[1].strip() for text in sections if text.startswith(_SWEEP_SECTIONS)]
    return "\n\n".join(
        [*shown, f"![lengths]({place}/lengths.png)", f"Every ratio: [{place}/summary.md]({place}/summary.md)."]
    )


def audio_markdown(path: Path) -> str:
    """Return the figures with a target that ``python -m validation audio`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for row in (row for part in stored.values() if isinstance(part, list) for row in part if row["met"] is not None):
        target = f"≥ {row['least']:.3g}" if row["most"] is None else f"≤ {row['most']:.3g}"
        found, low, high = (f"{row[name]:.3g}" for name in ("value", "low", "high"))
        interval = "" if low == high else f" [{low}, {high}]"
        rows.append((row["name"], f"{target} {row['unit']}", f"{found}{interval}", met_word(row["met"])))
    return table(FIGURE, rows)


def doctor_markdown(path: Path) -> str:
    """Return the figures that ``python -m validation doctor`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows: list[tuple[str, ...]] = []

    def row(name: str, target: str, found: str, is_met: bool | None) -> None:
        rows.append((name, target, found, met_word(is_met)))

    for half in ("settled on", "held out"):
        one = stored["plants"][half]
        low, high = (f"{100 * one[end]:.1f}" for end in ("low", "high"))
        found = f"{one['located']} of {one['total']}, {100 * one['share']:.1f} % [{low}, {high}]"
        row(
            f"planted faults located to module and line, {half}", f"≥ {100 * one['target']:.0f} %", found, one["is_met"]
        )
        hits, silent = one["located_beyond_traceback"], one["beyond_traceback"]
        share = f", {100 * hits / silent:.1f} %" if silent else ""
        row(f"of these, where no traceback points there already, {half}", "–", f"{hits} of {silent}{share}", None)
    clean = stored["clean"]
    row("clean models called faulty", "0", f"{clean['alarms']} of {clean['total']}", clean["alarms"] == 0)
    for one in (one for one in stored["cost"] if one["observing"] == "dtypes and values"):  # as ``examine`` observes
        name = f"observed ÷ plain forward of {one['forward_ms']:.3g} ms, {one['dtype']}"
        row(name, "≤ 3", f"{one['ratio']:.2f} [{one['low']:.2f}, {one['high']:.2f}]", one["is_met"])
    return table(FIGURE, rows)


def sweep_cost_markdown(folder: Path) -> str:
    """Return time and disk per torch version of a sweep; empty where the folder has no notes of environments."""
    from tools.torch_versions.sweep_costs import read_costs

    costs = read_costs(folder)
    if not costs:
        return ""
    head = ["torch", "environment made in", "on disk"]
    knows_shared = any(one.shared_bytes is not None for one in costs)
    knows_wall = any(one.sweep_s is not None for one in costs)
    head += [*(["of it shared"] if knows_shared else []), "benchmarks", "their time"]
    head += ["the sweep took"] if knows_wall else []
    rows = []
    for one in costs:
        row = [f"{one.torch_version}, {one.build}", f"{one.environment_s:.0f} s", _gb(one.bytes)]
        row += [_gb(one.shared_bytes)] if knows_shared else []
        row += [f"{one.benchmarks}", f"{one.benchmarks_s / 60:.1f} min"]
        row += ["–" if one.sweep_s is None else f"{one.sweep_s / 60:.1f} min"] if knows_wall else []
        rows.append(row)
    note = "Their time is asv's count; its start, its list of benchmarks and the project's install come on top"
    note += ", and are in the sweep's time, all the times that it was run." if knows_wall else "."
    if knows_shared:
        note += " Shared: files that uv links to its cache."
    return f"{table(head, rows)}\n\n{note}"


def _gb(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e9:.2f} GB"


def asv_cost_markdown(path: Path) -> str:
    """Return how long asv takes on a fresh checkout, its environment included, beside the targets."""
    stored = read_figures(path, ASV_COST_COMMAND, keys=("runs",))
    if stored is None:
        return not_measured(path, ASV_COST_COMMAND)
    with as_written(path, ASV_COST_COMMAND):
        rows: list[tuple[str, ...]] = []
        places: dict[str, None] = {}
        for one in stored["runs"]:
            target = one["target_s"]
            rows.append(
                (
                    f"`{one['command']}`, fresh checkout, environment made",
                    "–" if target is None else f"≤ {target / 60:g} min",
                    f"{one['seconds'] / 60:.1f} min, {one['benchmarks']} benchmarks, {_gb(one['environment_bytes'])}",
                    met_word(None if target is None else one["seconds"] <= target),
                )
            )
            places[measured_with(ASV_COST_COMMAND, one["environment"])] = None
        return "\n\n".join([table(("command", "target", "found", "met"), rows), *places])
