"""Makes the runs of a map: each site dropped alone, and each held alone, on the same inputs; resumable.

Conventions: a run is one replay of a tape with some sites narrow, and its result the drift of every unit. *drop*: all
float32 but the group, which stores in the format; the drift is what the group adds. *rescue*: all in the format but the
group, which is held in float32; what the drift falls by is what the group carries. A group is one site, a role in all
layers, or a layer with all its roles. Runs are appended to a file as they end, and found there again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from precision_eval.core.files import TrialFile
from precision_eval.fixes.packing import in_dtype
from precision_eval.fixes.storage import stored_as
from precision_eval.measure.system_drift import SAME_FUNCTION
from precision_eval.studies.sensitivity.subjects import MapSubject
from precision_eval.studies.sensitivity.targets import Progress, Target
from precision_eval.trace.sites import SensitivityError, StorageSite
from precision_eval.trace.tape import Tape, record, replay

VERSION = 1
"""Raised when what a run means is redefined, so that older runs are not taken for the same."""


@dataclass(frozen=True)
class SiteGroup:
    """Sites that are dropped or held together."""

    kind: str  # site, role or layer
    name: str
    sites: tuple[StorageSite, ...]


def groups_of(sites: Sequence[StorageSite]) -> tuple[SiteGroup, ...]:
    """List each site alone, each role over all layers and each layer over all roles."""
    roles, layers = (tuple(dict.fromkeys(getattr(site, name) for site in sites)) for name in ("role", "layer"))
    return (
        *(SiteGroup("site", site.id, (site,)) for site in sites),
        *(SiteGroup("role", role, tuple(s for s in sites if s.role == role)) for role in roles),
        *(SiteGroup("layer", layer, tuple(s for s in sites if s.layer == layer)) for layer in layers),
    )


@dataclass(frozen=True)
class Mapped:
    """A target under one format, ready to run."""

    target: str
    size: str
    seed: int
    digest: str
    subject: MapSubject
    tape: Tape
    reference: torch.Tensor

    def key(self, direction: str, kind: str, name: str) -> str:
        """Return what a run is found again by."""
        of_map = f"{self.target}/{self.size}/{self.digest}/{self.seed}/{self.tape.format}"
        return f"v{VERSION}/{of_map}/{direction}/{kind}/{name}"

    def drift(self, narrow: Iterable[StorageSite]) -> np.ndarray:
        """Drift of each unit with some sites narrow; shape (units,)."""
        output = replay(self.tape, self.subject.model, self.subject.inputs, narrow=frozenset(narrow))
        return self.subject.drift(output, self.reference)

    def group_drift(self, direction: str, group: SiteGroup) -> np.ndarray:
        """Drift of each unit with a group dropped or rescued."""
        if direction == "drop":
            return self.drift(group.sites)
        return self.drift(set(self.tape.sites) - set(group.sites))


def prepare(
    target: Target, *, size: str, seed: int, format: str, subject: MapSubject | None = None, reference: Any = None
) -> Mapped:
    """Build a target, record it in a format and hold the tape to the reference."""
    subject = subject or target.build(size, seed=seed)
    truth = subject.reference() if reference is None else reference
    tape = record(subject.model, subject.inputs, format=format, rules=subject.rules)
    check_reference(tape, subject, truth)
    return Mapped(target.id, size, seed, target.digest(size), subject, tape, truth)


def check_reference(tape: Tape, subject: MapSubject, reference: torch.Tensor) -> float:
    """Hold the reference to the tape in float64."""
    again = replay(tape, subject.twin, subject.wide_inputs, narrow=(), compute=torch.float64)
    distance = float((again - reference).norm() / reference.norm())
    if not distance <= SAME_FUNCTION:
        raise SensitivityError(
            f"the reference and the recorded call differ by {distance:.2g} in float64, expected ≤ {SAME_FUNCTION:g}; "
            "they are not the same function, so there is no truth to measure against: build both from one model"
        )
    return distance


def _stored(drift: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in drift]


def _checks(mapped: Mapped) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What the map rests on: name → the run that finds it out."""
    yield "float32", lambda: _held_to_float32(mapped)
    yield "uniform", lambda: {"drift": _stored(mapped.drift(mapped.tape.sites))}
    yield "native", lambda: _native(mapped)
    yield "fused", lambda: {"drift": _stored(mapped.subject.drift(_fused(mapped), mapped.reference))}
    yield "fused_emulated", lambda: {"drift": _stored(mapped.drift(_as_fused(mapped.tape.sites)))}


def _as_fused(sites: Iterable[StorageSite]) -> set[StorageSite]:
    """All sites but those that a fused kernel holds by itself."""
    return {site for site in sites if site.role not in ("scores", "softmax")}


def _held_to_float32(mapped: Mapped) -> dict[str, Any]:
    subject = mapped.subject
    output = replay(mapped.tape, subject.model, subject.inputs, narrow=())
    plain = record(subject.model, subject.inputs, format="float32", rules=subject.rules).found
    same = bool(torch.equal(output, plain))
    return {"drift": _stored(subject.drift(output, mapped.reference)), "bit_identical": same}


def _native(mapped: Mapped) -> dict[str, Any]:
    subject = mapped.subject
    output = replay(mapped.tape, subject.model, subject.inputs, narrow=mapped.tape.sites).to(mapped.tape.found.dtype)
    same = float((output == mapped.tape.found).double().mean())
    return {"drift": _stored(subject.drift(mapped.tape.found, mapped.reference)), "identical_fraction": same}


@torch.no_grad()
def _fused(mapped: Mapped) -> torch.Tensor:
    """Run the model in the format as it is, with torch's own attention."""
    dtype: torch.dtype = getattr(torch, mapped.tape.format)
    model = copy.deepcopy(mapped.subject.model)
    with stored_as(model, dtype):
        output: torch.Tensor = model(*in_dtype(mapped.subject.inputs, dtype))
    return output


def map_target(
    target: Target,
    *,
    size: str,
    seed: int,
    formats: Sequence[str],
    file: TrialFile,
    progress: Progress = lambda done, total, what: None,
) -> None:
    """Make every run of a target that is not in the file yet."""
    there = file.keys()
    subject = target.build(size, seed=seed)
    reference = subject.reference()
    for format in formats:
        mapped = prepare(target, size=size, seed=seed, format=format, subject=subject, reference=reference)
        runs = list(_runs(mapped))
        for done, (key, facts, make) in enumerate(runs):
            progress(done, len(runs), f"{target.id} {format} {facts['direction']} {facts['name']}")
            if key not in there:
                file.append({"key": key, **facts, **make()})
        progress(len(runs), len(runs), f"{target.id} {format}")


def _runs(mapped: Mapped) -> Iterator[tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]]:
    """Every run of a mapped target: key, facts, and what to call."""
    common = {
        "target": mapped.target,
        "size": mapped.size,
        "seed": mapped.seed,
        "digest": mapped.digest,
        "format": mapped.tape.format,
    }
    for name, make in _checks(mapped):
        yield mapped.key("check", "all", name), {**common, "direction": "check", "kind": "all", "name": name}, make
    for direction in ("drop", "rescue"):
        for group in groups_of(mapped.tape.sites):
            facts = {**common, "direction": direction, "kind": group.kind, "name": group.name}
            yield mapped.key(direction, group.kind, group.name), facts, _group_run(mapped, direction, group)


def _group_run(mapped: Mapped, direction: str, group: SiteGroup) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "drift": _stored(mapped.group_drift(direction, group)),
        "sites": [[site.layer, site.role] for site in group.sites],
    }
