"""Public reports as their reporters would try them: is the answer the one that their thread settled on?

A case of ``docs/reports/answers.toml`` is given to the command that its reporter would use; the file with the thread's
own cure in it is its clean twin, in which a fault is a false alarm. The rule of this trial compares the exit code, and
looks for the words that the answer must have and must not have; whoever has read the answer may overrule it in
``verdicts.toml`` beside, with the reason. ``set=held`` are those that nobody looked at while the tool changed; a later
draw has a folder below ``docs/reports``, and sets of its name: ``set=second held`` and ``second open``.
"""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from validation.frame import ROOT, Data, Experiment, Figure, Options, Trial, each
from validation.report import judged_share, plain_share

FOLDER = ROOT / "docs" / "reports"
LIMIT_S = 180.0
# Lines of an answer that are looked at: a reporter reads these first.
FIRST_LINES = 40
# Folders of the draws below FOLDER, where the first draw lies itself.
DRAWS = ("", "second", "third", "fourth", "fifth")
# What figures say of each set: "held" was unseen when it was scored, "open" was looked at while the tool changed.
SETS = {f"{draw} {half}".strip(): f"{draw or 'first'} draw, {half}" for draw in DRAWS for half in ("held", "open")}


def folder_of(case_set: str) -> Path:
    return FOLDER / case_set.rpartition(" ")[0]


def read_cases() -> list[Data]:
    """Read the cases of all draws, each with the name of its set."""
    return [
        {**case, "set": f"{draw} {case['set']}".strip()}
        for draw in DRAWS
        for case in tomllib.loads((FOLDER / draw / "answers.toml").read_text(encoding="utf-8"))["case"]
    ]


def read_verdicts() -> Data:
    """Read what readers of the answers said, by the id of the case."""
    files = [FOLDER / draw / "verdicts.toml" for draw in DRAWS]
    return {
        key: value
        for file in files if file.exists()
        for key, value in tomllib.loads(file.read_text(encoding="utf-8")).items()
    }  # fmt: skip


def _trials(options: Options) -> list[Trial]:
    chosen = [case for case in read_cases() if options["set"] in ("all", case["set"])]
    asked = [Trial(case["id"], (case, False)) for case in chosen]
    return asked + [Trial(f"{case['id']} twin", (case, True)) for case in chosen if case.get("fix")]


def _ask(spec: tuple[Data, bool]) -> Data:
    case, is_twin = spec
    with TemporaryDirectory() as folder:
        command, text = _command(case, Path(folder), is_twin=is_twin)
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "precision_eval", *command], input=text, capture_output=True, text=True, cwd=ROOT,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - begun
    printed = (done.stdout or done.stderr).replace(f"{folder}/", "").replace(f"{Path(folder).name}/", "")
    answer = printed.splitlines()[:FIRST_LINES]
    read = " ".join(" ".join(answer).split())
    return {
        "set": case["set"], "tool": case["tool"], "kind": case["kind"], "twin": is_twin, "exit": done.returncode,
        "seconds": round(seconds, 1), "answer": answer, "expected": case["expected_exit"],
        "named": [name for name in case["must_name"] if " ".join(name.split()) in read],
        "wrong": [name for name in case["must_not"] if " ".join(name.split()) in read],
    }  # fmt: skip


def _command(case: Data, folder: Path, *, is_twin: bool) -> tuple[list[str], str | None]:
    """Return what the reporter types, and what goes to its standard input."""
    if case["tool"] == "explain":
        return ["explain", "-"], case["text"]
    source = folder_of(case["set"]) / case["file"]
    if is_twin:
        text = source.read_text(encoding="utf-8")
        for old, new in case["fix"]:
            text = text.replace(old, new)
        source = folder / source.name
        source.write_text(text, encoding="utf-8")
    if case["tool"] == "audio":
        subprocess.run([sys.executable, str(source), str(folder)], check=True, capture_output=True)
        return ["audio", str(folder / "reference.wav"), str(folder / "degraded.wav")], None
    return ["doctor", f"{source}:factory"], None


def verdict_of(line: Data, read: Data) -> str:
    """Return right, partly, missed or wrong: a reader's verdict, or the rule's."""
    if line["key"] in read:
        return str(read[line["key"]]["verdict"])
    if line["wrong"]:
        return "wrong"
    is_fault = line["exit"] == 1
    agrees = line["tool"] == "explain" or is_fault == (line["expected"] == "fault")
    return "right" if agrees and line["named"] else "partly" if line["named"] else "missed"


def _figures(lines: Sequence[Data]) -> list[Figure]:
    read = read_verdicts()
    figures = []
    for name, label in SETS.items():
        asked = [line for line in lines if not line["twin"] and line["set"] == name]
        if not asked:
            continue
        found = [verdict_of(line, read) for line in asked]
        others = {verdict: plain_share(found.count(verdict), len(found)) for verdict in ("partly", "missed")}
        figures.append(judged_share(f"{label}: right", found.count("right"), len(found), "≥ 85 %", rivals=others))
        figures.append(judged_share(f"{label}: wrong with confidence", found.count("wrong"), len(found), "0"))
        since = [read.get(line["key"], {}).get("since", verdict) for line, verdict in zip(asked, found, strict=True)]
        if since != found:
            others = {
                verdict: plain_share(since.count(verdict), len(since)) for verdict in ("partly", "missed", "wrong")
            }
            figures.append(
                judged_share("the same, mended after looking: right", since.count("right"), len(since), rivals=others)
            )
    twins = [line for line in lines if line["twin"]]
    figures.append(judged_share("mended files called faulty", sum(t["exit"] == 1 for t in twins), len(twins), "0"))
    quick = [line["seconds"] <= 20.0 for line in lines if line["tool"] == "doctor"]
    figures.append(judged_share("examined within 20 s", sum(quick), len(quick)))
    return figures


EXPERIMENT = Experiment(
    name="reports",
    title="public reports: the right next step, and never a wrong one",
    trials=_trials,
    run=each(_ask),
    figures=_figures,
    settings={"set": ("open", "all")},
)
