"""Digests of what a figure's meaning depends on, so that a changed definition starts a new series; and the torch build.

Conventions: SHA-256, hexadecimal. A fix is not part of a benchmark's version: it is a parameter, and a redefined one
gets a new label through its revision, so that the other fixes' series go on.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from typing import Any

from precision_eval.cases.systems import Case
from precision_eval.core.errors import ParameterError
from precision_eval.fixes.catalog import Fix
from precision_eval.measure.registry import measure_by_name
from precision_eval.studies.tracking.effort import FULL, THREADS
from precision_eval.studies.tracking.metrics import ANCHOR_DEFINITION, TrackedMetric

_SHAPING = ("seed", "streams", "steps", "minutes")
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


def fix_digest(fix: Fix) -> str:
    """Digest of what a fix does; its words are left out."""
    return _digest([fix.id, _first_word(fix.storage), _first_word(fix.agreement), fix.modes, fix.suppress_errors])


def _meaning(metric: TrackedMetric) -> dict[str, Any]:
    meaning = {name: value for name, value in asdict(metric).items() if name not in ("title", "only")}
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
