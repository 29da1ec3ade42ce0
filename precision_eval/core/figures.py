"""The figures of each measure, one struct each: which field holds what, and in which range.

Conventions: a struct names the fields that are read; others stay in the record as they are, and so do the figures of
a measure that is not listed here: a plugin's, or one that was removed. :func:`fit` checks plain data against a struct.
Units are in the names. None is a figure that could not be calculated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from precision_eval.core.errors import RecordError
from precision_eval.core.formatting import shortened, visible

Number = Annotated[float, Meta(ge=-1e100, le=1e100)]
Positive = Annotated[float, Meta(ge=1e-12, le=1e12)]
Amount = Annotated[float, Meta(ge=0.0, le=1e50)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e7)]
Confidence = Annotated[float, Meta(ge=1e-6, le=1.0 - 1e-6)]  # at either end no interval has a width
Count = Annotated[int, Meta(ge=0, le=2**53)]
Bytes = Annotated[int, Meta(ge=0, le=2**60)]

# Control, direction and surrogate characters, which a terminal would obey or a file could not hold.
_PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]*\Z"
Text = Annotated[str, Meta(max_length=300, pattern=_PRINTABLE)]
Name = Annotated[str, Meta(min_length=1, max_length=300, pattern=_PRINTABLE)]


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file in the run's folder."""

    path: Name
    sha256: Name


class Figures(Struct, frozen=True, kw_only=True):
    """The figures of one measure: what every measure may have."""

    doubts: list[str] = []
    files: list[StoredFile] = []


class RecordedSeries(Struct, frozen=True, kw_only=True):
    """Values over time, in lists of one length."""

    time_s: list[Amount] = []

    def __post_init__(self) -> None:
        _check_lengths(self, *self.__struct_fields__)


class LatencyFigures(Figures, frozen=True, kw_only=True):
    """The time of a call as a paired ratio to the baseline's; below 1 is faster."""

    baseline: Name
    ratio: Positive
    ratio_low: Positive | None = None
    ratio_high: Positive | None = None
    verdict: Name | None = None
    confidence: Confidence | None = None
    error_rate: Share | None = None
    minimum_detectable_effect: Amount | None = None
    median_s: Amount | None = None
    block_median_s: list[Positive] = []
    baseline_block_median_s: list[Positive] = []
    process_ratios: list[Positive] = []
    placement_ratios: list[Positive] = []
    blocks: Count = 2
    memory: Name | None = None
    elapsed_s: Amount | None = None
    settling_s: Amount | None = None
    clock: Name | None = None
    launched: LatencyFigures | None = None

    @property
    def unit_ratios(self) -> list[Positive]:
        """Ratios of the processes, or of the placements in one; empty where neither was drawn more than once."""
        several = (ratios for ratios in (self.process_ratios, self.placement_ratios) if len(ratios) > 1)
        return next(several, [])

    @property
    def timed_by(self) -> str:
        """``graph``, ``tree`` or ``kernels``, the device's time, else ``launched``, as in a record without a clock."""
        clocks = {re.sub(r"^cuda-(graph|tree|kernels).*", r"\1", name) for name in (self.clock or "").split("/")}
        return "launched" if clocks - {"graph", "tree", "kernels"} else "/".join(sorted(clocks))

    def __post_init__(self) -> None:
        _check_rising(self, "ratio_low", "ratio", "ratio_high")
        _check_lengths(self, "block_median_s", "baseline_block_median_s")


class ErrorSplit(Struct, frozen=True, kw_only=True):
    """Mean square errors by where they come from; with the cross-term they add up to the total."""

    total_mse: Amount | None = None
    input_cast_mse: Amount | None = None
    compute_mse: Amount | None = None
    output_rounding_mse: Amount | None = None
    cross_mse: Number | None = None


class Assessment(Struct, frozen=True, kw_only=True):
    """Whether an error is larger than its format explains, and why."""

    verdict: str = ""
    reasons: list[str] = []


class RecordedCast(Struct, frozen=True, kw_only=True):
    """A change of dtype that a call made."""

    site: str = "?"
    operand: str | None = None
    source: str | None = msgspec.field(name="from", default=None)
    target: str | None = msgspec.field(name="to", default=None)


class DriftFigures(Figures, frozen=True, kw_only=True):
    """The error of a call against float64 on the same stored inputs; over seeds where there are several."""

    relative_error: Amount
    relative_error_low: Amount | None = None
    relative_error_high: Amount | None = None
    relative_error_by_seed: list[Amount] = []
    seeds: Count | None = None
    split: ErrorSplit | None = None
    assessment: Assessment | None = None

    def __post_init__(self) -> None:
        _check_rising(self, "relative_error_low", "relative_error", "relative_error_high")


class ForcedSeries(RecordedSeries, frozen=True, kw_only=True):
    relative_error: list[Amount | None] = []
    kl_nats: list[Number | None] = []


class TeacherForcedFigures(DriftFigures, frozen=True, kw_only=True):
    """The error of the logits over steps under teacher forcing."""

    kl_nats: Number | None = None
    streams: Count | None = None
    series: ForcedSeries | None = None


class MemoryFigures(Figures, frozen=True, kw_only=True):
    """Bytes that are stored, and that a call allocates on top at its peak; on a GPU, all that is held then."""

    allocated_peak_bytes: Bytes
    storage_bytes: Bytes
    reserved_peak_bytes: Bytes | None = None
    allocated_before_bytes: Bytes | None = None

    @property
    def reserved_bytes(self) -> int | None:
        """What a GPU's allocator reserves at the peak for this fix alone; its worker may keep the case as shipped."""
        if self.reserved_peak_bytes is None or self.allocated_before_bytes is None:
            return None
        return self.storage_bytes + self.reserved_peak_bytes - self.allocated_before_bytes


class TraceFigures(Figures, frozen=True, kw_only=True):
    """What really ran; a call of attention is its operands' dtypes by name, with a count."""

    sdpa: list[dict[str, str | Count]] = []
    backend: str | None = None
    casts: list[RecordedCast] = []
    not_applicable: list[str] = []
    tolerances: dict[str, Positive] = {}


class SurvivalCurve(RecordedSeries, frozen=True, kw_only=True):
    """The fraction of streams that is still on the reference's tokens (Kaplan–Meier), with its interval."""

    fraction: list[Share] = []
    low: list[Share] = []
    high: list[Share] = []


class DivergenceFigures(Figures, frozen=True, kw_only=True):
    """How many free-running streams left the reference's tokens, and when."""

    streams: Count
    diverged: Count
    survival: SurvivalCurve | None = None


class SynthesisFigures(Figures, frozen=True, kw_only=True):
    """A recording, by its path in the run's folder."""

    wav: Name | None = None


class MetricFigures(Struct, frozen=True, kw_only=True):
    """A metric of a recording: its mean over windows, its value over the whole file, and the noise floor's share."""

    whole_file: Number | None = None
    mean: Number | None = None
    ratio_to_null: Amount | None = None


class RecordingComparison(Struct, frozen=True, kw_only=True):
    """A recording against another."""

    log_spectral_distance_db: MetricFigures = MetricFigures()
    mel_mcd_db: MetricFigures = MetricFigures()
    si_sdr_db: MetricFigures = MetricFigures()
    floored_fraction: dict[str, Share | None] = {}


class AudioFigures(Figures, frozen=True, kw_only=True):
    """A recording against the reference's, and against the original speech."""

    against_reference: RecordingComparison = RecordingComparison()
    against_original: RecordingComparison = RecordingComparison()
    phoneme_accuracy: dict[str, Share | None] | None = None


class SoundFigures(Figures, frozen=True, kw_only=True):
    """Many short streams, each heard against the original: metric to one value per stream."""

    streams: Count
    stream_s: Seconds
    heard: dict[str, list[Number]]
    margins: dict[str, Number] = {}


FIGURES: Mapping[str, type[Figures]] = {
    "latency": LatencyFigures,
    "drift": DriftFigures,
    "teacher_forced_drift": TeacherForcedFigures,
    "memory": MemoryFigures,
    "trace": TraceFigures,
    "streams": Figures,
    "divergence": DivergenceFigures,
    "synthesis": SynthesisFigures,
    "audio": AudioFigures,
    "sound": SoundFigures,
}

Fitted = TypeVar("Fitted")


def figures_of(measure: str, data: Mapping[str, Any]) -> Figures | None:
    """Return the figures of a measure; None where no struct describes it. What does not fit is a RecordError."""
    is_tracked = measure == "latency" and "ratio_to_baseline" in data  # asv's: one ratio per process
    kind = None if is_tracked else FIGURES.get(measure)
    return None if kind is None else fit(data, kind, where="record.data")


def fit(data: Any, kind: type[Fitted], *, where: str) -> Fitted:
    """Return plain data as `kind`; raise a RecordError that says what is where, and what is expected there."""
    if problem := _not_plain(data, 0):
        raise RecordError(f"{where} holds {problem}")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise RecordError(_misfit(str(error), data, where)) from None


_WORDS = {"float": "a number", "int": "a whole number", "str": "a text", "bool": "true or false", "array": "a list"}
_DEEPEST = 40


def _misfit(message: str, data: Any, where: str) -> str:
    problem, _, path = message.partition(" - at `$")
    path = path.rstrip("`")
    if problem.startswith("Object missing required field"):
        return f"{where}{path} lacks {problem.split('`')[1]}"
    expected = re.search(r"Expected (.*?)(?:, got .*)?$", problem)
    if expected is None:
        return f"{where}{path}: {problem}"
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if index == "...":  # of a mapping, whose keys msgspec does not tell
            return f"{where}{path}: expected {_in_words(expected[1])}"
        data = data[name] if name else data[int(index)]
    return f"{where}{path} is '{visible(shortened(str(data), limit=60))}'; expected {_in_words(expected[1])}"


def _in_words(expected: str) -> str:
    expected = re.sub("matching regex .*", "of printable characters", expected)
    return re.sub("`([^`]*)`", lambda kinds: " or ".join(_WORDS.get(k, k) for k in kinds[1].split(" | ")), expected)


def _not_plain(value: Any, depth: int) -> str:
    """Say what no figure can be: a number that is not finite or far too large, or data nested too deeply."""
    kind = type(value)
    if kind is float or kind is int:
        largest = sys.float_info.max
        return "" if -largest <= value <= largest else f"the number {shortened(str(value), limit=40)}"
    if kind is not dict and kind is not list:
        return ""
    if depth == _DEEPEST:
        return f"data nested more than {_DEEPEST} deep"
    for item in value.values() if kind is dict else value:
        if problem := _not_plain(item, depth + 1):
            return problem
    return ""


def _check_rising(figures: Struct, *names: str) -> None:
    values = [value for name in names if (value := getattr(figures, name)) is not None]
    if any(low > high for low, high in pairwise(values)):
        raise ValueError(f"{', '.join(names)} fall from one to the next")


def _check_lengths(figures: Struct, *names: str) -> None:
    if len({len(getattr(figures, name)) for name in names}) > 1:
        raise ValueError(f"{', '.join(names)} differ in length")
