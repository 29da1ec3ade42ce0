"""How drift and bytes of narrow caches go with the length of the cache.

One call attends to a full float16 cache of L slots. *decode*: one query, *prefill*: the last 64 of L queries under the
causal mask, as the last block of a prefill in blocks; both of two heads of 128, all normal. *voice*: what the shipped
voice wrote itself, in windows of its 512 frames laid one after the other (positions begin anew in each), over speakers
from the seed's on, in the seed's layer; the query is that of the last frame. The reference is float64 on the stored
float16 cache, one head at a time. A trial is one seed, length and fix. Growth is drift over that of the shortest
length, paired by seed. *whisper*, with ``--set speech=FOLDER`` of human speech (docs/whisper.md): the cross-caches of
Whisper tiny.en, 1,500 slots an utterance, of utterances from the seed's on laid one after the other, in the seed's
layer; the query is that of the eighth token of the last.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.attention import Shape, attention_case
from precision_eval.cases.systems.system import CachedAttention
from precision_eval.core.cells import failure_of
from precision_eval.core.environment import cpu_model
from precision_eval.core.errors import UnsupportedError, unknown_name
from precision_eval.core.table import Code, make_table, to_markdown
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.fixes.compute import AttentionCall, AttentionReplaced
from precision_eval.fixes.storage import storage_bytes
from precision_eval.report.drawing import dress, new_figure, save, style_of
from validation.candidates import in_workers, interval
from validation.frame import Data, Experiment, Figure, Options, Trial

LENGTHS = ("512", "2048", "8192", "32768", "131072")
FIXES = (
    "kv_to_query", "query_to_half", "scores_stored", "cache_int8_token", "cache_int8_head", "cache_int8_tensor",
    "cache_e4m3_token", "cache_e4m3_tensor", "cache_e5m2_token", "cache_e5m2_tensor",
)  # fmt: skip
KINDS = ("decode", "prefill", "voice", "whisper")
GROWN = 1.1
"""Growth is said from the length on where its interval is above this, a tenth more drift, at all greater lengths."""


class _Recorded(AttentionReplaced):
    """Keeps the operands of every attention."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: list[tuple[torch.Tensor, ...]] = []

    def attend(self, query: Any, key: Any, value: Any, mask: Any, call: AttentionCall) -> torch.Tensor:
        """Attend, and keep."""
        self.operands.append((query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **call._asdict())


@torch.no_grad()
def voice_case(length: int, *, seed: int) -> BuiltCase:
    """Build attention of the voice's last frame to what the voice wrote in whole windows."""
    from precision_eval.cases.voice.assets import load_model, load_streams
    from precision_eval.cases.voice.model import Positions
    from precision_eval.cases.voice.synthesis import stacked, teacher_forced_inputs

    model = load_model()
    frames = model.config.window_frames
    windows = length // frames
    speakers, layer = 12, seed % model.config.n_layers
    streams = load_streams(speakers, n_frames=frames)
    order = [streams[(seed + index) % speakers] for index in range(speakers)]
    per_speaker = min(len(stream.tokens) for stream in streams) // frames
    places = [(stream, frames * index) for stream in order for index in range(per_speaker)][:windows]
    cos, sin = Positions(model.config, dtype=torch.float32)(0, frames)
    mask = torch.ones(frames, frames, dtype=torch.bool).tril()
    keys, values = [], []
    for at in range(0, windows, 8):
        chosen = [type(s)(s.conditioning[first:], s.tokens[first:]) for s, first in places[at : at + 8]]
        tokens = teacher_forced_inputs(chosen, n_frames=frames, empty=model.config.codebook_size)
        given = (tokens, *stacked([stream.conditioning[:frames] for stream in chosen]))
        with _Recorded() as recorded:
            model(*given, cos, sin, mask, None)
        query, key, value = recorded.operands[layer]
        keys += key.half().unbind(0)
        values += value.half().unbind(0)
    key, value = (torch.cat(parts, dim=1)[None] for parts in (keys, values))  # (1, H, L, D)
    everything = torch.ones(1, 1, 1, length, dtype=torch.bool)
    attention = CachedAttention(key, value, everything, scale=None).eval()
    return BuiltCase(attention, (query[-1:, :, -1:].contiguous(),))


@torch.no_grad()
def whisper_case(length: int, *, seed: int, speech: str | None) -> BuiltCase:
    """Build attention of a token to what Whisper keeps of whole utterances."""
    from precision_eval.cases.adapters.speech import utterances
    from precision_eval.cases.adapters.whisper_model import decoder, likeliest, spectrogram

    model, spoken = decoder(cache_dtype=torch.float32), utterances(speech)
    slots, layers = model.encoded.shape[1], model.whisper.config.decoder_layers
    windows = -(-length // slots)
    if windows > len(spoken):
        raise UnsupportedError(f"{length:,} slots take {windows} utterances; there are {len(spoken)}")
    keys, values = [], []
    for index in range(windows):
        features = spectrogram(spoken[(seed * windows + index) % len(spoken)].samples)
        with _Recorded() as recorded:
            model.transcribe(features, partial(likeliest, first=True), 8)
        crossed = [operands for operands in recorded.operands if operands[1].shape[2] == slots][-layers:]
        query, key, value = crossed[seed % layers]
        keys.append(key.half())
        values.append(value.half())
    key, value = (torch.cat(parts, dim=2)[:, :, :length].contiguous() for parts in (keys, values))  # (1, H, L, D)
    everything = torch.ones(1, 1, 1, length, dtype=torch.bool)
    scaled = query * key.shape[-1] ** 0.5  # Whisper has scaled it already
    return BuiltCase(CachedAttention(key, value, everything, scale=None).eval(), (scaled,))


def case_of(kind: str, length: int, *, seed: int, speech: str | None = None) -> BuiltCase:
    """Build a case of a kind at a length."""
    if kind == "voice":
        return voice_case(length, seed=seed)
    if kind == "whisper":
        return whisper_case(length, seed=seed, speech=speech)
    shape = Shape(
        batch=1, query_heads=2, cache_heads=2, slots=length, head_dim=128, filled=length, scale=None, prefill_tokens=64
    )
    return attention_case(shape, device="cpu", seed=seed, prefill=kind == "prefill")


def exact(built: BuiltCase) -> torch.Tensor:
    """Attend in float64, one head at a time; (1, H, L, D)."""
    model: Any = built.model
    heads = []
    for head in range(model.key.shape[1]):
        key, value = model.key[0, head].double(), model.value[0, head].double()
        scores = built.inputs[0][0, head].double() @ key.T * key.shape[-1] ** -0.5
        heads.append(scores.masked_fill(~model.mask[0, 0], float("-inf")).softmax(-1) @ value)
    return torch.stack(heads)[None]


@torch.no_grad()
def measured(kind: str, length: int, seed: int, speech: str, fixes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return status, drift and bytes of keys and values of each fix."""
    built = case_of(kind, length, seed=seed, speech=speech or None)
    reference = exact(built)
    # how much smaller the output is than a value: what attention averages over
    attention: Any = built.model
    spread = attention.value.float().square().mean().sqrt() / reference.square().mean().sqrt()
    rows = []
    for fix in fixes:
        row = {"kind": kind, "length": length, "seed": seed, "fix": fix}
        try:
            with fix_by_id(fix).applied(copy.deepcopy(built.model)) as call:
                output = call(*call.prepare(built.inputs)).double()
                held = storage_bytes(call.model) - attention.mask.nbytes
            error = float((output - reference).norm() / reference.norm())
            row |= {"status": "passed", "drift": error, "cache_bytes": held, "averaging": float(spread)}
        except Exception as error:  # noqa: BLE001 - whatever a fix raises is its result
            outcome = failure_of(fix, error)
            row |= {"status": outcome.status, "reason": outcome.reason}
        rows.append(row)
    return rows


def _trials(options: Options) -> list[Trial]:
    """Short lengths first."""
    for kind in options["kinds"]:
        if kind not in KINDS:
            raise unknown_name("kind", kind, KINDS)
    here = f"{torch.__version__}/{cpu_model()}"
    return [
        Trial(f"{here}/{kind}/{length}/{seed}/{fix}", ((kind, length, seed, options["speech"]), fix))
        for length in map(int, options["lengths"])
        for kind in options["kinds"]
        for seed in range(options["seeds"])
        for fix in FIXES
    ]


Curve = dict[int, dict[int, float]]


def curves(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, Curve, dict[int, int]]]:
    """Yield kind, fix, length → seed → drift, and length → bytes; lengths that lack seeds are left out."""
    for kind in KINDS:
        for fix in FIXES:
            own = [row for row in rows if (row["kind"], row["fix"]) == (kind, fix) and "drift" in row]
            lengths = sorted({row["length"] for row in own})
            every = {n: {row["seed"]: row["drift"] for row in own if row["length"] == n} for n in lengths}
            seeds = max(map(len, every.values()), default=0)
            drifts = {n: found for n, found in every.items() if len(found) == seeds}
            if drifts and seeds > 1:  # one has no interval
                yield kind, fix, drifts, {row["length"]: row["cache_bytes"] for row in own}


def growth(drifts: Curve) -> dict[int, tuple[float, float, float]]:
    """Return drift over that at the shortest length, paired by seed, with its 95 % interval."""
    first = drifts[min(drifts)]
    return {
        length: interval([found[seed] / first[seed] for seed in sorted(found.keys() & first.keys())])
        for length, found in drifts.items()
        if length != min(drifts) and len(found.keys() & first.keys()) > 1
    }


def grows_from(drifts: Curve) -> int | None:
    """Return the least length from which on drift is more than a tenth above that of the shortest; None if nowhere."""
    lengths = sorted(growth(drifts).items())
    start = None
    for length, (_, low, _) in lengths:
        start = (start or length) if low > GROWN else None
    return start


def table(rows: list[dict[str, Any]]) -> str:
    """Return drift by length as Markdown, one table a kind."""
    found = list(curves(rows))
    parts = []
    for kind in dict.fromkeys(one[0] for one in found):
        own = [one for one in found if one[0] == kind]
        lengths = sorted({length for one in own for length in one[2]})
        seeds = min(len(seeds) for one in own for seeds in one[2].values())
        lines = []
        for _, fix, drifts, held in own:
            cells = [f"{interval(list(drifts[n].values()))[0]:.2e}" if n in drifts else "–" for n in lengths]
            lines.append((Code(fix), f"{held[max(held)] / max(held):.1f}", *cells, *_growth_texts(drifts, lengths[-1])))
        head = ("fix", "bytes a slot", *(f"{length:,}" for length in lengths), "growth", "from")
        parts += [f"**{kind}**, {seeds} seeds", to_markdown(make_table(head, lines))]
    return "\n\n".join(parts)


def _growth_texts(drifts: Curve, longest: int) -> tuple[str, str]:
    """Return the growth at the longest length, and the least of the measured ones from which on it is one."""
    grown, start = growth(drifts).get(longest), grows_from(drifts)
    return "–" if grown is None else "× {:.2f} [{:.2f}, {:.2f}]".format(*grown), f"{start:,}" if start else "nowhere"


def _figures(lines: list[Data]) -> list[Figure]:
    figures = []
    for kind, fix, drifts, held in curves(lines):
        grown, start = _growth_texts(drifts, max(drifts))
        columns = {"bytes a slot": f"{held[max(held)] / max(held):.1f}", "grows from": start}
        name = f"{kind}: {fix}, drift at {max(drifts):,} slots ÷ at {min(drifts):,}"
        figures.append(Figure(name, grown, rivals=columns))
    return figures


def draw(rows: list[dict[str, Any]], out: Path) -> list[Path]:
    """Draw drift by length, one panel a kind."""
    found = list(curves(rows))
    kinds = list(dict.fromkeys(one[0] for one in found))
    if not kinds:
        return []  # nothing has two seeds
    figure = new_figure(4.2 * len(kinds), 4.4)
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    dashes = {"token": "-", "head": "--", "tensor": ":"}
    for axes, kind in zip(panels, kinds, strict=True):
        for _, fix, drifts, _ in (one for one in found if one[0] == kind):
            lengths = sorted(drifts)
            means, lows, highs = zip(*(interval(list(drifts[n].values())) for n in lengths), strict=True)
            style = style_of(fix)
            dash = dashes.get(fix.rpartition("_")[2], "-")
            errors = np.abs(np.array([lows, highs]) - means)
            axes.errorbar(
                lengths, means, errors, label=fix, color=style.colour, marker=style.marker, linestyle=dash,
                markersize=4, linewidth=1, capsize=2,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("slots of the cache")
        dress(axes, title=kind)
    panels[0].set_ylabel("drift to float64")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7, frameon=False
    )
    return save(figure, out, "lengths")


EXPERIMENT = Experiment(
    name="lengths",
    title="drift and bytes of narrow caches by the length of the cache",
    trials=_trials,
    run=lambda trials, options: in_workers(trials, measured, ("kind", "length", "seed")),
    figures=_figures,
    plots=draw,
    settings={
        "kinds": (KINDS[:1], KINDS[:3]),  # whisper needs its wheel, and speech
        "lengths": (LENGTHS[:2], LENGTHS),
        "seeds": (2, 8),
        "speech": ("", ""),
    },
)
