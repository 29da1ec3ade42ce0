"""What a narrow KV cache costs in drift and saves in bytes: ``python -m validation.caches CASE:SIZE ... --out FILE``.

Each fix is put on a copy of each case, built once per seed (weights, cache and input are drawn anew), and held to
float64. Drift is the geometric mean over seeds with a 95 % t interval of its logarithm; bytes are counted.
"""

from __future__ import annotations

import argparse
import copy
import math
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import Cell, Options, failure_of
from precision_eval.core.environment import cpu_model
from precision_eval.core.files import to_json
from precision_eval.fixes.catalog import ALL_FIXES, fix_by_id
from precision_eval.fixes.storage import storage_bytes
from precision_eval.measure.generic import drift

FIXES = "kv_to_query,cache_*_token,cache_*_head,cache_*_tensor,cache_*_token_keys,cache_*_token_values"


def measured(case: str, size: str, fix: str, seeds: int) -> dict[str, Any]:
    """Return status, bytes and drift of one fix."""
    cells = [
        Cell(
            case=case, fixes=(fix,), mode="eager", device="cpu", size=size, threads=1, measure="drift",
            options=Options(seed=seed),
        )
        for seed in range(seeds)
    ]  # fmt: skip
    row: dict[str, Any] = {"case": case, "size": size, "fix": fix, "seeds": seeds}
    try:
        model = copy.deepcopy(case_by_id(case).build(size, device="cpu", seed=0).model)
        with fix_by_id(fix).applied(model) as call:
            row["storage_bytes"] = storage_bytes(call.model)
        outcomes = [drift(cell, Path())[0] for cell in cells]
    except Exception as error:  # noqa: BLE001 - whatever a model raises under a fix is that fix's result
        outcomes = [failure_of(fix, error)]
    worst = next((outcome for outcome in outcomes if outcome.status != "passed"), None)
    if worst is not None:
        return row | {"status": worst.status, "reason": worst.reason}
    return row | {"status": "passed", "drift": [(outcome.data or {})["relative_error"] for outcome in outcomes]}


def interval(drifts: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean and its 95 % t interval."""
    logs = np.log(drifts)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    return tuple(float(np.exp(logs.mean() + sign * half)) for sign in (0, -1, 1))  # type: ignore[return-value]


def table(rows: list[dict[str, Any]]) -> str:
    """Write rows as Markdown, one table a case."""
    lines = []
    for case in dict.fromkeys((row["case"], row["size"]) for row in rows):
        lines += ["", f"**{case[0]} · {case[1]}**", "", "| fix | stored bytes | drift [95 %] |", "|---|---|---|"]
        for row in rows:
            if (row["case"], row["size"]) == case:
                figures = row.get("status")
                if "drift" in row:
                    figures = "{:.2e} [{:.2e}, {:.2e}]".format(*interval(row["drift"]))
                lines.append(f"| `{row['fix']}` | {row.get('storage_bytes', 0):,} | {figures} |")
        lines += ["", *keys_over_values([row for row in rows if (row["case"], row["size"]) == case])]
    return "\n".join(lines[1:])


def keys_over_values(rows: list[dict[str, Any]]) -> list[str]:
    """Compare narrow keys alone with narrow values alone, paired by seed."""
    drifts = {row["fix"]: row["drift"] for row in rows if "drift" in row}
    pairs = [(fix, fix.replace("_keys", "_values")) for fix in drifts if fix.endswith("_keys")]
    return [
        "- `{}` over `{}`, by seed: × {:.2f} [{:.2f}, {:.2f}]".format(
            keys, values, *interval(np.divide(drifts[keys], drifts[values]).tolist())
        )
        for keys, values in pairs
        if values in drifts
    ]


def main() -> None:
    """Measure and write."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="CASE:SIZE")
    parser.add_argument("--fix", default=FIXES)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    fixes = [fix.id for fix in ALL_FIXES if any(fnmatchcase(fix.id, one) for one in options.fix.split(","))]
    named = [case.split(":") for case in options.cases]
    rows = [measured(case, size, fix, options.seeds) for case, size in named for fix in fixes]
    machine = {"processor": cpu_model(), "torch": torch.__version__, "threads": 1}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(to_json({"machine": machine, "rows": rows}, what="the rows", indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
