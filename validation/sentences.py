"""What torch's operations say of mixed dtypes, and what ``explain`` makes of it: ``python -m validation.sentences``.

Every operation of torch's test database is called on its sample inputs with one tensor in another dtype, eagerly and,
every fifth, with fake tensors too, as a compiler calls it. Each operation has a process and a time limit of its own and
one line in OUT, from which the same command goes on; an operation that is cut short or lost is counted as such. Each
sentence counts once, whatever its dtypes and numbers. *Names two dtypes* is what the family is about: a sentence with
two dtypes in it, or that says that dtypes differ.
"""

from __future__ import annotations

import argparse
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

from precision_eval.core.files import TrialFile
from precision_eval.core.table import make_table, to_markdown
from precision_eval.core.workers import WorkerError, call_isolated, one_thread
from precision_eval.diagnose.explain import FAMILY, explain

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


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Return the counts as Markdown, with what is not recognised below."""
    lines = list(lines)
    messages: dict[str, str] = {}
    for line in lines:
        for sentence, message in line["messages"].items():
            messages.setdefault(sentence, message)
    verdicts = {sentence: judged(message) for sentence, message in messages.items()}
    statuses = Counter(line["status"] for line in lines)
    programs, failing = (sum(line[name] for line in lines) for name in ("programs", "failing"))
    rows = [
        f"torch {torch.__version__}: {len(lines)} operations "
        f"({', '.join(f'{n} {name}' for name, n in statuses.items())}), {programs:,} programs, {failing:,} messages",
        f"the database made no samples in a dtype: {_lacking(lines)}",
        "",
        "| sentences | all | recognised | operation | dtypes | what is asked |",
        "|---|---|---|---|---|---|",
    ]
    for name, kept in (("that name two dtypes", True), ("others", False)):
        of = [one for one in verdicts.values() if one["two_dtypes"] is kept]
        counts = [sum(one[key] for one in of) for key in ("recognised", "operation", "dtypes", "direction")]
        rows.append(f"| {name} | {len(of)} | {' | '.join(map(str, counts))} |")
    unknown = [sentence for sentence, one in verdicts.items() if not one["recognised"]]
    for kept, title in ((True, "name two dtypes"), (False, "others")):
        rows += ["", f"Not recognised, {title}:", ""]
        rows += [f"- {messages[one].splitlines()[0][:200]}" for one in unknown if verdicts[one]["two_dtypes"] is kept]
    return "\n".join(rows)


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


def main() -> None:
    """Ask what is missing in OUT, and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m validation.sentences", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sentences.jsonl"))
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("--family", type=Path, help="Write the sentences that explain knows to this file, and end.")
    options = parser.parse_args()
    if options.family is not None:
        options.family.write_text(f"# Sentences that explain knows\n\n{family_table()}\n", encoding="utf-8")
        return
    warnings.simplefilter("ignore")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    file = TrialFile(options.out)
    done = file.keys()
    with one_thread():
        for operation in () if options.report_only else database():
            key = f"{torch.__version__}/{operation.name}/{operation.variant_test_name}"
            if key in done:
                continue
            try:
                line = call_isolated(partial(asked, operation), BUDGET_S, timeout_s=LIMIT_S)
            except WorkerError as error:
                line = {"programs": 0, "failing": 0, "messages": {}, "status": error.status.replace("_", " ")}
            file.append({"key": key, **line})
    of_this = [line for line in file.read() if line["key"].startswith(f"{torch.__version__}/")]
    print(table(of_this))


if __name__ == "__main__":
    main()
