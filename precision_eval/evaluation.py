"""`evaluate`: a run of one case from Python, to its report."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.own import OwnCase, write_case
from precision_eval.core.targets import check_not_importing, target_of
from precision_eval.run.plan import Selection
from precision_eval.run.session import Execution, run_selection
from precision_eval.run.tiers import cell_limit_s, tier_of

if TYPE_CHECKING:
    from precision_eval.report.loading import LoadedRun


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
        be written in a file, as each process imports it. Or the case itself, an OwnCase or ``(model, inputs)`` in
        memory, whose classes are in a file; it is written to `out`. Where that file is the script that calls
        `evaluate`, the call belongs below ``if __name__ == "__main__"``.
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
        The case cannot be measured, and why. A candidate that cannot is a row with its error.
    """
    from precision_eval.report.loading import load
    from precision_eval.report.writer import write_report

    check_not_importing()
    if not isinstance(case, str):
        case = target_of(case) if inspect.isroutine(case) else write_case(case, Path(out))
    tier = tier_of(quick=quick, thorough=thorough)
    effort = {"minutes": minutes, "streams": streams, "steps": steps, "budget_s": budget_s, "processes": processes}
    options = tier.options((case,), **effort, seed=seed, seeds=seeds)
    selection = Selection(
        cases=(case,),
        fixes=tuple(fixes),
        measures=tier.measures((case,)) if measures is None else tuple(measures),
        modes=tier.modes if modes is None else tuple(modes),
        device=device,
        threads=threads,
        options=options,
    )
    execution = Execution(
        out=Path(out),
        timeout_s=cell_limit_s(options.minutes) if timeout_s is None else timeout_s,
        candidates=tuple(change if isinstance(change, str) else target_of(change) for change in candidates),
    )
    run_selection(selection, execution, tier=tier)
    write_report(execution.out)
    return load(execution.out)
