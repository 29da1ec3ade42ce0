"""Error rates from the trials on file.

An *outcome* is what one rule said in one trial, so a tool with two rules yields two outcomes per trial. Shares carry
Wilson's 95 % interval. A figure is met or not by its estimate, except where its target names a bound; with fewer than
:data:`ENOUGH` trials it is neither. Rivals are judged on trials of the same calls, slowdowns and load; a share of a
word that only ours can say has none. *Flagged* means ``slower`` or ``faster``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from precision_eval.stats import wilson_interval
from validation.frame import Figure
from validation.latency.calls import CALLS, DELTAS, call_by_name
from validation.latency.load import LOADS
from validation.latency.rivals import RULES
from validation.latency.schedule import BUDGET_S, parse_key
from validation.report import share_text

OURS = "ours"
ENOUGH = 20
SHORT_S = 1e-3
"""Calls of a nominal length below this are to be settled, where nothing differs."""
FIRST_RULES = ("ours", "asv_1.1", "pytest_median_2", "torch_iqr", "ttest_0.01")
"""The first rule of each tool, for what depends on the tool and not on the rule."""

_ALARMS, _ALARMS_BOUND = 0.01, 0.018
_LEAST_POWER = {"quiet": {0.005: 0.95, 0.01: 0.95, 0.02: 0.99}, "bursty": {0.01: 0.9}}
_REPEAT_WITHIN, _REPEAT_SHARE = 0.002, 0.95


@dataclass(frozen=True, kw_only=True)
class RuleOutcome:
    """What one rule said in one trial."""

    rule: str
    load: str
    call: str
    delta: float
    said: str
    ratio: float
    elapsed_s: float
    others: float
    low: float | None = None
    high: float | None = None
    mde: float | None = None
    clock: str | None = None

    @property
    def flagged(self) -> bool:
        """The rule says that the two differ."""
        return self.said in ("slower", "faster")


Cases = Sequence[RuleOutcome]
Test = Callable[[RuleOutcome], bool]
Meets = Callable[[float, int], bool | None]
"""Given a share and its count: whether the target is met; None where so few trials cannot tell."""


def outcomes(trials: Sequence[dict[str, Any]]) -> list[RuleOutcome]:
    """Return one outcome per trial and rule, in the order of the trials."""
    rows = []
    for trial in trials:
        spec = parse_key(trial["key"])
        values = {name: trial[name] for name in ("ratio", "elapsed_s", "others")}
        values |= {name: trial.get(name) for name in ("low", "high", "mde", "clock")}
        for rule, said in trial["said"].items():
            rows.append(RuleOutcome(rule=rule, load=spec.load, call=spec.call, delta=spec.delta, said=said, **values))
    return rows


def all_figures(cases: Cases) -> list[Figure]:
    """Return every figure that these outcomes allow, quiet before bursty."""
    figures: list[Figure] = []
    for load in LOADS:
        here = [outcome for outcome in cases if outcome.load == load]
        if any(outcome.rule == OURS for outcome in here):
            made = (*_error_figures(here, load), *_estimate_figures(here), *_circumstances(here, load))
            figures += [replace(figure, name=f"{figure.name}, {load}") for figure in made if figure is not None]
    return figures


def _fraction(cases: Cases, test: Test) -> float:
    return sum(map(test, cases)) / len(cases)


def _share(
    name: str, cases: Cases, test: Test, target: str = "", meets: Meets | None = None, *, rivals: bool = True
) -> Figure | None:
    """Build the figure of one share, ours and where `rivals` each rival's; None where ours has no case."""
    texts, met = {}, None
    for rule in RULES if rivals else (OURS,):
        own = [outcome for outcome in cases if outcome.rule == rule]
        if own:
            texts[rule] = share_text(sum(map(test, own)), len(own))
        if own and rule == OURS and meets is not None and len(own) >= ENOUGH:
            met = meets(_fraction(own, test), len(own))
    if OURS not in texts:
        return None
    found = texts.pop(OURS)
    return Figure(name, found, target, met, {RULES[rule]: text for rule, text in texts.items()})


def _text(
    name: str, cases: Cases, text: Callable[[Cases], str], target: str = "", met: bool | None = None
) -> Figure | None:
    """Build a figure from a text about each tool's outcomes, named by its first rule; None without ours."""
    texts = {rule: text([outcome for outcome in cases if outcome.rule == rule]) for rule in FIRST_RULES}
    found = texts.pop(OURS)
    tools = {RULES[rule].split(",")[0].removesuffix(" median:2%"): text for rule, text in texts.items() if text}
    return Figure(name, found, target, met, tools) if found else None


def _is_flagged(outcome: RuleOutcome) -> bool:
    return outcome.flagged


def _covers(outcome: RuleOutcome) -> bool:
    """Say whether the interval holds the injected slowdown; asked only where there is an interval."""
    assert outcome.low is not None
    assert outcome.high is not None
    return outcome.low <= 1.0 + outcome.delta <= outcome.high


def _said(word: str) -> Test:
    return lambda outcome: outcome.said == word


def _at_least(least: float) -> Meets:
    return lambda fraction, n: fraction >= least


def _never(fraction: float, n: int) -> bool:
    return fraction == 0.0


def _few_false_alarms(fraction: float, n: int) -> bool | None:
    """Judge a rate of false alarms; None where even no alarm among so few trials would leave the bound too high."""
    low, high = wilson_interval(fraction, n)
    if wilson_interval(0.0, n)[1] > _ALARMS_BOUND:
        return False if low > _ALARMS else None
    return fraction <= _ALARMS and high <= _ALARMS_BOUND


def _split(here: Cases) -> tuple[Cases, Cases]:
    """Return the A/A outcomes and the slowed ones."""
    return [o for o in here if o.delta == 0.0], [o for o in here if o.delta > 0.0]


def _error_figures(here: Cases, load: str) -> Iterator[Figure | None]:
    """False alarms, power, wrong verdicts, what was left undecided and what was settled."""
    same, slowed = _split(here)
    alarms = f"≤ {100 * _ALARMS:g} %, upper bound ≤ {100 * _ALARMS_BOUND:g} %"
    yield _share("A/A false alarms", same, _is_flagged, alarms, _few_false_alarms)
    yield _by_call("A/A false alarms, by call", same, _is_flagged)
    for delta in DELTAS[1:]:
        least, cases = _LEAST_POWER[load].get(delta), [o for o in slowed if o.delta == delta]
        name = f"flagged slower at +{100 * delta:g} %"
        target = f"≥ {100 * least:g} % in ≤ {BUDGET_S[load]:g} s" if least else ""
        yield _share(name, cases, _said("slower"), target, _at_least(least) if least else None)
        if delta <= 0.01:
            yield _by_call(f"{name}, by call", cases, _said("slower"))
    yield _share("slowed called faster", slowed, _said("faster"), "0", _never)
    equivalent, short = _said("equivalent"), [o for o in same if call_by_name(o.call).nominal_s < SHORT_S]
    yield _share("slowed called equivalent", slowed, equivalent, "0 (the rest undecided)", _never, rivals=False)
    settled = "A/A settled as equivalent"
    yield _share(f"{settled}, calls below 1 ms", short, equivalent, "≥ 90 %", _at_least(0.9), rivals=False)
    yield _share(f"{settled}, all calls", same, equivalent, rivals=False)
    yield _share("left undecided", here, _said("undecided"), rivals=False)


def _by_call(name: str, cases: Cases, test: Test) -> Figure | None:
    """Build the figure of a share split by call."""

    def text(own: Cases) -> str:
        calls = ((call.name, [o for o in own if o.call == call.name]) for call in CALLS)
        return ", ".join(f"{call} {100 * _fraction(at, test):.0f} % (n = {len(at)})" for call, at in calls if at)

    return _text(name, cases, text)


def _estimate_figures(here: Cases) -> Iterator[Figure | None]:
    """Coverage, spread, repeatability and the reported minimum detectable effect."""
    same, slowed = _split(here)
    intervals, slowed_intervals = ([o for o in cases if o.low is not None] for cases in (same, slowed))
    coverage: Meets = lambda fraction, n: 0.93 <= fraction <= 0.97  # noqa: E731
    yield _share("95 % interval holds 1 on A/A", intervals, _covers, "93–97 %", coverage)
    yield _share("95 % interval holds the injected slowdown (less certain)", slowed_intervals, _covers)
    yield _text("A/A estimate", same, _spread_text)
    ours = _deviations([o for o in here if o.rule == OURS])
    met = bool(np.mean(np.abs(ours) <= _REPEAT_WITHIN) >= _REPEAT_SHARE) if ours.size >= ENOUGH else None
    target = f"≥ {100 * _REPEAT_SHARE:g} % within ±0.2 % of their cell's median"
    yield _text("independent repeats", here, _repeats_text, target, met)
    promised = [o for o in slowed if o.mde is not None and o.delta >= o.mde]
    name = "flagged slower where the slowdown is at least the reported detectable effect"
    yield _share(name, promised, _said("slower"), "≥ 80 %", _at_least(0.8))


def _spread_text(own: Cases) -> str:
    ratios = np.array([o.ratio for o in own])
    if ratios.size < 2:
        return ""
    return f"SD {100 * ratios.std(ddof=1):.3g} %, mean {100 * (ratios.mean() - 1.0):+.2g} %, n = {ratios.size}"


def _deviations(own: Cases) -> np.ndarray:
    """Repeats of each cell (call and slowdown) around that cell's median, relative."""
    cells: dict[tuple[str, float], list[float]] = {}
    for o in own:
        cells.setdefault((o.call, o.delta), []).append(o.ratio)
    apart = [np.array(ratios) / np.median(ratios) - 1.0 for ratios in cells.values() if len(ratios) > 1]
    return np.concatenate(apart) if apart else np.zeros(0)


def _repeats_text(own: Cases) -> str:
    apart = _deviations(own)
    if not apart.size:
        return ""
    within = 100 * np.mean(np.abs(apart) <= _REPEAT_WITHIN)
    return f"{within:.1f} % within, SD {100 * apart.std():.3g} %, n = {apart.size}"


def _circumstances(here: Cases, load: str) -> Iterator[Figure | None]:
    """Time taken, clocks used, and how busy others kept the machine."""

    def elapsed(own: Cases) -> str:
        s = np.array([o.elapsed_s for o in own])
        if not s.size:
            return ""
        return f"mean {s.mean():.2f} s, 95 % below {np.quantile(s, 0.95):.2f} s, longest {s.max():.2f} s"

    def busy(own: Cases) -> str:
        cores = np.array([o.others for o in own])
        return f"mean {cores.mean():.2f}, largest {cores.max():.2f}" if cores.size else ""

    ours = [o for o in here if o.rule == OURS]
    met = bool(np.mean([o.elapsed_s for o in ours]) <= BUDGET_S[load]) if len(ours) >= ENOUGH else None
    yield _text("time per pair", here, elapsed, f"mean ≤ {BUDGET_S[load]:g} s, everything included", met)
    yield _text("cores kept busy by other processes meanwhile", here, busy)
    for clock in sorted({o.clock for o in ours if o.clock is not None}):
        used: Test = lambda outcome, clock=clock: outcome.clock == clock  # type: ignore[misc]  # noqa: E731
        yield _share(f"verdicts on the {clock} clock", ours, used)
