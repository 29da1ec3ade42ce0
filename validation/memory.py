"""Tensors of known size: memory as measured beside memory as predicted from shapes alone.

Conventions: bytes. A trial is one call of :mod:`~validation.memory_calls`: its *predicted* peak, what
:func:`~precision_eval.measure.memory.cpu_allocated_peak_bytes` found (*ours*), twice, what it found of the same call
with 5 % more planted beside it, and what other tools read in fresh processes. On CUDA, where there is one, elementary
calls are held to the caching allocator's rounding; with single tensors the reserved memory too.

A tool *sees* the planted 5 % where its figure grew by 2.5 to 7.5 % of the prediction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from precision_eval.core.drawing import INK, dress, new_figure, save
from precision_eval.core.json_lines import TrialFile
from precision_eval.measure.memory import cpu_allocated_peak_bytes, cuda_peak_bytes
from precision_eval.run.executor import IsolatedExecutor
from precision_eval.trace.profiling import profiled
from validation.catalog import Figure, Progress, Size
from validation.memory_calls import FAMILIES, KnownCall, all_keys, build, family_of, with_more
from validation.memory_rivals import ANY_PROCESS, PRELOAD, RIVALS, rival_bytes

NAME = "memory"
MORE = 0.05
_QUICK_STEP = 9
_SEGMENTS = ((1 << 20, 2 << 20), (10 << 20, 20 << 20))  # CUDA: up to so many bytes, a segment of so many
_SEGMENT_GRAIN_BYTES = 2 << 20
_FREED_BYTES, _TAKEN_BYTES, _EARLIER_BYTES = 1 << 20, 1 << 18, 100_000
Trial = dict[str, Any]


def run(out: Path, *, size: Size, progress: Progress) -> None:
    """Run the calls that are missing in ``out/memory.jsonl``; the quick size takes every ninth."""
    trials = TrialFile(out / f"{NAME}.jsonl")
    keys = list(all_keys()) if size == "full" else _reduced(all_keys())
    cuda = [key for key in keys if not FAMILIES[family_of(key)].kernel] if torch.cuda.is_available() else []
    planned: list[tuple[str, Callable[[], Trial]]] = []
    done = trials.keys()
    threads = torch.get_num_threads()
    with IsolatedExecutor(preload=PRELOAD) as executor:
        planned += [(key, partial(_trial, key, executor)) for key in keys]
        planned += [(f"cuda {key}", partial(_cuda_trial, key)) for key in cuda]
        planned += [(f"edge {name}", edge) for name, edge in EDGES.items()]
        try:
            for count, (key, trial) in enumerate(planned, start=1):
                if key not in done:
                    trials.append({"key": key, **trial()})
                progress(count, len(planned), key)
        finally:
            torch.set_num_threads(threads)


def _reduced(keys: Sequence[str]) -> list[str]:
    """Take every ninth call, and the first of each family."""
    first = {family_of(key): key for key in reversed(keys)}.values()
    return [key for place, key in enumerate(keys) if place % _QUICK_STEP == 0 or key in first]


def _found(known: KnownCall) -> int:
    torch.set_num_threads(known.threads)
    with torch.no_grad():
        known.call(*known.inputs)
        return cpu_allocated_peak_bytes(known.call, known.inputs)


def _theirs(executor: IsolatedExecutor, rival: str, key: str, more: float) -> int | None:
    if rival in ANY_PROCESS:
        return rival_bytes(rival, key, more=more)
    found: int | None = executor.submit(rival_bytes, rival, key, more=more).result()
    return found


def _trial(key: str, executor: IsolatedExecutor) -> Trial:
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


def _cuda_trial(key: str) -> Trial:
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


def _freed_before() -> Trial:
    """Give back 1 MiB that was there before, then take 256 KiB: the level never rises, and the call took 256 KiB."""
    held = [torch.ones(_FREED_BYTES, dtype=torch.uint8)]

    def call() -> torch.Tensor:
        held.clear()
        return torch.ones(_TAKEN_BYTES, dtype=torch.uint8)

    return {"predicted": _TAKEN_BYTES, "level": 0, "ours": [cpu_allocated_peak_bytes(call, ())]}


def _earlier_profile() -> Trial:
    """Give back memory at an address that another tensor had under an earlier profiler, then take 256 KiB."""
    held: list[torch.Tensor] = []
    met = False
    for _ in range(50):
        address = profiled(lambda: torch.ones(_EARLIER_BYTES, dtype=torch.uint8), (), memory=True).output.data_ptr()
        held = [torch.ones(_EARLIER_BYTES - 64 * k, dtype=torch.uint8) for k in range(1, 4)]
        met = address in [tensor.data_ptr() for tensor in held]
        if met:
            break

    def call() -> torch.Tensor:
        held.clear()
        return torch.ones(_TAKEN_BYTES, dtype=torch.uint8)

    return {"predicted": _TAKEN_BYTES, "met": met, "ours": [cpu_allocated_peak_bytes(call, ())]}


def _other_thread() -> Trial:
    """Take 256 KiB in a thread that the call starts."""

    def call() -> list[torch.Tensor]:
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: made.append(torch.ones(_TAKEN_BYTES, dtype=torch.uint8)))
        thread.start()
        thread.join()
        return made

    return {"predicted": _TAKEN_BYTES, "ours": [cpu_allocated_peak_bytes(call, ())]}


def _numpy_array() -> Trial:
    """Take 256 KiB by numpy and wrap it as a tensor."""

    def call() -> torch.Tensor:
        return torch.from_numpy(np.ones(_TAKEN_BYTES, dtype=np.uint8))

    return {"predicted": _TAKEN_BYTES, "ours": [cpu_allocated_peak_bytes(call, ())]}


EDGES: dict[str, Callable[[], Trial]] = {
    "memory given back that was there before": _freed_before,
    "an address known from an earlier profile": _earlier_profile,
    "memory of another Python thread": _other_thread,
    "memory of numpy": _numpy_array,
}


def figures(out: Path) -> list[Figure]:
    """Make the figures from ``out/memory.jsonl``."""
    trials = TrialFile(out / f"{NAME}.jsonl").read()
    calls = [trial for trial in trials if "rivals" in trial]
    if not calls:
        return []
    found = [_exactness(calls), _repeats(calls), _regression(calls)]
    found += _cuda_figures([trial for trial in trials if "cuda" in trial])
    return found + [_edge_figure(trial) for trial in trials if trial["key"].startswith("edge ")]


def _rival_errors(calls: Sequence[Trial], rival: str) -> list[int]:
    return [abs(t["rivals"][rival][0] - t["predicted"]) for t in calls if t["rivals"][rival][0] is not None]


def _exactness(calls: Sequence[Trial]) -> Figure:
    errors = [abs(trial["ours"][0] - trial["predicted"]) for trial in calls]
    elementary = sum(not FAMILIES[trial["family"]].kernel for trial in calls)
    rivals = {}
    for rival in RIVALS:
        theirs = _rival_errors(calls, rival)
        exact = sum(error == 0 for error in theirs)
        rivals[rival] = (
            f"exact in {exact} of {len(theirs)}, median {_size(float(np.median(theirs)))}, largest {_size(max(theirs))}"
            if theirs
            else "not installed"
        )
    return Figure(
        name="peak of a call, CPU, against its shapes",
        target="the allocator's rounding: 0 bytes",
        found=f"exact in {sum(e == 0 for e in errors)} of {len(errors)} ({elementary} elementary, "
        f"{len(errors) - elementary} with a kernel's scratch), largest difference {max(errors)} B",
        met=max(errors) == 0,
        rivals=rivals,
    )


def _repeats(calls: Sequence[Trial]) -> Figure:
    same = sum(trial["ours"][0] == trial["ours"][1] for trial in calls)
    return Figure(
        name="the same call again, CPU",
        target="the same bytes",
        found=f"{same} of {len(calls)}",
        met=same == len(calls),
        rivals={},
    )


def _sees(before: int | None, after: int | None, predicted: int) -> bool:
    if before is None or after is None:
        return False
    return 0.5 * MORE <= (after - before) / predicted <= 1.5 * MORE


def _regression(calls: Sequence[Trial]) -> Figure:
    planted = [trial for trial in calls if trial["more"] is not None and MORE * trial["predicted"] >= 1.0]
    exact = sum(trial["more"][0] == trial["more"][1] for trial in planted)
    seen = sum(_sees(trial["ours"][0], trial["more"][1], trial["predicted"]) for trial in planted)
    rivals = {}
    for rival in RIVALS:
        theirs = [(*trial["rivals"][rival], trial["predicted"]) for trial in planted]
        rivals[rival] = f"{sum(_sees(*their) for their in theirs)} of {len(theirs)}"
    return Figure(
        name=f"+{MORE:.0%} memory planted, CPU",
        target="seen in all",
        found=f"{seen} of {len(planted)}, {exact} of them to the byte",
        met=seen == len(planted),
        rivals=rivals,
    )


def _cuda_figures(trials: Sequence[Trial]) -> list[Figure]:
    if not trials:
        return []
    errors = [abs(trial["cuda"] - trial["predicted"]) for trial in trials]
    segments = [trial["segments"] for trial in trials if trial["segments"]]
    exact = sum(predicted == found for predicted, found in segments)
    return [
        Figure(
            name="peak of an elementary call, CUDA, each tensor rounded up to 512 B",
            target="0 bytes",
            found=f"exact in {sum(e == 0 for e in errors)} of {len(errors)}, largest difference {max(errors)} B",
            met=max(errors) == 0,
            rivals={},
        ),
        Figure(
            name="reserved for a single tensor, CUDA, in segments of 2 MiB, 20 MiB or multiples of 2 MiB",
            target="0 bytes",
            found=f"exact in {exact} of {len(segments)}",
            met=exact == len(segments),
            rivals={},
        ),
    ]


def _edge_figure(trial: Trial) -> Figure:
    name = trial["key"].removeprefix("edge ")
    notes = {
        "memory given back that was there before": "not credited: the level rises by 0",
        "an address known from an earlier profile": "believed only where this profile gave it out"
        + ("" if trial.get("met", True) else "; the address was not met in this run"),
        "memory of another Python thread": "not seen",
        "memory of numpy": "not seen",
    }
    return Figure(
        name=name,
        target="",
        found=f"{trial['ours'][0]} B of the {trial['predicted']} B that the call took; {notes[name]}",
        met=None,
        rivals={},
    )


def _size(count: float) -> str:
    for scale, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def plot(out: Path) -> list[Path]:
    """Draw found over predicted, this package and each rival; zeros sit on their own line."""
    calls = [trial for trial in TrialFile(out / f"{NAME}.jsonl").read() if "rivals" in trial]
    if not calls:
        return []
    predicted = np.array([trial["predicted"] for trial in calls], dtype=float)
    panels = {"precision-eval": np.array([trial["ours"][0] for trial in calls], dtype=float)}
    for rival in RIVALS:
        panels[rival] = np.array([np.nan if v is None else v for v in (t["rivals"][rival][0] for t in calls)], float)
    figure = new_figure(13.0, 3.6)
    for axes, (name, found) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        axes.plot([0, predicted.max()], [0, predicted.max()], color="#999999", linewidth=0.8, zorder=1)
        colour = "#009E73" if name == "precision-eval" else "#D55E00"
        axes.scatter(predicted, np.maximum(found, 0.0), s=9, color=colour, alpha=0.55, linewidths=0, zorder=2)
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_xticks([0, 1, 2**10, 2**20, 2**27], ["0", "1 B", "1 KiB", "1 MiB", "128 MiB"], rotation=30)
        axes.set_yticks([0, 1, 2**10, 2**20, 2**27], ["0", "1 B", "1 KiB", "1 MiB", "128 MiB"])
        exact = int(np.sum(found == predicted))
        dress(axes, title=f"{name}\nexact in {exact} of {int(np.isfinite(found).sum())}")
        axes.set_xlabel("predicted from shapes", fontsize=9, color=INK)
    figure.axes[0].set_ylabel("found", fontsize=9, color=INK)
    return save(figure, out, NAME)
