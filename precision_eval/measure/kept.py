"""Cells of one case in one process: the case is built once, and each cell begins as in a process of its own.

Conventions: on CUDA, starting a process and building a case take longer than most cells. The parameters are kept where
they are; buffers are kept in main memory, so that a cell finds as much of a card's memory free as in a process of its
own. A cell gets a copy that shares the parameters, whose bits are compared after it. What cannot be put back ends the
process: an error that every later call on the device raises again, memory that is not given back, modes left in force,
a profiler that stays attached, a capture that failed.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import Cell, Outcome, failed, failure_of, is_out_of_memory
from precision_eval.core.targets import is_target, loaded
from precision_eval.core.workers import LastAnswer
from precision_eval.fixes.apply import forget_compiled
from precision_eval.measure.candidates import bits_checksum
from precision_eval.measure.graphs import CudaDevice, KernelTimer
from precision_eval.measure.registry import CASE_BITS, CellResult, Measure, run_cell

_MOST_LEFT_BYTES = 64 << 20  # what a reference and torch's workspaces take
_CONFIGS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config")

_SDP = ("flash", "mem_efficient", "math", "cudnn")

# Settings that change what a call computes: attributes of torch.backends, and functions of torch that read and set.
_FLAGS = (
    *("fp32_precision", "cudnn.fp32_precision", "cuda.matmul.fp32_precision", "mkldnn.matmul.fp32_precision"),
    *("cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision", "cudnn.enabled", "cudnn.benchmark"),
    *("cudnn.deterministic", "cudnn.benchmark_limit", "mkldnn.enabled", "cuda.matmul.allow_fp16_accumulation"),
    *("cuda.matmul.allow_fp16_reduced_precision_reduction", "cuda.matmul.allow_bf16_reduced_precision_reduction"),
)
_FLAGS_BEFORE_2_9 = ("cuda.matmul.allow_tf32", "cudnn.allow_tf32")  # torch warns of these names since
_FUNCTIONS = (
    *(("get_float32_matmul_precision", "set_float32_matmul_precision"), ("get_default_dtype", "set_default_dtype")),
    *(("get_deterministic_debug_mode", "set_deterministic_debug_mode"), ("is_grad_enabled", "_C._set_grad_enabled")),
    ("is_autocast_cache_enabled", "set_autocast_cache_enabled"),
    *((f"backends.cuda.{kind}_sdp_enabled", f"backends.cuda.enable_{kind}_sdp") for kind in _SDP),
    ("backends.cuda.fp16_bf16_reduction_math_sdp_allowed", "backends.cuda.allow_fp16_bf16_reduction_math_sdp"),
)


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return how each setting is read and set, by its name."""
    table: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}
    for read, write in _FUNCTIONS:
        table[read] = (attrgetter(read)(torch), attrgetter(write)(torch))
    for path in (*_FLAGS, *(() if hasattr(torch.backends, "fp32_precision") else _FLAGS_BEFORE_2_9)):
        place, _, name = path.rpartition(".")
        with suppress(AttributeError):  # of another version of torch
            owner = attrgetter(place)(torch.backends) if place else torch.backends
            getattr(owner, name)
            table[path] = (partial(getattr, owner, name), partial(setattr, owner, name))
    for kind in ("cpu", "cuda"):
        table[f"autocast {kind}"] = partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)
        table[f"dtype {kind}"] = partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind)
    return table


def _config_of(module: Any) -> dict[str, Any]:
    """Read all settings of a part of the compiler: one by one, torch warns of old names."""
    values: dict[str, Any] = (module.get_config_copy if hasattr(module, "get_config_copy") else module.to_dict)()
    return values


def _value(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError as error:  # of float32's precision, where it was set by two interfaces
        return f"{error}"


class Settings:
    """What a process has set in torch, and the states of its random generators."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._values = {name: _value(read) for name, (read, _) in _settings().items()}
        self._configs = [(module, _config_of(module)) for module in map(import_module, _CONFIGS)]
        self._generators = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
        is_cuda = device.startswith("cuda")
        self._cuda = (torch.cuda.get_rng_state(device), torch.cuda.current_device()) if is_cuda else None

    def restore(self) -> None:
        """Set again what has been changed, and forget what was compiled and cast."""
        torch.set_flush_denormal(False)
        for name, (read, write) in _settings().items():
            if _value(read) != self._values[name]:
                write(self._values[name])
        for module, values in self._configs:
            now = _config_of(module)
            for name in (name for name, value in values.items() if now[name] != value):
                setattr(module, name, values[name])
        own, numpy_state, torch_state = self._generators
        random.setstate(own)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)
        if self._cuda is not None:
            state, current = self._cuda
            torch.cuda.set_rng_state(state, self._device)
            torch.cuda.set_device(current)
            torch.cuda.set_stream(torch.cuda.default_stream(current))
        for _ in range(torch.autocast_increment_nesting()):  # the blocks that nobody has left, and this one
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        forget_compiled()


class KeptCase:
    """A case whose parameters stay as they are, lent to each cell as a copy that shares them."""

    def __init__(self, case: BuiltCase) -> None:
        self._moved = [(buffer, buffer.device) for buffer in case.model.buffers() if _is_dense(buffer)]
        self._stored: dict[str, Any] = {}  # references, which every fix is compared with
        self._parameters = list(case.model.parameters())
        self._before = self._bits()
        every = (*self._parameters, *case.model.buffers(), *case.inputs)
        self.bits = f"{sum((2 * i + 1) * bits_checksum(t) for i, t in enumerate(every)) % 2**64:016x}"
        on_host = {id(buffer): buffer.to("cpu", copy=True) for buffer, _ in self._moved}
        self._moved = [(on_host[id(buffer)], device) for buffer, device in self._moved]
        self._case = replace(case, model=self._copied(case.model, on_host), inputs=_copies(case.inputs))

    def lend(self) -> BuiltCase:
        """Return the case as it was built."""
        buffers = {id(buffer): buffer.to(device, copy=True) for buffer, device in self._moved}
        model = self._copied(self._case.model, buffers)
        return replace(self._case, model=model, inputs=_copies(self._case.inputs), kept=self._stored)

    def is_whole(self) -> bool:
        """Whether the parameters hold the bits that they were built with, as far as memory lets them be read."""
        with suppress(RuntimeError):
            return self._bits() == self._before
        return False

    def _copied(self, model: nn.Module, buffers: dict[int, torch.Tensor]) -> nn.Module:
        return copy.deepcopy(model, {id(tensor): tensor for tensor in self._parameters} | buffers)

    def _bits(self) -> list[tuple[Any, ...]]:
        return [(t.dtype, t.shape, t.device, t.requires_grad, bits_checksum(t)) for t in self._parameters]


def _copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Copy inputs; one that is there twice is there twice again."""
    copies = {id(t): t.detach().clone().requires_grad_(t.requires_grad) for t in tensors}
    return tuple(copies[id(tensor)] for tensor in tensors)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its storage to itself, so that a copy of it elsewhere has its layout."""
    own = tensor.layout is torch.strided and not hasattr(tensor, "__tensor_flatten__")
    return own and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


class _Process:
    """What this process keeps: settings as they were before the first cell or after building, and a case."""

    def __init__(self, cell: Cell) -> None:
        for place in (cell.case, *cell.fixes):
            with suppress(Exception):  # met again, and recorded, by the cell that needs it
                if is_target(place):
                    loaded(place)  # what a user's file sets while it is imported is in force for every cell
        self.cell = cell
        self.settings = Settings(cell.device)
        self.case: KeptCase | None = None
        self.is_lent = False
        self.level_bytes = _reserved_bytes(cell.device)
        gc.collect()
        gc.freeze()  # collecting after each cell then looks at what the cells have made alone

    def built(self, seed: int) -> BuiltCase:
        cell = self.cell
        if seed != cell.options.seed:
            return case_by_id(cell.case).build(cell.size, device=cell.device, seed=seed)
        if self.case is None:
            case = case_by_id(cell.case).build(cell.size, device=cell.device, seed=seed)
            self.settings = Settings(cell.device)
            try:
                self.case = KeptCase(case)
            except (RuntimeError, NotImplementedError, TypeError):
                return case  # tensors of a kind of their own, whose bits nobody can read
            del case  # its buffers are in main memory now
            self.level_bytes = _reserved_bytes(cell.device)
        self.is_lent = True
        return self.case.lend()


_process: _Process | None = None


def built_case(cell: Cell, seed: int) -> BuiltCase:
    """Build a cell's case, or take the one that this process keeps."""
    if _process is not None:
        return _process.built(seed)
    return case_by_id(cell.case).build(cell.size, device=cell.device, seed=seed)


def run_kept_cell(cell: Cell, run_dir: Path, measures: Sequence[Measure]) -> CellResult | LastAnswer:
    """Run one of several cells of one case in this process, and undo what it has changed."""
    global _process
    process = _process = _process or _Process(cell)
    process.cell, process.is_lent = cell, False
    _count_peaks_anew(cell.device)
    result = run_cell(cell, run_dir, measures)
    broken = _fault_of(cell.device)
    if broken is not None:
        return LastAnswer(replace(result, outcomes=tuple(_after(o, broken) for o in result.outcomes), is_lost=True))
    if process.is_lent and process.case is not None:
        bits = process.case.bits
        outcomes = (o if o.data is None else replace(o, data={**o.data, CASE_BITS: bits}) for o in result.outcomes)
        result = replace(result, outcomes=tuple(outcomes))
    return result if _clean_up(process) else LastAnswer(result)


def _after(outcome: Outcome, broken: str) -> Outcome:
    """Outcome of a fix after which the device answers with an error: figures from such a device are none."""
    return failed(outcome.fix, "raised", broken) if outcome.status == "passed" else outcome


def _fault_of(device: str) -> str | None:
    """Return the error that the device answers every call with from now on; None where it works."""
    try:
        probe_device(device)
    except RuntimeError as error:
        return None if is_out_of_memory(error) else failure_of("", error).reason
    return None


def probe_device(device: str) -> None:
    """Wait for a device, and have it calculate; raises what a call before has left."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()


def _reserved_bytes(device: str) -> int:
    """Hand unused memory back, and count what is left: up to 2.13 a capture that fails keeps its memory reserved."""
    if not device.startswith("cuda"):
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def _count_peaks_anew(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # Linux counts the peak resident set anew; nowhere else
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _clean_up(process: _Process) -> bool:
    """Free what a cell has left and put back what it has changed; say whether another cell may follow."""
    sys.stdout.flush()
    sys.stderr.flush()
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return False
    process.settings.restore()
    gc.collect()
    if process.cell.device.startswith("cuda"):
        getattr(torch._C, "_cuda_clearCublasWorkspaces", int)()
    left_bytes = _reserved_bytes(process.cell.device) - process.level_bytes
    if process.case is not None and not process.case.is_whole():
        process.case = None
    return left_bytes <= _MOST_LEFT_BYTES and not (KernelTimer.has_run or CudaDevice.has_failed)
