"""What parameters and buffers are stored in, exchanged and put back.

The tensor *objects* stay: only their data is exchanged, so tied weights stay tied, an optimiser's or an LSTM's list of
weights stays valid, and leaving puts the very same storage back (same address, same content, bit for bit). Two
different tensors that are views of one storage stop sharing it while they are converted. Integer, boolean and complex
tensors are left alone, and so are dtypes that a model keeps as plain attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from precision_eval.fixes.narrow import parts_of


def floating_tensors(model: nn.Module) -> list[torch.Tensor]:
    """List a model's floating parameters and buffers, each once."""
    unique = {id(t): t for t in chain(model.parameters(), model.buffers()) if t.is_floating_point()}
    return list(unique.values())


def storage_bytes(model: nn.Module) -> int:
    """Bytes that a model's parameters and buffers occupy, each storage once."""
    storages = {
        (t.device, t.untyped_storage().data_ptr()): t.untyped_storage().nbytes()
        for tensor in chain(model.parameters(), model.buffers())
        for t in parts_of(tensor)
    }
    return sum(storages.values())


@contextmanager
def stored_as(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Hold a model's floating tensors in another dtype for the time of a block."""
    originals: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for tensor in floating_tensors(model) if dtype is not None else ():
            originals.append((tensor, tensor.data))
            tensor.data = tensor.data.to(dtype)
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data
