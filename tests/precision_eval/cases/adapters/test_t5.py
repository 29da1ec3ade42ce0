"""transformers' T5 encoder: the states its loader leaves, the fixes from outside, and our own encoder held to it.

Nothing here is skipped: without the extra ``zoo`` these tests fail.
"""

import pytest
import torch
import transformers

from precision_eval.cases.adapters.t5 import CONFIG, T5_ENCODER
from precision_eval.cases.modes import KeepingWide
from precision_eval.cases.systems.cogvideo_t5 import COGVIDEO_T5_ENCODER_STOCK, SIZES
from precision_eval.cases.systems.cogvideo_t5_model import FusedNorm, relative_buckets

NAMES = {
    "embedding": "shared",
    "position_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "final_norm": "encoder.final_layer_norm",
    "attention_norm": "layer.0.layer_norm",
    "attention.q": "layer.0.SelfAttention.q",
    "attention.k": "layer.0.SelfAttention.k",
    "attention.v": "layer.0.SelfAttention.v",
    "attention.o": "layer.0.SelfAttention.o",
    "feed_forward_norm": "layer.1.layer_norm",
    "feed_forward.gate": "layer.1.DenseReluDense.wi_0",
    "feed_forward.up": "layer.1.DenseReluDense.wi_1",
    "feed_forward.wo": "layer.1.DenseReluDense.wo",
}


def real_name(name):
    stem = name.removesuffix(".weight")
    if stem.startswith("blocks."):
        _, block, part = stem.split(".", 2)
        return f"encoder.block.{block}.{NAMES[part]}.weight"
    return f"{NAMES[stem]}.weight"


def real_encoder(built):
    """transformers' class with the weights of a case of our own, in the case's dtypes."""
    size = SIZES["tiny"]
    config = transformers.T5Config(
        vocab_size=size.vocabulary,
        d_model=size.dim,
        d_kv=size.head_dim,
        d_ff=size.hidden,
        num_layers=size.layers,
        num_heads=size.heads,
        feed_forward_proj="gated-gelu",
    )
    real = transformers.T5EncoderModel(config).eval()
    own = {real_name(name): p for name, p in built.model.named_parameters()}
    names = {name for name, _ in real.named_parameters()}
    assert set(own) == names  # every weight of either has its counterpart
    for name, parameter in real.named_parameters():
        assert parameter.shape == own[name].shape
        parameter.data = own[name].data.clone()
    return real


@torch.no_grad()
def hidden_of(real, ids):
    return real(input_ids=ids).last_hidden_state


@pytest.fixture
def own():
    return COGVIDEO_T5_ENCODER_STOCK.build("tiny", device="cpu", seed=0)


def test_our_encoder_agrees_with_the_real_class_in_float64(own):
    real = real_encoder(own).double()
    with KeepingWide(torch.float64):
        found = hidden_of(real, *own.inputs)
    truth = own.model.in_float64()(*own.inputs)
    assert found.dtype is torch.float64
    assert (found - truth).abs().max() < 1e-10


def test_without_keeping_float64_they_do_not_agree(own):
    found = hidden_of(real_encoder(own).double(), *own.inputs)
    assert (found - own.model.in_float64()(*own.inputs)).abs().max() > 1e-10


@pytest.mark.parametrize("fault", ["position_bias", "final_norm", "blocks.1.feed_forward.wo"])
def test_a_wrong_weight_is_seen(own, fault):
    real = real_encoder(own).double()
    real.get_parameter(real_name(f"{fault}.weight")).data.mul_(1 + 1e-6)
    with KeepingWide(torch.float64):
        found = hidden_of(real, *own.inputs)
    assert (found - own.model.in_float64()(*own.inputs)).abs().max() > 1e-10


def test_our_outliers_break_the_real_class_in_float16_as_well(own):
    real = real_encoder(own)
    kept = hidden_of(real, *own.inputs)
    assert kept.isfinite().all()
    error = (kept.float() - own.model(*own.inputs).float()).norm() / kept.float().norm()
    assert error < 3e-3  # the same dtypes, attention in another order of operations
    assert hidden_of(real.half(), *own.inputs).isnan().any()


def test_buckets_are_the_real_classs():
    positions = torch.arange(300)
    real = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    assert torch.equal(relative_buckets(300), real(positions[None] - positions[:, None]))


def test_apexs_contract_in_place_of_the_real_norms_gives_the_report(own):
    real = real_encoder(own)
    for name, module in list(real.named_modules()):
        if type(module).__name__ == "T5LayerNorm":
            fused = FusedNorm(len(module.weight))
            fused.weight = module.weight
            real.set_submodule(name, fused)
    with pytest.raises(RuntimeError, match=r"^expected scalar type Float but found Half$"):
        hidden_of(real, *own.inputs)


# ---- the entry


def kept_wide(model):
    """The dtypes of the projections that transformers keeps in float32."""
    return {name: weight.dtype for name, weight in model.named_parameters() if "wo" in name.split(".")}


def test_the_loader_keeps_wo_in_float32_and_half_does_not():
    built = T5_ENCODER.build("tiny", device="cpu", seed=0)
    assert len(kept_wide(built.model)) == CONFIG["num_layers"]
    assert set(kept_wide(built.model).values()) == {torch.float32}
    others = {p.dtype for name, p in built.model.named_parameters() if name not in kept_wide(built.model)}
    assert others == {torch.float16}
    residual = []
    built.model.encoder.encoder.block[0].register_forward_hook(lambda _, __, out: residual.append(out[0].dtype))
    assert built.model(*built.inputs).dtype is torch.float16
    assert set(kept_wide(built.model.half()).values()) == {torch.float16}  # the trap: without a word
    built.model(*built.inputs)
    assert residual == [torch.float32, torch.float16]
