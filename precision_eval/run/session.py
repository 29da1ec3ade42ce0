"""A run from what was asked for to its records: device, cases from outside, one plan, workers.

Conventions: nothing is printed here; a :class:`RunListener` hears of it. Ctrl-C ends a run in order, with every result
kept, and goes on to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from precision_eval.cases.own import SIZE, case_of
from precision_eval.cases.systems import CASES
from precision_eval.core.environment import store_environment, stored_environments
from precision_eval.core.errors import ParameterError, RecordError, matching
from precision_eval.core.files import NO_SPACE, check_own_folder, remove_unfinished
from precision_eval.core.records import Record, RecordFile
from precision_eval.core.targets import is_target, plugins
from precision_eval.core.workers import WorkerError, WorkerRaisedError
from precision_eval.fixes.catalog import ALL_FIXES, Fix
from precision_eval.fixes.choices import MODES
from precision_eval.measure.registry import MEASURES, all_measures
from precision_eval.run.cluster import ClusterExecutor, NodeLimits, open_cluster
from precision_eval.run.executor import IsolatedExecutor, KeptExecutor, environment_seen_by, modules_to_preload
from precision_eval.run.plan import Plan, Selection, first_size, make_plan
from precision_eval.run.resources import check_fits, default_workers, memory_limit_bytes, resolve_device
from precision_eval.run.runner import Progress, Silent, run_plan, worker_name
from precision_eval.run.tiers import DEFAULT, Tier

if TYPE_CHECKING:
    from precision_eval.cases.base import Case
    from precision_eval.measure.admission import AdmittedCandidate, AdmittedCase

_CHECKPOINT_SIZES = {"bfloat16": "bfloat16-checkpoint"}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What a run needs besides its selection."""

    out: Path
    timeout_s: float
    workers: int | None = None
    candidates: tuple[str, ...] = ()
    executor: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether cells run on this machine, whose memory has to hold them."""
        return self.executor in (None, "dask")


class RunListener(Protocol):
    """What hears of a run."""

    def note(self, line: str) -> None:
        """Hear something about the records."""

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Hear what takes a while."""

    def progress(self, plan: Plan) -> AbstractContextManager[Progress]:
        """Return what hears of the cells of a plan."""


class NoListener:
    """Hears nothing."""

    def note(self, line: str) -> None:
        """Ignore it."""

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Ignore it."""
        return nullcontext()

    def progress(self, plan: Plan) -> AbstractContextManager[Progress]:
        """Ignore it."""
        return nullcontext(Silent())


@dataclass(frozen=True)
class Admitted:
    """What has been seen of cases and candidates from outside."""

    cases: tuple[AdmittedCase, ...] = ()
    candidates: tuple[AdmittedCandidate, ...] = ()


def run_selection(
    selection: Selection,
    execution: Execution,
    *,
    tier: Tier = DEFAULT,
    checkpoint_dtype: str = "float32",
    listener: RunListener | None = None,
) -> tuple[Record, ...]:
    """Measure what a selection asks for and is not recorded yet; return every record of its plan."""
    listener = listener or NoListener()
    check_own_folder(execution.out, "records.jsonl")
    records = RecordFile(execution.out / "records.jsonl")
    try:
        selection, candidates = resolve_plugins(selection, execution.candidates)
        selection = replace(selection, device=_device_of(selection, execution))
        with listener.waiting("calling the factory"):
            admitted = admit(selection, candidates, tier, timeout_s=execution.timeout_s)
        plan = plan_of(selection, tier, checkpoint_dtype, admitted)
        if execution.is_local:
            check_fits(plan)
        if any(cell.case == "voice" for cell in plan.cells):
            from precision_eval.cases.voice.assets import check_files  # which loads numpy

            check_files()
        with records.claimed():
            return _measure(plan, execution, records, listener)
    except OSError as error:
        raise _unwritable(error, records.path) from error


def _device_of(selection: Selection, execution: Execution) -> str:
    if execution.is_local:
        return resolve_device(selection.device)
    if selection.device not in ("cpu", "cuda"):
        raise ParameterError(
            f"--set executor={execution.executor} takes no --device {selection.device}, as its workers may have other "
            "devices; give cpu or cuda"
        )
    return "cuda:0" if selection.device == "cuda" else "cpu"


def resolve_plugins(selection: Selection, candidates: tuple[str, ...]) -> tuple[Selection, tuple[str, ...]]:
    """Replace plugin names by their import targets."""
    cases, fixes = plugins("precision_eval.cases"), plugins("precision_eval.fixes")
    from_plugins = tuple(fixes[name] for name in selection.fixes if name in fixes)
    resolved = replace(
        selection,
        cases=None if selection.cases is None else tuple(cases.get(name, name) for name in selection.cases),
        fixes=tuple(name for name in selection.fixes if name not in fixes),
    )
    return resolved, (*from_plugins, *(fixes.get(name, name) for name in candidates))


def admit(selection: Selection, candidates: tuple[str, ...], tier: Tier, *, timeout_s: float) -> Admitted:
    """Call what comes from outside once, in a process of its own, from the fork server that starts the workers too.

    Candidates are tried on the first target, or else on the first of the selection's cases.
    """
    targets = tuple(name for name in selection.cases or () if is_target(name))
    if not targets and not candidates:
        return Admitted()
    subject = (targets[0], SIZE) if targets else first_size(selection, _sized(CASES, tier, None))
    arguments = (targets, candidates, subject, selection.device, selection.options.seed)
    compiled = "compiled" in matching("mode", selection.modes or ("eager",), MODES)
    preload = modules_to_preload(MEASURES[0].place.partition(":")[0], compiled=compiled)
    try:
        with IsolatedExecutor(timeout_s=timeout_s, preload=preload) as executor:
            cases, fixes = executor.submit("precision_eval.measure.admission:admit", *arguments).result()
    except WorkerRaisedError as error:
        raise error.__cause__ or error from None
    except WorkerError as error:
        names = " and ".join((*targets, *candidates))
        raise ParameterError(f"calling {names} once: {error}; expected that it returns") from error
    return Admitted(tuple(cases), tuple(fixes))


def plan_of(
    selection: Selection, tier: Tier, checkpoint_dtype: str = "float32", admitted: Admitted | None = None
) -> Plan:
    """Work a selection out into cells; a tier or a checkpoint decides the sizes where none was named."""
    size = _CHECKPOINT_SIZES.get(checkpoint_dtype)
    if size is not None and selection.sizes is not None:
        raise ParameterError(f"checkpoint_dtype {checkpoint_dtype} is --size {size}; give one of the two")
    admitted = admitted or Admitted()
    outside = (case_of(case.case, digest=case.digest, measures=case.measures) for case in admitted.cases)
    candidates = {candidate.fix: candidate.digest for candidate in admitted.candidates}
    fixes = (Fix(id=entry.fix, modes=entry.modes, storage=entry.storage) for entry in admitted.candidates)
    plan = make_plan(
        replace(selection, fixes=(*selection.fixes, *candidates)),
        cases=_sized([*CASES, *outside], tier, size),
        fixes=[*ALL_FIXES, *fixes],
        measures=all_measures(),
        candidates=candidates,
    )
    return replace(
        plan,
        parts={case.case: case.parts for case in admitted.cases},
        refused={entry.fix: entry.refused for entry in admitted.candidates if entry.refused},
    )


def _sized(cases: Iterable[Case], tier: Tier, size: str | None) -> list[Case]:
    most = None if tier.all_sizes else 1
    return [replace(case, default_sizes=(size,) if size in case.sizes else case.default_sizes[:most]) for case in cases]


def _measure(plan: Plan, execution: Execution, records: RecordFile, listener: RunListener) -> tuple[Record, ...]:
    """Start workers, describe the environment, and run the plan."""
    remove_unfinished(execution.out)
    reading = records.read()
    if reading.torn_bytes:
        listener.note(
            f"{records.path}: a torn last line ({reading.torn_bytes} bytes) is dropped; its cell is measured again"
        )
    for fault in reading.faults:
        listener.note(fault)
    with _open_pool(plan, execution) as pool:
        with listener.waiting("starting workers"):
            first = plan.cells[0]
            environment = environment_seen_by(pool.executor, first.device, first=worker_name(first))
        if other := _other_cards(environment, execution.out):
            listener.note(f"{execution.out} holds records of another card, {other}; all is measured anew on this one")
        sha = store_environment(environment, execution.out)
        if isinstance(pool.executor, ClusterExecutor):
            pool.executor.expect(environment)
        with listener.progress(plan) as progress:
            return run_plan(
                plan,
                pool.executor,
                records,
                progress,
                environment=sha,
                max_parallel=pool.size,
                timed_alone=pool.timed_alone,
                timeout_s=execution.timeout_s,
            )


def _other_cards(environment: dict[str, Any], out: Path) -> str:
    """Name the cards of another kind that a run's folder has records of."""
    here = environment["device"]
    before = [stored["device"] for stored in stored_environments(out, damaged_too=True).values()]
    others = [card for card in before if "model" in here and "model" in card and card["model"] != here["model"]]
    return " and ".join(dict.fromkeys(f"{card['model']} ({card['name']})" for card in others))


@dataclass(frozen=True)
class _Pool:
    """What runs cells, how many at a time, and whether a timed one needs it for itself."""

    executor: Executor
    size: int
    timed_alone: bool = True


@contextmanager
def _open_pool(plan: Plan, execution: Execution) -> Iterator[_Pool]:
    cell, timeout_s = plan.cells[0], execution.timeout_s
    preload = modules_to_preload(*plan.modules, compiled=plan.compiled)
    if execution.executor is not None:
        limits = NodeLimits(device=cell.device, preload=preload, timeout_s=timeout_s)
        with open_cluster(execution.executor, limits, threads=cell.threads) as (executor, size):
            yield _Pool(executor, size, timed_alone=execution.is_local and cell.device == "cpu")
        return
    if cell.device.startswith("cuda"):
        with KeptExecutor(timeout_s=timeout_s, preload=preload) as kept:
            yield _Pool(kept, 1)
        return
    workers = execution.workers or default_workers(plan)
    limit = memory_limit_bytes(cell.device)
    with IsolatedExecutor(workers, timeout_s=timeout_s, memory_limit_bytes=limit, preload=preload) as executor:
        yield _Pool(executor, workers if cell.device == "cpu" else 1)


def _unwritable(error: OSError, records: Path) -> RecordError:
    """Say what could not be written, what is kept and what to do."""
    remedy = "free space" if error.errno in NO_SPACE else "correct that"
    what = error.filename or "the output"
    return RecordError(
        f"cannot write {what}: {error.strerror or error}; what was already recorded in {records} is intact, "
        f"{remedy} and run the same command again"
    )
