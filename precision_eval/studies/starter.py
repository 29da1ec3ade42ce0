"""The files with which a repository of one's own begins to measure; small enough to be read whole."""

from __future__ import annotations

from pathlib import Path

from precision_eval.core.errors import ParameterError

_CASE = '''"""What precision-eval measures here: precision-eval run precision_case.py:factory"""

import torch


def factory():
    """Return your model in the state in which it ships, and what one call gets: a tuple, or a dict by names."""
    model = torch.nn.Linear(64, 64).half()  # yours instead; its input here is float32, so that it raises
    return model.eval(), (torch.randn(1, 64),)


def candidate(model):
    """Change the model in place, return another one, or return a context manager: your own fix."""
    return model.float()
'''

_TEST = '''"""Held by pytest: the fix that ships cures the model, and drifts no further than this."""

from precision_case import candidate, factory


def test_the_fix_cures(precision):
    model, inputs = factory()
    costs = precision.compare(model, *inputs, fixes=["full_float32", "float16"], candidates={"ours": candidate})
    assert costs["ours"].drift < 1e-5
'''

_ASV = '''"""Followed by asv over your commits: asv run --python=same --set-commit-hash HEAD"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # of precision_case.py: asv runs in a folder of its own

from precision_eval.asv import benchmarks_for, track_is_cuda_build, track_torch_version  # noqa: E402, F401

Precision = benchmarks_for("precision_case:factory", fixes=["full_float32", "float16", "precision_case:candidate"])
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
      - run: pip install precision-eval -e .
      # both sides in one process, in turn; --candidate is your own fix. Where it could not tell (exit code 4), the
      # summary says how much longer would
      - run: >-
          precision-eval gate --base "origin/${{ github.base_ref }}" --head HEAD --case precision_case.py:factory
          --candidate precision_case.py:candidate --markdown precision-gate.md
      - if: ${{ !cancelled() && hashFiles('precision-gate.md') != '' }}
        run: cat precision-gate.md >> "$GITHUB_STEP_SUMMARY"
      - if: >- # a fork's token may not write
          ${{ !cancelled() && hashFiles('precision-gate.md') != ''
          && github.event.pull_request.head.repo.full_name == github.repository }}
        run: gh pr comment "$NUMBER" --body-file precision-gate.md --edit-last --create-if-none
        env: {GH_TOKEN: "${{ github.token }}", NUMBER: "${{ github.event.pull_request.number }}"}
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


def write_files(folder: Path) -> list[Path]:
    """Write every file, or none where one of them is there already."""
    paths = [folder / name for name in FILES]
    there = [str(path) for path in paths if path.exists()]
    if there:
        raise ParameterError(
            f"{', '.join(there)} is there already; nothing was written: move it or name another folder"
        )
    for path, text in zip(paths, FILES.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return paths
