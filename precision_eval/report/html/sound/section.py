"""The section itself: what of a run's sound goes into the HTML report, within a budget.

Conventions: a budget is in bytes of text, everything included. Pictures and words come first; what is left is for the
sound: the highest bit rate that fits, then an excerpt from both ends, then no players at all; the report says which.
Bit rate and parts are the same for every condition of a group. Groups share the budget by the length of their sound.
Identical sounds share one stream. WAVs are read block by block, one condition after the other.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from audio_metrics.errors import UndefinedMetricError
from precision_eval.core.errors import ParameterError
from precision_eval.report.html.sound import spectrogram
from precision_eval.report.html.sound.coding import (
    SHORTEST_PART_S,
    Loss,
    Plan,
    base64_bytes,
    encode,
    loss_of,
    plans,
    why_not,
)
from precision_eval.report.html.sound.conditions import Sound, SoundGroup, groups_of, has_wavs, opened
from precision_eval.report.html.sound.shown import Progress, Shown, ShownRow, drawn
from precision_eval.results.reading import Run

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


def sound_section(run: Run, *, budget_bytes: int, progress: Progress | None = None) -> SoundSection | None:
    """Make the part of a run's HTML report that can be heard."""
    if not has_wavs(run):
        return None
    tell = progress or _say_nothing
    tell("reading the WAVs")
    shown = [drawn(group, number, tell) for number, group in enumerate(groups_of(run), start=1)]
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("sound.css", "sound.js"))
    bare = _bytes(_html(shown) + style + script)
    left = budget_bytes - bare
    if left < 0:
        raise BudgetError(f"budget_bytes is {budget_bytes:,}; the section without sound has {bare:,}: give more")
    weights = [sum(_lengths(one.group)) for one in shown]
    total = sum(weights) or 1
    voiced = [_voiced(one, left * weight // total, tell) for one, weight in zip(shown, weights, strict=True)]
    html = _html(voiced)
    return SoundSection(html=html, style=style, script=script, bytes_used=_bytes(html + style + script))


def _say_nothing(text: str) -> None:
    """Take a report of progress and do nothing."""


def _bytes(text: str) -> int:
    return len(text.encode())


def _html(shown: Sequence[Shown]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("sound.html").render(
        groups=shown,
        level=spectrogram.LEVEL,
        louder=spectrogram.LOUDER,
        quieter=spectrogram.QUIETER,
        level_db=f"{spectrogram.LEVEL_DB:g}",
        difference_db=f"{spectrogram.DIFFERENCE_DB:g}",
    )


def _unique(group: SoundGroup) -> list[Sound]:
    """Return the sounds that need a stream of their own."""
    return [sound for sound in group.sounds if group.first_alike(sound) is sound]


def _lengths(group: SoundGroup) -> list[int]:
    return [sound.n_samples for sound in _unique(group)]


def _voiced(shown: Shown, budget_bytes: int, tell: Progress) -> Shown:
    """Give a group its streams, as good as the budget allows."""
    group = shown.group
    if not group.sounds:
        return shown
    if refusal := why_not(shown.sample_rate_hz):
        return _silenced(shown, f"{refusal}.")
    spare = budget_bytes - _GROUP_BYTES - _ROW_BYTES * len(group.sounds)
    for plan in plans(_lengths(group), sample_rate_hz=shown.sample_rate_hz, budget_bytes=spare):
        streams = _encoded(group, plan, tell)
        if sum(base64_bytes(len(stream)) for stream in streams.values()) <= spare:
            break
    else:
        return _silenced(shown, f"not even {SHORTEST_PART_S} s from each end fit into what this file may weigh.")
    loss = _loss_text(_losses(group, streams, plan, tell))
    return replace(shown, plan=plan, loss=loss, rows=_with_streams(shown, streams, plan))


def _silenced(shown: Shown, why: str) -> Shown:
    return replace(shown, silent=why, rows=tuple(replace(row, stream="") for row in shown.rows))


def _encoded(group: SoundGroup, plan: Plan, tell: Progress) -> dict[str, bytes]:
    """Compress every sound that needs a stream; digest → stream."""
    streams = {}
    for sound in _unique(group):
        tell(f"compressing {sound.label} at {plan.bitrate_kbps} kbit/s")
        with opened(sound) as source:
            streams[sound.digest] = encode(source, plan)
    return streams


def _losses(group: SoundGroup, streams: Mapping[str, bytes], plan: Plan, tell: Progress) -> list[Loss]:
    """Hold every copy to its WAV; digital silence has no distance."""
    losses = []
    for sound in _unique(group):
        tell(f"holding the copy of {sound.label} to its WAV")
        with opened(sound) as source:
            try:
                losses.append(loss_of(source, streams[sound.digest], plan))
            except UndefinedMetricError:
                continue
    return losses


def _with_streams(shown: Shown, streams: Mapping[str, bytes], plan: Plan) -> tuple[ShownRow, ...]:
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
