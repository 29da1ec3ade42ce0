"""What each fix does for the call that raised: read off the message's own advice, else off the rules of its site."""

from __future__ import annotations

from dataclasses import dataclass

from precision_eval.explain.causes import HALF, Cause
from precision_eval.explain.messages import SentenceMatch, is_continuous
from precision_eval.explain.mismatches import Member, Verdict
from precision_eval.fixes.catalog import FIXES, Fix

Judgement = tuple[Verdict, str]


@dataclass(frozen=True)
class FixAdvice:
    fix: str
    verdict: Verdict
    reason: str
    snippet: tuple[str, ...] = ()


# Operations and sites that a fix reaches from outside.
_REACHED = ("scaled_dot_product_attention", "linear", "matmul", "mm", "bmm", "layer_norm", "group_norm", "index_put")
_REACHED_SITES = ("sdpa", "linear", "norm")
_REACHED_WRITES = ("index_put", "index_copy")

_ON_A_LIST: Judgement = ("depends", "only where the operation is on autocast's lists for the device")
_CAST_AT_CALLS: Judgement = ("applies", "on autocast's lower-precision list: the operands are cast at each call")
_AUTOCAST_OF_SITE: dict[str, Judgement] = {
    "rnn": ("depends", "on CUDA autocast lifts this check and casts; the CPU's is not asked"),
    "sdpa": _CAST_AT_CALLS,
    "linear": _CAST_AT_CALLS,
    "matmul": _CAST_AT_CALLS,
    "conv": _CAST_AT_CALLS,
    "kernel": ("does_not_cure", "a kernel from outside torch is not on autocast's lists"),
    "cache_write": ("does_not_cure", "a write in place cannot change its destination; autocast may even cause it"),
    "norm": ("depends", "CUDA's autocast runs norms in float32; the CPU's lists differ between versions"),
}
_LOWERED = ("bmm", "baddbmm", "mv", "matmul", "conv")  # aten/src/ATen/autocast_mode.h
_FALLBACK = {
    "eager": "the error is eager's own: there is no compiled frame to fall back from",
    "while tracing": "it falls back to eager, and eager has the same check; with fullgraph=True it raises as before",
}


def advise(
    matched: SentenceMatch, *, op: str | None, how: str, causes: tuple[Cause, ...], device: str | None = None
) -> tuple[FixAdvice, ...]:
    """Judge every fix but the control for the call that raised."""
    judged = []
    for fix in FIXES:
        if fix.id != "as_shipped":
            verdict, reason = _judge(fix, matched, op=op, how=how, causes=causes)
            if device == "mps" and "CUDA" in reason:
                verdict, reason = _ON_A_LIST
            helps = verdict in ("applies", "depends")
            judged.append(FixAdvice(fix.id, verdict, reason, _snippet(fix, matched, device) if helps else ()))
    return tuple(judged)


def _judge(fix: Fix, matched: SentenceMatch, *, op: str | None, how: str, causes: tuple[Cause, ...]) -> Judgement:
    if fix.id == "upstream":
        return _upstream(causes)
    member = matched.member
    if member.kind != "mismatch" and member.site != "norm" and fix.storage in matched.dtypes.values():
        return "does_not_cure", "this is the format that is refused"
    stated, refused = _advice_of(member, fix), _with_integers(matched, fix)
    if stated is not None and (refused is None or stated[0] != "depends"):
        return stated
    if refused is not None:
        return refused
    if fix.id == "dynamo_fallback":
        reason = _FALLBACK.get(how, "it suppresses errors of the compiler, and this check is also in eager")
        return "does_not_cure", reason
    if fix.id == "autocast":
        return _autocast(matched, op)
    if fix.agreement == "none":
        return _one_dtype(matched, fix.storage)
    return _cast(matched, op, to_storage=fix.agreement == "activation_to_storage")


def _advice_of(member: Member, fix: Fix) -> Judgement | None:
    """Return what the message's own data says of a fix, the most particular first."""
    names: tuple[str, ...] = (fix.id, fix.storage, "one dtype" if fix.agreement == "none" else "casts")
    if fix.id in ("autocast", "dynamo_fallback"):
        names = (fix.id,)
    advice = {fixes: (verdict, reason) for fixes, verdict, reason in member.advice}
    return next((advice[name] for name in (*names, "every") if name in advice), None)


def _with_integers(matched: SentenceMatch, fix: Fix) -> Judgement | None:
    """Refuse what does not reach an operand of integers, or would cut the fractions off the other."""
    integers = {name for name, dtype in matched.dtypes.items() if not is_continuous(dtype)}
    if matched.member.kind != "mismatch" or not integers or fix.id == "dynamo_fallback":
        return None
    if fix.agreement not in ("activation_to_storage", "storage_to_activation"):
        return "does_not_cure", "a cast of the model leaves integers alone"
    roles = {operand.name: operand.role for operand in matched.member.operands}
    cast, to = fix.agreement.split("_to_")
    if any(roles[name] == to for name in integers):
        return "does_not_cure", "a cast to integers cuts the fractions off"
    if cast == "storage" and any(matched.dtypes[name] in ("int8", "uint8") for name in integers):
        return "does_not_cure", "codes of 8 bits are read with their scale, not cast"
    return None


def _upstream(causes: tuple[Cause, ...]) -> Judgement:
    landed = [f"if the cause is {cause.id}: {cause.fix}" for cause in causes if cause.case]
    if not landed:
        return "depends", "no system of this suite is known to raise this; see the threads"
    return "depends", "; ".join(dict.fromkeys(landed))


def _autocast(matched: SentenceMatch, op: str | None) -> Judgement:
    if "float64" in matched.dtypes.values():
        return "does_not_cure", "autocast leaves float64 alone"
    if op == "apex fused norm":
        return _AUTOCAST_OF_SITE["kernel"]
    if matched.member.id == "scalar_type" and op not in _LOWERED:
        return _ON_A_LIST
    return _AUTOCAST_OF_SITE.get(matched.member.site, _ON_A_LIST)


def _one_dtype(matched: SentenceMatch, storage: str) -> Judgement:
    if storage in HALF and "float32" in matched.dtypes.values():
        return "depends", (
            "not where the float32 operand is made in the forward pass: an embedding, a promoting norm, an .float()"
        )
    return "applies", f"unless the code makes an operand of another dtype than {storage} in the forward pass"


def _cast(matched: SentenceMatch, op: str | None, *, to_storage: bool) -> Judgement:
    member = matched.member
    if member.kind == "format" and member.site != "norm":
        return "does_not_cure", "the operands may well agree; it is their format that is refused"
    if op is None and member.id == "scalar_type":
        return "depends", "where the operation is a Linear, a matmul, a bmm, attention or a norm"
    if member.site not in _REACHED_SITES and op not in _REACHED and member.id not in _REACHED_WRITES:
        return "out_of_reach", "from outside, only attention, Linear, matmul, norms and index writes are reached"
    if member.site == "cache_write":
        return "applies", "a write casts the values to the destination's dtype"
    role = "storage" if to_storage else "activation"
    targets = {matched.dtypes.get(operand.name) for operand in member.operands if operand.role == role} - {None}
    reason = "the operands agree at this call; elsewhere in the model another call may raise next"
    if targets == {"float16"} and set(matched.dtypes.values()) & {"float32", "bfloat16"}:
        reason += "; values beyond 65504 overflow in float16"
    return "applies", reason


def _snippet(fix: Fix, matched: SentenceMatch, device: str | None) -> tuple[str, ...]:
    """Write a fix as two lines of code: at the operands that the sentence is about, and on the whole model."""
    outside = f'output = precision_eval.fixed(model, "{fix.id}")(*inputs)  # the same, from outside'
    if fix.agreement == "autocast":
        device_type = f'"{device}"' if device else "device_type"
        return (f"with torch.autocast({device_type}):", "    output = model(*inputs)")
    if fix.storage in ("float32", *HALF):
        cast = {"float32": "float", "float16": "half"}.get(fix.storage, fix.storage)
        return f"model.{cast}()  # and floating inputs: x.{cast}()", outside
    names = {role: [o.name for o in matched.member.operands if o.role == role] for role in ("activation", "storage")}
    if fix.agreement not in ("activation_to_storage", "storage_to_activation") or not all(names.values()):
        return ()
    cast, to = fix.agreement.split("_to_")
    values = ", ".join(f"{name}.to({names[to][0]}.dtype)" for name in names[cast])
    return f"{', '.join(names[cast])} = {values}", outside
