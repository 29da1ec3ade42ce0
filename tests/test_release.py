"""What would be released: sdist and wheel are whole, small, and run where this repository is not."""

import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from programs import printed_by as run
from repositories import git

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("precision_eval", "audio_metrics")
MOST_BYTES = 25 * 2**20


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, source)
    git(source, "init", "--quiet")
    git(source, "add", ".")
    git(source, "commit", "--quiet", "--message", "all")
    git(source, "tag", "v1.2.3")
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
    assert run("-m", "precision_eval", "--version", **elsewhere).split() == ["precision-eval", "1.2.3"]  # the tag's
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


@pytest.mark.parametrize("package", ["", "audio_metrics"])
def test_a_tree_without_a_tag_or_without_git_is_of_the_version_to_come(package, tmp_path):
    cited = re.search(r"^version: (.+)\.0$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)[1]
    (tmp_path / package).mkdir(exist_ok=True)
    shutil.copy(ROOT / package / "pyproject.toml", tmp_path / package)
    asked = {"cwd": tmp_path / package}
    assert run("-m", "setuptools_scm", **asked).strip() == f"{cited}.dev0"
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    assert re.fullmatch(rf"{re.escape(cited)}\.dev1\+g[0-9a-f]+", run("-m", "setuptools_scm", **asked).strip())
