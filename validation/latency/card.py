"""Equal and slowed calls on a real card: how often ``compare_latency`` tells them apart, captured and launched.

The calls copy memory or read it in a product with a vector; the slowed one has 1 % more to do. `own` tensors lie in
places of their own, `shared` ones are the baseline's. Beside each pair, triton's ``do_bench`` where it is installed.
A trial names the card. On a CPU the same runs launched, which the tests use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

from precision_eval.core.environment import cpu_model
from precision_eval.core.errors import UnsupportedError
from precision_eval.measure.latency import compare_latency
from validation.frame import Data, Experiment, Figure, Options, Trial, each
from validation.report import judged_share, share_text

KINDS = {"copy": 1 << 24, "product": 1 << 13}  # float32 values, and rows of as many columns
TENSORS, FAULTS, CLOCKS = ("own", "shared"), ("none", "plus1"), ("graph", "launched")
MORE = 1.01
APART = 0.005  # what do_bench's two times are held to, as it gives no interval


def _trials(options: Options) -> list[Trial]:
    place = processor_of(options["device"])
    clocks = CLOCKS if options["device"].startswith("cuda") else CLOCKS[1:]
    return [
        Trial(f"{place}/{'/'.join(what)}/{number}", (options["device"], options["budget_s"], number, *what))
        for number in range(options["trials"])
        for what in product(KINDS, TENSORS, FAULTS, clocks)
    ]


def processor_of(device: str) -> str:
    """Return the name of what runs the calls, for the key of a trial; refuse a card that is not there."""
    if device == "cpu":
        return str(cpu_model())
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"no CUDA device here, asked for {device}; add --set device=cpu, or use a machine with one"
        )
    return str(torch.cuda.get_device_name(device))


def calls_of(kind: str, tensors: str, fault: str, device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a baseline and a candidate that does as much, or 1 % more."""
    import torch

    size = KINDS[kind] if device != "cpu" else KINDS[kind] // 64
    more = round(size * MORE) if fault == "plus1" else size
    share = tensors == "shared"
    if kind == "copy":
        source, target = (torch.ones(round(size * MORE), device=device) for _ in range(2))
        others = (source, target) if share else (source.clone(), target.clone())
        return partial(target[:size].copy_, source[:size]), partial(others[1][:more].copy_, others[0][:more])
    columns = min(size, 8192)
    weight, vector = torch.ones(round(size * MORE), columns, device=device), torch.ones(columns, device=device)
    other, second = (weight, vector) if share else (weight.clone(), vector.clone())
    return partial(torch.mv, weight[:size], vector), partial(torch.mv, other[:more], second)


def _judge(spec: tuple[str, float, int, str, str, str, str]) -> Data:
    device, budget_s, number, kind, tensors, fault, clock = spec
    base, candidate = calls_of(kind, tensors, fault, device)
    begun_s = time.perf_counter()
    ratio = compare_latency(
        {"base": base, "candidate": candidate}, baseline="base", budget_s=budget_s, device=device, seed=number,
        graph=clock == "graph", check=fault == "none",
    )["candidate"]  # fmt: skip
    seconds = time.perf_counter() - begun_s
    return {
        "tensors": tensors, "fault": fault, "clock": clock, "said": ratio.verdict, "ratio": ratio.ratio,
        "low": ratio.ratio_low, "high": ratio.ratio_high, "seconds": seconds,
        "do_bench": _do_bench(base, candidate) if clock == "graph" else None,
    }  # fmt: skip


def _do_bench(base: Callable[[], object], candidate: Callable[[], object]) -> float | None:
    if find_spec("triton") is None:
        return None
    testing: Any = __import__("triton.testing", fromlist=["do_bench"])
    return float(testing.do_bench(candidate) / testing.do_bench(base))


def _figures(lines: list[Data]) -> Iterator[Figure]:
    for place in dict.fromkeys(line["key"].split("/")[0] for line in lines):
        here = [line for line in lines if line["key"].startswith(f"{place}/")]
        for clock in CLOCKS:
            yield from _figures_of(f"{place}, {clock}", [line for line in here if line["clock"] == clock])


def _figures_of(place: str, lines: list[Data]) -> Iterator[Figure]:
    for tensors in TENSORS:
        equal, slowed = ([x for x in lines if (x["tensors"], x["fault"]) == (tensors, fault)] for fault in FAULTS)
        if not equal or not slowed:
            continue
        label = f"{place}, {tensors} tensors"
        apart = sum(line["said"] in ("faster", "slower") for line in equal)
        theirs = [abs(line["do_bench"] - 1.0) > APART for line in equal if line["do_bench"] is not None]
        rivals = {"do_bench, more than 0.5 % apart": share_text(sum(theirs), len(theirs))} if theirs else {}
        yield judged_share(f"{label}: equal calls told apart", apart, len(equal), "≤ 1 %", rivals=rivals, enough=20)
        holds = sum(line["low"] <= 1.0 <= line["high"] for line in equal)
        yield judged_share(f"{label}: interval holds 1", holds, len(equal), "≥ 93 %", enough=20)
        hits = sum(line["said"] == "slower" for line in slowed)
        yield judged_share(f"{label}: 1 % more work found", hits, len(slowed), "≥ 95 %", enough=20)


EXPERIMENT = Experiment(
    name="card",
    title="equal and slowed calls on a real card",
    trials=_trials,
    run=each(_judge),
    figures=lambda lines: list(_figures(lines)),
    settings={"trials": (8, 60), "budget_s": (0.4, 1.0), "device": ("cuda", "cuda")},
)
