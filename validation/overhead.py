"""What measuring costs: the harness around a call, the suite beside a model, trace and probe on, outputs unchanged.

Conventions: ratios of latencies with 95 % intervals, 1 = no overhead; one torch thread. A target counts as met where
the upper end of the interval is within it, so a machine too noisy to tell does not meet it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.core.drawing import INK, dress, new_figure, save
from precision_eval.core.json_lines import TrialFile
from precision_eval.fixes.catalog import FIXES
from validation.catalog import Figure, Progress, Size

NAME = "overhead"
HARNESS_TARGET, OFF_TARGET, ON_TARGET = 1.001, 1.005, 3.0
Trial = dict[str, Any]
_CALLS_S = (1e-4, 1e-3)
_SIZES = (
    ("attention-decode", "metavoice"),
    ("attention-decode", "dia"),
    ("attention-prefill", "metavoice"),
    ("attention-prefill", "dia"),
    ("voice", "default"),
)
_GENERAL = tuple(fix for fix in FIXES if fix.storage != "per_case")
_ON_FIXES = ("full_float32", "kv_to_query", "query_to_half")
_SEED = 0


def _plan(size: Size) -> dict[str, Callable[[], Trial]]:
    """Every trial of a size, by key."""
    from validation.overhead_trials import harness_trial, off_trial, on_trial, same_trial

    full = size == "full"
    chosen = _SIZES if full else (_SIZES[0], _SIZES[-1])
    plan: dict[str, Callable[[], Trial]] = {}
    for call_s in _CALLS_S:
        plan[f"harness {call_s:g}"] = partial(harness_trial, call_s, budget_s=20.0 if full else 3.0, seed=_SEED)
    for pair, (case, of_size) in product(range(8 if full else 2), (_SIZES[0], _SIZES[-1])):
        plan[f"forked {case}/{of_size} {pair}"] = partial(
            _forked_trial, case, of_size, rounds=300 if full else 60, seed=pair
        )
    for case, of_size in chosen:
        plan[f"off {case}/{of_size}"] = partial(off_trial, case, of_size, budget_s=15.0 if full else 4.0, seed=_SEED)
    for (case, of_size), fix in product(chosen, _ON_FIXES if full else _ON_FIXES[1:2]):
        plan[f"on {case}/{of_size}/{fix}"] = partial(
            on_trial, case, of_size, fix, budget_s=4.0 if full else 2.0, seed=_SEED
        )
    checked = (*_SIZES, ("voice", "bfloat16-checkpoint")) if full else (("attention-prefill", "tiny"), _SIZES[-1])
    for (case, of_size), fix in product((("attention-decode", "tiny"), *checked), _GENERAL):
        if "eager" in fix.modes:
            plan[f"same {case}/{of_size}/{fix.id}/eager"] = partial(same_trial, case, of_size, fix.id, mode="eager")
    for fix in _GENERAL if full else ():
        plan[f"same attention-decode/tiny/{fix.id}/compiled"] = partial(
            same_trial, "attention-decode", "tiny", fix.id, mode="compiled"
        )
    return plan


def _forked_trial(case: str, of_size: str, *, rounds: int, seed: int) -> Trial:
    from precision_eval.stats import paired_ratio
    from validation.overhead_off import off_blocks
    from validation.overhead_trials import summary

    found = off_blocks(case, of_size, rounds=rounds, seed=seed)
    return summary(paired_ratio(found["suite"], found["plain"], baseline="plain", margin=0.002, seed=seed))


def run(out: Path, *, size: Size, progress: Progress) -> None:
    """Run the trials that are missing in ``out/overhead.jsonl``; meant for a quiet machine."""
    trials = TrialFile(out / f"{NAME}.jsonl")
    done, plan = trials.keys(), _plan(size)
    for count, (key, trial) in enumerate(plan.items(), start=1):
        if key not in done:
            trials.append({"key": key, "kind": key.split()[0], **trial()})
        progress(count, len(plan), key)


def figures(out: Path) -> list[Figure]:
    """Make the figures from ``out/overhead.jsonl``."""
    trials = TrialFile(out / f"{NAME}.jsonl").read()
    return [*_harness(trials), *_off(trials), *_forked(trials), *_on(trials), *_same(trials)]


def _of_kind(trials: Iterable[Trial], kind: str) -> list[Trial]:
    return [trial for trial in trials if trial["kind"] == kind]


def _interval(found: Trial, digits: int = 4) -> str:
    return f"{found['ratio']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def _harness(trials: Sequence[Trial]) -> list[Figure]:
    texts = {
        "wall": "figure of a call of {call} ÷ bare loop, wall clock",
        "cpu": "figure of a call of {call} ÷ bare loop, processor time",
        "block": "whole time in the timer, calls of {call} ÷ bare loop (the excess is in no figure)",
    }
    return [
        Figure(
            name=text.format(call=f"{float(trial['key'].split()[1]) * 1e3:g} ms"),
            target=f"≤ {HARNESS_TARGET}",
            found=f"{_interval(trial[name], 5)}, {trial[name]['blocks']:.0f} pairs",
            met=trial[name]["high"] <= HARNESS_TARGET,
            rivals={},
        )
        for name, text in texts.items()
        for trial in _of_kind(trials, "harness")
    ]


def pooled(ratios: Sequence[float]) -> Trial:
    """Geometric mean of independent ratios, with Student's 95 % interval."""
    from precision_eval.stats import student_quantile

    logs = np.log(np.asarray(ratios, dtype=np.float64))
    mean = float(logs.mean())
    reach = math.inf
    if logs.size > 1:
        reach = student_quantile(0.05, logs.size - 1) * float(logs.std(ddof=1)) / math.sqrt(logs.size)
    return {"ratio": math.exp(mean), "low": math.exp(mean - reach), "high": math.exp(mean + reach)}


def _off(trials: Sequence[Trial]) -> list[Figure]:
    return [
        Figure(
            name=f"called through the suite, capture off ÷ called plainly, {trial['key'].removeprefix('off ')}",
            target=f"≤ {OFF_TARGET}",
            found=f"{_interval(trial)}, {trial['blocks']:.0f} pairs of blocks",
            met=trial["high"] <= OFF_TARGET,
            rivals={},
        )
        for trial in _of_kind(trials, "off")
    ]


def _forked_groups(trials: Sequence[Trial]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for trial in _of_kind(trials, "forked"):
        groups.setdefault(trial["key"].split()[1], []).append(trial["ratio"])
    return groups


def _forked(trials: Sequence[Trial]) -> list[Figure]:
    found = []
    for case, ratios in _forked_groups(trials).items():
        together = pooled(ratios)
        found.append(
            Figure(
                name=f"suite imported and used before, now off ÷ plain model, {case}",
                target="",
                found=f"{_interval(together)}, {len(ratios)} pairs of processes",
                met=None,
                rivals={},
            )
        )
    return found


def _on(trials: Sequence[Trial]) -> list[Figure]:
    texts = {"trace": "trace on", "probe": "attention probe on", "both": "trace and probe on"}
    found = []
    for kind, text in texts.items():
        of_kind = _of_kind(trials, "on")
        if of_kind:
            worst = max(of_kind, key=lambda trial: trial[kind]["high"])
            profiler = max(trial["profiler"]["ratio"] for trial in of_kind)
            found.append(
                Figure(
                    name=f"{text} ÷ one eager call, the largest of {len(of_kind)} cases × fixes",
                    target=f"≤ {ON_TARGET:g}",
                    found=f"{_interval(worst[kind], 2)} ({worst['key'].removeprefix('on ')})",
                    met=worst[kind]["high"] <= ON_TARGET,
                    rivals={"torch.profiler, shapes off, memory on": f"{profiler:.2f} at most"},
                )
            )
    return found


def _same(trials: Sequence[Trial]) -> list[Figure]:
    found = []
    for mode in ("eager", "compiled"):
        ran = [t for t in _of_kind(trials, "same") if t["key"].endswith(mode) and t["passed"]]
        if ran:
            outputs = [same for trial in ran for same in trial["same"].values()]
            left = sum(trial["left"] for trial in ran)
            found.append(
                Figure(
                    name=f"outputs with capture on and off, {mode}, {len(ran)} cases × fixes that run",
                    target="bit-identical in all, nothing left behind",
                    found=f"{sum(outputs)} of {len(outputs)} bit-identical, {left} names or modes left behind",
                    met=all(outputs) and left == 0,
                    rivals={},
                )
            )
    return found


def plot(out: Path) -> list[Path]:
    """Draw every ratio with its interval against its target."""
    trials = TrialFile(out / f"{NAME}.jsonl").read()
    harness = {
        f"{text}, {float(trial['key'].split()[1]) * 1e3:g} ms": trial[name]
        for name, text in (("wall", "wall figure"), ("cpu", "processor time"))
        for trial in _of_kind(trials, "harness")
    }
    off = {trial["key"].removeprefix("off "): trial for trial in _of_kind(trials, "off")}
    on = {
        f"{trial['key'].removeprefix('on ').removesuffix('/default')}, {kind}": trial[kind]
        for trial in _of_kind(trials, "on")
        for kind in ("trace", "probe")
    }
    panels = [
        ("harness: figure ÷ bare loop", harness, HARNESS_TARGET),
        ("off: through the suite ÷ plain", off, OFF_TARGET),
        ("on: observed ÷ one eager call", on, ON_TARGET),
    ]
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        return []
    tallest = max(len(found) for _, found, _ in panels)
    figure = new_figure(6.2 * len(panels), 1.4 + 0.26 * tallest)
    for axes, (title, found, target) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, found, target)
        dress(axes, title=f"{title}, target ≤ {target:g}")
        axes.grid(False, axis="y")
    return save(figure, out, NAME)


def _draw(axes: Any, found: dict[str, Trial], target: float) -> None:
    """Draw bars from 1 with intervals, and the target as a line."""
    for place, one in enumerate(reversed(found.values())):
        colour = "#009E73" if one["high"] <= target else "#D55E00"
        axes.barh(place, one["ratio"] - 1.0, left=1.0, height=0.6, color=colour, alpha=0.75)
        if math.isfinite(one["high"]):
            axes.plot([one["low"], one["high"]], [place, place], color=INK, linewidth=1.2)
    axes.axvline(1.0, color="#999999", linewidth=0.8)
    axes.axvline(target, color=INK, linewidth=1.0, linestyle="--")
    axes.set_yticks(range(len(found)), list(reversed(found)))
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.set_xlabel("ratio, 95 % interval; green: all of it within the target", fontsize=9, color=INK)
