"""What is checked of a model after its library loaded it, and the library's own messages meanwhile.

Conventions: as in :mod:`precision_eval.cases.adapters.stored`; a model that is refused here is never handed out.
This module loads no torch until a model is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.adapters.stored import STORED_DTYPES, StoredTensor, some
from precision_eval.core.errors import ParameterError

if TYPE_CHECKING:
    from torch import nn


class _Holder(logging.Handler):
    """Keeps records instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)


@contextmanager
def held_back(*libraries: str) -> Iterator[None]:
    """Hold the log lines of libraries back, and show them where the block ends well."""
    holder = _Holder()
    loggers = [logging.getLogger(name) for name in libraries]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [holder], False
    try:
        yield
    finally:
        for logger, (handlers, propagates) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagates
    for record in holder.records:
        logging.getLogger(record.name).handle(record)


def _described(key: Any) -> str:
    """Describe what a library found wrong: a name, or a name and the two shapes."""
    if not isinstance(key, tuple):
        return str(key)
    name, found, expected = key
    return f"{name} is {tuple(found)} in the file and {tuple(expected)} by the config"


def check_whole(name: str, info: Mapping[str, Any], folder: Path) -> None:
    """Refuse a model with tensors missing, left over, or of another shape."""
    for kind in ("mismatched_keys", "missing_keys", "unexpected_keys", "error_msgs"):
        wrong = [_described(key) for key in info.get(kind) or ()]
        if wrong:
            raise ParameterError(
                f"{folder} is no whole checkpoint of its {name} config: {kind.replace('_', ' ')}: {some(wrong)}; "
                "expected every tensor of the config and no other: fetch it again, or correct config.json"
            )


def check_buffers(model: nn.Module, tensors: Mapping[str, StoredTensor], folder: Path) -> None:
    """Refuse a model that took an integer tensor of the file for a floating one of its own."""
    state = model.state_dict()
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    wrong = []
    for name, held in tensors.items():
        own = [state[known] for known in (name, prefix + name, name.removeprefix(prefix)) if known in state]
        if held.kind not in STORED_DTYPES and any(tensor.is_floating_point() for tensor in own):
            wrong.append(f"{name} ({held.kind})")
    if wrong:
        raise ParameterError(
            f"{folder}: its safetensors hold integers in {some(wrong)}, which are floating in the model; expected "
            "floating tensors: give the checkpoint that was quantised or packed, as it was before"
        )


def check_finite(model: nn.Module, folder: Path) -> None:
    """Refuse a model with a NaN or an infinity among its weights."""
    import torch

    nan, infinite = [], []
    for name, weight in model.named_parameters():
        if not weight.is_floating_point() or not weight.numel():
            continue
        extremes = torch.stack(torch.aminmax(weight.detach()))  # NaN where one is
        if extremes.isnan().any():
            nan.append(name)
        elif extremes.isinf().any():
            infinite.append(f"{name} in {str(weight.dtype).removeprefix('torch.')}")
    if nan:
        raise ParameterError(f"{folder} holds NaN in {some(nan)}; expected finite weights: fetch it again")
    if infinite:
        raise ParameterError(
            f"{folder} holds infinities in {some(infinite)}; expected finite weights: load it in a dtype of a wider "
            "range, bfloat16 or float32, or, if they are stored as infinities, fetch it again"
        )
