"""What speaks against figures, in words: each doubt is one numbered footnote of a report, whatever it applies to.

A record's doubt begins with its kind and a colon; numbers after it differ from fix to fix, so the kind alone is worded.
A kind that is not listed is quoted as recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from precision_eval.core.figures import LatencyFigures
from precision_eval.core.formatting import status_text
from precision_eval.explain.messages import short_reason
from precision_eval.results.model import DRIFTS, ONE_INPUT, ONE_PROCESS, Group, Row

TWO_DIGITS = 0.05
"""Relative error above which fewer than two decimal digits are right."""

FLOORED = 0.01
"""Share of a spectrum below the floor of the metric, from which on a distance of sound is doubtful."""

_OTHERS = "Other processes used the same cores during the timing."

RECORDED: Mapping[str, str] = {
    "over budget": "Timing stopped at its budget, before every planned round was run.",
    "loaded machine": _OTHERS,
    "shared cores": _OTHERS,
    "the ratio is bimodal": "The measured ratios form two groups; the figure lies between them.",
    "the ratio drifts": "The ratio changed from the beginning of the run to its end.",
    "fresh memory": "Calls take fresh memory, whose cost differs by process (--set processes=5).",
    "launch-bound": "The GPU waited for the host to launch its work, so this ratio is the host's; compiled calls have "
    "fewer launches.",
}

A_A_FAILED = (
    "A/A check failed: the baseline differs from its copy. Distrust these ratios; run again on an idle machine."
)
ONE_PROCESS_TEXT = f"Timed in one process: undecided below {100 * ONE_PROCESS:.0f} % (--set processes=5)."
ONE_INPUT_TEXT = f"Drift of one input: undecided below {100 * ONE_INPUT:.0f} % (--set seeds=4)."
UNLIKE_ENVIRONMENTS = "Figures of this table were recorded under different environments."
FEW_DIGITS = "Fewer than two decimal digits of the result are right."
WORSE_THAN_FORMAT = "The error is larger than the format explains."
BELOW_FLOOR = "Part of the spectrum lies below the floor of the metric."

_PROCESSES = re.compile(r"^in \d+ of \d+ processes: ")
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Footnotes:
    """The numbered notes of one report, in the order in which they are first used."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, texts: Iterable[str]) -> str:
        """Return the marks of these notes, such as `` ¹ ³``; empty without any."""
        numbers = {self._numbers.setdefault(text, len(self._numbers) + 1) for text in texts}
        return "".join(f" {str(number).translate(_SUPERSCRIPTS)}" for number in sorted(numbers))

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(f"{number}. {text}" for text, number in self._numbers.items())

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def time_doubts(latency: LatencyFigures | None) -> list[str]:
    """Return what speaks against a time, but for what the whole group shares."""
    doubts = (_PROCESSES.sub("", doubt) for doubt in (latency.doubts if latency else ()))
    return [text for doubt in doubts if (text := _word(doubt))]


def _word(doubt: str) -> str:
    kind = doubt.partition(":")[0]
    return "" if kind == "the noise floor is off" else RECORDED.get(kind, doubt)


def drift_doubts(row: Row) -> list[str]:
    if row.errors is None:
        return []
    texts = [*row.errors.doubts, *([FEW_DIGITS] if row.errors.relative_error > TWO_DIGITS else [])]
    assessment = row.errors.assessment
    return [*texts, WORSE_THAN_FORMAT] if assessment and assessment.verdict == "worse" else texts


def sound_doubts(row: Row) -> list[str]:
    floored = row.audio.against_reference.floored_fraction.get("estimate") if row.audio else None
    return [BELOW_FLOOR] if floored is not None and floored > FLOORED else []


def status_notes(row: Row) -> list[str]:
    """Return the message of what did not run, and of each measure that did not pass where the fix did."""
    if row.status != "passed":
        return [short_reason(row.reason)] if row.reason else []
    return [
        f"{measure} {status_text(status)}: {short_reason(reason)}"
        for measure, (status, reason) in row.incomplete.items()
    ]


def shared_doubts(group: Group) -> list[str]:
    """Return what speaks against a group as a whole: its environments, and what all its times or drifts share."""
    timed = [row for row in group.curing if row.time is not None]
    drifting = [row for row in group.curing if row.drift is not None]
    doubts = [UNLIKE_ENVIRONMENTS] if _has_unlike_environments(group) else []
    doubts += [A_A_FAILED] if group.noise_floor_off else []
    doubts += [ONE_PROCESS_TEXT] if any(row.processes == 1 for row in timed if row.fix != group.baseline) else []
    doubts += [ONE_INPUT_TEXT] if drifting and not any(row.paired_drift for row in drifting) else []
    return [
        *doubts,
        *_common([time_doubts(row.latency) for row in timed]),
        *_common([drift_doubts(row) for row in drifting]),
    ]


def _common(doubts: Sequence[list[str]]) -> list[str]:
    first = doubts[0] if len(doubts) > 1 else []
    return [text for text in first if all(text in other for other in doubts)]


def _has_unlike_environments(group: Group) -> bool:
    environments = {
        record.environment
        for row in group.fixes
        for record in row.records.values()
        if record.status == "passed" and record.measure in ("latency", "memory", *DRIFTS)
    }
    return len(environments) > 1
