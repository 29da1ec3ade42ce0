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
        return float((self.yardstick.double() - self.rounded.double()).abs().max())

    @cached_property
    def rounding_atol(self) -> float:
        """What any arithmetic on the rounded reference may cost; as FlashAttention allows for it."""
        return 2.0 * float((self.rounded + 0.3 - 0.3 - self.rounded).abs().max())

    @cached_property
    def plain_rms(self) -> float:
        """RMS error of the yardstick to the reference: the format's own error."""
        return float((self.yardstick.double() - self.reference).square().mean().sqrt())


def _flash_2max(candidate: Tensor, reference: Reference) -> bool:
    error = float((candidate.double() - reference.rounded.double()).abs().max())
    return not error <= 2.0 * reference.plain_max


def _flash_2max_atol(candidate: Tensor, reference: Reference) -> bool:
    error = float((candidate.double() - reference.rounded.double()).abs().max())
    return not error <= 2.0 * reference.plain_max + reference.rounding_atol


def _assert_close(candidate: Tensor, reference: Reference) -> bool:
    try:
        torch.testing.assert_close(candidate, reference.yardstick)
    except AssertionError:
        return True
    return False


def _allclose(candidate: Tensor, reference: Reference) -> bool:
    return not torch.allclose(candidate, reference.yardstick, rtol=1e-2, atol=1e-2)


def _bias_or_rms(candidate: Tensor, reference: Reference) -> bool:
    noise = candidate.double() - reference.reference
    rms = float(noise.square().mean().sqrt())
    if not math.isfinite(rms) or rms > RMS_LIMIT * reference.plain_rms:
        return True
    signed = (noise * reference.reference.sign()).flatten()
    spread = float(signed.std()) / math.sqrt(len(signed))
    return bool(spread) and abs(float(signed.mean())) > Z_LIMIT * spread


RIVALS: dict[str, Callable[[Tensor, Reference], bool]] = {
    "flash_2max": _flash_2max,
    "flash_2max_atol": _flash_2max_atol,
    "assert_close": _assert_close,
    "allclose_1e-2": _allclose,
    "bias_or_rms": _bias_or_rms,
}


def alarms(candidate: Tensor, reference: Reference) -> dict[str, bool]:
    """Ask every rival."""
    return {name: rule(candidate, reference) for name, rule in RIVALS.items()}


POOL = SEEDS_PER_HOST
BEYOND = 9.99e9
OURS, POOLED = "assess", "assess_pooled"
RULES = (OURS, *RIVALS)

Tensors = Tensor | Sequence[Tensor]
Judge = Callable[[Tensors, Tensors, Tensors], bool]
"""Candidate, reference, yardstick (or lists of them) → whether it raises an alarm."""


def suite_judge(candidate: Tensors, reference: Tensors, plain: Tensors) -> bool:
    """Whether :func:`precision_eval.measure.assess.assess` finds more than is expected of the format."""
    from precision_eval.measure.assess import assess

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

    def effect(self, found: Tensor, kernel: Kernel) -> float:
        """How far a fault moved the output, in units of the format's own error."""
        other = self.host(kernel)
        same = (found == other) | (found.isnan() & other.isnan())
        difference = torch.where(same, 0.0, found.double() - other.double())
        moved = float(difference.square().mean().sqrt())
        if moved == 0.0:
            return 0.0
        own = self.reference.plain_rms
        return min(moved / own, BEYOND) if math.isfinite(moved / own) else BEYOND


def stands(family: str, dtype: torch.dtype, seeds: int) -> list[Stand]:
    """Seeds 0 … seeds − 1 of a family."""
    return [Stand(sample(family, seed=seed, dtype=dtype)) for seed in range(seeds)]


def fault_trial(fault: Fault, on: Sequence[Stand], *, judge: Judge = suite_judge) -> dict[str, Any]:
    """Plant a fault on every seed and ask every rule."""
    where = [stand if fault.on is None else Stand(fault.inputs(stand.operands)) for stand in on]
    found = [fault.apply(stand.operands) for stand in where]
    effect = [stand.effect(output, fault.host(stand.operands)) for stand, output in zip(where, found, strict=True)]
    return {"effect": [_three_digits(value) for value in effect], **_judged(found, where, judge)}


def _three_digits(value: float) -> float:
    """Three significant digits, whole numbers without a point: the file stays small."""
    short = float(f"{value:.3g}")
    return int(short) if short >= 100 else short


def honest_trial(variation: Variation, on: Sequence[Stand], *, judge: Judge = suite_judge) -> dict[str, Any]:
    """Compute an honest variation on every seed and ask every rule; as :func:`fault_trial` without the effect."""
    return _judged([variation.apply(stand.operands) for stand in on], on, judge)


def _judged(found: Sequence[Tensor], on: Sequence[Stand], judge: Judge) -> dict[str, Any]:
    rivals = [alarms(output, stand.reference) for stand, output in zip(on, found, strict=True)]
    started = time.perf_counter()
    ours = [
        judge(output, stand.reference.reference, stand.reference.yardstick)
        for stand, output in zip(on, found, strict=True)
    ]
    one_ms = 1e3 * (time.perf_counter() - started) / len(found)
    started = time.perf_counter()
    pooled = []
    for at in range(0, len(found), POOL):
        held = [stand.reference for stand in on[at : at + POOL]]
        pooled.append(judge(found[at : at + POOL], [r.reference for r in held], [r.yardstick for r in held]))
    pool_ms = 1e3 * (time.perf_counter() - started) / len(pooled)
    kept = {name: to_bits([asked[name] for asked in rivals]) for name in RIVALS}
    return {
        "alarms": {OURS: to_bits(ours), **kept, POOLED: to_bits(pooled)},
        "assess_ms": [round(one_ms, 2), round(pool_ms, 2)],
    }


def to_bits(flags: Sequence[bool]) -> str:
    """Flags as hexadecimal, the first one the foremost bit."""
    return f"{int('1' + ''.join(str(int(flag)) for flag in flags), 2):x}"


def from_bits(text: str) -> list[bool]:
    """Flags of :func:`to_bits`; a leading 1 marks where they begin."""
    return [bit == "1" for bit in f"{int(text, 16):b}"[1:]]
