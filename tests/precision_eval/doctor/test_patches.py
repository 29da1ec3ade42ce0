"""Suggested changes: run on a copy before they are shown, complete, taken by git, and gone from memory afterwards."""

import gc
import importlib
import linecache
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.doctor.examination import examine
from precision_eval.doctor.patched import PatchedSource
from precision_eval.doctor.repairs import _code
from precision_eval.doctor.source import Insertion

D = 8

SOURCE = """import torch
from torch import nn
from torch.nn import functional as F


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.register_buffer("keys", torch.ones(1, 4, 8).half())
        self.register_buffer("values", torch.ones(1, 4, 8).half())

    def forward(self, x):
        return F.scaled_dot_product_attention(
            self.query(x),
            self.keys,
            self.values,
        )


class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).half()
        for position in (0, 2):
            self.layers[position].register_buffer("offset", torch.ones(8))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if hasattr(layer, "offset"):
                x = x + layer.offset
        return x


class Overlaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        total = torch.zeros(16, dtype=torch.float16)
        for frame, part in enumerate(self.project(x)):
            total[4 * frame : 4 * frame + 8] += part
        return total.float()
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    (tmp_path / "patched_models.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("patched_models")
    del sys.modules["patched_models"]


def doctor(model, *inputs, fixes=False):
    return examine(model.eval().requires_grad_(False), *inputs, fixes=fixes, latency=False)


def test_all_lines_of_a_fault_are_mended_and_git_applies_them(models, tmp_path):
    before = models.Reader.forward.__code__
    diagnosis = doctor(models.Reader(), torch.ones(1, 2, D))
    assert models.Reader.forward.__code__ is before
    source = next(patch for patch in diagnosis.patches if patch.diff)
    assert source.verified
    added = [line[1:].strip() for line in source.diff.splitlines() if line.startswith("+ ")]
    assert added == ["self.keys.to(torch.float32),", "self.values.to(torch.float32),"]
    (tmp_path / "fix.patch").write_text(source.diff, encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "fix.patch"], cwd=tmp_path, check=True)
    del sys.modules["patched_models"]
    importlib.invalidate_caches()
    assert doctor(importlib.import_module("patched_models").Reader(), torch.ones(1, 2, D)).faults == ()


def test_what_is_stored_is_the_other_choice(models):
    stored = next(patch for patch in doctor(models.Reader(), torch.ones(1, 2, D)).patches if patch.code)
    assert stored.verified
    model = models.Reader()
    exec(stored.code, {"torch": torch, "model": model})
    assert model(torch.ones(1, 2, D)).dtype is torch.float32


def test_functions_that_the_collector_has_frozen_are_changed_too(models):
    gc.freeze()
    try:
        found = examine(models.Reader().eval(), torch.randn(1, 4, 8), fixes=False)
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    assert found.patches[0].verified
    assert found.patches[0].diff


def test_a_search_without_time_says_so(models, monkeypatch):
    monkeypatch.setattr("precision_eval.doctor.repairs.SEARCH_S", -1.0)
    found = examine(models.Reader().eval(), torch.randn(1, 4, 8), fixes=False)
    assert found.first_split.op == "scaled_dot_product_attention"
    assert not any(patch.verified for patch in found.patches)
    assert any("shorter input" in doubt for doubt in found.doubts)


def test_layers_are_mended_by_one_line_each_way(models):
    diagnosis = doctor(models.Layered(), torch.ones(2, D).half())
    source, stored = sorted(diagnosis.patches, key=lambda patch: not patch.diff)
    assert [source.verified, stored.verified] == [True, True]
    assert source.diff.count("\n+ ") == 1
    model = models.Layered()
    exec(stored.code, {"torch": torch, "model": model})
    assert {layer.offset.dtype for layer in model.layers if hasattr(layer, "offset")} == {torch.float16}


class Stateful(nn.Module):
    """A float32 projection beside a state in half."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(D, D)
        self.register_buffer("state", torch.zeros(2, D).half())


class WritesOut(Stateful):
    def forward(self, x):
        torch.mul(self.project(x), 2, out=self.state)
        return self.state.float()


def test_a_destination_is_never_cast():
    diagnosis = doctor(WritesOut(), torch.ones(2, D))
    assert diagnosis.first_split.kind == "downcast"
    assert all(".state.to(" not in patch.diff for patch in diagnosis.patches)
    assert diagnosis.patch.verified
    assert diagnosis.patch.code == "model.state.data = model.state.data.to(torch.float32)"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_drift_beyond_the_format_is_a_fault_where_it_enters(dtype):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x):
            squares = x.square()
            return self.weight * x * torch.rsqrt(squares.mean(-1, keepdim=True))

    x = torch.linspace(-900, 900, 256).reshape(4, 64)
    diagnosis = doctor(Norm().to(dtype), x.to(dtype), fixes=True)
    if dtype is torch.bfloat16:  # its range is float32's
        assert diagnosis.faults == ()
        return
    (fault,) = diagnosis.faults
    assert (diagnosis.status, fault.kind, fault.op) == ("passed", "drift", "square")
    assert fault.place.text == "squares = x.square()"
    cures = {remedy.fix for remedy in diagnosis.remedies if remedy.cures}
    assert {"full_float32", "bfloat16"} <= cures
    assert "float16" not in cures


def test_a_code_chosen_at_a_near_tie_is_a_risk_and_no_fault():
    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes = nn.Parameter(torch.eye(2).half())

        def forward(self, x):
            scores = x @ self.codes + x.new_tensor([0.0, 2.0**-13])  # half rounds 1 + 2⁻¹³ to 1: a tie, first wins
            return nn.functional.embedding(scores.argmax(-1), self.codes)

    (finding,) = doctor(Codes(), torch.ones(1, 2).half()).findings
    assert (finding.kind, finding.severity, finding.op) == ("drift", "risk", "embedding")


def test_a_cast_that_says_aloud_what_was_lost_comes_after_storing_more_which_loses_nothing():
    class Remembers(Stateful):
        def forward(self, x):
            self.state[:, :] = self.project(x)
            return self.project(self.state.to(x.dtype))

    torch.manual_seed(0)
    patch, other = doctor(Remembers(), torch.randn(2, D)).patches
    assert (patch.verified, patch.diff) == (True, "")
    assert "self.project(x).to(self.state.dtype)" in other.diff
    assert patch.code == "model.state.data = model.state.data.to(torch.float32)"


def test_edits_hold_only_while_active_and_need_python(models):
    source = PatchedSource()
    line = SOURCE.splitlines().index("            x = layer(x)") + 1
    source.insert([Insertion(models.__file__, line, len("            x = layer(x)"), ".half()")])
    model = models.Layered().float()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with source.active(), pytest.raises(RuntimeError, match="dtype"):
            model(torch.ones(2, D))
    model(torch.ones(2, D))
    with pytest.raises(SyntaxError):
        source.insert([Insertion(models.__file__, line, 0, "(")])
    assert source.size == 1


def test_a_cast_taken_out_leaves_no_line_that_changes_nothing(tmp_path):
    file = tmp_path / "rounds.py"
    file.write_text(
        "def rounds(t, u):\n    t = t.half()\n    if u is None:\n        u = u.half()\n    return (t.half(), u)\n",
        encoding="utf-8",
    )
    source = PatchedSource()
    lines = linecache.getlines(str(file))
    of_casts = [line.find(".half()") for line in lines]
    source.insert(Insertion(str(file), n, at, "", removed=7) for n, at in enumerate(of_casts, 1) if at >= 0)
    changed = [line for line in source.diff().splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-    t = t.half()",
        "-        u = u.half()",
        "-    return (t.half(), u)",
        "+        u = u",  # its block has no other line
        "+    return (t, u)",
    ]


def test_a_cast_that_loses_digits_is_left_out_rather_than_cast_back():
    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.Linear(D, D)

        def encoded(self, x):
            return self.memory(x).half().view(1, 2, D).expand(2, 1, 2, D)

        def forward(self, x):
            return F.scaled_dot_product_attention(x.view(1, 2, D), *self.encoded(x))

    patch = doctor(Halved(), torch.ones(2, D)).patches[0]
    assert patch.verified
    assert "+            return self.memory(x).view(1, 2, D).expand(2, 1, 2, D)" in patch.diff.splitlines()


def test_the_command_writes_the_patch(models, tmp_path):
    from typer.testing import CliRunner

    from precision_eval.cli.commands import app

    (tmp_path / "made.py").write_text(
        "import torch\nfrom patched_models import Reader\n\n\ndef case():\n"
        "    return Reader().eval(), (torch.ones(1, 2, 8),)\n",
        encoding="utf-8",
    )
    answer = CliRunner().invoke(app, ["doctor", "made.py:case", "--no-fixes", "--write-patch", "fix.patch"])
    assert answer.exit_code == 1, answer.output
    assert "no fault left" in answer.output
    assert shutil.which("git")
    subprocess.run(["git", "apply", "--check", "fix.patch"], cwd=tmp_path, check=True)


class Speaks(nn.Module):
    """Generates with a cache that a later step reads in another dtype."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(D, D)

    def forward(self, x, cache):
        x = self.project(x)
        if cache:
            x = x + torch.nn.functional.scaled_dot_product_attention(x, cache[-1], cache[-1])
        cache.append(x.half())
        return x

    def generate(self, x, steps):
        cache = []
        for _ in range(steps):
            x = self.forward(x, cache)
        return x


def test_a_method_is_followed_over_its_steps():
    model = Speaks().eval().requires_grad_(False)
    assert examine(model.generate, torch.ones(1, 2, D), 1, latency=False).status == "passed"
    diagnosis = examine(model.generate, torch.ones(1, 2, D), 2, latency=False)
    assert (diagnosis.status, diagnosis.first_split.op) == ("raised", "scaled_dot_product_attention")
    assert diagnosis.patch.verified
    assert {Path(place.file).name for place in _places(diagnosis)} == {"test_patches.py"}  # none of the suite's own


def _places(diagnosis):
    steps = [step for finding in diagnosis.findings for operand in finding.operands for step in operand.history]
    return [place for place in (*(f.place for f in diagnosis.findings), *(s.place for s in steps)) if place]


def test_source_that_cannot_be_read_gets_a_fix_from_outside():
    space = {"torch": torch, "nn": nn}
    exec(SOURCE, space)
    space["Reader"].forward.__code__ = space["Reader"].forward.__code__.replace(co_filename="<made>")
    model = space["Reader"]()
    model.keys, model.values = model.keys.float(), model.values.float()
    model.query = nn.Linear(D, D).half()
    diagnosis = doctor(model, torch.ones(1, 2, D).half(), fixes=True)
    assert diagnosis.patch.verified
    assert not diagnosis.patch.diff
    assert "model." in diagnosis.patch.code or "precision_eval.fixed" in diagnosis.patch.code


@pytest.mark.parametrize("write", ["state[:] = x", "state.copy_(x)"])
def test_values_cut_in_silence_are_not_cured_by_casting_them_there(write):
    class Writes(Stateful):
        def forward(self, x):
            x = self.project(x)
            if write == "state[:] = x":
                self.state[:] = x
            else:
                self.state.copy_(x)
            return self.state.float()

    diagnosis = doctor(Writes(), torch.ones(2, D), fixes=True)
    by_id = {remedy.fix: remedy for remedy in diagnosis.remedies}
    assert not by_id["kv_to_query"].cures
    assert by_id["kv_to_query"].reason.startswith("left: downcast")
    assert by_id["full_float32"].cures


def test_what_is_stored_in_many_layers_is_written_as_loops_that_run():
    half = torch.float16
    names = [f"layers.{layer}.{name}.weight" for layer in range(2) for name in ("key", "value")]
    code = _code({("parameter", name): half for name in names})
    model = nn.Module()
    model.layers = nn.ModuleList(nn.ModuleDict({name: nn.Linear(2, 2) for name in ("key", "value")}) for _ in range(2))
    exec(code, {"torch": torch, "model": model})
    assert code.count("for name, tensor in") == 1
    assert {tensor.dtype for name, tensor in model.named_parameters() if "weight" in name} == {half}
    assert {tensor.dtype for name, tensor in model.named_parameters() if "bias" in name} == {torch.float32}

    cache = SimpleNamespace(layers=[SimpleNamespace(keys=torch.ones(2), values=torch.ones(2)) for _ in range(3)])
    stored = {("input", f"cache.layers[{layer}].{name}"): half for layer in range(2) for name in ("keys", "values")}
    assert _code(stored).splitlines() == [
        "for part in cache.layers[:2]:",
        "    part.keys = part.keys.to(torch.float16)",
        "    part.values = part.values.to(torch.float16)",
    ]
    exec(_code(stored), {"torch": torch, "cache": cache})
    assert [layer.keys.dtype for layer in cache.layers] == [half, half, torch.float32]


def test_a_sum_held_in_less_is_mended_where_it_is_made(models):
    diagnosis = doctor(models.Overlaps(), torch.ones(3, D))
    assert diagnosis.first_split.kind == "downcast"
    assert diagnosis.patch.verified
    assert "torch.zeros(16, dtype=self.project.weight.dtype)" in diagnosis.patch.diff
    assert "total[at" not in "".join(line for line in diagnosis.patch.diff.splitlines(True) if line[0] in "+-")
