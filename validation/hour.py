"""An hour of one stream under each fix: spoken in constant memory, then heard minute by minute.

A trial is one condition, or one judge's hearing of it; WAVs are kept in ``folder`` and spoken again where they are not
there. Every condition reads the same script with the same noise, *other seed* with noise of its own. Changes are to
float32, paired by minute, with intervals over minutes; slopes are Theil's and Sen's. This describes one recording per
fix: the verdict on sound is of many streams (``python -m validation sound``)::

    python -m validation hour --size full --out results/hour
    python -m validation hour --size full --out results/hour --set judges=resemblyzer,pocketsphinx
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precision_eval.cases.voice.assets import sha256_of
from precision_eval.core.formatting import MISSING
from precision_eval.core.workers import call_isolated, use_one_blas_thread
from precision_eval.measure.judges import Panel, chosen_judges
from precision_eval.measure.memory import peak_rss_bytes
from precision_eval.measure.minutes import MinuteListener
from precision_eval.measure.voice import PROMPT_FRAMES, synthesise
from precision_eval.results.minutes import Course, Minutes, courses_of, flags_text
from precision_eval.results.sound import SoundMetric
from precision_eval.stats import Interval
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import spanned

ANCHOR = "full_float32"
OTHER_SEED = "other seed"
CONDITIONS = (
    *(ANCHOR, "bfloat16", "float16", "kv_to_query", "control_rope_bfloat16", OTHER_SEED),
    *("query_to_half", "autocast", "control_long_window"),
)
BLOCK_MINUTES = 3
SYNTHESIS_TARGET_S, JUDGING_TARGET_S = 300.0, 30.0  # of processor time for an hour


def _trials(options: Options) -> list[Trial]:
    suffix = f"{options['minutes']:g}min"
    spoken = [Trial(f"{name}/{suffix}", (name, "")) for name in options["conditions"]]
    judges = [judge.name for judge in chosen_judges(",".join(options["judges"]))]
    return spoken + [
        Trial(f"{name}/{suffix}/{judge}", (name, judge)) for name in options["conditions"] for judge in judges
    ]


def _run(todo: Iterator[Trial], options: Options) -> Iterator[Data]:
    folder, minutes, listener = (
        Path(options["folder"]),
        float(options["minutes"]),
        MinuteListener(prompt_frames=PROMPT_FRAMES),
    )
    listeners: dict[str, MinuteListener] = {}
    for key, (condition, judge), _ in todo:
        wav_path = folder / f"{condition.replace(' ', '-')}-{minutes:g}min.wav"
        line: Data = {"key": key, "condition": condition, "judge": judge}
        if not wav_path.exists():
            use_one_blas_thread()
            arguments = (condition, minutes, str(wav_path))
            line["synthesis"] = call_isolated("validation.hour:spoken", *arguments, start="spawn")
        line["tokens_sha256"] = sha256_of(wav_path.with_suffix(".npy"))
        start_s = time.process_time()
        if judge:
            listeners.setdefault(judge, MinuteListener(Panel(chosen_judges(judge)), prompt_frames=PROMPT_FRAMES))
            line["minutes"] = listeners[judge].judged(wav_path)
        else:
            line["minutes"] = listener.heard(wav_path)
        yield line | {"judging_s": time.process_time() - start_s}


def spoken(condition: str, minutes: float, wav_path: str) -> Data:
    """Speak in this process, on one thread."""
    torch.set_num_threads(1)
    Path(wav_path).parent.mkdir(parents=True, exist_ok=True)
    name, seed = (ANCHOR, 1) if condition == OTHER_SEED else (condition, 0)
    options: dict[str, Any] = {"mode": "eager", "device": "cpu", "checkpoint_dtype": "float32"}
    data = synthesise(name, minutes=minutes, seed=seed, wav_path=Path(wav_path), **options)
    return {"cpu_s": data["duration_s"] / data["real_time_factor"], "rss_peak_bytes": peak_rss_bytes()}


def _summary(lines: list[Data], options: Options) -> Data:
    """Put what judges heard beside the rest, condition by condition, of the longest recording there is."""
    minutes = max(_length(line) for line in lines)
    conditions: dict[str, Data] = {}
    for line in (line for line in lines if _length(line) == minutes):
        known = conditions.setdefault(line["condition"], {"minutes": {}})
        known["minutes"] |= line["minutes"]
        known["tokens_sha256"] = line["tokens_sha256"]
        known |= {"synthesis": line["synthesis"]} if "synthesis" in line else {}
        known |= {} if line["judge"] else {"judging_s": line["judging_s"]}
    return {"command": f"python -m validation hour --set minutes={minutes:g}", "length_min": minutes} | {
        "conditions": {name: conditions[name] for name in CONDITIONS if name in conditions}
    }


def _length(line: Data) -> float:
    return float(line["key"].split("/")[1].removesuffix("min"))


def _figures(content: Data) -> list[Figure]:
    """One row of cost and one of sound for each condition; minute by minute stands in the summary."""
    conditions = content["conditions"]
    figures = [_cost(name, data, content["length_min"]) for name, data in conditions.items() if "synthesis" in data]
    anchor = conditions.get(ANCHOR)
    for name, data in conditions.items():
        courses = courses_of(data["minutes"])
        change = MISSING if name == ANCHOR or anchor is None else _changes(courses, data, anchor)
        columns = {
            "change to float32 (95 %)": change,
            "slope an hour (95 %)": _joined(courses, lambda course: spanned(course.slope_text)),
            "first third → last": _joined(courses, lambda course: course.thirds_text),
            "worst": _joined(courses, lambda course: course.worst_text),
        }
        figures.append(Figure(name, _joined(courses, lambda course: course.mean_text), "", None, columns))
    return figures


def _changes(courses: Sequence[Course], data: Data, anchor: Data) -> str:
    if data["tokens_sha256"] == anchor["tokens_sha256"]:
        return "the very same tokens"
    return _joined(courses, lambda course: _change(course.metric, data["minutes"], anchor["minutes"]))


def _joined(courses: Sequence[Course], text: Callable[[Course], str]) -> str:
    return "; ".join(f"{course.metric.title} {text(course)}" for course in courses)


def _cost(name: str, data: Data, minutes: float) -> Figure:
    """The targets are of an hour."""
    found, judging_s = data["synthesis"], data.get("judging_s", float("nan"))
    text = (
        f"{found['cpu_s']:.0f} s to speak, {judging_s:.0f} s to hear, {found['rss_peak_bytes'] / 2**20:.0f} MiB; "
        f"flagged minutes: {flags_text(data['minutes'])}"
    )
    share = minutes / 60.0
    met = found["cpu_s"] <= SYNTHESIS_TARGET_S * share and judging_s <= JUDGING_TARGET_S * share
    target = f"an hour: ≤ {SYNTHESIS_TARGET_S:.0f} s and {JUDGING_TARGET_S:.0f} s of processor time"
    return Figure(f"{name}: cost", text, target, bool(met))


def _change(metric: SoundMetric, minutes: Minutes, anchor: Minutes) -> str:
    """Mean paired change with an interval that resamples blocks of neighbouring minutes."""
    pairs = zip(minutes.get(metric.name, ()), anchor.get(metric.name, ()), strict=False)
    changes = np.array([a - b for a, b in pairs if a is not None and b is not None])
    if len(changes) < 2 * BLOCK_MINUTES:
        return "–"
    found = block_bootstrap_mean(changes, block_length=BLOCK_MINUTES, seed=0)
    estimate, low, high = (metric.text(metric.worse * end) for end in (found.estimate, found.low, found.high))
    return f"{estimate} ({low.removesuffix(metric.unit)} to {high.removesuffix(metric.unit)})"


def block_bootstrap_mean(
    values: NDArray[np.float64], *, block_length: int, seed: int, resamples: int = 2000
) -> Interval:
    """95 % interval of the mean of autocorrelated values, by the circular block bootstrap."""
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[: block_length - 1]]))])
    block_means = (sums[block_length:] - sums[:-block_length]) / block_length
    draws = -(-values.size // block_length)
    rng = np.random.default_rng(seed)
    means = [block_means[rng.integers(block_means.size, size=draws)].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


def _notes(content: Mapping[str, Any]) -> list[str]:
    names = [f"`{name}`" for name in CONDITIONS if name not in content["conditions"]]
    one = f"One recording of {content['length_min']:g} min per condition."
    return [f"{one} Not measured: {', '.join(names)}." if names else one]


EXPERIMENT = Experiment(
    name="hour",
    title="an hour of one stream under each fix, minute by minute",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    notes=_notes,
    settings={
        "minutes": (3.0, 60.0),
        "conditions": (CONDITIONS[:2], CONDITIONS),
        "judges": ((), ()),
        "folder": ("runs/hour", "runs/hour"),
    },
)
