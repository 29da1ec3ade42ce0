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


HALF_CACHE = """
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(64, 64), nn.Linear(64, 128)
        self.register_buffer("k", torch.zeros(1, 16, 64, dtype=torch.float16))
        self.register_buffer("v", torch.zeros(1, 16, 64, dtype=torch.float16))

    def forward(self, x, pos):
        k, v = self.kv(x).chunk(2, -1)
        self.k[:, pos] = k
        self.v[:, pos] = v
        return F.scaled_dot_product_attention(self.q(x), self.k, self.v)


def factory():
    return Attention().eval(), (torch.randn(1, 1, 64), torch.tensor([3]))
"""


def apply_patch(patch, path, folder, name):
    """Write the patched file, and build the model and its inputs from it."""
    copy = folder / f"{name}.py"
    copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    if patch.diff:
        subprocess.run(["patch", "--silent", str(copy)], input=patch.diff, text=True, check=True)
    model, inputs = build(copy, name)
    if patch.code and not patch.code.startswith("torch."):
        return apply_code(patch.code, model, inputs)
    return model, inputs


def check_every_patch(path, folder):
    model, inputs = build(path, f"before_{path.stem}")
    try:
        patches = examine(model, *inputs, fixes=False).patches
    except ParameterError:
        patches = ()  # it raises something that is no error of dtypes
    verified = [patch for patch in patches if patch.verified]
    for number, patch in enumerate(verified):
        model, inputs = apply_patch(patch, path, folder, f"patched_{number}_{path.stem}")
        again = examine(model, *inputs, fixes=False)
        assert (again.faults, again.status) == ((), "passed")
        assert not any(one.diff for one in again.patches)  # nothing takes it back
    return len(verified)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", CASES)
def test_a_patch_that_was_applied_leaves_no_fault(path, tmp_path):
    check_every_patch(path, tmp_path)


def test_neither_patch_of_a_cache_in_half_is_taken_back(tmp_path):
    path = tmp_path / "half_cache.py"
    path.write_text(HALF_CACHE)
    assert check_every_patch(path, tmp_path) == 2
