"""The seventh set of plants: caches, samplers, losses and loops, half of it around classes of real libraries.

Its author had read neither the doctor's rules nor what it missed before, and never ran it on a plant. The truth (the
lines marked ``# @name``, and some of a library) and what the careless twin does were fixed before any scoring. A row's
words say what the user sees. Values that decide a choice are multiples of 1/32, so that every format holds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import (
    DDPMScheduler,
    DDPMWuerstchenScheduler,
    DPMSolverMultistepScheduler,
    ScoreSdeVeScheduler,
    UniPCMultistepScheduler,
)
from diffusers.models.attention import FeedForward
from diffusers.models.autoencoders.autoencoder_oobleck import Snake1d
from diffusers.models.embeddings import get_1d_rotary_pos_embed, get_1d_sincos_pos_embed_from_grid
from diffusers.training_utils import compute_snr
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    ExponentialDecayLengthPenalty,
    Llama4TextConfig,
    PatchTSTConfig,
    PatchTSTModel,
    SamVisionConfig,
    TimeSeriesTransformerConfig,
    TypicalLogitsWarper,
    Xcodec2Config,
    XcodecConfig,
)
from transformers.cache_utils import DynamicSlidingWindowLayer, LinearAttentionLayer, StaticSlidingWindowLayer
from transformers.loss.loss_for_object_detection import dice_loss
from transformers.models.deformable_detr.modeling_deformable_detr import MultiScaleDeformableAttention
from transformers.models.detr.modeling_detr import DetrSinePositionEmbedding
from transformers.models.fastspeech2_conformer.modeling_fastspeech2_conformer import length_regulator
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts
from transformers.models.perceiver.modeling_perceiver import generate_fourier_features
from transformers.models.pocket_tts.configuration_pocket_tts import PocketTTSFlowHeadConfig
from transformers.models.pocket_tts.modeling_pocket_tts import PocketTTSTimestepEmbedding
from transformers.models.sam.modeling_sam import SamPositionalEmbedding
from transformers.models.time_series_transformer.modeling_time_series_transformer import TimeSeriesStdScaler
from transformers.models.vibevoice.configuration_vibevoice import VibeVoiceDiffusionHeadConfig
from transformers.models.vibevoice.modeling_vibevoice import VibeVoiceDiffusionHeadSinusoidalEmbedding
from transformers.models.vibevoice_acoustic_tokenizer.modeling_vibevoice_acoustic_tokenizer import (
    VibeVoiceAcousticTokenizerCausalConv1d,
    VibeVoiceAcousticTokenizerConv1dPaddingCache,
)
from transformers.models.xcodec.modeling_xcodec import XcodecEuclideanCodebook
from transformers.models.xcodec2.modeling_xcodec2 import Xcodec2FiniteScalarQuantization
from transformers.models.xlstm import modeling_xlstm
from transformers.models.zoedepth.modeling_zoedepth import LogBinomialSoftmax

from validation.doctor.scenes import (
    BRAIN,
    DOUBLE,
    HALF,
    HEADS,
    LENGTH,
    SINGLE,
    TABLE,
    WIDENED,
    WIDTH,
    SceneSet,
    Stage,
    exact,
    normal,
    spread,
    wide,
)

SET = SceneSet(__file__)
LIBRARY, scene = SET.library, SET.scene


def heads_of(x: Tensor) -> Tensor:
    """Split the last dimension: (B, L, D) → (B, H, L, D/H)."""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def joined(heads: Tensor) -> Tensor:
    """Join heads: (B, H, L, D/H) → (B, L, D)."""
    return heads.transpose(1, 2).flatten(-2)


def looked_up(x: Tensor, ids: Tensor) -> Tensor:
    """Add a row of the table for each of the ids."""
    return x + TABLE[ids].reshape(x.shape).to(x.dtype)


# ---- silent, around classes of diffusers


@scene(
    "DPM-Solver's samples differ, since its sigmas were cast with the model and steps are their logarithms'", of=BRAIN
)
def solver_steps(self: Stage, x: Tensor) -> Tensor:
    scheduler = DPMSolverMultistepScheduler()
    scheduler.set_timesteps(100)
    scheduler.sigmas = scheduler.sigmas.to(self.part)  # @solver_steps
    latents = wide(x)
    for time in scheduler.timesteps:
        guess = torch.tanh(self.back(latents.to(x.dtype)))
        latents = scheduler.step(wide(guess), time, latents).prev_sample  # @solver_steps
    return latents.to(x.dtype)


@scene("Würstchen's sampler leaves noise, since its timesteps between 0 and 1 are rounded", of=BRAIN)
def ratio_steps(self: Stage, x: Tensor) -> Tensor:
    scheduler = DDPMWuerstchenScheduler()
    scheduler.set_timesteps(60)
    scheduler.timesteps = scheduler.timesteps.to(self.part)  # @ratio_steps
    latents, draws = x.float(), torch.Generator().manual_seed(2)
    for ratio in scheduler.timesteps[:-1]:
        guess = torch.tanh(latents)
        step = scheduler.step(guess, ratio.expand(2), latents, generator=draws)  # @ratio_steps
        latents = step.prev_sample.float()
    return latents.to(x.dtype)


@scene("the log of the signal-to-noise ratio is infinite at the first timesteps", of=BRAIN)
def log_ratio(self: Stage, x: Tensor) -> Tensor:
    scheduler = DDPMScheduler()
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.to(self.part)  # @log_ratio
    ratios = compute_snr(scheduler, torch.tensor([2, 40]))  # @log_ratio
    return x + torch.log(ratios)[:, None, None].to(x.dtype) / 4


@scene("a variance-exploding sampler returns NaN, its largest sigma squared in half", of=HALF)
def exploding(self: Stage, x: Tensor) -> Tensor:
    scheduler = ScoreSdeVeScheduler()
    scheduler.set_timesteps(20)
    scheduler.set_sigmas(20)
    scheduler.discrete_sigmas = scheduler.discrete_sigmas.to(self.part)  # @exploding
    sample, draws = 1000 * x.float(), torch.Generator().manual_seed(4)
    for time in scheduler.timesteps[:4]:
        score = -sample / 1348.0**2
        step = scheduler.step_pred(score, time, sample, generator=draws)  # @exploding
        sample = step.prev_sample.float()
    return (sample / 1000).to(x.dtype)


def curved() -> nn.Module:
    """Build an activation that training has left almost linear."""
    built = Snake1d(WIDTH)
    built.alpha.data.fill_(-9.0)
    built.beta.data.fill_(-18.0)
    return built


@scene("a decoder's Snake divides by what half holds as zero, and speech is NaN", of=HALF, inner=curved, whole=True)
def flat_snake(self: Stage, x: Tensor) -> Tensor:
    frames = x.transpose(1, 2).to(self.part)  # @flat_snake
    return self.inner(frames).transpose(1, 2).to(x.dtype) / 4  # @flat_snake


@scene("latents are added to a table in float64 and stay there until the end of the block", careless=DOUBLE,
       follows=True, costs=True)  # fmt: skip
def sincos_table(self: Stage, x: Tensor) -> Tensor:
    table = get_1d_sincos_pos_embed_from_grid(WIDTH, torch.arange(LENGTH)).to(self.part)  # @sincos_table
    states = x.repeat(8, 1, 1) + table  # @sincos_table
    for _ in range(3):
        states = states + torch.tanh(states)
    return states[:2].to(x.dtype)


@scene("attention runs in float32, since the rotary tables are", of=BRAIN, careless=SINGLE, costs=True)
def rotary_tables(self: Stage, x: Tensor) -> Tensor:
    heads, tables = heads_of(x), get_1d_rotary_pos_embed(WIDTH // HEADS, LENGTH, use_real=True)
    cosine, sine = (table.to(self.part) for table in tables)  # @rotary_tables
    halves = torch.stack([-heads[..., 1::2], heads[..., ::2]], dim=-1).flatten(-2)
    turned = heads * cosine + halves * sine  # @rotary_tables
    scores = turned @ turned.mT / math.sqrt(WIDTH / HEADS)
    return joined(scores.softmax(dim=-1).to(x.dtype) @ heads)


# ---- silent, around classes of transformers


@scene("neighbouring frames have the same Fourier position", of=BRAIN)
def fourier_positions(self: Stage, x: Tensor) -> Tensor:
    places = torch.linspace(-1, 1, 224)[None, :, None].to(self.part)  # @fourier_positions
    features = generate_fourier_features(places, 16, (224,), concat_pos=False)  # @fourier_positions
    return x + features[190 : 190 + LENGTH].to(x.dtype)


@scene("a prompt's point is found some pixels off, after the model is cast", of=BRAIN, whole=True,
       inner=lambda: SamPositionalEmbedding(SamVisionConfig(hidden_size=16, num_pos_feats=16)))  # fmt: skip
def prompt_points(self: Stage, x: Tensor) -> Tensor:
    points = torch.stack([torch.arange(LENGTH) * 83.0, 1017 - torch.arange(LENGTH) * 71.0], dim=-1)
    return x + self.inner(points[None, :, None], (1024, 1024))[:, :, 0].to(x.dtype)  # @prompt_points


@scene("the loss of a large mask is NaN: it is a ratio of sums over pixels", of=HALF)
def mask_loss(self: Stage, x: Tensor) -> Tensor:
    logits = exact(2, 4096, seed=3).repeat(1, 64).to(self.part)  # @mask_loss
    truth = (exact(2, 4096, seed=4).repeat(1, 64) > 0).to(logits.dtype)
    return x * dice_loss(logits, truth, 2).to(x.dtype)  # @mask_loss


@scene("a pitch track in hertz is scaled to zero, since its variance overflows", of=HALF,
       inner=lambda: TimeSeriesStdScaler(TimeSeriesTransformerConfig(prediction_length=4)))  # fmt: skip
def pitch_scaler(self: Stage, x: Tensor) -> Tensor:
    pitch = (220 + 150 * x).to(self.part)  # @pitch_scaler
    return self.inner(pitch, torch.ones_like(pitch))[0].to(x.dtype)  # @pitch_scaler


@scene("the depth of a pixel falls in a neighbouring bin: logarithms times their number", of=BRAIN,
       inner=lambda: LogBinomialSoftmax(256))  # fmt: skip
def depth_bins(self: Stage, x: Tensor) -> Tensor:
    near = torch.sigmoid(exact(2, 1, 1, LENGTH, seed=5)).to(self.part)  # @depth_bins
    bins = self.inner(near, 0.1)[:, :, 0].mT  # @depth_bins
    return x + bins.to(x.dtype) @ TABLE[:256].to(x.dtype)


@scene("columns far to the right of a picture share a position", of=BRAIN, inner=lambda: DetrSinePositionEmbedding(16))
def sine_columns(self: Stage, x: Tensor) -> Tensor:
    mask = torch.ones(1, 1, 900, dtype=torch.bool)
    make = self.inner.build_sine_position_embedding
    table = make((1, 8, 1, 900), x.device, self.part, 16, mask=mask)  # @sine_columns
    return x + table[0, :, 0, 801 : 801 + LENGTH].mT.to(x.dtype)


def codebook() -> nn.Module:
    """Build a codebook whose codes are close to one another and far from zero."""
    built = XcodecEuclideanCodebook(XcodecConfig(codebook_size=64, codebook_dim=WIDTH))
    built.embed.data = 4 + exact(64, WIDTH, seed=6) / 4
    return built


@scene("a codec cast to half finds other codes", of=HALF, inner=codebook, whole=True)
def nearest_codes(self: Stage, x: Tensor) -> Tensor:
    states = (4 + exact(2 * LENGTH, WIDTH, seed=7) / 4).to(self.inner.embed.dtype)  # @nearest_codes
    return looked_up(x, self.inner.encode(states))  # @nearest_codes


@scene("typical sampling keeps other tokens of a flat distribution", of=BRAIN)
def typical_tokens(self: Stage, x: Tensor) -> Tensor:
    logits = (exact(2 * LENGTH, 256, seed=8) / 2).to(self.part)  # @typical_tokens
    kept = TypicalLogitsWarper(0.6)(torch.zeros(1, 1), logits).isfinite()  # @typical_tokens
    shares = kept.to(x.dtype) / kept.sum(dim=-1, keepdim=True).to(x.dtype)
    return x + 4 * (shares @ TABLE[:256].to(x.dtype)).reshape(x.shape)


@scene("a linear attention forgets what its cache, kept in bfloat16, rounds away", careless=BRAIN)
def linear_state(self: Stage, x: Tensor) -> Tensor:
    layer, heads, read = LinearAttentionLayer(), heads_of(x), []
    layer.lazy_initialization(recurrent_states=torch.zeros(2, HEADS, 8, 8, dtype=self.part))  # @linear_state
    state = layer.recurrent_states[0]
    for query in heads.repeat(1, 1, 4, 1).unbind(2):
        state = layer.update_recurrent_state(0.98 * state + query[..., None] * query[..., None, :])  # @linear_state
        read.append((query[..., None, :] @ state.to(x.dtype))[..., 0, :])
    return joined(torch.stack(read[-LENGTH:], dim=2)) / 16


@scene("codes of speech decode to their neighbours, after being carried in half among the latents", of=HALF,
       inner=lambda: Xcodec2FiniteScalarQuantization(Xcodec2Config(quantization_levels=[4] * 8)))  # fmt: skip
def carried_codes(self: Stage, x: Tensor) -> Tensor:
    ids = (torch.arange(2 * LENGTH) * 2501 + 2777).reshape(2, LENGTH)
    carried = ids.to(self.part)  # @carried_codes
    codes = self.inner._indices_to_codes(carried.long())  # @carried_codes
    return x + codes.repeat(1, 1, 4).to(x.dtype)


@scene("a diffusion head is told timestep 1000 where it is at 999", of=BRAIN, whole=True,
       inner=lambda: VibeVoiceDiffusionHeadSinusoidalEmbedding(
       VibeVoiceDiffusionHeadConfig(frequency_embedding_size=WIDTH)))  # fmt: skip
def head_times(self: Stage, x: Tensor) -> Tensor:
    times = torch.tensor([999, 743]).to(self.part)  # @head_times
    return x + self.inner(times)[:, None].to(x.dtype)  # @head_times


@scene("an xLSTM's memory of a long sequence is lost to a state in the model's dtype", of=BRAIN)
def memory_state(self: Stage, x: Tensor) -> Tensor:
    q, k, v = (wide(exact(2, HEADS, 240, 8, seed=seed).to(x.dtype)) for seed in (1, 2, 3))
    gates = wide(exact(2, HEADS, 240, seed=9).to(x.dtype))
    recur = modeling_xlstm.mlstm_recurrent_sequence_native
    read = recur(q, k, v, gates / 4, 6 + gates / 8, dtype_state=self.part)  # @memory_state
    return x + joined(read[:, :, -LENGTH:]).to(x.dtype)


@scene("the end of speech gets an infinite score, and probabilities are NaN", of=HALF)
def length_penalty(self: Stage, x: Tensor) -> Tensor:
    penalty = ExponentialDecayLengthPenalty((10, 1.1), 3, 0)
    logits = exact(2 * LENGTH, 64, seed=2).to(self.part)  # @length_penalty
    scores = penalty(torch.zeros(1, 160), logits)  # @length_penalty
    return x + (scores.softmax(dim=-1).to(x.dtype) @ TABLE[:64].to(x.dtype)).reshape(x.shape)


@scene("each step widens a window of keys in float32 again, for queries in bfloat16", of=BRAIN, careless=SINGLE,
       costs=True)  # fmt: skip
def window_cache(self: Stage, x: Tensor) -> Tensor:
    layer, heads, read = DynamicSlidingWindowLayer(sliding_window=64), heads_of(x), []
    filled = heads.repeat(1, 1, 4, 1)
    layer.update(filled.to(self.part), filled.tanh().to(self.part))  # @window_cache
    for query in heads.split(1, dim=2):
        keys, values = layer.update(query, query.tanh())  # @window_cache
        read.append(F.scaled_dot_product_attention(query.to(keys.dtype), keys, values).to(x.dtype))  # @window_cache
    return joined(torch.cat(read, dim=2))


# ---- raising, around classes of transformers and diffusers


@scene("frames repeated by their durations come in float32, and the decoder in half refuses them", of=HALF, **WIDENED,
       inner=lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1))  # fmt: skip
def repeated_frames(self: Stage, x: Tensor) -> Tensor:
    frames = length_regulator(x, torch.tensor([[2, 1] * 6, [1, 2] * 6]), 1.5).to(self.part)  # @repeated_frames
    return self.inner(frames.mT).mT[:, :LENGTH]  # @repeated_frames


@scene("a sliding window cache, allocated in half, refuses a float32 model's keys", careless=HALF, follows=True,
       raises=True)  # fmt: skip
def window_in_half(self: Stage, x: Tensor) -> Tensor:
    layer, heads = StaticSlidingWindowLayer(max_cache_len=32, sliding_window=16), heads_of(x)
    room = torch.zeros(2, HEADS, 1, WIDTH // HEADS, dtype=self.part)
    layer.lazy_initialization(room, room)  # @window_in_half
    read = []
    for step, query in enumerate(heads.split(1, dim=2), 1):
        keys, values = layer.update(query, query.tanh())  # @window_in_half
        read.append(F.scaled_dot_product_attention(query, keys[:, :, :step], values[:, :, :step]))
    return joined(torch.cat(read, dim=2))


@scene("UniPC stops at its second step: it solves with sigmas cast to half", of=HALF, raises=True)
def solver_weights(self: Stage, x: Tensor) -> Tensor:
    scheduler = UniPCMultistepScheduler()
    scheduler.set_timesteps(8)
    scheduler.sigmas = scheduler.sigmas.to(self.part)  # @solver_weights
    latents = wide(x)
    for time in scheduler.timesteps:
        latents = scheduler.step(torch.tanh(latents), time, latents).prev_sample  # @solver_weights
    return latents.to(x.dtype)


@scene("cross-attention in half refuses an encoder's keys, cached in float32", of=HALF, **WIDENED)
def cross_cache(self: Stage, x: Tensor) -> Tensor:
    cache, spoken = EncoderDecoderCache(DynamicCache(), DynamicCache()), heads_of(x)
    cache.cross_attention_cache.update(spoken.to(self.part), spoken.tanh().to(self.part), 0)  # @cross_cache
    read = spoken[:, :, :1]
    for _ in range(LENGTH - 1):
        past, values = cache.self_attention_cache.update(read[:, :, -1:], read[:, :, -1:].tanh(), 0)
        query = F.scaled_dot_product_attention(read[:, :, -1:], past, values) + spoken[:, :, read.shape[2], None]
        crossed = cache.cross_attention_cache.layers[0]
        token = F.scaled_dot_product_attention(query, crossed.keys, crossed.values)  # @cross_cache
        read = torch.cat([read, token], dim=2)
    return joined(read)


@scene("deformable attention samples half features at places in float32", of=HALF, **WIDENED,
       inner=MultiScaleDeformableAttention)  # fmt: skip
def sampled_places(self: Stage, x: Tensor) -> Tensor:
    values = x.reshape(2, LENGTH, HEADS, -1)
    places = (torch.sigmoid(exact(2, LENGTH, HEADS, 1, 4, 2, seed=6))).to(self.part)  # @sampled_places
    shares = torch.full((2, LENGTH, HEADS, 1, 4), 0.25, dtype=x.dtype)
    shapes = [(3, 4)]
    return x + self.inner(
        values, torch.tensor(shapes), shapes, torch.tensor([0]), places, shares, 64
    )  # @sampled_places


@scene("experts in bfloat16 get tokens times router scores in float32", of=BRAIN, **WIDENED,
       inner=lambda: spread(Llama4TextExperts(
       Llama4TextConfig(hidden_size=WIDTH, intermediate_size=16, num_local_experts=2))))  # fmt: skip
def routed_tokens(self: Stage, x: Tensor) -> Tensor:
    tokens = x.flatten(0, 1)
    scores = torch.sigmoid(wide(tokens @ TABLE[:2].to(x.dtype).mT)).to(self.part)  # @routed_tokens
    routed_in = (tokens[None] * scores.mT[..., None]).flatten(0, 1)  # @routed_tokens
    return x + self.inner(routed_in).reshape(2, *x.shape).sum(dim=0)  # @routed_tokens


@scene("a forecaster gets numpy's float64", careless=DOUBLE, follows=True, raises=True, inner=lambda: PatchTSTModel(
       PatchTSTConfig(num_input_channels=2, context_length=32, patch_length=8, patch_stride=8, d_model=16, ffn_dim=16,
       num_hidden_layers=1, num_attention_heads=2)))  # fmt: skip
def numpy_history(self: Stage, x: Tensor) -> Tensor:
    history = torch.from_numpy(np.sin(np.arange(64.0)).reshape(1, 32, 2)).to(self.part)  # @numpy_history
    states = self.inner(past_values=history).last_hidden_state  # @numpy_history
    return x + states.mean(dim=(0, 1, 2)).repeat(2)


@scene("the second chunk of a stream meets a first one kept in float32", of=HALF, **WIDENED,
       inner=lambda: VibeVoiceAcousticTokenizerCausalConv1d(WIDTH, WIDTH, 4, "first"))  # fmt: skip
def streamed_chunks(self: Stage, x: Tensor) -> Tensor:
    cache = VibeVoiceAcousticTokenizerConv1dPaddingCache()
    first, second = x.mT.chunk(2, dim=-1)
    cache.update(first.to(self.part), "first", self.inner)  # @streamed_chunks
    return torch.cat([first.mT, self.inner(second, cache).mT], dim=1)  # @streamed_chunks


@scene("a flow head in bfloat16 refuses times in float32", of=BRAIN, **WIDENED,
       inner=lambda: PocketTTSTimestepEmbedding(
       PocketTTSFlowHeadConfig(hidden_size=WIDTH, frequency_embedding_size=16)))  # fmt: skip
def time_embedding(self: Stage, x: Tensor) -> Tensor:
    for step in range(2):
        time = torch.full((2, 1), step / 2, dtype=self.part)  # @time_embedding
        x = x + 0.5 * self.inner(time)[:, None]  # @time_embedding
    return x


@scene("a timestep's shift, kept in float32, reaches a feed-forward in half", of=HALF, **WIDENED,
       inner=lambda: FeedForward(WIDTH, mult=2, activation_fn="geglu"))  # fmt: skip
def shifted_block(self: Stage, x: Tensor) -> Tensor:
    shift, scale = exact(2, 1, 2 * WIDTH, seed=2).to(self.part).div(8).chunk(2, dim=-1)  # @shifted_block
    normed = F.layer_norm(x, (WIDTH,)) * (1 + scale) + shift  # @shifted_block
    return x + self.inner(normed)  # @shifted_block


# ---- silent, written by hand


@scene("averaged weights never leave their first values: an average of 0.999 in the model's bfloat16", of=BRAIN)
def averaged_weights(self: Stage, x: Tensor) -> Tensor:
    weight = self.back.weight
    average = weight.to(self.part, copy=True)  # @averaged_weights
    for _ in range(300):
        average.lerp_((weight + 0.5).to(average.dtype), 0.001)  # @averaged_weights
    return F.linear(x, average.to(x.dtype))


@scene("guidance by a merged adapter does little: its small update is added to weights in bfloat16", of=BRAIN)
def merged_adapter(self: Stage, x: Tensor) -> Tensor:
    weight, down, up = exact(WIDTH, WIDTH, seed=3), exact(4, WIDTH, seed=1), exact(WIDTH, 4, seed=2)
    merged = weight.to(self.part) + (up @ down).to(self.part) / 256  # @merged_adapter
    plain, adapted = (F.linear(wide(x), one.to(wide(x).dtype)) for one in (weight, merged))
    return (plain / 16 + 8 * (adapted - plain)).to(x.dtype)


@scene("a scaled loss overflows, and each step is skipped", of=HALF)
def scaled_loss(self: Stage, x: Tensor) -> Tensor:
    loss = F.mse_loss(exact(2, 64, seed=1), exact(2, 64, seed=2)).to(self.part)  # @scaled_loss
    scaled = loss * 2.0**16  # @scaled_loss
    return x * (scaled / 2.0**16).to(x.dtype)  # @scaled_loss


class RingBuffer(nn.Module):
    """The last keys of a stream, written where the oldest were."""

    keys: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.register_buffer("keys", torch.zeros(2, 8, WIDTH))

    def forward(self, key: Tensor) -> Tensor:
        self.keys[:, self.at % 8] = key  # @ring_buffer
        self.at += 1
        return self.keys


@scene("a voice drifts over a stream: keys are computed in float32, and kept in half where a slice casts them",
       careless=HALF, follows=True, inner=RingBuffer, whole=True)  # fmt: skip
def ring_buffer(self: Stage, x: Tensor) -> Tensor:
    self.inner.keys.zero_()
    self.inner.at, read = 0, []
    for key in x.unbind(1):
        kept = self.inner(key).to(x.dtype)
        read.append(F.scaled_dot_product_attention(key[:, None], kept, kept))
    return torch.cat(read, dim=1)


class MeanSquare(torch.autograd.Function):
    """Divides by the root mean square; kept for the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        inverse = torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6)  # @own_norm
        ctx.save_for_backward(x, gain, inverse)
        return x * inverse * gain

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, gain, inverse = ctx.saved_tensors
        scaled = grads[0] * gain
        own = inverse * (scaled - x * inverse**2 * (scaled * x).mean(dim=-1, keepdim=True))
        return own, (grads[0] * x * inverse).flatten(0, -2).sum(dim=0)


@scene("a norm of one's own, with a backward, returns zeros where activations are large", of=HALF)
def own_norm(self: Stage, x: Tensor) -> Tensor:
    large = (500 * x).to(self.part)  # @own_norm
    return MeanSquare.apply(large, torch.ones(WIDTH, dtype=large.dtype)).to(x.dtype)


@scene("silence is minus infinity in a log-mel spectrogram: half holds no floor of 1e-10", of=HALF)
def mel_floor(self: Stage, x: Tensor) -> Tensor:
    power = (x.square() * (torch.arange(LENGTH) % 3 > 0)[:, None]).to(self.part)  # @mel_floor
    return (torch.log10(power.clamp(min=1e-10)) / 5).to(x.dtype)  # @mel_floor


@scene("attention over blocks of keys, whose running sums are in bfloat16, weighs early blocks wrongly", of=BRAIN)
def block_sums(self: Stage, x: Tensor) -> Tensor:
    q, k, v = (exact(2, size, WIDTH, seed=size).to(x.dtype) / 2 for size in (LENGTH, 960, 961))
    top = torch.full((2, LENGTH, 1), -1e4, dtype=self.part)  # @block_sums
    total, read = torch.zeros_like(top), torch.zeros(2, LENGTH, WIDTH, dtype=self.part)  # @block_sums
    for keys, values in zip(k.split(2, dim=1), v[:, 1:].split(2, dim=1), strict=True):
        scores = (wide(q @ keys.mT) / math.sqrt(WIDTH)).to(top.dtype)
        higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
        shares, kept = torch.exp(scores - higher), torch.exp(top - higher)
        total = total * kept + shares.sum(dim=-1, keepdim=True)  # @block_sums
        read = read * kept + shares @ values.to(shares.dtype)  # @block_sums
        top = higher
    return x + 8 * (read / total).to(x.dtype)


@dataclass
class Recording:
    """Frames, and what share of them each row of the batch has."""

    frames: Tensor
    lengths: Tensor

    def mask(self) -> Tensor:
        """Mark the frames of each row."""
        steps = torch.arange(self.frames.shape[1])
        return steps < (self.lengths * self.frames.shape[1])[:, None]  # @relative_lengths


@scene("a recording loses its last frames, since its length is a share, cast with its frames", of=BRAIN)
def relative_lengths(self: Stage, x: Tensor) -> Tensor:
    frames = exact(2, 1600, WIDTH, seed=4)
    frames[:, 1500:] *= 8
    shares = torch.tensor([1555.5 / 1600, 1595.5 / 1600]).to(self.part)  # @relative_lengths
    batch = Recording(frames.to(x.dtype), shares)
    mask = batch.mask()
    return x + (batch.frames * mask[..., None]).sum(dim=1, keepdim=True, dtype=wide(x).dtype).to(x.dtype) / 64


@scene("beams of a long transcript tie: scores are sums of logarithms, kept in bfloat16", of=BRAIN)
def beam_scores(self: Stage, x: Tensor) -> Tensor:
    scores = torch.zeros(2, 8, dtype=self.part)  # @beam_scores
    for step in range(120):
        chances = exact(2, 8, 16, seed=step) * 2
        scores = scores + wide(chances).log_softmax(dim=-1)[..., 0].to(scores.dtype)  # @beam_scores
    shares = (scores / 16).softmax(dim=-1).to(x.dtype)
    return x + 4 * (shares @ TABLE[:8].to(x.dtype))[:, None]


@scene("a vocoder's weight norm divides by zero: small weights are squared in half", of=HALF)
def weight_norm(self: Stage, x: Tensor) -> Tensor:
    direction = (exact(WIDTH, WIDTH, seed=5) / 4096).to(self.part)  # @weight_norm
    length = direction.square().sum(dim=1, keepdim=True).sqrt()  # @weight_norm
    return F.linear(x, (direction / length).to(x.dtype))


class Schedule(nn.Module):
    """A guidance that rises over the first steps, as its counter says."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, total: int) -> Tensor:
        self.count += 1  # @step_counter
        return x * (self.count / total).to(x.dtype)


@scene("a guidance stops rising half way: a counter of steps, cast with the model, stays at 256", of=BRAIN,
       inner=Schedule, whole=True)  # fmt: skip
def step_counter(self: Stage, x: Tensor) -> Tensor:
    self.inner.count.zero_()
    for _ in range(399):
        self.inner(x[:, :1], 400)
    return self.inner(x, 400)


@scene("the running level of a stream hardly moves: an average in place, in half", of=HALF)
def running_level(self: Stage, x: Tensor) -> Tensor:
    level = torch.full((2, 1), 6.0, dtype=self.part)  # @running_level
    for frame in exact(2, 400, WIDTH, seed=2).unbind(1):
        power = frame.square().mean(dim=-1, keepdim=True).to(level.dtype)
        level.mul_(0.9995).add_(power, alpha=0.0005)  # @running_level
    return x * level[:, None].to(x.dtype) / 4


@scene("a stretched voice stutters: places between frames are rounded", of=BRAIN)
def stretched_frames(self: Stage, x: Tensor) -> Tensor:
    frames = exact(1, 700, WIDTH, seed=6)
    places = 0.8125 * torch.arange(600, 600 + LENGTH).to(self.part)  # @stretched_frames
    left, share = places.floor(), places - places.floor()
    before, after = frames[:, left.long()], frames[:, left.long() + 1]
    return x + torch.lerp(before.to(x.dtype), after.to(x.dtype), share[:, None].to(x.dtype))


@scene("a flow stands still: its small steps are added to latents in bfloat16", of=BRAIN)
def small_steps(self: Stage, x: Tensor) -> Tensor:
    latents, clean = x.to(self.part), exact(2, LENGTH, WIDTH, seed=7)
    for _ in range(384):
        velocity = torch.tanh(clean.to(latents.dtype) - latents)
        latents = latents + velocity / 512  # @small_steps
    return latents.to(x.dtype)


@scene("a mixture of logistics gives samples no chance: differences of sigmoids vanish in half", of=HALF)
def logistic_mixture(self: Stage, x: Tensor) -> Tensor:
    middle = (exact(2, LENGTH, WIDTH, seed=8) / 4).to(self.part)  # @logistic_mixture
    above, below = torch.sigmoid(middle + 1 / 4096), torch.sigmoid(middle - 1 / 4096)  # @logistic_mixture
    return x + torch.log((above - below).clamp(min=1e-12)).to(x.dtype) / 8  # @logistic_mixture


@scene("magnitudes of a quiet spectrum are zero: their squares are below what half holds", of=HALF)
def quiet_spectrum(self: Stage, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(wide(exact(2, LENGTH, 62, seed=3).to(x.dtype))) * 2**-16
    parts = torch.view_as_real(spectrum).to(self.part)  # @quiet_spectrum
    magnitudes = torch.sqrt(parts.square().sum(dim=-1) + 1e-12)  # @quiet_spectrum
    return x + 1024 * magnitudes.to(x.dtype)


# ---- silent: the result is right, and tensors are widened at every call


@scene("a gain in float32 on each branch keeps the residual stream in float32", of=BRAIN, careless=SINGLE, costs=True)
def layer_scale(self: Stage, x: Tensor) -> Tensor:
    gains = (exact(3, WIDTH, seed=1) / 8).to(self.part)  # @layer_scale
    for gain in gains.unbind(0):
        x = x + gain * self.back(torch.tanh(x).to(self.back.weight.dtype))  # @layer_scale
    return x.to(self.back.weight.dtype)


@scene("a padding mask in float64, by way of numpy, widens every frame it multiplies", careless=DOUBLE, follows=True,
       costs=True)  # fmt: skip
def padding_mask(self: Stage, x: Tensor) -> Tensor:
    mask = torch.from_numpy((np.arange(LENGTH) < 9) * 1.0)[:, None].to(self.part)  # @padding_mask
    states = x.repeat(1, 1, 4) * mask  # @padding_mask
    for _ in range(3):
        states = F.silu(states) * mask  # @padding_mask
    return states[..., :WIDTH].to(x.dtype)


@scene("weights held in eight bits become float32 before every step of a decoder in bfloat16", of=BRAIN,
       careless=SINGLE, costs=True)  # fmt: skip
def dequantised_steps(self: Stage, x: Tensor) -> Tensor:
    codes = (exact(4 * WIDTH, WIDTH, seed=6) * 32).to(torch.int8)
    scales = torch.full((4 * WIDTH, 1), 2.0**-9, dtype=self.part)  # @dequantised_steps
    state, read = torch.zeros_like(x[:, 0]), []
    for frame in x.unbind(1):
        weight = (codes * scales).to(x.dtype)  # @dequantised_steps
        value, gate = F.linear(frame + state, weight)[:, : 2 * WIDTH].chunk(2, dim=-1)
        state = value.tanh() * gate.sigmoid()
        read.append(state)
    return torch.stack(read, dim=1)


# ---- raising, written by hand


@scene("a picture's features in float32 are refused where they replace tokens in half", of=HALF, **WIDENED)
def placed_features(self: Stage, x: Tensor) -> Tensor:
    features = exact(8, WIDTH, seed=3).to(self.part)  # @placed_features
    is_picture = ((torch.arange(LENGTH) >= 4) & (torch.arange(LENGTH) < 8))[None, :, None].expand_as(x)
    return x.masked_scatter(is_picture, features)  # @placed_features


@scene("guidance interpolates between predictions by a weight in float32", of=BRAIN, **WIDENED)
def guided_lerp(self: Stage, x: Tensor) -> Tensor:
    weights = torch.linspace(1, 3, LENGTH, dtype=self.part)[:, None]  # @guided_lerp
    return torch.lerp(torch.tanh(x), x, weights)  # @guided_lerp


@scene("a reverb of half samples finds no Fourier transform on the processor", of=HALF, raises=True)
def reverb(self: Stage, x: Tensor) -> Tensor:
    wave, room = x.flatten(1).to(self.part), (0.9 ** torch.arange(64.0)).to(self.part) / 4  # @reverb
    size = wave.shape[-1] + len(room)
    wet = torch.fft.irfft(torch.fft.rfft(wave, n=size) * torch.fft.rfft(room, n=size), n=size)  # @reverb
    return wet[:, : wave.shape[-1]].reshape(x.shape).to(x.dtype)


@scene("codes averaged by weights in float32, from a codebook in half", of=HALF, **WIDENED,
       inner=lambda: nn.EmbeddingBag(64, WIDTH, mode="sum"))  # fmt: skip
def mixed_codes(self: Stage, x: Tensor) -> Tensor:
    ids = torch.arange(48).reshape(2 * LENGTH, 2)
    weights = exact(2 * LENGTH, 2, seed=4).softmax(dim=-1).to(self.part)  # @mixed_codes
    return x + self.inner(ids, per_sample_weights=weights).reshape(x.shape)  # @mixed_codes


@scene("biases by distance in float32 begin a batched product in half", of=HALF, **WIDENED)
def distance_bias(self: Stage, x: Tensor) -> Tensor:
    steps = torch.arange(LENGTH)
    bias = -(steps[:, None] - steps).abs().to(self.part).expand(2, -1, -1) / 8  # @distance_bias
    scores = torch.baddbmm(bias, x, x.mT, alpha=1 / math.sqrt(WIDTH))  # @distance_bias
    return scores.softmax(dim=-1) @ x


@scene("noise that is alike between neighbours needs a Cholesky factor, and bfloat16 has none", of=BRAIN, raises=True)
def alike_noise(self: Stage, x: Tensor) -> Tensor:
    apart = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    factor = torch.linalg.cholesky((0.5**apart).to(self.part))  # @alike_noise
    return x + factor.to(x.dtype) @ normal(2, LENGTH, WIDTH, seed=6).to(x.dtype)


@scene("averaged weights in float32, put into a model in bfloat16 by a functional call", of=BRAIN, **WIDENED,
       inner=lambda: nn.Linear(WIDTH, WIDTH))  # fmt: skip
def functional_average(self: Stage, x: Tensor) -> Tensor:
    average = {
        name: tensor.to(self.part) * 0.5 for name, tensor in self.inner.named_parameters()
    }  # @functional_average
    return x + torch.func.functional_call(self.inner, average, (x,))  # @functional_average


@scene("decays in float32 meet keys in half in one product of many", of=HALF, **WIDENED)
def decayed_product(self: Stage, x: Tensor) -> Tensor:
    steps = torch.arange(LENGTH)
    decay = torch.tril(0.875 ** (steps[:, None] - steps).clamp(min=0)).to(self.part)  # @decayed_product
    return torch.einsum("ij,bjd->bid", decay, x) / 4  # @decayed_product


@scene("one less a padding mask of bools", of=HALF, careless=torch.bool, follows=True, raises=True)
def bool_mask(self: Stage, x: Tensor) -> Tensor:
    mask = (torch.arange(LENGTH) < 9).to(self.part)  # @bool_mask
    scores = x @ x.mT / math.sqrt(WIDTH) + (1 - mask) * -1e4  # @bool_mask
    return scores.softmax(dim=-1) @ x


@scene("durations come as a float from their predictor, and frames cannot be repeated", careless=SINGLE,
       careful=torch.int64, raises=True)  # fmt: skip
def float_durations(self: Stage, x: Tensor) -> Tensor:
    durations = (torch.arange(LENGTH) % 3).exp2().round().clamp(max=2).to(self.part)  # @float_durations
    return torch.repeat_interleave(x, durations, dim=1)[:, :LENGTH]  # @float_durations


_DF, _HF, _LOGITS = "diffusers.schedulers.scheduling_", "transformers.models", "transformers.generation.logits_process"
_DPM, _UNIPC = f"{_DF}dpmsolver_multistep.DPMSolverMultistepScheduler", f"{_DF}unipc_multistep.UniPCMultistepScheduler"
_RATIO, _CACHE = f"{_DF}ddpm_wuerstchen.DDPMWuerstchenScheduler", "transformers.cache_utils"
_STREAM = f"{_HF}.vibevoice_acoustic_tokenizer.modeling_vibevoice_acoustic_tokenizer.VibeVoiceAcousticTokenizer"
LIBRARY |= {
    "solver_steps": ((f"{_DPM}.dpm_solver_first_order_update", r"(lambda_[ts] = |h = |\(sigma_t / sigma_s\))", ""),
                     (f"{_DPM}.multistep_dpm_solver_second_order_update",
                      r"(lambda_\w+ = torch|h, h_0 = |r0 = |D0, D1 = |\(sigma_t / sigma_s0\))", "")),
    "ratio_steps": ((f"{_RATIO}._alpha_cumprod", r"(alpha_cumprod = torch\.cos|\(t \+ self\.s|\) \*\* 2 / )", ""),
                    (f"{_RATIO}.step", r"(alpha = alpha_cumprod / |mu = |std = )", "")),
    "log_ratio": (("diffusers.training_utils.compute_snr", r"(sqrt_one_minus_alphas_cumprod = \(1|snr = )", ""),),
    "exploding": ((f"{_DF}sde_ve.ScoreSdeVeScheduler.step_pred", r"diffusion = \(sigma\*\*2", ""),),
    "flat_snake": (("diffusers.models.autoencoders.autoencoder_oobleck.Snake1d", r"(beta = self|\(beta \+ 1e-9\))",
                    "inner"),),
    "fourier_positions": ((f"{_HF}.perceiver.modeling_perceiver.generate_fourier_features",
                           r"per_pos_features = pos\[0", ""),),
    "prompt_points": ((f"{_HF}.sam.modeling_sam.SamPositionalEmbedding",
                       r"coordinates = (coordinates\.to|coordinates @|2 \* np)", "inner"),),
    "mask_loss": (("transformers.loss.loss_for_object_detection.dice_loss", r"(numerator|denominator|loss) = ", ""),),
    "pitch_scaler": ((f"{_HF}.time_series_transformer.modeling_time_series_transformer.TimeSeriesStdScaler",
                      r"variance = ", "inner"),),
    "depth_bins": ((f"{_HF}.zoedepth.modeling_zoedepth.LogBinomialSoftmax",
                    r"(y = \($|log_binom\(self|\* torch\.log\()", "inner"),),
    "sine_columns": ((f"{_HF}.detr.modeling_detr.DetrSinePositionEmbedding",
                      r"([xy]_embed = embed_mask\.cumsum|pos_[xy] = [xy]_embed)", ""),),
    "nearest_codes": ((f"{_HF}.xcodec.modeling_xcodec.XcodecEuclideanCodebook.quantize", r"dist = ", ""),),
    "typical_tokens": ((f"{_LOGITS}.TypicalLogitsWarper", r"(ent|shifted_scores|cumulative_probs) = ", ""),),
    "linear_state": ((f"{_CACHE}.LinearAttentionLayer.update_recurrent_state", r"\.copy_\(", ""),),
    "head_times": ((f"{_HF}.vibevoice.modeling_vibevoice.VibeVoiceDiffusionHeadSinusoidalEmbedding",
                    r"freq = timesteps", "inner"),),
    "memory_state": ((f"{_HF}.xlstm.modeling_xlstm.mlstm_recurrent_step_native",
                      r"(matC|vecN)_state_new = ", ""),),
    "length_penalty": ((f"{_LOGITS}.ExponentialDecayLengthPenalty", r"(penalty = torch\.abs|scores \+ pen)", ""),),
    "window_cache": ((f"{_CACHE}.DynamicSlidingWindowLayer.update", r"full_(key|value)_states = torch\.cat", ""),),
    "repeated_frames": ((f"{_HF}.fastspeech2_conformer.modeling_fastspeech2_conformer.length_regulator",
                         r"hidden_states = torch\.zeros\(", ""),),
    "window_in_half": ((f"{_CACHE}.StaticSlidingWindowLayer.update", r"self\.keys\.index_copy_", ""),),
    "solver_weights": ((f"{_UNIPC}.multistep_uni_c_bh_update", r"(rks|R) = torch\.stack|linalg\.solve", ""),
                       (f"{_UNIPC}.multistep_uni_p_bh_update", r"(rks|R) = torch\.stack|linalg\.solve", "")),
    "sampled_places": ((f"{_HF}.deformable_detr.modeling_deformable_detr.MultiScaleDeformableAttention",
                        r"grid_sample\(", "inner"),),
    "routed_tokens": ((f"{_HF}.llama4.modeling_llama4.Llama4TextExperts", r"gate_up = torch\.bmm", "inner"),),
    "numpy_history": ((f"{_HF}.patchtst.modeling_patchtst.PatchTSTEmbedding",
                       r"embeddings = self\.input_embedding\(", "inner.encoder.embedder.input_embedding"),),
    "streamed_chunks": ((f"{_STREAM}Conv1dPaddingCache", r"padded_hidden_states = torch\.cat", "inner"),
                        (f"{_STREAM}CausalConv1d", r"self\.conv\(", "inner.conv")),
    "time_embedding": ((f"{_HF}.pocket_tts.modeling_pocket_tts.PocketTTSTimestepEmbedding", r"self\.fc1\(emb",
                        "inner.fc1"),),
    "shifted_block": (("diffusers.models.activations.GEGLU", r"self\.proj\(", "inner.net.0.proj"),),
}  # fmt: skip
