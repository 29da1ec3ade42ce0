"""The command ``modules``: which modules of a model may be in half, as a file to use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from precision_eval.cases.systems import case_by_id
from precision_eval.cli import options
from precision_eval.cli.application import EXIT_INTERRUPTED, leaving_is_noticed
from precision_eval.cli.progress import bar_on
from precision_eval.cli.settings import MODULES, read_settings, set_option, settings_help
from precision_eval.core.environment import usable_device
from precision_eval.core.errors import check_known
from precision_eval.core.files import TrialFile, check_own_folder, claimed
from precision_eval.core.formatting import one_line
from precision_eval.core.table import print_lines, print_table
from precision_eval.core.workers import one_thread

HELP = """\
Each module alone runs in half, between two casts, and the modules are ranked by drift to float64. Then the modules that
save most bytes per squared drift run in half together, as many as keep the limit. OUT/policy.py contains that policy in
plain PyTorch, and is a candidate of `run`. It is timed against float32, then measured with every fix on seeds that were
not used to choose it, in OUT/held-out. A module that is never called stays float32. Modules of like layers share a row;
--verbose lists each.

Trials are appended to OUT/modules.jsonl; the same command resumes there.

[bold]Examples[/bold]

[cyan]precision-eval modules my_case.py:factory --out runs/policy[/cyan]  a mixed policy of your own model

[cyan]precision-eval modules dia-decode --max-drift 1e-3 --set format=float16 --set held_out=off[/cyan]
"""
HELP += settings_help(MODULES)

# Seeds that a policy is chosen on, seeds that it is shown on, and the first of these, added to the seed.
CHOOSING, HELD_OUT, HELD_OUT_FIRST = 4, 8, 1000

Factory = Annotated[
    str, typer.Argument(metavar="FACTORY", help="package.module:function, file.py:function or a case's id.")
]


def modules(
    factory: Factory,
    out: options.Out = Path("runs/modules"),
    max_drift: Annotated[
        float | None, typer.Option(min=0.0, help="[dim]Default: half of the drift with all modules in half.[/dim]")
    ] = None,
    setting: Annotated[list[str] | None, set_option(MODULES)] = None,
    verbose: options.Verbose = False,
) -> None:
    console, settings = Console(emoji=False), read_settings(setting, MODULES)
    seed = settings["seed"]
    try:
        has_parts = find_policy(
            factory, out, format=settings["format"], seed=seed, max_drift=max_drift, console=console, every=verbose
        )
        if settings["held_out"] and has_parts:
            _measure_held_out(factory, out, seed=seed + HELD_OUT_FIRST, console=console)
    except KeyboardInterrupt:
        console.print("Stopped. Trials that were finished are kept; the same command goes on from there.")
        sys.exit(EXIT_INTERRUPTED)


def find_policy(
    target: str, out: Path, *, format: str, seed: int, max_drift: float | None, console: Console, every: bool
) -> bool:
    """Choose a policy, write and print it, `every` module by itself; returns whether any is in half."""
    from precision_eval.studies.modules import FORMATS, advice, policy_table, search_modules, time_policy, write_policy

    check_known("format:", format, FORMATS)
    check_own_folder(out, "modules.jsonl")
    path = out / "policy.py"
    device = usable_device("auto")
    with leaving_is_noticed():
        case = case_by_id(target)
    size = case.default_sizes[0]
    with leaving_is_noticed(), claimed(out), one_thread(), bar_on(console) as show:
        seeds, file = range(seed, seed + CHOOSING), TrialFile(out / "modules.jsonl")
        policy = search_modules(case, size, seeds=seeds, format=format, file=file, max_drift=max_drift, progress=show)
        write_policy(policy, target, path)
        time = launched = None
        if policy.parts:
            time, launched = time_policy(policy, case.build(size, device=device, seed=seed), device=device)
    print_table(policy_table(policy, every=every), console, compact=True)
    print_lines(map(one_line, (policy.sentence, advice(policy, time, launched))), console, style="bold")
    print_lines([f"written: {path}"], console, style="dim")
    return bool(policy.parts)


def _measure_held_out(target: str, out: Path, *, seed: int, console: Console) -> None:
    """Measure the policy and every fix on seeds that had no part in choosing it."""
    from precision_eval.evaluation import evaluate
    from precision_eval.report.writer import print_answer

    measured = evaluate(
        target,
        out=out / "held-out",
        candidates=(f"{out / 'policy.py'}:policy",),
        modes=("eager",),
        measures=("trace", "latency", "drift", "teacher_forced_drift", "memory"),
        device="auto",
        quick=True,
        seed=seed,
        seeds=HELD_OUT,
    )
    print_answer(measured.run, console)
