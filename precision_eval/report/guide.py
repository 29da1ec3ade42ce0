"""How to read a report, and what it was measured with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from precision_eval.core.environment import stored_environments
from precision_eval.core.formatting import grouped
from precision_eval.core.table import markdown_text
from precision_eval.results.reading import Run

READING_GUIDE = (
    "result: a status such as raised or non_finite is a result: that fix does not cure this case. faster and slower: "
    "the interval lies beyond the margin; same: within it; else undecided.",
    "time ratio: time over the baseline's, from paired, interleaved blocks, with an interval; below 1 is faster. The "
    "baseline's own interval is the A/A check: the baseline against its copy.",
    "MDE: the smallest effect that this many blocks find in 80 % of repetitions.",
    "memory: what is stored (weights, caches) and what one call allocates on top at its peak.",
    "drift: relative error against float64 on the same stored inputs. KL compares the next-token distributions.",
    "diverged: free-running streams with the same noise that left the reference's tokens. This need not be audible.",
    "Bold: the best balance of time and drift. ≈: not told apart from it. One machine, one build, one set of seeds: "
    "measure on yours before you ship.",
)

_FACTS = {
    "torch": "torch.version",
    "python": "platform.python",
    "system": "platform.system",
    "processor": "cpu.model",
    "usable cores": "cpu.usable_cores",
    "device": "device.name",
    "device model": "device.model",
    "precision-eval commit": "package.git_commit",
}


def reading_guide(run: Run) -> list[str]:
    """Return how to read the report, with the error rate of all its latency verdicts together."""
    rates = [
        max(known)
        for group in run.sections
        if (known := [row.latency.error_rate for row in group.rows if row.latency and row.latency.error_rate])
    ]
    if not rates:
        return [*READING_GUIDE]
    total = min(1.0, sum(rates))
    return [
        *READING_GUIDE,
        f"Errors: equal latencies are called faster or slower in at most {100 * max(rates):g} % of groups, and "
        f"anywhere in this report in at most {100 * total:g} % of reports.",
    ]


def environment_lines(run: Run, cases: Collection[str] = ()) -> list[str]:
    """Return what a run, or some of its cases, was measured with: a line per environment, with its records counted."""
    records = [record for record in run.records if not cases or record.case in cases]
    by_sha = grouped((record.environment, record) for record in sorted(records, key=lambda r: r.started_at))
    stored = stored_environments(run.directory, damaged_too=True)
    facts = {sha: environment_line(stored.get(sha, {})) for sha in by_sha}
    if len(by_sha) < 2:
        return [line] if (line := next(iter(facts.values()), "") or environment_line(run.environment)) else []
    lines = {sha: facts[sha] or f"environment {sha[:12]}, whose file is not here" for sha in by_sha}
    return [f"{line}: {len(by_sha[sha])} records" for sha, line in lines.items()]


def environment_line(environment: Any) -> str:
    """Return what matters of an environment in one line; empty where it is empty."""
    parts = {name: path.split(".") for name, path in _FACTS.items()}
    facts = {name: (environment.get(part) or {}).get(fact) for name, (part, fact) in parts.items()}
    line = "; ".join(f"{name}: {value}" for name, value in facts.items() if value is not None)
    return line.replace("+changes", " with uncommitted changes")


def environment_markdown(run: Run, cases: Collection[str] = ()) -> str:
    """Return what a run was measured with, as a list where that is several environments."""
    lines = [markdown_text(line) for line in environment_lines(run, cases)]
    return "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else "".join(lines)
