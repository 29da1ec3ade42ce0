"""Streaming synthesis and teacher-forced scoring on the ring cache.

Conventions: a frame is 20 ms. The sampling noise is a function of (seed, stream, frame, codebook, token) alone, so two
precisions given the same seed see the very same Gumbel noise and differ only by their own arithmetic; another seed is
the *noise floor*. Sampling itself is always float64: ``argmax(logits / temperature + gumbel)``. Memory does not grow
with the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from precision_eval.cases.voice.model import Positions, VoiceModel, delay_tokens
from precision_eval.cases.voice.script import Conditioning
from precision_eval.core.errors import ParameterError

TEMPERATURE = 0.65
_NOISE_BLOCK_FRAMES = 32
_POSITION_BLOCK_FRAMES = 256
_SCRIPT_BLOCK_FRAMES = 64


@dataclass(frozen=True)
class Stream:
    """One voice to continue."""

    conditioning: Conditioning
    tokens: np.ndarray


class Frames(NamedTuple):
    """Conditioning of T frames of B streams, as the model takes it."""

    phoneme: Tensor
    next_phoneme: Tensor
    progress: Tensor

    def rows(self, first: int, count: int) -> Frames:
        """Frames ``first … first + count − 1`` of them."""
        return Frames(*(values[:, first : first + count] for values in self))


def stack_frames(conditioning: Sequence[Conditioning]) -> Frames:
    """Bring the conditioning of several streams, of equal length, together."""
    return Frames(
        *(
            torch.from_numpy(np.stack([getattr(c, name) for c in conditioning]))
            for name in ("phoneme", "next_phoneme", "progress")
        )
    )


class _Script:
    """Conditioning of any frame of every stream; each script starts over at its end. Gathered block by block."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._conditioning = [s.conditioning for s in streams]
        self._first = -1
        self._block: Frames | None = None

    def at(self, frame: int) -> Frames:
        first = frame - frame % _SCRIPT_BLOCK_FRAMES
        if self._block is None or first != self._first:
            frames = np.arange(first, first + _SCRIPT_BLOCK_FRAMES)
            self._first, self._block = first, stack_frames([c[frames % len(c)] for c in self._conditioning])
        return self._block.rows(frame - first, 1)


class GumbelNoise:
    """Standard Gumbel noise that every precision shares."""

    def __init__(self, seed: int, n_streams: int, shape: tuple[int, int]) -> None:
        self._key = seed
        self._n_streams = n_streams
        self._shape = shape
        self._block_index = -1
        self._block = torch.empty(0)

    def __call__(self, frame: int) -> Tensor:
        """Return the noise of one frame, shape (n_streams, K, codebook_size), float32."""
        index, offset = divmod(frame, _NOISE_BLOCK_FRAMES)
        if index != self._block_index:
            drawn = np.stack([self._draw(stream, index) for stream in range(self._n_streams)])
            self._block = torch.from_numpy(drawn)
            self._block_index = index
        return self._block[:, offset]

    def _draw(self, stream: int, block: int) -> np.ndarray:
        bits = np.random.Philox(key=np.array([self._key, stream], np.uint64), counter=[0, 0, block, 0])
        exponential = np.random.Generator(bits).standard_exponential((_NOISE_BLOCK_FRAMES, *self._shape), np.float32)
        return -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))


class Decoder:
    """Runs a model frame by frame on its ring cache."""

    def __init__(
        self, model: VoiceModel, *, call: Callable[..., Tensor] | None = None, angle_dtype: torch.dtype = torch.float64
    ) -> None:
        self._call: Callable[..., Tensor] = model if call is None else call
        cache = model.attentions[0].key_cache
        self.attentions = model.attentions
        self.config = model.config
        self.device = cache.device
        self.window_frames = cache.shape[2]
        rotary = torch.float64 if model.heads.weight.dtype == torch.float64 else torch.float32
        self._positions = Positions(model.config, dtype=rotary, angle_dtype=angle_dtype)
        self._angles: tuple[int, Tensor, Tensor] | None = None
        self._full = torch.ones(1, self.window_frames, dtype=torch.bool, device=self.device)
        self.frame = 0

    def step(self, tokens: Tensor, frames: Frames) -> Tensor:
        """Advance by T ≥ 1 frames at once."""
        T, slot = tokens.shape[1], self.frame % self.window_frames
        if T > 1 and self.frame + T > self.window_frames:
            raise ParameterError(f"{T} frames at once do not fit the ring of {self.window_frames} from {self.frame}")
        cos, sin = self._rotation(T)
        logits = self._call(
            tokens.to(self.device), *(values.to(self.device) for values in frames), cos, sin, self._mask(T), slot
        )
        self.frame += T
        return logits.cpu()

    def _mask(self, count: int) -> Tensor:
        """Slots that each frame may see, (count, W): those filled so far, which is all once the ring is full."""
        if self.frame + 1 >= self.window_frames and count == 1:
            return self._full
        newest = torch.arange(self.frame, self.frame + count, device=self.device)[:, None]
        return torch.arange(self.window_frames, device=self.device)[None, :] <= newest

    def _rotation(self, count: int) -> tuple[Tensor, Tensor]:
        if count > 1:
            cos, sin = self._positions(self.frame, count)
            return cos.to(self.device), sin.to(self.device)
        first = self.frame - self.frame % _POSITION_BLOCK_FRAMES
        if self._angles is None or self._angles[0] != first:
            cos, sin = self._positions(first, _POSITION_BLOCK_FRAMES)
            self._angles = (first, cos.to(self.device), sin.to(self.device))
        row = slice(self.frame - first, self.frame - first + 1)
        return self._angles[1][row], self._angles[2][row]


def _emitted_original(streams: Sequence[Stream], n_frames: int, empty: int) -> Tensor:
    """Original tokens as the delay pattern emits them, shape (B, n_frames, K)."""
    original = np.stack([s.tokens[:n_frames] for s in streams]).astype(np.int64)
    return delay_tokens(torch.from_numpy(original), empty=empty)


def _inputs(emitted: Tensor, empty: int) -> Tensor:
    """What each frame is given: the tokens emitted one frame before."""
    inputs = torch.full_like(emitted, empty)
    inputs[:, 1:] = emitted[:, :-1]
    return inputs


@torch.inference_mode()
def free_run(
    decoder: Decoder,
    streams: Sequence[Stream],
    *,
    prompt_frames: int,
    n_frames: int,
    seed: int,
    temperature: float = TEMPERATURE,
) -> Iterator[np.ndarray]:
    """Continue each stream from its prompt, on its own tokens."""
    K, size = decoder.config.n_codebooks, decoder.config.codebook_size
    if not K <= prompt_frames <= decoder.window_frames:
        raise ParameterError(f"prompt_frames must lie in [{K}, {decoder.window_frames}], found {prompt_frames}")
    noise = GumbelNoise(seed, len(streams), (K, size))
    emitted = _emitted_original(streams, prompt_frames, size)  # (B, P, K)
    prompt = torch.from_numpy(np.stack([s.tokens[:prompt_frames] for s in streams]).astype(np.int64))
    decoder.step(_inputs(emitted, size), stack_frames([s.conditioning[:prompt_frames] for s in streams]))
    script = _Script(streams)
    recent = [emitted[:, t] for t in range(prompt_frames - K, prompt_frames)]  # the last K emissions, each (B, K)
    for frame in range(prompt_frames, prompt_frames + n_frames + K - 1):
        logits = decoder.step(recent[-1][:, None], script.at(frame))[:, 0].double()
        scores = logits / temperature + noise(frame) if temperature > 0 else logits
        tokens = scores.argmax(dim=-1)  # (B, K)
        for k in range(1, K):
            if frame - k < prompt_frames:  # the delayed codebooks are still inside the prompt
                tokens[:, k] = prompt[:, frame - k, k]
        recent = [*recent[1:], tokens]
        if frame >= prompt_frames + K - 1:
            yield torch.stack([recent[k][:, k] for k in range(K)], dim=1).to(torch.uint8).numpy()


def teacher_forced_inputs(streams: Sequence[Stream], *, n_frames: int, empty: int) -> Tensor:
    """What the model is given when it is fed the original speech."""
    return _inputs(_emitted_original(streams, n_frames, empty), empty)


@torch.inference_mode()
def teacher_forced(decoder: Decoder, streams: Sequence[Stream], *, n_frames: int) -> Iterator[Tensor]:
    """Score the original tokens, one frame at a time, through the ring cache as in decoding."""
    size = decoder.config.codebook_size
    inputs = teacher_forced_inputs(streams, n_frames=n_frames, empty=size)
    script = _Script(streams)
    for frame in range(n_frames):
        yield decoder.step(inputs[:, frame : frame + 1], script.at(frame))[:, 0]
