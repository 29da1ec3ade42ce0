"""Error rates from the trials on file.

Conventions: an *outcome* is what one rule said in one trial, so a tool with two rules yields two outcomes per trial.
Shares carry Wilson's 95 % interval. A figure is met or not by its estimate, except where its target names a bound;
with fewer than :data:`ENOUGH` trials it is neither (``met`` is None), for then nothing is known. Rivals are judged on
trials of the same calls, slowdowns and load, run among ours; a share of a word that only ours can say has none.
*Flagged* means ``slower`` or ``faster``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from precision_eval.stats import wilson_interval
from validation.catalog import Figure
from validation.timing.calls import CALLS, DELTAS, call_by_name
from validation.timing.load import LOADS
from validation.timing.schedule import BUDGET_S, parse_key
from validation.timing.tools import RULES

OURS = "ours"
ENOUGH = 20
SHORT_S = 1e-3
"""Calls of a nominal length below this are to be settled, where nothing differs."""

Test = Callable[["Outcome"], bool]
Meets = Callable[[float, int], bool | None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one rule said in one trial; fields as in :mod:`~validation.timing.worker`."""

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


def outcomes(trials: Sequence[dict[str, Any]]) -> list[Outcome]:
    """Return one outcome per trial and rule, in the order of the trials."""
    found = []
    for trial in trials:
        spec = parse_key(trial["key"])
        optional = {name: trial.get(name) for name in ("low", "high", "mde", "clock")}
        for rule, said in trial["said"].items():
            found.append(
                Outcome(
                    rule=rule,
                    load=spec.load,
                    call=spec.call,
                    delta=spec.delta,
                    said=said,
                    ratio=trial["ratio"],
                    elapsed_s=trial["elapsed_s"],
                    others=trial["others"],
                    **optional,
                )
            )
    return found


def all_figures(found: Sequence[Outcome]) -> list[Figure]:
    """Return every figure that these outcomes allow, quiet before bursty."""
    figures: list[Figure] = []
    for load in LOADS:
        here = [outcome for outcome in found if outcome.load == load]
        if any(outcome.rule == OURS for outcome in here):
            figures += _error_figures(here, load) + _estimate_figures(here, load) + _circumstances(here, load)
    return figures


def share(cases: Sequence[Outcome], test: Test) -> str:
    """Return the share of the cases that pass, as text: ``"3.0 % [1.0, 8.5], 3 of 100"``; empty without cases."""
    if not cases:
        return ""
    hits, n = sum(test(case) for case in cases), len(cases)
    low, high = wilson_interval(hits / n, n)
    return f"{100 * hits / n:.1f} % [{100 * low:.1f}, {100 * high:.1f}], {hits} of {n}"


def _fraction(cases: Sequence[Outcome], test: Test) -> float:
    return sum(test(case) for case in cases) / len(cases)


def _share_figure(
    here: Sequence[Outcome],
    name: str,
    test: Test,
    *,
    target: str = "",
    meets: Meets | None = None,
    rivals: bool = True,
) -> list[Figure]:
    """Build the figure of one share, ours and where `rivals` each rival's; none where ours has no case."""
    ours = [outcome for outcome in here if outcome.rule == OURS]
    if not ours:
        return []
    judged = meets is not None and len(ours) >= ENOUGH
    texts = {RULES[rule]: share([o for o in here if o.rule == rule], test) for rule in RULES if rule != OURS}
    return [
        Figure(
            name=name,
            target=target,
            found=share(ours, test),
            met=meets(_fraction(ours, test), len(ours)) if judged and meets is not None else None,
            rivals={rule: text for rule, text in texts.items() if text and rivals},
        )
    ]


def _error_figures(here: Sequence[Outcome], load: str) -> list[Figure]:
    """False alarms, power, wrong verdicts, what was left undecided and what was settled."""
    same, slowed = _split(here)
    figures = _share_figure(
        same,
        f"A/A false alarms, {load}",
        _is_flagged,
        target="≤ 1 %, upper bound ≤ 1.8 %",
        meets=_few_false_alarms,
    )
    figures += _by_call_figure(same, f"A/A false alarms, by call, {load}", _is_flagged)
    for delta in DELTAS[1:]:
        least = _LEAST_POWER[load].get(delta)
        here_slowed = [o for o in slowed if o.delta == delta]
        figures += _share_figure(
            here_slowed,
            f"flagged slower at +{100 * delta:g} %, {load}",
            _says_slower,
            target=f"≥ {100 * least:g} % in ≤ {BUDGET_S[load]:g} s" if least else "",
            meets=_at_least(least) if least else None,
        )
        if delta <= 0.01:
            figures += _by_call_figure(
                here_slowed, f"flagged slower at +{100 * delta:g} %, by call, {load}", _says_slower
            )
    figures += _share_figure(
        slowed,
        f"slowed called faster, {load}",
        lambda o: o.said == "faster",
        target="0",
        meets=lambda fraction, n: fraction == 0.0,
    )
    figures += _share_figure(
        slowed,
        f"slowed called equivalent, {load}",
        lambda o: o.said == "equivalent",
        target="0 (the rest undecided)",
        meets=lambda fraction, n: fraction == 0.0,
        rivals=False,
    )
    figures += _share_figure(
        [o for o in same if call_by_name(o.call).nominal_s < SHORT_S],
        f"A/A settled as equivalent, calls below 1 ms, {load}",
        lambda o: o.said == "equivalent",
        target="≥ 90 %",
        meets=_at_least(0.9),
        rivals=False,
    )
    figures += _share_figure(
        same, f"A/A settled as equivalent, all calls, {load}", lambda o: o.said == "equivalent", rivals=False
    )
    figures += _share_figure(here, f"left undecided, {load}", lambda o: o.said == "undecided", rivals=False)
    return figures


def _few_false_alarms(fraction: float, n: int) -> bool | None:
    """Judge a rate of false alarms; None where even no alarm among so few trials would leave the bound too high."""
    low, high = wilson_interval(fraction, n)
    if wilson_interval(0.0, n)[1] > _ALARMS_BOUND:
        return False if low > _ALARMS else None
    return fraction <= _ALARMS and high <= _ALARMS_BOUND


_ALARMS, _ALARMS_BOUND = 0.01, 0.018


def _by_call_figure(cases: Sequence[Outcome], name: str, test: Test) -> list[Figure]:
    """Build the figure of a share split by call."""

    def by_call(rule: str) -> str:
        parts = []
        for call in CALLS:
            here = [o for o in cases if o.rule == rule and o.call == call.name]
            if here:
                parts.append(f"{call.name} {100 * _fraction(here, test):.0f} % (n = {len(here)})")
        return ", ".join(parts)

    return _plain_figure(name, by_call)


def _is_flagged(outcome: Outcome) -> bool:
    return outcome.flagged


def _says_slower(outcome: Outcome) -> bool:
    return outcome.said == "slower"


_LEAST_POWER = {"quiet": {0.005: 0.95, 0.01: 0.95, 0.02: 0.99}, "bursty": {0.01: 0.9}}


def _at_least(least: float) -> Meets:
    return lambda fraction, n: fraction >= least


def _split(here: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Return the A/A outcomes and the slowed ones."""
    return [o for o in here if o.delta == 0.0], [o for o in here if o.delta > 0.0]


def _covers(outcome: Outcome) -> bool:
    assert outcome.low is not None  # asked only where there is an interval
    assert outcome.high is not None
    return outcome.low <= 1.0 + outcome.delta <= outcome.high


def _estimate_figures(here: Sequence[Outcome], load: str) -> list[Figure]:
    """Coverage, spread, repeatability and the reported minimum detectable effect."""
    same, slowed = _split(here)
    figures = _share_figure(
        [o for o in same if o.low is not None],
        f"95 % interval holds 1 on A/A, {load}",
        _covers,
        target="93–97 %",
        meets=lambda fraction, n: 0.93 <= fraction <= 0.97,
    )
    figures += _share_figure(
        [o for o in slowed if o.low is not None],
        f"95 % interval holds the injected slowdown (less certain), {load}",
        _covers,
    )
    figures += _spread_figure(same, load)
    figures += _repeat_figure(here, load)
    detectable = [o for o in slowed if o.mde is not None and o.delta >= o.mde]
    figures += _share_figure(
        detectable,
        f"flagged slower where the slowdown is at least the reported detectable effect, {load}",
        _says_slower,
        target="≥ 80 %",
        meets=_at_least(0.8),
    )
    return figures


def _spread_figure(same: Sequence[Outcome], load: str) -> list[Figure]:
    def spread(rule: str) -> str:
        ratios = np.array([o.ratio for o in same if o.rule == rule])
        if ratios.size < 2:
            return ""
        return f"SD {100 * ratios.std(ddof=1):.3g} %, mean {100 * (ratios.mean() - 1.0):+.2g} %, n = {ratios.size}"

    return _plain_figure(f"A/A estimate, {load}", spread)


def _repeat_figure(here: Sequence[Outcome], load: str) -> list[Figure]:
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
    return _plain_figure(f"independent repeats, {load}", text, target=target, met=met)


_REPEAT_WITHIN = 0.002
_REPEAT_SHARE = 0.95


def _circumstances(here: Sequence[Outcome], load: str) -> list[Figure]:
    """Time taken, clocks used, and how busy others kept the machine."""
    ours = [o for o in here if o.rule == OURS]

    def elapsed(rule: str) -> str:
        seconds = np.array([o.elapsed_s for o in here if o.rule == rule])
        if not seconds.size:
            return ""
        return (
            f"mean {seconds.mean():.2f} s, 95 % below {np.quantile(seconds, 0.95):.2f} s, longest {seconds.max():.2f} s"
        )

    mean_s = float(np.mean([o.elapsed_s for o in ours]))
    met = mean_s <= BUDGET_S[load] if len(ours) >= ENOUGH else None
    figures = _plain_figure(
        f"time per pair, {load}", elapsed, target=f"mean ≤ {BUDGET_S[load]:g} s, everything included", met=met
    )

    def busy(rule: str) -> str:
        cores = np.array([o.others for o in here if o.rule == rule])
        return f"mean {cores.mean():.2f}, largest {cores.max():.2f}" if cores.size else ""

    figures += _plain_figure(f"cores kept busy by other processes meanwhile, {load}", busy)
    for clock in sorted({o.clock for o in ours if o.clock is not None}):
        figures += _share_figure(ours, f"verdicts on the {clock} clock, {load}", partial(_on_clock, clock=clock))
    return figures


def _on_clock(outcome: Outcome, *, clock: str) -> bool:
    return outcome.clock == clock


def _plain_figure(name: str, text: Callable[[str], str], *, target: str = "", met: bool | None = None) -> list[Figure]:
    """Build a figure from a text per rule; tools with several rules are named by their first; none without ours."""
    if not text(OURS):
        return []
    firsts = ("asv_1.1", "pytest_median_2", "torch_iqr", "ttest_0.01")
    texts = {RULES[rule].split(",")[0].removesuffix(" median:2%"): text(rule) for rule in firsts}
    return [
        Figure(
            name=name,
            target=target,
            found=text(OURS),
            met=met,
            rivals={tool: line for tool, line in texts.items() if line},
        )
    ]
