"""Tables of what the experiments on the measuring itself found.

Conventions: a *figure* is plain data as ``figures.json`` of ``precision-eval prove`` holds it: name, target, found, met
(None where there is no target, or too few trials to tell) and rivals (the same figure of other tools).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def figures_markdown(shown: Sequence[Mapping[str, Any]]) -> str:
    """Return figures as a Markdown table."""
    if not shown:
        return ""
    rows = ["| figure | target | found | met | others, same trials |", "|---|---|---|---|---|"]
    for figure in shown:
        met = {True: "yes", False: "**no**", None: "–"}[figure["met"]]
        rivals = "; ".join(f"{name}: {value}" for name, value in figure["rivals"].items())
        rows.append(_row((figure["name"], figure["target"], figure["found"], met, rivals or "–")))
    return "\n".join(rows)


def short_markdown(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return the figures that have a target, with a column per rival, whose intervals are left out."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    shown = [figure for figure in figures if figure["met"] is not None]
    for figure in sorted(shown, key=lambda figure: -len(figure["rivals"])):
        named = tuple(figure["rivals"])
        home = next((rivals for rivals in groups if named and set(named) <= set(rivals)), named)
        groups.setdefault(home, []).append(figure)
    return "\n\n".join(_beside(rivals, of_group) for rivals, of_group in groups.items())


def _beside(rivals: tuple[str, ...], figures: Sequence[Mapping[str, Any]]) -> str:
    """Return one table with a column per rival."""
    head = ("figure", "target", "found", "met", *rivals)
    rows = [_row(head), "|---" * len(head) + "|"]
    for figure in figures:
        met = "yes" if figure["met"] else "**no**"
        others = (_without_interval(figure["rivals"].get(name, "–")) for name in rivals)
        rows.append(_row((figure["name"], figure["target"], figure["found"], met, *others)))
    return "\n".join(rows)


def _without_interval(text: str) -> str:
    """Keep a value's estimate and count: ``"33.3 % [6.1, 79.2], 1 of 3"`` → ``"33.3 %, 1 of 3"``."""
    head, _, count = text.rpartition("], ")
    return f"{head.split(' [')[0]}, {count}" if head and " of " in count else text.split(" [")[0].split(", ")[0]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def proofs_markdown(path: Path) -> str:
    """Return the figures that have a target, one table per experiment; rivals without their intervals."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    tables = {name: short_markdown(figures) for name, figures in stored.items()}
    return "\n\n".join(f"**{name}**\n\n{table}" for name, table in tables.items() if table)
