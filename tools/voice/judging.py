"""What judges from outside hear of a trained voice that lies in a folder, and what precision does to it.

Conventions: words wrong are Whisper tiny.en's against the sentences of the held-out script, after its own normaliser;
sound is cut where a sentence begins, into parts of at most 28 s. MOS is DistillMOS's mean over parts of 10 s; a judge
that is not installed says nothing. Phonemes are the shipped recogniser's, of espeak-ng's speech alone, on which in turn
an opinion score says nothing. The original and its tokens through codec and vocoder stand beside the free-running
voice, so that one sees where a loss lies. Drift is of the logits under teacher forcing, against float64; logits and
entropy of attention are those of the fix as probed. The verdict on sound is a run's, on short streams, with margins of
the voice's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from precision_eval.cases.voice.assets import asset_path, load_streams, manifest, original_speech
from precision_eval.cases.voice.codec import FRAME_RATE_HZ, HOP_SAMPLES, SAMPLE_RATE_HZ, Codec
from precision_eval.cases.voice.conditions import noise_seed, opened
from precision_eval.cases.voice.synthesis import Stream, free_run, teacher_forced
from precision_eval.cases.voice.vocoder import MagnitudeNetwork, vocode
from precision_eval.core.errors import UnsupportedError
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Table, make_table
from precision_eval.measure.judges import chosen_judges
from precision_eval.measure.sound import Listener, margins_of, original_tokens, passages, spoken_tokens, waveforms
from precision_eval.measure.transcription import normalised, word_errors, words_skipped_and_doubled
from precision_eval.measure.voice import DriftSeries, summarise, token_divergence
from precision_eval.results.sound import VOICE_METRICS, judged_sound
from precision_eval.stats.differences import DifferenceDecision
from precision_eval.trace.attention import probing
from tools.voice.listening import check_voice
from validation.judges import MOS

PROMPT_FRAMES = 200
MOST_FRAMES = 28 * FRAME_RATE_HZ
MOS_SAMPLES = 10 * SAMPLE_RATE_HZ
CONTROLS = ("control_rope_bfloat16", "control_long_window")
FIXES = ("full_float32", "kv_to_query", "query_to_half", "autocast", "float16", "bfloat16")
Sentence = tuple[int, str]


def judge_voice(voice: Path | None, *, minutes: float, seed: int, fixes: Sequence[str] = FIXES) -> dict[str, Any]:
    """Return plain data: what is heard of the voice, and what each fix does to its logits and tokens."""
    trained = manifest(voice)["files"]["voice.safetensors"]
    robotic = "espeak" in trained["speech"]
    heard = hearing(voice, minutes=minutes, seed=seed, opinion=not robotic)
    for name, found in phonemes(voice, minutes=minutes, seed=seed).items() if robotic else ():
        heard[name] = heard.get(name, {}) | found
    return {
        "seed": seed,
        "trained": trained,
        "config": manifest(voice).get("config", {}),
        "heard": heard,
        "precision": precision(voice, fixes=fixes, seed=seed),
        "sound": sounds(voice, conditions=(*fixes, *CONTROLS), seed=seed),
    }


def phonemes(voice: Path | None, *, minutes: float, seed: int, n_streams: int = 12) -> dict[str, Any]:
    """Phonemes right, mean of all speakers: original (of speaker 0), its tokens through codec and vocoder, voice."""
    found = check_voice(voice, minutes=minutes, n_streams=n_streams, seed=seed)
    rows = {"original": [found["original"]], "codec": found["resynthesised"], "voice": found["free_running"]}
    parts = ("value", "first_third", "last_third")
    return {
        name: {"phonemes_right": {part: float(np.mean([one[part] for one in heard])) for part in parts}}
        for name, heard in rows.items()
    }


def hearing(voice: Path | None, *, minutes: float, seed: int, opinion: bool = True) -> dict[str, Any]:
    """Let the judges hear original, codec and voice; nothing where the scripts hold no text, as the shipped ones."""
    sentences = sentences_of(voice)
    if not sentences:
        return {}
    n_frames = round(minutes * 60 * FRAME_RATE_HZ)
    (stream,) = load_streams(1, n_frames=PROMPT_FRAMES + n_frames, voice=voice)
    n_frames = min(n_frames, len(stream.tokens) - PROMPT_FRAMES)
    codec = Codec.load(asset_path("codec.safetensors", voice))
    network = MagnitudeNetwork.load(asset_path("vocoder.safetensors", voice))
    with opened("full_float32", n_streams=1, voice=voice) as decoder:
        frames = free_run(decoder, [stream], prompt_frames=PROMPT_FRAMES, n_frames=n_frames, seed=seed)
        spoken = np.concatenate([stream.tokens[:PROMPT_FRAMES], np.concatenate(list(frames))])
    renderings = {
        "original": original_speech(voice)[0],
        "codec": vocode(codec.decode(stream.tokens[: len(spoken)]), network=network),
        "voice": vocode(codec.decode(spoken), network=network),
    }
    hear, mos = _opened(chosen_judges("whisper")[0].opened), _opened(MOS.opened) if opinion else "blind here"
    return {name: _heard(samples, sentences, hear=hear, mos=mos) for name, samples in renderings.items()}


def sentences_of(voice: Path | None) -> list[Sentence]:
    """First frame and text of each sentence of the first script."""
    with safe_open(asset_path("scripts.safetensors", voice), framework="numpy") as file:
        return [(int(first), text) for first, text in json.loads((file.metadata() or {}).get("sentences.0", "[]"))]


def _opened(judge: Callable[[], Any]) -> Any:
    try:
        return judge()
    except UnsupportedError as error:
        return str(error)


def parts_of(sentences: Sequence[Sentence], *, n_frames: int) -> Iterator[tuple[slice, str]]:
    """Join whole sentences after the prompt into parts that are short enough; those cut off at the end are left out."""
    ends = [first for first, _ in sentences[1:]]
    group: list[str] = []
    begin = end = 0
    for (first, text), last in zip(sentences, ends, strict=False):
        if first < PROMPT_FRAMES:
            continue
        if last > n_frames:
            break
        if group and last - begin > MOST_FRAMES:
            yield slice(begin, end), " ".join(group)
            group = []
        begin = begin if group else first
        group, end = [*group, text], last
    if group:
        yield slice(begin, end), " ".join(group)


def _heard(samples: np.ndarray, sentences: Sequence[Sentence], *, hear: Any, mos: Any) -> dict[str, Any]:
    """Words wrong and MOS, over all and by part, of what comes after the prompt."""
    heard: dict[str, Any] = {"seconds": len(samples) / SAMPLE_RATE_HZ}
    if isinstance(hear, str):
        heard["missing"] = hear
    else:
        rows = []
        for part, text in parts_of(sentences, n_frames=len(samples) // HOP_SAMPLES):
            said = normalised(text).split()
            found = hear(samples[part.start * HOP_SAMPLES : part.stop * HOP_SAMPLES]).split()
            rows.append((word_errors(said, found), len(said), *words_skipped_and_doubled(said, found)))
        wrong, words, skipped, doubled = np.asarray(rows, dtype=float).reshape(-1, 4).T
        thirds = [part.sum() for part in np.array_split(wrong, 3)], [part.sum() for part in np.array_split(words, 3)]
        heard |= {"words": int(words.sum()), "wer": float(wrong.sum() / max(words.sum(), 1))}
        heard |= {"words_skipped": int(skipped.sum()), "words_doubled": int(doubled.sum())}
        heard["wer_thirds"] = [float(errors / said) if said else None for errors, said in zip(*thirds, strict=True)]
    if not isinstance(mos, str):
        after = samples[PROMPT_FRAMES * HOP_SAMPLES :]
        starts = range(0, len(after) - MOS_SAMPLES + 1, MOS_SAMPLES)
        scores = [float(mos(np.ascontiguousarray(after[first : first + MOS_SAMPLES]))) for first in starts]
        heard |= {
            "mos": float(np.mean(scores)),
            "mos_thirds": [float(p.mean()) for p in np.array_split(scores, 3) if len(p)],
        }
    return heard


def precision(
    voice: Path | None, *, fixes: Sequence[str], seed: int, n_streams: int = 4, n_frames: int = 600
) -> dict[str, Any]:
    """Drift against float64 under teacher forcing, sharpness of attention, and divergence of free-running streams."""
    streams = load_streams(n_streams, n_frames=PROMPT_FRAMES + n_frames, voice=voice)
    truth, spoken, _ = _run("reference", streams, voice=voice, n_frames=n_frames, seed=seed)
    rows = {}
    for fix in fixes:
        logits, tokens, sharpness = _run(fix, streams, voice=voice, n_frames=n_frames, seed=seed)
        series = DriftSeries.collect(logits, truth)
        drift = {k: v for k, v in summarise(series, frame_rate_hz=FRAME_RATE_HZ, seed=seed).items() if k != "series"}
        apart = token_divergence(tokens, spoken, frame_rate_hz=FRAME_RATE_HZ)
        del apart["survival"]
        rows[fix] = {
            "drift": drift,
            "divergence": apart,
            "max_abs_logit": sharpness.max_abs_logit,
            "attention_entropy_nats": sharpness.entropy_nats,
        }
    return rows


def sounds(
    voice: Path | None, *, conditions: Sequence[str], seed: int, n_streams: int = 32, n_frames: int = 5 * FRAME_RATE_HZ
) -> dict[str, Any]:
    """Verdicts on each condition, of streams on the same passages with the same noise, beside those of another seed."""
    streams = passages(n_streams, n_frames=n_frames, voice=voice)
    listener = Listener(streams, waveforms(original_tokens(streams, n_frames=n_frames), voice), voice=voice)
    data: dict[str, Any] = {}
    for condition in ("reference", "noise_floor", *conditions):
        tokens = spoken_tokens(condition, streams, n_frames=n_frames, seed=seed, voice=voice)
        renderings = waveforms(tokens, voice)
        heard = listener.heard(renderings)
        data[condition] = {"streams": n_streams, "stream_s": n_frames / FRAME_RATE_HZ, "heard": heard}
        if condition == "reference" and voice is not None:
            data[condition]["margins"] = margins_of(listener, renderings, heard)
    reference, noise_floor = data.pop("reference"), data.pop("noise_floor")
    return {name: verdict.to_dict() for name, verdict in judged_sound(data, reference, noise_floor).items()}


HEARD = {
    "WER": lambda heard: f"{heard['wer']:.1%}",
    "skipped, doubled": lambda heard: f"{heard['words_skipped']}, {heard['words_doubled']} of {heard['words']}",
    "MOS": lambda heard: f"{heard['mos']:.2f}",
    "phonemes right": lambda heard: f"{heard['phonemes_right']['value']:.1%}",
}
"""Columns of a table of renderings."""


def heard_texts(heard: Mapping[str, Any]) -> list[str]:
    """Cells of :data:`HEARD`; what was not judged is a dash."""
    texts = []
    for text in HEARD.values():
        try:
            texts.append(text(heard))
        except KeyError:
            texts.append(MISSING)
    return texts


def sound_table(found: Mapping[str, Any], *, title: str = "") -> Table:
    """Write verdicts as a table."""
    rows = []
    for name, verdict in found.items():
        decisions = {key: DifferenceDecision(**decision) for key, decision in verdict["metrics"].items()}
        shown = [metric for metric in VOICE_METRICS if metric.name in decisions]
        rows.append((name, verdict["verdict"], *(metric.range_text(decisions[metric.name]) for metric in shown)))
    return make_table(("condition", "verdict", *(metric.title for metric in shown)), rows, title=title)


def _run(
    condition: str, streams: Sequence[Stream], *, voice: Path | None, n_frames: int, seed: int
) -> tuple[list[Any], np.ndarray, Any]:
    with opened(condition, n_streams=len(streams), voice=voice) as decoder, probing(every=37) as sharpness:
        logits = [step.clone() for step in teacher_forced(decoder, streams, n_frames=n_frames)]
    with opened(condition, n_streams=len(streams), voice=voice) as decoder:
        key = noise_seed(condition, seed)
        frames = free_run(decoder, streams, prompt_frames=PROMPT_FRAMES, n_frames=n_frames - PROMPT_FRAMES, seed=key)
        return logits, np.stack(list(frames)), sharpness
