"""A whole run: maps, searches and contests of several targets, each kept as soon as it has ended; then the summary.

Conventions: ``runs.jsonl`` holds every replay's drift per unit, and the results of searches and contests; one strict
JSON object per line, appended whole. The same command goes on with what is missing. ``sensitivity.json`` is made from
these lines alone. Everything runs on the CPU, on one thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, RecordError, unknown_name
from precision_eval.core.files import TrialFile, written_whole
from precision_eval.studies.sensitivity.targets import SIZES, TARGETS, target_by_id
from precision_eval.trace.sites import FORMATS

RUNS_NAME = "runs.jsonl"
SUMMARY_NAME = "sensitivity.json"
SCHEMA = 1
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class SensitivityPlan:
    """What to run."""

    targets: tuple[str, ...] = tuple(target.id for target in TARGETS)
    size: str = "cpu"
    formats: tuple[str, ...] = ("bfloat16", "float16")
    policy_format: str = "bfloat16"
    seed: int = 0
    policies: bool = True
    processes: int = 6
    budget_s: float = 1.5

    def checked(self) -> SensitivityPlan:
        """Return the plan itself, if everything that it names exists."""
        for name in self.targets:
            target_by_id(name)
        if self.size not in SIZES:
            raise unknown_name("size:", self.size, SIZES)
        for format in (*self.formats, self.policy_format):
            if format not in FORMATS:
                raise unknown_name("format to map:", format, FORMATS)
        if self.processes < 1 or not self.budget_s > 0.0:
            raise ParameterError(
                f"processes is {self.processes} and budget {self.budget_s:g} s; expected at least 1, and more than 0"
            )
        return self


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread for the time of a block, as the timed processes do."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_campaign(
    plan: SensitivityPlan, out: Path, *, progress: Progress = lambda done, total, what: None
) -> dict[str, Any]:
    """Run what is missing, and write the summary."""
    from precision_eval.core.environment import collect, store_environment
    from precision_eval.studies.sensitivity.mapping import map_target

    plan.checked()
    file = TrialFile(out / RUNS_NAME)
    with _one_thread():
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
    from precision_eval.studies.sensitivity.search import contest, finalists, search

    digest = target_by_id(name).digest(plan.size)
    common = {
        "target": name,
        "size": plan.size,
        "seed": plan.seed,
        "digest": digest,
        "format": plan.policy_format,
        "environment": sha,
    }
    key = f"v{VERSION}/{name}/{plan.size}/{digest}/{plan.seed}/{plan.policy_format}"
    there = {trial["key"]: trial for trial in file.read()}
    if f"{key}/search" not in there:
        one = prepare(target_by_id(name), size=plan.size, seed=plan.seed, format=plan.policy_format)
        started = time.perf_counter()
        points = search(one, seed=plan.seed, progress=progress)
        chosen = {rule: policy.to_dict() for rule, policy in finalists(points).items()}
        trial = {
            "key": f"{key}/search",
            **common,
            "direction": "search",
            "elapsed_s": time.perf_counter() - started,
            "points": [point.to_dict() for point in points],
            "finalists": chosen,
        }
        file.append(trial)
        there[f"{key}/search"] = trial
    if f"{key}/contest" not in there and there[f"{key}/search"]["finalists"]:
        policies = _policies(there[f"{key}/search"]["finalists"])
        started = time.perf_counter()
        found = contest(
            name,
            policies,
            size=plan.size,
            seed=plan.seed,
            processes=plan.processes,
            budget_s=plan.budget_s,
            progress=progress,
        )
        trial = {
            "key": f"{key}/contest",
            **common,
            "direction": "contest",
            "elapsed_s": time.perf_counter() - started,
            "contests": [one.to_dict() for one in found],
        }
        file.append(trial)


def _policies(chosen: Mapping[str, Any]) -> dict[str, Any]:
    from precision_eval.studies.sensitivity.policies import MixedPolicy

    return {rule: MixedPolicy.from_dict(data) for rule, data in chosen.items()}


def summary_of(file: TrialFile) -> dict[str, Any]:
    """Summarise the lines of a run."""
    from precision_eval.studies.sensitivity.report import summarise

    trials = file.read()
    if not trials:
        raise RecordError(f"{file.path} holds no runs; make some with `precision-eval sensitivity --out FOLDER`")
    trials = _of_latest_digest(trials)
    runs = [trial for trial in trials if trial["direction"] in ("drop", "rescue", "check")]
    return {
        "schema": SCHEMA,
        "maps": [one.to_dict() for one in summarise(runs)],
        "searches": [trial for trial in trials if trial["direction"] == "search"],
        "contests": [one for trial in trials if trial["direction"] == "contest" for one in trial["contests"]],
    }


def _of_latest_digest(trials: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the runs of a target whose shape or rules have changed since."""
    latest = {(trial["target"], trial["size"], trial["seed"]): trial["digest"] for trial in trials}
    return [one for one in trials if one["digest"] == latest[(one["target"], one["size"], one["seed"])]]


def write_summary(out: Path) -> dict[str, Any]:
    """Write ``sensitivity.json`` from the lines of a folder, and return what it holds."""
    summary = json.loads(json.dumps(summary_of(TrialFile(out / RUNS_NAME))))  # lists for tuples, as when it is read
    with written_whole(out / SUMMARY_NAME) as partial:
        partial.write_text(json.dumps(_finite(summary), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return read_summary(out)


def _finite(value: Any) -> Any:
    """Replace what is not finite by null, as JSON has no word for it."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and value - value != 0.0 else value


def read_summary(out: Path) -> dict[str, Any]:
    """Read ``sensitivity.json`` of a folder, or the file itself."""
    path = out if out.suffix == ".json" else out / SUMMARY_NAME
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        schema = summary["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path} is no sensitivity summary ({error!r}); make one with `precision-eval sensitivity --out {out}`"
        ) from error
    if schema != SCHEMA:
        raise RecordError(f"{path} has schema {schema}, expected {SCHEMA}; make it again")
    return summary
