"""Files written whole or not at all: kills, errors, files that changed afterwards."""

import json
import os
import signal
import subprocess
import sys

import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.core.files import (
    PARTIAL,
    check_own_folder,
    described,
    intact,
    remove_unfinished,
    to_json,
    written_whole,
)


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "a.npy"
    with written_whole(path) as partial:
        partial.write_text("one")
        assert not path.exists()
        assert partial.parent == path.parent
    assert path.read_text() == "one"
    assert [found.name for found in path.parent.iterdir()] == ["a.npy"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.npy"
    path.write_text("old")

    def interrupted():
        with written_whole(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["a.npy"]


KILLED = """
import os, signal, sys
from pathlib import Path
from precision_eval.core.files import written_whole
with written_whole(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_old_file_and_a_partial_that_is_swept(tmp_path):
    path = tmp_path / "streams" / "a.npy"
    path.parent.mkdir()
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert len(list(path.parent.iterdir())) == 2
    (tmp_path / f".report-x{PARTIAL}").mkdir()
    (tmp_path / f".report-x{PARTIAL}" / "figure.png").write_text("")
    remove_unfinished(tmp_path)
    assert [found.name for found in tmp_path.rglob("*")] == ["streams", "a.npy"]


def test_files_of_others_survive(tmp_path):
    kept = ["m.mkv.partial", "iso.partial/disk.img", "music/.a.wav.7.precision-eval-partial", "streams/b.partial"]
    for name in kept:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "audio").symlink_to(tmp_path / "music")
    remove_unfinished(tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in kept)


def test_what_a_living_process_writes_survives(tmp_path):
    ours, theirs, dead = os.getpid(), os.getppid(), 2**22 + 1
    for number in (ours, theirs, dead):
        (tmp_path / f".a.wav.{number}{PARTIAL}").write_text("")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f".a.wav.{theirs}{PARTIAL}"]


def test_json_hides_no_character():
    text = to_json({"a": "é\u202e\ud800\x9b\x1b\u2028"}, what="a test")
    assert text.encode().decode().isprintable()
    assert "é" in text
    assert json.loads(text) == {"a": "é\u202e\ud800\x9b\x1b\u2028"}


@pytest.mark.parametrize("content", ["", '{"cell": 1}\n'])
def test_a_folder_of_ours_is_taken(tmp_path, content):
    check_own_folder(tmp_path / "new", "records.jsonl")
    (tmp_path / ".gitkeep").write_text("")
    check_own_folder(tmp_path, "records.jsonl")
    (tmp_path / "records.jsonl").write_text(content)
    (tmp_path / "notes.txt").write_text("")
    check_own_folder(tmp_path, "records.jsonl")
    assert {path.name for path in tmp_path.iterdir()} == {".gitkeep", "records.jsonl", "notes.txt"}


def test_a_folder_that_a_run_was_stopped_in_before_its_first_record_is_taken(tmp_path):
    (tmp_path / f".environment.json.12{PARTIAL}").write_text("")
    check_own_folder(tmp_path, "records.jsonl")
    (tmp_path / "environment.json").write_text('{"package": {}}')
    (tmp_path / "self-test.json").write_text("{}")
    (tmp_path / "logs").mkdir()
    check_own_folder(tmp_path, "records.jsonl")
    (tmp_path / "of-another").mkdir()
    with pytest.raises(ParameterError, match="is not empty and holds no"):
        check_own_folder(tmp_path, "records.jsonl")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("report.md", "mine"),
        ("results.csv", "a,b"),
        (".profile", ""),
        ("records.jsonl", "my own list"),
        ("environment.json", "{}"),
        ("environment.json", "mine"),
    ],
)
def test_a_folder_of_somebody_else_is_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ParameterError, match=r"is not empty and holds no records.jsonl.*give a new folder, such as"):
        check_own_folder(tmp_path, "records.jsonl")
    with pytest.raises(ParameterError, match="is a file; give a folder"):
        check_own_folder(tmp_path / name, "records.jsonl")
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_text("on"), lambda path: path.write_text("two")]
)
def test_a_file_that_changed_is_noticed(tmp_path, damage):
    path = tmp_path / "streams" / "a.npy"
    with written_whole(path) as partial:
        partial.write_text("one")
    files = described(tmp_path, path)
    assert files[0]["path"] == "streams/a.npy"
    assert intact(tmp_path, files)
    damage(path)
    assert not intact(tmp_path, files)
    assert intact(tmp_path, ())
