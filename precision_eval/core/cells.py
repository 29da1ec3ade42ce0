"""Cells and outcomes: plain picklable data, so that a cell can run in any process of any machine.

Conventions: a :class:`Cell` is one unit of work of one measure; it holds one fix, or, where the measure is *grouped*,
all fixes that are to be compared in one process. An :class:`Outcome` is what one fix came to. A cell's id reads
``voice/kv_to_query/eager@cpu:default#drift``, and with pinned settings
``dia-decode/bfloat16/eager@cuda:0:full,sdpa=cudnn,tf32=on#latency``. Besides fixes there are *pseudo fixes*, which
change the computation and not what it is stored in: the reference, the noise floor and the controls.
"""

from __future__ import annotations

import errno
import linecache
import os
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from precision_eval.core.errors import CandidateError, PrecisionEvalError, UnsupportedError
from precision_eval.core.figures import Amount, Count, Name
from precision_eval.core.formatting import shortened

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))

WARNED = "warned before: "
"""Begins a note on an error that holds a warning which torch gave before it."""

SUITE_FAILED = "the suite failed, not the fix: "
"""Begins the reason of an outcome that is this package's own failure."""

_NO_KERNEL = ("No viable backend for scaled_dot_product_attention", "No available kernel")

PSEUDO_FIXES: Mapping[str, str] = {
    "reference": "reference",
    "noise_floor": "noise_floor",
    "control_rope_bfloat16": "control",
    "control_long_window": "control",
}
"""Role of each pseudo fix."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sizes and seeds of a run."""

    minutes: Amount = 1.0
    streams: Count = 50
    steps: Count = 100
    budget_s: Amount = 2.0
    processes: Count = 1
    seed: Count = 0
    seeds: Count | None = None
    sdpa_backend: Name | None = None
    tf32: Name | None = None
    memory: Name | None = None
    isolation: str = "warn"
    clock: Name | None = None
    compile_mode: Name | None = None

    @property
    def pins(self) -> str:
        """Text of what is pinned, as in a cell's id; empty where nothing is."""
        return pins_text(self.sdpa_backend, self.tf32, self.compile_mode)

    def chosen(self, names: tuple[str, ...]) -> dict[str, float | int | str]:
        """Return the named options only, as a record stores them; a pin that is not set is left out."""
        return {name: value for name, value in asdict(self).items() if name in names and value is not None}


@dataclass(frozen=True, kw_only=True)
class Cell:
    case: str
    fixes: tuple[str, ...]
    mode: str
    device: str
    size: str
    threads: int
    measure: str
    options: Options

    def fix_id(self, fix: str) -> str:
        """Return the id of one fix's part: ``case/fix/mode@device:size#measure``, with pins after the size."""
        return f"{self.case}/{fix}/{self.mode}@{self.device}:{self.size}{self.options.pins}#{self.measure}"

    @property
    def id(self) -> str:
        """Id of the whole cell; a group's fixes are joined by ``+``."""
        return self.fix_id("+".join(self.fixes))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one fix of a cell came to."""

    fix: str
    role: str
    status: str
    reason: str | None = None
    data: dict[str, Any] | None = None


def pins_text(sdpa_backend: str | None, tf32: str | None, compile_mode: str | None) -> str:
    """Return pins as they stand in a cell's id: ``",sdpa=math,tf32=on"``; empty without any."""
    named = (("sdpa", sdpa_backend), ("tf32", tf32), ("compile", compile_mode))
    return "".join(f",{name}={value}" for name, value in named if value is not None)


def role_of(fix: str) -> str:
    """Return the role of a fix or pseudo fix."""
    return PSEUDO_FIXES.get(fix, "fix")


def passed(fix: str, data: dict[str, Any]) -> Outcome:
    return Outcome(fix=fix, role=role_of(fix), status="passed", data=data)


def failed(fix: str, status: str, reason: str) -> Outcome:
    return Outcome(fix=fix, role=role_of(fix), status=status, reason=reason)


def failure_of(fix: str, error: BaseException) -> Outcome:
    """Turn what a model or a measure raised into an outcome."""
    error = cause_of(error)
    if isinstance(error, UnsupportedError):
        return failed(fix, "unsupported", str(error))
    refusal = sdpa_refusal(error)
    if refusal is not None:
        return failed(fix, "unsupported", refusal)
    if is_out_of_memory(error):
        return failed(fix, "out_of_memory", f"{type(error).__name__}: {_first_lines(error)}")
    if is_fault_of_the_suite(error):
        return failed(fix, "crashed", f"{SUITE_FAILED}{type(error).__name__}: {_first_lines(error)}")
    return failed(fix, "raised", f"{type(error).__name__}: {_first_lines(error)}")


def with_doubts(outcome: Outcome, doubts: Sequence[str]) -> Outcome:
    if not doubts or outcome.data is None:
        return outcome
    return replace(outcome, data={**outcome.data, "doubts": [*outcome.data.get("doubts", ()), *doubts]})


def cause_of(error: BaseException) -> BaseException:
    """Return what a model raised while it was timed, in place of the error that names the candidate."""
    return error.__cause__ or error if isinstance(error, CandidateError) else error


def sdpa_refusal(error: BaseException) -> str | None:
    """Return torch's reason where an error says that attention has no kernel for a call; None for any other error."""
    text = str(error)
    sentence = next((known for known in _NO_KERNEL if known in text), None)
    if sentence is None:
        return None
    notes = [note.removeprefix(WARNED) for note in getattr(error, "__notes__", ()) if note.startswith(WARNED)]
    return f"{sentence}: {'; '.join(notes) or 'torch gives no further reason'}"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell memory exhaustion from other errors, without importing torch."""
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "_ArrayMemoryError"):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(known in text for known in _MEMORY_TEXTS)


_MEMORY_TEXTS = (
    *("can't allocate memory", "CUDA out of memory", "CUDA error: out of memory"),
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
)

# Where torch's messages of CUDA go on to advice for its developers, or to what its allocator holds.
_ADVICE = (
    " Search for `cuda",
    " CUDA kernel errors might be",
    " Including non-PyTorch memory",
    " Of the allocated memory",
)


def is_fault_of_the_suite(error: BaseException) -> bool:
    """Tell this package's own errors and slips, and those of the disk, from what a model raises."""
    if isinstance(error, PrecisionEvalError) or any(text in str(error) for text in _DISK_MESSAGES):
        return True
    frames = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, OSError):  # a library only says what somebody's call of it has met
        frames = [frame for frame in frames if not _is_library(Path(frame.filename))]
        return not frames or _is_own(frames[-1])
    slips = ImportError | AttributeError | NameError | LookupError | TypeError | AssertionError
    return isinstance(error, slips) and bool(frames) and _is_own(frames[-1])


def _is_library(file: Path) -> bool:
    return not file.is_relative_to(_PACKAGE) and any(file.is_relative_to(folder) for folder in _LIBRARIES)


def _is_own(frame: traceback.FrameSummary) -> bool:
    """Whether code of this package raised, and not what it calls on a model's behalf, which may have no frame."""
    if not Path(frame.filename).is_relative_to(_PACKAGE):
        return False
    line = linecache.getline(frame.filename, frame.lineno or 0)
    return not line[frame.colno or 0 :].startswith(_HANDED_ON)


_HANDED_ON = ("original(", "func(", "model(", "self.model(", "self._run(")
"""How this package's wrappers write the call of what they stand around: a model, or an operation of torch."""

_DISK_MESSAGES = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
"""What a compiler or a library, which turns errors into its own, repeats of the system's message."""


def _first_lines(error: BaseException) -> str:
    """Return a message as one line of bounded length; compiled errors print pages of advice after theirs."""
    text = " ".join(str(error).split())
    for folder in (sysconfig.get_path("purelib"), str(_PACKAGE.parent)):  # a record says what failed, not on whose disk
        text = text.replace(f"{folder}/", "")
    if "CUDA" in text:
        text = min((text.partition(advice)[0] for advice in _ADVICE), key=len)
    if "device-side assert" in text:
        text += " (set CUDA_LAUNCH_BLOCKING=1 to have the call named that it comes from)"
    return shortened(text, limit=1500)
