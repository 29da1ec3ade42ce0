"""The table of faults and stages as a figure.

Conventions: one row per kind of fault, one column per stage in the order of a run; a field says what the hit cell came
to, or how the command ended, and its colour whether everything promised held. White: that fault does not meet that
stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from precision_eval.core.drawing import new_figure, save
from validation.robustness.harness import Trial
from validation.robustness.injector import MAIN_STAGES, WORKER_STAGES

_STAGES = (MAIN_STAGES[0], *WORKER_STAGES, *MAIN_STAGES[1:], "between")
_KEPT, _BROKEN = "#bfe3c8", "#f2b0a5"


def draw(trials: Sequence[Trial], out: Path) -> list[Path]:
    """Draw ``out/robustness.png`` and ``.svg``."""
    stages = [stage for stage in _STAGES if any(trial.stage == stage for trial in trials)]
    kinds = list(dict.fromkeys(trial.kind for trial in trials))
    figure = new_figure(13.0, 0.42 * len(kinds) + 2.0)
    axes = figure.add_subplot()
    for trial in trials:
        x, y = stages.index(trial.stage), kinds.index(trial.kind)
        axes.fill(*_square(x, y), color=_KEPT if trial.kept else _BROKEN, lw=0)
        axes.text(x, y, _short(trial.seen), ha="center", va="center", fontsize=7.5)
    axes.set(xlim=(-0.5, len(stages) - 0.5), ylim=(len(kinds) - 0.5, -0.5))
    axes.set_xticks(range(len(stages)), [_words(stage, 10) for stage in stages], fontsize=8.5)
    axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds], fontsize=8.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    kept = sum(trial.kept for trial in trials)
    axes.set_title(
        f"{kept} of {len(trials)} faults injected into real runs: no finished cell lost, the run resumed and ended",
        loc="left",
        pad=34,
    )
    return save(figure, out, "robustness")


def _square(x: float, y: float, half: float = 0.47) -> tuple[np.ndarray, np.ndarray]:
    return x + half * np.array([-1, 1, 1, -1]), y + half * np.array([-1, -1, 1, 1])


def _words(name: str, width: int) -> str:
    """Break a name over lines."""
    words = name.replace("between", "between commands").replace("_", " ")
    return "\n".join(words.split()) if len(words) > width else words


def _short(seen: str) -> str:
    return "several" if "," in seen else seen.replace("out_of_memory", "out of\nmemory").replace("_", " ")
