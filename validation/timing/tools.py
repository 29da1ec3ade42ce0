"""The tools that judge the same pairs of calls, and what each returns.

Conventions: a tool is a module with ``judge(base, candidate, *, budget_s, seed) -> Judged``. The budget is for the
pair. A tool may apply several rules to one measurement; each rule says its own word. Rivals are the development
extras and are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from precision_eval.core.errors import UnsupportedError, unknown_name
from validation.timing.calls import Call

TOOLS: dict[str, str] = {
    "ours": "validation.timing.ours",
    "asv": "validation.timing.rivals_asv",
    "pytest_benchmark": "validation.timing.rivals_pytest_benchmark",
    "torch": "validation.timing.rivals_torch",
    "ttest": "validation.timing.rivals_ttest",
}
"""Name of a tool to the module that holds its ``judge``."""

RULES: dict[str, str] = {
    "ours": "compare_latency",
    "asv_1.1": "asv, factor 1.1",
    "asv_1.01": "asv, factor 1.01",
    "pytest_median_2": "pytest-benchmark median:2%",
    "pytest_min_5": "pytest-benchmark min:5%",
    "torch_iqr": "torch.utils.benchmark, disjoint IQRs",
    "torch_compare": "torch Compare, not coloured best",
    "ttest_0.01": "t-test per iteration, p < 0.01",
}
"""Name of a rule in the trials to its name in figures and plots; the tool's own default comes first."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a tool said of one pair."""

    said: dict[str, str]
    ratio: float
    base_s: float
    low: float | None = None
    high: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Judge(Protocol):
    """A tool's entry."""

    def __call__(self, base: Call, candidate: Call, *, budget_s: float, seed: int) -> Judged:
        """Time both within the budget, and say whether the candidate is slower or faster."""


def judge_of(tool: str) -> Judge:
    """Import a tool and return its judge."""
    if tool not in TOOLS:
        raise unknown_name("tool", tool, TOOLS)
    judge: Judge = importlib.import_module(TOOLS[tool]).judge
    return judge


def installed(module: str) -> Any:
    """Import a module of a rival tool, as installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"{module} is not installed ({error}); the tools beside ours come with pip install 'precision-eval[dev]'"
        ) from error


def say(*, slower: bool, faster: bool) -> str:
    """Turn a rule's two one-sided answers into a word; both at once are a contradiction and count as ``same``."""
    if slower == faster:
        return "same"
    return "slower" if slower else "faster"
