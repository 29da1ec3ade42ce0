"""``precision-eval gate --base --head``: two versions of a small case in a git repository, measured in one process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from precision_eval.cli.gate import _margins
from precision_eval.core.errors import ParameterError
from precision_eval.gate import PAIRED_MARGINS

CASE = """
import torch
from kernels.products import product


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(256, 256))
        self.register_buffer("cache", torch.randn(64, 256))
        self.table = torch.randn(64, 256)

    def forward(self, x):
        return product(x + self.cache + self.table, self.weight)


def factory():
    return Model().eval(), (torch.randn(64, 256),)


def candidate(model):
    return model.float()
"""

PRODUCTS = """
import torch

from .amount import PRECISION, ROOM, TIMES


def product(x, weight):
    for _ in range(TIMES):
        output = x @ weight
    room = x.new_empty(ROOM)
    return output.to(getattr(torch, PRECISION)).to(x.dtype)
"""

AMOUNT = "TIMES, PRECISION, ROOM = {times}, '{precision}', {room}\n"
MARGINS = ("--margin-latency", "20%")


def git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def branch(folder, name, **texts):
    git(folder, "checkout", "--quiet", "-B", name, "main" if name != "main" else name)
    for file, text in texts.items():
        path = folder / {"amount": "src/kernels/amount.py", "case": "case.py"}[file]
        path.write_text(text)
    git(folder, "commit", "--quiet", "--all", f"--message={name}")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    (folder / "src/kernels").mkdir(parents=True)
    (folder / "src/kernels/__init__.py").touch()
    (folder / "src/kernels/products.py").write_text(PRODUCTS)
    (folder / "src/kernels/amount.py").write_text(AMOUNT.format(times=10, precision="float32", room=0))
    (folder / "case.py").write_text(CASE)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=base")
    branch(folder, "worse", amount=AMOUNT.format(times=20, precision="bfloat16", room=100_000))
    branch(folder, "same", case=CASE + "\n# nothing else\n")
    branch(folder, "other-inputs", case=CASE.replace("(64, 256),)", "(1, 256),)"))
    branch(
        folder, "other-weights", case=CASE.replace("super().__init__()", "super().__init__()\n        torch.randn(3)")
    )
    branch(folder, "other-sum", case=CASE.replace("+ self.table", "- self.table"))
    branch(folder, "other-shape", case=CASE.replace(", self.weight)", ", self.weight)[:1]"))
    branch(folder, "broken", case="import missing_package\n")
    branch(folder, "patching", case=CASE + "\ntorch.nn.functional.relu = lambda x: x\n")
    branch(folder, "threads", case=CASE + "\ntorch.set_num_threads(torch.get_num_threads() + 1)\n")
    git(folder, "checkout", "--quiet", "main")
    return folder


@pytest.fixture
def gate(repository, monkeypatch, program):
    def run(head, *arguments):
        monkeypatch.chdir(repository)
        given = ("--base", "main", "--head", head, "--case", "case.py:factory", "--processes", 3, "--budget", 0.5)
        found = program("gate", *given, *arguments)
        assert len(git(repository, "worktree", "list").splitlines()) == 1
        return found

    return run


def verdicts(out):
    content = json.loads(out)
    return content, {(change["fix"], change["metric"]): change["verdict"] for change in content["changes"]}


def test_what_is_worse_is_named(gate):
    code, out, _ = gate("worse", "--candidate", "case.py:candidate", "--json", *MARGINS)
    content, found = verdicts(out)
    assert code == 1
    for fix in ("as_shipped", "full_float32", "case.py:candidate"):
        assert {metric for (of, metric), verdict in found.items() if of == fix and verdict == "regression"} == {
            "latency",
            "drift",
            "peak_bytes",
        }
        assert found[fix, "stored_bytes"] == found[fix, "status"] == "no worse"
    assert any("every fix of case.py:factory" in doubt for doubt in content["doubts"])
    ratio = next(change["ratio"] for change in content["changes"] if change["metric"] == "latency")
    assert 1.3 < ratio < 2.5


def test_without_margins_of_ones_own_a_gate_alarms_and_clears_as_the_help_says():
    assert _margins(None, None, "1%", "10%", paired=True) == PAIRED_MARGINS
    assert _margins("2%", None, "1%", "10%", paired=True).clear is None


@pytest.mark.slow
def test_what_is_the_same_is_no_worse(gate):
    code, out, _ = gate("same", "--fix", "as_shipped", "--require", "status,latency,drift,memory", *MARGINS)
    assert code == 0
    assert re.match(
        r"\*\*No regression beyond the margins in 5 figures; no fix is slower by more than [\d.]+ %\*\*", out
    )


@pytest.mark.slow
def test_too_little_time_for_the_margin_is_undecided_and_weights_drawn_otherwise_are_bases(gate):
    code, out, err = gate("other-weights", "--fix", "as_shipped", "--margin-latency", "0.0001%")
    assert code == 4, out + err
    assert int(re.search(r"\| (\d+)\+\1 \|", out)[1]) > 3, "a second look, in further processes"
    assert "1 undecided; no verdict on latency" in out.splitlines()[0]
    assert "would decide" in out
    assert "head's factory makes other inputs than base's: base's were given to both" in out
    assert "head's tensors held other values than base's" in out


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("other-inputs", r"not the same computation on both sides: inputs are float32 \(64, 256\) in base main"),
        ("other-sum", r"not the same computation on both sides: in float64.* head other-sum \(\w+\) is [\d.]+ of"),
        ("other-shape", r"outputs are \[\(64, 256\)\] in base main \(\w+\) and \[\(1, 256\)\] in head other-shape"),
        ("broken", r"head broken \(\w+\): case\.py does not import: ModuleNotFoundError: No module named 'missing"),
        ("patching", r"replaces torch\.nn\.functional\.relu for the whole process"),
        ("threads", r"leaves the number of threads at 1 and head threads .* at 2"),
        ("nowhere", r"head 'nowhere' is no folder and no commit"),
    ],
)
def test_sides_that_cannot_be_compared_exit_2(gate, head, message):
    code, out, err = gate(head)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(message, err)


OPERATOR = """
import torch


@torch.library.custom_op("gate_trees::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Model(torch.nn.Module):
    def forward(self, x):
        return doubled(x)


def factory():
    return Model().eval(), (torch.ones(4),)
"""


def test_an_operator_that_both_sides_define_exits_2(tmp_path, monkeypatch, refused):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "case.py").write_text(OPERATOR)
    monkeypatch.chdir(tmp_path)
    said = "head after replaces the operator gate_trees::doubled for the whole process"
    refused(said, "gate", "--base", "before", "--head", "after", "--case", "case.py:factory")


def test_options_that_do_not_go_together_exit_2(refused):
    refused("--case is missing", "gate", "--base", "main")
    refused("'runs/a' is given beside", "gate", "runs/a", "runs/b", "--base", "main", "--case", "case.py:factory")
    refused("gate compares two sides", "gate", "runs/a")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_removes_its_worktrees(repository, how):
    if signal.getsignal(how) is signal.SIG_IGN:
        pytest.skip("this run was started with the signal ignored, which programs that it starts inherit")
    command = [sys.executable, "-m", "precision_eval.cli", "gate", "--base", "main", "--head", "same"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(
        [*command, "--case", "case.py:factory", "--budget", "60"],
        cwd=repository,
        env=environment,
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while len(git(repository, "worktree", "list").splitlines()) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_names_that_installed_packages_give_are_taken(monkeypatch):
    from precision_eval.cli import gate as command

    names = {"precision_eval.cases": {"mine": "pkg:case"}, "precision_eval.fixes": {"ours": "pkg:fix"}}
    monkeypatch.setattr(command, "plugins", names.get)
    assert command._cases(("mine", "case.py:f")) == ("pkg:case", "case.py:f")
    assert command._fixes(("float16", "ours"), ("mine.py:f",)) == ("float16", "pkg:fix", "mine.py:f")
    assert command._fixes(("none",), ("ours",)) == ("pkg:fix",)


def test_a_shipped_case_of_another_digest_is_another_computation():
    from precision_eval.gate import measuring as paired_gate

    trees = [SimpleNamespace(title=f"{role} {role}") for role in ("base", "head")]
    sides = [SimpleNamespace(digest=digest, inputs=()) for digest in ("a" * 64, "b" * 64)]
    with pytest.raises(ParameterError, match=r"same computation.*digest is aaaaaaaaaaaa in base.*bbbbbbbbbbbb in head"):
        paired_gate._check_alike(*sides, trees)
    paired_gate._check_alike(sides[0], sides[0], trees)


@pytest.mark.parametrize(
    ("cores", "threads", "device", "free_gib", "lanes"),
    [(64, 1, "cpu", 32, 2), (2, 2, "cpu", 32, 1), (1, 1, "cpu", 32, 1), (64, 1, "cpu", 3, 1), (64, 1, "cuda", 32, 1)],
)
def test_two_processes_run_at_once_where_there_are_cores_and_memory(
    cores, threads, device, free_gib, lanes, monkeypatch
):
    from precision_eval.gate import measuring as paired_gate

    monkeypatch.setattr(paired_gate, "usable_cores", lambda: cores)
    monkeypatch.setattr(paired_gate, "check_available", lambda given: free_gib * 2**30)
    plan = paired_gate.GatePlan(cases=("a",), fixes=("as_shipped",), threads=threads, device=device)
    assert paired_gate._lanes(plan, 2**30) == lanes
