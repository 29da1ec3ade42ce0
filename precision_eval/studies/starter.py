"""The files with which a repository of one's own begins to measure; small enough to be read whole."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from precision_eval.core.errors import ParameterError

#: Stands in the workflow where this installation knows no repository that others can reach.
UNKNOWN_SOURCE = "git+https://ADDRESS-OF-YOUR-COPY/precision-eval.git"

_CASE = '''"""What precision-eval measures here: precision-eval run precision_case.py:factory"""

import torch


def factory():
    """Return your model in the state in which it ships, and what one call gets: a tuple, or a dict by names."""
    model = torch.nn.Linear(64, 64)  # yours instead
    return model.eval(), (torch.randn(1, 64),)


def candidate(model):
    """Your own fix: change the model in place, return another one, or return a context manager."""
    return torch.autocast("cpu", torch.bfloat16)
'''

_TEST = '''"""Held by pytest: neither the model as it ships nor your own fix raises, or drifts from float64 further."""

from precision_case import candidate, factory


def test_drift(precision):
    precision.assert_drift(factory, below=1e-5)
    precision.assert_drift(factory, below=1e-2, fix=candidate)
'''

_ASV = '''"""Followed by asv over your commits: asv run --python=same --set-commit-hash HEAD"""

from precision_eval.asv import benchmarks_for, track_is_cuda_build, track_torch_version  # noqa: F401

Precision = benchmarks_for("precision_case:factory", ["as_shipped", "full_float32", "precision_case:candidate"])
'''

_ASV_CONF = """{
  "version": 1,
  "project": "precision",
  "repo": ".",
  "branches": ["HEAD"],
  "environment_type": "existing",
  "results_dir": ".asv/results",
  "html_dir": ".asv/html",
  "benchmark_dir": "precision_benchmarks"
}
"""

_WORKFLOW = """name: precision
on: pull_request
permissions: {contents: read, pull-requests: write} # the latter for the comment
jobs:
  gate:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
        with: {fetch-depth: 0} # the base is in it
      - uses: actions/setup-python@v5
        with: {python-version: "3.12"}
      - run: pip install "precision-eval @ SOURCE" -e . # on no index yet; and what your model needs
      # red where the pull request is worse; where it could not tell, a warning
      - run: precision-eval gate --github --case precision_case.py:factory --candidate precision_case.py:candidate
        env: {GH_TOKEN: "${{ github.token }}"}
"""

FILES = {
    "precision_case.py": _CASE,
    "test_precision.py": _TEST,
    "precision_benchmarks/__init__.py": "",
    "precision_benchmarks/precision.py": _ASV,
    "asv.conf.json": _ASV_CONF,
    ".github/workflows/precision.yml": _WORKFLOW,
}
"""Text of each file, by its place in the repository."""


def find_source() -> str:
    """Return where pip finds this very version: the repository and commit it was installed from, by PEP 610."""
    try:
        direct = json.loads(distribution("precision-eval").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        direct = {}
    url, commit = direct.get("url", ""), direct.get("vcs_info", {}).get("commit_id", "")
    if url.startswith("file:") and not commit:  # a checkout: what it was cloned from
        checkout = url2pathname(urlsplit(url).path)
        url, commit = (_git(checkout, *words) for words in (("remote", "get-url", "origin"), ("rev-parse", "HEAD")))
    return f"git+{url}@{commit}" if url and commit and "://" in url else UNKNOWN_SOURCE


def _git(folder: str, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def write_files(folder: Path) -> list[Path]:
    """Write every file, or none where one of them is there already."""
    paths = [folder / name for name in FILES]
    there = [str(path) for path in paths if path.exists()]
    if there:
        raise ParameterError(f"{', '.join(there)} already exists; nothing was written: move it or name another folder")
    source = find_source()
    for path, text in zip(paths, FILES.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("SOURCE", source), encoding="utf-8")
    return paths
