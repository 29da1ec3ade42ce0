"""Reads a pasted text: finds the members' sentences in it, and what the text around says of the call.

Conventions: terminal colours, box-drawing frames and the prefixes of distributed launchers are taken off first, and a
traceback that was written into one line, as in a log of JSON, is put back into lines. Positions are those in the
cleaned text; capitals do not count. Where several sentences are found, the last is the one that surfaced: a
compiler's error that was suppressed, or a chained exception, stands before it. Nothing here loads torch.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precision_eval.core.formatting import shortened
from precision_eval.diagnose.explain.dtypes import dtype_name, is_floating, lowered
from precision_eval.diagnose.explain.family import FAMILY, WHITE_SPACE, Member, compiled_sentence

How = Literal["eager", "while tracing", "compiled, at run time", "exported", "not shown"]

_NOISE = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]"  # terminal colours
    r"|[│┃╭╮╰╯─━❱]"  # rich's frames around tracebacks
    r"|^[^\S\n]*\[rank\d+\]:"  # torchrun
    r"|^(?:>\s)+",  # quoted in a thread
    re.MULTILINE,
)


@dataclass(frozen=True)
class SentenceMatch:
    """A member's sentence in a text."""

    member: Member
    start: int
    end: int
    sentence: str
    dtypes: dict[str, str]


@dataclass(frozen=True)
class Near:
    """The known sentence that an unknown text resembles most; a likeness of wording, no diagnosis."""

    sentence: str
    likeness: float


_FRAME_IN_ONE_LINE = re.compile(r'\\n\s*File \\?"')
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_LONGEST_REASON = 200
_ESCAPED = re.compile(r"\\([\\nrt\"'])")
_UNESCAPED = {"n": "\n", "r": "", "t": " "}


def cleaned(text: str) -> str:
    """Take colours, frames and prefixes off a pasted text, and put an escaped traceback back into lines."""
    if _FRAME_IN_ONE_LINE.search(text):  # elsewhere a backslash may be a path's
        text = _ESCAPED.sub(lambda match: _UNESCAPED.get(match[1], match[1]), text)
    return _NOISE.sub(" ", text)


def find_members(text: str) -> tuple[list[SentenceMatch], list[str]]:
    """Find every sentence of the family in a cleaned text."""
    matches: list[SentenceMatch] = []
    cut: list[SentenceMatch] = []
    refused: list[tuple[SentenceMatch, str]] = []
    searched = lowered(text)
    for member in FAMILY:
        for sentence in member.sentences:
            for one in _matches(member, sentence, text, searched):
                reason = _not_of_the_family(member, one.dtypes)
                if reason:
                    refused.append((one, reason))
                else:
                    matches.append(one)
        for beginning in member.beginnings:
            cut += _matches(member, beginning, text, searched)
    cut = [one for one in cut if not any(whole.start <= one.start < whole.end for whole, _ in refused)]
    return _longest(matches + cut), [reason for _, reason in refused]


def _matches(member: Member, sentence: str, text: str, searched: str) -> list[SentenceMatch]:
    """Find one sentence, or the beginning of one, in a text and its lowered copy."""
    matches = []
    for match in compiled_sentence(sentence).finditer(searched):
        dtypes = {name: dtype_name(spelling) for name, spelling in match.groupdict().items()}
        words = re.sub(WHITE_SPACE, " ", text[match.start() : match.end()])
        matches.append(SentenceMatch(member, match.start(), match.end(), words, dtypes))
    return matches


def _not_of_the_family(member: Member, dtypes: dict[str, str]) -> str | None:
    """Say why a matched sentence tells of something else than unlike formats; None where it does not."""
    names = list(dtypes.values())
    if member.kind == "mismatch" and len(names) > 1:
        if len(set(names)) == 1:
            return f"the sentence is that of '{member.id}', but every operand is {names[0]}: devices or shapes disagree"
        if not any(is_floating(name) or name.startswith("complex") for name in names):
            return (
                f"the sentence is that of '{member.id}', but none of {', '.join(sorted(set(names)))} is a float format"
            )
    return None


def _longest(matches: list[SentenceMatch]) -> list[SentenceMatch]:
    """Keep the longest of overlapping matches, in the order of the text."""
    kept: list[SentenceMatch] = []
    for one in sorted(matches, key=lambda f: (f.start - f.end, f.start)):
        if all(one.end <= other.start or one.start >= other.end for other in kept):
            kept.append(one)
    return sorted(kept, key=lambda f: f.start)


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


def named_op(text: str, matched: SentenceMatch) -> str | None:
    """Name the operation from what the text says of the call: the traced node, the graph's node, or the source line."""
    before = text[max(0, matched.start - 3000) : matched.start]
    for match in list(_FX_CALL.finditer(before))[-1:]:
        return str(match.group(1) or match.group(2))
    after = _ATEN_CALL.search(text, matched.end, matched.end + 600)
    if after:
        return after.group(1)
    last_lines = "\n".join([line for line in before.splitlines() if line.strip()][-7:])
    best: tuple[int, str] | None = None
    for pattern, op in _SOURCE_HINTS:
        ends = [match.end() for match in re.finditer(pattern, last_lines)]
        if ends and (best is None or ends[-1] > best[0]):
            best = (ends[-1], op)
    return None if best is None else best[1]


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
    f"{Path(__file__).parents[2] / room}{os.sep}" for room in ("diagnose", "measure", "fixes", "trace")
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


def short_reason(reason: str | None) -> str:
    """Shorten an error message to the known sentence in it, or else to its first line."""
    if not reason:
        return "no reason recorded"
    members, _ = find_members(cleaned(reason))
    if members:
        return members[-1].sentence
    return shortened(_ADDRESS.sub("0x…", reason.strip().splitlines()[0]), limit=_LONGEST_REASON)
