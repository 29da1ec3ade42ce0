"""KV caches kept in 8 bits with a scale per token, and read in the dtype that is asked for; imports torch.

Conventions: a narrow tensor has the shape, dtype and device of what it stands for, and keeps *codes* and a float32
*scale*. It is read as codes · scale, computed in float32 and rounded once. What is written to it comes to the tensor's
own dtype first, as a write into the original would, and then to codes. The scale of a token (a row of the last
dimension) is its largest magnitude over the format's largest value; a row of zeros has scale 0. Every write brings its
scale. A view of a cache views its codes, so what is written to it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.core.targets import first_line

# Format of codes: their dtype and largest value.
LARGEST: dict[str, tuple[torch.dtype, float]] = {
    "int8": (torch.int8, 127.0),
    "e4m3": (torch.float8_e4m3fn, 448.0),
}
_CACHE_NAME = re.compile(
    r"(?:.*_)?(?:(?P<keys>k|keys?)|(?P<values>v|values?))(?:_?(?:cache|states?))?|(?:.*_)?(?:kv)?_?cache"
)
_CACHE_NAME_AFTER = re.compile(r".*cache_(?:(?P<keys>k|keys?)|(?P<values>v|values?))")
#: Asked of the tensor that stands for the values, without reading them.
_METADATA = frozenset(
    (
        *("__get__", "__len__", "dim", "element_size", "get_device", "is_complex", "is_contiguous"),
        *("is_floating_point", "ndimension", "nelement", "numel", "requires_grad_", "size", "stride"),
    )
)
#: Of these, what codes have as well.
_ALIKE = frozenset(("shape", "ndim", "device", "size", "dim", "ndimension", "numel", "nelement", "__len__"))
_VIEWS = frozenset(
    (
        *("T", "mT", "H", "mH", "data", "detach", "t", "adjoint", "transpose", "swapaxes", "swapdims", "permute"),
        *("movedim", "moveaxis", "unsqueeze", "squeeze", "select", "narrow", "unbind", "chunk", "split"),
    )
)
#: Product → the dimension that it sums over, of its first operand, its second and its third.
_SUMS = {"scaled_dot_product_attention": (-1, -1, -2), **dict.fromkeys(("matmul", "__matmul__", "bmm", "mm"), (-1, -2))}
_CASTS = ("to", "type_as", "float", "half", "bfloat16", "double")
_METHODS = ("__setitem__", "__getitem__", "copy_", "index_copy_", "index_put_", *_CASTS)
_KNOWN = _METADATA.union(_METHODS)


def _name_of(func: Callable[..., Any]) -> str:
    """Name what is called; while attributes of Tensor are swapped, torch hands over the one in its place."""
    name = getattr(func, "__name__", "")
    if name in _KNOWN or type(func) is not FunctionType:  # what stands in an attribute's place is written in Python
        return name
    return next((method for method in _METHODS if getattr(torch.Tensor, method) is func), name)


class NarrowTensor(torch.Tensor):
    """A tensor kept as codes and a scale; reading gives plain tensors."""

    codes: torch.Tensor
    scale: torch.Tensor
    held_format: str
    is_partial_view: bool
    part: str

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Write, cast or index the codes; for everything else, read them."""
        kwargs = kwargs or {}
        name = _name_of(func)
        first, attribute = args[0] if args else None, name
        if name == "__get__":
            attribute = getattr(getattr(func, "__self__", None), "__name__", name)
            name = attribute if attribute in _VIEWS else name
        if attribute in _ALIKE and isinstance(first, NarrowTensor):
            return func(first.codes, *args[1:], **kwargs)  # Dynamo would come by here again
        if name in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if isinstance(first, NarrowTensor):
            if name in _VIEWS or (name == "__getitem__" and _is_basic(args[1])):
                return _view(first, func, args[1:], kwargs)
            if name in _CASTS:
                target = _cast_dtype(name, args, kwargs)
                if target is not None:
                    return read(first, target)
            write = _index_and_value(name, args, kwargs)
            if write is not None:
                _write(first, *write)
                return first
            if name == "zero_":
                first.codes.zero_()
                return first
            if (name.endswith("_") and not name.endswith("__")) or re.fullmatch("__i[a-z]+__", name):
                raise UnsupportedError(f"a cache in {first.held_format} knows no {name}; it knows assignment by index")
        for operand, summed in zip(args, _SUMS.get(name, ()), strict=False):
            check_layout(operand, summed)
        plain = tuple(_read_inside(value) for value in args)
        return func(*plain, **{key: _read_inside(value) for key, value in kwargs.items()})

    def __deepcopy__(self, memo: dict[int, Any]) -> NarrowTensor:
        if id(self) not in memo:
            memo[id(self)] = _assemble(self, self.codes.clone(), self.scale.clone(), self.held_format)
        return memo[id(self)]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"NarrowTensor({self.held_format}, {tuple(self.shape)})"


def _assemble(like: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, held_format: str) -> NarrowTensor:
    """Put codes and scale into a tensor of their shape, with the dtype of another, that has no memory of its own."""
    with _disable_current_modes() if isinstance(codes, FakeTensor) else nullcontext():  # a fake one has no subclass
        tensor = torch.empty((), dtype=like.dtype, device=codes.device).expand(codes.shape).as_subclass(NarrowTensor)
    tensor.codes, tensor.scale, tensor.held_format, tensor.is_partial_view = codes, scale, held_format, False
    tensor.part = like.part if isinstance(like, NarrowTensor) else ""
    return tensor


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """List the tensors in which a tensor's values are kept: itself, or codes and scale."""
    return (tensor.codes, tensor.scale) if isinstance(tensor, NarrowTensor) else (tensor,)


def read(tensor: NarrowTensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values: codes · scale in float32, rounded once."""
    return tensor.codes.to(torch.float32).mul_(tensor.scale).to(dtype)


def narrow(tensor: torch.Tensor, held_format: str) -> NarrowTensor:
    values = tensor.detach().to(torch.float32)
    scale = values.abs().amax(-1, keepdim=True) / LARGEST[held_format][1]
    try:
        return _assemble(tensor, _encode(values, scale, held_format), scale, held_format)
    except TypeError as error:  # such as mps, which has no 8-bit floating point
        raise UnsupportedError(f"{held_format} on {tensor.device.type}: {first_line(error)}") from error


def _encode(values: torch.Tensor, scale: torch.Tensor, held_format: str) -> torch.Tensor:
    dtype, largest = LARGEST[held_format]
    scaled = (values / torch.where(scale > 0, scale, torch.ones_like(scale))).clamp(-largest, largest)
    return (scaled.round() if dtype is torch.int8 else scaled).to(dtype)


def _cast_dtype(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """Return the dtype that a cast asks for, None where it asks for something else too."""
    named = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64}
    if name in named:
        return named[name]
    wanted = kwargs.get("dtype", args[1] if len(args) > 1 else None)
    if isinstance(wanted, torch.Tensor):
        return wanted.dtype
    return wanted if isinstance(wanted, torch.dtype) and len(args) < 3 and "device" not in kwargs else None


def _read_inside(value: Any) -> Any:
    """Read narrow tensors, also those of lists, as ``torch.cat`` takes them."""
    if isinstance(value, NarrowTensor):
        with torch._C.DisableTorchFunctionSubclass():  # or asking for the dtype would come by here too
            return read(value, value.dtype)
    return type(value)(map(_read_inside, value)) if type(value) in (list, tuple) else value


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or isinstance(part, int | slice | type(...)) for part in parts)


def _view(tensor: NarrowTensor, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    codes, scale = (func(part, *args, **kwargs) for part in (tensor.codes, tensor.scale.expand(tensor.codes.shape)))
    if isinstance(codes, torch.Tensor):
        return _assemble_view(tensor, codes, scale)
    return tuple(_assemble_view(tensor, *parts) for parts in zip(codes, scale, strict=True))


def _assemble_view(tensor: NarrowTensor, codes: torch.Tensor, scale: torch.Tensor) -> NarrowTensor:
    """Make a view, which can be written to where it has the rows that share a scale whole."""
    view = _assemble(tensor, codes, scale, tensor.held_format)
    before, after = _row_dimension(tensor), _row_dimension(view)
    view.is_partial_view = before is None or after is None or codes.shape[after] != tensor.codes.shape[before]
    return view


def _row_dimension(tensor: NarrowTensor) -> int | None:
    """Return the dimension whose values share a scale, below 0; None where there is none."""
    scale = tensor.scale
    if tensor.is_partial_view:
        return None
    sizes = zip(range(-scale.ndim, 0), tensor.codes.shape, scale.shape, scale.stride(), strict=True)
    dims = [dim for dim, size, scales, stride in sizes if size > 1 and (scales == 1 or stride == 0)]
    return dims[0] if len(dims) == 1 else None


def check_layout(tensor: torch.Tensor, summed: int) -> None:
    """Refuse a cache of which a product sums over a dimension that is none of channels for keys, of slots for values.

    Its rows are then channels, and a scale per row is none per token. A model that casts a cache by itself before the
    product is not seen.
    """
    if not isinstance(tensor, NarrowTensor) or tensor.part not in ("keys", "values"):
        return
    row = _row_dimension(tensor)
    if row is not None and (tensor.part == "keys") != (row == summed):
        raise UnsupportedError(
            f"{tensor.part} are kept with channels before slots, so that a scale per row is one per channel and not "
            "per token; keep slots before channels"
        )


def _keeps_rows(index: Any, ndim: int) -> bool:
    """Say whether an index leaves the last dimension whole."""
    parts = index if isinstance(index, tuple) else (index,)
    reaches = any(part is ... for part in parts[:-1]) or sum(part is not None for part in parts) >= ndim
    return not reaches or parts[-1] is ... or parts[-1] == slice(None)


def _index_and_value(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """Return the index and the value that a call writes, None where it is no write."""
    if name == "__setitem__":
        return args[1], args[2]
    if name == "copy_":
        return ..., args[1]
    if name == "index_copy_" and len(args) == 4:
        return (*[slice(None)] * (args[1] % args[0].codes.ndim), args[2]), args[3]
    if name == "index_put_" and not kwargs.get("accumulate", len(args) > 3 and args[3]):
        return tuple(args[1]), args[2] if len(args) > 2 else kwargs["values"]
    return None


def _write(tensor: NarrowTensor, index: Any, value: Any) -> None:
    codes = tensor.codes  # asked in the tensor's place: a frame that is compiled alone would take it for an input
    if not _keeps_rows(index, codes.ndim) or _row_dimension(tensor) not in (-1, None):
        raise UnsupportedError(f"a cache in {tensor.held_format} is written in whole rows of its last dimension")
    if tensor.is_partial_view:
        raise UnsupportedError("a cache is written through a slice of it; that takes whole rows")
    if isinstance(value, NarrowTensor):
        value = read(value, value.dtype)
    values = torch.as_tensor(value, device=codes.device).to(tensor.dtype).to(torch.float32)
    scale = values.abs().amax(-1, keepdim=True) / LARGEST[tensor.held_format][1]
    tensor.scale[..., :1][index] = scale
    codes[index] = _encode(values, scale, tensor.held_format)


def cache_part(name: str) -> str | None:
    """Say from a tensor's name whether it holds keys, values or both."""
    match = _CACHE_NAME.fullmatch(name.lower()) or _CACHE_NAME_AFTER.fullmatch(name.lower())
    if match is None:
        return None
    return next((part for part in ("keys", "values") if match.groupdict().get(part)), "both")


def _stores(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield where a model keeps tensors by name: buffers, attributes, and those of cache objects that it holds."""
    pending: list[Any] = list(model.modules())
    seen: set[int] = set()
    while pending:
        owner = pending.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, list | tuple):
            pending += [value for value in owner if hasattr(value, "__dict__")]
            continue
        yield vars(owner)
        values = list(vars(owner).values())
        is_module = isinstance(owner, nn.Module)
        if is_module:
            yield owner._buffers
            values += [leaf[0] for leaf in vars(owner).get("_others", ()) if leaf]  # the inputs of a packed model
        pending += [value for value in values if _is_cache_object(value, inside=not is_module)]


def _is_cache_object(value: Any, *, inside: bool) -> bool:
    """Say whether a value is a cache by its type's name, or a part of one: transformers keep a list of layers."""
    if isinstance(value, list | tuple):
        return inside
    return "cache" in type(value).__name__.lower() and hasattr(value, "__dict__") and not isinstance(value, nn.Module)


def _replace_caches(model: nn.Module, caches: str) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    """Narrow the caches of a model in place; return where each was, with its original."""
    held_format, _, per = caches.partition("/")
    if held_format not in LARGEST or per != "token":
        raise ParameterError(f"caches '{caches}'; expected int8/token or e4m3/token")
    originals: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    for store in _stores(model):
        for name, tensor in list(store.items()):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.ndim < 3:
                continue
            part = cache_part(name)
            if part is not None:
                store[name] = cache = narrow(tensor, held_format)
                cache.part = part
                originals.append((store, name, tensor))
    if not originals:
        raise UnsupportedError(
            f"no keys or values to keep in {held_format}: the model has no buffer, attribute or cache object named "
            "key, value, k_cache, of three dimensions or more"
        )
    return originals


@contextmanager
def narrow_caches(model: nn.Module, caches: str) -> Iterator[None]:
    """Keep a model's caches in a narrow format for the time of a block; then the originals are back."""
    originals: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        originals += _replace_caches(model, caches) if caches else []
        yield
        lost = [name for store, name, _ in originals if type(store[name]) in (torch.Tensor, nn.Parameter)]
        if lost:
            raise UnsupportedError(f"the model puts a new tensor in the place of '{lost[0]}', which is not kept narrow")
    finally:
        for store, name, tensor in originals:
            store[name] = tensor
