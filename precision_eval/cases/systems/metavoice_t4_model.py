"""MetaVoice's decoder inside the autocast that its first release ran it in; imports torch."""

from __future__ import annotations

import torch

from precision_eval.cases.systems.metavoice_model import MetaVoice
from precision_eval.cases.systems.system import System


class MetaVoiceUnderAutocast(System):
    """Enter autocast, without gradients, and call the decoder, as metavoice-src's ``fam/llm/sample.py`` does."""

    not_landed = (
        "nothing landed for metavoiceio/metavoice-src #27, which is open: float16 became the default on compute "
        "capability 7 and below, which is the state as shipped here"
    )

    def __init__(self, model: MetaVoice, *, autocast_dtype: str) -> None:
        super().__init__()
        self.model = model
        self.autocast_dtype = autocast_dtype

    def forward(
        self, tokens: torch.Tensor, speaker: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one call of the decoder."""
        with torch.no_grad(), torch.autocast(tokens.device.type, dtype=getattr(torch, self.autocast_dtype)):
            logits, probabilities = self.model(tokens, speaker, positions)
        return logits, probabilities
