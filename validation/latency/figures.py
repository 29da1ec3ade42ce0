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
from validation.latency.load import LOADS, MEAN_BUSY
from validation.latency.rivals import RULES
from validation.latency.schedule import BUDGET_S, parse_key
from validation.plots import Panel, Point
from validation.report import meets, share_text

OURS = "ours"
ENOUGH = 20
SHORT_S = 1e-3
"""Calls of a nominal length below this are to be settled, where nothing differs."""
FIRST_RULES = ("ours", "asv_1.1", "pytest_median_2", "torch_iqr", "ttest_0.01")
"""The first rule of each tool, for what depends on the tool and not on the rule."""

_ALARMS, _ALARMS_BOUND = 0.01, 0.018
_ALARMS_TARGET = f"≤ {100 * _ALARMS:g} %, upper bound ≤ {100 * _ALARMS_BOUND:g} %"
_LEAST_POWER = {"quiet": {0.005: 0.95, 0.01: 0.95, 0.02: 0.99}, "bursty": {0.01: 0.9}}
_REPEAT_WITHIN, _REPEAT_SHARE = 0.002, 0.95
_COVERAGE, _NEVER = "93–97 %", "0"


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
        """The interval, where there is one, holds the injected slowdown."""
        return self.low is not None and self.high is not None and self.low <= 1.0 + self.delta <= self.high


Cases = Sequence[RuleOutcome]
Test = Callable[[RuleOutcome], bool]


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


def _share(name: str, cases: Cases, test: Test, target: str = "", *, rivals: bool = True) -> Figure | None:
    """Build the figure of one share, ours and where `rivals` each rival's; None where ours has no case."""
    texts, met = {}, None
    for rule in RULES if rivals else (OURS,):
        own = [outcome for outcome in cases if outcome.rule == rule]
        if own:
            texts[rule] = share_text(sum(map(test, own)), len(own))
        if len(own) >= ENOUGH and rule == OURS and target:
            met = _judged(sum(map(test, own)) / len(own), len(own), target)
    if OURS not in texts:
        return None
    found = texts.pop(OURS)
    return Figure(name, found, target, met, {RULES[rule]: text for rule, text in texts.items()})


def _judged(share: float, n: int, target: str) -> bool | None:
    """Hold a share to its target; None for alarms where even none among so few would leave the bound too high."""
    if target == _ALARMS_TARGET:
        low, high = wilson_interval(share, n)
        if wilson_interval(0.0, n)[1] > _ALARMS_BOUND:
            return False if low > _ALARMS else None
        return share <= _ALARMS and high <= _ALARMS_BOUND
    if target.startswith(_NEVER):
        return share == 0.0
    return 0.93 <= share <= 0.97 if target == _COVERAGE else meets(share, target)


def _text(
    name: str, cases: Cases, text: Callable[[Cases], str], target: str = "", met: bool | None = None
) -> Figure | None:
    """Build a figure from a text about each tool's outcomes, named by its first rule; None without ours."""
    texts = {}
    for rule in FIRST_RULES:
        own = [outcome for outcome in cases if outcome.rule == rule]
        texts[rule] = text(own) if own else ""
    found = texts.pop(OURS)
    tools = {RULES[rule].split(",")[0].removesuffix(" median:2%"): text for rule, text in texts.items() if text}
    return Figure(name, found, target, met, tools) if found else None


def _is(word: str) -> Test:
    return lambda outcome: outcome.said == word


def _is_flagged(outcome: RuleOutcome) -> bool:
    return outcome.flagged


def _covers(outcome: RuleOutcome) -> bool:
    return outcome.covers


def _error_figures(here: Cases, load: str) -> Iterator[Figure | None]:
    """False alarms, power, wrong verdicts, what was left undecided and what was settled."""
    same, slowed = [o for o in here if o.delta == 0.0], [o for o in here if o.delta > 0.0]
    yield _share("A/A false alarms", same, _is_flagged, _ALARMS_TARGET)
    yield _by_call("A/A false alarms, by call", same, _is_flagged)
    for delta in DELTAS[1:]:
        least, cases = _LEAST_POWER[load].get(delta), [o for o in slowed if o.delta == delta]
        name = f"flagged slower at +{100 * delta:g} %"
        yield _share(name, cases, _is("slower"), f"≥ {100 * least:g} % in ≤ {BUDGET_S[load]:g} s" if least else "")
        if delta <= 0.01:
            yield _by_call(f"{name}, by call", cases, _is("slower"))
    yield _share("slowed called faster", slowed, _is("faster"), _NEVER)
    equivalent, short = _is("equivalent"), [o for o in same if call_by_name(o.call).nominal_s < SHORT_S]
    yield _share("slowed called equivalent", slowed, equivalent, f"{_NEVER} (the rest undecided)", rivals=False)
    settled = "A/A settled as equivalent"
    yield _share(f"{settled}, calls below 1 ms", short, equivalent, "≥ 90 %", rivals=False)
    yield _share(f"{settled}, all calls", same, equivalent, rivals=False)
    yield _share("left undecided", here, _is("undecided"), rivals=False)


def _by_call(name: str, cases: Cases, test: Test) -> Figure | None:
    """Build the figure of a share split by call."""

    def text(own: Cases) -> str:
        calls = ((call.name, [test(o) for o in own if o.call == call.name]) for call in CALLS)
        return ", ".join(f"{call} {100 * sum(at) / len(at):.0f} % (n = {len(at)})" for call, at in calls if at)

    return _text(name, cases, text)


def _estimate_figures(here: Cases) -> Iterator[Figure | None]:
    """Coverage, spread, repeatability and the reported minimum detectable effect."""
    known = [o for o in here if o.low is not None]
    yield _share("95 % interval holds 1 on A/A", [o for o in known if o.delta == 0.0], _covers, _COVERAGE)
    slowed = "95 % interval holds the injected slowdown (less certain)"
    yield _share(slowed, [o for o in known if o.delta > 0.0], _covers)
    yield _text("A/A estimate", [o for o in here if o.delta == 0.0], _spread_text)
    ours = _deviations([o for o in here if o.rule == OURS])
    met = bool(np.mean(np.abs(ours) <= _REPEAT_WITHIN) >= _REPEAT_SHARE) if ours.size >= ENOUGH else None
    target = f"≥ {100 * _REPEAT_SHARE:g} % within ±0.2 % of their cell's median"
    yield _text("independent repeats", here, _repeats_text, target, met)
    promised = [o for o in here if o.mde is not None and 0.0 < o.delta >= o.mde]
    name = "flagged slower where the slowdown is at least the reported detectable effect"
    yield _share(name, promised, _is("slower"), "≥ 80 %")


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
        return f"mean {s.mean():.2f} s, 95 % below {np.quantile(s, 0.95):.2f} s, longest {s.max():.2f} s"

    def busy(own: Cases) -> str:
        cores = np.array([o.others for o in own])
        return f"mean {cores.mean():.2f}, largest {cores.max():.2f}"

    ours = [o for o in here if o.rule == OURS]
    met = bool(np.mean([o.elapsed_s for o in ours]) <= BUDGET_S[load]) if len(ours) >= ENOUGH else None
    yield _text("time per pair", here, elapsed, f"mean ≤ {BUDGET_S[load]:g} s, everything included", met)
    yield _text("cores kept busy by other processes meanwhile", here, busy)
    for clock in sorted({o.clock for o in ours if o.clock is not None}):
        used: Test = lambda outcome, clock=clock: outcome.clock == clock  # type: ignore[misc]  # noqa: E731
        yield _share(f"verdicts on the {clock} clock", ours, used)


def power_panels(cases: Cases) -> list[Panel]:
    """Every rule's shares over the slowdown, moved sideways so that bars do not cover each other; a panel per load."""
    panels = []
    for load in LOADS:
        curves: dict[str, list[Point]] = {}
        for place, rule in enumerate(RULES):
            own = [o for o in cases if (o.load, o.rule) == (load, rule)]
            for position, delta in enumerate(DELTAS):
                hits = [o.flagged if delta == 0.0 else o.said == "slower" for o in own if o.delta == delta]
                if hits:
                    share, x = sum(hits) / len(hits), position + 0.07 * (place - (len(RULES) - 1) / 2)
                    curves.setdefault(RULES[rule], []).append((x, share, *wilson_interval(share, len(hits))))
        ticks = {float(place): f"+{100 * delta:g} %" if delta else "0 (A/A)" for place, delta in enumerate(DELTAS)}
        extra = "nothing added" if load == "quiet" else f"a competitor per core, busy {100 * MEAN_BUSY:.0f} %"
        title = f"{load} ({extra}), {BUDGET_S[load]:g} s per pair"
        # the share at 0 answers another question, so no line leads to it
        panels.append(Panel(title=title, x_label="injected slowdown", curves=curves, ticks=ticks, linked_from=0.5))
    return panels
