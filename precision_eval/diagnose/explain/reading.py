"""What a pasted text says of the call that raised: how it ran, which operation it was, whose frame it stood in.

A window of the text around the sentence is read, so that another error in the same log does not speak for it.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precision_eval.results.messages import SentenceMatch
from precision_eval.results.mismatches import FAMILY

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
