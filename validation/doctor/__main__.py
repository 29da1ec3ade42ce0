"""``python -m validation.doctor``: print every figure with its target, and write them as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

PARTS = ("plants", "clean", "cost")
HALVES = ("settled", "held-out", "both")
LEAST_LOCATED = 0.95
MOST_ALARMS = 0


def main() -> int:
    """Run the bench."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded
    options = _parser().parse_args()
    import torch

    torch.set_num_threads(1)
    sections: dict[str, Any] = {}
    for name, run in (("plants", _plants), ("clean", _clean), ("cost", _cost)):
        if name in options.parts:
            sections[name] = run(options)
            _write(sections, options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m validation.doctor", description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--half", choices=HALVES, default="both", help="which half of the plants")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds per size of the cost")
    return parser


def _plants(options: argparse.Namespace) -> dict[str, Any]:
    from validation.doctor.library import library_plants
    from validation.doctor.location import locate
    from validation.doctor.plants import is_held_out, small_plants

    wanted = {"settled": (False,), "held-out": (True,), "both": (False, True)}[options.half]
    plants = [plant for plant in (*small_plants(), *library_plants()) if is_held_out(plant.name) in wanted]
    found = locate(plants)
    for one in found:
        if not one.is_located:
            print(f"  missed: {one.name} ({one.status}): at {one.truth}, told {one.told or 'nothing'}")
    halves = {}
    for held_out, name in ((False, "settled on"), (True, "held out")):
        part = [one for one in found if one.held_out is held_out]
        if part:
            halves[name] = _shown(name, part)
    return {**halves, "plants": [one.to_dict() for one in found]}


def _shown(name: str, part: list[Any]) -> dict[str, Any]:
    from validation.doctor.location import share

    hits, total = sum(one.is_located for one in part), len(part)
    value, low, high = share(hits, total)
    silent = [one for one in part if not one.where_raised]
    beyond = sum(one.is_located for one in silent)
    verdict = "met" if value >= LEAST_LOCATED else "MISSED"
    print(
        f"plants {name}: {hits} of {total} located to module and line, {value:.3f} [{low:.3f}, {high:.3f}], target "
        f"≥ {LEAST_LOCATED}: {verdict}; where the traceback does not say so: {beyond} of {len(silent)}; module only: "
        f"{sum(one.is_in_module for one in part)}; told as a fault: {sum(one.is_fault for one in part)}",
        flush=True,
    )
    return {
        "located": hits, "total": total, "share": value, "low": low, "high": high, "target": LEAST_LOCATED,
        "is_met": value >= LEAST_LOCATED, "located_beyond_traceback": beyond, "beyond_traceback": len(silent),
    }  # fmt: skip


def _clean(options: argparse.Namespace) -> dict[str, Any]:
    from validation.doctor.clean import clean_models
    from validation.doctor.location import false_alarms

    found = false_alarms(clean_models())
    alarms = [one for one in found if one["faults"]]
    for one in alarms:
        print(f"  false alarm: {one['name']}: {'; '.join(one['faults'])}")
    verdict = "met" if len(alarms) <= MOST_ALARMS else "MISSED"
    print(f"clean models: {len(alarms)} of {len(found)} with a fault, target {MOST_ALARMS}: {verdict}", flush=True)
    return {"alarms": len(alarms), "total": len(found), "target": MOST_ALARMS, "models": found}


def _cost(options: argparse.Namespace) -> list[dict[str, Any]]:
    from validation.doctor import cost

    found = cost.figures(budget_s=options.budget)
    for one in found:
        verdict = "met" if one["is_met"] else "MISSED"
        print(
            f"observing {one['observing']:18s} {one['dtype']:9s} width {one['width']:5d} length {one['length']:4d} "
            f"({one['forward_ms']:.2f} ms): {one['ratio']:.2f} [{one['low']:.2f}, {one['high']:.2f}] forwards, target "
            f"≤ {cost.MOST}: {verdict}",
            flush=True,
        )
    return found


def _write(sections: dict[str, Any], out: Path | None) -> None:
    if out is None:
        return
    from precision_eval.core.environment import collect

    out.parent.mkdir(parents=True, exist_ok=True)
    content = {**sections, "environment": collect("cpu")}
    out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
