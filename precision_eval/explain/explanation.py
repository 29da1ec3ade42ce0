"""What :func:`explain` finds out about a message, as plain data and as text; what helps is advised from ``FIXES``.

Conventions: dtypes are canonical names (``"float16"``); what the text does not show is ``None`` or empty, never
guessed. A window of the text around the sentence is read, so that another error in the same log does not speak for it.
This module loads no torch.
"""

from __future__ import annotations

import difflib
import html
import os
import re
import textwrap
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from precision_eval.core.errors import ParameterError
from precision_eval.explain.causes import CAUSES, Cause, fits, is_named
from precision_eval.explain.messages import SentenceMatch, cleaned, find_members
from precision_eval.explain.mismatches import FAMILY, Member, Verdict
from precision_eval.fixes.catalog import FIXES, Fix

How = Literal["eager", "while tracing", "compiled, at run time", "exported", "not shown"]


@dataclass(frozen=True)
class Near:
    """The known sentence that an unknown text resembles most; a likeness of wording, no diagnosis."""

    sentence: str
    likeness: float


def how_it_ran(text: str, matched: SentenceMatch) -> How:
    """Say how the call was run, from the text before and around the sentence."""
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


_NO_SOURCE = re.compile(r"[\s~^]*|\s*\.\.\.<\d+ lines>\.\.\.")
"""What Python 3.13 writes between the lines of a call, and blank lines."""


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
    """List the fake tensors of the traced call."""
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
    """Name the innermost frame of the user's own code, libraries left out."""
    frames = _FRAME.findall(text[: matched.start]) if "from user code" not in text[matched.end :] else []
    frames = frames or _FRAME.findall(text[matched.end :])
    own = [frame for frame in frames if not (_LIBRARY.search(frame[0]) or frame[0].startswith(_OF_THE_SUITE))]
    if not own:
        return None
    path, line, function = own[-1]
    short = "/".join(re.split(r"[/\\]", path)[-2:])
    return f"{short} line {line}" + (f" in {function.strip()}" if function else "")


def nearest(text: str) -> Near:
    """Find the known sentence that the last line of an unknown text resembles most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    said = re.sub(r"^[\w.]*(Error|Exception|Warning): ", "", lines[-1])[:300]
    best = Near("", 0.0)
    for member in FAMILY:
        for sentence in member.sentences:
            ratio = difflib.SequenceMatcher(None, said, sentence, autojunk=False).ratio()
            if ratio > best.likeness:
                best = Near(sentence, ratio)
    return best


@dataclass(frozen=True)
class FixAdvice:
    """What one fix does for the call that raised."""

    fix: str
    verdict: Verdict
    reason: str
    snippet: tuple[str, ...] = ()


_REACHED = ("scaled_dot_product_attention", "linear", "matmul", "mm", "bmm", "layer_norm", "group_norm", "index_put")
_LOWERED = ("bmm", "baddbmm", "mv", "matmul", "conv")  # aten/src/ATen/autocast_mode.h
_REACHED_SITES = ("sdpa", "linear")
_HALF = ("float16", "bfloat16")


def advise(matched: SentenceMatch, *, op: str | None, how: How, causes: tuple[Cause, ...]) -> tuple[FixAdvice, ...]:
    """Judge every fix but the control for the call that raised."""
    judged = []
    for fix in FIXES:
        if fix.id == "as_shipped":
            continue
        held = _held(matched.member, fix)
        if fix.id == "upstream":
            verdict, reason = _upstream(causes)
        elif held is not None:
            verdict, reason = held
        elif fix.id == "dynamo_fallback":
            verdict, reason = _fallback(how)
        elif fix.id == "autocast":
            verdict, reason = _autocast(matched, op)
        elif fix.agreement == "none":
            verdict, reason = _one_dtype(matched, fix.storage)
        else:
            verdict, reason = _cast(matched, op, to_storage=fix.agreement == "activation_to_storage")
        helps = verdict in ("applies", "depends")
        judged.append(FixAdvice(fix.id, verdict, reason, _snippet(fix, matched) if helps else ()))
    return tuple(judged)


def _held(member: Member, fix: Fix) -> tuple[Verdict, str] | None:
    """Return what the member's own data says of a fix, the most particular first."""
    asked: tuple[str, ...] = (fix.id, fix.storage, "one dtype" if fix.agreement == "none" else "casts")
    own = {fixes: (verdict, reason) for fixes, verdict, reason in member.advice}
    if fix.id in ("autocast", "dynamo_fallback"):
        asked = (fix.id,)
    return next((own[name] for name in asked if name in own), None)


def _snippet(fix: Fix, matched: SentenceMatch) -> tuple[str, ...]:
    """Write a fix as two lines of code: at the operands that the sentence is about, and on the whole model."""
    outside = f'output = precision_eval.fixed(model, "{fix.id}")(*inputs)  # the same, from outside'
    if fix.agreement == "autocast":
        return ("with torch.autocast(device_type):", "    output = model(*inputs)")
    if fix.storage in ("float32", "float16", "bfloat16"):
        cast = {"float32": "float", "float16": "half"}.get(fix.storage, fix.storage)
        return f"model.{cast}()  # and its floating inputs: x.{cast}()", outside
    names = {role: [o.name for o in matched.member.operands if o.role == role] for role in ("activation", "storage")}
    if fix.agreement not in ("activation_to_storage", "storage_to_activation") or not all(names.values()):
        return ()
    cast, to = ("activation", "storage") if fix.agreement == "activation_to_storage" else ("storage", "activation")
    values = ", ".join(f"{name}.to({names[to][0]}.dtype)" for name in names[cast])
    return f"{', '.join(names[cast])} = {values}", outside


def _upstream(causes: tuple[Cause, ...]) -> tuple[Verdict, str]:
    landed = [cause for cause in causes if cause.case]
    if not landed:
        return "depends", "no system of this suite is known to raise this; see the threads"
    return "depends", "; ".join(dict.fromkeys(f"if the cause is {cause.id}: {cause.fix}" for cause in landed))


def _fallback(how: How) -> tuple[Verdict, str]:
    if how == "eager":
        return "does_not_cure", "the error is eager's own: there is no compiled frame to fall back from"
    if how == "while tracing":
        return (
            "does_not_cure",
            "it falls back to eager, and eager has the same check; with fullgraph=True it raises as before",
        )
    return "does_not_cure", "it suppresses errors of the compiler; this check also stands in eager"


def _autocast(matched: SentenceMatch, op: str | None) -> tuple[Verdict, str]:
    site, dtypes = matched.member.site, matched.dtypes.values()
    if "float64" in dtypes:
        return "does_not_cure", "autocast leaves float64 alone"
    if site == "rnn":
        return "depends", "on CUDA autocast lifts this check and casts; the CPU's is not asked"
    if op == "apex fused norm":
        return "does_not_cure", "a kernel from outside torch is not on autocast's lists"
    if matched.member.id == "scalar_type" and op not in _LOWERED:
        return "depends", "only where the operation is on autocast's lists for the device"
    if site in ("sdpa", "linear", "matmul", "conv"):
        return "applies", "on autocast's lower-precision list: the operands are cast at each call"
    if site == "kernel":
        return "does_not_cure", "a kernel from outside torch is not on autocast's lists"
    if site == "cache_write":
        return "does_not_cure", "a write in place cannot change its destination; autocast may even cause this one"
    if site == "norm":
        return "depends", "CUDA's autocast runs norms in float32; the CPU's lists differ between versions"
    return "depends", "only where the operation is on autocast's lists for the device"


def _one_dtype(matched: SentenceMatch, storage: str) -> tuple[Verdict, str]:
    note = f"unless the code makes an operand of another dtype than {storage} in the forward pass"
    if storage in _HALF and "float32" in matched.dtypes.values():
        note = "not where the float32 operand is made in the forward pass: an embedding, a promoting norm, an .float()"
    return ("depends" if storage in _HALF and "float32" in matched.dtypes.values() else "applies"), note


def _cast(matched: SentenceMatch, op: str | None, *, to_storage: bool) -> tuple[Verdict, str]:
    member = matched.member
    if member.kind == "format" and member.site != "norm":
        return "does_not_cure", "the operands may well agree; the kernel does not take their format"
    if op is None and member.id == "scalar_type":
        return "depends", "where the operation is a Linear, a matmul, a bmm, attention or a norm"
    if not (
        member.site in _REACHED_SITES
        or op in _REACHED
        or member.site == "norm"
        or member.id in ("index_put", "index_copy")
    ):
        return "out_of_reach", "from outside, only attention, Linear, matmul, norms and index writes are reached"
    if member.site == "cache_write":
        return "applies", "a write casts the values to the destination's dtype"
    roles = {operand.name: operand.role for operand in member.operands}
    kept = {
        dtype for name, dtype in matched.dtypes.items() if roles[name] == ("storage" if to_storage else "activation")
    }
    target = kept.pop() if len(kept) == 1 else ""
    reason = "the operands agree at this call; elsewhere in the model another call may raise next"
    if target == "float16" and set(matched.dtypes.values()) & {"float32", "bfloat16"}:
        reason += "; values beyond 65504 overflow in float16"
    return "applies", reason


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


@dataclass(frozen=True, kw_only=True, repr=False)
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
        return as_text(self)

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(as_text(self))}</pre>"


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
    op = _operation(member, matched.sentence, named_op(text, matched))
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
    for fix in explanation.fixes:
        verdict = fix.verdict.replace("_", " ")
        lines += _wrapped(f"{fix.fix:<16} {verdict:<14} {fix.reason}", " " * 34, "  ")
        lines += [f"    {line}" for line in fix.snippet]
    place = "your_module:factory  # a function that returns (model, inputs)"
    return [
        *lines,
        "",
        "Next: the module and line that raise, and a change of the source",
        f"  precision-eval doctor {place}",
    ]
