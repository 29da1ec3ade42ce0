"""Which of ``FIXES`` reach the place that raised, and which cannot cure it.

Conventions: said of the *call that raised*. A fix that reaches it may still let another call raise next; only a run
on the model shows that. ``applies``: the fix reaches this call and makes its operands agree. ``depends``: only where
the stated condition holds. ``does_not_cure``: the same sentence, or the eager one, is raised again. ``out_of_reach``:
put on from outside, the fix does not touch this operation; the cast can be written at the call. This module loads no
torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from precision_eval.diagnose.explain.causes import Cause
from precision_eval.diagnose.explain.reading import How, SentenceMatch
from precision_eval.fixes.catalog import FIXES

Verdict = Literal["applies", "depends", "does_not_cure", "out_of_reach"]


@dataclass(frozen=True)
class FixAdvice:
    """What one fix does for the call that raised."""

    fix: str
    verdict: Verdict
    reason: str


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
        if fix.id == "upstream":
            verdict, reason = _upstream(causes)
        elif fix.id == "dynamo_fallback":
            verdict, reason = _fallback(how)
        elif fix.id == "autocast":
            verdict, reason = _autocast(matched, op)
        elif fix.agreement == "none":
            verdict, reason = _one_dtype(matched, fix.storage)
        else:
            verdict, reason = _cast(matched, op, to_storage=fix.agreement == "activation_to_storage")
        judged.append(FixAdvice(fix.id, verdict, reason))
    return tuple(judged)


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
    if matched.member.id == "autocast_no_bfloat16":
        return "depends", "where it takes the place of the autocast that raised: on CUDA it computes float16"
    if matched.member.id == "autocast_other_half":
        return "does_not_cure", "autocast itself raised this: its dtype is not that of the tensors"
    if "float64" in dtypes:
        return "does_not_cure", "autocast leaves float64 alone"
    if site == "rnn":
        return "depends", "on CUDA autocast lifts this check and casts; the CPU's is not asked"
    if op == "apex fused norm":
        return "does_not_cure", "a kernel from outside torch is not on autocast's lists"
    if matched.member.id in ("dot", "tensordot") or (matched.member.id == "scalar_type" and op not in _LOWERED):
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
    member = matched.member
    if member.kind == "index":
        return "does_not_cure", "the indices must be integers, whatever the model is stored in"
    if member.id == "autocast_no_bfloat16":
        if storage == "bfloat16":
            return "does_not_cure", "the autocast that raised asks for bfloat16 too; stored so, it runs by emulation"
        return "depends", "once the source's own autocast is out of the way, or asks for float16"
    if member.id == "autocast_other_half" and storage in _HALF:
        return "depends", f"where autocast's dtype is {storage} too, or autocast is off"
    if member.id in ("flash_attn_format", "sdpa_backend") and storage == "float32":
        return "does_not_cure", "the kernel takes half formats only"
    if member.id == "norm_cpu" and storage in _HALF:
        return (
            "depends",
            f"only where the input is {storage} too; a float32 input made in the forward pass raises again",
        )
    note = f"unless the code makes an operand of another dtype than {storage} in the forward pass"
    if storage in _HALF and "float32" in matched.dtypes.values():
        note = "not where the float32 operand is made in the forward pass: an embedding, a promoting norm, an .float()"
    return ("depends" if storage in _HALF and "float32" in matched.dtypes.values() else "applies"), note


def _cast(matched: SentenceMatch, op: str | None, *, to_storage: bool) -> tuple[Verdict, str]:
    member = matched.member
    if member.kind == "index":
        return "does_not_cure", "the indices must be integers"
    if member.id == "autocast_no_bfloat16":
        return "does_not_cure", "autocast refused its dtype before any operand was there"
    if member.kind == "format" and member.site != "norm":
        return "does_not_cure", "the operands may well agree; the kernel does not take their format"
    if member.id in ("addmv", "self_mat2") or (op is None and member.id == "scalar_type"):
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
