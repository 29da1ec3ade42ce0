"""The module around a library's own object; imports torch.

Conventions: a :class:`WrappedModel` derives from :class:`~precision_eval.cases.systems.system.System`, so that it has a
float64 twin. The twin's calls run under ``KeepingWide``, since the libraries force float32 in places.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import nn
from transformers.cache_utils import EncoderDecoderCache, StaticCache

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.modes import KeepingWide
from precision_eval.cases.systems import dia as constants
from precision_eval.cases.systems.dia_model import apply_delay, attention_std
from precision_eval.cases.systems.system import System


class WrappedModel(System):
    """A thin module around a library's own model; subclasses write :meth:`run`, not ``forward``."""

    not_landed = "the library's own class never had the bug: it keeps one dtype; the split was put in from outside"

    def __init__(self, *, working_dtype: torch.dtype) -> None:
        super().__init__()
        self.working_dtype = working_dtype

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Call the library's model once."""
        raise NotImplementedError

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Call the library's model once, kept in float64 if this is the twin."""
        with KeepingWide(torch.float64) if self.working_dtype is torch.float64 else nullcontext():
            return self.run(*inputs)


class DiaStep(WrappedModel):
    """One decode step of transformers' Dia; the caches are buffers of this module."""

    text: torch.Tensor
    in_use: torch.Tensor | None

    def __init__(
        self,
        dia: nn.Module,
        cache: EncoderDecoderCache,
        *,
        text: torch.Tensor,
        in_use: torch.Tensor | None,
        position: int,
    ) -> None:
        super().__init__(working_dtype=text.dtype)
        self.dia = dia
        self.position = position
        self._cache = cache
        self.register_buffer("text", text, persistent=False)
        self.register_buffer("in_use", in_use, persistent=False)
        for name, layer in self._cached():
            self.register_buffer(f"{name}_key", layer.keys, persistent=False)
            self.register_buffer(f"{name}_value", layer.values, persistent=False)

    def _cached(self) -> list[tuple[str, Any]]:
        both = (("self", self._cache.self_attention_cache), ("cross", self._cache.cross_attention_cache))
        return [(f"{name}_{index}", layer) for name, cache in both for index, layer in enumerate(cache.layers)]

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the step, which writes the same slot at every call."""
        (tokens,) = inputs
        for name, layer in self._cached():
            layer.keys = getattr(self, f"{name}_key")
            layer.values = getattr(self, f"{name}_value")
            if name.startswith("self"):
                layer.cumulative_length.fill_(self.position)
        given = {"encoder_outputs": (self.text,), "attention_mask": self.in_use, "past_key_values": self._cache}
        logits = self.dia(decoder_input_ids=tokens, use_cache=True, **given).logits  # (B·9, 1, 1028)
        rows, _, channels = tokens.shape
        return cast(torch.Tensor, logits.view(rows, channels, 1, -1).transpose(1, 2))


@torch.no_grad()
def draw_weights(model: Any, *, seed: int) -> None:
    """Draw every parameter at the scale of this suite's own case, in place."""
    generator = torch.Generator().manual_seed(seed)
    head_dims = {"self_attention": "head_dim", "cross_attention": "cross_head_dim"}
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            drawn = 1.0 + constants.NORM_GAIN_STD * drawn
        elif "embed" in name:
            drawn *= constants.CHANNELS**-0.5 if "decoder" in name else 1.0
        else:
            drawn *= parameter.shape[1] ** -0.5
        if "q_proj" in name or "k_proj" in name:
            config = model.config.decoder_config if ".decoder." in name else model.config.encoder_config
            drawn *= attention_std(getattr(config, head_dims[name.split(".")[-3]]))
        parameter.copy_(drawn * (constants.LOGIT_STD if "logits" in name else 1.0))


@torch.no_grad()
def step_case(dia: Any, *, dtype: torch.dtype, device: str, seed: int, frames: int) -> BuiltCase:
    """Fill the caches of a model by the model itself, then split its dtypes."""
    decoder, bytes_read = dia.config.decoder_config, dia.config.encoder_config.max_position_embeddings
    dia.requires_grad_(False).to(device=device)
    for parameter in dia.parameters():  # not the buffers: a cast would round the inverse timescales
        parameter.data = parameter.data.to(dtype)
    generator = torch.Generator().manual_seed(seed)
    in_use = (torch.arange(bytes_read) < round(bytes_read * constants.TEXT_SHARE)).long()
    read = torch.randint(1, constants.BYTES, (bytes_read,), generator=generator) * in_use
    text_ids = torch.stack((torch.zeros_like(read), read)).to(device)
    in_use = in_use.repeat(constants.GUIDANCE_ROWS, 1).to(device)
    codes = torch.randint(constants.CODES, (1, frames, decoder.num_channels), generator=generator)
    codes[:, 0] = decoder.bos_token_id
    delayed = apply_delay(codes, delays=dia.config.delay_pattern, bos=decoder.bos_token_id)
    delayed = delayed.repeat(constants.GUIDANCE_ROWS, 1, 1).to(device)
    text = dia.model.encoder(input_ids=text_ids, attention_mask=in_use)[0]
    cache = EncoderDecoderCache(
        StaticCache(config=decoder, max_cache_len=decoder.max_position_embeddings),
        StaticCache(config=decoder, max_cache_len=bytes_read),
    )
    dia(
        encoder_outputs=(text,), attention_mask=in_use, decoder_input_ids=delayed[:, :-1], past_key_values=cache,
        use_cache=True,
    )  # fmt: skip
    for module in dia.modules():
        if type(module).__name__ == "DiaRMSNorm":
            module.float()
    model = DiaStep(dia, cache, text=text, in_use=in_use, position=frames - 1)
    return BuiltCase(model.eval(), (delayed[:, -1:].contiguous(),))


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


class SvdUNet(WrappedModel):
    """Latents, timestep, image embedding and labels in, the denoised sample out."""

    def __init__(self, unet: nn.Module, *, working_dtype: torch.dtype) -> None:
        super().__init__(working_dtype=working_dtype)
        self.unet = unet

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Denoise one step."""
        latents, timestep, image, labels = inputs
        sample: torch.Tensor = self.unet(
            latents, timestep, encoder_hidden_states=image, added_time_ids=labels, return_dict=False
        )[0]
        return sample
