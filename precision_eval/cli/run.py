"""The command ``run``: plan, workers, records, report."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from precision_eval.cases.own import SIZE, OwnCase, case_of, kept_live
from precision_eval.cases.systems import all_cases, case_by_id
from precision_eval.cli import options
from precision_eval.cli.application import EXIT_INTERRUPTED, EXIT_SUITE_FAILED, split
from precision_eval.cli.progress import progress_on
from precision_eval.cli.report import Printing, write_reports
from precision_eval.core.cells import SUITE_FAILED, Cell, Options
from precision_eval.core.environment import keep_self_test, store_environment, usable_cores
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.files import NO_SPACE, check_own_folder, remove_unfinished
from precision_eval.core.formatting import command_line
from precision_eval.core.records import Record, RecordFile
from precision_eval.core.table import print_lines
from precision_eval.core.targets import RUN_DIR, is_target, plugins, target_of
from precision_eval.core.workers import WorkerError, WorkerRaisedError, call_isolated
from precision_eval.fixes.catalog import ALL_FIXES, Fix
from precision_eval.measure.registry import all_measures
from precision_eval.run.engines import EngineExecutor, NodeCall, engine_named
from precision_eval.run.executor import IsolatedExecutor, environment_seen_by, modules_to_preload

if TYPE_CHECKING:
    from rich.console import Console

    from precision_eval.measure.admission import AdmittedCandidate, AdmittedCase
    from precision_eval.report.loading import LoadedRun
    from precision_eval.run.plan import Plan, Selection

_MEMORY_SHARE = 0.85  # of what is available at the start; the rest keeps the system alive
_CHECKPOINT_SIZES = {"bfloat16": "bfloat16-checkpoint"}
_WIDTHS = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_TWINS = {"drift": 8.0, "sampler": 8.0}  # bytes per parameter of a float64 model

_UNSHOWN = ("streams", "divergence", "synthesis", "audio")  # which only the HTML report shows

HELP = """\
A run that was stopped goes on where it stopped: give the same command again.

It ends with one table per case: result, time ratio, memory, drift, sound; the fix to take in bold, ties marked ≈.
The default measures every shipped case in about two minutes on two quiet cores: attention at one step and over a whole
prompt, and a small voice with 16 streams of its speech. It leaves out what only the HTML report shows: how long two
voices stay the same, and a recording of each fix. [cyan]--case voice[/cyan] with the same [cyan]--out[/cyan] adds both.
[cyan]--quick[/cyan] takes half a minute and makes no sound; [cyan]--thorough[/cyan] takes half an hour and more, and is
what the published results use: every size of each case, ten minutes of audio.

A cell that crashes, hangs or runs out of memory costs that cell only and is recorded with its reason.

[bold]Examples[/bold]

[cyan]precision-eval run --out runs/first[/cyan]  every fix on every shipped case

[cyan]precision-eval run --case voice --out runs/first[/cyan]  and a recording of every fix

[cyan]precision-eval run my_case.py:factory[/cyan]  your own model: the factory returns (model, inputs)

[cyan]precision-eval run my_case.py:factory --candidate mine.py:half_kv[/cyan]  and your own fix, which gets the model

[cyan]precision-eval run --case 'attention-*' --fix kv_to_query,query_to_half --out runs/casts[/cyan]

[cyan]precision-eval run --case voice --minutes 10 --streams 128 --out runs/long[/cyan]

[cyan]precision-eval run --mode eager,compiled --device cuda:0 --budget 20 --out runs/gpu[/cyan]

[cyan]precision-eval run --case dia-decode --sdpa-backend any,math,flash --out runs/pinned[/cyan]
"""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """How much is measured where nothing else is asked for.

    `leaves_out` names measures that are left out unless they are named, `leaves_out_unasked` also cases and controls,
    where no case is named: what the terminal does not show, or shows of another case too.
    """

    minutes: float
    streams: int
    steps: int
    budget_s: float
    all_sizes: bool = False
    modes: tuple[str, ...] | None = None
    leaves_out: tuple[str, ...] = ()
    leaves_out_of_own: tuple[str, ...] = ()
    leaves_out_unasked: tuple[str, ...] = ()
    seeds: int | None = None

    def options(self, *, is_own: bool = False, **given: Any) -> Options:
        """Return the options of a run: what was given, else the tier's own; a model of one's own is built once."""
        tier = {name: getattr(self, name) for name in ("minutes", "streams", "steps", "budget_s", "seeds")}
        tier |= {"seeds": None} if is_own else {}
        return Options(**tier | {name: value for name, value in given.items() if value is not None})


QUICK = Tier(
    minutes=0.05,
    streams=4,
    steps=25,
    budget_s=0.5,
    modes=("eager",),
    leaves_out=(*_UNSHOWN, "sound"),
    leaves_out_unasked=("attention-prefill",),
)
DEFAULT = Tier(
    minutes=0.25,
    streams=16,
    steps=50,
    budget_s=2.0,
    leaves_out_of_own=("sound",),
    leaves_out_unasked=(*_UNSHOWN, "control_long_window"),
)
THOROUGH = Tier(minutes=10.0, streams=64, steps=500, budget_s=10.0, all_sizes=True, seeds=8)


class CheckpointDtype(StrEnum):
    """Format that the voice's weights are rounded to before anything is measured."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Tf32(StrEnum):
    """Whether float32 may be computed in TF32."""

    on = "on"
    off = "off"


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What a run needs besides its selection."""

    out: Path
    workers: int | None
    timeout_s: float
    printing: Printing
    candidates: tuple[str, ...] = ()
    executor: str | None = None

    @property
    def here(self) -> bool:
        """Whether cells run on this machine, whose memory has to hold them."""
        return self.executor is None or self.executor.startswith("local:")


Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FACTORY]...",
        help="Your own case: file.py:function or package.module:function, which returns (model, inputs) or an OwnCase.",
    ),
]
Candidates = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Your own fix: file.py:name, a callable that changes a model or a Fix, beside those of --fix.",
    ),
]
MeasureNames = Annotated[
    list[str] | None, typer.Option(help="Names or globs; see [cyan]list measures[/cyan]; [dim]default: all[/dim]")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="Untimed cells at a time; [dim]default: cores / threads, 1 on a GPU and at size full[/dim]"
    ),
]
ExecutorName = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="ENGINE",
        help="local:LANES, dask, ray or slurm: cells on lanes of this machine or on a cluster; see docs/fleet.md.",
    ),
]
SdpaBackends = Annotated[
    list[str] | None,
    typer.Option(
        help="Pin attention to math, flash, efficient or cudnn; any is torch's choice. Repeat or separate by "
        "commas to have each. What has no such kernel is unsupported; where one is pinned, measures of the voice "
        "alone are left out."
    ),
]
PinnedTf32 = Annotated[
    Tf32 | None,
    typer.Option(
        help="TF32 for float32 on CUDA; where it is set, measures of the voice alone are left out. "
        "[dim]Default: as torch has it.[/dim]"
    ),
]
Thorough = Annotated[bool, typer.Option("--thorough", help="Every size, more of everything; for publication.")]
Streams = Annotated[
    int | None, typer.Option(min=1, help="Parallel streams of drift and divergence; [dim]default: 16[/dim]")
]
Speech = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Recordings that Whisper transcribes: WAV or FLAC of up to 30 s, what is said in a .txt of the same name "
        "or in LibriSpeech's .trans.txt; [dim]default: those of the extra speech[/dim]",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, help="Seeded inputs that drift is measured on, eager; [dim]default: 1, thorough 8[/dim]"),
]
Judges = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME]...",
        help="What else hears the streams of sound, and each minute of long audio: whisper, pocketsphinx, resemblyzer, "
        "visqol, zimtohrli; each needs its wheel.",
    ),
]
Minutes = Annotated[float | None, typer.Option(min=0.01, help="Audio per fix; [dim]default: 0.25[/dim]")]
Steps = Annotated[int | None, typer.Option(min=1, help="Frames of 20 ms per stream; [dim]default: 50[/dim]")]
Isolation = Annotated[
    str,
    typer.Option(
        metavar="warn|error",
        help="Where others used the device of a timed cell: keep it as a doubt, or end the run before it is recorded.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(min=1.0, help="Seconds that one cell may take; [dim]default: 900, with long audio 60 a minute[/dim]"),
]
StoredDtype = Annotated[CheckpointDtype, typer.Option(help="float32 as shipped; bfloat16 makes half storage lossless.")]


def run(
    target: Targets = None,
    candidate: Candidates = None,
    out: options.Out = Path("runs/latest"),
    case: options.Case = None,
    fix: options.Fix = None,
    mode: options.Mode = None,
    device: options.Device = "auto",
    size: options.Size = None,
    measure: MeasureNames = None,
    quick: options.Quick = False,
    thorough: Thorough = False,
    minutes: Minutes = None,
    streams: Streams = None,
    steps: Steps = None,
    budget: options.Budget = None,
    processes: options.Processes = None,
    threads: options.Threads = 1,
    workers: Workers = None,
    executor: ExecutorName = None,
    seed: options.Seed = 0,
    seeds: Seeds = None,
    sdpa_backend: SdpaBackends = None,
    tf32: PinnedTf32 = None,
    memory: options.Memory = None,
    isolation: Isolation = "warn",
    timeout: Timeout = None,
    checkpoint_dtype: StoredDtype = CheckpointDtype.float32,
    speech: Speech = None,
    judge: Judges = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    open_report: options.OpenReport = False,
) -> None:
    """Measure, record, report."""
    from precision_eval.run.plan import Selection, checked_device

    tier, cases = _tier(quick=quick, thorough=thorough), _given_cases(target, case)
    selection = Selection(
        cases=cases, fixes=split(fix, ("*",)), without=() if cases or measure else tier.leaves_out_unasked,
        measures=split(measure, _measures_of(tier, cases)), modes=split(mode) if mode is not None else tier.modes,
        sizes=None if size is None else split(size), device=checked_device(device), threads=threads,
        sdpa_backends=split(sdpa_backend), options=tier.options(
            is_own=_all_own(cases), minutes=minutes, streams=streams, steps=steps, budget_s=budget, processes=processes,
            seed=seed, seeds=seeds, tf32=tf32, memory=_joined(memory), speech=speech, judges=judge, isolation=isolation,
        ),
    )  # fmt: skip
    execution = Execution(out=out, workers=workers, timeout_s=_limit_s(timeout, selection), candidates=split(candidate),
        executor=executor, printing=Printing(verbose=verbose, quiet=quiet, as_json=as_json, open_report=open_report),
    )  # fmt: skip
    _check_own_failures(run_selection(selection, execution, tier=tier, checkpoint_dtype=checkpoint_dtype.value))


def _limit_s(given: float | None, selection: Selection) -> float:
    """Seconds that a cell may take: what float64 on busy cores takes of an hour's speech is no failure of it."""
    return max(900.0, 60.0 * selection.options.minutes) if given is None else given


def _given_cases(targets: list[str] | None, cases: list[str] | None) -> tuple[str, ...] | None:
    given = split([*(targets or []), *(cases or [])])
    _refuse_live(given)
    return given or None


def _refuse_live(cases: Sequence[str]) -> None:
    """Refuse what :func:`evaluate` alone may name, having written it: a run's folder is data, and this is a pickle."""
    if any(name.startswith("live:") for name in cases):
        raise ParameterError("a case named live: is of another program's memory; run it there, by evaluate(model, ...)")


def _joined(states: list[str] | None) -> str | None:
    return ",".join(dict.fromkeys(split(states))) or None


def _check_own_failures(settled: tuple[Record, ...]) -> None:
    """End with the suite's own code where it failed to measure something: that says nothing about a fix."""
    lost = [record for record in settled if (record.reason or "").startswith(SUITE_FAILED)]
    if lost:
        first = (lost[0].reason or "").removeprefix(SUITE_FAILED)
        typer.echo(
            f"precision-eval: {len(lost)} of {len(settled)} measurements failed in the suite itself, the first "
            f"{lost[0].cell}: {first}; all others stand; please report it",
            err=True,
        )
        raise typer.Exit(EXIT_SUITE_FAILED)


def _tier(*, quick: bool, thorough: bool) -> Tier:
    if quick and thorough:
        raise ParameterError("--quick and --thorough were given; give one of them")
    return QUICK if quick else THOROUGH if thorough else DEFAULT


def _all_own(cases: Sequence[str] | None) -> bool:
    return bool(cases) and all(is_target(case) for case in cases or ())


def _measures_of(tier: Tier, cases: Sequence[str] | None) -> tuple[str, ...]:
    """Return what a tier measures; how long a model of somebody else's takes to speak, nobody knows beforehand."""
    left_out = {*tier.leaves_out, *(tier.leaves_out_of_own if _all_own(cases) else ())}
    left_out |= set() if cases else set(tier.leaves_out_unasked)
    return tuple(measure.name for measure in all_measures() if measure.name not in left_out)


def run_selection(
    selection: Selection, execution: Execution, *, tier: Tier = DEFAULT, checkpoint_dtype: str = "float32"
) -> tuple[Record, ...]:
    """Run a selection to its report; Ctrl-C, and signals that become one, end it in order, with all results kept."""
    out, console = execution.out, execution.printing.notes()
    check_own_folder(out, "records.jsonl")
    records = RecordFile(out / "records.jsonl")
    try:
        selection, candidates = with_plugins(selection, execution.candidates)
        plan_without = partial(plan_of, selection, tier, checkpoint_dtype, selection.device)
        timeout_s = execution.timeout_s
        own = admit(selection, candidates, console, plan_without=plan_without, timeout_s=timeout_s, run_dir=out)
        plan_on = partial(plan_of, selection, tier, checkpoint_dtype, own=own)
        draft = plan_on(selection.device)  # bad names end here, before anything is started
        with records.claimed():
            return _run_to_report(draft, plan_on, execution, records, console)
    except KeyboardInterrupt:
        _tell_how_to_resume(records, console)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except OSError as error:
        raise _unwritable(error, records.path) from error


def evaluate(
    case: str | Callable[[], Any] | OwnCase | tuple[Any, Any],
    *,
    out: str | Path,
    candidates: Sequence[str | Callable[[Any], Any]] = (),
    fixes: Sequence[str] = ("*",),
    modes: Sequence[str] | None = None,
    measures: Sequence[str] | None = None,
    device: str = "auto",
    quick: bool = False,
    thorough: bool = False,
    minutes: float | None = None,
    streams: int | None = None,
    steps: int | None = None,
    budget_s: float | None = None,
    processes: int | None = None,
    threads: int = 1,
    seed: int = 0,
    seeds: int | None = None,
    timeout_s: float | None = None,
) -> LoadedRun:
    """Measure a case of one's own under every fix, in processes of their own, and write the report.

    The arguments are the options of ``precision-eval run``, with their defaults.

    Parameters
    ----------
    case : str or callable
        A factory of ``(model, inputs)`` or an :class:`~precision_eval.cases.own.OwnCase`, or where it is written:
        ``file.py:function``, ``package.module:function``, ``hf:FOLDER``, or the id of a shipped case. A function has to
        be written in a file, as each process imports it; in a script, below ``if __name__ == "__main__"``. Or the case
        itself, an OwnCase or ``(model, inputs)`` in memory, whose classes are written in a file; it is kept in `out`.
    out : str or pathlib.Path
        Folder of the run; an existing one is resumed.
    candidates : sequence of str or callable
        Fixes of one's own, likewise written: a callable that changes a model, or where one or a :class:`Fix` is.
    fixes, measures : sequence of str
        Names or globs.
    modes : sequence of str, optional
        ``"eager"``, ``"compiled"``.
    device : str
    quick, thorough : bool
        Less or more of all that follows and is not given.
    minutes : float, optional
        Audio per fix.
    streams, steps : int, optional
        Parallel streams of drift and divergence, and the steps of each.
    budget_s : float, optional
        Seconds of timing.
    processes : int, optional
        Processes that latency is measured in; 5 or more make the memory layout part of the intervals.
    threads : int
        Per process.
    seed : int
    seeds : int, optional
        Inputs that drift is measured on; 1 for a case of one's own.
    timeout_s : float, optional
        Seconds that one cell may take; by default 900, with long audio 60 a minute.

    Returns
    -------
    LoadedRun
        As :func:`precision_eval.load` reads it.

    Raises
    ------
    ParameterError
        The case or a candidate cannot be measured, and why.
    """
    from precision_eval.report.loading import load
    from precision_eval.run.plan import Selection

    if isinstance(case, str):
        _refuse_live((case,))
    else:
        case = target_of(case) if inspect.isroutine(case) else kept_live(case, Path(out))
    tier = _tier(quick=quick, thorough=thorough)
    effort = {"minutes": minutes, "streams": streams, "steps": steps, "budget_s": budget_s, "processes": processes}
    selection = Selection(
        cases=(case,),
        fixes=tuple(fixes),
        measures=_measures_of(tier, (case,)) if measures is None else tuple(measures),
        modes=tier.modes if modes is None else tuple(modes),
        device=device,
        threads=threads,
        options=tier.options(**effort, seed=seed, seeds=seeds, is_own=_all_own((case,))),
    )
    changes = tuple(change if isinstance(change, str) else target_of(change) for change in candidates)
    printing = Printing(silent=True)
    limit_s = _limit_s(timeout_s, selection)
    execution = Execution(out=Path(out), workers=None, timeout_s=limit_s, printing=printing, candidates=changes)
    run_selection(selection, execution, tier=tier)
    return load(Path(out))


@dataclass(frozen=True)
class Admitted:
    """What has been seen of cases and candidates from outside."""

    cases: tuple[AdmittedCase, ...] = ()
    candidates: tuple[AdmittedCandidate, ...] = ()


def admit(
    selection: Selection,
    candidates: tuple[str, ...],
    console: Console,
    *,
    plan_without: Callable[[], Plan],
    timeout_s: float,
    run_dir: Path,
) -> Admitted:
    """Call what comes from outside once, in a process of its own.

    Candidates are tried on the first target, or else on the first cell of `plan_without`, the plan without them.
    """
    targets = tuple(name for name in selection.cases or () if is_target(name))
    if not targets and not candidates:
        return Admitted()
    if targets:
        subject = (targets[0], SIZE)
    else:
        cell = plan_without().cells[0]
        subject = (cell.case, cell.size)
    with console.status("calling the factory"):
        try:
            admitted_cases, admitted_candidates = call_isolated(
                _admitted,
                targets,
                candidates,
                subject,
                selection.device,
                selection.options.seed,
                str(run_dir.resolve()),
                timeout_s=timeout_s,
            )
        except WorkerRaisedError as error:
            raise error.__cause__ or error from None
        except WorkerError as error:
            names = " and ".join((*targets, *candidates))
            raise ParameterError(f"calling {names} once: {error}; expected that it returns") from error
    return Admitted(tuple(admitted_cases), tuple(admitted_candidates))


def _admitted(*arguments: Any) -> Any:
    from precision_eval.measure.admission import admitted  # which loads torch, in a process of its own alone

    *given, os.environ[RUN_DIR] = arguments
    return admitted(*given)


def with_plugins(selection: Selection, candidates: tuple[str, ...]) -> tuple[Selection, tuple[str, ...]]:
    """Put places in the stead of names that installed packages have given to cases and fixes."""
    cases, fixes = plugins("precision_eval.cases"), plugins("precision_eval.fixes")
    own = tuple(fixes[name] for name in selection.fixes if name in fixes)
    chosen = replace(
        selection,
        cases=None if selection.cases is None else tuple(cases.get(name, name) for name in selection.cases),
        fixes=tuple(name for name in selection.fixes if name not in fixes),
    )
    return chosen, (*own, *(fixes.get(name, name) for name in candidates))


def plan_of(selection: Selection, tier: Tier, checkpoint_dtype: str, device: str, own: Admitted | None = None) -> Plan:
    """Work a selection out into cells on a device; a tier or a checkpoint decides the sizes where none was named."""
    from precision_eval.run.plan import make_plan

    size = _CHECKPOINT_SIZES.get(checkpoint_dtype)
    if size is not None and selection.sizes is not None:
        raise ParameterError(f"--checkpoint-dtype {checkpoint_dtype} is --size {size}; give one of the two")
    own = own or Admitted()
    cases = [*all_cases(), *(case_of(case.case, digest=case.digest, measures=case.measures) for case in own.cases)]
    most = None if tier.all_sizes else 1
    entries = [
        replace(entry, default_sizes=(size,) if size in entry.sizes else entry.default_sizes[:most]) for entry in cases
    ]
    candidates = {candidate.fix: candidate.digest for candidate in own.candidates}
    fixes = [*ALL_FIXES, *(Fix(id=one.fix, modes=one.modes, storage=one.storage) for one in own.candidates)]
    chosen = replace(selection, device=device, fixes=(*selection.fixes, *candidates))
    plan = make_plan(chosen, cases=entries, fixes=fixes, measures=all_measures(), candidates=candidates)
    return replace(plan, parts={case.case: case.parts for case in own.cases})


def _run_to_report(
    draft: Plan, plan_on: Callable[[str], Plan], execution: Execution, records: RecordFile, console: Console
) -> tuple[Record, ...]:
    """Measure what is missing, then write the report."""
    from precision_eval.cases.voice.assets import VOICES, check_files

    if execution.here:
        _check_fits(draft)
    for case in {cell.case for cell in draft.cells} & set(VOICES):
        check_files(VOICES[case])
    remove_unfinished(execution.out)
    reading = records.read()
    if reading.torn_bytes:
        line = f"{records.path}: a torn last line ({reading.torn_bytes} bytes) is dropped; its cell is measured again"
        print_lines([line], console)
    print_lines(reading.faults, console)
    began = time.monotonic()
    settled = _measure(draft, plan_on, execution, records, console)
    if settled:
        write_reports(execution.out, execution.printing, measured_s=round(time.monotonic() - began, 1))
    return settled


def _measure(
    draft: Plan, plan_on: Callable[[str], Plan], execution: Execution, records: RecordFile, console: Console
) -> tuple[Record, ...]:
    """Start workers, describe the environment, and run the plan."""
    from precision_eval.run.runner import run_plan

    workers = execution.workers or _default_workers(draft)
    preload = modules_to_preload(*draft.modules, compiled=draft.compiled)
    with _executor_of(execution, draft, workers, preload) as executor:
        with console.status("starting workers"):
            environment = environment_seen_by(executor, draft.cells[0].device)
        device = str(environment["device"]["name"])
        plan = plan_on(device)
        if execution.here:
            _check_fits(plan)  # once more: what fits depends on the device
        sha = store_environment(environment, execution.out)
        keep_self_test(execution.out)
        lanes = 0
        if isinstance(executor, IsolatedExecutor):
            executor.memory_limit_bytes = _memory_limit_bytes(device)
        else:
            share = _MEMORY_SHARE if device == "cpu" else None
            purpose = repr((sha, plan.digests, plan.candidates, plan.parts))
            lanes = executor.begin(environment, device, memory_share=share, purpose=purpose, run_dir=execution.out)
        with progress_on(console, plan, verbose=execution.printing.verbose) as progress:
            settled = run_plan(
                plan,
                executor,
                records,
                progress,
                environment=sha,
                max_parallel=lanes or (workers if device == "cpu" else 1),
                lanes=bool(lanes),
                timeout_s=execution.timeout_s,
            )
        if not isinstance(executor, IsolatedExecutor):
            executor.forget()
            print_lines(executor.clocks_apart.values(), console)
        return settled


def _executor_of(
    execution: Execution, draft: Plan, workers: int, preload: tuple[str, ...]
) -> IsolatedExecutor | EngineExecutor:
    """Return what runs the cells: workers of this process, or an engine."""
    if execution.executor is None:
        return IsolatedExecutor(workers, timeout_s=execution.timeout_s, preload=preload)
    cell = draft.cells[0]
    engine = engine_named(
        execution.executor,
        device=cell.device,
        threads=cell.threads,
        run_dir=execution.out,
        workers=execution.workers,
    )
    return EngineExecutor(engine, NodeCall(device=cell.device, preload=preload, timeout_s=execution.timeout_s))


def _default_workers(draft: Plan) -> int:
    """Return how many cells may run at a time; one at full size, where two would share the memory."""
    if any(cell.size == "full" for cell in draft.cells):
        return 1
    return max(1, usable_cores() // draft.cells[0].threads)


def _memory_limit_bytes(device: str) -> int | None:
    """Limit a worker to most of what is available; a CUDA process maps far more than it uses, so it has no limit."""
    if device != "cpu":
        return None
    return int(psutil.virtual_memory().available * _MEMORY_SHARE)


def _check_fits(draft: Plan) -> None:
    """Refuse sizes that cannot be built here."""
    available_bytes = psutil.virtual_memory().available
    storages = {fix.id: fix.storage for fix in ALL_FIXES}
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


def _unwritable(error: OSError, records: Path) -> RecordError:
    """Say what could not be written, what is kept and what to do."""
    remedy = "free space" if error.errno in NO_SPACE else "mend that"
    what = error.filename or "the output"
    return RecordError(
        f"cannot write {what}: {error.strerror or error}; what was already recorded in {records} is intact, "
        f"{remedy} and run the same command again"
    )


def _tell_how_to_resume(records: RecordFile, console: Console) -> None:
    """Say what is kept after a stop, and how to go on."""
    kept = len(records.read().records)
    print_lines([f"\nStopped. {kept} records are kept in {records.path}. To go on:"], console)
    print_lines([f"  {command_line(*sys.argv[1:])}"], console, soft_wrap=True)
