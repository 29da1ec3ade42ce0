"""What ``init`` writes runs as written: case, pytest file, asv's benchmarks; an edit that harms is caught."""

import importlib.metadata
import json
import math
import re
import runpy
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import own_files
import pytest
import yaml
from programs import run_python

from precision_eval import ParameterError, write_report
from precision_eval.asv import benchmarks_for
from precision_eval.cases.own import case_of
from precision_eval.core.records import RecordFile
from precision_eval.core.targets import called, target_of
from precision_eval.measure.admission import admit_candidate, admit_case
from precision_eval.measure.registry import all_measures
from precision_eval.pytest_plugin import Precision
from precision_eval.run.plan import Selection, make_plan
from precision_eval.run.runner import run_plan
from precision_eval.run.session import resolve_plugins
from precision_eval.studies import starter
from precision_eval.studies.starter import FILES, write_files

ROOT = Path(__file__).resolve().parents[2]

HARMED = """
import torch

def test_a_harm_is_caught(precision):
    model = torch.nn.Linear(256, 256)
    coarse = torch.nn.Linear(256, 256)
    coarse.load_state_dict({name: value.bfloat16().float() for name, value in model.state_dict().items()})
    precision.assert_no_worse(coarse, torch.ones(4, 256), than=model, budget_s=0.1)

def test_the_same_is_no_worse(precision):
    model = torch.nn.Linear(256, 256)
    precision.assert_no_worse(model, torch.ones(4, 256), than=model, slower=10.0, budget_s=0.1)
"""


def test_init_writes_all_or_nothing(tmp_path):
    (tmp_path / "asv.conf.json").write_text("{}")
    with pytest.raises(ParameterError, match=r"asv\.conf\.json already exists; nothing was written"):
        write_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["asv.conf.json"]


def clone(tmp_path):
    """Clone this repository, and return the clone and its newest commit."""
    bare, checkout = tmp_path / "bare", tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(ROOT), str(bare)], check=True)
    subprocess.run(["git", "clone", "--quiet", bare.as_uri(), str(checkout)], check=True)
    newest = subprocess.run(["git", "-C", str(bare), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return checkout, f"git+{bare.as_uri()}@{newest.stdout.strip()}"


def installed_from(monkeypatch, **direct):
    text = json.dumps(direct)
    monkeypatch.setattr(starter, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))


def test_the_workflow_installs_what_init_was_run_with(tmp_path, monkeypatch):
    installed_from(monkeypatch, url="https://host/fork.git", vcs_info={"vcs": "git", "commit_id": "abc"})
    write_files(tmp_path)
    workflow = yaml.safe_load((tmp_path / ".github/workflows/precision.yml").read_text())
    (line,) = (step["run"] for step in workflow["jobs"]["gate"]["steps"] if "pip install" in step.get("run", ""))
    assert shlex.split(line, comments=True)[2:] == [
        "precision-eval @ git+https://host/fork.git@abc", "-e", ".",
    ]  # fmt: skip
    installed_from(monkeypatch, url=(tmp_path / "no-checkout").as_uri(), dir_info={"editable": True})
    assert starter.find_source() == starter.UNKNOWN_SOURCE


@pytest.mark.slow
def test_pip_installs_by_the_line_that_init_writes(tmp_path, monkeypatch):
    checkout, source = clone(tmp_path)
    installed_from(monkeypatch, url=checkout.as_uri(), dir_info={"editable": True})
    assert starter.find_source() == source
    line = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", "pip", *line, source], check=True)
    assert (tmp_path / "site" / "precision_eval" / "__init__.py").is_file()


def test_what_init_writes_is_admitted_and_benchmarked(tmp_path):
    assert [path.is_file() for path in write_files(tmp_path)] == [True] * len(FILES)
    case, own = (f"{tmp_path / 'precision_case.py'}:{name}" for name in ("factory", "candidate"))
    assert admit_case(case, "cpu", 0).digest
    assert admit_candidate(own, case, "own", "cpu", 0).modes == ("eager", "compiled")
    suite = benchmarks_for(case, fixes=["float32_input", "float16", own])()
    figures = {}
    for fix in suite.params[0][1:]:
        suite.setup(fix)
        suite.time_call(fix)
        figures[fix] = suite.track_stored_bytes(fix), suite.track_drift(fix)
        assert math.isnan(suite.track_device_time(fix))  # on a CPU there is none
        suite.teardown(fix)
    assert figures[own][0] == 2 * figures["float16"][0]
    assert 1e-4 < figures["float16"][1] < figures[own][1]  # of bfloat16, inside autocast
    with pytest.raises(ParameterError, match="unknown fix 'float32_input'"):
        suite.setup("float32_input")


CACHED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.randn(8, 64))

    def forward(self, x):
        return x @ self.cache.mT

def factory():
    return Model().eval(), {"x": torch.randn(1, 64)}

def candidate(model):
    return model.float()
"""


@pytest.mark.parametrize(
    ("sound", "planted", "said"),
    [
        ("", "", None),
        ("8, 64)", "8, 64).half()", "under as_shipped the model raised: RuntimeError: .* same dtype"),
        (
            "x @ self.cache",
            "x.bfloat16().float() @ self.cache",
            "under as_shipped the drift is .*; expected below 1e-05",
        ),
        ("8, 64)", "8, 64) / 0", "under as_shipped the model non finite: 8 of 8 output values"),
        ("model.float()", "model.half()", "under candidate the model raised: RuntimeError"),
    ],
)
def test_the_pytest_file_that_init_writes_is_red_for_a_fault(tmp_path, monkeypatch, request, sound, planted, said):
    write_files(tmp_path)
    (tmp_path / "precision_case.py").write_text(CACHED.replace(sound, planted))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "precision_case", raising=False)
    test_drift = runpy.run_path(str(tmp_path / "test_precision.py"))["test_drift"]
    monkeypatch.delitem(sys.modules, "precision_case")
    with nullcontext() if said is None else pytest.raises(AssertionError, match=said):
        test_drift(Precision(request))


def test_the_pytest_file_passes_and_a_harm_fails(tmp_path):
    write_files(tmp_path)
    (tmp_path / "test_harmed.py").write_text(HARMED)
    plugins = ("-p", "no:cacheprovider", "-p", "precision_eval.pytest_plugin")
    done = run_python("-m", "pytest", "-q", *plugins, ".", cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "it drifts further" in done.stdout


def test_entry_points_name_cases_and_fixes(monkeypatch):
    entries = {
        "precision_eval.cases": [importlib.metadata.EntryPoint("mine", "pkg.cases:factory", "precision_eval.cases")],
        "precision_eval.fixes": [importlib.metadata.EntryPoint("ours", "pkg.fixes:half", "precision_eval.fixes")],
    }
    monkeypatch.setattr("precision_eval.core.targets.entry_points", lambda group: entries[group])
    selection = Selection(cases=("mine", "voice"), fixes=("float16", "ours"))
    named, candidates = resolve_plugins(selection, ())
    assert (named.cases, named.fixes) == (("pkg.cases:factory", "voice"), ("float16",))
    assert candidates == ("pkg.fixes:half",)


LARGEST = """
from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import passed
from precision_eval.fixes import fix_by_id

def largest(cell, run_dir):
    (fix,) = cell.fixes
    built = case_by_id(cell.case).build(cell.size, device=cell.device, seed=cell.options.seed)
    with fix_by_id(fix).applied(built.model, mode=cell.mode) as call:
        return [passed(fix, {"output": {"largest": float(call(*call.prepare(built.inputs))[0].abs().max())}})]
"""


def test_a_measure_of_an_installed_package_runs_and_is_reported(tmp_path, monkeypatch):
    (tmp_path / "largest_plugin.py").write_text(LARGEST)
    (tmp_path / "my_case.py").write_text(own_files.CASE)
    monkeypatch.syspath_prepend(tmp_path)
    named = importlib.metadata.EntryPoint("size", "largest_plugin:largest", "precision_eval.measures")
    monkeypatch.setattr("precision_eval.core.targets.entry_points", lambda group: [named] * group.endswith("measures"))
    case = case_of(f"{tmp_path / 'my_case.py'}:factory")
    selection = Selection(cases=(case.id,), fixes=("full_float32", "float16"), measures=("trace", "size"))
    plan = make_plan(selection, cases=[case], measures=all_measures())
    with ThreadPoolExecutor(1) as executor:
        run_plan(plan, executor, RecordFile(tmp_path / "run" / "records.jsonl"), environment="0" * 64)
    write_report(tmp_path / "run")
    assert "size.output.largest" in (tmp_path / "run" / "results.csv").read_text()
    assert "size.output.largest" in (tmp_path / "run" / "report.md").read_text()
    assert "size.output.largest" in (tmp_path / "run" / "report.html").read_text()


def test_a_function_is_named_by_where_it_is_written(tmp_path):
    assert target_of(write_files) == "precision_eval.studies.starter:write_files"
    with pytest.raises(ParameterError, match="is in no file"):
        target_of(lambda: None)
    (tmp_path / "case.py").write_text(own_files.CASE)
    assert len(called(f"{tmp_path / 'case.py'}:factory")) == 2


def test_the_page_about_own_models_works_as_written(tmp_path):
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / "docs" / "own-model.md").read_text(), re.S)
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    case, fix = f"{tmp_path / 'my_case.py'}:factory", f"{tmp_path / 'mine.py'}:wide_cache"
    assert admit_case(case, "cpu", 0).digest
    assert admit_candidate(fix, case, "own", "cpu", 0).storage == "as_shipped"
    assert sum(bool(line.strip()) for _, text in blocks for line in text.splitlines()) < 20
