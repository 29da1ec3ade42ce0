"""diffusers' SVD UNet: the split, the fixes from outside, and our own time embedding held to the real one.

Nothing here is skipped: without the extra ``zoo`` these tests fail.
"""

import diffusers
import pytest
import torch

from precision_eval.cases.adapters.svd import CONFIG, FRAMES, ROWS, SVD_TIME_EMBED
from precision_eval.cases.modes import KeepingWide
from precision_eval.cases.systems.imaginairy import IMAGINAIRY_TIME_EMBED, LABELS, SIZES, TICKS_PER_STEP, timestep_ticks
from precision_eval.cases.systems.imaginairy_model import timestep_embedding

LINEAR = r"^mat1 and mat2 must have the same dtype, but got Float and Half$"
PAIRS = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "label_embed.0": "add_embedding.linear_1",
    "label_embed.2": "add_embedding.linear_2",
}


def embedding_inside(unet, *inputs):
    """The sum of both embeddings as the whole UNet hands it to its first block, one row per frame."""
    seen = []
    handle = unet.down_blocks[0].register_forward_pre_hook(lambda _, __, kw: seen.append(kw["temb"]), with_kwargs=True)
    latents, timestep, image, labels = inputs
    with torch.no_grad():
        unet(latents, timestep, encoder_hidden_states=image, added_time_ids=labels)
    handle.remove()
    return seen[0]


def own_and_real():
    """Our time embedding and the real UNet with its weights, both in float64."""
    size = SIZES["tiny"]
    assert (size.channels, 3 * size.label_channels) == (
        CONFIG["block_out_channels"][0],
        CONFIG["projection_class_embeddings_input_dim"],
    )
    own = IMAGINAIRY_TIME_EMBED.build("tiny", device="cpu", seed=0).model.in_float64()
    unet = SVD_TIME_EMBED.build("tiny", device="cpu", seed=0).model.unet.double()
    for ours, theirs in PAIRS.items():
        unet.get_submodule(theirs).load_state_dict(own.get_submodule(ours).state_dict())
    return own, unet


def inputs_at(ticks):
    """Inputs of the UNet at one timestep, in float64, and ours: ticks and embedded labels."""
    latents, _, image, _ = SVD_TIME_EMBED.build("tiny", device="cpu", seed=0).inputs
    labels = torch.tensor([LABELS] * ROWS, dtype=torch.float64)
    timestep = torch.tensor([ticks], dtype=torch.float64) / TICKS_PER_STEP
    embedded = timestep_embedding(labels[0], SIZES["tiny"].label_channels).flatten().repeat(ROWS, 1)
    return (latents.double(), timestep, image.double(), labels), (torch.tensor([ticks] * ROWS), embedded)


@pytest.mark.parametrize("row", [0, 1, 4, 7], ids=lambda row: f"{timestep_ticks(4)[row] / TICKS_PER_STEP:.4g}")
def test_our_embedding_agrees_with_the_whole_real_unet_in_float64(row):
    own, unet = own_and_real()
    theirs, ours = inputs_at(timestep_ticks(4)[row])
    with KeepingWide(torch.float64):
        found = embedding_inside(unet, *theirs)
    assert found.dtype is torch.float64
    expected = own(*ours).repeat_interleave(FRAMES, dim=0)
    assert (found - expected).abs().max() < 1e-10


def test_without_keeping_float64_they_do_not_agree():
    own, unet = own_and_real()
    theirs, ours = inputs_at(timestep_ticks(4)[0])
    found = embedding_inside(unet, *theirs)
    assert (found - own(*ours).repeat_interleave(FRAMES, dim=0)).abs().max() > 1e-10


def test_the_real_class_casts_after_the_embedding():
    steps = torch.tensor([999], dtype=torch.int64)
    real = diffusers.models.embeddings.Timesteps(320, True, 0)
    exact = timestep_embedding(steps.double(), 320)
    after = (real(steps).to(torch.bfloat16).double() - exact).abs().max()
    before = (real(steps.to(torch.bfloat16)).to(torch.bfloat16).double() - exact).abs().max()
    assert real(steps).dtype is torch.float32
    assert after == pytest.approx(2e-3, rel=0.1)
    assert before == pytest.approx(0.85, abs=0.01)


# ---- the entry


def test_as_shipped_raises_at_the_time_embedding():
    built = SVD_TIME_EMBED.build("tiny", device="cpu", seed=0)
    assert {p.dtype for p in built.model.parameters()} == {torch.float16}
    assert [x.dtype for x in built.inputs] == [torch.float32, torch.int64, torch.float16, torch.float16]
    reached = []
    built.model.unet.time_embedding.linear_1.register_forward_pre_hook(lambda _, args: reached.append(args[0].dtype))
    built.model.unet.conv_in.register_forward_pre_hook(lambda *_: reached.append("convolution"))
    with pytest.raises(RuntimeError, match=LINEAR):
        built.model(*built.inputs)
    assert reached == [torch.float32]
