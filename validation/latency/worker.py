"""The process that measures: one trial per line of its input, one result per line of its output.

Run as ``python -m validation.latency.worker``; it ends when its input does, so it does not outlive its parent. A
process of its own keeps the parent's progress display out of the timing, and a new one per phase lets trials differ in
what one process fixes (where code and tensors lie). One intra-op thread. What tools print goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from functools import cache
from typing import Any, Self, TextIO

from precision_eval.core.errors import PrecisionEvalError
from validation.latency.calls import CALLS, call_by_name, make_pair
from validation.latency.load import Bystanders
from validation.latency.rivals import Judge, Judged, judge_of
from validation.latency.schedule import TrialSpec

_PRACTICE_S = 0.05


def run_trial(spec: TrialSpec, *, judge: Judge) -> dict[str, Any]:
    """Run one trial in this process."""
    base, candidate = make_pair(call_by_name(spec.call), spec.delta, seed=spec.seed)
    for call in (base, candidate):
        call()
    bystanders, start_s = Bystanders(), time.perf_counter()
    judged = judge(base, candidate, budget_s=spec.budget_s, seed=spec.seed)
    elapsed_s = time.perf_counter() - start_s
    return _line(spec, judged, elapsed_s=elapsed_s, others=bystanders.cores())


def _line(spec: TrialSpec, judged: Judged, *, elapsed_s: float, others: float) -> dict[str, Any]:
    """Return a trial as plain data: six decimals for ratios, three digits for times."""
    interval = {name: round(value, 6) for name in ("low", "high") if (value := getattr(judged, name)) is not None}
    return {
        "key": spec.key,
        "said": judged.said,
        "ratio": round(judged.ratio, 6),
        **interval,
        "base_s": _short(judged.base_s),
        "elapsed_s": round(elapsed_s, 2),
        "others": round(others, 2),
        "pid": os.getpid(),
        **{name: _short(value) for name, value in judged.extra.items()},
    }


def _short(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


class Worker:
    """A worker process, as a context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self

    def measure(self, spec: TrialSpec) -> dict[str, Any]:
        """Have one trial measured."""
        process, line = self._process, ""
        assert process.stdin is not None  # pipes were asked for
        assert process.stdout is not None
        try:
            print(json.dumps(asdict(spec)), file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            pass  # it has ended, as the empty line says too
        if not line.endswith("\n"):
            raise PrecisionEvalError(
                f"the measuring process ended with status {process.wait()} before {spec.key} was done; its message "
                "stands above; run again to go on after the last trial on file"
            )
        trial: dict[str, Any] = json.loads(line)
        return trial

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


@cache
def _practised(tool: str) -> Judge:
    """Return a tool's judge once it has judged a pair, so that no trial pays for its imports."""
    judge = judge_of(tool)
    judge(*make_pair(CALLS[0], 0.0, seed=0), budget_s=_PRACTICE_S, seed=0)
    return judge


def serve(lines: TextIO, out: TextIO) -> None:
    """Answer trials until there are no more lines."""
    import torch

    torch.set_num_threads(1)
    for line in lines:
        spec = TrialSpec(**json.loads(line))
        print(json.dumps(run_trial(spec, judge=_practised(spec.tool))), file=out, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, answers)
