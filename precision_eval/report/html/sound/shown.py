"""What the section shows of a group: a row per condition with its strip, its words and its numbers.

Conventions: shares are of the group's duration, 0 to 1. Numbers that a record holds are
:class:`~precision_eval.report.html.figures.Figure`, which name where they come from. A strip is the difference to
the reference; the reference's own is its level, as is every one where the reference cannot be heard.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from audio_metrics.frames import FrameGrid
from precision_eval.core.drawing import style_of
from precision_eval.core.formatting import duration_long
from precision_eval.report.html.figures import Figure, figure
from precision_eval.report.html.sound import spectrogram
from precision_eval.report.html.sound.coding import Plan, coded_rate_hz
from precision_eval.report.html.sound.conditions import Sound, SoundGroup, Unheard, opened
from precision_eval.report.html.sound.spectrogram import Picture

Progress = Callable[[str], None]

_TICK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
_MOST_TICKS = 10


@dataclass(frozen=True, kw_only=True)
class ShownRow:
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
class Shown:
    """One group."""

    group: SoundGroup
    rows: tuple[ShownRow, ...]
    noise_floor_distance: Figure | None
    plan: Plan | None = None
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
    def part_s(self) -> int:
        """Length of the first stretch in whole seconds."""
        return round(self.stretches_s[0][1])

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


def drawn(group: SoundGroup, number: int, tell: Progress) -> Shown:
    """Draw every sound of a group, without its stream."""
    rows = []
    for index, sound in enumerate(group.sounds, start=1):
        tell(f"drawing {sound.label} of {group.title}")
        rows.append(_row(group, sound, stream=f"sound-{number}-stream-{index}"))
    noise_floor = next((sound for sound in group.sounds if sound.role == "noise_floor"), None)
    return Shown(group=group, rows=tuple(rows), noise_floor_distance=_distance(noise_floor) if noise_floor else None)


def _row(group: SoundGroup, sound: Sound, *, stream: str) -> ShownRow:
    alike, leaves_s = group.first_alike(sound), sound.leaves_s
    if leaves_s is not None and (math.isinf(leaves_s) or sound.role == "reference"):
        leaves_s = None
    same_as = alike.label if alike is not sound else ""
    return ShownRow(
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
    if sound.role == "original":
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
