"""What a model of one's own asks of its user: lines to write, commands to give, minutes to wait, and classes it is for.

Lines are those with code: of the files below, which are run, and of what ``init`` writes beside the case. The wait is
that of one command in a folder of its own, from its start to its end with the report, on a model of 10 M parameters in
the state of the bug. The classes are those of the adapters' tests: tiny configs of the real ones in the state of the
bug, each run, cured and reported by a test of its own.
"""

from __future__ import annotations

import ast
import os
import re
import tempfile
import time
from pathlib import Path

from precision_eval.core.errors import PrecisionEvalError
from precision_eval.core.records import RecordFile
from precision_eval.studies.starter import FILES
from validation.frame import ROOT, Data, Experiment, Figure, Options, Trial, each, python_m

CLASSES = (
    "tests/precision_eval/cases/adapters/test_generation.py::test_a_class_in_the_state_of_the_bug_is_cured_and_reported"
)
MOST_S = 300.0

CASE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1024, 1024) for _ in range(10)])
        self.register_buffer("cache", torch.randn(64, 1024).half())

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x @ self.cache.mT


def factory():
    return Model().eval(), (torch.randn(1, 16, 1024),)
"""

FIX = """def wide_cache(model):
    model.cache = model.cache.float()
"""

COMMANDS = (
    ("run", "my_case.py:factory", "--candidate", "mine.py:wide_cache", "--out", "runs/mine"),
    ("choose", "runs/mine"),
)


def code_lines(text: str) -> int:
    """Count the lines that hold more than a comment or a docstring."""
    text = re.sub(r'^\s*""".*?"""$', "", text, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def _measured(what: str) -> Data:
    return {"lines": _lines, "wait": _wait, "classes": _classes}[what]()


def _lines() -> Data:
    ast.parse(CASE + FIX)
    own = sum(code_lines(text) for name, text in FILES.items() if name != "precision_case.py")
    return {"what": "lines", "case": code_lines(CASE), "fix": code_lines(FIX), "repository": own}


def _wait() -> Data:
    with tempfile.TemporaryDirectory(prefix="own-model-") as name:
        folder = Path(name)
        (folder / "my_case.py").write_text(CASE, encoding="utf-8")
        (folder / "mine.py").write_text(FIX, encoding="utf-8")
        seconds = []
        for command in COMMANDS:
            began = time.monotonic()
            python_m("precision_eval.cli", *command, cwd=folder)
            seconds.append(time.monotonic() - began)
        traces = [r for r in RecordFile(folder / "runs/mine/records.jsonl").read().records if r.measure == "trace"]
        if not (folder / "runs/mine/report.html").is_file():
            raise PrecisionEvalError("the run left no report.html")
    statuses = {record.fix: record.status for record in traces if record.mode == "eager"}
    return {"what": "wait", "seconds": seconds, "statuses": statuses, "load": os.getloadavg()[0]}


def _classes() -> Data:
    command = ("pytest", "-q", "-n0", "--timeout=900", "-p", "no:cacheprovider", CLASSES)
    done = python_m(*command, cwd=ROOT, codes=(0, 1))
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    if "passed" not in counts:
        raise PrecisionEvalError(f"the adapters' tests did not run: {done.stdout.strip()[-300:]}")
    return {"what": "classes", "passed": counts["passed"], "failed": counts.get("failed", 0) + counts.get("error", 0)}


def _figures(lines: list[Data]) -> list[Figure]:
    found = {line["what"]: line for line in lines}
    figures = []
    if own := found.get("lines"):
        for name, most in (("case", 15), ("fix", 10), ("repository", 30)):
            figures.append(Figure(f"lines of code, {name}", str(own[name]), f"≤ {most}", own[name] <= most))
    if wait := found.get("wait"):
        cured = sorted(fix for fix, status in wait["statuses"].items() if status == "passed")
        total = sum(wait["seconds"])
        figures += [
            Figure("commands to the answer", str(len(COMMANDS)), "≤ 3", len(COMMANDS) <= 3),
            Figure("wait, 10 M parameters", f"{total:.0f} s at load {wait['load']:.1f}", "≤ 300 s", total <= MOST_S),
            Figure("fixes that cure it", f"{len(cured)}: {', '.join(cured)}"),
        ]
    if classes := found.get("classes"):
        met = classes["passed"] >= 12 and not classes["failed"]
        text = f"{classes['passed']}, {classes['failed']} not"
        figures.append(Figure("real classes run, cured and reported", text, "≥ 12", met))
    return figures


def _trials(options: Options) -> list[Trial]:
    return [Trial(what, what) for what in options["parts"]]


EXPERIMENT = Experiment(
    name="own-model",
    title="what a model of one's own asks of its user",
    trials=_trials,
    run=each(_measured),
    figures=_figures,
    settings={"parts": (("lines", "wait"), ("lines", "wait", "classes"))},
)
