"""First divergence of voice streams: survival per fix, and its prediction from teacher-forced logits alone.

Two kinds of trial. *Hazards*: a fix is given the original speech of the calibration windows, and at every step the
closed-form chance that its error changes a sampled token is taken from its logits and float64's. *Streams*: the
held-out streams run on from their prompts, and each one's first step away from the reference's tokens is recorded, or
that there was none. The first kind predicts the second; nothing is fitted to either. A *step* is one decode step after
the prompt, counted from 0; a stream that differs at step s leaves at time ``s + 1``, one that never differs is censored
at the last step. A *group* is one checkpoint at one temperature.
"""

from __future__ import annotations

from collections.abc import Iterator

from validation.divergence.analysis import figures
from validation.divergence.plan import DESIGNS
from validation.divergence.running import Runner
from validation.frame import Data, Experiment, Options, Trial


def _trials(options: Options) -> list[Trial]:
    """Each group's hazards, then its streams chunk by chunk, so that what shares a reference follows each other."""
    design, trials = DESIGNS[options.size], []
    for group in design.groups:
        stem = f"{options.size}/{group.name}"
        hazards = [fix for fix in group.steps if fix != "noise_floor"]  # that is another noise, not another logit
        trials += [Trial(f"{stem}/hazards/{fix}", (group, None, fix)) for fix in hazards]
        for chunk in range(design.n_streams // design.chunk_streams):
            trials += [Trial(f"{stem}/streams{chunk}/{fix}", (group, chunk, fix)) for fix in group.steps]
    return trials


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    runner = Runner(DESIGNS[options.size])
    for key, (group, chunk, fix), _ in trials:
        measured = runner.hazards(group, fix) if chunk is None else runner.streams(group, chunk, fix)
        yield {"key": key, "size": options.size, "group": group.name, "fix": fix, **measured}


EXPERIMENT = Experiment(
    name="divergence", title="first divergence, and its prediction from margins", trials=_trials, run=_run,
    figures=figures,
)  # fmt: skip
