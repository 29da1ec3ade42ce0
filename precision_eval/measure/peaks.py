"""What a machine can do at most, for the roofline: memory bandwidth, matrix products, and the kernels that torch has.

Conventions: rates are per second, of FLOPs or of bytes read plus written. A *roof* of a kind of kernel in a dtype is
its FLOP/s over *rows*: how many rows share one reading of the larger operand, which a product's FLOPs per byte tell.
Times are processor times of one thread, the least of several calls, so that other work on the machine raises them
little; with more threads they are wall-clock times. Measured only on a CPU; of GPUs that are not here the published
peaks are known, and nothing of their kernels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from precision_eval.core.errors import ParameterError, RecordError, entry_of
from precision_eval.core.formats import cpu_flags, cpu_support, cuda_support
from precision_eval.core.shapes import AMOUNT, Name, misfit

DTYPES = ("float32", "float16", "bfloat16")
PAGE_BYTES = 4096
_FOOTPRINTS = (1 << 20, 16 << 20, 128 << 20, 512 << 20)
_ROWS = (1, 2, 16, 64)
_WEIGHT = (2048, 4096)
_SLOTS, _HEADS, _HEAD_DIM = 1024, 16, 64
_SQUARE = 1024
_CAST_ELEMENTS = 1 << 22
_FRESH = 64 << 20  # beyond what glibc keeps
_PROBE_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peaks of one machine.

    Attributes
    ----------
    name, source : str
        Which machine, and where the figures are from.
    bandwidth : dict of int to float
        Bytes that a call touches to the bytes per second at which memory of that size is copied.
    flops : dict of str to float
        Dtype to FLOP/s of a large matrix product; for a published GPU, that of its tensor cores.
    emulated : dict of str to str
        Dtype to why it is computed in another one.
    roofs : dict of str to list of (rows, FLOP/s)
        ``"product float16"`` or ``"attention float16"``; empty where only published peaks are known.
    casts : dict of str to float
        ``"float16 to float32"`` to bytes per second.
    call_s, page_fault_s : float
        One small operation; one page of fresh memory.
    """

    name: str
    source: str
    bandwidth: Mapping[int, float]
    flops: Mapping[str, float]
    emulated: Mapping[str, str] = field(default_factory=dict)
    roofs: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    casts: Mapping[str, float] = field(default_factory=dict)
    call_s: float = 0.0
    page_fault_s: float = 0.0

    def bandwidth_at(self, touched_bytes: float) -> float:
        """Bytes per second where a call touches so much memory."""
        return _interpolated([*self.bandwidth.items()], touched_bytes)

    def roof(self, kind: str, dtype: str, rows: float) -> float | None:
        """FLOP/s of a kind of kernel where `rows` rows share a reading; None where it was not measured."""
        points = self.roofs.get(f"{kind} {dtype}")
        return None if points is None else _interpolated(points, rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        bandwidth = {str(size): rate for size, rate in self.bandwidth.items()}
        roofs = {kernel: [list(point) for point in points] for kernel, points in self.roofs.items()}
        return asdict(self) | {"bandwidth": bandwidth, "roofs": roofs}


_SHAPE = {
    **{"name!": Name(), "source!": Name(), "emulated!": {"*": str}, "roofs!": {"*": [[(1e-3, 1e18)]]}},
    **{name: {"*": (1e-3, 1e18)} for name in ("bandwidth!", "flops!", "casts!")},
    **dict.fromkeys(("call_s!", "page_fault_s!"), AMOUNT),
}


def peaks_of(data: Any, *, where: str) -> Peaks:
    """Read stored peaks."""
    problem = misfit(data, _SHAPE, where="it")
    if not problem and not all(size.isdecimal() for size in data["bandwidth"]):
        problem = "a size of its bandwidth is no number"
    if not problem and not all(len(point) == 2 for points in data["roofs"].values() for point in points):
        problem = "a point of a roof is no pair"
    if problem or not data["bandwidth"] or not set(DTYPES) <= set(data["flops"]):
        raise RecordError(f"{where} holds no peaks: {problem or 'some are missing'}; remove it to measure them again")
    known = {name.removesuffix("!") for name in _SHAPE}
    bandwidth = {int(size): rate for size, rate in data["bandwidth"].items()}
    return Peaks(**{name: data[name] for name in known} | {"bandwidth": bandwidth})


def _published(name: str, compute: tuple[int, ...], gb_per_s: float, tera: tuple[float, float], source: str) -> Peaks:
    """Make the peaks of a GPU: FLOP/s in float32 without TF32, as torch has it, and in half without sparsity."""
    emulated = {dtype: cuda_support(dtype, compute).reason for dtype in DTYPES[1:]}
    single, half = (1e12 * flops for flops in tera)
    flops = {dtype: single if emulated.get(dtype) or dtype == "float32" else half for dtype in DTYPES}
    named = {dtype: reason for dtype, reason in emulated.items() if reason}
    return Peaks(name=name, source=source, bandwidth={1: 1e9 * gb_per_s}, flops=flops, emulated=named)


PUBLISHED: tuple[Peaks, ...] = (
    _published("t4", (7, 5), 320, (8.1, 65), "third-party tables of the T4"),
    _published("a10g", (8, 6), 600, (35, 70), "600 GB/s by baseten.co; FLOP/s not looked up"),
    _published("a100", (8, 0), 1555, (19.5, 312), "third-party tables of the A100, 40 GB"),
    _published("h100", (9, 0), 3350, (67, 989.4), "third-party tables of the H100, SXM, 80 GB"),
)
"""Published peaks; a prediction from them is of the device's limits, not of its kernels."""


def published_peaks(name: str) -> Peaks:
    """Look a published device up."""
    return entry_of("device", name, PUBLISHED, by="name")


def measure_peaks(name: str, *, threads: int = 1) -> Peaks:
    """Measure the peaks of this machine's processor, in some 15 s."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    try:
        with torch.no_grad():
            measured = _measured(torch, clock)
    finally:
        torch.set_num_threads(before)
    supports = {dtype: cpu_support(dtype, cpu_flags()) for dtype in DTYPES}
    emulated = {dtype: support.reason for dtype, support in supports.items() if support.kind == "emulated"}
    source = f"measured, {threads} thread{'s' if threads > 1 else ''}"
    return Peaks(name=name, source=source, emulated=emulated, **measured)


def _measured(torch: Any, clock: Callable[[], float]) -> dict[str, Any]:
    dtypes = {dtype: getattr(torch, dtype) for dtype in DTYPES}
    bandwidth = {}
    for size in _FOOTPRINTS:
        source, target = (torch.ones(size // 8) for _ in range(2))  # half of the footprint each
        bandwidth[size] = size / least_time(partial(target.copy_, source), clock)
    flops, roofs, casts = {}, {}, {}
    for name, dtype in dtypes.items():
        square = torch.ones(_SQUARE, _SQUARE).to(dtype)
        flops[name] = 2 * _SQUARE**3 / least_time(partial(torch.mm, square, square), clock)
        roofs[f"product {name}"] = _product_roof(torch, dtype, clock)
        roofs[f"attention {name}"] = _attention_roof(torch, dtype, clock)
        values = torch.ones(_CAST_ELEMENTS).to(dtype)
        for other, wanted in dtypes.items():
            if other != name:
                moved = _CAST_ELEMENTS * (dtype.itemsize + wanted.itemsize)
                target = torch.ones(_CAST_ELEMENTS).to(wanted)  # a new one might be fresh memory at each call
                casts[f"{name} to {other}"] = moved / least_time(partial(target.copy_, values), clock)
    warm = torch.ones(_FRESH, dtype=torch.uint8)
    fresh_s = least_time(lambda: torch.empty_like(warm).fill_(1), clock) - least_time(lambda: warm.fill_(1), clock)
    few = torch.ones(8)
    call_s = least_time(lambda: [few + few for _ in range(1000)], clock) / 1000
    return {
        **{"bandwidth": bandwidth, "flops": flops, "roofs": roofs, "casts": casts},
        **{"call_s": call_s, "page_fault_s": max(0.0, fresh_s) * PAGE_BYTES / warm.numel()},
    }


def _product_roof(torch: Any, dtype: Any, clock: Callable[[], float]) -> list[tuple[float, float]]:
    weight, points = torch.ones(_WEIGHT).to(dtype), []
    for rows in _ROWS:
        x = torch.ones(rows, _WEIGHT[1]).to(dtype)
        seconds = least_time(partial(torch.nn.functional.linear, x, weight), clock)
        points.append(_point(2.0 * rows * weight.numel(), (x, weight), seconds))
    return points


def _attention_roof(torch: Any, dtype: Any, clock: Callable[[], float]) -> list[tuple[float, float]]:
    keys, points = torch.ones(1, _HEADS, _SLOTS, _HEAD_DIM).to(dtype), []
    attend = torch.nn.functional.scaled_dot_product_attention
    for rows in _ROWS:
        q, mask = torch.ones(1, _HEADS, rows, _HEAD_DIM).to(dtype), torch.ones(1, 1, rows, _SLOTS, dtype=torch.bool)
        seconds = least_time(partial(attend, q, keys, keys, attn_mask=mask), clock)
        points.append(_point(4.0 * rows * keys.numel(), (q, keys, keys), seconds))
    return points


def _point(flops: float, operands: tuple[Any, ...], seconds: float) -> tuple[float, float]:
    """Return the rows that share a reading, and FLOP/s."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in operands)
    return rows_of(flops, size, operands[0].element_size()), flops / seconds


def rows_of(flops: float, size_bytes: float, itemsize: int) -> float:
    """Rows that share a reading: FLOPs per element moved, of which each row has two."""
    return flops * itemsize / (2.0 * size_bytes)


def least_time(call: Callable[[], object], clock: Callable[[], float], *, budget_s: float = _PROBE_S) -> float:
    """Return the least time of a call, in seconds: of three calls at least, and of as many as fit the budget."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < budget_s:
        start = clock()
        call()
        times.append(clock() - start)
        if len(times) >= 1000:
            break
    return max(min(times), 1e-9)


def _interpolated(points: Sequence[Sequence[float]], x: float) -> float:
    """Interpolate a rate on logarithmic axes; beyond the ends it stays."""
    if not points or x < 0:
        raise ParameterError(f"no rate at {x:g} of {len(points)} points; give a size of zero or more, and points")
    points = sorted(points, key=lambda point: point[0])
    logs = np.log([max(at, 1e-9) for at, _ in points]), np.log([rate for _, rate in points])
    return math.exp(float(np.interp(math.log(max(x, 1e-9)), *logs)))
