"""What ``precision-eval run`` does: plan, workers, records, report."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from precision_eval.cases.own import SIZE, case_of
from precision_eval.cli import EXIT_INTERRUPTED, EXIT_TERMINATED
from precision_eval.core.cells import Options
from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import is_target, plugins, target_of
from precision_eval.run.plan import Plan, Selection, checked_device, make_plan

if TYPE_CHECKING:
    from rich.console import Console

    from precision_eval.core.cells import Cell
    from precision_eval.core.errors import RecordError
    from precision_eval.core.records import Record, RecordFile
    from precision_eval.measure.admission import AdmittedCandidate, AdmittedCase
    from precision_eval.report.loading import LoadedRun
    from precision_eval.run.executor import IsolatedExecutor

_MEMORY_SHARE = 0.85  # of what is available at the start; the rest keeps the system alive
_CHECKPOINT_SIZES = {"bfloat16": "bfloat16-checkpoint"}
_WIDTHS = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_TWINS = {"drift": 8.0, "sampler": 8.0}  # bytes per parameter of a float64 model


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The options of ``run``, as given."""

    out: Path
    cases: tuple[str, ...] | None
    fixes: tuple[str, ...]
    measures: tuple[str, ...]
    modes: tuple[str, ...] | None
    sizes: tuple[str, ...] | None
    device: str
    threads: int
    workers: int | None
    timeout_s: float
    checkpoint_dtype: str
    options: Options
    sdpa_backends: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()

    def selection(self, device: str) -> Selection:
        """Return what is to be planned, on a resolved device."""
        return Selection(
            cases=self.cases,
            fixes=(*self.fixes, *self.candidates),
            measures=self.measures,
            modes=self.modes,
            sizes=self.sizes,
            device=device,
            threads=self.threads,
            options=self.options,
            sdpa_backends=self.sdpa_backends,
        )


def run_command(request: RunRequest, console: Console | None = None) -> None:
    """Run a request to its report."""
    from rich.console import Console

    from precision_eval.core.files import check_own_folder
    from precision_eval.core.records import RecordFile

    check_own_folder(request.out, "records.jsonl")
    console = console or Console(emoji=False)
    records = RecordFile(request.out / "records.jsonl")
    try:
        with _terminable():
            checked_device(request.device)
            request = with_plugins(request)
            own = admit(request, console)
            draft = plan_of(request, request.device, own)  # bad names end here, before anything is started
            with records.claimed():
                _run_to_report(request, draft, own, records, console)
    except KeyboardInterrupt as stop:
        _tell_how_to_resume(records, console)
        raise typer.Exit(EXIT_TERMINATED if isinstance(stop, _Terminated) else EXIT_INTERRUPTED) from None
    except OSError as error:
        raise _unwritable(error, records.path) from error


def _run_to_report(request: RunRequest, draft: Plan, own: Admitted, records: RecordFile, console: Console) -> None:
    """Measure what is missing, then write the report."""
    _check_fits(draft)
    if any(cell.case == "voice" for cell in draft.cells):
        from precision_eval.cases.voice.assets import check_files

        check_files()
    from precision_eval.core.files import remove_unfinished

    remove_unfinished(request.out)
    reading = records.read()
    if reading.torn_bytes:
        line = f"{records.path}: a torn last line ({reading.torn_bytes} bytes) is dropped; its cell is measured again"
        console.print(line, markup=False)
    for fault in reading.faults:
        console.print(fault, highlight=False, markup=False)
    settled = _measure(request, draft, own, records, console)
    remove_unfinished(request.out)
    from precision_eval.cli.report import write_reports

    if settled:
        write_reports(request.out, console=console)


def _check_fits(draft: Plan) -> None:
    """Refuse sizes that cannot be built here."""
    import psutil

    from precision_eval.cases.systems import case_by_id
    from precision_eval.fixes.catalog import FIXES

    available_bytes = psutil.virtual_memory().available
    storages = {fix.id: fix.storage for fix in FIXES}
    for cell in draft.cells:
        case = case_by_id(cell.case)
        case.check_fits(cell.size, available_bytes=available_bytes)
        if cell.device == "cpu":
            case.check_fits(
                cell.size,
                available_bytes=int(available_bytes * _MEMORY_SHARE),  # a worker may take no more
                copies=_copies(cell, case.bytes_per_parameter, storages),
                holder=f"{cell.measure} of {' and '.join(cell.fixes)}",
                remedy="--size cpu, leave that out with --fix and --measure",
            )


def _copies(cell: Cell, shipped: float, storages: Mapping[str, str]) -> float:
    """Return the bytes per parameter that a cell holds at least beside the model as shipped, all on the CPU."""
    widths = [_WIDTHS.get(storages.get(fix, ""), 0.0) for fix in cell.fixes]
    wider = [width if width > shipped else 0.0 for width in widths]
    if cell.measure == "latency":
        return sum(wider) + shipped * len(wider)  # each candidate has a model of its own
    twins = _TWINS.get(cell.measure, 0.0)
    return max(wider) + twins + (2 * shipped if twins else 0.0)  # the fix has a copy, and the twin is made from one


def evaluate(
    case: str | Callable[[], Any],
    *,
    out: str | Path,
    candidates: Sequence[str] = (),
    fixes: Sequence[str] = ("*",),
    measures: Sequence[str] = ("*",),
    device: str = "auto",
    threads: int = 1,
    budget_s: float = 2.0,
    processes: int = 1,
    seed: int = 0,
    timeout_s: float = 900.0,
) -> LoadedRun:
    """Measure a case of one's own under every fix, in processes of their own, and write the report.

    Parameters
    ----------
    case : str or callable
        A factory of ``(model, inputs)`` or an :class:`~precision_eval.cases.own.OwnCase`, or where it is written:
        ``file.py:function``, ``package.module:function``, or the id of a shipped case. A function has to be written in
        a file, as each process imports it; in a script, below ``if __name__ == "__main__"``.
    out : str or pathlib.Path
        Folder of the run; an existing one is resumed.
    candidates : sequence of str
        Fixes of one's own, likewise written: a callable that changes a model, or a :class:`Fix`.
    fixes, measures : sequence of str
        Names or globs.
    device : str
    threads : int
        Per process.
    budget_s : float
        Seconds of timing.
    processes : int
        Processes that latency is measured in; 5 or more make the memory layout part of the intervals.
    seed : int
    timeout_s : float
        Seconds that one cell may take.

    Returns
    -------
    LoadedRun
        As :func:`precision_eval.load` reads it.

    Raises
    ------
    ParameterError
        The case or a candidate cannot be measured, and why.
    """
    from rich.console import Console

    from precision_eval.report.loading import load

    request = RunRequest(
        out=Path(out),
        cases=(case if isinstance(case, str) else target_of(case),),
        fixes=tuple(fixes),
        measures=tuple(measures),
        modes=None,
        sizes=None,
        device=device,
        threads=threads,
        workers=None,
        timeout_s=timeout_s,
        checkpoint_dtype="float32",
        options=Options(budget_s=budget_s, processes=processes, seed=seed),
        candidates=tuple(candidates),
    )
    run_command(request, Console(quiet=True))
    return load(Path(out))


class _Terminated(KeyboardInterrupt):
    """SIGTERM: stops a run as Ctrl-C does."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM (a batch system, ``kill``, a shutdown) end the run in order, workers and display included."""

    def stop(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwritable(error: OSError, records: Path) -> RecordError:
    """Say what could not be written, what is kept and what to do."""
    from precision_eval.core.errors import RecordError
    from precision_eval.core.files import NO_SPACE

    remedy = "free space" if error.errno in NO_SPACE else "mend that"
    what = error.filename or "the output"
    return RecordError(
        f"cannot write {what}: {error.strerror or error}; what was already recorded in {records} is intact, "
        f"{remedy} and run the same command again"
    )


@dataclass(frozen=True)
class Admitted:
    """What has been seen of cases and candidates from outside."""

    cases: tuple[AdmittedCase, ...] = ()
    candidates: tuple[AdmittedCandidate, ...] = ()


def admit(request: RunRequest, console: Console) -> Admitted:
    """Call what comes from outside once, in a process of its own, and say what cannot be measured of it."""
    targets = tuple(name for name in request.cases or () if is_target(name))
    if not targets and not request.candidates:
        return Admitted()
    from precision_eval.core.workers import WorkerError, WorkerRaisedError, call_isolated

    subject = (targets[0], SIZE) if targets else _first_cell(request)
    with console.status("calling the factory"):
        try:
            cases, candidates = call_isolated(
                _admitted,
                targets,
                request.candidates,
                subject,
                request.device,
                request.options.seed,
                timeout_s=request.timeout_s,
            )
        except WorkerRaisedError as error:
            raise error.__cause__ or error from None
        except WorkerError as error:
            names = " and ".join((*targets, *request.candidates))
            raise ParameterError(f"calling {names} once: {error}; expected that it returns") from error
    return Admitted(tuple(cases), tuple(candidates))


def with_plugins(request: RunRequest) -> RunRequest:
    """Put places in the stead of names that installed packages have given to cases and fixes."""
    cases, fixes = plugins("precision_eval.cases"), plugins("precision_eval.fixes")
    own = tuple(fixes[name] for name in request.fixes if name in fixes)
    return replace(
        request,
        cases=None if request.cases is None else tuple(cases.get(name, name) for name in request.cases),
        fixes=tuple(name for name in request.fixes if name not in fixes),
        candidates=(*own, *(fixes.get(name, name) for name in request.candidates)),
    )


def _admitted(*arguments: Any) -> Any:
    from precision_eval.measure.admission import admitted  # which loads torch, in a process of its own alone

    return admitted(*arguments)


def _first_cell(request: RunRequest) -> tuple[str, str]:
    cell = make_plan(replace(request, candidates=()).selection(request.device)).cells[0]
    return cell.case, cell.size


def plan_of(request: RunRequest, device: str, own: Admitted | None = None) -> Plan:
    """Work a request out into cells."""
    from precision_eval.cases.systems import all_cases
    from precision_eval.fixes.catalog import FIXES, Fix

    own = own or Admitted()
    entries = [*all_cases(), *(case_of(case.case, digest=case.digest) for case in own.cases)]
    fixes = [*FIXES, *(Fix(id=one.fix, modes=one.modes, storage=one.storage) for one in own.candidates)]
    digests = {one.fix: one.digest for one in own.candidates}
    size = _CHECKPOINT_SIZES.get(request.checkpoint_dtype)
    if size is None:
        return make_plan(request.selection(device), cases=entries, fixes=fixes, candidates=digests)
    if request.sizes is not None:
        raise ParameterError(f"--checkpoint-dtype {request.checkpoint_dtype} is --size {size}; give one of the two")
    entries = [replace(entry, default_sizes=(size,)) if size in entry.sizes else entry for entry in entries]
    return make_plan(request.selection(device), cases=entries, fixes=fixes, candidates=digests)


def _measure(
    request: RunRequest, draft: Plan, own: Admitted, records: RecordFile, console: Console
) -> tuple[Record, ...]:
    """Start workers, describe the environment, and run the plan."""
    from precision_eval.cli.progress import progress_on
    from precision_eval.core.environment import collect, store_environment
    from precision_eval.run.executor import IsolatedExecutor
    from precision_eval.run.runner import run_plan

    workers = request.workers or _default_workers(request, draft)
    with IsolatedExecutor(workers, timeout_s=request.timeout_s, preload=_preload(draft)) as executor:
        environment = _described(executor, collect, request.device, console)
        device = str(environment["device"]["name"])
        executor.memory_limit_bytes = _memory_limit_bytes(device)
        plan = plan_of(request, device, own)
        _check_fits(plan)  # once more: what fits depends on the device
        sha = store_environment(environment, request.out)
        with progress_on(console, plan) as progress:
            return run_plan(
                plan,
                executor,
                records,
                progress,
                environment=sha,
                max_parallel=workers if device == "cpu" else 1,
                timeout_s=request.timeout_s,
            )


def _described(executor: IsolatedExecutor, collect: Any, device: str, console: Console) -> dict[str, Any]:
    """Describe the environment in a worker, so that this process never loads torch."""
    from precision_eval.core.environment import check_device

    with console.status("starting workers"):
        executor.submit(check_device, device).result()
        environment: dict[str, Any] = executor.submit(collect, device).result()
    return environment


def _preload(draft: Plan) -> tuple[str, ...]:
    """Return what the fork server imports once; not the compiler where that might wake up CUDA before a fork."""
    if Path("/dev/nvidiactl").exists():
        return ("torch",)
    return ("torch", "torch._dynamo", *(("precision_eval.run.warm_compiler",) if draft.compiled else ()))


def _default_workers(request: RunRequest, draft: Plan) -> int:
    """Return how many cells may run at a time; one at full size, where two would share the memory."""
    from precision_eval.core.environment import usable_cores

    if any(cell.size == "full" for cell in draft.cells):
        return 1
    return max(1, usable_cores() // request.threads)


def _memory_limit_bytes(device: str) -> int | None:
    """Limit a worker to most of what is available; a CUDA process maps far more than it uses, so it has no limit."""
    if device != "cpu":
        return None
    import psutil

    return int(psutil.virtual_memory().available * _MEMORY_SHARE)


def _tell_how_to_resume(records: RecordFile, console: Console) -> None:
    """Say what is kept after Ctrl-C or SIGTERM, and how to go on."""
    kept = len(records.read().records)
    command = shlex.join(["precision-eval", *sys.argv[1:]])
    console.print(f"\nStopped. {kept} records are kept in {records.path}. To go on:", highlight=False)
    console.print(f"  {command}", highlight=False, soft_wrap=True, markup=False)
