"""What measuring costs: the harness around a call, calls through the suite, fixes beside the same edit written into
the source, trace and probe on, outputs unchanged.

Ratios of latencies with 95 % intervals, 1 = no overhead; one torch thread. A target counts as met where the upper end
of the interval is within it, so a machine too noisy to tell does not meet it. Meant for a quiet machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from precision_eval.fixes.catalog import FIXES
from validation.frame import Data, Experiment, Figure, Options, Trial, each
from validation.overhead.edits import EDITS, MODELS

HARNESS_TARGET, OFF_TARGET, ON_TARGET = 1.001, 1.005, 3.0
EDIT_TARGET, EDIT_TARGET_S = 1.01, 2e-6  # either
_CALLS_S = (1e-4, 1e-3)
_SIZES = (*product(("attention-decode", "attention-prefill"), ("metavoice", "dia")), ("voice", "default"))
_GENERAL = tuple(fix for fix in FIXES if fix.storage != "per_case")
_ON_FIXES = ("full_float32", "kv_to_query", "query_to_half")


def _trials(options: Options) -> list[Trial]:
    """Every trial of a size: the name of a function of :mod:`.trials` and its arguments."""
    full = options.size == "full"
    chosen = _SIZES if full else (_SIZES[0], _SIZES[-1])
    trials = [_trial(f"harness {call_s:g}", call_s, budget_s=20.0 if full else 3.0, seed=0) for call_s in _CALLS_S]
    for case, size in chosen:
        trials.append(_trial(f"off {case}/{size}", case, size, budget_s=15.0 if full else 4.0, seed=0))
    for model, fix in product(MODELS, EDITS):
        trials.append(_trial(f"edit {model}/{fix}", model, fix, budget_s=15.0 if full else 3.0, seed=0))
    for (case, size), fix in product(chosen, _ON_FIXES if full else _ON_FIXES[1:2]):
        trials.append(_trial(f"on {case}/{size}/{fix}", case, size, fix, budget_s=4.0 if full else 2.0, seed=0))
    checked = (*_SIZES, ("voice", "bfloat16-checkpoint")) if full else (("attention-prefill", "tiny"), _SIZES[-1])
    tiny, eager = ("attention-decode", "tiny"), [fix.id for fix in _GENERAL if "eager" in fix.modes]
    same = [(*case, fix, "eager") for case in (tiny, *checked) for fix in eager]
    same += [(*tiny, fix.id, "compiled") for fix in _GENERAL if full]
    return trials + [_trial(f"same {'/'.join(names)}", *names[:3], mode=names[3]) for names in same]


def _trial(key: str, *arguments: Any, **named: Any) -> Trial:
    return Trial(key, (key.split()[0], arguments, named))


def _measured(spec: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Data:
    from validation.overhead import trials

    kind, arguments, named = spec
    return {"kind": kind, **getattr(trials, f"{kind}_trial")(*arguments, **named)}


def _figures(lines: list[Data]) -> list[Figure]:
    return [*_harness(lines), *_off(lines), *_edits(lines), *_on(lines), *_same(lines)]


def _of_kind(lines: Sequence[Data], kind: str) -> dict[str, Data]:
    """Lines of a kind by the rest of their key."""
    return {line["key"].removeprefix(f"{kind} "): line for line in lines if line["kind"] == kind}


def _interval(found: Data, digits: int) -> str:
    return f"{found['ratio']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def _counted(found: Data, what: str, digits: int = 4) -> str:
    return f"{_interval(found, digits)}, {found['blocks']:.0f} {what}"


def _held(name: str, found: Data, most: float, text: str, rivals: dict[str, str] | None = None) -> Figure:
    return Figure(name, text, f"≤ {most:g}", found["high"] <= most, rivals or {})


def _harness(lines: Sequence[Data]) -> list[Figure]:
    texts = {
        "wall": "figure of a call of {:g} ms ÷ bare loop, wall clock",
        "cpu": "figure of a call of {:g} ms ÷ bare loop, processor time",
        "block": "time in the timer, calls of {:g} ms ÷ bare loop",
    }
    return [
        _held(text.format(float(call_s) * 1e3), line[name], HARNESS_TARGET, _counted(line[name], "pairs", 5))
        for name, text in texts.items()
        for call_s, line in _of_kind(lines, "harness").items()
    ]


def _off(lines: Sequence[Data]) -> list[Figure]:
    of_kind = _of_kind(lines, "off")
    if not of_kind:
        return []
    case, worst = max(of_kind.items(), key=lambda entry: float(entry[1]["high"]))
    name = f"called through the suite ÷ called plainly, the largest of {len(of_kind)} cases"
    return [_held(name, worst, OFF_TARGET, f"{_counted(worst, 'pairs of blocks')} ({case})")]


def _edits(lines: Sequence[Data]) -> list[Figure]:
    figures = []
    for name, line in _of_kind(lines, "edit").items():
        more_s = (line["high"] - 1.0) * line["baseline_s"]
        text = f"{_counted(line, 'pairs of blocks')}, {(line['ratio'] - 1.0) * line['baseline_s'] * 1e6:+.2f} µs a call"
        is_met = line["high"] <= EDIT_TARGET or more_s <= EDIT_TARGET_S
        target = f"≤ {EDIT_TARGET:g}, or 2 µs more"
        figures.append(Figure(f"launched under a fix ÷ the same cast in the source, {name}", text, target, is_met))
    return figures


def _on(lines: Sequence[Data]) -> list[Figure]:
    of_kind = [*_of_kind(lines, "on").values()]
    if not of_kind:
        return []
    profiler = max(line["profiler"]["ratio"] for line in of_kind)
    rivals = {"torch.profiler, shapes off, memory on": f"{profiler:.2f} at most"}
    figures = []
    for kind, text in {"trace": "trace on", "probe": "attention probe on", "both": "trace and probe on"}.items():
        worst = max(of_kind, key=lambda line: float(line[kind]["high"]))
        found = f"{_interval(worst[kind], 2)} ({worst['key'].removeprefix('on ')})"
        name = f"{text} ÷ one eager call, the largest of {len(of_kind)} cases × fixes"
        figures.append(_held(name, worst[kind], ON_TARGET, found, rivals))
    return figures


def _same(lines: Sequence[Data]) -> list[Figure]:
    figures = []
    for mode in ("eager", "compiled"):
        ran = [line for key, line in _of_kind(lines, "same").items() if key.endswith(mode) and line["passed"]]
        outputs, left = [same for line in ran for same in line["same"].values()], sum(line["left"] for line in ran)
        name = f"outputs with capture on and off, {len(ran)} cases × fixes, {mode}"
        text = f"{sum(outputs)} of {len(outputs)} bit-identical, {left} names or modes left behind"
        if ran:
            target = "all"
            figures.append(Figure(name, text, target, all(outputs) and left == 0))
    return figures


EXPERIMENT = Experiment(
    name="overhead", title="what measuring costs", trials=_trials, run=each(_measured), figures=_figures
)
