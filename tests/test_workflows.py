"""The workflows, where no runner is: each is read, and each command is run, tried without effect, or has a reason.

A command without a line in HOW fails: nobody has said yet how it is checked.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from repositories import git

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)[1]
RUNNER = {"GITHUB_REF_NAME": f"v{VERSION}", "CI": "true"}
PYTHON = sys.executable

# Beginning of a command → what is run here in its place; None and the reason where nothing can be.
HOW = {
    "grep -qx": ("{}", ""),
    "make install": ("make --dry-run install PYTHON=" + PYTHON, ""),
    "make test": ("make --dry-run lint PYTHON=" + PYTHON, "it would run this test"),
    ".venv/bin/python -m tools capabilities": (f"{PYTHON} -m tools capabilities --help", ""),
    ".venv/bin/python -m build": (f"{PYTHON} -m build --help", "tests/test_release.py builds sdist and wheel"),
    "python -m pytest": (
        f"{PYTHON} -m pytest --noconftest --collect-only -q tests/test_release.py",
        "it would run this test",
    ),
    "pip install --quiet pip-audit": (None, "it asks a service for vulnerabilities"),
    "python -m pip install": (None, "it installs another torch, as `python -m tools capabilities` does"),
}


def steps():
    for path in FILES:
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            include = job.get("strategy", {}).get("matrix", {}).get("include")
            axes = job.get("strategy", {}).get("matrix", {})
            values = include[0] if include else {name: choices[0] for name, choices in axes.items()}
            for step in job["steps"]:
                yield path, values, step


def commands():
    """Return every line that a runner would run, with the first value of each axis of its matrix."""
    for path, values, step in steps():
        text = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match, values=values: values[match[1]], step.get("run", ""))
        yield from ((path.stem, line) for line in text.splitlines())


COMMANDS = sorted(set(commands()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_workflow_is_whole(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content[True]  # "on" is a truth value of YAML 1.1
    assert content["permissions"] == {"contents": "read"}
    jobs = content["jobs"]
    for job in jobs.values():
        assert job["runs-on"]
        assert {job["needs"]} <= set(jobs) if "needs" in job else True
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step["uses"]) for step in job["steps"] if "uses" in step)


def test_what_is_run_is_known_and_the_rest_has_a_reason():
    found = {name for _, line in COMMANDS for name in HOW if line.startswith(name)}
    assert found == set(HOW)
    assert all(reason for command, reason in HOW.values() if command is None)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout") / "repository"
    git(ROOT, "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(folder))
    return folder


@pytest.mark.parametrize(("workflow", "line"), COMMANDS)
def test_a_command_runs(workflow, line, checkout):
    assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0
    (how,) = (how for name, how in HOW.items() if line.startswith(name))
    command, reason = how
    if command is None:
        assert reason
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | RUNNER
    done = subprocess.run(
        ["bash", "-ec", command.format(line)],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_tag_than_the_version_is_refused(checkout):
    (line,) = (line for _, line in COMMANDS if line.startswith("grep -qx"))
    environment = os.environ | {"GITHUB_REF_NAME": "v9.9.9"}
    assert subprocess.run(["bash", "-ec", line], cwd=checkout, env=environment, check=False).returncode == 1
