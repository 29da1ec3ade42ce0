"""A question to a run: which groups, under which limits, by which policy, at what length; and the answer of each.

Conventions: a length is the number of positions that attention covers in a call (slots of the cache, or tokens of an
encoder or a prefill); rows are sequences, those of guidance included. A case without either has no extent, and stands
for every length. A sweep (``precision-eval sweep``) times ``full_float32``, ``query_to_half`` and ``kv_to_query`` in
the attention of a decode step. Between two lengths that were measured, the logarithm of a ratio is a straight line over
the logarithm of the length, and so are the ends of its interval. A plan (``precision-eval plan --json``) gives memory
from a model's configuration. Whatever such a file lacks for a fix is not filled in from the run.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precision_eval.cases.systems import attention, cogvideo_t5, dia, metavoice
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.files import read_json, worked_out_from
from precision_eval.core.formatting import command_line, grouped
from precision_eval.results.choose.choosing import Choice, check_policy, choose_from
from precision_eval.results.choose.comparing import Constraints
from precision_eval.results.model import ONE_PROCESS, Estimate, Group, MissingMeasureError, Row, exact
from precision_eval.results.reading import ratio_estimate
from precision_eval.run.plan import matching


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a run."""

    policy: str = "balanced"
    constraints: Constraints = field(default_factory=Constraints)
    cases: tuple[str, ...] = ("*",)
    sizes: tuple[str, ...] = ("*",)
    modes: tuple[str, ...] = ("*",)
    device: str | None = None
    threads: int | None = None
    length: int | None = None
    batch: int | None = None
    sweep: Path | None = None
    plan: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a question."""

    question: Question
    choices: tuple[Choice, ...]
    unanswered: tuple[tuple[Group, str], ...] = ()

    @property
    def found(self) -> bool:
        """Whether every case has a fix to take, in some mode and size."""
        taken = {choice.group.case for choice in self.choices if choice.fix is not None}
        groups = (*(choice.group for choice in self.choices), *(group for group, _ in self.unanswered))
        return {group.case for group in groups} <= taken

    @property
    def refused(self) -> bool:
        """Whether some case has no fix to take in any mode and size, although its records can be compared."""
        taken = {choice.group.case for choice in self.choices if choice.fix is not None}
        return not {choice.group.case for choice in self.choices} <= taken

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "policy": self.question.policy,
            "constraints": asdict(self.question.constraints),
            "found": self.found,
            "choices": [choice.to_dict() for choice in self.choices],
            "unanswered": [{"group": group.title, "lacks": lacks} for group, lacks in self.unanswered],
        }


def answer(groups: Sequence[Group], question: Question) -> Answer:
    """Answer a question from groups."""
    check_policy(question.policy)
    for name in ("length", "batch", "threads"):
        value = getattr(question, name)
        if value is not None and value < 1:
            raise ParameterError(f"{name} is {value}; expected a whole number above 0")
    length, batch = question.length, question.batch
    asked = matching_groups(groups, question)
    faulty = [group for group in asked if group.fault]
    chosen: Sequence[Group] = [group for group in asked if not group.fault]
    if faulty and not chosen:
        raise RecordError(faulty[0].fault)
    if question.sweep is None:
        chosen = nearest_in_length(chosen, length=length, batch=batch)
    else:  # a sweep has times of its own at every length and batch: no size of what it swept is dropped
        swept = [group for group in chosen if group.case == SWEPT_CASE and not group.pins]
        others = [group for group in chosen if group not in swept]
        chosen = (*swept, *nearest_in_length(others, length=length, batch=batch))
        chosen = timed_by_sweep(chosen, question.sweep, length=length, batch=batch)
    if question.plan is not None:
        chosen = planned_memory(chosen, question.plan, length=length, batch=batch)
    elif "memory" in question.constraints.axes:
        note = (
            f"so is its memory; that of {length} is planned: precision-eval plan --model NAME --length {length} --fix "
            "NAMES --json > plan.json, and here --memory-plan plan.json"
        )
        chosen = [_noted(one, note) if _measured_elsewhere(one) else one for one in chosen]
    choices: list[Choice] = []
    lacking: list[tuple[Group, MissingMeasureError]] = []
    for group in chosen:
        try:
            choices.append(choose_from(group, question.constraints, policy=question.policy))
        except MissingMeasureError as error:
            lacking.append((group, error))
    answered = {choice.group.case for choice in choices if choice.group.curing}
    for group, lack in lacking:
        if group.case not in answered:
            raise lack
    return Answer(
        question=question,
        choices=tuple(choices),
        unanswered=(*((group, str(lack)) for group, lack in lacking), *((group, group.fault) for group in faulty)),
    )


def matching_groups(groups: Sequence[Group], question: Question) -> tuple[Group, ...]:
    """Return the groups asked for, or say what the run holds instead."""
    matched = tuple(groups)
    for kind, patterns in (("case", question.cases), ("size", question.sizes), ("mode", question.modes)):
        names = matching(kind, patterns, sorted({getattr(group, kind) for group in matched}))
        matched = tuple(group for group in matched if getattr(group, kind) in names)
    device, threads = question.device, question.threads
    if device is not None:
        held = sorted({group.device for group in matched})
        matched = tuple(group for group in matched if device in (group.device, group.device.partition(":")[0]))
        if not matched:
            raise ParameterError(f"the run holds nothing of device '{device}', only {', '.join(held)}")
    if threads is not None:
        counts = sorted({group.threads for group in matched})
        matched = tuple(group for group in matched if group.threads == threads)
        if not matched:
            raise ParameterError(f"the run holds nothing with {threads} threads, only {counts}")
    return matched


# cases, their sizes, attribute of the length, rows (or the attribute that has them)
_TABLES: tuple[tuple[str, Mapping[str, Any], str, int | str], ...] = (
    ("attention-*", attention.SHAPES | attention.LENGTHS, "slots", "batch"),
    ("metavoice-prefill*", metavoice.SIZES, "prompt", 2),
    ("metavoice-*", metavoice.SIZES, "slots", 2),
    ("dia-encode", dia.ENCODER_SIZES, "text_length", 2),
    ("dia-decode*", dia.DECODER_SIZES, "slots", 2),
    ("cogvideo-t5-*", cogvideo_t5.SIZES, "tokens", 1),
)


@dataclass(frozen=True)
class Extent:
    """Positions that attention covers, and rows."""

    length: int
    rows: int


_ELSEWHERE = "measured at length"


def extent_of(case: str, size: str) -> Extent | None:
    """Return the extent of a case's size."""
    for pattern, sizes, attribute, rows in _TABLES:
        if fnmatchcase(case, pattern) and (shape := sizes.get(size)) is not None:
            return Extent(getattr(shape, attribute), getattr(shape, rows) if isinstance(rows, str) else rows)
    return None


def nearest_in_length(groups: Sequence[Group], *, length: int | None, batch: int | None) -> tuple[Group, ...]:
    """Keep, of each case, mode and pin, the size nearest to a length, and the sizes of a batch."""
    if batch is not None:
        groups = _of_batch(groups, batch)
    if length is None:
        return tuple(groups)
    alike = grouped(((group.case, group.mode, group.device, group.threads, group.pins), group) for group in groups)
    kept: list[Group] = []
    for members in alike.values():
        known = [(extent, group) for group in members if (extent := extent_of(group.case, group.size)) is not None]
        if not known:
            text = f"states no length, so it stands for {length:,} as it is"
            kept += [_noted(group, f"{group.size} {text}") for group in members]
            continue
        extent, group = min(known, key=lambda pair: (abs(math.log(pair[0].length / length)), -pair[0].length))
        if extent.length != length:
            group = _noted(group, f"{_ELSEWHERE} {extent.length:,}, asked for {length:,}")
        kept.append(group)
    return tuple(kept)


def _measured_elsewhere(group: Group) -> bool:
    return any(note.startswith(_ELSEWHERE) for note in group.notes)


def _of_batch(groups: Sequence[Group], batch: int) -> list[Group]:
    kept: list[Group] = []
    seen: set[int] = set()
    for group in groups:
        extent = extent_of(group.case, group.size)
        if extent is None:
            kept.append(_noted(group, f"{group.size} states no batch; it stands for {batch} as it is"))
        elif extent.rows == batch:
            kept.append(group)
        else:
            seen.add(extent.rows)
    if not kept and seen:
        raise ParameterError(
            f"no size in the run has {batch} rows, only {', '.join(map(str, sorted(seen)))}; leave --batch out, or "
            f"measure the two casts alone: precision-eval sweep --batch {batch}"
        )
    return kept


def _noted(group: Group, note: str) -> Group:
    return replace(group, notes=(*group.notes, note))


SWEEP_FILE = "crossover.json"
_BASELINE = "full_float32"
SWEPT_CASE = "attention-decode"
"""What a sweep times, shape by shape; its sizes are the shapes."""


_ALONE = (
    f"the sweep timed it in one process, which draws its memory layout once: differences below {100 * ONE_PROCESS:.0f} "
    "% are not called; sweep with --processes 5 or more"
)


@dataclass(frozen=True)
class _SweptTime:
    """A fix's time in a sweep: ratio to full_float32, its logarithm per process (empty where unpaired), processes."""

    time: Estimate
    logs: tuple[float, ...]
    processes: int


def timed_by_sweep(
    groups: Sequence[Group], folder: Path, *, length: int | None, batch: int | None
) -> tuple[Group, ...]:
    """Take times at a length from a sweep, where it measured what a group is; elsewhere add what it says."""
    content = _json(folder / SWEEP_FILE, remedy=command_line("sweep", "--out", folder))
    remedy = f"make it again: {command_line('sweep', '--report-only', '--out', folder)}"
    with worked_out_from(folder / SWEEP_FILE, remedy=remedy):
        configurations = content.get("configurations", [])
        return tuple(_swept(group, configurations, folder, length, batch) for group in groups)


def planned_memory(groups: Sequence[Group], path: Path, *, length: int | None, batch: int | None) -> tuple[Group, ...]:
    """Take memory from a plan."""
    again = f"precision-eval plan --json > {shlex.quote(str(path))}"
    plan = _json(path, remedy=again)
    if "fixes" not in plan or "length" not in plan:
        raise RecordError(f"{path} is no plan; write one: {again}")
    for name, asked in (("length", length), ("batch", batch)):
        if asked is not None and plan[name] != asked:
            raise RecordError(
                f"{path} is planned for {name} {plan[name]}, asked for {asked}; plan again: precision-eval plan "
                f"--model {plan['model']} --{name} {asked} --json > {path}"
            )
    by_fix = {one["fix"]: one for one in plan["fixes"]}
    note = f"memory is planned for {plan['model']} at length {plan['length']:,}, batch {plan['batch']}, not measured"
    return tuple(
        replace(
            group,
            rows=tuple(_planned(row, by_fix.get(row.fix), path) for row in group.rows),
            notes=(*group.notes, note),
        )
        for group in groups
    )


def _planned(row: Row, plan: Mapping[str, Any] | None, path: Path) -> Row:
    if row.role != "fix":
        return row
    if plan is None or plan.get("call_bytes") is None:
        why = (
            f"not in the plan; plan it with --fix {row.fix}"
            if plan is None
            else f"the plan says {plan.get('status')}: {plan.get('reason')}"
        )
        missing = {**row.missing, "memory": f"{path.name}: {why}"}
        return replace(row, stored_bytes=None, peak_bytes=None, missing=missing)
    missing = {axis: why for axis, why in row.missing.items() if axis != "memory"}
    return replace(row, stored_bytes=plan["stored_bytes"], peak_bytes=plan["call_bytes"], missing=missing)


def _swept(
    group: Group, configurations: Sequence[Mapping[str, Any]], folder: Path, length: int | None, batch: int | None
) -> Group:
    timed = length is not None and group.case == SWEPT_CASE
    if group.pins:
        note = "a sweep pins no setting of torch, so its times are not of this"
        return replace(group, notes=(*group.notes, note)) if timed else group
    alike = _alike(group, configurations, folder, batch, needed=timed)
    if not alike:
        return group
    chosen = alike[0]  # the first state of memory is the one that a sweep leads with
    note = f"sweep of attention alone ({chosen['id']}): {chosen['says']}"
    if length is None or not timed:
        return replace(group, notes=(*group.notes, note))
    times = {fix: _at_length(chosen, fix, length, folder) for fix in ("query_to_half", "kv_to_query")}
    processes = [time.processes for time in times.values() if time is not None]
    times[_BASELINE] = _SweptTime(exact(1.0), (), max(processes, default=1))
    points = ", ".join(f"{neighbour:,}" for neighbour in _neighbours(chosen, length, folder))
    where = f"time at length {length:,} is from the sweep's {points}"
    return replace(
        group,
        rows=tuple(_timed(row, times, length) for row in group.rows),
        baseline=_BASELINE,
        noise_floor=None,
        noise_floor_off=False,
        doubts=(
            *(doubt for doubt in group.doubts if not doubt.startswith(("the noise floor is off", "time was"))),
            *((_ALONE,) if 1 in processes else ()),
        ),
        notes=(*(known for known in group.notes if not known.startswith(_ELSEWHERE)), where, note),
    )


def _alike(
    group: Group, configurations: Sequence[Mapping[str, Any]], folder: Path, batch: int | None, *, needed: bool
) -> list[Mapping[str, Any]]:
    """Return the configurations that are what a group is; where they are needed, none is an error."""
    shape = group.size if group.case.startswith("attention-") else group.case.partition("-")[0]
    extent = extent_of(group.case, group.size)
    rows = batch if batch is not None else (extent.rows if extent is not None else None)
    wanted = (shape, attention.CACHE_DTYPE, group.mode, group.threads)
    alike = [
        configuration
        for configuration in configurations
        if (configuration["shape"], configuration["cache_dtype"], configuration["mode"], configuration["threads"])
        == wanted
        and rows in (None, configuration["batch"])
    ]
    if alike and group.device == "cpu":
        return alike
    if needed:
        batched, flags = ("", ()) if rows is None else (f", batch {rows}", ("--batch", rows))
        again = ("sweep", "--shape", shape, "--mode", group.mode, "--threads", group.threads, *flags, "--out", folder)
        raise RecordError(
            f"{folder} has no sweep of {shape} {attention.CACHE_DTYPE}{batched}, {group.mode}, {group.threads} threads "
            f"on {group.device}; add it: {command_line(*again)}"
        )
    return []


def _timed(row: Row, times: Mapping[str, _SweptTime | None], length: int) -> Row:
    if row.role != "fix" or row.status != "passed":
        return row
    swept = times.get(row.fix)
    doubts = tuple(doubt for doubt in row.doubts if not doubt.startswith("time:"))
    if swept is None:
        missing = {**row.missing, "time": f"the sweep has no time of it at length {length:,}"}
        return replace(row, time=None, time_logs=(), processes=0, verdict=None, missing=missing, doubts=doubts)
    return replace(
        row,
        time=swept.time,
        time_logs=swept.logs,
        processes=swept.processes,
        session="sweep",
        verdict=None,
        median_s=None,
        missing={axis: why for axis, why in row.missing.items() if axis != "time"},
        doubts=doubts,
    )


def _neighbours(configuration: Mapping[str, Any], length: int, folder: Path) -> tuple[int, ...]:
    """Return the length itself where it was measured, else the two around it."""
    lengths = sorted(point["length"] for point in configuration["points"])
    if length in lengths:
        return (length,)
    below, above = [known for known in lengths if known < length], [known for known in lengths if known > length]
    if not below or not above:
        raise RecordError(
            f"{folder} sweeps lengths {lengths[0]:,} to {lengths[-1]:,} of {configuration['id']}, asked for "
            f"{length:,}; add it: {command_line('sweep', '--length', length, '--out', folder)}"
        )
    return below[-1], above[0]


def _at_length(configuration: Mapping[str, Any], fix: str, length: int, folder: Path) -> _SweptTime | None:
    """Return a fix's ratio to full_float32 at a length; None where a point lacks it."""
    points = {point["length"]: point for point in configuration["points"]}
    lengths = _neighbours(configuration, length, folder)
    ratios = [points[neighbour]["ratios"].get(fix) for neighbour in lengths]
    if any(ratio is None for ratio in ratios):
        return None
    share = 0.0 if len(lengths) == 1 else math.log(length / lengths[0]) / math.log(lengths[1] / lengths[0])
    weights = (1.0,) if len(lengths) == 1 else (1.0 - share, share)

    def log_between(values: Iterable[float]) -> float:
        return sum(weight * math.log(value) for weight, value in zip(weights, values, strict=True))

    figures = [ratio_estimate(ratio) for ratio in ratios]
    value, low, high = (math.exp(log_between(getattr(one, end) for one in figures)) for end in ("value", "low", "high"))
    time = Estimate(value=value, low=low, high=high, degrees=min(one.degrees for one in figures))
    processes = [ratio.get("process_ratios") or () for ratio in ratios]
    counts = [max(len(own), 1) for own in processes]  # one process alone stores no ratio of its own
    paired = counts[0] > 1 and len(set(counts)) == 1
    return _SweptTime(time, tuple(map(log_between, zip(*processes, strict=True))) if paired else (), min(counts))


def _json(path: Path, *, remedy: str) -> dict[str, Any]:
    try:
        content = read_json(path)
    except RecordError as error:
        raise RecordError(f"{error}; make it: {remedy}") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path} holds a {type(content).__name__}, expected an object; make it again: {remedy}")
    return content
