"""The sound of a run in its HTML report: players of every condition under one cursor, spectrograms of what differs.

Conventions: times in seconds from the first synthesised sample; levels in dB; what is played is compressed, what was
measured is the WAVs, and the report says so. Fragments need nothing outside themselves, all ids begin with ``sound-``,
and the same WAVs and records give the same bytes.
"""

from __future__ import annotations

from precision_eval.report.html.sound.section import SoundSection, sound_section

__all__ = ["SoundSection", "sound_section"]
