"""Re-runs of latency groups, each in a fresh worker, appended to a file as they finish.

Conventions: one line per re-run (``CASE/SIZE/rN@CAMPAIGN``) with every outcome as a record, raw block times
included, and one line per case (``CASE/SIZE/exact@CAMPAIGN``) with drift and memory. Lines of unlike campaigns
(environment, processes, budget) are not mixed. A stopped bench goes on with the lines that are missing.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import CandidateError
from precision_eval.core.json_lines import TrialFile

CASES: tuple[tuple[str, str], ...] = (
    ("attention-decode", "metavoice"),
    ("metavoice-t4", "cpu"),
    ("imaginairy-time-embed", "cpu"),
    ("attention-prefill", "metavoice"),
)
"""Cases and sizes: one with wide gaps, one with many fixes close to each other, one whose times are bimodal, one
with two fixes at the baseline's time."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is repeated."""

    cases: tuple[tuple[str, str], ...]
    repeats: int
    processes: int
    budget_s: float
    environment: str

    @property
    def campaign(self) -> str:
        """Name of everything that re-runs must share."""
        return f"{self.environment[:12]}/{self.budget_s:g}s/{self.processes}p"

    def jobs(self) -> list[tuple[str, str, str]]:
        """Return (case, size, what) in the order of measuring: all cases once, then again."""
        exact = [(case, size, "exact") for case, size in self.cases]
        return exact + [(*built, f"r{number}") for number in range(self.repeats) for built in self.cases]

    def key(self, job: tuple[str, str, str]) -> str:
        """Name a line."""
        return f"{'/'.join(job)}@{self.campaign}"


def measure(plan: Plan, file: TrialFile, *, seconds: float, say: Callable[[str], None]) -> bool:
    """Measure what is missing until the time is up; return whether everything is there."""
    start, there = time.monotonic(), file.keys()
    missing = [job for job in plan.jobs() if plan.key(job) not in there]
    for number, job in enumerate(missing):
        if time.monotonic() - start > seconds:
            say(f"{len(missing) - number} of {len(plan.jobs())} still to do; the same command goes on from here")
            return False
        begun = time.monotonic()
        file.append({"key": plan.key(job), "case": list(job), "records": _in_fresh_worker(plan, job)})
        say(f"{plan.key(job)}: {time.monotonic() - begun:.1f} s")
    return True


def trials_of(lines: Sequence[dict[str, Any]], plan: Plan) -> dict[tuple[str, str], dict[str, Any]]:
    """Return case → ``{"exact": records, "runs": [records, …]}`` of a campaign."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    by_key = {line["key"]: line for line in lines}
    for case, size, what in plan.jobs():
        line = by_key.get(plan.key((case, size, what)))
        if line is None:
            continue
        built = found.setdefault((case, size), {"exact": None, "runs": []})
        if what == "exact":
            built["exact"] = line["records"]
        else:
            built["runs"].append(line["records"])
    return {built: one for built, one in found.items() if one["exact"] and len(one["runs"]) > 1}


def _in_fresh_worker(plan: Plan, job: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Run a job in a spawned process: like a run's worker, it has an address space of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:  # its worker may have children, a Pool's may not
        records = pool.submit(_records, job, plan.processes, plan.budget_s, plan.environment).result()
    if not any(record["status"] == "passed" for record in records):
        raise CandidateError(f"{plan.key(job)}: no fix could be measured; the first says: {records[0]['reason']}")
    return records


def _records(job: tuple[str, str, str], processes: int, budget_s: float, environment: str) -> list[dict[str, Any]]:
    from dataclasses import asdict
    from datetime import UTC, datetime

    from precision_eval.cases.systems import case_by_id
    from precision_eval.core.cells import Cell, Options
    from precision_eval.core.records import Record
    from precision_eval.fixes.catalog import FIXES
    from precision_eval.measure.registry import run_cell

    case, size, what = job
    fixes = tuple(fix.id for fix in FIXES if fix.id != "dynamo_fallback" and case_by_id(case).takes(fix.id))
    options = Options(budget_s=budget_s, processes=processes, seed=0 if what == "exact" else int(what[1:]))
    cells = [
        Cell(
            case=case, fixes=group, mode="eager", device="cpu", size=size, threads=1, measure=measure,
            options=options,
        )
        for measure, groups in (
            (("drift", [(fix,) for fix in fixes]), ("memory", [(fix,) for fix in fixes]))
            if what == "exact"
            else (("latency", [fixes]),)
        )
        for group in groups
    ]  # fmt: skip
    records = []
    started = datetime.now(UTC).isoformat()
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells:
            outcomes = run_cell(cell, Path(folder)).outcomes
            records += [
                Record(
                    cell=cell.fix_id(one.fix), case=case, case_digest=case_by_id(case).digest,
                    fix=one.fix, role=one.role, mode="eager", device="cpu", size=size, threads=1,
                    measure=cell.measure, status=one.status, reason=one.reason, data=one.data, wall_s=0.0,
                    started_at=started, environment=environment,
                )
                for one in outcomes
            ]  # fmt: skip
    return [asdict(record) for record in records]
