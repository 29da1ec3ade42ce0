"""An explanation as plain text of at most 110 columns, for a terminal or a thread."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_eval.diagnose.explain.explanation import Explanation, LikelyCause

WIDTH = 110
_VERDICTS = {
    "applies": "applies",
    "depends": "depends",
    "does_not_cure": "does not cure",
    "out_of_reach": "out of reach",
}


def as_text(explanation: Explanation) -> str:
    """Write an explanation as text."""
    if not explanation.known:
        return "\n".join(_unknown(explanation))
    lines = [*_message(explanation), "", *_causes(explanation), "", *_fixes(explanation)]
    if explanation.links:
        lines += ["", "Where this sentence comes from, and threads", *(f"  {one}" for one in explanation.links)]
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "  ", first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _unknown(explanation: Explanation) -> list[str]:
    assert explanation.reason is not None
    lines = ["Not a member of this family: nothing is said about it.", *_wrapped(explanation.reason)]
    near = explanation.nearest
    if near is not None and near.sentence:
        lines.append(f"The known sentence that reads most alike ({near.likeness:.0%}; a likeness, no diagnosis):")
        lines += _wrapped(near.sentence, "    ")
    return lines


def _message(explanation: Explanation) -> list[str]:
    op = explanation.op or f"not shown; one of {', '.join(explanation.candidates)}"
    lines = ["The message", *_wrapped(f"“{explanation.sentence}”")]
    lines += _wrapped(f"operation: {op}", "    ", "  ")
    lines += _wrapped(f"run: {explanation.how}" + (f", at {explanation.frame}" if explanation.frame else ""))
    for operand in explanation.operands:
        lines += _wrapped(f"{operand.name}: {operand.dtype or 'dtype not named'} ({operand.meaning})", "    ", "  ")
    if explanation.traced:
        shapes = ", ".join(f"{shape} {dtype}" for shape, dtype in explanation.traced)
        lines += _wrapped(f"traced with: {shapes}", "    ", "  ")
    lines += _wrapped(f"wanted: {explanation.asks}", "    ", "  ")
    lines += _wrapped(f"known from: {explanation.where}", "    ", "  ")
    for sentence in explanation.also:
        lines += _wrapped(f"before it in the same text: “{sentence}”", "    ", "  ")
    return lines


def _causes(explanation: Explanation) -> list[str]:
    if not explanation.causes:
        return ["Known causes", "  None of the known causes fits these operands."]
    named = any(cause.is_named for cause in explanation.causes)
    lines = ["Known causes that fit" + ("" if named else "; the text does not tell which")]
    for cause in explanation.causes:
        lines += _one_cause(cause)
    return lines


def _one_cause(cause: LikelyCause) -> list[str]:
    shown = " [the text shows a word of it]" if cause.is_named else ""
    lines = _wrapped(f"{cause.title}{shown}", "    ", "  - ")
    lines += _wrapped(cause.explanation, "    ")
    lines += _wrapped(f"to tell it: {cause.tell}", "    ")
    lines += _wrapped(f"fix: {cause.fix}", "    ")
    if cause.case:
        lines.append(f"    measured by: precision-eval run --case '{cause.case}'")
    return [*lines, *(f"    {one}" for one in cause.links)]


def _fixes(explanation: Explanation) -> list[str]:
    lines = ["Fixes, for the call that raised"]
    for one in explanation.fixes:
        lines += _wrapped(f"{one.fix:<16} {_VERDICTS[one.verdict]:<14} {one.reason}", " " * 34, "  ")
    return lines
