"""Free running and teacher forcing: shared noise, the delay pattern, and that they are one computation."""

import numpy as np
import pytest
import torch

from precision_eval.cases.voice.model import VoiceConfig, VoiceModel
from precision_eval.cases.voice.script import conditioning_from_lengths
from precision_eval.cases.voice.synthesis import Decoder, GumbelNoise, Stream, free_run, teacher_forced
from precision_eval.core.errors import ParameterError

SMALL = VoiceConfig(width=32, n_layers=2, n_heads=2, hidden=48, codebook_size=16, n_phonemes=8, window_frames=16)
PHONEMES, LENGTHS = np.array([1, 2, 2, 5]), np.array([7, 5, 13, 35])


def small_decoder(n_streams: int) -> Decoder:
    torch.manual_seed(0)
    model = VoiceModel(SMALL).double().eval().requires_grad_(False)
    model.allocate_cache(n_streams, dtype=torch.float64)
    return Decoder(model)


def small_streams(n_streams: int) -> list[Stream]:
    rng = np.random.default_rng(3)
    script = conditioning_from_lengths(PHONEMES, LENGTHS)
    return [Stream(script, rng.integers(0, 16, (60, 4)).astype(np.uint8)) for _ in range(n_streams)]


def run(n_streams: int, *, n_frames: int = 40, seed: int = 0, temperature: float = 0.8) -> np.ndarray:
    frames = free_run(
        small_decoder(n_streams),
        small_streams(n_streams),
        prompt_frames=10,
        n_frames=n_frames,
        seed=seed,
        temperature=temperature,
    )
    return np.stack(list(frames))


def test_noise_belongs_to_the_stream_not_to_the_batch() -> None:
    alone, many = GumbelNoise(7, 1, (4, 16)), GumbelNoise(7, 5, (4, 16))
    for frame in (0, 31, 32, 100):
        assert torch.equal(alone(frame)[0], many(frame)[0])
    assert not torch.equal(GumbelNoise(8, 1, (4, 16))(0), alone(0))
    assert not torch.equal(many(0)[0], many(0)[1])


def test_gumbel_argmax_samples_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    noise = GumbelNoise(0, 1, (1, 4))
    counts = np.bincount([int((logits + noise(frame)[0, 0]).argmax()) for frame in range(8000)], minlength=4) / 8000
    np.testing.assert_allclose(counts, logits.softmax(0).numpy(), atol=0.02)


def test_frames_come_complete_and_undelayed() -> None:
    """Greedy run: feeding its own tokens back by teacher forcing predicts exactly them."""
    tokens = run(2, temperature=0.0)
    assert tokens.shape == (40, 2, 4)
    streams = small_streams(2)
    continued = [Stream(s.conditioning, np.concatenate([s.tokens[:10], tokens[:, b]])) for b, s in enumerate(streams)]
    logits = torch.stack(list(teacher_forced(small_decoder(2), continued, n_frames=50)))  # (T, B, K, V)
    for k in range(4):  # codebook k of frame t is predicted at step t + k
        predicted = logits[10 + k :, :, k].argmax(-1).numpy()
        np.testing.assert_array_equal(predicted, tokens[: len(predicted), :, k])


def test_a_stream_does_not_depend_on_its_neighbours() -> None:
    np.testing.assert_array_equal(run(1)[:, 0], run(3)[:, 0])


def test_the_prompt_must_fit() -> None:
    with pytest.raises(ParameterError, match=r"prompt_frames must lie in \[4, 16\], found 17"):
        next(free_run(small_decoder(1), small_streams(1), prompt_frames=17, n_frames=1, seed=0))


def test_conditioning_by_hand() -> None:
    script = conditioning_from_lengths(np.array([3, 4]), np.array([2, 1]))
    assert script.phoneme.tolist() == [3, 3, 4]
    assert script.next_phoneme.tolist() == [4, 4, 4]
    expected = np.array([[0, 1 - np.exp(-0.2)], [0.5, 1 - np.exp(-0.1)], [0, 1 - np.exp(-0.1)]], np.float32)
    np.testing.assert_allclose(script.progress, expected, rtol=1e-6)
