"""From two sides to changes and one verdict.

Conventions: changes are head over base; a regression of any metric makes the gate fail. Status: leaving *passed* is a
regression, reaching it an improvement. Drift repeats exactly for a seed, so a ratio beyond its margin is a regression,
of that one seed. Memory is exact. Latency is judged over all cells together
(:mod:`precision_eval.stats.families`). Divergence and
degradation of the sound are of one free-running stream, with no interval on record, so they are shown, as are times;
none of these carries a verdict. What was measured on one side only is listed, and so is what is not alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from precision_eval.core.errors import ParameterError, check_known
from precision_eval.core.formatting import grouped
from precision_eval.gate.sides import KINDS, METRICS, GateCell, GateFigure, Side, unlike
from precision_eval.stats.families import LEAST_PROCESSES, PairedDecision, PairedTest, decide_all, paired_tests, scatter
from precision_eval.stats.moderated import Prior

Verdict = Literal["regression", "improvement", "no worse", "undecided", "shown"]
Outcome = Literal["regression", "could not tell", "no regression"]
Key = tuple[GateCell, str]

_SCATTERED, _CELLS_TO_TELL = 2.0, 10
_FIXES_TO_TELL = 3
_OPPOSITE: Mapping[str, Verdict] = {"regression": "improvement", "improvement": "regression"}
BASELINE = "full_float32"

REQUIRED: tuple[str, ...] = ("latency",)
"""Kinds of figures that a gate must have judged to be green, unless it is told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Margins:
    """What counts as no change.

    A latency is a *regression* where it surely grew by more than ``latency``, and *no worse* where it surely grew by
    less than ``clear`` (None: than ``latency``). With two values an unchanged cell passes after a quarter of the time.
    """

    latency: float = 0.01
    clear: float | None = None
    drift: float = 1.2
    memory: float = 0.01
    anchor: float = 0.1

    def __post_init__(self) -> None:
        for name in ("latency", "memory", "anchor"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise ParameterError(f"the margin of {name} is {value:g}; expected 0 to below 1, such as 0.01 or 1%")
        if self.clear is not None and not self.latency <= self.clear < 1.0:
            raise ParameterError(f"the margin that clears is {self.clear:g}; expected {self.latency:g} to below 1")
        if not (self.drift >= 1.0 and math.isfinite(self.drift)):
            raise ParameterError(f"the margin of drift is {self.drift:g}; expected a factor of 1 or more, such as 1.2")


@dataclass(frozen=True, kw_only=True)
class FigureChange:
    """One metric of one place, compared."""

    place: GateCell
    metric: str
    verdict: Verdict
    base: float | str | None
    head: float | str | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    detectable: float | None = None
    processes: tuple[int, int] = (0, 0)
    note: str = ""
    unjudged: bool = False


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The outcome of a gate.

    `base` and `head` are names, their remarks commit, torch version and the like. `changes` are everything compared, in
    order of place; `only_base` and `only_head` were measured on one side, `set_aside` on both and not alike, with what
    differs. `priors` are of log-ratios, per paired metric. `doubts` speak against the verdict, `damage` is torn
    records. Without a verdict on the kinds of figures that are `required` the gate is not green. `paired`: both sides
    were measured together, in the same processes.
    """

    base: str
    head: str
    base_remarks: Mapping[str, str]
    head_remarks: Mapping[str, str]
    margins: Margins
    changes: tuple[FigureChange, ...]
    only_base: tuple[Key, ...] = ()
    only_head: tuple[Key, ...] = ()
    set_aside: tuple[tuple[Key, str], ...] = ()
    priors: Mapping[str, Prior] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    required: tuple[str, ...] = REQUIRED
    damage: tuple[str, ...] = ()
    paired: bool = False

    def of(self, verdict: Verdict) -> tuple[FigureChange, ...]:
        """Return the changes of one verdict."""
        return tuple(change for change in self.changes if change.verdict == verdict)

    @property
    def failed(self) -> bool:
        """Whether there is a regression beyond its margin."""
        return bool(self.of("regression"))

    @property
    def outcome(self) -> Outcome:
        """One word for the whole gate: a regression counts before what could not be told."""
        return "regression" if self.failed else "could not tell" if self.gaps else "no regression"

    @property
    def gaps(self) -> tuple[str, ...]:
        """What keeps the gate from being green although nothing is known to be worse."""
        unjudged = [change for change in self.of("shown") if change.unjudged]
        counts = (
            (len(self.only_base), "missing in head"),
            (len(self.set_aside), "set aside as unlike"),
            (len(unjudged), "not judged for want of processes or of a figure"),
        )
        gaps = [f"{count} {what}" for count, what in counts if count]
        without = [kind for kind in self.required if kind not in self._decided]
        gaps += [f"no verdict on {' and '.join(without)}"] if without else []
        asked = {metric for kind in self.required if kind not in without for metric in KINDS[kind]}
        if self.paired and any(change.metric in asked for change in self.of("undecided")):
            gaps += ["an undecided figure is not known to be no worse"]
        return (*self.damage, *gaps)

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Kinds of figures of which nothing has a verdict."""
        kinds = [kind for kind in KINDS if not (self.paired and kind == "absolute-speed")]  # there it is the latency
        return tuple(kind for kind in kinds if kind not in self._decided)

    @property
    def _decided(self) -> set[str]:
        metrics = {change.metric for change in self.changes if change.verdict not in ("shown", "undecided")}
        return {kind for kind, names in KINDS.items() if metrics & set(names)}


def check_kinds(required: Sequence[str]) -> None:
    """Refuse a kind of figures that there is not."""
    for kind in required:
        check_known("kind of figures", kind, KINDS)


def compare_sides(base: Side, head: Side, *, margins: Margins, required: Sequence[str] = REQUIRED) -> GateResult:
    """Compare everything that both sides hold."""
    check_kinds(required)
    common = sorted(base.figures.keys() & head.figures.keys())
    differing = {key: unlike(base.figures[key].identity, head.figures[key].identity) for key in common}
    alike = [key for key in common if not differing[key]]
    if not alike:
        raise ParameterError(_nothing_in_common(base, head, differing))
    pairs = {key: (base.figures[key], head.figures[key]) for key in alike}
    changes = _status_changes(pairs)
    turned = {place for (place, _), one in changes.items() if one.base != one.head}
    changes |= {
        key: _lost_or_won(key, *both) for key, both in pairs.items() if _one_failed(*both) and key[0] not in turned
    }
    measured = {key: both for key, both in pairs.items() if all(one.value is not None for one in both)}
    for key, both in measured.items():
        if METRICS.get(key[1]) not in ("status", "paired"):
            changes[key] = _by_margin(key, *both, margins)
    found, priors, doubts = _by_noise(measured, margins)
    found = _without_the_baselines_own(found)
    changes |= found
    return GateResult(
        base=base.name,
        head=head.name,
        base_remarks=base.remarks,
        head_remarks=head.remarks,
        margins=margins,
        changes=tuple(changes[key] for key in sorted(changes)),
        only_base=_only(base, head),
        only_head=_only(head, base),
        set_aside=tuple((key, ", ".join(names)) for key, names in differing.items() if names),
        priors=priors,
        doubts=(*doubts, *_baseline_doubts(found)),
        required=tuple(required),
        damage=(*base.damage, *head.damage),
    )


def _only(side: Side, other: Side) -> tuple[Key, ...]:
    """Return what one side measured and the other does not hold."""
    return tuple(
        sorted(k for k, figure in side.figures.items() if k not in other.figures and figure.state == "measured")
    )


def _nothing_in_common(base: Side, head: Side, differing: Mapping[Key, tuple[str, ...]]) -> str:
    if differing:
        names = sorted({name for names in differing.values() for name in names})
        return (
            f"all {len(differing)} figures that {base.name} and {head.name} both hold differ in {', '.join(names)}; "
            "measure both again with one version of the cases and the same options"
        )
    return (
        f"{base.name} ({len(base.figures)} figures) and {head.name} ({len(head.figures)} figures) have no cell in "
        "common; measure the same cases, fixes, modes and sizes for both"
    )


def _status_changes(pairs: Mapping[Key, tuple[GateFigure, GateFigure]]) -> dict[Key, FigureChange]:
    return {
        key: status_change(key[0], (base.status, head.status), reason=head.reason or base.reason or "")
        for key, (base, head) in pairs.items()
        if key[1] == "status" and base.status is not None and head.status is not None
    }


def status_change(place: GateCell, statuses: tuple[str | None, str | None], *, reason: str) -> FigureChange:
    """Judge what base and head came to: leaving *passed* is worse."""
    base, head = statuses
    verdict: Verdict = "no worse" if base == head else "shown"
    if base != head and "passed" in statuses:
        verdict = "regression" if base == "passed" else "improvement"
    note = "" if verdict == "no worse" else reason
    return FigureChange(place=place, metric="status", verdict=verdict, base=base, head=head, note=note)


def _one_failed(base: GateFigure, head: GateFigure) -> bool:
    return base.state != head.state and "measured" in (base.state, head.state)


def _lost_or_won(key: Key, base: GateFigure, head: GateFigure) -> FigureChange:
    """A figure that only one side could measure, though the cell's status is the same."""
    lost = base.state == "measured"
    other = head if lost else base
    verdict: Verdict = "shown" if other.state == "not_applicable" else "regression" if lost else "improvement"
    return FigureChange(
        place=key[0],
        metric=key[1],
        verdict=verdict,
        base=base.value if lost else base.state,
        head=head.state if lost else head.value,
        note=other.reason or ("could not be measured any more" if lost else "can be measured now"),
        unjudged=verdict == "shown" and lost and METRICS.get(key[1], "shown") != "shown",
    )


def _by_margin(key: Key, base: GateFigure, head: GateFigure, margins: Margins) -> FigureChange:
    """Judge a metric that repeats exactly, or show one that is not judged."""
    judgement = METRICS.get(key[1], "shown")
    assert base.value is not None  # both are measured
    assert head.value is not None
    margin = {"drift": margins.drift - 1.0, "memory": margins.memory}.get(judgement)
    change = exact_change(*key, base.value, head.value, margin=margin)
    if judgement == "drift" and change.verdict in ("regression", "improvement"):
        return replace(change, note=", ".join(filter(None, (change.note, "of one seed"))))
    return change


def exact_change(place: GateCell, metric: str, before: float, after: float, *, margin: float | None) -> FigureChange:
    """Judge two figures that repeat; without a margin they are shown."""
    ratio = after / before if before else (1.0 if after == before else None)
    verdict: Verdict = "shown"
    if margin is not None:
        worse = after > 0.0 if ratio is None else ratio > 1.0 + margin
        better = ratio is not None and ratio * (1.0 + margin) < 1.0
        verdict = "regression" if worse else "improvement" if better else "no worse"
    note = "from exactly 0" if ratio is None else ""
    return FigureChange(
        place=place, metric=metric, verdict=verdict, base=before, head=after, ratio=ratio, margin=margin, note=note
    )


def _by_noise(
    measured: Mapping[Key, tuple[GateFigure, GateFigure]], margins: Margins
) -> tuple[dict[Key, FigureChange], dict[str, Prior], tuple[str, ...]]:
    """Judge all paired metrics as one family; variances are shared within a metric."""
    tests: dict[Key, PairedTest] = {}
    priors: dict[str, Prior] = {}
    doubts: list[str] = []
    changes: dict[Key, FigureChange] = {}
    noisy = {key: both for key, both in measured.items() if METRICS.get(key[1]) == "paired"}
    for metric in sorted({metric for _, metric in noisy}):
        cells = {key: (b.samples, h.samples) for key, (b, h) in noisy.items() if key[1] == metric}
        enough = {key: both for key, both in cells.items() if min(map(len, both)) >= LEAST_PROCESSES}
        changes |= {key: _too_few(key, *noisy[key]) for key in cells if key not in enough}
        found, priors[metric] = paired_tests(enough, margin=_paired_margin(metric, margins))
        tests |= found
        doubts += _scatter_doubts(metric, found)
    decided = decide_all(tests)
    changes |= {key: _noisy_change(key, *noisy[key], decided[key], margins) for key in tests}
    few = sum(1 for change in changes.values() if change.verdict == "shown")
    if few:
        doubts.append(
            f"{few} latency figures are of fewer than {LEAST_PROCESSES} processes on a side and were not judged; "
            "measure with --processes 5 or more"
        )
    return changes, {metric: prior for metric, prior in priors.items() if prior.variance > 0.0}, tuple(doubts)


def _too_few(key: Key, base: GateFigure, head: GateFigure) -> FigureChange:
    change = _by_margin(key, base, head, Margins())
    note = f"{len(base.samples)} and {len(head.samples)} processes: what a process fixes for its lifetime is not known"
    return replace(change, verdict="shown", margin=None, note=note, unjudged=True)


def _paired_margin(metric: str, margins: Margins) -> float:
    return margins.anchor if metric == "latency_to_anchor" else margins.latency


def _scatter_doubts(metric: str, tests: Mapping[Key, PairedTest]) -> list[str]:
    spread = scatter(list(tests.values()))
    if len(tests) < _CELLS_TO_TELL or spread < _SCATTERED:
        return []
    return [
        f"the changes of {metric} scatter {spread:.1f} times as widely as processes of one side do: many cells "
        "changed, or the machine's state did between the sides; measure base and head in turn to tell"
    ]


def _without_the_baselines_own(changes: Mapping[Key, FigureChange]) -> dict[Key, FigureChange]:
    """Take back verdicts on ratios to ``full_float32`` that are its own change, as the ratios to the anchor tell."""
    kept = dict(changes)
    for (place, metric), one in changes.items():
        own = changes.get((place, "latency_to_anchor"))
        baseline = changes.get((place._replace(fix=BASELINE), "latency_to_anchor"))
        if metric != "latency_ratio" or one.verdict not in _OPPOSITE or own is None or baseline is None:
            continue
        if baseline.verdict == _OPPOSITE[one.verdict] and own.verdict != one.verdict:
            way = "faster" if baseline.verdict == "improvement" else "slower"
            kept[place, metric] = replace(one, verdict="shown", note=f"{BASELINE} became {way}, by the anchor")
    return kept


def _baseline_doubts(changes: Mapping[Key, FigureChange]) -> list[str]:
    """Say where every fix of a case moved alike: then it may be ``full_float32``, their denominator, that moved."""
    groups = grouped(
        ((place.case, place.mode, place.size, place.environment), change)
        for (place, metric), change in changes.items()
        if metric == "latency_ratio" and place.fix != BASELINE  # its own is to a twin of it
    )
    doubts = []
    for (case, mode, size, _), group in groups.items():
        verdicts = {one.verdict for one in group}
        if len(group) >= _FIXES_TO_TELL and verdicts in ({"regression"}, {"improvement"}):
            way = "faster" if verdicts == {"regression"} else "slower"
            doubts.append(
                f"all {len(group)} ratios of {case}/{mode}:{size} moved the same way: full_float32 itself may have "
                f"become {way}; see latency_to_anchor"
            )
    return doubts


def _noisy_change(
    key: Key, base: GateFigure, head: GateFigure, decision: PairedDecision, margins: Margins
) -> FigureChange:
    """Word a decision: ratios for log differences."""
    values = [math.exp(sum(map(math.log, one.samples)) / len(one.samples)) for one in (base, head)]
    return FigureChange(
        place=key[0],
        metric=key[1],
        verdict=decision.verdict,
        base=values[0],
        head=values[1],
        ratio=values[1] / values[0],
        low=math.exp(decision.low),
        high=math.exp(decision.high),
        margin=_paired_margin(key[1], margins),
        detectable=math.expm1(decision.detectable),
        processes=(len(base.samples), len(head.samples)),
    )
