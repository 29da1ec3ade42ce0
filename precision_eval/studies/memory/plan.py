"""Memory of a model under each fix, and the largest length that fits a device: real calls on fake tensors, counted.

Sizes are bytes, shown in powers of 1024. *Length* is the slots of a decoder's cache. A total is a range: from what the
call's tensors take on every machine to that plus a bound on the scratch memory of its kernels.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from precision_eval.cases.base import BuiltCase
from precision_eval.core.cells import is_fault_of_the_suite
from precision_eval.core.errors import UnsupportedError
from precision_eval.core.formatting import MISSING, memory_text, yes_no
from precision_eval.core.table import Table
from precision_eval.core.targets import first_line
from precision_eval.fixes.catalog import FIXES, Fix, fix_by_id
from precision_eval.fixes.storage import floating_tensors
from precision_eval.studies.memory.counting import (
    UNPLANNABLE,
    AllocationCounter,
    counted_call,
    fake_tensors,
    stored_bytes,
)
from precision_eval.studies.memory.devices import Device
from precision_eval.studies.memory.models import PlannedCall, PlannedModel, is_cache

BASELINE = "full_float32"
# Where the search for the largest length ends.
LONGEST = 1 << 22
# Of that search: tries that follow a line before halving begins, and how far the second try goes.
_LINES, _STRIDE = 8, 4
# Layers of the model that is run. A call's peak lies in any layer but the first, so two layers show it. What three
# layers need beyond two, each further layer needs: its weights, its caches, and the copies that autocast keeps.
_SHALLOW = 2


@dataclass(frozen=True, kw_only=True)
class FixPlan:
    """Memory of a model under one fix; sizes are None where the call does not run.

    ``call_bytes`` is the least peak of the call above what is stored, ``workspace_bytes`` what its kernels may add to
    it at most, ``casts_bytes`` the part of it that is copies into another dtype, ``library_bytes`` what cuBLAS keeps.
    """

    fix: str
    status: Literal["runs", "raises", "unsupported"]
    reason: str = ""
    weights_bytes: int = 0
    cache_bytes: int = 0
    buffer_bytes: int = 0
    casts_bytes: int | None = None
    call_bytes: int | None = None
    workspace_bytes: int | None = None
    library_bytes: int | None = None
    total_bytes: int | None = None
    total_high_bytes: int | None = None
    fits: bool | None = None
    largest_length: int | None = None

    @property
    def stored_bytes(self) -> int:
        """Weights, caches and buffers."""
        return self.weights_bytes + self.cache_bytes + self.buffer_bytes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"stored_bytes": self.stored_bytes}


class CallNotRunError(Exception):
    def __init__(self, status: Literal["raises", "unsupported"], reason: str) -> None:
        super().__init__(reason)
        self.status: Literal["raises", "unsupported"] = status
        self.reason = reason


class Planner:
    """Plans one model; what was built and run is kept, so that no length is run twice under one fix."""

    def __init__(
        self, model: PlannedModel, *, autocast_dtype: torch.dtype = torch.bfloat16, device: Device | None = None
    ) -> None:
        self.model = model
        self.autocast_dtype = autocast_dtype
        self.device = device
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)  # a module may hold tensors that it has not registered
        self._cases: dict[tuple[PlannedCall, int], BuiltCase] = {}
        self._runs: dict[tuple[PlannedCall, int, str], Counter[str]] = {}

    def plan(self, call: PlannedCall, fix: Fix, *, device_memory_bytes: int | None = None) -> FixPlan:
        """Plan one fix; fits and largest length are for the upper end of the total, so they hold on any machine."""
        self.model.check(call)
        stored = self._stored(call, fix)
        plan = FixPlan(
            fix=fix.id,
            status="runs",
            weights_bytes=stored["weights"],
            cache_bytes=stored["cache"],
            buffer_bytes=stored["buffers"],
        )
        try:
            peak = self._peak(call, fix, growth_at=call)
        except CallNotRunError as failure:
            return replace(plan, status=failure.status, reason=failure.reason)
        least = stored.total() + peak["call"] + peak["library"]
        most = least + peak["scratch"]
        plan = replace(
            plan,
            casts_bytes=peak["casts"],
            call_bytes=peak["call"],
            workspace_bytes=peak["scratch"],
            library_bytes=peak["library"],
            total_bytes=least,
            total_high_bytes=most,
        )
        if device_memory_bytes is None:
            return plan
        length = None if self.model.as_built else self._largest_length(call, fix, device_memory_bytes)
        return replace(plan, fits=most <= device_memory_bytes, largest_length=length)

    def parameter_count(self, call: PlannedCall) -> int:
        """Count the model's parameters, each once."""

        def count(case: BuiltCase) -> Counter[str]:
            return Counter(parameters=sum(parameter.numel() for parameter in case.model.parameters()))

        return self._at_full_depth(call, count)["parameters"]

    def _at_full_depth(self, call: PlannedCall, measure: Callable[[BuiltCase], Counter[str]]) -> Counter[str]:
        few, more = (measure(self._case(call, layers)) for layers in (_SHALLOW, _SHALLOW + 1))
        return _deeper(few, more, self.model.layers)

    def _case(self, call: PlannedCall, layers: int) -> BuiltCase:
        if (call, layers) not in self._cases:
            with fake_tensors(self._mode), _without_warnings():
                self._cases[call, layers] = self.model.build(call, layers)
        return self._cases[call, layers]

    def _stored(self, call: PlannedCall, fix: Fix) -> Counter[str]:
        """Bytes of weights, caches and buffers under a fix, at the model's own depth."""

        def stored(case: BuiltCase) -> Counter[str]:
            with fake_tensors(self._mode), ExitStack() as stack:
                if "eager" in fix.modes:
                    with suppress(UnsupportedError):  # a fix that cannot be applied leaves the model as it is
                        stack.enter_context(fix.applied(case.model).stored())
                return stored_bytes(case.model, kind=_kind)

        return self._at_full_depth(call, stored)

    def held_bytes(self, call: PlannedCall, fix: Fix) -> int:
        """Bytes of a model as shipped and of what a fix stores otherwise, side by side, as measuring holds them."""

        def held(case: BuiltCase) -> Counter[str]:
            with fake_tensors(self._mode):
                shipped = {id(tensor): tensor.dtype for tensor in floating_tensors(case.model)}
                total = stored_bytes(case.model, kind=_kind).total()
                if "eager" in fix.modes:
                    with fix.applied(case.model).stored() as applied:
                        tensors = floating_tensors(applied.model)
                        total += sum(t.nbytes for t in tensors if shipped.get(id(t)) is not t.dtype)
            return Counter(held=total)

        return self._at_full_depth(call, held)["held"]

    def together_bytes(self, call: PlannedCall, plans: Sequence[FixPlan]) -> int:
        """Bytes of all fixes that run, timed side by side on a GPU, and of the baseline and its copy.

        Fixes hold the weights as shipped in one memory and add what they store otherwise; caches are each fix's own, as
        is the memory of its graph, which is about a call's peak. The copy shares nothing. Each stream keeps a workspace
        of cuBLAS: the first one, and for each of two clocks one to warm up on and one for each graph.
        """
        baseline = self.plan(call, fix_by_id(BASELINE))
        timed = {plan.fix: plan for plan in (baseline, *plans) if plan.status == "runs"}
        shipped = self._stored(call, fix_by_id("as_shipped"))
        own = {plan.fix: self.held_bytes(call, fix_by_id(plan.fix)) - shipped.total() for plan in timed.values()}
        caches = shipped.total() - shipped["weights"]
        graphs = sum(plan.call_bytes or 0 for plan in timed.values()) + (baseline.call_bytes or 0)
        library = max((plan.library_bytes or 0 for plan in timed.values()), default=0)
        copies = shipped.total() + caches + baseline.stored_bytes  # what was built, and the copy of the baseline
        return copies + sum(own.values()) + len(timed) * caches + graphs + library * (1 + 2 * (2 + len(timed)))

    def _peak(self, call: PlannedCall, fix: Fix, *, growth_at: PlannedCall) -> Counter[str]:
        """Return the figures of the peak; a layer's own share is taken from `growth_at`."""
        few, more = (self._run(growth_at, depth, fix) for depth in (_SHALLOW, _SHALLOW + 1))
        return self._run(call, _SHALLOW, fix) + (_deeper(few, more, self.model.layers) - few)

    def _run(self, call: PlannedCall, layers: int, fix: Fix) -> Counter[str]:
        key = (call, layers, fix.id)
        if key not in self._runs:
            self._runs[key] = self._count(self._case(call, layers), fix)
        return self._runs[key]

    def _count(self, case: BuiltCase, fix: Fix) -> Counter[str]:
        if "eager" not in fix.modes:
            raise CallNotRunError("unsupported", "exists only compiled, and a plan is of eager calls")
        try:
            with (
                fake_tensors(self._mode),
                _without_warnings(),
                _autocast_to(self.autocast_dtype),
                fix.applied(case.model) as applied,
            ):
                counter = counted_call(applied, applied.prepare(case.inputs), self._counter())
        except UNPLANNABLE as error:
            raise CallNotRunError("unsupported", f"cannot be planned: {first_line(error)}") from error
        except UnsupportedError as error:
            raise CallNotRunError("unsupported", str(error)) from error
        except (RuntimeError, TypeError, ValueError) as error:  # torch's own, of operands that do not agree
            if is_fault_of_the_suite(error):
                raise
            raise CallNotRunError("raises", first_line(error)) from error
        library = self.device.library_bytes if self.device is not None and counter.multiplies else 0
        return Counter(
            call=counter.peak_bytes, scratch=counter.scratch_bytes, casts=counter.casts_at_peak_bytes, library=library
        )

    def _counter(self) -> AllocationCounter:
        device = self.device
        if device is None:
            return AllocationCounter()
        return AllocationCounter(
            lambda dtype, shares_heads, has_mask: device.attends_plainly(
                dtype, shares_heads=shares_heads, has_mask=has_mask
            )
        )

    def _largest_length(self, call: PlannedCall, fix: Fix, budget_bytes: int) -> int:
        """Find the longest length whose total fits; totals grow with the length."""

        def total(length: int) -> int:
            longer = replace(call, length=length)
            peak = self._peak(longer, fix, growth_at=call)
            return self._stored(longer, fix).total() + peak["call"] + peak["library"] + peak["scratch"]

        most = self.model.longest or LONGEST
        return largest_within(total, budget_bytes, least=call.tokens, start=call.length, most=most)


def largest_within(size: Callable[[int], int], budget: int, *, least: int, start: int, most: int) -> int:
    """Return the largest n in [least, most] with ``size(n) <= budget``, 0 where there is none; size grows with n.

    Sizes are nearly linear or quadratic, so the line through the last two tries leads there in few steps. Where it does
    not, the bracket is halved.
    """
    low, high = least - 1, most + 1
    tries: list[tuple[int, int]] = []
    guess = start
    while high - low > 1:
        tries.append((guess, size(guess)))
        low, high = (guess, high) if tries[-1][1] <= budget else (low, guess)
        if len(tries) == 1:
            guess = guess * _STRIDE if low == guess else guess // _STRIDE
        else:
            (n0, size0), (n1, size1) = tries[-2:]
            slow = len(tries) > _LINES or size0 == size1
            guess = (low + high) // 2 if slow else n1 + int((budget - size1) * (n1 - n0) // (size1 - size0))
        guess = min(max(guess, low + 1), high - 1)
    return low if low >= least else 0


def _deeper(few: Counter[str], more: Counter[str], layers: int) -> Counter[str]:
    """Extrapolate from `_SHALLOW` layers to all; a model that has no more is measured as it is."""
    further = max(0, layers - _SHALLOW)
    return Counter({key: few[key] + further * (more[key] - few[key]) for key in few.keys() | more.keys()})


def _kind(name: str, tensor: torch.Tensor) -> str:
    if isinstance(tensor, nn.Parameter):
        return "weights"
    return "cache" if is_cache(name) else "buffers"


@contextmanager
def _autocast_to(dtype: torch.dtype) -> Iterator[None]:
    """Choose autocast's dtype: fake tensors are on the CPU whatever is planned for."""
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", dtype)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hold back torch's warning about mixed dtypes in its norm: a plan says what they cost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def plan_all(
    planner: Planner, call: PlannedCall, fixes: Iterable[Fix] = FIXES, *, device_memory_bytes: int | None = None
) -> list[FixPlan]:
    return [planner.plan(call, fix, device_memory_bytes=device_memory_bytes) for fix in fixes]


def plan_table(
    model: PlannedModel, call: PlannedCall, plans: Sequence[FixPlan], *, device_memory_bytes: int | None
) -> Table:
    columns = ["fix", "weights", "cache", "call", "casts", "total", "at most"]
    if device_memory_bytes:
        columns += ["fits"] if model.as_built else ["fits", "longest"]
    rows = []
    for plan in plans:
        sizes = (plan.weights_bytes, plan.cache_bytes, plan.call_bytes, plan.casts_bytes)
        total = "raises" if plan.status == "raises" else memory_text(plan.total_bytes)
        longest = MISSING if plan.largest_length is None else str(plan.largest_length)
        row = (plan.fix, *map(memory_text, sizes), total, memory_text(plan.total_high_bytes))
        rows.append((*row, yes_no(plan.fits), longest)[: len(columns)])
    size = "as built" if model.as_built else f"batch {call.batch}, length {call.length}"
    within = f", in {memory_text(device_memory_bytes)}" if device_memory_bytes else ""
    return Table(
        title=f"{model.name}, {size}{within}",
        columns=tuple(columns),
        rows=tuple(rows),
        align="l" + "r" * (len(columns) - 1),
        notes=(
            "call: the least that one call holds at its peak; casts: the part of it that is copies into another dtype; "
            "total: on a GPU with the workspace that cuBLAS keeps; at most: with all the scratch memory that kernels "
            "may take",
        ),
    )


def plan_notes(plans: Sequence[FixPlan], *, device_memory_bytes: int | None) -> list[str]:
    """Say what the table cannot: why a fix does not run, and what to do where nothing fits."""
    lines = [f"{plan.fix} {plan.status}: {plan.reason}" for plan in plans if plan.status != "runs"]
    running = [plan for plan in plans if plan.fits is not None]
    if running and not any(plan.fits for plan in running):
        best = min(running, key=lambda plan: plan.total_high_bytes or 0)
        shorter = f"shorten to {best.largest_length}" if best.largest_length else "use a smaller batch or larger device"
        lines.append(
            f"nothing is sure to fit in {memory_text(device_memory_bytes)}: {best.fix} needs least, "
            f"{memory_text(best.total_bytes)} to {memory_text(best.total_high_bytes)}; {shorter}"
        )
    return lines


def together_line(planner: Planner, call: PlannedCall, plans: Sequence[FixPlan], *, memory_bytes: int | None) -> str:
    """Say what timing the fixes side by side takes, and where it is too much."""
    together = planner.together_bytes(call, plans)
    short = memory_bytes is not None and together > memory_bytes
    verdict = f": more than it has, so each is timed alone with {BASELINE}" if short else ""
    return f"run on a GPU times all fixes side by side in about {memory_text(together)}{verdict}"


def device_line(device: Device) -> str:
    kinds = ", ".join(f"{name} {supported.kind}" for name, supported in device.formats().items())
    return f"{device.name}: its format is {device.best_format()}; {kinds}"
