"""What :func:`~precision_eval.diagnose.doctor.examine` finds, as plain data; loads no torch.

Conventions: dtypes are torch's names without the prefix; places are shortened paths (below the package's folder, or
below the working directory); bytes and seconds are in the names. A *fault* is what the doctor holds to be wrong, a
*risk* what is right here and wrong on another device or torch, a *note* what mixes dtypes on purpose or harms nothing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType

Severity = Literal["fault", "risk", "note"]
Kind = Literal["raise", "promotion", "downcast", "mixed_norm", "kept_narrowed", "widening", "first_non_finite"]


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """A line of source."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class HistoryStep:
    """One step of how a tensor came by its dtype."""

    what: str
    dtype: str
    module: str = ""
    place: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class OperandHistory:
    """A floating operand of an operation."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    expression: str
    brought_by: str
    history: tuple[HistoryStep, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that happened to dtypes at one line of one module."""

    kind: Kind
    severity: Severity
    op: str
    module: str
    module_class: str
    place: SourceLine | None
    operands: tuple[OperandHistory, ...]
    result: str
    count: int = 1
    also_in: tuple[str, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        from precision_eval.diagnose.doctor.text import finding_text

        return finding_text(self)


@dataclass(frozen=True, kw_only=True)
class Held:
    """Modules whose own parameters or buffers are in another dtype than most of the model."""

    dtype: str
    modules: tuple[str, ...]
    elements: int
    stored_bytes: int


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Values of all results in one format."""

    dtype: str
    total: int
    near_overflow: int
    subnormal: int
    non_finite: int
    first_near_overflow: str = ""
    first_subnormal: str = ""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The model under ``torch.compile``, held to eager."""

    backend: str
    status: str
    message: str
    differs: bool
    how: str
    relative_difference: float | None = None


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One fix, tried on the model from outside."""

    fix: str
    title: str
    mode: str
    status: str
    reason: str = ""
    cures: bool = False
    relative_error: float | None = None
    latency_ratio: float | None = None
    latency_low: float | None = None
    latency_high: float | None = None
    latency_verdict: str = ""
    latency_baseline: str = ""
    allocated_peak_bytes: int | None = None
    stored_bytes: int | None = None
    is_best: bool = False


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A suggested change of one line."""

    place: SourceLine
    diff: str
    origin: str

    def __str__(self) -> str:
        origin = f"{'or, at its origin: ' if self.diff else ''}{self.origin}" if self.origin else ""
        return "\n".join(part for part in (self.diff.rstrip("\n"), origin) if part)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What one examination found.

    Attributes
    ----------
    model : str
        Name of its class.
    status : {"passed", "raised", "non_finite"}
        Of the model as it is, in eager.
    message : str
        Last line of the error, or how much is not finite.
    base_dtype : str
        Of most of the stored elements.
    findings : tuple of Finding
        In the order in which they happened.
    explanation : dict or None
        :func:`precision_eval.diagnose.explain.explain` of the error.
    held : tuple of Held
    autocast : tuple of dict
        Operation, operand dtypes, result dtype and count, wherever autocast changed a result's dtype.
    recast : dict or None
        Parameters that autocast casts at each call: ``parameters``, ``stored_bytes``, ``copies_bytes``, ``to``.
    backends : tuple of dict
        Attention backend, operand dtypes and count of each kind of attention call.
    dead_casts : tuple of dict
        Kind (``"same dtype"`` or ``"there and back"``), from, to, place and count.
    ranges : tuple of Ranges
    lost : tuple of dict
        Casts that lose range: from, to, place, and how many values overflowed, were flushed or became subnormal.
    compiled : Compiled or None
        None where it was not asked for.
    remedies : tuple of Remedy
        Those that cure first, best first; empty where not asked for.
    reference : str
        What drift is held to: ``"float64"``, ``"float64, layer by layer"``, ``"float32"`` or empty.
    patch : Patch or None
    doubts : tuple of str
        What was not, or not fully, looked at, and why.
    torch_version, device : str
    """

    model: str
    status: str
    message: str
    base_dtype: str
    findings: tuple[Finding, ...]
    explanation: dict[str, Any] | None
    held: tuple[Held, ...]
    autocast: tuple[dict[str, Any], ...]
    recast: dict[str, Any] | None
    backends: tuple[dict[str, Any], ...]
    dead_casts: tuple[dict[str, Any], ...]
    ranges: tuple[Ranges, ...]
    lost: tuple[dict[str, Any], ...]
    compiled: Compiled | None
    remedies: tuple[Remedy, ...]
    reference: str
    patch: Patch | None
    doubts: tuple[str, ...]
    torch_version: str
    device: str

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Findings of one severity, in the order in which they happened."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong; empty for a clean model."""
        return self.of("fault")

    @property
    def first_split(self) -> Finding | None:
        """Where dtypes first split: the first fault, else the first risk, else None."""
        found = self.faults or self.of("risk")
        return found[0] if found else None

    @property
    def raised(self) -> Finding | None:
        """The operation that raised; None where none did."""
        return next((finding for finding in self.findings if finding.kind == "raise"), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for strict JSON, with the first split and whether the model is clean beside the fields."""
        first = self.first_split
        data = _finite(asdict(self))
        return {**data, "first_split": None if first is None else _finite(asdict(first)), "is_clean": not self.faults}

    def __str__(self) -> str:
        from precision_eval.diagnose.doctor.text import as_text

        return as_text(self)

    def __repr__(self) -> str:
        from precision_eval.diagnose.doctor.text import summary

        return summary(self)

    def _repr_html_(self) -> str:
        from precision_eval.diagnose.doctor.text import as_html

        return as_html(self)

    def __rich__(self) -> RenderableType:
        from precision_eval.diagnose.doctor.text import rendered

        return rendered(self)


def _finite(value: Any) -> Any:
    """Put None in the place of numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
