"""Tensors of known size: memory as measured against memory as predicted from shapes alone.

A trial is one call of :mod:`.calls`: its *predicted* peak in bytes, what
:func:`~precision_eval.measure.memory.cpu_allocated_peak_bytes` found (*ours*), twice, what it found of the same call
with 5 % more planted, and what other tools read in fresh processes. A tool *sees* the planted 5 % where its
figure grew by 2.5 to 7.5 % of the prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from precision_eval.core.workers import one_thread
from precision_eval.measure.memory import cpu_allocated_peak_bytes
from precision_eval.run.executor import IsolatedExecutor
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.memory.calls import FAMILIES, KnownCall, all_keys, build, family_of, with_more
from validation.memory.rivals import ANY_PROCESS, PRELOAD, RIVALS, rival_bytes

MORE = 0.05
_QUICK_STEP = 9


def _trials(options: Options) -> list[Trial]:
    """Every call; the quick size takes every ninth, and the first of each family."""
    keys = all_keys()
    first = {family_of(key): key for key in reversed(keys)}.values()
    everything = options.size == "full"
    return [Trial(k, k) for n, k in enumerate(keys) if everything or n % _QUICK_STEP == 0 or k in first]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    with one_thread(), IsolatedExecutor(preload=PRELOAD) as executor:
        for key, _, _ in trials:
            yield {"key": key, **_measured(key, executor)}


def _measured(key: str, executor: IsolatedExecutor) -> Data:
    def theirs(rival: str, more: float) -> int | None:
        if rival in ANY_PROCESS:
            return rival_bytes(rival, key, more=more)
        read: int | None = executor.submit(rival_bytes, rival, key, more=more).result()
        return read

    known = build(key)
    regressed = with_more(known, fraction=MORE) if known.predicted_bytes else None
    return {
        "family": family_of(key),
        "predicted": known.predicted_bytes,
        "ours": [measured_peak(known), measured_peak(known)],
        "more": None if regressed is None else [regressed.predicted_bytes, measured_peak(regressed)],
        "rivals": {name: [theirs(name, more) for more in ((0.0, MORE) if regressed else (0.0,))] for name in RIVALS},
    }


def measured_peak(known: KnownCall) -> int:
    """Measure a call that has run once before."""
    torch.set_num_threads(known.threads)
    with torch.no_grad():
        known.call(*known.inputs)
        return cpu_allocated_peak_bytes(known.call, known.inputs)


def _figures(lines: list[Data]) -> list[Figure]:
    calls = [line for line in lines if line.get("family") in FAMILIES]  # earlier runs hold trials of other kinds
    return [_exactness(calls), _repeats(calls), _regression(calls)] if calls else []


def _exactness(calls: Sequence[Data]) -> Figure:
    errors = [abs(call["ours"][0] - call["predicted"]) for call in calls]
    elementary = sum(not FAMILIES[call["family"]].kernel for call in calls)
    return Figure(
        "peak of a call, CPU, against its shapes",
        f"exact in {errors.count(0)} of {len(errors)} ({elementary} elementary, "
        f"{len(errors) - elementary} with a kernel's scratch), largest difference {max(errors)} B",
        "the allocator's rounding: 0 bytes",
        max(errors) == 0,
        {rival: _rival_exactness(calls, rival) for rival in RIVALS},
    )


def _rival_exactness(calls: Sequence[Data], rival: str) -> str:
    read = [(call["rivals"][rival][0], call["predicted"]) for call in calls]
    errors = [abs(value - predicted) for value, predicted in read if value is not None]
    if not errors:
        return "not installed"
    median, largest = _size(float(np.median(errors))), _size(max(errors))
    return f"exact in {errors.count(0)} of {len(errors)}, median {median}, largest {largest}"


def _size(count: float) -> str:
    for scale, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def _repeats(calls: Sequence[Data]) -> Figure:
    same = sum(call["ours"][0] == call["ours"][1] for call in calls)
    return Figure("the same call again, CPU", f"{same} of {len(calls)}", "the same bytes", same == len(calls))


def _regression(calls: Sequence[Data]) -> Figure:
    planted = [call for call in calls if call["more"] is not None and MORE * call["predicted"] >= 1.0]

    def seen(pairs: Sequence[Sequence[int | None]]) -> int:
        grown = [
            (after - before) / call["predicted"]
            for (before, after), call in zip(pairs, planted, strict=True)
            if before is not None and after is not None
        ]
        return sum(0.5 * MORE <= growth <= 1.5 * MORE for growth in grown)

    ours = seen([(call["ours"][0], call["more"][1]) for call in planted])
    exact = sum(call["more"][0] == call["more"][1] for call in planted)
    return Figure(
        f"+{MORE:.0%} memory planted, CPU",
        f"{ours} of {len(planted)}, {exact} of them to the byte",
        "seen in all",
        ours == len(planted),
        {name: f"{seen([call['rivals'][name] for call in planted])} of {len(planted)}" for name in RIVALS},
    )


EXPERIMENT = Experiment(name="memory", title="tensors of known size", trials=_trials, run=_run, figures=_figures)
