"""What is followed over commits and torch versions: figures of every case × fix, read from the suite's measures.

A *figure* is one number of one fix on one case, in one mode and size; a figure from several processes or seeds comes as
samples, one for each. The definitions live here, so that an old commit measures what it defined; whatever shows the
figures (the asv classes in ``benchmarks/``) only asks for them. Figures are measured when first asked for, all fixes of
a case at once, each fix in a process of its own, and kept in a folder for whoever asks next.

Conventions: seconds. A sweep that visits torch versions in rounds times one process of the paired latency at each
visit and says which in :data:`PROCESS_VARIABLE`: the number is part of the seed of its order and memory. Quick figures
are no data: fewer processes, shorter streams, and tiny sizes where there are any. *Not applicable* is what cannot be
(the device lacks it, the fix has no such mode); everything else that leaves no figure is a *failure* and shows its
message, never a gap.

Everything that the registries hold is tracked eager, at its default sizes: status, drift and memory of all, times of
one case per system (:data:`TIMED_CASES`), whose variants differ in where the dtypes split and hardly in speed.
Compiling costs seconds per fix and process, so :data:`COMPILED` names the few that are tracked compiled, each at its
first default size. A digest (SHA-256) changes whenever a definition does, which starts a new series. A fix is not part
of a benchmark's version: it is a parameter, and a redefined one gets a new label through its revision, so that the
other fixes' series go on. Importing this loads neither torch nor numpy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from precision_eval.cases.systems import Case, all_cases, case_by_id
from precision_eval.core.cells import Options, Outcome
from precision_eval.core.errors import ParameterError, PrecisionEvalError, entry_of
from precision_eval.core.records import STATUSES, Record
from precision_eval.fixes.catalog import FIXES, Fix
from precision_eval.measure.registry import measure_by_name

DEVICE = "cpu"
THREADS = 1
"""Intra-op threads: what a history needs is the same every time, and a runner's cores are not its own."""

PROCESS_VARIABLE = "PRECISION_EVAL_LATENCY_PROCESS"
"""Number of the one process to time, from 0; all of an effort's where it is not set."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Sizes of the measuring; `together` measures all that is tracked of a place when the first of it is asked for."""

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
    """Where figures are taken."""

    case: str
    mode: str
    size: str

    @property
    def entry(self) -> Case:
        """The case itself."""
        return case_by_id(self.case)

    def fixes(self, effort: Effort) -> tuple[Fix, ...]:
        """Return the fixes that have a meaning here, in this mode, and that an effort takes."""
        case, taken = self.entry, effort.compiled_fixes if self.mode == "compiled" else None
        return tuple(
            fix for fix in FIXES if case.takes(fix.id) and self.mode in fix.modes and (taken is None or fix.id in taken)
        )

    def at(self, effort: Effort) -> TrackedCell:
        """Return the place that is measured under an effort: a tiny one, where that is asked for and there is one."""
        if effort.tiny and "tiny" in self.entry.sizes:
            return TrackedCell(case=self.case, mode=self.mode, size="tiny")
        return self

    def checked_fix(self, label: str, effort: Effort) -> Fix:
        """Return the fix of a label if it has a meaning here."""
        fix = fix_of_label(label)
        if self.mode not in fix.modes:
            raise NotApplicableError(f"{fix.id} exists only {' and '.join(fix.modes)}, not {self.mode}")
        if not self.entry.takes(fix.id):
            raise NotApplicableError(f"{fix.id} has no meaning for {self.case}, which stands for no one project")
        if fix not in self.fixes(effort):
            raise NotApplicableError(f"{fix.id} is left out of a {effort.name} run, {self.mode}")
        return fix


def fix_of_label(label: str) -> Fix:
    """Look a fix up by its label."""
    return entry_of("fix label", label, FIXES, by="label")


def raise_unless_passed(outcome: Outcome | Record) -> None:
    """Raise where an outcome holds no data."""
    if outcome.status == "unsupported":
        raise NotApplicableError(f"unsupported: {outcome.reason}")
    if outcome.status != "passed":
        raise FixFailedError(f"{outcome.fix} {outcome.status}: {outcome.reason}")


ANCHOR_DEFINITION: tuple[str, ...] = ("rows 16, width 512, layers 4, cache 2048 x 512, float32", "PCG64(0)", "v1")
"""Of the fixed computation in :mod:`precision_eval.history.timing`."""

Figure = int | float | tuple[float, ...]
"""One number, or one per process or seed."""


@dataclass(frozen=True, kw_only=True)
class TrackedMetric:
    """One tracked figure.

    `id` is its name in benchmarks and results. `measures` are those that give it, the first one that a case has; empty
    where the benchmarking tool measures by itself. `path` leads through the data to the number, or with `samples` to
    the numbers, one per process; an empty one gives the status. `by_seed` names the numbers of several seeds, which
    stand in the number's place where there are any. `only` names the cases it is limited to. `revision` is raised when
    the figure's meaning changes in a way that no other field shows.
    """

    id: str
    title: str
    unit: str
    measures: tuple[str, ...]
    path: tuple[str, ...] = ()
    samples: bool = False
    by_seed: str = ""
    only: tuple[str, ...] = ()
    revision: int = 1

    @property
    def timed(self) -> bool:
        """Whether the benchmarking tool measures by itself."""
        return not self.measures

    @property
    def method(self) -> str:
        """Name of the benchmark's method."""
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
            value = value.get(name) if isinstance(value, Mapping) else None
        if (self.samples or by_seed) and isinstance(value, list) and value:
            return tuple(float(sample) for sample in value)
        if not (self.samples or by_seed) and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        why = (outcome.data or {}).get("missing", {}).get(self.path[-1]) or f"found {value!r}"
        raise FixFailedError(f"{outcome.fix} has no {self.title}: {why}")


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
        measures=("latency",), path=("ratio_to_anchor",), samples=True, revision=3,
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
    """Look a metric up."""
    return entry_of("metric", metric_id, METRICS)


TIMED_CASES: tuple[str, ...] = (
    "attention-decode",
    "attention-prefill",
    "voice",
    "metavoice-decode",
    "dia-decode",
    "imaginairy-time-embed",
    "cogvideo-t5-encoder",
)
"""One per system, and the two bare attentions."""

TIMED_METRICS: tuple[str, ...] = ("time", "peakmem", "latency_ratio", "latency_to_anchor")

SIZES: Mapping[str, tuple[str, ...]] = {"attention-prefill": ("metavoice",)}
"""Where not all default sizes are tracked: grouped heads are covered by the decode."""

COMPILED: Mapping[str, tuple[str, ...]] = {
    "attention-decode": ("status", "drift", "latency_ratio", "latency_to_anchor"),
    "metavoice-decode": ("status",),
}
"""Metrics tracked compiled. One bare attention and one whole decoder, both had the bug under ``torch.compile``; each
measure compiles every fix once more, and the paired latency once per process."""


def tracked_cases(mode: str) -> tuple[Case, ...]:
    """Return the cases tracked in a mode, in the registries' order."""
    if mode == "eager":
        return all_cases()
    return tuple(case_by_id(name) for name in COMPILED)


def sizes_of(case: Case, mode: str) -> tuple[str, ...]:
    """Return the sizes at which a case is tracked."""
    return SIZES.get(case.id, case.default_sizes) if mode == "eager" else case.default_sizes[:1]


def metrics_of(case: Case, mode: str) -> tuple[TrackedMetric, ...]:
    """Return the metrics tracked of a case."""
    return tuple(
        metric
        for metric in METRICS
        if (metric.timed or metric.measure_of(case.measures) is not None)
        and (not metric.only or case.id in metric.only)
        and (case.id in TIMED_CASES or metric.id not in TIMED_METRICS)
        and (mode == "eager" or metric.id in COMPILED.get(case.id, ()))
    )


def fix_labels(case: Case) -> tuple[str, ...]:
    """Return the labels of the fixes that a case takes; one that lacks a mode stays and is not applicable there."""
    return tuple(fix.label for fix in FIXES if case.takes(fix.id))


_SHAPING = ("seed", "seeds", "streams", "steps", "minutes")
"""Options that change what a figure is; the others change only how sure it is."""


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
    meaning = {name: value for name, value in asdict(metric).items() if name not in ("title", "only", "by_seed")}
    return {
        name: tuple(map(_first_word, value)) if isinstance(value, tuple) else value for name, value in meaning.items()
    }


def _first_word(word: str) -> str:
    """Return the word that a definition was first written with: renaming a thing must not end its series."""
    return _FIRST_WORDS.get(word, word)


def _digest(content: list[Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def torch_version_number(version: str) -> int:
    """Turn a version into a number."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        raise ParameterError(f"torch version '{version}'; expected three numbers first, such as 2.13.0")
    major, minor, patch = (int(part) for part in found.groups())
    if minor > 999 or patch > 999:
        raise ParameterError(f"torch version '{version}'; minor and patch are expected below 1000")
    return major * 1_000_000 + minor * 1_000 + patch


def is_cuda_build() -> int:
    """Return 1 where the installed torch was built with CUDA, whether or not a GPU is there, else 0."""
    import torch

    return int(torch.version.cuda is not None)
