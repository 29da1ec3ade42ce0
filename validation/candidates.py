"""What today's candidates cost in drift and memory: ``python -m validation.candidates [CASE:SIZE ...] --out FILE``.

Each candidate is put on a copy of each case, built once per seed (weights, cache and input are drawn anew; of trained
models what they hear), and its first output is held to float64. Drift is the geometric mean over seeds with a 95 % t
interval of its logarithm. Bytes are counted: what the model stores, and the allocator's peak of one call beyond it,
both of the first seed. No time is measured. Each line of FILE is a case, seed and fix, with the environment whose file
lies beside; the same command goes on from there. The tables are printed, and written beside as Markdown.
"""

from __future__ import annotations

import argparse
import copy
import math
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from precision_eval.cases.own import digest_of
from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import failure_of
from precision_eval.core.environment import collect, cpu_model, store_environment, stored_environments
from precision_eval.core.files import TrialFile, written_whole
from precision_eval.core.table import Code, make_table, to_markdown
from precision_eval.core.targets import is_target
from precision_eval.core.workers import WorkerError, call_isolated, one_thread
from precision_eval.fixes.catalog import ALL_FIXES, fix_by_id
from precision_eval.fixes.packing import floating_leaves
from precision_eval.fixes.storage import storage_bytes
from precision_eval.measure.memory import cpu_allocated_peak_bytes
from precision_eval.measure.system_drift import exact_output, relative_error

CASES = (
    *("attention-decode:tiny", "attention-prefill:tiny", "metavoice-decode:tiny", "metavoice-prefill-float32:tiny"),
    *("metavoice-t4:tiny", "dia-decode:tiny", "dia-encode:tiny", "imaginairy-time-embed:tiny"),
    *("cogvideo-t5-encoder:tiny", "voice:default", "voice-natural:default", "voice-natural-capped:default"),
)
FIXES = (
    "as_shipped,query_to_half,kv_to_query,full_float32,bfloat16,float16,autocast,cache_*,layercast,weights_int?,"
    "scores_*,softmax_float32,flex_lowp_cache,sdpa_math,sdpa_flash,batch_invariant,half_reductions"
)
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


def run(out: Path, cases: list[tuple[str, str]], fixes: tuple[str, ...], seeds: int) -> TrialFile:
    """Measure what is missing; each case and seed in a process of its own."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = TrialFile(out)
    done, environment = file.keys(), store_environment(collect("cpu"), out.parent)
    with one_thread():
        for case, size, seed in ((case, size, seed) for case, size in cases for seed in range(seeds)):
            keys = {fix: f"{torch.__version__}/{cpu_model()}/{case}/{size}/{seed}/{fix}" for fix in fixes}
            missing = tuple(fix for fix, key in keys.items() if key not in done)
            if not missing:
                continue
            try:
                rows = call_isolated(partial(measured, case, size, seed, missing), timeout_s=LIMIT_S)
            except WorkerError as error:
                lost = {"case": case, "size": size, "seed": seed, "status": error.status, "reason": str(error)}
                rows = [lost | {"fix": fix} for fix in missing]
            for row in rows:
                file.append({"key": keys[row["fix"]], **row, "environment": environment})
    return file


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


def provenance(rows: list[dict[str, Any]], folder: Path) -> str:
    """Say by which commit each case was measured, and of which nothing says so."""
    known = stored_environments(folder)
    measured: dict[str, list[str]] = {}
    for (case, size), fixes in by_case(rows).items():
        shas = {row.get("environment", "") for own in fixes.values() for row in own}
        for commit in {str(known[sha]["package"]["git_commit"] or "") if sha in known else "" for sha in shas}:
            measured.setdefault(commit, []).append(f"{case}:{size}")
    return "\n".join(
        f"- {f'measured by commit {commit}' if commit else 'the commit was not recorded'}: {', '.join(cases)}"
        for commit, cases in sorted(measured.items(), reverse=True)
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Write rows as Markdown, one table a case; the reason of what raised stands once below."""
    lines: list[str] = []
    for (case, size), fixes in by_case(rows).items():
        head = ["| fix | stored bytes | peak of a call beyond it | drift [95 %] |", "|---|---|---|---|"]
        lines += ["", f"**{case} · {size}**, {max(map(len, fixes.values()))} seeds", "", *head]
        lines += [_line(fix, of_fix) for fix, of_fix in fixes.items()]
        drifts = {fix: [row["drift"] for row in of_fix] for fix, of_fix in fixes.items() if _passed(of_fix)}
        every = [row for of_fix in fixes.values() for row in of_fix]
        reasons = {row["fix"]: f"{row['status']}: {row['reason']}" for row in every if row.get("reason")}
        by_reason = {text: [fix for fix, reason in reasons.items() if reason == text] for text in reasons.values()}
        lines += ["", *(f"- {', '.join(f'`{fix}`' for fix in named)}: {text}" for text, named in by_reason.items())]
        lines += keys_over_values(drifts)
    return "\n".join(lines[1:])


def _passed(rows: list[dict[str, Any]]) -> bool:
    return len(rows) > 1 and all(row["status"] == "passed" and row["drift"] > 0.0 for row in rows)


def _line(fix: str, rows: list[dict[str, Any]]) -> str:
    bad = next((row["status"] for row in rows if row["status"] != "passed"), None)
    counted = [
        f"{value:,}" if value is not None else "–" for value in map(rows[0].get, ("storage_bytes", "peak_bytes"))
    ]
    drifts: list[Any] = [row.get("drift") for row in rows]
    plain = f"{drifts[0]:.2e}" if bad is None and drifts[0] is not None else bad  # of one seed, or an exact zero
    figure = "{:.2e} [{:.2e}, {:.2e}]".format(*interval(drifts)) if _passed(rows) else plain
    return f"| `{fix}` | {' | '.join(counted)} | {figure} |"


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


def main() -> None:
    """Measure what is missing, and print."""
    parser = argparse.ArgumentParser(prog="python -m validation.candidates", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE:SIZE", default=CASES)
    parser.add_argument("--fix", default=FIXES)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    fixes = tuple(fix.id for fix in ALL_FIXES if any(fnmatchcase(fix.id, one) for one in options.fix.split(",")))
    cases = [(case, size) for case, _, size in (named.rpartition(":") for named in options.cases)]
    text = table(run(options.out, cases, fixes, options.seeds).read())
    with written_whole(options.out.with_suffix(".md")) as partial_path:
        partial_path.write_text(f"# Candidates, case by case\n\n{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
