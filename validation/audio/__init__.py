"""What ``audio_metrics`` costs and finds, beside its peers.

Ratios are of CPU time in one process on one thread, paired: every round runs all candidates in random order, and the
figure is the median of the rounds' ratios. Targets are fixed here, before measuring. Four parts: identities that hold
to rounding, peak memory, cost beside auraloss and torchmetrics, and detection of degradations in free-running speech.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import to_number

if TYPE_CHECKING:
    from validation.audio.ratio import Ratio


def _identities(folder: Path, quick: bool) -> list[Ratio]:
    from validation.audio import identities

    return identities.figures()


def _memory(folder: Path, quick: bool) -> list[Ratio]:
    from validation.audio import memory
    from validation.audio.signals import write_pair

    return memory.figures(write_pair(folder, minutes=1), write_pair(folder, minutes=10 if quick else 60))


def _cost(folder: Path, quick: bool) -> list[Ratio]:
    from validation.audio.cost import against_floor, against_peers, one_hour
    from validation.audio.signals import write_pair

    minute, ten = (write_pair(folder, minutes=minutes) for minutes in (1, 10))
    few = 3 if quick else 7
    short_targets = {"STFTLoss": 0.5, "MR-STFT": None, "SI-SDR": None}
    long_targets = {"STFTLoss": 0.2, "SI-SDR": None}
    ratios = against_floor(minute, rounds=3 * few, label="60 s") + against_floor(ten, rounds=few, label="10 min")
    ratios += against_peers(minute, rounds=3 * few, label="60 s", targets=short_targets)
    ratios += against_peers(ten, rounds=few, label="10 min", targets=long_targets)
    if not quick:
        ratios += against_peers(ten, rounds=3, label="10 min", targets={"MR-STFT": 1 / 30})
        ratios += one_hour(write_pair(folder, minutes=60))
    return ratios


def _detection(folder: Path, quick: bool) -> list[Ratio]:
    from validation.audio import detection

    return detection.figures(folder)


def _planted(folder: Path, quick: bool) -> list[Ratio]:
    from validation.audio import planted

    return list(planted.figures())


PARTS: dict[str, Callable[[Path, bool], list[Ratio]]] = {
    "identities": _identities,
    "memory": _memory,
    "cost": _cost,
    "detection": _detection,
    "planted": _planted,
}


def _trials(options: Options) -> list[Trial]:
    return [Trial(f"{part}/{options.size}", part) for part in options["parts"]]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    for key, part, _ in trials:
        ratios = PARTS[part](Path(options["folder"]), options.size == "quick")
        yield {"key": key, "part": part, "figures": [ratio.to_dict() for ratio in ratios]}


def _summary(lines: list[Data], options: Options) -> Data:
    """The figures of the full size where they are there, with the peers' versions."""
    from importlib.metadata import distributions

    installed = {distribution.name: distribution.version for distribution in distributions()}
    ordered = sorted(lines, key=lambda line: str(line["key"]).endswith("/full"))
    peers = {name: installed.get(name) for name in ("auraloss", "torchmetrics")}
    return {line["part"]: line["figures"] for line in ordered} | {"peers": peers}


def _figures(content: Data) -> list[Figure]:
    return [_figure(row) for part in PARTS for row in content.get(part, ())]


def _figure(row: Data) -> Figure:
    sign, bound = ("≤", row["most"]) if row["least"] is None else ("≥", row["least"])
    value, low, high = (f"{to_number(row[name]):.3g}" for name in ("value", "low", "high"))
    spread = f" [{low}, {high}]" if low != high else ""
    found = f"{value}{spread} {row['unit']}".strip() + (f"; {row['note']}" if row["note"] else "")
    return Figure(row["name"], found, "" if bound is None else f"{sign} {bound:.3g} {row['unit']}".strip(), row["met"])


EXPERIMENT = Experiment(
    name="audio",
    title="audio_metrics beside its peers: identities, memory, cost, detection, planted failures",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    settings={"parts": (tuple(PARTS), tuple(PARTS)), "folder": ("runs/audio-bench", "runs/audio-bench")},
    stored="audio-bench.json",
)
