"""What each judge of speech can hear on the shipped voice: its noise floor, and the smallest degradation called worse.

Every judge hears the same streams, and is judged by itself, by the code that judges a run. A trial is one batch of 16
passages of 5 s under one condition: the reference, other seeds of it, the controls, and degradations of known size of
one other seed, so as hard to tell as a fix that leaves the reference's tokens at once. A mean opinion score is tried
too; it becomes a judge of runs if it tells both controls apart::

    python -m validation judges --set passages=32 --out results/judges
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from precision_eval.cases.adapters.listeners import DISTILLMOS, require_distillmos
from precision_eval.core.formatting import fixed
from precision_eval.measure.judges import JUDGES, Hear, Judge, Panel
from precision_eval.measure.sound import BATCH_STREAMS, Listener, original_tokens, spoken_tokens, waveforms
from precision_eval.results.sound import JUDGE_METRICS, VOICE_METRICS, SoundMetric, judged_sound
from precision_eval.stats.differences import DifferenceDecision
from validation.audio_ladder import degrade
from validation.audio_ladder.rungs import Rung, family
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import spanned
from validation.sound.bank import CONTROLS, MOST_PASSAGES, N_FRAMES, RENDERING, degraded, passages, shortened

FAMILIES: tuple[tuple[Rung, ...], ...] = (
    family("drop-outs of 20 ms", "/min", degrade.drop_out, "per_minute", (60, 300), length_s=0.02),
    family("noise", "dB SNR", degrade.add_noise, "snr_db", (45, 35, 25, 15)),
    family("low-pass", "Hz", degrade.low_pass, "cutoff_hz", (6500, 4000, 2000)),
)
RUNGS = {rung.name: rung for rungs in FAMILIES for rung in rungs}
MARGIN_RUNGS = tuple(rung.name for rung in FAMILIES[0])
SPOKEN = {"reference": (RENDERING, 0), "noise_floor": (RENDERING, 1), "other_seed": (RENDERING, 2)}
SPOKEN |= {name: (name, 0) for name in CONTROLS}
FIXES = ("query_to_half", "kv_to_query", "bfloat16", "float16", "autocast")


def _distillmos() -> Hear:
    require_distillmos()
    import torch

    from precision_eval.cases.adapters.listener_models import distillmos

    model = distillmos()

    def hear(samples: np.ndarray) -> float:
        with torch.no_grad():
            return float(model(torch.from_numpy(samples)[None]))

    return hear


MOS = Judge(
    name="distillmos",
    title="mean opinion score by DistillMOS",
    wheel=DISTILLMOS,
    opened=_distillmos,
    scored=lambda truth, heard: {"mos": heard},
)
_MOS_METRIC = SoundMetric(name="mos", title="MOS", unit="", decimals=2, worse=-1.0, margin=0.1)

ROWS: tuple[tuple[str, tuple[SoundMetric, ...]], ...] = (
    ("distances of audio_metrics", VOICE_METRICS[:3]),
    ("phonemes by the voice's own recogniser", VOICE_METRICS[3:]),
    *(
        (f"{judge.title} ({judge.wheel.name} {judge.wheel.version}, {judge.wheel.licence})", metrics)
        for judge, metrics in zip(
            (*JUDGES, MOS),
            (JUDGE_METRICS[:2], *((metric,) for metric in JUDGE_METRICS[2:]), (_MOS_METRIC,)),
            strict=True,
        )
    ),
)


def _trials(options: Options) -> list[Trial]:
    parts = range(options["passages"] // BATCH_STREAMS)
    return [Trial(f"{name}/{part}", (name, part)) for part in parts for name in (*SPOKEN, *RUNGS, *FIXES)]


def _run(todo: Iterator[Trial], options: Options) -> Iterator[Data]:
    panel = Panel((*JUDGES, MOS))
    for key, (name, part), _ in todo:
        renderings = degraded(RUNGS[name], _spoken("other_seed", part)) if name in RUNGS else _spoken(name, part)
        yield {"key": key, "heard": shortened(_listener(part, panel).heard(renderings)), "missing": panel.missing}


@cache
def _passages() -> Sequence[Any]:
    return passages(MOST_PASSAGES, n_frames=N_FRAMES)


@cache
def _spoken(name: str, part: int) -> np.ndarray:
    condition, seed = SPOKEN.get(name, (name, 0))
    streams = _passages()[part :: MOST_PASSAGES // BATCH_STREAMS]
    return waveforms(spoken_tokens(condition, streams, n_frames=N_FRAMES, seed=1000 * seed + part))


@cache
def _listener(part: int, panel: Panel) -> Listener:
    streams = _passages()[part :: MOST_PASSAGES // BATCH_STREAMS]
    return Listener(streams, waveforms(original_tokens(streams, n_frames=N_FRAMES)), panel)


def _summary(lines: list[Data], options: Options) -> Data | None:
    """Judge each row by itself over the passages of which every condition was heard."""
    known = {line["key"]: line["heard"] for line in lines}
    names = (*SPOKEN, *RUNGS)
    parts = [part for part in range(MOST_PASSAGES) if all(f"{name}/{part}" in known for name in names)]
    if not parts:
        return None
    fixes = [name for name in FIXES if all(f"{name}/{part}" in known for part in parts)]
    heard = {name: _joined([known[f"{name}/{part}"] for part in parts]) for name in (*names, *fixes)}
    streams = BATCH_STREAMS * len(parts)
    data: dict[str, Data] = {
        name: {"streams": streams, "stream_s": N_FRAMES / 50, "heard": values} for name, values in heard.items()
    }
    reference, noise_floor = data.pop("reference"), data.pop("noise_floor")
    of_fixes = {name: data.pop(name) for name in fixes}
    rows, fixed_rows = (
        {
            title: {name: verdict.to_dict() for name, verdict in judged.items()}
            for title, metrics in ROWS
            if (judged := judged_sound(of, reference, noise_floor, metrics=metrics))
        }
        for of in (data, of_fixes)
    )
    metrics = [metric for _, row in ROWS for metric in row if metric.name in reference["heard"]]
    missing = sorted({text for line in lines for text in line["missing"]})
    return {
        "command": f"python -m validation judges --set passages={streams}",
        "streams": streams,
        "rows": rows,
        "fixes": fixed_rows,
        "missing": missing,
        "noise_floor": {m.name: _spread(noise_floor, reference, m.name) for m in metrics},
        "margins": {
            rung: {m.name: _change(data[rung], data["other_seed"], m) for m in metrics} for rung in MARGIN_RUNGS
        },
    }


def _joined(parts: Sequence[Data]) -> dict[str, list[float]]:
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def _differences(one: Data, other: Data, name: str) -> np.ndarray:
    return np.subtract(one["heard"][name], other["heard"][name])


def _spread(one: Data, other: Data, name: str) -> float:
    return float(_differences(one, other, name).std(ddof=1))


def _change(one: Data, other: Data, metric: SoundMetric) -> dict[str, float]:
    """Mean change for the worse with its standard error."""
    change = metric.worse * _differences(one, other, metric.name)
    return {"mean": float(change.mean()), "standard_error": float(change.std(ddof=1) / np.sqrt(change.size))}


def _figures(content: Data) -> list[Figure]:
    figures = []
    for title, metrics in ROWS:
        verdicts = content["rows"].get(title)
        if not verdicts or not verdicts["other_seed"]["metrics"]:
            continue
        controls = [verdicts[name]["verdict"] for name in CONTROLS]
        found = "; ".join(f"{name.removeprefix('control_')}: {_text(verdicts[name], metrics)}" for name in CONTROLS)
        columns = {
            "noise floor (SD of a stream)": _each(metrics, content["noise_floor"]),
            "change found in 80 % of runs": _each(metrics, _decided(verdicts["other_seed"], "detectable")),
            "smallest degradation called worse": "; ".join(_smallest(rungs, verdicts) for rungs in FAMILIES),
            "equal streams": verdicts["other_seed"]["verdict"],
        }
        met = all(verdict == "worse" for verdict in controls)
        figures.append(Figure(title, found, "both controls worse", met, columns))
    rows = {
        title: found for title, found in content.get("fixes", {}).items() if all(f["metrics"] for f in found.values())
    }
    for fix in next(iter(rows.values()), {}):
        columns = {title.split(" (")[0]: _ranges(rows[title][fix], metrics) for title, metrics in ROWS if title in rows}
        worse = [verdicts[fix]["verdict"] for verdicts in rows.values()].count("worse")
        figures.append(Figure(fix, f"called worse by {worse} of {len(columns)}", "", None, columns))
    for metric in JUDGE_METRICS:
        changes = {rung: of[metric.name] for rung, of in content["margins"].items() if metric.name in of}
        texts = [f"{one['mean']:.4f} ± {one['standard_error']:.4f} at {rung}" for rung, one in changes.items()]
        if texts:
            force = "none is in force" if metric.only_against else f"in force {metric.margin:g}"
            text = f"{'; '.join(texts)}; {force}"
            figures.append(Figure(f"margin of {metric.title}, mean ± standard error", text))
    return figures


def _decided(verdict: Data, name: str) -> dict[str, float]:
    return {metric: decision[name] for metric, decision in verdict["metrics"].items()}


def _each(metrics: Sequence[SoundMetric], values: dict[str, float]) -> str:
    return "; ".join(f"{m.title} {fixed(values[m.name], decimals=m.decimals)}{m.unit}" for m in metrics)


def _text(verdict: Data, metrics: Sequence[SoundMetric]) -> str:
    changes = _decided(verdict, "estimate")
    return f"{verdict['verdict']} ({'; '.join(f'{m.title} {m.text(changes[m.name])}' for m in metrics)})"


def _ranges(verdict: Data, metrics: Sequence[SoundMetric]) -> str:
    decisions = {name: DifferenceDecision(**decision) for name, decision in verdict["metrics"].items()}
    changes = (f"{m.title} {spanned(m.range_text(decisions[m.name]))}" for m in metrics)
    return f"{verdict['verdict']}: {'; '.join(changes)}"


def _smallest(rungs: Sequence[Rung], verdicts: Data) -> str:
    """The first rung from which on every harder one is called worse too."""
    worse = [verdicts[rung.name]["verdict"] == "worse" for rung in rungs]
    first = len(rungs) if not worse[-1] else next(at for at in range(len(rungs)) if all(worse[at:]))
    return rungs[first].name if first < len(rungs) else f"not {rungs[-1].name}"


def _notes(content: Data) -> list[str]:
    text = f"{content['streams']} streams of {N_FRAMES / 50:g} s. Each judge is one family of tests."
    return [text, *(f"{line}." for line in content["missing"])]


EXPERIMENT = Experiment(
    name="judges",
    title="what each judge of speech can hear",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    notes=_notes,
    settings={"passages": (16, 64)},
)
