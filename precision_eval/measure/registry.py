"""What can be measured about a cell: the literal list, and the function that a worker runs.

Conventions: a measure is a function ``(cell, run_dir) -> list[Outcome]`` named by its dotted place, so that listing
measures imports nothing heavy. It returns one outcome per fix of the cell. What it raises becomes an outcome of every
fix of the cell; data that hold NaN or infinity become the status *non_finite*.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from precision_eval.core.cells import Cell, Outcome, failed, failure_of, with_doubts
from precision_eval.core.environment import resolved_device
from precision_eval.core.errors import ParameterError, UnsupportedError, entry_of
from precision_eval.core.targets import imported, plugins
from precision_eval.fixes.pins import PINS, set_tf32
from precision_eval.measure.isolation import IsolationError, Watched, watch_device

CASE_BITS = "case_bits"
"""Name in a record's data of the sum over all bits of a kept case: parameters, buffers, inputs."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    name: str
    title: str
    source: str
    place: str
    timed: bool = False
    grouped: bool = False
    after: tuple[str, ...] = ("trace",)
    needs: tuple[str, ...] = ()
    pseudo_fixes: tuple[str, ...] = ()
    options: tuple[str, ...] = ("seed",)
    cost_s: float = 0.2  # of a cell on a quiet core, times each of `cost_options`
    cost_options: tuple[str, ...] = ()
    everywhere: bool = False
    imports: tuple[str, ...] = ()  # libraries that each of its cells would import while it is measured

    def run(self, cell: Cell, run_dir: Path) -> list[Outcome]:
        return cast(list[Outcome], imported(self.place)(cell, run_dir))

    def expected_s(self, cell: Cell) -> float:
        return self.cost_s * math.prod(getattr(cell.options, name) or 1 for name in self.cost_options)


_CONTROLS = ("control_rope_bfloat16", "control_long_window")
_SHORT_CONTROLS = ("control_rope_bfloat16",)  # a long window differs only once it is longer than the trained one

MEASURES: tuple[Measure, ...] = (
    Measure(
        name="trace",
        title="which dtypes and which attention backend really ran, and which casts were made",
        source="observed by the dispatcher, not assumed; sglang-omni #1713 declared bfloat16 and silently ran float32",
        place="precision_eval.measure.generic:trace",
        after=(),
        options=("seed", "compile_mode", *PINS),
    ),
    Measure(
        name="drift",
        title="error of one call against float64 on the same stored inputs, split into cast, compute and rounding",
        source="yardstick of the same dtype as in FlashAttention's tests; Golden et al. 2024, arXiv 2405.02803",
        place="precision_eval.measure.generic:drift",
        cost_s=0.6,
        cost_options=("seeds",),
        options=("seed", "seeds", "compile_mode", *PINS),
    ),
    Measure(
        name="memory",
        title="peak allocated bytes of one call above its start, storage, and the worker's peak resident memory",
        source="the allocator's own events (torch.profiler on the CPU, torch.cuda.memory_stats)",
        place="precision_eval.measure.generic:memory",
        options=("seed", "compile_mode", *PINS),
    ),
    Measure(
        name="teacher_forced_drift",
        title="drift of the logits per step over the original's tokens: relative error, KL, flips",
        source="Qi et al. 2025, arXiv 2506.09501; intervals over streams",
        place="precision_eval.measure.voice:teacher_forced_drift",
        pseudo_fixes=_SHORT_CONTROLS,
        options=("seed", "streams", "steps"),
        cost_s=0.0006,
        cost_options=("streams", "steps"),
    ),
    Measure(
        name="streams",
        title="tokens of free-running streams, all with the same noise; the material of divergence",
        source="shared Gumbel noise: the same draw in every precision",
        place="precision_eval.measure.voice:streams",
        pseudo_fixes=("reference", "noise_floor", *_SHORT_CONTROLS),
        options=("seed", "streams", "steps"),
        cost_s=0.001,
        cost_options=("streams", "steps"),
    ),
    Measure(
        name="divergence",
        title="when free-running streams leave the reference's tokens",
        source="Kaplan–Meier survival over streams, next to the noise floor (the reference with another noise seed)",
        place="precision_eval.measure.voice:divergence",
        after=("streams",),
        needs=("streams",),
        pseudo_fixes=("noise_floor", *_SHORT_CONTROLS),
        options=("seed", "streams", "steps"),
        cost_s=0.01,
    ),
    Measure(
        name="synthesis",
        title="minutes of audio, and how fast they were made",
        source="streaming, in constant memory",
        place="precision_eval.measure.voice:synthesis",
        pseudo_fixes=("reference", "noise_floor", *_CONTROLS),
        options=("seed", "minutes"),
        cost_s=16.0,
        cost_options=("minutes",),
    ),
    Measure(
        name="audio",
        title="the audio against the reference's and the original's over time, as a ratio to the noise floor",
        source="audio_metrics: log-spectral distance, mel-cepstral distortion, SI-SDR, phoneme accuracy",
        place="precision_eval.measure.voice:audio",
        imports=("scipy.stats",),
        after=("synthesis",),
        needs=("synthesis",),
        pseudo_fixes=("reference", "noise_floor", *_CONTROLS),
        options=("seed", "minutes"),
        cost_s=1.0,
        cost_options=("minutes",),
    ),
    Measure(
        name="sound",
        title="many short streams of the voice, each heard against the original speech of its passage",
        source="paired by passage and seed; Holm's error rate, and no worse than one 20 ms drop-out a second",
        place="precision_eval.measure.voice:sound",
        imports=("scipy.stats",),
        pseudo_fixes=("reference", "noise_floor", *_CONTROLS),
        options=("seed", "streams", "minutes"),
        cost_s=1.3,
        cost_options=("streams", "minutes"),
    ),
    Measure(
        name="latency",
        title="time per call as a paired ratio to full_float32, with interval, verdict and detectable effect",
        source="interleaved blocks in random order; robust location and bootstrap of the paired log-ratios",
        place="precision_eval.measure.generic:latency",
        timed=True,
        grouped=True,
        options=("seed", "budget_s", "processes", "memory", "clock", "compile_mode", *PINS),
        cost_s=1.2,
        cost_options=("budget_s", "processes"),
    ),
)


def all_measures() -> tuple[Measure, ...]:
    """Return ``MEASURES`` and, after them, those that installed packages give: functions, tried on every case."""
    return (
        *MEASURES,
        *(
            Measure(name=name, title=place, source=place, place=place, options=("seed", *PINS), everywhere=True)
            for name, place in plugins("precision_eval.measures").items()
        ),
    )


def measure_by_name(name: str, measures: Sequence[Measure] = MEASURES) -> Measure:
    return entry_of("measure", name, measures, by="name")


@dataclass(frozen=True)
class CellResult:
    outcomes: tuple[Outcome, ...]
    started_at: str
    wall_s: float
    raised: bool = False
    is_lost: bool = False  # the device answers every further call with an error


def run_cell(cell: Cell, run_dir: Path, measures: Sequence[Measure] = MEASURES) -> CellResult:
    """Run one cell in this process, which is expected to be a worker of its own."""
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.perf_counter()
    raised = False
    if multiprocessing.parent_process() is not None:
        _log_output(log_path(cell, run_dir))
    try:
        measure = measure_by_name(cell.measure, measures)
        _prepare_torch(cell)
        with watch_device(cell.device, cell.options.isolation if measure.timed else None) as watched:
            outcomes = {outcome.fix: _to_json_data(outcome) for outcome in measure.run(cell, run_dir)}
        outcomes = {fix: _add_watched(outcome, watched) for fix, outcome in outcomes.items()}
    except IsolationError:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary of a cell: whatever was raised is the cell's result
        raised = True
        with suppress(OSError):  # a full disk must not turn the outcome into another one
            if multiprocessing.parent_process() is not None:
                traceback.print_exc()
        outcomes = {fix: failure_of(fix, error) for fix in cell.fixes}
    missing = [failed(fix, "raised", "the measure gave no outcome for it") for fix in cell.fixes if fix not in outcomes]
    return CellResult((*outcomes.values(), *missing), started_at, time.perf_counter() - start, raised)


def _add_watched(outcome: Outcome, watched: Watched) -> Outcome:
    outcome = with_doubts(outcome, watched.doubts)
    if outcome.data is None or not watched.gpu:
        return outcome
    return replace(outcome, data=outcome.data | {"gpu": watched.gpu})


def log_path(cell: Cell, run_dir: Path) -> Path:
    return run_dir / "logs" / (re.sub(r"[^\w.+@#-]+", "_", cell.id)[:180] + ".log")


def _log_output(path: Path) -> None:
    """Send this process's standard output and error to a file, C libraries' included."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _prepare_torch(cell: Cell) -> None:
    """Set the threads and TF32, and make sure that the device is there."""
    import torch

    torch.set_num_threads(cell.threads)
    try:
        resolved_device(cell.device)
    except ParameterError as error:
        raise UnsupportedError(str(error)) from error
    set_tf32(cell.options.tf32, cell.device)


def _to_json_data(outcome: Outcome) -> Outcome:
    """Turn data into JSON data, or say which figure is not finite."""
    if outcome.data is None:
        return outcome
    data = json.loads(json.dumps(outcome.data, default=_plain))
    place = _not_finite(data, "")
    if place is not None:
        return replace(outcome, status="non_finite", reason=f"{place} is not finite", data=None)
    return replace(outcome, data=data)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # a scalar or an array of numpy's
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not plain data")


def _not_finite(value: Any, place: str) -> str | None:
    """Return the dotted place of the first number that is not finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{place.lstrip('.')} = {value}"
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    places = (_not_finite(item, f"{place}.{key}") for key, item in items)
    return next((inner for inner in places if inner is not None), None)
