"""The trace: dtypes of operands and outputs, casts, and the attention backend that really ran.

Nothing here runs while timing. Observation changes no result: sites are recorded by functions put in the place of the
originals for one call, below the casts that a fix has installed, and no function mode is pushed (one would send
``nn.MultiheadAttention`` down another path). A dispatch mode shows which kernel attention reached and what autocast
cast; it is on only inside those sites, as it costs every operation under it ten times a small one's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.patches import Swap, eager_swaps, swapped
from precision_eval.fixes.sites import SITES, Function, Site, make_agreed, original_of
from precision_eval.trace.profiling import profiled

#: Names of a site's tensor operands, in the order of its positional arguments; ``None`` is no tensor.
OPERANDS: dict[str, tuple[str | None, ...]] = {
    "sdpa": ("query", "key", "value", "mask"),
    "linear": ("input", "weight", "bias"),
    "matmul": ("left", "right"),
    "norm": ("input", None, "weight", "bias"),
    "index_put_": ("cache", None, "value"),
    "index_copy_": ("cache", None, None, "value"),
    "__setitem__": ("cache", None, "value"),
}
_KEYWORDS = {"attn_mask": "mask", "other": "right", "mat2": "right", "values": "value", "source": "value"}
_CASTS = ("to", "type", "type_as", "half", "float", "bfloat16", "double")

#: What in an operation's name tells the attention backend.
BACKENDS: tuple[tuple[str, str], ...] = (
    ("_scaled_dot_product_flash_attention", "flash"),
    ("_scaled_dot_product_efficient_attention", "efficient"),
    ("_scaled_dot_product_cudnn_attention", "cudnn"),
    ("_scaled_dot_product_fused_attention_overrideable", "overrideable"),
    ("_scaled_dot_product_attention_math", "math"),
)


@dataclass(frozen=True)
class Trace:
    """What really ran in one call."""

    sites: dict[str, list[dict[str, Any]]]
    backend: str
    casts: list[dict[str, Any]]
    observed: str
    graphs: int | None
    output: Any = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a record: each site is a key of its own."""
        facts = {"backend": self.backend, "casts": self.casts, "observed": self.observed, "graphs": self.graphs}
        return {**self.sites, **facts}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _operands(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    names = OPERANDS[site.name if site.site == "cache_write" else site.site]
    found = {}
    for name, value in zip(names, args, strict=False):
        if name is not None and isinstance(value, torch.Tensor):
            found[name] = value
    for key, value in kwargs.items():
        name = _KEYWORDS.get(key, key)
        if name in names and isinstance(value, torch.Tensor):
            found[name] = value
    return found


@cache
def _backends_of(operation: str) -> frozenset[str]:
    """What an operation inside attention tells of the backend."""
    fused = frozenset(backend for part, backend in BACKENDS if part in operation)
    return fused or frozenset({"softmax"} if "softmax" in operation else ())


class Observer(TorchDispatchMode):
    """Collects what one call does; the dispatch mode sees the kernels, the recorders see the sites."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self.casts: Counter[tuple[str, str, str, str]] = Counter()
        self.backends: set[str] = set()
        self._cast_from: Any = WeakTensorKeyDictionary()  # result of a cast → dtype before
        self._cast_to: Any = WeakTensorKeyDictionary()  # what autocast cast → dtype after
        self._cast_ids: set[int] = set()  # of either's keys, dead ones too: a look into them is slow
        self._inside: list[Site] = []
        self._autocast = False  # of the site in progress; below it, autocast hides itself

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, noting an attention kernel or a cast that autocast made for the site in progress."""
        found = func(*args, **(kwargs or {}))
        if not self._inside:
            return found
        if self._autocast and func is torch.ops.aten._to_copy.default:
            self._cast_to[args[0]] = found.dtype
            self._cast_ids.add(id(args[0]))
        if self._inside[0].site == "sdpa":
            self.backends |= _backends_of(str(func))
        return found

    def recorder(self, site: Site, original: Function) -> Function:
        """Wrap a site's original; only the outermost site of nested ones is recorded."""

        def record(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            self._autocast = any(torch.is_autocast_enabled(d) for d in {t.device.type for t in args if _is_tensor(t)})
            self._inside.append(site)
            try:
                if self._autocast or site.site == "sdpa":
                    with self:
                        found = original(*args, **kwargs)
                else:
                    found = original(*args, **kwargs)
            finally:
                self._inside.pop()
            self._note(site, _operands(site, args, kwargs), found)
            return found

        return record

    def cast_recorder(self, original: Function) -> Function:
        """Wrap a casting method of Tensor; remembers the dtype that its result had before."""

        def record(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            found = original(tensor, *args, **kwargs)
            if _is_tensor(found) and found.dtype is not tensor.dtype:
                self._cast_from[found] = tensor.dtype
                self._cast_ids.add(id(found))
            return found

        return record

    def _note(self, site: Site, operands: dict[str, torch.Tensor], found: Any) -> None:
        dtypes: dict[str, str] = {}
        for name, tensor in operands.items():
            before, dtype = None, tensor.dtype
            if id(tensor) in self._cast_ids:
                before = self._cast_from.get(tensor)
                if tensor in self._cast_to:
                    before, dtype = before or dtype, self._cast_to[tensor]
            dtypes[name] = _name(dtype)
            if before is not None:
                self.casts[site.site, name, _name(before), _name(dtype)] += 1
        if _is_tensor(found):
            dtypes["output"] = _name(found.dtype)
        self.entries[site.site, tuple(dtypes.items())] += 1

    def trace(self, *, backend: str, observed: str, graphs: int | None, output: Any) -> Trace:
        """Sum up."""
        sites: dict[str, list[dict[str, Any]]] = {site.site: [] for site in SITES}
        for (site, dtypes), count in sorted(self.entries.items()):
            sites[site].append({**dict(dtypes), "count": count})
        keys = ("site", "operand", "from", "to", "count")
        casts = [dict(zip(keys, (*cast, count), strict=True)) for cast, count in sorted(self.casts.items())]
        return Trace(sites, backend, casts, observed, graphs, output)


def _joined(backends: Iterable[str], *, attention: bool) -> str:
    """Name the backends; attention that reached no fused kernel, but a softmax, ran as plain matrix products."""
    fused = sorted(set(backends) - {"softmax"})
    return "+".join(fused) or ("math" if attention and "softmax" in set(backends) else "unknown")


def observe(call: Callable[..., Any], inputs: tuple[Any, ...]) -> Trace:
    """Run a call once and report which dtypes and which attention backend really ran."""
    if isinstance(call, AppliedFix) and call.mode == "compiled":
        return _observe_compiled(call, inputs)
    observer = Observer()
    with swapped(_swaps(call, observer)):
        output = call(*inputs)
    attention = any(site == "sdpa" for site, _ in observer.entries)
    backend = _joined(observer.backends, attention=attention)
    return observer.trace(backend=backend, observed="call", graphs=None, output=output)


def _swaps(call: Callable[..., Any], observer: Observer) -> list[Swap]:
    model = call.model if isinstance(call, AppliedFix) else call if isinstance(call, nn.Module) else None
    agreement = call.fix.agreement if isinstance(call, AppliedFix) else "none"

    def replace(site: Site, original: Function) -> Function:
        return make_agreed(site, agreement, observer.recorder(site, original))

    casts = [Swap(torch.Tensor, name, observer.cast_recorder(getattr(torch.Tensor, name))) for name in _CASTS]
    return [*eager_swaps(model, replace), *casts]


class _ObservingInterpreter(fx.Interpreter):
    """Runs a captured graph node by node, its sites and casts through an observer's recorders."""

    def __init__(self, graph: fx.GraphModule, observer: Observer) -> None:
        super().__init__(graph)
        self._observer = observer
        present = {site: getattr(site.owner, site.name) for site in SITES}
        self._sites = {original_of(function): site for site, function in present.items()}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Record a site that the graph calls as a function."""
        called = {"setitem": torch.Tensor.__setitem__, "matmul": torch.matmul}.get(
            getattr(target, "__name__", "") if getattr(target, "__module__", "") == "_operator" else "", target
        )
        site = self._sites.get(called)
        return (self._observer.recorder(site, target) if site else target)(*args, **kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Record a cast, or a site that the graph calls as a method."""
        method = getattr(torch.Tensor, target)
        if target in _CASTS:
            return self._observer.cast_recorder(method)(*args, **kwargs)
        site = self._sites.get(method)
        return (self._observer.recorder(site, method) if site else method)(*args, **kwargs)


def _observe_compiled(call: AppliedFix, inputs: tuple[Any, ...]) -> Trace:
    observer, graphs = Observer(), 0

    def observing_backend(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1

        return _ObservingInterpreter(graph, observer).run

    call(*inputs)  # compiles, so that the profile below shows a call like any other
    seen = profiled(call, inputs, memory=False)
    torch.compile(call.function, backend=observing_backend, dynamic=False)(*inputs)
    names = [name for name in seen.operations if "scaled_dot_product" in name or "softmax" in name]
    fused = {backend for part, backend in BACKENDS if any(part in name for name in names)}
    attention = any(site == "sdpa" for site, _ in observer.entries)
    # the compiler may fuse the softmax of plain matrix products into a loop of its own, but no attention kernel
    backend = _joined(fused or {"softmax"}, attention=attention)
    return observer.trace(backend=backend, observed="graph", graphs=graphs, output=seen.output)
