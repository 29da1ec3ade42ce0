"""What kind of operation a function of torch is, as far as dtypes go; imports torch.

Conventions: a function is sorted by its name, once. Operations that no rule speaks of are *plain*: type promotion as
torch documents it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch

from precision_eval.trace.capture import OPERANDS

FLOATS = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))


class Kind(IntEnum):
    """Of an operation."""

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


CASTS = frozenset(["to", "type", "type_as", "half", "float", "bfloat16", "double"])
_SKIPPED = frozenset(
    [
        "size",
        "dim",
        "numel",
        "nelement",
        "ndimension",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "is_signed",
        "stride",
        "storage_offset",
        "data_ptr",
        "element_size",
        "get_device",
        "item",
        "tolist",
        "numpy",
        "untyped_storage",
        "allclose",
        "equal",
        "is_nonzero",
        "requires_grad_",
        "register_hook",
        "has_names",
        "is_pinned",
        "is_same_size",
        "is_shared",
        "detach_",
        "retain_grad",
        "backward",
        "set_grad_enabled",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__len__",
        "__repr__",
        "__format__",
        "__contains__",
        "__set__",
        "__delete__",
        "__hash__",
        "__array__",
        "__deepcopy__",
        "__reduce_ex__",
        "is_autocast_enabled",
        "get_autocast_dtype",
        "result_type",
        "promote_types",
        "can_cast",
        "is_tensor",
        "is_inference",
        "is_conj",
        "is_neg",
        "resolve_conj",
        "resolve_neg",
        "_is_view",
        "broadcast_tensors_shape",
        "finfo",
    ]
)
_VIEWS = frozenset(
    [
        "view",
        "reshape",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "expand",
        "expand_as",
        "view_as",
        "chunk",
        "split",
        "unbind",
        "narrow",
        "select",
        "flatten",
        "unflatten",
        "__getitem__",
        "contiguous",
        "clone",
        "detach",
        "t",
        "movedim",
        "moveaxis",
        "swapaxes",
        "swapdims",
        "tensor_split",
        "hsplit",
        "repeat",
        "repeat_interleave",
        "as_strided",
        "index_select",
        "ravel",
        "requires_grad",
        "reshape_as",
        "cpu",
        "cuda",
        "flip",
        "roll",
        "gather",
        "take",
        "take_along_dim",
        "masked_select",
        "split_with_sizes",
        "unfold",
        "tile",
        "broadcast_to",
        "diagonal",
        "alias",
        "pad",
        "T",
        "mT",
        "H",
        "mH",
        "real",
        "imag",
        "data",
        "dropout",
        "feature_dropout",
        "alpha_dropout",
        "identity",
    ]
)
_MAKERS = frozenset(
    [
        "arange",
        "zeros",
        "ones",
        "full",
        "empty",
        "tensor",
        "as_tensor",
        "linspace",
        "logspace",
        "randn",
        "rand",
        "normal",
        "eye",
        "hann_window",
        "hamming_window",
        "blackman_window",
        "bartlett_window",
        "kaiser_window",
        "scalar_tensor",
        "asarray",
        "frombuffer",
        "empty_strided",
    ]
)
_PRODUCTS = frozenset(
    [
        "linear",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
        "bmm",
        "mv",
        "addmm",
        "baddbmm",
        "addbmm",
        "addmv",
        "einsum",
        "tensordot",
        "bilinear",
        "chain_matmul",
        "multi_dot",
        "inner",
        "dot",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "conv_tbc",
    ]
)
_NORMS = frozenset(["layer_norm", "group_norm", "rms_norm", "instance_norm"])
_RNNS = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"])
#: Writes that take values as they are; the others compute in place.
ASSIGNMENTS = frozenset(
    [
        "__setitem__",
        "copy_",
        "index_put_",
        "index_copy_",
        "masked_scatter_",
        "scatter_",
        "masked_fill_",
        "index_fill_",
        "fill_",
        "put_",
    ]
)


def name_of(func: Callable[..., Any]) -> str:
    """Name a function as a user would: of a property the property's own name."""
    name = getattr(func, "__name__", "") or str(func)
    if name == "__get__":
        return str(getattr(getattr(func, "__self__", None), "__name__", "__get__"))
    return name


def kind_of(func: Callable[..., Any]) -> Kind:
    """Sort a function of torch."""
    name, is_property = name_of(func), getattr(func, "__name__", "") == "__get__"
    if is_property and name == "dtype":
        return Kind.DTYPE
    if is_property:
        return Kind.VIEW if name in _VIEWS else Kind.SKIP
    for names, kind in _BY_NAME:
        if name in names:
            return kind
    if name.endswith("_") and not name.endswith("__"):
        return Kind.WRITE
    return Kind.PLAIN


_BY_NAME: tuple[tuple[frozenset[str], Kind], ...] = (
    (_SKIPPED, Kind.SKIP),
    (_VIEWS, Kind.VIEW),
    (CASTS, Kind.CAST),
    (_MAKERS, Kind.MAKE),
    (_PRODUCTS, Kind.PRODUCT),
    (_NORMS, Kind.NORM),
    (frozenset(("batch_norm",)), Kind.BATCH_NORM),
    (_RNNS, Kind.RNN),
    (frozenset(("scaled_dot_product_attention",)), Kind.ATTENTION),
    (frozenset(("multi_head_attention_forward",)), Kind.MULTIHEAD),
    (frozenset(("__setitem__",)), Kind.WRITE),
)

Key = tuple[int | str, ...]


def operand_names(name: str, kind: Kind, keys: list[Key]) -> list[str]:
    """Name operands by where they stood among the arguments."""
    table: tuple[str | None, ...] = ()
    if kind is Kind.ATTENTION:
        table = OPERANDS["sdpa"]
    elif kind is Kind.NORM:
        table = OPERANDS["norm"]
    elif name == "linear" or name.startswith("conv"):
        table = OPERANDS["linear"]
    elif kind is Kind.WRITE:
        table = OPERANDS.get(name, ("destination", "value", "value", "value"))
    elif kind is Kind.RNN:
        table = ("input",)
    elif len(keys) == 2 and all(len(key) == 1 for key in keys):
        table = ("left", "right") if keys == [(0,), (1,)] else ()
    return [_named(key, table) for key in keys]


def _named(key: Key, table: tuple[str | None, ...]) -> str:
    if isinstance(key[0], str):
        return {"attn_mask": "mask", "other": "right"}.get(key[0], key[0])
    if len(key) == 1:
        return (table[key[0]] if key[0] < len(table) else None) or f"operand {key[0]}"
    return f"part {key[1]}"


_PRECISION = {torch.float16: (11, 15), torch.bfloat16: (8, 127), torch.float32: (24, 127), torch.float64: (53, 1023)}


def loses(source: torch.dtype, target: torch.dtype) -> bool:
    """Say whether a cast can change a value: the target has fewer digits, or less range."""
    return any(s > t for s, t in zip(_PRECISION[source], _PRECISION[target], strict=True))
