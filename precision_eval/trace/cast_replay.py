"""The casts that a fix inserts at its sites, recorded in one run and applied to the values of another.

Conventions: a *site* is an operation of :mod:`precision_eval.fixes.sites`, a *cast* an operand whose dtype below the
fix's agreement differs from that above it. A *tape* lists the site calls of one run in order of entry. Recorders stand
above and below the agreed functions; what autocast casts is seen inside the site, with autocast's cache of cast
weights off, as a hit in it casts nothing that could be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from precision_eval.core.errors import PrecisionEvalError
from precision_eval.fixes.patches import eager_swaps, install_swaps, no_fused_encoder
from precision_eval.fixes.sites import Function, Site, wrap_site
from precision_eval.trace.observer import InsideOperation, TensorMap
from precision_eval.trace.operations import site_operands, slots_of


class ReplayError(PrecisionEvalError, RuntimeError):
    """The casts of one run cannot be applied in another, as the two do not call the same sites."""


@dataclass(frozen=True)
class Cast:
    operand: str
    before: torch.dtype
    after: torch.dtype

    @property
    def rounds(self) -> bool:
        """Some value of the dtype before is not one of the dtype after."""
        return torch.promote_types(self.before, self.after) is not self.after


@dataclass(frozen=True)
class SiteCall:
    """One call of a site, with the casts that the fix inserted there; calls are equal that differ in dtypes alone."""

    site: str
    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    casts: tuple[Cast, ...] = field(default=(), compare=False)
    output: torch.dtype | None = field(default=None, compare=False)

    def __str__(self) -> str:
        shapes = ", ".join(f"{operand} {shape}" for operand, shape in self.shapes)
        return f"{self.name} of {shapes}"


CastTape = tuple[SiteCall, ...]
Shifts = tuple[torch.Tensor, ...]
Operands = dict[str, torch.Tensor]
Change = Callable[[Site, Operands, list[Cast]], Operands]


def _site_call(site: Site, operands: dict[str, torch.Tensor]) -> SiteCall:
    shapes = tuple((operand, tuple(tensor.shape)) for operand, tensor in operands.items())
    return SiteCall(site.site, site.name, shapes)


class CastRecorder:
    def __init__(self, agreement: str) -> None:
        self.agreement = agreement
        self.calls: list[SiteCall] = []
        self._inside = InsideOperation()
        self._below: list[dict[str, torch.dtype]] = []  # of the site calls in progress, the innermost last
        self._within = ""

    def _recorder_below(self, site: Site, original: Function) -> Function:
        def below(*args: Any, **kwargs: Any) -> Any:
            operands = site_operands(site, args, kwargs)
            outer, self._inside.cast_to = self._inside.cast_to, TensorMap()  # what a site inside casts is its own
            with self._inside if self.agreement == "autocast" else nullcontext():
                result = original(*args, **kwargs)
            self._below.append({name: self._inside.cast_to.get(t) or t.dtype for name, t in operands.items()})
            self._inside.cast_to = outer
            return result

        return below

    def recorder(self, site: Site, original: Function) -> Function:
        agreed = wrap_site(site, self.agreement, self._recorder_below(site, original))

        def above(*args: Any, **kwargs: Any) -> Any:
            if self._within == site.site:  # as in a replay, see below
                return original(*args, **kwargs)
            operands = site_operands(site, args, kwargs)
            before = {name: tensor.dtype for name, tensor in operands.items()}
            index = len(self.calls)
            self.calls.append(_site_call(site, operands))
            outer, self._within = self._within, site.site
            try:
                result = agreed(*args, **kwargs)
            finally:
                self._within = outer
            after = self._below.pop()
            casts = [Cast(name, dtype, after[name]) for name, dtype in before.items() if after[name] is not dtype]
            output = result.dtype if isinstance(result, torch.Tensor) else None
            self.calls[index] = replace(self.calls[index], casts=tuple(casts), output=output)
            return result

        return above


def record_casts(model: nn.Module, inputs: tuple[Any, ...], *, agreement: str) -> tuple[CastTape, Any]:
    """Run a model once in eager under a fix's agreement and record what is cast at its sites."""
    recorder = CastRecorder(agreement)
    device = next((t.device.type for t in chain(model.parameters(), model.buffers())), "cpu")
    casting = torch.autocast(device, cache_enabled=False) if agreement == "autocast" else no_fused_encoder()
    with torch.no_grad(), install_swaps(eager_swaps(model, recorder.recorder)), casting:
        output = model(*inputs)
    return tuple(recorder.calls), output


class _Replay:
    """Goes along the tape from a model's sites; ``change`` gives the operands that a site gets in place of its own."""

    def __init__(self, tape: CastTape | None, change: Change) -> None:
        self.tape = tape
        self.change = change
        self.played = 0
        self._within = ""

    def player(self, site: Site, original: Function) -> Function:
        def play(*args: Any, **kwargs: Any) -> Any:
            # a function mode looks a method up by name, `@` as matmul, so that one call comes to its sites once more
            if self._within == site.site:
                return original(*args, **kwargs)
            operands = site_operands(site, args, kwargs)
            slots, positional, keyword = slots_of(site, args, kwargs), list(args), dict(kwargs)
            for name, tensor in self.change(site, operands, self._next_casts(_site_call(site, operands))).items():
                at = slots[name]
                if isinstance(at, int):
                    positional[at] = tensor
                else:
                    keyword[at] = tensor
            outer, self._within = self._within, site.site
            try:
                return original(*positional, **keyword)
            finally:
                self._within = outer

        return play

    def run(self, model: nn.Module, inputs: tuple[Any, ...]) -> Any:
        with torch.no_grad(), no_fused_encoder(), install_swaps(eager_swaps(model, self.player)):
            output = model(*inputs)
        if self.tape is not None and self.played < len(self.tape):
            raise ReplayError(
                f"the replay made {self.played} site calls, but {len(self.tape)} were recorded; "
                f"the first one missing is {self.tape[self.played]}"
            )
        return output

    def _next_casts(self, call: SiteCall) -> list[Cast]:
        """Move on by one call; return the casts that round in it."""
        if self.tape is None:
            return []
        if self.played == len(self.tape):
            raise ReplayError(f"the replay calls {call} after the {len(self.tape)} site calls that were recorded")
        expected = self.tape[self.played]
        if expected != call:
            raise ReplayError(
                f"site call {self.played + 1} of the replay is {call}, but {expected} was recorded; "
                "the model must call the same operations whatever its dtype is"
            )
        self.played += 1
        return [cast for cast in expected.casts if cast.rounds]


def run_in_float64(model: nn.Module, inputs: tuple[Any, ...], *, tape: CastTape | None = None) -> tuple[Any, Shifts]:
    """Run a float64 model, rounding at its sites what was cast on a tape; also return what each cast changed."""
    shifts: list[torch.Tensor] = []

    def round_casts(site: Site, operands: Operands, casts: list[Cast]) -> Operands:
        for name, tensor in operands.items():
            # a floating mask of zeros and infinities may be of any dtype
            if name != "mask" and tensor.is_floating_point() and tensor.dtype is not torch.float64:
                raise ReplayError(
                    f"the float64 model hands {site.name} a {tensor.dtype} {name}; its source must not name a dtype: "
                    "write `widened(x)` for x.float(), and keep other dtypes as attributes"
                )
        rounded: Operands = {}
        for cast in casts:
            exact = operands[cast.operand]
            tensor = rounded[cast.operand] = exact.to(cast.after).to(exact.dtype)
            shifts.append((tensor - exact).masked_fill(tensor == exact, 0.0).float())  # equal: infinities too
        return rounded

    return _Replay(tape, round_casts).run(model, inputs), tuple(shifts)


def run_shifted(
    model: nn.Module, inputs: tuple[Any, ...], *, dtype: torch.dtype, tape: CastTape | None, shifts: Shifts
) -> Any:
    """Run a model in a dtype below float64, its operands shifted as the replay in float64 shifted them."""
    remaining = iter(shifts)

    def shift(_: Site, operands: Operands, casts: list[Cast]) -> Operands:
        shifted = {cast.operand: operands[cast.operand].float() + next(remaining) for cast in casts}
        return {
            name: tensor.to(dtype)
            for name, tensor in (operands | shifted).items()
            if name not in ("mask", "cache") and tensor.is_floating_point()
        }

    return _Replay(tape, shift).run(model, inputs)
