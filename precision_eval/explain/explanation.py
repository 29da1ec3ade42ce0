"""What :func:`explain` finds out about a message, as plain data and as text; what helps is advised from ``FIXES``.

Conventions: dtypes are canonical names (``"float16"``); what the text does not show is ``None`` or empty, never
guessed. A window of the text around the sentence is read, so that another error in the same log does not speak for it.
This module loads no torch.
"""

from __future__ import annotations

import os
import re
import textwrap
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from precision_eval.core.errors import ParameterError
from precision_eval.explain.advice import FixAdvice, advise
from precision_eval.explain.causes import Cause, causes, fits, is_named
from precision_eval.explain.messages import SentenceMatch, cleaned, find_members
from precision_eval.explain.mismatches import Member

How = Literal["eager", "while tracing", "compiled, at run time", "exported", "not shown"]


def how_it_ran(text: str, matched: SentenceMatch) -> How:
    near = text[max(0, matched.start - 3000) : matched.end + 1500]
    around = text[max(0, matched.start - 30000) : matched.end + 1500]
    if re.search(r"torch[/\\]export|torch\.export|_export[/\\]", around):
        return "exported"
    if re.search(r"FakeTensor\(|with fake tensors|fake tensor call|TorchRuntimeError", near):
        return "while tracing"
    if re.search(r"_dynamo[/\\]|_inductor[/\\]|torch\.compile|While executing %|torch_compile", around):
        return "compiled, at run time"
    return (
        "eager"
        if re.search(r"File \"|Traceback|^[^\S\n]*\S+\.py:\d+|\.py\", line", text, re.MULTILINE)
        else "not shown"
    )


_FX_CALL = re.compile(
    r"(?:Failed running|run FX node with fake tensors:)\s+call_(?:function|method|module)\s+"
    r"(?:<[\w-]+(?: function| method)?\s*([\w.]+)|([\w.]+))"
)
_ATEN_CALL = re.compile(r"While executing %\w+[^\n]*?torch\.ops\.aten\.(\w+)")
_SOURCE_HINTS: tuple[tuple[str, str], ...] = (
    (r"fused_rms_norm|rms_forward_affine|FusedRMSNorm|FusedLayerNorm|fused_layer_norm", "apex fused norm"),
    (r"memory_efficient_attention", "memory_efficient_attention"),
    (r"flash_attn_varlen_func|flash_attn_func|flash_attn_gpu|flash_attn_cuda", "flash_attn_func"),
    (r"scaled_dot_product_attention", "scaled_dot_product_attention"),
    (r"flex_attention", "flex_attention"),
    (r"torch\.baddbmm|\.baddbmm\(", "baddbmm"),
    (r"torch\.bmm|\.bmm\(", "bmm"),
    (r"einsum\(", "einsum"),
    (r"grid_sample\(", "grid_sample"),
    (r"F\.layer_norm|torch\.layer_norm", "layer_norm"),
    (r"F\.group_norm|torch\.group_norm", "group_norm"),
    (r"F\.batch_norm|torch\.batch_norm", "batch_norm"),
    (r"F\.conv(?:_transpose)?([123])d|_conv_forward|torch\.conv[123]d", "conv"),
    (r"F\.cross_entropy|F\.nll_loss|nll_loss", "nll_loss"),
    (r"F\.linear|torch[/\\]nn[/\\]modules[/\\]linear\.py", "linear"),
    (r"torch\.matmul|\.matmul\(|[\w\])] @ [\w(]", "matmul"),
    (r"\.backward\(|run_backward", "backward"),
)


# What Python 3.13 writes between the lines of a call, and blank lines.
_NO_SOURCE = re.compile(r"[\s~^]*|\s*\.\.\.<\d+ lines>\.\.\.")


def named_op(text: str, matched: SentenceMatch) -> str | None:
    """Name the operation from what the text says of the call: the traced node, the graph's node, or the source line."""
    before = text[max(0, matched.start - 3000) : matched.start]
    for match in list(_FX_CALL.finditer(before))[-1:]:
        return str(match.group(1) or match.group(2))
    after = _ATEN_CALL.search(text, matched.end, matched.end + 600)
    if after:
        return after.group(1)
    last_lines = "\n".join([line for line in before.splitlines() if not _NO_SOURCE.fullmatch(line)][-7:])
    best: tuple[int, str] | None = None
    for pattern, op in _SOURCE_HINTS:
        ends = [match.end() for match in re.finditer(pattern, last_lines)]
        if ends and (best is None or ends[-1] > best[0]):
            best = (ends[-1], op)
    called = (op for op in matched.member.ops if re.search(rf"\b{re.escape(op)}\w*\(", last_lines))
    return next(called, None) if best is None else best[1]


_FAKE = re.compile(
    r"FakeTensor\(\.\.\.,(?: device='[^']*',)? size=\(([^()]*(?:\([^()]*\)[^()]*)*)\)(?:, dtype=torch\.(\w+))?"
)


def fake_operands(text: str, matched: SentenceMatch) -> list[tuple[str, str]]:
    before = text[max(0, matched.start - 3000) : matched.start]
    calls = list(_FX_CALL.finditer(before))
    if not calls:
        return []
    call = before[calls[-1].start() :]
    return [(f"({shape.strip()})", dtype or "default") for shape, dtype in _FAKE.findall(call)]


_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?')


_LIBRARY = re.compile(r"site-packages|dist-packages|<frozen|lib[/\\]python3|[/\\]torch[/\\]")
_OF_THE_SUITE = tuple(
    f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("doctor", "explain", "measure", "fixes", "trace")
)


def last_user_frame(text: str, matched: SentenceMatch) -> str | None:
    frames = _FRAME.findall(text[: matched.start]) if "from user code" not in text[matched.end :] else []
    frames = frames or _FRAME.findall(text[matched.end :])
    own = [frame for frame in frames if not (_LIBRARY.search(frame[0]) or frame[0].startswith(_OF_THE_SUITE))]
    if not own:
        return None
    path, line, function = own[-1]
    short = "/".join(re.split(r"[/\\]", path)[-2:])
    return f"{short} line {line}" + (f" in {function.strip()}" if function else "")


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
        The text holds a sentence of the family. Where not, only `reason` is set.
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
    reason : str or None
        Why the text is no member.
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__


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
        if not refused and _NAMES_A_FORMAT.search(text):
            reason += "; it names a format: precision-eval doctor FILE:FACTORY examines the call itself"
        return Explanation(known=False, reason=reason)
    return _explained(matched[-1], matched[:-1], text)


# In a text without a known sentence, what may still be about dtypes.
_NAMES_A_FORMAT = re.compile(r"\b(b?float(16|8\w*)|bf16|fp16|fp8|half)\b|dtype|scalar ?type", re.IGNORECASE)


def _explained(matched: SentenceMatch, earlier: list[SentenceMatch], text: str) -> Explanation:
    member = matched.member
    op = _operation(member, matched.sentence, named_op(text, matched))
    how = how_it_ran(text, matched)
    likely = tuple(
        cause for cause in causes() if fits(cause, matched) and (is_named(cause, text) or not cause.only_named)
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
        causes=tuple(sorted((_likely(cause, text) for cause in likely), key=lambda cause: not cause.is_named)),
        fixes=advise(matched, op=op, how=how, causes=likely),
        also=tuple(others),
        links=tuple(link(source) for source in member.sources),
    )


def _operation(member: Member, sentence: str, named: str | None) -> str | None:
    """Settle the operation: the only one that raises the sentence, the one that the sentence names, or the text."""
    if len(member.ops) == 1:
        return member.ops[0]
    said = [op for op in member.ops if re.search(rf"\b{re.escape(op)}\b", sentence)]
    return max(said, key=len, default=named)


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


WIDTH = 110


def as_text(explanation: Explanation) -> str:
    if not explanation.known:
        return "\n".join(["Not a known dtype error.", *_wrap(explanation.reason or "")])
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
    lines = ["The message", *_wrap(f"“{explanation.sentence}”")]
    for name, value in facts.items():
        lines += _wrap(f"{name}: {value}", rest="    ")
    for sentence in explanation.also:
        lines += _wrap(f"before it in the same text: “{sentence}”", rest="    ")
    return lines


def _causes(explanation: Explanation) -> list[str]:
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
        "  precision-eval doctor your_module:factory  # a function that returns (model, inputs)",
    ]
