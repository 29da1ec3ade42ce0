"""The report as text: Rich tables on a console, the same content as Markdown; what figures were measured with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from precision_eval.core.environment import stored_environments
from precision_eval.core.formatting import grouped, join, one_line, visible
from precision_eval.core.records import Record
from precision_eval.core.table import Code, markdown_text, print_lines, print_table, to_markdown
from precision_eval.report.findings import findings_of
from precision_eval.report.tables import tables_of
from precision_eval.results.model import figure_of, node_of
from precision_eval.results.reading import Run

_FACTS = (
    ("torch", "torch.version"),
    ("python", "platform.python"),
    ("system", "platform.system"),
    ("processor", "cpu.model"),
    ("usable cores", "cpu.usable_cores"),
    ("device", "device.name"),
    ("device model", "device.model"),
    ("commit", "package.git_commit"),
)


Findings = Sequence[tuple[str, Sequence[str]]]
"""Titles of sections, and the sentences of each."""


def environment_lines(
    run: Run, cases: Collection[str] | None = None, *, write: Callable[[str], str] = str
) -> list[str]:
    """Return what a run was measured with: one line, and one per environment where there are several."""
    records = [record for record in run.records if cases is None or record.case in cases]
    by_sha = grouped((record.environment, record) for record in sorted(records, key=lambda r: r.started_at))
    stored = stored_environments(run.directory, damaged_too=True)
    if len(by_sha) < 2:
        line = environment_line(stored.get(next(iter(by_sha), ""), run.environment))
        return [write(line)] if line else []
    facts = {sha: _facts(stored.get(sha, {})) for sha in by_sha}
    known = [found for found in facts.values() if found]
    common = set.intersection(*(set(found.items()) for found in known)) if known else set()
    shared = {name: value for name, value in (known[0] if known else {}).items() if (name, value) in common}
    lines = [write(_listed(shared))] if shared else []
    for sha, own in by_sha.items():
        apart = {name: value for name, value in facts[sha].items() if name not in shared}
        name = _listed(apart).replace("+changes", " with changes not committed") or f"environment {sha[:12]}"
        name += "" if facts[sha] else ", whose file is not here"
        lines.append(f"{write(name)}: {_measured(own, records, write)}")
    return lines


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    facts = {name: node_of(environment, *path.split(".")) for name, path in _FACTS}
    return {name: str(value) for name, value in facts.items() if value is not None}


def _listed(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in facts.items())


def _measured(own: Iterable[Record], records: Iterable[Record], write: Callable[[str], str]) -> str:
    """Say what an environment measured: ``eager: drift and latency; compiled: latency of dia-decode``."""
    mine, all_of = _cells(own), _cells(records)

    def part(mode: str, measure: str) -> str:
        cells, rest = mine[mode, measure], all_of[mode, measure]
        return "" if cells == rest else _part(cells, rest, write)

    groups = grouped(((mode, part(mode, measure)), write(measure.replace("_", " "))) for mode, measure in mine)
    by_mode = grouped((mode, join(sorted(measures)) + part) for (mode, part), measures in sorted(groups.items()))
    return "; ".join(f"{write(mode)}: {', '.join(texts)}" for mode, texts in sorted(by_mode.items(), reverse=True))


def _cells(records: Iterable[Record]) -> dict[tuple[str, str], set[tuple[str, str, str]]]:
    cells: dict[tuple[str, str], set[tuple[str, str, str]]] = {}
    for record in records:
        cells.setdefault((record.mode, record.measure), set()).add((record.case, record.fix, record.cell))
    return cells


def _part(cells: set[tuple[str, str, str]], rest: set[tuple[str, str, str]], write: Callable[[str], str]) -> str:
    """Name the cases of a part of the cells, and the fixes where a case is split as well."""
    texts = []
    for case in sorted({name for name, _, _ in cells}):
        split = any(cell not in cells for cell in rest if cell[0] == case)
        fixes = [write(Code(fix)) for fix in sorted({fix for name, fix, _ in cells if name == case})]
        texts.append(write(Code(case)) + (f" ({', '.join(fixes)})" if split else ""))
    return f" of {join(texts)}"


READING_GUIDE = (
    "status: raised, non_finite, … is a result: that fix does not cure this case; its message is below.",
    "latency ratio: paired, interleaved blocks over the baseline's, with a bootstrap interval; below 1 is faster. "
    "A/A is the baseline against itself: how well this machine can tell two things apart.",
    "verdict: faster or slower only where an interval that keeps the rate of false alarms lies beyond the margin "
    "(and beyond what the baseline shows against itself), equivalent where one lies within, else undecided; MDE is the "
    "smallest effect that this many blocks would have found in 80 % of repetitions.",
    "memory: what is stored (weights, caches) + what one call allocates on top at its peak.",
    "drift: relative error against float64 on the same stored inputs; KL compares the next-token distributions.",
    "diverged: free-running streams, same noise, that ever left the reference's tokens; it need not be audible.",
    "sound: read a distance to the reference as a ratio to the noise floor (× 1 = what another noise "
    "seed does), and a distance "
    "to the original speech beside both controls, which degrade it on purpose.",
    "Overlapping intervals are a tie. One machine, one build, one set of seeds: measure on yours before you ship.",
)


def print_report(run: Run, said: Findings, *, console: Console, files: Sequence[Path]) -> None:
    """Print every table, the findings, the reading guide and where the files are."""
    console.print()
    print_lines(environment_lines(run), console, style="dim")
    print_lines([f"Not counted: {one_line(line)}" for line in run.damage], console, style="yellow")
    for section in run.sections:
        for table in tables_of(run, section):
            print_table(table, console)
            console.print()
    console.print("What the numbers say", style="bold")
    for title, sentences in said:
        console.print(f"  [bold]{escape(title)}[/bold]. {escape(' '.join(sentences))}", highlight=False)
    console.print()
    console.print("How to read this", style="bold")
    print_lines([f"  · {line}" for line in reading_guide(run)], console)
    if files:
        console.print()
        names = [path.relative_to(run.directory).as_posix() for path in files]
        print_lines([f"Written to {run.directory}: {', '.join(names)}"], console)


def reading_guide(run: Run) -> list[str]:
    """Return how to read the report, with the error rate of all its latency verdicts together."""
    return [*READING_GUIDE, *([line] if (line := family_wise_line(run)) else [])]


def family_wise_line(run: Run) -> str | None:
    """State the rate at which equal latencies may be told apart, per group and over the report; None without any."""
    rates = [
        max(known)
        for section in run.sections
        if (known := [rate for row in section.rows if (rate := figure_of(row.data("latency"), "error_rate"))])
    ]
    if not rates:
        return None
    return (
        f"errors: within a latency group ({len(rates)} here) equal latencies are called faster or slower at a rate of "
        f"at most {100 * max(rates):g} % over all its fixes and looks, as far as one memory "
        f"layout goes (the A/A row; --set processes=5 takes in more); anywhere in this report: at most "
        f"{100 * min(1.0, sum(rates)):g} %."
    )


def findings(run: Run) -> Findings:
    """Return (section title, its sentences) for each section that has any."""
    pairs = [(section.title, findings_of(run, section)) for section in run.sections]
    return [(title, sentences) for title, sentences in pairs if sentences]


def markdown_report(run: Run, said: Findings, *, figures: Sequence[Path], left_out: Sequence[str]) -> str:
    """Return the report as Markdown, with figures linked relative to the run's folder."""
    parts = [f"# Report of `{visible(run.directory.resolve().name)}`", environment_markdown(run)]
    parts += [f"- Not counted: {markdown_text(line)}" for line in run.damage]
    parts.append("## What the numbers say")
    parts += [f"- **{markdown_text(title)}.** {markdown_text(' '.join(sentences))}" for title, sentences in said]
    for section in run.sections:
        parts.append(f"## {markdown_text(section.title)}")
        parts += [f"- {markdown_text(note)}." for note in section.notes]
        for table in tables_of(run, section):
            parts.append(to_markdown(table, heading=table.title != section.title))
    parts.append("## Figures")
    parts += [f"![{_caption(path)}]({path.relative_to(run.directory).as_posix()})" for path in figures]
    parts += [f"- Left out: {markdown_text(line)}" for line in left_out]
    parts.append("## How to read this\n\n" + "\n".join(f"- {line}" for line in reading_guide(run)))
    return "\n\n".join(part for part in parts if part) + "\n"


def environment_line(environment: Mapping[str, Any]) -> str:
    """Return what matters of an environment in one line; empty where it is empty."""
    return _listed(_facts(environment))


def environment_markdown(run: Run, cases: Collection[str] | None = None) -> str:
    """Return what a run was measured with, a list below the first line where that is several environments."""
    lines = environment_lines(run, cases, write=markdown_text)
    return "\n".join([*lines[:1], *([""] if lines[1:] else []), *(f"- {line}" for line in lines[1:])])


def _caption(path: Path) -> str:
    return path.stem.replace("-", " ").replace("_", " ")
