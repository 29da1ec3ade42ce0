"""What the models of the five systems share: a state in the source's own words, and a float64 twin; imports torch.

Conventions: a :class:`System` is in the state *as shipped* unless :meth:`System.upstream` holds it in the state after
the fix that landed in its project. Arithmetic that a source does in float32 whatever it is given is written with
:func:`widened`, so that the float64 twin stays float64 throughout. A dtype that a source keeps as a plain attribute
(``compute_dtype``) is an attribute here too; the twin has float64 in its place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Self, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.core.errors import UnsupportedError
from precision_eval.fixes.storage import set_dtype_attributes

ModelT = TypeVar("ModelT", bound=nn.Module)


def place_of_draws(size: str, device: str) -> torch.device:
    """Return where a case's numbers are drawn: on the CPU, so that they are the same on every device.

    Of the size ``full`` it is a CUDA device itself: drawing billions on the host takes longer than measuring.
    """
    return torch.device(device if size == "full" and device.startswith("cuda") else "cpu")


@contextmanager
def drawing(size: str, device: str, seed: int) -> Iterator[torch.Generator]:
    """Yield what a case's numbers are drawn from; tensors that are made in the block lie where it draws."""
    place = place_of_draws(size, device)
    with nullcontext() if place.type == "cpu" else place:
        yield torch.Generator(place).manual_seed(seed)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Bring a tensor to float32, or leave it float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def unfilled_linear(inputs: int, outputs: int) -> nn.Linear:
    """Make a projection without bias and without memory; its weight is assigned later."""
    return nn.Linear(inputs, outputs, bias=False, device="meta")


class System(nn.Module):
    """A model of one of the systems that had the bug."""

    landed: str | None = None
    not_landed: str = "no fix is known to have landed in its project"
    is_upstream: bool = False

    @contextmanager
    def upstream(self) -> Iterator[None]:
        """Hold the model in the state after the project's own fix, for the time of a block."""
        if self.landed is None:
            raise UnsupportedError(f"nothing to apply: {self.not_landed}")
        systems = [module for module in self.modules() if isinstance(module, System)]
        for module in systems:
            module.is_upstream = True
        try:
            yield
        finally:
            for module in systems:
                module.is_upstream = False

    def in_float64(self) -> Self:
        return in_float64(self)


def in_float64(model: ModelT) -> ModelT:
    """Copy a model with every floating parameter, buffer and dtype attribute in float64."""
    if any(tensor.device.type == "mps" for tensor in (*model.parameters(), *model.buffers())):
        raise UnsupportedError("mps has no float64, so nothing can be held to it there; measure drift on the CPU")
    if any(hasattr(tensor, "__tensor_flatten__") for tensor in model.parameters()):
        raise UnsupportedError("torchao's tensors cannot be held in float64, so there is no drift of them")
    twin = copy.deepcopy(model).double()
    set_dtype_attributes(twin, torch.float64)
    return twin


class KeysValues(nn.Module):
    """Keys and values as buffers, which a system's cache writes in its own way."""

    key: torch.Tensor
    value: torch.Tensor

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("key", key, persistent=False)
        self.register_buffer("value", value, persistent=False)


class CachedAttention(nn.Module):
    """Scaled dot-product attention over a static cache, which the module holds as buffers."""

    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor

    def __init__(self, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, *, scale: float | None) -> None:
        super().__init__()
        self.register_buffer("key", key)
        self.register_buffer("value", value)
        self.register_buffer("mask", mask)
        self.scale = scale

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            query,
            self.key,
            self.value,
            attn_mask=self.mask,
            scale=self.scale,
            enable_gqa=query.shape[1] != self.key.shape[1],
        )
