"""The fifth set of plants: speech and generative code, 29 of 60 around real classes of transformers and diffusers.

It was written, and committed, before the doctor was tried on any of it, by somebody who had read neither the doctor's
rules nor, until every plant stood, the lists of misses. A plant is one function, a part of which has a dtype of its
own: in the careful twin float32, or the model's where a wider one would not agree; in the careless one what its row
says. The truth is a set of lines, fixed before any scoring: those marked ``# @name``, where the rounding is or where
one would change it, and some of a library. A comment at a function names the report it follows.
``tests/validation/test_doctor_scenes.py`` runs both twins, and a float64 copy, by torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.models.embeddings import Timesteps
from diffusers.models.transformers.stable_audio_transformer import StableAudioGaussianFourierProjection as Fourier
from diffusers.models.transformers.transformer_ltx import LTXVideoRotaryPosEmbed
from diffusers.training_utils import EMAModel
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import EncodecConfig, LlamaConfig, LlamaModel, StaticCache
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.encodec.modeling_encodec import EncodecEuclideanCodebook
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from validation.doctor import architectures as zoo
from validation.doctor.plants import BRAIN, HALF, SINGLE
from validation.doctor.scenes import LENGTH, WIDENED, WIDTH, SceneSet, Stage
from validation.doctor.small import Make

SET = SceneSet(__file__, inner_first=False)
scene, LIBRARY = SET.scene, SET.library
fifth_plants, fifth_clean = SET.plants, SET.clean


def llama(attention: str = "sdpa", **settings: Any) -> nn.Module:
    return LlamaModel(LlamaConfig(**{**zoo._GROUPED, **settings}, attn_implementation=attention))


def _of(make: Make, path: str = "") -> Callable[[], nn.Module]:
    return lambda: make(SINGLE)[0].get_submodule(path)


wan, unet, autoencoder = _of(zoo.wan), _of(zoo.unet2d_condition), _of(zoo.autoencoder_kl)
hubert, codec = _of(zoo.hubert, "hubert"), _of(zoo.dac, "encoder")
plain_llama = partial(llama, "plain_attention")


def scaled(make: Callable[[], nn.Module], factor: float, *names: str) -> Callable[[], nn.Module]:
    """Multiply those parameters of a model whose names have one of these in them."""

    def made() -> nn.Module:
        model = make()
        for name, parameter in model.named_parameters():
            if any(part in name for part in names):
                parameter.data *= factor
        return model

    return made


def codebook() -> nn.Module:
    """Build a codebook whose entries are close together."""
    built = EncodecEuclideanCodebook(EncodecConfig(codebook_size=16, codebook_dim=WIDTH))
    built.embed.data = 1 + 0.1 * torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(0))
    return built


FACTORS = torch.randn(6, 2, WIDTH, 4, generator=torch.Generator().manual_seed(1))  # of adapters


def _grid(x: Tensor, *shape: int) -> Tensor:
    """Take as many values as a shape holds."""
    return x.flatten()[: math.prod(shape)].reshape(shape)


# ---- silent, around classes of diffusers


@scene("a timestep of a flow in the model's dtype", of=BRAIN, inner=scaled(wan, 12, "time_proj"))
def wan_time(self: Stage, x: Tensor) -> Tensor:  # modelscope/DiffSynth-Studio#562
    time = torch.tensor([987.1741]).to(self.part)  # @wan_time
    return self.inner(_grid(x, 1, 4, 2, 8, 8), time, _grid(x, 1, 5, 24)).sample.reshape(-1, WIDTH)


@scene("the logarithm of the signal-to-noise ratio from a scheduler's products of alphas", of=BRAIN)
def signal_to_noise(self: Stage, x: Tensor) -> Tensor:  # huggingface/diffusers#4254, alphas rounded to one
    alphas = DDIMScheduler().alphas_cumprod.to(self.part)[20:80:5]  # @signal_to_noise
    ratio = torch.log(alphas / (1 - alphas))  # @signal_to_noise
    return x * ratio[:, None].to(x.dtype)


@scene("the schedule that a solver steps along", careless=HALF)
def solver(self: Stage, x: Tensor) -> Tensor:  # Comfy-Org/ComfyUI#16001: build the schedule in float32
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(6)
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.to(self.part)  # @solver
    for time in scheduler.timesteps:
        x = scheduler.step(torch.tanh(self.back(x)), time, x).prev_sample
    return x


@scene("the latents of a flow, kept between steps; the scheduler gives back the dtype of the velocity", of=BRAIN)
def flow_latents(self: Stage, x: Tensor) -> Tensor:
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(80)
    latents = x.to(self.part)  # @flow_latents
    for time in scheduler.timesteps:
        velocity = self.back(latents.to(x.dtype)) - latents.to(x.dtype)
        latents = scheduler.step(velocity.to(self.part), time, latents).prev_sample  # @flow_latents
    return latents.to(x.dtype)


@scene("the exponential moving average of a weight", of=BRAIN)
def shadow_weights(self: Stage, x: Tensor) -> Tensor:  # d8ahazard/sd_dreambooth_extension#1415
    weight = nn.Parameter(self.back.weight.to(self.part))  # @shadow_weights
    average = EMAModel([weight], decay=0.999, min_decay=0.999)
    for number in range(80):
        average.step([nn.Parameter(weight * min(number + 1, 2))])
    return F.linear(x, average.shadow_params[0].to(x.dtype))


@scene("a decoder that overflows", of=HALF, inner=scaled(autoencoder, 1e5, "decoder.conv_in"), whole=True)
def decoded(self: Stage, x: Tensor) -> Tensor:  # zai-org/CogVideo#559: black pictures in float16
    latents = _grid(x, 1, 4, 8, 8).to(self.part)  # @decoded
    return self.inner.decode(latents).sample.reshape(-1, WIDTH).to(x.dtype)  # @decoded


@scene("the sizes of a picture, as timesteps are embedded", of=BRAIN, inner=lambda: Timesteps(WIDTH, True, 0))
def size_embedding(self: Stage, x: Tensor) -> Tensor:
    sizes = torch.tensor([1023, 771, 13, 5, 1021, 765] * 2).to(self.part)  # @size_embedding
    return x + self.inner(sizes).to(x.dtype)


@scene("coordinates of a video's patches", of=BRAIN, inner=lambda: LTXVideoRotaryPosEmbed(WIDTH))
def video_coordinates(self: Stage, x: Tensor) -> Tensor:
    steps = torch.arange(LENGTH)
    places = torch.stack([steps / 24, 37.0 * steps + 5, 91.0 * steps + 11])[None].to(self.part)  # @video_coordinates
    cosine, sine = self.inner(x, video_coords=places)
    return x * cosine.to(x.dtype) + x.flip(-1) * sine.to(x.dtype)


@scene("the divergence of an autoencoder's posterior", of=HALF)
def posterior(self: Stage, x: Tensor) -> Tensor:
    shift = torch.tensor([0.0] * 6 + [10.6] * 6, dtype=self.part)
    parameters = x[..., None].to(self.part) + shift[:, None, None]  # @posterior
    divergence = DiagonalGaussianDistribution(parameters).kl()  # @posterior
    return x * divergence.log()[:, None, None].to(x.dtype) / 8


@scene("Fourier features of seconds", of=HALF, inner=lambda: Fourier(16, 16), whole=True)
def fourier_times(self: Stage, x: Tensor) -> Tensor:
    seconds = torch.linspace(0.5, 47, 2 * LENGTH).to(self.part)  # @fourier_times
    return x + self.inner(seconds).reshape(x.shape).to(x.dtype)


# ---- silent, around classes of transformers


@scene("positions far into a text", of=BRAIN, inner=scaled(llama, 40, "q_proj", "k_proj", "v_proj"))
def far_positions(self: Stage, x: Tensor) -> Tensor:  # huggingface/candle#3520, huggingface/transformers#29285
    positions = torch.arange(3000, 3000 + LENGTH).to(self.part)  # @far_positions
    return self.inner(inputs_embeds=x, position_ids=positions[None], use_cache=False).last_hidden_state


class RoundingLayer(DynamicLayer):
    """A layer of a cache that keeps keys and values in a dtype of its own."""

    def __init__(self, part: torch.dtype) -> None:
        super().__init__()
        self.part = part

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        keys = key_states.to(self.part)  # @rounded_cache
        values = value_states.to(self.part)  # @rounded_cache
        keys, values = super().update(keys, values, *args, **kwargs)
        return keys.to(key_states.dtype), values.to(value_states.dtype)  # @rounded_cache


@scene("a user's layer of a cache that rounds what it keeps, and casts back what it gives", careless=HALF, inner=llama)
def rounded_cache(self: Stage, x: Tensor) -> Tensor:
    cache = Cache(layers=[RoundingLayer(self.part) for _ in range(2)])
    self.inner(inputs_embeds=x[:, :8], past_key_values=cache)
    return self.inner(inputs_embeds=x[:, 8:], past_key_values=cache).last_hidden_state


@scene("adapters fused and taken out", of=BRAIN, inner=scaled(llama, 40, "1.self_attn.o", "1.self_attn.v"))
def refused(self: Stage, x: Tensor) -> Tensor:  # huggingface/peft#1388, OpenBMB/MiniCPM-V#502
    weight = self.inner.layers[1].self_attn.o_proj.weight.to(self.part)  # @refused
    for left, right in FACTORS.to(self.part):
        weight = weight + 4 * left @ right.T  # @refused
        weight = weight - 4 * left @ right.T  # @refused
    weights = {"layers.1.self_attn.o_proj.weight": weight.to(x.dtype)}
    return torch.func.functional_call(self.inner, weights, kwargs={"inputs_embeds": x}).last_hidden_state


class SmallNorm(LlamaRMSNorm):
    """A norm written anew."""

    fixed: torch.dtype | None

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = hidden_states.to(self.fixed or hidden_states.dtype)  # @norm_of_small
        variance = wide.pow(2).mean(-1, keepdim=True)  # @norm_of_small
        return self.weight * (wide * torch.rsqrt(variance + self.variance_epsilon)).to(hidden_states.dtype)


@scene("squares that float16 hardly holds", of=HALF, inner=lambda: SmallNorm(WIDTH, eps=1e-6))
def norm_of_small(self: Stage, x: Tensor) -> Tensor:
    return self.inner(x * 1e-3)


def plain_attention(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
    """Attention by exponentials, no maximum taken off."""
    key, value = (y.repeat_interleave(module.num_key_value_groups, dim=1) for y in (key, value))
    weights = ((query @ key.mT) * scaling).to(module.fixed or query.dtype).exp()  # @exponentials
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights.to(value.dtype) @ value).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register("plain_attention", plain_attention)


@scene("an attention of a user's own", of=HALF, inner=scaled(plain_llama, 28, "0.self_attn.q", "0.self_attn.k"))
def exponentials(self: Stage, x: Tensor) -> Tensor:
    return self.inner(inputs_embeds=x, use_cache=False).last_hidden_state


@scene("a snake of rate zero", of=HALF, inner=scaled(codec, 0, "0.res_unit1.snake1"), whole=True)
def dead_snake(self: Stage, x: Tensor) -> Tensor:
    return self.inner(_grid(x, 1, 1, 768).to(self.part)).reshape(-1, WIDTH).to(x.dtype)


@scene("guidance on log-probabilities of tokens", of=HALF, inner=lambda: zoo.llama(SINGLE)[0])
def guided_logits(self: Stage, x: Tensor) -> Tensor:
    scores = F.log_softmax(self.inner(inputs_embeds=x, use_cache=False).logits.to(self.part), dim=-1)  # @guided_logits
    with_text, without = scores.chunk(2)
    guided = without + 10 * (with_text - without)
    return 50 * guided.softmax(dim=-1)[..., :WIDTH].to(x.dtype)


@scene(
    "the nearest entry of an EnCodec codebook whose entries are close together", of=BRAIN, inner=codebook, whole=True
)
def close_codes(self: Stage, x: Tensor) -> Tensor:
    near = F.embedding(torch.arange(24).reshape(2, 12) % 16, self.inner.embed)
    nearest = self.inner.encode(near + 0.01 * x)  # @close_codes
    return x + 4 * (self.inner.decode(nearest) - 1).to(x.dtype)


@scene("ids of audio tokens, packed with features and taken out again", of=HALF, inner=lambda: llama(vocab_size=4096))
def packed_ids(self: Stage, x: Tensor) -> Tensor:
    ids = torch.arange(2051, 2051 + 24 * 77, 77).reshape(2, 12, 1)
    packed = torch.cat([ids.to(self.part), x.to(self.part)], dim=-1)  # @packed_ids
    return self.inner(input_ids=packed[..., 0].long(), use_cache=False).last_hidden_state


@scene("an additive mask of -1e9", of=HALF, careless=SINGLE, inner=lambda: llama("eager"))
def minus_infinity(self: Stage, x: Tensor) -> Tensor:
    blocked = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1) | (torch.arange(LENGTH) < 3)[:, None]
    lowest = max(-1e9, torch.finfo(self.part).min)
    mask = (lowest * blocked)[None, None].to(x.dtype)  # @minus_infinity
    return self.inner(inputs_embeds=x, attention_mask=mask, use_cache=False).last_hidden_state


# ---- silent, of torch alone: sound


@scene("the phase of a voice's harmonics, summed sample by sample", of=HALF)
def harmonics(self: Stage, x: Tensor) -> Tensor:  # hexgrad/kokoro#353
    pitch = (200 + 20 * x[..., :1].to(self.part)).repeat_interleave(100, dim=1)  # @harmonics
    phase = torch.cumsum(2 * torch.pi * pitch / 24000, dim=1)[:, ::100]  # @harmonics
    return x + F.pad(torch.sin(phase * torch.arange(1, 10)), (0, 23)).to(x.dtype)  # @harmonics


@scene("durations summed to the centres of phonemes, and frames gathered by their distance to these", of=BRAIN)
def spoken_lengths(self: Stage, x: Tensor) -> Tensor:
    lengths = 20 + 10 * x[..., 0].to(self.part)  # @spoken_lengths
    centres = lengths.cumsum(dim=1) - lengths / 2  # @spoken_lengths
    frames = torch.arange(5, 240, 20, dtype=self.part)
    weights = (-((frames[:, None] - centres[:, None]) ** 2) / 8).softmax(dim=-1)  # @spoken_lengths
    return weights.to(x.dtype) @ x


@scene("frames added to a signal that is kept in a dtype of its own", careless=BRAIN)
def overlap_add(self: Stage, x: Tensor) -> Tensor:
    signal = torch.zeros(2, 4 * LENGTH + WIDTH, dtype=self.part)
    for number, frame in enumerate((x * torch.hann_window(WIDTH, dtype=x.dtype)).unbind(1)):
        signal[:, 4 * number : 4 * number + WIDTH] += frame  # @overlap_add
    return signal.unfold(1, WIDTH, 4)[:, :LENGTH].to(x.dtype)


@scene("the kernel of a resampling filter", of=BRAIN)
def sinc_kernel(self: Stage, x: Tensor) -> Tensor:
    places = torch.arange(1492, 1509, dtype=self.part) * 0.441 - 661.3  # @sinc_kernel
    kernel = torch.sinc(places) * torch.cos(places / 4).square()
    return F.conv1d(x, kernel.to(x.dtype).repeat(LENGTH, 1, 1), padding=8, groups=LENGTH)


@scene("a complex spectrum kept as pairs", careless=HALF)
def packed_spectrum(self: Stage, x: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, SINGLE))
    pairs = torch.view_as_real(torch.fft.rfft(wide)).to(self.part)  # @packed_spectrum
    spectrum = torch.view_as_complex(pairs.to(wide.dtype))  # @packed_spectrum
    return torch.fft.irfft(spectrum, n=WIDTH).to(x.dtype)


@scene("a waveform scaled to unit variance; a frame is nearly silent, and 1e-8 is zero in float16", of=HALF)
def quiet_frames(self: Stage, x: Tensor) -> Tensor:
    wave = (x * torch.tensor([1.0] * 9 + [0.0] * 3, dtype=x.dtype)[:, None]).to(self.part)  # @quiet_frames
    variance = wave.var(dim=-1, keepdim=True, unbiased=False)
    return ((wave - wave.mean(-1, keepdim=True)) / torch.sqrt(variance + 1e-8)).to(x.dtype)  # @quiet_frames


@scene("a contour of pitch, filled in by numpy", careless=HALF)
def pitch_contour(self: Stage, x: Tensor) -> Tensor:
    contour = x[..., ::2].detach().numpy() if x.dtype != BRAIN else x[..., ::2].float().numpy()
    kind = {HALF: np.float16, torch.float64: np.float64}.get(self.part, np.float32)
    steps = np.arange(WIDTH) / 2
    rows = [np.interp(steps, np.arange(WIDTH // 2), row) for row in contour.reshape(-1, WIDTH // 2)]
    filled = np.stack(rows).astype(kind)  # @pitch_contour
    return torch.from_numpy(filled).reshape(x.shape).to(x.dtype)  # @pitch_contour


# ---- silent, of torch alone: positions, codes, sums


@scene("the angles of a rotation, made in the dtype that is at hand", of=BRAIN)
def rotary_table(self: Stage, x: Tensor) -> Tensor:  # EleutherAI/gpt-neox#1003, KellerJordan/modded-nanogpt#39
    rates = 1 / 10000 ** (torch.arange(0, WIDTH, 2, dtype=self.part) / WIDTH)  # @rotary_table
    angles = torch.outer(torch.arange(700, 700 + LENGTH).to(self.part), rates)  # @rotary_table
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


@scene("the angles of a rotation, by a product under autocast", careless=BRAIN)
def autocast(self: Stage, x: Tensor) -> Tensor:  # huggingface/transformers#29285: the angles' product under autocast
    rates = 1 / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    with torch.autocast("cpu", dtype=BRAIN, enabled=self.part == BRAIN):  # @autocast
        angles = torch.arange(700.0, 700 + LENGTH)[:, None] @ rates[None]  # @autocast
    return x * torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype)


@scene("sinusoids of positions, after an offset that streaming keeps", of=BRAIN)
def sinusoids(self: Stage, x: Tensor) -> Tensor:
    rates = torch.exp(torch.arange(WIDTH // 2, dtype=self.part) * (-math.log(10000) / 15))  # @sinusoids
    angles = (400 + torch.arange(LENGTH, dtype=self.part))[:, None] * rates  # @sinusoids
    return x + torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)


@scene("the slopes of ALiBi by positions that a window has moved along", of=BRAIN)
def slopes(self: Stage, x: Tensor) -> Tensor:
    places = torch.arange(1500, 1500 + LENGTH).to(self.part)  # @slopes
    distances = (places[:, None] - places[None]).abs()  # @slopes
    slopes = 2.0 ** -torch.arange(0, 4, dtype=self.part)
    bias = (-distances * slopes[:, None, None])[None].to(x.dtype)
    query, key = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in (x, x.flip(-1)))
    return F.scaled_dot_product_attention(query, key, query, attn_mask=bias).transpose(1, 2).flatten(-2)


@scene("the index of a finite scalar quantiser from its digits", of=BRAIN, inner=lambda: nn.Embedding(1000, WIDTH))
def scalar_codes(self: Stage, x: Tensor) -> Tensor:  # lucidrains/vector-quantize-pytorch#114
    digits = (torch.arange(24)[:, None] * torch.tensor([3, 7, 11, 13]) % torch.tensor([8, 5, 5, 5])).reshape(2, 12, 4)
    basis = torch.tensor([1, 8, 40, 200])
    index = (digits.to(self.part) * basis).sum(dim=-1)  # @scalar_codes
    return x + self.inner(index.long())  # @scalar_codes


@scene("a running mean that counts its frames", of=BRAIN)
def counter(self: Stage, x: Tensor) -> Tensor:
    total, count = 400 * x[:, 0].float(), torch.tensor(400).to(self.part)  # @counter
    for frame in x.unbind(1):
        total, count = total + frame, count + 1  # @counter
    return x[:, :1] - (total / count)[:, None].to(x.dtype) / 2  # @counter


@scene("the log-ratio of two policies, from sums over tokens that are nearly the same", of=BRAIN)
def sequence_ratio(self: Stage, x: Tensor) -> Tensor:
    chosen = F.log_softmax(x.to(torch.promote_types(x.dtype, SINGLE)), dim=-1)
    others = F.log_softmax((x + x.sign() / 16).to(chosen.dtype), dim=-1)
    one, other = chosen.to(self.part).sum(dim=1), others.to(self.part).sum(dim=1)  # @sequence_ratio
    return x * (one - other)[:, None].to(x.dtype)  # @sequence_ratio


@scene("a linear recurrence by a product of decays and a sum of what was divided by it", of=HALF)
def by_division(self: Stage, x: Tensor) -> Tensor:
    decay = (0.3 + 0.1 * x.tanh()).to(self.part).cumprod(dim=1)  # @by_division
    return (decay * (x.to(self.part) / decay).cumsum(dim=1)).to(x.dtype)  # @by_division


@scene("the state of a state-space model, written back at every step", of=BRAIN)
def step_state(self: Stage, x: Tensor) -> Tensor:  # ml-explore/mlx-lm#988, vllm-project/vllm#13466
    state, outputs = torch.zeros(2, WIDTH, dtype=self.part), []
    for frame in x.repeat_interleave(16, dim=1).unbind(1):
        state = 0.998 * state + 0.02 * (frame + 1).to(self.part)  # @step_state
        outputs.append(state.to(frame.dtype))
    return torch.stack(outputs[::16], dim=1)


# ---- silent, of torch alone: what wraps code


class Swish(torch.autograd.Function):
    """A gate with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: torch.dtype) -> Tensor:
        low = x.to(part)  # @own_gradient
        ctx.save_for_backward(low)
        return (low * low.sigmoid()).to(x.dtype)  # @own_gradient

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (low,) = ctx.saved_tensors
        return gradients[0] * (low.sigmoid() * (1 + low * (1 - low.sigmoid()))).to(gradients[0].dtype), None


@scene("a function with its own gradient that saves, and computes with, a rounded input", careless=HALF)
def own_gradient(self: Stage, x: Tensor) -> Tensor:
    return Swish.apply(x, self.part)


_LIBRARY = torch.library.Library("precision_eval_fifth", "FRAGMENT")
_LIBRARY.define("snake(Tensor x, ScalarType part) -> Tensor")


def snake(x: Tensor, part: torch.dtype) -> Tensor:
    """A snake activation."""
    low = x.to(part)  # @own_operator
    return (low + torch.sin(3 * low).square() / 3).to(x.dtype)  # @own_operator


_LIBRARY.impl("snake", snake, "CompositeExplicitAutograd")
_LIBRARY.impl("snake", lambda x, part: torch.empty_like(x), "Meta")


@scene("an operator registered with torch.library", careless=BRAIN)
def own_operator(self: Stage, x: Tensor) -> Tensor:
    return torch.ops.precision_eval_fifth.snake(x, self.part)  # @own_operator


def _compressed(x: Tensor, part: torch.dtype) -> Tensor:
    level = x.abs().amax(dim=-1, keepdim=True)
    return ((x / level).to(part) * 4).tanh().to(x.dtype) * level  # @compiled_part


@scene("a function that torch.compile traces", careless=HALF)
def compiled_part(self: Stage, x: Tensor) -> Tensor:
    return torch.compile(_compressed, backend="eager")(x, self.part)


def _pooled(x: Tensor, part: torch.dtype) -> Tensor:
    return (12 + x.to(part)).exp().sum(dim=-1, keepdim=True).log().to(x.dtype)  # @checkpointed


@scene("a part under a checkpoint: the logarithm of a sum of exponentials, no maximum taken off", of=HALF)
def checkpointed(self: Stage, x: Tensor) -> Tensor:
    return x * checkpoint(_pooled, x, self.part, use_reentrant=False) / 8


# ---- raising, around classes of transformers and diffusers


@scene("a scheduler asked for the step of a rounded timestep", of=BRAIN, raises=True)
def rounded_time(self: Stage, x: Tensor) -> Tensor:  # huggingface/diffusers#11749: no step is found for the timestep
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(7)
    time = scheduler.timesteps[2].to(self.part)  # @rounded_time
    return scheduler.step(x, time, x).prev_sample  # @rounded_time


@scene("the states of a text encoder in float32", of=HALF, **WIDENED, inner=wan)
def wide_text(self: Stage, x: Tensor) -> Tensor:
    text = _grid(x, 1, 5, 24).to(self.part)  # @wide_text
    return self.inner(_grid(x, 1, 4, 2, 8, 8), torch.tensor([500]), text).sample.reshape(-1, WIDTH)  # @wide_text


@scene("a static cache set up in float32", of=BRAIN, **WIDENED, inner=llama)
def wide_static(self: Stage, x: Tensor) -> Tensor:
    cache = StaticCache(self.inner.config, max_cache_len=16)
    cache.early_initialization(2, 2, 8, self.part, x.device)  # @wide_static
    return self.inner(inputs_embeds=x, past_key_values=cache).last_hidden_state


@scene("features of a sound put where the text has placeholders", of=BRAIN, **WIDENED, inner=llama)
def merged_audio(self: Stage, x: Tensor) -> Tensor:
    embeds = self.inner.embed_tokens(torch.arange(24).reshape(2, 12) + 3)
    features = x[:, :4].to(self.part)  # @merged_audio
    where = (torch.arange(LENGTH) // 4 == 1)[None, :, None].expand(2, -1, 1)
    embeds = embeds.masked_scatter(where, features)  # @merged_audio
    return self.inner(inputs_embeds=embeds, use_cache=False).last_hidden_state


@scene("a waveform in float32, given to a recogniser in half", of=HALF, **WIDENED, inner=hubert)
def decoded_audio(self: Stage, x: Tensor) -> Tensor:  # F5-TTS#192
    return self.inner(_grid(x, 1, 400).to(self.part)).last_hidden_state  # @decoded_audio


@scene("a soft prompt before the embeddings of a text", of=BRAIN, **WIDENED, inner=llama)
def soft_prompt(self: Stage, x: Tensor) -> Tensor:
    prompt = FACTORS[0].reshape(2, 4, WIDTH).to(self.part)  # @soft_prompt
    joined = torch.cat([prompt, x], dim=1)  # @soft_prompt
    return self.inner(inputs_embeds=joined, use_cache=False).last_hidden_state  # @soft_prompt


@scene("the keys and values of a prompt, kept in float32", of=BRAIN, **WIDENED, inner=llama)
def prefix(self: Stage, x: Tensor) -> Tensor:
    cache = DynamicCache(config=self.inner.config)
    for number in range(2):
        states = _grid(x, 2, 2, 4, 8).to(self.part)  # @prefix
        cache.update(states, states, number)
    return self.inner(inputs_embeds=x, past_key_values=cache).last_hidden_state


@scene("the residuals of a control net", of=HALF, **WIDENED, inner=unet)
def wide_control(self: Stage, x: Tensor) -> Tensor:
    sample, text = _grid(x, 1, 2, 16, 16).repeat(1, 2, 1, 1), _grid(x, 1, 5, 24)
    shapes = ((16, 16), (16, 16), (16, 8), (32, 8))
    down = [torch.full((1, width, size, size), 0.1, dtype=self.part) for width, size in shapes]  # @wide_control
    added = {"mid_block_additional_residual": torch.full((1, 32, 8, 8), 0.1, dtype=self.part)}  # @wide_control
    output = self.inner(sample, 500, text, down_block_additional_residuals=down, **added)  # @wide_control
    return output.sample.reshape(-1, WIDTH)


@scene("latents scaled by a tensor before they are decoded", of=HALF, **WIDENED, inner=autoencoder)
def scaled_latents(self: Stage, x: Tensor) -> Tensor:
    latents = _grid(x, 1, 4, 8, 8) / torch.full((1, 4, 1, 1), 0.18215, dtype=self.part)  # @scaled_latents
    return self.inner.decode(latents).sample.reshape(-1, WIDTH)  # @scaled_latents


@scene("a weight with an adapter's product added, put in for one call", of=HALF, **WIDENED, inner=llama)
def hot_swap(self: Stage, x: Tensor) -> Tensor:
    left, right = FACTORS[0].to(self.part)  # @hot_swap
    weight = self.inner.layers[0].self_attn.o_proj.weight + left @ right.T  # @hot_swap
    weights = {"layers.0.self_attn.o_proj.weight": weight}  # @hot_swap
    return torch.func.functional_call(self.inner, weights, kwargs={"inputs_embeds": x}).last_hidden_state


# ---- raising, of torch alone


@scene("a short-time transform and its window", of=HALF, raises=True)
def window(self: Stage, x: Tensor) -> Tensor:  # wenet-e2e/wetts#217
    wave = x.flatten(1).to(self.part)  # @window
    window = torch.hann_window(62, dtype=self.part)  # @window
    spectrum = torch.stft(wave, 62, 31, window=window, return_complex=True).abs()  # @window
    return spectrum[:, :, :LENGTH].transpose(1, 2).to(x.dtype)


@scene("a spectrum from a magnitude and a phase", of=BRAIN, raises=True)
def polar_head(self: Stage, x: Tensor) -> Tensor:
    size, angle = x.exp().to(self.part), (3 * x).to(self.part)  # @polar_head
    spectrum = torch.complex(size * angle.cos(), size * angle.sin())  # @polar_head
    return torch.fft.irfft(spectrum, n=WIDTH).to(x.dtype)


@scene("a moving average by lerp_", of=HALF, **WIDENED)
def lerped_average(self: Stage, x: Tensor) -> Tensor:  # lucidrains/ema-pytorch#36
    average = torch.zeros(2, WIDTH, dtype=self.part)  # @lerped_average
    for frame in x.unbind(1):
        average.lerp_(frame, 0.1)  # @lerped_average
    return x - average[:, None]


@scene("frames added up where their phonemes are", of=HALF, **WIDENED)
def regulated(self: Stage, x: Tensor) -> Tensor:
    frames = torch.zeros(2, 6, WIDTH, dtype=self.part)  # @regulated
    frames.index_add_(1, torch.arange(LENGTH) // 2, x)  # @regulated
    return frames.repeat_interleave(2, dim=1)


@scene("a bias added to scores by baddbmm", of=HALF, **WIDENED)
def biased_product(self: Stage, x: Tensor) -> Tensor:
    bias = -torch.arange(LENGTH, dtype=self.part).expand(2, LENGTH, LENGTH)  # @biased_product
    scores = torch.baddbmm(bias, x, x.mT, alpha=0.2)  # @biased_product
    return scores.softmax(dim=-1) @ x


@scene("a picture sampled along a flow", of=HALF, raises=True)
def warped(self: Stage, x: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, SINGLE)
    rows, columns = torch.linspace(-1, 1, LENGTH, dtype=wide), torch.linspace(-0.9, 0.9, WIDTH, dtype=wide)
    grid = torch.stack([columns.expand(LENGTH, -1), rows[:, None].expand(-1, WIDTH)], dim=-1).expand(2, -1, -1, -1)
    picture = x[:, None].to(self.part)  # @warped
    return F.grid_sample(picture, grid, align_corners=False)[:, 0].to(x.dtype)  # @warped


@scene("an invertible convolution of a flow", of=HALF, raises=True)
def invertible(self: Stage, x: Tensor) -> Tensor:
    mixing = (torch.eye(WIDTH, dtype=x.dtype) + self.back.weight / 4).to(self.part)  # @invertible
    return F.linear(x, torch.linalg.inv(mixing).to(x.dtype))  # @invertible


@scene("a mixing of tokens by a Fourier transform", of=BRAIN, raises=True)
def spectral(self: Stage, x: Tensor) -> Tensor:
    return (torch.fft.fft(x.to(self.part), dim=1).real / 4).to(x.dtype)  # @spectral


@scene("the first state of a cell", of=HALF, **WIDENED, inner=lambda: nn.GRUCell(WIDTH, WIDTH))
def first_state(self: Stage, x: Tensor) -> Tensor:
    state = torch.zeros(2, WIDTH, dtype=self.part)  # @first_state
    for frame in x.unbind(1):
        state = self.inner(frame, state)  # @first_state
    return x + state[:, None]


@dataclass
class Left:
    """What a streaming convolution has to remember."""

    samples: Tensor


@scene("a convolution with the samples of before", of=HALF, **WIDENED, inner=lambda: nn.Conv1d(LENGTH, LENGTH, 3))
def streaming(self: Stage, x: Tensor) -> Tensor:
    left = Left(torch.zeros(2, LENGTH, 2, dtype=self.part))  # @streaming
    joined = torch.cat([left.samples, x], dim=-1)  # @streaming
    return self.inner(joined)  # @streaming


_FLOW = "diffusers.schedulers.scheduling_flow_match_euler_discrete.FlowMatchEulerDiscreteScheduler"
_MODELS, _DF = "transformers.models", "diffusers.models"
#: Lines of a library that are the fault's too, and the path of the module that runs them.
_LINES: dict[str, tuple[str, str, str]] = {
    "flow_latents": (_FLOW, r"prev_sample = prev_sample\.to\(model_output", ""),
    "shadow_weights": ("diffusers.training_utils.EMAModel", r"s_param\.sub_\(", ""),
    "decoded": (f"{_DF}.autoencoders.vae.Decoder", r"sample = self\.conv_in\(", "inner.decoder.conv_in"),
    "posterior": (f"{_DF}.autoencoders.vae.DiagonalGaussianDistribution", r"self\.var = torch\.exp\(", ""),
    "fourier_times": (f"{Fourier.__module__}.{Fourier.__name__}", r"x_proj = ", "inner"),
    "dead_snake": (f"{_MODELS}.dac.modeling_dac.Snake1d", r"alpha \+ 1e-9", "inner.block.0.res_unit1.snake1"),
    "close_codes": (f"{_MODELS}.encodec.modeling_encodec.EncodecEuclideanCodebook", r"dist = -\(", ""),
    "rounded_time": (f"{_FLOW}.index_for_timestep", r"return indices\[pos\]", ""),
    "wide_text": (f"{_DF}.embeddings.PixArtAlphaTextProjection", r"self\.linear_1\(",
                  "inner.condition_embedder.text_embedder.linear_1"),
    "wide_static": ("transformers.cache_utils.StaticLayer", r"keys\.index_copy_\(", "inner.layers.0.self_attn"),
    "decoded_audio": (f"{_MODELS}.hubert.modeling_hubert.HubertGroupNormConvLayer", r"self\.conv\(",
                      "inner.feature_extractor.conv_layers.0.conv"),
    "prefix": ("transformers.cache_utils.DynamicLayer", r"self\.keys = torch\.cat\(", "inner.layers.0.self_attn"),
    "wide_control": (f"{_DF}.unets.unet_2d_condition.UNet2DConditionModel",
                     r"(sample \+ mid_block|res_sample \+ down_block)_additional_residual$", "inner"),
    "scaled_latents": (f"{_DF}.autoencoders.autoencoder_kl.AutoencoderKL._decode", r"post_quant_conv\(",
                       "inner.post_quant_conv"),
    "hot_swap": (f"{_MODELS}.llama.modeling_llama.LlamaAttention", r"self\.o_proj\(",
                 "inner.layers.0.self_attn.o_proj"),
}  # fmt: skip
LIBRARY |= {name: (line,) for name, line in _LINES.items()}
SET.within |= dict.fromkeys(("rounded_cache", "exponentials"), "inner.layers.0.self_attn")
