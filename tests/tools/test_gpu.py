"""The session on a card: parts end, fail or are cut, and what they wrote is packed whichever it is."""

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from precision_eval.core.errors import ParameterError, UnsupportedError
from tools import gpu
from tools.gpu import PARTS, Part, pack, require_cuda, run_parts

WRITE = (
    "import sys, pathlib; path = pathlib.Path(sys.argv[-1]); path.mkdir(exist_ok=True); (path / 'x').write_text({!r})"
)


def part(name, code, limit_s=60.0):
    return Part(name, limit_s, (("-c", code),))


def names_in(path):
    with tarfile.open(path) as archive:
        return set(archive.getnames())


def test_parts_end_fail_and_are_cut_and_each_is_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LEAST_S", 0.0)
    hang = WRITE.format("half") + "; import time; time.sleep(600)"
    parts = (part("good", WRITE.format("a")), part("bad", "raise SystemExit(3)"), part("slow", hang, limit_s=3.0))
    state = run_parts(tmp_path / "out", tmp_path / "work", parts)
    assert {name: entry["status"] for name, entry in state.items()} == {"good": "ended", "bad": "failed", "slow": "cut"}
    assert state["bad"]["exit_codes"] == [3]
    assert names_in(tmp_path / "out/good.tar.gz") == {"log0.txt", "out0/x"}
    assert "out0/x" in names_in(tmp_path / "out/slow.tar.gz")


def test_the_same_command_goes_on_elsewhere_with_what_has_not_ended(tmp_path):
    once = "import sys, pathlib; p = pathlib.Path(sys.argv[-1]); n = len(list(p.glob('*'))) if p.exists() else 0; "
    once += "p.mkdir(exist_ok=True); (p / str(n)).write_text(''); sys.exit(n == 0)"  # fails the first time
    parts = (part("good", WRITE.format("a")), part("again", once))
    first = run_parts(tmp_path / "out", tmp_path / "work", parts)
    second = run_parts(tmp_path / "out", tmp_path / "another", parts)
    assert (first["again"]["status"], second["again"]["status"]) == ("failed", "ended")
    assert not (tmp_path / "another/good").exists()
    assert {"out0/0", "out0/1"} <= names_in(tmp_path / "out/again.tar.gz")


def test_no_part_is_begun_that_the_session_has_no_time_for(tmp_path):
    state = run_parts(tmp_path / "out", tmp_path / "work", (part("good", "pass"),), limit_s=1.0)
    assert state["good"]["status"] == "not begun"
    assert not (tmp_path / "work").exists()


def test_parts_of_another_commit_are_not_gone_on_with(tmp_path):
    run_parts(tmp_path / "out", tmp_path / "work", (part("good", "pass"),))
    content = json.loads((tmp_path / "out/session.json").read_text())
    (tmp_path / "out/session.json").write_text(json.dumps({**content, "commit": "c0ffee"}))
    with pytest.raises(ParameterError, match="give another --out"):
        run_parts(tmp_path / "out", tmp_path / "work", (part("good", "pass"),))


def test_a_file_too_large_to_travel_is_named(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/small").write_bytes(bytes(10))
    (tmp_path / "in/large").write_bytes(bytes(5000))
    pack(tmp_path / "in", tmp_path / "packed.tar.gz", largest=4000)
    with tarfile.open(tmp_path / "packed.tar.gz") as archive:
        assert set(archive.getnames()) == {"small", "LEFT_OUT.txt"}
        assert archive.extractfile("LEFT_OUT.txt").read() == b"large"


def test_the_results_fit_what_a_borrowed_machine_gives_back():
    assert len(PARTS) + 1 <= 8
    assert sum(part.limit_s for part in PARTS) <= 470  # of 480, as each part takes some time to end


def test_every_test_that_wants_a_card_is_in_the_plan():
    here = str(Path(__file__).relative_to(gpu.ROOT))
    assert here in gpu.WITH_CUDA  # by this word: mark.cuda
    assert "tests/precision_eval/measure/test_card.py" in gpu.WITH_CUDA
    assert "tests/tools/test_site.py" not in gpu.WITH_CUDA
    command = next(part for part in PARTS if part.name == "tests").commands[0]
    assert set(gpu.WITH_CUDA) < set(command)


def test_a_machine_without_a_card_is_refused(monkeypatch):
    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: False), version=SimpleNamespace(cuda=None), __version__="2.13.0"
    )
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    with pytest.raises(UnsupportedError, match="built without CUDA"):
        require_cuda()
