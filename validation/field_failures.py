"""Failures that users reported of long speech, rebuilt on the shipped voice: is each called *precision* or *bug*?

Every failure is the voice with one mechanism changed, which in exact arithmetic does nothing where its cause is
precision (but that padding hides 8 frames of the prompt). It is spoken twice, as reported and in float64: what float64
cures is *precision*, what float64 has too is a *bug*. Both are judged by sound, beside the reference on the same
passages and noise, and the doctor is asked where the model itself goes wrong::

    python -m validation field-failures --out results/field-failures
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from precision_eval.cases.voice.assets import load_model
from precision_eval.cases.voice.model import Positions, VoiceAttention, VoiceModel, rotate
from precision_eval.cases.voice.synthesis import Decoder, Frames, Stream, free_run, stacked, teacher_forced_inputs
from precision_eval.measure.sound import LONG_PROMPT_FRAMES, Listener, original_tokens, passages, waveforms
from precision_eval.results.sound import VOICE_METRICS, SoundVerdict, judged_sound
from validation.frame import Data, Experiment, Figure, Options, Trial

PROMPT_FRAMES = 512  # the ring is full, and turns from the first frame on
PADDING_FRAMES = 8
DOCTOR_FRAMES = 16
_OTHER_NOISE = 1_000_003


def _overflowing_keys(decoder: Decoder, model: VoiceModel) -> None:
    """Keys 2¹³ times as large and queries as much smaller: the same logits, and keys that float16 cannot hold."""
    for attention in model.attentions:
        queries, keys, _ = attention.qkv.weight.chunk(3)
        queries.mul_(2.0**-13)
        keys.mul_(2.0**13)


class EagerAttention(VoiceAttention):
    """Written by hand, with float32's smallest number as the mask: bfloat16 rounds it to −inf."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, slot: int | None) -> Tensor:
        """Attend, result (B, T, width)."""
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        k, v = self.stored(rotate(k, cos, sin), v, cast(int, slot))  # (B, H, W, D)
        hidden = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min).to(x.dtype)
        logits = rotate(q, cos, sin) @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + hidden
        return self.out((logits.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1))

    def stored(self, k: Tensor, v: Tensor, slot: int) -> tuple[Tensor, Tensor]:
        """Write keys and values into the ring and return it."""
        self.key_cache[:, :, slot : slot + k.shape[2]] = k
        self.value_cache[:, :, slot : slot + k.shape[2]] = v
        return self.key_cache, self.value_cache


class NormedAttention(EagerAttention):
    """A norm of queries and keys, undone by its gain: autocast has it in float32, and the values in bfloat16."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, slot: int | None) -> Tensor:
        """Attend, result (B, T, width)."""
        B, T, _ = x.shape
        with torch.autocast("cpu", torch.bfloat16, enabled=x.dtype == torch.float32):
            q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
            q, k = _normed(rotate(q, cos, sin)), _normed(rotate(k, cos, sin))
            k, v = self.stored(k, v, cast(int, slot))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # beyond autocast, as a kernel is that it knows not
        return self.out(y.transpose(1, 2).reshape(B, T, -1))


def _normed(x: Tensor) -> Tensor:
    """``layer_norm`` of x and −x, which has no mean, times the root mean square: x."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))  # as autocast does on CUDA, and not on a CPU
    normed = F.layer_norm(torch.cat([x, -x], dim=-1), (2 * x.shape[-1],), eps=0.0)[..., : x.shape[-1]]
    return normed * x.square().mean(-1, keepdim=True).sqrt()


def _with_attention(kind: type[VoiceAttention]) -> Callable[[Decoder, VoiceModel], None]:
    def change(decoder: Decoder, model: VoiceModel) -> None:
        for attention in model.attentions:
            attention.__class__ = kind

    return change


def _padded(decoder: Decoder, model: VoiceModel) -> None:
    """The first frames are padding that nobody may see, they themselves included, until the ring is written over it."""
    _with_attention(EagerAttention)(decoder, model)
    slots, mask = torch.arange(decoder.window_frames), decoder._mask

    def padded(count: int) -> Tensor:
        written_over = slots < decoder.frame + count - decoder.window_frames
        return mask(count) & ((slots >= PADDING_FRAMES) | written_over)

    decoder._mask = padded  # type: ignore[method-assign]


class SummedPositions(Positions):
    """Each angle is the one before plus the frequency, in the model's dtype."""

    def __call__(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each (count, D/2)."""
        angles, angle = [], torch.zeros_like(self._frequency)
        for _ in range(first + count):
            angles.append(angle)
            angle = angle + self._frequency
        rows = torch.stack(angles[first:])
        return rows.cos().to(self._dtype), rows.sin().to(self._dtype)


class RestartedPositions(Positions):
    """A position is the slot in the ring: where it turns, the newest frame lies before all that it has heard."""

    def __call__(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each (count, D/2)."""
        return super().__call__(first % PROMPT_FRAMES, count)


def _with_positions(kind: type[Positions]) -> Callable[[Decoder, VoiceModel], None]:
    def change(decoder: Decoder, model: VoiceModel) -> None:
        dtype = model.heads.weight.dtype
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        decoder._positions = kind(model.config, dtype=wide, angle_dtype=dtype)

    return change


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A report, its symptom, the mechanism rebuilt, the dtype it was met in, and what the verdict must be."""

    name: str
    report: str
    symptom: str
    change: Callable[[Decoder, VoiceModel], None]
    dtype: torch.dtype
    cache_dtype: torch.dtype
    cause: str


FAILURES: tuple[Failure, ...] = (
    Failure(
        name="repeated tokens",
        report="soniqo/speech-swift#396",
        symptom="float16 decode on the cache repeats tokens; bfloat16 cures it",
        change=_overflowing_keys,
        dtype=torch.float16,
        cache_dtype=torch.float16,
        cause="precision",
    ),
    Failure(
        name="silence",
        report="vllm-project/vllm-omni#1663",
        symptom="NaN in bfloat16 gives silence; float32 cures it",
        change=_padded,
        dtype=torch.bfloat16,
        cache_dtype=torch.bfloat16,
        cause="precision",
    ),
    Failure(
        name="accumulated error",
        report="tenstorrent/tt-metal#38687",
        symptom="what is summed step by step is off after long output; float32 cures it",
        change=_with_positions(SummedPositions),
        dtype=torch.bfloat16,
        cache_dtype=torch.bfloat16,
        cause="precision",
    ),
    Failure(
        name="decay with a rotating cache",
        report="kyutai-labs/delayed-streams-modeling#106",
        symptom="speech is garbled once the cache has turned",
        change=_with_positions(RestartedPositions),
        dtype=torch.float32,
        cache_dtype=torch.float32,
        cause="bug",
    ),
    Failure(
        name="autocast layer norm",
        report="NVIDIA/physicsnemo#1978",
        symptom="under autocast the norm returns float32 queries and keys beside bfloat16 values",
        change=_with_attention(NormedAttention),
        dtype=torch.float32,
        cache_dtype=torch.bfloat16,
        cause="precision",
    ),
)


def built(failure: Failure | None, *, wide: bool, n_streams: int) -> tuple[Decoder, VoiceModel]:
    """Return the voice with a failure, as reported or in float64; without one, the reference."""
    dtype = torch.float64 if wide or failure is None else failure.dtype
    model = load_model().to(dtype)
    cache_dtype = torch.float64 if dtype == torch.float64 or failure is None else failure.cache_dtype
    model.allocate_cache(n_streams, window_frames=PROMPT_FRAMES, dtype=cache_dtype)
    decoder = Decoder(model)
    if failure is not None:
        failure.change(decoder, model)
    return decoder, model


def spoken(decoder: Decoder, streams: Sequence[Stream], *, n_frames: int, seed: int = 0) -> np.ndarray:
    """Speak the passages, tokens (streams, n_frames, K)."""
    first = LONG_PROMPT_FRAMES - PROMPT_FRAMES
    voices = [Stream(stream.conditioning[first:], stream.tokens[first:]) for stream in streams]
    return np.stack(list(free_run(decoder, voices, prompt_frames=PROMPT_FRAMES, n_frames=n_frames, seed=seed)), axis=1)


class Prompt(nn.Module):
    """The first frames of a stream in one call, as the doctor examines it."""

    def __init__(self, decoder: Decoder, model: VoiceModel) -> None:
        super().__init__()
        self.voice = model
        self.rotation, self.mask = decoder._rotation(DOCTOR_FRAMES), decoder._mask(DOCTOR_FRAMES)

    def forward(self, tokens: Tensor, phoneme: Tensor, next_phoneme: Tensor, progress: Tensor) -> Tensor:
        """Return the logits."""
        return cast(Tensor, self.voice(tokens, phoneme, next_phoneme, progress, *self.rotation, self.mask, 0))


def examined(failure: Failure, stream: Stream) -> Data:
    """Ask the doctor: the status of the call, and its first fault with the place."""
    from precision_eval.doctor.examination import examine

    decoder, model = built(failure, wide=False, n_streams=1)
    tokens = teacher_forced_inputs([stream], n_frames=DOCTOR_FRAMES, empty=model.config.codebook_size)
    frames: Frames = stacked([stream.conditioning[:DOCTOR_FRAMES]])
    diagnosis = examine(Prompt(decoder, model).eval(), tokens, *frames, fixes=False, compiled=False)
    fault = diagnosis.raised or next(iter(diagnosis.faults), None)
    return {"status": diagnosis.status, "fault": f"{fault.kind} in {fault.module}" if fault else ""}


def _trials(options: Options) -> list[Trial]:
    return [Trial("reference"), *(Trial(failure.name, failure) for failure in FAILURES)]


def _run(todo: Iterator[Trial], options: Options) -> Iterator[Data]:
    n_frames = round(50 * options["seconds"])
    streams = passages(options["streams"], n_frames=n_frames)
    listener = Listener(streams, waveforms(original_tokens(streams, n_frames=n_frames)))

    def heard(failure: Failure | None, *, wide: bool, seed: int = 0) -> dict[str, Any]:
        decoder, _ = built(failure, wide=wide, n_streams=len(streams))
        try:
            tokens = spoken(decoder, streams, n_frames=n_frames, seed=seed)
        except RuntimeError as error:
            return {"raised": str(error).splitlines()[0]}
        data = {"streams": len(streams), "stream_s": n_frames / 50, "heard": listener.heard(waveforms(tokens))}
        return data | {"repeated": repeated(tokens)}

    for key, failure, _ in todo:
        if failure is None:
            yield {"key": key, "same": heard(None, wide=True), "other": heard(None, wide=True, seed=_OTHER_NOISE)}
        else:
            doctor = examined(failure, copy.deepcopy(streams[0]))
            yield {
                "key": key,
                "reported": heard(failure, wide=False),
                "float64": heard(failure, wide=True),
                "doctor": doctor,
            }


def repeated(tokens: np.ndarray) -> float:
    """Share of the frames whose first token is that of the frame before."""
    return float((tokens[:, 1:, 0] == tokens[:, :-1, 0]).mean())


def verdict_of(reported: SoundVerdict | None, wide: SoundVerdict | None) -> str:
    """*Bug* where float64 is worse too, *precision* where it is not and as reported it is or raises; else undecided."""
    if wide is None or wide.verdict == "worse":
        return "bug"
    return "precision" if reported is None or reported.verdict == "worse" else "undecided"


def _summary(lines: list[Data], options: Options) -> Data | None:
    known = {line["key"]: line for line in lines}
    if "reference" not in known:
        return None
    reference, other = known["reference"]["same"], known["reference"]["other"]
    rows = {}
    for failure in FAILURES:
        if (line := known.get(failure.name)) is None:
            continue
        heard = {name: line[name] for name in ("reported", "float64") if "heard" in line[name]}
        verdicts = judged_sound(heard, reference, other, metrics=VOICE_METRICS)
        rows[failure.name] = {
            "verdict": verdict_of(verdicts.get("reported"), verdicts.get("float64")),
            "sound": {name: _text(verdicts.get(name)) for name in ("reported", "float64")},
            "raised": line["reported"].get("raised"),
            "repeated": line["reported"].get("repeated"),
            "doctor": line["doctor"],
        }
    about = {name: reference[name] for name in ("streams", "stream_s", "repeated")}
    return about | {"rows": rows}


def _text(verdict: SoundVerdict | None) -> str:
    if verdict is None:
        return "raised"
    changes = {name: decision.estimate for name, decision in verdict.metrics.items()}
    return f"{verdict.verdict}: {'; '.join(f'{m.title} {m.text(changes[m.name])}' for m in VOICE_METRICS)}"


def _figures(content: Data) -> list[Figure]:
    figures = []
    for failure in FAILURES:
        if (row := content["rows"].get(failure.name)) is None:
            continue
        doctor = row["doctor"]
        columns = {
            "as reported": row["sound"]["reported"],
            "in float64": row["sound"]["float64"],
            "frames that repeat their first token": "–" if row["repeated"] is None else f"{row['repeated']:.0%}",
            "doctor": f"{doctor['status']}: {doctor['fault'] or 'no fault'}",
        }
        name = f"{failure.name} ({failure.report})"
        figures.append(Figure(name, row["verdict"], failure.cause, row["verdict"] == failure.cause, columns))
    return figures


def _notes(content: Data) -> list[str]:
    spoken_s = f"{content['streams']} streams of {content['stream_s']:g} s after a prompt of {PROMPT_FRAMES / 50:g} s"
    return [f"{spoken_s}. The reference repeats the first token in {content['repeated']:.0%} of its frames."]


EXPERIMENT = Experiment(
    name="field-failures",
    title="failures from the field: precision or bug?",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    notes=_notes,
    settings={"streams": (16, 16), "seconds": (5.0, 5.0)},
)
