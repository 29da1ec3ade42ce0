"""What the rounding at each line of a model adds to its drift; imports torch.

Conventions: the model runs in float64, and the results of chosen steps are rounded to the formats that the model itself
gives them; how far the output then is from that of the float64 run is the *share* of those steps. The line with the
largest share is found by halving.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.float64_reference import in_wide, run_as
from precision_eval.measure.model_calls import attempt, base_dtype, copy_model, module_paths, relative_error
from precision_eval.trace.operations import WITH_WEIGHTS, OperationKind
from precision_eval.trace.provenance import named_tensors
from precision_eval.trace.replay import Steps, TracedStep, rounding

# Lines that are named as one where none of them outweighs the others by itself.
MOST_LINES = 3

# Of what a line adds: with as much, a line before it that does the same is where the change begins.
ALIKE = 0.1

# Of a drift that its format explains: the most that a place that is told of may leave, and the places that are told.
LEFT, MOST_PLACES = 0.8, 2
# Seconds that all runs may take together to find them.
MOST_SECONDS = 3.0

# Of a drift: with less than the first no line is looked at further, since what several lines round may come to far
# more together than alone; with less than the second no further lines are named with it.
A_TENTH, HALF_OF_IT = 0.1, 0.5


@dataclass(frozen=True)
class Share:
    """The lines that add most to a drift: the first step that rounds there, what they add, and what all others do."""

    step: TracedStep
    lines: int
    own: float
    others: float
    is_of_whole_numbers: bool
    work: torch.dtype  # the format of most products


@dataclass(frozen=True)
class Place:
    """A line, or a function without products, and the drift that would be left were what it rounds kept wide."""

    steps: tuple[TracedStep, ...]
    left: float


def run_steps(
    model: ExaminedModel,
    inputs: tuple[torch.Tensor, ...],
    rounded: dict[int, TracedStep],
    **options: Any,
) -> Steps:
    paths = module_paths(list(model.named_modules()), model.prefix)
    follower = Steps(paths, rounded, **options)
    with torch.no_grad(), follower.modules.followed(), follower:
        outcome = attempt(lambda: model(*inputs))
        follower.outputs, follower.error = outcome.outputs or (), outcome.error
    return follower


def steps_of(subject: ExaminedModel) -> list[TracedStep]:
    model = copy_model(subject)
    return run_steps(model, model.tensors, {}).steps


def run_rounded(subject: ExaminedModel, rounded: dict[int, TracedStep], **options: Any) -> Steps:
    runs: list[Steps] = []

    def through(twin: ExaminedModel, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        runs.append(run_steps(twin, inputs, rounded, **options))
        return runs[-1].outputs

    run_as(subject, in_wide, torch.float64, through=through)
    return runs[-1]


def run_changed(
    subject: ExaminedModel, name: str, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Steps:
    """Run in float64 with a stored tensor changed: by a function of it, and of numbers drawn between -1 and 1."""
    runs: list[Steps] = []

    def through(twin: ExaminedModel, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        tensor = next(t for _, n, t in named_tensors(twin, (), prefix=twin.prefix) if n == name)
        drawn = 2 * torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
        tensor.data = change(tensor.data, drawn.to(tensor.device))
        runs.append(run_steps(twin, inputs, {}))
        return runs[-1].outputs

    run_as(subject, in_wide, torch.float64, through=through)
    return runs[-1]


def kept_results(
    subject: ExaminedModel,
) -> tuple[list[tuple[TracedStep, torch.Tensor]], dict[Hashable, torch.Tensor]]:
    """What each step of a model gave that makes new numbers, and what those of a float64 copy did, by identity."""
    model = copy_model(subject)
    own, exact = run_steps(model, model.tensors, {}, keeps=True), run_rounded(subject, {}, keeps=True)
    if min(own.room_bytes, exact.room_bytes) < 0:
        return [], {}
    return own.results, {step.identity: result for step, result in exact.results}


def drift_between(rounded: Steps, exact: Steps) -> float:
    pairs = list(zip(rounded.outputs, exact.outputs, strict=False))
    if any(a.shape != b.shape for a, b in pairs):  # such as a generation that ends elsewhere
        return 1.0
    return max((relative_error(a, b) for a, b in pairs), default=0.0)


def first_rounding(
    subject: ExaminedModel, error: Callable[[Steps, Steps], float], most: float
) -> tuple[TracedStep | None, float]:
    """The first operation the rounding of whose result, and of all before, brings an error beyond the most, and what
    all bring; None where rounding results does not.
    """
    steps = steps_of(subject)
    exact = run_rounded(subject, {})
    low, high = 0, len(steps)
    total = error(run_rounded(subject, dict(enumerate(steps))), exact)
    if not total > most or not steps:
        return None, total
    while high - low > 1:
        middle = (low + high) // 2
        is_beyond = error(run_rounded(subject, dict(enumerate(steps[:middle]))), exact) > most
        low, high = (low, middle) if is_beyond else (middle, high)
    return steps[high - 1], total


class _Budget:
    def __init__(
        self,
        subject: ExaminedModel,
        steps: list[TracedStep],
        error: Callable[[Steps, Steps], float] = drift_between,
    ) -> None:
        self.subject, self.steps, self.of_runs = subject, steps, error
        self.exact = run_rounded(subject, {})

    def error(self, chosen: Collection[int]) -> float:
        return self.of_runs(run_rounded(self.subject, {at: self.steps[at] for at in chosen}), self.exact)

    def largest(
        self, chosen: Sequence[int], key: Callable[[TracedStep], Hashable], least: float
    ) -> tuple[list[int], float]:
        """Of groups of steps that are alike in the key the one that adds most, by halving; none where it adds less."""
        groups: dict[Hashable, list[int]] = {}
        for at in chosen:
            groups.setdefault(key(self.steps[at]), []).append(at)
        parts = list(groups.values())
        error = self.error(chosen) if len(parts) < 2 else float("inf")
        while len(parts) > 1:
            halves = parts[: len(parts) // 2], parts[len(parts) // 2 :]
            errors = [self.error([at for part in half for at in part]) for half in halves]
            error = max(errors)
            if not error >= least:
                return [], error
            parts = halves[errors.index(error)]
        return (parts[0] if parts and error >= least else []), error

    def first_alike(self, line: list[int], own: float, narrow: list[int]) -> int:
        """The step of a line that adds most, or its first; of a line before, where that does alike."""
        at = self.steps[line[0]]
        before: dict[Hashable, list[int]] = {}
        for other in narrow:
            step = self.steps[other]
            if (step.code, step.name) == (at.code, at.name) and other < line[0] and step.line != at.line:
                before.setdefault(step.line, []).append(other)
        for steps in before.values():
            if self.error(steps) > ALIKE * own:
                return steps[0]
        most, _ = self.largest(line, lambda step: (step.call and step.call.path, step.instruction), HALF_OF_IT * own)
        return (most or line)[0]


def largest_shares(subject: ExaminedModel) -> Iterator[Share]:
    """The line whose rounding adds most to a drift, then that and the next ones together, up to so many."""
    steps = steps_of(subject)
    narrow = [at for at, step in enumerate(steps) if step.is_narrow]
    if not narrow:
        return
    budget, every, chosen = _Budget(subject, steps), set(range(len(steps))), set[int]()
    work, others, least = working_format(steps), budget.error(every), A_TENTH
    shares: list[tuple[int, float]] = []  # of each line its first step, and what it adds
    for count in range(1, MOST_LINES + 1):
        left = [at for at in narrow if at not in chosen]
        line, own = budget.largest(left, lambda step: step.line, least * others)
        if not line or not own > 0:
            return
        chosen |= set(line)
        is_most, least = own >= HALF_OF_IT * others, HALF_OF_IT
        others = budget.error(every - chosen)
        shares.append((line[0], own))
        # A line that adds little is not where the drift begins.
        first = min(at for at, adds in shares if adds >= ALIKE * shares[0][1])
        first = budget.first_alike(line, own, narrow) if count == 1 else first
        alone = run_rounded(subject, {at: steps[at] for at in chosen})
        own = drift_between(alone, budget.exact)
        yield Share(steps[first], count, own, others, alone.rounds_whole_numbers, work)
        if not is_most:
            return


def moved_choices(rounded: Steps, exact: Steps) -> float:
    """The share of what is chosen, as by topk or argmax, that is not what float64 chooses."""
    pairs = [(a, b) for a, b in zip(rounded.choices, exact.choices, strict=False) if a.shape == b.shape]
    total = sum(a.numel() for a, _ in pairs)
    return sum(int((a != b).sum()) for a, b in pairs) / max(total, 1)


def wide_of(subject: ExaminedModel) -> torch.dtype:
    """The format in which a line of a model rounds nothing that counts."""
    return torch.float64 if base_dtype(subject) is torch.float64 else torch.float32


def places_that_round(
    subject: ExaminedModel, error: Callable[[Steps, Steps], float] = drift_between
) -> tuple[float, list[Place]]:
    """An error, and the lines, or functions without products, that leave least of it if kept wide, the best first."""
    steps = steps_of(subject)
    groups: dict[Hashable, list[int]] = {}
    with_products, wide = {step.code for step in steps if step.sort in WITH_WEIGHTS}, wide_of(subject)
    for at, step in enumerate(steps):
        for key in (step.line, step.code) if rounding(step.dtype) > rounding(wide) else ():
            if key is not step.code or step.code not in with_products:
                groups.setdefault(key, []).append(at)
    budget, every = _Budget(subject, steps, error), set(range(len(steps)))
    started = time.perf_counter()
    total = budget.error(every) if groups else 0.0
    if not total or len(groups) * (time.perf_counter() - started) > MOST_SECONDS:
        return total, []
    tried = [Place(tuple(steps[at] for at in group), budget.error(every - set(group))) for group in groups.values()]
    kept: list[Place] = []
    for place in sorted(tried, key=lambda place: (place.left, len(place.steps))):
        if place.left < LEFT * total and not any(set(place.steps) & set(other.steps) for other in kept):
            kept.append(place)
    return total, kept[:MOST_PLACES]


def working_format(steps: list[TracedStep]) -> torch.dtype:
    """The format in which most products are: autocast around a whole model makes it that of the model."""
    kinds = (OperationKind.PRODUCT, OperationKind.ATTENTION, OperationKind.RNN)
    formats = Counter(step.dtype for step in steps if step.sort in kinds)
    return formats.most_common(1)[0][0] if formats else torch.float32
