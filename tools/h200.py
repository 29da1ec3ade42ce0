"""What an H200 measured (``results/h200``): its import, the tables of ``docs/gpu.md`` and the figure of the README.

Times are ratios to ``full_float32``. *Device* is a call captured as a CUDA graph and replayed on a warm cache,
*launched* the same call launched from Python. Drift and stored memory come from ``results/gpu``, another visit to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import MISSING, duration_text, fixed, memory_text, ratio_text, status_text
from precision_eval.core.table import Table, make_table, to_markdown, without_empty_columns
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.report.doubts import Footnotes
from precision_eval.report.guide import environment_line
from precision_eval.report.tables import drift_cell
from precision_eval.report.writer import notes_markdown
from precision_eval.results.model import Estimate, Group, Row, exact, order_of
from precision_eval.results.reading import Run, load_run

MIB = 2**20
BASELINE, TWIN = "full_float32", "twin"
# The fix whose launched ratio docs/gpu.md has too.
LAUNCHED = "bfloat16"
FILES = ("fixes.jsonl", "plain-torch.jsonl", "trials.jsonl")
REPORT = "report.md"
_REPORT_HEAD = f"""`python -m tools h200` writes this page; [docs/gpu.md](../../docs/gpu.md) says how to read it.

- `{BASELINE} again` is a second copy of the baseline. Where its ratio is not 1, the difference is the copy's.
- Drift and stored memory are of `results/gpu`, for the cases that are in both. What the fixes of the other cases store
  is not listed: the recorded figure also counts the tensors that a fix replaced.
- *Peak of a call* is what a call allocates above what was there before it.

```console
precision-eval run --device cuda --measure trace,drift,memory,teacher_forced_drift --out results/gpu
```"""
CLOCKS = {"device": "graph", "launched": "launched"}
PLAIN_CLOCKS = {
    "events_us": "launched, CUDA events",
    "do_bench_us": "do_bench of Triton",
    "graph_same_us": "CUDA graph",
    "graph_rotating_us": "CUDA graph, 12 buffers in turn",
}
FIGURE = ("attention-decode", "metavoice", "eager")
FAULTS = {"none": "equal calls, separate tensors", "same": "equal calls, the same tensors", "plus1": "1 % more work"}


def import_rows(source: Path, folder: Path) -> None:
    """Copy the rows as they are; refuse a field that the environment file does not explain."""
    meanings = _head(folder)["fields"]
    for name in FILES:
        rows = _rows(source / name)
        unknown = sorted({key for row in rows for key in row} - set(meanings[name]))
        if unknown:
            raise ParameterError(
                f"{source / name} has the fields {', '.join(unknown)}; expected only fields that "
                f"{folder / 'environment.json'} explains; add what they mean there"
            )
        (folder / name).write_bytes((source / name).read_bytes())


def _head(folder: Path) -> dict[str, Any]:
    head: dict[str, Any] = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    return head


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass
class Timed:
    """The rows of one fix of a case, size and mode."""

    clocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    failure: tuple[str, str] | None = None
    uncaptured: str = ""
    call_peak_bytes: float | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        if row.get("cache") == "warm":
            self.clocks[row["kind"]] = dict(row)
        elif "status" in row:
            self.failure = (row["status"], row["reason"])
        elif "graph_error" in row:
            self.uncaptured = row["graph_error"]
        elif "call_peak_mib" in row:
            self.call_peak_bytes = row["call_peak_mib"] * 2**20

    def ratio(self, clock: str, *, interval: bool) -> str:
        """Write a ratio, or why there is none."""
        row = self.clocks.get(CLOCKS[clock])
        if row is not None:
            return ratio_text(row["ratio"], row["low"], row["high"]) if interval else fixed(row["ratio"], decimals=3)
        if self.failure is not None:
            return status_text(self.failure[0])
        return "not captured" if self.uncaptured and clock == "device" else MISSING


Key = tuple[str, str, str]  # case, size, mode


def read_fixes(folder: Path) -> dict[Key, dict[str, Timed]]:
    """Return what was timed, whole systems first."""
    timed: dict[Key, dict[str, Timed]] = {}
    for row in _rows(folder / "fixes.jsonl"):
        fixes = timed.setdefault((row["case"], row["size"], row["mode"]), {})
        fixes.setdefault(row["fix"], Timed()).add(row)
    return {key: timed[key] for key in sorted(timed, key=lambda key: (key[0].startswith("attention"), key))}


def baseline_time(fixes: Mapping[str, Timed], clock: str) -> str:
    times_us = [timed.clocks[CLOCKS[clock]]["baseline_us"] for timed in fixes.values() if CLOCKS[clock] in timed.clocks]
    return duration_text(times_us[0] * 1e-6) if times_us else MISSING


def overview_markdown(folder: Path, page: Path) -> str:
    """Return the device's ratio of every fix, a case a line, and one launched ratio."""
    every = read_fixes(folder)
    names = sorted({name for fixes in every.values() for name in fixes} - {BASELINE, TWIN}, key=order_of)
    columns = [*((name, "device") for name in names), (LAUNCHED, "launched")]
    rows = [
        (" ".join(key).removesuffix(" eager"), *(
            fixes[name].ratio(clock, interval=False) if name in fixes else MISSING for name, clock in columns
        ))
        for key, fixes in every.items()
    ]  # fmt: skip
    head = ("case, size", *names, f"{LAUNCHED}, launched")
    table = to_markdown(make_table(head, rows, align="l" + "r" * len(columns)))
    load = _head(folder)
    return f"{table}\n\n{load['date']}; {environment_line(load)}; driver: {load['device']['driver']}. {load['load']}"


def fixes_markdown(folder: Path, page: Path) -> str:
    """Return a table of fixes per case, with intervals, memory and drift."""
    known, notes = load_run(folder.parent / "gpu"), Footnotes()
    tables = [_case_markdown(key, fixes, _group(known, key), notes) for key, fixes in read_fixes(folder).items()]
    return "\n\n".join([*tables, notes_markdown(notes)])


def _group(run: Run, key: Key) -> Group | None:
    """Return what another run holds of the same case, size and mode."""
    return next((group for group in run.sections if (group.case, group.size, group.mode) == key), None)


def _case_markdown(key: Key, fixes: Mapping[str, Timed], group: Group | None, notes: Footnotes) -> str:
    by_fix = {row.fix: row for row in group.rows} if group else {}
    head = ("fix", "device [95 %]", "device time", "launched [95 %]", "drift", "stored", "peak of a call")
    rows = [_line(name, fixes, by_fix.get(name), notes) for name in sorted(fixes, key=order_of)]
    table = make_table(head, rows, title=" ".join(key), align="l" + "r" * (len(head) - 1))
    return to_markdown(without_empty_columns(table), heading=True)


def _line(name: str, fixes: Mapping[str, Timed], known: Row | None, notes: Footnotes) -> tuple[str, ...]:
    timed, baseline = fixes[name], {clock: baseline_time(fixes, clock) for clock in CLOCKS}
    ratios = {clock: timed.ratio(clock, interval=True) for clock in CLOCKS}
    if name == BASELINE:
        ratios = {clock: "1" if baseline[clock] != MISSING else ratio for clock, ratio in ratios.items()}
    graph, reason = timed.clocks.get("graph"), timed.failure[1] if timed.failure else timed.uncaptured
    peak_bytes = timed.call_peak_bytes
    if peak_bytes is None and known is not None:
        peak_bytes = known.peak_bytes
    return (
        f"{BASELINE} again" if name == TWIN else name,
        ratios["device"] + notes.mark([reason] if reason else []),
        baseline["device"] if name == BASELINE else duration_text(graph["us"] * 1e-6 if graph else None),
        ratios["launched"],
        (drift_cell(known, interval=False) if known else None) or MISSING,
        memory_text(known.stored_bytes if known else None),
        memory_text(peak_bytes),
    )


def trials_markdown(folder: Path, page: Path) -> str:
    """Return how often calls of known ratio were told apart."""
    lines = []
    for fault, calls in FAULTS.items():
        trials = [row for row in _rows(folder / "trials.jsonl") if row["fault"] == fault]
        ratios = [ratio for row in trials for ratio in row["ratios"]]
        apart = sum(row["said"]["faster"] + row["said"]["slower"] for row in trials)
        holds = str(sum(low <= 1.0 <= high for _, low, high in ratios)) if fault != "plus1" else MISSING
        extremes = (fixed(pick(ratio[0] for ratio in ratios), decimals=4) for pick in (min, max))
        lines.append((calls, str(len(ratios)), str(apart), holds, *extremes))
    head = (
        "calls compared",
        "comparisons",
        "named faster or slower",
        "interval holds 1",
        "least ratio",
        "largest ratio",
    )
    return to_markdown(make_table(head, lines, align="lrrrrr"))


def hour_markdown(folder: Path, page: Path) -> str:
    """Return a launched ratio and the same an hour before, whose records were not kept."""
    before = _head(folder)["not_kept"]
    after = read_fixes(folder)[before["case"], before["size"], before["mode"]][before["fix"]]
    first, device = ratio_text(before["ratio"], before["low"], before["high"]), after.ratio("device", interval=True)
    return (
        f"`{before['fix']}` of {before['case']} {before['size']} had a launched ratio of {first}. An hour later the "
        f"same call, on the same machine, had {after.ratio('launched', interval=True)}. Its device ratio is {device}. "
        "The records of the first were not kept."
    )


def plain_markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the times of attention in plain torch, the same call by each clock."""
    head = ("attention", "fix", *PLAIN_CLOCKS.values())
    lines = [(row["case"], row["fix"], *(duration_text(row[clock] * 1e-6) for clock in PLAIN_CLOCKS)) for row in rows]
    return to_markdown(make_table(head, lines, align="ll" + "r" * len(PLAIN_CLOCKS)))


def write_report(folder: Path) -> Path:
    """Write every row as tables: each fix with intervals and memory, and attention in plain torch by each clock."""
    path = folder / REPORT
    parts = (
        "# What an H200 measured",
        _REPORT_HEAD,
        fixes_markdown(folder, path),
        "## Attention in plain torch, by each clock",
        plain_markdown(_rows(folder / "plain-torch.jsonl")),
    )
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def memory_table(folder: Path) -> Table:
    """Return what was measured beside the plan of the same call: what the process held, and the peak of a call above.

    The process held the model as shipped and, beside it, what the fix stores otherwise. cuBLAS's workspace came with
    the first product of a process, and is taken off where it is in a row. Attention in half has a workspace too: torch
    takes as much from its allocator as cuDNN asks for (MHA.cpp), which is in what a call takes *at most*.
    """
    import torch

    from precision_eval.studies.memory import PlannedCall, Planner, planned_model
    from precision_eval.studies.memory.devices import device_named

    planners: dict[tuple[str, str], Planner] = {}
    rows, device, call = [], device_named("h200"), PlannedCall(length=1)
    for row in [row for row in _rows(folder / "fixes.jsonl") if "call_peak_mib" in row and row["fix"] != TWIN]:
        case, fix = (row["case"], row["size"]), fix_by_id(row["fix"])
        if case not in planners:
            model = planned_model(case[0], size=case[1])
            planners[case] = Planner(model, autocast_dtype=torch.float16, device=device)
        plan, held = planners[case].plan(call, fix), planners[case].held_bytes(call, fix)
        storage, peak = row["storage_mib"] * MIB, row["call_peak_mib"] * MIB
        if storage - held > 0.9 * device.library_bytes:
            storage -= device.library_bytes
        planned = plan.call_bytes or 0
        error = (held + planned) / (storage + peak) - 1.0
        sizes = map(memory_text, (storage, held, peak, planned, planned + (plan.workspace_bytes or 0)))
        rows.append((" ".join(case), fix.id, *sizes, f"{100 * error:+.2f} %"))
    head = ("case, size", "fix", "held", "planned", "peak of a call", "planned", "at most", "error of both together")
    return make_table(head, rows, align="llrrrrrr")


def device_group(folder: Path, key: Key = FIGURE) -> tuple[Run, Group]:
    """Return a case of ``results/gpu``, its times those of the device here."""
    run, fixes = load_run(folder.parent / "gpu"), read_fixes(folder)[key]
    group = _group(run, key)
    if group is None:
        raise ParameterError(f"{run.directory} holds nothing of {' '.join(key)}, whose drift the figure needs")
    rows = [replace(row, time=_estimate(fixes, row.fix), processes=1) for row in group.rows]
    return run, replace(group, rows=tuple(rows), baseline=BASELINE, noise_floor=_estimate(fixes, TWIN))


def _estimate(fixes: Mapping[str, Timed], name: str) -> Estimate | None:
    graph = fixes[name].clocks.get("graph") if name in fixes else None
    if graph is None:
        return exact(1.0) if name == BASELINE else None
    return Estimate(value=graph["ratio"], low=graph["low"], high=graph["high"], degrees=float(graph["blocks"] - 1))


def draw_decode(folder: Path) -> Path:
    """Write the trade-off of drift and device time as a picture for the README."""
    from precision_eval.report.drawing import save_as
    from precision_eval.report.figures.tradeoff import draw_tradeoff

    run, group = device_group(folder)
    model = _head(folder)["device"]["model"]
    figure = draw_tradeoff(
        run, group, width_in=4.2, title=f"Attention, one decoding step · {model}", speed="device time"
    )
    path = folder / "tradeoff-attention-decode.png"
    save_as(figure, path)
    return path
