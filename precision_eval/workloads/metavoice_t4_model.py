"""MetaVoice's decoder inside the autocast that its first release ran it in; imports torch."""

from __future__ import annotations

import torch

from precision_eval.workloads.metavoice_model import MetaVoice
from precision_eval.workloads.system import System


class MetaVoiceUnderAutocast(System):
    """Enter autocast, without gradients, and call the decoder, as metavoice-src's ``fam/llm/sample.py`` does.

    Parameters
    ----------
    model : MetaVoice
    autocast_dtype : str
        torch's name of what autocast computes in. A name, so that the float64 twin keeps it: autocast leaves float64
        operands alone.
    """

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
        """Run one call of the decoder.

        Parameters
        ----------
        tokens : torch.Tensor of int64, shape (B, s)
        speaker : torch.Tensor, shape (1, speaker_dim)
        positions : torch.Tensor of int64, shape (s,)

        Returns
        -------
        logits : torch.Tensor, shape (B, s, V)
        probabilities : torch.Tensor, shape (V,)
        """
        with torch.no_grad(), torch.autocast(tokens.device.type, dtype=getattr(torch, self.autocast_dtype)):
            logits, probabilities = self.model(tokens, speaker, positions)
        return logits, probabilities
