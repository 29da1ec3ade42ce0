"""Teacher-forced drift: every precision is given the same tokens, and its logits are held to float64's.

Conventions: V codes, K codebooks, B streams. Per token: relative error ``‖l − o‖ / ‖o‖`` of the logits (over the K·V of
a frame), ``KL(o ‖ l)`` in nats, total variation ``½ Σ|p − q|``, and whether the most likely token flipped; softmax at
temperature 1. Intervals are 95 % bootstrap intervals over streams, the independent unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from precision_eval.stats import bootstrap_interval

SERIES_BIN_STEPS = 25
QUANTITIES = ("relative_error", "kl_nats", "total_variation", "top1_flip")


def score_step(logits: Tensor, reference: Tensor) -> dict[str, np.ndarray]:
    """Compare the logits of one frame; what the reference rules out, at −∞, is ruled out of the comparison."""
    candidate, out = logits.double(), reference.isneginf()
    log_p, log_q = (
        values.masked_fill(out, -math.inf).log_softmax(-1).masked_fill(out, 0.0) for values in (reference, candidate)
    )
    p, q = (values.exp().masked_fill(out, 0.0) for values in (log_p, log_q))
    candidate, reference = candidate.masked_fill(out, 0.0), reference.masked_fill(out, 0.0)
    error = (candidate - reference).flatten(1).norm(dim=1) / reference.flatten(1).norm(dim=1)
    # Σ p(log p − log q) + q − p is the same KL, without the cancellation that makes tiny values negative
    kl = (p * (log_p - log_q) + q - p).sum(-1).mean(-1)
    return {
        "relative_error": error.numpy(),
        "kl_nats": kl.clamp_min(0.0).numpy(),
        "total_variation": (p - q).abs().sum(-1).mul(0.5).mean(-1).numpy(),
        "top1_flip": (candidate.argmax(-1) != reference.argmax(-1)).double().mean(-1).numpy(),
    }


@dataclass(frozen=True)
class DriftSeries:
    """Per-step, per-stream drift: each of :data:`QUANTITIES`, shape (n_steps, B)."""

    values: dict[str, np.ndarray]

    @classmethod
    def collect(cls, candidate: Iterable[Tensor], reference: Iterable[Tensor]) -> DriftSeries:
        """Walk two teacher-forced runs side by side, in constant memory but for the scores."""
        rows = [score_step(logits, truth) for logits, truth in zip(candidate, reference, strict=True)]
        return cls({name: np.stack([row[name] for row in rows]) for name in QUANTITIES})

    @property
    def finite(self) -> bool:
        """Whether every score is a number."""
        return all(bool(np.isfinite(value).all()) for value in self.values.values())


def summarise(series: DriftSeries, *, frame_rate_hz: float, seed: int) -> dict[str, Any]:
    """Means with intervals over streams, and the course over time."""
    n_steps, n_streams = series.values["relative_error"].shape
    data: dict[str, Any] = {"streams": n_streams, "steps": n_steps}
    for name in ("relative_error", "kl_nats"):
        per_stream = series.values[name].mean(axis=0)
        mean = bootstrap_interval(per_stream, seed=seed, trim=0.0)
        data |= {name: mean.estimate, f"{name}_low": mean.low, f"{name}_high": mean.high}
    data["total_variation"] = float(series.values["total_variation"].mean())
    data["top1_flip_fraction"] = float(series.values["top1_flip"].mean())
    n_bins = max(1, n_steps // SERIES_BIN_STEPS)
    bins = np.array_split(np.arange(n_steps), n_bins)
    data["series"] = {"time_s": [float(rows.mean() / frame_rate_hz) for rows in bins]} | {
        name: [float(series.values[name][rows].mean()) for rows in bins] for name in ("relative_error", "kl_nats")
    }
    return data
