"""A whole run: maps, searches and contests of several targets, each kept as soon as it has ended; then the summary.

Conventions: ``runs.jsonl`` holds every replay's drift per unit, and the results of searches and contests; one strict
JSON object per line, appended whole. The same command goes on with what is missing. ``sensitivity.json`` is made from
these lines alone. Everything runs on the CPU, on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, RecordError, check_known
from precision_eval.core.files import TrialFile, null_where_not_finite, write_json
from precision_eval.core.workers import one_thread
from precision_eval.studies.sensitivity.targets import SIZES, TARGETS, Progress, target_by_id
from precision_eval.trace.sites import FORMATS

RUNS_NAME = "runs.jsonl"
SUMMARY_NAME = "sensitivity.json"
SCHEMA = 1
POLICY_FORMAT = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class SensitivityPlan:
    """What to run."""

    targets: tuple[str, ...] = tuple(target.id for target in TARGETS)
    size: str = "cpu"
    formats: tuple[str, ...] = ("bfloat16", "float16")
    seed: int = 0
    policies: bool = True
    processes: int = 6
    budget_s: float = 1.5

    def checked(self) -> SensitivityPlan:
        """Return the plan itself, if everything that it names exists."""
        for name in self.targets:
            target_by_id(name)
        check_known("size:", self.size, SIZES)
        for format in self.formats:
            check_known("format to map:", format, FORMATS)
        if self.processes < 1 or not self.budget_s > 0.0:
            raise ParameterError(
                f"processes is {self.processes} and budget {self.budget_s:g} s; expected at least 1, and more than 0"
            )
        return self


def run_campaign(
    plan: SensitivityPlan, out: Path, *, progress: Progress = lambda done, total, what: None
) -> dict[str, Any]:
    """Run what is missing, and write the summary."""
    from precision_eval.core.environment import collect, store_environment
    from precision_eval.studies.sensitivity.mapping import map_target

    plan.checked()
    file = TrialFile(out / RUNS_NAME)
    with one_thread():
        sha = store_environment(collect("cpu"), out)
        for name in plan.targets:
            target = target_by_id(name)
            map_target(target, size=plan.size, seed=plan.seed, formats=plan.formats, file=file, progress=progress)
            if plan.policies:
                _search_and_prove(plan, name, file, sha, progress)
    return write_summary(out)


def _search_and_prove(plan: SensitivityPlan, name: str, file: TrialFile, sha: str, progress: Progress) -> None:
    """Search a target's policies and hold the finalists against the fixes, where that is not done yet."""
    from precision_eval.studies.sensitivity.mapping import VERSION, prepare
    from precision_eval.studies.sensitivity.policies import MixedPolicy
    from precision_eval.studies.sensitivity.search import contest, finalists, search

    target, size, seed = target_by_id(name), plan.size, plan.seed
    digest = target.digest(size)
    common = {"target": name, "size": size, "seed": seed, "digest": digest}
    common |= {"format": POLICY_FORMAT, "environment": sha}
    key = f"v{VERSION}/{name}/{size}/{digest}/{seed}/{POLICY_FORMAT}"
    trials = {trial["key"]: trial for trial in file.read()}

    def kept(direction: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what is on file, or measure it and put it there."""
        if (trial_key := f"{key}/{direction}") not in trials:
            started = time.perf_counter()
            measured = measure()
            elapsed_s = time.perf_counter() - started
            trials[trial_key] = {"key": trial_key, **common, "direction": direction, "elapsed_s": elapsed_s, **measured}
            file.append(trials[trial_key])
        return trials[trial_key]

    def searched() -> dict[str, Any]:
        mapped = prepare(target, size=size, seed=seed, format=POLICY_FORMAT)
        points = search(mapped, seed=seed, progress=progress)
        chosen = {rule: asdict(policy) for rule, policy in finalists(points).items()}
        return {"points": [point.to_dict() for point in points], "finalists": chosen}

    chosen = kept("search", searched)["finalists"]

    def contested() -> dict[str, Any]:
        policies = {rule: MixedPolicy.from_dict(data) for rule, data in chosen.items()}
        contests = contest(
            name,
            policies,
            size=size,
            seed=seed,
            processes=plan.processes,
            budget_s=plan.budget_s,
            progress=progress,
        )
        return {"contests": [result.to_dict() for result in contests]}

    if chosen:
        kept("contest", contested)


def summary_of(file: TrialFile) -> dict[str, Any]:
    """Summarise the lines of a run."""
    from precision_eval.studies.sensitivity.report import summarise

    trials = file.read()
    if not trials:
        raise RecordError(f"{file.path} holds no runs; make some with `precision-eval sensitivity --out FOLDER`")
    latest = {(trial["target"], trial["size"], trial["seed"]): trial["digest"] for trial in trials}
    # without the runs of a target whose shape or rules have changed since
    trials = [trial for trial in trials if trial["digest"] == latest[trial["target"], trial["size"], trial["seed"]]]
    runs = [trial for trial in trials if trial["direction"] in ("drop", "rescue", "check")]
    return {
        "schema": SCHEMA,
        "maps": summarise(runs),
        "searches": [trial for trial in trials if trial["direction"] == "search"],
        "contests": [result for trial in trials if trial["direction"] == "contest" for result in trial["contests"]],
    }


def write_summary(out: Path) -> dict[str, Any]:
    """Write ``sensitivity.json`` from the lines of a folder, and return what it holds."""
    summary: dict[str, Any] = null_where_not_finite(summary_of(TrialFile(out / RUNS_NAME)))
    write_json(out / SUMMARY_NAME, summary)
    return summary
