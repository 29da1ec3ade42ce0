"""The plan of a run: a selection by names and globs, worked out into cells.

Conventions: a name without ``*``, ``?`` or ``[`` must exist; a glob must match something; several may be given. A mode
that a fix does not have is not planned. Where no mode was asked for, it is eager, and a fix that exists only compiled
is planned where its name was asked for: compiled, with the control ``as_shipped`` compiled too. Cells come in the order
case, size, attention backend, measure, mode, fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from precision_eval.cases.base import Case
from precision_eval.cases.systems import CASES
from precision_eval.core.cells import Cell, Options
from precision_eval.core.errors import ParameterError, check_known, matching, unknown_name
from precision_eval.core.formatting import grouped
from precision_eval.core.targets import is_target
from precision_eval.fixes.catalog import ALL_FIXES, Fix
from precision_eval.fixes.choices import COMPILE_MODES, MODES
from precision_eval.fixes.pins import ANY, PINS, SDPA_BACKENDS, check_tf32
from precision_eval.measure.allocator import GROWN, MEMORY_STATES
from precision_eval.measure.isolation import ISOLATIONS
from precision_eval.measure.registry import MEASURES, Measure, measure_by_name

CONTROL = "as_shipped"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What was asked for; `without` names cases and controls that are in by default and left out."""

    cases: tuple[str, ...] | None = None
    fixes: tuple[str, ...] = ("*",)
    measures: tuple[str, ...] = ("*",)
    modes: tuple[str, ...] | None = None
    sizes: tuple[str, ...] | None = None
    device: str = "cpu"
    threads: int = 1
    options: Options = field(default_factory=Options)
    sdpa_backends: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Cells in order, which of them come after which, the measures left out, and why candidates cannot be measured."""

    cells: tuple[Cell, ...]
    after: dict[str, tuple[str, ...]]
    digests: dict[str, str]
    measures: tuple[Measure, ...]
    candidates: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)

    def options_of(self, cell: Cell, fix: str) -> dict[str, float | int | str]:
        """Return what a record of a fix depends on: options of the run, and what cases and candidates bring along."""
        source = {"candidate_digest": self.candidates[fix]} if fix in self.candidates else {}
        names = measure_by_name(cell.measure, self.measures).options
        return cell.options.chosen(names) | source | self.parts.get(cell.case, {})

    @property
    def modules(self) -> tuple[str, ...]:
        """What its workers import of this package and of libraries; somebody's own code runs in workers alone."""
        modules = {
            measure.name: (measure.place.partition(":")[0], *measure.imports)
            for measure in self.measures
            if measure.place.startswith("precision_eval.")
        }
        return tuple(dict.fromkeys(name for cell in self.cells for name in modules.get(cell.measure, ())))

    @property
    def compiled(self) -> bool:
        """Whether any cell is compiled."""
        return any(cell.mode == "compiled" for cell in self.cells)


def checked_device(name: str) -> str:
    """Return a device's name if it is one; whether it is there is found out when cells run."""
    if re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        return name
    raise unknown_name("device", name, ("auto", "cpu", "cuda", "cuda:0", "mps"))


def make_plan(
    selection: Selection,
    *,
    cases: Sequence[Case] | None = None,
    fixes: Sequence[Fix] = ALL_FIXES,
    measures: Sequence[Measure] = MEASURES,
    candidates: Mapping[str, str] | None = None,
) -> Plan:
    """Work a selection out into cells."""
    if selection.threads < 1:
        raise ParameterError(f"threads is {selection.threads}; at least 1 is needed")
    check_tf32(selection.options.tf32, selection.device)
    selection = _with_clock(_with_compile_mode(selection))
    for state in (selection.options.memory or GROWN).split(","):
        check_known("state of memory", state, MEMORY_STATES)
    check_known("isolation", selection.options.isolation, ISOLATIONS)
    known = CASES if cases is None else cases
    chosen = [case for case in _cases_of(selection.cases, known) if case.id not in selection.without]
    fix_names = fixes_of(selection.fixes, fixes)
    asked = fixes_of([name for name in selection.fixes if name != "*"], fixes)
    modes = _modes_of(selection.modes, [fix for fix in fixes if fix.id in fix_names], asked)
    wanted = set(matching("measure", selection.measures, [entry.name for entry in measures]))
    wanted |= {need for measure in measures if measure.name in wanted for need in measure.needs}
    sizes = _sizes_of(selection.sizes, chosen)
    cells = tuple(
        cell
        for case in chosen
        for size in sizes[case.id]
        for options in _pinned(selection)
        for measure in measures
        if measure.name in wanted and (measure.everywhere or measure.name in case.measures)
        if all(getattr(options, pin) is None or pin in measure.options for pin in PINS)  # else it does not record it
        for cell in _cells_of(measure, case, size, _meant_for(case, modes), replace(selection, options=options))
    )
    if not cells:
        raise ParameterError("the selection comes to no cell: none of these cases has these measures, fixes and modes")
    by_place = grouped(((cell.case, cell.size, cell.options), cell) for cell in cells)
    after = {cell.id: tuple(_predecessors(cell, own, measures)) for own in by_place.values() for cell in own}
    return Plan(
        cells,
        after,
        {entry.id: entry.digest for entry in chosen},
        tuple(measures),
        dict(candidates or {}),
        left_out=_left_out(chosen, wanted, measures),
    )


def _with_compile_mode(selection: Selection) -> Selection:
    """Refuse a mode of the compiler that would not act; the default is no choice."""
    mode = selection.options.compile_mode
    if mode is None:
        return selection
    check_known("compile mode", mode, COMPILE_MODES)
    if "compiled" not in (selection.modes or ()):
        raise ParameterError(f"--compile-mode {mode} is a choice of compiled calls; add --mode compiled")
    if mode == COMPILE_MODES[0]:
        return replace(selection, options=replace(selection.options, compile_mode=None))
    if selection.device != "auto" and not selection.device.startswith("cuda"):
        raise ParameterError(
            f"--compile-mode {mode} captures CUDA graphs, and the device is {selection.device}; leave it out, or give "
            "--device cuda"
        )
    return selection


def _with_clock(selection: Selection) -> Selection:
    """Name the clocks of a CUDA device, so that records without them, of launched times, are measured anew."""
    options, is_cuda = selection.options, selection.device.startswith("cuda")
    if options.clock is not None and not is_cuda and selection.device != "auto":
        raise ParameterError(
            f"--set clock={options.clock} applies to CUDA only, and the device is {selection.device}; leave it out"
        )
    return replace(selection, options=replace(options, clock=options.clock or "both")) if is_cuda else selection


def _left_out(cases: Sequence[Case], wanted: set[str], measures: Sequence[Measure]) -> tuple[str, ...]:
    """Return the measures of these cases that were not asked for, but those that others of them bring along."""
    left_out = [
        entry for entry in measures if entry.name not in wanted and any(entry.name in c.measures for c in cases)
    ]
    needed = {name for entry in left_out for name in entry.needs}
    return tuple(entry.name for entry in left_out if entry.name not in needed)


def first_size(selection: Selection, cases: Sequence[Case]) -> tuple[str, str]:
    """Return the first case that a selection asks for, and its size."""
    chosen = [case for case in _cases_of(selection.cases, cases) if case.id not in selection.without]
    sizes = _sizes_of(selection.sizes, chosen)
    case = next((case for case in chosen if sizes[case.id]), None)
    if case is None:
        raise ParameterError("the selection comes to no case: none of these has such a size")
    return case.id, sizes[case.id][0]


def _pinned(selection: Selection) -> list[Options]:
    """Return the run's options once per attention backend asked for."""
    for name in selection.sdpa_backends:
        check_known("attention backend", name, (ANY, *SDPA_BACKENDS))
    pins = [None if name == ANY else name for name in dict.fromkeys(selection.sdpa_backends)]
    return [replace(selection.options, sdpa_backend=pin) for pin in pins or [selection.options.sdpa_backend]]


def fixes_of(patterns: Iterable[str], fixes: Sequence[Fix]) -> tuple[str, ...]:
    """Return the ids that patterns ask for; ``*`` alone asks for those that are in by default."""
    default = [fix.id for fix in fixes if fix.by_default]
    asked = [name for pattern in patterns for name in (default if pattern == "*" else (pattern,))]
    return matching("fix", asked, [fix.id for fix in fixes])


def _modes_of(
    requested: tuple[str, ...] | None, fixes: Sequence[Fix], asked: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the fixes of each mode, in their own order; `asked` are those that were asked for by name."""
    modes = matching("mode", requested, MODES) if requested else ("eager",)
    planned: dict[str, list[str]] = {mode: [] for mode in MODES}
    for fix in fixes:
        own = [mode for mode in modes if mode in fix.modes]
        if not own and requested is None and fix.id in asked:
            own = list(fix.modes[:1])
        for mode in own:
            planned[mode].append(fix.id)
    if CONTROL in {fix.id for fix in fixes} and planned["compiled"] and CONTROL not in planned["compiled"]:
        planned["compiled"].insert(0, CONTROL)
    return {mode: tuple(names) for mode, names in planned.items() if names}


def _cases_of(requested: tuple[str, ...] | None, cases: Sequence[Case]) -> list[Case]:
    """Return the cases asked for, or those that are in by default."""
    if requested is None:
        return [entry for entry in cases if entry.by_default]
    names = matching("case", requested, [entry.id for entry in cases])
    return [entry for entry in cases if entry.id in names]


def _meant_for(case: Case, modes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Leave out the fixes that have no meaning for a case."""
    kept = {mode: tuple(fix for fix in fixes if case.takes(fix)) for mode, fixes in modes.items()}
    return {mode: fixes for mode, fixes in kept.items() if fixes}


def _sizes_of(requested: tuple[str, ...] | None, cases: Sequence[Case]) -> dict[str, tuple[str, ...]]:
    """Return the sizes of each case; one that a case lacks is left out of it; one's own has one alone."""
    if requested is None:
        return {case.id: case.default_sizes for case in cases}
    known = list(dict.fromkeys(size for case in cases for size in case.sizes))
    chosen = matching("size", requested, known)
    sizes = {case.id: tuple(size for size in case.sizes if size in chosen) for case in cases}
    return {case.id: sizes[case.id] or (case.sizes if is_target(case.id) else ()) for case in cases}


def _cells_of(
    measure: Measure, case: Case, size: str, modes: dict[str, tuple[str, ...]], selection: Selection
) -> Iterator[Cell]:
    """Yield the cells of one measure of one case and size."""

    def cell(fixes: tuple[str, ...], mode: str) -> Cell:
        return Cell(
            case=case.id,
            fixes=fixes,
            mode=mode,
            device=selection.device,
            size=size,
            threads=selection.threads,
            measure=measure.name,
            options=selection.options if mode == "compiled" else replace(selection.options, compile_mode=None),
        )

    pseudo_fixes = (fix for fix in measure.pseudo_fixes if fix not in selection.without)
    yield from (cell((fix,), "eager") for fix in pseudo_fixes if case.takes(fix))
    for mode, fixes in modes.items():
        if mode == "compiled" and selection.options.compile_mode is not None and "compile_mode" not in measure.options:
            continue
        yield from (cell(group, mode) for group in ([fixes] if measure.grouped else [(fix,) for fix in fixes]))


def _predecessors(cell: Cell, cells: Sequence[Cell], measures: Sequence[Measure]) -> Iterator[str]:
    """Yield the ids of the cells that come before a cell, of those of its case, size and options."""
    measure = measure_by_name(cell.measure, measures)
    for other in cells:
        if other.measure not in measure.after:
            continue
        same = other.mode == cell.mode and set(other.fixes) & set(cell.fixes)
        comparator = other.measure in measure.needs and set(other.fixes) & {"reference", "noise_floor"}
        if same or comparator:
            yield other.id
