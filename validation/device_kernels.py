"""Torch's attention kernels of one device, held by the suite's judge to honest computations on that device.

A line is one kernel on one family of :mod:`.faults.families` in one dtype, eight calls judged together, twice: with
yardsticks as a user draws them, and *alone*, where no kernel of torch's is among the yardsticks. A kernel that does not
take the operands is no trial; why is kept. A mask that hides nothing is left out and a causal one of as many rows as
keys is named so, as kernels without masks take these alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from precision_eval.core.environment import collect, resolved_device
from precision_eval.core.formats import short
from precision_eval.core.targets import first_line
from precision_eval.fixes.pins import SDPA_BACKENDS
from precision_eval.measure.assess import HonestRange, attention_yardsticks
from validation.faults import COMPILED
from validation.faults.families import DTYPES, FAMILIES, UNSEEN, Operands, sample
from validation.faults.honest import compiler, plainly
from validation.faults.kernels import exact
from validation.faults.trials import LETTERS, POOL, Rate
from validation.frame import Data, Experiment, Figure, Options, Trial

_QUICK = ("gaussian", "decode", "whole_prefill")
_FLEX = ("gaussian", "prefill_one_key", "low_rank")
"""Families on which flex_attention is compiled, for its time."""


def _on(o: Operands, device: str) -> Operands:
    return replace(o, q=o.q.to(device), k=o.k.to(device), v=o.v.to(device), mask=o.mask.to(device))


def _operands(o: Operands) -> tuple[Any, ...]:
    return o.q, o.k, o.v, o.mask, o.scale


def _sdpa(o: Operands, *, backend: SDPBackend | None = None, attention: Any = F.scaled_dot_product_attention) -> Tensor:
    rows, keys = o.mask.shape
    causal = rows == keys and bool((o.mask == torch.ones_like(o.mask).tril()).all())
    mask = None if causal or bool(o.mask.all()) else o.mask
    with nullcontext() if backend is None else sdpa_kernel(backend):
        found: Tensor = attention(o.q, o.k, o.v, attn_mask=mask, is_causal=causal, scale=o.scale)
    return found


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    def masked(score: Tensor, b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return torch.where(mask[row, key], score, -torch.inf)

    found: Tensor = flex_attention(q, k, v, score_mod=masked, scale=scale)
    return found


KERNELS: dict[str, Callable[[Operands], Tensor]] = {
    "default": _sdpa,
    "eager": lambda o: plainly(*_operands(o)),
    **{
        name: lambda o, of_torch=of_torch: _sdpa(o, backend=getattr(SDPBackend, of_torch))  # type: ignore[misc]
        for name, of_torch in SDPA_BACKENDS.items()
    },
    "compiled eager": lambda o: compiler(plainly)(*_operands(o)),
    "compiled default": lambda o: _sdpa(o, attention=compiler(F.scaled_dot_product_attention)),
    "flex_attention": lambda o: compiler(_flex, dynamic=None)(*_operands(o)),
}
"""Kernels by name; each takes the operands of one call."""


def _trials(options: Options) -> list[Trial]:
    """Every kernel on every family, those that share their inputs together."""
    chosen = product(options["families"] or (*FAMILIES, *UNSEEN), DTYPES)
    return [
        Trial(f"{family}/{short(dtype)}/{kernel}/{options['device']}", (family, dtype, kernel))
        for family, dtype in chosen
        for kernel in KERNELS
        if family in (_FLEX if kernel == "flex_attention" else COMPILED if "compiled" in kernel else FAMILIES | UNSEEN)
    ]


class _Stand:
    """Eight calls on a device, their reference, and what honest computations of them span."""

    def __init__(self, family: str, dtype: torch.dtype, device: str) -> None:
        self.calls = [_on(sample(family, seed=seed, dtype=dtype), device) for seed in range(POOL)]
        reference = [exact(o) for o in self.calls]
        self.ranges: dict[str, HonestRange] = {}
        for name, backends in (("as drawn", True), ("alone", False)):
            drawn = [
                attention_yardsticks(o.q, o.k, o.v, mask=o.mask, scale=o.scale, backends=backends) for o in self.calls
            ]
            self.ranges[name] = HonestRange(reference, drawn, dtype)


def _judged(kernel: str, stand: _Stand) -> Data:
    """What the judge says of a kernel, one letter each; or why the kernel did not run."""
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # torch says why a kernel is not used
        try:
            outputs = [KERNELS[kernel](o) for o in stand.calls]
        except Exception as error:  # noqa: BLE001 - whatever a kernel or the compiler raises is why it did not run
            return {"refused": first_line(error)}
    found = {name: one.assess(outputs) for name, one in stand.ranges.items()}
    said = {name: {"said": LETTERS[one.verdict], "reasons": list(one.reasons)} for name, one in found.items()}
    return {"held_to": said}


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    device = resolved_device(options["device"])
    stand = lru_cache(maxsize=1)(_Stand)
    for key, (family, dtype, kernel), _ in trials:
        yield {"key": key, **_judged(kernel, stand(family, dtype, device))}


def _summary(lines: Sequence[Data], options: Options) -> Data:
    """Count per kernel what was judged, and keep each alarm and one reason of each that refused."""
    kernels: dict[str, Data] = {name: {"judged": 0, "alarms": {}, "refused": {}} for name in KERNELS}
    for line in lines:
        family, dtype, kernel, _ = line["key"].split("/")
        one = kernels[kernel]
        if "refused" in line:
            one["refused"][line["refused"]] = one["refused"].get(line["refused"], 0) + 1
            continue
        one["judged"] += 1
        for name, found in line["held_to"].items():
            if found["said"] != ".":
                one["alarms"].setdefault(name, []).append(f"{family} in {dtype}: {found['reasons'][0]}")
    device = resolved_device(options["device"])
    return {"device": collect(device)["device"], "kernels": kernels}


def _figures(content: Data) -> list[Figure]:
    figures = [Figure("device", content["device"].get("model", content["device"]["name"]))]
    kernels = content["kernels"]
    for name, words, target in (
        ("as drawn", "", 0.01),
        ("alone", ", torch's own kernels not among the yardsticks", None),
    ):
        alarms = {kernel: one["alarms"].get(name, []) for kernel, one in kernels.items()}
        rate = Rate(sum(map(len, alarms.values())), sum(one["judged"] for one in kernels.values()))
        by_kernel = {kernel: f"{len(alarms[kernel])} of {one['judged']}" for kernel, one in kernels.items()}
        met = None if target is None else rate.value <= target
        figures.append(Figure(f"alarms{words}", str(rate), "" if target is None else "≤ 1 %", met, by_kernel))
    for kernel, one in kernels.items():
        if one["refused"]:
            count, why = max((count, why) for why, count in one["refused"].items())
            figures.append(
                Figure(f"{kernel} does not take", f"{sum(one['refused'].values())}; mostly: {why} ({count})")
            )
    return figures


EXPERIMENT = Experiment(
    name="device-kernels",
    title="torch's attention kernels on this device, held to honest computations",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    settings={"families": (_QUICK, ()), "device": ("auto", "auto")},
)
