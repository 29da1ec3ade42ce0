"""The module around transformers' T5 encoder; imports torch."""

from __future__ import annotations

import torch
from torch import nn

from precision_eval.cases.adapters.wrapped import WrappedModel


class T5Hidden(WrappedModel):
    """Token ids in, last hidden states out."""

    not_landed = (
        "what landed (transformers PR #45723: no swap for apex's norm) is in the installed class already, or apex is "
        "not installed"
    )

    def __init__(self, encoder: nn.Module, *, working_dtype: torch.dtype) -> None:
        super().__init__(working_dtype=working_dtype)
        self.encoder = encoder

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Encode."""
        (ids,) = inputs
        hidden: torch.Tensor = self.encoder(input_ids=ids).last_hidden_state
        return hidden
