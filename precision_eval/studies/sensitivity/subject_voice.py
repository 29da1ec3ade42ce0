"""The voice over a whole window at once, through its ring cache; imports torch."""

from __future__ import annotations

import copy
from typing import Self

import torch

from precision_eval.cases.systems.system import System
from precision_eval.cases.voice.model import Positions, VoiceModel
from precision_eval.studies.sensitivity.subject import Subject
from precision_eval.trace.sites import Rule


class VoiceWindow(System):
    """Teacher-forced frames 0 … T − 1 of B streams in one call, which fills the ring cache and attends to it."""

    not_landed = "nothing landed for metavoiceio/metavoice-src #187, which this stands for"

    def __init__(self, voice: VoiceModel, frames: int) -> None:
        super().__init__()
        self.voice = voice
        self.frames = frames
        self.cos, self.sin = Positions(voice.config, dtype=torch.float32)(0, frames)
        self.mask = torch.ones(frames, frames, dtype=torch.bool).tril()

    def in_float64(self) -> Self:
        """Copy the model in float64, its angles' cosines and sines too."""
        twin = copy.deepcopy(self).double()
        twin.cos, twin.sin = Positions(self.voice.config, dtype=torch.float64)(0, self.frames)
        return twin

    def forward(
        self, tokens: torch.Tensor, phoneme: torch.Tensor, next_phoneme: torch.Tensor, progress: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits, (B, T, K, codebook_size)."""
        found: torch.Tensor = self.voice(tokens, phoneme, next_phoneme, progress, self.cos, self.sin, self.mask, 0)
        return found


def voice_subject(*, streams: int, frames: int, rules: tuple[Rule, ...], seed: int) -> Subject:
    """Build the trained voice with float32 weights and a float16 cache, on held-out speech."""
    from precision_eval.cases.voice.assets import load_model, load_streams
    from precision_eval.cases.voice.synthesis import stacked, teacher_forced_inputs

    model = load_model()
    model.allocate_cache(streams, window_frames=frames)
    chosen = load_streams((seed + 1) * streams, n_frames=frames)[-streams:]
    tokens = teacher_forced_inputs(chosen, n_frames=frames, empty=model.config.codebook_size)
    given = (tokens, *stacked([stream.conditioning[:frames] for stream in chosen]))
    return Subject(VoiceWindow(model, frames).eval(), given, rules, streams, lambda logits: logits.flatten(2))
