"""A fix whose calls run with a pinned attention backend; imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.catalog import Fix
from precision_eval.fixes.pins import sdpa_pinned


class PinnedFix(AppliedFix):
    """A fix on one model, under a pin."""

    def __init__(self, fix: Fix, model: nn.Module, *, mode: str, sdpa_backend: str | None) -> None:
        super().__init__(fix, model, mode=mode)
        self.sdpa_backend = sdpa_backend
        self._held = sdpa_backend is None

    def __call__(self, *inputs: Any) -> Any:
        """Run the model once with the fix and the pin in force; see :class:`AppliedFix`."""
        if self._held:
            return super().__call__(*inputs)
        with self.around_call():
            return super().__call__(*inputs)

    def around_call(self) -> AbstractContextManager[None]:
        """Return the pin."""
        return sdpa_pinned(self.sdpa_backend)

    @contextmanager
    def blocked(self) -> Iterator[AppliedFix]:
        """Have the fix in force for a block of timed calls, and the pin around them all."""
        free = self._held
        with sdpa_pinned(self.sdpa_backend), self.agreeing():
            self._held = True
            try:
                yield self
            finally:
                self._held = free
