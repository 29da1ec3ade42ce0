"""Whether the verdict on sound keeps its error rate, and how much degradation it hears.

It speaks a bank of short streams (:mod:`.bank`; some eight seconds of processor time per batch, 96 of them at full
size) and draws runs from it (:mod:`.trials`)::

    python -m validation sound --size full --out results/sound

``speed`` is the time in which two processes of one thread each speak 16 streams.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from precision_eval.cases.voice.codec import FRAME_RATE_HZ
from precision_eval.core.workers import use_one_blas_thread
from precision_eval.results.sound import VOICE_METRICS, metrics_text
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import judged_share
from validation.sound import bank, trials

_RUNG = re.compile(r"(.*) (-?[\d.]+) (\D+)")
_SPEED = "speed"
_CORES = 2


def _trials(options: Options) -> list[Trial]:
    return [*bank.trials(options), Trial(_SPEED)]


def _run(todo: Iterator[Trial], options: Options) -> Iterator[Data]:
    for trial in todo:
        if trial.key == _SPEED:
            yield {"key": _SPEED, "speed": _speed()}
        else:
            yield from bank.run(iter([trial]), options)


def _speed() -> dict[str, float]:
    """Speak on every core at once; what starting the processes takes is left out."""
    use_one_blas_thread()
    with ProcessPoolExecutor(_CORES, mp_context=get_context("spawn")) as pool:
        list(pool.map(_spoken_cpu_s, [1] * _CORES))
        start_s = time.perf_counter()
        cpu_s = sum(pool.map(_spoken_cpu_s, [bank.BATCH_STREAMS] * _CORES))
        wall_s = time.perf_counter() - start_s
    audio_s = _CORES * bank.BATCH_STREAMS * bank.N_FRAMES / FRAME_RATE_HZ
    return {"audio_s": audio_s, "cpu_s": cpu_s, "wall_s": wall_s}


def _spoken_cpu_s(streams: int) -> float:
    import torch

    torch.set_num_threads(1)
    passages = bank.passages(streams, n_frames=bank.N_FRAMES)
    start_s = time.process_time()
    bank.waveforms(bank.spoken_tokens(bank.RENDERING, passages, n_frames=bank.N_FRAMES, seed=0))
    return time.process_time() - start_s


def _figures(content: Data) -> list[Figure]:
    aa, runs, single = content["aa"], content["aa_runs"], content["aa_single"]
    family = f"runs of {content['conditions']} fixes"
    figures = [
        judged_share(f"A/A verdicts that alarm, {family}", _alarms(aa), aa["verdicts"], "≤ 1 %"),
        judged_share(f"A/A {family} in which anything alarms", runs["alarms"], runs["runs"], "≤ 1 %"),
        judged_share("A/A verdicts that alarm, runs of one fix", _alarms(single), single["verdicts"], "≤ 1 %"),
        judged_share("A/A verdicts *no worse*, the rest undecided", aa.get("no worse", 0), aa["verdicts"]),
    ]
    for name, found in content["controls"].items():
        figures.append(judged_share(f"{name} called worse", found.get("worse", 0), found["verdicts"], "≥ 99 %"))
    margin_rung = content["planted"][bank.MARGIN_RUNG]
    passed = margin_rung.get("no worse", 0)
    figures.append(judged_share(f"{bank.MARGIN_RUNG} called no worse", passed, margin_rung["verdicts"], "≤ 5 %"))
    figures += _power(content["planted"])
    errors = []
    for metric in VOICE_METRICS:
        margin = content["margins"][metric.name]
        text = f"{margin['mean']:.4f} ± {margin['standard_error']:.4f} (standard error); in force {metric.margin:g}"
        errors.append(abs(margin["mean"] - metric.margin) / margin["standard_error"])
        figures.append(Figure(f"margin of {metric.title}, {bank.MARGIN_RUNG}", text))
    name = f"margins, the largest error of {len(errors)}, in standard errors"
    figures.append(Figure(name, f"{max(errors):.1f}", "≤ 2", max(errors) <= 2))
    for length, changes in content["detectable"].items():
        figures.append(Figure(f"smallest change heard in 80 % of runs, {length} of sound", metrics_text(changes)))
    for name, found in content["fixes"].items():
        changes = {key: one["estimate"] for key, one in found["metrics"].items()}
        figures.append(Figure(f"{name}, {found['streams']} streams", f"{found['verdict']}: {metrics_text(changes)}"))
    for speed in content["speed"]:
        by_wall, by_cpu = (speed["audio_s"] / seconds for seconds in (speed["wall_s"], speed["cpu_s"] / _CORES))
        text = f"{by_wall:.1f} × real time by the wall, {by_cpu:.1f} × by processor time"
        figures.append(Figure("16 streams in float32 on each of 2 cores", text, "≥ 40 ×", max(by_wall, by_cpu) >= 40))
    return figures


def _power(planted: Data) -> list[Figure]:
    """How often each kind of degradation is called worse, from its mildest size to its hardest."""
    kinds: dict[tuple[str, str], dict[str, str]] = {}
    for name, counts in planted.items():
        kind, size, unit = _RUNG.fullmatch(name).groups()  # type: ignore[union-attr]
        kinds.setdefault((kind, unit), {})[size] = f"{100 * counts.get('worse', 0) / counts['verdicts']:g}"
    of = max(counts["verdicts"] for counts in planted.values())
    return [
        Figure(f"called worse: {kind}, {' / '.join(shares)} {unit}", f"{' / '.join(shares.values())} % of {of}")
        for (kind, unit), shares in kinds.items()
    ]


def _alarms(counts: Data) -> int:
    return int(counts.get("worse", 0) + counts.get("better", 0))


def _notes(content: Data) -> list[str]:
    bank_text = f"{content['passages']} passages × {content['seeds']} seeds of {content['stream_s']:g} s"
    return [f"{bank_text}. Verdicts share streams; {content['disjoint']} could be drawn that share none."]


EXPERIMENT = Experiment(
    name="sound",
    title="false alarms and power of the verdict on sound",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=lambda lines, options: trials.summary(lines),
    notes=_notes,
    settings={"passages": (48, 96), "planted": (16, 64), "seeds": (5, 12)},
)
