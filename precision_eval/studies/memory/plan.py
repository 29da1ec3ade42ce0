"""Memory of a model under each fix, and the largest length that fits a device: real calls on fake tensors, counted.

Sizes are bytes, shown in powers of 1024. *Length* is the slots of a decoder's cache, or the tokens of an encoder alone;
*batch* is sequences, and a model that runs conditional and unconditional rows side by side has twice as many rows. A
total is a range: from what the call's tensors take on every machine to that plus a bound on the scratch memory of its
kernels.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from precision_eval.cases.base import BuiltCase
from precision_eval.core.cells import is_fault_of_the_suite
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.core.formatting import MISSING, bytes_of, memory_text, yes_no
from precision_eval.core.table import Table
from precision_eval.core.targets import first_line
from precision_eval.fixes.catalog import FIXES, Fix
from precision_eval.studies.memory.counting import UNPLANNABLE, counted_call, fake_tensors, stored_bytes
from precision_eval.studies.memory.devices import FormatChoice
from precision_eval.studies.memory.models import PlannedCall, PlannedModel, is_cache

PlanStatus = Literal["runs", "raises", "unsupported"]
LONGEST = 1 << 22
"""Where the search for the largest length ends."""
_LINES, _STRIDE = 8, 4
"""Of the search for a length: tries that follow a line before halving begins, and how far the second try goes."""
_SHALLOW = 2
"""Layers of the models that are run. A call's peak lies in any layer but the first, so two layers show it; what three
layers need beyond two, each further layer needs: its weights, its caches, and the copies that autocast keeps."""


@dataclass(frozen=True, kw_only=True)
class FixPlan:
    """Memory of a model under one fix; sizes are None where the call does not run.

    ``call_bytes`` is the least peak of the call above what is stored, ``workspace_bytes`` what its kernels may add to
    it at most, ``casts_bytes`` the part of it that is copies into another dtype.
    """

    fix: str
    status: PlanStatus
    reason: str = ""
    weights_bytes: int = 0
    self_cache_bytes: int = 0
    cross_cache_bytes: int = 0
    buffer_bytes: int = 0
    activations_bytes: int | None = None
    casts_bytes: int | None = None
    call_bytes: int | None = None
    workspace_bytes: int | None = None
    total_bytes: int | None = None
    total_high_bytes: int | None = None
    phase: str = ""
    fits: bool | None = None
    largest_length: int | None = None
    limited_by: str = ""

    @property
    def stored_bytes(self) -> int:
        """Weights, caches and buffers."""
        return self.weights_bytes + self.self_cache_bytes + self.cross_cache_bytes + self.buffer_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"stored_bytes": self.stored_bytes}


class PhaseNotRunError(Exception):
    """A phase does not run under a fix: the status and the reason."""

    def __init__(self, status: PlanStatus, reason: str) -> None:
        super().__init__(reason)
        self.status: PlanStatus = status
        self.reason = reason


class Planner:
    """Plans one model; what was built and run is kept, so that no length is run twice under one fix."""

    def __init__(
        self,
        model: PlannedModel,
        *,
        autocast_dtype: torch.dtype = torch.bfloat16,
        math_attention: bool = False,
    ) -> None:
        self.model = model
        self.autocast_dtype = autocast_dtype
        self.math_attention = math_attention
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)  # a module's tensors that it has not registered
        self._cases: dict[tuple[str, PlannedCall, int], BuiltCase] = {}
        self._runs: dict[tuple[str, PlannedCall, int, str], Counter[str]] = {}

    def plan(self, call: PlannedCall, fix: Fix, *, device_memory_bytes: int | None = None) -> FixPlan:
        """Plan one fix; fits and largest length are for the upper end of the total, so they hold on any machine."""
        self.model.check(call)
        stored = self._stored(call, fix)
        plan = FixPlan(
            fix=fix.id,
            status="runs",
            weights_bytes=stored["weights"],
            self_cache_bytes=stored["self_cache"],
            cross_cache_bytes=stored["cross_cache"],
            buffer_bytes=stored["buffers"],
        )
        try:
            phase, peak = self._peak(call, fix, growth_at=call)
        except PhaseNotRunError as failure:
            return replace(plan, status=failure.status, reason=failure.reason)
        plan = replace(
            plan,
            activations_bytes=peak["call"] - peak["casts"],
            casts_bytes=peak["casts"],
            call_bytes=peak["call"],
            workspace_bytes=peak["scratch"],
            total_bytes=stored.total() + peak["call"],
            total_high_bytes=stored.total() + peak["call"] + peak["scratch"],
            phase=phase,
        )
        if device_memory_bytes is None:
            return plan
        length, limited_by = (None, "") if self.model.as_built else self._largest_length(call, fix, device_memory_bytes)
        fits = stored.total() + peak["call"] + peak["scratch"] <= device_memory_bytes
        return replace(plan, fits=fits, largest_length=length, limited_by=limited_by)

    def parameter_count(self, call: PlannedCall) -> int:
        """Count the model's parameters, each once."""

        def count(case: BuiltCase) -> Counter[str]:
            return Counter(parameters=sum(parameter.numel() for parameter in case.model.parameters()))

        return sum(self._at_full_depth(phase, call, count)["parameters"] for phase in self.model.layers)

    def _at_full_depth(
        self, phase: str, call: PlannedCall, measure: Callable[[BuiltCase], Counter[str]]
    ) -> Counter[str]:
        """Measure two shallow models and go on to the model's own depth."""
        few, more = (measure(self._case(phase, call, layers)) for layers in (_SHALLOW, _SHALLOW + 1))
        return _deeper(few, more, self.model.layers[phase])

    def _case(self, phase: str, call: PlannedCall, layers: int) -> BuiltCase:
        key = (phase, self._of_phase(phase, call), layers)
        if key not in self._cases:
            with fake_tensors(self._mode), _quiet():
                self._cases[key] = self.model.build(*key)
        return self._cases[key]

    def _of_phase(self, phase: str, call: PlannedCall) -> PlannedCall:
        """Leave out what a phase does not depend on: an encoder beside a decoder reads texts of one length."""
        beside_decoder = phase == "encode" and "decode" in self.model.layers
        return replace(call, length=self.model.default_length, tokens=1) if beside_decoder else call

    def _stored(self, call: PlannedCall, fix: Fix) -> Counter[str]:
        """Bytes of weights, caches and buffers under a fix, at the model's own depth."""

        def stored(case: BuiltCase) -> Counter[str]:
            with fake_tensors(self._mode), ExitStack() as stack:
                if "eager" in fix.modes:
                    with suppress(UnsupportedError):  # a fix that cannot be applied leaves the model as it is
                        stack.enter_context(fix.applied(case.model).stored())
                return stored_bytes(case.model, kind=_kind)

        total: Counter[str] = Counter()
        for phase in self.model.layers:
            total += self._at_full_depth(phase, call, stored)
        return total

    def _peak(self, call: PlannedCall, fix: Fix, *, growth_at: PlannedCall) -> tuple[str, Counter[str]]:
        """Return the phase with the highest peak, and its figures; a layer's own share is taken from `growth_at`."""
        phases = {}
        for phase, layers in self.model.layers.items():
            few, more = (self._run(phase, growth_at, depth, fix) for depth in (_SHALLOW, _SHALLOW + 1))
            here = self._run(phase, call, _SHALLOW, fix)
            phases[phase] = here + (_deeper(few, more, layers) - few)
        return max(phases.items(), key=lambda item: item[1]["call"] + item[1]["scratch"])

    def _run(self, phase: str, call: PlannedCall, layers: int, fix: Fix) -> Counter[str]:
        """Run a phase once under a fix, on fake tensors."""
        key = (phase, self._of_phase(phase, call), layers, fix.id)
        if key not in self._runs:
            self._runs[key] = self._counted(self._case(phase, call, layers), fix)
        return self._runs[key]

    def _counted(self, case: BuiltCase, fix: Fix) -> Counter[str]:
        if "eager" not in fix.modes:
            raise PhaseNotRunError("unsupported", "exists only compiled, and a plan is of eager calls")
        if (
            fix.caches
            and len(self.model.layers) > 1
            and not any(is_cache(name) for name, _ in case.model.named_buffers())
        ):
            fix = replace(fix, caches="")  # an encoder; the decoder beside it has them
        try:
            with fake_tensors(self._mode), _quiet(), self._settings(), fix.applied(case.model) as applied:
                inputs = applied.prepare(case.inputs)
                counter = counted_call(applied, inputs)
        except UNPLANNABLE as error:
            raise PhaseNotRunError("unsupported", f"cannot be planned: {first_line(error)}") from error
        except UnsupportedError as error:
            raise PhaseNotRunError("unsupported", str(error)) from error
        except (RuntimeError, TypeError, ValueError) as error:  # torch's own, of operands that do not agree
            if is_fault_of_the_suite(error):
                raise
            raise PhaseNotRunError("raises", first_line(error)) from error
        return Counter(call=counter.peak_bytes, scratch=counter.scratch_bytes, casts=counter.casts_at_peak_bytes)

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Choose the attention kernel and autocast's dtype: fake tensors are on the CPU whatever is planned for."""
        before = torch.get_autocast_dtype("cpu")
        torch.set_autocast_dtype("cpu", self.autocast_dtype)
        try:
            with sdpa_kernel(SDPBackend.MATH) if self.math_attention else nullcontext():
                yield
        finally:
            torch.set_autocast_dtype("cpu", before)

    def _largest_length(self, call: PlannedCall, fix: Fix, budget_bytes: int) -> tuple[int, str]:
        """Find the longest length whose total fits; totals grow with the length."""

        def total(length: int) -> int:
            longer = replace(call, length=length)
            _, peak = self._peak(longer, fix, growth_at=call)
            return self._stored(longer, fix).total() + peak["call"] + peak["scratch"]

        most = self.model.longest or LONGEST
        length = largest_within(total, budget_bytes, least=call.tokens, start=call.length, most=most)
        if length < most:
            return length, "memory"
        return length, "search" if self.model.longest is None else "positions"


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
    """Go on from `_SHALLOW` layers to all; a model that has no more is measured as it is."""
    further = max(0, layers - _SHALLOW)
    return Counter({key: few[key] + further * (more[key] - few[key]) for key in few.keys() | more.keys()})


def _kind(name: str, tensor: torch.Tensor) -> str:
    if isinstance(tensor, nn.Parameter) or getattr(tensor, "per", "") == "row":  # those of caches have other groups
        return "weights"
    if is_cache(name):
        return "cross_cache" if "cross" in name else "self_cache"
    return "buffers"


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back torch's warning about mixed dtypes in its norm: a plan says what they cost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def plan_all(
    planner: Planner, call: PlannedCall, fixes: Iterable[Fix] = FIXES, *, device_memory_bytes: int | None = None
) -> list[FixPlan]:
    """Plan several fixes, in their order."""
    return [planner.plan(call, fix, device_memory_bytes=device_memory_bytes) for fix in fixes]


def parse_bytes(text: str) -> int:
    """Read a size."""
    size = bytes_of(text)
    if size is None:
        raise ParameterError(f"device memory '{text}' is no size; write a number and a unit, such as 16GiB or 15.8GB")
    if size < 1:
        raise ParameterError(f"device memory '{text}' is nothing; give the memory of the device, such as 16GiB")
    return size


def _longest(plan: FixPlan) -> str:
    if plan.largest_length is None:
        return MISSING
    marks = {"positions": f"{plan.largest_length}*", "search": f">{plan.largest_length}"}
    return marks.get(plan.limited_by, str(plan.largest_length))


def plan_table(
    model: PlannedModel, call: PlannedCall, plans: Sequence[FixPlan], *, device_memory_bytes: int | None
) -> Table:
    """Lay the plans out, one row per fix."""
    within = f", in {memory_text(device_memory_bytes)}" if device_memory_bytes else ""
    columns = ["fix", "weights", "cache", "call", "casts", "total", "at most"]
    rows = []
    for plan in plans:
        sizes = (plan.weights_bytes, plan.self_cache_bytes + plan.cross_cache_bytes, plan.call_bytes, plan.casts_bytes)
        total = "raises" if plan.status == "raises" else memory_text(plan.total_bytes)
        row = [plan.fix, *map(memory_text, sizes), total, memory_text(plan.total_high_bytes)]
        fits = [yes_no(plan.fits), *([] if model.as_built else [_longest(plan)])]
        rows.append((*row, *fits) if device_memory_bytes else tuple(row))
    if device_memory_bytes:
        columns += ["fits"] if model.as_built else ["fits", "longest"]
    return Table(
        title=f"{model.name}, {'as built' if model.as_built else f'batch {call.batch}, length {call.length}'}{within}",
        columns=tuple(columns),
        rows=tuple(rows),
        align="l" + "r" * (len(columns) - 1),
        notes=(
            "call: the least that one call holds at its peak; casts: the part of it that is copies into another dtype; "
            "at most: with all the scratch memory that its kernels may take",
        ),
    )


def plan_notes(
    model: PlannedModel, call: PlannedCall, plans: Sequence[FixPlan], *, device_memory_bytes: int | None
) -> list[str]:
    """Say what the table cannot: why a fix does not run, what the model asks for, what to do where nothing fits."""
    lines = [f"{plan.fix} {plan.status}: {plan.reason}" for plan in plans if plan.status != "runs"]
    if any(plan.limited_by == "positions" for plan in plans):
        lines.append(f"* all {model.longest} learned positions")
    if model.keeps_wide:
        lines.append(
            f"the fix float16, or .half(), also stores the projection '{model.keeps_wide}' in float16, which the "
            "source keeps in float32 because it overflows (cogvideo-t5-encoder ends in NaN): on a device whose format "
            "is float16 take --dtype float16 with the fix as_shipped, which keeps it"
        )
    lines += model.notes
    if call.length > model.default_length:
        lines.append(f"length {call.length} is beyond the configuration's longest, {model.default_length}")
    running = [plan for plan in plans if plan.fits is not None]
    if running and not any(plan.fits for plan in running):
        best = min(running, key=lambda plan: plan.total_high_bytes or 0)
        remedy = (
            f"shorten to {best.largest_length}" if best.largest_length else "use a smaller batch or a larger device"
        )
        lines.append(
            f"nothing is sure to fit in {memory_text(device_memory_bytes)}: {best.fix} needs least, "
            f"{memory_text(best.total_bytes)} to {memory_text(best.total_high_bytes)}; {remedy}"
        )
    return lines


def device_lines(choices: Sequence[FormatChoice]) -> list[str]:
    """Say for each device which format is its own, and which are native; :func:`plan_notes` speaks of the model."""
    lines = []
    for choice in choices:
        kinds = ", ".join(f"{name} {support.kind}" for name, support in choice.formats.items())
        lines.append(f"{choice.device}: its format is {choice.dtype}; {kinds}")
    if len(choices) == 1:
        lines += [f"  {reason}" for reason in choices[0].reasons]
    return lines
