"""This suite's own Dia with the weights and caches of transformers' Dia: the two must compute the same."""

from typing import Any, cast

import torch
from torch import nn

from precision_eval.cases.adapters.models import DiaStep
from precision_eval.cases.systems import dia as constants
from precision_eval.cases.systems.dia import D4790DD, DecoderSize, EncoderSize
from precision_eval.cases.systems.dia_model import DiaAttention, DiaDecoder, DiaEncoder, SelfAttention


def _projection(weight: torch.Tensor, *outputs: int) -> torch.Tensor:
    """(outputs flattened, inputs) → (inputs, *outputs)."""
    return weight.T.reshape(-1, *outputs)


def _gathering(weight: torch.Tensor, *inputs: int) -> torch.Tensor:
    """(outputs, inputs flattened) → (*inputs, outputs)."""
    return weight.T.reshape(*inputs, -1)


def _set_attention(own: DiaAttention, theirs: Any) -> None:
    heads, head_dim = own.query.weight.shape[1:]
    key_heads = own.key.weight.shape[1]
    own.query.weight.data = _projection(theirs.q_proj.weight, heads, head_dim)
    own.key.weight.data = _projection(theirs.k_proj.weight, key_heads, head_dim)
    own.value.weight.data = _projection(theirs.v_proj.weight, key_heads, head_dim)
    own.output.weight.data = _gathering(theirs.o_proj.weight, heads, head_dim)


def _set_feed_forward(own: Any, theirs: Any) -> None:
    own.gate_up.weight.data = _projection(theirs.gate_up_proj.weight, 2, theirs.down_proj.weight.shape[1])
    own.down.weight.data = _gathering(theirs.down_proj.weight, theirs.down_proj.weight.shape[1])


def _set_rotary(own: nn.Module, theirs: Any) -> None:
    for module in own.modules():
        if isinstance(module, SelfAttention):
            module.rotary.timescale = 1.0 / theirs.rotary_emb.inv_freq


@torch.no_grad()
def own_decoder(step: DiaStep) -> DiaDecoder:
    """Build this suite's own decoder with the weights and caches of a step of transformers' Dia."""
    theirs, config = cast(Any, step.dia).model.decoder, cast(Any, step.dia).config.decoder_config
    assert (config.num_channels, config.vocab_size) == (constants.CHANNELS, constants.VOCABULARY)
    size = DecoderSize(
        layers=config.num_hidden_layers, width=config.hidden_size, hidden=config.intermediate_size,
        heads=config.num_attention_heads, cache_heads=config.num_key_value_heads, head_dim=config.head_dim,
        cross_heads=config.cross_num_attention_heads, cross_head_dim=config.cross_head_dim,
        encoder_width=config.cross_hidden_size, text_length=step.text.shape[1], slots=config.max_position_embeddings,
        filled=step.position + 1, cross_rotary=False,
    )  # fmt: skip
    own = DiaDecoder(size, D4790DD)
    tables = theirs.embeddings.embed.weight.unflatten(0, (config.num_channels, config.vocab_size))
    for embedding, table in zip(own.embeddings, tables, strict=True):
        cast(nn.Embedding, embedding).weight.data = table
    for index, (layer, source) in enumerate(zip(own.blocks, theirs.layers, strict=True)):
        _set_attention(layer.self_attention, source.self_attention)
        _set_attention(layer.cross_attention, source.cross_attention)
        _set_feed_forward(layer.feed_forward, source.mlp)
        layer.self_norm.weight.data = source.pre_sa_norm.weight
        layer.cross_norm.weight.data = source.pre_ca_norm.weight
        layer.feed_norm.weight.data = source.pre_mlp_norm.weight
        for cache, name in ((layer.self_attention.cache, "self"), (layer.cross_attention.cache, "cross")):
            assert cache is not None
            cache.key = getattr(step, f"{name}_{index}_key").clone()
            cache.value = getattr(step, f"{name}_{index}_value").clone()
    own.norm.weight.data = theirs.norm.weight
    own.head.weight.data = _projection(cast(Any, step.dia).logits_dense.weight, config.num_channels, config.vocab_size)
    own.text_mask[:] = step.in_use[:, None, None].bool()
    _set_rotary(own, theirs)
    return own.eval()


@torch.no_grad()
def own_encoder(step: DiaStep) -> DiaEncoder:
    """Build this suite's own encoder with the weights of transformers' Dia."""
    theirs, config = cast(Any, step.dia).model.encoder, cast(Any, step.dia).config.encoder_config
    size = EncoderSize(
        layers=config.num_hidden_layers, width=config.hidden_size, hidden=config.intermediate_size,
        heads=config.num_attention_heads, head_dim=config.head_dim, text_length=step.text.shape[1],
    )  # fmt: skip
    own = DiaEncoder(size, D4790DD)
    own.embedding.weight.data = theirs.embedding.weight
    for block, source in zip(own.layers, theirs.layers, strict=True):
        layer = cast(Any, block)
        _set_attention(layer.self_attention, source.self_attention)
        _set_feed_forward(layer.feed_forward, source.mlp)
        layer.self_norm.weight.data = source.pre_sa_norm.weight
        layer.feed_norm.weight.data = source.post_sa_norm.weight
    own.norm.weight.data = theirs.norm.weight
    _set_rotary(own, theirs)
    return own.eval()
