"""The report over several machines: one table per case with a row per machine, and which conclusions travel.

Terminal, Markdown, HTML and JSON come from the same tables and lines. No time of one machine stands beside a time of
another: every figure is a ratio to its own machine's baseline, or a relative error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.core.files import to_json, written_whole
from precision_eval.core.formatting import MISSING, fixed, grouped, join, ratio_text, scientific, status_text
from precision_eval.core.table import Strong, Table, markdown_text, print_lines, print_table, to_html, to_markdown
from precision_eval.results.choose.comparing import difference
from precision_eval.results.machines import DRIFTS, TIMES, MachineComparison, MergedRuns, PairOrder

if TYPE_CHECKING:
    from rich.console import Console

    from precision_eval.results.model import Row

NAME = "machines"
"""Of the files: ``machines.md``, ``machines.json``, ``machines.html``."""

NOTES = (
    "Time: ratio to the same machine's own baseline [95 %]; below 1 is faster. Bold: fastest there, or not told apart "
    "from it; ≈: not told apart from the baseline. Drift: relative error to float64.",
    "An order of two fixes holds where every machine calls it alike, at the error rate of one pair on one machine, and "
    "turns over where two call opposite ones. What differs stands beside it; whether that is the cause is not tested.",
)


def machines_table(runs: MergedRuns) -> Table:
    """Return what each machine is."""
    facts = list(dict.fromkeys(name for machine in runs.machines for name in machine.facts))
    rows = [
        (
            machine.name,
            *(machine.facts.get(fact, MISSING) for fact in facts),
            machine.half_formats or MISSING,
            str(len(machine.records)),
            str(machine.run),
            ", ".join(machine.commits),
        )
        for machine in runs.machines
    ]
    columns = ("machine", *facts, "half formats", "records", "folder", "commit")
    return Table(columns=columns, rows=tuple(rows), title="Machines")


def fastest_table(runs: MergedRuns) -> Table:
    """Return which fix is fastest where, a row per machine; below, how many orders of two fixes travel."""
    cured = [comparison for comparison in runs.comparisons if comparison.cured]
    rows = [
        (name, *(" ≈ ".join(own.fastest(name)) or MISSING if name in own.groups else MISSING for own in cured))
        for name in (machine.name for machine in runs.machines)
    ]
    for verdict, title in (("holds", "orders hold"), ("turns over", "turn over"), ("not called everywhere",) * 2):
        verdicts = ([pair.verdict for pair in own.orders if pair.axis == TIMES] for own in cured)
        rows.append((title, *(str(own.count(verdict)) for own in verdicts)))
    return Table(columns=("machine", *(own.title for own in cured)), rows=tuple(rows), title="Fastest fix")


def comparison_tables(comparison: MachineComparison) -> Iterator[Table]:
    """Yield time and drift of one case: a row per machine, a column per fix."""
    for axis, title in ((TIMES, "time ratio"), (DRIFTS, "drift")):
        rows = [
            (name, *(_cell(comparison, axis, name, comparison.row(name, fix)) for fix in comparison.fixes))
            for name in comparison.groups
        ]
        if axis == TIMES or any(row.drift for group in comparison.groups.values() for row in group.curing):
            columns = ("machine", *comparison.fixes)
            yield Table(columns=columns, rows=tuple(rows), title=f"{comparison.title}: {title}")


def _cell(comparison: MachineComparison, axis: str, machine: str, row: Row | None) -> str:
    if row is None or row.status != "passed":
        return MISSING if row is None else status_text(row.status)
    figure = row.estimate(axis)
    if figure is None:
        return MISSING
    if axis == DRIFTS:
        return scientific(figure.value)
    group = comparison.groups[machine]
    if group.is_baseline(row):
        text = "1"
    else:
        baseline = comparison.row(machine, str(group.baseline))
        apart = None if baseline is None else difference(group, axis, row, baseline)  # as in the sentences
        mark = "" if apart is not None and apart.relation in ("better", "worse") else "≈ "
        text = mark + ratio_text(figure.value, figure.low, figure.high, decimals=2)
    return Strong(text) if row.fix in comparison.fastest(machine) else text


def conclusion_lines(comparison: MachineComparison) -> Iterator[str]:
    """Yield what holds on every machine, and what turns over with what differs there."""
    baseline = next((group.baseline for group in comparison.groups.values() if group.baseline), None)
    for axis, better, worse in ((TIMES, "faster", "slower"), (DRIFTS, "less drift", "more drift")):
        pairs = [pair for pair in comparison.orders if pair.axis == axis]
        for relation, word in (("better", better), ("worse", worse)):
            fixes = [fix for pair in pairs for fix in _against(pair, baseline, relation)]
            if fixes:
                yield f"On every machine that runs it, {word} than {baseline}: {join(fixes)}."
        turning = [pair for pair in pairs if pair.verdict == "turns over"]
        for pair in turning:
            yield f"Turns over: {axis} of {pair.first} / {pair.second}: {_by_machine(pair.ratios)}."
        for fact, values in comparison.unlike(*dict.fromkeys(fix for p in turning for fix in (p.first, p.second))):
            yield f"Differs: {fact}: {_by_machine(values)}."
    for fix, times in comparison.depends_on_machine.items():
        yield f"Depends on the machine: time of {fix} / {baseline}: {_by_machine(times)}."
    for fix, statuses in comparison.cured_on_some.items():
        yield f"Not the same result everywhere: {fix}: {_by_machine(statuses)}."


def _by_machine(values: Mapping[str, str | float]) -> str:
    """Write a value and the machines that have it: ``raised on A; passed on B and C``."""
    texts = {
        name: status_text(value) if isinstance(value, str) else fixed(value, decimals=2)
        for name, value in values.items()
    }
    by_text = grouped((text, name) for name, text in texts.items())
    return "; ".join(f"{text} on {join(names)}" for text, names in by_text.items())


def _against(pair: PairOrder, baseline: str | None, relation: str) -> Iterator[str]:
    """Yield the other fix of a pair with the baseline, where every machine that runs both calls it this."""
    flipped = {"better": "worse", "worse": "better"}[relation]
    for fix, other, called in ((pair.first, pair.second, relation), (pair.second, pair.first, flipped)):
        if other == baseline and set(pair.relations.values()) == {called}:
            yield fix


def sections_of(runs: MergedRuns) -> Iterator[tuple[str, tuple[Table, ...], tuple[str, ...]]]:
    """Yield title, tables and lines: of the machines, of each case, and of what is not compared."""
    yield "", (machines_table(runs), fastest_table(runs)), NOTES
    rest = []
    for comparison in runs.comparisons:
        if comparison.cured:
            yield comparison.title, tuple(comparison_tables(comparison)), tuple(conclusion_lines(comparison))
        else:
            rest.append(f"Nothing measured cures it on any machine: {comparison.title}.")
    rest += [*(f"Not compared: {line}." for line in runs.apart), *(f"Not counted: {line}" for line in runs.damage)]
    if rest:
        yield "Not compared", (), tuple(rest)


def print_machines(runs: MergedRuns, console: Console) -> None:
    """Print every table and line."""
    for _, tables, lines in sections_of(runs):
        for table in tables:
            print_table(table, console, compact=True)
        print_lines(lines, console)


def to_dict(runs: MergedRuns) -> dict[str, Any]:
    """Plain JSON data."""
    machines = [
        {"name": own.name, **own.facts, "run": str(own.run), "commits": list(own.commits), "records": len(own.records)}
        for own in runs.machines
    ]
    return {
        "machines": machines,
        "comparisons": [_comparison_dict(comparison) for comparison in runs.comparisons],
        "apart": list(runs.apart),
        "not_counted": list(runs.damage),
    }


def _comparison_dict(comparison: MachineComparison) -> dict[str, Any]:
    kept = ("fix", "status", "reason", "time", "drift", "doubts")  # no time of a machine's own
    rows = {
        name: [{key: row.to_dict()[key] for key in kept} | {"verdict": group.verdict_of(row)} for row in group.fixes]
        for name, group in comparison.groups.items()
    }
    fastest = {name: list(comparison.fastest(name)) for name in comparison.groups}
    orders = [asdict(pair) | {"verdict": pair.verdict} for pair in comparison.orders]
    return {"title": comparison.title, "fastest": fastest, "fixes": rows, "orders": orders}


def write_machines(runs: MergedRuns, folder: Path) -> list[Path]:
    """Write Markdown, HTML and JSON, each whole or not at all."""
    from markupsafe import Markup

    from precision_eval.report.drawing import STATUS_STYLES
    from precision_eval.report.html.paper import template_environment

    markdown, sections = ["# Machines side by side"], []
    for title, tables, lines in sections_of(runs):
        markdown += [*map(to_markdown, tables), "\n".join(f"- {markdown_text(line)}" for line in lines)]
        sections.append((title, [Markup(to_html(table)) for table in tables], lines))  # noqa: S704 - escaped by cell
    page = template_environment(Path(__file__).parent / "html").get_template(f"{NAME}.html")
    texts = {
        "md": "\n\n".join(filter(None, markdown)) + "\n",
        "html": page.render(sections=sections, status_styles=STATUS_STYLES),
        "json": to_json(to_dict(runs), what="the merged runs", indent=1) + "\n",
    }
    for kind, text in texts.items():
        with written_whole(folder / f"{NAME}.{kind}") as partial:
            partial.write_text(text, encoding="utf-8")
    return [folder / f"{NAME}.{kind}" for kind in texts]
