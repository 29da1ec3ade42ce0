"""What parameters and buffers are stored in, exchanged and put back.

The tensor *objects* stay: only their data is exchanged, so tied weights stay tied, an optimiser's or an LSTM's list of
weights stays valid, and leaving puts the very same storage back (same address, same content, bit for bit). Two
different tensors that are views of one storage stop sharing it while they are converted. Integer, boolean and complex
tensors are left alone, and so are dtypes that a model keeps as plain attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

# Containers within containers that are searched for tensors.
DEEPEST = 8


def floating_tensors(model: nn.Module) -> list[torch.Tensor]:
    unique = {id(t): t for t in chain(model.parameters(), model.buffers()) if t.is_floating_point()}
    return list(unique.values())


def dtype_attributes(model: nn.Module) -> list[tuple[str, torch.dtype]]:
    """List the floating dtypes that a model keeps as plain attributes, by path."""
    attributes = [(path, *pair) for path, module in model.named_modules() for pair in vars(module).items()]
    named = [(f"{path}.{name}".lstrip("."), value) for path, name, value in attributes]
    return [(name, value) for name, value in named if isinstance(value, torch.dtype) and value.is_floating_point]


def set_dtype_attributes(model: nn.Module, dtype: torch.dtype) -> None:
    """Set the floating dtypes that a model keeps as plain attributes."""
    for path, _ in dtype_attributes(model):
        holder, _, name = path.rpartition(".")
        setattr(model.get_submodule(holder), name, dtype)


def storage_bytes(model: nn.Module) -> int:
    """Bytes that a model's parameters and buffers occupy, each storage once."""
    storages = {
        (tensor.device, tensor.untyped_storage().data_ptr()): tensor.untyped_storage().nbytes()
        for tensor in chain(model.parameters(), model.buffers())
    }
    return sum(storages.values())


def tensors_in(name: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    """List the floating tensors inside an object, such as a cache, with paths that begin with its name."""
    return list(tensors_within(value, f"{name}.", seen=set()))


def tensors_within(
    value: Any, path: str, *, seen: set[int], depth: int = DEEPEST
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield floating tensors inside containers and plain objects, with a path that reads like code."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            yield path.rstrip("."), value
        return
    if depth == 0 or id(value) in seen or isinstance(value, nn.Module | type):
        return
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        seen.add(id(value))
        parts = [(f"{path}{key}.", part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        base = path.rstrip(".")
        parts = [(f"{base}[{index}]." if base else f"{index}.", part) for index, part in enumerate(value)]
    elif hasattr(value, "__dict__") and (is_dataclass(value) or not type(value).__module__.startswith("torch")):
        seen.add(id(value))
        parts = [(f"{path}{name}.", part) for name, part in vars(value).items()]
    for name, part in parts:
        yield from tensors_within(part, name, seen=seen, depth=depth - 1)


@contextmanager
def store_as(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Hold a model's floating tensors in another dtype for a block, those of caches it is called with too."""
    inputs = [tensor for _, tensor in tensors_in("", vars(model).get("_others", ()))]  # of a packed model
    originals: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for tensor in (*floating_tensors(model), *inputs) if dtype is not None else ():
            originals.append((tensor, tensor.data))
            tensor.data = tensor.data.to(dtype)
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data
