"""What torch's operations say of mixed dtypes, and what ``explain`` makes of it.

Every operation of torch's test database is called on its sample inputs with one tensor in another dtype, eagerly and,
every fifth, with fake tensors too, as a compiler calls it. Each operation has a process and a time limit of its own; an
operation that is cut short or lost is counted as such. Each sentence counts once, whatever its dtypes and numbers.
*Speaks of two dtypes* is what the family is about: a sentence with two dtypes in it, or that says that dtypes differ.
"""

from __future__ import annotations

import re
import sys
import time
import unittest
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as tree

from precision_eval.core.table import make_table, markdown_text, to_markdown
from precision_eval.core.workers import WorkerError, call_isolated, one_thread
from precision_eval.explain import FAMILY, explain
from validation.frame import Data, Experiment, Figure, Options, Trial
from validation.report import share_text

MIXED = (
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float32, torch.float64),
)
SAMPLES, OPERANDS, FAKE_EVERY = 8, 4, 5
BUDGET_S, LIMIT_S = 20.0, 60.0
"""After the first no further call is begun; at the second the process is ended, whatever it is in."""
_DTYPE = re.compile(
    r"(torch\.|c10::)?\b(?:CPU)?(Half|BFloat16|Float|Double|float16|bfloat16|float32|float64|double|float)(?:Tensor|Type)?\b",
    re.IGNORECASE,
)
_DIFFER = re.compile(
    r"same (d?type|scalar type|datatype)|(mixed|different) dtype|type.*(should|must|to) (be (the same|equal)|match)"
)


def calls(operation: Any, lacking: list[str]) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Yield inputs of an operation that it takes in one dtype, with one tensor in another; `lacking` has no samples."""
    for base, other in MIXED:
        try:
            samples = list(operation.sample_inputs("cpu", base))[:SAMPLES]
        except Exception as error:  # noqa: BLE001 - whatever the database raises, it has no samples in this dtype
            lacking.append(f"{base}: {type(error).__name__}")
            continue
        for sample in samples:
            flat, spec = tree.tree_flatten((sample.input, sample.args, sample.kwargs))
            floating = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor) and leaf.dtype == base]
            if len(floating) < 2 or raised(operation, sample.input, sample.args, sample.kwargs):
                continue
            for index in floating[:OPERANDS]:
                mixed = [*flat[:index], flat[index].detach().to(other), *flat[index + 1 :]]
                yield tree.tree_unflatten(mixed, spec)


def raised(operation: Any, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return what a call raises, empty where it raises nothing."""
    try:
        operation.op(first, *args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        return f"{type(error).__name__}: {error}"
    return ""


def in_fake_tensors(mode: FakeTensorMode, inputs: Any) -> Any:
    """Replace tensors by fake ones."""
    return tree.tree_map_only(torch.Tensor, lambda tensor: mode.from_tensor(tensor.detach()), inputs)


def asked(operation: Any, budget_s: float) -> dict[str, Any]:
    """Call one operation in all ways; returns how many programs, and one message of each sentence."""
    started, programs, failing = time.monotonic(), 0, 0
    messages: dict[str, str] = {}
    lacking: list[str] = []
    status = "passed"
    for inputs in calls(operation, lacking):
        if time.monotonic() - started > budget_s:
            status = "cut short"
            break
        said = [raised(operation, *inputs)]
        if programs % FAKE_EVERY == 0:  # a fake call takes ten times as long
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                said.append(raised(operation, *in_fake_tensors(mode, inputs)))
        programs += 1
        for message in filter(None, said):
            failing += 1
            messages.setdefault(sentence_of(message), message[:2000])
    return {"programs": programs, "failing": failing, "messages": messages, "status": status, "lacking": lacking}


def sentence_of(message: str) -> str:
    """Return the first line without its dtypes and numbers."""
    return re.sub(r"\d+", "#", _DTYPE.sub("D", message.splitlines()[0]))


def two_dtypes(message: str) -> bool:
    """Say whether a message speaks of two dtypes."""
    first_line = message.splitlines()[0]
    named = {match[2].lower() for match in _DTYPE.finditer(first_line)}
    return len(named) > 1 or bool(_DIFFER.search(first_line))


def judged(message: str) -> dict[str, bool]:
    """Say what ``explain`` makes of a message."""
    found = explain(message)
    dtypes = {operand.dtype for operand in found.operands if operand.dtype}
    return {
        "two_dtypes": two_dtypes(message),
        "recognised": found.known,
        "operation": bool(found.op or found.candidates),
        "dtypes": len(dtypes) > 1,
        "direction": bool(found.asks),
    }


def _judged_sentences(lines: Iterable[Data]) -> dict[str, dict[str, bool]]:
    """Return what ``explain`` makes of one message of each sentence."""
    messages: dict[str, str] = {}
    for line in lines:
        for sentence, message in line["messages"].items():
            messages.setdefault(sentence, message)
    return {message: judged(message) for message in messages.values()}


def _figures(lines: list[Data]) -> list[Figure]:
    verdicts = [*_judged_sentences(lines).values()]
    figures = []
    for about, kept in (("sentences that speak of two dtypes", True), ("other sentences", False)):
        of = [verdict for verdict in verdicts if verdict["two_dtypes"] is kept]
        columns = {words: f"{sum(one[key] for one in of)} of {len(of)}" for key, words in _COLUMNS.items()}
        found = share_text(sum(one["recognised"] for one in of), len(of))
        figures.append(Figure(f"{about}: recognised", found, rivals=columns))
    return figures


_COLUMNS = {"operation": "with the operation", "dtypes": "with both dtypes", "direction": "what is asked"}


def _notes(lines: list[Data]) -> list[str]:
    """How much was called, of which dtypes there are no samples, and which sentences of two dtypes are not known."""
    statuses = Counter(line["status"] for line in lines)
    programs, failing = (sum(line[name] for line in lines) for name in ("programs", "failing"))
    versions = ", ".join(dict.fromkeys(line["key"].partition("/")[0] for line in lines))
    called = ", ".join(f"{count} {status}" for status, count in statuses.items())
    unknown = [
        message.splitlines()[0][:200]
        for message, verdict in _judged_sentences(lines).items()
        if verdict["two_dtypes"] and not verdict["recognised"]
    ]
    return [
        f"torch {versions}: {len(lines)} operations ({called}), {programs:,} programs, {failing:,} messages; the "
        f"database made no samples in a dtype: {_lacking(lines)}.",
        *(f"Not recognised: {markdown_text(text)}" for text in unknown),
    ]


def family_table() -> str:
    """Return every sentence that ``explain`` knows: what it asks, likely causes, fixes that apply, versions."""
    rows = []
    for member in FAMILY:
        for sentence in member.sentences:
            found = explain(_filled(sentence))
            applies = [advice.fix for advice in found.fixes if advice.verdict == "applies"]
            causes = "; ".join(cause.title for cause in found.causes)
            seen = "" if member.seen_on == "cpu" else f", on {member.seen_on}"
            known = found.member == member.id
            title = sentence if known else f"{sentence} (read as another)"
            rows.append(
                (title, member.asks, causes or "–", ", ".join(applies) or "–", f"torch {member.versions}{seen}")
            )
    return to_markdown(make_table(("sentence", "what it asks", "likely causes", "fixes that apply", "raised by"), rows))


def _filled(sentence: str) -> str:
    """Put float32 in the first operand's place, half in the others', and a number and a word where they stand."""
    dtypes = chain(("float",), repeat("c10::Half"))
    plain = {"{#}": "1", "{*}": "x"}
    return re.sub(r"\{[^{}]*\}", lambda match: plain.get(match[0]) or next(dtypes), sentence)


def _lacking(lines: Iterable[dict[str, Any]]) -> str:
    counted = [len(line["lacking"]) for line in lines if "lacking" in line]
    return f"{sum(counted)} times, in {sum(map(bool, counted))} operations" if counted else "not counted"


def database() -> list[Any]:
    """Return torch's own operations."""
    # the database's module asks for expecttest's TestCase alone
    sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _trials(options: Options) -> list[Trial]:
    names = [(f"{torch.__version__}/{one.name}/{one.variant_test_name}", one) for one in database()]
    return [Trial(*pair) for pair in names[: options["operations"] or None]]


def _run(trials: Iterator[Trial], options: Options) -> Iterator[Data]:
    """Ask each operation in a process of its own."""
    warnings.simplefilter("ignore")
    with one_thread():
        for key, operation, _ in trials:
            try:
                yield {"key": key, **call_isolated(partial(asked, operation), BUDGET_S, timeout_s=LIMIT_S)}
            except WorkerError as error:
                lost = {"programs": 0, "failing": 0, "messages": {}}
                yield {"key": key, **lost, "status": error.status.replace("_", " ")}


def _family(content: Any, out: Path) -> list[Path]:
    """Write ``family.md``: the sentences that ``explain`` knows."""
    path = out / "family.md"
    path.write_text(f"# Sentences that explain knows\n\n{family_table()}\n", encoding="utf-8")
    return [path]


EXPERIMENT = Experiment(
    name="sentences",
    title="what torch's operations say of mixed dtypes, and what explain makes of it",
    trials=_trials,
    run=_run,
    figures=_figures,
    plots=_family,
    notes=_notes,
    settings={"operations": (20, 0)},  # the first so many; 0: all
)
