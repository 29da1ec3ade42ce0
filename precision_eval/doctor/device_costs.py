"""What costs nothing on the CPU and much on a device: waits of the host, and attention away from the fast kernels.

A wait is reported whatever it costs: it forbids capture as a CUDA graph. Where one line can do without it, that change
is tried; it has to leave fewer waits. Nothing here is a suspect where no tensor is on a device. Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from precision_eval.core.formats import cuda_support, short
from precision_eval.core.formatting import grouped
from precision_eval.doctor.findings import written_operands
from precision_eval.doctor.source import (
    Insertion,
    imports_torch,
    with_calls,
    with_fill,
    with_full,
    without_call,
    without_function,
)
from precision_eval.doctor.suspects import Suspect, line_of, make_edit
from precision_eval.trace.dtype_flow import Event, is_installed
from precision_eval.trace.host_waits import READS, HostWait

_NO_CAPTURE = "the host waits for the device, and the call cannot be captured as a CUDA graph"
_MOST_WAITS = 8
_READERS = {"__float__": ("float",), "__int__": ("int",), "__bool__": ("bool",)}


def host_waits(waits: list[HostWait]) -> Iterator[Suspect]:
    """One suspect for each line, the user's own first."""
    lines = grouped((line_of(*wait.line), wait) for wait in waits)
    own_first = sorted(lines.items(), key=lambda item: (is_installed(item[1][0].line[0].co_filename), -len(item[1])))
    for line, members in own_first[:_MOST_WAITS]:
        wait = members[0]
        ways = [partial(make_edit, list(change)) for change in [_change_to_not_wait(wait)] if change]
        elements = (1 << 41) + len(members)
        yield Suspect(
            "host_wait", f"{wait.reason}: {_NO_CAPTURE}", wait.line, wait.call, [*ways], elements, len(members), {line},
            most_waits=len(waits) - len(members), is_fact=True,
        )  # fmt: skip


def is_of_a_library(suspect: Suspect) -> bool:
    return suspect.line is not None and is_installed(suspect.line[0].co_filename)


def wait_note(suspect: Suspect, *, was_tried: bool) -> str:
    """Say why nothing was timed without a wait, or why no patch is given though it was."""
    if not was_tried:
        return "; not priced: no change of the line is known to do without it"
    return "; the line is a library's: it was tried without the wait, and no patch is given" * is_of_a_library(suspect)


def _change_to_not_wait(wait: HostWait) -> tuple[Insertion, ...]:
    if wait.name in _READERS:
        return without_function(*wait.line, _READERS[wait.name])
    if wait.name == "__setitem__":
        return with_fill(*wait.line)
    if wait.name == "tensor":
        return with_full(*wait.line) if wait.number is not None else ()
    return without_call(*wait.line, ("item",)) if wait.reason == READS else without_call(*wait.line, ("cpu",))


def half_of(device: torch.device) -> torch.dtype:
    """Choose the half format that a device computes in."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return torch.bfloat16
    supported = cuda_support("bfloat16", torch.cuda.get_device_capability(device))
    return torch.bfloat16 if supported.kind == "native" else torch.float16


def wide_attention(events: list[Event], half: torch.dtype) -> Iterator[Suspect]:
    """Attention in float32 that runs in the memory-efficient kernel: the flash kernel takes half formats only."""
    for line, members in grouped((line_of(*event.line), event) for event in events).items():
        event = members[0]
        texts = written_operands(event)
        if not all(texts) or not imports_torch(event.line[0].co_filename):
            continue
        casts = dict.fromkeys(texts, f".to(torch.{short(half)})")
        change = with_calls(*event.line, casts, result=".to(torch.float32)")
        elements = len(members) * sum(torch.Size(shape).numel() for _, shape, _ in event.operands)
        reason = "attention in float32 takes the memory-efficient kernel; the flash kernel takes half formats only"
        yield Suspect(
            "slow_attention", reason, event.line, event.call, [partial(make_edit, list(change))], elements,
            len(members), {line}, narrow=half,
        )  # fmt: skip
