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
ROUNDED = MODEL.replace("return self.work(x)", "return self.work(x).bfloat16().float()")
GH = """#!/bin/sh
echo "$@" > "$HOME/gh-arguments"
cat > "$HOME/gh-comment"
"""


def run(folder, *command):
    """Run a command with this Python and these packages, and return its exit code and output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    paths = {"PYTHONPATH": str(ROOT), "ASV_PYTHONPATH": str(ROOT), "HOME": str(folder)}
    paths |= {"PATH": f"{folder / '.bin'}:{environment['PATH']}", "GITHUB_STEP_SUMMARY": str(folder / ".summary")}
    paths |= {"GITHUB_BASE_REF": "main", "GITHUB_REF": "refs/pull/7/merge"}
    done = subprocess.run(
        command, cwd=folder, env=environment | paths, capture_output=True, text=True, check=False, timeout=500
    )
    return done.returncode, done.stdout + done.stderr


def committed(folder, model):
    (folder / "tinytts" / "model.py").write_text(model)
    for command in (["add", "."], ["commit", "-q", "-m", "a change"]):
        assert run(folder, "git", "-c", "user.name=t", "-c", "user.email=t@t", *command)[0] == 0
    return run(folder, "git", "rev-parse", "HEAD")[1].strip()


def python(folder, module, *arguments):
    return run(folder, sys.executable, "-m", module, *arguments)


def workflow_commands():
    """Return the arguments of each precision-eval command of the workflow that init writes."""
    steps = yaml.safe_load(FILES[".github/workflows/precision.yml"])["jobs"]["gate"]["steps"]
    lines = [shlex.split(step.get("run", "")) for step in steps]
    return [line[1:] for line in lines if line[:1] == ["precision-eval"]]


@pytest.fixture
def sample(tmp_path):
    write_files(tmp_path)
    (tmp_path / "tinytts").mkdir()
    (tmp_path / "tinytts" / "__init__.py").touch()
    (tmp_path / "precision_case.py").write_text(CASE)
    (tmp_path / ".gitignore").write_text(".*/\n.summary\n!.github/\n__pycache__/\ngh-*\n")
    (tmp_path / ".bin").mkdir()
    (tmp_path / ".bin" / "gh").write_text(GH)
    (tmp_path / ".bin" / "gh").chmod(0o755)
    run(tmp_path, "git", "init", "-q")
    run(tmp_path, "git", "update-ref", "refs/remotes/origin/main", committed(tmp_path, MODEL))
    return tmp_path


def test_each_command_of_the_workflow_parses():
    (arguments,) = workflow_commands()
    group = typer.main.get_command(app)
    context = group.make_context("precision-eval", list(arguments))
    name, command, rest = group.resolve_command(context, list(arguments))
    parsed = command.make_context(name, rest, parent=context).params
    assert (parsed["github"], parsed["base"]) == (True, None)


@pytest.mark.slow
def test_the_gate_of_the_workflow_is_red_for_faults_alone(sample):
    (gate,) = workflow_commands()
    for model, expected in ((MODEL + "# a comment\n", 0), (SLOW, 1), (HALF, 1), (ROUNDED, 1)):
        committed(sample, model)
        code, output = python(sample, "precision_eval.cli", *gate)
        assert code == expected, output
        comment = (sample / "gh-comment").read_text()
        assert comment.startswith("**Regression" if expected else "**Unchanged")
        assert (sample / ".summary").read_text().endswith(comment)
        assert (sample / "gh-arguments").read_text().startswith("pr comment 7 --edit-last --create-if-none")


@pytest.mark.slow
def test_what_is_left_undecided_is_a_warning(sample):
    (gate,) = workflow_commands()
    committed(sample, MODEL + "OTHER = None\n")
    effort = ("--set", "processes=2", "--set", "budget=0.2", "--set", "margin_latency=0.0001%")
    (sample / ".bin" / "gh").write_text("#!/bin/sh\necho 'a fork may not' >&2; exit 1\n")
    code, output = python(sample, "precision_eval.cli", *gate, *effort)
    assert code == 0, output
    assert "::warning title=precision-eval gate::Could not tell: " in output
    assert "::warning title=precision-eval gate::the comment could not be written: a fork may not" in output


@pytest.mark.slow
def test_the_tests_of_a_repository_are_red_for_what_raises_or_drifts(sample):
    for model, expected in ((MODEL, 0), (SLOW, 0), (HALF, 1), (ROUNDED, 1)):
        committed(sample, model + "# tested\n")
        code, output = python(sample, "pytest", "-q", "test_precision.py")
        assert code == expected, output


@pytest.mark.slow
def test_what_asv_stores_is_read_by_versions(sample):
    python(sample, "asv", "machine", "--yes")
    commits = []
    for model, arguments in ((MODEL, ()), (MODEL, ("--bench", "track_")), (ROUNDED, ("--bench", "track_"))):
        commits.append(committed(sample, model + f"# {len(commits)}\n"))
        python(sample, "asv", "run", "--quick", "--python=same", "--set-commit-hash", "HEAD", *arguments)
    code, output = python(
        sample, "precision_eval.cli", "versions", "--results", ".asv/results", "--by", "commit", "--set", "metric=drift"
    )
    assert code == 0, output
    assert all(commit[:7] in output for commit in commits), output
    assert "precision_case:factory" in output
