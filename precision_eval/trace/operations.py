"""The one table of operations: what kind each function of torch is, and how a site's operands are found and named.

A function is sorted by its name, once. An operation that no rule speaks of is *plain*: it promotes types as torch
documents it. *Slots* say where an operand of a site is among the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload, OpOverloadPacket

from precision_eval.core.formats import FORMATS
from precision_eval.fixes.sites import Site

FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
# Formats of storage only: torch casts to and from them, and computes in none.
EIGHT_BITS = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))
# Dtype of a tensor that is followed → the dtype of its values, or of their real and imaginary parts.
PART_DTYPES = {dtype: dtype for dtype in FLOATS | EIGHT_BITS} | {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}

_PRECISION = {getattr(torch, entry.name): (entry.significand_bits, entry.max_exponent) for entry in FORMATS}
_PRECISION |= {torch.float8_e4m3fn: (4, 8), torch.float8_e5m2: (3, 15)}

#: Site → operand → its position and the keywords that it goes by; cache writes differ, so they stand under their names.
SLOTS: dict[str, dict[str, tuple[int, tuple[str, ...]]]] = {
    "sdpa": {"query": (0, ("query",)), "key": (1, ("key",)), "value": (2, ("value",)), "mask": (3, ("attn_mask",))},
    "linear": {"input": (0, ("input",)), "weight": (1, ("weight",)), "bias": (2, ("bias",))},
    "matmul": {"left": (0, ("input",)), "right": (1, ("other", "mat2"))},
    "norm": {"input": (0, ("input",)), "weight": (2, ("weight",)), "bias": (3, ("bias",))},
    "index_put_": {"cache": (0, ()), "value": (2, ("values",))},
    "index_copy_": {"cache": (0, ()), "value": (3, ("source",))},
    "__setitem__": {"cache": (0, ()), "value": (2, ())},
}

#: What in the name of an operation below Python tells the attention backend.
BACKENDS: tuple[tuple[str, str], ...] = (
    ("_scaled_dot_product_flash_attention", "flash"),
    ("_scaled_dot_product_efficient_attention", "efficient"),
    ("_scaled_dot_product_cudnn_attention", "cudnn"),
    ("_scaled_dot_product_fused_attention_overrideable", "overrideable"),
    ("_scaled_dot_product_attention_math", "math"),
)

# Where an operand is: ``(1,)``, ``(1, 0)`` inside a list, or ``("weight",)`` by keyword.
Key = tuple[int | str, ...]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


class OperationKind(IntEnum):
    SKIP = 0  # no result that floats
    PLAIN = 1
    VIEW = 2  # same values, same dtype
    CAST = 3
    MAKE = 4
    WRITE = 5  # into its first operand
    PRODUCT = 6
    NORM = 7
    BATCH_NORM = 8
    RNN = 9
    ATTENTION = 10
    MULTIHEAD = 11
    DTYPE = 12  # the property, read by the code


# What computes with weights, or with products of all parts: its result costs what the format does.
WITH_WEIGHTS = (OperationKind.PRODUCT, OperationKind.ATTENTION, OperationKind.RNN, OperationKind.NORM)

# Operations that give indices chosen by the size of numbers: what is rounded decides near ties otherwise.
CHOOSING = frozenset(("topk", "argmax", "argmin", "argsort"))

# Methods of a tensor that cast it.
CASTS = ("to", "type", "type_as", "half", "float", "bfloat16", "double")

_SKIPPED = _names(
    """
    size dim numel nelement ndimension is_floating_point is_complex is_contiguous is_signed stride
    storage_offset data_ptr element_size get_device item tolist numpy untyped_storage allclose equal
    is_nonzero requires_grad_ register_hook has_names is_pinned is_same_size is_shared detach_ retain_grad
    backward set_grad_enabled __bool__ __int__ __float__ __index__ __len__ __repr__ __format__ __contains__
    __set__ __delete__ __hash__ __array__ __deepcopy__ __reduce_ex__ is_autocast_enabled get_autocast_dtype
    result_type promote_types can_cast is_tensor is_inference is_conj is_neg resolve_conj resolve_neg _is_view
    broadcast_tensors_shape finfo
    """
)
_VIEWS = _names(
    """
    view reshape transpose permute unsqueeze squeeze expand expand_as view_as chunk split unbind narrow select
    flatten unflatten __getitem__ contiguous clone detach t movedim moveaxis swapaxes swapdims tensor_split
    hsplit repeat repeat_interleave as_strided index_select ravel requires_grad reshape_as cpu cuda flip roll
    gather take take_along_dim masked_select split_with_sizes unfold tile broadcast_to diagonal alias pad T mT
    H mH real imag data dropout feature_dropout alpha_dropout identity
    """
)
_MAKERS = _names(
    """
    arange zeros ones full empty tensor as_tensor linspace logspace randn rand normal eye hann_window
    hamming_window blackman_window bartlett_window kaiser_window scalar_tensor asarray frombuffer
    empty_strided
    """
)
_PRODUCTS = _names(
    """
    linear matmul __matmul__ __rmatmul__ mm bmm mv addmm baddbmm addbmm addmv einsum tensordot bilinear
    chain_matmul multi_dot inner dot conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    conv_tbc
    """
)
_NORMS = _names("layer_norm group_norm rms_norm instance_norm")
_RNNS = _names("lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
#: Writes that take values as they are; the others compute in place.
ASSIGNMENTS = _names(
    """
    __setitem__ copy_ index_put_ index_copy_ masked_scatter_ scatter_ masked_fill_ index_fill_ fill_ put_
    """
)

_BY_NAME: tuple[tuple[frozenset[str], OperationKind], ...] = (
    (_SKIPPED, OperationKind.SKIP),
    (_VIEWS, OperationKind.VIEW),
    (frozenset(CASTS), OperationKind.CAST),
    (_MAKERS, OperationKind.MAKE),
    (_PRODUCTS, OperationKind.PRODUCT),
    (_NORMS, OperationKind.NORM),
    (_names("batch_norm"), OperationKind.BATCH_NORM),
    (_RNNS, OperationKind.RNN),
    (_names("scaled_dot_product_attention"), OperationKind.ATTENTION),
    (_names("multi_head_attention_forward"), OperationKind.MULTIHEAD),
    (_names("__setitem__"), OperationKind.WRITE),
)


_OVERLOADS = (OpOverload, OpOverloadPacket)


def python_body(func: Any) -> Callable[..., Any] | None:
    """The function of Python that an operator of somebody's own is made of; None where it is none, or no Python."""
    if not isinstance(func, _OVERLOADS):  # asked of every operation; a union made here would take longer
        return None
    name = func.name() if isinstance(func, OpOverload) else func._qualified_op_name
    definition = OPDEFS.get(name)
    own = None if definition is None else definition._init_fn
    return None if own is None or own.__module__.partition(".")[0] == "torch" else own


@cache
def name_of(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", "") or str(func)
    if name == "__get__":
        return str(getattr(getattr(func, "__self__", None), "__name__", "__get__"))
    return name


@cache
def kind_of(func: Callable[..., Any]) -> OperationKind:
    name, is_property = name_of(func), getattr(func, "__name__", "") == "__get__"
    if is_property and name == "dtype":
        return OperationKind.DTYPE
    if is_property:
        return OperationKind.VIEW if name in _VIEWS else OperationKind.SKIP
    return kind_by_name(name)


@cache
def kind_by_name(name: str) -> OperationKind:
    for names, kind in _BY_NAME:
        if name in names:
            return kind
    if name.endswith("_") and not name.endswith("__"):
        return OperationKind.WRITE
    return OperationKind.PLAIN


def slots_of(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int | str]:
    """Operand → position or keyword of every tensor operand of a site's call."""
    slots: dict[str, int | str] = {}
    for operand, (position, keywords) in SLOTS[site.name if site.site == "cache_write" else site.site].items():
        if position < len(args):
            if isinstance(args[position], torch.Tensor):
                slots[operand] = position
        elif kwargs:
            slots.update((operand, word) for word in keywords if isinstance(kwargs.get(word), torch.Tensor))
    return slots


def site_operands(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: args[at] if isinstance(at, int) else kwargs[at] for name, at in slots_of(site, args, kwargs).items()}


def operand_names(name: str, kind: OperationKind, keys: list[Key]) -> list[str]:
    by_position: dict[int, str] = {}
    if ("out",) in keys:
        by_position = {}
    elif kind is OperationKind.ATTENTION:
        by_position = _by_position("sdpa")
    elif kind is OperationKind.NORM:
        by_position = _by_position("norm")
    elif name == "linear" or name.startswith("conv"):
        by_position = _by_position("linear")
    elif kind is OperationKind.WRITE:
        in_place = {0: "destination", 1: "value", 2: "value", 3: "value"}
        by_position = _by_position(name) if name in SLOTS else in_place
    elif kind is OperationKind.RNN:
        by_position = {0: "input"}
    elif keys == [(0,), (1,)]:
        by_position = _by_position("matmul")
    return [_operand_name(key, by_position) for key in keys]


def _by_position(site: str) -> dict[int, str]:
    return {position: operand for operand, (position, _) in SLOTS[site].items()}


def _operand_name(key: Key, by_position: dict[int, str]) -> str:
    if isinstance(key[0], str):
        return {"attn_mask": "mask", "other": "right"}.get(key[0], key[0])
    if len(key) == 1:
        return by_position.get(key[0], f"operand {key[0]}")
    return f"part {key[1]}"


@cache
def backends_of(operation: Any) -> frozenset[str]:
    """What an operation that ran inside attention tells of the backend; ``softmax`` is no fused kernel."""
    name = str(operation)
    fused = frozenset(backend for part, backend in BACKENDS if part in name)
    return fused or frozenset({"softmax"} if "softmax" in name else ())


def loses(source: torch.dtype, target: torch.dtype) -> bool:
    """Say whether a cast can change a value: the target has fewer digits, or less range. Integers lose nothing."""
    if not {source, target} <= _PRECISION.keys():
        return False
    return any(s > t for s, t in zip(_PRECISION[source], _PRECISION[target], strict=True))
