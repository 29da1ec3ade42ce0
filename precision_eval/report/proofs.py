"""Tables of what the experiments on the measuring itself found.

Conventions: a *figure* is plain data as ``figures.json`` of ``precision-eval prove`` holds it: name, target, found, met
(None where there is no target, or too few trials to tell) and rivals (the same figure of other tools).

Contents: :func:`figures_markdown`, :func:`proofs_markdown`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def figures_markdown(figures: Sequence[Mapping[str, Any]], *, only_targets: bool) -> str:
    """Return figures as a Markdown table.

    Parameters
    ----------
    figures : sequence of mapping
        As ``figures.json`` holds them.
    only_targets : bool
        Leave out figures that only inform.

    Returns
    -------
    str
        Empty where nothing is left.
    """
    shown = [figure for figure in figures if figure["met"] is not None or not only_targets]
    if not shown:
        return ""
    rows = ["| figure | target | found | met | others, same trials |", "|---|---|---|---|---|"]
    for figure in shown:
        met = {True: "yes", False: "**no**", None: "–"}[figure["met"]]
        rivals = "; ".join(f"{name}: {value}" for name, value in figure["rivals"].items())
        cells = (figure["name"], figure["target"], figure["found"], met, rivals or "–")
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(rows)


def proofs_markdown(path: Path) -> str:
    """Return the figures that have a target, one table per experiment.

    Parameters
    ----------
    path : Path
        ``figures.json``.
    """
    stored = json.loads(path.read_text(encoding="utf-8"))
    tables = {name: figures_markdown(figures, only_targets=True) for name, figures in stored.items()}
    return "\n\n".join(f"**{name}**\n\n{table}" for name, table in tables.items() if table)
