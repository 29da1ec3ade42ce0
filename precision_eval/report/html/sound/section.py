"""The section itself: what of a run's sound goes into the HTML report, within a budget, a row per condition.

Conventions: a budget is in bytes of text, everything included. Pictures and words come first; what is left is for the
sound: the highest bit rate that fits, then an excerpt from both ends, then no players at all; the report says which.
Bit rate and parts are the same for every condition of a group. Groups share the budget by the length of their sound.
Identical sounds share one stream. WAVs are read block by block, one condition after the other.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from audio_metrics.errors import UndefinedMetricError
from audio_metrics.flags import clock
from audio_metrics.frames import FrameGrid
from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import duration_long, join
from precision_eval.core.targets import is_target
from precision_eval.report.drawing import style_of
from precision_eval.report.facts import Figure, figure
from precision_eval.report.html.paper import template_environment
from precision_eval.report.html.sound import spectrogram
from precision_eval.report.html.sound.coding import (
    SHORTEST_PART_S,
    CodingPlan,
    Loss,
    base64_bytes,
    coded_rate_hz,
    encode,
    loss_of,
    plans,
    why_not,
)
from precision_eval.report.html.sound.conditions import Sound, SoundGroup, Unheard, groups_of, has_wavs, opened
from precision_eval.report.html.sound.spectrogram import Picture
from precision_eval.results.reading import Run

_TICK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_MOST_TICKS = 10


@dataclass(frozen=True, kw_only=True)
class ConditionRow:
    """One condition."""

    name: str
    colour: str
    explanation: str
    lines: tuple[Markup, ...]
    alt: str
    picture: Picture | None
    same_as: str
    leaves_s: float | None
    mark: float | None
    heard_s: float = 0.0
    stream: str = ""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class SoundExcerpt:
    """One group."""

    group: SoundGroup
    rows: tuple[ConditionRow, ...]
    noise_floor_distance: Figure | None
    plan: CodingPlan | None = None
    loss: str = ""
    silent: str = ""

    @property
    def title(self) -> str:
        """Such as ``voice · default · cpu``."""
        return self.group.title

    @property
    def unheard(self) -> tuple[Unheard, ...]:
        """Conditions without sound."""
        return self.group.unheard

    @property
    def duration_s(self) -> float:
        """Of the axis of time."""
        return self.group.duration_s

    @property
    def length(self) -> str:
        """The duration in words."""
        return duration_long(self.duration_s)

    @property
    def sample_rate_hz(self) -> int:
        """Of every sound; 0 where there is none."""
        return self.group.sounds[0].sample_rate_hz if self.group.sounds else 0

    @property
    def coded_rate_hz(self) -> int:
        """Sample rate of the copies."""
        return coded_rate_hz(self.sample_rate_hz)

    @property
    def top_khz(self) -> str:
        """Highest frequency of the strips."""
        return f"{self.sample_rate_hz / 2000:g}"

    @property
    def level_name(self) -> str:
        """Whose strip is a level; empty where there is none."""
        if self.group.reference:
            return self.group.reference.label
        return "each condition" if any(row.picture for row in self.rows) else ""

    @property
    def differs(self) -> bool:
        """Whether a strip is a difference."""
        return self.group.reference is not None and any(row.picture for row in self.rows[1:])

    @property
    def stretches_s(self) -> list[tuple[float, float]]:
        """Start and length of what can be heard."""
        parts = self.plan.parts if self.plan else ()
        return [(start / self.sample_rate_hz, (stop - start) / self.sample_rate_hz) for start, stop in parts]

    @property
    def parts(self) -> str:
        """The same as JSON; empty where nothing can be heard."""
        return json.dumps(self.stretches_s) if self.plan else ""

    @property
    def heard(self) -> str:
        """What can be heard in words: ``the first 20 s, 12:20 to 12:40 and the last 20 s``."""
        (_, first_s), *middle, (_, last_s) = self.stretches_s
        ends = (duration_long(first_s), duration_long(last_s))
        between = [f"{clock(start)} to {clock(start + length)}" for start, length in middle]
        return join([f"the first {ends[0]}", *between, f"the last {ends[1]}"])

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Start and length, as shares, of what is shown and not heard."""
        ends = [start + length for start, length in self.stretches_s]
        starts = [start for start, _ in self.stretches_s]
        between = zip(ends[:-1], starts[1:], strict=True)
        return [(end / self.duration_s, (start - end) / self.duration_s) for end, start in between]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places on the axis, as shares, and their times."""
        whole = self.duration_s
        if not whole:
            return []
        step = next((step for step in _TICK_STEPS_S if whole / step <= _MOST_TICKS), _TICK_STEPS_S[-1])
        times = [step * i for i in range(math.floor(whole / step + 1e-9) + 1)]
        return [(min(1.0, time / whole), f"{time // 60}:{time % 60:02d}") for time in times]


def drawn(group: SoundGroup, number: int) -> SoundExcerpt:
    """Draw every sound of a group, without its stream."""
    rows = [_row(group, sound, stream=f"sound-{number}-stream-{i}") for i, sound in enumerate(group.sounds, start=1)]
    noise_floor = next((sound for sound in group.sounds if sound.role == "noise_floor"), None)
    return SoundExcerpt(
        group=group, rows=tuple(rows), noise_floor_distance=_distance(noise_floor) if noise_floor else None
    )


def _row(group: SoundGroup, sound: Sound, *, stream: str) -> ConditionRow:
    alike, leaves_s = group.first_alike(sound), sound.leaves_s
    if leaves_s is not None and (math.isinf(leaves_s) or sound.role == "reference"):
        leaves_s = None
    same_as = alike.label if alike is not sound else ""
    return ConditionRow(
        name=sound.label,
        colour="transparent" if sound.role == "original" else style_of(sound.fix).colour,
        explanation=sound.explanation,
        lines=_lines(group, sound),
        alt=_alt(group, sound),
        picture=None if same_as else _picture(group, sound),
        same_as=same_as,
        leaves_s=leaves_s,
        mark=None if leaves_s is None else min(1.0, leaves_s / group.duration_s),
        stream=stream,
    )


def _picture(group: SoundGroup, sound: Sound) -> Picture | None:
    """Draw a sound's difference to the reference; its level, where it is the reference or there is none."""
    reference = group.reference
    if sound.n_samples < FrameGrid(sound.sample_rate_hz, 1 << 30).frame_samples:
        return None
    with opened(sound) as source:
        if reference is None or sound is reference:
            share = sound.n_samples / group.n_samples
            return spectrogram.level_picture(spectrogram.level_columns(source), share=share)
        with opened(reference) as comparator:
            columns = spectrogram.difference_columns(comparator, source)
    share = min(sound.n_samples, reference.n_samples) / group.n_samples
    return spectrogram.difference_picture(columns, share=share)


def _distance(sound: Sound) -> Figure | None:
    path = ("against_reference", "log_spectral_distance_db", "mean")
    return figure(sound.measured, *path, write=lambda value: f"{value:.3g} dB")


def _lines(group: SoundGroup, sound: Sound) -> tuple[Markup, ...]:
    """Say what is known of a sound beside its strip."""
    lines = []
    if group.reference is not None and sound.role != "reference":
        lines += [Markup("{}").format(text) for text in (_leaving_text(sound),) if text]
        distance = _distance(sound)
        path = ("against_reference", "log_spectral_distance_db", "ratio_to_null")
        ratio = figure(sound.measured, *path, write=lambda value: f"{value:.2f}")
        if distance is not None:
            to_null = Markup(", {} of the noise floor's").format(ratio) if ratio and sound.role != "noise_floor" else ""
            lines.append(Markup("LSD to the reference {}{}").format(distance, to_null))
    if sound.peak > 1.0:
        lines.append(Markup("peaks at {} of full scale, where players clip").format(f"{sound.peak:.2f}"))
    return tuple(lines)


def _leaving_text(sound: Sound) -> str:
    # of a case from outside, tokens are not kept with the sound
    if sound.role == "original" or (sound.measured is not None and is_target(sound.measured.case)):
        return ""
    if sound.leaves_s is None:
        return "its tokens are not there, so it is not known when it leaves the reference's"
    if math.isinf(sound.leaves_s):
        return "the reference's tokens throughout"
    return f"leaves the reference's tokens at {sound.leaves_s:.2f} s"


def _alt(group: SoundGroup, sound: Sound) -> str:
    length = duration_long(sound.duration_s)
    if group.reference is None or sound.role == "reference":
        return f"Spectrogram of {sound.label} over {length}, 80 mel bands."
    distance, leaving = _distance(sound), _leaving_text(sound)
    words: Sequence[str] = (
        f"Level of {sound.label} less that of the reference over {length}, 80 mel bands",
        leaving,
        f"log-spectral distance {distance.text}" if distance else "",
    )
    return f"{'; '.join(word for word in words if word)}."


HERE = Path(__file__).parent
STREAM_TYPE = "data:audio/mpeg;base64,"

_GROUP_BYTES, _ROW_BYTES = 2000, 300  # of words and elements that only a group with players has


class BudgetError(ParameterError):
    """A section does not fit into its budget, even without sound."""


@dataclass(frozen=True, kw_only=True)
class SoundSection:
    """Fragments of the HTML report."""

    html: str
    style: str
    script: str
    bytes_used: int


def sound_section(run: Run, *, budget_bytes: int) -> SoundSection | None:
    """Make the part of a run's HTML report that can be heard."""
    if not has_wavs(run):
        return None
    shown = [drawn(group, number) for number, group in enumerate(groups_of(run), start=1)]
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("sound.css", "sound.js"))
    bare = _bytes(_html(shown) + style + script)
    left = budget_bytes - bare
    if left < 0:
        raise BudgetError(f"budget_bytes is {budget_bytes:,}; the section without sound has {bare:,}: give more")
    weights = [sum(_lengths(one.group)) for one in shown]
    total = sum(weights) or 1
    voiced = [_voiced(one, left * weight // total) for one, weight in zip(shown, weights, strict=True)]
    html = _html(voiced)
    return SoundSection(html=html, style=style, script=script, bytes_used=_bytes(html + style + script))


def _bytes(text: str) -> int:
    return len(text.encode())


def _html(shown: Sequence[SoundExcerpt]) -> str:
    return (
        template_environment(HERE)
        .get_template("sound.html")
        .render(
            groups=shown,
            level=spectrogram.LEVEL,
            louder=spectrogram.LOUDER,
            quieter=spectrogram.QUIETER,
            level_db=f"{spectrogram.LEVEL_DB:g}",
            difference_db=f"{spectrogram.DIFFERENCE_DB:g}",
        )
    )


def _unique(group: SoundGroup) -> list[Sound]:
    """Return the sounds that need a stream of their own."""
    return [sound for sound in group.sounds if group.first_alike(sound) is sound]


def _lengths(group: SoundGroup) -> list[int]:
    return [sound.n_samples for sound in _unique(group)]


def _voiced(section: SoundExcerpt, budget_bytes: int) -> SoundExcerpt:
    """Give a group its streams, as good as the budget allows."""
    group = section.group
    if not group.sounds:
        return section
    if refusal := why_not(section.sample_rate_hz):
        return _silenced(section, f"{refusal}.")
    spare = budget_bytes - _GROUP_BYTES - _ROW_BYTES * len(group.sounds)
    for plan in plans(_lengths(group), sample_rate_hz=section.sample_rate_hz, budget_bytes=spare):
        streams = _encoded(group, plan)
        if sum(base64_bytes(len(stream)) for stream in streams.values()) <= spare:
            break
    else:
        return _silenced(section, f"not even {SHORTEST_PART_S} s from each end fit into what this file may weigh.")
    loss = _loss_text(_losses(group, streams, plan))
    return replace(section, plan=plan, loss=loss, rows=_with_streams(section, streams, plan))


def _silenced(section: SoundExcerpt, why: str) -> SoundExcerpt:
    return replace(section, silent=why, rows=tuple(replace(row, stream="") for row in section.rows))


def _encoded(group: SoundGroup, plan: CodingPlan) -> dict[str, bytes]:
    """Compress every sound that needs a stream; digest → stream."""
    streams = {}
    for sound in _unique(group):
        with opened(sound) as source:
            streams[sound.digest] = encode(source, plan)
    return streams


def _losses(group: SoundGroup, streams: Mapping[str, bytes], plan: CodingPlan) -> list[Loss]:
    """Hold every copy to its WAV; digital silence has no distance."""
    losses = []
    for sound in _unique(group):
        with opened(sound) as source:
            try:
                losses.append(loss_of(source, streams[sound.digest], plan))
            except UndefinedMetricError:
                continue
    return losses


def _with_streams(shown: SoundExcerpt, streams: Mapping[str, bytes], plan: CodingPlan) -> tuple[ConditionRow, ...]:
    """Give every row its player; of identical sounds the first one's."""
    rows, owner = [], dict[str, str]()
    for row, sound in zip(shown.rows, shown.group.sounds, strict=True):
        first = sound.digest not in owner
        stream = owner.setdefault(sound.digest, row.stream)
        heard = sum(stop - start for start, stop in plan.heard(sound.n_samples)) / sound.sample_rate_hz
        source = STREAM_TYPE + base64.b64encode(streams[sound.digest]).decode("ascii") if first else ""
        rows.append(replace(row, stream=stream, heard_s=heard, source=source))
    return tuple(rows)


def _loss_text(losses: Sequence[Loss]) -> str:
    """Write what compression did to all sounds; empty where that has no value."""
    if not losses:
        return ""
    names = ("log_spectral_distance_db", "mel_mcd_db", "snr_db")
    spectral, cepstral, snr = (sorted(getattr(loss, name) for loss in losses) for name in names)
    level = max((loss.level_db for loss in losses), key=abs)
    return (
        f"{_span(spectral)} from its WAV in log-spectral distance and {_span(cepstral)} in mel-cepstral distortion, "
        f"with {_span(snr)} of SNR and at most {abs(level):.2f} dB off in level"
    )


def _span(values: Sequence[float]) -> str:
    low, high = f"{values[0]:.2g}", f"{values[-1]:.2g}"
    return f"{low} dB" if low == high else f"{low} to {high} dB"
