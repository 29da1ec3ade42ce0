"""The sixth set of plants: speech and generative code, half of it around real classes of transformers and diffusers.

Its author had read neither the doctor's rules nor what it missed before, and never ran it on a plant. A plant is one
function, ``self.part`` of which has a dtype: in the careful twin float32, or the model's own where the fault is to
widen; in the careless one what its row says. The truth was fixed before any scoring: the lines marked ``# @name``, and
some of a library. Values that decide a choice are multiples of 1/32, so that every format holds them.
``tests/validation/test_doctor_scenes.py`` runs both twins, and a float64 copy, by torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from diffusers import DDPMScheduler, EDMEulerScheduler, EulerDiscreteScheduler
from diffusers import LCMScheduler as ConsistencyScheduler
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.pipelines.stable_audio.modeling_stable_audio import StableAudioNumberConditioner
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    DacConfig,
    DeepseekV3Config,
    EncodecConfig,
    EncodecModel,
    FNetConfig,
    FNetModel,
    LlamaConfig,
    LlamaModel,
    RecurrentGemmaConfig,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
    Wav2Vec2ConformerConfig,
)
from transformers.audio_utils import mel_filter_bank, window_function
from transformers.models.dac.modeling_dac import DacResidualVectorQuantizer
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru
from transformers.models.vits.modeling_vits import _unconstrained_rational_quadratic_spline as vits_spline
from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import (
    Wav2Vec2ConformerRotaryPositionalEmbedding as ConformerRotary,
)
from transformers.models.whisper.modeling_whisper import sinusoids

from validation.doctor import architectures as zoo
from validation.doctor.plants import BRAIN, HALF, SINGLE
from validation.doctor.scenes import (
    DOUBLE,
    HEADS,
    LENGTH,
    TABLE,
    WIDENED,
    WIDTH,
    SceneSet,
    Stage,
    exact,
    normal,
    spread,
    wide,
)  # fmt: skip
from validation.doctor.small import Make

SET = SceneSet(__file__)
SCENES, LIBRARY, scene, twin, truths = SET.scenes, SET.library, SET.scene, SET.twin, SET.truths
sixth_plants, sixth_clean = SET.plants, SET.clean


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Build in a dtype, as loaders do."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def of_zoo(make: Make, path: str = "") -> Callable[[], nn.Module]:
    return lambda: make(SINGLE)[0].get_submodule(path)


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate halves of the last dimension."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


# ---- silent, around classes of diffusers


@scene("the sigmas of an Euler sampler, rounded once and used at every step", careless=BRAIN)
def euler_sigmas(self: Stage, x: Tensor) -> Tensor:
    scheduler = EulerDiscreteScheduler()
    scheduler.set_timesteps(20)
    scheduler.sigmas = scheduler.sigmas.to(self.part)  # @euler_sigmas
    latents = wide(x) * float(scheduler.init_noise_sigma)
    for time in scheduler.timesteps:
        scaled = scheduler.scale_model_input(latents, time).to(x.dtype)  # @euler_sigmas
        latents = scheduler.step(wide(torch.tanh(self.back(scaled))), time, latents).prev_sample  # @euler_sigmas
    return latents.to(x.dtype)


@scene("noise added at the first timesteps, where one less the product of alphas is below an epsilon", of=BRAIN)
def first_noise(self: Stage, x: Tensor) -> Tensor:  # huggingface/diffusers#4254
    clean, noise = x.to(self.part), normal(2, LENGTH, WIDTH).to(self.part)  # @first_noise
    noisy = DDPMScheduler().add_noise(clean, noise, torch.tensor([1, 3]))  # @first_noise
    return ((noisy - clean) / 0.02).to(x.dtype)


@scene("the ids of a large picture's patches, in the dtype of its latents", of=BRAIN,
       inner=lambda: FluxPosEmbed(10000, [4, 6, 6]))  # fmt: skip
def patch_ids(self: Stage, x: Tensor) -> Tensor:  # Flux' img_ids had the dtype of the latents
    steps = torch.arange(LENGTH)
    ids = torch.stack([0 * steps, 301 + steps, 517 + 2 * steps], dim=-1)
    tables = self.inner(ids.to(self.part))  # @patch_ids
    heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
    return apply_rotary_emb(heads, tables, sequence_dim=2).transpose(1, 2).flatten(-2)


@scene("the divergence of a posterior, summed beyond the range of half", of=HALF)
def divergence(self: Stage, x: Tensor) -> Tensor:
    mean = (30 * x).reshape(2, LENGTH, 4, 8)
    moments = torch.cat([mean, torch.zeros_like(mean)], dim=1).to(self.part)  # @divergence
    loss = DiagonalGaussianDistribution(moments).kl()  # @divergence
    return x * torch.log(loss)[:, None, None].to(x.dtype) / 10


@scene("a consistency model's boundary, from a scaled timestep that overflows when squared", of=HALF)
def boundary(self: Stage, x: Tensor) -> Tensor:
    time = torch.tensor(999.0).to(self.part)  # @boundary
    keep, take = ConsistencyScheduler().get_scalings_for_boundary_condition_discrete(time)  # @boundary
    return (take * torch.tanh(wide(x)) + keep * wide(x)).to(x.dtype)


@scene("the preconditioning of a video model at a large sigma", of=HALF)
def preconditioned(self: Stage, x: Tensor) -> Tensor:  # sigma_max is 700 in Stable Video Diffusion
    scheduler, sigma = EDMEulerScheduler(sigma_max=700.0), torch.tensor(320.0).to(self.part)  # @preconditioned
    sample = 320 * wide(x)
    scaled = scheduler.precondition_inputs(sample, sigma).to(x.dtype)  # @preconditioned
    return scheduler.precondition_outputs(sample, wide(self.back(scaled)), sigma).to(x.dtype)  # @preconditioned


def conditioner() -> nn.Module:
    """Build one whose frequencies have grown."""
    built = StableAudioNumberConditioner(WIDTH, 0, 512, 16)
    built.time_positional_embedding[0].weights.data *= 6
    return built


@scene("the seconds that a song lasts, as Fourier features", of=BRAIN, inner=conditioner, whole=True)
def song_seconds(self: Stage, x: Tensor) -> Tensor:
    seconds = torch.tensor([187.3, 402.9], dtype=self.part)  # @song_seconds
    return x + self.inner(seconds).to(x.dtype)  # @song_seconds


# ---- silent, around classes of transformers


def pick(probabilities: Tensor, at: Tensor) -> Tensor:
    """Choose the token at which the sum of probabilities passes a share of it."""
    sums = wide(probabilities).cumsum(dim=-1)
    return (sums < at.to(sums.dtype) * sums[..., -1:]).sum(dim=-1)


@scene("the nucleus of a flat distribution", of=BRAIN)
def nucleus(self: Stage, x: Tensor) -> Tensor:  # metavoice-src samples in the model's precision
    logits, at = exact(2 * LENGTH, 512, seed=2) / 4, normal(2 * LENGTH, 1, seed=9).sigmoid()
    kept = TopPLogitsWarper(0.7)(torch.zeros(1, 1), logits.to(self.part))  # @nucleus
    return x + TABLE[pick(wide(kept).softmax(dim=-1), at)].reshape(2, LENGTH, WIDTH).to(x.dtype)


@scene("logits divided by a temperature close to zero", of=HALF)
def cold_logits(self: Stage, x: Tensor) -> Tensor:  # QwenLM/Qwen3-TTS#355
    logits = 32 * exact(2 * LENGTH, 64, seed=1)
    cold = TemperatureLogitsWarper(0.001)(torch.zeros(1, 1), logits.to(self.part))  # @cold_logits
    return x + (cold.softmax(dim=-1).to(x.dtype) @ TABLE[:64].to(x.dtype)).reshape(x.shape)


@scene("logarithmic buckets of distances", of=BRAIN)
def log_buckets(self: Stage, x: Tensor) -> Tensor:
    distances = torch.arange(-601, 599, 50).to(self.part)  # @log_buckets
    buckets = make_log_bucket_position(distances, 64, 1024).long()  # @log_buckets
    return x + TABLE[buckets + 64].reshape(x.shape).to(x.dtype)


def experts() -> nn.Module:
    """Build eight experts; which are chosen is left to a bias that has grown."""
    config = DeepseekV3Config(
        hidden_size=WIDTH, moe_intermediate_size=16, n_routed_experts=8, num_local_experts=8, num_experts_per_tok=2,
        n_group=2, topk_group=1, n_shared_experts=1, routed_scaling_factor=1.0,
    )  # fmt: skip
    config._experts_implementation = "eager"
    built: Any = spread(DeepseekV3MoE(config))
    built.gate.weight.data *= 0.005
    return built


@scene("the bias by which a router balances its experts, cast with the model", of=BRAIN, inner=experts)
def balancing_bias(self: Stage, x: Tensor) -> Tensor:  # sgl-project/sglang#31213: 238 biases became 8
    bias = 8 + 0.01 * torch.tensor([0.0, 2, 1, 3, 6, 4, 7, 5])
    self.inner.gate.e_score_correction_bias = bias.to(self.part)  # @balancing_bias
    return self.inner(x)


def levelling_codec() -> nn.Module:
    """Build one that divides by the level of its input; a new one's codebooks are zeros."""
    config = EncodecConfig(
        normalize=True, hidden_size=16, num_filters=4, upsampling_ratios=[4, 2], codebook_size=16, codebook_dim=16,
        num_lstm_layers=1, target_bandwidths=[24.0, 48.0], sampling_rate=1600,
    )  # fmt: skip
    built = EncodecModel(config)
    for layer in built.quantizer.layers:
        layer.codebook.embed.data = normal(16, 16)
    return built


@scene("the level of a quiet recording, by which a codec divides", of=HALF, inner=levelling_codec, whole=True)
def quiet_recording(self: Stage, x: Tensor) -> Tensor:
    wave = (exact(1, 1, 384, seed=4) * 2**-14).to(self.part)  # @quiet_recording
    sound = self.inner(wave).audio_values * 2**14  # @quiet_recording
    return x + sound.reshape(1, LENGTH, WIDTH).to(x.dtype)


@scene("a residual quantiser, cast with the model", of=BRAIN, whole=True,
       inner=lambda: DacResidualVectorQuantizer(DacConfig(n_codebooks=6, codebook_size=64, codebook_dim=8,
       encoder_hidden_size=8, downsampling_ratios=[2, 4])))  # fmt: skip
def residual_codes(self: Stage, x: Tensor) -> Tensor:  # lucidrains/vector-quantize-pytorch#144
    latents = exact(2, WIDTH, LENGTH, seed=8).to(self.part)  # @residual_codes
    return x + self.inner(latents)[0].transpose(1, 2).to(x.dtype)  # @residual_codes


@scene("Whisper's sinusoids, built while the default dtype is the model's", of=BRAIN)
def built_under(self: Stage, x: Tensor) -> Tensor:
    with default_dtype(self.part):
        table = sinusoids(1500, WIDTH)  # @built_under
    return x + table[1300::17][:LENGTH].to(x.dtype)


def conformer() -> nn.Module:
    return ConformerRotary(Wav2Vec2ConformerConfig(hidden_size=WIDTH, num_attention_heads=HEADS))


@scene("the rotary frequencies of a Conformer, cast with the model", of=BRAIN, inner=conformer, whole=True)
def conformer_positions(self: Stage, x: Tensor) -> Tensor:
    frames = torch.zeros(1, 700, WIDTH, dtype=x.dtype)
    cosine, sine = self.inner(frames)[:, -LENGTH:, 0]  # @conformer_positions
    return turned(x.unflatten(-1, (HEADS, -1)), cosine, sine).flatten(-2)


def gated_recurrence() -> nn.Module:
    """Build one that forgets slowly."""
    config = RecurrentGemmaConfig(hidden_size=WIDTH, lru_width=WIDTH, num_attention_heads=HEADS)
    built: Any = spread(RecurrentGemmaRglru(config))
    built.recurrent_param.data = torch.linspace(-9, -7, WIDTH)
    return built


@scene("Griffin's gate: one less the square of what is hardly below one", of=BRAIN, whole=True, inner=gated_recurrence)
def slow_gate(self: Stage, x: Tensor) -> Tensor:
    self.inner.recurrent_states = None
    states = self.inner(x.to(self.part), torch.arange(1, LENGTH + 1).expand(2, -1))  # @slow_gate
    return 30 * states.to(x.dtype)


# ---- silent, written by hand


@scene("sums of the logarithms of gates, whose differences are taken", of=BRAIN)
def gate_sums(self: Stage, x: Tensor) -> Tensor:  # linear attention with gates; its kernels sum in float32
    gates = F.logsigmoid(2 + exact(2, 200, WIDTH, seed=3)).to(self.part)  # @gate_sums
    sums = gates.cumsum(dim=1)  # @gate_sums
    return x * torch.exp(sums[:, -LENGTH:] - sums[:, -LENGTH - 2 : -2]).to(x.dtype)  # @gate_sums


@scene("what is left of a target's probabilities once a draft is refused", of=BRAIN)
def left_over(self: Stage, x: Tensor) -> Tensor:  # deepseek-ai/DeepSpec#31
    draft = exact(2, LENGTH, 64, seed=1)
    target = draft + exact(2, LENGTH, 64, seed=2).clamp(-1, 1).mul(2).round() / 32
    left = F.relu(target.to(self.part).softmax(dim=-1) - draft.to(self.part).softmax(dim=-1))  # @left_over
    left = left / left.sum(dim=-1, keepdim=True)
    return x / 4 + left.to(x.dtype) @ TABLE[:64].to(x.dtype)


@scene("noise for sampling masked tokens, the logarithm of what rounds to one", of=HALF)
def gumbel(self: Stage, x: Tensor) -> Tensor:  # lucidrains' log(t.clamp(min = 1e-20)), in many masked generators
    uniform = torch.rand(2, LENGTH, 512, generator=torch.Generator().manual_seed(6)).to(self.part)  # @gumbel
    noise = -torch.log((-torch.log(uniform.clamp(min=1e-20))).clamp(min=1e-20))  # @gumbel
    chosen = (exact(2, LENGTH, 512).to(self.part) + noise).softmax(dim=-1)
    return x + chosen.to(x.dtype) @ TABLE.to(x.dtype)


@scene("the beta-binomial prior of an aligner", of=BRAIN)
def aligner_prior(self: Stage, x: Tensor) -> Tensor:  # FastPitch's attention prior
    sounds = torch.arange(WIDTH, dtype=self.part)  # @aligner_prior
    rise = torch.arange(20, 20 + LENGTH, dtype=self.part)[:, None]  # @aligner_prior
    last, fall = WIDTH - 1, 53 - rise

    def beta(a: Tensor, b: Tensor) -> Tensor:
        return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)  # @aligner_prior

    count = math.lgamma(WIDTH) - torch.lgamma(sounds + 1) - torch.lgamma(last - sounds + 1)
    prior = count + beta(sounds + rise, last - sounds + fall) - beta(rise, fall)  # @aligner_prior
    return x + 8 * prior.exp().to(x.dtype)


@scene("a speaker's embedding divided by its length, whose square overflows", of=HALF)
def speaker_length(self: Stage, x: Tensor) -> Tensor:
    speaker = (256 * exact(2, 1, WIDTH, seed=7)).to(self.part)  # @speaker_length
    length = speaker.pow(2).sum(dim=-1, keepdim=True).sqrt()  # @speaker_length
    return x + (speaker / length).to(x.dtype)


@scene("the phases of a vocoder, summed over frames", of=HALF)
def summed_phases(self: Stage, x: Tensor) -> Tensor:  # tenstorrent/tt-xla#5332: iSTFTNet's sums of phases
    advance = torch.arange(WIDTH) * (math.pi / 4) + 0.1 * normal(2, 24, WIDTH, seed=4)
    phases = advance.to(self.part).cumsum(dim=1)[:, -LENGTH:]  # @summed_phases
    return x * torch.cos(phases).to(x.dtype)


@scene("a filter that takes an offset away, its coefficient close to one", of=BRAIN)
def offset_filter(self: Stage, x: Tensor) -> Tensor:
    keep = torch.tensor(0.999).to(self.part)  # @offset_filter
    wave = (wide(x).repeat(1, 20, 1) + 2).to(self.part)  # @offset_filter
    before, state, kept = torch.zeros_like(wave[:, 0]), torch.zeros_like(wave[:, 0]), []
    for frame in wave.unbind(1):
        state = frame - before + keep * state  # @offset_filter
        before = frame
        kept.append(state)
    return torch.stack(kept[-LENGTH:], dim=1).to(x.dtype)


@scene("the loss of timestamps, in frames", of=BRAIN)
def timestamp_loss(self: Stage, x: Tensor) -> Tensor:
    times = (1500 + torch.arange(LENGTH) * 3.0).expand(2, -1)
    guess, truth = (times + exact(2, LENGTH, seed=1)).to(self.part), times.to(self.part)  # @timestamp_loss
    return x * F.mse_loss(guess, truth).to(x.dtype)  # @timestamp_loss


@scene("the decay of retention, a power of what is close to one", of=BRAIN)
def retention(self: Stage, x: Tensor) -> Tensor:
    rates = (1 - torch.exp(torch.linspace(math.log(1 / 32), math.log(1 / 512), HEADS))).to(self.part)  # @retention
    decay = rates ** torch.arange(40, 40 + LENGTH, dtype=self.part)[:, None]  # @retention
    return x * decay.repeat_interleave(WIDTH // HEADS, dim=1).to(x.dtype)


@scene("attention by cosines, divided by the lengths after the product", of=HALF)
def cosine_attention(self: Stage, x: Tensor) -> Tensor:  # arXiv 2503.01873: scores beyond 65504
    q, k = (200 * wide(x)).to(self.part), (200 * wide(x.flip(1))).to(self.part)  # @cosine_attention
    lengths = torch.linalg.vector_norm(q, dim=-1)[..., None] * torch.linalg.vector_norm(k, dim=-1)[:, None]
    cosines = (q @ k.mT) / lengths  # @cosine_attention
    return cosines.softmax(dim=-1).to(x.dtype) @ x


@scene("a velocity from a clean prediction, close to the end of the flow", of=BRAIN)
def clean_prediction(self: Stage, x: Tensor) -> Tensor:
    sigma, clean = 0.02, wide(x)
    state = ((1 - sigma) * clean + sigma * normal(2, LENGTH, WIDTH)).to(self.part)  # @clean_prediction
    return ((state - (clean + 0.01 * torch.tanh(3 * clean)).to(self.part)) / sigma).to(x.dtype)  # @clean_prediction


@scene("the embedding of a guidance scale, times a thousand", of=BRAIN)
def guidance_embedding(self: Stage, x: Tensor) -> Tensor:  # diffusers' get_guidance_scale_embedding takes a dtype
    scale = torch.tensor([1.712, 1.383], dtype=self.part)  # @guidance_embedding
    rates = torch.exp(torch.arange(WIDTH // 2, dtype=self.part) * (-math.log(1e4) / (WIDTH // 2 - 1)))
    angles = ((scale - 1) * 1000)[:, None] * rates  # @guidance_embedding
    return x + torch.cat([angles.sin(), angles.cos()], dim=-1)[:, None].to(x.dtype)


@scene("a cumulative norm whose variance is a difference of squares", of=HALF)
def cumulative_norm(self: Stage, x: Tensor) -> Tensor:  # Conv-TasNet's causal norm
    high = (12 + wide(x)).to(self.part)  # @cumulative_norm
    frames = torch.arange(1, LENGTH + 1, dtype=self.part)[:, None] * WIDTH
    mean = high.sum(dim=-1, keepdim=True).cumsum(dim=1) / frames  # @cumulative_norm
    variance = high.pow(2).sum(dim=-1, keepdim=True).cumsum(dim=1) / frames - mean.pow(2)  # @cumulative_norm
    return ((high - mean) / (variance.abs() + 1e-5).sqrt()).to(x.dtype)


@scene("Sinkhorn's balancing of experts, from exponentials", of=HALF)
def sinkhorn(self: Stage, x: Tensor) -> Tensor:  # Megatron-LM balances in float32
    plan = torch.exp((6 * exact(2, LENGTH, 8, seed=3)).to(self.part))  # @sinkhorn
    for _ in range(4):
        plan = plan / plan.sum(dim=-1, keepdim=True)
        plan = plan / plan.sum(dim=-2, keepdim=True)
    return x * plan.repeat_interleave(4, dim=-1).to(x.dtype)


@scene("the scale of int8 activations, and its reciprocal, from a quiet layer", of=HALF)
def quiet_scale(self: Stage, x: Tensor) -> Tensor:
    quiet = x * 2**-11
    scale = quiet.abs().amax(dim=-1, keepdim=True).to(self.part) / 127  # @quiet_scale
    codes = (quiet * (1 / scale)).round().clamp(-127, 127).to(torch.int8)  # @quiet_scale
    return (codes.to(self.part) * scale * 2**11).to(x.dtype)  # @quiet_scale


@scene("sigmoid gates of a router, divided by their sum", of=HALF)
def sigmoid_gates(self: Stage, x: Tensor) -> Tensor:  # NVIDIA/Megatron-LM#2741
    scores = torch.sigmoid((exact(2, LENGTH, 8, seed=2) - 22).to(self.part))  # @sigmoid_gates
    shares = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20)  # @sigmoid_gates
    return x * shares.repeat_interleave(4, dim=-1).to(x.dtype)


@scene("quiet samples expanded by the mu-law", of=BRAIN)
def mu_law(self: Stage, x: Tensor) -> Tensor:
    codes = (0.01 * wide(x)).to(self.part)  # @mu_law
    return (64 * codes.sign() * (torch.pow(256.0, codes.abs()) - 1) / 255).to(x.dtype) * 16  # @mu_law


@scene("the basis of a Fourier transform as a matrix", of=BRAIN)
def fourier_basis(self: Stage, x: Tensor) -> Tensor:  # adobe-research/convmelspec#3
    steps = torch.arange(WIDTH, dtype=self.part)  # @fourier_basis
    angles = steps[:, None] * steps * (2 * math.pi / 33)  # @fourier_basis
    return x @ torch.cos(angles).to(x.dtype) / 4


@scene("keys and values kept in eight bits, without a scale", of=BRAIN, careless=torch.float8_e5m2, follows=True)
def eight_bits(self: Stage, x: Tensor) -> Tensor:
    keys, values = x.to(self.part), x.flip(-1).to(self.part)  # @eight_bits
    return F.scaled_dot_product_attention(x, keys.to(x.dtype), values.to(x.dtype))


@scene("distances to close codes under autocast")
def autocast_distances(self: Stage, x: Tensor) -> Tensor:
    codes, points = (4 + exact(16, WIDTH, seed=2)).to(self.part), wide(x) + 4
    with torch.autocast("cpu", dtype=BRAIN, enabled=not self.is_careful):  # @autocast_distances
        products = points @ codes.mT  # @autocast_distances
    distances = points.pow(2).sum(-1, keepdim=True) - 2 * products + codes.pow(2).sum(-1)
    return ((-distances / 8).softmax(dim=-1) @ (codes - 4)).to(x.dtype)


# ---- silent: the result is right, and a tensor is widened at every call


@scene("a cache in float32, to which each step's query is cast", of=BRAIN, careless=SINGLE, costs=True)
def wide_cache(self: Stage, x: Tensor) -> Tensor:  # nari-labs/dia#45
    heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    keys, values = (torch.zeros(2, HEADS, LENGTH, WIDTH // HEADS, dtype=self.part) for _ in range(2))  # @wide_cache
    attended = []
    for step, query in enumerate(heads.split(1, dim=2), 1):
        keys[:, :, step - 1], values[:, :, step - 1] = query[:, :, 0], query[:, :, 0].tanh()
        cached = keys[:, :, :step], values[:, :, :step]
        attended.append(F.scaled_dot_product_attention(query.to(keys.dtype), *cached).to(x.dtype))  # @wide_cache
    return torch.cat(attended, dim=2).transpose(1, 2).flatten(-2)


@scene("a window from numpy, in float64", careless=DOUBLE, costs=True)
def numpy_window(self: Stage, x: Tensor) -> Tensor:
    window = torch.from_numpy(window_function(WIDTH, "hann")).to(self.part)  # @numpy_window
    spectra = torch.fft.rfft(wide(x) * window)  # @numpy_window
    return torch.fft.irfft(spectra * 2, n=WIDTH).to(x.dtype)


@scene("a table in float32 that is cast as a whole before each look-up", of=BRAIN, careless=SINGLE, costs=True,
       whole=True, inner=lambda: nn.Embedding(512, WIDTH))  # fmt: skip
def cast_table(self: Stage, x: Tensor) -> Tensor:
    ids = torch.arange(0, 480, 20).reshape(2, LENGTH)
    return x + F.embedding(ids, self.inner.weight.to(x.dtype))  # @cast_table


@scene("queries turned by complex numbers of twice the width", of=BRAIN, careless=DOUBLE, costs=True)
def complex_rotation(self: Stage, x: Tensor) -> Tensor:  # Wan2.1's rope_apply
    angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(16) / 16)
    pairs = torch.view_as_complex(x.to(self.part).unflatten(-1, (-1, 2)))  # @complex_rotation
    rotated = pairs * torch.polar(torch.ones_like(angles), angles)  # @complex_rotation
    return torch.view_as_real(rotated).flatten(-2).to(x.dtype)


# ---- raising, around classes of transformers and diffusers


@scene("a Fourier transform that knows no bfloat16", of=BRAIN, whole=True, raises=True,
       inner=lambda: FNetModel(FNetConfig(vocab_size=96, hidden_size=WIDTH, num_hidden_layers=1, intermediate_size=64,
       max_position_embeddings=64)))  # fmt: skip
def fourier_mixing(self: Stage, x: Tensor) -> Tensor:
    return self.inner(inputs_embeds=x.to(self.part)).last_hidden_state.to(x.dtype)  # @fourier_mixing


@scene("the inverse of VITS' splines", of=HALF, raises=True)
def splines(self: Stage, x: Tensor) -> Tensor:
    bins = [normal(2, LENGTH, WIDTH, size, seed=size).to(self.part) * 2 for size in (10, 10, 9)]
    bins[1] = bins[1].flip(-1)
    return vits_spline((2 * x).to(self.part), *bins, reverse=True, tail_bound=5.0)[0].to(x.dtype)  # @splines


@scene("an expert's output times a share in float32, added to the tokens it came from", of=BRAIN, **WIDENED,
       inner=lambda: LlamaMLP(LlamaConfig(**zoo._GROUPED)))  # fmt: skip
def expert_sum(self: Stage, x: Tensor) -> Tensor:  # huggingface/transformers#41420
    tokens, rows = x.flatten(0, 1), torch.arange(0, 24, 3)
    shares = wide(tokens @ TABLE[:4].to(x.dtype).mT).softmax(dim=-1)[rows, :1].to(self.part)  # @expert_sum
    combined = torch.zeros_like(tokens)
    return combined.index_add_(0, rows, self.inner(tokens[rows]) * shares).reshape(x.shape)  # @expert_sum


@scene("ids of tokens that went through a float", of=HALF, careless=SINGLE, careful=torch.int64, raises=True,
       inner=lambda: LlamaModel(LlamaConfig(**zoo._GROUPED)))  # fmt: skip
def float_ids(self: Stage, x: Tensor) -> Tensor:
    ids = torch.arange(24).reshape(2, LENGTH).to(self.part)  # @float_ids
    return x + self.inner(input_ids=ids, use_cache=False).last_hidden_state  # @float_ids


@scene("the loss of an aligner that knows no half", of=HALF, raises=True, inner=of_zoo(zoo.wav2vec2))
def alignment_loss(self: Stage, x: Tensor) -> Tensor:
    logits = self.inner(x.flatten()[:400][None]).logits
    scores = logits.to(self.part).log_softmax(dim=-1).transpose(0, 1)  # @alignment_loss
    frames, sounds = torch.tensor([len(scores)]), torch.tensor([3])
    loss = F.ctc_loss(scores, torch.tensor([[3, 9, 4]]), frames, sounds)  # @alignment_loss
    return x * (loss / 50).to(x.dtype)


@scene("an adapter in float32 on an encoder in half", of=HALF, **WIDENED, inner=of_zoo(zoo.whisper, "model.encoder"))
def wide_adapter(self: Stage, x: Tensor) -> Tensor:  # oobabooga/textgen#2980
    down, up = ((0.1 * exact(4, WIDTH, seed=seed)).to(self.part) for seed in (1, 2))  # @wide_adapter
    states = self.inner(x.flatten()[:640].reshape(1, 16, 40)).last_hidden_state
    return states + F.linear(F.linear(states, down), up.mT)  # @wide_adapter


@scene("codes looked up in float32 for a decoder in bfloat16", of=BRAIN, **WIDENED, inner=of_zoo(zoo.dac, "decoder"))
def wide_latents(self: Stage, x: Tensor) -> Tensor:
    latents = x.transpose(1, 2).to(self.part)  # @wide_latents
    return x + self.inner(latents).reshape(2, -1, WIDTH).mean(dim=1, keepdim=True)  # @wide_latents


@scene("an encoder's states in float32, read by a decoder in half", of=HALF, **WIDENED,
       inner=of_zoo(zoo.whisper, "model.decoder"))  # fmt: skip
def wide_states(self: Stage, x: Tensor) -> Tensor:
    states = x[:1].to(self.part)  # @wide_states
    ids = torch.tensor([[1, 7, 20, 33]])
    return self.inner(ids, encoder_hidden_states=states, use_cache=False).last_hidden_state  # @wide_states


@scene("filters from numpy, in float64", careless=DOUBLE, follows=True, raises=True)
def numpy_filters(self: Stage, x: Tensor) -> Tensor:
    filters = torch.from_numpy(mel_filter_bank(17, 8, 0.0, 8000.0, 16000)).to(self.part)  # @numpy_filters
    mel = x[..., :17].square() @ filters  # @numpy_filters
    return torch.cat([torch.log1p(mel), x[..., 8:]], dim=-1)


@scene("a block of a picture model after an interpolation in float32", of=HALF, **WIDENED,
       inner=lambda: ResnetBlock2D(in_channels=LENGTH, out_channels=LENGTH, temb_channels=None, groups=4))  # fmt: skip
def after_upsampling(self: Stage, x: Tensor) -> Tensor:
    picture = F.interpolate(wide(x.reshape(2, LENGTH, 4, 8)), scale_factor=2, mode="bilinear")
    return self.inner(picture.to(self.part), None).reshape(2, -1, WIDTH)  # @after_upsampling


@scene("a steering vector in float32, added by a hook", of=BRAIN, **WIDENED, inner=of_zoo(zoo.qwen2, "model"))
def steering(self: Stage, x: Tensor) -> Tensor:
    vector = exact(WIDTH, seed=3).to(self.part) / 8  # @steering
    layer = self.inner.layers[0]
    handle = layer.register_forward_hook(lambda module, args, output: output + vector)  # @steering
    try:
        return self.inner(inputs_embeds=x, use_cache=False).last_hidden_state
    finally:
        handle.remove()


# ---- raising, written by hand


@scene("pairs of a query viewed as complex numbers", of=BRAIN, raises=True)
def complex_pairs(self: Stage, x: Tensor) -> Tensor:
    angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(16, dtype=self.part) / 16)
    pairs = torch.view_as_complex(x.to(self.part).unflatten(-1, (-1, 2)))  # @complex_pairs
    turning = torch.complex(angles.cos(), angles.sin())
    return torch.view_as_real(pairs * turning).flatten(-2).to(x.dtype)


@scene("dynamic thresholding by a quantile of half", of=HALF, raises=True)
def threshold(self: Stage, x: Tensor) -> Tensor:  # diffusers' _threshold_sample upcasts for it
    limit = torch.quantile(x.to(self.part).abs().flatten(1), 0.9, dim=1)[:, None, None]  # @threshold
    return (x.to(self.part).clamp(-limit, limit) / limit).to(x.dtype)


@scene("a cache in float32, written by an index", of=BRAIN, **WIDENED)
def indexed_cache(self: Stage, x: Tensor) -> Tensor:  # meta-pytorch/torchtune#1349
    cache = torch.zeros(2, 16, WIDTH, dtype=self.part)  # @indexed_cache
    cache[:, torch.arange(LENGTH)] = x  # @indexed_cache
    return F.scaled_dot_product_attention(x, cache, cache)


@scene("positions as integers, shifted in place by a fraction", of=HALF, careless=torch.int64, raises=True)
def shifted_positions(self: Stage, x: Tensor) -> Tensor:
    positions = torch.arange(LENGTH, dtype=self.part)  # @shifted_positions
    positions += torch.tensor([0.25] * LENGTH, dtype=torch.promote_types(x.dtype, SINGLE))  # @shifted_positions
    return x + torch.sin(positions / 4)[:, None].to(x.dtype)


@scene("a spectral norm by singular values of bfloat16", of=BRAIN, raises=True)
def spectral_norm(self: Stage, x: Tensor) -> Tensor:
    largest = torch.linalg.svdvals(self.front.weight.to(self.part))[0]  # @spectral_norm
    return x / largest.to(x.dtype)


@scene("a mask from numpy, in float64", of=HALF, careless=DOUBLE, follows=True, raises=True)
def numpy_mask(self: Stage, x: Tensor) -> Tensor:
    mask = torch.from_numpy(np.triu(np.full((LENGTH, LENGTH), -1e4), 1)).to(self.part)  # @numpy_mask
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)  # @numpy_mask


@scene("pitches summed by sound into zeros of the default dtype", of=HALF, **WIDENED)
def summed_pitch(self: Stage, x: Tensor) -> Tensor:
    sounds = (torch.arange(LENGTH) // 3).expand(2, -1)
    sums = torch.zeros(2, 4, dtype=self.part).scatter_add_(1, sounds, x[..., 0])  # @summed_pitch
    return x + sums.gather(1, sounds)[..., None] / 3


@scene("an alignment in float32, by which states are repeated", of=BRAIN, **WIDENED)
def repeated_states(self: Stage, x: Tensor) -> Tensor:
    ends = torch.tensor([1, 3, 4, 6, 7, 9, 12])
    frames = torch.arange(LENGTH)[:, None]
    path = ((frames < ends) & (frames >= F.pad(ends, (1, -1)))).to(self.part)  # @repeated_states
    return torch.matmul(path.expand(2, -1, -1), x[:, :7])  # @repeated_states


@scene("codes of int8 weights, times scales in float32", of=HALF, **WIDENED)
def wide_scales(self: Stage, x: Tensor) -> Tensor:
    codes = (exact(WIDTH, WIDTH, seed=6) * 32).to(torch.int8)
    scales = (exact(WIDTH, 1, seed=7).abs() / 256).to(self.part)  # @wide_scales
    return F.linear(x, codes.to(x.dtype) * scales)  # @wide_scales


_DF, _HF = "diffusers.schedulers.scheduling_", "transformers.models"
_EULER, _EDM = f"{_DF}euler_discrete.EulerDiscreteScheduler", f"{_DF}edm_euler.EDMEulerScheduler"
_DAC = f"{_HF}.dac.modeling_dac"
#: Lines of a library that are the fault's too, and the path of the module that runs them.
LIBRARY |= {
    "euler_sigmas": ((f"{_EULER}.scale_model_input", r"sample = sample / ", ""),
                     (f"{_EULER}.step", r"(pred_original_sample = sample - |derivative = |dt = )", "")),
    "first_noise": ((f"{_DF}ddpm.DDPMScheduler.add_noise", r"(alphas_cumprod = .*dtype=|_prod = \(1 - )", ""),),
    "patch_ids": (("diffusers.models.transformers.transformer_flux.FluxPosEmbed", r"pos = ids\.float", "inner"),),
    "divergence": (("diffusers.models.autoencoders.vae.DiagonalGaussianDistribution.kl",
                    r"(return 0\.5 \* torch\.sum|torch\.pow\(self\.mean, 2\))", ""),),
    "boundary": ((f"{_DF}lcm.LCMScheduler", r"(scaled_timestep = timestep \*|c_skip = |c_out = )", ""),),
    "preconditioned": ((_EDM, r"(c_in = 1|c_skip = |c_out = sigma)", ""),),
    "song_seconds": (
        ("diffusers.pipelines.stable_audio.modeling_stable_audio.StableAudioNumberConditioner",
         r"normalized_floats = ", "inner"),
        ("diffusers.pipelines.stable_audio.modeling_stable_audio.StableAudioPositionalEmbedding", r"freqs = times",
         "inner.time_positional_embedding.0"),
    ),
    "nucleus": (("transformers.generation.logits_process.TopPLogitsWarper", r"cumulative_probs = ", ""),),
    "cold_logits": (("transformers.generation.logits_process.TemperatureLogitsWarper", r"scores_processed = ", ""),),
    "log_buckets": ((f"{_HF}.deberta_v2.modeling_deberta_v2.make_log_bucket_position", r"torch\.ceil\(", ""),),
    "balancing_bias": ((f"{_HF}.deepseek_v3.modeling_deepseek_v3.DeepseekV3TopkRouter",
                        r"scores_for_choice = scores \+", "inner.gate"),),
    "quiet_recording": ((f"{_HF}.encodec.modeling_encodec.EncodecModel._encode_frame",
                         r"(scale = mono|input_values = input_values / scale)", "inner"),),
    "residual_codes": (
        (f"{_DAC}.DacResidualVectorQuantizer.forward", r"residual = residual - ", "inner"),
        *((f"{_DAC}.DacVectorQuantize", r"(dist = |encodings = F\.normalize)",
           f"inner.quantizers.{number}") for number in range(6)),
    ),
    "built_under": ((f"{_HF}.whisper.modeling_whisper.sinusoids", r"(inv_timescales|scaled_time) = ", ""),),
    "conformer_positions": ((f"{_HF}.wav2vec2_conformer.modeling_wav2vec2_conformer."
                             "Wav2Vec2ConformerRotaryPositionalEmbedding", r"(time_stamps|freqs) = ", "inner"),),
    "slow_gate": ((f"{_HF}.recurrent_gemma.modeling_recurrent_gemma.RecurrentGemmaRglru.forward",
                   r"(log_recurrent_gate = |recurrent_gate = torch\.exp|a_square = |multiplier = Sqrt)", "inner"),),
    "fourier_mixing": ((f"{_HF}.fnet.modeling_fnet.FNetBasicFourierTransform", r"outputs = ",
                        "inner.encoder.layer.0.fourier.self"),),
    "splines": ((f"{_HF}.vits.modeling_vits._rational_quadratic_spline",
                 r"(delta = heights|discriminant = |discriminant >= 0)", ""),),
    "float_ids": ((f"{_HF}.llama.modeling_llama.LlamaModel", r"self\.embed_tokens\(input_ids", "inner.embed_tokens"),),
    "wide_latents": ((f"{_DAC}.DacDecoder", r"self\.conv1\(hidden_state", "inner.conv1"),),
    "wide_states": ((f"{_HF}.whisper.modeling_whisper.WhisperAttention", r"self\.k_proj\(",
                     "inner.layers.0.encoder_attn.k_proj"),),
    "after_upsampling": (("diffusers.models.resnet.ResnetBlock2D", r"self\.norm1\(", "inner.norm1"),),
    "steering": ((f"{_HF}.qwen2.modeling_qwen2.Qwen2Attention", r"self\.q_proj\(", "inner.layers.1.self_attn.q_proj"),),
}  # fmt: skip
#: Where a marked line runs, if not in the model's own forward, or what it calls.
SET.within["steering"] = "inner.layers.0"
