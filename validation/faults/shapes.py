"""Inputs of the fourth to the sixth held-out part: how attention's operands are shaped, and which keys a row sees."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Shaped = tuple[Tensor, Tensor, Tensor]


def _causal(rows: int, keys: int) -> Tensor:
    return torch.ones(rows, keys, dtype=torch.bool).tril(diagonal=keys - rows)


def _window(rows: int, keys: int) -> Tensor:
    """The newest 24 keys of each row."""
    return _causal(rows, keys).triu(diagonal=keys - rows - 23)


def _padded(rows: int, keys: int) -> Tensor:
    """Every row sees the first five sevenths of the keys, as in cross attention on a padded text."""
    return (torch.arange(keys) < keys * 5 // 7).expand(rows, keys).clone()


def _packed(rows: int, keys: int) -> Tensor:
    """Sequences of 20 one after the other, each seeing itself alone."""
    of_key = torch.arange(keys) // 20
    return _causal(rows, keys) & (of_key[keys - rows :, None] == of_key)


def _everything(rows: int, keys: int) -> Tensor:
    return torch.ones(rows, keys, dtype=torch.bool)


def _sink_and_window(rows: int, keys: int) -> Tensor:
    """The first four keys and the newest 30."""
    first = torch.arange(keys) < 4
    return _causal(rows, keys) & (first | _causal(rows, keys).triu(diagonal=keys - rows - 29))


def _prefix(rows: int, keys: int) -> Tensor:
    """Causal, but for a prefix of 20 keys that every row sees."""
    return _causal(rows, keys) | (torch.arange(keys) < 20)


def _speech(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """Keys and values that change slowly, a silence that repeats, queries near the key of their own time."""
    for x in (k, v):
        for at in range(1, x.shape[2]):
            x[:, :, at] = 0.9 * x[:, :, at - 1] + 0.44 * x[:, :, at]
    silent = torch.arange(k.shape[2]) % 60 < 14
    k[:, :, silent], v[:, :, silent] = 0.02 * k[:, :, silent] + k[:, :, :1], 0.01 * v[:, :, silent] + 0.3
    return 0.5 * q + k[:, :, -q.shape[2] :], k, v


def _normed_and_rotated(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """Queries and keys of RMS one, times a weight per channel, rotated by their positions."""
    width, keys = q.shape[-1], k.shape[2]
    weight = 1.0 + torch.rand(2, width, generator=generator, dtype=torch.float64).square() * 3.0
    angle = torch.arange(keys, dtype=torch.float64)[:, None] * 1e4 ** (-torch.arange(width // 2) * 2.0 / width)
    rotated = []
    for x, w, at in ((q, weight[0], slice(keys - q.shape[2], keys)), (k, weight[1], slice(keys))):
        first, second = (x / x.square().mean(-1, keepdim=True).sqrt() * w).chunk(2, -1)
        cos, sin = angle[at].cos(), angle[at].sin()
        rotated.append(torch.cat([first * cos - second * sin, second * cos + first * sin], -1))
    return rotated[0], rotated[1], v


def _massive(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """Two keys with one huge channel, and one value channel with an offset of 30."""
    k[:, :, (0, 17), 5] += 40.0
    q[..., 5] = q[..., 5].abs() * 0.3
    v[..., 3] += 30.0
    return q, k, v


def _shared(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """All heads on the same keys and values."""
    return q, k[:, :1].expand_as(k).clone(), v[:, :1].expand_as(v).clone()


def _on_a_grid(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """Keys and values as read from an int8 cache, one scale per head."""
    steps = (x.abs().amax((-1, -2), keepdim=True) / 127.0 for x in (k, v))
    k, v = ((x / step).round() * step for x, step in zip((k, v), steps, strict=True))
    return q, k, v


def _draft_tree(rows: int, keys: int) -> Tensor:
    """Rows are a binary tree of drafted tokens: each sees what is settled, itself and the nodes above it."""
    mask = torch.arange(keys).expand(rows, keys) < keys - rows
    for row in range(rows):
        node = row
        while node >= 0:
            mask[row, keys - rows + node] = True
            node = (node - 1) // 2 if node else -1
    return mask


def _strided(rows: int, keys: int) -> Tensor:
    """The newest 16 keys and every eighth of all."""
    every_eighth = torch.arange(keys) % 8 == 0
    return _causal(rows, keys) & (every_eighth | _causal(rows, keys).triu(diagonal=keys - rows - 15))


def _four_share(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """Each key and value head serves four query heads."""
    return q, k[:, ::4].repeat_interleave(4, 1), v[:, ::4].repeat_interleave(4, 1)


def _latent(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """All heads on one latent vector a key, which is its value as well."""
    shared = k[:, :1].expand_as(k).clone()
    return q, shared, shared.clone()


def _from_bfloat16(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """Keys and values from a cache in bfloat16."""
    return q, k.bfloat16().double(), v.bfloat16().double()


def _uneven_values(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    """Values whose sizes span four decades."""
    return q, k, v * 10.0 ** (4.0 * torch.rand(v.shape[:3], generator=generator, dtype=v.dtype)[..., None] - 3.0)


def _as_drawn(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Shaped:
    return q, k, v


KINDS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor, torch.Generator], Shaped], Callable[[int, int], Tensor]]] = {
    "speech": (_speech, _causal),
    "window": (_as_drawn, _window),
    "cross_padded": (_as_drawn, _padded),
    "normed_and_rotated": (_normed_and_rotated, _causal),
    "packed": (_as_drawn, _packed),
    "massive": (_massive, _causal),
    "awkward": (_as_drawn, _causal),
    "long": (_as_drawn, _causal),
    "bidirectional": (_as_drawn, _everything),
    "shared_decode": (_shared, _causal),
    "sink_and_window": (_as_drawn, _sink_and_window),
    "int8_cache": (_on_a_grid, _causal),
    "prefix": (_as_drawn, _prefix),
    "four_share": (_four_share, _causal),
    "latent": (_latent, _causal),
    "draft_tree": (_as_drawn, _draft_tree),
    "strided": (_as_drawn, _strided),
    "from_bfloat16": (_from_bfloat16, _causal),
    "unscaled": (_as_drawn, _everything),
    "uneven_values": (_uneven_values, _causal),
}
SLOPES = tuple(2.0 ** -(8 * (head + 1) / 4) for head in range(4))
"""ALiBi's slopes of four heads."""
LOG2_E = math.log2(math.e)
