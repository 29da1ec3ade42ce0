"""What a machine can do at most, for the roofline: memory bandwidth, matrix products, and the kernels that torch has.

Conventions: rates are per second, of FLOPs or of bytes read plus written. A *roof* of a kind of kernel in a dtype is
its FLOP/s over *rows*: how many rows share one reading of the larger operand, which a product's FLOPs per byte tell.
Times are processor times of one thread, the least of several calls, so that other work on the machine raises them
little; with more threads they are wall-clock times. Measured only on a CPU; of GPUs that are not here the published
peaks are known, and nothing of their kernels.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from mmap import mmap
from typing import Any

import numpy as np

from precision_eval.core.errors import ParameterError, RecordError, entry_of
from precision_eval.core.formats import cpu_flags, cpu_support, cuda_support
from precision_eval.core.shapes import AMOUNT, Name, misfit
from precision_eval.trace.work import ATTENTION, PRODUCT, UNTRANSPOSED

DTYPES = ("float32", "float16", "bfloat16")
PAGE_BYTES = 4096
_FOOTPRINTS = (1 << 20, 16 << 20, 128 << 20, 512 << 20)
_ROWS = (1, 2, 16, 64)
_WIDTHS = (512, 2048)  # of square weights: where a row's length is a power of two, a strided reading is slower
_SLOTS, _HEADS, _HEAD_DIM = 1024, 4, 128
_SQUARE = 768
_STREAMED = 256 << 20  # beyond every cache
_LAYERS = 25
_ROUNDS = 3
_CAST_ELEMENTS = 1 << 22
_FRESH = 64 << 20  # beyond what glibc keeps
_PROBE_S = 0.05


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
    roofs : dict of str to list of (rows, FLOP/s) or (rows, FLOP/s, bytes)
        ``"product float16"``, ``"untransposed product float16"`` or ``"attention float16"``, from cache, with the bytes
        of its larger operands; empty where only published peaks are known.
    streams : dict of str to list of (bytes, bytes per second)
        The same kernels: bytes of the larger operands, and how fast they are read at one row where no cache has them.
    casts : dict of str to float
        ``"float16 to float32"`` to bytes per second.
    call_s, page_fault_s : float
        One small operation of a module; one page of fresh memory.
    """

    name: str
    source: str
    bandwidth: Mapping[int, float]
    flops: Mapping[str, float]
    emulated: Mapping[str, str] = field(default_factory=dict)
    roofs: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    streams: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    casts: Mapping[str, float] = field(default_factory=dict)
    call_s: float = 0.0
    page_fault_s: float = 0.0

    def bandwidth_at(self, touched_bytes: float, kernel: str = "", size_bytes: float = 1.0) -> float:
        """Bytes per second where so much memory is touched; a kernel's own share of it, where that was measured."""
        rate = _interpolated([*self.bandwidth.items()], touched_bytes)
        own = self.streams.get(kernel)
        return _interpolated(own, size_bytes) * rate / self.bandwidth[max(self.bandwidth)] if own else rate

    def roof(self, kind: str, dtype: str, rows: float, size_bytes: float) -> float | None:
        """FLOP/s of a kind of kernel at so many rows and bytes of one operation; None where it was not measured."""
        points = self.roofs.get(f"{kind} {dtype}")
        if points is None and kind == UNTRANSPOSED and f"{PRODUCT} {dtype}" in self.roofs:
            # stored before this layout was measured, when `flops` was of it
            return min(self.roof(PRODUCT, dtype, rows, size_bytes) or math.inf, self.flops[dtype])
        if points is None:
            return None
        of_size: dict[float, list[Sequence[float]]] = {}
        for point in points:
            of_size.setdefault(point[2] if len(point) == 3 else 1.0, []).append(point)
        return _interpolated([(size, _interpolated(own, rows)) for size, own in of_size.items()], size_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data as JSON has it: sizes are texts, points lists."""
        return dict(json.loads(json.dumps(asdict(self))))


_SHAPE = {
    **{"name!": Name(), "source!": Name(), "emulated!": {"*": str}, "roofs!": {"*": [[(1e-3, 1e18)]]}},
    **{name: {"*": (1e-3, 1e18)} for name in ("bandwidth!", "flops!", "casts!")},
    "streams": {"*": [[(1e-3, 1e18)]]},
    **dict.fromkeys(("call_s!", "page_fault_s!"), AMOUNT),
}


def peaks_of(data: Any, *, where: str) -> Peaks:
    """Read stored peaks."""
    problem = misfit(data, _SHAPE, where="it")
    if not problem and not all(size.isdecimal() for size in data["bandwidth"]):
        problem = "a size of its bandwidth is no number"
    curves = [] if problem else [*data["roofs"].values(), *data.get("streams", {}).values()]
    if not all(len(point) in (2, 3) for points in curves for point in points):
        problem = "a point of a roof is no pair and no triple"
    if problem or not data["bandwidth"] or not set(DTYPES) <= set(data["flops"]):
        raise RecordError(f"{where} holds no peaks: {problem or 'some are missing'}; remove it to measure them again")
    known = {name.removesuffix("!") for name in _SHAPE}
    bandwidth = {int(size): rate for size, rate in data["bandwidth"].items()}
    return Peaks(**{name: data[name] for name in known & data.keys()} | {"bandwidth": bandwidth})


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
    _published("h200", (9, 0), 4800, (67, 989.4), "third-party tables of the H200, SXM, 141 GB"),
)
"""Published peaks; a prediction from them is of the device's limits, not of its kernels."""


def published_peaks(name: str) -> Peaks:
    """Look a published device up."""
    return entry_of("device", name, PUBLISHED, by="name")


def peaks_of_gpu(model: str) -> Peaks:
    """Find the published peaks of a GPU by what its driver calls it, such as ``NVIDIA H200``."""
    words = model.lower().replace("-", " ").split()
    found = next((peaks for peaks in PUBLISHED if peaks.name in words), None)
    if found is None:
        known = ", ".join(peaks.name for peaks in PUBLISHED)
        raise ParameterError(f"no peaks of {model} are published here; give --device with the nearest of {known}")
    return found


def measure_peaks(name: str, *, threads: int = 1) -> Peaks:
    """Measure the peaks of this machine's processor, in some 30 s; longer where a half format is slow."""
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
    """Time every probe in rounds, so that a while of other load spoils none for good, and return the best rates."""
    least: dict[tuple[str, Any, float], float] = {}
    for _ in range(_ROUNDS):
        for key, call in _probes(torch):
            least[key] = min(least.get(key, math.inf), least_time(call, clock))
    found: dict[str, Any] = {"bandwidth": {}, "flops": {}, "roofs": {}, "streams": {}, "casts": {}}
    for (kind, name, amount), seconds in least.items():
        if kind == "roofs":
            kernel, rows, size = name
            found[kind].setdefault(kernel, []).append((rows, amount / seconds, size))
        elif kind == "streams":
            found[kind].setdefault(name, []).append((amount, amount / seconds))
        elif kind in found:
            found[kind][name] = amount / seconds
    seconds_of = {kind: seconds for (kind, _, _), seconds in least.items()}
    fault_s = max(0.0, seconds_of["fresh"] - seconds_of["warm"]) * PAGE_BYTES / _FRESH
    return found | {"call_s": seconds_of["calls"] / (4 * _LAYERS), "page_fault_s": fault_s}


def _probes(torch: Any) -> Iterator[tuple[tuple[str, Any, float], Callable[[], object]]]:
    """Yield what to time: kind, name, and the FLOPs or bytes of a call."""
    dtypes = {dtype: getattr(torch, dtype) for dtype in DTYPES}
    for size in _FOOTPRINTS:
        source, target = (torch.ones(size // 8) for _ in range(2))  # half of the footprint each
        yield ("bandwidth", size, size), partial(target.copy_, source)
    for name, dtype in dtypes.items():
        square = torch.ones(_SQUARE, _SQUARE).to(dtype)
        yield ("flops", name, 2.0 * _SQUARE**3), partial(torch.nn.functional.linear, square, square)
        for kernel in _kernels(torch):
            yield from _probes_of(torch, *kernel, dtype, name)
        values = torch.ones(_CAST_ELEMENTS).to(dtype)
        for other, wanted in dtypes.items():
            if other != name:
                target = torch.ones(_CAST_ELEMENTS).to(wanted)  # a new one might be fresh memory at each call
                moved = _CAST_ELEMENTS * (dtype.itemsize + wanted.itemsize)
                yield ("casts", f"{name} to {other}", moved), partial(target.copy_, values)
    warm = torch.ones(_FRESH, dtype=torch.uint8)
    yield ("warm", None, 0.0), partial(warm.fill_, 1)
    yield ("fresh", None, 0.0), lambda: torch.frombuffer(mmap(-1, _FRESH), dtype=torch.uint8).fill_(1)
    layer = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 32), torch.nn.GLU())

    def step(x: Any) -> Any:
        for _ in range(_LAYERS):
            x = x + layer(x)  # four operations, and what Python takes to come to them
        return x

    yield ("calls", None, 0.0), partial(step, torch.ones(1, 16))


def _kernels(torch: Any) -> Iterator[tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...], Callable[..., object]]]:
    """Yield kernels: kind, shape of a row, shapes of the larger operands, and the call."""
    for width in _WIDTHS:
        yield PRODUCT, (1, width), ((width, width),), torch.nn.functional.linear
        yield UNTRANSPOSED, (1, width), ((width, width),), torch.mm
    mask, cache = torch.ones(1, 1, max(_ROWS), _SLOTS, dtype=torch.bool), (1, _HEADS, _SLOTS, _HEAD_DIM)
    attend = torch.nn.functional.scaled_dot_product_attention

    def masked(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, attn_mask=mask[:, :, : q.shape[-2]])

    yield ATTENTION, (1, _HEADS, 1, _HEAD_DIM), (cache, cache), masked


def _probes_of(
    torch: Any,
    kind: str,
    row: tuple[int, ...],
    shapes: Sequence[Any],
    call: Callable[..., object],
    dtype: Any,
    name: str,
) -> Iterator[tuple[tuple[str, Any, float], Callable[[], object]]]:
    """Yield the probes of a kernel: over rows with its operands in a cache, and at one row with others at each call."""
    kernel, numel = f"{kind} {name}", sum(map(math.prod, shapes))
    size = float(numel * dtype.itemsize)
    ring = [[torch.ones(shape).to(dtype) for shape in shapes] for _ in range(max(2, int(_STREAMED // size)))]
    for rows in _ROWS:
        x, flops = torch.ones(*row[:-2], rows, row[-1]).to(dtype), 2.0 * rows * numel
        shared = rows_of(flops, size + x.numel() * dtype.itemsize, dtype.itemsize)
        yield ("roofs", (kernel, shared, size), flops), partial(call, x, *ring[0])
    x, others = torch.ones(row).to(dtype), itertools.cycle(ring)
    yield ("streams", kernel, size), lambda: call(x, *next(others))


def rows_of(flops: float, size_bytes: float, itemsize: int) -> float:
    """Rows that share a reading: FLOPs per element moved, of which each row has two."""
    return flops * itemsize / (2.0 * size_bytes)


def least_time(call: Callable[[], object], clock: Callable[[], float], *, budget_s: float = _PROBE_S) -> float:
    """Return the least time of a call, in seconds: of as many as fit the budget; the first counts where it fills it."""
    times: list[float] = []
    while sum(times[1:]) < budget_s and len(times) < 1000:
        start = clock()
        call()
        times.append(clock() - start)
        if times[0] >= budget_s:
            break
    return max(min(times[1:] or times), 1e-9)


def _interpolated(points: Sequence[Sequence[float]], x: float) -> float:
    """Interpolate a rate on logarithmic axes; beyond the ends it stays."""
    if not points or x < 0:
        raise ParameterError(f"no rate at {x:g} of {len(points)} points; give a size of zero or more, and points")
    points = sorted(points, key=lambda point: point[0])
    logs = np.log([max(point[0], 1e-9) for point in points]), np.log([point[1] for point in points])
    return math.exp(float(np.interp(math.log(max(x, 1e-9)), *logs)))
