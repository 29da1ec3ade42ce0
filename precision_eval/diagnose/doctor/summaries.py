"""Sums over one observed call, as plain data: autocast, attention backends, dead casts, ranges, lost values."""

from __future__ import annotations

from typing import Any

from torch import nn

from precision_eval.diagnose.doctor.diagnosis import Ranges
from precision_eval.diagnose.doctor.source import place_of
from precision_eval.trace.observer import Observer
from precision_eval.trace.provenance import Record, short


def autocast_of(observer: Observer) -> tuple[dict[str, Any], ...]:
    """What autocast changed: operation, dtypes of operands and result, and how often."""
    return tuple(
        {"op": op, "operands": list(operands), "result": result, "count": count}
        for (op, operands, result), count in observer.autocast.most_common()
    )


def recast_of(observer: Observer, model: nn.Module) -> dict[str, Any] | None:
    """Parameters that autocast casts at each call: how many, what they take stored, and what their copies take."""
    parameters = dict(model.named_parameters())
    found = [(parameters[name], dtype) for name, dtype in observer.recast.items() if name in parameters]
    if not found:
        return None
    return {
        "parameters": len(found),
        "stored_bytes": sum(p.numel() * p.element_size() for p, _ in found),
        "copies_bytes": sum(p.numel() * dtype.itemsize for p, dtype in found),
        "to": sorted({short(dtype) for _, dtype in found}),
    }


def backends_of(observer: Observer) -> tuple[dict[str, Any], ...]:
    """Which attention backend ran, on which dtypes of query, key and value."""
    return tuple(
        {"backend": backend, "operands": list(dtypes), "count": count}
        for (backend, dtypes), count in observer.attention.most_common()
    )


def dead_casts_of(observer: Observer) -> tuple[dict[str, Any], ...]:
    """Casts that do nothing, or that the line after undoes."""
    return tuple(
        {"kind": kind, "from": source, "to": target, "place": str(place_of(code, instruction)), "count": count}
        for (kind, source, target, code, instruction), count in observer.dead.most_common()
    )


def _where(record: Record | None) -> str:
    if record is None or record.code is None:
        return ""
    path = record.call.path if record.call else ""
    return f"{path or 'the model'} at {place_of(record.code, record.instruction)}"


def ranges_of(observer: Observer) -> tuple[Ranges, ...]:
    """Values near overflow, subnormal and not finite, per format."""
    if observer.numbers is None:
        return ()
    return tuple(
        Ranges(
            dtype=short(dtype),
            total=count.total,
            near_overflow=count.near_overflow,
            subnormal=count.subnormal,
            non_finite=count.non_finite,
            first_near_overflow=_where(count.first_near),
            first_subnormal=_where(count.first_subnormal),
        )
        for dtype, count in sorted(observer.numbers.counts.items(), key=lambda item: str(item[0]))
    )


def lost_of(observer: Observer) -> tuple[dict[str, Any], ...]:
    """Casts that turn values into infinity, zero or subnormals."""
    found = []
    for (code, instruction, path, source, target), accounts in (
        observer.numbers.casts.items() if observer.numbers else ()
    ):
        sums = {
            name: sum(getattr(account, name) for account in accounts)
            for name in ("total", "overflowed", "flushed", "subnormal")
        }
        if sums["overflowed"] or sums["flushed"] or sums["subnormal"]:
            place = str(place_of(code, instruction))
            found.append({"from": source, "to": target, "module": path, "place": place, **sums})
    return tuple(found)
