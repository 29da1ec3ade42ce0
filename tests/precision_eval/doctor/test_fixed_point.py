"""The first patch is a fixed point: applied, no fault is left, and nothing takes it back."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from precision_eval.core.errors import ParameterError
from precision_eval.doctor.examination import examine

ROOT = Path(__file__).resolve().parents[3]
QUICK = ("02_gptj_static_cache", "10_optimizer_lerp", "24_adam_written_back", "54_input_halved_for_kernel")
CASES = [
    pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.slow, id=path.stem)
    for path in sorted((ROOT / "docs/reports/cases").glob("*.py"))
    if "def factory" in path.read_text(encoding="utf-8")
]


def build(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return module.factory()


def apply_code(code, model, inputs):
    """Run the lines of a patch that change what is stored, with the inputs by the names of forward's parameters."""
    names = list(inspect.signature(model.forward).parameters)[: len(inputs)]
    scope = {"torch": torch, "model": model, **dict(zip(names, inputs, strict=True))}
    exec(code, scope)
    return scope["model"], tuple(scope[name] for name in names)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", CASES)
def test_a_patch_that_was_applied_leaves_no_fault(path, tmp_path):
    model, inputs = build(path, f"before_{path.stem}")
    try:
        patch = examine(model, *inputs, fixes=False).patch
    except ParameterError:
        patch = None  # it raises something that is no error of dtypes
    if patch is None or not patch.verified:
        return  # no line cures it, or nothing is wrong: there is nothing to apply
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    if patch.diff:
        subprocess.run(["patch", "--silent", str(copy)], input=patch.diff, text=True, check=True)
    model, inputs = build(copy, f"after_{path.stem}")
    if patch.code and not patch.code.startswith("torch."):
        model, inputs = apply_code(patch.code, model, inputs)
    again = examine(model, *inputs, fixes=False)
    assert (again.faults, again.status) == ((), "passed")
