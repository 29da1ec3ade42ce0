"""What would be released: sdist and wheel are whole, small, and run where this repository is not."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("precision_eval", "audio_metrics")
MOST_BYTES = 25 * 2**20


def run(*command, **how):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
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
    elsewhere = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(tmp_path / "site")}}
    where = run("-c", "import precision_eval, audio_metrics; print(precision_eval.__file__)", **elsewhere)
    assert where.startswith(str(tmp_path))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert run("-m", "precision_eval", "--version", **elsewhere).split() == ["precision-eval", version]
    told = run("-m", "precision_eval", "explain", "expected scalar type Half but found Float", **elsewhere)
    assert "Half" in told
    assert "kv_to_query" in run("-m", "precision_eval", "list", "fixes", **elsewhere)
    words = {"_PRECISION_EVAL_COMPLETE": "complete_bash", "COMP_WORDS": "precision-eval ro", "COMP_CWORD": "1"}
    asked = {**elsewhere, "env": elsewhere["env"] | words}
    script = "import sys; sys.argv[0] = 'precision-eval'; from precision_eval.cli.commands import main; main()"
    assert run("-c", script, **asked).split() == ["roofline"]  # completion of a shell


def test_one_version_is_cited_and_packaged():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)[1] == version
