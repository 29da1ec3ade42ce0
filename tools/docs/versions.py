"""What changed between torch versions: the stories whose cause was tried, then every kind of change.

A row is one kind of change between two versions under one explanation; of several
fixes the one that is largest and most frequent is shown, and the others are counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precision_eval.core.table import MarkdownText, make_table, to_markdown

if TYPE_CHECKING:
    from precision_eval.history.text import ChangeGroup, ChangesAt
    from precision_eval.history.upstream import UpstreamChange
    from precision_eval.history.versions import VersionHistory

UNEXPLAINED = "unexplained"
MOST_SEEN = 4
"""Lines that a history is told with."""


def versions_markdown(folder: Path, *, relative_to: Path) -> str:
    """Return what changed between torch versions, what is known of the cause first, and what the sweep cost."""
    from precision_eval.history.text import headline, positions_of
    from precision_eval.history.versions import history_of
    from precision_eval.results.asv import read_results

    place = Path(os.path.relpath(folder, relative_to)).as_posix()
    history = history_of(read_results(folder))
    positions = positions_of(history)
    told = "\n".join(_stories(history, positions))
    rows = [row for position in positions for row in _rows(position)]
    parts = [
        headline(history),
        f"Of these causes, tried and not only read:\n\n{told}" if told else "",
        to_markdown(make_table(("torch", "what changed", "where", "upstream"), rows)) if rows else "",
        "\n".join(f"- {note}" for note in history.notes),
        f"From the asv results in `{place}`.",
        sweep_cost_markdown(folder),
    ]
    return "\n\n".join(part for part in parts if part)


def _stories(history: VersionHistory, positions: Sequence[ChangesAt]) -> Iterator[str]:
    """Yield a line for each upstream change that is certain, with the largest of what it did here."""
    for change in history.upstream:
        if not change.certain:
            continue
        seen = [
            f"{group.what} {group.change} ({group.where}; {group.before} → {position.name})"
            for position in positions
            for known, groups in position.explained
            if known is change
            for group in _one_of_each(groups)
        ]
        yield (
            f"- **torch {change.since}, {_link(change)}.** {change.text} Here: {'; '.join(seen[:MOST_SEEN])}. "
            f"How it is known: {change.confirmed}"
        )


def _rows(position: ChangesAt) -> Iterator[tuple[str, ...]]:
    """Yield a line for each kind of change at a position, and one for how many other fixes did alike."""
    told = [(_link(change), groups) for change, groups in position.explained]
    for source, groups in [*told, (UNEXPLAINED, position.unexplained)]:
        shown = _one_of_each(groups)
        for group in shown:
            like = [one for one in groups if _sort_of(one) == _sort_of(group) and one is not group]
            more = f"; {len(like)} other {'fix' if len(like) == 1 else 'fixes'} alike" if like else ""
            yield (
                f"{group.before} → {position.name}",
                f"{group.what}: {group.change}{more}",
                group.where,
                MarkdownText(source),
            )


def _link(change: UpstreamChange) -> str:
    link = change.reference.split()[0]
    return f"[{'/'.join(link.split('/')[-2:])}]({link})"


def _one_of_each(groups: Sequence[ChangeGroup]) -> list[ChangeGroup]:
    """Return the first group of each sort."""
    return list({_sort_of(group): group for group in reversed(groups)}.values())[::-1]


def _sort_of(group: ChangeGroup) -> tuple[str, ...]:
    """Of which one line is enough: a metric's rise or fall between two versions, or a turn of the status."""
    first = group.changes[0]
    metric = first.key[2]
    way = group.change if metric == "status" else "up" if getattr(first, "factor", 0.0) > 1.0 else "down"
    note = "with its baseline" if getattr(first, "with_baseline", False) else ""
    return metric, way, note, group.before


def sweep_cost_markdown(folder: Path) -> str:
    """Return time and disk per torch version of a sweep; empty where the folder has no notes of environments."""
    from tools.torch_versions.sweep_notes import cost_table

    table = cost_table(folder)
    if table is None:
        return ""
    note = "Their time is asv's count; its start, its list of benchmarks and the project's install come on top"
    note += ", and are in the sweep's time, all the times that it was run." if len(table.columns) > 6 else "."
    if "of it shared" in table.columns:
        note += " Shared: files that uv links to its cache."
    return f"{to_markdown(table)}\n\n{note}"
