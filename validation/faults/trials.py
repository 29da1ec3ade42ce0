"""One line of the experiment: a fault or an honest variation on one family in one dtype, over all seeds.

*Effect* is the RMS of (with the fault − without it) over the RMS of (eager in the dtype − reference), the format's own
error: 1 means as large as that. It is kept to three digits, and set to :data:`BEYOND` where the difference is not
finite. What a rule says is one letter a judgement: ``.`` no alarm, ``r`` worse by one more rounding, ``w`` worse.
*Pooled*: one judgement on :data:`POOL` neighbouring seeds together; its effect is the root of the mean square of
theirs. A rival judges the pooled calls as one tensor.

A fault trial counts where the fault moved the output (effect > 0). Rates come with Wilson's 95 % intervals, which take
the trials for independent; trials of one fault are alike, so read them as a lower bound of the uncertainty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from precision_eval.measure.assess import HonestRange, attention_yardsticks, operation_yardsticks, sample_rows
from precision_eval.stats import wilson_interval
from validation.faults import earlier, families, operations, unseen
from validation.faults.catalog import SEEDS_PER_HOST, Fault
from validation.faults.families import Operands, sample
from validation.faults.honest import HONEST, Variation
from validation.faults.kernels import exact, yardstick
from validation.faults.operations import Change, OperationOperands

Z_LIMIT, RMS_LIMIT = 5.0, 2.0
SQNR_DB = 45.0
DEFAULT_ATOL = {torch.float16: 1e-3, torch.bfloat16: 1e-3, torch.float32: 1e-5}
DEFAULT_RTOL = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float32: 1.3e-6}
AnyOperands = Operands | OperationOperands
Candidate = Fault | Variation | Change


@dataclass(frozen=True)
class Reference:
    """What a rival holds a candidate to."""

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
    def plain(self) -> Tensor:
        """Error of the yardstick to the reference."""
        return self.yardstick.double() - self.reference

    def largest_error(self, candidate: Tensor) -> float:
        """Largest error to :attr:`rounded`."""
        return float((candidate.double() - self.rounded.double()).abs().max())


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _differs(candidate: Tensor, to: Tensor, *, atol: float | None = None, rtol: float | None = None) -> bool:
    try:
        torch.testing.assert_close(candidate, to, atol=atol, rtol=rtol)
    except AssertionError:
        return True
    return False


def _beyond_tolerances(candidate: Tensor, to: Reference) -> bool:
    """``get_tolerances`` of PyTorch's test_transformers.py: what the plain computation errs by at most."""
    dtype, size = candidate.dtype, to.plain.abs().nan_to_num()
    relative = float((size / to.reference.abs()).nan_to_num(nan=DEFAULT_RTOL[dtype]).max())
    relative = DEFAULT_RTOL[dtype] if relative > 1e30 else max(relative, DEFAULT_RTOL[dtype])
    return _differs(candidate, to.rounded, atol=max(float(size.max()), DEFAULT_ATOL[dtype]), rtol=relative)


def _bias_or_rms(candidate: Tensor, to: Reference) -> bool:
    noise = candidate.double() - to.reference
    rms = _rms(noise)
    if not math.isfinite(rms) or rms > RMS_LIMIT * _rms(to.plain):
        return True
    signed = (noise * to.reference.sign()).flatten()
    spread = float(signed.std()) / math.sqrt(len(signed))
    return bool(spread) and abs(float(signed.mean())) > Z_LIMIT * spread


def _mean_error(candidate: Tensor, to: Reference) -> bool:
    """``_check_equal`` of PyTorch's test_flex_attention.py."""
    factor = 10.0 if candidate.dtype is torch.float32 else 1.1
    return not float((candidate.double() - to.reference).abs().mean()) <= factor * float(to.plain.abs().mean())


def _gold_check(candidate: Tensor, to: Reference) -> bool:
    """``_gold_check`` of the same file: the RMS error, and so the ratio of two SQNR, 2.6 dB in half."""
    factor = 13.5 if candidate.dtype is torch.float32 else 1.35
    return not _rms(candidate.double() - to.reference) <= factor * _rms(to.plain)


def _sqnr(candidate: Tensor, to: Reference) -> bool:
    """A fixed signal-to-noise ratio, as torchao's tests hold compiled half precision to."""
    noise = _rms(candidate.double() - to.reference)
    return not noise <= _rms(to.reference) * 10.0 ** (-SQNR_DB / 20.0)


RIVALS: dict[str, Callable[[Tensor, Reference], bool]] = {
    "flash_2max": lambda x, to: not to.largest_error(x) <= 2.0 * to.plain_max,
    "flash_2max_atol": lambda x, to: not to.largest_error(x) <= 2.0 * to.plain_max + to.rounding_atol,
    "assert_close": lambda x, to: _differs(x, to.yardstick),
    "get_tolerances": _beyond_tolerances,
    "flex_mean": _mean_error,
    "flex_gold": _gold_check,
    "sqnr_45_db": _sqnr,
    "bias_or_rms": _bias_or_rms,
}
POOL = SEEDS_PER_HOST
BEYOND = 9.99e9
OURS = "assess"
RULES = (OURS, *RIVALS)
LETTERS = {"as expected of the format": ".", "worse, by one more rounding": "r", "worse": "w", "non-finite": "w"}
Bools = NDArray[np.bool_]
OPERATIONS = {**operations.OPERATIONS, **earlier.OPERATIONS, **unseen.OPERATIONS}
HELD_OUT_FAMILIES = {*families.UNSEEN, *unseen.OPERATIONS}
HELD_OUT = {one.id for one in unseen.HONEST} | {one.id for one in unseen.FAULTS}


def is_held_out(name: str, family: str) -> bool:
    """Whether the judge was settled without both the family and the fault or variation."""
    return family in HELD_OUT_FAMILIES and (family in OPERATIONS or name in HELD_OUT)


def is_seen(name: str, family: str) -> bool:
    """Whether the judge may have been tuned on both."""
    return family not in HELD_OUT_FAMILIES and name not in HELD_OUT


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
    """Some calls of one family in one dtype, with what every candidate on them is held to."""

    def __init__(self, calls: Sequence[AnyOperands]) -> None:
        self.calls = list(calls)
        self._correct: dict[int | str, Tensor] = {}

    @cached_property
    def plain(self) -> list[Tensor]:
        """Eager in the operands' dtype, each step stored."""
        return [_plain(o) for o in self.calls]

    @cached_property
    def reference(self) -> list[Tensor]:
        """Float64 arithmetic on the stored operands."""
        return [_exact(o) for o in self.calls]

    @cached_property
    def rivals(self) -> Reference:
        """What rivals hold a candidate to."""
        return Reference(torch.stack(self.reference), torch.stack(self.plain))

    @cached_property
    def range(self) -> HonestRange:
        """What the suite holds a candidate to."""
        drawn = [_yardsticks(o) for o in self.calls]
        yardsticks: Mapping[str, list[Tensor]] = {name: [one[name] for one in drawn] for name in drawn[0]}
        return HonestRange(self.reference, yardsticks, self.plain[0].dtype)

    @cached_property
    def single(self) -> list[Stand]:
        """Each call by itself."""
        return [Stand([o]) for o in self.calls]

    def correct(self, fault: Fault | Change) -> Tensor:
        """The output without the fault; computed once per host."""
        host = fault.host(self.calls[0])  # type: ignore[arg-type]
        key = host if isinstance(host, str) else id(host)
        if key not in self._correct:
            self._correct[key] = torch.stack([fault.correct(o) for o in self.calls])  # type: ignore[arg-type]
        return self._correct[key]

    def effects(self, outputs: Tensor, fault: Fault | Change) -> list[float]:
        """How far a fault moved each output, in units of the format's own error."""
        without = self.correct(fault)
        same = (outputs == without) | (outputs.isnan() & without.isnan())
        moved = torch.where(same, 0.0, outputs.double() - without.double()).flatten(1).square().mean(1).sqrt()
        own = self.rivals.plain.flatten(1).square().mean(1).sqrt()
        ratios = [0.0 if not m else m / o if o else math.inf for m, o in zip(moved.tolist(), own.tolist(), strict=True)]
        return [_three_digits(ratio) if math.isfinite(ratio) else BEYOND for ratio in ratios]

    def judged(self, outputs: Tensor) -> dict[str, str]:
        """One letter per rule."""
        ours = LETTERS[self.range.assess(list(outputs)).verdict]
        return {OURS: ours, **{name: ".w"[rule(outputs, self.rivals)] for name, rule in RIVALS.items()}}


def _plain(o: AnyOperands) -> Tensor:
    return yardstick(o) if isinstance(o, Operands) else OPERATIONS[o.family].function(*o.tensors)


def _exact(o: AnyOperands) -> Tensor:
    if isinstance(o, Operands):
        return exact(o)
    return OPERATIONS[o.family].function(*(x.double() for x in o.tensors))


def _yardsticks(o: AnyOperands) -> dict[str, Tensor]:
    """As a user draws them."""
    if isinstance(o, Operands):
        return attention_yardsticks(o.q, o.k, o.v, mask=o.mask, scale=o.scale)
    return operation_yardsticks(OPERATIONS[o.family].function, *o.tensors)


def drawn(family: str, *, seed: int, dtype: torch.dtype) -> AnyOperands:
    """Draw the operands of one call of a family of attention, or of an operation."""
    if family not in OPERATIONS:
        return sample(family, seed=seed, dtype=dtype)
    return OPERATIONS[family].sample(family, seed=seed, dtype=dtype)


def stands(family: str, dtype: torch.dtype, seeds: int) -> list[Stand]:
    """Seeds 0 … seeds − 1 of a family, in pools."""
    firsts = range(0, seeds, POOL)
    return [Stand([drawn(family, seed=first + i, dtype=dtype) for i in range(POOL)]) for first in firsts]


def trial(candidate: Candidate, on: Sequence[Stand]) -> dict[str, Any]:
    """Compute a fault or an honest variation on every seed and ask every rule; a fault's effect with it."""
    effects: list[float] = []
    said: dict[str, str] = dict.fromkeys((*RULES, *(f"{rule}_pooled" for rule in RULES)), "")
    for stand in on:
        calls = stand.calls if isinstance(candidate, Variation) else [candidate.inputs(o) for o in stand.calls]  # type: ignore[arg-type]
        held = stand if all(a is b for a, b in zip(calls, stand.calls, strict=True)) else Stand(calls)
        outputs = torch.stack([candidate.apply(o) for o in calls])  # type: ignore[arg-type]
        if isinstance(candidate, Fault | Change):
            effects += held.effects(outputs, candidate)
        alone = held.single[0]  # one call of each pool is judged by itself, too
        for stand_, suffix, part in ((held, "_pooled", outputs), (alone, "", outputs[:1])):
            for rule, letter in stand_.judged(part).items():
                said[f"{rule}{suffix}"] += letter
    line: dict[str, Any] = {"said": said}
    if isinstance(candidate, Fault) or (isinstance(candidate, Change) and candidate.planted):
        line["effect"] = effects
    return line


LARGE: dict[str, tuple[tuple[int, ...], ...]] = {
    "large_prefill": ((1, 16, 1024, 64), (1, 16, 1024, 64), (1, 16, 1024, 64)),
    "large_decode": ((1, 32, 1, 128), (1, 32, 4096, 128), (1, 32, 4096, 128)),
    "large_linear": ((4096, 1024), (1024, 1024)),
    "large_rms_norm": ((16384, 1024), (1024,)),
}
"""Calls of which some rows are judged, by the shapes of their operands."""


def large(name: str, dtype: torch.dtype) -> tuple[AnyOperands, AnyOperands]:
    """Draw the operands of a large call, and those of the rows that are judged of it."""
    generator = torch.Generator().manual_seed(0)
    first, *rest = (torch.randn(shape, generator=generator).to(dtype) for shape in LARGE[name])
    heads, rows = sample_rows(first.shape[-2], first.shape[1])
    if first.ndim == 2:
        family = name.removeprefix("large_")
        parts = (OperationOperands((x, *rest), family, 0) for x in (first, first[rows]))
        return next(parts), next(parts)
    k, v = rest
    mask = torch.ones(first.shape[-2], k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - first.shape[-2])
    whole = Operands(first, k, v, mask, first.shape[-1] ** -0.5, name, 0)
    q = first[:, heads][:, :, rows]
    return whole, replace(whole, q=q, k=k[:, heads], v=v[:, heads], mask=mask[rows])


def cost(family: str, dtype: torch.dtype) -> dict[str, float]:
    """Process seconds of the eager operation, of drawing yardsticks and of judging; least of three.

    On a large call, with some of its rows judged, or on eight small ones, which are judged whole.
    """
    whole, part = (
        ([one] for one in large(family, dtype)) if family in LARGE else 2 * [stands(family, dtype, POOL)[0].calls]
    )
    first = Stand(part)
    best = dict.fromkeys(("operation_s", "range_s", "judge_s"), math.inf)
    for _ in range(4):  # the first also warms up
        fresh = Stand(part)
        fresh.reference, plain = first.reference, first.plain
        marks = [time.process_time()]
        for _ in map(_eager, whole):
            pass
        marks.append(time.process_time())
        span = fresh.range
        marks.append(time.process_time())
        span.assess(plain)
        marks.append(time.process_time())
        for name, (begin, end) in zip(best, pairwise(marks), strict=True):
            best[name] = min(best[name], end - begin)
    return {name: round(seconds, 6) for name, seconds in best.items()}


def _eager(o: AnyOperands) -> Tensor:
    """The operation as torch computes it, operator by operator, in the operands' dtype."""
    return HONEST[0].apply(o) if isinstance(o, Operands) else _plain(o)


def _three_digits(value: float) -> float:
    """Three significant digits, whole numbers without a point: the file stays small."""
    short = float(f"{value:.3g}")
    return int(short) if short >= 100 else short


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
    """All trials of one kind, one entry per judgement; `said` holds the letters of each rule."""

    id: NDArray[np.str_]
    family: NDArray[np.str_]
    dtype: NDArray[np.str_]
    effect: NDArray[np.float64]
    said: dict[str, NDArray[np.str_]]

    def alarm(self, rule: str) -> Bools:
        """Where a rule raised an alarm; *one more rounding* is one."""
        return self.said[rule] != "."

    def rate(self, rule: str, where: Bools | None = None) -> Rate:
        """How often `rule` raised an alarm among the trials at `where`, or all of them."""
        alarms = self.alarm(rule) if where is None else self.alarm(rule)[where]
        return Rate(int(alarms.sum()), len(alarms))

    def between(self, low: float, high: float) -> Bools:
        """Trials with an effect in [low, high)."""
        return (self.effect >= low) & (self.effect < high) & (self.effect > 0)

    @cached_property
    def unseen(self) -> Bools:
        """Trials whose family and whose fault or variation the judge was tuned without."""
        return self._where(is_held_out)

    @cached_property
    def tuned_on(self) -> Bools:
        """Trials that the judge was tuned on: neither is held out."""
        return self._where(is_seen)

    def _where(self, rule: Callable[[str, str], bool]) -> Bools:
        return np.array([rule(a, b) for a, b in zip(self.id.tolist(), self.family.tolist(), strict=True)], dtype=bool)

    def missed(self, rule: str, where: Bools) -> list[tuple[str, Rate]]:
        """Rate of each id that was not always caught at `where`, lowest first."""
        names = sorted(set(self.id[where].tolist()))
        rates = [(name, self.rate(rule, where & (self.id == name))) for name in names]
        missed = [pair for pair in rates if pair[1].value < 1.0]
        return sorted(missed, key=lambda pair: (pair[1].value, -pair[1].trials))


def collect(lines: Sequence[dict[str, Any]], kind: str, *, pooled: bool) -> Judgements:
    """Bring the lines of a kind together: judgements of single calls, the first of each pool, or of pools."""
    kept = [(Key.of(line), line) for line in lines if Key.of(line).kind == kind]
    counts = [key.seeds // POOL for key, _ in kept]

    def repeated(values: list[str]) -> NDArray[np.str_]:
        return np.repeat(np.array(values, dtype=np.str_), counts)

    effects = []
    for key, line in kept:
        by_pool = np.asarray(line.get("effect", [0.0] * key.seeds), dtype=float).reshape(-1, POOL)
        effects.append(np.sqrt(np.square(by_pool).mean(1)) if pooled else by_pool[:, 0])
    suffix = "_pooled" if pooled else ""
    return Judgements(
        id=repeated([key.id for key, _ in kept]),
        family=repeated([key.family for key, _ in kept]),
        dtype=repeated([key.dtype for key, _ in kept]),
        effect=np.concatenate([np.empty(0), *effects]),
        said={rule: np.array(list("".join(line["said"][f"{rule}{suffix}"] for _, line in kept))) for rule in RULES},
    )
