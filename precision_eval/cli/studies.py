"""The commands ``sensitivity`` and ``sweep``: measure what is missing, then write the answer from all that is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from precision_eval.cases.systems import case_by_id
from precision_eval.cli import options
from precision_eval.cli.application import EXIT_INTERRUPTED, leaving_is_noticed, split
from precision_eval.cli.progress import bar_on
from precision_eval.core.environment import collect, store_environment
from precision_eval.core.errors import ParameterError, RecordError, check_known
from precision_eval.core.files import TrialFile, check_own_folder, claimed, worked_out_from, written_whole
from precision_eval.core.formatting import command_line, one_line, visible
from precision_eval.core.table import print_lines, print_table
from precision_eval.core.workers import one_thread
from precision_eval.fixes.catalog import ALL_FIXES
from precision_eval.run.executor import IsolatedExecutor, modules_to_preload
from precision_eval.studies.sensitivity.campaign import SensitivityPlan, run_campaign, write_summary
from precision_eval.trace.sites import FORMATS

if TYPE_CHECKING:
    from precision_eval.studies.sweep.plan import Sweep

Names = list[str]

HELP_OF_SENSITIVITY = """\
Each site (a layer's q, k, v, scores, softmax, output, cache, positions, norm, mlp, ...) is dropped to half alone, and
held in float32 alone, on the same inputs; the drift to float64 is ranked, with intervals over inputs. Policies are
searched along that map on one half of the inputs, really executed, and held on the other half against every uniform
fix, drift and paired latency. That none wins is a result too.

Of a FACTORY, a case of your own or a shipped case's id, each module is put in half alone, and the most worthwhile ones
together, as long as drift stays below the limit: OUT/policy.py holds that policy in plain PyTorch, and is a candidate
of `run`. It is then held against every fix on seeds that had no part in choosing it, in OUT/held-out.

Runs are appended to OUT/runs.jsonl, or to OUT/modules.jsonl; the same command goes on from there.

[bold]Examples[/bold]

[cyan]precision-eval sensitivity my_case.py:factory --out runs/policy[/cyan]  a mixed policy of your own model, to ship

[cyan]precision-eval sensitivity --out runs/sensitivity[/cyan]  the voice, and transformers' T5 and Dia

[cyan]precision-eval sensitivity --target voice --format bfloat16 --no-policies --out runs/voice-map[/cyan]

[cyan]precision-eval sensitivity --report-only --out results/sensitivity[/cyan]
"""

HELP_OF_SWEEP = """\
Casting the query copies next to nothing and leaves attention in half, which may itself be slower; casting keys and
values copies the cache at every step and attends in float32. The crossover is given with its interval, or that there
is none in the range. Lines are appended to OUT/lengths.jsonl; the same command goes on from there.

[bold]Examples[/bold]

[cyan]precision-eval sweep --out runs/sweep[/cyan]  both systems' shapes, eager and compiled, one and two threads

[cyan]precision-eval sweep --quick --shape dia --mode eager --out runs/sweep-dia[/cyan]
"""


def sensitivity(
    factory: Annotated[
        str | None,
        typer.Argument(metavar="[FACTORY]", help="package.module:function, file.py:function or a case's id."),
    ] = None,
    out: options.Out = Path("runs/sensitivity"),
    target: Annotated[
        list[str] | None, typer.Option(help="voice, t5-encoder, dia-encoder, dia-decoder, attention-decode.")
    ] = None,
    format_: Annotated[list[str] | None, typer.Option("--format", help="bfloat16, float16.")] = None,
    size: Annotated[str, typer.Option(help="tiny or cpu.")] = "cpu",
    seed: options.Seed = 0,
    policies: Annotated[bool, typer.Option("--policies/--no-policies", help="Also search and prove policies.")] = True,
    processes: options.Processes = 6,
    budget: options.Budget = 1.5,
    report_only: options.ReportOnly = False,
    max_drift: Annotated[
        float | None,
        typer.Option(min=0.0, help="Of FACTORY's policy; [dim]default: half of that with all modules in half[/dim]"),
    ] = None,
) -> None:
    """Map sensitivities."""
    if factory is not None:
        formats = tuple(split(format_)) or ("bfloat16",)
        run_policy(factory, out, format=formats[0], seed=seed, max_drift=max_drift, held_out=policies)
        return
    given: dict[str, Any] = {"targets": split(target), "formats": split(format_)}
    plan = SensitivityPlan(
        size=size,
        seed=seed,
        policies=policies,
        processes=processes or 6,
        budget_s=budget or 1.5,
        **{name: values for name, values in given.items() if values},
    )
    run_sensitivity(plan, out, report_only=report_only)


CHOOSING, HELD_OUT, HELD_OUT_FIRST = 4, 8, 1000
"""Seeds that a policy is chosen on, seeds that it is shown on, and the first of these, added to the seed."""


def run_policy(
    target: str, out: Path, *, format: str, seed: int = 0, max_drift: float | None = None, held_out: bool = True
) -> None:
    """Find a policy for any case, write it, and hold it against every candidate on other seeds."""
    from precision_eval.studies.sensitivity.modules import policy_table, search_modules, write_policy

    check_known("format:", format, FORMATS)
    check_own_folder(out, "modules.jsonl")
    console, path = Console(emoji=False), out / "policy.py"
    with leaving_is_noticed():
        case = case_by_id(target)
    with _stoppable("Runs", console), leaving_is_noticed(), claimed(out), one_thread(), bar_on(console) as show:
        seeds, file = range(seed, seed + CHOOSING), TrialFile(out / "modules.jsonl")
        policy = search_modules(
            case, case.default_sizes[0], seeds=seeds, format=format, file=file, max_drift=max_drift, progress=show
        )
        write_policy(policy, target, path)
    print(policy_table(policy))
    _print_answer([policy.sentence], [path], console)
    if held_out and policy.parts:
        _held_out(target, out / "held-out", path, seed=seed + HELD_OUT_FIRST, console=console)


def _held_out(target: str, out: Path, policy: Path, *, seed: int, console: Console) -> None:
    """Hold a policy against every fix, and in drift and memory against today's other candidates."""
    from precision_eval.evaluation import evaluate
    from precision_eval.report.summary import print_summary

    others = tuple(fix.id for fix in ALL_FIXES if "eager" in fix.modes and not fix.caches.endswith(("keys", "values")))
    given: dict[str, Any] = {"candidates": (f"{policy}:policy",), "modes": ("eager",), "quick": True, "device": "cpu"}
    given |= {"seed": seed, "seeds": HELD_OUT, "out": out}
    evaluate(target, fixes=others, measures=("drift", "teacher_forced_drift", "memory"), **given)
    print_summary(evaluate(target, measures=("trace", "latency"), **given).run, console)


def run_sensitivity(plan: SensitivityPlan, out: Path, *, report_only: bool = False) -> None:
    """Run, print, draw and write."""
    check_own_folder(out, "runs.jsonl")
    plan.checked()  # bad names end here, before anything heavy is loaded
    console = Console(emoji=False)
    if not report_only:
        with _stoppable("Runs", console), claimed(out), bar_on(console) as show:
            run_campaign(plan, out, progress=show)
    _report_sensitivity(out, console)


@contextmanager
def _stoppable(what: str, console: Console) -> Iterator[None]:
    """End in order on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"Stopped. {what} that were finished are kept; the same command goes on from there.")
        sys.exit(EXIT_INTERRUPTED)


def _print_answer(lines: Sequence[str], written: Sequence[Path], console: Console) -> None:
    print_lines(map(one_line, lines), console, style="bold")
    print_lines([f"written: {', '.join(map(str, written))}"], console, style="dim")


def _write(files: Sequence[Path], texts: Sequence[str]) -> None:
    for path, text in zip(files, texts, strict=True):
        with written_whole(path) as partial:
            partial.write_text(text, encoding="utf-8")


def _report_sensitivity(out: Path, console: Console) -> None:
    """Write tables and figures from the runs alone."""
    from precision_eval.studies.sensitivity.report import (
        answer,
        csv_text,
        draw,
        map_title,
        markdown,
        number,
        ranks_table,
    )

    files = [out / "sensitivity.md", out / "sensitivity.csv"]
    with worked_out_from(out, remedy="remove the lines that were edited, or run into a new --out"):
        summary = write_summary(out)
        _write(files, (visible(markdown(summary)) + "\n", csv_text(summary)))
        drawn = draw(summary, out / "figures")
        lines = answer(summary)
        titles = [f"{map_title(one)} · uniform {number(one['uniform_drift'])}" for one in summary["maps"]]
        tables = [ranks_table(one, "site", title=title) for one, title in zip(summary["maps"], titles, strict=True)]
    for table in tables:
        print_table(table, console)
    _print_answer(lines, [*files, *drawn], console)


def sweep(
    out: options.Out = Path("runs/sweep"),
    shape: Annotated[Names | None, typer.Option(help="metavoice, dia.")] = None,
    length: Annotated[Names | None, typer.Option(help="Slots of the cache, such as 64,512,2048.")] = None,
    mode: options.Mode = None,
    threads: Annotated[Names | None, typer.Option(help="Threads per process, such as 1,2.")] = None,
    cache_dtype: Annotated[Names | None, typer.Option(help="float16, bfloat16.")] = None,
    memory: options.Memory = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Rows; 2 is guidance.")] = None,
    budget: options.Budget = None,
    processes: options.Processes = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of tensors and order.")] = None,
    refine: Annotated[int, typer.Option(min=0, help="Then halve so many times the gap that holds a crossing.")] = 0,
    quick: options.Quick = False,
    report_only: options.ReportOnly = False,
) -> None:
    """Sweep lengths."""
    from precision_eval.studies.sweep.plan import FULL, QUICK

    given: dict[str, Any] = {
        "shapes": shape and split(shape),
        "lengths": length and whole_numbers("length", length),
        "modes": mode and split(mode),
        "threads": threads and whole_numbers("threads", threads),
        "cache_dtypes": cache_dtype and split(cache_dtype),
        "memory": memory and split(memory),
        "batch": batch,
        "budget_s": budget,
        "processes": processes,
        "seed": seed,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    plan = replace(QUICK if quick else FULL, **changes)  # bad names end here, before anything is started
    run_sweep(plan, out, refine=refine, report_only=report_only)


def run_sweep(plan: Sweep, out: Path, *, refine: int = 0, report_only: bool = False) -> None:
    """Measure, print, draw and write."""
    check_own_folder(out, "lengths.jsonl")
    console, file = Console(emoji=False), TrialFile(out / "lengths.jsonl")
    if not report_only:
        with _stoppable("Jobs", console), claimed(out):
            _measure(plan, file, console, refine=refine)
    _report_sweep(out, file, console)


def _measure(plan: Sweep, file: TrialFile, console: Console, *, refine: int) -> None:
    """Run what is missing."""
    from precision_eval.studies.sweep.running import SweepRun

    worker_limit_s = 120.0 + len(plan.lengths) * (60.0 + 4.0 * plan.budget_s)
    preload = modules_to_preload("precision_eval.studies.sweep.measuring", compiled="compiled" in plan.modes)
    with IsolatedExecutor(1, timeout_s=worker_limit_s, preload=preload) as executor, bar_on(console) as bar:
        environment = executor.submit(collect, "cpu").result()  # in a worker, so that torch is not loaded here

        def show(done: int, total: int, what: str) -> None:
            bar(done, total, what)
            if not console.is_terminal:
                print_lines([f"{done}/{total} {what}"], console, soft_wrap=True)

        run = SweepRun(
            sweep=plan,
            file=file,
            executor=executor,
            environment=store_environment(environment, file.path.parent),
            progress=show,
        )
        run.measure_missing()
        run.refine(refine)


def _report_sweep(out: Path, file: TrialFile, console: Console) -> None:
    """Write crossovers, figure and text from the lines alone."""
    lines = file.read()
    if not lines:
        raise RecordError(f"{file.path} holds no lines; run `{command_line('sweep', '--out', out)}` first")
    from precision_eval.studies.sweep.report import answer, crossover_json, draw, sentence, summary_markdown
    from precision_eval.studies.sweep.running import curves_of

    with worked_out_from(file.path, remedy="remove the lines that were edited, or sweep into a new --out"):
        curves = curves_of(lines)
        campaign = str(lines[-1]["campaign"])
        crossover, summary = crossover_json(curves, campaign=campaign), summary_markdown(curves, campaign=campaign)
        drawn = draw(curves, out)
    files = [out / "summary.md", out / "crossover.json"]
    _write(files, (visible(summary), crossover))
    print_lines([one_line(f"{curve.configuration.title}: {sentence(curve.crossover)}") for curve in curves], console)
    _print_answer(answer(curves), [*files, *drawn], console)


def whole_numbers(name: str, values: Names) -> tuple[int, ...]:
    """Read whole numbers above 0."""
    texts = split(values)
    wrong = [text for text in texts if not text.isdecimal() or int(text) < 1]
    if wrong:
        raise ParameterError(f"--{name}: {', '.join(wrong)} is no whole number above 0; give some, such as 64,512")
    return tuple(map(int, texts))
