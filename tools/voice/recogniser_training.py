"""Training of the phoneme recogniser, from generated speech.

It hears the text world ``recogniser``, which shares no content word or sentence template with the voice's training or
with the evaluation; each passage three ways, so that it is no judge of codecs: as espeak-ng spoke it, as the codec's
mels of it, and half of them through codec and vocoder. Accuracy is stated on the world ``heldout``. Needs espeak-ng,
the fitted codec and vocoder, and torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from precision_eval.cases.voice.codec import N_MELS, load_codec, log_mel
from precision_eval.cases.voice.recogniser import CONTEXT_FRAMES, KERNELS, Recogniser, padded_mel
from precision_eval.cases.voice.vocoder import vocode
from precision_eval.core.errors import ParameterError
from tools.voice.corpus import PHONEMES, SPEAKERS, Passage, conditioning_from_segments, generate_passages
from tools.voice.encoding import encode
from tools.voice.espeak import espeak_version
from tools.voice.fitting import optimise

_WIDTHS = (128, 160, 160, 128)
_CROP_FRAMES = 200
_CROPS_PER_STEP = 16
_LEARNING_RATE = 3e-3
_LABEL_SMOOTHING = 0.05
_LEVEL_JITTER_DB = 3.0
_NOISE_STD = 0.05  # of natural-log mels
_VOCODED_SHARE = 0.5  # of the minutes
_HELDOUT_MINUTES = 0.4  # per speaker: one passage

Example = tuple[np.ndarray, np.ndarray]  # log-mels (n_frames, 80), labels (n_frames,)


def _network(n_phonemes: int) -> nn.Sequential:
    """The convolutions of `Recogniser`, without padding."""
    layers: list[nn.Module] = []
    widths = (N_MELS, *_WIDTHS, n_phonemes)
    for layer, kernel in enumerate(KERNELS):
        layers.append(nn.Conv1d(widths[layer], widths[layer + 1], kernel))
        if layer < len(KERNELS) - 1:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def fit_recogniser(examples: Sequence[Example], *, n_phonemes: int, steps: int, seed: int) -> Recogniser:
    """Fit the network to labelled log-mels."""
    if steps < 1 or not examples:
        raise ParameterError(f"{len(examples)} examples and {steps} steps; both must be at least 1")
    all_mel = np.concatenate([mel for mel, _ in examples])
    mean, scale = all_mel.mean(axis=0), np.maximum(all_mel.std(axis=0), 0.5)  # a still band is not blown up
    joined = np.concatenate([padded_mel(mel, CONTEXT_FRAMES, CONTEXT_FRAMES) for mel, _ in examples])
    labels = np.concatenate([np.pad(found, CONTEXT_FRAMES) for _, found in examples]).astype(np.int64)
    draw = _crops(((joined - mean) / scale).astype(np.float32), labels, scale, np.random.default_rng(seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network(n_phonemes)
    judged = nn.CrossEntropyLoss(label_smoothing=_LABEL_SMOOTHING)

    def loss_of() -> torch.Tensor:
        mel, wanted = draw()
        loss: torch.Tensor = judged(network(mel), wanted)
        return loss

    optimise(network, loss_of, steps=steps, rate=_LEARNING_RATE, weight_decay=0.01)
    tensors = {"input_mean": mean, "input_scale": scale}
    for layer, module in enumerate(module for module in network if isinstance(module, nn.Conv1d)):
        assert module.bias is not None
        tensors[f"weight_{layer}"] = module.weight.detach().numpy().transpose(2, 1, 0)  # (kernel, inputs, outputs)
        tensors[f"bias_{layer}"] = module.bias.detach().numpy()
    return Recogniser({name: np.ascontiguousarray(value, np.float16) for name, value in tensors.items()})


def _crops(
    mel: np.ndarray, labels: np.ndarray, scale: np.ndarray, rng: np.random.Generator
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Make what draws random crops: mels (crops, 80, frames + context) and labels (crops, frames)."""
    all_mel, all_labels, all_scale = map(torch.from_numpy, (mel, labels, scale.astype(np.float32)))
    length = _CROP_FRAMES + 2 * CONTEXT_FRAMES

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        starts = rng.integers(0, len(labels) - length, size=_CROPS_PER_STEP)
        index = torch.from_numpy(starts)[:, None] + torch.arange(length)
        crop = all_mel[index]  # (crops, length, 80)
        level = rng.uniform(-_LEVEL_JITTER_DB, _LEVEL_JITTER_DB, (_CROPS_PER_STEP, 1, 1)) * np.log(10) / 20
        noise = rng.standard_normal(crop.shape, dtype=np.float32) * _NOISE_STD
        crop = crop + torch.from_numpy(noise + level.astype(np.float32)) / all_scale
        return crop.transpose(1, 2), all_labels[index[:, CONTEXT_FRAMES:-CONTEXT_FRAMES]]

    return draw


def _through_codec(audio: np.ndarray) -> np.ndarray:
    """Speech coded, decoded and spoken by the vocoder, of whole frames."""
    codec = load_codec()
    return vocode(codec.decode(encode(codec, log_mel(audio))))


def _examples(passage: Passage, *, vocoded: bool) -> list[Example]:
    """A passage as spoken, as the codec's mels, and perhaps through the vocoder."""
    codec, labels = load_codec(), conditioning_from_segments(passage.segments).phoneme
    mel = log_mel(passage.audio)
    coded = codec.decode(encode(codec, mel, beam=1))
    found = [(mel, labels), (coded, labels)]
    if vocoded:
        found.append((log_mel(_through_codec(passage.audio)), labels))
    return found


def heldout_accuracy(
    recogniser: Recogniser, *, seed: int, resynthesise: Callable[[np.ndarray], np.ndarray] = _through_codec
) -> dict[str, float]:
    """Accuracy on speech of words, sentences and takes that the recogniser never heard, mean over all speakers."""
    totals: dict[str, list[float]] = {"original": [], "resynthesised": [], "wrong_script": [], "shuffled": []}
    rng = np.random.default_rng(seed)
    for speaker in range(len(SPEAKERS)):
        audio, script, other = _heldout_pair(speaker, seed)
        spoken = resynthesise(audio)
        shuffled = rng.permutation(audio.reshape(-1, 320)).reshape(-1)
        for name, heard, said in (
            ("original", audio, script),
            ("resynthesised", spoken, script),
            ("wrong_script", audio, other),
            ("shuffled", shuffled, script),
        ):
            totals[name].append(recogniser.phoneme_accuracy(heard, said).value)
    return {name: float(np.mean(values)) for name, values in totals.items()}


def _heldout_pair(speaker: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A passage's audio in whole frames, its phonemes by frame, and another passage's of the same length."""
    first, second = (
        next(iter(generate_passages(world="heldout", speaker=speaker, minutes=_HELDOUT_MINUTES, seed=seed + i)))
        for i in range(2)
    )
    n_frames = min(int(first.segments[-1, 2]), int(second.segments[-1, 2]))
    scripts = [conditioning_from_segments(passage.segments).phoneme[:n_frames] for passage in (first, second)]
    return first.audio[: n_frames * 320], scripts[0], scripts[1]


def train_recogniser(*, minutes: float, seed: int, out_path: Path, steps: int = 4000) -> dict[str, float]:
    """Generate speech, train, examine and write the recogniser."""
    examples: list[Example] = []
    vocoded_minutes, share = 0.0, minutes / len(SPEAKERS)
    for speaker in range(len(SPEAKERS)):
        for passage in generate_passages(world="recogniser", speaker=speaker, minutes=share, seed=seed):
            wanted = vocoded_minutes < _VOCODED_SHARE * share * (speaker + 1)
            examples += _examples(passage, vocoded=wanted)
            vocoded_minutes += len(passage.audio) / 960_000 if wanted else 0.0
    fitted = fit_recogniser(examples, n_phonemes=len(PHONEMES), steps=steps, seed=seed)
    accuracy = heldout_accuracy(fitted, seed=seed)
    made_with = {
        **{"seed": str(seed), "espeak_version": espeak_version(), "minutes": str(minutes), "steps": str(steps)},
        **{f"accuracy_{name}": f"{value:.4f}" for name, value in accuracy.items()},
    }
    Recogniser(fitted.tensors, made_with).save(out_path)
    trained = sum(tensor.size for name, tensor in fitted.tensors.items() if not name.startswith("input"))
    return {**accuracy, "n_parameters": float(trained)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the phoneme recogniser; needs espeak-ng.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    print(train_recogniser(minutes=chosen.minutes, steps=chosen.steps, seed=chosen.seed, out_path=chosen.out))
