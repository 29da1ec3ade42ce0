"""Where a figure is taken: case, mode and size; and the two ways in which there is none.

Conventions: *not applicable* is what cannot be (the device lacks it, the fix has no such mode); everything else that
leaves no figure is a *failure* and shows its message, never a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from precision_eval.cases.systems import Case, case_by_id
from precision_eval.core.cells import Cell, Options, Outcome
from precision_eval.core.errors import PrecisionEvalError, unknown_name
from precision_eval.core.records import Record
from precision_eval.fixes.catalog import FIXES, Fix
from precision_eval.studies.tracking.effort import DEVICE, THREADS, Effort


class NotApplicableError(PrecisionEvalError, NotImplementedError):
    """The cell cannot be. asv shows a ``NotImplementedError`` as n/a, and only this package raises this one."""


class FixFailedError(PrecisionEvalError, RuntimeError):
    """There is no figure because the fix raised, was not finite, hung, crashed or ran out of memory."""


@dataclass(frozen=True, kw_only=True)
class TrackedCell:
    """Where figures are taken."""

    case: str
    mode: str
    size: str

    @property
    def entry(self) -> Case:
        """The case itself."""
        return case_by_id(self.case)

    def fixes(self, effort: Effort) -> tuple[Fix, ...]:
        """Return the fixes that have a meaning here, in this mode, and that an effort takes."""
        case, taken = self.entry, effort.compiled_fixes if self.mode == "compiled" else None
        return tuple(
            fix for fix in FIXES if case.takes(fix.id) and self.mode in fix.modes and (taken is None or fix.id in taken)
        )

    def at(self, effort: Effort) -> TrackedCell:
        """Return the place that is measured under an effort: a tiny one, where that is asked for and there is one."""
        if effort.tiny and "tiny" in self.entry.sizes:
            return TrackedCell(case=self.case, mode=self.mode, size="tiny")
        return self

    def cell(self, fixes: tuple[str, ...], measure: str, options: Options) -> Cell:
        """Return the suite's cell of these fixes."""
        return Cell(
            case=self.case,
            fixes=fixes,
            mode=self.mode,
            device=DEVICE,
            size=self.size,
            threads=THREADS,
            measure=measure,
            options=options,
        )

    def checked_fix(self, label: str, effort: Effort) -> Fix:
        """Return the fix of a label if it has a meaning here."""
        fix = fix_of_label(label)
        if self.mode not in fix.modes:
            raise NotApplicableError(f"{fix.id} exists only {' and '.join(fix.modes)}, not {self.mode}")
        if not self.entry.takes(fix.id):
            raise NotApplicableError(f"{fix.id} has no meaning for {self.case}, which stands for no one project")
        if fix not in self.fixes(effort):
            raise NotApplicableError(f"{fix.id} is left out of a {effort.name} run, {self.mode}")
        return fix


def fix_of_label(label: str) -> Fix:
    """Look a fix up by its label."""
    for fix in FIXES:
        if fix.label == label:
            return fix
    raise unknown_name("fix label", label, (fix.label for fix in FIXES))


def raise_unless_passed(outcome: Outcome | Record) -> None:
    """Raise where an outcome holds no data."""
    if outcome.status == "unsupported":
        raise NotApplicableError(f"unsupported: {outcome.reason}")
    if outcome.status != "passed":
        raise FixFailedError(f"{outcome.fix} {outcome.status}: {outcome.reason}")
