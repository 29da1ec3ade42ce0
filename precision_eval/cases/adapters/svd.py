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
from typing import TYPE_CHECKING, Any

from precision_eval.cases.adapters.base import Adapter, as_dtype, imported, load_checked
from precision_eval.cases.adapters.checkpoints import check_whole_number
from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.imaginairy import LABELS
from precision_eval.core.errors import ParameterError

if TYPE_CHECKING:
    import torch
    from torch import nn

DTYPE = "float16"
LATENTS_DTYPE = "float32"
TIMESTEP = 999
ROWS, FRAMES, SIDE = 2, 2, 8
PIPELINE_FOLDER = "unet"
"""Where a diffusers pipeline keeps the UNet."""

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


def _built(unet: nn.Module, *, config: Any, frames: int, side: int, device: str, seed: int) -> BuiltCase:
    """Put latents, timestep, image embedding and labels beside a UNet."""
    import torch

    from precision_eval.cases.adapters.models import SvdUNet

    dtype = next(unet.parameters()).dtype
    latents_dtype = torch.promote_types(dtype, getattr(torch, LATENTS_DTYPE))
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn((ROWS, frames, config["in_channels"], side, side), generator=generator)
    image = torch.randn((ROWS, 1, config["cross_attention_dim"]), generator=generator)
    inputs = (
        latents.to(device, latents_dtype),
        torch.tensor([TIMESTEP], device=device),
        image.to(device, dtype),
        torch.tensor([LABELS] * ROWS).to(device, dtype),
    )
    return BuiltCase(SvdUNet(unet, working_dtype=dtype).eval().requires_grad_(False).to(device), inputs)


def _tiny(*, device: str, seed: int) -> BuiltCase:
    import torch

    diffusers = imported("diffusers")
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        diffusers.UNetSpatioTemporalConditionModel(**CONFIG).save_pretrained(folder)
        unet = load_checked(diffusers.UNetSpatioTemporalConditionModel, Path(folder), dtype=as_dtype(DTYPE))
    return _built(unet, config=CONFIG, frames=FRAMES, side=SIDE, device=device, seed=seed)


def _check_config(config: Any, path: Path) -> None:
    """Refuse what diffusers' config takes and a step cannot use: see :func:`load_checked`."""
    for name in ("num_frames", "in_channels", "cross_attention_dim", "addition_time_embed_dim"):
        check_whole_number(config, name, least=1, path=path)
    if config.sample_size is not None:
        check_whole_number(config, "sample_size", least=1, path=path)
    embedded = len(LABELS) * config.addition_time_embed_dim
    if config.projection_class_embeddings_input_dim != embedded:
        raise ParameterError(
            f"{path} says addition_time_embed_dim {config.addition_time_embed_dim} and "
            f"projection_class_embeddings_input_dim {config.projection_class_embeddings_input_dim}; expected the "
            f"second to be {len(LABELS)} times the first, {embedded}, one for each added id; correct the config"
        )


def _load(path_or_name: str | Path, *, dtype: torch.dtype, device: str, seed: int) -> BuiltCase:
    """Load a UNet: its own folder, or that of a pipeline; of a name on the hub, the pipeline's."""
    diffusers = imported("diffusers")
    unet = load_checked(
        diffusers.UNetSpatioTemporalConditionModel,
        path_or_name,
        dtype=dtype,
        subfolder=PIPELINE_FOLDER,
        check=_check_config,
    )
    config: Any = unet.config
    side = config["sample_size"] or SIDE
    return _built(unet, config=config, frames=config["num_frames"], side=side, device=device, seed=seed)


SVD_TIME_EMBED = Adapter(
    id="zoo-svd-time-embed",
    title="diffusers' SVD UNet",
    explanation=(
        "UNetSpatioTemporalConditionModel in float16 with float32 latents: the timestep's embedding is cast to the "
        "latents' dtype and meets a float16 Linear. One call is one guided denoising step."
    ),
    source="huggingface/diffusers, src/diffusers/models/unets/unet_spatio_temporal_condition.py",
    needs=("diffusers.models.unets.unet_spatio_temporal_condition",),
    definition=(
        (DTYPE, LATENTS_DTYPE, TIMESTEP, ROWS, FRAMES, SIDE, LABELS),
        CONFIG,
        "the library's own initialisation, saved and loaded, randn, v1",
    ),
    make=_tiny,
    load=_load,
)
