"""The vocoder: the same samples however it is fed, in constant memory, and a spectrum that is the mel's."""

import tracemalloc

import numpy as np
import pytest
from scipy.signal import ShortTimeFFT
from voice_mels import mel_distortion_db

from precision_eval.cases.voice import vocoder
from precision_eval.cases.voice.codec import HOP_SAMPLES, LOG_FLOOR, N_MELS, SAMPLE_RATE_HZ, cut_frames, hann, log_mel
from precision_eval.cases.voice.vocoder import (
    BLOCK_FRAMES,
    N_BINS,
    SPECTRUM_HOP_SAMPLES,
    SPECTRUM_SAMPLES,
    MagnitudeNetwork,
    PhaseRecovery,
    StreamingVocoder,
    load_network,
    vocode,
)


def voiced(n_frames: int, *, pitch_hz: float = 125.0) -> np.ndarray:
    """A gliding, fading pulse train through two resonances: speech-like enough for a network trained on speech."""
    n_samples = n_frames * HOP_SAMPLES
    time_s = np.arange(n_samples) / SAMPLE_RATE_HZ
    cycles = np.cumsum(pitch_hz * (1 + 0.2 * np.sin(2 * np.pi * 0.7 * time_s))) / SAMPLE_RATE_HZ
    audio = np.zeros(n_samples)
    for harmonic in range(1, 31):
        frequency_hz = harmonic * pitch_hz
        gain = 1 / (1 + ((frequency_hz - 600) / 300) ** 2) + 0.3 / (1 + ((frequency_hz - 1_800) / 300) ** 2)
        audio += gain * np.cos(2 * np.pi * harmonic * cycles)
    return (0.1 * audio * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time_s))).astype(np.float32)


def spoken_in_pieces(mel: np.ndarray, sizes: list[int]) -> np.ndarray:
    stream, pieces, start = StreamingVocoder(), [], 0
    for size in sizes:
        pieces.append(stream.push(mel[start : start + size]))
        start += size
    return np.concatenate([*pieces, stream.push(mel[start:]), stream.flush()])


@pytest.fixture(scope="module")
def mel() -> np.ndarray:
    return log_mel(voiced(131))


def test_samples_do_not_depend_on_the_pieces(mel: np.ndarray) -> None:
    whole = vocode(mel)
    rng = np.random.default_rng(0)
    for sizes in ([1] * 131, [0, 50, 0, 50], [130], [BLOCK_FRAMES] * 5, list(rng.integers(0, 20, 10))):
        np.testing.assert_array_equal(spoken_in_pieces(mel, sizes), whole)


@pytest.mark.parametrize("n_frames", [0, 1, 2, BLOCK_FRAMES - 1, BLOCK_FRAMES, BLOCK_FRAMES + 1, 60, 131])
def test_320_samples_for_every_frame(mel: np.ndarray, n_frames: int) -> None:
    audio = vocode(mel[:n_frames])
    assert audio.shape == (n_frames * HOP_SAMPLES,)
    assert audio.dtype == np.float32


def test_a_difference_is_forgotten() -> None:
    """Two other frames change the samples around them, and a second later hardly any."""
    mel = log_mel(voiced(200))
    other = mel.copy()
    other[60:62] += np.random.default_rng(0).normal(0, 0.3, (2, N_MELS)).astype(np.float32)
    spoken, changed = vocode(mel), vocode(other)
    difference = np.square(spoken - changed).reshape(-1, 10 * HOP_SAMPLES).sum(axis=1)  # in steps of 0.2 s
    energy = np.square(spoken).reshape(-1, 10 * HOP_SAMPLES).sum(axis=1)
    assert (difference / energy)[6] > 1e-2
    assert (difference / energy)[11:].max() < 1e-4


def test_the_mel_comes_back(mel: np.ndarray) -> None:
    assert mel_distortion_db(log_mel(vocode(mel))[4:-4], mel[4:-4]) < 4.0


def spectra_of(audio: np.ndarray) -> np.ndarray:
    window = hann(SPECTRUM_SAMPLES)
    frames = cut_frames(
        audio,
        window_samples=SPECTRUM_SAMPLES,
        hop_samples=SPECTRUM_HOP_SAMPLES,
        offset_samples=SPECTRUM_HOP_SAMPLES // 2,
        n_frames=audio.size // SPECTRUM_HOP_SAMPLES,
    )
    return np.abs(np.fft.rfft(frames * (2 * window / window.sum()), axis=1)).astype(np.float32)


def convergence_db(audio: np.ndarray, magnitude: np.ndarray) -> float:
    return float(20 * np.log10(np.linalg.norm(spectra_of(audio) - magnitude) / np.linalg.norm(magnitude)))


def recovered(magnitude: np.ndarray, *, iterations: int, block: int = 48) -> np.ndarray:
    phases = PhaseRecovery(iterations=iterations, momentum=vocoder.MOMENTUM, seed=0)
    pieces = [
        phases.speak(magnitude[start : start + block + 8], min(block, magnitude.shape[0] - start))
        for start in range(0, magnitude.shape[0], block)
    ]
    lead = SPECTRUM_SAMPLES // 2 - SPECTRUM_HOP_SAMPLES // 2
    return np.concatenate([*pieces, phases.rest()])[lead:][: magnitude.shape[0] * SPECTRUM_HOP_SAMPLES]


def griffin_lim_db(audio: np.ndarray, *, iterations: int) -> float:
    """The convergence of fast Griffin-Lim on the whole signal, by scipy's transform and its inverse."""
    transform = ShortTimeFFT(hann(SPECTRUM_SAMPLES), SPECTRUM_HOP_SAMPLES, fs=SAMPLE_RATE_HZ)
    target = np.abs(transform.stft(audio))
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(target.shape))
    previous = np.zeros_like(phases)
    for _ in range(iterations):
        spectra = transform.stft(transform.istft(target * phases, k1=audio.size))
        moved = spectra + 0.99 * (spectra - previous)
        phases, previous = moved / np.maximum(np.abs(moved), 1e-12), spectra
    return float(20 * np.log10(np.linalg.norm(np.abs(spectra) - target) / np.linalg.norm(target)))


def test_blocks_converge_as_griffin_lim_of_the_whole_does() -> None:
    audio = voiced(100)
    magnitude = spectra_of(audio)
    ours = convergence_db(recovered(magnitude, iterations=32), magnitude)
    assert ours < griffin_lim_db(audio, iterations=32) + 2.0
    assert ours < -15


def test_one_spectrum_by_hand() -> None:
    """One spectrum alone: dividing by the summed squared windows undoes the window, so the peak bin keeps its level."""
    magnitude = np.zeros((1, N_BINS), dtype=np.float32)
    magnitude[0, 39:42] = [0.25, 0.5, 0.25]  # the Hann window's transform of a sine of amplitude 0.5 at 1000 Hz
    phases = PhaseRecovery(iterations=64, momentum=0.0, seed=3)
    audio = np.concatenate([phases.speak(magnitude, 1), phases.rest()])
    middle = audio[SPECTRUM_SAMPLES // 4 : -SPECTRUM_SAMPLES // 4]
    assert np.abs(middle).max() == pytest.approx(0.5, rel=0.1)
    crossings = np.flatnonzero(np.diff(np.signbit(middle)))
    assert np.diff(crossings).mean() == pytest.approx(8.0, abs=0.2)  # half a period of 1000 Hz


def test_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting what was spoken before a block must spoil the seams, and so the convergence."""
    magnitude = spectra_of(voiced(100))
    sound_db = convergence_db(recovered(magnitude, iterations=32), magnitude)
    speak = PhaseRecovery.speak

    def forgetful(self: PhaseRecovery, magnitude: np.ndarray, n_spoken: int) -> np.ndarray:
        self._tail[:] = 0
        return speak(self, magnitude, n_spoken)

    monkeypatch.setattr(PhaseRecovery, "speak", forgetful)
    assert convergence_db(recovered(magnitude, iterations=32), magnitude) > sound_db + 3


def peak_bytes_of(n_frames: int, mel: np.ndarray) -> int:
    stream = StreamingVocoder()
    tracemalloc.start()
    for start in range(0, n_frames, 25):
        stream.push(mel[start % 100 : start % 100 + 25])
    stream.flush()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes


def test_memory_does_not_grow_with_length(mel: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocoder, "ITERATIONS", 1)
    peak_bytes_of(200, mel)
    assert peak_bytes_of(3_000, mel) < 1.05 * peak_bytes_of(300, mel)


def effect_of_rounding(mel: np.ndarray, *, draws: int = 4) -> float:
    """Largest change of a waveform when each value of its frames changes by one step of float32.

    A product of several streams' windows may add in another order than one of a single stream; Griffin-Lim amplifies
    the difference wherever a spectrum is nearly zero. Changing each input by a step changes each term of a sum by one
    rounding, as another order does. So this measures the tolerance, on this machine, in place of a tuned one.
    """
    rng, exact = np.random.default_rng(0), vocode(mel)
    steps = (rng.choice(np.float32([-1, 1]), mel.shape) * np.spacing(np.abs(mel)) for _ in range(draws))
    return max(np.abs(vocode(mel + step) - exact).max() for step in steps)


def test_streams_at_once_sound_as_each_alone(mel: np.ndarray) -> None:
    mels = np.stack([mel[:70], mel[30:100], np.full((70, N_MELS), LOG_FLOOR, np.float32)])
    together = vocode(mels)
    assert together.shape == (3, 70 * HOP_SAMPLES)
    for alone, row in zip(mels, together, strict=True):
        tolerance = 4 * effect_of_rounding(alone)
        assert tolerance < 0.01 * np.abs(together).max()  # streams exchanged, or mixed, must not pass
        np.testing.assert_allclose(row, vocode(alone), rtol=0, atol=tolerance)
    assert np.abs(together[0]).max() > 0.01


def test_network_by_hand() -> None:
    """One path: log-magnitude = max(0, last mel of the window) in bin 5 of the second spectrum, less the floor."""
    shapes = {name: tensor.shape for name, tensor in load_network().tensors.items()}
    tensors = {name: np.zeros(shape, dtype=np.float16) for name, shape in shapes.items()}
    tensors["input_scale"] += 1
    tensors["weight_0"][-1, 0] = tensors["weight_1"][0, 0] = tensors["weight_2"][0, N_BINS + 5] = 1
    windows = np.zeros((2, shapes["weight_0"][0]), dtype=np.float32)
    windows[:, -1] = [2.0, -2.0]
    magnitude = MagnitudeNetwork(tensors).magnitudes(windows)
    assert magnitude.shape == (4, N_BINS)
    assert magnitude.dtype == np.float32
    assert magnitude[1, 5] == pytest.approx(np.exp(2.0) - 1e-4)
    np.testing.assert_allclose(np.delete(magnitude.ravel(), N_BINS + 5), 1 - 1e-4)
    tensors["output_mean"] -= 100
    assert MagnitudeNetwork(tensors).magnitudes(windows).max() == 0  # below the floor is silence
