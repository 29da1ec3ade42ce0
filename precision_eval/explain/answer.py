"""An explanation as plain data, and as text: in at most 15 lines, or in full."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

from precision_eval.core.formatting import counted, join
from precision_eval.explain.advice import FixAdvice

How = Literal["eager", "while tracing", "compiled, at run time", "exported", "not shown"]
DOCTOR = "precision-eval doctor FILE:FACTORY"
WIDTH = 110


@dataclass(frozen=True)
class NamedOperand:
    name: str
    dtype: str | None
    role: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class LikelyCause:
    id: str
    title: str
    explanation: str
    tell: str
    fix: str
    is_named: bool
    case: str | None
    links: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation:
    """What a message says, why it may have been raised, and what helps.

    Attributes
    ----------
    known : bool
        The text holds a sentence of the family. Where not, only `reason`, `other` and `next_step` are set.
    member, sentence : str or None
        Which one, and how it reads in the text.
    op : str or None
        The operation; None where the sentence is raised by several and the text does not show which.
    candidates : tuple of str
        Those that raise this sentence.
    how : str or None
        ``"eager"``, ``"while tracing"``, ``"compiled, at run time"``, ``"exported"`` or ``"not shown"``.
    frame : str or None
        Innermost frame of the user's own code.
    asks, where : str or None
        What the check wants; devices and versions that it is known from.
    operands : tuple of NamedOperand
    traced : tuple of (shape, dtype)
        Operands of a traced call, in its order; dtype ``"default"`` where torch left it out.
    causes : tuple of LikelyCause
        Those that the text names first.
    fixes : tuple of FixAdvice
        Every fix of ``FIXES`` but the control.
    also : tuple of str
        Other sentences of the family in the same text, in its order.
    links : tuple of str
        Of the sentence itself.
    kind : str or None
        ``"mismatch"`` of operands, a ``"format"`` or ``"index"`` that is refused, or a ``"notice"``, which is no error.
    do : str or None
        What to change in the source, where none of the fixes is it.
    device : str or None
        ``"cuda"``, ``"mps"`` or ``"xpu"``, where the text speaks of it.
    reason : str or None
        Why the text is no member.
    other : str or None
        Kind of the error where it is known and not one of dtypes, such as ``"devices"`` or ``"shapes"``.
    next_step : str or None
        What to do about a text that is no member.
    """

    known: bool
    member: str | None = None
    sentence: str | None = None
    op: str | None = None
    candidates: tuple[str, ...] = ()
    how: How | None = None
    frame: str | None = None
    asks: str | None = None
    where: str | None = None
    operands: tuple[NamedOperand, ...] = ()
    traced: tuple[tuple[str, str], ...] = ()
    causes: tuple[LikelyCause, ...] = ()
    fixes: tuple[FixAdvice, ...] = ()
    also: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    kind: str | None = None
    do: str | None = None
    device: str | None = None
    reason: str | None = None
    other: str | None = None
    next_step: str | None = None

    def to_text(self, *, verbose: bool = False, width: int = WIDTH) -> str:
        """Word it in at most 15 lines, or with every cause, fix and link."""
        return full(self) if verbose else brief(self, width)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


MOST_LINES = 15
_LABEL = 8
# A user's own model has no change of upstream's, and more names in a line than this are not read.
_NOT_OF_A_USER, _MOST_NAMES = ("upstream",), 4
# What these do to a user's operands is shown as code; their names are those of operands of attention.
_CASTS = ("query_to_half", "kv_to_query")


def brief(explanation: Explanation, width: int = WIDTH) -> str:
    """Word the cause that fits first, the operands, what applies and the next step."""
    if not explanation.known:
        return _not_known(explanation, width)
    lines = _lines_of("", f"“{explanation.sentence}”", width, most=2)
    lines += _lines_of("In", _place(explanation), width)
    lines += _dtype_lines(explanation, width)
    end = [*_fix_lines(explanation, width), *_next_lines(explanation, width)]
    return "\n".join([*lines, *_cause_lines(explanation, width, MOST_LINES - len(lines) - len(end)), *end])


def _lines_of(label: str, text: str, width: int, *, most: int | None = None) -> list[str]:
    """Wrap a text behind its label, and as far in as it begins itself; without a label it begins at the margin."""
    indent = " " * (_LABEL if label else 0)
    return textwrap.wrap(
        text, width, initial_indent=label.ljust(len(indent)),
        subsequent_indent=indent + " " * (len(text) - len(text.lstrip())), max_lines=most,
        placeholder=" …", break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _not_known(explanation: Explanation, width: int) -> str:
    heads = {None: "Not a known dtype error:", "undecided": "Perhaps a dtype error:"}
    head = heads.get(explanation.other, "Not a dtype error:")
    lines = _lines_of("", f"{head} {explanation.reason}.", width)
    return "\n".join(lines + (_lines_of("Next", explanation.next_step, width) if explanation.next_step else []))


def _place(explanation: Explanation) -> str:
    op = explanation.op
    if op is None:
        op = f"one of {', '.join(explanation.candidates[:_MOST_NAMES])}"
        op += ", …" if len(explanation.candidates) > _MOST_NAMES else ""
    parts = [op, *([] if explanation.how in (None, "not shown") else [str(explanation.how)])]
    return ", ".join(parts + ([f"at {explanation.frame}"] if explanation.frame else []))


def _dtype_lines(explanation: Explanation, width: int) -> list[str]:
    """Give the operands' dtypes and what is wanted, which a sentence about several dtypes says itself."""
    named = [operand for operand in explanation.operands if operand.dtype]
    shown = [
        f"{', '.join(operand.name for operand in group)} {dtype}"
        for dtype, group in groupby(named, key=lambda operand: operand.dtype)
    ]
    if explanation.kind == "notice":
        return _lines_of("Notice", "; ".join([*shown, str(explanation.asks)]), width, most=2)
    if not shown:
        return _lines_of("Wanted", str(explanation.asks), width, most=2)
    head = "; ".join(shown)
    text = f"{head}; wanted: {explanation.asks}"
    is_told = explanation.kind == "mismatch" and len(text) > width - _LABEL
    return _lines_of("Dtypes", head if is_told else text, width, most=2)


def _cause_lines(explanation: Explanation, width: int, room: int) -> list[str]:
    """Word the cause that the text names, or else those that fit, of which the text does not tell."""
    likely = explanation.causes
    if not likely:
        text = "none of the known ones fits these operands"
        return _lines_of("Cause", text, width) if explanation.kind == "mismatch" and not explanation.do else []
    named = [cause for cause in likely if cause.is_named]
    if named or len(likely) == 1:
        first = likely[0]
        others = [cause for cause in likely if cause is not first]
        lines = _lines_of("Cause", f"{first.title}{'' if named else ' (the only known one that fits)'}", width, most=2)
        lines += _lines_of(" ", f"fix: {first.fix}", width, most=2)
        return lines + _candidates("or: ", others, width, room - len(lines))
    lines = _lines_of("Cause", "the text does not tell which of these:", width)
    for cause in likely:
        for text in (f"- {cause.title}", f"  if: {cause.tell}", f"  fix: {cause.fix}"):
            lines += _lines_of(" ", text, width)
    if len(lines) <= room:
        return lines
    lines = _lines_of("Cause", "the text does not tell which of these; --verbose says how to tell:", width, most=1)
    lines += _lines_of(" ", f"- {likely[0].title}", width, most=1)
    rest = _candidates("- ", likely[1:], width, max(1, room - len(lines) - 1))
    fix = _lines_of(" ", f"  fix: {likely[0].fix}", width, most=max(1, min(2, room - len(lines) - len(rest))))
    return [*lines, *fix, *rest]


def _candidates(mark: str, likely: tuple[LikelyCause, ...] | list[LikelyCause], width: int, room: int) -> list[str]:
    room = max(room, 1)
    shown = list(likely) if len(likely) <= room else list(likely[: room - 1])
    lines = [_lines_of(" ", f"{mark}{cause.title}", width, most=1)[0] for cause in shown]
    left = len(likely) - len(shown)
    return [*lines, f"{' ' * _LABEL}{mark}{counted(left, 'other')}"] if left else lines


def _fix_lines(explanation: Explanation, width: int) -> list[str]:
    """Give what to change, then a line to each fix that applies, and one to those that do not cure."""
    if explanation.kind == "notice":
        return _lines_of("When", explanation.do, width, most=3) if explanation.do else []
    change = explanation.do or _local_cast(explanation)
    lines = _lines_of("Fix", change, width, most=3) if change else []
    fixes = [fix for fix in explanation.fixes if fix.fix not in _NOT_OF_A_USER]
    applying: dict[str, None] = {}  # a call may take the same cast from two fixes
    for fix in fixes:
        if fix.verdict == "applies":
            code = " ".join(line.strip() for line in fix.snippet[:1] if fix.fix != "autocast")
            code = code or " ".join(line.strip() for line in fix.snippet) or fix.reason
            applying[f"{_label(fix.fix):<16}{code}"] = None
    for line in applying:
        lines += _lines_of(" " if lines else "Fix", line, width, most=1)
    verdicts = {"depends": "may help", "out_of_reach": "only by hand", "does_not_cure": "no cure"}
    rest = []
    for verdict, label in verdicts.items():
        names = list(dict.fromkeys(_label(fix.fix) for fix in fixes if fix.verdict == verdict))
        if all(fix.verdict == verdict for fix in fixes):
            return lines + _lines_of(" " if lines else "Fix", f"{label}: any of `precision-eval list fixes`", width)
        if names:
            rest.append(f"{label}: {join(names) if len(names) < _MOST_NAMES else 'the others'}")
    return lines + _lines_of(" " if lines else "Fix", "; ".join(rest), width)


def _local_cast(explanation: Explanation) -> str:
    """Word the cast where it raised, which leaves the formats of all else as they are."""
    if explanation.kind != "mismatch" or any(f.fix in _CASTS and f.verdict == "applies" for f in explanation.fixes):
        return ""
    named = {operand.role: operand.name for operand in reversed(explanation.operands)}
    if named.keys() >= {"activation", "storage"}:
        return f"at the line that raised: {named['activation']}.to({named['storage']}.dtype), all else stays as it is"
    return "at the line that raised: y.to(x.dtype) with the operand that differs, all else stays as it is"


def _label(fix: str) -> str:
    return "cast" if fix in _CASTS else fix


def _next_lines(explanation: Explanation, width: int) -> list[str]:
    step = f"{DOCTOR}  # finds the line, tries a patch"
    if explanation.kind == "notice":
        step = f"{DOCTOR}  # says what the casts of your model cost"
    elif not any(fix.verdict in ("applies", "depends") for fix in explanation.fixes if fix.fix not in _NOT_OF_A_USER):
        step = "make that change and run again; --verbose lists the threads"
    return _lines_of("Next", step, width, most=1)


def full(explanation: Explanation) -> str:
    """Word every cause, fix and link."""
    if not explanation.known:
        return _not_known(explanation, WIDTH)
    lines = [*_message(explanation), "", *_causes(explanation), "", *_fixes(explanation)]
    if explanation.links:
        lines += ["", "Where this sentence comes from, and threads", *(f"  {link}" for link in explanation.links)]
    return "\n".join(lines)


def _wrap(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    wrapper = textwrap.TextWrapper(
        WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text)


def _message(explanation: Explanation) -> list[str]:
    facts = {"operation": explanation.op or f"not shown; one of {', '.join(explanation.candidates)}"}
    facts["run"] = f"{explanation.how}, at {explanation.frame}" if explanation.frame else str(explanation.how)
    facts |= {o.name: f"{o.dtype or 'dtype not named'} ({o.meaning})" for o in explanation.operands}
    if explanation.traced:
        facts["traced with"] = ", ".join(f"{shape} {dtype}" for shape, dtype in explanation.traced)
    facts |= {"wanted": explanation.asks or "", "known from": explanation.where or ""}
    facts |= {"change": explanation.do} if explanation.do else {}
    lines = ["The message", *_wrap(f"“{explanation.sentence}”")]
    for name, value in facts.items():
        lines += _wrap(f"{name}: {value}", rest="    ")
    for sentence in explanation.also:
        lines += _wrap(f"before it in the same text: “{sentence}”", rest="    ")
    return lines


def _causes(explanation: Explanation) -> list[str]:
    if not explanation.causes and explanation.kind != "mismatch":
        return []
    if not explanation.causes:
        return ["Known causes", "  None of the known causes fits these operands."]
    named = any(cause.is_named for cause in explanation.causes)
    lines = ["Known causes that fit" + ("" if named else "; the text does not tell which")]
    for cause in explanation.causes:
        word = " [the text shows a word of it]" if cause.is_named else ""
        lines += _wrap(f"- {cause.title}{word}", rest="    ")
        for part in (cause.explanation, f"to tell it: {cause.tell}", f"fix: {cause.fix}"):
            lines += _wrap(part, "    ", "    ")
        if cause.case:
            lines.append(f"    measured by: precision-eval run --case '{cause.case}'")
        lines += [f"    {link}" for link in cause.links]
    return lines


def _fixes(explanation: Explanation) -> list[str]:
    lines = ["Fixes, for the call that raised"]
    for fix in explanation.fixes:
        lines += _wrap(f"{fix.fix:<16} {fix.verdict.replace('_', ' '):<14} {fix.reason}", rest=" " * 34)
        lines += [f"    {line}" for line in fix.snippet]
    return [
        *lines,
        "",
        "Next: the module and line that raise, and a change of the source",
        f"  {DOCTOR}  # a function that returns (model, inputs)",
    ]
