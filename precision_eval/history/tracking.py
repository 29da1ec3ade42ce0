"""What is followed over commits and torch versions: figures of every case and fix, read from the suite's measures.

A *figure* is one number of one fix on one case, in one mode and size; a figure of several processes or seeds comes as
samples. The definitions live here, so that an old commit measures what it defined; whatever shows the figures only asks
for them. Quick figures are no data. *Not applicable* is what cannot be (the device lacks it, the fix has no such mode);
everything else without a figure is a *failure* and shows its message.

All cases are tracked eager at their default sizes: status, drift and memory of all, times of one case per system. The
mode ``cuda`` is the same on a GPU; names of its times tell the device's from those launched from Python. A SHA-256 of
the definition is a benchmark's version, so a changed definition starts a new series. A fix is a parameter: a redefined
one gets a new label through its revision, and the other fixes' series go on. Importing this loads no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from precision_eval.cases.systems import CASES, Case, case_by_id
from precision_eval.core.cells import Options, Outcome
from precision_eval.core.errors import ParameterError, PrecisionEvalError, entry_of
from precision_eval.core.records import STATUSES, Record
from precision_eval.fixes.catalog import FIXES, Fix
from precision_eval.measure.registry import measure_by_name

ON_CUDA = "cuda"  # the mode of what is tracked on a GPU, eager
# Intra-op threads: a history needs the same number every time, and a runner's cores are shared.
THREADS = 1

# Number of the one process to time, from 0; all of an effort's where it is not set. A sweep of torch versions in rounds
# times one process at each visit; the number is part of the seed of its order and memory.
PROCESS_VARIABLE = "PRECISION_EVAL_LATENCY_PROCESS"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Sizes of the measuring; `together` measures all that is tracked of a place at the first question."""

    name: str
    options: Options
    tiny: bool = False
    compiled_fixes: tuple[str, ...] | None = None
    limit_s: float = 240.0
    together: bool = False


FULL = Effort(name="full", options=Options(minutes=1 / 6, streams=4, steps=100, budget_s=0.3, processes=3, seeds=5))
QUICK = Effort(
    name="quick",
    options=Options(minutes=1 / 60, streams=1, steps=10, budget_s=0.02, processes=1),
    tiny=True,
    compiled_fixes=("as_shipped", "full_float32"),
    together=True,  # to start workers takes longer than what they do here
)


def numbers_of_processes(count: int, environ: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """Return the numbers of `count` processes, or the one that :data:`PROCESS_VARIABLE` asks for."""
    asked = (os.environ if environ is None else environ).get(PROCESS_VARIABLE)
    if not asked:
        return tuple(range(count))
    if not asked.isdecimal():
        raise ParameterError(f"{PROCESS_VARIABLE} is {asked!r}; expected the number of a process, or unset it")
    return (int(asked),)


class NotApplicableError(PrecisionEvalError, NotImplementedError):
    """The cell cannot be. asv shows a ``NotImplementedError`` as n/a, and only this package raises this one."""


class FixFailedError(PrecisionEvalError, RuntimeError):
    """There is no figure because the fix raised, was not finite, hung, crashed or ran out of memory."""


@dataclass(frozen=True, kw_only=True)
class TrackedCell:
    case: str
    mode: str
    size: str

    @property
    def entry(self) -> Case:
        return case_by_id(self.case)

    @property
    def device(self) -> str:
        return "cuda:0" if self.mode == ON_CUDA else "cpu"

    @property
    def run_mode(self) -> str:
        return "eager" if self.mode == ON_CUDA else self.mode

    def options(self, effort: Effort) -> Options:
        """Return an effort's options; on a GPU one process draws what processes draw on a CPU."""
        options = effort.options
        if self.mode != ON_CUDA:
            return options
        return replace(options, processes=1, budget_s=options.processes * options.budget_s)

    def fixes(self, effort: Effort) -> tuple[Fix, ...]:
        """Return the fixes that have a meaning here, in this mode, and that an effort takes."""
        taken = effort.compiled_fixes if self.mode == "compiled" else None
        possible = (fix for fix in FIXES if self.entry.takes(fix.id) and self.run_mode in fix.modes)
        return tuple(fix for fix in possible if taken is None or fix.id in taken)

    def at(self, effort: Effort) -> TrackedCell:
        """Return the place that is measured under an effort: a tiny one, where that is asked for and there is one."""
        if effort.tiny and "tiny" in self.entry.sizes:
            return TrackedCell(case=self.case, mode=self.mode, size="tiny")
        return self

    def checked_fix(self, label: str, effort: Effort) -> Fix:
        """Return the fix of a label if it has a meaning here."""
        fix = fix_of_label(label)
        if self.run_mode not in fix.modes:
            raise NotApplicableError(f"{fix.id} exists only {' and '.join(fix.modes)}, not {self.run_mode}")
        if not self.entry.takes(fix.id):
            raise NotApplicableError(f"{fix.id} has no meaning for {self.case}, which stands for no one project")
        if fix not in self.fixes(effort):
            raise NotApplicableError(f"{fix.id} is left out of a {effort.name} run, {self.mode}")
        return fix


def fix_of_label(label: str) -> Fix:
    return entry_of("fix label", label, FIXES, by="label")


def raise_unless_passed(outcome: Outcome | Record) -> None:
    if outcome.status == "unsupported":
        raise NotApplicableError(f"unsupported: {outcome.reason}")
    if outcome.status != "passed":
        raise FixFailedError(f"{outcome.fix} {outcome.status}: {outcome.reason}")


# Of the fixed computation in :mod:`precision_eval.history.timing`.
ANCHOR_DEFINITION: tuple[str, ...] = ("rows 16, width 512, layers 4, cache 2048 x 512, float32", "PCG64(0)", "v1")

Figure = int | float | tuple[float, ...]  # one number, or one per process or seed


@dataclass(frozen=True, kw_only=True)
class TrackedMetric:
    """One tracked figure.

    `measures` are those that give it, the first one that a case has; empty where the benchmarking tool measures.
    `path` leads through the data to the number, or with `samples` to one per process; an empty one gives the status.
    `by_seed` names the numbers of several seeds, `clock` what the name of the clock begins with. `revision` is raised
    when the meaning changes and no field shows it.
    """

    id: str
    title: str
    unit: str
    measures: tuple[str, ...]
    path: tuple[str, ...] = ()
    samples: bool = False
    by_seed: str = ""
    only: tuple[str, ...] = ()
    clock: str = ""
    revision: int = 1

    @property
    def timed(self) -> bool:
        """Whether the benchmarking tool measures by itself."""
        return not self.measures

    @property
    def method(self) -> str:
        return f"{self.id}_call" if self.timed else f"track_{self.id}"

    def measure_of(self, measures: tuple[str, ...]) -> str | None:
        """Return the measure that gives it, given those that a case has; None where none does."""
        return next((name for name in self.measures if name in measures), None)

    def read(self, outcome: Record) -> Figure:
        """Read the figure from a record; raise where its data hold no number, such as a ratio without a baseline."""
        if not self.path:
            return STATUSES.index(outcome.status) + 1
        by_seed = (outcome.data or {}).get(self.by_seed)
        value: Any = by_seed or outcome.data
        for name in () if by_seed else self.path:
            if self.clock and name == self.path[-1]:
                self._check_clock(outcome.fix, value or {})
            value = value.get(name) if isinstance(value, Mapping) else None
        if (self.samples or by_seed) and isinstance(value, list) and value:
            return tuple(float(sample) for sample in value)
        if not (self.samples or by_seed) and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        why = (outcome.data or {}).get("missing", {}).get(self.path[-1]) or f"found {value!r}"
        raise FixFailedError(f"{outcome.fix} has no {self.title}: {why}")

    def _check_clock(self, fix: str, timed: Mapping[str, Any]) -> None:
        """Refuse a figure of another clock: one series would hold both."""
        clock = str(timed.get("clock"))
        if not clock.startswith(self.clock):
            why = [doubt for doubt in timed.get("doubts", ()) if doubt.startswith("capture refused")]
            raise NotApplicableError(f"no {self.title} of {fix}: its clock is {clock}{'; '.join(['', *why])}")


METRICS: tuple[TrackedMetric, ...] = (
    TrackedMetric(id="time", title="time of a call", unit="seconds", measures=()),
    TrackedMetric(id="peakmem", title="peak resident memory of the process", unit="bytes", measures=(), revision=2),
    TrackedMetric(
        id="status", title="status", measures=("trace",),
        unit=", ".join(f"{number} {status}" for number, status in enumerate(STATUSES, start=1)),
    ),
    TrackedMetric(
        id="drift", title="drift", unit="relative error to float64",
        measures=("drift", "teacher_forced_drift"), path=("relative_error",), by_seed="relative_error_by_seed",
    ),
    TrackedMetric(
        id="peak_bytes", title="allocated by a call", unit="bytes",
        measures=("memory",), path=("allocated_peak_bytes",),
    ),
    TrackedMetric(
        id="stored_bytes", title="weights and caches", unit="bytes", measures=("memory",), path=("storage_bytes",),
    ),
    TrackedMetric(
        id="latency_ratio", title="latency, paired with full_float32", unit="ratio to full_float32",
        measures=("latency",), path=("ratio_to_baseline",), samples=True, revision=3,
    ),
    TrackedMetric(
        id="latency_to_anchor", title="latency, paired with a fixed computation", unit="ratio to the anchor",
        measures=("latency",), path=("ratio_to_anchor",), samples=True, revision=4,
    ),
    TrackedMetric(
        id="device_time", title="time of a call on the device", unit="seconds",
        measures=("latency",), path=("median_s",), clock="cuda-graph",
    ),
    TrackedMetric(
        id="device_ratio", title="time on the device, paired with full_float32", unit="ratio to full_float32",
        measures=("latency",), path=("ratio",), clock="cuda-graph",
    ),
    TrackedMetric(
        id="launched_ratio", title="time launched from Python, paired with full_float32", unit="ratio to full_float32",
        measures=("latency",), path=("launched", "ratio"), clock="launched",
    ),
    TrackedMetric(
        id="divergence", title="divergence of free-running streams", only=("voice",),
        unit="fraction of tokens that differ from the float64 original's",
        measures=("divergence",), path=("token_difference_fraction",),
    ),
    TrackedMetric(
        id="audio_degradation", title="degradation of the sound", only=("voice",),
        unit="log-spectral distance to the float64 original, as a ratio to another noise seed's",
        measures=("audio",), path=("against_reference", "log_spectral_distance_db", "ratio_to_null"),
    ),
)  # fmt: skip


def metric_by_id(metric_id: str) -> TrackedMetric:
    return entry_of("metric", metric_id, METRICS)


# One per system, and the two bare attentions: variants differ in where dtypes split and hardly in speed.
TIMED_CASES: tuple[str, ...] = (
    "attention-decode",
    "attention-prefill",
    "voice",
    "metavoice-decode",
    "dia-decode",
    "imaginairy-time-embed",
    "cogvideo-t5-encoder",
)

TIMED_METRICS: tuple[str, ...] = ("time", "peakmem", "latency_ratio", "latency_to_anchor")

# Where not all default sizes are tracked: the decode covers grouped heads.
SIZES: Mapping[str, tuple[str, ...]] = {"attention-prefill": ("metavoice",)}

# Metrics tracked compiled, which costs seconds per fix and process: one bare attention and one decoder, which both had
# the error under ``torch.compile``.
COMPILED: Mapping[str, tuple[str, ...]] = {
    "attention-decode": ("status", "drift", "latency_ratio", "latency_to_anchor"),
    "metavoice-decode": ("status",),
}


# Metrics tracked on a GPU in addition to its times.
_CUDA_METRICS = ("status", "drift", "peak_bytes", "stored_bytes")


def tracked_cases(mode: str) -> tuple[Case, ...]:
    """Return the cases tracked in a mode, in the registries' order."""
    if mode != "compiled":
        return CASES
    return tuple(case_by_id(name) for name in COMPILED)


def sizes_of(case: Case, mode: str) -> tuple[str, ...]:
    return case.default_sizes[:1] if mode == "compiled" else SIZES.get(case.id, case.default_sizes)


def metrics_of(case: Case, mode: str) -> tuple[TrackedMetric, ...]:
    return tuple(
        metric
        for metric in METRICS
        if (metric.timed or metric.measure_of(case.measures) is not None)
        and (not metric.only or case.id in metric.only)
        and (case.id in TIMED_CASES or not (metric.clock or metric.id in TIMED_METRICS))
        and _is_of_mode(metric, mode, case.id)
    )


def _is_of_mode(metric: TrackedMetric, mode: str, case: str) -> bool:
    if mode == ON_CUDA:
        return bool(metric.clock) or metric.id in _CUDA_METRICS
    return not metric.clock and (mode == "eager" or metric.id in COMPILED.get(case, ()))


def fix_labels(case: Case) -> tuple[str, ...]:
    """Return the labels of the fixes that a case takes; one that lacks a mode stays and is not applicable there."""
    return tuple(fix.label for fix in FIXES if case.takes(fix.id))


# Options that change what a figure is; the others change only how certain it is.
_SHAPING = ("seed", "seeds", "streams", "steps", "minutes")

# Definitions are digested in the words that they were first written with: renaming a thing must not end its series.
_FIRST_WORDS = {"trace": "witness", "against_reference": "against_oracle", "per_case": "per_workload"}


def version_of(case: Case, mode: str, metric: TrackedMetric) -> str:
    """Digest of a tracked figure's definition."""
    content: list[Any] = [case.digest, mode, THREADS, _meaning(metric)]
    measure = metric.measure_of(case.measures)
    if measure is not None:
        options = measure_by_name(measure).options
        content += [_first_word(measure), FULL.options.chosen(tuple(name for name in options if name in _SHAPING))]
    if metric.id == "latency_to_anchor":
        content.append(ANCHOR_DEFINITION)
    return _digest(content)


def _meaning(metric: TrackedMetric) -> dict[str, Any]:
    left_out = ("title", "only", "by_seed") + (() if metric.clock else ("clock",))
    meaning = {name: value for name, value in asdict(metric).items() if name not in left_out}
    return {
        name: tuple(map(_first_word, value)) if isinstance(value, tuple) else value for name, value in meaning.items()
    }


def _first_word(word: str) -> str:
    return _FIRST_WORDS.get(word, word)


def _digest(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
