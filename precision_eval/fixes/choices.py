"""The choices that make a fix, as plain data; this module loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import nn

Storage = Literal["as_shipped", "float16", "bfloat16", "float32", "per_case"]
Agreement = Literal["none", "activation_to_storage", "storage_to_activation", "autocast", "per_case"]
Mode = Literal["eager", "compiled"]

MODES: tuple[Mode, ...] = ("eager", "compiled")

# Modes of torch.compile that are measured; all but the first capture CUDA graphs themselves.
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")


@dataclass(frozen=True, kw_only=True)
class FixChoices:
    """What a fix does; :class:`~precision_eval.fixes.catalog.Fix` says what each choice means."""

    id: str
    title: str = ""
    storage: Storage = "as_shipped"
    agreement: Agreement = "none"
    modes: tuple[Mode, ...] = MODES
    compute: str = ""
    suppress_errors: bool = False
    explanation: str = ""
    source: str = ""
    revision: int = 1
    by_default: bool = True
    change: Callable[[nn.Module], Any] | None = None
