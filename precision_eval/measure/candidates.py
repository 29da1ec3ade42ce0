"""What has to hold before a call is timed: it returns, it repeats, it leaves its inputs alone, the clock resolves it.

Conventions: a candidate takes no arguments; its *inputs* are the tensors and arrays that it carries along: arguments of
a :class:`functools.partial`, variables of a closure, defaults of a function. Modules and objects are not searched: a
model may keep a cache that a step writes again and again.
"""

from __future__ import annotations

import functools
import math
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from precision_eval.core.errors import CandidateError
from precision_eval.measure.blocks import Candidate, read_block
from precision_eval.measure.timers import HostTimer, Timer

# Relative distance of two outputs that still counts as a repetition: kernels with atomics differ in the last bits.
REPEAT_TOLERANCE = 1e-3

SHORTEST_IN_EMPTY_CALLS = 10.0
# Two calls settle it where they last this many times what is asked of one.
SURELY = 100.0

# Documented of ``cudaEventElapsedTime``.
CUDA_EVENT_RESOLUTION_S = 0.5e-6


def check_candidate(name: str, candidate: Candidate) -> None:
    """Call a candidate twice; refuse one that does not repeat or changes its inputs."""
    carried = [leaf for where, value in parts_carried(candidate.call) for leaf in leaves_of(value, where)]
    inputs = {where: value for where, value in carried if isinstance(value, np.ndarray) or is_tensor(value)}
    before = {where: _checksum(value) for where, value in inputs.items()}
    first = [_copy_value(leaf) for _, leaf in leaves_of(_call(name, candidate))]
    second = [_copy_value(leaf) for _, leaf in leaves_of(_call(name, candidate))]
    for where, value in inputs.items():
        if _checksum(value) != before[where]:
            raise CandidateError(
                f"candidate '{name}' changes its input: {where}, {value.dtype} of shape {tuple(value.shape)}; every "
                "call would see another input, so let it work on a copy (or pass check=False where that is meant)"
            )
    if len(first) != len(second) or not all(_repeats(a, b) for a, b in zip(first, second, strict=True)):
        raise CandidateError(
            f"candidate '{name}' is not repeatable: two calls gave different outputs; fix its seed, reset its state "
            "in the call (or pass check=False where that is meant)"
        )


def check_resolvable(name: str, candidate: Candidate, timer: Timer) -> None:
    """Refuse a call that lasts no longer than the timer needs for itself."""
    clock = timer.clocks[0]
    if clock.startswith("cuda"):
        empty_s = CUDA_EVENT_RESOLUTION_S
    elif isinstance(timer, HostTimer):
        empty_s = float(np.median(timer(lambda: None, 200)[clock]))
    else:
        return
    least_s, samples_s = SHORTEST_IN_EMPTY_CALLS * empty_s, [0.0]
    for calls in (2, 9):  # the first may be many times slower than the next; nine of a long call take long
        if min(samples_s) < SURELY * least_s:
            samples_s = list(read_block(name, candidate, timer, calls)[clock])
    call_s = float(np.median(samples_s))
    if call_s < least_s:
        raise CandidateError(
            f"candidate '{name}' runs in {call_s * 1e6:.2g} µs, the {clock} clock resolves {empty_s * 1e6:.2g} µs; "
            f"repeat the work inside the call until it lasts {least_s * 1e6:.2g} µs or more"
        )


def parts_carried(call: Callable[..., object]) -> Iterator[tuple[str, Any]]:
    """Yield what a callable carries along, with where it is."""
    if isinstance(call, functools.partial):
        yield from parts_carried(call.func)
        yield from ((f"argument {index}", value) for index, value in enumerate(call.args))
        yield from ((f"argument '{key}'", value) for key, value in call.keywords.items())
        return
    code, cells = getattr(call, "__code__", None), getattr(call, "__closure__", None)
    for variable, cell in zip(code.co_freevars, cells, strict=True) if code is not None and cells else ():
        with suppress(ValueError):  # not bound yet
            yield f"variable '{variable}'", cell.cell_contents
    for index, value in enumerate(getattr(call, "__defaults__", None) or ()):
        yield f"default {index}", value


def _call(name: str, candidate: Candidate) -> object:
    try:
        with candidate.block():
            output = candidate.call()
    except Exception as error:
        raise CandidateError(f"candidate '{name}' raises: {type(error).__name__}: {error}") from error
    if output is None:
        raise CandidateError(
            f"candidate '{name}' returns nothing, so nobody can tell that it did its work; return the result "
            "(or pass check=False where it works in place)"
        )
    return output


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def leaves_of(value: object, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in tuples, lists and dicts, with where it is."""
    if isinstance(value, tuple | list | dict):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves_of(part, f"{where}[{key!r}]")
    else:
        yield where, value


def _array(value: Any) -> np.ndarray:
    """Value as a numpy array; formats that numpy lacks as float32, which holds them exactly."""
    if not is_tensor(value):
        return np.asarray(value)
    torch = sys.modules["torch"]
    tensor = value.detach()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.cpu().resolve_conj().numpy())


def _checksum(value: Any) -> int:
    if is_tensor(value):  # on its device; and what numpy has seen of a tensor keeps it in its place
        return bits_checksum(value)
    array = np.ascontiguousarray(_array(value))
    return zlib.crc32(array.data.cast("B")) if array.size else 0


def bits_checksum(tensor: Any, *, slice_bytes: int = 1 << 26) -> int:
    """Sum the bits of a tensor on its device, weighted by position, so that any one change and any swap is seen."""
    torch = sys.modules["torch"]
    data = _bits(tensor)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}.get(tensor.element_size(), torch.uint8)
    data = data.view(integers)
    total, step = torch.zeros((), dtype=torch.int64, device=data.device), max(1, slice_bytes // 8)
    for start in range(0, data.numel(), step):  # what a slice takes is the most memory that this needs
        part = data[start : start + step].to(torch.int64)
        weights = torch.arange(2 * start + 1, 2 * (start + part.numel()) + 1, 2, device=data.device)  # odd
        total += (part * weights).sum()  # modulo 2^64
    return int(total)


def same_bits(first: Any, second: Any) -> bool:
    """Whether tensors of one dtype and shape hold the same bits, NaN included; compared on their device."""
    return bool(sys.modules["torch"].equal(_bits(first), _bits(second)))


def _bits(tensor: Any) -> Any:
    """Return a dense tensor's bytes, in order."""
    torch = sys.modules["torch"]
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def relative_distance(tensor: Any, expected: Any) -> float:
    """Return ‖tensor − expected‖₂ / ‖expected‖₂, calculated in double precision on their device."""
    torch = sys.modules["torch"]
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = tensor.to(wide), expected.to(wide)
    return float((a - b).norm()) / max(float(b.norm()), math.ulp(0.0))


def _copy_value(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray | np.generic | float | int | complex) or is_tensor(leaf):
        return _array(leaf).copy()
    return leaf


def _repeats(first: Any, second: Any) -> bool:
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        return type(first) is type(second)  # an object of another kind: nothing to compare by
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not np.issubdtype(first.dtype, np.inexact):
        return bool(np.array_equal(first, second))
    finite = np.isfinite(first)
    if not np.array_equal(finite, np.isfinite(second)):
        return False
    a, b = (part[finite].astype(np.complex128) for part in (first, second))
    return float(np.linalg.norm(a - b)) <= REPEAT_TOLERANCE * max(float(np.linalg.norm(a)), math.ulp(0.0))
