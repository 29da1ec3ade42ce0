"""The recogniser: its arithmetic, blocks and accuracy."""

import numpy as np
import pytest
import torch
from torch import nn

from precision_eval.cases.voice import recogniser as module
from precision_eval.cases.voice.recogniser import CONTEXT_FRAMES, KERNELS, Recogniser
from precision_eval.core.errors import ParameterError


def network_of(n_phonemes: int) -> nn.Sequential:
    """The same convolutions in torch."""
    layers: list[nn.Module] = []
    widths = (80, 16, 16, 16, 16, n_phonemes)
    for layer, kernel in enumerate(KERNELS):
        layers += [nn.Conv1d(widths[layer], widths[layer + 1], kernel), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.fixture
def random_recogniser() -> Recogniser:
    torch.manual_seed(0)
    convolutions = [layer for layer in network_of(9) if isinstance(layer, nn.Conv1d)]
    tensors = {"input_mean": np.full(80, -4.0, np.float32), "input_scale": np.full(80, 2.0, np.float32)}
    for i, layer in enumerate(convolutions):
        tensors[f"weight_{i}"] = layer.weight.detach().numpy().transpose(2, 1, 0).copy()
        tensors[f"bias_{i}"] = layer.bias.detach().numpy().copy()
    return Recogniser(tensors)


def test_accuracy_by_hand(monkeypatch, random_recogniser):
    monkeypatch.setattr(Recogniser, "recognise", lambda self, audio: np.array([0, 2, 2, 0, 3, 1, 1, 4, 4]))
    phonemes = np.array([0, 2, 2, 2, 3, 3, 1, 4, 4])
    found = random_recogniser.phoneme_accuracy(np.zeros(9 * 320 + 5, np.float32), phonemes)
    assert found.value == 6 / 8
    assert found.first_third == 1.0
    assert found.last_third == 1.0


def test_scores_equal_torch_convolutions(random_recogniser):
    mel = np.random.default_rng(0).normal(-4, 2, (60, 80)).astype(np.float32)
    torch.manual_seed(0)
    network = network_of(9)
    with torch.no_grad():
        expected = network(torch.from_numpy((mel + 4) / 2).T[None])[0].T.numpy()
    np.testing.assert_allclose(random_recogniser.scores(mel), expected, rtol=1e-4, atol=1e-5)
    assert expected.shape == (60 - 2 * CONTEXT_FRAMES, 9)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_change_nothing(monkeypatch, random_recogniser, block):
    audio = np.random.default_rng(1).normal(0, 0.1, 320 * 150 + 17).astype(np.float32)
    whole = module._mel_with_context(audio, 0, 150)
    monkeypatch.setattr(module, "BLOCK_FRAMES", block)
    for start in range(0, 150, block):
        end = min(start + block, 150)
        piece = module._mel_with_context(audio, start, end)
        np.testing.assert_allclose(piece, whole[start : end + 2 * CONTEXT_FRAMES], atol=1e-5)
    assert np.array_equal(random_recogniser.recognise(audio), random_recogniser.scores(whole).argmax(axis=1))


def test_a_planted_halo_fault_is_caught(monkeypatch):
    audio = np.random.default_rng(1).normal(0, 0.1, 320 * 150).astype(np.float32)
    whole = module._mel_with_context(audio, 0, 150)
    monkeypatch.setattr(module, "_MEL_HALO_FRAMES", 0)
    piece = module._mel_with_context(audio, 70, 80)
    assert np.abs(piece - whole[70 : 80 + 2 * CONTEXT_FRAMES]).max() > 0.1


@pytest.mark.parametrize(
    ("phonemes", "match"), [([1] * 8, "audio has 9 frames and the script 8"), ([1] * 3 + [0] * 6, "no speech")]
)
def test_bad_scripts_are_refused(random_recogniser, phonemes, match):
    with pytest.raises(ParameterError, match=match):
        random_recogniser.phoneme_accuracy(np.zeros(9 * 320, np.float32), np.array(phonemes))
