"""Judges the numeric error of a tensor: is it what the format costs, or is something wrong?

Conventions: the *candidate* is what an implementation returned, in its dtype; the *reference* float64 arithmetic on the
same stored inputs; *yardsticks* are honest computations of the same call on the same machine, which say what the format
costs here: :func:`attention_yardsticks` and :func:`operation_yardsticks` draw them, of a large call on the rows of
:func:`sample_rows`. The last axis holds channels, the
one before rows, the one before that heads; see :mod:`.pooled`.
"""

from __future__ import annotations

import torch

from precision_eval.core.errors import ParameterError
from precision_eval.measure.assess.description import bias_of, pooled_split, ulp_quantiles, worst_places
from precision_eval.measure.assess.pooled import NonFinite, Tensors, Yardsticks, pool
from precision_eval.measure.assess.results import Assessment, Bias, Verdict, WorstPlace
from precision_eval.measure.assess.statistics import STATISTICS, Range
from precision_eval.measure.assess.yardsticks import attention_yardsticks, operation_yardsticks, sample_rows

__all__ = [
    "Assessment",
    "Bias",
    "HonestRange",
    "NonFinite",
    "Verdict",
    "WorstPlace",
    "assess",
    "attention_yardsticks",
    "operation_yardsticks",
    "sample_rows",
]

ONE_MORE = 1.6  # × the roughest yardstick's error: one more rounding of the same size makes it 1.4


def assess(
    candidate: Tensors, reference: Tensors, yardsticks: Yardsticks, *, on_cast_inputs: Tensors | None = None
) -> Assessment:
    """Judge the numeric error of a tensor, or of several calls together.

    Parameters
    ----------
    candidate : torch.Tensor or sequence of them, shape (..., heads, rows, channels), at least 1-D
        float16, bfloat16 or float32, as returned: do not cast it. Several calls or seeds of one shape are judged
        together, which sees smaller faults; eight are a good number.
    reference : torch.Tensor of float64, same shape, or as many of them
    yardsticks : mapping, or sequence, of what `candidate` may be; or one torch.Tensor
        Honest computations of the same calls, in the candidate's dtype, or wider where the output was not rounded yet.
        Of several calls, lists of tensors, or a list of what :func:`attention_yardsticks` returns for each.
        A single one leaves unknown what honest computations differ by; stored margins then take its place, and
        ``held_to`` says so.
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

    See Also
    --------
    HonestRange : for several candidates on the same calls.

    Examples
    --------
    Attention in float16 by torch, and with its weights cut to bfloat16 on the way:

    >>> import torch
    >>> from precision_eval.measure.assess import assess, attention_yardsticks
    >>> q, k, v = torch.randn(3, 1, 4, 64, 64, generator=torch.Generator().manual_seed(7)).half()
    >>> weights = (q.double() @ k.double().mT / 8).softmax(-1)
    >>> reference, yardsticks = weights @ v.double(), attention_yardsticks(q, k, v)
    >>> good = assess(torch.nn.functional.scaled_dot_product_attention(q, k, v), reference, yardsticks)
    >>> good.verdict, good.reasons
    ('as expected of the format', ())
    >>> bad = assess((weights.bfloat16().double() @ v.double()).half(), reference, yardsticks)
    >>> bad.verdict
    'worse'
    >>> gained = assess((reference * 1.001).half(), reference, yardsticks)
    >>> any("a gain, a wrong scale, or truncation" in reason for reason in gained.reasons)
    True
    >>> print(assess(reference.half() * float("nan"), reference, yardsticks).verdict)
    non-finite
    """
    return HonestRange(reference, yardsticks, _dtype_of(candidate)).assess(candidate, on_cast_inputs=on_cast_inputs)


class HonestRange:
    """What honest computations of some calls span, to hold any number of candidates to.

    Parameters
    ----------
    reference, yardsticks
        As :func:`assess` takes them.
    dtype : torch.dtype
        The candidates'.

    Raises
    ------
    ParameterError
        As :func:`assess` does.
    """

    def __init__(self, reference: Tensors, yardsticks: Yardsticks, dtype: torch.dtype) -> None:
        self._pooled = pool(reference, yardsticks, dtype)
        self._range = Range(self._pooled)

    @property
    def highest(self) -> dict[str, float]:
        """The largest value of each statistic among the yardsticks; a limit is that, widened by a margin."""
        return self._range.highest

    def assess(self, candidate: Tensors, *, on_cast_inputs: Tensors | None = None) -> Assessment:
        """Judge a candidate on these calls, as :func:`assess` does."""
        pooled, span = self._pooled, self._range
        output, non_finite = pooled.candidate(candidate)
        error, found = output - pooled.reference, span.statistics(output)
        limits = {statistic.name: span.limit(statistic) for statistic in STATISTICS}
        crossed = [s for s in STATISTICS if found[s.name] > limits[s.name]]
        crossed.sort(key=lambda s: -(found[s.name] + s.offset) / (limits[s.name] + s.offset))
        numbers = _of_non_finite(non_finite)
        said = [f"{s.says.format(value=found[s.name])} (limit {limits[s.name]:.3g})" for s in crossed]
        verdict: Verdict = "as expected of the format"
        if numbers:
            verdict = "non-finite"
        elif crossed:
            noise = found["rms"] <= ONE_MORE and not any(s.kind == "structure" for s in crossed)
            verdict = "worse, by one more rounding" if noise and span.is_even(output) else "worse"
        row, head, channel = worst_places(error, span.mean_square, span.rounding)
        count = len(pooled.names)
        return Assessment(
            verdict=verdict,
            reasons=(*numbers, *said),
            held_to=f"{count} yardsticks" if count > 1 else "a single yardstick, with stored margins, which are wider",
            dtype=pooled.format.name,
            calls=pooled.calls,
            elements=int(pooled.kept.sum()) - non_finite.invented,
            rms_ratio=found["rms"],
            bias=bias_of(error, pooled),
            ulp_quantiles=ulp_quantiles(error, pooled),
            worst_row=row,
            worst_head=head,
            worst_channel=channel,
            non_finite=non_finite,
            split=None if on_cast_inputs is None else pooled_split(candidate, on_cast_inputs, pooled),
            undetectable=self._undetectable(limits),
            statistics=found,
            limits=limits,
        )

    def _undetectable(self, limits: dict[str, float]) -> str:
        span, rows = self._range, self._pooled.reference[..., 0].numel()
        noise = limits["rest"] * float(span.scale.square().reciprocal().mean().sqrt()) / span.roughest
        return (
            f"with {rows} rows, noise of up to {noise:.2g} × the roughest yardstick's RMS error and, where it is "
            f"spread evenly, rows scaled by up to {limits['row_gain_eps']:.2g} eps each pass as expected of "
            f"{self._pooled.format.name}"
        )


def _dtype_of(candidate: Tensors) -> torch.dtype:
    first = candidate if isinstance(candidate, torch.Tensor) else next(iter(candidate), None)
    if not isinstance(first, torch.Tensor):
        raise ParameterError(f"the candidate holds {type(first).__name__}; give a tensor or a list of tensors")
    return first.dtype


def _of_non_finite(counts: NonFinite) -> tuple[str, ...]:
    """Sentences on NaN and infinity that should not be there, or should."""
    reasons = []
    if counts.invented:
        reasons.append(f"{counts.invented} elements are NaN or infinite where the reference is finite")
    if counts.hidden:
        zeros = f", {counts.hidden_zero} of them zero" if counts.hidden_zero else ""
        reasons.append(
            f"{counts.hidden} elements are finite where the reference is NaN or infinite{zeros}: a fault hidden"
        )
    if reasons:
        reasons[0] += f"; the first at {counts.first}"
    return tuple(reasons)
