"""Training of the phoneme recogniser, from generated speech.

It hears the text world ``recogniser``, which shares no content word or sentence template with the voice's training or
with the evaluation; each passage three ways, so that it is no judge of codecs: as espeak-ng spoke it, as the codec's
mels of it, and half of them through codec and vocoder. Accuracy is stated on the world ``heldout``. Needs espeak-ng,
the fitted codec and vocoder, and torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from precision_eval.cases.voice.codec import N_MELS, load_codec, log_mel
from precision_eval.cases.voice.recogniser import CONTEXT_FRAMES, KERNELS, Recogniser, frame_labels, padded_mel
from precision_eval.cases.voice.vocoder import vocode
from precision_eval.core.errors import ParameterError
from tools.voice.corpus import PHONEMES, SPEAKERS, Passage, generate_passages
from tools.voice.espeak import espeak_version

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


@dataclass
class _Crops:
    """Random crops of all examples, end to end with silence between them."""

    mel: torch.Tensor  # (n_frames, 80), standardised
    labels: torch.Tensor  # (n_frames,)
    rng: np.random.Generator
    scale: torch.Tensor  # (80,)

    def draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One step's mels (crops, 80, frames + context) and labels (crops, frames)."""
        length = _CROP_FRAMES + 2 * CONTEXT_FRAMES
        starts = self.rng.integers(0, len(self.labels) - length, size=_CROPS_PER_STEP)
        index = torch.from_numpy(starts)[:, None] + torch.arange(length)
        mel = self.mel[index]  # (crops, length, 80)
        level = self.rng.uniform(-_LEVEL_JITTER_DB, _LEVEL_JITTER_DB, (_CROPS_PER_STEP, 1, 1)) * np.log(10) / 20
        noise = self.rng.standard_normal(mel.shape, dtype=np.float32) * _NOISE_STD
        mel = mel + torch.from_numpy(noise + level.astype(np.float32)) / self.scale
        return mel.transpose(1, 2), self.labels[index[:, CONTEXT_FRAMES:-CONTEXT_FRAMES]]


def fit_recogniser(
    examples: Sequence[Example],
    *,
    n_phonemes: int,
    steps: int,
    seed: int,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Recogniser:
    """Fit the network to labelled log-mels."""
    if steps < 1 or not examples:
        raise ParameterError(f"{len(examples)} examples and {steps} steps; both must be at least 1")
    all_mel = np.concatenate([mel for mel, _ in examples])
    mean, scale = all_mel.mean(axis=0), np.maximum(all_mel.std(axis=0), 0.5)  # a still band is not blown up
    joined = np.concatenate([padded_mel(mel, CONTEXT_FRAMES, CONTEXT_FRAMES) for mel, _ in examples])
    labels = np.concatenate([np.pad(found, CONTEXT_FRAMES) for _, found in examples]).astype(np.int64)
    crops = _Crops(
        torch.from_numpy(((joined - mean) / scale).astype(np.float32)),
        torch.from_numpy(labels),
        np.random.default_rng(seed),
        torch.from_numpy(scale.astype(np.float32)),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network(n_phonemes)
    _optimise(network, crops, steps, on_progress)
    tensors = {"input_mean": mean.astype(np.float16), "input_scale": scale.astype(np.float16)}
    convolutions = [module for module in network if isinstance(module, nn.Conv1d)]
    for layer, module in enumerate(convolutions):
        weight = module.weight.detach().numpy().transpose(2, 1, 0)  # (kernel, inputs, outputs)
        tensors[f"weight_{layer}"] = np.ascontiguousarray(weight).astype(np.float16)
        assert module.bias is not None
        tensors[f"bias_{layer}"] = module.bias.detach().numpy().astype(np.float16)
    return Recogniser(tensors)


def _optimise(network: nn.Sequential, crops: _Crops, steps: int, on_progress: Callable[[float], None]) -> None:
    """AdamW with one cosine cycle."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=_LEARNING_RATE, total_steps=steps, pct_start=0.1)
    loss_of = nn.CrossEntropyLoss(label_smoothing=_LABEL_SMOOTHING)
    for step in range(steps):
        mel, labels = crops.draw()
        loss = loss_of(network(mel), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 20 == 19:
            on_progress((step + 1) / steps)


def _through_codec(audio: np.ndarray) -> np.ndarray:
    """Speech coded, decoded and spoken by the vocoder, of whole frames."""
    codec = load_codec()
    return vocode(codec.decode(codec.encode(log_mel(audio))))


def _examples(passage: Passage, *, vocoded: bool) -> list[Example]:
    """A passage as spoken, as the codec's mels, and perhaps through the vocoder."""
    codec, labels = load_codec(), frame_labels(passage.segments)
    mel = log_mel(passage.audio)
    coded = codec.decode(codec.encode(mel, beam=1))
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
    """A passage's audio in whole frames, its segments, and another passage's segments of the same length."""
    first, second = (
        next(iter(generate_passages(world="heldout", speaker=speaker, minutes=_HELDOUT_MINUTES, seed=seed + i)))
        for i in range(2)
    )
    n_frames = min(int(first.segments[-1, 2]), int(second.segments[-1, 2]))
    scripts = []
    for passage in (first, second):
        kept = passage.segments[passage.segments[:, 1] < n_frames].copy()
        kept[-1, 2] = n_frames
        scripts.append(kept)
    return first.audio[: n_frames * 320], scripts[0], scripts[1]


def train_recogniser(
    *,
    minutes: float,
    seed: int,
    out_path: Path,
    steps: int = 4000,
    progress: Callable[[str, float], None] = lambda stage, fraction: None,
) -> dict[str, float]:
    """Generate speech, train, examine and write the recogniser."""
    examples: list[Example] = []
    vocoded_minutes = 0.0
    for speaker in range(len(SPEAKERS)):
        share = minutes / len(SPEAKERS)
        for passage in generate_passages(world="recogniser", speaker=speaker, minutes=share, seed=seed):
            wanted = vocoded_minutes < _VOCODED_SHARE * share * (speaker + 1)
            examples += _examples(passage, vocoded=wanted)
            vocoded_minutes += len(passage.audio) / 960_000 if wanted else 0.0
        progress("speech", (speaker + 1) / len(SPEAKERS))
    fitted = fit_recogniser(
        examples,
        n_phonemes=len(PHONEMES),
        steps=steps,
        seed=seed,
        on_progress=lambda fraction: progress("training", fraction),
    )
    accuracy = heldout_accuracy(fitted, seed=seed)
    progress("examination", 1.0)
    made_with = {
        "seed": str(seed),
        "espeak_version": espeak_version(),
        "minutes": str(minutes),
        "steps": str(steps),
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
