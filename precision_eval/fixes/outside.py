"""A fix put on anybody's model from outside, in one line; imports torch.

Conventions: the model is copied, so that the one given stays as it is; the copy costs its memory once more. Calls are
eager and without gradients. What the fix casts is what :mod:`precision_eval.fixes.sites` says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from torch import nn

from precision_eval.core.errors import ParameterError
from precision_eval.fixes.catalog import Fix, fix_by_id
from precision_eval.fixes.packing import Packed, copy_model, in_dtype


class _PackedCall(Packed):
    """A model called with its arguments packed: what a fix is put on passes positional arguments only."""

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.model(*args, **kwargs)


class Fixed:
    """A copy of a model with a fix in force at each call; :func:`fixed` makes it."""

    def __init__(self, model: nn.Module, fix: Fix) -> None:
        self.model = copy_model(model)
        self.applied = fix.applied(_PackedCall(self.model))
        self._held = ExitStack()
        self._held.enter_context(self.applied.stored())
        if self.applied.fix.change is not None:
            self.model = cast(nn.Module, self.applied.model.model)

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return a call without arguments, to be made inside ``applied.agreeing()``; for timing."""
        args, kwargs = in_dtype((args, kwargs), self.applied.dtype)
        if self.applied.fix.agreement == "autocast":  # whose context belongs to each call
            return partial(cast(Callable[..., Any], self.applied), args, kwargs)
        return partial(self.model, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The casts are put in place before the call and taken away after it.
        with self.applied.agreeing():
            return self.bound(args, kwargs)()

    def __repr__(self) -> str:
        return f"<{self.applied.fix.id} on a copy of {type(self.model).__name__}>"


def fixed(model: nn.Module, fix: str | Fix) -> Fixed:
    """Put a fix on a model from outside, for good.

    Parameters
    ----------
    model : torch.nn.Module
        In the state in which it raises. It is copied, and left as it is.
    fix : str or Fix
        One of ``FIXES``, or its id.

    Returns
    -------
    Fixed
        Called as the model is; eager, without gradients. To reach other methods of a model, such as ``generate``, use
        ``with fix_by_id(...).applied(model):`` around them.

    Raises
    ------
    UnknownNameError
        No such fix, or one with a meaning under the compiler only.
    ParameterError
        It is no module, or cannot be copied.
    UnsupportedError
        The fix is ``upstream``, and the model does not define what landed in its project.
    """
    if not isinstance(model, nn.Module):
        raise ParameterError(f"the model is a {type(model).__name__}; expected a torch.nn.Module")
    return Fixed(model, fix_by_id(fix) if isinstance(fix, str) else fix)
