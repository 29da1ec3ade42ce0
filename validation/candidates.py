"""What today's candidates cost in drift and memory.

Each candidate is put on a copy of each case, built once per seed (weights, cache and input are drawn anew; of trained
models what they hear), and its first output is held to float64. Drift is the geometric mean over seeds with a 95 % t
interval of its logarithm. Bytes are counted: what the model stores, and the allocator's peak of one call beyond it,
both of the first seed. No time is measured. A trial is a case, seed and fix; its environment's file lies beside::

    python -m validation candidates --size full --out results/candidates
    python -m validation candidates --size full --set cases=my_case.py:factory:own --out runs/candidates
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from precision_eval.cases.own import digest_of
from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import failure_of
from precision_eval.core.environment import collect, cpu_model, store_environment, stored_environments
from precision_eval.core.files import written_whole
from precision_eval.core.table import Code, make_table, to_markdown
from precision_eval.core.targets import is_target
from precision_eval.core.workers import WorkerError, call_isolated, one_thread
from precision_eval.fixes.catalog import ALL_FIXES, fix_by_id
from precision_eval.fixes.packing import floating_leaves
from precision_eval.fixes.storage import storage_bytes
from precision_eval.measure.memory import cpu_allocated_peak_bytes
from precision_eval.measure.system_drift import exact_output, relative_error
from validation.frame import Data, Experiment, Figure, Options, Trial

CASES = (
    *("attention-decode:tiny", "attention-prefill:tiny", "metavoice-decode:tiny", "metavoice-prefill-float32:tiny"),
    *("metavoice-t4:tiny", "dia-decode:tiny", "dia-encode:tiny", "imaginairy-time-embed:tiny"),
    *("cogvideo-t5-encoder:tiny", "voice:default", "voice-natural:default", "voice-natural-capped:default"),
)
FIXES = (
    "as_shipped", "query_to_half", "kv_to_query", "full_float32", "bfloat16", "float16", "autocast", "cache_*",
    "layercast", "weights_int?", "scores_*", "softmax_float32", "flex_lowp_cache", "sdpa_math", "sdpa_flash",
    "batch_invariant", "half_reductions",
)  # fmt: skip
LIMIT_S = 1800.0
SUMMARISED = tuple(fix.id for fix in ALL_FIXES if not fix.caches.endswith(("/keys", "/values")))
WIDE, HALF = "full_float32", "bfloat16"
"""What the summary holds bytes, and drift, to."""


@torch.no_grad()
def measured(case: str, size: str, seed: int, fixes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return status, bytes and drift of each fix on a case of a seed."""
    built = case_by_id(case).build(size, device="cpu", seed=seed)
    digest = digest_of(case, built) if is_target(case) else case_by_id(case).digest
    reference = exact_output(built)
    rows = []
    for fix in fixes:
        row: dict[str, Any] = {"case": case, "size": size, "digest": digest[:16], "seed": seed, "fix": fix}
        try:
            with fix_by_id(fix).applied(copy.deepcopy(built.model)) as call:
                inputs = call.prepare(built.inputs)
                finite = all(bool(output.isfinite().all()) for output in floating_leaves(call(*inputs)))
                row["storage_bytes"] = storage_bytes(call.model)
                if seed == 0:
                    row["peak_bytes"] = cpu_allocated_peak_bytes(call, inputs)
                error = relative_error(built, call, reference) if finite else None
            row |= {"status": "passed" if finite else "non_finite", "drift": error}
        except Exception as error:  # noqa: BLE001 - whatever a model raises under a fix is that fix's result
            outcome = failure_of(fix, error)
            row |= {"status": outcome.status, "reason": outcome.reason}
        rows.append(row)
    return rows


def _trials(options: Options) -> list[Trial]:
    fixes = [fix.id for fix in ALL_FIXES if any(fnmatchcase(fix.id, one) for one in options["fixes"])]
    here = f"{torch.__version__}/{cpu_model()}"
    return [
        Trial(f"{here}/{case}/{size}/{seed}/{fix}", ((case, size, seed), fix))
        for case, _, size in (named.rpartition(":") for named in options["cases"])
        for seed in range(options["seeds"])
        for fix in fixes
    ]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    environment = store_environment(collect("cpu"), options.out)
    for row in in_workers(trials, measured, ("case", "size", "seed")):
        yield {**row, "environment": environment}


def in_workers(trials: Iterator[Trial], measure: Callable[..., list[Data]], names: tuple[str, ...]) -> Iterator[Data]:
    """Measure the fixes of each place in a process of its own; a trial's spec is its place, named so, and its fix."""
    with one_thread():
        for place, of in groupby(trials, key=lambda trial: trial.spec[0]):
            keys = {trial.spec[1]: trial.key for trial in of}
            try:
                rows = call_isolated(partial(measure, *place, tuple(keys)), timeout_s=LIMIT_S)
            except WorkerError as error:
                lost = {**dict(zip(names, place, strict=False)), "status": error.status, "reason": str(error)}
                rows = [lost | {"fix": fix} for fix in keys]
            yield from ({"key": keys[row["fix"]], **row} for row in rows)


def interval(drifts: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean and its 95 % t interval."""
    logs = np.log(drifts)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    return tuple(float(np.exp(logs.mean() + sign * half)) for sign in (0, -1, 1))  # type: ignore[return-value]


def by_case(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, list[dict[str, Any]]]]:
    """Return case and size → fix → its rows, a seed each."""
    found: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        found.setdefault((row["case"], row["size"]), {}).setdefault(row["fix"], []).append(row)
    return found


def summary(rows: list[dict[str, Any]]) -> str:
    """Write one row a candidate over all cases: where it runs, the bytes stored, the drift."""
    cases = list(by_case(rows).values())
    lines = []
    for fix in SUMMARISED:
        if not any(fix in case for case in cases):
            continue
        ran = [case for case in cases if _passed(case.get(fix, []))]
        drifts = [interval([row["drift"] for row in case[fix]])[0] for case in ran]
        to_half = [
            drift / interval([row["drift"] for row in case[HALF]])[0]
            for case, drift in zip(ran, drifts, strict=True)
            if _passed(case.get(HALF, []))
        ]
        stored = [100 * case[fix][0]["storage_bytes"] / case[WIDE][0]["storage_bytes"] for case in ran if WIDE in case]
        cells = (_range(stored, ".0f", " %"), _range(drifts, ".1e"), _range(to_half, ".2g"))
        lines.append((Code(fix), f"{len(ran)} of {len(cases)}", *cells))
    head = ("candidate", "runs on", f"stored, of {WIDE}'s", "drift", f"drift ÷ {HALF}'s")
    return to_markdown(make_table(head, lines))


def _range(values: list[float], form: str, unit: str = "") -> str:
    """Write the median, and the least and largest over the cases."""
    if not values:
        return "–"
    middle, least, most = (f"{value:{form}}{unit}" for value in (np.median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least} to {most})"


def provenance(rows: list[dict[str, Any]], *folders: Path) -> str:
    """Say by which commit each case was measured, and of which nothing says so."""
    known = {sha: environment for folder in folders for sha, environment in stored_environments(folder).items()}
    measured: dict[str, list[str]] = {}
    for (case, size), fixes in by_case(rows).items():
        shas = {row.get("environment", "") for own in fixes.values() for row in own}
        for commit in {str(known[sha]["package"]["git_commit"] or "") if sha in known else "" for sha in shas}:
            measured.setdefault(commit, []).append(f"{case}:{size}")
    return "\n".join(
        f"- {f'measured by commit {commit}' if commit else 'the commit was not recorded'}: {', '.join(cases)}"
        for commit, cases in sorted(measured.items(), reverse=True)
    )


_HEAD = ("fix", "stored bytes", "peak of a call beyond it", "drift [95 %]")


def table(rows: list[dict[str, Any]]) -> str:
    """Write rows as Markdown, one table a case; the reason of what raised stands once below."""
    parts: list[str] = []
    for (case, size), fixes in by_case(rows).items():
        lines = [(Code(fix), *_cells(of_fix)) for fix, of_fix in fixes.items()]
        drifts = {fix: [row["drift"] for row in of_fix] for fix, of_fix in fixes.items() if _passed(of_fix)}
        every = [row for of_fix in fixes.values() for row in of_fix]
        reasons = {row["fix"]: f"{row['status']}: {row['reason']}" for row in every if row.get("reason")}
        by_reason = {text: [fix for fix, reason in reasons.items() if reason == text] for text in reasons.values()}
        notes = [f"- {', '.join(f'`{fix}`' for fix in named)}: {text}" for text, named in by_reason.items()]
        notes += keys_over_values(drifts)
        seeds = max(map(len, fixes.values()))
        parts += [f"**{case} · {size}**, {seeds} seeds", to_markdown(make_table(_HEAD, lines)), "\n".join(notes)]
    return "\n\n".join(filter(None, parts))


def _passed(rows: list[dict[str, Any]]) -> bool:
    return len(rows) > 1 and all(row["status"] == "passed" and row["drift"] > 0.0 for row in rows)


def _cells(rows: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Return the bytes stored, the peak beyond them and the drift of a fix's rows."""
    bad = next((row["status"] for row in rows if row["status"] != "passed"), None)
    stored, peak = (f"{value:,}" if value is not None else "–" for value in map(rows[0].get, _HELD))
    drifts: list[Any] = [row.get("drift") for row in rows]
    plain = f"{drifts[0]:.2e}" if bad is None and drifts[0] is not None else bad  # of one seed, or an exact zero
    return stored, peak, "{:.2e} [{:.2e}, {:.2e}]".format(*interval(drifts)) if _passed(rows) else str(plain)


_HELD = ("storage_bytes", "peak_bytes")


def keys_over_values(drifts: dict[str, list[float]]) -> list[str]:
    """Compare narrow keys alone with narrow values alone, paired by seed."""
    pairs = [(fix, fix.replace("_keys", "_values")) for fix in drifts if fix.endswith("_keys")]
    return [
        "- `{}` over `{}`, by seed: × {:.2f} [{:.2f}, {:.2f}]".format(
            keys, values, *interval(np.divide(drifts[keys], drifts[values]).tolist())
        )
        for keys, values in pairs
        if values in drifts
    ]


def _figures(lines: list[Data]) -> list[Figure]:
    figures = []
    for (case, size), fixes in by_case(lines).items():
        for fix, rows in fixes.items():
            *held, drift = _cells(rows)
            columns = dict(zip(_HEAD[1:3], held, strict=True))
            figures.append(Figure(f"{case} · {size}: {fix}", drift, rivals=columns))
    return figures


def _written(lines: list[Data], out: Path) -> list[Path]:
    path = out / "candidates.md"
    with written_whole(path) as partial_path:
        partial_path.write_text(f"# Candidates, case by case\n\n{table(lines)}\n", encoding="utf-8")
    return [path]


EXPERIMENT = Experiment(
    name="candidates",
    title="what today's candidates cost in drift and memory",
    trials=_trials,
    run=_run,
    figures=_figures,
    plots=_written,
    settings={"cases": (CASES[:1], CASES), "fixes": (FIXES, FIXES), "seeds": (2, 8)},
)
