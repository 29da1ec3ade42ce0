"""The casts that a fix inserts at its sites, recorded in one run and applied to the values of another.

Conventions: a *site* is an operation of :mod:`precision_eval.fixes.sites`, a *cast* an operand whose dtype below the
fix's agreement differs from that above it. A *tape* lists the site calls of one run in order of entry. Recorders stand
above and below the agreed functions; what autocast casts is seen by a dispatch mode inside the site, with autocast's
cache of cast weights off, as a hit in it casts nothing that could be seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from precision_eval.core.errors import PrecisionEvalError
from precision_eval.fixes.patches import eager_swaps, no_fused_encoder, swapped
from precision_eval.fixes.sites import Function, Site, make_agreed

#: Site → operand → its position and the keywords that it goes by; cache writes differ, so they stand under their names.
SLOTS: dict[str, dict[str, tuple[int, tuple[str, ...]]]] = {
    "sdpa": {"query": (0, ("query",)), "key": (1, ("key",)), "value": (2, ("value",)), "mask": (3, ("attn_mask",))},
    "linear": {"input": (0, ("input",)), "weight": (1, ("weight",)), "bias": (2, ("bias",))},
    "matmul": {"left": (0, ("input",)), "right": (1, ("other", "mat2"))},
    "norm": {"input": (0, ("input",)), "weight": (2, ("weight",)), "bias": (3, ("bias",))},
    "index_put_": {"cache": (0, ()), "value": (2, ("values",))},
    "index_copy_": {"cache": (0, ()), "value": (3, ("source",))},
    "__setitem__": {"cache": (0, ()), "value": (2, ())},
}


class ReplayError(PrecisionEvalError, RuntimeError):
    """The casts of one run cannot be applied in another, as the two do not call the same sites."""


@dataclass(frozen=True)
class Cast:
    """One operand of one site call, cast."""

    operand: str
    before: torch.dtype
    after: torch.dtype

    @property
    def rounds(self) -> bool:
        """Some value of the dtype before is not one of the dtype after."""
        return torch.promote_types(self.before, self.after) is not self.after


@dataclass(frozen=True)
class SiteCall:
    """One call of a site, with the casts that the fix inserted there."""

    site: str
    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    casts: tuple[Cast, ...] = ()
    output: torch.dtype | None = None

    def same_call(self, other: SiteCall) -> bool:
        """Whether two runs do the same thing here, dtypes apart."""
        return (self.site, self.name, self.shapes) == (other.site, other.name, other.shapes)

    def __str__(self) -> str:
        shapes = ", ".join(f"{operand} {shape}" for operand, shape in self.shapes)
        return f"{self.name} of {shapes}"


Tape = tuple[SiteCall, ...]
Shifts = tuple[torch.Tensor, ...]


def _slots(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int | str]:
    """Operand → position or keyword of every tensor operand of a call."""
    found: dict[str, int | str] = {}
    for operand, (position, keywords) in SLOTS[site.name if site.site == "cache_write" else site.site].items():
        if position < len(args):
            if isinstance(args[position], torch.Tensor):
                found[operand] = position
        else:
            found.update((operand, word) for word in keywords if isinstance(kwargs.get(word), torch.Tensor))
    return found


def _operands(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    slots = _slots(site, args, kwargs)
    return {operand: args[at] if isinstance(at, int) else kwargs[at] for operand, at in slots.items()}


def _site_call(site: Site, operands: dict[str, torch.Tensor]) -> SiteCall:
    shapes = tuple((operand, tuple(tensor.shape)) for operand, tensor in operands.items())
    return SiteCall(site.site, site.name, shapes)


class _Recorder(TorchDispatchMode):
    """Writes a tape; the dispatch mode is on only inside sites, and only where autocast casts."""

    def __init__(self, agreement: str) -> None:
        super().__init__()
        self.agreement = agreement
        self.calls: list[SiteCall] = []
        self._below: list[dict[str, torch.dtype]] = []  # of the site calls in progress, the innermost last
        self._copied: dict[int, torch.dtype] = {}  # id of a tensor inside the site → dtype that it was first cast to

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, noting what it casts."""
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self._copied.setdefault(id(args[0]), found.dtype)
        return found

    def _recorder_below(self, site: Site, original: Function) -> Function:
        def below(*args: Any, **kwargs: Any) -> Any:
            operands = _operands(site, args, kwargs)
            outer, self._copied = self._copied, {}
            with self if self.agreement == "autocast" else nullcontext():
                found = original(*args, **kwargs)
            self._below.append({name: self._copied.get(id(t), t.dtype) for name, t in operands.items()})
            self._copied = outer
            return found

        return below

    def recorder(self, site: Site, original: Function) -> Function:
        """Wrap a site's agreed function, with a recorder on either side of it."""
        agreed = make_agreed(site, self.agreement, self._recorder_below(site, original))

        def above(*args: Any, **kwargs: Any) -> Any:
            operands = _operands(site, args, kwargs)
            before = {name: tensor.dtype for name, tensor in operands.items()}
            place = len(self.calls)
            self.calls.append(_site_call(site, operands))
            found = agreed(*args, **kwargs)
            after = self._below.pop()
            casts = [Cast(name, dtype, after[name]) for name, dtype in before.items() if after[name] is not dtype]
            output = found.dtype if isinstance(found, torch.Tensor) else None
            self.calls[place] = replace(self.calls[place], casts=tuple(casts), output=output)
            return found

        return above


def record_casts(model: nn.Module, inputs: tuple[Any, ...], *, agreement: str) -> tuple[Tape, Any]:
    """Run a model once in eager under a fix's agreement and record what is cast at its sites."""
    recorder = _Recorder(agreement)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(swapped(eager_swaps(model, recorder.recorder)))
        if agreement == "autocast":
            device = next((t.device.type for t in chain(model.parameters(), model.buffers())), "cpu")
            stack.enter_context(torch.autocast(device, cache_enabled=False))
        else:
            stack.enter_context(no_fused_encoder())
        output = model(*inputs)
    return tuple(recorder.calls), output


class _Player(ABC):
    """Stands in a model's sites and goes along the tape; a subclass says what becomes of the operands."""

    def __init__(self, tape: Tape | None) -> None:
        self.tape = tape
        self.played = 0

    @abstractmethod
    def changed(self, site: Site, operands: dict[str, torch.Tensor], casts: list[Cast]) -> dict[str, torch.Tensor]:
        """Return the operands that the site gets others for."""

    def player(self, site: Site, original: Function) -> Function:
        """Wrap a site's original."""

        def play(*args: Any, **kwargs: Any) -> Any:
            operands = _operands(site, args, kwargs)
            slots, positional, keyword = _slots(site, args, kwargs), list(args), dict(kwargs)
            for name, tensor in self.changed(site, operands, self._next_casts(_site_call(site, operands))).items():
                at = slots[name]
                if isinstance(at, int):
                    positional[at] = tensor
                else:
                    keyword[at] = tensor
            return original(*positional, **keyword)

        return play

    def run(self, model: nn.Module, inputs: tuple[Any, ...]) -> Any:
        """Run the model, to the end of the tape."""
        with torch.no_grad(), no_fused_encoder(), swapped(eager_swaps(model, self.player)):
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
        if not expected.same_call(call):
            raise ReplayError(
                f"site call {self.played + 1} of the replay is {call}, but {expected} was recorded; "
                "the model must call the same operations whatever its dtype is"
            )
        self.played += 1
        return [cast for cast in expected.casts if cast.rounds]


class _Rounding(_Player):
    """Plays in float64: rounds what was cast, and keeps the shifts."""

    def __init__(self, tape: Tape | None) -> None:
        super().__init__(tape)
        self.shifts: list[torch.Tensor] = []

    def changed(self, site: Site, operands: dict[str, torch.Tensor], casts: list[Cast]) -> dict[str, torch.Tensor]:
        for name, tensor in operands.items():
            # a floating mask of zeros and infinities may be of any dtype
            if name != "mask" and tensor.is_floating_point() and tensor.dtype is not torch.float64:
                raise ReplayError(
                    f"the float64 model hands {site.name} a {tensor.dtype} {name}; its source must not name a dtype: "
                    "write `widened(x)` for x.float(), and keep other dtypes as attributes"
                )
        rounded = {
            cast.operand: operands[cast.operand].to(cast.after).to(operands[cast.operand].dtype) for cast in casts
        }
        for name, tensor in rounded.items():
            exact = operands[name]
            self.shifts.append((tensor - exact).masked_fill(tensor == exact, 0.0).float())  # equal: infinities too
        return rounded


class _Shifting(_Player):
    """Plays in a lower dtype: adds the shifts, and brings every operand of a site to that dtype."""

    def __init__(self, tape: Tape | None, shifts: Shifts, dtype: torch.dtype) -> None:
        super().__init__(tape)
        self.shifts = iter(shifts)
        self.dtype = dtype

    def changed(self, site: Site, operands: dict[str, torch.Tensor], casts: list[Cast]) -> dict[str, torch.Tensor]:
        shifted = {cast.operand: operands[cast.operand].float() + next(self.shifts) for cast in casts}
        return {
            name: tensor.to(self.dtype)
            for name, tensor in (operands | shifted).items()
            if name not in ("mask", "cache") and tensor.is_floating_point()
        }


def run_in_float64(model: nn.Module, inputs: tuple[Any, ...], *, tape: Tape | None = None) -> tuple[Any, Shifts]:
    """Run a float64 model, rounding at its sites what was cast on a tape."""
    player = _Rounding(tape)
    output = player.run(model, inputs)
    return output, tuple(player.shifts)


def run_shifted(
    model: nn.Module, inputs: tuple[Any, ...], *, dtype: torch.dtype, tape: Tape | None, shifts: Shifts
) -> Any:
    """Run a model in a dtype below float64, its operands shifted as the replay in float64 shifted them."""
    return _Shifting(tape, shifts, dtype).run(model, inputs)
