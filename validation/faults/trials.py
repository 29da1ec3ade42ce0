"""One line of the experiment: a fault or an honest variation on one family in one dtype, over all seeds.

*Effect* is the RMS of (with the fault − without it) over the RMS of (yardstick − reference), the format's own error: 1
means as large as that. It is kept to three digits, and set to :data:`BEYOND` where the difference is not finite. Alarms
are kept as bits, the first seed foremost, in hexadecimal. *Pooled*: one judgement on :data:`POOL` neighbouring seeds
together; its effect is the root of the mean square of theirs. The rivals are the rules that others judge low-precision
attention by; anything that is not finite raises an alarm, as it does in every one of them.

A fault trial counts where the fault moved the output (effect > 0). Rates come with Wilson's 95 % intervals, which take
the trials for independent; trials of one fault are alike, so read them as a lower bound of the uncertainty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from precision_eval.measure.assess import assess
from precision_eval.stats import wilson_interval
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
Bools = NDArray[np.bool_]


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


# ---- from lines to rates


@dataclass(frozen=True)
class Rate:
    """A proportion of trials."""

    hits: int
    trials: int

    @property
    def value(self) -> float:
        """In [0, 1]; NaN of no trial."""
        return self.hits / self.trials if self.trials else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval; (0, 1) of no trial."""
        return wilson_interval(self.value, self.trials) if self.trials else (0.0, 1.0)

    def __str__(self) -> str:
        if not self.trials:
            return "no trial"
        low, high = self.interval
        digits = 2 if self.value < 0.02 else 1
        share, below, above = (f"{100 * x:.{digits}f}" for x in (self.value, low, high))
        return f"{share} % [{below}, {above}] of {self.trials:,}"


@dataclass(frozen=True)
class Judgements:
    """All trials of one kind, one entry per seed (or per pool, for the pooled rule)."""

    id: NDArray[np.str_]
    family: NDArray[np.str_]
    dtype: NDArray[np.str_]
    held_out: Bools
    effect: NDArray[np.float64]
    alarm: dict[str, Bools]

    def rate(self, rule: str, where: Bools | None = None) -> Rate:
        """How often `rule` raised an alarm among the trials at `where`, or all of them."""
        alarms = self.alarm[rule] if where is None else self.alarm[rule][where]
        return Rate(int(alarms.sum()), len(alarms))

    def between(self, low: float, high: float) -> Bools:
        """Trials with an effect in [low, high)."""
        return (self.effect >= low) & (self.effect < high) & (self.effect > 0)

    def missed(self, rule: str, where: Bools) -> list[tuple[str, Rate]]:
        """Rate of each id that was not always caught at `where`, lowest first."""
        names = sorted(set(self.id[where].tolist()))
        rates = [(name, self.rate(rule, where & (self.id == name))) for name in names]
        missed = [pair for pair in rates if pair[1].value < 1.0]
        return sorted(missed, key=lambda pair: (pair[1].value, -pair[1].trials))


def collect(lines: Sequence[dict[str, Any]], kind: str, *, pooled: bool = False) -> Judgements:
    """Bring the lines of a kind together."""
    size, rules = (POOL, (POOLED,)) if pooled else (1, RULES)
    kept = [(Key.of(line), line) for line in lines if Key.of(line).kind == kind]
    counts = [key.seeds // size for key, _ in kept]

    def repeated(values: list[Any], dtype: type) -> NDArray[Any]:
        return np.repeat(np.array(values, dtype=dtype), counts)

    def joined(parts: list[Any], dtype: type) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)

    effects = [np.asarray(line.get("effect", [0.0] * key.seeds)) for key, line in kept]
    return Judgements(
        id=repeated([key.id for key, _ in kept], np.str_),
        family=repeated([key.family for key, _ in kept], np.str_),
        dtype=repeated([key.dtype for key, _ in kept], np.str_),
        held_out=repeated([line["held_out"] for _, line in kept], bool),
        # of a pool, the root of the mean square
        effect=joined([np.sqrt(np.square(effect).reshape(-1, size).mean(1)) for effect in effects], float),
        alarm={rule: joined([from_bits(line["alarms"][rule]) for _, line in kept], bool) for rule in rules},
    )
