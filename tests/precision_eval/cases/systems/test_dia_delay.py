import pytest
import torch

from precision_eval.cases.systems.dia import BOS, CHANNELS, CODES, D4790DD, DECODER_SIZES, DELAYS, DecoderSize
from precision_eval.cases.systems.dia_model import apply_delay, build_decoder

# torch says so once per process, where its norm gives back a narrower dtype than its gain's
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def codes_of(frames, channels, seed=0):
    return torch.randint(CODES, (2, frames, channels), generator=torch.Generator().manual_seed(seed))


def test_by_hand():
    codes = torch.tensor([[[1, 10, 100], [2, 20, 200], [3, 30, 300], [4, 40, 400]]])
    expected = [[1, -1, -1], [2, -1, -1], [3, 10, -1], [4, 20, 100]]
    delayed = apply_delay(codes, delays=(0, 2, 3), bos=-1)
    assert delayed.tolist() == [expected]


def test_against_a_loop():
    codes = codes_of(20, CHANNELS, seed=1)
    delayed = apply_delay(codes, delays=DELAYS, bos=BOS)
    for frame in range(20):
        for channel, delay in enumerate(DELAYS):
            expected = codes[:, frame - delay, channel] if frame >= delay else torch.full((2,), BOS)
            assert torch.equal(delayed[:, frame, channel], expected)


@pytest.mark.parametrize("wrong", [tuple(d + 1 for d in DELAYS), (0, *range(9, 17)), DELAYS[::-1]])
def test_a_pattern_off_by_one_is_seen(wrong):
    codes = codes_of(40, CHANNELS)
    assert not torch.equal(apply_delay(codes, delays=wrong, bos=BOS), apply_delay(codes, delays=DELAYS, bos=BOS))


def test_the_tokens_of_a_step_follow_the_pattern(monkeypatch):
    # at the 11th frame the channels with a delay of up to 9 frames carry codes, the others have not begun
    size = DecoderSize(
        layers=1, width=8, hidden=8, heads=2, cache_heads=1, head_dim=4, cross_heads=1, cross_head_dim=4,
        encoder_width=8, text_length=4, slots=16, filled=11,
    )  # fmt: skip
    monkeypatch.setitem(DECODER_SIZES, "short", size)
    (tokens,) = build_decoder("short", device="cpu", seed=0, state=D4790DD).inputs
    begun = [delay < 10 for delay in DELAYS]  # frame 0 is BOS itself
    assert ((tokens[0, 0] < CODES).tolist()) == begun
    assert (tokens[0, 0][~torch.tensor(begun)] == BOS).all()
    assert torch.equal(tokens[0], tokens[1])
