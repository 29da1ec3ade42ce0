"""Lets a call import Dynamo only if it compiles: importing it takes longer than all else that an eager call needs.

Dynamo keeps tables of torch's functions, so names that are exchanged are put back while it is imported; and what is in
force for it is set once it is there.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, TypeVar, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DYNAMO = "torch._dynamo"

Mode = TypeVar("Mode", bound=TorchDispatchMode)


class _Around(MetaPathFinder):
    """Finds Dynamo, and calls `before` and `after` around its import."""

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self.before, self.after = before, after

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec: Any = PathFinder.find_spec(fullname, path, target) if fullname == DYNAMO else None
        if spec is not None:
            spec.loader.exec_module = partial(_load, spec.loader.exec_module)
        return cast(ModuleSpec | None, spec)


def _load(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    around = [finder for finder in sys.meta_path if isinstance(finder, _Around)]  # the innermost block's first
    for each in around:
        each.before()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own parts
            load(module)
    finally:
        for each in reversed(around):
            each.after()


@contextmanager
def around_dynamo(*, before: Callable[[], None] = lambda: None, after: Callable[[], None]) -> Iterator[None]:
    """Have these called around Dynamo's import, if a block is what imports it."""
    finder = _Around(before, after)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def dispatching_without(mode: type[Mode]) -> type[Mode]:
    """Have operations under a mode not import Dynamo, as they do where torch hides them from it, before a call does."""
    hidden: Any = mode.__torch_dispatch__
    plain = getattr(hidden, "__wrapped__", hidden)

    def dispatch(self: Mode, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if DYNAMO in sys.modules:
            mode.__torch_dispatch__ = hidden  # type: ignore[method-assign]
        return (hidden if DYNAMO in sys.modules else plain)(self, func, types, args, kwargs)

    mode.__torch_dispatch__ = dispatch  # type: ignore[assignment, method-assign]
    return mode


@contextmanager
def forced_eager() -> Iterator[None]:
    """Run in eager what is compiled by itself."""
    with ExitStack() as stack:

        def force() -> None:
            stack.enter_context(torch.compiler.set_stance("force_eager"))

        if DYNAMO in sys.modules:
            force()
        else:
            stack.enter_context(around_dynamo(after=force))
        yield
