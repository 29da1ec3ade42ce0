"""Steps in a short series of versions, each measured by a few processes.

Conventions: a *row* holds the samples of one version, on a scale where noise adds (logarithms of ratios). Several steps
are looked for, one after the other, up or down, also of a single version that then returns (a *bump*).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_eval.core.errors import ParameterError
from precision_eval.stats.robust import PRIOR_DEGREES, locations, padded, pair_scale

Floats = NDArray[np.float64]

LONGEST_BUMP = 5
STEP_SHARE = 0.8
"""Of the level that single steps get; bumps get the rest."""

FURTHER_SHARE = 0.1
"""Of the level for steps beyond the first ones: each such test is one more chance of a false report in the series."""

LOCATED = 4.0
"""Growth of the sum of squares, in variances of a sample, up to which another version may be where the step is; under
normal noise it is then e² = 7 times less likely."""

FEW, MANY = 499, 9999
"""Random deals: few to begin with, many where the few leave a doubt (p ≤ ``DOUBT``)."""

DOUBT = 0.1
CONFIDENCE = 0.95
_CHUNK_VALUES = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: at version `index` by the best fit, at one of `first` to `last` as far as the noise lets one tell."""

    index: int
    first: int
    last: int
    size: float
    half_width: float
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Detection:
    """What was found in a series."""

    steps: tuple[Step, ...]
    levels: tuple[float, ...]


@dataclass(frozen=True)
class _Table:
    """A series ready for testing; values: (n_versions, n_samples), NaN-padded."""

    values: Floats
    counts: Floats
    prior: float

    def scales(self, values: Floats) -> Floats:
        """Spread of one sample in each table of (n_tables, n_versions, n_samples), drawn towards the prior."""
        own, degrees = pair_scale(values), float(np.sum(self.counts - 1.0))
        prior = own if math.isnan(self.prior) else self.prior
        pooled = np.sqrt((degrees * own**2 + PRIOR_DEGREES * prior**2) / (degrees + PRIOR_DEGREES))
        return np.maximum(pooled, np.finfo(np.float64).tiny ** 0.5)


def no_change_p_value(rows: Sequence[Floats], *, seed: int, prior: float = math.nan) -> float:
    """Test whether a series has any step."""
    table = _table(rows, prior)
    if len(table.values) < 2 or np.nanmax(table.values) == np.nanmin(table.values):
        return 1.0
    p_value = _test(table, (), np.random.default_rng(seed), FEW)[0]
    return p_value if p_value > DOUBT else _test(table, (), np.random.default_rng(seed + 1), MANY)[0]


def reachable_p_values(counts: Sequence[int]) -> tuple[float, float]:
    """Return how small :func:`no_change_p_value` can be, with so few samples that few deals are possible."""
    if len(counts) < 2:
        return 1.0, 1.0
    total, kinds = sum(counts), _contrasts(np.asarray(counts, dtype=np.float64), ())
    deals = math.factorial(total) // math.prod(map(math.factorial, counts))
    shares = (STEP_SHARE, 1.0 - STEP_SHARE) if len(kinds[1]) else (1.0, 1.0)
    turned = 2 if list(counts) == list(reversed(counts)) else 1  # a step the other way round looks the same
    smallest, clear = [], []
    for kind, share, ways in zip(kinds, shares, (turned, 1), strict=True):
        sides = [[[n for n, used in zip(counts, side, strict=True) if used] for side in (c > 0, c < 0)] for c in kind]
        inside = [sum(side) for side, _ in sides]
        smallest += [ways * math.prod(map(_orders, both)) / deals / share for both in sides]
        clear += [(inside.count(k) + inside.count(total - k)) / math.comb(total, k) / share for k in inside]
    resolved = 1.0 / (MANY + 1.0) / max(shares)
    return min(1.0, max(min(smallest), resolved)), min(1.0, max(min(clear), resolved))


def _orders(counts: Sequence[int]) -> int:
    """Number of ways to exchange versions with equally many samples."""
    return math.prod(math.factorial(counts.count(n)) for n in set(counts))


def detect(rows: Sequence[Floats], *, level: float, seed: int, prior: float = math.nan) -> Detection:
    """Find the steps of a series."""
    table = _table(rows, prior)
    middles = _middles(table)
    cuts: tuple[int, ...] = ()
    if np.nanmax(table.values) > np.nanmin(table.values):
        rng = np.random.default_rng(seed + 1)
        while len(cuts) < len(rows) - 1:
            p_value, wanted = _test(table, cuts, rng, MANY)
            if p_value > (level * FURTHER_SHARE if cuts else level):
                break
            cuts = best_partition(middles, table.counts, min(len(cuts) + wanted, len(rows) - 1))
        return _described(table, middles, cuts, level, rng)
    return Detection(steps=(), levels=_levels(middles, table.counts, cuts))


def best_partition(values: Floats, weights: Floats, steps: int) -> tuple[int, ...]:
    """Cut a series into levels with the least weighted sum of squares."""
    n = len(values)
    if not 0 <= steps < n:
        raise ParameterError(f"{steps} steps in {n} values; expected 0 to {n - 1}")
    total, first, second = (np.concatenate([[0.0], np.cumsum(weights * values**p)]) for p in (0, 1, 2))

    def cost(start: int, end: int) -> float:
        weight = total[end] - total[start]
        return float(second[end] - second[start] - (first[end] - first[start]) ** 2 / weight)

    best = [[cost(0, end) if end else 0.0 for end in range(n + 1)]]
    last: list[list[int]] = []
    for pieces in range(1, steps + 1):
        row, came = [math.inf] * (n + 1), [0] * (n + 1)
        for end in range(pieces + 1, n + 1):
            options = [(best[-1][cut] + cost(cut, end), cut) for cut in range(pieces, end)]
            row[end], came[end] = min(options)
        best.append(row)
        last.append(came)
    cuts, end = [], n
    for came in reversed(last):
        end = came[end]
        cuts.append(end)
    return tuple(reversed(cuts))


def _table(rows: Sequence[Floats], prior: float) -> _Table:
    if not rows or any(len(row) == 0 for row in rows):
        raise ParameterError(f"{len(rows)} versions, some without samples; expected one sample at least for each")
    values = padded([np.asarray(row, dtype=np.float64) for row in rows])
    if not np.isfinite(values[~np.isnan(values)]).all() or any(np.isnan(row).any() for row in rows):
        raise ParameterError("samples hold NaN or infinity; expected finite numbers")
    return _Table(values, np.count_nonzero(~np.isnan(values), axis=1).astype(np.float64), prior)


def _middles(table: _Table) -> Floats:
    values = table.values[None]
    return locations(values, table.scales(values))[0]


def _segments(size: int, cuts: tuple[int, ...]) -> list[tuple[int, int]]:
    edges = (0, *cuts, size)
    return list(itertools.pairwise(edges))


def _levels(middles: Floats, counts: Floats, cuts: tuple[int, ...]) -> tuple[float, ...]:
    pieces = _segments(len(middles), cuts)
    return tuple(float(np.average(middles[start:end], weights=counts[start:end])) for start, end in pieces)


def _contrast(size: int, counts: Floats, inside: slice, outside: Sequence[int]) -> Floats:
    """Mean inside less mean outside, in units of one sample's spread; shape (size,)."""
    plus, minus = np.zeros(size), np.zeros(size)
    plus[inside] = counts[inside]
    minus[list(outside)] = counts[list(outside)]
    contrast = plus / plus.sum() - minus / minus.sum()
    return np.asarray(contrast / math.sqrt(float(np.sum(contrast**2 / counts))))


def _contrasts(counts: Floats, cuts: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the step and the bump contrasts within the segments; shapes (n_contrasts, n_versions)."""
    size = len(counts)
    steps, bumps = [], []
    for start, end in _segments(size, cuts):
        steps += [_contrast(size, counts, slice(cut, end), range(start, cut)) for cut in range(start + 1, end)]
        for first in range(start + 1, end - 1):
            for after in range(first + 1, min(first + LONGEST_BUMP, end - 1) + 1):
                outside = [*range(start, first), *range(after, end)]
                bumps.append(_contrast(size, counts, slice(first, after), outside))
    return np.array(steps).reshape(-1, size), np.array(bumps).reshape(-1, size)


def _residuals(table: _Table, cuts: tuple[int, ...]) -> Floats:
    """Samples less their level; the samples themselves while there is no cut."""
    if not cuts:
        return table.values
    middles = _middles(table)
    fitted = np.empty(len(middles))
    for (start, end), level in zip(_segments(len(middles), cuts), _levels(middles, table.counts, cuts), strict=True):
        fitted[start:end] = level
    return table.values - fitted[:, None]


def _largest(table: _Table, values: Floats, contrasts: Sequence[Floats]) -> list[Floats]:
    """Largest absolute contrast of each kind, in standard errors; each of shape (n_tables,)."""
    scales = table.scales(values)
    middles = locations(values, scales)  # (n_tables, n_versions)
    return [
        np.max(np.abs(middles @ kind.T), axis=1) / scales if len(kind) else np.zeros(len(values)) for kind in contrasts
    ]


def _dealt(
    table: _Table, residuals: Floats, rng: np.random.Generator, deals: int, contrasts: Sequence[Floats]
) -> Floats:
    """Largest contrasts of residuals dealt out to the versions at random; shape (n_kinds, deals)."""
    used = ~np.isnan(residuals)
    flat = residuals[used]
    rows = max(1, _CHUNK_VALUES // (flat.size + sum(map(len, contrasts))))
    found = []
    for start in range(0, deals, rows):
        number = min(rows, deals - start)
        values = np.full((number, *residuals.shape), np.nan)
        values[:, used] = rng.permuted(np.broadcast_to(flat, (number, flat.size)), axis=1)
        found.append(np.stack(_largest(table, values, contrasts)))
    return np.concatenate(found, axis=1)


def _share(noise_floor: Floats, value: float) -> float:
    """P-value of `value` among random deals, itself counted; ties count as at least as large."""
    return (1.0 + float(np.count_nonzero(noise_floor >= value * (1.0 - 1e-12)))) / (noise_floor.size + 1.0)


def _test(table: _Table, cuts: tuple[int, ...], rng: np.random.Generator, deals: int) -> tuple[float, int]:
    """Test for more steps; return the p-value and how many steps the stronger alternative has."""
    contrasts = _contrasts(table.counts, cuts)
    if not len(contrasts[0]):
        return 1.0, 1
    residuals = _residuals(table, cuts)
    noise_floor = _dealt(table, residuals, rng, deals, contrasts)
    step, bump = (
        _share(noise_floor[kind], float(one[0])) for kind, one in enumerate(_largest(table, residuals[None], contrasts))
    )
    if not len(contrasts[1]):
        return step, 1
    options = ((step / STEP_SHARE, 1), (bump / (1.0 - STEP_SHARE), 2))
    p_value, wanted = min(options)
    return min(1.0, p_value), wanted


def _described(
    table: _Table, middles: Floats, cuts: tuple[int, ...], level: float, rng: np.random.Generator
) -> Detection:
    """Give each step its size, interval and p-value; drop the weakest one while it does not hold by itself."""
    if not cuts:
        return Detection(steps=(), levels=_levels(middles, table.counts, cuts))
    everywhere = _contrasts(table.counts, ())
    noise_floor = _dealt(table, _residuals(table, cuts), rng, MANY, everywhere)
    scale = float(table.scales(table.values[None])[0])
    while True:
        steps = [_step(number, table, middles, cuts, scale, noise_floor) for number in range(len(cuts))]
        worst = max(steps, key=lambda one: one.p_value, default=None)
        if worst is None or worst.p_value <= level:
            return Detection(steps=tuple(steps), levels=_levels(middles, table.counts, cuts))
        cuts = tuple(cut for cut in cuts if cut != worst.index)


def _step(
    number: int, table: _Table, middles: Floats, cuts: tuple[int, ...], scale: float, noise_floor: Floats
) -> Step:
    """Describe one of the steps: against its neighbours, or as the edge of a bump, whichever is clearer."""
    size = len(middles)
    pieces = _segments(size, cuts)
    left, right = pieces[number], pieces[number + 1]
    contrast = _contrast(size, table.counts, slice(*right), range(*left))
    p_values = [_share(noise_floor[0], abs(float(contrast @ middles)) / scale)]
    if size > 2:
        p_values[0] /= STEP_SHARE
        for inner in range(max(1, number), min(number + 1, len(pieces) - 2) + 1):
            outside = [*range(*pieces[inner - 1]), *range(*pieces[inner + 1])]
            bump = _contrast(size, table.counts, slice(*pieces[inner]), outside)
            p_values.append(_share(noise_floor[1], abs(float(bump @ middles)) / scale) / (1.0 - STEP_SHARE))
    levels = _levels(middles, table.counts, cuts)
    spread = math.sqrt(sum(1.0 / float(table.counts[start:end].sum()) for start, end in (left, right)))
    first, last = _located(middles, table.counts, left[0], cuts[number], right[1], scale)
    return Step(
        index=cuts[number],
        first=first,
        last=last,
        size=levels[number + 1] - levels[number],
        half_width=float(np.quantile(noise_floor[0], CONFIDENCE)) * scale * spread,
        p_value=min(1.0, *p_values),
    )


def _located(middles: Floats, counts: Floats, start: int, cut: int, end: int, scale: float) -> tuple[int, int]:
    """Return the first and the last version, of those from `start` to `end`, at which the step at `cut` may be."""

    def cost(at: int) -> float:
        pieces = ((middles[own], counts[own]) for own in (slice(start, at), slice(at, end)))
        return sum(float(weights @ (piece - np.average(piece, weights=weights)) ** 2) for piece, weights in pieces)

    limit = cost(cut) + LOCATED * scale**2
    possible = [at for at in range(start + 1, end) if at == cut or cost(at) < limit]
    return possible[0], possible[-1]
