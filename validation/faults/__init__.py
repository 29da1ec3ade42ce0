"""Planted numeric faults and honest variations of attention, judged by this suite's rule and by those of others.

A line is one fault or honest variation on one input family in one dtype, over all seeds (:mod:`.trials`). Every rule
sees the same candidate, the same float64 *reference* and the same *yardstick*: plain attention with each step stored in
the operands' dtype. Seeds are below 10 000; those from there on belong to the judge's calibration, which takes other
speech. Some faults and variations are *held out*: the rule was developed without them. They count in every figure and
have figures of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.frame import Data, Experiment, Figure, Options, Trial

if TYPE_CHECKING:
    import torch

    from validation.faults.scoring import Bools, Judgements, Rate

CAUGHT, CAUGHT_FROM_A_QUARTER, FALSE_ALARMS = 0.97, 0.70, 0.005
"""Targets: at least, at least, at most."""
HARDEST = 8


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _trials(options: Options) -> list[Trial]:
    """Every line, those that share their inputs together."""
    from validation.faults import catalog, families, honest
    from validation.faults.trials import Key

    kinds: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {
        "honest": (honest.HONEST, honest.HELD_OUT_HONEST),
        "fault": (catalog.FAULTS, catalog.HELD_OUT_FAULTS),
    }
    return [
        Trial(str(Key(kind, one.id, family, _name(dtype), options["seeds"])), (kind, one, family, dtype, held_out))
        for dtype, family in product(families.DTYPES, families.FAMILIES)
        for kind, parts in kinds.items()
        for held_out, part in enumerate(parts)
        for one in part
        if dtype in one.dtypes
    ]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    import torch

    from validation.faults.trials import fault_trial, honest_trial, stands, suite_judge

    shared = lru_cache(maxsize=1)(stands)
    judged: dict[str, Callable[..., Data]] = {"fault": fault_trial, "honest": honest_trial}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small that a second thread costs more than it brings
    try:
        for trial in trials:
            kind, candidate, family, dtype, held_out = trial.spec
            found = judged[kind](candidate, shared(family, dtype, options["seeds"]), judge=suite_judge)
            yield {"key": trial.key, "held_out": bool(held_out), **found}
    finally:
        torch.set_num_threads(threads)


def _largest(lines: list[Data]) -> list[Data]:
    """The trials of the largest size in the file, so that a quick run in the same place is not mixed in."""
    from validation.faults.trials import Key

    most = max(Key.of(line).seeds for line in lines)
    return [line for line in lines if Key.of(line).seeds == most]


def _figures(lines: list[Data]) -> list[Figure]:
    from validation.faults.scoring import collect
    from validation.faults.trials import POOL

    lines = _largest(lines)
    faults, honest = collect(lines, "fault"), collect(lines, "honest")
    pooled_faults, pooled_honest = (collect(lines, kind, pooled=True) for kind in ("fault", "honest"))
    held_large, held_small = faults.between(1.0, inf) & faults.held_out, faults.between(0.25, 1.0) & faults.held_out
    targets = (f"≥ {100 * CAUGHT:g} %", f"≥ {100 * CAUGHT_FROM_A_QUARTER:g} %", f"≤ {100 * FALSE_ALARMS:g} %")
    rows: list[tuple[str, Judgements, Bools | None, str]] = [
        ("faults caught, effect at least the format's own error", faults, faults.between(1.0, inf), targets[0]),
        ("faults caught, effect from a quarter of it to it", faults, faults.between(0.25, 1.0), targets[1]),
        ("false alarms, honest variations", honest, None, targets[2]),
        ("faults caught, effect from one to four of it", faults, faults.between(1.0, 4.0), ""),
        ("faults caught, effect below a quarter of it", faults, faults.between(0.0, 0.25), ""),
        ("held-out faults caught, effect at least the format's own error", faults, held_large, targets[0]),
        ("held-out faults caught, effect from a quarter of it to it", faults, held_small, targets[1]),
        ("false alarms, held-out honest variations", honest, honest.held_out, targets[2]),
        (f"faults caught at ≥ 1, {POOL} calls pooled", pooled_faults, pooled_faults.between(1.0, inf), targets[0]),
        (f"faults caught at ¼ to 1, {POOL} calls pooled", pooled_faults, pooled_faults.between(0.25, 1.0), targets[1]),
        (f"false alarms, {POOL} calls pooled", pooled_honest, None, targets[2]),
        *_by_part(faults, honest),
    ]
    return [*(_rated(*row) for row in rows), *_hardest(faults), _cost(lines)]


def _by_part(faults: Judgements, honest: Judgements) -> Iterator[tuple[str, Judgements, Bools, str]]:
    """False alarms and detection per family and per dtype."""
    from validation.faults.families import DTYPES, FAMILIES

    for part, names in (("family", FAMILIES), ("dtype", tuple(map(_name, DTYPES)))):
        for name in names:
            here = getattr(faults, part) == name
            yield f"false alarms, {name}", honest, getattr(honest, part) == name, ""
            yield f"caught at ≥ 1, {name}", faults, faults.between(1.0, inf) & here, ""
            yield f"caught at ¼ to 1, {name}", faults, faults.between(0.25, 1.0) & here, ""


def _rated(name: str, judged: Judgements, where: Bools | None, target: str) -> Figure:
    """The rate of this suite's rule and of each rival's, held to a target such as ``≥ 97 %`` where there is one."""
    from validation.faults.trials import RIVALS

    ours, *rivals = judged.alarm
    found = judged.rate(ours, where)
    return Figure(
        name,
        str(found),
        target,
        _meets(found, target) if target and found.trials else None,
        {rule: str(judged.rate(rule, where)) for rule in rivals if rule in RIVALS},
    )


def _meets(rate: Rate, target: str) -> bool:
    bound = float(target.split()[1]) / 100
    return rate.value >= bound if target.startswith("≥") else rate.value <= bound


def _hardest(faults: Judgements) -> list[Figure]:
    """The faults that are missed most often, and how many changed nothing."""
    from validation.faults.scoring import Rate
    from validation.faults.trials import OURS

    def worst(low: float, high: float) -> str:
        rates = [pair for pair in faults.by_name(OURS, faults.between(low, high)) if pair[1].value < 1.0]
        texts = (f"{name} {100 * rate.value:.0f} % of {rate.trials}" for name, rate in rates[:HARDEST])
        return "; ".join(texts) or "none"

    size = f"{len(set(faults.id.tolist()))} faults, {len(faults.effect):,} trials"
    nothing = Rate(int((faults.effect == 0.0).sum()), len(faults.effect))
    return [
        Figure("hardest faults, effect ≥ 1", worst(1.0, inf)),
        Figure("hardest faults, effect ¼ to 1", worst(0.25, 1.0)),
        Figure(f"trials in which a fault changed nothing ({size})", str(nothing)),
    ]


def _cost(lines: list[Data]) -> Figure:
    from validation.faults.trials import POOL

    one, pool = (sum(line["assess_ms"][place] for line in lines) / len(lines) for place in (0, 1))
    found = f"one call judged in {one:.1f} ms; a pool needs {POOL} calls of the candidate and {pool:.1f} ms"
    return Figure("cost of a judgement", found)


def _plots(lines: list[Data], out: Path) -> list[Path]:
    from validation.faults.drawing import draw_by_fault, draw_rules
    from validation.faults.scoring import collect

    lines = _largest(lines)
    faults, honest = collect(lines, "fault"), collect(lines, "honest")
    return [*draw_rules(out, faults, honest, collect(lines, "fault", pooled=True)), *draw_by_fault(out, faults, honest)]


EXPERIMENT = Experiment(
    name="faults",
    title="planted numeric faults and honest variations, judged by five rules",
    trials=_trials,
    run=_run,
    figures=_figures,
    plots=_plots,
    settings={"seeds": (4, 100)},
)
