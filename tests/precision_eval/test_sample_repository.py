"""A stranger's repository with what ``init`` writes into it, for real: pytest, the workflow's gate, asv, and faults."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from precision_eval.cli.commands import app
from precision_eval.studies.starter import FILES, write_files

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
from torch import nn, zeros


class Layer(nn.Module):
    def __init__(self, width=64, heads=4, dtype=None):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("cache", zeros(2, 1, heads, 128, width // heads, dtype=dtype))

    def work(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        self.cache[0, :, :, : x.shape[1]], self.cache[1, :, :, : x.shape[1]] = k, v
        return self.out(nn.functional.scaled_dot_product_attention(q, *self.cache).transpose(1, 2).flatten(2))

    def forward(self, x):
        return self.work(x)
"""
CASE = """
import torch
from tinytts.model import Layer


def factory():
    return Layer().eval(), (torch.randn(1, 96, 64),)


def candidate(model):
    return model.float()
"""
SLOW = MODEL.replace("return self.work(x)", "return (self.work(x) + self.work(x)) / 2")
HALF = MODEL.replace("import nn, zeros", "import float16, nn, zeros").replace("dtype=dtype", "dtype=float16")
TEST_AS_SHIPPED = (
    "def test_as_shipped(precision):\n    from precision_case import factory\n    model, inputs = factory()\n"
)
TEST_AS_SHIPPED += (
    '    assert precision.compare(model, *inputs, fixes=["as_shipped"], baseline="as_shipped")["as_shipped"].drift\n'
)


def run(folder, *command):
    """Run a command with this Python and these packages, and return its exit code and output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    paths = {"PYTHONPATH": str(ROOT), "ASV_PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment | paths, capture_output=True, text=True, check=False, timeout=500
    )
    return done.returncode, done.stdout + done.stderr


def committed(folder, model):
    """Commit a version of the model, and return its hash."""
    (folder / "tinytts" / "model.py").write_text(model)
    for command in (["add", "."], ["commit", "-q", "-m", "a change"]):
        assert run(folder, "git", "-c", "user.name=t", "-c", "user.email=t@t", *command)[0] == 0
    return run(folder, "git", "rev-parse", "HEAD")[1].strip()


def python(folder, module, *arguments):
    return run(folder, sys.executable, "-m", module, *arguments)


def workflow_commands():
    """Return the arguments of each precision-eval command of the workflow that init writes."""
    steps = yaml.safe_load(FILES[".github/workflows/precision.yml"])["jobs"]["gate"]["steps"]
    lines = [shlex.split(step.get("run", "").replace("origin/${{ github.base_ref }}", "HEAD~1")) for step in steps]
    return [line[1:] for line in lines if line[:1] == ["precision-eval"]]


@pytest.fixture
def sample(tmp_path):
    write_files(tmp_path)
    (tmp_path / "tinytts").mkdir()
    (tmp_path / "tinytts" / "__init__.py").touch()
    (tmp_path / "precision_case.py").write_text(CASE)
    (tmp_path / ".gitignore").write_text(".*/\n!.github/\n__pycache__/\nprecision-gate.md\n")
    run(tmp_path, "git", "init", "-q")
    committed(tmp_path, MODEL)
    return tmp_path


def test_each_command_of_the_workflow_parses():
    (arguments,) = workflow_commands()
    group = typer.main.get_command(app)
    context = group.make_context("precision-eval", list(arguments))
    name, command, rest = group.resolve_command(context, list(arguments))
    parsed = command.make_context(name, rest, parent=context).params
    assert (parsed["base"], str(parsed["markdown"])) == ("HEAD~1", "precision-gate.md")


@pytest.mark.slow
def test_the_gate_of_the_workflow_is_red_for_faults_alone(sample):
    tests = ["pytest", "-q", "test_precision.py", "test_as_shipped.py"]
    (sample / "test_as_shipped.py").write_text(TEST_AS_SHIPPED)
    code, output = python(sample, *tests)
    assert code == 0, output
    (gate,) = workflow_commands()
    for model, codes in ((MODEL + "# a comment\n", (0, 4)), (SLOW, (1,)), (HALF, (1,))):
        committed(sample, model)
        code, output = python(sample, "precision_eval.cli", *gate)
        assert code in codes, output
        assert (sample / "precision-gate.md").read_text()
    code, output = python(sample, *tests)
    assert code == 1, output


@pytest.mark.slow
def test_what_asv_stores_is_read_by_gate_and_versions(sample):
    python(sample, "asv", "machine", "--yes")
    commits = []
    for model in (MODEL, HALF):
        commits.append(committed(sample, model + f"# {len(commits)}\n"))
        python(sample, "asv", "run", "--quick", "--python=same", "--set-commit-hash", "HEAD")
    code, output = python(sample, "precision_eval.cli", "gate", *commits, "--require", "drift")
    assert "eager.precision_case" not in output
    assert "precision_case:factory/full_float32/eager:own" in output, output
    code, output = python(
        sample, "precision_eval.cli", "versions", "--results", ".asv/results", "--by", "commit", "--metric", "drift"
    )
    assert code == 0, output
    assert all(commit[:7] in output for commit in commits), output
    assert "precision_case:factory" in output
