"""A ladder of known degradations: the scale on which to read a metric.

What is a mel-cepstral distortion of 0.05 dB? A twentieth of what storing in 12 bits does to the same speech. The
ladder applies degradations of known size to one recording, measures each against the undamaged one, and writes the
answers as a table, a figure and JSON::

    python -m validation.audio_ladder --reference speech.wav --null same-words-again.wav --out results/audio-ladder
"""

from __future__ import annotations

from validation.audio_ladder.climb import climb
from validation.audio_ladder.rungs import RUNGS, Rung, rung_by_name

__all__ = ["RUNGS", "Rung", "climb", "rung_by_name"]
