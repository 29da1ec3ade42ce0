"""From the runs of a map to a ranked table, with intervals over units; numpy, loads no torch.

Conventions: ``added`` is the drift of a *drop* run: what remains of exactness when only this group stores in the
format. ``carried`` is the share of the uniform format's drift that goes when only this group is held: 1 − rescued ÷
uniform, per unit, so that inputs are paired. Intervals are 95 % bootstrap intervals of the mean over units. Rank 1 is
the largest ``added``. Two groups are *tied* where the interval of their paired difference holds zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from precision_eval.core.errors import RecordError
from precision_eval.stats import bootstrap_interval

SEED = 20


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one group adds and carries."""

    rank: int
    kind: str
    name: str
    layer: str
    role: str
    added: float
    added_low: float
    added_high: float
    carried: float
    carried_low: float
    carried_high: float
    tied_with_next: bool


@dataclass(frozen=True, kw_only=True)
class MapSummary:
    """The map of one target in one format."""

    target: str
    size: str
    format: str
    units: int
    float32_drift: float | None
    uniform_drift: float | None
    native_drift: float | None
    fused_drift: float | None
    fused_emulated_drift: float | None
    bit_identical: bool
    identical_fraction: float
    additivity: float | None
    agreement: float
    effects: tuple[Effect, ...]

    def of_kind(self, kind: str) -> tuple[Effect, ...]:
        """Return the effects of sites, roles or layers, in rank order."""
        return tuple(effect for effect in self.effects if effect.kind == kind)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


def _drift(run: Mapping[str, Any]) -> np.ndarray:
    return np.array([np.inf if value is None else value for value in run["drift"]], dtype=np.float64)


def _mean(run: Mapping[str, Any]) -> float | None:
    mean = float(_drift(run).mean())
    return mean if np.isfinite(mean) else None


def _interval(values: np.ndarray) -> tuple[float, float, float]:
    if not np.isfinite(values).all():
        return (float("inf"),) * 3
    found = bootstrap_interval(values, seed=SEED, trim=0.0)
    return found.estimate, found.low, found.high


def summarise(runs: Iterable[Mapping[str, Any]]) -> tuple[MapSummary, ...]:
    """Summarise the maps of a file."""
    by_map: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        by_map.setdefault((run["target"], run["size"], run["seed"], run["format"]), []).append(run)
    return tuple(_summary(name, of_map) for name, of_map in by_map.items())


def _summary(name: tuple[Any, ...], runs: Sequence[Mapping[str, Any]]) -> MapSummary:
    checks = {run["name"]: run for run in runs if run["direction"] == "check"}
    missing = {"float32", "uniform", "native", "fused", "fused_emulated"} - checks.keys()
    if missing:
        raise RecordError(
            f"the map of {name[0]} in {name[3]} lacks {', '.join(sorted(missing))}; run it again to the end"
        )
    uniform = _drift(checks["uniform"])
    effects = [effect for kind in ("site", "role", "layer") for effect in _effects(runs, kind, uniform)]
    added = np.array([effect.added for effect in effects if effect.kind == "site"])
    carried = np.array([effect.carried for effect in effects if effect.kind == "site"])
    total = float(uniform.mean())
    finite = np.isfinite(total) and np.isfinite(added).all()
    return MapSummary(
        target=name[0],
        size=name[1],
        format=name[3],
        units=uniform.size,
        float32_drift=_mean(checks["float32"]),
        uniform_drift=_mean(checks["uniform"]),
        native_drift=_mean(checks["native"]),
        fused_drift=_mean(checks["fused"]),
        fused_emulated_drift=_mean(checks["fused_emulated"]),
        bit_identical=bool(checks["float32"]["bit_identical"]),
        identical_fraction=float(checks["native"]["identical_fraction"]),
        additivity=float(np.sqrt((added**2).sum()) / total) if finite else None,
        agreement=rank_correlation(added, carried),
        effects=tuple(effects),
    )


def _effects(runs: Sequence[Mapping[str, Any]], kind: str, uniform: np.ndarray) -> list[Effect]:
    """Effects of one kind in rank order."""
    drops = {run["name"]: run for run in runs if run["direction"] == "drop" and run["kind"] == kind}
    rescues = {run["name"]: run for run in runs if run["direction"] == "rescue" and run["kind"] == kind}
    if drops.keys() != rescues.keys():
        raise RecordError(f"{len(drops)} groups were dropped and {len(rescues)} held; run the map again to the end")
    order = sorted(drops, key=lambda name: -float(_drift(drops[name]).mean()))
    effects = []
    for rank, name in enumerate(order, start=1):
        added = _drift(drops[name])
        with np.errstate(invalid="ignore"):
            carried = 1.0 - _drift(rescues[name]) / uniform
        layers, roles = ({site[at] for site in drops[name]["sites"]} for at in (0, 1))
        effects.append(
            Effect(
                rank=rank,
                kind=kind,
                name=name,
                layer=layers.pop() if len(layers) == 1 else "",
                role=roles.pop() if len(roles) == 1 else "",
                tied_with_next=rank < len(order) and _tied(added, _drift(drops[order[rank]])),
                **dict(zip(("added", "added_low", "added_high"), _interval(added), strict=True)),
                **dict(zip(("carried", "carried_low", "carried_high"), _interval(carried), strict=True)),
            )
        )
    return effects


def _tied(left: np.ndarray, right: np.ndarray) -> bool:
    _, low, high = _interval(left - right)
    return bool(low <= 0.0 <= high)


def rank_correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 where one side is constant."""
    ranks = [rankdata(values) for values in (left, right)]
    if min(np.ptp(rank) for rank in ranks) == 0.0:
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])
