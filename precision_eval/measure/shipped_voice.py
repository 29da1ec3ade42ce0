"""The shipped voice under a condition: teacher forcing, free streams, recordings, and short passages.

Conventions: all conditions get the same prompts and Gumbel noise, so the first differing frame is the fix's own doing.
Codec and vocoder always run in float32 (numpy): what differs between two WAVs is the model's doing. A *passage* is a
part of a held-out script, of one of twelve speakers. The controls have longer prompts there, since what they do wrong
grows with the position in time. The original of a passage is its tokens through the same codec and vocoder.
V codes, K codebooks, B streams.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from precision_eval.cases.systems.voice import CHECKPOINT_DTYPE_OF_SIZE
from precision_eval.cases.voice.assets import asset_path, load_streams, manifest, original_speech, sha256_of
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, N_CODEBOOKS, SAMPLE_RATE_HZ, load_codec
from precision_eval.cases.voice.conditions import noise_seed, open_voice
from precision_eval.cases.voice.recogniser import SILENCE_ID, Recogniser
from precision_eval.cases.voice.synthesis import Decoder, Stream, free_run, teacher_forced
from precision_eval.cases.voice.vocoder import StreamingVocoder, vocode
from precision_eval.core.cells import Cell
from precision_eval.core.files import written_whole
from precision_eval.measure.sound import (
    MAX_TEACHER_FORCED_STREAMS,
    append_samples,
    distances,
    keep_arrays,
    open_wav,
    relate_to_noise_floor,
    streams_data,
)
from precision_eval.trace.attention import AttentionSharpness, probing

PROBE_EVERY_CALLS = 37  # no multiple of the number of layers, so every layer has its turn
STREAM_PROMPT_FRAMES = 100  # 2 s
PROMPT_FRAMES = 200  # 4 s, of a synthesis
BATCH_STREAMS = 16
LONG_PROMPT_FRAMES = 1024  # twice the window that the model was trained on
PROMPTS = {"control_rope_bfloat16": 512, "control_long_window": LONG_PROMPT_FRAMES}
SHORTEST_STREAM_S, LONGEST_STREAM_S = 2.0, 20.0
_CHUNK_FRAMES = 100
_VOCODED = 8  # streams at once: as many as a core's cache holds the spectra of
_NEXT_BATCH = 7919  # added to the seed: no batch has another's noise


class ShippedVoice:
    rate_hz = float(FRAME_RATE_HZ)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._checkpoint_dtype = CHECKPOINT_DTYPE_OF_SIZE[cell.size]

    def _open(self, condition: str, *, n_streams: int, n_frames: int | None = None) -> AbstractContextManager[Decoder]:
        return open_voice(
            condition,
            n_streams=n_streams,
            n_frames=n_frames,
            mode=self._cell.mode,
            device=self._cell.device,
            checkpoint_dtype=self._checkpoint_dtype,
        )

    @contextmanager
    def forced(
        self, condition: str, run_dir: Path
    ) -> Iterator[tuple[Iterable[torch.Tensor], Iterable[torch.Tensor], AttentionSharpness]]:
        """Score the original speech."""
        options = self._cell.options
        voices = load_streams(min(options.streams, MAX_TEACHER_FORCED_STREAMS), n_frames=options.steps)
        truth = self._reference_logits(run_dir, voices)
        # A compiled graph no longer looks attention up, so there is nothing to probe.
        eager = self._cell.mode == "eager"
        probe = probing(every=PROBE_EVERY_CALLS) if eager else nullcontext(AttentionSharpness())
        with self._open(condition, n_streams=len(voices), n_frames=options.steps) as decoder, probe as sharpness:
            yield teacher_forced(decoder, voices, n_frames=options.steps), truth, sharpness

    def _reference_logits(self, run_dir: Path, voices: list[Stream]) -> list[torch.Tensor]:
        """Float64 logits of the original speech, (B, K, V) per frame; computed once per run and kept in its folder."""
        n_frames, checkpoint_dtype = self._cell.options.steps, self._checkpoint_dtype
        weights = manifest()["files"]["voice.safetensors"]["sha256"][:12]
        name = f"reference-logits.{weights}.{checkpoint_dtype}.{len(voices)}x{n_frames}.torch{torch.__version__}.npz"

        def reference() -> dict[str, np.ndarray]:
            with open_voice(
                "reference", n_streams=len(voices), n_frames=n_frames, checkpoint_dtype=checkpoint_dtype
            ) as decoder:
                steps = teacher_forced(decoder, voices, n_frames=n_frames)
                return {"logits": np.stack([step.numpy() for step in steps])}

        return list(torch.from_numpy(keep_arrays(run_dir / "streams" / name, reference)["logits"]))

    def tokens(self, condition: str) -> np.ndarray:
        """Let the streams run freely; all at once."""
        n_streams, n_steps = self._cell.options.streams, self._cell.options.steps
        voices = load_streams(n_streams, n_frames=STREAM_PROMPT_FRAMES + n_steps)
        n_frames = STREAM_PROMPT_FRAMES + n_steps + N_CODEBOOKS  # the delay pattern runs K − 1 frames on
        with self._open(condition, n_streams=n_streams, n_frames=n_frames) as decoder:
            seed = noise_seed(condition, self._cell.options.seed)
            frames = free_run(decoder, voices, prompt_frames=STREAM_PROMPT_FRAMES, n_frames=n_steps, seed=seed)
            return np.stack(list(frames))

    def speak(self, condition: str, wav_path: Path) -> tuple[dict[str, Any], list[Path]]:
        """Speak the held-out script of stream 0 for the run's minutes, streamed to a WAV in constant memory.

        Speeds are frames per CPU second of one thread, since other cells may run at the same time.
        """
        n_frames = round(self._cell.options.minutes * 60 * FRAME_RATE_HZ)
        tokens_path = wav_path.with_suffix(".npy")
        with written_whole(wav_path) as partial, written_whole(tokens_path) as partial_tokens:
            cpu_start_s = time.process_time()
            tokens = self._speak(condition, partial, n_frames)
            cpu_s = time.process_time() - cpu_start_s
            with partial_tokens.open("wb") as file:
                np.save(file, tokens, allow_pickle=False)
        data = {
            "duration_s": n_frames / FRAME_RATE_HZ,
            "frames_per_s": n_frames / cpu_s,
            "real_time_factor": n_frames / FRAME_RATE_HZ / cpu_s,
            "clock": "process CPU",
            "sha256": sha256_of(tokens_path),
        }
        return data, [wav_path, tokens_path]

    def _speak(self, condition: str, path: Path, n_frames: int) -> np.ndarray:
        streams = load_streams(1, n_frames=PROMPT_FRAMES + n_frames)
        codec, vocoder = load_codec(), StreamingVocoder()
        tokens = np.zeros((n_frames, N_CODEBOOKS), dtype=np.uint8)  # 12 kB per minute
        seed = noise_seed(condition, self._cell.options.seed)
        with (
            self._open(condition, n_streams=1) as decoder,
            open_wav(path, n_samples=n_frames * HOP_SAMPLES, rate_hz=SAMPLE_RATE_HZ) as wav,
        ):
            frames = free_run(decoder, streams, prompt_frames=PROMPT_FRAMES, n_frames=n_frames, seed=seed)
            for index, frame in enumerate(frames):
                tokens[index] = frame[0]
                if (index + 1) % _CHUNK_FRAMES == 0 or index + 1 == n_frames:
                    first = index - index % _CHUNK_FRAMES
                    append_samples(wav, vocoder.push(codec.decode(tokens[first : index + 1])))
            append_samples(wav, vocoder.flush())
        return tokens

    def compare(self, wav_path: Path, *, reference_path: Path, null_path: Path) -> dict[str, Any]:
        """Compare a recording with the reference's and with the original speech.

        The original never went through the codec, so the reference's own distance to it is the floor of that column.
        """
        import audio_metrics

        compare = partial(audio_metrics.compare_files, reference_path)
        against_reference = relate_to_noise_floor(compare(wav_path), partial(compare, null_path))
        audio: Any = _OnDisk(wav_path)
        original = original_speech()[0][PROMPT_FRAMES * HOP_SAMPLES :]
        n_samples = min(len(original), audio.shape[0])
        from_original = audio_metrics.compare(original[:n_samples], audio[:n_samples], sample_rate_hz=SAMPLE_RATE_HZ)
        heard = _accuracy_of(original[: n_samples // HOP_SAMPLES * HOP_SAMPLES])
        return {
            "duration_s": audio.shape[0] / SAMPLE_RATE_HZ,
            "against_reference": against_reference,
            "against_original": {**from_original.to_dict(), "duration_s": n_samples / SAMPLE_RATE_HZ},
            "phoneme_accuracy": _accuracy_of(audio)
            | {
                "original": heard["value"],
                "original_first_third": heard["first_third"],
                "original_last_third": heard["last_third"],
            },
        }

    def hear(self, condition: str, run_dir: Path) -> dict[str, Any]:
        """Speak every passage, and hear each against its original."""
        options = self._cell.options
        n_frames = stream_frames(options.minutes)
        streams = passages(options.streams, n_frames=n_frames)
        cpu_start_s = time.process_time()
        tokens = spoken_tokens(condition, streams, n_frames=n_frames, seed=options.seed, open_decoder=self._open)
        renderings = waveforms(tokens)
        cpu_s = time.process_time() - cpu_start_s
        heard = Listener(streams, _originals(run_dir, streams, n_frames)).heard(renderings)
        stream_s = n_frames / FRAME_RATE_HZ
        return streams_data(list(tokens), heard, stream_s=stream_s, length_s=len(streams) * stream_s, cpu_s=cpu_s)


class _OnDisk:
    """A WAV as a recogniser slices it, read where it is asked for."""

    ndim = 1

    def __init__(self, path: Path) -> None:
        import soundfile

        self._file = soundfile.SoundFile(path)
        self.shape = (self._file.frames,)

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self.shape[0])
        self._file.seek(start)
        return np.asarray(self._file.read(stop - start, dtype="float32"))


def spoken_script(n_frames: int) -> np.ndarray:
    """Phonemes of stream 0 after its prompt, for ``n_frames`` frames (the script starts over at its end)."""
    conditioning = load_streams(1, n_frames=PROMPT_FRAMES + n_frames)[0].conditioning
    return conditioning.phoneme[(PROMPT_FRAMES + np.arange(n_frames)) % len(conditioning)]


def _accuracy_of(audio: Any) -> dict[str, float]:
    recogniser = Recogniser.load("recogniser.safetensors")
    return asdict(recogniser.phoneme_accuracy(audio, spoken_script(audio.shape[0] // HOP_SAMPLES)))


def stream_frames(minutes: float) -> int:
    """Length of a stream: a third of the recording's, 2 to 20 s."""
    return round(min(max(20.0 * minutes, SHORTEST_STREAM_S), LONGEST_STREAM_S) * FRAME_RATE_HZ)


def passages(count: int, *, n_frames: int) -> list[Stream]:
    """Return passages that do not overlap where the scripts are long enough, each preceded by the longest prompt."""
    return load_streams(count, n_frames=LONG_PROMPT_FRAMES + n_frames)


def spoken_tokens(
    condition: str,
    streams: Sequence[Stream],
    *,
    n_frames: int,
    seed: int,
    open_decoder: Callable[..., AbstractContextManager[Decoder]] = open_voice,
) -> np.ndarray:
    """Speak the passages in batches of 16, on one set of weights at a time; tokens (streams, n_frames, K)."""
    prompt = PROMPTS.get(condition, PROMPT_FRAMES)
    rows = []
    for number, first in enumerate(range(0, len(streams), BATCH_STREAMS)):
        frame = LONG_PROMPT_FRAMES - prompt
        batch = [Stream(s.conditioning[frame:], s.tokens[frame:]) for s in streams[first : first + BATCH_STREAMS]]
        n_slots = prompt + n_frames + N_CODEBOOKS  # the delay pattern runs K − 1 frames on
        with open_decoder(condition, n_streams=len(batch), n_frames=n_slots) as decoder:
            key = noise_seed(condition, seed) + _NEXT_BATCH * number
            frames = free_run(decoder, batch, prompt_frames=prompt, n_frames=n_frames, seed=key)
            rows.append(np.stack(list(frames), axis=1))
    return np.concatenate(rows)


def waveforms(tokens: np.ndarray) -> np.ndarray:
    """Samples of each row of tokens, (streams, n_samples), float32."""
    mels = np.stack([load_codec().decode(row) for row in tokens])
    return np.concatenate([vocode(mels[first : first + _VOCODED]) for first in range(0, len(mels), _VOCODED)])


def original_tokens(streams: Sequence[Stream], *, n_frames: int) -> np.ndarray:
    """Tokens of the original speech after the longest prompt, (streams, n_frames, K)."""
    return np.stack([stream.tokens[LONG_PROMPT_FRAMES : LONG_PROMPT_FRAMES + n_frames] for stream in streams])


def _originals(run_dir: Path, streams: Sequence[Stream], n_frames: int) -> np.ndarray:
    """Original speech of the passages; made once per run and kept in its folder."""
    made_of = "".join(sha256_of(asset_path(f"{name}.safetensors")) for name in ("scripts", "codec", "vocoder"))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    path = run_dir / "streams" / f"original-sound.{digest}.{len(streams)}x{n_frames}.npz"
    stored = keep_arrays(path, lambda: {"samples": waveforms(original_tokens(streams, n_frames=n_frames))})
    return stored["samples"]


class Listener:
    def __init__(self, streams: Sequence[Stream], originals: np.ndarray) -> None:
        n_frames = originals.shape[1] // HOP_SAMPLES
        passage = slice(LONG_PROMPT_FRAMES, LONG_PROMPT_FRAMES + n_frames)
        self._labels = [stream.conditioning.phoneme[passage] for stream in streams]
        self._originals = originals
        self._recogniser = Recogniser.load("recogniser.safetensors")

    def heard(self, renderings: np.ndarray) -> dict[str, list[float]]:
        """Return each metric's values, one per stream: distances in dB, phonemes as a fraction of the speech frames."""
        rows = [self._hear(*each) for each in zip(self._originals, renderings, self._labels, strict=True)]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _hear(self, original: np.ndarray, samples: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        heard = distances(original, samples, rate_hz=SAMPLE_RATE_HZ)  # first: it refuses what is not finite
        speech = labels != SILENCE_ID
        heard["phonemes_right"] = float((self._recogniser.recognise(samples) == labels)[speech].mean())
        return heard
