"""The miniature voice's model: a decoder-only transformer over codec tokens, as in MetaVoice's first stage and Dia.

Conventions: B streams, T frames, H heads, D head dimensions, W cache slots, K codebooks. One step makes one frame
(20 ms). Codebook k of frame t is emitted at step t + k (Dia's delay pattern, here ``0, 1, 2, 3``). Weights are float32
and the KV cache float16, filled by slice assignment, which casts in silence: the state in which MetaVoice's CPU path
raises "Expected query, key, and value to have the same dtype" (metavoice-src #187; ``fam/llm/fast_model.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_eval.cases.voice.script import N_PROGRESS_FEATURES
from precision_eval.core.errors import ParameterError


@dataclass(frozen=True)
class VoiceConfig:
    """Shape of the model; the defaults are those of the shipped weights."""

    width: int = 256
    n_layers: int = 4
    n_heads: int = 4
    hidden: int = 640
    n_codebooks: int = 4
    codebook_size: int = 256
    n_phonemes: int = 80
    window_frames: int = 512
    rope_base: float = 10_000.0

    @property
    def head_width(self) -> int:
        """Dimensions of a head, D."""
        return self.width // self.n_heads


class Positions:
    """Cosines and sines of the rotary embedding, for any position."""

    def __init__(self, config: VoiceConfig, *, dtype: torch.dtype, angle_dtype: torch.dtype = torch.float64) -> None:
        exponent = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
        self._frequency = (config.rope_base**-exponent).to(angle_dtype)  # (D/2,)
        self._dtype = dtype

    def __call__(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each (count, D/2), of positions ``first … first + count − 1``."""
        position = torch.arange(first, first + count, dtype=torch.float64).to(self._frequency.dtype)
        angle = position[:, None] * self._frequency
        return angle.cos().to(self._dtype), angle.sin().to(self._dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head in ``cos``'s dtype and cast back to ``x``'s."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


class VoiceAttention(nn.Module):
    """Multi-head attention with a ring KV cache (or, for training, over a whole sequence)."""

    key_cache: Tensor
    value_cache: Tensor

    def __init__(self, config: VoiceConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.register_buffer("key_cache", torch.empty(0), persistent=False)
        self.register_buffer("value_cache", torch.empty(0), persistent=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, slot: int | None) -> Tensor:
        """Attend with T frames; result (B, T, width)."""
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if slot is not None:
            self.key_cache[:, :, slot : slot + T] = k  # casts to the cache's dtype without a word
            self.value_cache[:, :, slot : slot + T] = v
            k, v = self.key_cache, self.value_cache  # (B, H, W, D)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(B, T, -1))


class VoiceBlock(nn.Module):
    """Pre-norm transformer block: attention and SwiGLU."""

    def __init__(self, config: VoiceConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = VoiceAttention(config)
        self.mlp_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.gate_up = nn.Linear(config.width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, slot: int | None) -> Tensor:
        """Add attention and MLP to the residual; result (B, T, width)."""
        x = x + self.attention(self.attention_norm(x), cos, sin, mask, slot)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class VoiceModel(nn.Module):
    """Codec-token language model; ``forward`` is one decode step on the ring cache."""

    def __init__(self, config: VoiceConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embeddings = nn.ModuleList(
            nn.Embedding(config.codebook_size + 1, config.width) for _ in range(config.n_codebooks)
        )
        self.phoneme_embedding = nn.Embedding(config.n_phonemes, config.width)
        self.next_phoneme_embedding = nn.Embedding(config.n_phonemes, config.width)
        self.progress = nn.Linear(N_PROGRESS_FEATURES, config.width)
        self.blocks = nn.ModuleList(VoiceBlock(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.heads = nn.Linear(config.width, config.n_codebooks * config.codebook_size, bias=False)

    @property
    def attentions(self) -> list[VoiceAttention]:
        """The attention of each block, which holds that block's cache."""
        return [cast(VoiceBlock, block).attention for block in self.blocks]

    def allocate_cache(
        self, n_streams: int, *, window_frames: int | None = None, dtype: torch.dtype = torch.float16
    ) -> None:
        """Give every attention an empty ring cache."""
        window = self.config.window_frames if window_frames is None else window_frames
        if n_streams < 1 or window < 1:
            raise ParameterError(f"a cache needs n_streams ≥ 1 and window_frames ≥ 1, found {n_streams} and {window}")
        shape = (n_streams, self.config.n_heads, window, self.config.head_width)
        for attention in self.attentions:
            device = attention.qkv.weight.device
            attention.key_cache = torch.zeros(shape, dtype=dtype, device=device)
            attention.value_cache = torch.zeros(shape, dtype=dtype, device=device)

    def forward(
        self,
        tokens: Tensor,
        phoneme: Tensor,
        next_phoneme: Tensor,
        progress: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        slot: int | None,
    ) -> Tensor:
        """Predict the next tokens."""
        x = self.phoneme_embedding(phoneme) + self.next_phoneme_embedding(next_phoneme)
        x = x + self.progress(progress.to(self.progress.weight.dtype))
        for k, embedding in enumerate(self.token_embeddings):
            x = x + embedding(tokens[..., k])
        for block in self.blocks:
            x = block(x, cos, sin, mask, slot)
        return self.heads(self.norm(x)).view(*tokens.shape[:3], self.config.codebook_size)


def delay_tokens(tokens: Tensor, *, empty: int) -> Tensor:
    """Shift codebook k by k steps."""
    result = torch.full_like(tokens, empty)
    for k in range(tokens.shape[-1]):
        result[..., k:, k] = tokens[..., : tokens.shape[-2] - k, k]
    return result
