"""Error rates from the trials on file.

An *outcome* is what one rule said in one trial, so a tool with two rules yields two outcomes per trial. Shares carry
Wilson's 95 % interval. A figure meets its target by its estimate, except where the target names a bound; with fewer
than :data:`ENOUGH` trials it is undecided. *Flagged* means ``slower`` or ``faster``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from precision_eval.stats.intervals import wilson_interval
from validation.frame import Data, Figure
from validation.latency.calls import DELTAS, call_by_name
from validation.latency.load import LOADS
from validation.latency.rivals import RULES
from validation.latency.schedule import BUDGET_S, OURS, parse_key
from validation.report import judged_share, share_text

ENOUGH = 20
SHORT_S = 1e-3  # equal calls that last less are to be settled as equivalent

_ALARMS, _ALARMS_BOUND = 0.01, 0.018
_ALARMS_TARGET = f"≤ {100 * _ALARMS:g} %, upper bound ≤ {100 * _ALARMS_BOUND:g} %"
_LEAST_POWER = {"quiet": {0.005: 0.95, 0.01: 0.95, 0.02: 0.99}, "bursty": {0.01: 0.9}}
_REPEAT_WITHIN, _REPEAT_SHARE = 0.002, 0.95
_COVERAGE, _NEVER = "93–97 %", "0"

Outcomes = Sequence[Data]
Test = Callable[[Data], bool]


def outcomes(trials: Sequence[Data]) -> list[Data]:
    rows = []
    for trial in trials:
        spec = parse_key(trial["key"])
        where = {"load": spec.load, "call": spec.call, "delta": spec.delta}
        rows += [{**trial, **where, "rule": rule, "said": word} for rule, word in trial["said"].items()]
    return rows


def says(word: str) -> Test:
    return lambda outcome: outcome["said"] == word


def is_flagged(outcome: Data) -> bool:
    return outcome["said"] in ("slower", "faster")


def covers(outcome: Data) -> bool:
    return bool(outcome["low"] <= 1.0 + outcome["delta"] <= outcome["high"])


def all_figures(cases: Outcomes) -> list[Figure]:
    """Return every figure that these outcomes allow, quiet before bursty."""
    figures: list[Figure] = []
    for load in LOADS:
        here = [outcome for outcome in cases if outcome["load"] == load]
        if any(outcome["rule"] == OURS for outcome in here):
            made = (*_error_figures(here, load), *_estimate_figures(here), _time_figure(here, load))
            figures += [replace(figure, name=f"{figure.name}, {load}") for figure in made if figure is not None]
    return figures


def _share(name: str, cases: Outcomes, test: Test, target: str = "", *, rivals: bool = True) -> Figure | None:
    """Build the figure of one share, ours and where `rivals` each rival's; None where ours has no case."""
    hits = {rule: [test(o) for o in cases if o["rule"] == rule] for rule in (RULES if rivals else (OURS,))}
    ours = hits.pop(OURS)
    if not ours:
        return None
    texts = {RULES[rule]: share_text(sum(theirs), len(theirs)) for rule, theirs in hits.items() if theirs}
    return judged_share(name, sum(ours), len(ours), target, rivals=texts, enough=ENOUGH)


def _alarms_figure(same: Outcomes) -> Figure | None:
    """Judge false alarms by the bound of their interval too, unless even none among so few would leave it too high."""
    figure = _share("A/A false alarms", same, is_flagged, _ALARMS_TARGET)
    if figure is None or figure.met is None:
        return figure
    ours = [is_flagged(o) for o in same if o["rule"] == OURS]
    share, n = sum(ours) / len(ours), len(ours)
    low, high = wilson_interval(share, n)
    if wilson_interval(0.0, n)[1] > _ALARMS_BOUND:
        return replace(figure, met=False if low > _ALARMS else None)
    return replace(figure, met=share <= _ALARMS and high <= _ALARMS_BOUND)


def _error_figures(here: Outcomes, load: str) -> Iterator[Figure | None]:
    """False alarms, power, wrong verdicts, and what was settled."""
    same, slowed = [o for o in here if o["delta"] == 0.0], [o for o in here if o["delta"] > 0.0]
    yield _alarms_figure(same)
    for delta in DELTAS[1:]:
        least, cases = _LEAST_POWER[load].get(delta), [o for o in slowed if o["delta"] == delta]
        target = f"≥ {100 * least:g} % in ≤ {BUDGET_S[load]:g} s" if least else ""
        yield _share(f"flagged slower at +{100 * delta:g} %", cases, says("slower"), target)
    yield _share("slowed called faster", slowed, says("faster"), _NEVER)
    equivalent, short = says("equivalent"), [o for o in same if call_by_name(o["call"]).nominal_s < SHORT_S]
    yield _share("slowed called equivalent", slowed, equivalent, f"{_NEVER} (the rest undecided)", rivals=False)
    yield _share("A/A settled as equivalent, calls below 1 ms", short, equivalent, "≥ 90 %", rivals=False)
    yield _share("left undecided", here, says("undecided"), rivals=False)


def _estimate_figures(here: Outcomes) -> Iterator[Figure | None]:
    """Coverage, repeatability and the reported minimum detectable effect."""
    with_interval = [o for o in here if o.get("low") is not None]
    yield _share("95 % interval holds 1 on A/A", [o for o in with_interval if o["delta"] == 0.0], covers, _COVERAGE)
    slowed = "95 % interval holds the injected slowdown (less certain)"
    yield _share(slowed, [o for o in with_interval if o["delta"] > 0.0], covers)
    ours = _deviations([o for o in here if o["rule"] == OURS])
    met = bool(np.mean(np.abs(ours) <= _REPEAT_WITHIN) >= _REPEAT_SHARE) if ours.size >= ENOUGH else None
    target = f"≥ {100 * _REPEAT_SHARE:g} % within ±0.2 % of their cell's median"
    yield _text("independent repeats", here, _repeats_text, target, met)
    promised = [o for o in here if o.get("mde") is not None and 0.0 < o["delta"] >= o["mde"]]
    name = "flagged slower where the slowdown is at least the reported detectable effect"
    yield _share(name, promised, says("slower"), "≥ 80 %")


def _text(name: str, cases: Outcomes, text: Callable[[Outcomes], str], target: str, met: bool | None) -> Figure | None:
    """Build a figure from a text about each rule's outcomes; None without ours."""
    texts = {rule: text([o for o in cases if o["rule"] == rule]) for rule in RULES}
    ours = texts.pop(OURS)
    rivals = {RULES[rule]: theirs for rule, theirs in texts.items() if theirs}
    return Figure(name, ours, target, met, rivals) if ours else None


def _deviations(cases: Outcomes) -> np.ndarray:
    """Repeats of each cell (call and slowdown) around that cell's median, relative."""
    cells: dict[tuple[str, float], list[float]] = {}
    for o in cases:
        cells.setdefault((o["call"], o["delta"]), []).append(o["ratio"])
    apart = [np.array(ratios) / np.median(ratios) - 1.0 for ratios in cells.values() if len(ratios) > 1]
    return np.concatenate(apart) if apart else np.zeros(0)


def _repeats_text(cases: Outcomes) -> str:
    apart = _deviations(cases)
    if not apart.size:
        return ""
    within = 100 * np.mean(np.abs(apart) <= _REPEAT_WITHIN)
    return f"{within:.1f} % within, SD {100 * apart.std():.3g} %, n = {apart.size}"


def _elapsed_text(cases: Outcomes) -> str:
    if not cases:
        return ""
    s = np.array([o["elapsed_s"] for o in cases])
    return f"mean {s.mean():.2f} s, 95 % below {np.quantile(s, 0.95):.2f} s, longest {s.max():.2f} s"


def _time_figure(here: Outcomes, load: str) -> Figure | None:
    ours = [o["elapsed_s"] for o in here if o["rule"] == OURS]
    met = bool(np.mean(ours) <= BUDGET_S[load]) if len(ours) >= ENOUGH else None
    return _text("time per pair", here, _elapsed_text, f"mean ≤ {BUDGET_S[load]:g} s, everything included", met)
