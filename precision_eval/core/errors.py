"""Errors of the evaluation.

Each says what was found, what was expected and the remedy, and each also derives from the builtin that a caller would
expect, so ``except ValueError`` keeps working. The command line prints them as one line and exits with code 2.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from typing import TypeVar

from precision_eval.core.removed import removal_message

Entry = TypeVar("Entry")


class PrecisionEvalError(Exception):
    """Base of every error that this package raises on purpose."""


class ParameterError(PrecisionEvalError, ValueError):
    """An argument has a value, shape or dtype that cannot be used."""


class UnknownNameError(ParameterError):
    """A fix, case, mode, device or size of that name does not exist."""


class IntegrityError(PrecisionEvalError, RuntimeError):
    """A shipped file is missing, damaged or not the one its hash promises."""


class RecordError(PrecisionEvalError, ValueError):
    """A records file cannot be read: torn, of another schema, or from another run."""


class CandidateError(PrecisionEvalError, RuntimeError):
    """A candidate cannot be timed: it raises, returns nothing, does not repeat, changes its input, or is too short."""


class MeasurementError(PrecisionEvalError, RuntimeError):
    """A call runs and could not be measured: the suite's own failure, which says nothing about the fix."""


class OtherNumbersError(PrecisionEvalError, RuntimeError):
    """A case that was built again holds other numbers than before, so what is measured of it is not comparable."""


class UnsupportedError(PrecisionEvalError, RuntimeError):
    """The device or build lacks what a cell needs; becomes the status *unsupported*, never a crash."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that is not in a registry, or no longer."""
    if message := removal_message(kind, name):
        return UnknownNameError(message)
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return UnknownNameError(f"unknown {kind} '{name}'; {remedy}")


def check_known(kind: str, name: str, known: Iterable[str]) -> None:
    if name not in (names := list(known)):
        raise unknown_name(kind, name, names)


def entry_of(kind: str, name: str, entries: Iterable[Entry], *, by: str = "id", also: Iterable[str] = ()) -> Entry:
    """Look an entry of a registry up; `also` names what is known besides."""
    registry = {getattr(entry, by): entry for entry in entries}
    if name not in registry:
        raise unknown_name(kind, name, [*registry, *also])
    return registry[name]


def matching(kind: str, patterns: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the known names that any pattern matches, in their own order."""
    chosen: set[str] = set()
    for pattern in patterns:
        hits = fnmatch.filter(known, pattern)
        if not hits:
            raise unknown_name(kind, pattern, known)
        chosen.update(hits)
    return tuple(name for name in known if name in chosen)
