"""Judges the numeric error of a tensor: is it what the format costs, or is something wrong?

Conventions: the *candidate* is what an implementation returned, in its dtype; the *reference* float64 arithmetic on the
same stored inputs; the *yardstick* the plain computation on the same operands with each step stored in the dtype. The
last axis holds channels, the one before rows, the one before that heads; see :mod:`.pooled`.
"""

from __future__ import annotations

from precision_eval.measure.assess.description import floor_of, pooled_split, tails_of, ulp_quantiles, worst_places
from precision_eval.measure.assess.pooled import NonFinite, Pooled, Tensors, pool
from precision_eval.measure.assess.results import Assessment, Bias, Floor, Tails, Verdict, WorstPlace
from precision_eval.measure.assess.rule import Thresholds, thresholds_for
from precision_eval.measure.assess.sizes import errors_of
from precision_eval.measure.assess.statistics import STATISTICS, Measured, measured

__all__ = ["Assessment", "Bias", "Floor", "NonFinite", "Tails", "Verdict", "WorstPlace", "assess"]


def assess(
    candidate: Tensors,
    reference: Tensors,
    yardstick: Tensors,
    *,
    on_cast_inputs: Tensors | None = None,
) -> Assessment:
    """Judge the numeric error of a tensor, or of several calls together.

    Parameters
    ----------
    candidate : torch.Tensor or sequence of them, shape (..., heads, rows, channels), at least 1-D
        float16, bfloat16 or float32, as returned: do not cast it. Several calls or seeds of one shape are judged
        together, which sees smaller faults at the cost of computing them.
    reference : torch.Tensor of float64, same shape, or as many of them
    yardstick : torch.Tensor, same shape and dtype as the candidate, or as many of them
    on_cast_inputs : torch.Tensor of float64, same shape, or as many of them, optional
        Float64 arithmetic on the operands as the implementation casts them; adds ``split``.

    Returns
    -------
    Assessment

    Raises
    ------
    ParameterError
        Shapes, dtypes or numbers of tensors do not agree, the reference is not float64, a tensor is empty, or
        nothing in it is finite.

    Examples
    --------
    A product in float16, its accumulator once kept in float32 and once cut to bfloat16:

    >>> import torch
    >>> from precision_eval.measure.assess import assess
    >>> a, b = torch.randn(2, 1, 4, 64, 64, generator=torch.Generator().manual_seed(7)).half()
    >>> reference, yardstick = a.double() @ b.double(), (a.float() @ b.float()).half()
    >>> good = assess((a.float() @ b.float() / 3 * 3).half(), reference, yardstick)
    >>> good.verdict, good.reasons
    ('as expected of the format', ())
    >>> bad = assess((a.float() @ b.float()).bfloat16().half(), reference, yardstick)
    >>> bad.verdict
    'worse'
    >>> round(bad.rms_ratio)  # bfloat16 has three bits less: eight times the error
    8
    >>> any("another format posing as this one" in reason for reason in bad.reasons)
    True
    >>> print(assess(yardstick.nan_to_num() * float("nan"), reference, yardstick).verdict)
    non-finite
    """
    pooled = pool(candidate, reference, yardstick)
    errors = errors_of(pooled)
    of = measured(errors)
    thresholds = thresholds_for(pooled.format.name, of.rows, pooled.reference.shape[-1])
    scores = thresholds.scores(of)
    limits = {statistic.name: thresholds.limit_of(statistic, of) for statistic in STATISTICS}
    numbers = _of_non_finite(pooled.non_finite)
    reasons = (*numbers, *_reasons(of, thresholds, scores, limits))
    row, head, channel = worst_places(errors)
    return Assessment(
        verdict="non-finite" if numbers else "worse" if reasons else "as expected of the format",
        reasons=reasons,
        dtype=pooled.format.name,
        calls=pooled.calls,
        elements=pooled.judged,
        rms_ratio=of.found["rms_ratio"],
        bias=_bias(of, pooled),
        ulp_quantiles=ulp_quantiles(errors),
        tails=tails_of(errors),
        worst_row=row,
        worst_head=head,
        worst_channel=channel,
        non_finite=pooled.non_finite,
        split=None if on_cast_inputs is None else pooled_split(candidate, reference, on_cast_inputs, pooled),
        floor=floor_of(of, limits, pooled.format.eps),
        statistics=of.found,
        limits=limits,
        scores=scores,
        score_limit=thresholds.limit,
    )


def _bias(of: Measured, pooled: Pooled) -> Bias:
    z = of.gain / of.gain_standard_error if of.gain_standard_error else 0.0
    return Bias(gain_eps=of.gain / pooled.format.eps, gain_z=z, ulp=of.found["away_from_zero"])


def _reasons(
    of: Measured, thresholds: Thresholds, scores: dict[str, float], limits: dict[str, float]
) -> tuple[str, ...]:
    """What crossed its limit, the clearest first."""
    crossed = [statistic for statistic in STATISTICS if scores[statistic.name] > thresholds.limit]
    crossed.sort(key=lambda statistic: -scores[statistic.name])
    return tuple(s.says.format(value=of.found[s.name], limit=limits[s.name]) for s in crossed)


def _of_non_finite(counts: NonFinite) -> tuple[str, ...]:
    """Sentences on NaN and infinity that should not be there, or should."""
    reasons = []
    if counts.invented:
        also = f", {counts.as_yardstick} of them in the yardstick too" if counts.as_yardstick else ""
        reasons.append(f"{counts.invented} elements are NaN or infinite where the reference is finite{also}")
    if counts.hidden:
        zeros = f", {counts.hidden_zero} of them zero" if counts.hidden_zero else ""
        reasons.append(
            f"{counts.hidden} elements are finite where the reference is NaN or infinite{zeros}: a fault hidden"
        )
    if reasons:
        reasons[0] += f"; the first at {counts.first}"
    return tuple(reasons)
