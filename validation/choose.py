"""Does ``precision-eval choose`` give the same answer again? Runs are repeated on one machine, answers compared.

A *re-run* times all fixes of a case anew, in a fresh worker with fresh processes, as ``precision-eval run`` does;
drift and memory repeat to the bit and are measured once. A line is one re-run (``CASE/SIZE/rN@CAMPAIGN``) with every
outcome as a record, or a case's drift and memory (``CASE/SIZE/exact@CAMPAIGN``); lines of unlike campaigns
(environment, processes, budget) are not mixed. A *question* is a policy with limits. Two re-runs *agree* on a question
where they take the same fix, or where one of them calls it a tie and names what the other takes.

Shares are over all pairs of re-runs of a case, averaged over the questions and cases; their interval comes from
redrawing the re-runs of each case. The rival takes the best point estimate among those whose point
estimates keep the limits; it never says tie.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from precision_eval.cases.systems import case_by_id
from precision_eval.core import cells
from precision_eval.core.environment import collect, store_environment
from precision_eval.core.errors import CandidateError
from precision_eval.core.records import Record
from precision_eval.core.workers import call_isolated
from precision_eval.fixes.catalog import FIXES
from precision_eval.measure.registry import run_cell
from precision_eval.results.choose import POLICIES, Choice, Constraints, Group, choose_from, groups_of
from precision_eval.results.choose.choosing import value_of
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import span

# One with wide gaps, one with many fixes close to each other, one whose times are bimodal, one with two fixes at the
# baseline's time.
CASES = ("attention-decode/metavoice", "metavoice-t4/cpu", "imaginairy-time-embed/cpu", "attention-prefill/metavoice")

TARGET = 0.95

Question = tuple[str, str, Constraints]  # policy, name of the limits, limits


def _campaign(options: Options) -> str:
    environment = options["campaign"] or store_environment(collect("cpu"), options.out)
    return f"{environment[:12]}/{options['budget_s']:g}s/{options['processes']}p"


def _trials(options: Options) -> list[Trial]:
    whats = ["exact", *(f"r{number}" for number in range(options["repeats"]))]
    campaign = _campaign(options)
    return [Trial(f"{case}/{what}@{campaign}", (*case.split("/"), what)) for what in whats for case in options["cases"]]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Measure each re-run in a worker of its own, which like a run's has an address space of its own."""
    for key, job, _ in trials:
        given = (job, options["processes"], options["budget_s"], _campaign(options))
        records = call_isolated("validation.choose:_records", *given, start="spawn")
        if not any(record["status"] == "passed" for record in records):
            raise CandidateError(f"{key}: no fix could be measured; the first says: {records[0]['reason']}")
        yield {"key": key, "case": list(job), "records": records}


def _records(job: tuple[str, str, str], processes: int, budget_s: float, environment: str) -> list[dict[str, Any]]:
    case, size, what = job
    fixes = tuple(fix.id for fix in FIXES if fix.id != "dynamo_fallback" and case_by_id(case).takes(fix.id))
    options = cells.Options(budget_s=budget_s, processes=processes, seed=0 if what == "exact" else int(what[1:]))
    groups: list[tuple[str, tuple[str, ...]]] = [("latency", fixes)]
    if what == "exact":
        groups = [*product(("drift", "memory"), ((fix,) for fix in fixes))]
    shared: dict[str, Any] = {"case": case, "mode": "eager", "device": "cpu", "size": size, "threads": 1}
    run: dict[str, Any] = {"wall_s": 0.0, "started_at": datetime.now(UTC).isoformat(), "environment": environment}
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for measure, group in groups:
            cell = cells.Cell(**shared, fixes=group, measure=measure, options=options)
            records += [
                Record(
                    **shared, **run, cell=cell.fix_id(outcome.fix), case_digest=case_by_id(case).digest,
                    measure=measure, fix=outcome.fix, role=outcome.role, status=outcome.status,
                    reason=outcome.reason, data=outcome.data,
                )
                for outcome in run_cell(cell, Path(folder)).outcomes
            ]  # fmt: skip
    return [asdict(record) for record in records]


class Said(NamedTuple):
    fix: str | None
    named: frozenset[str]
    within_noise: bool
    may_be_none: bool = False


def answer_of(choice: Choice) -> Said:
    if choice.untold:  # any fix, or none
        return Said(None, frozenset(row.fix for row in choice.group.curing), True, may_be_none=True)
    named = frozenset(choice.tied)
    return Said(choice.fix, named, choice.outcome == "tie", may_be_none=choice.fix is not None and not choice.surely)


def outcome_of(first: Said, second: Said) -> str:
    if first.fix == second.fix:
        return "same"
    for answer, other in ((first, second), (second, first)):
        if answer.within_noise and (answer.may_be_none if other.fix is None else other.fix in answer.named):
            return "tie"
    return "differs"


def group_of(exact: Sequence[Mapping[str, Any]], run: Sequence[Mapping[str, Any]]) -> Group:
    """Return the group that drift and memory of a case make with the times of one re-run."""
    (group,) = groups_of(Record(**record) for record in (*exact, *run))
    return group


def questions_of(groups: Sequence[Group]) -> list[Question]:
    """Return (policy, name, limits): every policy without limits and with each kind of limit."""
    limits = {
        "no limit": Constraints(),
        "max drift 1e-3": Constraints(max_drift=1e-3),
        "max drift 1e-5": Constraints(max_drift=1e-5),
        "max memory 0.75x": Constraints(max_memory_ratio=0.75),
        "min speed 1": Constraints(min_speed=1.0),
        "min speed in the noise": Constraints(min_speed=_speed_in_the_noise(groups)),
    }
    return [(policy, name, limit) for policy, (name, limit) in product(POLICIES, limits.items())]


def answers(group: Group, questions: Sequence[Question]) -> list[Said]:
    return [answer_of(choose_from(group, limits, policy=policy)) for policy, _, limits in questions]


def rival_answers(group: Group, questions: Sequence[Question]) -> list[Said]:
    known = [row for row in group.curing if row.time is not None and row.drift is not None]
    answers = []
    for policy, _, limits in questions:
        able = known
        for axis in limits.axes:
            bound = limits.limit(group, axis)
            able = [row for row in able if bound is not None and (one := row.estimate(axis)) and one.value <= bound]
        best = min(able, key=lambda row: value_of(policy, row), default=None)
        answers.append(Said(best.fix if best else None, frozenset([best.fix] if best else ()), False))
    return answers


def shares(
    cases: Sequence[Sequence[Sequence[Said]]], *, rng: np.random.Generator, resamples: int = 300
) -> dict[str, tuple[float, float, float]]:
    """Return the shares of pairs that agree, that are the same, and of answers that are ties, with 95 % intervals."""
    estimate = _shares(cases)
    draws = [
        _shares([[case[index] for index in _with_pairs(rng, len(case))] for case in cases]) for _ in range(resamples)
    ]
    ends = {name: np.quantile([draw[name] for draw in draws], [0.025, 0.975]) for name in estimate}
    return {name: (value, float(ends[name][0]), float(ends[name][1])) for name, value in estimate.items()}


def _shares(cases: Sequence[Sequence[Sequence[Said]]]) -> dict[str, float]:
    questions = [question for case in cases for question in zip(*case, strict=True)]
    words = [[outcome_of(*pair) for pair in combinations(question, 2)] for question in questions]
    return {
        "agree": float(np.mean([np.mean([word != "differs" for word in pairs]) for pairs in words])),
        "same": float(np.mean([np.mean([word == "same" for word in pairs]) for pairs in words])),
        "ties": float(np.mean([np.mean([answer.within_noise for answer in question]) for question in questions])),
    }


def _with_pairs(rng: np.random.Generator, size: int) -> list[int]:
    """Draw indices with replacement, not all of them the same: such a draw has no pair of different re-runs."""
    while True:
        drawn = [int(index) for index in rng.integers(size, size=size)]
        if len(set(drawn)) > 1:
            return list(dict.fromkeys(drawn))  # a re-run agrees with itself, which says nothing


def _speed_in_the_noise(groups: Sequence[Group]) -> float:
    """Return the median speed of the fix, other than the baseline, whose median time is nearest to the baseline's."""
    logs: dict[str, list[float]] = {}
    for group in groups:
        for row in group.curing:
            if row.time is not None and row.fix != group.baseline:
                logs.setdefault(row.fix, []).append(row.time.log)
    nearest = min((float(np.median(values)) for values in logs.values()), key=abs)
    return math.exp(-nearest)


Ask = Callable[[Group, Sequence[Question]], list[Said]]


def answers_of(case: Mapping[str, Any], ask: Ask) -> list[list[Said]]:
    groups = [group_of(case["exact"], run) for run in case["runs"]]
    questions = questions_of(groups)
    return [ask(group, questions) for group in groups]


def cases_of(lines: Sequence[Data], campaign: str) -> dict[str, Data]:
    """Return case → ``{"exact": records, "runs": [records, …]}`` of a campaign, of cases with two re-runs or more."""
    cases: dict[str, Data] = {}
    here = [line for line in lines if str(line["key"]).endswith(f"@{campaign}")]
    for line in sorted(here, key=lambda line: int(line["case"][2].removeprefix("r").replace("exact", "-1"))):
        entry = cases.setdefault("/".join(line["case"][:2]), {"exact": None, "runs": []})
        if line["case"][2] == "exact":
            entry["exact"] = line["records"]
        else:
            entry["runs"].append(line["records"])
    return {case: entry for case, entry in cases.items() if entry["exact"] and len(entry["runs"]) > 1}


def _summary(lines: list[Data], options: Options) -> Data | None:
    """Answer every question from the last campaign's lines; None where no case has two re-runs yet."""
    campaign = _campaign(options) if options["campaign"] else str(lines[-1]["key"]).partition("@")[2]
    cases = cases_of(lines, campaign)
    if not cases:
        return None
    return {"campaign": campaign, "figures": _rates(cases), "cases": _answers(cases)}


def _rates(cases: Mapping[str, Data]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    ours = shares([answers_of(case, answers) for case in cases.values()], rng=rng)
    theirs = shares([answers_of(case, rival_answers) for case in cases.values()], rng=rng)
    runs = sum(len(case["runs"]) for case in cases.values())
    rows = {
        f"re-runs agree: the same fix, or a tie that names it ({runs} re-runs)": ours["agree"],
        "of these, the same fix": ours["same"],
        "answers that are ties": ours["ties"],
        "rival: best point estimates, no ties: agree": theirs["agree"],
    }
    figures = [
        Figure(name, f"{100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]")
        for name, (value, low, high) in rows.items()
    ]
    figures[0] = replace(figures[0], target=f"≥ {100 * TARGET:.0f} %", met=ours["agree"][0] >= TARGET)
    return [asdict(figure) for figure in figures]


def _answers(cases: Mapping[str, Data]) -> list[dict[str, Any]]:
    rows = []
    for name, entry in cases.items():
        case, size = name.split("/")
        questions = questions_of([group_of(entry["exact"], run) for run in entry["runs"]])
        columns = zip(*answers_of(entry, answers), strict=True)
        for (policy, limits, _), column in zip(questions, columns, strict=True):
            texts = [f"{said.fix}{' ~' + ','.join(sorted(said.named)) if said.within_noise else ''}" for said in column]
            rows.append({"case": case, "size": size, "policy": policy, "limits": limits, "answers": texts})
    return rows


def _figures(content: Data) -> list[Figure]:
    return [Figure(row["name"], row["found"], row["target"], row["met"]) for row in content["figures"]]


def _notes(content: Data) -> list[str]:
    _, budget, processes = content["campaign"].split("/")
    cases = dict.fromkeys(f"{one['case']}/{one['size']}" for one in content["cases"])
    asked_of = span([len(one["answers"]) for one in content["cases"]], "d")
    return [
        f"{len(content['cases'])} questions, each asked to {asked_of} re-runs of "
        f"{processes.removesuffix('p')} processes and {budget.removesuffix('s')} s: {', '.join(cases)}."
    ]


EXPERIMENT = Experiment(
    name="choose",
    title="repeated runs: is the answer of choose the same, or a tie that names it",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    notes=_notes,
    settings={
        "cases": (CASES[:1], CASES), "repeats": (3, 20), "processes": (3, 5), "budget_s": (1.5, 5.0),
        "campaign": ("", ""),
    },
)  # fmt: skip
