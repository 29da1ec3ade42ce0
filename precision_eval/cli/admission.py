"""Cases and candidates from a user's own files: called once before a run, to see what can be measured of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import RUN_DIR, is_target, plugins

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from precision_eval.measure.admission import AdmittedCandidate, AdmittedCase
    from precision_eval.run.plan import Plan, Selection


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
    from precision_eval.cases.own import SIZE
    from precision_eval.core.workers import WorkerError, WorkerRaisedError, call_isolated

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
