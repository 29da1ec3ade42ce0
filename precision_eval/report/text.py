"""The report as text: Rich tables on a console, and the same content as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from precision_eval.core.table import print_table, to_markdown
from precision_eval.report.findings import findings_of
from precision_eval.report.provenance import environment_lines, facts_line
from precision_eval.report.tables import tables_of
from precision_eval.report.version_notes import version_table
from precision_eval.results.model import figure_of
from precision_eval.results.reading import Run

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


def print_report(run: Run, *, console: Console, files: Sequence[Path]) -> None:
    """Print every table, the findings, the reading guide and where the files are."""
    console.print()
    for line in environment_lines(run):
        console.print(line, style="dim", highlight=False, markup=False)
    if run.torn_bytes:
        console.print(f"The last record is torn ({run.torn_bytes} bytes) and not counted; run again to resume.")
    for section in run.sections:
        for table in tables_of(run, section):
            print_table(table, console)
            console.print()
    if (versions := version_table(run)) is not None:
        print_table(versions, console)
        console.print()
    console.print("What the numbers say", style="bold")
    for title, sentences in findings(run):
        console.print(f"  [bold]{escape(title)}[/bold]. {escape(' '.join(sentences))}", highlight=False)
    console.print()
    console.print("How to read this", style="bold")
    for line in reading_guide(run):
        console.print(f"  · {line}", highlight=False, markup=False)
    if files:
        console.print()
        console.print(f"Written to {run.directory}: " + ", ".join(_listed(run, files)), highlight=False, markup=False)


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
        f"layout goes (the A/A row; --processes takes in more); anywhere in this report: at most "
        f"{100 * min(1.0, sum(rates)):g} %."
    )


def findings(run: Run) -> list[tuple[str, list[str]]]:
    """Return (section title, its sentences) for each section that has any."""
    pairs = [(section.title, findings_of(run, section)) for section in run.sections]
    return [(title, sentences) for title, sentences in pairs if sentences]


def markdown_report(run: Run, *, figures: Sequence[Path], left_out: Sequence[str]) -> str:
    """Return the report as Markdown, with figures linked relative to the run's folder."""
    parts = [f"# Report of `{run.directory.name}`", environment_markdown(run)]
    parts.append("## What the numbers say")
    parts += [f"- **{title}.** {' '.join(sentences)}" for title, sentences in findings(run)]
    for section in run.sections:
        parts.append(f"## {section.title}")
        for table in tables_of(run, section):
            parts.append(to_markdown(table, heading=table.title != section.title))
    if (versions := version_table(run)) is not None:
        parts += [f"## {versions.title}", to_markdown(versions, heading=False)]
    parts.append("## Figures")
    parts += [f"![{_caption(path)}]({path.relative_to(run.directory).as_posix()})" for path in figures]
    parts += [f"- Left out: {line}" for line in left_out]
    parts.append("## How to read this\n\n" + "\n".join(f"- {line}" for line in reading_guide(run)))
    return "\n\n".join(part for part in parts if part) + "\n"


def environment_line(run: Run) -> str:
    """Return what a run was last measured with, in one line; empty where its environment is not stored."""
    return facts_line(run.environment)


def environment_markdown(run: Run, cases: Collection[str] | None = None) -> str:
    """Return what a run was measured with, a list below the first line where that is several environments."""
    lines = environment_lines(run, cases)
    return "\n".join([*lines[:1], *([""] if lines[1:] else []), *(f"- {line}" for line in lines[1:])])


def _caption(path: Path) -> str:
    return path.stem.replace("-", " ").replace("_", " ")


def _listed(run: Run, files: Sequence[Path]) -> list[str]:
    return [path.relative_to(run.directory).as_posix() for path in files]
