"""Honest computations of the same operation on the same input: what an error is held to.

Conventions: every computation keeps sums in float32 or wider and stores a step in the operands' dtype at most where
eager torch or FlashAttention does. They differ in order, in what is stored and in the kernel, as competent
implementations do, and those that store a step come in two orders of sums: what the one has beyond the other is chance.
They are returned before the output is rounded to the dtype, where that is known: the judge rounds it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from precision_eval.core.errors import ParameterError
from precision_eval.fixes.pins import SDPA_BACKENDS

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BEHIND = (0.0, 0.25, 0.5, 0.75)
"""Of a binade, beside what each row's maximum gives: the maximum that is subtracted may lag behind, by another amount
in each row, so that weights lie elsewhere in their binades and are rounded otherwise."""
BLOCKS = 4
POINTS = 8
REACH = 88.0
"""Below a row's largest logit, where weights in float32 begin to vanish."""
_LOG2_E, _LN_2 = math.log2(math.e), math.log(2.0)
BACKEND_REACH = 4.0
"""How much farther from the wide computation than all composed ones a kernel of torch's may lie to be a yardstick."""

Function = Callable[..., Tensor]


def sample_rows(
    rows: int, heads: int = 1, *, most_rows: int = 32, most_heads: int = 4, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Draw heads and rows to judge in place of all, which of a large call costs a fraction.

    Give `assess`, the reference and the yardsticks ``q[:, heads][:, :, rows]``, ``k[:, heads]``, ``v[:, heads]``,
    ``mask[rows]`` and ``output[:, heads][:, :, rows]``. What is wrong in other places alone is not seen: let each of
    several calls have a seed of its own.

    Parameters
    ----------
    rows, heads : int
        How many there are.
    most_rows, most_heads : int
        How many are drawn at most. The first and the last row are always among them.
    seed : int

    Returns
    -------
    heads, rows : torch.Tensor of int64, ascending
    """
    if min(rows, heads, most_heads) < 1 or most_rows < 2:
        raise ParameterError(
            f"found {rows} rows, {heads} heads, at most {most_rows} and {most_heads}; expected at least 1, and 2 rows"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.tensor([0, rows - 1]), torch.randperm(max(rows - 2, 0), generator=generator) + 1])
    return torch.randperm(heads, generator=generator)[:most_heads].sort().values, order[:most_rows].unique()


def attention_yardsticks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    backends: bool = True,
) -> dict[str, Tensor]:
    """Compute attention honestly in several ways, for :func:`~precision_eval.assess` to hold a candidate to.

    Parameters
    ----------
    query, key, value : torch.Tensor of one dtype, shapes (B, H, L, D), (B, H, S, D) and (B, H, S, E)
        As stored, one key and value head per query head.
    mask : torch.Tensor of bool, broadcastable to (B, H, L, S), optional
        True where a row sees a key.
    scale : float, optional
        1/√D where not given.
    backends : bool, default True
        With torch's own kernels: what torch ships is honest, and so is what errs no more. Without them, one of them
        can be held to all others. One that lies farther off than :data:`BACKEND_REACH` allows is broken, and left out.

    Returns
    -------
    dict of str to torch.Tensor, each of shape (B, H, L, E)
        By the name of the computation, in float32 before the output is rounded. Eager attention with its logits stored
        in the dtype in several ways, or not stored; unnormalised weights by exp2, under several maxima, also divided by
        the sum of what is stored of them, as FlashInfer does; softmax over blocks of keys; and, in the operands' dtype,
        eager attention, also with the scale on the operands or keys by queries, and those of torch's backends that run
        on them. In float32, also weights by the logarithm of their sum, of logits that lie elsewhere, keys split and
        merged, and torch's backends on the keys from the last to the first.

    Raises
    ------
    ParameterError
        The operands are not of one dtype, or that is not float16, bfloat16 or float32.
    """
    dtype = _dtype_of(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale

    def stored(x: Tensor) -> Tensor:
        return x if dtype is torch.float32 else x.to(dtype).float()

    v, keys = value.float(), key.shape[-2]
    logits = _logits(query.float(), key.float(), scale, stored, rounds=dtype is not torch.float32)
    if mask is not None:
        logits = {name: one.masked_fill(~mask, -math.inf) for name, one in logits.items()}
    found = _outputs(logits, v, stored, rounds=dtype is not torch.float32)
    block = max(16, -(-keys // BLOCKS))
    found["online"] = _in_blocks(logits["wide"], v, block, stored)
    if dtype is torch.float32:
        found["split, merged"] = _merged(logits["wide"], v, block)
    found["eager"] = _eager(query, key, value, mask, scale)
    if dtype is not torch.float32:
        root = math.sqrt(scale)
        found["eager, scaled operands"] = _eager(query * root, key * root, value, mask, 1.0)
        found["eager, scaled query"] = _eager(query * scale, key, value, mask, 1.0)
    found["eager, turned"] = _turned(query, key, value, mask, scale)
    found["eager, transposed"] = _eager(query, _transposed(key), _transposed(value), mask, scale)
    if not backends:
        return found
    by_torch = _by_torch(query, key, value, mask, scale, composed=found)
    if dtype is torch.float32:
        turned = key.flip(-2), value.flip(-2), None if mask is None else mask.flip(-1)
        by_torch |= {
            f"{name}, backwards": one for name, one in _by_torch(query, *turned, scale, composed=found).items()
        }
    return found | by_torch


def _by_torch(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, *, composed: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Run those of torch's own kernels that take these operands; a broken one is no yardstick for itself."""

    def apart(output: Tensor) -> float:
        return float((output.float() - composed["wide"]).square().mean())

    most = BACKEND_REACH**2 * max(map(apart, composed.values()))
    known = SDPA_BACKENDS.values()
    outputs = {name: _by_backend(getattr(SDPBackend, name), query, key, value, mask, scale) for name in known}
    return {f"torch's {name.lower()}": out for name, out in outputs.items() if out is not None and apart(out) <= most}


def _logits(q: Tensor, k: Tensor, scale: float, stored: Function, *, rounds: bool) -> dict[str, Tensor]:
    """Scaled products of query and key, each stored at other places."""
    rows, root = q.shape[-2], math.sqrt(scale)
    queries = [q, stored(q * scale), *[stored(q * (scale * _LOG2_E))] * rounds]
    products, by_query, *base_two = (torch.cat(queries, -2) @ k.mT).split(rows, -2)  # K is read once
    in_parts = _in_parts(q, k, 2)
    logits = {"wide": products * scale, "scaled query": stored(by_query)}
    logits["scaled key"] = stored(q @ stored(k * scale).mT)  # as Triton's tutorial has it in its backward pass
    logits["scaled operands"] = stored(stored(q * root) @ stored(k * root).mT)
    if not rounds:
        logits["scaled operands, products in parts"] = _in_parts(q * root, k * root, 8)
        return {**logits, "products in parts": in_parts * scale}
    logits["stored"] = stored(stored(products) * scale)
    logits["stored, products in parts"] = stored(stored(in_parts) * scale)
    if scale and math.frexp(scale)[0] != 0.5:  # a power of two divides as it multiplies
        logits["stored, divided"] = stored(stored(products) / (1.0 / scale))
    logits["scaled query, base two"] = base_two[0] / _LOG2_E  # FlexAttention's PRESCALE_QK
    logits["stored before the scale"] = stored(products) * scale
    logits["stored once"] = stored(products * scale)
    logits["stored once, products in parts"] = stored(in_parts * scale)
    return logits


def _in_parts(q: Tensor, k: Tensor, count: int) -> Tensor:
    """Products of query and key, some channels at a time."""
    parts = zip(q.chunk(count, -1), k.chunk(count, -1), strict=True)
    return sum((a @ b.mT for a, b in parts), torch.zeros((), device=q.device))


def _outputs(logits: Mapping[str, Tensor], v: Tensor, stored: Function, *, rounds: bool) -> dict[str, Tensor]:
    """Softmax and product with the values: divided before, or late; V is read once or twice for all."""
    rows, third = logits["wide"].shape[-2], -(-v.shape[-2] // 3)
    weights = {name: stored(one.softmax(-1)) for name, one in logits.items()}
    late = [("wide", behind) for behind in BEHIND if rounds or not behind]
    late += [(name, 0.0) for name in ("scaled query", "scaled operands", "stored") if name in logits]
    totals: dict[str, Tensor] = {}
    for name, behind in late:
        key, one = f"{name}, divided late" + f", maximum behind, {behind}" * (behind > 0.0), logits[name]
        highest = one.amax(-1, keepdim=True)
        lag = (16.0 * highest.nan_to_num() + behind).remainder(1.0) * _LN_2 if behind else 0.0
        unnormalised = torch.exp2((one - (highest + lag)) * _LOG2_E)
        totals[key], weights[key] = unnormalised.sum(-1, keepdim=True), stored(unnormalised)
        if name == "wide" and rounds and not behind:
            totals["split"], weights["split"] = totals[key], unnormalised
    if not rounds:
        weights |= _at_other_heights(logits["wide"])
    stacked = torch.cat(list(weights.values()), -2)
    parts = [w @ x for w, x in zip(stacked.split(third, -1), v.split(third, -2), strict=True)]
    found = dict(zip(weights, sum(parts[1:], parts[0]).split(rows, -2), strict=True))
    if rounds:  # those whose every rounding is settled by what they store
        again = dict(zip(weights, sum(parts[-2::-1], parts[-1]).split(rows, -2), strict=True))
        found |= {f"{name}, last part first": one for name, one in again.items() if name not in totals}
    else:  # the computations above are each other's orders
        found["wide, at once"] = weights["wide"] @ v
        found["wide, backwards"] = weights["wide"].flip(-1) @ v.flip(-2)
        every_other = [weights["wide"][..., at::2] @ v[..., at::2, :] for at in (0, 1)]
        found["wide, every other key first"] = every_other[0] + every_other[1]
    name = "wide, divided late"
    totals[f"{name}, by stored weights"] = weights[name] @ v.new_ones(v.shape[-2], 1)  # as by a column of ones beside V
    found[f"{name}, by stored weights"] = found[name]
    return found | {name: found[name] / total for name, total in totals.items()}


def _at_other_heights(logits: Tensor) -> dict[str, Tensor]:
    """Weights of logits that are rounded where they are larger, as softmax allows: it sees no shift of a row."""
    highest = logits.amax(-1, keepdim=True)
    lowest = torch.where(logits > highest - REACH, logits, highest).amin(-1, keepdim=True)
    powers, top = logits * _LOG2_E, highest * _LOG2_E
    total = (powers - top).exp2().sum(-1, keepdim=True)
    return {
        "shifted": (logits - lowest).softmax(-1),
        "by the sum's logarithm": (powers - (top + total.log2())).exp2(),
    }


def _merged(logits: Tensor, v: Tensor, block: int) -> Tensor:
    """Keys split over workers; each normalises its own part, merged in float32 by the logarithms of their sums."""
    parts = [(part.softmax(-1), part.logsumexp(-1, keepdim=True)) for part in logits.split(block, -1)]
    sums = torch.cat([total for _, total in parts], -1)
    shares = (sums - sums.logsumexp(-1, keepdim=True)).exp().split(1, -1)
    products = [weights.nan_to_num(0.0) @ x for (weights, _), x in zip(parts, v.split(block, -2), strict=True)]
    return sum((x * share for x, share in zip(products, shares, strict=True)), torch.zeros((), device=v.device))


def _in_blocks(logits: Tensor, v: Tensor, block: int, stored: Function) -> Tensor:
    """Online softmax over blocks of keys, float32 accumulator, divided after the product."""
    maximum = torch.full((*logits.shape[:-1], 1), -math.inf, device=logits.device)
    total, accumulator = torch.zeros_like(maximum), torch.zeros((), device=logits.device)
    for part, values in zip(logits.split(block, -1), v.split(block, -2), strict=True):
        newest = torch.maximum(part.amax(-1, keepdim=True), maximum)
        shift = newest.clamp_min(-1e30)  # where nothing is seen yet
        weights, fade = (part - shift).exp(), (maximum - shift).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        accumulator = accumulator * fade + stored(weights) @ values
        maximum = newest
    return accumulator / total


def _eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Operator by operator in the operands' dtype, by the kernels that torch takes for these shapes."""
    logits = query @ key.mT * scale
    return (logits if mask is None else logits.masked_fill(~mask, -math.inf)).softmax(-1) @ value


def _turned(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The same with operands exchanged, as AITER's and TensorRT-LLM's XQA kernels do: softmax goes down the columns."""
    logits = key @ query.mT * scale
    weights = (logits if mask is None else logits.masked_fill(~mask.mT, -math.inf)).softmax(-2)
    return (value.mT @ weights).mT


def _transposed(x: Tensor) -> Tensor:
    """The same in the other memory layout, for which torch has other kernels."""
    return x.mT.contiguous().mT if x.ndim > 1 else x


def _by_backend(
    backend: SDPBackend, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor | None:
    """One of torch's own kernels; None where it does not take these operands."""
    with warnings.catch_warnings(), sdpa_kernel(backend):
        warnings.simplefilter("ignore")  # they say why a kernel is not used
        try:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        except RuntimeError:
            return None


def operation_yardsticks(function: Function, *operands: Tensor) -> dict[str, Tensor]:
    """Compute an operation honestly in several ways, for :func:`~precision_eval.assess` to hold a candidate to.

    Parameters
    ----------
    function : callable
        The operation in plain torch; called on the operands and on float32 copies of them. It has to draw no random
        numbers.
    *operands : torch.Tensor of one dtype
        float16, bfloat16 or float32, as stored.

    Returns
    -------
    dict of str to torch.Tensor, each of the output's shape
        By the name of the computation: each step stored in the dtype, also with the operands in the other memory
        layout, and in float32 with nothing stored; both as they are, and with the terms of every sum, mean, softmax,
        normalisation and product of matrices in two other orders, where there are any; in one of them also functions
        by others, such as exp by exp2, norms by the mean of squares, and softmax on logits that lie elsewhere; in
        float64; and in float32 with the result of one of torch's operators stored, each in turn, a product being one
        of its own where a bias is added to it, and so the weights of softmax before they are divided by their sum.

    Raises
    ------
    ParameterError
        The operands are not of one dtype, or that is not float16, bfloat16 or float32.

    Examples
    --------
    >>> import torch
    >>> from precision_eval.measure.assess import assess, operation_yardsticks
    >>> x, w = torch.randn(2, 1, 64, 256, generator=torch.Generator().manual_seed(7)).half()
    >>> def product(x, w):
    ...     return x @ w.mT
    >>> yardsticks = operation_yardsticks(product, x, w)
    >>> assess((x.float() @ w.float().mT).half(), product(x.double(), w.double()), yardsticks).verdict
    'as expected of the format'
    """
    dtype = _dtype_of(*operands)
    found = {"in float64": function(*(x.double() for x in operands))}
    found["stored, transposed"] = function(*map(_transposed, operands))
    for name, given in (("stored", operands), ("wide", tuple(x.float() for x in operands))):
        if name == "wide" and dtype is torch.float32:
            continue
        found[name] = function(*given)
        for order in ("reversed", "halves"):
            with OtherOrder(order) as other:
                again = function(*given)
            if other.changed:
                found[f"{name}, {order}"] = again
    if dtype is not torch.float32:
        with StoringStep(dtype) as counted:
            function(*given)
        steps = range(counted.steps - 1)  # the last is the output, which is rounded anyway
        for step in steps[:: -(-len(steps) // POINTS) or 1]:
            with StoringStep(dtype, step):
                found[f"wide, step {step + 1} stored"] = function(*given)
    return found


class StoringStep(TorchDispatchMode):
    """While active, the result of one of torch's operators is stored in a dtype; they are counted."""

    def __init__(self, dtype: torch.dtype, step: int = -1) -> None:
        super().__init__()
        self.dtype, self.step, self.steps = dtype, step, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("addmm", "baddbmm") and not kwargs:
            return self._stored(self._stored(args[1] @ args[2]) + args[0])
        if func.overloadpacket.__name__ == "_softmax":
            weights = (args[0] - args[0].amax(args[1], keepdim=True)).exp()
            return self._stored(self._stored(weights) / weights.sum(args[1], keepdim=True))
        output = func(*args, **(kwargs or {}))
        counts = isinstance(output, Tensor) and output.dtype is torch.float32 and not func.is_view
        return self._stored(output) if counts else output

    def _stored(self, output: Tensor) -> Tensor:
        self.steps += 1
        return output.to(self.dtype).float() if self.steps - 1 == self.step else output


class OtherOrder(TorchDispatchMode):
    """While active, torch's operators take the terms of sums backwards, or in two halves and functions by others."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.changed = order, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, first = func.overloadpacket.__name__, args[0] if args else None
        found = None
        if isinstance(first, Tensor) and first.dtype in DTYPES:  # integers and float64 have no other order to see
            if name in _BY_OTHERS and self.order == "halves" and not kwargs:
                found = _BY_OTHERS[name](first.float()).to(first.dtype)
            elif name in _OTHERWISE:
                found = _OTHERWISE[name](self.order, func, *args, **(kwargs or {}))
        self.changed |= found is not None
        return func(*args, **(kwargs or {})) if found is None else found


def _product(order: str, func: Any, a: Tensor, b: Tensor) -> Tensor:
    if order == "reversed":
        return func(a.flip(-1), b.flip(-2))
    pairs = zip(a.float().chunk(2, -1), b.float().chunk(2, -2), strict=True)
    return sum((x @ y for x, y in pairs), torch.zeros((), device=a.device)).to(a.dtype)


def _added_product(order: str, func: Any, added: Tensor, a: Tensor, b: Tensor, **kwargs: Any) -> Tensor | None:
    if kwargs:
        return None
    return (_product(order, torch.matmul, a.float(), b.float()) + added.float()).to(added.dtype)


def _normalised(order: str, func: Any, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    heights = _at_other_heights(x.float().movedim(dim, -1).flip(-1))
    other = heights["shifted" if order == "reversed" else "by the sum's logarithm"].flip(-1).movedim(-1, dim)
    return other if half_to_float else other.to(x.dtype)


def _summed(order: str, func: Any, x: Tensor, axes: Any = (), *rest: Any, **kwargs: Any) -> Tensor | None:
    """Backwards along the axes, or rolled by a half."""
    if not axes:
        return None
    moved = x.flip(axes) if order == "reversed" else x.roll([x.shape[axis] // 2 for axis in axes], axes)
    return func(moved, axes, *rest, **kwargs)


def _accumulated(order: str, func: Any, x: Tensor, dim: int, **kwargs: Any) -> Tensor | None:
    """One by one in float32, where torch's own sums are wider on a CPU; or the second half after the first."""
    if kwargs:
        return None
    if order == "reversed":
        found = torch.from_numpy(x.float().cpu().numpy().cumsum(dim, dtype="float32")).to(x.device)
    else:
        first, *others = (part.float().cumsum(dim) for part in x.chunk(2, dim))
        found = torch.cat([first, *(part + first.select(dim, -1).unsqueeze(dim) for part in others)], dim)
    return found.to(x.dtype)


def _layer_normed(order: str, func: Any, x: Tensor, shape: Any, w: Any, b: Any, eps: float) -> tuple[Tensor, ...]:
    axes = list(range(-len(shape), 0))
    if order == "halves":
        return _by_moments(x, axes, w, b, eps)
    output, *rest = func(x.flip(axes), shape, *(None if p is None else p.flip(axes) for p in (w, b)), eps)
    return (output.flip(axes), *rest)


def _group_normed(
    order: str, func: Any, x: Tensor, w: Any, b: Any, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    if order == "halves":
        parts = x.reshape(n, groups, channels // groups, size)
        w, b = (None if p is None else p.view(groups, -1, 1) for p in (w, b))
        output, *rest = _by_moments(parts, [2, 3], w, b, eps)
        return (output.view(x.shape), *rest)
    axes = list(range(1, x.ndim))
    flipped = (None if p is None else p.flip(0) for p in (w, b))
    output, *rest = func(x.flip(axes), *flipped, n, channels, size, groups, eps)
    return (output.flip(axes), *rest)


def _by_moments(x: Tensor, axes: list[int], w: Tensor | None, b: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    """Normalised by the mean and the mean of squares, in float32."""
    wide = x.float()
    mean = wide.mean(axes, keepdim=True)
    scale = ((wide.square().mean(axes, keepdim=True) - mean.square()).clamp_min(0.0) + eps).rsqrt()
    output = (wide - mean) * scale * (1.0 if w is None else w.float()) + (0.0 if b is None else b.float())
    return output.to(x.dtype), mean, scale


_OTHERWISE: dict[str, Callable[..., Any]] = {
    "mm": _product,
    "bmm": _product,
    "addmm": _added_product,
    "baddbmm": _added_product,
    "_softmax": _normalised,
    "sum": _summed,
    "mean": _summed,
    "cumsum": _accumulated,
    "native_layer_norm": _layer_normed,
    "native_group_norm": _group_normed,
}
_BY_OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda x: (x * _LOG2_E).exp2(),
    "exp2": lambda x: (x * _LN_2).exp(),
    "log": lambda x: x.log2() * _LN_2,
    "log2": lambda x: x.log() * _LOG2_E,
    "log10": lambda x: x.log2() * math.log10(2.0),
    "rsqrt": lambda x: x.sqrt().reciprocal(),
    "sigmoid": lambda x: (1.0 + (x * -_LOG2_E).exp2()).reciprocal(),
    "silu": lambda x: x / (1.0 + (x * -_LOG2_E).exp2()),
    "gelu": lambda x: 0.5 * x * (1.0 + torch.erf(x * 0.5**0.5)),
}
"""Functions by others, in float32."""


def _dtype_of(*operands: Tensor) -> torch.dtype:
    dtypes = {x.dtype for x in operands}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        raise ParameterError(
            f"the operands are {', '.join(sorted(map(str, dtypes))) or 'none'}; give them as the computation reads "
            "them: all of one dtype, float16, bfloat16 or float32"
        )
    return dtypes.pop()
