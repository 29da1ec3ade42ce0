"""Small models of sound: mel front end, quantiser, vocoder, speaker mixing; conventions as in :mod:`.small`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from validation.doctor.small import Built, D, H, L, _built, _seeded


class Mel(nn.Module):
    """Windowed frames, a filter bank, log in float32, statistics taken off, cast to what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.register_buffer("bank", torch.rand(32, 20))
        self.register_buffer("mean", torch.randn(20))
        self.project = nn.Linear(20, D)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        frames = samples.unfold(-1, 32, 16) * self.window  # @window
        energy = frames.square() @ self.bank  # @bank
        logs = (energy.float() + 1e-5).log().to(self.project.weight.dtype)
        return self.project(logs - self.mean)  # @mel_mean


class Quantiser(nn.Module):
    """Nearest codes of two codebooks, the second on what the first left over."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(D, 8)
        self.register_buffer("first", torch.randn(16, 8))
        self.register_buffer("second", torch.randn(16, 8))
        self.register_buffer("weights", torch.rand(8))
        self.leave = nn.Linear(8, D)

    def nearest(self, x: torch.Tensor, codebook: torch.Tensor) -> torch.Tensor:
        distance = (x[..., None, :] - codebook).square().sum(dim=-1)  # @distance
        return F.embedding(distance.argmin(dim=-1), codebook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        entered = self.enter(x) * self.weights  # @weights
        coarse = self.nearest(entered, self.first)
        fine = self.nearest(entered - coarse, self.second)
        return self.leave(coarse + fine)  # @leave


class Vocoder(nn.Module):
    """Snake activations, a transposed convolution, noise of a learned level, tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(D, D, 3, padding=1)
        self.alpha = nn.Parameter(torch.rand(D, 1) + 0.5)
        self.raise_rate = nn.ConvTranspose1d(D, 8, 4, stride=2, padding=1)
        self.level = nn.Parameter(torch.full((8, 1), 0.1))
        self.leave = nn.Conv1d(8, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)  # @voc_enter
        x = x + (x * self.alpha).sin().square() / 2.0  # @alpha
        x = self.raise_rate(x)  # @raise_rate
        x = x + self.level * noise  # @noise
        return self.leave(F.leaky_relu(x)).tanh()  # @voc_leave


class CrossReader(nn.Module):
    """Reads a memory by cross attention, with a speaker mixed in and a gate on the residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))
        self.speaker = nn.Linear(8, D, bias=False)
        self.gate = nn.Parameter(torch.zeros(D))
        self.norm = nn.LayerNorm(D)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, speaker: torch.Tensor) -> torch.Tensor:
        x = x + self.speaker(speaker)[:, None]  # @speaker
        query, key, value = (
            projected.unflatten(-1, (H, -1)).transpose(1, 2)
            for projected in (self.query(x), self.key(memory), self.value(memory))  # @memory
        )
        read = F.scaled_dot_product_attention(query, key, value)  # @read
        read = self.out(read.transpose(1, 2).flatten(-2))
        x = x + torch.tanh(self.gate) * read  # @gate
        return self.norm(x)  # @cross_norm


class FloatIsland(nn.Module):
    """A submodule held in float32 on purpose, cast in and out; and a loss scale of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.island, self.leave = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.register_buffer("scale", torch.tensor(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x) * self.scale
        wide = self.island(x.to(self.island.weight.dtype))
        return self.leave(wide.to(x.dtype)) / self.scale


class WideResidual(nn.Module):
    """A residual kept in float32 on purpose, as state-space models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = x.to(torch.float32)
        for layer in self.layers:
            residual = residual + layer(residual.to(layer.weight.dtype))
        return residual.to(x.dtype)


class Interleaved(nn.Module):
    """A rotation in float32 that writes its halves into a new tensor of the input's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(D, D)
        self.register_buffer("angles", torch.rand(L, D // 2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(x)
        cosine, sine = self.angles.float().cos(), self.angles.float().sin()
        even, odd = x[..., ::2].float(), x[..., 1::2].float()
        turned = torch.empty_like(x)
        turned[..., ::2] = even * cosine - odd * sine
        turned[..., 1::2] = odd * cosine + even * sine
        return turned


def mel(dtype: torch.dtype) -> Built:
    """Samples in."""
    return _built(Mel(), dtype, torch.randn(2, 160, generator=_seeded(10)))


def quantiser(dtype: torch.dtype) -> Built:
    """Codes of activations."""
    return _built(Quantiser(), dtype, torch.randn(2, L, D, generator=_seeded(11)))


def vocoder(dtype: torch.dtype) -> Built:
    """Activations and noise in, samples out."""
    generator = _seeded(12)
    return _built(
        Vocoder(), dtype, torch.randn(2, D, 20, generator=generator), torch.randn(2, 1, 40, generator=generator)
    )


def cross_reader(dtype: torch.dtype) -> Built:
    """Activations, memory and speaker in."""
    generator = _seeded(13)
    parts = (torch.randn(shape, generator=generator) for shape in ((2, L, D), (2, 9, D), (2, 8)))
    return _built(CrossReader(), dtype, *parts)


def float_island(dtype: torch.dtype) -> Built:
    """Clean; the island is float32."""
    model, inputs = _built(FloatIsland(), dtype, torch.randn(2, L, D, generator=_seeded(14)))
    model.island.float()  # type: ignore[operator, union-attr]
    return model, inputs


def wide_residual(dtype: torch.dtype) -> Built:
    """Clean."""
    return _built(WideResidual(), dtype, torch.randn(2, L, D, generator=_seeded(15)))


def interleaved(dtype: torch.dtype) -> Built:
    """Clean."""
    return _built(Interleaved(), dtype, torch.randn(2, L, D, generator=_seeded(16)))
