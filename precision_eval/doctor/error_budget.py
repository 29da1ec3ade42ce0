"""What the rounding at each line of a model adds to its drift; imports torch.

Conventions: a *step* is one operation of a call. The model runs in float64, and the results of chosen steps are rounded
to the formats that the model itself gives them; how far the output then is from that of the float64 run is the *share*
of those steps. The line with the largest share is found by halving. What rounds out of torch's sight, as numpy or a
kernel does, rounds in float64 too: it shows in values that hold no more digits than a narrow format.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from precision_eval.doctor.source import line_of
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import in_wide, run_as
from precision_eval.measure.model_calls import attempt, copied, module_paths, relative_error
from precision_eval.trace.dtype_flow import TURNING, Event, floating_operands, line_outside
from precision_eval.trace.observer import ModuleCall, ModuleCalls, TensorMap
from precision_eval.trace.operations import PART_DTYPES, Key, OperationKind, kind_of, name_of, python_body
from precision_eval.trace.provenance import Provenance, modules_by_path, named_tensors
from precision_eval.trace.value_counts import unwrapped

MOST_LINES = 3
"""Lines that are told as one where none of them outweighs the others by itself."""

ALIKE = 0.1
"""Of what a line adds: with as much, a line before it that does the same is where the change begins."""

A_TENTH, HALF_OF_IT = 0.1, 0.5
"""Of a drift: with less than the first no line is looked at further, since what several lines round may come to far
more together than alone; with less than the second no further lines are told with one.
"""

MOST_BYTES = 1 << 30
"""Results of a call that are kept to find the operation; with more it is not looked for."""


def rounding(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to a format."""
    return float(torch.finfo(dtype).eps) / 2


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether a format has fewer digits than float32."""
    return rounding(dtype) > rounding(torch.float32)


@dataclass(frozen=True)
class TracedStep:
    """One operation of a call, the formats of its results, and where its floating operands stood."""

    name: str
    sort: OperationKind
    dtypes: tuple[torch.dtype, ...]
    code: CodeType
    instruction: int
    of_module: bool
    call: ModuleCall | None
    keys: tuple[Key, ...]
    occurrence: int  # of this operation at this place in the call

    @property
    def identity(self) -> Hashable:
        """By what the step is found in the float64 run, which leaves out casts that a code makes of narrower values."""
        return self.code, self.instruction, self.name, self.occurrence

    @property
    def dtype(self) -> torch.dtype:
        """Format of the first result."""
        return self.dtypes[0]

    @property
    def is_narrow(self) -> bool:
        """Whether a result has fewer digits than float32."""
        return any(map(is_narrow, self.dtypes))

    @property
    def line(self) -> tuple[str, int]:
        """File and number of its line."""
        return self.code.co_filename, line_of(self.code, self.instruction)

    @property
    def event(self) -> Event:
        """The rounding of what it returns."""
        operands: list[tuple[Key, tuple[int, ...], Provenance]] = [
            (key, (), Provenance("op", "", self.dtype)) for key in self.keys
        ]
        line = self.code, self.instruction
        return Event("drift", 0, self.name, self.sort, line, self.call, operands, self.dtype, self.of_module)


@dataclass(frozen=True)
class Share:
    """The lines that add most to a drift: the first step that rounds there, what they add, and what all others do."""

    step: TracedStep
    lines: int
    own: float
    others: float
    is_of_whole_numbers: bool
    work: torch.dtype  # the format of most products


class Steps(TorchFunctionMode):
    """Notes what each operation of a call returns; some are of another call too, and rounded here as there."""

    def __init__(
        self,
        model: ExaminedModel,
        rounded: dict[int, TracedStep],
        *,
        origins: TensorMap[bool] | None = None,
        keeps: bool = False,
    ) -> None:
        super().__init__()
        self.keeps = keeps
        self.results: list[tuple[TracedStep, torch.Tensor]] = []  # of each step that makes new numbers
        self.room_bytes = MOST_BYTES
        self.origins = origins  # of every tensor that was stored, or that an operation of torch made
        self.unseen: list[tuple[int, torch.dtype]] = []  # steps that were given others, which hold so few digits
        self.modules = ModuleCalls(module_paths(modules_by_path(model), model.prefix))
        self.rounded = {step.identity: step for step in rounded.values()}
        self.occurrences: Counter[Hashable] = Counter()
        self.steps: list[TracedStep] = []
        self.angles: list[torch.Tensor] = []
        self.outputs: tuple[torch.Tensor, ...] = ()
        self.rounds_whole_numbers = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, note what it returns and round that."""
        if body := python_body(func):
            with self:
                return body(*args, **(kwargs or {}))
        if name_of(func) in TURNING and isinstance(args[-1], torch.Tensor):
            self.angles.append(args[-1].detach().clone())
        result = func(*args, **(kwargs or {}))
        if self.origins is not None:
            self._look(func, args, kwargs, result)
        if kind_of(func) in (OperationKind.SKIP, OperationKind.DTYPE, OperationKind.VIEW):
            return result
        writes = result is None and args
        results = (args[0],) if writes else result if isinstance(result, tuple | list) else (result,)
        floats = [
            part
            for part in results
            if isinstance(part, torch.Tensor) and (part.is_floating_point() or part.is_complex())
        ]
        if not floats:
            return result
        line, name = line_outside(sys._getframe(1)), name_of(func)
        self.occurrences[line[:2], name] += 1
        dtypes = tuple(PART_DTYPES.get(part.dtype, part.dtype) for part in floats)
        keys = tuple(key for key, _ in floating_operands(args, kwargs))
        occurrence = self.occurrences[line[:2], name]
        self.steps.append(TracedStep(name, kind_of(func), dtypes, *line, self.modules.current, keys, occurrence))
        if self.keeps and self.steps[-1].sort is not OperationKind.CAST and not floats[0].is_complex():
            self.room_bytes -= floats[0].nbytes
            if self.room_bytes >= 0:
                self.results.append((self.steps[-1], unwrapped(floats[0]).detach().clone()))
        to = self.rounded.get(self.steps[-1].identity)
        if to is None:
            return result
        with torch._C.DisableTorchFunction():
            rounded = {id(part): _rounded(part, dtype) for part, dtype in zip(floats, to.dtypes, strict=False)}
            self.rounds_whole_numbers |= any(_is_another_whole_number(part, rounded[id(part)]) for part in floats)
            given = {id(value) for value in (*args, *(kwargs or {}).values()) if isinstance(value, torch.Tensor)}
            if kind_of(func) is not OperationKind.CAST:  # a cast that does nothing gives back what it was given
                for part in floats:
                    if writes or id(part) in given:
                        part.copy_(rounded[id(part)])
                        rounded[id(part)] = part
        return result if writes else _with(result, rounded)

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        """Note what an operation is given that torch did not make, and that holds few digits."""
        assert self.origins is not None
        with torch._C.DisableTorchFunction():
            for _, tensor in floating_operands(args, kwargs):
                if self.origins.get(tensor) is None:
                    self.origins[tensor] = True
                    self.unseen += [(len(self.steps), dtype) for dtype in _digits(tensor)]
            of_torch = not isinstance(func, OpOverload | OpOverloadPacket)
            for part in result if isinstance(result, tuple | list) else (result,):
                if isinstance(part, torch.Tensor):
                    self.origins[part] = True
                    if not of_torch and part.is_floating_point():
                        self.unseen += [(len(self.steps), dtype) for dtype in _digits(part)]


def _digits(tensor: torch.Tensor) -> tuple[torch.dtype, ...]:
    """The narrow format that holds all values of a tensor; none where they are whole numbers, or few bits hold them."""
    if functorch.is_functorch_wrapped_tensor(tensor) or tensor.device.type == "meta":
        return ()
    values = _real(tensor).double()
    values = values[values.isfinite()]
    eighths = torch.frexp(values).mantissa * 16
    if bool((eighths == eighths.round()).all()) or bool((values == values.round()).all()):
        return ()
    return tuple(d for d in (torch.bfloat16, torch.float16) if torch.equal(values.to(d).double(), values))[:1]


def _is_another_whole_number(exact: torch.Tensor, rounded: torch.Tensor) -> bool:
    one, other = _real(exact), _real(rounded)
    return bool((one == one.round()).all()) and not torch.equal(one, other)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.requires_grad:  # a gradient through the cast would be rounded too, and may overflow
        return tensor + (_rounded(tensor.detach(), dtype) - tensor.detach())
    parts = _real(tensor)
    back = parts.to(dtype).to(parts.dtype)
    return torch.view_as_complex(back) if tensor.is_complex() else back


def _with(result: Any, rounded: dict[int, torch.Tensor]) -> Any:
    """Put rounded tensors in the place of what an operation returned."""
    if isinstance(result, torch.Tensor):
        return rounded[id(result)]
    parts = [rounded.get(id(part), part) for part in result]
    return type(result)(parts)  # also torch's named tuples


def stepped(
    model: ExaminedModel,
    inputs: tuple[torch.Tensor, ...],
    rounded: dict[int, TracedStep],
    **options: Any,
) -> Steps:
    """Run a model step by step, with options of :class:`Steps`."""
    follower = Steps(model, rounded, **options)
    with torch.no_grad(), follower.modules.followed(), follower:
        follower.outputs = attempt(lambda: model(*inputs)).outputs or ()
    return follower


def steps_of(subject: ExaminedModel) -> list[TracedStep]:
    """Run a copy as it is."""
    model = copied(subject)
    return stepped(model, model.tensors, {}).steps


def rounded_run(subject: ExaminedModel, rounded: dict[int, TracedStep], **options: Any) -> Steps:
    """Run a float64 copy some of whose results are rounded."""
    runs: list[Steps] = []

    def through(twin: ExaminedModel, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        runs.append(stepped(twin, inputs, rounded, **options))
        return runs[-1].outputs

    run_as(subject, in_wide, torch.float64, through=through)
    return runs[-1]


def kept_results(
    subject: ExaminedModel,
) -> tuple[list[tuple[TracedStep, torch.Tensor]], dict[Hashable, torch.Tensor]]:
    """What each step of a model gave that makes new numbers, and what those of a float64 copy did, by identity."""
    model = copied(subject)
    own, exact = stepped(model, model.tensors, {}, keeps=True), rounded_run(subject, {}, keeps=True)
    if min(own.room_bytes, exact.room_bytes) < 0:
        return [], {}
    return own.results, {step.identity: result for step, result in exact.results}


def rounded_unseen(subject: ExaminedModel) -> tuple[TracedStep, torch.dtype] | None:
    """The first step that is given what was rounded out of torch's sight to fewer digits than it works in itself."""
    model = copied(subject)
    origins: TensorMap[bool] = TensorMap()
    for _, _, tensor in named_tensors(model, model.tensors):
        origins[tensor] = True
    run = stepped(model, model.tensors, {}, origins=origins)
    given = ((run.steps[at], dtype) for at, dtype in run.unseen if at < len(run.steps))
    return next(((step, dtype) for step, dtype in given if rounding(dtype) > rounding(step.dtype)), None)


def drift_between(rounded: Steps, exact: Steps) -> float:
    """Largest relative error of the outputs."""
    return max((relative_error(a, b) for a, b in zip(rounded.outputs, exact.outputs, strict=False)), default=0.0)


def first_rounding(
    subject: ExaminedModel, error: Callable[[Steps, Steps], float], most: float
) -> tuple[TracedStep | None, float]:
    """The first operation the rounding of whose result, and of all before, brings an error beyond the most, and what
    all bring; None where rounding results does not.
    """
    steps = steps_of(subject)
    exact = rounded_run(subject, {})
    low, high = 0, len(steps)
    total = error(rounded_run(subject, dict(enumerate(steps))), exact)
    if not total > most or not steps:
        return None, total
    while high - low > 1:
        middle = (low + high) // 2
        is_beyond = error(rounded_run(subject, dict(enumerate(steps[:middle]))), exact) > most
        low, high = (low, middle) if is_beyond else (middle, high)
    return steps[high - 1], total


class _Budget:
    """The steps of a call, and what rounding some of them adds."""

    def __init__(self, subject: ExaminedModel, steps: list[TracedStep]) -> None:
        self.subject, self.steps = subject, steps
        self.exact = rounded_run(subject, {})

    def error(self, chosen: Collection[int]) -> float:
        """Drift where the chosen steps round."""
        return drift_between(rounded_run(self.subject, {at: self.steps[at] for at in chosen}), self.exact)

    def largest(
        self, chosen: Sequence[int], key: Callable[[TracedStep], Hashable], least: float
    ) -> tuple[list[int], float]:
        """Of groups of steps that are alike in the key the one that adds most, by halving; none where it adds less."""
        groups: dict[Hashable, list[int]] = {}
        for at in chosen:
            groups.setdefault(key(self.steps[at]), []).append(at)
        parts = list(groups.values())
        error = self.error(chosen) if len(parts) < 2 else float("inf")
        while len(parts) > 1:
            halves = parts[: len(parts) // 2], parts[len(parts) // 2 :]
            errors = [self.error([at for part in half for at in part]) for half in halves]
            error = max(errors)
            if not error >= least:
                return [], error
            parts = halves[errors.index(error)]
        return (parts[0] if parts and error >= least else []), error

    def first_alike(self, line: list[int], own: float, narrow: list[int]) -> int:
        """The step of a line that adds most, or its first; of a line before, where that does alike."""
        at = self.steps[line[0]]
        before: dict[Hashable, list[int]] = {}
        for other in narrow:
            step = self.steps[other]
            if (step.code, step.name) == (at.code, at.name) and other < line[0] and step.line != at.line:
                before.setdefault(step.line, []).append(other)
        for steps in before.values():
            if self.error(steps) > ALIKE * own:
                return steps[0]
        most, _ = self.largest(line, lambda step: (step.call and step.call.path, step.instruction), HALF_OF_IT * own)
        return (most or line)[0]


def largest_shares(subject: ExaminedModel) -> Iterator[Share]:
    """The line whose rounding adds most to a drift, then that and the next ones together, up to so many."""
    steps = steps_of(subject)
    narrow = [at for at, step in enumerate(steps) if step.is_narrow]
    if not narrow:
        return
    budget, every, chosen = _Budget(subject, steps), set(range(len(steps))), set[int]()
    work, others, least = _working_format(steps), budget.error(every), A_TENTH
    told: list[tuple[int, float]] = []  # of each line its first step, and what it adds
    for count in range(1, MOST_LINES + 1):
        left = [at for at in narrow if at not in chosen]
        line, own = budget.largest(left, lambda step: step.line, least * others)
        if not line or not own > 0:
            return
        chosen |= set(line)
        is_most, least = own >= HALF_OF_IT * others, HALF_OF_IT
        others = budget.error(every - chosen)
        told.append((line[0], own))
        first = min(at for at, adds in told if adds >= ALIKE * told[0][1])  # what adds little is not where it begins
        first = budget.first_alike(line, own, narrow) if count == 1 else first
        alone = rounded_run(subject, {at: steps[at] for at in chosen})
        own = drift_between(alone, budget.exact)
        yield Share(steps[first], count, own, others, alone.rounds_whole_numbers, work)
        if not is_most:
            return


def _working_format(steps: list[TracedStep]) -> torch.dtype:
    """The format in which most products are: autocast around a whole model makes it that of the model."""
    kinds = (OperationKind.PRODUCT, OperationKind.ATTENTION, OperationKind.RNN)
    formats = Counter(step.dtype for step in steps if step.sort in kinds)
    return formats.most_common(1)[0][0] if formats else torch.float32
