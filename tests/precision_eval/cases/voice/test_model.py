"""The voice's model: the ring cache is the sequence, rotary positions are relative, the bug is where it should be."""

import numpy as np
import pytest
import torch

from precision_eval.cases.voice.model import Positions, VoiceConfig, VoiceModel, delay_tokens, rotate
from precision_eval.cases.voice.script import Conditioning
from precision_eval.cases.voice.synthesis import Decoder, stack_frames
from precision_eval.core.errors import ParameterError

SMALL = VoiceConfig(width=32, n_layers=2, n_heads=2, hidden=48, codebook_size=16, n_phonemes=8, window_frames=8)


def small_model() -> VoiceModel:
    torch.manual_seed(0)
    return VoiceModel(SMALL).double().eval().requires_grad_(False)


def random_inputs(n_frames: int, *, n_streams: int = 2) -> tuple[torch.Tensor, list[Conditioning]]:
    rng = np.random.default_rng(1)
    tokens = torch.from_numpy(rng.integers(0, 17, (n_streams, n_frames, 4)))
    conditioning = [
        Conditioning(
            rng.integers(0, 8, n_frames), rng.integers(0, 8, n_frames), rng.random((n_frames, 2)).astype(np.float32)
        )
        for _ in range(n_streams)
    ]
    return tokens, conditioning


def sequence_logits(model: VoiceModel, tokens: torch.Tensor, conditioning: list[Conditioning]) -> torch.Tensor:
    n_frames = tokens.shape[1]
    cos, sin = Positions(model.config, dtype=torch.float64)(0, n_frames)
    stacked = [
        torch.from_numpy(np.stack([getattr(c, name) for c in conditioning]))
        for name in ("phoneme", "next_phoneme", "progress")
    ]
    distance = torch.arange(n_frames)[:, None] - torch.arange(n_frames)[None, :]
    mask = (distance >= 0) & (distance < model.config.window_frames)
    return model(tokens, *stacked, cos, sin, mask, None)


def decoded_logits(
    decoder: Decoder, tokens: torch.Tensor, conditioning: list[Conditioning], first: int
) -> torch.Tensor:
    frames = stack_frames(conditioning)
    steps = [decoder.step(tokens[:, :first], frames.rows(0, first))] if first else []
    for t in range(first, tokens.shape[1]):
        steps.append(decoder.step(tokens[:, t : t + 1], frames.rows(t, 1)))
    return torch.cat(steps, dim=1)


@pytest.mark.parametrize("prefill_frames", [0, 5, 8])
def test_ring_cache_is_the_windowed_sequence(prefill_frames: int) -> None:
    model = small_model()
    tokens, conditioning = random_inputs(30)  # almost four turns of the ring
    model.allocate_cache(2, dtype=torch.float64)
    stepped = decoded_logits(Decoder(model), tokens, conditioning, prefill_frames)
    torch.testing.assert_close(stepped, sequence_logits(model, tokens, conditioning), rtol=0, atol=1e-12)


def test_a_stale_slot_is_seen() -> None:
    """Planted fault: a ring that is one slot too short must not pass for the sequence."""
    model = small_model()
    tokens, conditioning = random_inputs(30)
    model.allocate_cache(2, window_frames=SMALL.window_frames - 1, dtype=torch.float64)
    stepped = decoded_logits(Decoder(model), tokens, conditioning, 0)
    assert (stepped - sequence_logits(model, tokens, conditioning)).abs().max() > 1e-3


def test_streams_in_a_batch_do_not_touch_each_other() -> None:
    model = small_model()
    tokens, conditioning = random_inputs(12)
    model.allocate_cache(2, dtype=torch.float64)
    both = decoded_logits(Decoder(model), tokens, conditioning, 0)
    model.allocate_cache(1, dtype=torch.float64)
    alone = decoded_logits(Decoder(model), tokens[1:], conditioning[1:], 0)
    torch.testing.assert_close(both[1:], alone, rtol=0, atol=1e-12)


def test_rotation_is_complex_multiplication_and_depends_on_distance_only() -> None:
    config = VoiceConfig()
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(2, 1, 1, 1, 64, generator=generator, dtype=torch.float64)
    positions = Positions(config, dtype=torch.float64)
    turned = rotate(q, *positions(7, 1))
    frequency = 10_000.0 ** -(torch.arange(32, dtype=torch.float64) / 32)
    by_complex = torch.complex(q[..., :32], q[..., 32:]) * torch.polar(
        torch.ones(32, dtype=torch.float64), 7 * frequency
    )
    torch.testing.assert_close(turned, torch.cat([by_complex.real, by_complex.imag], -1), rtol=0, atol=1e-13)
    near = (rotate(q, *positions(7, 1)) * rotate(k, *positions(3, 1))).sum()
    far = (rotate(q, *positions(180_007, 1)) * rotate(k, *positions(180_003, 1))).sum()
    torch.testing.assert_close(near, far, rtol=0, atol=1e-9)  # an hour in, still the same distance


def test_bfloat16_angles_collapse_positions_beyond_256() -> None:
    config = VoiceConfig()
    cos_exact, _ = Positions(config, dtype=torch.float64)(256, 2)
    cos_control, _ = Positions(config, dtype=torch.float64, angle_dtype=torch.bfloat16)(256, 2)
    assert not torch.equal(cos_exact[0], cos_exact[1])
    assert torch.equal(cos_control[0], cos_control[1])  # 256 and 257 are one number in bfloat16


def test_delay_pattern_by_hand() -> None:
    tokens = torch.arange(8).view(4, 2)
    assert delay_tokens(tokens, empty=9).tolist() == [[0, 9], [2, 1], [4, 3], [6, 5]]


def test_bad_sizes_are_named() -> None:
    model = small_model()
    with pytest.raises(ParameterError, match="n_streams ≥ 1"):
        model.allocate_cache(0)
    model.allocate_cache(2, dtype=torch.float64)
    tokens, conditioning = random_inputs(9)
    with pytest.raises(ParameterError, match="9 frames at once do not fit the ring of 8"):
        Decoder(model).step(tokens, stack_frames(conditioning))
