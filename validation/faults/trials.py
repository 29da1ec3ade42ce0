"""One line of the experiment: a fault or an honest variation on one family in one dtype, over all seeds.

*Effect* is the RMS of (with the fault − without it) over the RMS of (yardstick − reference), the format's own error: 1
means as large as that. It is kept to three digits, and set to :data:`BEYOND` where the difference is not finite. Alarms
are kept as bits, the first seed foremost, in hexadecimal. *Pooled*: one judgement on :data:`POOL` neighbouring seeds
together; its effect is the root of the mean square of theirs. The rivals are the rules that others judge low-precision
attention by; anything that is not finite raises an alarm, as it does in every one of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from precision_eval.measure.assess import assess
from validation.faults.catalog import SEEDS_PER_HOST, Fault
from validation.faults.families import Operands, sample
from validation.faults.honest import Variation
from validation.faults.kernels import Kernel, attend, exact, yardstick

Z_LIMIT, RMS_LIMIT = 5.0, 2.0


@dataclass(frozen=True)
class Reference:
    """What a candidate is held to."""

    reference: Tensor
    yardstick: Tensor

    @cached_property
    def rounded(self) -> Tensor:
        """The reference, returned in the dtype."""
        return self.reference.to(self.yardstick.dtype)

    @cached_property
    def plain_max(self) -> float:
        """Largest error of the yardstick to :attr:`rounded`."""
        return self.largest_error(self.yardstick)

    @cached_property
    def rounding_atol(self) -> float:
        """What any arithmetic on the rounded reference may cost; as FlashAttention allows for it."""
        return 2.0 * float((self.rounded + 0.3 - 0.3 - self.rounded).abs().max())

    @cached_property
    def plain_rms(self) -> float:
        """RMS error of the yardstick to the reference: the format's own error."""
        return float((self.yardstick.double() - self.reference).square().mean().sqrt())

    def largest_error(self, candidate: Tensor) -> float:
        """Largest error to :attr:`rounded`."""
        return float((candidate.double() - self.rounded.double()).abs().max())


def _assert_close(candidate: Tensor, to: Reference) -> bool:
    try:
        torch.testing.assert_close(candidate, to.yardstick)
    except AssertionError:
        return True
    return False


def _bias_or_rms(candidate: Tensor, to: Reference) -> bool:
    noise = candidate.double() - to.reference
    rms = float(noise.square().mean().sqrt())
    if not math.isfinite(rms) or rms > RMS_LIMIT * to.plain_rms:
        return True
    signed = (noise * to.reference.sign()).flatten()
    spread = float(signed.std()) / math.sqrt(len(signed))
    return bool(spread) and abs(float(signed.mean())) > Z_LIMIT * spread


RIVALS: dict[str, Callable[[Tensor, Reference], bool]] = {
    "flash_2max": lambda x, to: not to.largest_error(x) <= 2.0 * to.plain_max,
    "flash_2max_atol": lambda x, to: not to.largest_error(x) <= 2.0 * to.plain_max + to.rounding_atol,
    "assert_close": _assert_close,
    "allclose_1e-2": lambda x, to: not torch.allclose(x, to.yardstick, rtol=1e-2, atol=1e-2),
    "bias_or_rms": _bias_or_rms,
}
POOL = SEEDS_PER_HOST
BEYOND = 9.99e9
OURS, POOLED = "assess", "assess_pooled"
RULES = (OURS, *RIVALS)

Tensors = Tensor | Sequence[Tensor]


def suite_judge(candidate: Tensors, reference: Tensors, plain: Tensors) -> bool:
    """Whether :func:`precision_eval.measure.assess.assess` finds more than is expected of the format."""
    return assess(candidate, reference, plain).verdict != "as expected of the format"


class Key(NamedTuple):
    """What a line is of: ``kind/id/family/dtype/seeds``."""

    kind: str
    id: str
    family: str
    dtype: str
    seeds: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def of(cls, line: dict[str, Any]) -> Key:
        """Read the key of a line."""
        kind, name, family, dtype, seeds = line["key"].split("/")
        return cls(kind, name, family, dtype, int(seeds))


class Stand:
    """One seed of one family in one dtype, with what every candidate on it is held to."""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands
        self.reference = Reference(exact(operands), yardstick(operands))
        self._hosts: dict[int, Tensor] = {}

    def host(self, kernel: Kernel) -> Tensor:
        """The correct output of a host; computed once."""
        if id(kernel) not in self._hosts:
            self._hosts[id(kernel)] = attend(self.operands, kernel)
        return self._hosts[id(kernel)]

    def effect(self, output: Tensor, kernel: Kernel) -> float:
        """How far a fault moved the output, in units of the format's own error."""
        other = self.host(kernel)
        same = (output == other) | (output.isnan() & other.isnan())
        moved = float(torch.where(same, 0.0, output.double() - other.double()).square().mean().sqrt())
        if moved == 0.0:
            return 0.0
        own = self.reference.plain_rms
        return min(moved / own, BEYOND) if math.isfinite(moved / own) else BEYOND


def stands(family: str, dtype: torch.dtype, seeds: int) -> list[Stand]:
    """Seeds 0 … seeds − 1 of a family."""
    return [Stand(sample(family, seed=seed, dtype=dtype)) for seed in range(seeds)]


def trial(candidate: Fault | Variation, on: Sequence[Stand]) -> dict[str, Any]:
    """Compute a fault or an honest variation on every seed and ask every rule; a fault's effect with it."""
    if isinstance(candidate, Variation):
        return _judged([candidate.apply(stand.operands) for stand in on], on)
    inputs = [candidate.inputs(stand.operands) for stand in on]
    on = [stand if given is stand.operands else Stand(given) for stand, given in zip(on, inputs, strict=True)]
    outputs = [candidate.apply(given) for given in inputs]
    effects = [stand.effect(output, candidate.host(stand.operands)) for stand, output in zip(on, outputs, strict=True)]
    return {"effect": [_three_digits(value) for value in effects], **_judged(outputs, on)}


def _three_digits(value: float) -> float:
    """Three significant digits, whole numbers without a point: the file stays small."""
    short = float(f"{value:.3g}")
    return int(short) if short >= 100 else short


def _judged(outputs: Sequence[Tensor], on: Sequence[Stand]) -> dict[str, Any]:
    held = [stand.reference for stand in on]
    pairs = list(zip(outputs, held, strict=True))
    alarms = {name: to_bits([rule(output, to) for output, to in pairs]) for name, rule in RIVALS.items()}
    started = time.perf_counter()
    ours = [suite_judge(output, to.reference, to.yardstick) for output, to in pairs]
    between = time.perf_counter()
    truths, plain = [to.reference for to in held], [to.yardstick for to in held]
    pools = [slice(at, at + POOL) for at in range(0, len(outputs), POOL)]
    pooled = [suite_judge(outputs[pool], truths[pool], plain[pool]) for pool in pools]
    seconds = ((between - started) / len(ours), (time.perf_counter() - between) / len(pooled))
    return {
        "alarms": {OURS: to_bits(ours), **alarms, POOLED: to_bits(pooled)},
        "assess_ms": [round(1e3 * each, 2) for each in seconds],
    }


def to_bits(flags: Sequence[bool]) -> str:
    """Flags as hexadecimal, the first one the foremost bit."""
    return f"{int('1' + ''.join(str(int(flag)) for flag in flags), 2):x}"


def from_bits(text: str) -> list[bool]:
    """Flags of :func:`to_bits`; a leading 1 marks where they begin."""
    return [bit == "1" for bit in f"{int(text, 16):b}"[1:]]
