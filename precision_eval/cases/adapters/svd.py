"""diffusers' UNet of Stable Video Diffusion in float16, given float32 latents: the time embedding raises first.

``UNetSpatioTemporalConditionModel`` embeds timestep and added time ids in float32 and casts both to a half *after* the
embedding, the timestep's to the latents' dtype. So float32 latents in front of float16 weights give the Linear of
``time_embedding`` a float32 input, as imaginAIry's video model had it (brycedrennan/imaginAIry #442; its noise was
float32 too). The whole UNet runs: its convolutions meet the same latents, and no call-site cast of this suite reaches a
convolution, so such a cast only moves the error.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from precision_eval.cases.adapters.base import as_dtype, imported, load_checked, tiny_case
from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.imaginairy import LABELS

DTYPE = "float16"
LATENTS_DTYPE = "float32"
TIMESTEP = 999
ROWS, FRAMES, SIDE = 2, 2, 8

#: SVD's architecture at a tiny size: one attention stage, one plain stage, one layer each.
CONFIG: dict[str, Any] = {
    "sample_size": SIDE,
    "in_channels": 8,
    "out_channels": 4,
    "down_block_types": ["CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"],
    "up_block_types": ["UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"],
    "block_out_channels": [32, 64],
    "addition_time_embed_dim": 16,
    "projection_class_embeddings_input_dim": 48,
    "layers_per_block": 1,
    "cross_attention_dim": 32,
    "num_attention_heads": [2, 4],
    "num_frames": FRAMES,
}


def _make(*, device: str, seed: int) -> BuiltCase:
    """Let the library draw a UNet, save it and load it in half; put latents, timestep, image and labels beside it."""
    import torch

    from precision_eval.cases.adapters.models import SvdUNet

    diffusers, dtype = imported("diffusers"), as_dtype(DTYPE)
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        diffusers.UNetSpatioTemporalConditionModel(**CONFIG).save_pretrained(folder)
        unet = load_checked(diffusers.UNetSpatioTemporalConditionModel, Path(folder), dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn((ROWS, FRAMES, CONFIG["in_channels"], SIDE, SIDE), generator=generator)
    image = torch.randn((ROWS, 1, CONFIG["cross_attention_dim"]), generator=generator)
    inputs = (
        latents.to(device, as_dtype(LATENTS_DTYPE)),
        torch.tensor([TIMESTEP], device=device),
        image.to(device, dtype),
        torch.tensor([LABELS] * ROWS).to(device, dtype),
    )
    return BuiltCase(SvdUNet(unet, working_dtype=dtype).eval().requires_grad_(False).to(device), inputs)


SVD_TIME_EMBED = tiny_case(
    _make,
    id="zoo-svd-time-embed",
    title="diffusers' SVD UNet",
    explanation=(
        "UNetSpatioTemporalConditionModel in float16 with float32 latents: the timestep's embedding is cast to the "
        "latents' dtype and meets a float16 Linear. One call is one guided denoising step."
    ),
    source="huggingface/diffusers, src/diffusers/models/unets/unet_spatio_temporal_condition.py",
    needs="diffusers.models.unets.unet_spatio_temporal_condition",
    definition=(
        (DTYPE, LATENTS_DTYPE, TIMESTEP, ROWS, FRAMES, SIDE, LABELS),
        CONFIG,
        "the library's own initialisation, saved and loaded, randn, v1",
    ),
)
