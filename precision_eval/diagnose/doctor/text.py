"""A diagnosis for a terminal: where dtypes split, why, and what cures it; rich's renderables, or plain text."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from precision_eval.core.formatting import memory_text

if TYPE_CHECKING:
    from precision_eval.diagnose.doctor.diagnosis import (
        Compiled,
        Diagnosis,
        Finding,
        OperandHistory,
        Patch,
        Ranges,
        Remedy,
    )

WIDTH = 110
MOST_NOTES = 8
_STATUSES = {"passed": "runs", "raised": "raises", "non_finite": "gives values that are not finite"}
_COLOURS = {"fault": "red", "risk": "yellow", "note": "dim"}
_KINDS = {
    "raise": "raised",
    "promotion": "silent promotion",
    "downcast": "silent downcast",
    "mixed_norm": "norm wider than its input",
    "kept_narrowed": "kept in float32 by its class, stored in half",
    "widening": "exact write into a wider tensor",
    "first_non_finite": "first value that is not finite",
}


def as_text(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as plain text."""
    return _plain(rendered(diagnosis))


def as_html(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as HTML for a notebook's cell."""
    console = Console(file=io.StringIO(), width=WIDTH, record=True, highlight=False, force_jupyter=False)
    console.print(rendered(diagnosis), crop=False)
    style = "font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace;line-height:1.3;overflow-x:auto"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def finding_text(finding: Finding) -> str:
    """Write one finding as plain text: what, where, the line, and how each operand came by its dtype."""
    return textwrap.dedent(_plain(_finding(finding, history=True)))


def summary(diagnosis: Diagnosis) -> str:
    """Write a diagnosis as one line."""
    first, cures = diagnosis.first_split, [remedy.fix for remedy in diagnosis.remedies if remedy.cures]
    parts = [f"{diagnosis.model} {_STATUSES[diagnosis.status]}"]
    if first is None:
        parts.append("no fault")
    else:
        where = f"{first.op} in {first.module or 'the model itself'}"
        parts.append(f"{'dtypes first split' if first.severity == 'fault' else 'a risk'} at {where} ({first.place})")
    if diagnosis.remedies:
        parts.append(f"{'cured' if diagnosis.faults else 'works'} by {', '.join(cures) or 'none of the fixes'}")
    return f"<{'; '.join(parts)}>"


def _plain(what: RenderableType) -> str:
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, no_color=True, highlight=False, force_terminal=False, force_jupyter=False)
    console.print(what, crop=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def rendered(diagnosis: Diagnosis) -> RenderableType:
    """Lay a diagnosis out: the answer first."""
    return Group(*_parts(diagnosis))


def _parts(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    yield from _answer(diagnosis)
    first = diagnosis.first_split
    rest = [f for f in (*diagnosis.faults, *diagnosis.of("risk")) if f is not first]
    if rest:
        yield _title("Also")
        for finding in rest:
            yield _finding(finding, history=finding.kind == "raise")
    if diagnosis.patch is not None:
        yield from _patch(diagnosis.patch)
    if diagnosis.remedies:
        yield from _remedies(diagnosis)
    if diagnosis.compiled is not None:
        yield _title("Compiled")
        yield _indented(_compiled(diagnosis.compiled))
    yield from _looked_at(diagnosis)
    if diagnosis.doubts:
        yield _title("Doubts")
        for doubt in diagnosis.doubts:
            yield _indented(escape(doubt))


def _title(text: str) -> RenderableType:
    return Group(Text(), Rule(text, align="left", characters="─", style="dim"))


def _indented(text: str) -> RenderableType:
    return Padding(Text.from_markup(text), (0, 0, 0, 2))


def _answer(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    yield Text.from_markup(
        f"[bold]{escape(diagnosis.model)}[/bold] {_STATUSES[diagnosis.status]} (mostly {diagnosis.base_dtype}, "
        f"{diagnosis.device}, torch {diagnosis.torch_version})"
    )
    if diagnosis.message:
        yield _indented(escape(diagnosis.message))
    first = diagnosis.first_split
    if first is None:
        yield Text.from_markup("[green]No fault: every meeting of unlike dtypes is on purpose, or harmless.[/green]")
        return
    yield Text()
    words = "Dtypes first split" if first.severity == "fault" else "No fault here; a risk elsewhere"
    yield Text.from_markup(f"[bold {_COLOURS[first.severity]}]{words}[/]")
    yield _finding(first, history=True)


def _finding(finding: Finding, *, history: bool) -> RenderableType:
    where = finding.module or "the model itself"
    times = f", {finding.count}×" if finding.count > 1 else ""
    lines: list[RenderableType] = [
        Text.from_markup(
            f"[{_COLOURS[finding.severity]}]{_KINDS[finding.kind]}[/]: [bold]{escape(finding.op)}[/bold] in "
            f"[cyan]{escape(where)}[/cyan] ({escape(finding.module_class or 'no module')}){times}"
        )
    ]
    if finding.place is not None:
        lines.append(_indented(f"{escape(str(finding.place))} in {escape(finding.place.function)}"))
        lines.append(_indented(f"[italic]{escape(finding.place.text)}[/italic]"))
    lines.append(_indented(escape(finding.reason)))
    for operand in finding.operands:
        lines.append(_indented(_operand(operand)))
        if history:
            lines += [Padding(Text.from_markup(step), (0, 0, 0, 6)) for step in _history(operand)]
    if finding.also_in:
        more = f" and {len(finding.also_in) - 4} more" if len(finding.also_in) > 4 else ""
        lines.append(_indented(f"also in {escape(', '.join(finding.also_in[:4]))}{more}"))
    return Padding(Group(*lines), (0, 0, 0, 2))


def _operand(operand: OperandHistory) -> str:
    written = f" [dim]{escape(operand.expression)}[/dim]" if operand.expression else ""
    return f"{escape(operand.name)}{written}: [bold]{operand.dtype}[/bold] by {escape(operand.brought_by)}"


def _history(operand: OperandHistory) -> Iterator[str]:
    if len(operand.history) < 2:
        return
    for step in operand.history:
        place = f" at {step.place}" if step.place else ""
        inside = f" in {step.module}" if step.module else ""
        yield f"[dim]{step.dtype:>8}[/dim] {escape(step.what + inside + place)}"


def _patch(patch: Patch) -> Iterator[RenderableType]:
    yield _title("Suggested change (not applied, not run)")
    if patch.diff:
        for line in patch.diff.rstrip("\n").splitlines():
            colour = {"+": "green", "-": "red"}.get(line[0], "dim")
            yield Text(f"  {line}", style=colour, no_wrap=True, overflow="ignore")
    if patch.origin:
        yield _indented(f"{'or, at its origin: ' if patch.diff else ''}{escape(patch.origin)}")


def _remedies(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    yield _title(f"Fixes tried from outside (drift to {diagnosis.reference or 'nothing'})")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cures = "cures" if diagnosis.faults else "works"
    for name in ("fix", cures, "drift", "latency", "peak", "stored"):
        table.add_column(name, justify="left" if name in ("fix", cures) else "right", no_wrap=True)
    for remedy in diagnosis.remedies:
        table.add_row(*_row(remedy))
    yield Padding(table, (0, 0, 0, 2))
    for remedy in diagnosis.remedies:
        if remedy.reason:
            why = remedy.reason if remedy.status == "passed" else f"{remedy.status}: {remedy.reason}"
            yield _indented(f"[dim]{remedy.fix} {escape(why)}[/dim]")
    baseline = next((remedy.latency_baseline for remedy in diagnosis.remedies if remedy.latency_baseline), "")
    if baseline:
        yield _indented(f"[dim]latency: paired ratio to {baseline}; ★ none that cures is better in all three[/dim]")


def _row(remedy: Remedy) -> tuple[str, ...]:
    cures = ("[green]★ yes[/green]" if remedy.is_best else "[green]yes[/green]") if remedy.cures else "no"
    drift = "" if remedy.relative_error is None else f"{remedy.relative_error:.2g}"
    latency = "" if remedy.latency_ratio is None else f"{remedy.latency_ratio:.3g}"
    if remedy.latency_low is not None and remedy.latency_high is not None:
        latency += f" \\[{remedy.latency_low:.3g}, {remedy.latency_high:.3g}]"
    return (
        remedy.fix,
        cures,
        drift,
        latency,
        _memory(remedy.allocated_peak_bytes),
        _memory(remedy.stored_bytes),
    )


def _memory(size_bytes: int | None) -> str:
    return "" if size_bytes is None else memory_text(size_bytes)


def _compiled(compiled: Compiled) -> str:
    text = f"backend {compiled.backend}: {compiled.status}"
    text += f"; [yellow]differs: {escape(compiled.how)}[/yellow]" if compiled.differs else "; as in eager"
    if compiled.relative_difference:
        text += f" (outputs differ by {compiled.relative_difference:.2g} relative)"
    return text + (f"\n{escape(compiled.message)}" if compiled.message else "")


def _looked_at(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    yield _title("What was looked at")
    for held in diagnosis.held:
        shown = ", ".join(held.modules[:4]) + (f" and {len(held.modules) - 4} more" if len(held.modules) > 4 else "")
        yield _indented(f"held in {held.dtype}: {escape(shown)} ({memory_text(held.stored_bytes)})")
    for one in diagnosis.backends:
        yield _indented(f"attention: {one['backend']} on {', '.join(one['operands'])}, {one['count']}×")
    yield from (_indented(line) for line in _autocast(diagnosis))
    yield from (_indented(line) for line in _casts(diagnosis))
    for ranges in diagnosis.ranges:
        if ranges.near_overflow or ranges.subnormal or ranges.non_finite:
            yield _indented(_ranges(ranges))
    notes = diagnosis.of("note")
    for finding in notes[:MOST_NOTES]:
        dtypes = ", ".join(dict.fromkeys(operand.dtype for operand in finding.operands))
        where = f"{finding.module or 'the model'} at {finding.place}"
        yield _indented(f"[dim]{_KINDS[finding.kind]} of {dtypes}: {escape(where)}; {escape(finding.reason)}[/dim]")
    if len(notes) > MOST_NOTES:
        yield _indented(f"[dim]and {len(notes) - MOST_NOTES} more on purpose; --json has them all[/dim]")


def _autocast(diagnosis: Diagnosis) -> Iterator[str]:
    for one in diagnosis.autocast:
        yield f"autocast: {one['op']} of {', '.join(one['operands'])} gives {one['result']}, {one['count']}×"
    if diagnosis.recast is not None:
        recast: dict[str, Any] = diagnosis.recast
        stored, copies = (memory_text(recast[name]) for name in ("stored_bytes", "copies_bytes"))
        yield (
            f"autocast casts {recast['parameters']} parameters at each call: {stored} stored, {copies} of "
            f"{', '.join(recast['to'])} copies beside them"
        )


def _casts(diagnosis: Diagnosis) -> Iterator[str]:
    for one in diagnosis.dead_casts:
        if one["kind"] == "there and back":
            yield f"dead cast: {one['from']} → {one['to']} → {one['from']} at {one['place']}, {one['count']}×"
    idle = sum(one["count"] for one in diagnosis.dead_casts if one["kind"] == "same dtype")
    if idle:
        yield f"casts to the dtype that was there already, which cost nothing: {idle}"
    for one in diagnosis.lost:
        yield (
            f"cast {one['from']} → {one['to']} at {one['place']}: of {one['total']} values {one['overflowed']} "
            f"overflow, {one['flushed']} become zero, {one['subnormal']} subnormal"
        )


def _ranges(ranges: Ranges) -> str:
    text = (
        f"{ranges.dtype}: of {ranges.total} values {ranges.near_overflow} near overflow, {ranges.subnormal} subnormal"
    )
    text += f", {ranges.non_finite} not finite (masks included)"
    for name, where in (("near overflow", ranges.first_near_overflow), ("subnormal", ranges.first_subnormal)):
        if where:
            text += f"; first {name} in {escape(where)}"
    return text
