"""``python -m validation.choose --out FILE.json``: repeat runs, count how often the answer is the same or a tie.

Re-runs are appended to FILE.jsonl as they finish; the same command goes on from there, and ``--seconds`` bounds one
slice. FILE.json is made of the lines alone (``--report`` only makes it).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Run the bench."""
    options = _parser().parse_args()
    from precision_eval.core.environment import collect, store_environment
    from precision_eval.core.json_lines import TrialFile
    from validation.choose.measuring import CASES, Plan, measure, trials_of

    file = TrialFile(options.out.with_suffix(".jsonl"))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    named = [tuple(name.split("/")) for name in options.cases] if options.cases else list(CASES)
    plan = Plan(
        cases=tuple((case, size) for case, size in named),
        repeats=options.repeats,
        processes=options.processes,
        budget_s=options.budget,
        environment=store_environment(collect("cpu"), options.out.parent) if not options.campaign else options.campaign,
    )
    if not options.report:
        measure(plan, file, seconds=options.seconds, say=lambda text: print(text, flush=True))
    cases = trials_of(file.read(), plan)
    if not cases:
        print("no case has two re-runs yet; run the same command again")
        return 0
    figures = _figures(cases, made=options.resampled)
    for figure in figures:
        print(f"{figure['name']:58s} {figure['found']:28s} {figure['target']:8s} {_word(figure['met'])}")
    content = {"campaign": plan.campaign, "figures": figures, "cases": _answers(cases)}
    options.out.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m validation.choose", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures; re-runs go beside it")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further re-run after this long")
    parser.add_argument("--cases", nargs="+", metavar="CASE/SIZE", help="default: those of benchmarks/choose")
    parser.add_argument("--repeats", type=int, default=20, help="re-runs per case")
    parser.add_argument("--processes", type=int, default=5, help="per re-run, at least 2")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of timed rounds per re-run")
    parser.add_argument("--resampled", type=int, default=40, help="re-runs to make of each case's processes")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--campaign", help="with --report: environment of the lines, where it is not this one's")
    return parser


def _figures(cases: dict[tuple[str, str], dict[str, Any]], *, made: int) -> list[dict[str, Any]]:
    import numpy as np

    from validation.choose.agreement import TARGET, answers, asked, resampled, rival_answers, shares

    rng = np.random.default_rng(0)
    drawn = {built: [resampled(one["runs"], rng) for _ in range(made)] for built, one in cases.items()}
    ours = shares([asked(one, answers) for one in cases.values()], rng=rng)
    again = shares([asked(one, answers, made=drawn[built]) for built, one in cases.items()], rng=rng)
    theirs = shares([asked(one, rival_answers) for one in cases.values()], rng=rng)
    runs = sum(len(one["runs"]) for one in cases.values())
    rows = [
        (f"re-runs agree: the same fix, or a tie that names it ({runs} re-runs)", ours["agree"], TARGET),
        ("of these, the same fix", ours["same"], None),
        ("answers that are ties", ours["ties"], None),
        ("re-runs made of resampled processes agree", again["agree"], TARGET),
        ("rival: best point estimates, no ties: agree", theirs["agree"], None),
    ]
    return [_row(name, found, target) for name, found, target in rows]


def _row(name: str, found: tuple[float, float, float], target: float | None) -> dict[str, Any]:
    value, low, high = found
    return {
        "name": name,
        "value": value,
        "low": low,
        "high": high,
        "least": target,
        "found": f"{100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]",
        "target": "" if target is None else f"≥ {100 * target:.0f} %",
        "met": None if target is None else value >= target,
    }


def _answers(cases: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what was said to every question, re-run by re-run."""
    from validation.choose.agreement import answers, asked, group_of, questions_of

    found = []
    for (case, size), one in cases.items():
        questions = questions_of([group_of(one["exact"], run) for run in one["runs"]])
        columns = zip(*asked(one, answers), strict=True)
        for (policy, name, _), column in zip(questions, columns, strict=True):
            texts = [f"{said.fix}{' ~' + ','.join(sorted(said.named)) if said.within_noise else ''}" for said in column]
            found.append({"case": case, "size": size, "policy": policy, "limits": name, "answers": texts})
    return found


def _word(met: bool | None) -> str:
    return {None: "", True: "met", False: "MISSED"}[met]


if __name__ == "__main__":
    sys.exit(main())
