"""Real torch calls with an exactly known slowdown.

Conventions: a *unit* is one cheap torch operation on fixed tensors made beforehand. A call repeats its unit n times in
a plain loop and returns the last result. The candidate repeats the very same unit on the same tensors n · (1 + delta)
times, so delta is exact in units of work. In seconds it is smaller by the share of the call that is not repeated,
entering the function and making the range: about 0.1 µs, so less than 1 % of delta even for the shortest call. Data
are one seeded draw, made anew for each trial, so that trials differ in where their tensors lie. One thread is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from precision_eval.core.errors import ParameterError, unknown_name

Call = Callable[[], object]

# Injected slowdowns; 0 is the same work twice (A/A), as two distinct functions.
DELTAS = (0.0, 0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    name: str
    unit: str
    units: int
    nominal_s: float

    @property
    def deltas(self) -> tuple[float, ...]:
        """The injected slowdowns that are whole numbers of units: 40 units allow +5 % and not +0.5 %."""
        return tuple(delta for delta in DELTAS if _is_whole(self.units * delta))


CALLS: tuple[CallSpec, ...] = (
    CallSpec(name="30us", unit="add", units=40, nominal_s=30e-6),
    CallSpec(name="200us", unit="add", units=200, nominal_s=200e-6),
    CallSpec(name="1ms", unit="attention", units=200, nominal_s=1e-3),
    CallSpec(name="5ms", unit="matmul", units=200, nominal_s=5e-3),
)
_BY_NAME = {spec.name: spec for spec in CALLS}


def call_by_name(name: str) -> CallSpec:
    if name not in _BY_NAME:
        raise unknown_name("call", name, _BY_NAME)
    return _BY_NAME[name]


def units_of(spec: CallSpec, delta: float) -> int:
    """Return how many units the candidate repeats."""
    extra = spec.units * delta
    if not _is_whole(extra):
        raise ParameterError(
            f"{spec.name} with delta {delta:g} would need {spec.units + extra:g} units; take one of {spec.deltas}"
        )
    return spec.units + round(extra)


def make_pair(spec: CallSpec, delta: float, *, seed: int) -> tuple[Call, Call]:
    """Make a baseline and a candidate that share their unit and its tensors."""
    unit = _UNITS[spec.unit](seed)
    return repeated(unit, spec.units), repeated(unit, units_of(spec, delta))


def repeated(unit: Call, times: int) -> Call:
    """Return a function that runs `unit` that many times and returns its last result."""

    def call() -> object:
        out: object = None
        for _ in range(times):
            out = unit()
        return out

    return call


def _is_whole(count: float) -> bool:
    return abs(count - round(count)) < 1e-9


def _normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _add(seed: int) -> Call:
    return partial(torch.add, *_normal(seed, 2, 64), out=torch.empty(64))


def _attention(seed: int) -> Call:
    q, k, v = _normal(seed, 3, 1, 2, 16, 32)  # each (B, H, L, D)
    return partial(torch.nn.functional.scaled_dot_product_attention, q, k, v)


def _matmul(seed: int) -> Call:
    return partial(torch.mm, *_normal(seed, 2, 104, 104), out=torch.empty(104, 104))


_UNITS: dict[str, Callable[[int], Call]] = {"add": _add, "attention": _attention, "matmul": _matmul}
