"""What torch's operations say of mixed dtypes, and what ``explain`` makes of it: ``python -m validation.sentences``.

Every operation of torch's test database is called on its sample inputs with one tensor in another dtype, eagerly and,
every fifth, with fake tensors too, as a compiler calls it. Each sentence that is raised is counted once;
those that are not recognised are printed.
"""

from __future__ import annotations

import argparse
import re
import sys
import unittest
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as tree

from precision_eval.diagnose.explain import explain

MIXED = (
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float32, torch.float64),
)
SAMPLES, OPERANDS, FAKE_EVERY = 8, 4, 5
_DTYPE = re.compile(r"(c10::)?(Half|BFloat16|Float|Double|float16|bfloat16|float32|float64|double|float)\b")


def calls(operation: Any) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Yield inputs of an operation that it takes in one dtype, with one tensor in another."""
    for base, other in MIXED:
        try:
            samples = list(operation.sample_inputs("cpu", base))[:SAMPLES]
        except Exception:  # noqa: BLE001,S112 - it has no samples in this dtype
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


def main() -> None:
    """Call all, and print what is not recognised."""
    argparse.ArgumentParser(prog="python -m validation.sentences", description=__doc__).parse_args()
    warnings.simplefilter("ignore")
    # the database's module asks for expecttest's TestCase alone
    sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    from torch.testing._internal.common_methods_invocations import op_db

    programs, failing = 0, 0
    sentences: dict[str, tuple[bool, str]] = {}
    for operation in op_db:
        for inputs in calls(operation):
            messages = [raised(operation, *inputs)]
            if programs % FAKE_EVERY == 0:  # a fake call takes ten times as long
                with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                    messages.append(raised(operation, *in_fake_tensors(mode, inputs)))
            programs += 1
            for message in filter(None, messages):
                failing += 1
                first_line = message.splitlines()[0]
                key = re.sub(r"\d+", "#", _DTYPE.sub("D", first_line))
                if key not in sentences:
                    sentences[key] = explain(message).known, f"{operation.name}: {first_line[:150]}"
    unknown = [text for known, text in sentences.values() if not known]
    for text in unknown:
        print(text)
    print(
        f"torch {torch.__version__}: {programs} programs, {failing} messages, {len(sentences)} sentences, "
        f"{len(sentences) - len(unknown)} recognised"
    )


if __name__ == "__main__":
    main()
