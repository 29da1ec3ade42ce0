"""Planted numeric faults and honest variations, judged by this suite's rule and by those of others.

A line is one fault or honest variation on one input family, or operation, in one dtype, over all seeds
(:mod:`.trials`). The rivals see the same candidate, the same float64 *reference* and one *plain* computation: eager,
each step stored in the operands' dtype. The suite's judge draws its yardsticks from the operation. It was settled
without some families, variations and faults, and its targets are held to where both are such (``is_held_out``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise, product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from precision_eval.core.formats import short
from validation.faults import catalog, earlier, families, honest, unseen
from validation.faults.trials import (
    LARGE,
    OPERATIONS,
    OURS,
    POOL,
    Bools,
    Judgements,
    Key,
    Rate,
    collect,
    cost,
    is_held_out,
    is_seen,
    stands,
    trial,
)
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.plots import Panel, Point, draw_shares

CAUGHT, CAUGHT_FROM_A_QUARTER, FALSE_ALARMS, COST = 0.97, 0.70, 0.01, 5.0
"""Targets: at least, at least, at most, at most so many times the operation."""
HARDEST, FEWEST_TRIALS = 8, 20
PARTS: dict[str, Callable[[str, str], bool]] = {
    "all": lambda name, family: True,
    "held-out": is_held_out,
    "seen": is_seen,
    "cost": lambda name, family: False,
    "torch": lambda name, family: name.startswith(honest.TORCHS_OWN),
}
COMPILED = ("gaussian", "decode_one_key", "prefill_one_key", "sink", "low_rank", "clustered_decode")
"""Families on which torch.compile is tried, for its time."""
TIMED = ("gaussian", "decode", "prefill", "linear_bias", "rms_norm")
"""Small calls that judging is timed on, whole; beside :data:`~.trials.LARGE` ones."""
QUICK = ("gaussian", "decode_one_key", "voice", "linear_bias", "rms_norm")


def _candidates(family: str) -> dict[str, Sequence[Any]]:
    if family in OPERATIONS:
        return {kind: OPERATIONS[family].changes(family, kind) for kind in ("honest", "fault")}
    parts = (earlier, unseen) if family in families.UNSEEN else (earlier,)  # what is held out is tried there alone
    return {
        "honest": (*honest.HONEST, *(one for part in parts for one in part.HONEST)),
        "fault": (*catalog.FAULTS, *(one for part in parts for one in part.FAULTS)),
    }


def _trials(options: Options) -> list[Trial]:
    """Every line, those that share their inputs together, and what judging costs on them."""
    seeds, compiled = options["seeds"], options["compile"]
    trials = []
    for dtype, family in product(
        families.DTYPES, options["families"] or (*families.FAMILIES, *families.UNSEEN, *OPERATIONS)
    ):
        trials += [
            Trial(str(Key(kind, candidate.id, family, short(dtype), seeds)), (candidate, family, dtype))
            for kind, candidates in _candidates(family).items()
            for candidate in candidates
            if dtype in candidate.dtypes and (family in compiled or not candidate.id.startswith("compiled"))
            if any(PARTS[part](candidate.id, family) for part in options["part"])
        ]
    timed = product(families.DTYPES, (*TIMED, *LARGE) if "cost" in options["part"] or "all" in options["part"] else ())
    costs = [Trial(str(Key("cost", "cost", name, short(dtype), seeds)), (None, name, dtype)) for dtype, name in timed]
    return trials + costs


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    shared = lru_cache(maxsize=1)(stands)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small that a second thread costs more than it brings
    try:
        for key, (candidate, family, dtype), _ in trials:
            if candidate is None:
                yield {"key": key, **cost(family, dtype)}
            else:
                yield {"key": key, **trial(candidate, shared(family, dtype, options["seeds"]))}
    finally:
        torch.set_num_threads(threads)


def _summary(lines: list[Data], options: Options) -> Data:
    """Figures and curves, of the trials of the largest size in the file: a quick run there is not mixed in."""
    most = max(Key.of(line).seeds for line in lines)
    kept = [line for line in lines if Key.of(line).seeds == most]
    faults, variations = (collect(kept, kind, pooled=True) for kind in ("fault", "honest"))
    curves: dict[str, list[Point]] = {}
    for low, high in pairwise(2.0**power for power in range(-5, 7)):
        for rule in faults.said:
            rate = faults.rate(rule, faults.between(low, high))
            if rate.trials >= FEWEST_TRIALS:
                curves.setdefault(rule, []).append(((low * high) ** 0.5, rate.value, *rate.interval))
    costs = {f"{Key.of(line).family}/{Key.of(line).dtype}": line for line in kept if Key.of(line).kind == "cost"}
    singles = [collect(kept, kind, pooled=False) for kind in ("fault", "honest")]
    figures = [*_rates(faults, variations, singles), *_answers(faults, variations), *_hardest(faults, variations)]
    kinds = "; ".join(f"{name} {sum(Key.of(line).kind == name for line in kept):,}" for name in ("fault", "honest"))
    figures.append(Figure("lines on file, each of eight inputs", kinds))
    given = "".join(
        f" --set {name}={','.join(options.settings[name])}"
        for name, values in EXPERIMENT.settings.items()
        if name != "seeds" and options.settings.get(name, values[1]) != values[1]
    )
    command = f"python -m validation faults --size full{given}"
    return {"command": command, "figures": [asdict(figure) for figure in (*figures, *_costs(costs))], "curves": curves}


def _rates(faults: Judgements, variations: Judgements, singles: Sequence[Judgements]) -> list[Figure]:
    """Detection and false alarms, of calls pooled by eight, and one by one."""
    targets = (f"≥ {100 * CAUGHT:g} %", f"≥ {100 * CAUGHT_FROM_A_QUARTER:g} %", f"≤ {100 * FALSE_ALARMS:g} %")

    def three(words: str, where: tuple[Bools, Bools], *, held: bool = False, of: Sequence[Judgements] = ()) -> None:
        faults_, honest_ = of or (faults, variations)
        wanted = targets if held else ("", "", "")
        figures.extend((
            _rated(f"faults caught, effect ≥ 1, {words}", faults_, faults_.between(1.0, inf) & where[0], wanted[0]),
            _rated(f"faults caught, effect ¼ to 1, {words}", faults_, faults_.between(0.25, 1.0) & where[0], wanted[1]),
            _rated(f"false alarms, {words}", honest_, where[1], wanted[2]),
        ))  # fmt: skip

    figures: list[Figure] = []
    three("held-out families and kinds", (faults.unseen, variations.unseen), held=True)
    three("every trial on file", (faults.effect >= 0, variations.effect >= 0), held=True)
    torchs = np.array([name.startswith(honest.TORCHS_OWN) for name in variations.id.tolist()], dtype=bool)
    figures.append(_rated("false alarms, torch's own kernels and torch.compile", variations, torchs, targets[2]))
    three("tuned on", (faults.tuned_on, variations.tuned_on))
    three("one call", (singles[0].effect >= 0, singles[1].effect >= 0), of=singles)
    for part in ("dtype", "family"):
        for name in dict.fromkeys(getattr(faults, part).tolist()):
            three(name, (getattr(faults, part) == name, getattr(variations, part) == name))
    return figures


def _figures(content: Data) -> list[Figure]:
    return [Figure(**figure) for figure in content["figures"]]


def _rated(name: str, judged: Judgements, where: Bools, target: str) -> Figure:
    """The rate of this suite's rule and of each rival's, held to a target such as ``≥ 97 %`` where there is one."""
    ours, *rivals = judged.said
    rate, met = judged.rate(ours, where), None
    if target and rate.trials:
        bound = float(target.split()[1]) / 100
        met = rate.value >= bound if target.startswith("≥") else rate.value <= bound
    return Figure(name, str(rate), target, met, {rule: str(judged.rate(rule, where)) for rule in rivals})


def _answers(faults: Judgements, variations: Judgements) -> list[Figure]:
    """How often each answer is given."""
    figures = []
    for words, judged, where in (
        ("honest variations", variations, variations.effect >= 0),
        ("faults, effect ≥ ¼", faults, faults.between(0.25, inf)),
    ):
        letters = judged.said[OURS][where]
        shares = [f"{name} {Rate(int((letters == letter).sum()), len(letters))}" for letter, name in ANSWERS.items()]
        figures.append(Figure(f"answers, {words}", "; ".join(shares)))
    return figures


ANSWERS = {".": "as expected", "r": "worse, by one more rounding", "w": "worse"}


def _hardest(faults: Judgements, variations: Judgements) -> list[Figure]:
    """The faults that are missed most often, the variations that alarm, and how many faults changed nothing."""
    figures = []
    for words, low, high in (("≥ 1", 1.0, inf), ("¼ to 1", 0.25, 1.0)):
        rates = faults.missed(OURS, faults.between(low, high))[:HARDEST]
        texts = (f"{name} {100 * rate.value:.0f} % of {rate.trials}" for name, rate in rates)
        figures.append(Figure(f"hardest faults, effect {words}", "; ".join(texts) or "none"))
    alarms = variations.alarm(OURS)
    places = {
        f"{a} on {b} in {c}"
        for a, b, c in zip(*(getattr(variations, x)[alarms] for x in ("id", "family", "dtype")), strict=True)
    }
    figures.append(Figure("alarms at honest variations", "; ".join(sorted(places)[:20]) or "none"))
    size = f"{len(set(faults.id.tolist()))} faults, {len(faults.effect):,} trials"
    nothing = Rate(int((faults.effect == 0.0).sum()), len(faults.effect))
    return [*figures, Figure(f"trials in which a fault changed nothing ({size})", str(nothing))]


def _costs(costs: dict[str, Data]) -> list[Figure]:
    """What drawing yardsticks and judging cost, over the plain operation; no reference in it."""
    figures = []
    small, first, further = "small calls, eight judged whole", ("range_s", "judge_s"), ("judge_s",)
    for large, name, parts in (
        (True, "large calls, up to 32 rows of 4 heads judged", first),
        (False, small, first),
        (False, f"{small}, each further candidate", further),
    ):
        chosen = {key: one for key, one in costs.items() if (key.split("/")[0] in LARGE) is large}
        if chosen:
            spent = {key: sum(one[part] for part in parts) for key, one in chosen.items()}
            ratios = {key: seconds / chosen[key]["operation_s"] for key, seconds in spent.items()}
            worst, middle = max(ratios, key=lambda key: ratios[key]), median(ratios.values())
            low, high = (1e3 * one(spent.values()) for one in (min, max))
            text = f"median {middle:.1f} ×, largest {ratios[worst]:.1f} × ({worst}); {low:.1f} to {high:.0f} ms"
            figures.append(Figure(f"cost of judging, {name}", text, f"≤ {COST:g} ×", ratios[worst] <= COST))
    return figures


def _plots(content: Data, out: Path) -> list[Path]:
    """Draw ``faults.png``: detection over effect size, where there are trials enough."""
    effect = "effect of the fault, in the format's own error (RMS)"
    curves: dict[str, Any] = {rule: [tuple(point) for point in points] for rule, points in content["curves"].items()}
    panels = [Panel(title="Planted faults caught, eight calls pooled", x_label=effect, curves=curves, log=True)]
    return draw_shares(out, "faults", panels, y_label="share flagged")


EXPERIMENT = Experiment(
    name="faults",
    title="planted numeric faults and honest variations, judged by nine rules",
    trials=_trials,
    run=_run,
    figures=_figures,
    plots=_plots,
    summary=_summary,
    settings={"seeds": (POOL, POOL), "compile": ((), COMPILED), "families": (QUICK, ()), "part": (("all",), ("all",))},
)
