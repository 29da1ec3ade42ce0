"""Verdicts drawn from the bank, by the code that judges a run.

A drawn run is 16 of the bank's passages under seven conditions, a reference and a noise floor; per passage the seeds
are dealt anew to them. In an A/A run every condition is the reference under another seed, so whatever is said to differ
is a false alarm. A planted degradation, or a control, takes the place of one of the seven; its streams are of another
seed than the reference's, as of a fix that leaves the reference's tokens at once: the hardest case. Drawn runs share
streams: each verdict is right by itself, but they are not independent, so the intervals are somewhat too narrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from precision_eval.core.figures import SoundFigures
from precision_eval.measure.shipped_voice import BATCH_STREAMS
from precision_eval.results.sound import VOICE_METRICS, judged_sound
from precision_eval.stats.differences import FAMILY_ERROR, POWER
from precision_eval.stats.sequential import student_quantile
from validation.frame import Data
from validation.sound.bank import CONTROLS, FIXES, MARGIN_RUNG, N_FRAMES, PLANTED, RENDERING

CONDITIONS = 7
RUNS = {"A/A": 500, "A/A, one fix": 1000, "planted": 200, "control": 500}
LENGTHS = {"80 s": 16, "10 min": 120, "60 min": 720}
_STREAM_S = N_FRAMES / 50
_NAMES = [metric.name for metric in VOICE_METRICS]

Values = np.ndarray  # (metrics, passages) of one condition and seed


def gathered(lines: Sequence[Data]) -> dict[str, Any]:
    """Arrange the bank: renderings (metrics, passages, seeds) of the seeds that are complete, and what was planted."""
    known = {line["key"]: line for line in lines}
    parts = [part for part in range(12) if f"{RENDERING}/0/{part}" in known]

    def values(name: str, seed: int, among: Sequence[int]) -> Values | None:
        keys = [f"{name}/{seed}/{part}" for part in among]
        if not keys or any(key not in known for key in keys):
            return None
        return np.concatenate([_array(known[key]["heard"]) for key in keys], axis=1)

    seeds = [found for seed in range(1, 100) if (found := values(RENDERING, seed, parts)) is not None]
    planted = [part for part in parts if "planted" in known[f"{RENDERING}/0/{part}"]]
    first = values(RENDERING, 0, parts)
    if first is None or len(seeds) < 2 or not planted:
        return {}
    made = {
        rung.name: np.concatenate(
            [_array(known[f"{RENDERING}/0/{part}"]["planted"][rung.name]) for part in planted], axis=1
        )
        for rung in PLANTED
    }
    complete = [part for part in planted if all(f"{name}/0/{part}" in known for name in (*CONTROLS, *FIXES))]
    spoken = {name: found for name in (*CONTROLS, *FIXES) if (found := values(name, 0, complete)) is not None}
    return {
        "renderings": np.stack([first, *seeds], axis=2),
        "planted": made,
        "planted_at": _columns(planted, parts),
        "spoken": spoken,
        "spoken_at": _columns(complete, parts),
    }


def _array(heard: Mapping[str, Sequence[float]]) -> Values:
    return np.array([heard[name] for name in _NAMES])


def _columns(some: Sequence[int], parts: Sequence[int]) -> np.ndarray:
    return np.concatenate([np.arange(BATCH_STREAMS) + BATCH_STREAMS * parts.index(part) for part in some])


def _data(values: Values) -> SoundFigures:
    heard = dict(zip(_NAMES, values.tolist(), strict=True))
    return SoundFigures(streams=values.shape[1], stream_s=_STREAM_S, heard=heard)


def _run(
    bank: Values, rng: np.random.Generator, passages: np.ndarray, *, own: Values | None, conditions: int
) -> list[str]:
    """Draw a run and return its conditions' verdicts; `own` are the streams of the first at all passages it has."""
    chosen = rng.choice(len(passages), BATCH_STREAMS, replace=False)
    seeds = np.arange(bank.shape[2]) if own is None else np.arange(1, bank.shape[2])  # its own are of seed 0
    dealt = np.stack([rng.permutation(seeds) for _ in chosen])  # (streams, seeds)
    columns = [bank[:, passages[chosen], dealt[:, number]] for number in range(dealt.shape[1])]
    reference, noise_floor, *others = columns
    heard = {str(number): _data(values) for number, values in enumerate(others[:conditions])}
    if own is not None:
        heard["0"] = _data(own[:, chosen])
    verdicts = judged_sound(heard, _data(reference), _data(noise_floor))
    return [verdicts[name].verdict for name in heard]


def summary(lines: list[Data]) -> Data | None:
    """Return every count and figure as plain data; None where the bank is too small."""
    found = gathered(lines)
    if not found:
        return None
    bank, rng = found["renderings"], np.random.default_rng(0)
    everywhere = np.arange(bank.shape[1])
    conditions = min(CONDITIONS, bank.shape[2] - 2)

    def drawn(kind: str, passages: np.ndarray, own: Values | None = None, of: int = conditions) -> list[list[str]]:
        return [_run(bank, rng, passages, own=own, conditions=of) for _ in range(RUNS[kind])]

    families, single = drawn("A/A", everywhere), drawn("A/A, one fix", everywhere, of=1)
    return {
        "passages": bank.shape[1],
        "seeds": bank.shape[2],
        "stream_s": _STREAM_S,
        "conditions": conditions,
        "disjoint": bank.shape[1] // BATCH_STREAMS * (bank.shape[2] // 3),
        "aa": _counts([verdict for run in families for verdict in run]),
        "aa_runs": {"runs": len(families), "alarms": sum(any(_alarm(one) for one in run) for run in families)},
        "aa_single": _counts([verdict for run in single for verdict in run]),
        "planted": {
            name: _counts([run[0] for run in drawn("planted", found["planted_at"], own)])
            for name, own in found["planted"].items()
        },
        "controls": {
            name: _counts([run[0] for run in drawn("control", found["spoken_at"], found["spoken"][name])])
            for name in CONTROLS
        },
        "margins": _margins(found),
        "detectable": _detectable(bank, conditions),
        "fixes": _fixes(found),
        "speed": [line["speed"] for line in lines if "speed" in line][-1:],
    }


def _alarm(verdict: str) -> bool:
    return verdict in ("worse", "better")


def _counts(verdicts: Sequence[str]) -> dict[str, int]:
    return {"verdicts": len(verdicts), **Counter(verdicts)}


def _margins(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What the rung that margins come from does to each metric, and its standard error."""
    changes = found["planted"][MARGIN_RUNG] - found["renderings"][:, found["planted_at"], 0]
    return {
        metric.name: {
            "mean": float(metric.worse * change.mean()),
            "standard_error": float(change.std(ddof=1) / np.sqrt(change.size)),
            "in_force": metric.margin,
        }
        for metric, change in zip(VOICE_METRICS, changes, strict=True)
    }


def _detectable(bank: Values, conditions: int) -> dict[str, dict[str, float]]:
    """Smallest change found in 80 % of runs, of a fix that leaves the reference at once, per length of sound."""
    spreads = bank.var(axis=2, ddof=1).mean(axis=1)  # between seeds, of one passage
    found = {}
    for length, streams in LENGTHS.items():
        level = FAMILY_ERROR / (conditions * len(VOICE_METRICS))
        reach = student_quantile(level, streams - 1) + student_quantile(2 * (1 - POWER), streams - 1)
        found[length] = dict(zip(_NAMES, (reach * np.sqrt(2 * spreads / streams)).tolist(), strict=True))
    return found


def _fixes(found: Mapping[str, Any]) -> dict[str, Any]:
    """The real fixes and controls, judged once, over all passages on which all of them were spoken."""
    bank, at = found["renderings"], found["spoken_at"]
    heard = {name: _data(values) for name, values in found["spoken"].items()}
    verdicts = judged_sound(heard, _data(bank[:, at, 0]), _data(bank[:, at, 1]))
    return {name: verdict.to_dict() for name, verdict in verdicts.items()}
