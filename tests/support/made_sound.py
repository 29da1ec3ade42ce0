"""A run that has sound, made here: a few seconds of the shipped recording under several names, with their records."""

import hashlib
from functools import cache

import made_groups
import numpy as np
import soundfile

from precision_eval.cases.voice.assets import original_speech
from precision_eval.core.records import RecordFile
from precision_eval.results.reading import load_run

RATE_HZ, HOP, RAISED = 16_000, 320, "RuntimeError: Expected query, key, and value to have the same dtype"
ROLES = {"reference": "reference", "noise_floor": "noise_floor"}
LSD_DB, TO_NULL = 1.4710677348648786, 0.19194826334712303


@cache
def speech(seconds, start_s=6.0):
    """A stretch of the recording, which starts over at its end, float32, read-only."""
    first = round(start_s * RATE_HZ)
    samples = original_speech()[0].take(np.arange(first, first + round(seconds * RATE_HZ)), mode="wrap")
    samples.setflags(write=False)
    return samples


def tokens(seconds, *, other_from=None):
    """Tokens, (frames, 4); the third codebook differs from frame `other_from` on."""
    found = np.random.default_rng(5).integers(0, 200, (round(seconds * RATE_HZ / HOP), 4)).astype(np.uint8)
    if other_from is not None:
        found[other_from:, 2] += 1
    return found


def differing(samples, *, from_s):
    """The samples, louder and noisier from a time on."""
    changed = samples.copy()
    first = round(from_s * RATE_HZ)
    noise = np.random.default_rng(3).standard_normal(len(samples) - first)
    changed[first:] = (0.5 * changed[first:] + 0.01 * noise).astype(np.float32)
    return changed


def with_another_second(wav_bytes):
    """A WAV of floats as it would be, had it been written a second later: libsndfile notes when the peak was found."""
    at = wav_bytes.index(b"PEAK") + 12  # name, size, version
    second = int.from_bytes(wav_bytes[at : at + 4], "little") + 1
    return wav_bytes[:at] + second.to_bytes(4, "little") + wav_bytes[at + 4 :]


def described(run_dir, *names):
    return [{"path": name, "sha256": hashlib.sha256((run_dir / name).read_bytes()).hexdigest()} for name in names]


def record(fix, measure, data, **rest):
    return made_groups.record(fix, measure, data, role=ROLES.get(fix, "fix"), case="voice", size="default", **rest)


def add(run_dir, fix, samples, codes):
    folder = run_dir / "audio"
    folder.mkdir(parents=True, exist_ok=True)
    wav, npy = f"audio/{fix}.wav", f"audio/{fix}.npy"
    soundfile.write(run_dir / wav, samples, RATE_HZ, subtype="FLOAT")
    if fix != "reference":
        (run_dir / wav).write_bytes(with_another_second((run_dir / wav).read_bytes()))
    np.save(run_dir / npy, codes, allow_pickle=False)
    data = {"wav": wav, "files": described(run_dir, wav, npy), "duration_s": len(samples) / RATE_HZ}
    distance = {"log_spectral_distance_db": {"mean": LSD_DB, "ratio_to_null": TO_NULL}}
    made = [record(fix, "synthesis", data), record(fix, "audio", {"against_reference": distance})]
    RecordFile(run_dir / "records.jsonl").append(made)


def made_run(run_dir, *, seconds):
    """A run with a reference, a fix that equals it, one that leaves it half-way, a noise floor, and one that raised."""
    sound = speech(seconds)
    half = round(seconds * RATE_HZ / HOP / 2)
    add(run_dir, "reference", sound, tokens(seconds))
    add(run_dir, "noise_floor", speech(seconds, 30.0), tokens(seconds, other_from=0))
    changed = differing(sound, from_s=seconds / 2)
    add(run_dir, "kv_to_query", changed, tokens(seconds, other_from=half))
    add(run_dir, "full_float32", sound, tokens(seconds))
    raised = record("as_shipped", "synthesis", None, status="raised", reason=RAISED)
    RecordFile(run_dir / "records.jsonl").append([raised])
    return load_run(run_dir)
