"""How the codec's tables and the vocoder's network were made, so that they can be made again.

The tables are fitted by residual k-means, then by least squares over all of them together. Both parts are fitted on the
corpus's "train" world, all speakers alike. The codec comes first: the model is trained on its tokens and the vocoder on
its decoded frames. Needs what speaks; the network also needs torch. Run
``python -m tools.voice.fitting codec --out FILE`` or ``... vocoder --out FILE``; for other speech than espeak-ng's,
``train-voice`` does both.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
from scipy.cluster.vq import kmeans2, vq
from scipy.sparse import csr_array

from precision_eval.cases.voice.codec import (
    CODEBOOK_SIZE,
    HOP_SAMPLES,
    N_CODEBOOKS,
    N_MELS,
    Codec,
    framed,
    hann,
    load_codec,
    log_mel,
)
from precision_eval.cases.voice.vocoder import (
    CONTEXT_FRAMES,
    N_BINS,
    SILENT_MAGNITUDE,
    SPECTRA_PER_FRAME,
    SPECTRUM_HOP_SAMPLES,
    SPECTRUM_SAMPLES,
    MagnitudeNetwork,
)
from precision_eval.core.errors import ParameterError
from tools.voice.corpus import generate_passages, source_by_name
from tools.voice.encoding import encode, mel_distortion_db

HIDDEN = 512
BATCH_FRAMES = 512
LEARNING_RATE = 2e-3
UNCODED_SHARE = 0.3  # batches whose input never went through the codec
ROOT_WEIGHT = 1000.0  # of the square-rooted magnitudes, which hear the loud harmonics, against the logarithms
HELD_OUT_SEED = 900_001
CALIBRATION_MINUTES = 10.0


def _speech(*, minutes: float, seed: int, speech: str = "espeak") -> list[np.ndarray]:
    """Passages of all speakers, each cut to whole frames; ``minutes`` in all."""
    n_speakers = len(source_by_name(speech).speakers)
    passages = (
        passage.audio
        for speaker in range(n_speakers)
        for passage in generate_passages(
            world="train", speaker=speaker, minutes=minutes / n_speakers, seed=seed, speech=speech
        )
    )
    return [audio[: audio.size // HOP_SAMPLES * HOP_SAMPLES] for audio in passages]


def held_out_speech(*, minutes: float, speech: str = "espeak") -> list[np.ndarray]:
    """Speech of all speakers that neither fit has seen, on a seed of its own."""
    return _speech(minutes=minutes, seed=HELD_OUT_SEED, speech=speech)


def least_squares(vectors: np.ndarray, tokens: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Solve for all tables at once, tokens given; a ridge of one frame holds entries near the present ones."""
    n_codebooks, size, n_bands = tables.shape
    columns = tokens.astype(np.int64) + size * np.arange(n_codebooks)  # (n_frames, codebooks): what each frame takes
    starts = np.arange(0, columns.size + 1, n_codebooks)
    chosen = csr_array((np.ones(columns.size), columns.ravel(), starts), shape=(len(vectors), n_codebooks * size))
    normal = (chosen.T @ chosen).toarray() + np.eye(n_codebooks * size)
    right = chosen.T @ vectors.astype(np.float64) + tables.reshape(-1, n_bands)
    return np.linalg.solve(normal, right).reshape(tables.shape).astype(np.float32)


def fit_tables(
    mels: np.ndarray,
    seed: int,
    *,
    n_codebooks: int = N_CODEBOOKS,
    codebook_size: int = CODEBOOK_SIZE,
    iterations: int = 20,
    refinements: int = 10,
) -> Codec:
    """Fit tables: residual k-means, then all tables together."""
    if mels.ndim != 2 or mels.shape[0] < codebook_size:
        raise ParameterError(f"mels have shape {mels.shape}; expected at least {codebook_size} frames")
    rng = np.random.default_rng(seed)
    mean = mels.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred = mels.astype(np.float32) - mean
    residual, tables = centred.copy(), []
    for _ in range(n_codebooks):
        with warnings.catch_warnings():  # "points": k-means++ takes minutes, and least squares comes after it
            warnings.simplefilter("ignore")  # an entry that no frame takes stays where it is; least squares moves it
            table = kmeans2(residual, codebook_size, iter=iterations, minit="points", seed=rng)[0].astype(np.float32)
        residual -= table[vq(residual, table)[0]]
        tables.append(table)
    codec = Codec({"tables": np.stack(tables), "mean": mean}, {"seed": str(seed)})
    for _ in range(refinements):
        refined = least_squares(centred, encode(codec, mels), codec.tables)
        codec = Codec({"tables": refined, "mean": mean}, codec.metadata)
    return codec


def fit_codec(*, minutes: float, seed: int, refinements: int = 10, speech: str = "espeak") -> Codec:
    """Fit the codec and say in its metadata how."""
    mels = np.concatenate([log_mel(audio) for audio in _speech(minutes=minutes, seed=seed, speech=speech)])
    fitted = fit_tables(mels, seed, refinements=refinements)
    other = held_out_speech(minutes=max(1.0, minutes / 10), speech=speech)
    held_out = np.concatenate([log_mel(audio) for audio in other])
    distortion_db = mel_distortion_db(fitted.decode(encode(fitted, held_out)), held_out)
    metadata = {
        **fitted.metadata,
        "minutes": f"{mels.shape[0] / 3000:.1f}",
        f"{speech}_version": source_by_name(speech).version(),
        "mel_distortion_db": f"{distortion_db:.3f}",
        "shape": f"{N_CODEBOOKS}x{CODEBOOK_SIZE}x{N_MELS}",
    }
    return Codec(fitted.tensors, metadata)


def spectrum_logarithms(audio: np.ndarray) -> np.ndarray:
    """What the network learns: log-magnitudes on the vocoder's grid."""
    n_spectra = audio.size // SPECTRUM_HOP_SAMPLES
    frames = framed(
        audio,
        window_samples=SPECTRUM_SAMPLES,
        hop_samples=SPECTRUM_HOP_SAMPLES,
        offset_samples=SPECTRUM_HOP_SAMPLES // 2,
        n_frames=n_spectra,
    )
    window = hann(SPECTRUM_SAMPLES)
    magnitude = np.abs(scipy.fft.rfft(frames * (2 * window / window.sum()).astype(np.float32), axis=1))
    return np.log(np.maximum(magnitude, np.float32(SILENT_MAGNITUDE))).reshape(-1, SPECTRA_PER_FRAME * N_BINS)


def fit_network(
    *, minutes: float, seed: int, epochs: int, speech: str = "espeak", codec: Codec | None = None
) -> MagnitudeNetwork:
    """Train the vocoder's network: mean squares of log-magnitudes plus those of square-rooted magnitudes."""
    audio = _speech(minutes=minutes, seed=seed, speech=speech)
    codec = load_codec() if codec is None else codec
    targets = np.concatenate([spectrum_logarithms(a) for a in audio])
    uncoded = np.concatenate([log_mel(a) for a in audio])
    tensors = _train((uncoded, codec.decode(encode(codec, uncoded))), targets, seed=seed, epochs=epochs)
    metadata = {"seed": str(seed), "minutes": f"{minutes:.1f}", "epochs": str(epochs)}
    stored = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    other = _speech(minutes=CALIBRATION_MINUTES, seed=seed + 1, speech=speech)
    return levelled(MagnitudeNetwork(stored, metadata), other, codec)


def levelled(network: MagnitudeNetwork, audio: list[np.ndarray], codec: Codec | None = None) -> MagnitudeNetwork:
    """Give every bin the gain that brings its mean magnitude to the speech's."""
    codec = load_codec() if codec is None else codec
    spoken, wanted = np.zeros(SPECTRA_PER_FRAME * N_BINS), np.zeros(SPECTRA_PER_FRAME * N_BINS)
    for passage in audio:
        mel = codec.decode(encode(codec, log_mel(passage)))
        magnitude = network.magnitudes_between(mel).reshape(-1, SPECTRA_PER_FRAME * N_BINS)
        original = np.exp(spectrum_logarithms(passage)[CONTEXT_FRAMES:-CONTEXT_FRAMES]) - SILENT_MAGNITUDE
        spoken += magnitude.sum(axis=0, dtype=np.float64)
        wanted += original.sum(axis=0, dtype=np.float64)
    mean = network.tensors["output_mean"].astype(np.float64) + np.log(wanted / spoken)
    return MagnitudeNetwork({**network.tensors, "output_mean": mean.astype(np.float16)}, network.metadata)


def optimise(network: Any, loss_of: Callable[[], Any], *, steps: int, rate: float, weight_decay: float) -> None:
    """AdamW with one cosine cycle over so many steps."""
    import torch

    optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=weight_decay, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        loss_of().backward()
        optimiser.step()
        schedule.step()


def _train(
    inputs: tuple[np.ndarray, np.ndarray], targets: np.ndarray, *, seed: int, epochs: int
) -> dict[str, np.ndarray]:
    """Train in torch, one thread; the tensors in the layout that :class:`MagnitudeNetwork` has."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    width = (2 * CONTEXT_FRAMES + 1) * N_MELS
    mels, wanted = [torch.from_numpy(mel) for mel in inputs], torch.from_numpy(targets)
    mean, scale = mels[0].mean(0).repeat(2 * CONTEXT_FRAMES + 1), mels[0].std(0).repeat(2 * CONTEXT_FRAMES + 1)
    output_mean = wanted.mean(0)
    layers = [nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, wanted.shape[1])]
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    rng = np.random.default_rng(seed)
    around = torch.arange(-CONTEXT_FRAMES, CONTEXT_FRAMES + 1)

    def loss_of() -> Any:
        index = torch.from_numpy(rng.integers(CONTEXT_FRAMES, wanted.shape[0] - CONTEXT_FRAMES, BATCH_FRAMES))
        window = mels[int(rng.random() >= UNCODED_SHARE)][index[:, None] + around].reshape(BATCH_FRAMES, -1)
        found, right = network((window - mean) / scale) + output_mean, wanted[index]
        roots = (torch.exp(found / 2) - torch.exp(right / 2)).square().mean()
        return (found - right).square().mean() + ROOT_WEIGHT * roots

    steps = epochs * wanted.shape[0] // BATCH_FRAMES
    optimise(network, loss_of, steps=steps, rate=LEARNING_RATE, weight_decay=1e-4)
    tensors = {"input_mean": mean, "input_scale": scale, "output_mean": output_mean}
    for number, layer in enumerate(layers):
        tensors |= {f"weight_{number}": layer.weight.detach().T, f"bias_{number}": layer.bias.detach()}
    return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}


def main() -> None:
    """Fit what the command line names and write it."""
    parser = argparse.ArgumentParser(description="Make the codec's tables or the vocoder's network anew.")
    parser.add_argument("what", choices=("codec", "vocoder"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5, help="vocoder only")
    options = parser.parse_args()
    if options.what == "codec":
        fit_codec(minutes=options.minutes, seed=options.seed).save(options.out)
    else:
        fit_network(minutes=options.minutes, seed=options.seed, epochs=options.epochs).save(options.out)


if __name__ == "__main__":
    main()
