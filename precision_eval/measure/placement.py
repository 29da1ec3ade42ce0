"""Where the tensors of calls lie in memory: shared where calls can share them, drawn anew where they cannot.

A tensor keeps its place for as long as it lives, and equal tensors in two places may differ in speed for as long.
Whole storages are moved, so that whatever views them moves along, and every value stays, bit for bit. Nothing moves
that has an address which others may hold: arrays of numpy, files in memory, memory that processes share, a model with
CUDA graphs of its own. No torch is imported here.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from precision_eval.core.cells import is_out_of_memory
from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import join
from precision_eval.measure.allocator import return_free_memory
from precision_eval.measure.blocks import Candidate
from precision_eval.measure.candidates import is_tensor, leaves_of, parts_carried, same_bits

_PADDING_BYTES = 1 << 16
_PADDINGS = 64
_DEEPEST = 6
_MOST_TRIES = 4  # an allocator may give back the same place, though something has taken its size
_TRIED_UP_TO_BYTES = 1 << 28
_MOST_PAGES_BYTES = 1 << 26


def take_random_memory(seed: int | np.random.Generator) -> list[np.ndarray]:
    """Take small and large pieces of memory of random size; they last as long as the list is held."""
    rng = np.random.default_rng(seed)
    sizes = [*rng.integers(1, _PADDING_BYTES, _PADDINGS), *rng.integers(1, 64 * _PADDING_BYTES, 4)]
    return [np.ones(int(size), dtype=np.uint8) for size in sizes]


class Placement:
    """The storages that calls carry, which :meth:`draw` moves; `differs` says that not all calls have the same."""

    def __init__(self, candidates: Sequence[Candidate], seed: int) -> None:
        each = [_movable(candidate.call) for candidate in candidates]
        self._storages = list({key: storage for storages in each for key, storage in storages.items()}.values())
        self.differs = any(storages.keys() != each[0].keys() for storages in each)
        self._rng = np.random.default_rng(seed)
        self._padding: list[Any] = []
        self._scratch: dict[Any, Any] = {}  # per device: pages that are there already take half the time

    def __bool__(self) -> bool:
        return bool(self._storages)

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes() for storage in self._storages)

    @property
    def on_cpu(self) -> bool:
        return all(storage.device.type == "cpu" for storage in self._storages)

    def draw(self) -> None:
        """Move every storage, in random order, among paddings of random size."""
        device = max((storage.device for storage in self._storages), key=lambda device: device.type == "cuda")
        before, self._padding = self._padding, self._pads_on(device)
        for index in self._rng.permutation(len(self._storages)):
            storage = self._storages[index]
            if storage.resizable():  # numpy may have seen it since
                _move(storage, self._scratch_on(storage.device))
        del before  # only now: the system hands out first what was freed last, so the same pages would come again
        if device.type == "cpu":
            return_free_memory()
        else:
            sys.modules["torch"].cuda.synchronize(device)

    def _scratch_on(self, device: Any) -> Any:
        torch = sys.modules["torch"]
        if device not in self._scratch:
            most = max(int(storage.nbytes()) for storage in self._storages if storage.device == device)
            self._scratch[device] = torch.zeros(most, dtype=torch.uint8, device=device)
        return self._scratch[device]

    def cost_s(self) -> float:
        """Say how long a draw takes: of one, or where much has to move, from the largest storage."""
        largest = max(self._storages, key=lambda storage: int(storage.nbytes()))
        is_much = self.nbytes > _TRIED_UP_TO_BYTES
        start_s = time.perf_counter()
        if is_much:
            _move(largest, self._scratch_on(largest.device))
        else:
            self.draw()
        return (time.perf_counter() - start_s) * (self.nbytes / largest.nbytes() if is_much else 1.0)

    def _pads_on(self, device: Any) -> list[Any]:
        """Take small pieces, and on a CPU more pages than move; on CUDA the allocator keeps what is freed."""
        if device.type == "cpu":
            pages = int(min(self.nbytes, _MOST_PAGES_BYTES) * self._rng.uniform(1.0, 2.0))
            return [*take_random_memory(self._rng), np.ones(pages, dtype=np.uint8)]
        torch = sys.modules["torch"]
        sizes = self._rng.integers(1, 64 * _PADDING_BYTES, 16)
        return [torch.empty(int(size), dtype=torch.uint8, device=device) for size in sizes]


def _move(storage: Any, scratch: Any) -> None:
    """Give a storage other memory of its size: what it leaves is taken while it looks for a new place."""
    size, place = storage.nbytes(), storage.data_ptr()
    values = scratch[:size].copy_(_bytes_of(storage))
    fillers: list[Any] = []
    while storage.data_ptr() == place and len(fillers) < _MOST_TRIES:
        storage.resize_(0)
        try:
            fillers.append(type(storage)(size, device=storage.device))
            storage.resize_(size)
        except RuntimeError:  # memory is short: back to where it was
            fillers.clear()
            storage.resize_(size)
            break
    _bytes_of(storage).copy_(values)


def _bytes_of(storage: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _movable(call: Callable[..., object]) -> dict[int, Any]:
    """Return the storages that a call carries and that nobody else holds by address, by address."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    storages: dict[int, Any] = {}
    for value in values_carried(call):
        if isinstance(value, torch.cuda.CUDAGraph):
            return {}
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            continue
        storage = value.untyped_storage()
        shared = storage.device.type == "cpu" and storage.is_shared()
        if storage.device.type in ("cpu", "cuda") and storage.nbytes() and storage.resizable() and not shared:
            storages[storage.data_ptr()] = storage
    return storages


def values_carried(call: object, depth: int = _DEEPEST) -> Iterator[Any]:
    """Yield what a call reads, as far as it can be seen: carried values, and what modules among them hold."""
    torch = sys.modules["torch"]
    if isinstance(call, torch.nn.Module):
        for module in call.modules():
            for value in vars(module).values():
                yield from (leaf for _, leaf in leaves_of(value))
        return
    function = call.func if isinstance(call, partial) else call
    for part in (function, getattr(function, "model", None), getattr(function, "__self__", None)):
        if isinstance(part, torch.nn.Module):
            yield from values_carried(part, depth)
        elif is_tensor(part):  # of a method of a tensor
            yield part
    for _, value in parts_carried(call) if callable(call) else ():
        for _, leaf in leaves_of(value):
            yield leaf
            if depth and callable(leaf) and not isinstance(leaf, type):
                yield from values_carried(leaf, depth - 1)


def check_cards(candidates: Mapping[str, Candidate], device: str) -> None:
    """Refuse calls whose tensors are on GPUs and none of them on the device that is timed."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    timed = torch.device(device)
    if timed.type == "cuda" and timed.index is None and torch.cuda.is_available():
        timed = torch.device("cuda", torch.cuda.current_device())
    for name, candidate in candidates.items():
        tensors = filter(is_tensor, values_carried(candidate.call))
        cards = sorted({str(tensor.device) for tensor in tensors if tensor.device.type == "cuda"})
        if cards and str(timed) not in cards:
            kinds = [f"{card} ({torch.cuda.get_device_name(card)})" for card in cards]
            here = f"{timed} ({torch.cuda.get_device_name(timed)})" if timed.type == "cuda" else device
            raise ParameterError(
                f"candidate '{name}' has tensors on {join(kinds)}, and times are taken on {here}; put all candidates "
                "on one GPU, and give it as device"
            )


@contextmanager
def sharing(candidates: Mapping[str, Candidate], baseline: str) -> Iterator[None]:
    """Let the modules of calls use one memory, the baseline's first, where they hold the same bits under a name.

    What a call writes stays its own. Leaving gives each module its tensors back.
    """
    exchanged: list[tuple[Any, Any]] = []
    kept: dict[str, list[Any]] = {}  # by name, one of each content
    names = sorted(candidates, key=lambda name: name != baseline)
    try:
        for name in names:
            for path, tensor in _constants(candidates[name]).items():
                others = kept.setdefault(path, [])
                if any(other is tensor for other in others):
                    continue
                other = next((other for other in others if _alike(other, tensor)), None)
                if other is None:
                    others.append(tensor)
                else:
                    exchanged.append((tensor, tensor.data))
                    tensor.data = other.data
        yield
    finally:
        for tensor, data in exchanged:
            tensor.data = data


def _constants(candidate: Candidate) -> dict[str, Any]:
    """Return the parameters and buffers of the one module that is called, without those that a call writes."""
    module = _module_of(candidate.call)
    if module is None:
        return {}
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    kept = {path: tensor for path, tensor in named.items() if not tensor.is_inference()}
    before = {path: tensor._version for path, tensor in kept.items()}
    with candidate.block():
        candidate.call()
    return {path: tensor for path, tensor in kept.items() if tensor._version == before[path]}


def writes_parameters(candidate: Candidate) -> bool:
    """Whether a call may write parameters of its module, as far as can be seen."""
    module = _module_of(candidate.call)
    return module is None or not dict(module.named_parameters()).keys() <= _constants(candidate).keys()


def copy_sharing_parameters(model: Any) -> Any:
    """Copy a module; each plain parameter is an object of its own in the memory of the first one."""
    parameter = sys.modules["torch"].nn.Parameter
    plain = [each for each in model.parameters() if type(each) is parameter]
    return copy.deepcopy(model, {id(each): parameter(each.data, each.requires_grad) for each in plain})


def give_own_memory(candidate: Candidate, model: Any) -> None:
    """Give a call's module memory of its own for each parameter that it has in the memory of another module."""
    shared = {each.data_ptr() for each in model.parameters()}
    for each in _module_of(candidate.call).parameters():
        if each.data_ptr() in shared:
            each.data = each.data.clone()


def _module_of(call: Any) -> Any:
    """Return the module that a call runs; of a fix on a model, the model."""
    torch = sys.modules["torch"]
    while isinstance(call, partial):
        call = call.func
    called = call if isinstance(call, torch.nn.Module) else getattr(call, "model", None)
    return called if isinstance(called, torch.nn.Module) else None


def _alike(first: Any, second: Any) -> bool:
    kinds = [(tensor.dtype, tensor.device, tensor.shape, tensor.stride()) for tensor in (first, second)]
    whole = [tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in (first, second)]
    return kinds[0] == kinds[1] and all(whole) and is_tensor(second) and same_bits(first, second)


@dataclass(frozen=True)
class Draws:
    """How calls are laid elsewhere, and about how long that takes: forever where memory has no room for it."""

    draw: Callable[[], None]
    cost_s: float


NOTHING_MOVES = Draws(lambda: None, 0.0)


def draws_of(candidates: Sequence[Candidate], seed: int, *, wanted: bool | None) -> Draws | None:
    """Return how to draw the places of these calls' tensors; None where nothing can move, or all carry the same."""
    if wanted is False or "torch" not in sys.modules:
        return None
    placement = Placement(candidates, seed)
    if not placement or not (wanted or (placement.differs and not placement.on_cpu)):
        return None  # on a CPU moving costs more than it tells, unless it is asked for
    try:
        return Draws(placement.draw, placement.cost_s())
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return Draws(placement.draw, math.inf)
