"""What a sweep measures, as plain data; this module loads no torch.

Conventions: a *configuration* is everything but the length: shape, dtype of the cache, batch, mode, threads, state of
memory. A *job* is what one worker does: several lengths of one configuration, in an order of its own. The jobs of all
configurations for process 0 come first, then those for process 1, and so on: whatever drifts over minutes becomes part
of the spread between processes. States of memory other than the first are measured with the first mode and thread count
only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from precision_eval.cases.systems.attention import SHAPES
from precision_eval.core.cells import Outcome
from precision_eval.core.errors import ParameterError, check_known
from precision_eval.fixes.choices import MODES
from precision_eval.measure.allocator import MEMORY_STATES
from precision_eval.stats import PairedRatio

BASELINE, TO_HALF, TO_QUERY = "full_float32", "query_to_half", "kv_to_query"
FIXES = (BASELINE, TO_HALF, TO_QUERY)
CASTS, NOISE_FLOOR = "casts", "noise_floor"
"""Names of ratios beside the fixes: ``kv_to_query`` over ``query_to_half``, and a copy of the baseline over it."""
CACHE_DTYPES = ("float16", "bfloat16")

LENGTHS = (64, 128, 256, 512, 1024, 2048)

REVISION = 2
"""Of how a point is measured, in every line and campaign: revisions are never compared. In revision 1 (lines without
one) the baseline was its own noise floor, and its ratios to others at short lengths were off."""


Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SweepConfiguration:
    """Everything about a measurement but the length."""

    shape: str
    cache_dtype: str
    batch: int
    mode: str
    threads: int
    memory: str

    @property
    def id(self) -> str:
        """Name in keys: ``metavoice/float16/b2/eager/t1/grown``."""
        return f"{self.shape}/{self.cache_dtype}/b{self.batch}/{self.mode}/t{self.threads}/{self.memory}"

    @property
    def title(self) -> str:
        """Name for people: ``metavoice float16, eager, 1 thread, memory kept``."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        memory = "" if self.memory == "grown" else f", memory {self.memory}"
        return f"{self.shape} {self.cache_dtype}, {self.mode}, {threads}{memory}"


@dataclass(frozen=True, kw_only=True)
class SweepJob:
    """What one worker does."""

    configuration: SweepConfiguration
    lengths: tuple[int, ...]
    process: int
    budget_s: float
    campaign: str
    seed: int

    def key(self, length: int) -> str:
        """Name everything that the line of a length depends on."""
        return f"{self.configuration.id}/L{length}/p{self.process}@{self.campaign}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A whole sweep."""

    shapes: tuple[str, ...] = ("metavoice", "dia")
    lengths: tuple[int, ...] = LENGTHS
    modes: tuple[str, ...] = MODES
    threads: tuple[int, ...] = (1, 2)
    cache_dtypes: tuple[str, ...] = ("float16",)
    memory: tuple[str, ...] = ("grown", "kept", "returned")
    batch: int = 2
    budget_s: float = 1.5
    processes: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        _check_names("shape", self.shapes, SHAPES)
        _check_names("mode", self.modes, MODES)
        _check_names("cache dtype", self.cache_dtypes, CACHE_DTYPES)
        _check_names("state of memory", self.memory, MEMORY_STATES)
        for name, values in (("lengths", self.lengths), ("threads", self.threads)):
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise ParameterError(f"{name} are {values}; expected different whole numbers of 1 or more")
        if self.batch < 1 or self.processes < 1:
            raise ParameterError(f"batch is {self.batch} and processes {self.processes}; expected 1 or more")
        if not 0.0 < self.budget_s < math.inf:
            raise ParameterError(f"budget_s is {self.budget_s}; expected a finite number of seconds above 0")

    def configurations(self) -> tuple[SweepConfiguration, ...]:
        """List the configurations: all with the first state of memory, then the further states."""
        first, *further = self.memory
        full = list(product(self.shapes, self.cache_dtypes, self.modes, self.threads, (first,)))
        full += product(self.shapes, self.cache_dtypes, self.modes[:1], self.threads[:1], further)
        return tuple(
            SweepConfiguration(
                shape=shape, cache_dtype=dtype, batch=self.batch, mode=mode, threads=threads, memory=memory
            )
            for shape, dtype, mode, threads, memory in full
        )

    def campaign(self, environment: str) -> str:
        """Name what all lines of this sweep have in common; `environment` is a SHA-256."""
        return f"{environment[:12]}/r{REVISION}/{self.budget_s:g}s/{self.processes}p/s{self.seed}"

    def jobs(
        self,
        environment: str,
        *,
        done: Iterable[str] = (),
        lengths: Mapping[SweepConfiguration, tuple[int, ...]] | None = None,
    ) -> list[SweepJob]:
        """List the jobs."""
        settled, jobs = set(done), []
        for process in range(self.processes):
            for configuration in self.configurations():
                order = list(self.lengths if lengths is None else lengths.get(configuration, ()))
                random.Random(f"{self.seed}/{process}/{configuration.id}").shuffle(order)
                job = SweepJob(
                    configuration=configuration,
                    lengths=tuple(order),
                    process=process,
                    budget_s=self.budget_s / self.processes,
                    campaign=self.campaign(environment),
                    seed=self.seed,
                )
                left = tuple(length for length in order if job.key(length) not in settled)
                if left:
                    jobs.append(replace(job, lengths=left))
        return jobs


def line_of(
    job: SweepJob,
    length: int,
    outcomes: Mapping[str, Outcome],
    *,
    ratios: Mapping[str, PairedRatio] | None = None,
    page_faults: Mapping[str, float] | None = None,
) -> Line:
    """Return what one process measured at one length, as plain data."""
    return {
        "key": job.key(length),
        "campaign": job.campaign,
        "revision": REVISION,
        "configuration": asdict(job.configuration),
        "length": length,
        "process": job.process,
        "status": {fix: outcome.status for fix, outcome in outcomes.items()},
        "reason": {fix: outcome.reason for fix, outcome in outcomes.items() if outcome.reason},
        "ratios": {name: ratio.to_dict() for name, ratio in (ratios or {}).items()},
        "page_faults": dict(page_faults or {}),
    }


def _check_names(kind: str, names: tuple[str, ...], known: Iterable[str]) -> None:
    known = tuple(known)
    if not names or len(set(names)) < len(names):
        raise ParameterError(f"{kind}: {names or 'none'} given; name each once, of {', '.join(known)}")
    for name in names:
        check_known(kind, name, known)


FULL = Sweep()
QUICK = Sweep(
    lengths=(64, 512, 2048), modes=("eager",), threads=(1,), memory=("grown", "kept"), budget_s=0.6, processes=3
)
"""About a minute; a first look, with wide intervals."""
