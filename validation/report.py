"""Figures as tables: in a terminal, in ``OUT/report.md`` and in docs/validation.md.

A share is shown in per cent with Wilson's 95 % interval and its count: ``33.3 % [6.1, 79.2], 1 of 3``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from precision_eval.core.environment import stored_environments
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import TrialFile, read_json, write_json
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Strong, Table, make_table, to_markdown, without_empty_columns
from precision_eval.stats.intervals import wilson_interval
from validation.frame import NAMES, Data, Figure, experiment_by_name, figures_of

_HEAD = ("figure", "target", "found", "met")
_SHORT_COMMIT = 8
FIGURES_NAME = "figures.json"
# Where the committed results of the page's experiments are, below results/.
STORED = {
    **dict.fromkeys(("latency", "memory", "overhead"), f"proof/{FIGURES_NAME}"),
    "kinds": "kinds/kinds.jsonl",
    "device": "device/device.jsonl",
    "doctor": "doctor.json",
    "choose": "choose/choose.json",
    "gate": "gate/gate.jsonl",
    "versions": "versions/versions.json",
    "sound": "sound/sound.json",
    "reports": "reports/reports.jsonl",
}

# What is a column of an experiment's table, in the names of its figures.
CONDITIONS = {
    "latency": r", (quiet|bursty)$",
    "kinds": r"^(.+?): ",
    "device": r"^(own|shared) tensors: ",
    "doctor": r", seventh set, (first|after looking)$",
    "overhead": r", (wall clock|processor time)$",
    "reports": r"^(.+ draw, (?:held|open)): ",
}


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
    name: str, hits: int, trials: int, target: str = "", *, rivals: Mapping[str, str] | None = None, enough: int = 1
) -> Figure:
    """Return the figure of a share, judged where it has a target and enough trials."""
    met = meets(hits / trials, target) if target and trials >= enough else None
    return Figure(name, share_text(hits, trials), target, met, rivals or {})


def meets(share: float, target: str) -> bool:
    """Say whether a share keeps a target: ``≥ 90 %``, ``≤ 0.5 %``, ``93–97 %``, or ``0`` for never."""
    first, second, *_ = (*target.split(), "")
    if first in ("≥", "≤"):
        bound = float(second) / 100
        return share >= bound if first == "≥" else share <= bound
    low, _, high = first.partition("–")
    return float(low) / 100 <= share <= float(high or low) / 100


def span(values: Sequence[float], form: str) -> str:
    """Return ``least to largest``, or the value where they read the same."""
    low, high = (format(end, form) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def figure_table(figures: Sequence[Figure], *, title: str = "") -> Table:
    """Return all figures as one table, the rivals of each in one cell."""
    rivals = ("; ".join(f"{name}: {value}" for name, value in figure.rivals.items()) for figure in figures)
    rows = [(*_cells(figure), text or MISSING) for figure, text in zip(figures, rivals, strict=True)]
    return make_table((*_HEAD, "others, same trials"), rows, title=title)


def claims_tables(figures: Sequence[Figure], condition: str = "") -> list[Table]:
    """Return the figures that have a target, one claim per row, a number a cell, misses bold.

    `condition` is a pattern: claims in whose name it is found are in a table with a column for each text that its
    group matches. The last column holds what asv finds in the same trials, under the first condition.
    """
    judged = [figure for figure in figures if figure.met is not None]
    plain: list[tuple[str, ...]] = []
    rows: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in judged if len(judged) > 1 else figures:
        target = figure.target or MISSING
        if condition and (match := re.search(condition, figure.name)):
            rows.setdefault((figure.name.replace(match[0], ""), target), {})[match[1]] = figure
        else:
            plain.append((figure.name, target, _found(figure), _asv_text(figure)))
    columns = list(dict.fromkeys(name for of in rows.values() for name in of))
    lines = [
        (*claim, *(_found(of.get(name)) for name in columns), _asv_text(of.get(columns[0])))
        for claim, of in rows.items()
    ]
    tables = ((("figure", "target", *columns, "asv"), lines), (("figure", "target", "found", "asv"), plain))
    return [without_empty_columns(make_table(head, cells)) for head, cells in tables if cells]


def _found(figure: Figure | None) -> str:
    if figure is None:
        return ""
    text = _short(figure.found)
    return Strong(text) if figure.met is False else text


def _asv_text(figure: Figure | None) -> str:
    rivals = figure.rivals.items() if figure else ()
    return next((_short(text) for name, text in rivals if name.startswith("asv")), "")


def _cells(figure: Figure) -> tuple[str, ...]:
    met = MISSING if figure.met is None else "yes" if figure.met else Strong("no")
    return figure.name, figure.target or MISSING, figure.found, met


def _short(text: str) -> str:
    """Keep one number: ``"33.3 % [6.1, 79.2], 1 of 3"`` → ``"1 of 3"``, ``"1.05 [1.04, 1.06], 9"`` → ``"1.05"``."""
    count = re.search(r"\], ([\d,]+ of [\d,]+)$", text)
    return count[1] if count else re.split(r" [\[(]|[,;] ", text)[0]


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


def stored_markdown(name: str, path: Path) -> str:
    """Return the claims of an experiment from its stored figures, summary or trials, and what to know of them."""
    if not path.exists():
        return f"Not measured: there is no `{path.name}` yet. `python -m validation {name} --size full` makes it."
    condition = CONDITIONS.get(name, "")
    if path.name == FIGURES_NAME:
        return "\n\n".join(map(to_markdown, claims_tables([Figure(**row) for row in read_json(path)[name]], condition)))
    experiment, content = experiment_by_name(name), stored_content(name, path)
    figures = figures_of(experiment, content, path)
    measured = [f"Measured on {_machine(where)}." for where in environments_of(content, path)]
    return "\n\n".join([*map(to_markdown, claims_tables(figures, condition)), *experiment.notes(content), *measured])


def write_page(page: Path, results: Path) -> None:
    """Write the tables of docs/validation.md between their markers, from the stored results."""
    text = page.read_text(encoding="utf-8")
    for name, place in STORED.items():
        first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, begun, rest = text.partition(first)
        _, ended, after = rest.partition(last)
        if not begun or not ended:
            raise ParameterError(f"{page} must hold {first} and then {last}; add these two lines")
        text = f"{before}{first}\n{stored_markdown(name, results / place)}\n{last}{after}"
    page.write_text(text, encoding="utf-8")


def stored_content(name: str, path: Path) -> Any:
    """Return what the figures of an experiment are made of, from its stored summary or trials."""
    if path.suffix != ".jsonl":
        return read_json(path)
    experiment, lines = experiment_by_name(name), TrialFile(path).read()
    options = experiment.options({}, out=path.parent, size="full")
    return lines if experiment.summary is None else experiment.summary(lines, options)


def environments_of(content: Any, path: Path) -> list[Data]:
    """Return where a summary was measured: its own environment, its runs', or the one its campaign is named after."""
    if not isinstance(content, dict):
        return []  # trials of several machines, which the figures name
    environments = [content.get("environment"), *(run.get("environment") for run in content.get("runs", ()))]
    campaign = str(content.get("campaign", "-")).partition("/")[0]
    stored = stored_environments(path.parent)
    environments += [environment for sha, environment in stored.items() if sha.startswith(campaign)]
    return list({_machine(environment): dict(environment) for environment in environments if environment}.values())


def _machine(environment: Mapping[str, Any]) -> str:
    commit = str(environment["package"]["git_commit"] or "unknown")[:_SHORT_COMMIT]
    processor = environment["cpu"]["model"] or "unnamed processor"
    return f"{processor}, torch {environment['torch']['version']}, commit {commit}"
