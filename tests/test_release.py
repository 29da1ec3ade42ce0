"""What would be released: sdist and wheel are whole, small, and run where this repository is not."""

import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from programs import printed_by as run

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("precision_eval", "audio_metrics")
MOST_BYTES = 25 * 2**20
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
MY_CASE = """
import torch


def factory():
    return torch.nn.Linear(64, 64).eval(), (torch.randn(1, 64),)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, source)
    run("-m", "build", "--no-isolation", "--outdir", folder, source)  # the wheel out of the sdist
    return folder


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(dist):
    (wheel,) = dist.glob("*.whl")
    assert wheel.stat().st_size < MOST_BYTES > next(dist.glob("*.tar.gz")).stat().st_size
    archive = zipfile.ZipFile(wheel)
    names = {name for name in archive.namelist() if ".dist-info/" not in name}
    (points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert b"precision-eval = precision_eval." in archive.read(points)  # what pipx run and uvx look for
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    files -= {ROOT / "audio_metrics" / "pyproject.toml"}  # of the package of audio metrics alone
    assert names == {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    assert {f"{package}/py.typed" for package in PACKAGES} < names


def test_installed_it_runs_without_this_repository(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    elsewhere = {"cwd": tmp_path, "PYTHONPATH": str(tmp_path / "site")}
    where = run("-c", "import precision_eval, audio_metrics; print(precision_eval.__file__)", **elsewhere)
    assert where.startswith(str(tmp_path))
    assert run("-m", "precision_eval", "--version", **elsewhere).split() == ["precision-eval", VERSION]
    told = run("-m", "precision_eval", "explain", "expected scalar type Half but found Float", **elsewhere)
    assert "Half" in told
    assert "kv_to_query" in run("-m", "precision_eval", "list", "fixes", **elsewhere)
    words = {"_PRECISION_EVAL_COMPLETE": "complete_bash", "COMP_WORDS": "precision-eval ru", "COMP_CWORD": "1"}
    script = "import sys; sys.argv[0] = 'precision-eval'; from precision_eval.cli.commands import main; main()"
    assert run("-c", script, **elsewhere, **words).split() == ["run"]  # completion of a shell


def test_the_sdist_holds_the_packages_and_their_papers_alone(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        top = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    papers = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}
    assert top == {*PACKAGES, *papers, "PKG-INFO", "setup.cfg", "precision_eval.egg-info"}


def test_the_version_is_the_same_wherever_it_stands():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)[1]
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert cited == VERSION == headings[0]


@pytest.mark.slow
def test_in_an_environment_of_its_own_the_wheel_measures_a_model(dist, tmp_path):
    """pip reads the wheel's dependencies; nothing of this environment is there."""
    (wheel,) = dist.glob("*.whl")
    run("-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run([python, ROOT / "tools/install.py", wheel], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (tmp_path / "my_case.py").write_text(MY_CASE, encoding="utf-8")
    words = ["run", "my_case.py:factory", "--quick", "--out", "mine"]
    for arguments, text in ((["--version"], VERSION), (["list", "fixes"], "kv_to_query"), (words, "full_float32")):
        command = [python.with_name("precision-eval"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert text in done.stdout
    assert {"records.jsonl", "report.html", "report.md"} <= {path.name for path in (tmp_path / "mine").iterdir()}
    assert "pytest" not in {path.name for path in (tmp_path / "venv/lib").glob("python*/site-packages/*")}
