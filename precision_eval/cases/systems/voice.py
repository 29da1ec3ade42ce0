"""The miniature voice: a really trained speech model, in the state of MetaVoice's CPU path.

float32 weights, no autocast, and a float16 KV cache that slice assignment fills, casting in silence; the next attention
then sees a float32 query and float16 keys and values (metavoiceio/metavoice-src, ``fam/llm/inference.py`` on a CPU;
#108, #128, #187 show the message). One call is one decode step of one stream: the ring of 512 frames is full of real
speech, and the step writes its last slot again and again, so that the call is repeatable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from precision_eval.cases.base import DECODING_MEASURES, SOUND_MEASURES, BuiltCase, Case

if TYPE_CHECKING:
    from torch import nn

    from precision_eval.cases.voice.model import VoiceModel

CHECKPOINT_DTYPE_OF_SIZE = {"default": "float32", "bfloat16-checkpoint": "bfloat16"}


def _decode_step(model: VoiceModel) -> nn.Module:
    import torch
    from torch import nn

    from precision_eval.cases.voice.model import Positions

    class DecodeStep(nn.Module):
        """The last step of a full ring; positions and mask belong to the step, and no storage cast reaches them."""

        def __init__(self) -> None:
            super().__init__()
            self.voice = model
            self.slot = model.config.window_frames - 1
            self.cos, self.sin = Positions(model.config, dtype=torch.float32)(self.slot, 1)
            self.mask = torch.ones(1, model.config.window_frames, dtype=torch.bool)

        def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
            """Let ``.to(device)`` reach the plain tensors, and ``.to(dtype)`` not."""
            moved = super()._apply(fn, recurse)
            device = next(self.parameters()).device
            self.cos, self.sin, self.mask = self.cos.to(device), self.sin.to(device), self.mask.to(device)
            return moved

        def forward(
            self, tokens: torch.Tensor, phoneme: torch.Tensor, next_phoneme: torch.Tensor, progress: torch.Tensor
        ) -> torch.Tensor:
            """Return the logits of one frame, (B, 1, K, codebook_size)."""
            return self.voice(tokens, phoneme, next_phoneme, progress, self.cos, self.sin, self.mask, self.slot)

    return DecodeStep().eval()


def build_voice(size: str, *, device: str, seed: int) -> BuiltCase:
    """Build one decode step of a trained voice on a ring full of held-out speech."""
    import torch

    from precision_eval.cases.voice.assets import load_model, load_streams
    from precision_eval.cases.voice.synthesis import Decoder, stack_frames, teacher_forced_inputs

    model = load_model(checkpoint_dtype=CHECKPOINT_DTYPE_OF_SIZE[size])
    window = model.config.window_frames
    streams = load_streams(seed + 1, n_frames=window)[-1:]
    inputs = teacher_forced_inputs(streams, n_frames=window, empty=model.config.codebook_size)
    model.allocate_cache(1, dtype=torch.float32)
    with torch.inference_mode():
        Decoder(model).step(inputs[:, : window - 1], stack_frames([streams[0].conditioning[: window - 1]]))
    history = [(attention.key_cache, attention.value_cache) for attention in model.attentions]
    model.allocate_cache(1)
    for attention, (keys, values) in zip(model.attentions, history, strict=True):
        attention.key_cache.copy_(keys)  # float32 → float16, as slice assignment does
        attention.value_cache.copy_(values)
    step_inputs = (inputs[:, window - 1 :], *stack_frames([streams[0].conditioning[window - 1 : window]]))
    return BuiltCase(_decode_step(model).to(device), tuple(x.to(device) for x in step_inputs))


VOICE = Case(
    id="voice",
    title="the miniature voice, one stream",
    explanation=(
        "A trained text-to-speech decoder of 3.6 M parameters with float32 weights and a float16 ring KV cache that "
        "slice assignment fills with a silent cast: attention raises at the first step."
    ),
    source="metavoiceio/metavoice-src #108, #128, #187 (fam/llm/inference.py, fam/llm/fast_model.py)",
    sizes=tuple(CHECKPOINT_DTYPE_OF_SIZE),
    default_sizes=("default",),
    measures=("trace", "latency", "memory", *DECODING_MEASURES, *SOUND_MEASURES, "sound"),
    controls=("control_rope_bfloat16", "control_long_window"),
    definition=("width 256, 4 layers, 4 heads, ring 512, cache float16", CHECKPOINT_DTYPE_OF_SIZE, "v1"),
    make=build_voice,
)
