"""The suite's attention case as a subject; imports torch."""

from __future__ import annotations

from precision_eval.cases.systems.attention import SHAPES, build_attention
from precision_eval.studies.sensitivity.subject import Subject
from precision_eval.trace.sites import Rule


def attention_subject(*, shape: str, rules: tuple[Rule, ...], seed: int) -> Subject:
    """Build attention of one token on a float16 cache."""
    case = build_attention(shape, device="cpu", seed=seed, prefill=False)
    units = SHAPES[shape].batch * SHAPES[shape].query_heads
    return Subject(case.model, case.inputs, rules, units, lambda found: found.reshape(units, 1, -1))
