"""What a model needs at a batch, a length and in given dtypes, per fix, and the largest length that fits.

Conventions: bytes; *length* is the slots of the decoder's static cache, or the tokens of an encoder alone; *batch* is
sequences, and a model that runs conditional and unconditional rows side by side has twice as many rows.

What is stored::
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from precision_eval.core.errors import ParameterError, unknown_name
from precision_eval.fixes.catalog import FIXES, Fix
from precision_eval.studies.memory.forward import Dims, Dtypes, decode, encode
from precision_eval.studies.memory.ledger import DisagreementError, Meter, item_bytes
from precision_eval.studies.memory.machine import Machine
from precision_eval.studies.memory.models import ModelConfig, parameter_groups

Status = Literal["runs", "raises", "unsupported"]
DTYPES = ("as_shipped", "float16", "bfloat16", "float32")
LONGEST = 1 << 22
"""Where the search for the largest length ends."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked."""

    config: ModelConfig
    dtype: str = "as_shipped"
    kv_dtype: str = "as_shipped"
    batch: int = 1
    length: int = 2048
    tokens: int = 1
    used: int | None = None
    cpu: bool = False
    math_attention: bool = False
    threads: int = 1
    autocast_dtype: str = ""
    trainable: bool = True
    fused_norm_promotes: bool = False
    device_memory_bytes: int | None = None

    @property
    def rows(self) -> int:
        """Rows of every tensor, guidance included."""
        return self.batch * self.config.guidance_rows


@dataclass(frozen=True, kw_only=True)
class FixPlan:
    """Memory of a model under one fix."""

    fix: str
    status: Status
    reason: str
    weights_bytes: int
    self_cache_bytes: int
    cross_cache_bytes: int
    buffer_bytes: int
    activations_bytes: int | None = None
    workspace_bytes: int | None = None
    casts_bytes: int | None = None
    call_bytes: int | None = None
    total_bytes: int | None = None
    phase: str = ""
    fits: bool | None = None
    largest_length: int | None = None
    limited_by: str = ""

    @property
    def stored_bytes(self) -> int:
        """Weights, caches and buffers."""
        return self.weights_bytes + self.self_cache_bytes + self.cross_cache_bytes + self.buffer_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"stored_bytes": self.stored_bytes}


def norm_promotes(torch_version: str) -> bool:
    """Say whether ``nn.RMSNorm`` of a torch version promotes half input with float32 weights on the CPU."""
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) < (2, 7)


def check_request(request: Request) -> None:
    """Refuse what has no meaning."""
    for name, dtype in (("dtype", request.dtype), ("kv-dtype", request.kv_dtype)):
        if dtype not in DTYPES:
            raise unknown_name(name, dtype, DTYPES)
    for name in ("batch", "length", "tokens", "threads"):
        if getattr(request, name) < 1:
            raise ParameterError(f"{name} is {getattr(request, name)}; expected at least 1")
    stack = request.config.main
    if stack.positions == "learned" and request.length > stack.max_length:
        raise ParameterError(
            f"length {request.length} is beyond the {stack.max_length} learned positions of {request.config.name}; "
            f"ask for {stack.max_length} or less"
        )
    if request.config.decoder and request.tokens > request.length:
        raise ParameterError(f"tokens {request.tokens} do not fit length {request.length}; ask for fewer")


def dtypes_in_force(request: Request, fix: Fix) -> Dtypes:
    """Storage dtypes of a request under a fix."""
    shipped = request.config.shipped
    if fix.storage in ("float16", "bfloat16", "float32"):
        return Dtypes(**dict.fromkeys(("weights", "norms", "mlp_out", "cache", "condition"), fix.storage))
    asked = request.dtype != "as_shipped"
    cache = shipped.cache if request.kv_dtype == "as_shipped" else request.kv_dtype
    weights = request.dtype if asked else shipped.weights
    mlp_out = weights if asked else shipped.mlp_out or weights
    if asked and weights == "float16":
        mlp_out = request.config.float16_mlp_out or weights
    condition = shipped.condition or shipped.weights
    if asked or request.kv_dtype != "as_shipped":
        condition = weights if asked else cache
    return Dtypes(
        weights=weights,
        norms=request.dtype if asked else shipped.norms,
        mlp_out=mlp_out,
        cache=cache,
        condition=condition,
        norm_output=weights if fix.storage == "per_case" and request.config.landed == "norms_cast" else "",
    )


def stored(request: Request, dtypes: Dtypes, *, fix: str) -> FixPlan:
    """Bytes of weights, caches and buffers; the formulas are in the module's text."""
    config, decoder = request.config, request.config.decoder
    groups = parameter_groups(config)
    held = {"linear": dtypes.weights, "mlp_out": dtypes.mlp_out, "norms": dtypes.norms}
    self_cache = cross_cache = buffers = 0
    if decoder is not None:
        per_slot = 2 * decoder.layers * request.rows * item_bytes(dtypes.cache)
        self_cache = per_slot * decoder.kv_heads * decoder.head_dim * request.length
        cross_cache = per_slot * decoder.cross_kv_heads * decoder.cross_head_dim * config.encoder_length
        buffers = request.length**2 if decoder.positions == "learned" else 0
        buffers += request.rows * config.encoder_length if decoder.cross_heads else 0
    return FixPlan(
        fix=fix,
        status="runs",
        reason="",
        weights_bytes=sum(count * item_bytes(held[group]) for group, count in groups.items()),
        self_cache_bytes=self_cache,
        cross_cache_bytes=cross_cache,
        buffer_bytes=buffers,
    )


def _phases(request: Request, dtypes: Dtypes, agreement: str) -> Iterable[tuple[str, Meter]]:
    """Run the encoder's pass and the decoder's step; yields each with its meter."""
    config = request.config

    def machine() -> Machine:
        return Machine(
            agreement=agreement,
            autocast_dtype=request.autocast_dtype or ("bfloat16" if request.cpu else "float16"),
            cpu=request.cpu,
            math_attention=request.math_attention,
            threads=request.threads,
            keeps_casts=request.trainable,
            fused_norm_promotes=request.fused_norm_promotes,
        )

    if config.encoder is not None:
        tokens = config.encoder_length if config.decoder else request.length
        m = machine()
        encode(m, config.encoder, Dims(rows=request.rows, tokens=tokens, slots=tokens), dtypes)
        yield "encode", m.meter
    if config.decoder is not None:
        slots = request.length if config.decoder.masked_cache or request.used is None else request.used
        dims = Dims(rows=request.rows, tokens=request.tokens, slots=slots, cross=config.encoder_length)
        m = machine()
        decode(m, config.decoder, dims, dtypes)
        yield "decode", m.meter


def _without_fit(request: Request, fix: Fix) -> FixPlan:
    dtypes = dtypes_in_force(request, fix)
    base = stored(request, dtypes, fix=fix.id)
    if "eager" not in fix.modes:
        return replace(base, status="unsupported", reason="exists only compiled, and a plan is of eager calls")
    if fix.storage == "per_case" and request.config.landed == "nothing":
        return replace(base, status="unsupported", reason=f"no fix is known to have landed for {request.config.name}")
    agreement = "none" if fix.agreement == "per_case" else fix.agreement
    try:
        phase, meter = max(_phases(request, dtypes, agreement), key=lambda found: found[1].peak)
    except DisagreementError as error:
        return replace(base, status="raises", reason=str(error))
    return replace(
        base,
        activations_bytes=meter.at_peak.get("activations", 0),
        workspace_bytes=meter.at_peak.get("workspace", 0),
        casts_bytes=meter.at_peak.get("casts", 0),
        call_bytes=meter.peak,
        total_bytes=base.stored_bytes + meter.peak,
        phase=phase,
    )


def largest_length(request: Request, fix: Fix) -> tuple[int, str]:
    """Longest length whose total fits the device's memory; the total grows with the length."""
    assert request.device_memory_bytes is not None
    budget, stack = request.device_memory_bytes, request.config.main
    learned = stack.positions == "learned"

    def fits(length: int) -> bool:
        total = _without_fit(replace(request, length=length), fix).total_bytes
        return total is not None and total <= budget

    low, high = request.tokens - 1, stack.max_length if learned else LONGEST
    if not fits(low + 1):
        return 0, "memory"
    if fits(high):
        return high, "positions" if learned else "search"
    low += 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, "memory"


def plan_fix(request: Request, fix: Fix) -> FixPlan:
    """Plan one fix."""
    check_request(request)
    found = _without_fit(request, fix)
    if request.device_memory_bytes is None or found.total_bytes is None:
        return found
    length, limited_by = largest_length(request, fix)
    fits = found.total_bytes <= request.device_memory_bytes
    return replace(found, fits=fits, largest_length=length, limited_by=limited_by)


def plan_all(request: Request, fixes: Iterable[Fix] = FIXES) -> list[FixPlan]:
    """Plan several fixes, in their order."""
    return [plan_fix(request, fix) for fix in fixes]
