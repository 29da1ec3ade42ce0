"""The trace: dtypes of operands and outputs, casts, and the attention backend that really ran.

Nothing here runs while timing. Observation changes no result: sites are recorded by functions put in the place of the
originals for one call, below the casts that a fix has installed, and no function mode is pushed (one would send
``nn.MultiheadAttention`` down another path). A dispatch mode shows which kernel attention reached and what autocast
cast; it is on only inside those sites, as it costs every operation under it ten times a small one's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from precision_eval.core.formats import short
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.patches import Swap, eager_swaps, install_swaps
from precision_eval.fixes.sites import SITES, Function, Site, original_of, wrap_site
from precision_eval.trace.observer import InsideOperation, TensorMap, backend_name, profiled
from precision_eval.trace.operations import CASTS, backends_of, site_operands


@dataclass(frozen=True)
class Trace:
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


class SiteRecorder:
    def __init__(self) -> None:
        self.entries: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self.casts: Counter[tuple[str, str, str, str]] = Counter()
        self.inside = InsideOperation()
        self._cast_from: TensorMap[torch.dtype] = TensorMap()  # result of a cast → dtype before
        self._busy = False

    def recorder(self, site: Site, original: Function) -> Function:
        """Wrap a site's original; only the outermost site of nested ones is recorded."""

        def record(*args: Any, **kwargs: Any) -> Any:
            if self._busy:
                return original(*args, **kwargs)
            # autocast hides itself below the site, so it is asked for here
            autocast = torch._C._is_any_autocast_enabled() and any(
                torch.is_autocast_enabled(value.device.type) for value in args if isinstance(value, torch.Tensor)
            )
            self._busy, self.inside.notes_casts = True, autocast
            try:
                with self.inside if autocast or site.site == "sdpa" else nullcontext():
                    result = original(*args, **kwargs)
            finally:
                self._busy = False
            self._note(site, site_operands(site, args, kwargs), result)
            return result

        return record

    def cast_recorder(self, original: Function) -> Function:
        """Wrap a casting method of Tensor; remembers the dtype that its result had before."""

        def record(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            if isinstance(result, torch.Tensor) and result.dtype is not tensor.dtype:
                self._cast_from[result] = tensor.dtype
            return result

        return record

    def _note(self, site: Site, operands: dict[str, torch.Tensor], result: Any) -> None:
        dtypes: dict[str, str] = {}
        for name, tensor in operands.items():
            before, autocast_to = self._cast_from.get(tensor), self.inside.cast_to.get(tensor)
            dtype = autocast_to or tensor.dtype
            if autocast_to is not None:
                before = before or tensor.dtype
            dtypes[name] = short(dtype)
            if before is not None:
                self.casts[site.site, name, short(before), short(dtype)] += 1
        if isinstance(result, torch.Tensor):
            dtypes["output"] = short(result.dtype)
        self.entries[site.site, tuple(dtypes.items())] += 1

    def trace(self, kernels: set[str], *, observed: str, graphs: int | None, output: Any) -> Trace:
        sites: dict[str, list[dict[str, Any]]] = {site.site: [] for site in SITES}
        for (site, dtypes), count in sorted(self.entries.items()):
            sites[site].append({**dict(dtypes), "count": count})
        keys = ("site", "operand", "from", "to", "count")
        casts = [dict(zip(keys, (*cast, count), strict=True)) for cast, count in sorted(self.casts.items())]
        return Trace(sites, backend_name(kernels, attention=bool(sites["sdpa"])), casts, observed, graphs, output)


def observe(call: Callable[..., Any], inputs: tuple[Any, ...]) -> Trace:
    """Run a call once and report which dtypes and which attention backend really ran."""
    if isinstance(call, AppliedFix) and call.mode == "compiled":
        return _observe_compiled(call, inputs)
    recorder = SiteRecorder()
    with install_swaps(_swaps(call, recorder)):
        output = call(*inputs)
    return recorder.trace(recorder.inside.kernels, observed="call", graphs=None, output=output)


def _swaps(call: Callable[..., Any], recorder: SiteRecorder) -> list[Swap]:
    model = call.model if isinstance(call, AppliedFix) else call if isinstance(call, nn.Module) else None
    agreement = call.fix.agreement if isinstance(call, AppliedFix) else "none"

    def replace(site: Site, original: Function) -> Function:
        return wrap_site(site, agreement, recorder.recorder(site, original))

    casts = [Swap(torch.Tensor, name, recorder.cast_recorder(getattr(torch.Tensor, name))) for name in CASTS]
    return [*eager_swaps(model, replace), *casts]


class _ObservingInterpreter(fx.Interpreter):
    """Runs a captured graph node by node, its sites and casts through a recorder."""

    def __init__(self, graph: fx.GraphModule, recorder: SiteRecorder) -> None:
        super().__init__(graph)
        self._recorder = recorder
        self._sites = {original_of(getattr(site.owner, site.name)): site for site in SITES}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        called = {"setitem": torch.Tensor.__setitem__, "matmul": torch.matmul}.get(
            getattr(target, "__name__", "") if getattr(target, "__module__", "") == "_operator" else "", target
        )
        return self._observed(called, target)(*args, **kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        method = getattr(torch.Tensor, target)
        if target in CASTS:
            return self._recorder.cast_recorder(method)(*args, **kwargs)
        return self._observed(method, method)(*args, **kwargs)

    def _observed(self, function: Function, called: Function) -> Function:
        site = self._sites.get(function)
        return self._recorder.recorder(site, called) if site else called


def _observe_compiled(call: AppliedFix, inputs: tuple[Any, ...]) -> Trace:
    recorder, graphs = SiteRecorder(), 0

    def observing_backend(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1

        return _ObservingInterpreter(graph, recorder).run

    call(*inputs)  # compiles, so that the profile below shows a call like any other
    profile = profiled(call, inputs, memory=False)
    torch.compile(call.function, backend=observing_backend, dynamic=False)(*inputs)
    # the compiler may fuse the softmax of plain matrix products into a loop of its own, but no attention kernel
    kernels = {"softmax"}.union(*map(backends_of, profile.operations))
    return recorder.trace(kernels, observed="graph", graphs=graphs, output=profile.output)
