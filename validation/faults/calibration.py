"""Calibrates the judge of numeric error on honest computations, and writes the thresholds that it ships with.

Seeds are those from :data:`FIRST_SEED` on and shapes of :data:`SHAPES`, neither of which the experiment or a test
uses. Every honest variation of attention runs on every family and in every dtype, alone and pooled over :data:`POOL`
neighbouring seeds; linear layers, RMS norms and softmax, computed in a few honest ways, stand beside it. No fault is
looked at. Ranges are fitted by quantile regression; the limit of the score is the quantile of the largest score that
leaves :data:`FALSE_ALARMS`, taken on one half of the seeds with ranges fitted to the other.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import precision_eval.measure.assess as judge
from precision_eval.measure.assess.pooled import pool
from precision_eval.measure.assess.rule import FILE, Range, covariates, key_of, quadratic, transformed
from precision_eval.measure.assess.sizes import errors_of
from precision_eval.measure.assess.statistics import STATISTICS, Measured, Statistic, measured
from precision_eval.trace.operations import short
from validation.faults.families import CALIBRATION_SEED, DTYPES, FAMILIES, sample
from validation.faults.honest import HONEST
from validation.faults.kernels import exact, yardstick

FIRST_SEED = CALIBRATION_SEED
SEEDS = 64
POOL = 4
SHAPES = ((24, 80), (48, 112), (40, 96), (36, 128))
"""Rows and keys; each run of :data:`POOL` seeds shares one."""
FEW = ((1, 96), (4, 64), (8, 80), (12, 100))
"""The same, for tensors of few rows."""
FALSE_ALARMS = 0.004
"""Under the 0.5 % that are aimed at. It was 0.2 % first, and raised when the seeds used for tuning showed no alarm."""
QUANTILE = 0.98

Array = NDArray[np.float64]
Triple = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Sample:
    """One honest computation: its table, seed, and statistics."""

    key: str
    seed: int
    measured: Measured


def _attention(seed: int, dtype: torch.dtype, family: str, shape: tuple[int, int]) -> Iterator[Triple]:
    operands = sample(family, seed=seed, dtype=dtype, rows=shape[0], keys=shape[1])
    reference, plain = exact(operands), yardstick(operands)
    for variation in HONEST:
        if dtype in variation.dtypes:
            yield variation.apply(operands), reference, plain


def _others(seed: int, dtype: torch.dtype, rows: int) -> Iterator[Triple]:
    """A linear layer, an RMS norm and a softmax: plain, in float32, in float64, and in another order."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, rows, 96, generator=generator, dtype=torch.float64).to(dtype)
    w = (torch.randn(96, 64, generator=generator, dtype=torch.float64) / 8.0).to(dtype)
    for name, function in OTHERS.items():
        reference, plain = function(x.double(), w.double()), function(x, w)
        order = torch.randperm(96, generator=generator)
        moved = function(x[..., order], w[order])
        back = moved if name == "linear" else moved[..., order.argsort()]
        for candidate in (plain, function(x.float(), w.float()).to(dtype), reference.to(dtype), back):
            yield candidate, reference, plain


OTHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w: x @ w,
    "rms_norm": lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w[:, 0],
    "softmax": lambda x, w: (2.0 * x).softmax(-1),
}


def samples(seeds: int, *, progress: Callable[[int], None] = lambda done: None) -> list[Sample]:
    """Run every honest computation."""
    honest: list[Sample] = []
    for index in range(seeds // POOL):
        block = range(FIRST_SEED + index * POOL, FIRST_SEED + (index + 1) * POOL)
        for dtype in DTYPES:
            for number, family in enumerate(FAMILIES):
                for shapes in (SHAPES, FEW):
                    shape = shapes[(index + number) % len(shapes)]
                    honest += _judged([_attention(seed, dtype, family, shape) for seed in block], block, dtype)
            for rows in (SHAPES[index % 4][0], FEW[index % 4][0]):
                honest += _judged([_others(seed, dtype, rows) for seed in block], block, dtype)
        progress(index + 1)
    return honest


def _judged(runs: list[Iterator[Triple]], block: range, dtype: torch.dtype) -> Iterator[Sample]:
    """Each run by itself, and all of them pooled."""
    for triples in zip(*runs, strict=True):
        alone = [(seed, [triple]) for seed, triple in zip(block, triples, strict=True)]
        for seed, calls in (*alone, (block[0], triples)):
            candidates, references, plain = zip(*calls, strict=True)
            pooled = pool(candidates, references, plain)
            if pooled.judged < pooled.reference.numel():
                continue  # something overflowed in half: that is counted, not measured
            of = measured(errors_of(pooled))
            yield Sample(key_of(short(dtype), of.rows), seed, of)


def _column(statistic: Statistic, kept: Sequence[Sample]) -> tuple[Array, Array]:
    """A statistic over many computations: covariates, shape (n, k), and values on the scale of ranges, (n,)."""
    x = [covariates(statistic, one.measured) for one in kept]
    t = [transformed(statistic, one.measured.found[statistic.name]) for one in kept]
    return np.array(x).reshape(len(kept), -1), np.array(t)


def _terms(x: Array, low: Sequence[float] | Array, high: Sequence[float] | Array) -> Array:
    """:func:`quadratic` of each row, clipped; (n, terms)."""
    columns = quadratic(list(np.clip(x, low, high).T))
    return np.stack([np.broadcast_to(column, len(x)) for column in columns], axis=1)


def fit(x: Array, t: Array) -> Range:
    """Fit the honest range of a statistic."""
    low, high = (np.quantile(x, q, axis=0) if x.size else np.empty(0) for q in (0.001, 0.999))
    terms = _terms(x, low, high)
    coefficients = _quantile_regression(terms, t)
    excess = t - terms @ coefficients
    beyond = excess[excess > 0]
    scale = max(float(beyond.mean()), float(beyond.max()) / math.log(len(beyond) + 1.0)) if len(beyond) else 0.0
    scale = max(scale, 0.01)
    return Range(_digits(coefficients, 9), float(f"{scale:.4g}"), _digits(low, 6), _digits(high, 6))


def _quantile_regression(terms: Array, t: Array) -> Array:
    """Iteratively reweighted least squares on the pinball loss, terms standardised and slightly ridged."""
    mean, spread = terms.mean(0), terms.std(0) + 1e-9
    mean[0], spread[0] = 0.0, 1.0
    x, weight = (terms - mean) / spread, np.full(len(t), 0.5)
    ridge = 1e-6 * len(t) * np.diag([0.0] + [1.0] * (terms.shape[1] - 1))
    for step in range(1, 26):
        weighted = x * weight[:, None]
        solved = np.linalg.solve(weighted.T @ x + ridge, weighted.T @ t)
        rest = t - x @ solved
        least = 1e-3 + 0.02 * float(t.std()) / step
        weight = np.where(rest > 0, QUANTILE, 1.0 - QUANTILE) / np.maximum(np.abs(rest), least)
    coefficients = solved / spread
    coefficients[0] = solved[0] - float((solved[1:] * mean[1:] / spread[1:]).sum())
    return coefficients


def _score(x: Array, t: Array, held: Range) -> Array:
    return (t - _terms(x, held.low, held.high) @ np.array(held.coefficients)) / held.scale


def calibrate(honest: Sequence[Sample]) -> dict[str, Any]:
    """Make the content of the thresholds' file."""
    result: dict[str, Any] = {}
    for key in sorted({one.key for one in honest}):
        kept = [one for one in honest if one.key == key]
        odd = np.array([one.seed // POOL % 2 == 1 for one in kept])
        worst, ranges = np.full(len(kept), -np.inf), {}
        for statistic in STATISTICS:
            x, t = _column(statistic, kept)
            for half in (odd, ~odd):
                worst[half] = np.maximum(worst[half], _score(x[half], t[half], fit(x[~half], t[~half])))
            ranges[statistic.name] = asdict(fit(x, t))
        limit = float(f"{np.quantile(worst, 1.0 - FALSE_ALARMS):.4g}")
        result[key] = {"honest": len(kept), "limit": limit, "ranges": ranges}
    return {"false_alarms": FALSE_ALARMS, "quantile": QUANTILE, "thresholds": result}


def _digits(values: Array, count: int) -> tuple[float, ...]:
    return tuple(float(f"{value:.{count}g}") for value in values)


def main() -> None:
    """Write the thresholds' file."""
    parser = argparse.ArgumentParser(description="Calibrate the judge of numeric error on honest computations.")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=Path(judge.__file__).with_name(FILE))
    options = parser.parse_args()
    torch.set_num_threads(1)
    total = options.seeds // POOL
    honest = samples(options.seeds, progress=lambda done: print(f"{done} of {total} pools", flush=True))
    content = {"seeds": [FIRST_SEED, FIRST_SEED + options.seeds], **calibrate(honest)}
    options.out.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
