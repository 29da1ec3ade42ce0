"""Tensors of known size: memory as measured beside memory as predicted from shapes alone.

A trial is one call of :mod:`.calls`: its *predicted* peak in bytes, what
:func:`~precision_eval.measure.memory.cpu_allocated_peak_bytes` found (*ours*), twice, what it found of the same call
with 5 % more planted beside it, and what other tools read in fresh processes. On CUDA, where there is one, elementary
calls are held to the caching allocator's rounding; with single tensors the reserved memory too.

A tool *sees* the planted 5 % where its figure grew by 2.5 to 7.5 % of the prediction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from precision_eval.core.drawing import INK, dress, new_figure, save
from precision_eval.measure.memory import cpu_allocated_peak_bytes, cuda_peak_bytes
from precision_eval.run.executor import IsolatedExecutor
from precision_eval.trace.observer import profiled
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.memory.calls import FAMILIES, KnownCall, all_keys, build, family_of, with_more
from validation.memory.rivals import ANY_PROCESS, PRELOAD, RIVALS, rival_bytes

NAME = "memory"
MORE = 0.05
_QUICK_STEP = 9
_SEGMENTS = ((1 << 20, 2 << 20), (10 << 20, 20 << 20))  # CUDA: up to so many bytes, a segment of so many
_SEGMENT_GRAIN_BYTES = 2 << 20
_FREED_BYTES, _TAKEN_BYTES, _EARLIER_BYTES = 1 << 20, 1 << 18, 100_000


def _trials(options: Options) -> list[Trial]:
    """The calls on the CPU and on CUDA, and the edges; the quick size takes every ninth call."""
    keys = list(all_keys()) if options.size == "full" else _reduced(all_keys())
    cuda = [key for key in keys if not FAMILIES[family_of(key)].kernel] if torch.cuda.is_available() else []
    return [
        *(Trial(key, ("cpu", key)) for key in keys),
        *(Trial(f"cuda {key}", ("cuda", key)) for key in cuda),
        *(Trial(f"edge {name}", ("edge", name)) for name in EDGES),
    ]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    threads = torch.get_num_threads()
    try:
        with IsolatedExecutor(preload=PRELOAD) as executor:
            for key, (kind, name), _ in trials:
                yield {"key": key, **_measured(kind, name, executor)}
    finally:
        torch.set_num_threads(threads)


def _measured(kind: str, name: str, executor: IsolatedExecutor) -> Data:
    if kind == "edge":
        return EDGES[name][0]()
    return _cuda_trial(name) if kind == "cuda" else _cpu_trial(name, executor)


def _reduced(keys: Sequence[str]) -> list[str]:
    """Take every ninth call, and the first of each family."""
    first = {family_of(key): key for key in reversed(keys)}.values()
    return [key for number, key in enumerate(keys) if number % _QUICK_STEP == 0 or key in first]


def _found(known: KnownCall) -> int:
    torch.set_num_threads(known.threads)
    with torch.no_grad():
        known.call(*known.inputs)
        return cpu_allocated_peak_bytes(known.call, known.inputs)


def _theirs(executor: IsolatedExecutor, rival: str, key: str, more: float) -> int | None:
    if rival in ANY_PROCESS:
        return rival_bytes(rival, key, more=more)
    read: int | None = executor.submit(rival_bytes, rival, key, more=more).result()
    return read


def _cpu_trial(key: str, executor: IsolatedExecutor) -> Data:
    """Measure one call on the CPU, by this package and by every rival."""
    known = build(key)
    plants = (0.0, MORE) if known.predicted_bytes else (0.0,)
    regressed = with_more(known, fraction=MORE) if len(plants) > 1 else None
    return {
        "family": family_of(key),
        "predicted": known.predicted_bytes,
        "ours": [_found(known), _found(known)],
        "more": None if regressed is None else [regressed.predicted_bytes, _found(regressed)],
        "rivals": {rival: [_theirs(executor, rival, key, more) for more in plants] for rival in RIVALS},
    }


def segment_bytes(asked: int) -> int:
    """Return what CUDA's caching allocator takes from the driver for one tensor into an empty cache."""
    (small, small_segment), (large, large_segment) = _SEGMENTS
    if asked <= small:
        return small_segment
    if asked < large:
        return large_segment
    return -(-asked // _SEGMENT_GRAIN_BYTES) * _SEGMENT_GRAIN_BYTES


def _cuda_trial(key: str) -> Data:
    """Measure one elementary call on CUDA."""
    known = build(key, device="cuda")
    device = torch.device("cuda", torch.cuda.current_device())
    known.call(*known.inputs)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    allocated, reserved = cuda_peak_bytes(known.call, known.inputs, device)
    single = family_of(key) == "single" and before == 0
    return {
        "family": family_of(key),
        "predicted": known.predicted_bytes,
        "cuda": allocated,
        "segments": [segment_bytes(known.predicted_bytes), reserved] if single else None,
    }


def _freed_before() -> Data:
    """Give back 1 MiB that was there before, then take 256 KiB: the level never rises, and the call took 256 KiB."""
    held = [torch.ones(_FREED_BYTES, dtype=torch.uint8)]
    return {"level": 0, **_edge(lambda: held.clear() or _taken())}  # type: ignore[func-returns-value]


def _earlier_profile() -> Data:
    """Give back memory at an address that another tensor had under an earlier profiler, then take 256 KiB."""
    held: list[torch.Tensor] = []
    met = False
    for _ in range(50):
        address = profiled(lambda: torch.ones(_EARLIER_BYTES, dtype=torch.uint8), (), memory=True).output.data_ptr()
        held = [torch.ones(_EARLIER_BYTES - 64 * k, dtype=torch.uint8) for k in range(1, 4)]
        met = address in [tensor.data_ptr() for tensor in held]
        if met:
            break
    return {"met": met, **_edge(lambda: held.clear() or _taken())}  # type: ignore[func-returns-value]


def _other_thread() -> Data:
    """Take 256 KiB in a thread that the call starts."""

    def call() -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: made.append(_taken()))
        thread.start()
        thread.join()
        return made

    return _edge(call)


def _numpy_array() -> Data:
    """Take 256 KiB by numpy and wrap it as a tensor."""
    return _edge(lambda: torch.from_numpy(np.ones(_TAKEN_BYTES, dtype=np.uint8)))


def _taken() -> torch.Tensor:
    return torch.ones(_TAKEN_BYTES, dtype=torch.uint8)


def _edge(call: Callable[[], object]) -> Data:
    return {"predicted": _TAKEN_BYTES, "ours": [cpu_allocated_peak_bytes(call, ())]}


EDGES: dict[str, tuple[Callable[[], Data], str]] = {
    "memory given back that was there before": (_freed_before, "not credited: the level rises by 0"),
    "an address known from an earlier profile": (_earlier_profile, "believed only where this profile gave it out"),
    "memory of another Python thread": (_other_thread, "not seen"),
    "memory of numpy": (_numpy_array, "not seen"),
}
"""What is no single call's: how it is measured, and what is known of it."""


def _figures(lines: list[Data]) -> list[Figure]:
    calls = [line for line in lines if "rivals" in line]
    if not calls:
        return []
    figures = [_exactness(calls), _repeats(calls), _regression(calls)]
    figures += _cuda_figures([line for line in lines if "cuda" in line])
    return figures + [_edge_figure(line) for line in lines if line["key"].startswith("edge ")]


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
    errors = [abs(found - predicted) for found, predicted in read if found is not None]
    if not errors:
        return "not installed"
    median, largest = _size(float(np.median(errors))), _size(max(errors))
    return f"exact in {errors.count(0)} of {len(errors)}, median {median}, largest {largest}"


def _repeats(calls: Sequence[Data]) -> Figure:
    same = sum(call["ours"][0] == call["ours"][1] for call in calls)
    return Figure("the same call again, CPU", f"{same} of {len(calls)}", "the same bytes", same == len(calls))


def _sees(before: int | None, after: int | None, predicted: int) -> bool:
    known = before is not None and after is not None
    return known and 0.5 * MORE <= (after - before) / predicted <= 1.5 * MORE  # type: ignore[operator]


def _regression(calls: Sequence[Data]) -> Figure:
    planted = [call for call in calls if call["more"] is not None and MORE * call["predicted"] >= 1.0]
    exact = sum(call["more"][0] == call["more"][1] for call in planted)
    seen = sum(_sees(call["ours"][0], call["more"][1], call["predicted"]) for call in planted)
    seen_by = {
        rival: sum(_sees(call["rivals"][rival][0], call["rivals"][rival][1], call["predicted"]) for call in planted)
        for rival in RIVALS
    }
    return Figure(
        f"+{MORE:.0%} memory planted, CPU",
        f"{seen} of {len(planted)}, {exact} of them to the byte",
        "seen in all",
        seen == len(planted),
        {rival: f"{count} of {len(planted)}" for rival, count in seen_by.items()},
    )


def _cuda_figures(lines: Sequence[Data]) -> list[Figure]:
    if not lines:
        return []
    errors = [abs(line["cuda"] - line["predicted"]) for line in lines]
    segments = [line["segments"][0] == line["segments"][1] for line in lines if line["segments"]]
    exact = f"exact in {errors.count(0)} of {len(errors)}, largest difference {max(errors)} B"
    reserved = "reserved for a single tensor, CUDA, in segments of 2 MiB, 20 MiB or multiples of 2 MiB"
    return [
        Figure("peak of an elementary call, CUDA, each tensor rounded up to 512 B", exact, "0 bytes", max(errors) == 0),
        Figure(reserved, f"exact in {sum(segments)} of {len(segments)}", "0 bytes", all(segments)),
    ]


def _edge_figure(line: Data) -> Figure:
    name = line["key"].removeprefix("edge ")
    note = EDGES[name][1] + ("" if line.get("met", True) else "; the address was not met in this run")
    return Figure(name, f"{line['ours'][0]} B of the {line['predicted']} B that the call took; {note}")


def _size(count: float) -> str:
    for scale, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def _plots(lines: list[Data], out: Path) -> list[Path]:
    """Draw found over predicted, this package and each rival; zeros sit on their own line."""
    calls = [line for line in lines if "rivals" in line]
    predicted = np.array([call["predicted"] for call in calls], dtype=float)
    panels: dict[str, Any] = {"precision-eval": [call["ours"][0] for call in calls]}
    panels |= {rival: [call["rivals"][rival][0] for call in calls] for rival in RIVALS}
    ticks = {0: "0", 1: "1 B", 2**10: "1 KiB", 2**20: "1 MiB", 2**27: "128 MiB"}
    figure = new_figure(13.0, 3.6)
    for axes, (name, values) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        found = np.array(values, dtype=float)  # None becomes NaN
        axes.plot([0, predicted.max()], [0, predicted.max()], color="#999999", linewidth=0.8, zorder=1)
        colour = "#009E73" if name == "precision-eval" else "#D55E00"
        axes.scatter(predicted, np.maximum(found, 0.0), s=9, color=colour, alpha=0.55, linewidths=0, zorder=2)
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_xticks(list(ticks), list(ticks.values()), rotation=30)
        axes.set_yticks(list(ticks), list(ticks.values()))
        dress(axes, title=f"{name}\nexact in {int(np.sum(found == predicted))} of {int(np.isfinite(found).sum())}")
        axes.set_xlabel("predicted from shapes", fontsize=9, color=INK)
    figure.axes[0].set_ylabel("found", fontsize=9, color=INK)
    return save(figure, out, NAME)


EXPERIMENT = Experiment(
    name=NAME, title="tensors of known size", trials=_trials, run=_run, figures=_figures, plots=_plots
)
