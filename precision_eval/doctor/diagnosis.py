"""What :func:`~precision_eval.examine` finds, as plain data and as text; loads no torch.

Conventions: dtypes are torch's names without the prefix; places are shortened paths (below the package's folder, or
below the working directory); bytes and seconds are in the names. A *fault* is what the doctor holds to be wrong, a
*risk* what is right here and wrong on another device or torch, a *note* what mixes dtypes on purpose or harms nothing.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from precision_eval.core.files import null_where_not_finite
from precision_eval.core.formatting import grouped, join, memory_text
from precision_eval.core.table import make_table, to_text

Severity = Literal["fault", "risk", "note"]
Kind = Literal[
    "raise", "promotion", "downcast", "mixed_norm", "mixed_mask", "kept_narrowed", "widening", "first_non_finite",
    "drift", "declared", "bits", "collapsed", "followed",
]  # fmt: skip
CostKind = Literal[
    "repeated_cast", "there_and_back", "wide_product", "double", "autocast_ignored", "slow_attention", "host_wait",
    "widening_scale", "wide_output", "wide_inputs", "needless_scaler",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class HistoryStep:
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
        return "\n".join(finding_lines(self, history=True))


@dataclass(frozen=True, kw_only=True)
class Held:
    """Modules whose own parameters or buffers are in another dtype than most of the model."""

    dtype: str
    modules: tuple[str, ...]
    elements: int
    stored_bytes: int
    wide_matrices: int = 0  # of more bytes an element than most of the model, such as the weights of an adapter


@dataclass(frozen=True, kw_only=True)
class Ranges:
    dtype: str
    total: int
    near_overflow: int
    subnormal: int
    non_finite: int
    first_near_overflow: str = ""
    first_subnormal: str = ""


@dataclass(frozen=True, kw_only=True)
class Compiled:
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
class Price:
    """What a change saves where nothing is raised: paired time, and bytes at the peak and stored, against now.

    Ratios are None where the difference is within noise. On a GPU `latency_*` is the device's time, and `launched_*`
    that of the call launched from Python. Drifts are those with the change and as it is.
    """

    latency_ratio: float | None
    latency_low: float | None
    latency_high: float | None
    saved_bytes: int
    relative_error: float | None
    relative_error_now: float | None
    launched_ratio: float | None = None
    launched_low: float | None = None
    launched_high: float | None = None
    on_device: bool = False

    def __str__(self) -> str:
        parts = []
        device = (self.latency_ratio, self.latency_low, self.latency_high)
        launched = (self.launched_ratio, self.launched_low, self.launched_high)
        for kind, values in (("device's " if self.on_device else "", device), ("launched ", launched)):
            if values[0] is not None:
                ratio, low, high = (f"{value:.3g}" for value in values)
                parts.append(f"{ratio} [{low}, {high}] of the {kind}time as it is")
        if self.saved_bytes:
            parts.append(f"{memory_text(abs(self.saved_bytes))} {'less' if self.saved_bytes > 0 else 'more'}")
        if self.relative_error is not None and self.relative_error_now is not None:
            parts.append(f"drift {self.relative_error:.2g}, now {self.relative_error_now:.2g}")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A suggested change, which was run on a copy.

    Attributes
    ----------
    place : SourceLine or None
        Of the fault that the change begins with.
    diff : str
        Unified diff of the source, paths below the working directory or below site-packages; may be empty.
    code : str
        Lines that store tensors of the model or give inputs in another dtype, or that put a fix on it; may be empty.
    origin : str
        What brought the stray dtype, in words.
    verified : bool
        With the change the model passed, its output was finite, and no fault was left.
    left : tuple of str
        What remained where it was not.
    price : Price or None
        What it saves, measured, where the model raises nothing; None where time and memory are within noise.
    relative_error : float or None
        Drift that it leaves, where it is verified and a reference is known.
    """

    place: SourceLine | None
    diff: str
    code: str
    origin: str
    verified: bool
    left: tuple[str, ...]
    price: Price | None = None
    relative_error: float | None = None

    def __str__(self) -> str:
        price = f"measured: {self.price}" if self.price else ""
        return "\n".join(part.rstrip("\n") for part in (self.diff, self.code, patch_state(self), price) if part)


@dataclass(frozen=True, kw_only=True)
class SilentCost:
    """Something that raises nothing and is right, with the change that was run on a copy, and what it saves.

    `place` is None where it is a setting of the model, or what autocast does. Waits of the host for a GPU, and
    attention that no fused kernel takes there, are reported without a `patch` too, where no change of a line could be
    made, and without a `price` where it saves nothing beyond noise, as is work in a format that is wider than it need
    be, which other devices may do faster.
    """

    kind: CostKind
    reason: str
    module: str
    place: SourceLine | None
    count: int
    patch: Patch | None
    price: Price | None


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
        :func:`precision_eval.explain.explain` of the error.
    held : tuple of Held
    autocast : tuple of dict
        Operation, operand dtypes, result dtype and count, wherever autocast changed a result's dtype.
    recast : dict or None
        Parameters that autocast casts at each call: ``parameters``, ``stored_bytes``, ``copies_bytes``, ``to``.
    backends : tuple of dict
        Attention backend, operand dtypes and count of each kind of attention call.
    dead_casts : tuple of dict
        Casts that the line after undoes: from, to, place and count.
    ranges : tuple of Ranges
    lost : tuple of dict
        Casts that lose range: from, to, place, and how many values overflowed, were flushed or became subnormal.
    compiled : Compiled or None
        None where it was not asked for.
    remedies : tuple of Remedy
        Those that cure first, best first; empty where not asked for.
    reference : str
        The reference of drift: ``"float64"``, ``"float64, layer by layer"``, ``"float32"`` or empty.
    patches : tuple of Patch
        Changes of the source, and of what is stored, where there is a choice; verified ones first.
    costs : tuple of SilentCost
        What raises nothing and costs time or memory beyond noise, the most time first; empty where not priced.
    doubts : tuple of str
        What was not, or not fully, looked at, and why.
    torch_version, device : str
    largest_share : str
        Of a drift that the format explains, and of choices that are not float64's, the lines that round most of it, and
        what is left without; empty where none stands out.
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
    patches: tuple[Patch, ...]
    doubts: tuple[str, ...]
    torch_version: str
    device: str
    costs: tuple[SilentCost, ...] = ()
    largest_share: str = ""

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong; empty for a clean model."""
        return self.of("fault")

    @property
    def first_split(self) -> Finding | None:
        """Where dtypes first split: the first fault, else the first risk, else None; where something raised, not what
        is stored too narrow, which raises nothing.
        """
        found = self.faults or self.of("risk")
        if self.raised is not None:
            found = tuple(finding for finding in found if finding.kind != "kept_narrowed") or found
        return found[0] if found else None

    @property
    def patch(self) -> Patch | None:
        return self.patches[0] if self.patches else None

    @property
    def raised(self) -> Finding | None:
        return next((finding for finding in self.findings if finding.kind == "raise"), None)

    def to_dict(self) -> dict[str, Any]:
        first = None if self.first_split is None else asdict(self.first_split)
        data: dict[str, Any] = null_where_not_finite(asdict(self) | {"first_split": first, "is_clean": not self.faults})
        return data

    def __str__(self) -> str:
        return "\n".join([*answer_lines(self), *other_lines(self)])

    def __repr__(self) -> str:
        return summary_line(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


# The text: the answer, which is known first, then everything else, section by section.

WIDTH = 110
MOST_NOTES = 8  # to_dict has them all
_SELDOM = ("dynamo_fallback", "upstream")  # of the compiler, and of shipped systems
_STATUSES = {"passed": "runs", "raised": "raises", "non_finite": "gives values that are not finite"}
_KINDS = {
    "raise": "raised",
    "promotion": "silent promotion",
    "downcast": "silent downcast",
    "mixed_norm": "norm wider than its input",
    "mixed_mask": "mask of another dtype than the query",
    "kept_narrowed": "kept in float32 by its class, stored in half",
    "widening": "exact write into a wider tensor",
    "first_non_finite": "first value that is not finite",
    "drift": "drift beyond the format",
    "declared": "a format declared and not used",
    "bits": "bits taken for those of another format",
    "collapsed": "values that the format does not tell apart",
    "followed": "silent promotion that the weights follow",
}


def summary_line(diagnosis: Diagnosis) -> str:
    first, cures = diagnosis.first_split, [remedy.fix for remedy in diagnosis.remedies if remedy.cures]
    parts = [f"{diagnosis.model} {_STATUSES[diagnosis.status]}"]
    if first is None:
        parts.append("no fault")
    else:
        where = f"{first.op} in {first.module or 'the model itself'}"
        parts.append(f"{_headline(first)} at {where} ({first.place})")
    if diagnosis.remedies:
        parts.append(f"{'cured' if diagnosis.faults else 'works'} by {', '.join(cures) or 'none of the fixes'}")
    return f"<{'; '.join(parts)}>"


def answer_lines(diagnosis: Diagnosis) -> Iterator[str]:
    message = f": {diagnosis.message}" if diagnosis.message else ""
    yield from _wrap(
        f"{diagnosis.model} {_STATUSES[diagnosis.status]} (mostly {diagnosis.base_dtype}, {diagnosis.device}, "
        f"torch {diagnosis.torch_version}){message}"
    )
    first, raised = diagnosis.first_split, diagnosis.raised
    if first is None:
        yield "No fault in this call: every meeting of unlike dtypes is on purpose, or harmless."
        for held in (held for held in diagnosis.held if held.wide_matrices):
            yield from _label("cost", f"{_held(held)}: trained weights belong there, others cost twice the memory")
        if diagnosis.largest_share:
            yield from _label("drift", diagnosis.largest_share)
        if diagnosis.reference == "float32":
            yield from _label(
                "drift", "not known: no run in float64 was possible (Doubts), so lost digits are not judged"
            )
        return
    if first.severity == "risk":
        yield f"No fault here; {_headline(first)}:"
    if raised is not None and raised is not first:
        yield from _label("error", _where(raised))
    yield from _label("where", _where(first))
    yield from _label("why", _why(first))


def other_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """All but the answer: the patches, then a section for each kind of fact."""
    for index, patch in enumerate(diagnosis.patches):
        yield from _patch(patch, "patch" if index == 0 else "or")
    first, raised = diagnosis.first_split, diagnosis.raised
    others = [f for f in (raised, *diagnosis.faults, *diagnosis.of("risk")) if f is not None and f is not first]
    costs = "Costs, apart from the fault" if diagnosis.faults else "Costs: nothing is wrong here, and a change may save"
    sections = {
        "": [] if first is None else [_headline(first).capitalize(), *finding_lines(first, history=True)],
        "Also": [line for finding in dict.fromkeys(others) for line in finding_lines(finding, history=False)],
        costs: list(_costs(diagnosis)),
        f"Fixes tried from outside (drift to {diagnosis.reference or 'nothing'})": list(_remedies(diagnosis)),
        "Observed": [line for fact in _observed(diagnosis) for line in _wrap(fact)],
        "Doubts": [line for doubt in diagnosis.doubts for line in _wrap(doubt)],
    }
    for title, lines in sections.items():
        if lines:
            heading, *rest = [title, *lines] if title else lines
            yield from ("", f"{heading} ".ljust(WIDTH, "─"))
            yield from (f"  {line}" if line else "" for line in rest)


def _wrap(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH - 2, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _label(label: str, text: str) -> list[str]:
    return _wrap(text, f"  {label:<5} ", " " * 8)


def _headline(first: Finding) -> str:
    if first.severity != "fault":
        return "a cost" if first.kind == "followed" else "a risk"
    return "dtypes first split" if len({operand.dtype for operand in first.operands}) > 1 else "a fault"


def _where(finding: Finding) -> str:
    inside = f"in {finding.module or 'the model itself'}: {finding.op}"
    return f"{finding.place}, {inside}" if finding.place else inside


def _why(finding: Finding) -> str:
    """Say which operands are in which dtype, and what brought it; where there are no two, the reason."""
    groups = grouped((operand.dtype, operand) for operand in finding.operands)
    if len(groups) < 2 and not (groups and finding.kind == "raise"):
        return finding.reason
    parts = []
    for dtype, operands in groups.items():
        names = " and ".join(dict.fromkeys(operand.expression or operand.name for operand in operands))
        verb, brought_by = "are" if len(operands) > 1 else "is", operands[0].brought_by
        places = [step.place for step in operands[0].history if step.what == brought_by and step.place != finding.place]
        at = f" at {places[0]}" if places and places[0] and " at " not in brought_by else ""
        parts.append(f"{names} {verb} {dtype} by {brought_by}{at}")
    reason = "" if finding.kind == "raise" and len(groups) > 1 else f"; {finding.reason}"
    return ", ".join(parts) + reason


def finding_lines(finding: Finding, *, history: bool) -> list[str]:
    times = f", {finding.count}×" if finding.count > 1 else ""
    owner = f"{finding.module or 'the model itself'} ({finding.module_class or 'no module'})"
    lines = [f"{_KINDS[finding.kind]}: {finding.op} in {owner}{times}"]
    if finding.place is not None:
        lines += [f"  {finding.place} in {finding.place.function}", f"  {finding.place.text}"]
    lines += _wrap(finding.reason, "  ", "  ")
    for operand in finding.operands:
        written = f" {operand.expression}" if operand.expression else ""
        lines += _wrap(f"{operand.name}{written}: {operand.dtype} by {operand.brought_by}", "  ", "    ")
        lines += _history(operand) if history else []
    if finding.also_in:
        more = f" and {len(finding.also_in) - 4} more" if len(finding.also_in) > 4 else ""
        lines += _wrap(f"also in {', '.join(finding.also_in[:4])}{more}", "  ", "    ")
    return lines


def _history(operand: OperandHistory) -> Iterator[str]:
    for step in operand.history if len(operand.history) > 1 else ():
        inside = f" in {step.module}" if step.module else ""
        place = f" at {step.place}" if step.place else ""
        yield from _wrap(f"{step.dtype:>8} {step.what}{inside}{place}", " " * 6, " " * 6)


def patch_state(patch: Patch) -> str:
    if patch.verified:
        told = patch.relative_error is None or patch.price is not None  # a price holds it
        drift = "" if told else f", drift {patch.relative_error:.2g}"
        return f"run on a copy: no fault left{drift}"
    left = "; ".join(patch.left[:3]) or "unknown"
    return f"run on a copy: it does not cure by itself; left: {left}" if patch.diff or patch.code else patch.origin


def _patch(patch: Patch, label: str) -> Iterator[str]:
    if not (patch.diff or patch.code):
        yield from _label(label, patch.origin)
        return
    yield from _label(label, f"{patch_state(patch)}; not applied")
    diff = patch.diff.rstrip("\n").splitlines()
    diff = list(_without_context(diff)) if label == "or" else diff
    yield from (f"    {line}" for line in (*diff, *patch.code.splitlines()))
    if patch.price is not None:
        yield from _label("price", str(patch.price))
    if patch.origin and not patch.verified:
        yield from _label("", f"origin: {patch.origin}")


def _without_context(diff: list[str]) -> Iterator[str]:
    """Yield the lines of a diff that change, those of each file behind its name and the line of the first."""
    name, line = "", 0
    for text in diff:
        if text.startswith("--- a/"):
            name = text.removeprefix("--- a/")
        elif text.startswith("@@"):
            line = int(re.findall(r"\d+", text)[0])
        elif text.startswith(("-", "+")) and not text.startswith("+++ b/"):
            if name:
                yield f"{name}:{line}"
                name = ""
            yield text
        elif not text.startswith("+++ b/"):
            line += 1


def _costs(diagnosis: Diagnosis) -> Iterator[str]:
    for cost in diagnosis.costs:
        times = f", {cost.count}×" if cost.count > 1 else ""
        where = f"{cost.place}, " if cost.place else ""
        yield from _wrap(f"{where}in {cost.module or 'the model itself'}{times}: {cost.reason}", "", "  ")
        if cost.patch is not None:
            yield from _patch(cost.patch, "patch")
        elif cost.price is not None:
            yield from _label("price", str(cost.price))


def _remedies(diagnosis: Diagnosis) -> Iterator[str]:
    tried = [remedy for remedy in diagnosis.remedies if remedy.status != "unsupported"]
    if tried:
        columns = ("fix", "cures" if diagnosis.faults else "works", "drift", "latency", "peak", "stored")
        yield from to_text(make_table(columns, map(_row, tried), align="llrrrr")).splitlines()
    for remedy in diagnosis.remedies:
        if remedy.reason and not (remedy.status == "unsupported" and remedy.fix in _SELDOM):
            status = "" if remedy.status == "passed" else f"{remedy.status}: "
            yield from _wrap(f"{remedy.fix} {status}{remedy.reason}")
    baseline = next((remedy.latency_baseline for remedy in diagnosis.remedies if remedy.latency_baseline), "")
    if baseline:
        clock = "" if diagnosis.device.startswith(("cpu", "mps")) else ", the device's time"
        yield f"latency: paired ratio to {baseline}{clock}; ★ none that cures is better in all three"


def _row(remedy: Remedy) -> tuple[str, ...]:
    drift = "" if remedy.relative_error is None else f"{remedy.relative_error:.2g}"
    latency = "" if remedy.latency_ratio is None else f"{remedy.latency_ratio:.3g}"
    if remedy.latency_low is not None and remedy.latency_high is not None:
        latency += f" [{remedy.latency_low:.3g}, {remedy.latency_high:.3g}]"
    sizes = ("" if size is None else memory_text(size) for size in (remedy.allocated_peak_bytes, remedy.stored_bytes))
    return remedy.fix, ("★ yes" if remedy.is_best else "yes") if remedy.cures else "no", drift, latency, *sizes


def _held(held: Held) -> str:
    names = [name or "the model itself" for name in held.modules[:4]]
    more = [f"{len(held.modules) - 4} more"] if len(held.modules) > 4 else []
    return f"held in {held.dtype}: {join(names + more)} ({memory_text(held.stored_bytes)})"


def _observed(diagnosis: Diagnosis) -> Iterator[str]:
    if compiled := diagnosis.compiled:
        how = f"differs: {compiled.how}" if compiled.differs else "as in eager"
        yield f"compiled ({compiled.backend}): {compiled.status}; {how}"
        yield compiled.message
    for held in diagnosis.held:
        yield _held(held)
    for backend in diagnosis.backends:
        yield f"attention: {backend['backend']} on {', '.join(backend['operands'])}, {backend['count']}×"
    for row in diagnosis.autocast:
        yield f"autocast: {row['op']} of {', '.join(row['operands'])} gives {row['result']}, {row['count']}×"
    if recast := diagnosis.recast:
        stored, copies = memory_text(recast["stored_bytes"]), memory_text(recast["copies_bytes"])
        kinds = ", ".join(recast["to"])
        yield f"autocast casts {recast['parameters']} parameters at each call: {stored}, copied to {copies} of {kinds}"
    for cast in diagnosis.dead_casts:
        yield f"dead cast: {cast['from']} → {cast['to']} → {cast['from']} at {cast['place']}, {cast['count']}×"
    for cast in diagnosis.lost:
        yield (
            f"cast {cast['from']} → {cast['to']} at {cast['place']}: of {cast['total']} values {cast['overflowed']} "
            f"overflow, {cast['flushed']} become zero, {cast['subnormal']} subnormal"
        )
    for ranges in diagnosis.ranges:
        if ranges.near_overflow or ranges.subnormal or ranges.non_finite:
            where = ranges.first_near_overflow or ranges.first_subnormal
            yield (
                f"{ranges.dtype}: of {ranges.total} values {ranges.near_overflow} near overflow, {ranges.subnormal} "
                f"subnormal, {ranges.non_finite} not finite (masks included){where and f'; first in {where}'}"
            )
    for finding in diagnosis.of("note")[:MOST_NOTES]:
        dtypes = ", ".join(dict.fromkeys(operand.dtype for operand in finding.operands))
        where = f"{finding.module or 'the model'} at {finding.place}"
        yield f"{_KINDS[finding.kind]} of {dtypes}: {where}; {finding.reason}"
