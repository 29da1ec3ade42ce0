"""Mixed policies: what every site of a model is stored in, and how a policy is put on a model so that it really runs.

Conventions: a policy has one narrow format, and *holds* some roles or sites in float32. That is the same choice as a
map's *rescue* of several groups, so the map can foretell a policy's drift. The model is a copy of the policy's own,
converted once; a call costs the casts that the policy needs and nothing that observes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.fixes.patches import Swap, eager_swaps, swapped
from precision_eval.fixes.sites import Function, make_agreed
from precision_eval.fixes.sites import Site as CallSite
from precision_eval.studies.sensitivity.subjects import MapSubject
from precision_eval.trace.sites import Rule, StorageSite, sites_of

SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}

ENDS = ("out", "o", "o_proj", "down", "wo", "down_proj")
"""Names of the projections whose result is added to the residual."""


@dataclass(frozen=True, kw_only=True)
class MixedPolicy:
    """What every site is stored in."""

    format: str = "bfloat16"
    held: tuple[str, ...] = ()
    cache: str = ""
    in_blocks: bool = False

    @property
    def id(self) -> str:
        """Short name, such as ``"bf16, f32: residual norm"``."""
        parts = [SHORT[self.format]]
        if self.held:
            parts.append(f"f32: {' '.join(self.held)}")
        if self.cache:
            parts.append(f"cache {SHORT[self.cache]}{' in blocks' if self.in_blocks else ''}")
        return ", ".join(parts)

    def format_of(self, site: StorageSite) -> str:
        """Return the format that a site stores in."""
        if site.role == "cache" and self.cache:
            return self.cache
        return "float32" if site.role in self.held or site.id in self.held else self.format

    def foretold(self, sites: Iterable[StorageSite]) -> frozenset[StorageSite]:
        """Return the sites that a run of the policy rounds, for the map to foretell its drift."""
        known = tuple(sites)
        attention = bool({"scores", "softmax"} & set(self.held))
        held = {site for site in known if self.format_of(site) != self.format or site.role in ("scores", "softmax")}
        roles = {site.role for site in known}

        def stays(site: StorageSite) -> bool:
            if site.role == "norm":
                layer = ("q", "k", "v", "mlp") if site.layer != "all" else ("head",)
                return all(
                    self.format_of(StorageSite(site.layer, role)) != self.format for role in layer if role in roles
                )
            return attention or site.role not in ("q", "k", "v", "positions", "cache") or site.layer == "all"

        return frozenset(site for site in known if site not in held or not stays(site))

    def holding(self, name: str) -> MixedPolicy:
        """Return the policy that holds one more role or site."""
        return MixedPolicy(format=self.format, held=(*self.held, name), cache=self.cache, in_blocks=self.in_blocks)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MixedPolicy:
        """Read plain JSON data, as ``asdict`` gives it."""
        return cls(**{**data, "held": tuple(data["held"])})


@dataclass(frozen=True)
class AppliedPolicy:
    """A policy on a model of its own."""

    policy: MixedPolicy
    model: nn.Module
    inputs: tuple[Any, ...]
    swaps: list[Swap]

    @contextmanager
    def agreeing(self) -> Iterator[AppliedPolicy]:
        """Have the casts at attention and cache writes in force for the time of a block."""
        with torch.no_grad(), swapped(self.swaps):
            yield self

    def __call__(self) -> torch.Tensor:
        """Run the model once; inside :meth:`agreeing`."""
        output: torch.Tensor = self.model(*self.inputs)
        return output


class _Formats:
    """Which dtype each site of a policy has."""

    def __init__(self, policy: MixedPolicy, rules: Sequence[Rule]) -> None:
        self.policy = policy
        self.rules = rules
        self.has_head = False

    def of(self, layer: str, role: str) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.policy.format_of(StorageSite(layer, role)))
        return dtype

    def at(self, path: str, operation: str) -> tuple[StorageSite, torch.dtype]:
        site = sites_of(self.rules, path, operation)[0]
        return site, self.of(site.layer, site.role)


def put_on(subject: MapSubject, policy: MixedPolicy) -> AppliedPolicy:
    """Put a policy on a copy of a subject's model."""
    model = copy.deepcopy(subject.model)
    formats = _Formats(policy, subject.rules)
    projections = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    formats.has_head = any(formats.at(path, "mm")[0].role == "head" for path in projections)
    for path, module in model.named_modules():
        _convert(path, module, formats)
    _convert_buffers(model, formats)
    held = {"scores", "softmax"} & set(policy.held)
    dtype: torch.dtype = torch.float32 if held else getattr(torch, policy.format)
    return AppliedPolicy(policy, model, subject.inputs, eager_swaps(model, _meeting(dtype, blocks=policy.in_blocks)))


def _convert(path: str, module: nn.Module, formats: _Formats) -> None:
    """Convert one module's own weights and wrap its forward."""
    if isinstance(module, nn.Linear):
        site, dtype = formats.at(path, "mm")
        ends = site.role in ("output", "mlp") and path.rpartition(".")[2] in ENDS
        layer = site.layer.partition(".")[0]
        _wrap_linear(module, dtype, formats.of(layer, "residual") if ends else None)
    elif isinstance(module, nn.Embedding):
        site, dtype = formats.at(path, "embedding")
        module.weight.data = module.weight.data.to(dtype)
        if site.role == "stem":
            _wrap_result(module, formats.of("0", "residual"))
    elif any(p.is_floating_point() for p in module.parameters(recurse=False)):
        site, dtype = formats.at(path, "mul")
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(dtype)
        _wrap_norm(module, dtype, _readers(site, formats))
    elif "Rotary" in type(module).__name__:
        _wrap_rotary(module, formats.at(path, "mul")[1])


def _readers(site: StorageSite, formats: _Formats) -> torch.dtype | None:
    """Return the format of the projections that read a norm's result; None where they differ."""
    if site.layer == "all" and not formats.has_head:
        return formats.of("all", "norm")  # what the model returns
    roles = ("q", "k", "v", "mlp") if site.layer != "all" else ("head",)
    dtypes = {formats.of(site.layer, role) for role in roles}
    return dtypes.pop() if len(dtypes) == 1 else None


def _as(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a tensor in a dtype, itself where it is or where there is none."""
    return tensor if dtype is None or tensor.dtype is dtype else tensor.to(dtype)


def _wrap_linear(module: nn.Linear, dtype: torch.dtype, result: torch.dtype | None) -> None:
    module.to(dtype)
    weight, bias = module.weight, module.bias

    def forward(x: torch.Tensor) -> torch.Tensor:
        return _as(F.linear(_as(x, dtype), weight, bias), result)

    module.forward = forward  # type: ignore[method-assign, assignment]


def _wrap_result(module: nn.Module, result: torch.dtype) -> None:
    plain = module.forward

    def forward(*args: Any) -> torch.Tensor:
        return _as(plain(*args), result)

    module.forward = forward


def _wrap_norm(module: nn.Module, dtype: torch.dtype, result: torch.dtype | None) -> None:
    plain = module.forward
    own = isinstance(module, (nn.RMSNorm, nn.LayerNorm, nn.GroupNorm))  # which take no other dtype than the gain's

    def forward(x: torch.Tensor) -> torch.Tensor:
        return _as(plain(_as(x, dtype if own else None)), result)

    module.forward = forward


def _wrap_rotary(module: nn.Module, dtype: torch.dtype) -> None:
    plain = module.forward
    like = torch.empty(0, dtype=dtype)  # the library takes device and dtype from its first argument, nothing else

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return plain(like.to(x.device), *args, **kwargs)

    module.forward = forward


def _convert_buffers(model: nn.Module, formats: _Formats) -> None:
    """Store caches, rotary frequencies and other floating buffers in their formats."""
    caches = [rule for rule in formats.rules if rule.role == "cache"]
    for name, buffer in model.named_buffers():
        if not buffer.is_floating_point():
            continue
        sites = next((sites for rule in caches if (sites := rule.sites(name, ""))), None)
        path = name.rpartition(".")[0]
        dtype = formats.of(sites[0].layer, "cache") if sites else formats.at(path, "mul")[1]
        buffer.data = buffer.data.to(dtype)


def _meeting(dtype: torch.dtype, *, blocks: bool) -> Callable[[CallSite, Function], Function]:
    """Make what stands in attention's and the cache writes' places."""

    def replace(site: CallSite, original: Function) -> Function:
        if site.site == "cache_write":
            return make_agreed(site, "activation_to_storage", original)
        return _attention(original, dtype, blocks=blocks) if site.site == "sdpa" else original

    return replace


def _attention(original: Function, dtype: torch.dtype, *, blocks: bool) -> Function:
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        query = _as(query, dtype)
        if blocks and query.shape[-2] == 1 and not is_causal:
            return attention_in_blocks(query, key, value, attn_mask, scale=scale)
        key, value = _as(key, dtype), _as(value, dtype)
        if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, dtype):
            attn_mask = attn_mask.to(dtype)
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return scaled_dot_product_attention


def attention_in_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float | None,
) -> torch.Tensor:
    """Attend to a narrow cache in the query's dtype, converting one head at a time into a scratch buffer."""
    B, H, S, D = key.shape
    L, groups = query.shape[2], query.shape[1] // H
    factor = D**-0.5 if scale is None else scale
    rows = (query * factor if factor != 1.0 else query).reshape(B, H, groups * L, D)
    blocked = None if mask is None else _per_head(mask, B, H, groups)
    scratch = torch.empty(S, D, dtype=query.dtype, device=query.device)

    def wide(head: torch.Tensor) -> torch.Tensor:
        return head if head.dtype is query.dtype else scratch.copy_(head)

    output = torch.empty_like(rows)
    for b in range(B):
        for h in range(H):
            scores = torch.mm(rows[b, h], wide(key[b, h]).t())  # (groups·L, S)
            if blocked is not None:
                part = blocked[b, h]
                scores = scores.masked_fill_(part, -math.inf) if part.dtype is torch.bool else scores.add_(part)
            torch.mm(scores.softmax(-1), wide(value[b, h]), out=output[b, h])
    return output.view(query.shape)


def _per_head(mask: torch.Tensor, B: int, H: int, groups: int) -> torch.Tensor:
    """Bring a mask to (B, Hk, groups·L or 1, S): True where a query may not look, or what is added."""
    mask = ~mask if mask.dtype is torch.bool else mask
    _, heads, L, S = mask.shape
    if heads == 1:
        rows = mask if L == 1 else mask.repeat(1, 1, groups, 1)
        return rows.expand(B, H, -1, S)
    return mask.expand(B, -1, L, S).reshape(B, H, groups * L, S)
