"""``precision-eval gate``: two versions of a small case in a git repository, measured in one process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from repositories import git

from precision_eval.cli import gate as command
from precision_eval.cli.gate import _margins
from precision_eval.core.errors import ParameterError
from precision_eval.gate import Margins

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


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.randn(1, 4, 32, 16).half())

    def forward(self, query):
        keys = self.keys  # as stored
        return torch.nn.functional.scaled_dot_product_attention(query, keys, keys)


def factory():
    return Model().eval(), (torch.randn(64, 256),)


def cached():
    return Cached().eval(), (torch.randn(1, 4, 8, 16),)


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
MARGINS = ("--set", "margin_latency=20%")


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
    branch(folder, "comment", case=CASE + "\n# nothing else\n")
    branch(folder, "same", case=CASE + "\nNOTHING = None\n")
    branch(folder, "cured", case=CASE.replace("self.keys  #", "self.keys.to(query.dtype)  #"))
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
    def run(head, *arguments, case="case.py:factory"):
        monkeypatch.chdir(repository)
        sides = ("--base", "main", "--head", head, "--case", case, "--set", "processes=3", "--set", "budget=0.5")
        answer = program("gate", *sides, *arguments)
        assert len(git(repository, "worktree", "list").splitlines()) == 1
        return answer

    return run


def test_what_is_worse_is_named(gate):
    code, out, _ = gate("worse", "--candidate", "case.py:candidate", "--json", *MARGINS)
    content = json.loads(out)
    worse = {(one["fix"], one["metric"]) for one in content["changes"] if one["verdict"] == "regression"}
    assert code == 1
    for fix in ("as_shipped", "full_float32", "case.py:candidate"):
        assert {(fix, "drift"), (fix, "peak_bytes")} <= worse
        assert not {(fix, "stored_bytes"), (fix, "status")} & worse
    ratios = [one["ratio"] for one in content["changes"] if one["metric"] == "latency"]
    assert 1.3 < sorted(ratios)[1] < 2.5


@pytest.mark.parametrize("head", ["HEAD", "comment"])
def test_equal_code_is_unchanged_and_not_timed(gate, head, monkeypatch):
    monkeypatch.setattr("precision_eval.gate.measuring.measure_in_process", None)
    code, out, _ = gate(head)
    assert (code, out.splitlines()[0]) == (0, "**Unchanged: base and head run the same code in case.py:factory**")


def test_a_cured_model_is_fixed(gate):
    code, out, err = gate("cured", "--fix", "as_shipped", case="case.py:cached")
    assert out.startswith("**Fixed: raised at base, passes at head (case.py:cached under as_shipped); no reg"), err
    assert code == 0


@pytest.mark.slow
def test_what_is_the_same_is_no_worse(gate):
    code, out, _ = gate("same", "--fix", "as_shipped", "--set", "require=status,latency,drift,memory", *MARGINS)
    assert code == 0
    assert out.startswith("**No regression beyond the margins in 5 figures")


@pytest.mark.slow
def test_too_little_time_for_the_margin_is_undecided_and_weights_drawn_otherwise_are_bases(gate, tmp_path):
    page = tmp_path / "new" / "summary.md"
    code, out, err = gate(
        "other-weights", "--fix", "as_shipped", "--set", "margin_latency=0.0001%", "--markdown", page, "--json"
    )
    content = json.loads(out)
    assert code == 4, out + err
    assert content["gaps"] == ["latency is undecided"]
    assert max(change["processes"] for change in content["changes"]) > 3, "a second look, in further processes"
    assert any("took base's" in doubt for doubt in content["doubts"])
    assert "<details>" in page.read_text()


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("other-inputs", r"not the same computation on both sides: inputs are float32 \(64, 256\) in base main"),
        ("other-sum", r"the same computation on both sides: in float64.* head other-sum \(\w+\) differs from that of"),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/a", "runs/b"], "the gate of stored results was removed in 1.0"),
        (["--base", "main"], "gate compares two sides of a case; give --base"),
        (
            ["--base", "main", "--case", "a.py:f", "--set", "margin_latency=much"],
            "--set margin_latency is 'much'; expected a number",
        ),
        (["--base", "main", "--case", "a.py:f", "--set", "margin_drift=0.5"], "margin of drift is 0.5"),
        (["--base", "main", "--case", "a.py:f", "--set", "require=speed"], "unknown kind of figures 'speed'"),
    ],
)
def test_bad_options_exit_2_in_one_line(refused, arguments, message):
    refused(message, "gate", *arguments)


def test_margins_as_the_help_says():
    assert _margins({"margin_latency": 0.02, "margin_drift": 1.2, "margin_memory": 0.01}) == Margins(
        latency=0.02, clear=None, drift=1.2, memory=0.01
    )


def test_names_that_installed_packages_give_are_taken(monkeypatch):
    monkeypatch.setattr(command, "plugins", {"precision_eval.fixes": {"ours": "pkg:fix"}}.get)
    assert command._fixes(("float16", "ours"), ("mine.py:f",)) == ("float16", "pkg:fix", "mine.py:f")
    assert command._fixes(("none",), ("ours",)) == ("pkg:fix",)


def test_in_a_workflow(monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    monkeypatch.delenv("GITHUB_REF", raising=False)
    assert command._publish_on_github("**Could not tell: x**\nmore\n", 4) == 0
    assert capsys.readouterr().err == "::warning title=precision-eval gate::Could not tell: x\n"
    assert command._publish_on_github("**Regression**\n", 1) == 1
    assert page.read_text() == "**Could not tell: x**\nmore\n**Regression**\n"
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    with pytest.raises(ParameterError, match="--github needs a pull request"):
        command._base_on_github()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_removes_its_worktrees(repository, how):
    if signal.getsignal(how) is signal.SIG_IGN:
        pytest.skip("this run was started with the signal ignored, which programs that it starts inherit")
    started = [sys.executable, "-m", "precision_eval.cli", "gate", "--base", "main", "--head", "same"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(
        [*started, "--case", "case.py:factory", "--set", "budget=60"],
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


@pytest.mark.parametrize(
    ("cores", "threads", "device", "free_gib", "lanes"),
    [(64, 1, "cpu", 32, 2), (2, 2, "cpu", 32, 1), (64, 1, "cpu", 3, 1), (64, 1, "cuda", 32, 1)],
)
def test_two_processes_run_at_once_where_there_are_cores_and_memory(
    cores, threads, device, free_gib, lanes, monkeypatch
):
    from precision_eval.gate import measuring
    from precision_eval.gate.result import GatePlan

    monkeypatch.setattr(measuring, "usable_cores", lambda: cores)
    monkeypatch.setattr(measuring, "check_available", lambda given: free_gib * 2**30)
    plan = GatePlan(cases=("a",), fixes=("as_shipped",), threads=threads, device=device)
    assert measuring._lanes(plan, 2**30) == lanes
