"""Figures as tables: in a terminal, in ``OUT/report.md`` and in the blocks of ``docs/``.

A share is shown in per cent with Wilson's 95 % interval and its count: ``33.3 % [6.1, 79.2], 1 of 3``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from precision_eval.core.environment import environment_sha, stored_environments
from precision_eval.core.files import TrialFile, read_json, write_json
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Strong, Table, make_table, to_markdown
from precision_eval.stats import wilson_interval
from validation.frame import NAMES, Data, Figure, experiment_by_name, figures_of

_HEAD = ("figure", "target", "found", "met")
_SHORT_SHA = 12


def share_text(hits: int, trials: int, *, interval: tuple[float, float] | None = None, digits: int = 1) -> str:
    """Return a share with its interval, Wilson's unless another is given, and its count; a dash without trials."""
    if not trials:
        return MISSING
    low, high = interval or wilson_interval(hits / trials, trials)
    share, below, above = (f"{100 * value:.{digits}f}" for value in (hits / trials, low, high))
    return f"{share} % [{below}, {above}], {hits:,} of {trials:,}"


def plain_share(hits: int, trials: int) -> str:
    """Return a share and its count; a dash without trials."""
    return f"{100 * hits / trials:.1f} %, {hits:,} of {trials:,}" if trials else MISSING


def judged_share(
    name: str, hits: int, trials: int, target: str = "", *, more: str = "", rivals: Mapping[str, str] | None = None
) -> Figure:
    """Return the figure of a share, held to a target such as ``≥ 90 %`` where there is one, and trials."""
    met = meets(hits / trials, target) if target and trials else None
    return Figure(name, share_text(hits, trials) + more, target, met, rivals or {})


def meets(share: float, target: str) -> bool:
    """Say whether a share keeps a target such as ``≤ 0.5 %``."""
    sign, bound, *_ = target.split()
    return share >= float(bound) / 100 if sign == "≥" else share <= float(bound) / 100


def span(values: Sequence[float], form: str) -> str:
    """Return ``least to largest``, or the value where they read the same."""
    low, high = (format(end, form) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def figure_table(figures: Sequence[Figure], *, title: str = "") -> Table:
    """Return all figures as one table, the rivals of each in one cell."""
    rivals = ("; ".join(f"{name}: {value}" for name, value in figure.rivals.items()) for figure in figures)
    rows = [(*_cells(figure), text or MISSING) for figure, text in zip(figures, rivals, strict=True)]
    return make_table((*_HEAD, "others, same trials"), rows, title=title)


def rival_tables(figures: Sequence[Figure]) -> list[Table]:
    """Return the figures with a column per rival, whose intervals are left out; a table per set of rivals."""
    groups: dict[tuple[str, ...], list[Figure]] = {}
    for figure in sorted(figures, key=lambda figure: -len(figure.rivals)):
        named = tuple(figure.rivals)
        home = next((rivals for rivals in groups if named and set(named) <= set(rivals)), named)
        groups.setdefault(home, []).append(figure)
    return [
        make_table(
            (*_HEAD, *names), [(*_cells(f), *(_short(f.rivals.get(name, MISSING)) for name in names)) for f in rows]
        )
        for names, rows in groups.items()
    ]


def _cells(figure: Figure) -> tuple[str, ...]:
    met = MISSING if figure.met is None else "yes" if figure.met else Strong("no")
    return figure.name, figure.target or MISSING, figure.found, met


def _short(text: str) -> str:
    """Keep a value's estimate and count: ``"33.3 % [6.1, 79.2], 1 of 3"`` → ``"33.3 %, 1 of 3"``."""
    head, _, count = text.rpartition("], ")
    return f"{head.split(' [')[0]}, {count}" if head and " of " in count else text.split(" [")[0].split(", ")[0]


def spanned(interval: str) -> str:
    """``+1 [0, 2]`` → ``+1 (0 to 2)``: a table of figures leaves out brackets of what is beside them."""
    return interval.replace(" [", " (").replace(", ", " to ").replace("]", ")")


def write_report(figures: Mapping[str, Sequence[Figure]], out: Path) -> None:
    """Write ``figures.json`` and ``report.md``; experiments that were not asked for keep their figures."""
    path = out / "figures.json"
    known = read_json(path) if path.exists() else {}
    known |= {name: [asdict(figure) for figure in rows] for name, rows in figures.items() if rows}
    ordered = {name: known[name] for name in NAMES if name in known}
    write_json(path, ordered)
    parts = ["# How far the measuring can be trusted"]
    for name, rows in ordered.items():
        parts.append(f"## {experiment_by_name(name).title}")
        parts.append(to_markdown(figure_table([Figure(**row) for row in rows])))
        parts += [f"![{plot.stem}]({plot.name})" for plot in sorted(out.glob(f"{name}*.png"))]
    (out / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def reported_markdown(path: Path) -> str:
    """Return the figures of a ``figures.json`` that have a target, per experiment."""
    parts = []
    for name, rows in read_json(path).items():
        judged = [Figure(**row) for row in rows if row["met"] is not None]
        if judged:
            parts += [f"**{name}**", *map(to_markdown, rival_tables(judged))]
    return "\n\n".join(parts)


def stored_markdown(name: str, path: Path, *, judged_only: bool = False, without: str = "") -> str:
    """Return the figures of an experiment's summary or trials, what is to be known of them, and who measured.

    `without`: figures whose name has this in it are left out.
    """
    command = f"python -m validation {name} --size full"
    if not path.exists():
        return f"Not measured: there is no `{path.name}` yet. `{command}` makes it."
    experiment, content = experiment_by_name(name), stored_content(name, path)
    if path.suffix == ".jsonl":  # trials of several machines, which the figures name
        measured = [f"Measured with `{command}`."]
    else:
        command = content.get("command", command)
        measured = [f"Measured with `{command}` on {_machine(where)}." for where in environments_of(content, path)]
    figures = figures_of(experiment, content, path)
    shown = [figure for figure in figures if figure.met is not None or not judged_only]
    shown = [figure for figure in shown if not without or without not in figure.name]
    notes = experiment.notes(content)
    return "\n\n".join([*map(to_markdown, rival_tables(shown)), *notes, *measured])


def stored_content(name: str, path: Path) -> Any:
    """Return what the figures of an experiment are made of, from its stored summary or trials."""
    if path.suffix != ".jsonl":
        return read_json(path)
    experiment, lines = experiment_by_name(name), TrialFile(path).read()
    options = experiment.options({}, out=path.parent, size="full")
    return lines if experiment.summary is None else experiment.summary(lines, options)


def environments_of(content: Data, path: Path) -> list[Data]:
    """Return where a summary was measured: its own environment, its runs', or the one its campaign is named after."""
    environments = [content.get("environment"), *(run.get("environment") for run in content.get("runs", ()))]
    campaign = str(content.get("campaign", "-")).partition("/")[0]
    stored = stored_environments(path.parent)
    environments += [environment for sha, environment in stored.items() if sha.startswith(campaign)]
    return list({_machine(environment): dict(environment) for environment in environments if environment}.values())


def _machine(environment: Mapping[str, Any]) -> str:
    cpu, package = environment["cpu"], environment["package"]
    parts = (
        f"{cpu['model'] or 'unnamed processor'}, {cpu['usable_cores']} usable cores",
        f"Python {environment['platform']['python']}",
        f"torch {environment['torch']['version']}",
        f"commit {package['git_commit'] or 'unknown'}",
        f"environment {environment_sha(dict(environment))[:_SHORT_SHA]}",
    )
    return "; ".join(parts)


def to_number(value: float | None) -> float:
    """Read a number from JSON, where NaN is None."""
    return math.nan if value is None else value
