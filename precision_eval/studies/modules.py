"""Which modules of any model bear a half format, and a policy of those that do, written as a file of plain PyTorch.

Conventions: a *part* is a module with parameters of its own that has no children, or is torch's own (attention,
recurrent layers); parts that share a parameter are one. A policy keeps everything float32, caches and inputs too, but
its parts, which are stored and computed in the half format between two casts. Drift is the geometric mean over seeded
inputs of the relative error to float64. Parts are taken by bytes saved per squared drift alone, as errors of different
parts add up so where they are independent; how many is settled by really running the policy. A part that no call
reaches stays float32: nothing was measured of it.
"""

from __future__ import annotations

import copy
import re
import textwrap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.cases.base import BuiltCase, Case
from precision_eval.cases.own import digest_of
from precision_eval.core.cells import failure_of
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import TrialFile, written_whole
from precision_eval.core.formatting import grouped
from precision_eval.core.table import Table, make_table
from precision_eval.core.targets import is_target
from precision_eval.core.workers import one_thread
from precision_eval.fixes.catalog import Fix
from precision_eval.fixes.packing import Packed
from precision_eval.measure.latency import Candidate, compare_latency
from precision_eval.measure.system_drift import exact_output, relative_error
from precision_eval.measure.timers import LaunchedTimer
from precision_eval.stats.paired import PairedRatio

FORMATS = ("float16", "bfloat16")
VERSION = 1
# Drift that a policy may have, as a share of that with all parts in half, where no limit is given.
SHARE = 0.5
NOT_CALLED = "never called, so nothing was measured of it"

Progress = Callable[[int, int, str], None]

_FILE = '''"""Mixed precision for {target}, by `precision-eval modules`: everything float32 but PARTS.

Use: `from {stem} import policy; policy(model)`, or `precision-eval run {target} --candidate {name}:policy`.
{facts}
"""

import torch
from torch.utils import _pytree as pytree

FORMAT = torch.{format}
PARTS = (
{parts}
)


def policy(model):
    """Change a model in place."""
    model.float()
    model.register_forward_pre_hook(_cast_inputs(torch.float32), with_kwargs=True)
    modules = dict(model.named_modules())
    for name in PARTS:  # by its path in the model, or in what is around it
        path = name if name in modules else next(path for path in modules if path.endswith(f".{{name}}"))
        part = modules[path].to(FORMAT)
        part.register_forward_pre_hook(_cast_inputs(FORMAT), with_kwargs=True)
        part.register_forward_hook(lambda part, inputs, output: _cast(output, torch.float32))


def _cast_inputs(dtype):
    return lambda part, args, kwargs: (_cast(args, dtype), _cast(kwargs, dtype))


def _cast(values, dtype):
    return pytree.tree_map(lambda x: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x, values)
'''


@dataclass(frozen=True, kw_only=True)
class Part:
    """Modules that are in half together, and what that costs alone."""

    names: tuple[str, ...]
    saved_bytes: int
    drift: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ModulePolicy:
    """Parts in half, with the drift of the policy, of float32 and of all parts in half, on the choosing inputs."""

    parts: tuple[Part, ...]
    tried: tuple[Part, ...]
    format: str
    drift: float
    float32: float
    all_half: float
    limit: float

    @property
    def sentence(self) -> str:
        saved = sum(part.saved_bytes for part in self.parts)
        many = f"{len(self.parts)} of {len(self.tried)} parts in {self.format}"
        return (
            f"{many} save {saved:,} bytes of float32 weights at a drift of {self.drift:.2g} (limit {self.limit:.2g}); "
            f"float32 throughout {self.float32:.2g}, all parts in {self.format} {self.all_half:.2g}."
        )


def parts_of(model: nn.Module) -> list[Part]:
    modules: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in modules)
        has_weights = any(p.is_floating_point() for p in module.parameters(recurse=False))
        is_whole = not list(module.children()) or type(module).__module__.startswith("torch.nn.")
        if name and has_weights and is_whole and not is_inside:
            modules[name] = module
    groups: list[tuple[list[str], dict[int, torch.Tensor]]] = []
    for name, module in modules.items():
        tensors: dict[int, torch.Tensor] = {id(p): p for p in module.parameters() if p.is_floating_point()}
        shared = next((group for group in groups if group[1].keys() & tensors.keys()), None)
        if shared is None:
            groups.append(([name], tensors))
        else:
            shared[0].append(name)
            shared[1].update(tensors)
    return [
        Part(names=tuple(names), saved_bytes=sum(2 * t.numel() for t in weights.values())) for names, weights in groups
    ]


def fix_of(parts: Sequence[Part], format: str) -> Fix:
    """Return the policy as a fix, by the very file that is written."""
    namespace: dict[str, Any] = {}
    exec(compile(file_text(parts, format), "<policy>", "exec"), namespace)  # noqa: S102 - our own text
    return Fix(id="policy", change=namespace["policy"])


def file_text(parts: Sequence[Part], format: str, *, target: str = "my_case.py:factory", facts: str = "") -> str:
    names = "\n".join(f"    {name!r}," for part in parts for name in part.names)
    return _FILE.format(target=target, stem="policy", name="policy.py", format=format, parts=names, facts=facts)


class _Drifts:
    """Runs policies on the choosing inputs; what has been run is on file."""

    def __init__(self, case: Case, size: str, seeds: Sequence[int], format: str, file: TrialFile) -> None:
        self.format, self.file, self.seeds = format, file, tuple(seeds)
        self.built = [case.build(size, device="cpu", seed=seed) for seed in seeds]
        self.references = [exact_output(built) for built in self.built]
        digest = digest_of(case.id, self.built[0]) if is_target(case.id) else case.digest
        self.common = f"v{VERSION}/{case.id}/{size}/{digest}/{format}/{','.join(map(str, seeds))}"
        self.known = {line["key"]: line for line in file.read()}

    def of(self, parts: Sequence[Part]) -> tuple[float | None, str]:
        """Return the drift with some parts in half, or why there is none."""
        key = f"{self.common}/{'+'.join(sorted(name for part in parts for name in part.names))}"
        if key not in self.known:
            drift, reason = self._run(fix_of(parts, self.format))
            self.known[key] = {"key": key, "drift": drift, "reason": reason}
            self.file.append(self.known[key])
        return self.known[key]["drift"], self.known[key]["reason"]

    def _run(self, fix: Fix) -> tuple[float | None, str]:
        drifts = []
        for built, reference in zip(self.built, self.references, strict=True):
            try:
                with fix.applied(copy.deepcopy(built.model)) as call:
                    drifts.append(relative_error(built, call, reference))
            except Exception as error:  # noqa: BLE001 - whatever a model raises is the result
                return None, failure_of(fix.id, error).reason or type(error).__name__
        if not np.isfinite(drifts).all():
            return None, "an output value is NaN or infinite"
        return float(np.exp(np.log(np.maximum(drifts, 1e-300)).mean())), ""


def module_of(built: BuiltCase) -> nn.Module:
    """Return the user's model of a case, and no step around one, which has nothing of its own."""
    module = built.model.model if isinstance(built.model, Packed) else built.model
    while len(inner := list(module.children())) == 1 and not any(True for _ in module.parameters(recurse=False)):
        if not list(inner[0].children()):
            break  # a part, and no model
        module = inner[0]
    return module


def search_modules(
    case: Case,
    size: str,
    *,
    seeds: Sequence[int],
    format: str,
    file: TrialFile,
    max_drift: float | None = None,
    progress: Progress = lambda done, total, what: None,
) -> ModulePolicy:
    """Run each part alone, then policies of the most worthwhile ones, as many as the limit of drift allows."""
    drifts = _Drifts(case, size, seeds, format, file)
    parts = parts_of(module_of(drifts.built[0]))
    if not parts:
        raise ParameterError(f"{case.id} has no module with parameters that could be kept in half; expected some")
    float32, reason = drifts.of(())
    if float32 is None:
        raise ParameterError(f"{case.id} does not run in float32 throughout, which a policy begins with: {reason}")
    called, tried = called_parts(drifts.built[0], parts), []
    for index, part in enumerate(parts):
        progress(index, len(parts), f"{format}: {part.names[0]}")
        drift, reason = drifts.of((part,)) if part.names in called else (None, NOT_CALLED)
        tried.append(replace(part, drift=drift, reason=reason))
    progress(len(parts), len(parts), "parts alone")
    usable = sorted((part for part in tried if part.drift is not None), key=partial(_cost, float32=float32))
    all_half, _ = drifts.of(usable)
    limit = SHARE * (all_half or float("inf")) if max_drift is None else max_drift
    chosen, drift = _longest(usable, limit, drifts.of)
    return ModulePolicy(
        parts=tuple(chosen), tried=tuple(tried), format=format, drift=drift if chosen else float32,
        float32=float32, all_half=all_half if all_half is not None else float("inf"), limit=limit,
    )  # fmt: skip


def _cost(part: Part, *, float32: float) -> float:
    """Return the squared drift that a part adds alone, per byte that it saves."""
    assert part.drift is not None
    return max(part.drift**2 - float32**2, 1e-300) / part.saved_bytes


def _longest(
    usable: Sequence[Part], limit: float, drift_of: Callable[[Sequence[Part]], tuple[float | None, str]]
) -> tuple[Sequence[Part], float]:
    """Bisect for the most parts, cheapest first, that keep the limit together."""
    low, high, best = 0, len(usable), float("nan")
    while low < high:
        middle = (low + high + 1) // 2
        drift, _ = drift_of(usable[:middle])
        if drift is not None and drift <= limit:
            low, best = middle, drift
        else:
            high = middle - 1
    return usable[:low], best


def called_parts(built: BuiltCase, parts: Sequence[Part]) -> set[tuple[str, ...]]:
    """Return the names of the parts that a call in float32 reaches."""
    model, called = copy.deepcopy(built.model), set()
    modules = dict(module_of(BuiltCase(model, built.inputs)).named_modules())
    for part in parts:
        for name in part.names:
            modules[name].register_forward_pre_hook(lambda *_, names=part.names: called.add(names))
    with fix_of((), FORMATS[0]).applied(model) as call:
        call(*call.prepare(built.inputs))
    return called


def time_policy(
    policy: ModulePolicy, built: BuiltCase, *, device: str = "cpu", budget_s: float = 2.0
) -> tuple[PairedRatio, PairedRatio | None]:
    """Return the time of the policy over that of float32 throughout, in this process.

    On CUDA it is the device's time, and that of calls launched from Python comes second.
    """
    on_cuda, candidates = device.startswith("cuda"), {}
    with one_thread(), ExitStack() as stack:
        for name, parts in {"float32": (), "policy": policy.parts}.items():
            call = fix_of(parts, policy.format).applied(copy.deepcopy(built.model))
            stack.enter_context(call.stored())
            candidates[name] = Candidate(call.bind(*call.prepare(built.inputs)), call.agreeing)
        compare = partial(
            compare_latency, candidates, baseline="float32", budget_s=budget_s / (2 if on_cuda else 1), device=device,
            check=False,  # a step may write its cache, so a call need not repeat
        )  # fmt: skip
        launched = compare(timer=LaunchedTimer(device))["policy"] if on_cuda else None  # before a profiler slows it
        return compare(graph=on_cuda)["policy"], launched


def advice(policy: ModulePolicy, time: PairedRatio | None, launched: PairedRatio | None = None) -> str:
    """Say whether to ship the policy, by its time; it has kept the limit of drift."""
    if time is None:
        return "Keep float32: no module in half keeps the limit of drift."
    interval = f"{time.ratio:.2f} × the time of float32 [{time.ratio_low:.2f}, {time.ratio_high:.2f}]"
    if launched is not None:
        interval += (
            f" on the device, {launched.ratio:.2f} × launched from Python [{launched.ratio_low:.2f}, "
            f"{launched.ratio_high:.2f}]"
        )
    if time.verdict == "slower":
        return f"Not recommended for speed: the policy takes {interval}. It saves memory only."
    if time.verdict == "faster":
        return f"Recommended: the policy takes {interval}."
    return f"The policy saves memory; its time is {time.verdict}: {interval}."


def policy_table(policy: ModulePolicy, *, every: bool = True) -> Table:
    """Return the parts by the drift that each adds alone, the largest first; else those of like layers as one."""
    chosen = {part.names for part in policy.parts}
    ranked = sorted(policy.tried, key=lambda part: -(part.drift or float("inf")))
    if every:
        rows = [_part_row([part], chosen) for part in ranked]
    else:
        like = grouped(((tuple(map(_any_layer, part.names)), part.reason), part) for part in ranked)
        rows = [_part_row(parts, chosen) for parts in like.values()]
    return make_table(("part", "bytes saved", "drift alone", f"in {policy.format}"), rows, align="lrrl")


def _any_layer(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _part_row(parts: Sequence[Part], chosen: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Write parts as one row: their largest drift first, and how many of them are in half."""
    name, first = " = ".join(parts[0].names), parts[0]
    drift = "–" if first.drift is None else f"{first.drift:.2e}"
    is_in = [part.names in chosen for part in parts]
    verdict = "yes" if all(is_in) else f"no: {first.reason[:80]}" if first.reason else "no"
    if len(parts) > 1:
        name = f"{' = '.join(map(_any_layer, first.names))} ({len(parts)})"
        drift += "" if first.drift is None else f" to {parts[-1].drift:.2e}"
        verdict = f"{sum(is_in)} of {len(parts)}" if any(is_in) and not all(is_in) else verdict
    return name, f"{sum(part.saved_bytes for part in parts):,}", drift, verdict


def write_policy(policy: ModulePolicy, target: str, path: Path) -> None:
    facts = textwrap.fill(f"On the inputs that chose it: {policy.sentence}", 110)
    with written_whole(path) as partial_path:
        partial_path.write_text(file_text(policy.parts, policy.format, target=target, facts=facts), encoding="utf-8")
