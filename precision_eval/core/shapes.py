"""The shapes of stored data: which field holds what, and in which range; :func:`misfit` says where data differ.

Conventions: a shape is plain data. ``str`` and ``bool`` stand for themselves, ``(low, high)`` is a finite number and
:class:`Whole` a whole one, ``[shape]`` a list, and a dict an object: fields that it names fit where they are there,
others are kept as they are. In a dict, a name that ends with ``!`` is required, ``*`` is every other field, ``<`` lists
fields whose numbers may not fall from one to the next, and ``=`` lists of one length.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from precision_eval.core.formatting import shortened, visible

_DEEPEST = 40
_LARGEST = sys.float_info.max
_LONGEST_NAME = 300


class Whole(NamedTuple):
    """A whole number in a range."""

    low: float
    high: float


class Maybe(NamedTuple):
    """Null, or what fits a shape."""

    shape: Any


class Name(NamedTuple):
    """A text of one printable line, such as the name of a fix; it may be empty where `empty` says so."""

    empty: bool = False


NUMBER = (-1e100, 1e100)
POSITIVE = (1e-12, 1e12)
AMOUNT = (0.0, 1e50)
SHARE = (0.0, 1.0)
COUNT = Whole(0, 2**53)

_SERIES: dict[str, Any] = {"time_s": [AMOUNT], "value": [Maybe(NUMBER)], "=": ("time_s", "value")}
_SUMMARIES = ("whole_file", "mean", "median", "p95", "worst", "slope_per_min", "slope_low", "slope_high")
_SUMMARY = dict.fromkeys((*_SUMMARIES, "first_third", "last_third"), Maybe(NUMBER))
_METRIC = {
    **_SUMMARY,
    **dict.fromkeys(("n_windows", "n_undefined", "n_infinite"), COUNT),
    "active": Maybe(_SUMMARY),
    "series": Maybe(_SERIES),
    "ratio_to_null": Maybe(AMOUNT),
}
_METRICS = ("log_spectral_distance_db", "log_magnitude_l1_db", "spectral_convergence", "mel_mcd_db", "level_error_db")
_COMPARISON = {
    **dict.fromkeys((*_METRICS, "snr_db", "si_sdr_db"), _METRIC),
    **dict.fromkeys(("ltas_distance_db", "frechet_distance", "duration_s"), Maybe(AMOUNT)),
    **dict.fromkeys(("t_div_s", "lag_s", "lag_correlation", "active_fraction"), Maybe(NUMBER)),
    "floored_fraction": {"reference": Maybe(SHARE), "estimate": Maybe(SHARE)},
    "flags": [{"kind": str, "signal": str, "time_s": Maybe(AMOUNT), "count": COUNT, "message": str}],
    "ratio_to_null": {"*": Maybe(AMOUNT)},
}
_CASTS = [{"site": str, "operand": str, "from": str, "to": str, "count": COUNT}]
_CALLS = [{"count": COUNT, "*": str}]
_ERROR: dict[str, Any] = {
    **dict.fromkeys(("relative_error", "rms_error", "rms_ratio", "max_abs_error", "cosine_distance"), Maybe(AMOUNT)),
    **dict.fromkeys(("relative_error_low", "relative_error_high"), Maybe(AMOUNT)),
    **dict.fromkeys(("bias_z", "relative_bias"), Maybe(NUMBER)),
    "cosine_distance": Maybe(NUMBER),
    "ulp_quantiles": Maybe({"*": Maybe(NUMBER)}),
    "split": Maybe({"cross_mse": Maybe(NUMBER), "*": Maybe(AMOUNT)}),
    "assessment": Maybe({"verdict": str, "reasons": [str]}),
    "yardstick_dtype": Maybe(str),
    "<": ("relative_error_low", "relative_error", "relative_error_high"),
}
_TIMES = [POSITIVE]
_RATIO: dict[str, Any] = {
    **dict.fromkeys(("ratio!", "ratio_low", "ratio_high", "verdict_low", "verdict_high"), POSITIVE),
    **dict.fromkeys(("margin", "minimum_detectable_effect", "median_s", "baseline_median_s"), Maybe(AMOUNT)),
    **dict.fromkeys(("error_rate", "preempted_fraction"), Maybe(SHARE)),
    "confidence": Maybe((1e-6, 1.0 - 1e-6)),  # at either end no interval has a width
    **dict.fromkeys(("blocks", "calls_per_block", "threads"), COUNT),
    **dict.fromkeys(("block_median_s", "baseline_block_median_s", "process_ratios"), _TIMES),
    **{"baseline!": Name(), "verdict": Name(), "clock": Name(), "doubts": [str], "elapsed_s": AMOUNT},
    **dict.fromkeys(("settling_s", "page_faults_per_call"), Maybe(AMOUNT)),
    "memory": Name(),
    "<": ("ratio_low", "ratio", "ratio_high"),
    "=": ("block_median_s", "baseline_block_median_s"),
}
_FILES = [{"path!": Name(), "sha256!": Name()}]

DATA: Mapping[str, Any] = {
    "latency": _RATIO | {"by_memory": {"*": _RATIO}},
    "drift": {
        **{**_ERROR, "relative_error!": AMOUNT, "outputs": [_ERROR], "casts": _CASTS, "doubts": [str]},
        **{"seeds": COUNT, "relative_error_by_seed": [AMOUNT]},
    },
    "teacher_forced_drift": {
        **_ERROR,
        **dict.fromkeys(("kl_nats", "kl_nats_low", "kl_nats_high"), Maybe(NUMBER)),
        **dict.fromkeys(("total_variation", "top1_flip_fraction"), Maybe(SHARE)),
        **{"relative_error!": AMOUNT, "streams": COUNT, "steps": COUNT, "doubts": [str]},
        **dict.fromkeys(("max_abs_logit", "attention_entropy_nats"), Maybe(NUMBER)),
        "series": {
            **{"time_s": [AMOUNT], "relative_error": [Maybe(AMOUNT)], "kl_nats": [Maybe(NUMBER)]},
            "=": ("time_s", "relative_error", "kl_nats"),
        },
    },
    "memory": {
        **dict.fromkeys(("allocated_peak_bytes!", "storage_bytes!"), Whole(0, 2**60)),
        **dict.fromkeys(("rss_peak_bytes", "reserved_peak_bytes"), Maybe(Whole(0, 2**60))),
        "doubts": [str],
    },
    "trace": {
        **dict.fromkeys(("sdpa", "linear", "matmul", "norm", "cache_write"), _CALLS),
        **{"backend": str, "observed": str, "casts": _CASTS, "doubts": [str], "graphs": Maybe(COUNT)},
        **{"not_applicable": [str], "tolerances": {"*": POSITIVE}},
    },
    "sampler": {
        **dict.fromkeys(("changed_nucleus", "total_variation", "cast_changed_nucleus"), Maybe(AMOUNT)),
        **{"positions": COUNT, "dtype": str, "settings_dtype": str, "cast_total_variation": Maybe(AMOUNT)},
        **dict.fromkeys(("kept", "kept_in_float64"), Maybe(AMOUNT)),
    },
    "streams": {"tokens": Name(), "shape": [COUNT], "files": _FILES},
    "divergence": {
        **{"streams!": COUNT, "diverged!": COUNT, "steps": COUNT, "frame_rate_hz": (1e-3, 1e9)},
        **{"first_divergent_step": [Maybe(COUNT)], "token_difference_fraction": Maybe(SHARE)},
        "survival": {
            **{"time_s": [AMOUNT], "fraction": [SHARE], "low": [SHARE], "high": [SHARE]},
            "=": ("time_s", "fraction", "low", "high"),
        },
    },
    "transcription": {
        **{"speech": Name(), "speech_sha256": Name(), "speech_s": AMOUNT, "utterances!": COUNT, "diverged!": COUNT},
        **dict.fromkeys(("tokens", "words_heard", "words_changed", "words_said", "utterances_said"), COUNT),
        **dict.fromkeys(("relative_error", "relative_error_low", "relative_error_high", "kl_nats"), AMOUNT),
        **dict.fromkeys(("diverged_fraction_high", "top1_flip_fraction"), SHARE),
        **{"first_divergent_token": [Maybe(COUNT)], "errors": [COUNT], "reference_errors": [COUNT]},
        **dict.fromkeys(("wer", "reference_wer", "word_divergence"), AMOUNT),
        **{"<": ("wer_difference_low", "wer_difference", "wer_difference_high"), "=": ("errors", "reference_errors")},
    },
    "synthesis": {
        **{"wav": Name(), "sha256": Name(), "clock": Name(), "files": _FILES, "duration_s": (0.0, 1e7)},
        **dict.fromkeys(("frames_per_s", "real_time_factor"), Maybe(AMOUNT)),
    },
    "audio": {
        **{"duration_s": (0.0, 1e7), "against_reference": _COMPARISON, "against_original": _COMPARISON},
        **{"phoneme_accuracy": Maybe({"*": Maybe(SHARE)}), "files": _FILES, "doubts": [str]},
    },
    "sound": {
        **{"streams!": COUNT, "stream_s!": (0.0, 1e7), "heard!": {"*": [NUMBER]}, "tokens": [str], "clock": Name()},
        "real_time_factor": Maybe(AMOUNT),
        "margins": {"*": NUMBER},
        "doubts": [str],
    },
}
"""Figures of each measure. A measure of somebody else's has no shape here and is kept as plain data."""

_TRACKED_LATENCY = {
    **{"ratio_to_baseline!": Maybe(_TIMES), "ratio_to_anchor!": _TIMES, "clock!": [str], "blocks!": [COUNT]},
    "missing": {"*": str},
}


def shape_of(measure: str, data: Mapping[str, Any]) -> Any:
    """Return the shape of a measure's figures; what asv follows holds latencies as one ratio per process."""
    return _TRACKED_LATENCY if measure == "latency" and "ratio_to_baseline" in data else DATA.get(measure)


OPTIONS = {
    **dict.fromkeys(("minutes", "budget_s"), AMOUNT),
    **dict.fromkeys(("streams", "steps", "processes", "seed", "seeds"), COUNT),
    **dict.fromkeys(("sdpa_backend", "tf32", "memory", "speech", "judges"), Maybe(Name())),
}

RECORD = {
    **dict.fromkeys(("cell!", "case!", "fix!", "mode!", "device!", "size!", "measure!"), Name()),
    **dict.fromkeys(("case_digest!", "environment!"), Name(empty=True)),
    **{"role!": Name(), "status!": Name(), "started_at!": Name(), "reason!": Maybe(str), "options!": OPTIONS},
    **{"threads!": Whole(1, 2**20), "wall_s!": AMOUNT, "data!": Maybe({})},
}

_TEXTS = {"*": Maybe(str)}
ENVIRONMENT = {
    **{"platform": _TEXTS, "libraries": _TEXTS, "variables": {"*": str}, "memory_bytes": Maybe(COUNT)},
    "cpu": {
        **{"model": Maybe(str), "logical_cores": Maybe(COUNT), "usable_cores": Maybe(COUNT)},
        "half_formats": {"*": [str]},
    },
    "package": {"git_commit": Maybe(str), "source_sha256": Maybe(str), "assets": _TEXTS},
    "torch": {"config": [str], **dict.fromkeys(("version", "git_version", "cuda", "hip"), Maybe(str))},
    "device": {"name": str, **dict.fromkeys(("model", "capability", "driver"), Maybe(str))},
}


def misfit(value: Any, shape: Any, *, where: str) -> str:
    """Say in one line where data do not fit a shape, what is there and what is expected; empty where they fit."""
    problem = _not_plain(value, 0)
    return f"{where} holds {problem}" if problem else _misfit(value, shape, where)


def _misfit(value: Any, shape: Any, where: str) -> str:
    if isinstance(shape, Maybe):
        return "" if value is None else _misfit(value, shape.shape, where)
    if isinstance(shape, dict):
        return _misfit_object(value, shape, where) if isinstance(value, dict) else _refusal(where, value, "an object")
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _refusal(where, value, "a list")
        inner = shape[0].shape if isinstance(shape[0], Maybe) else shape[0]
        if type(inner) is tuple:  # most of a record by far is lists of numbers
            low, high = inner
            value = [item for item in value if type(item) is not float or not low <= item <= high]
        return next(filter(None, (_misfit(item, shape[0], f"{where}[…]") for item in value)), "")
    if isinstance(shape, Name):
        fits = isinstance(value, str) and (value != "" or shape.empty) and len(value) <= _LONGEST_NAME
        return "" if fits and value.isprintable() else _refusal(where, value, f"a printable text of ≤ {_LONGEST_NAME}")
    if isinstance(shape, type):
        return "" if isinstance(value, shape) else _refusal(where, value, "a text" if shape is str else "true or false")
    low, high = shape
    kinds = int if isinstance(shape, Whole) else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if isinstance(shape, Whole) else "a number"
        return _refusal(where, value, f"{kind} from {low:g} to {high:g}")
    return ""


def _misfit_object(value: dict[str, Any], shape: dict[str, Any], where: str) -> str:
    required = {name[:-1]: inner for name, inner in shape.items() if name.endswith("!")}
    if missing := next((name for name in required if name not in value), ""):
        return f"{where} lacks {missing}"
    for name, inner in value.items():
        expected = required.get(name, shape.get(name, shape.get("*")) if name not in "<=" else None)
        if expected is not None and (text := _misfit(inner, expected, f"{where}.{name}")):
            return text
    rising = [value[name] for name in shape.get("<", ()) if value.get(name) is not None]
    if any(low > high for low, high in pairwise(rising)):
        return f"{where}: {', '.join(shape['<'])} fall from one to the next"
    if len({len(value[name]) for name in shape.get("=", ()) if name in value}) > 1:
        return f"{where}: {', '.join(shape['='])} differ in length"
    return ""


def _not_plain(value: Any, depth: int) -> str:
    """Say what no figure can be: a number that is not finite or far too large, or data nested too deeply."""
    kind = type(value)
    if kind is float or kind is int:
        return "" if -_LARGEST <= value <= _LARGEST else f"the number {shortened(str(value), limit=40)}"
    if kind is not dict and kind is not list:
        return ""
    if depth == _DEEPEST:
        return f"data nested more than {_DEEPEST} deep"
    for item in value.values() if kind is dict else value:
        if problem := _not_plain(item, depth + 1):
            return problem
    return ""


def _refusal(where: str, value: Any, expected: str) -> str:
    text = visible(shortened(str(value), limit=60))
    return f"{visible(shortened(where, limit=120))} is '{text}'; expected {expected}"
