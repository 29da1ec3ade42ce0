"""Modes under which anybody's model runs unedited: one keeps float64 wide, one draws alike in every precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from precision_eval.trace.operations import python_body

Function = Callable[..., Any]

#: Casts that name no dtype among their arguments.
_NAMED_CASTS: dict[Function, torch.dtype] = {
    torch.Tensor.float: torch.float32,
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
}
_CASTS_LIKE: frozenset[Function] = frozenset((torch.Tensor.to, torch.Tensor.type_as))
_FACTORIES: frozenset[Function] = frozenset(
    (torch.arange, torch.empty, torch.full, torch.linspace, torch.ones, torch.tensor, torch.zeros)
)

#: From one seed torch draws other numbers in float64 than in float32, which is where a model that names no dtype draws.
_DRAWN: frozenset[Function] = frozenset((torch.randn, torch.rand))


class KeepingWide(TorchFunctionMode):
    """Turns casts to narrower floating dtypes into no-ops: of tensors in a wide one, whole numbers and new tensors.

    The wide dtype is the default meanwhile, so that what names none, such as ``torch.ones(2)`` or ``ids / 3``, is wide.
    """

    def __init__(self, wide: torch.dtype) -> None:
        super().__init__()
        self.wide = wide
        self._before: list[torch.dtype] = []

    def __enter__(self) -> Self:
        self._before.append(torch.get_default_dtype())
        torch.set_default_dtype(self.wide)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self._before.pop())

    def _keeps(self, func: Function, args: tuple[Any, ...]) -> bool:
        """Whether the narrow dtype that a call asks for is to be the wide one instead."""
        first = args[0] if args else None
        if isinstance(first, torch.Tensor):
            return first.dtype is self.wide or not first.is_floating_point()
        return func in _FACTORIES

    def _is_narrow(self, value: Any) -> bool:
        return isinstance(value, torch.dtype) and value.is_floating_point and value.itemsize < self.wide.itemsize

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call with the wide dtype in the place of each narrower one, where the first tensor is wide."""
        kwargs = dict(kwargs or {})
        if body := python_body(func):
            with self:
                return body(*args, **kwargs)
        if func in _DRAWN and kwargs.get("dtype") is None and "out" not in kwargs:
            return func(*args, **kwargs | {"dtype": torch.float32}).to(self.wide)
        if not self._keeps(func, args):
            return func(*args, **kwargs)
        if func in _NAMED_CASTS:
            return args[0].to(self.wide) if self._is_narrow(_NAMED_CASTS[func]) else func(*args, **kwargs)
        if (
            func in _CASTS_LIKE
            and len(args) > 1
            and isinstance(args[1], torch.Tensor)
            and self._is_narrow(args[1].dtype)
        ):
            return args[0].to(args[1].device, self.wide)
        wide = tuple(self.wide if self._is_narrow(value) else value for value in args)
        return func(*wide, **{name: self.wide if self._is_narrow(value) else value for name, value in kwargs.items()})


_LIKE = (torch.randn_like, torch.rand_like)
_FRESH = (torch.randn, torch.rand, *_LIKE)
_IN_PLACE = (torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.exponential_)
_CHOOSING = (torch.multinomial, torch.bernoulli)


class DrawnAs(TorchFunctionMode):
    """Draws in the formats of an earlier run, in its order: from one seed each format draws other numbers.

    Without an earlier run it draws as asked. What was drawn in, either way, is `drawn`.
    """

    def __init__(self, formats: Sequence[torch.dtype] = ()) -> None:
        super().__init__()
        self.formats = formats
        self.drawn: list[torch.dtype] = []

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call, or draw in another format and give back the one that was asked for."""
        kwargs = dict(kwargs or {})
        if body := python_body(func):
            with self:
                return body(*args, **kwargs)
        if (func not in _FRESH and func not in _IN_PLACE) or "out" in kwargs:
            return func(*args, **kwargs)
        if len(self.drawn) >= len(self.formats):
            result = func(*args, **kwargs)
            self.drawn.append(result.dtype)
            return result
        dtype = self.formats[len(self.drawn)]
        self.drawn.append(dtype)
        with torch._C.DisableTorchFunction():
            if func in _IN_PLACE:
                return args[0].copy_(func(torch.empty_like(args[0], dtype=dtype), *args[1:], **kwargs))
            asked = kwargs.get("dtype") or (args[0].dtype if func in _LIKE else torch.get_default_dtype())
            return func(*args, **kwargs | {"dtype": dtype}).to(asked)


class SharedNoise(TorchFunctionMode):
    """Draws what torch is asked to draw in float64 from one seed, so that every precision gets the same, rounded."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call, or draw in its place."""
        kwargs = dict(kwargs or {})
        if func not in _FRESH and func not in _IN_PLACE and func not in _CHOOSING:
            return func(*args, **kwargs)
        given = kwargs.pop("generator", None)
        generator = given if given is not None and given.device.type == "cpu" else self.own
        if func is torch.multinomial:
            return self._multinomial(generator, *args, **kwargs)
        if func is torch.bernoulli:
            drawn = torch.rand(args[0].shape, dtype=torch.float64, generator=generator)
            return (drawn < args[0].cpu()).to(args[0])
        if func in _IN_PLACE:
            drawn = torch.empty(args[0].shape, dtype=torch.float64)
            return args[0].copy_(func(drawn, *args[1:], **kwargs, generator=generator))
        like = func(*args, **kwargs | {"device": "meta"})
        draw = torch.randn if func in (torch.randn, torch.randn_like) else torch.rand
        device = kwargs.get("device") or (args[0].device if func in _LIKE else torch.get_default_device())
        return draw(like.shape, dtype=torch.float64, generator=generator).to(device, like.dtype)

    @staticmethod
    def _multinomial(
        generator: torch.Generator, probabilities: torch.Tensor, num_samples: int, replacement: bool = False
    ) -> torch.Tensor:
        """Take the largest of log-probability plus Gumbel noise; with replacement, so many times."""
        rows = probabilities.detach().to("cpu", torch.float64).log()
        shape = (*rows.shape, num_samples) if replacement else (*rows.shape, 1)
        noise = -torch.empty(shape, dtype=torch.float64).exponential_(generator=generator).log()
        scores = rows[..., None] + noise
        chosen = scores.argmax(-2) if replacement else scores[..., 0].topk(num_samples).indices
        return chosen.to(probabilities.device)
