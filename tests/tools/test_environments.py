import json
import stat
import sys
from pathlib import Path

import pytest

from precision_eval.core.errors import ParameterError, UnsupportedError
from tools.torch_versions import environments
from tools.torch_versions.environments import (
    EnvironmentBuildError,
    TorchEnvironment,
    build_environment,
    choose_build,
    fitting_constraints,
    read_note,
    reason_of,
    torch_requirements,
)

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
METADATA = """Metadata-Version: 2.1
Name: torch
Version: 2.6.0
Requires-Dist: filelock
Requires-Dist: sympy==1.13.1; python_version >= "3.9"
Requires-Dist: sympy==1.13.0; python_version < "3.9"
Requires-Dist: setuptools<82; python_version >= "3.11"
Requires-Dist: nvidia-cuda-runtime-cu12==12.4.127; platform_machine != "nothing"
Requires-Dist: cuda-toolkit[nvrtc]==13.0; platform_machine != "nothing"
Requires-Dist: triton==3.2.0; platform_machine != "nothing"
Requires-Dist: opt-einsum>=3.3; extra == "opt-einsum"

Text.
"""


def choose(asked="auto", environ=None, *, system="Linux", machine="x86_64"):
    return choose_build(asked, environ or {}, system=system, machine=machine)


@pytest.mark.parametrize(
    ("asked", "environ", "where", "build"),
    [
        ("slim", {}, {}, "slim"),
        ("auto", {"PRECISION_EVAL_TORCH_BUILD": "slim"}, {}, "slim"),
        ("cuda", {"PRECISION_EVAL_TORCH_BUILD": "slim"}, {}, "cuda"),
        ("auto", {"PRECISION_EVAL_TORCH_INDEX": "file:///index"}, {}, "cpu"),
        ("auto", {"UV_TORCH_BACKEND": "cpu"}, {}, "cpu"),
        ("auto", {}, {"system": "Darwin", "machine": "arm64"}, "cpu"),
    ],
)
def test_the_build_is_what_is_asked_or_a_cpu_build_where_there_is_one(asked, environ, where, build):
    assert choose(asked, environ, **where) == build


@pytest.mark.parametrize(
    ("asked", "environ", "where", "message"),
    [
        ("auto", {}, {}, r"several GB.*PRECISION_EVAL_TORCH_INDEX.*slim"),  # CUDA builds are never fetched unasked
        ("tpu", {}, {}, "unknown build of torch 'tpu'; known: auto, cpu, slim, cuda"),
        ("slim", {}, {"system": "Darwin", "machine": "arm64"}, "x86-64 Linux only, this is Darwin on arm64"),
    ],
)
def test_builds_that_cannot_be_taken_are_named(asked, environ, where, message):
    with pytest.raises((ParameterError, UnsupportedError), match=message):
        choose(asked, environ, **where)


def test_torch_asks_without_cuda():
    needs = torch_requirements(METADATA, python="3.11", cuda=False)
    assert needs == ("filelock", "sympy==1.13.1", "setuptools<82")
    assert "triton==3.2.0" in torch_requirements(METADATA, python="3.11", cuda=True)


def test_constraints_give_way_to_torch():
    text = "# why\nsympy==1.14.0\nfilelock==4.2.11\ntorch==2.13.0\nsetuptools==84.2.1\nx==1; python_version >= '3.13'\n"
    needs = torch_requirements(METADATA, python="3.11", cuda=False)
    assert fitting_constraints(text, needs).splitlines() == ["filelock==4.2.11", "x==1; python_version >= '3.13'"]
    assert "sympy==1.14.0" in fitting_constraints(text, ["filelock"])


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("  cause: Because there is no version of torch==9.9.9 and you require it", "does not exist on the index"),
        ("cause: Because torch==2.0.0 has no wheels with a matching Python ABI tag", "no wheel for Python 3.13"),
        # uv under UV_OFFLINE=1, with the index in its cache and without
        (
            "  x Failed to download `torch==2.9.0`\n  cause: Network connectivity is disabled, but the requested data "
            "wasn't found in the cache for: `file.whl`",
            "uv is told to stay offline",
        ),
        (
            "error: No solution found\n  cause: Because torch was not found in the cache and you require torch==2.9.0\n"
            "hint: Packages were unavailable because the network was disabled.",
            "unset UV_OFFLINE",
        ),
        ("error: Failed to fetch: x\n  cause: error sending request for url (x)", "index cannot be reached"),
        ("error: failed to write\n  cause: No space left on device (os error 28)", "no room left on the disk"),
        ("error: something\n  cause: else entirely", "error: something; cause: else entirely"),
        ("", "without a word"),
    ],
)
def test_failures_are_one_line_with_a_remedy(output, said):
    reason = reason_of(output, "2.0.0", "3.13")
    assert said in reason
    assert "\n" not in reason
    assert reason.startswith("torch 2.0.0")


FAKE_UV = """#!/bin/sh
echo "$@" >> "{log}"
for last; do :; done
case "$1" in
  venv)
    mkdir -p "$last/bin" "$last/site/torch-{version}.dist-info" "$last/site/torch/lib"
    cp "{metadata}" "$last/site/torch-{version}.dist-info/METADATA"
    cp "{python}" "$last/bin/python";;
  *) case "$*" in *torch==9*) echo "there is no version of torch==9.9.9" >&2; exit 1;; esac;;
esac
"""
FAKE_PYTHON = """#!/bin/sh
case "$*" in
  *find_spec*) ;;
  *sysconfig*) echo "$(dirname "$(dirname "$0")")/site";;
  *) echo '{"torch_version": "2.6.0+cu124", "cuda": "12.4", "python": "3.11.7", "numpy": "2.3.5", "blas": "mkl"}';;
esac
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """An installer that only writes down what it is asked."""
    (tmp_path / "METADATA").write_text(METADATA)
    (tmp_path / "python").write_text(FAKE_PYTHON)
    places = {"log": tmp_path / "log", "metadata": tmp_path / "METADATA", "python": tmp_path / "python"}
    (tmp_path / "uv").write_text(FAKE_UV.format(version="2.6.0", **places))
    for name in ("python", "uv"):
        (tmp_path / name).chmod((tmp_path / name).stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(environments, "find_uv", lambda: str(tmp_path / "uv"))
    return tmp_path


def wanted(fake, version="2.6.0"):
    return TorchEnvironment(version=version, python=PYTHON, root=ROOT, base=fake / "environments")


def build(fake, kind="slim", version="2.6.0", **options):
    return build_environment(wanted(fake, version), build=kind, **options)


def test_an_environment_is_made_once_and_says_what_it_is(fake):
    said = []
    note = build(fake, say=said.append)
    assert (note.version, note.torch_version, note.build, note.cuda) == ("2.6.0", "2.6.0+cu124", "slim", "12.4")
    assert note.bytes > 0
    assert said[0] == "creating"
    commands = (fake / "log").read_text().splitlines()
    assert [line.split()[0] for line in commands] == ["venv", "pip", "pip"]
    assert commands[1].endswith("--no-deps torch==2.6.0")
    assert "sympy==1.13.1" in commands[2]
    assert "nvidia" not in commands[2]
    assert all(word in commands[2].split() for word in ("asv_runner", "setuptools", "filelock"))
    assert read_note(wanted(fake)) == note
    assert build(fake) == note
    assert len((fake / "log").read_text().splitlines()) == 3  # nothing was done again


def test_another_build_is_made_anew(fake):
    build(fake)
    assert build(fake, "cuda").build == "cuda"
    assert "triton==3.2.0" in (fake / "log").read_text().splitlines()[-1]


def test_what_cannot_be_made_is_named_and_leaves_nothing(fake):
    with pytest.raises(EnvironmentBuildError, match=r"torch 2\.6\.0 was asked for and a CUDA build came; name"):
        build(fake, "cpu")
    assert len((fake / "log").read_text().splitlines()) == 2  # its needs are not even fetched, nor is it imported
    without = "".join(line for line in METADATA.splitlines(keepends=True) if "cuda" not in line)
    (fake / "METADATA").write_text(without)
    with pytest.raises(EnvironmentBuildError, match=r"was asked for and 2\.6\.0\+cu124 came; name an index of"):
        build(fake, "cpu")
    with pytest.raises(EnvironmentBuildError, match=r"torch 9\.9\.9 does not exist"):
        build(fake, version="9.9.9")
    assert not wanted(fake).folder.exists()
    assert not wanted(fake, "9.9.9").folder.exists()


def test_a_damaged_or_older_note_counts_as_none(fake):
    note = build(fake)
    path = wanted(fake).folder / environments.NOTE_NAME
    whole = path.read_text()
    fields = json.loads(whole)
    older = {name: value for name, value in fields.items() if name != "blas"}
    without = {name: value for name, value in fields.items() if name != "stubs"}
    for content in (whole[:40], "", "[]", "noise_floor", *map(json.dumps, (older, without, {**fields, "newer": 1}))):
        path.write_text(content)
        assert read_note(wanted(fake)) is None, content
    assert build(fake).torch_version == note.torch_version
    assert read_note(wanted(fake)) is not None


def test_what_it_takes_on_disk_counts_a_shared_file_once(tmp_path):
    (tmp_path / "one").write_bytes(bytes(100_000))
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    (tmp_path / "away").symlink_to("/usr/bin")
    assert 100_000 <= environments.disk_bytes(tmp_path) < 150_000
