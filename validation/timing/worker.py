"""The process that measures: one trial per line of its input, one result per line of its output.

Conventions: run as ``python -m validation.timing.worker``; a line in is a :class:`TrialSpec` as JSON, a
line out is the trial as it goes on file. It ends when its input does, so it does not outlive its parent. A process of
its own keeps the parent's progress display out of the timing, and a new one per phase lets trials differ in what one
process fixes (where code and tensors lie). One intra-op thread. What tools print goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Any, TextIO

from precision_eval.core.errors import PrecisionEvalError
from validation.timing.calls import CALLS, call_by_name, make_pair
from validation.timing.load import Bystanders
from validation.timing.schedule import TrialSpec
from validation.timing.tools import Judge, Judged, judge_of

_PRACTICE_S = 0.05


def run_trial(spec: TrialSpec, *, judge: Judge) -> dict[str, Any]:
    """Run one trial in this process."""
    base, candidate = make_pair(call_by_name(spec.call), spec.delta, seed=spec.seed)
    for call in (base, candidate):
        call()
    bystanders = Bystanders()
    start_s = time.perf_counter()
    judged = judge(base, candidate, budget_s=spec.budget_s, seed=spec.seed)
    elapsed_s = time.perf_counter() - start_s
    return on_file(spec, judged, elapsed_s=elapsed_s, others=bystanders.cores())


def on_file(spec: TrialSpec, judged: Judged, *, elapsed_s: float, others: float) -> dict[str, Any]:
    """Return a trial as plain data: six decimals for ratios, three digits for times."""
    interval = {name: round(value, 6) for name in ("low", "high") if (value := getattr(judged, name)) is not None}
    trial = {
        "key": spec.key,
        "said": judged.said,
        "ratio": round(judged.ratio, 6),
        **interval,
        "base_s": float(f"{judged.base_s:.3g}"),
        "elapsed_s": round(elapsed_s, 2),
        "others": round(others, 2),
        "pid": os.getpid(),
    }
    return trial | {name: _short(value) for name, value in judged.extra.items()}


def _short(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


class Worker:
    """A worker process, as a context manager."""

    def __init__(self, tools: set[str]) -> None:
        self._tools = sorted(tools)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Callable[[TrialSpec], dict[str, Any]]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "validation.timing.worker", *self._tools],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self.measure

    def measure(self, spec: TrialSpec) -> dict[str, Any]:
        """Have one trial measured."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise PrecisionEvalError("the worker is not running; use it as a context manager")
        try:
            print(json.dumps(asdict(spec)), file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise PrecisionEvalError(
                f"the measuring process ended with status {process.wait()} before {spec.key} was done; its message "
                "stands above; run again to go on after the last trial on file"
            )
        trial: dict[str, Any] = json.loads(line)
        return trial

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def serve(lines: TextIO, out: TextIO, *, tools: list[str]) -> None:
    """Answer trials until there are no more lines."""
    judges = {tool: judge_of(tool) for tool in tools}
    _use_one_thread()
    for judge in judges.values():
        judge(*make_pair(CALLS[0], 0.0, seed=0), budget_s=_PRACTICE_S, seed=0)
    for line in lines:
        spec = TrialSpec(**json.loads(line))
        print(json.dumps(run_trial(spec, judge=judges[spec.tool])), file=out, flush=True)


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, answers, tools=sys.argv[1:])
