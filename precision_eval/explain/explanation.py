"""What :func:`explain` reads out of a message and the text around it; what helps is advised from ``FIXES``.

Conventions: dtypes are canonical names (``"float16"``); what the text does not show is ``None`` or empty, never
guessed. A window of the text around the sentence is read, so that another error in the same log does not speak for it.
Of several sentences the last is the one that surfaced, but in a chain of exceptions the first is the cause. This module
loads no torch.
"""

from __future__ import annotations

import os
import re
import traceback
from dataclasses import replace
from pathlib import Path

from precision_eval.core.errors import ParameterError
from precision_eval.explain.advice import advise
from precision_eval.explain.answer import DOCTOR, Explanation, How, LikelyCause, NamedOperand
from precision_eval.explain.causes import Cause, causes, fits, words_in
from precision_eval.explain.messages import SentenceMatch, cleaned, find_members
from precision_eval.explain.mismatches import Member
from precision_eval.explain.others import OtherError, find_others
from precision_eval.explain.xformers import change_for, refusals


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
    if quoted := re.search(r"[\"'](\w[\w.]*)\\?[\"']\s*$", before):  # "addmm_impl_cpu_" not implemented for 'Half'
        return quoted[1]
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
    return _answer(cleaned(text))


def _answer(text: str) -> Explanation:
    matched, refused = find_members(text)
    errors = [match for match in matched if match.member.kind != "notice"]
    others = [
        error
        for error in (find_others(text) if not errors or _CHAINED.search(text) else ())
        if not any(match.start <= error.start < match.end for match in matched)
    ]
    if not errors and (others or not matched or _RAISED.search(text)):
        return _unknown(text, refused, others)
    cause = _first_of_chain(errors or matched, others, text)
    if isinstance(cause, OtherError):
        return _other(cause, f"; the dtype error came while it was handled: “{errors[-1].sentence}”")
    if cause.member.id == "xformers_none":
        return _no_kernel(cause, text)
    return _explained(cause, [match for match in matched if match is not cause], text)


# In a text without a known sentence, what may still be about dtypes.
_NAMES_A_FORMAT = re.compile(r"\b(b?float(16|8\w*)|bf16|fp16|fp8|half)\b|dtype|scalar ?type", re.IGNORECASE)


def _unknown(text: str, refused: list[str], others: list[OtherError]) -> Explanation:
    if others:
        return _other(others[-1])
    if refused:
        return Explanation(known=False, reason=refused[-1])
    reason = "no sentence of the family is in the text"
    if not _NAMES_A_FORMAT.search(text):
        return Explanation(known=False, reason=reason)
    step = f"{DOCTOR}  # examines the call itself; FACTORY returns (model, inputs)"
    return Explanation(known=False, reason=f"{reason}; it names a format", next_step=step)


def _other(error: OtherError, after: str = "") -> Explanation:
    return Explanation(known=False, reason=error.title + after, other=error.kind, next_step=error.next_step)


def _no_kernel(matched: SentenceMatch, text: str) -> Explanation:
    reasons = refusals(text, matched.end)
    change = change_for(reasons)
    if change is None:
        name, lines = next(iter(reasons.items()))
        step = "meet one kernel's reasons, or use torch's own scaled_dot_product_attention"
        reason = f"xformers has no kernel for these inputs; {name}: {', '.join(lines)}"
        return Explanation(known=False, reason=reason, other="kernel", next_step=step)
    return replace(_explained(matched, [], text), do=change)


# The last line of a traceback: beside it, a notice in the same text tells of something else.
_RAISED = re.compile(r"^\S*(?:Error|Exception|Interrupt)(?:: .*)?$", re.MULTILINE)
_CHAINED = re.compile(
    r"(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\s*(Traceback \(most recent call last\))"
)


def _first_of_chain(matched: list[SentenceMatch], others: list[OtherError], text: str) -> SentenceMatch | OtherError:
    """Follow Python's chain of exceptions back from the last sentence; a repetition of a sentence tells no more."""
    surfaced = matched[-1]
    first: SentenceMatch | OtherError = surfaced
    start = surfaced.start
    errors: list[SentenceMatch | OtherError] = [*matched[:-1], *others]
    for error in sorted(errors, key=lambda error: error.start, reverse=True):
        if error.end > start:
            continue
        between = text[error.end : start]
        chained = list(_CHAINED.finditer(between))
        if not chained or between.count("Traceback (most recent call last)") > len(chained):
            break
        start = error.start
        if isinstance(error, OtherError) or error.sentence != surfaced.sentence:
            first = error
    return first


_DEVICES = {"mps": r"\bmps\b|MPS(?!\w*Server)", "xpu": r"\bxpu\b|XPU", "cuda": r"\bcuda\b|CUDA|cuDNN|\bcu(?:FFT|BLAS)"}


def device_of(text: str, matched: SentenceMatch) -> str | None:
    """Name the device that the text around the sentence speaks of; MPS and XPU also where CUDA is mentioned."""
    near = text[max(0, matched.start - 3000) : matched.end + 1500]
    return next((device for device, pattern in _DEVICES.items() if re.search(pattern, near)), None)


def _explained(matched: SentenceMatch, others: list[SentenceMatch], text: str) -> Explanation:
    member, device = matched.member, device_of(text, matched)
    op = _operation(member, matched.sentence, named_op(text, matched))
    how = how_it_ran(text, matched)
    likely = tuple(
        cause for cause in causes() if fits(cause, matched, device) and (words_in(cause, text) or not cause.only_named)
    )
    also = dict.fromkeys(match.sentence for match in others if match.sentence != matched.sentence)
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
        causes=tuple(_likely(cause, text) for cause in sorted(likely, key=lambda cause: -words_in(cause, text))),
        fixes=advise(matched, op=op, how=how, causes=likely, device=device),
        also=tuple(also),
        links=tuple(link(source) for source in member.sources),
        kind=member.kind,
        do=filled(member.do, matched.dtypes) or None,
        device=device,
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
        is_named=words_in(cause, text) > 0,
        case=cause.case,
        links=tuple(link(source) for source in cause.sources),
    )


def filled(template: str, dtypes: dict[str, str]) -> str:
    for name, dtype in dtypes.items():
        template = template.replace(f"{{{name}}}", dtype)
    return template


_THREAD = re.compile(r"([\w.-]+/[\w.-]+) (PR )?#(\d+)")


def link(source: str) -> str:
    """Turn ``owner/name #1`` or ``owner/name PR #1`` into its address; anything else stays as it is."""
    match = _THREAD.fullmatch(source)
    if match is None:
        return source
    return f"https://github.com/{match[1]}/{'pull' if match[2] else 'issues'}/{match[3]}"
