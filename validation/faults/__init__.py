"""Planted numeric faults and honest variations of attention, judged by this suite's rule and by those of others.

A line is one fault or honest variation on one input family in one dtype, over all seeds (:mod:`.trials`). Every rule
sees the same candidate, the same float64 *reference* and the same *yardstick*: plain attention with each step stored in
the operands' dtype. Seeds are below 10 000; those from there on belong to the judge's calibration, which takes other
speech. Some faults and variations are *held out*: the rule was developed without them. They count in every figure and
have figures of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import inf
from pathlib import Path
from typing import Any

import torch

from precision_eval.trace.operations import short
from validation.faults import catalog, families, honest
from validation.faults.trials import OURS, POOL, Bools, Judgements, Key, Rate, collect, stands, trial
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.plots import Panel, Point, draw_shares

CAUGHT, CAUGHT_FROM_A_QUARTER, FALSE_ALARMS = 0.97, 0.70, 0.005
"""Targets: at least, at least, at most."""
HARDEST, FEWEST_TRIALS = 8, 20


def _trials(options: Options) -> list[Trial]:
    """Every line, those that share their inputs together."""
    kinds: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {
        "honest": (honest.HONEST, honest.HELD_OUT_HONEST),
        "fault": (catalog.FAULTS, catalog.HELD_OUT_FAULTS),
    }
    seeds = options["seeds"]
    return [
        Trial(str(Key(kind, candidate.id, family, short(dtype), seeds)), (candidate, family, dtype, held_out))
        for dtype, family in product(families.DTYPES, families.FAMILIES)
        for kind, (settled, unseen) in kinds.items()
        for candidates, held_out in ((settled, False), (unseen, True))
        for candidate in candidates
        if dtype in candidate.dtypes
    ]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    shared = lru_cache(maxsize=1)(stands)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small that a second thread costs more than it brings
    try:
        for key, (candidate, family, dtype, held_out), _ in trials:
            yield {"key": key, "held_out": held_out, **trial(candidate, shared(family, dtype, options["seeds"]))}
    finally:
        torch.set_num_threads(threads)


def _largest(lines: list[Data]) -> list[Data]:
    """The trials of the largest size in the file, so that a quick run in the same place is not mixed in."""
    most = max(Key.of(line).seeds for line in lines)
    return [line for line in lines if Key.of(line).seeds == most]


def _figures(lines: list[Data]) -> list[Figure]:
    lines = _largest(lines)
    faults, honest = collect(lines, "fault"), collect(lines, "honest")
    pooled_faults, pooled_honest = (collect(lines, kind, pooled=True) for kind in ("fault", "honest"))
    large, small = faults.between(1.0, inf), faults.between(0.25, 1.0)
    targets = (f"≥ {100 * CAUGHT:g} %", f"≥ {100 * CAUGHT_FROM_A_QUARTER:g} %", f"≤ {100 * FALSE_ALARMS:g} %")
    rows: list[tuple[str, Judgements, Bools | None, str]] = [
        ("faults caught, effect at least the format's own error", faults, large, targets[0]),
        ("faults caught, effect from a quarter of it to it", faults, small, targets[1]),
        ("false alarms, honest variations", honest, None, targets[2]),
        ("faults caught, effect from one to four of it", faults, faults.between(1.0, 4.0), ""),
        ("faults caught, effect below a quarter of it", faults, faults.between(0.0, 0.25), ""),
        ("held-out faults caught, effect at least the format's own error", faults, large & faults.held_out, targets[0]),
        ("held-out faults caught, effect from a quarter of it to it", faults, small & faults.held_out, targets[1]),
        ("false alarms, held-out honest variations", honest, honest.held_out, targets[2]),
        (f"faults caught at ≥ 1, {POOL} calls pooled", pooled_faults, pooled_faults.between(1.0, inf), targets[0]),
        (f"faults caught at ¼ to 1, {POOL} calls pooled", pooled_faults, pooled_faults.between(0.25, 1.0), targets[1]),
        (f"false alarms, {POOL} calls pooled", pooled_honest, None, targets[2]),
    ]
    for part, names in (("family", families.FAMILIES), ("dtype", tuple(map(short, families.DTYPES)))):
        for name in names:
            here = getattr(faults, part) == name
            rows.append((f"false alarms, {name}", honest, getattr(honest, part) == name, ""))
            rows.append((f"caught at ≥ 1, {name}", faults, large & here, ""))
            rows.append((f"caught at ¼ to 1, {name}", faults, small & here, ""))
    return [*(_rated(*row) for row in rows), *_hardest(faults), _cost(lines)]


def _rated(name: str, judged: Judgements, where: Bools | None, target: str) -> Figure:
    """The rate of this suite's rule and of each rival's, held to a target such as ``≥ 97 %`` where there is one."""
    ours, *rivals = judged.alarm
    rate, met = judged.rate(ours, where), None
    if target and rate.trials:
        bound = float(target.split()[1]) / 100
        met = rate.value >= bound if target.startswith("≥") else rate.value <= bound
    return Figure(name, str(rate), target, met, {rule: str(judged.rate(rule, where)) for rule in rivals})


def _hardest(faults: Judgements) -> list[Figure]:
    """The faults that are missed most often, and how many changed nothing."""
    figures = []
    for words, low, high in (("≥ 1", 1.0, inf), ("¼ to 1", 0.25, 1.0)):
        rates = faults.missed(OURS, faults.between(low, high))[:HARDEST]
        texts = (f"{name} {100 * rate.value:.0f} % of {rate.trials}" for name, rate in rates)
        figures.append(Figure(f"hardest faults, effect {words}", "; ".join(texts) or "none"))
    size = f"{len(set(faults.id.tolist()))} faults, {len(faults.effect):,} trials"
    nothing = Rate(int((faults.effect == 0.0).sum()), len(faults.effect))
    return [*figures, Figure(f"trials in which a fault changed nothing ({size})", str(nothing))]


def _cost(lines: list[Data]) -> Figure:
    call_ms, pool_ms = (sum(line["assess_ms"][i] for line in lines) / len(lines) for i in (0, 1))
    text = f"one call judged in {call_ms:.1f} ms; a pool needs {POOL} calls of the candidate and {pool_ms:.1f} ms"
    return Figure("cost of a judgement", text)


_KINDS = (("fault", False), ("honest", False), ("fault", True))


def _plots(lines: list[Data], out: Path) -> list[Path]:
    """Draw ``faults.png``: detection over effect size where there are trials enough, and false alarms per family."""
    lines = _largest(lines)
    faults, honest, pooled = (collect(lines, kind, pooled=of_pools) for kind, of_pools in _KINDS)
    curves: dict[str, list[Point]] = {}
    for low, high in pairwise(2.0**power for power in range(-5, 7)):
        for judged in (faults, pooled):
            for rule in judged.alarm:
                rate = judged.rate(rule, judged.between(low, high))
                if rate.trials >= FEWEST_TRIALS:
                    curves.setdefault(rule, []).append(((low * high) ** 0.5, rate.value, *rate.interval))
    alarms: dict[str, list[Point]] = {}
    for place, family in enumerate(families.FAMILIES):
        for number, rule in enumerate(honest.alarm):
            rate = honest.rate(rule, honest.family == family)
            alarms.setdefault(rule, []).append((place + 0.1 * (number - 2.5), rate.value, *rate.interval))
    ticks = {float(place): name.replace("_", "\n") for place, name in enumerate(families.FAMILIES)}
    effect = "effect of the fault, in the format's own error (RMS)"
    panels = [
        Panel(title="Planted faults caught", x_label=effect, curves=curves, log=True),
        Panel(title="False alarms", x_label="honest variations", curves=alarms, ticks=ticks, linked=False),
    ]
    return draw_shares(out, "faults", panels, y_label="share flagged")


EXPERIMENT = Experiment(
    name="faults",
    title="planted numeric faults and honest variations, judged by five rules",
    trials=_trials,
    run=_run,
    figures=_figures,
    plots=_plots,
    settings={"seeds": (4, 100)},
)
