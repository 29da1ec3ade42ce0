"""What pip has as settings is handed to uv, or the work is left to pip."""

import sys

import pytest

from tools import install
from tools.install import reinstall_by_pip, settings_of, uv_arguments

LISTED = r"""
:env:.find-links='/wheels'
:env:.disable-pip-version-check='1'
download.no-binary=':all:'
global.extra-index-url='https://a/simple\nhttps://b/simple'
global.find-links='/other'
install.constraint='caps.txt'
global.cert='ca.pem'
"""


def test_settings_go_on_to_uv_the_nearest_first():
    settings = settings_of(LISTED.splitlines())
    assert (settings["find-links"], settings["cert"], "no-binary" in settings) == ("/wheels", "ca.pem", False)
    assert set(uv_arguments(settings)) == {
        "--index-strategy=unsafe-best-match", "--index=https://a/simple", "--index=https://b/simple",
        "--find-links=/wheels", "--constraint=caps.txt",
    }  # fmt: skip


def test_a_setting_that_uv_has_no_word_for_leaves_the_work_to_pip():
    assert uv_arguments(settings_of(["global.proxy='http://inside:3128'"])) is None
    assert uv_arguments({}) == ["--index-strategy=unsafe-best-match"]


def test_a_module_whose_library_is_missing_is_installed_again_by_pip(tmp_path, monkeypatch):
    (tmp_path / "lacking.py").write_text("raise OSError('cannot load library')\n")
    (tmp_path / "lacking-1.2.dist-info").mkdir()
    (tmp_path / "lacking-1.2.dist-info" / "METADATA").write_text("Name: lacking\nVersion: 1.2\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(install, "BINARY", ("json", "not_installed_at_all"))
    assert reinstall_by_pip(sys.executable) == []
    monkeypatch.setattr(install, "BINARY", ("json", "lacking"))
    again = reinstall_by_pip(sys.executable)
    assert again[:3] == list(install.PIP)
    assert again[-3:] == ["--force-reinstall", "--no-deps", "lacking==1.2"]
    called: list[list[str]] = []

    def run(command, **_):
        called.append(list(command))
        return type("Done", (), {"returncode": 0, "stdout": "lacking==1.2" if "-c" in command[:2] else ""})

    monkeypatch.setattr(install.subprocess, "run", run)
    assert install.main(["-e", "."]) == 0
    assert called[-1] == again


@pytest.mark.parametrize("code", [0, 1])
def test_what_uv_cannot_do_is_left_to_pip(code, monkeypatch):
    called: list[str] = []

    def run(command, **_):
        called.append(command[0])
        return type("Done", (), {"returncode": 1 if command[0] == install.BY_UV[0] else code, "stdout": ""})

    monkeypatch.setattr(install.subprocess, "run", run)
    assert install.main(["-e", "."]) == code
    assert called[-1] == install.PIP[0]


def test_constraints_can_be_left_aside(monkeypatch):
    calls = []

    def run(command, **_):
        calls.append(list(command))
        return type("Done", (), {"returncode": 0, "stdout": ""})

    monkeypatch.setattr(install.subprocess, "run", run)
    assert install.main(["--unconstrained", "torch==2.6.0"]) == 0
    assert install.main(["torch==2.13.0"]) == 0
    assert ["constraints.txt" in call for call in calls if call[0] == install.BY_UV[0]] == [False, True]
