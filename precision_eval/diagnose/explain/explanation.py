"""What :func:`explain` finds out about a message, as plain data.

Conventions: dtypes are canonical names (``"float16"``); what the text does not show is ``None`` or empty, never
guessed. This module loads no torch.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from precision_eval.core.errors import ParameterError
from precision_eval.diagnose.explain.advice import FixAdvice, advise
from precision_eval.diagnose.explain.causes import CAUSES, Cause, fits, is_named
from precision_eval.diagnose.explain.family import Member
from precision_eval.diagnose.explain.reading import (
    How,
    Near,
    SentenceMatch,
    cleaned,
    fake_operands,
    find_members,
    how_it_ran,
    last_user_frame,
    named_op,
    nearest,
)


@dataclass(frozen=True)
class NamedOperand:
    """An operand of the call, with the dtype that the message names."""

    name: str
    dtype: str | None
    role: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class LikelyCause:
    """A known cause that fits."""

    id: str
    title: str
    explanation: str
    tell: str
    fix: str
    is_named: bool
    case: str | None
    links: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What a message says, why it may have been raised, and what helps.

    Attributes
    ----------
    known : bool
        The text holds a sentence of the family. Where not, only `reason` and `nearest` are set.
    member, sentence : str or None
        Which one, and as it stands in the text.
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
    reason : str or None
        Why the text is no member.
    nearest : Near or None
        The known sentence that reads most alike.
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
    reason: str | None = None
    nearest: Near | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON."""
        return asdict(self)

    def __str__(self) -> str:
        from precision_eval.diagnose.explain.text import as_text

        return as_text(self)


def explain(error: BaseException | str) -> Explanation:
    """Explain a dtype error: which operation and operands, the likely causes, and which fixes help.

    Parameters
    ----------
    error : BaseException or str
        An exception as caught, or any text that holds the message: the sentence alone, a traceback, a whole log.

    Returns
    -------
    Explanation
        ``known`` is False where the text holds no sentence of the family; nothing is guessed then.

    Raises
    ------
    ParameterError
        Neither an exception nor a text, or a text with nothing in it.

    Examples
    --------
    >>> found = explain("expected m1 and m2 to have the same dtype, but got: float != c10::Half")
    >>> [(operand.name, operand.dtype) for operand in found.operands]
    [('mat1', 'float32'), ('mat2', 'float16')]
    >>> explain("CUDA error: device-side assert triggered").known
    False
    """
    if isinstance(error, BaseException):
        text = "".join(traceback.format_exception(error))
    elif isinstance(error, str) and error.strip():
        text = error
    else:
        given = "a text with nothing in it" if isinstance(error, str) else f"a {type(error).__name__}"
        raise ParameterError(f"explain was given {given}; expected an exception, or the text of its message")
    text = cleaned(text)
    matched, refused = find_members(text)
    if not matched:
        reason = refused[-1] if refused else "no sentence of the family is in the text"
        return Explanation(known=False, reason=reason, nearest=nearest(text))
    return _explained(matched[-1], matched[:-1], text)


def _explained(matched: SentenceMatch, earlier: list[SentenceMatch], text: str) -> Explanation:
    member = matched.member
    op = _operation(member, named_op(text, matched))
    how = how_it_ran(text, matched)
    causes = tuple(
        cause for cause in CAUSES if fits(cause, matched) and (is_named(cause, text) or not cause.only_named)
    )
    others = dict.fromkeys(one.sentence for one in earlier if one.sentence != matched.sentence)
    return Explanation(
        known=True,
        member=member.id,
        sentence=matched.sentence,
        op=op,
        candidates=member.ops,
        how=how,
        frame=last_user_frame(text, matched),
        asks=member.asks,
        where=member.where,
        operands=_operands(matched),
        traced=tuple(fake_operands(text, matched)),
        causes=tuple(sorted((_likely(cause, text) for cause in causes), key=lambda cause: not cause.is_named)),
        fixes=advise(matched, op=op, how=how, causes=causes),
        also=tuple(others),
        links=tuple(link(source) for source in member.sources),
    )


def _operation(member: Member, named: str | None) -> str | None:
    """Settle the operation: the only one that raises the sentence, or what the text names."""
    if len(member.ops) == 1:
        return member.ops[0]
    return named


def _operands(matched: SentenceMatch) -> tuple[NamedOperand, ...]:
    """Operands with dtypes; of a sentence that names none, those that it would name."""
    every = matched.member.operands
    shown = [operand for operand in every if operand.name in matched.dtypes] or list(every)
    return tuple(
        NamedOperand(operand.name, matched.dtypes.get(operand.name), operand.role, operand.meaning) for operand in shown
    )


def _likely(cause: Cause, text: str) -> LikelyCause:
    return LikelyCause(
        id=cause.id,
        title=cause.title,
        explanation=cause.explanation,
        tell=cause.tell,
        fix=cause.fix,
        is_named=is_named(cause, text),
        case=cause.case,
        links=tuple(link(source) for source in cause.sources),
    )


_THREAD = re.compile(r"([\w.-]+/[\w.-]+) (PR )?#(\d+)")


def link(source: str) -> str:
    """Turn ``owner/name #1`` or ``owner/name PR #1`` into its address; anything else stays as it is."""
    match = _THREAD.fullmatch(source)
    if match is None:
        return source
    return f"https://github.com/{match[1]}/{'pull' if match[2] else 'issues'}/{match[3]}"
