"""Error rates from the trials on file.

An *outcome* is what one rule said in one trial, so a tool with two rules yields two outcomes per trial. Shares carry
Wilson's 95 % interval. A figure is met or not by its estimate, except where its target names a bound; with fewer than
:data:`ENOUGH` trials it is neither. Rivals are judged on trials of the same calls, slowdowns and load; a share of a
word that only ours can say has none. *Flagged* means ``slower`` or ``faster``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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

_ALARMS, _ALARMS_BOUND = 0.01, 0.018
_LEAST_POWER = {"quiet": {0.005: 0.95, 0.01: 0.95, 0.02: 0.99}, "bursty": {0.01: 0.9}}
_REPEAT_WITHIN, _REPEAT_SHARE = 0.002, 0.95

Test = Callable[["RuleOutcome"], bool]
Meets = Callable[[float, int], bool | None]


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

    @property
    def covers(self) -> bool:
        """The interval holds the injected slowdown; asked only where there is an interval."""
        assert self.low is not None
        assert self.high is not None
        return self.low <= 1.0 + self.delta <= self.high


def outcomes(trials: Sequence[dict[str, Any]]) -> list[RuleOutcome]:
    """Return one outcome per trial and rule, in the order of the trials."""
    found = []
    for trial in trials:
        spec = parse_key(trial["key"])
        values = {name: trial[name] for name in ("ratio", "elapsed_s", "others")}
        values |= {name: trial.get(name) for name in ("low", "high", "mde", "clock")}
        for rule, said in trial["said"].items():
            found.append(RuleOutcome(rule=rule, load=spec.load, call=spec.call, delta=spec.delta, said=said, **values))
    return found


def all_figures(found: Sequence[RuleOutcome]) -> list[Figure]:
    """Return every figure that these outcomes allow, quiet before bursty."""
    figures: list[Figure] = []
    for load in LOADS:
        here = [outcome for outcome in found if outcome.load == load]
        if any(outcome.rule == OURS for outcome in here):
            figures += _error_figures(here, load) + _estimate_figures(here, load) + _circumstances(here, load)
    return figures


def share(cases: Sequence[RuleOutcome], test: Test) -> str:
    """Return the share of the cases that pass, as text; empty without cases."""
    return share_text(sum(map(test, cases)), len(cases)) if cases else ""


def _fraction(cases: Sequence[RuleOutcome], test: Test) -> float:
    return sum(map(test, cases)) / len(cases)


def _share_figure(
    cases: Sequence[RuleOutcome],
    name: str,
    test: Test,
    target: str = "",
    meets: Meets | None = None,
    *,
    rivals: bool = True,
) -> list[Figure]:
    """Build the figure of one share, ours and where `rivals` each rival's; none where ours has no case."""
    ours = [outcome for outcome in cases if outcome.rule == OURS]
    if not ours:
        return []
    met = meets(_fraction(ours, test), len(ours)) if meets is not None and len(ours) >= ENOUGH else None
    others = [rule for rule in RULES if rule != OURS] if rivals else []
    texts = {RULES[rule]: share([o for o in cases if o.rule == rule], test) for rule in others}
    return [Figure(name, share(ours, test), target, met, {rule: text for rule, text in texts.items() if text})]


def _text_figure(name: str, text: Callable[[str], str], target: str = "", met: bool | None = None) -> list[Figure]:
    """Build a figure from a text per rule; tools with several rules are named by their first; none without ours."""
    if not text(OURS):
        return []
    firsts = ("asv_1.1", "pytest_median_2", "torch_iqr", "ttest_0.01")
    texts = {RULES[rule].split(",")[0].removesuffix(" median:2%"): text(rule) for rule in firsts}
    return [Figure(name, text(OURS), target, met, {tool: line for tool, line in texts.items() if line})]


def _is_flagged(outcome: RuleOutcome) -> bool:
    return outcome.flagged


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


def _error_figures(here: Sequence[RuleOutcome], load: str) -> list[Figure]:
    """False alarms, power, wrong verdicts, what was left undecided and what was settled."""
    same, slowed = _split(here)
    alarms = f"≤ {100 * _ALARMS:g} %, upper bound ≤ {100 * _ALARMS_BOUND:g} %"
    figures = _share_figure(same, f"A/A false alarms, {load}", _is_flagged, alarms, _few_false_alarms)
    figures += _by_call_figure(same, f"A/A false alarms, by call, {load}", _is_flagged)
    for delta in DELTAS[1:]:
        least, cases = _LEAST_POWER[load].get(delta), [o for o in slowed if o.delta == delta]
        name = f"flagged slower at +{100 * delta:g} %"
        target = f"≥ {100 * least:g} % in ≤ {BUDGET_S[load]:g} s" if least else ""
        meets = _at_least(least) if least else None
        figures += _share_figure(cases, f"{name}, {load}", _said("slower"), target, meets)
        if delta <= 0.01:
            figures += _by_call_figure(cases, f"{name}, by call, {load}", _said("slower"))
    equivalent, short = _said("equivalent"), [o for o in same if call_by_name(o.call).nominal_s < SHORT_S]
    ours_alone = partial(_share_figure, rivals=False)
    return [
        *figures,
        *_share_figure(slowed, f"slowed called faster, {load}", _said("faster"), "0", _never),
        *ours_alone(slowed, f"slowed called equivalent, {load}", equivalent, "0 (the rest undecided)", _never),
        *ours_alone(
            short, f"A/A settled as equivalent, calls below 1 ms, {load}", equivalent, "≥ 90 %", _at_least(0.9)
        ),
        *ours_alone(same, f"A/A settled as equivalent, all calls, {load}", equivalent),
        *ours_alone(here, f"left undecided, {load}", _said("undecided")),
    ]


def _by_call_figure(cases: Sequence[RuleOutcome], name: str, test: Test) -> list[Figure]:
    """Build the figure of a share split by call."""

    def by_call(rule: str) -> str:
        parts = []
        for call in CALLS:
            here = [o for o in cases if o.rule == rule and o.call == call.name]
            if here:
                parts.append(f"{call.name} {100 * _fraction(here, test):.0f} % (n = {len(here)})")
        return ", ".join(parts)

    return _text_figure(name, by_call)


def _split(here: Sequence[RuleOutcome]) -> tuple[list[RuleOutcome], list[RuleOutcome]]:
    """Return the A/A outcomes and the slowed ones."""
    return [o for o in here if o.delta == 0.0], [o for o in here if o.delta > 0.0]


def _estimate_figures(here: Sequence[RuleOutcome], load: str) -> list[Figure]:
    """Coverage, spread, repeatability and the reported minimum detectable effect."""
    same, slowed = _split(here)
    intervals, slowed_intervals = ([o for o in cases if o.low is not None] for cases in (same, slowed))
    covers: Test = lambda outcome: outcome.covers  # noqa: E731
    coverage: Meets = lambda fraction, n: 0.93 <= fraction <= 0.97  # noqa: E731
    promised = [o for o in slowed if o.mde is not None and o.delta >= o.mde]
    return [
        *_share_figure(intervals, f"95 % interval holds 1 on A/A, {load}", covers, "93–97 %", coverage),
        *_share_figure(slowed_intervals, f"95 % interval holds the injected slowdown (less certain), {load}", covers),
        *_spread_figure(same, load),
        *_repeat_figure(here, load),
        *_share_figure(
            promised,
            f"flagged slower where the slowdown is at least the reported detectable effect, {load}",
            _said("slower"),
            "≥ 80 %",
            _at_least(0.8),
        ),
    ]


def _spread_figure(same: Sequence[RuleOutcome], load: str) -> list[Figure]:
    def spread(rule: str) -> str:
        ratios = np.array([o.ratio for o in same if o.rule == rule])
        if ratios.size < 2:
            return ""
        return f"SD {100 * ratios.std(ddof=1):.3g} %, mean {100 * (ratios.mean() - 1.0):+.2g} %, n = {ratios.size}"

    return _text_figure(f"A/A estimate, {load}", spread)


def _repeat_figure(here: Sequence[RuleOutcome], load: str) -> list[Figure]:
    """Repeats of a cell (call and slowdown) around that cell's median, relative."""

    def deviations(rule: str) -> np.ndarray:
        cells: dict[tuple[str, float], list[float]] = {}
        for o in here:
            if o.rule == rule:
                cells.setdefault((o.call, o.delta), []).append(o.ratio)
        apart = [np.array(ratios) / np.median(ratios) - 1.0 for ratios in cells.values() if len(ratios) > 1]
        return np.concatenate(apart) if apart else np.zeros(0)

    def text(rule: str) -> str:
        apart = deviations(rule)
        if not apart.size:
            return ""
        within = 100 * np.mean(np.abs(apart) <= _REPEAT_WITHIN)
        return f"{within:.1f} % within, SD {100 * apart.std():.3g} %, n = {apart.size}"

    ours = deviations(OURS)
    met = bool(np.mean(np.abs(ours) <= _REPEAT_WITHIN) >= _REPEAT_SHARE) if ours.size >= ENOUGH else None
    target = f"≥ {100 * _REPEAT_SHARE:g} % within ±0.2 % of their cell's median"
    return _text_figure(f"independent repeats, {load}", text, target, met)


def _circumstances(here: Sequence[RuleOutcome], load: str) -> list[Figure]:
    """Time taken, clocks used, and how busy others kept the machine."""

    def elapsed(rule: str) -> str:
        s = np.array([o.elapsed_s for o in here if o.rule == rule])
        if not s.size:
            return ""
        return f"mean {s.mean():.2f} s, 95 % below {np.quantile(s, 0.95):.2f} s, longest {s.max():.2f} s"

    def busy(rule: str) -> str:
        cores = np.array([o.others for o in here if o.rule == rule])
        return f"mean {cores.mean():.2f}, largest {cores.max():.2f}" if cores.size else ""

    ours = [o for o in here if o.rule == OURS]
    met = bool(np.mean([o.elapsed_s for o in ours]) <= BUDGET_S[load]) if len(ours) >= ENOUGH else None
    target = f"mean ≤ {BUDGET_S[load]:g} s, everything included"
    figures = _text_figure(f"time per pair, {load}", elapsed, target, met)
    figures += _text_figure(f"cores kept busy by other processes meanwhile, {load}", busy)
    for clock in sorted({o.clock for o in ours if o.clock is not None}):
        used: Test = lambda outcome, clock=clock: outcome.clock == clock  # type: ignore[misc]  # noqa: E731
        figures += _share_figure(ours, f"verdicts on the {clock} clock, {load}", used)
    return figures
