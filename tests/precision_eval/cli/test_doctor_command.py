"""``precision-eval doctor``: what it prints, its exit codes, and one line for bad input."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from precision_eval.cases.own import on_device
from precision_eval.cli.examine import _write_patch, case_to_examine
from precision_eval.core import environment
from precision_eval.doctor.diagnosis import Patch

FACTORIES = """import os, threading

import torch
from torch import nn


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))
        self.project = nn.Linear(8, 16).half()

    def forward(self, x):
        return self.project(x * self.gain)


class Leaving(nn.Module):
    def forward(self, x):
        raise SystemExit(0)


def split(): return Split(), (torch.ones(2, 8).half(),)
def clean(): return nn.Linear(8, 8), {"input": torch.ones(2, 8)}
def number(): return nn.Linear(8, 8), 3
def unnamed(): return nn.Linear(8, 8), {1: torch.ones(2, 8)}
def left(): return Leaving(), (torch.ones(2),)
def gone(): os._exit(0)
def threaded():
    (thread := threading.Thread(target=os._exit, args=(0,))).start()
    thread.join()
    return clean()
def forked():
    if (child := os.fork()) == 0:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    os._exit(0)
"""


@pytest.fixture(autouse=True)
def factories(tmp_path, monkeypatch):
    (tmp_path / "doctor_factories.py").write_text(FACTORIES, encoding="utf-8")
    (tmp_path / "doctor_broken.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("doctor_factories", None)


FAST = ("--no-fixes",)


def test_a_split_is_told_and_exits_with_1(program):
    code, out, _ = program("doctor", "doctor_factories:split", *FAST)
    assert code == 1
    assert "doctor_factories.py:14" in out
    assert "parameter gain" in out


def test_a_factorys_model_stays_where_it_is_or_is_moved_to_the_device_that_is_named():
    shipped = case_to_examine("doctor_factories:clean", None, {"seed": 0})[1]
    assert shipped.model.weight.device.type == "cpu"
    moved = on_device(shipped, "meta")  # the one device beside it that every torch has
    assert moved.model.weight.device.type == "meta"
    assert moved.arguments()[0]["input"].device.type == "meta"


@pytest.mark.cuda
def test_on_cuda_a_model_is_examined_and_timed_there(program):
    _, out, _ = program("doctor", "doctor_factories:split", "--device", "cuda", "--json")
    found = json.loads(out)
    assert found["device"] == "cuda:0"
    assert any(fix["latency_ratio"] for fix in found["remedies"])


def test_a_clean_model_exits_with_0_and_json_is_strict(program):
    code, out, _ = program("doctor", "doctor_factories:clean", *FAST, "--json")
    data = json.loads(out)
    assert (code, data["is_clean"], data["target"]) == (0, True, "doctor_factories:clean")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("doctor_factories", "unknown case 'doctor_factories'"),
        ("doctor_nowhere:split", "doctor_nowhere does not import: ModuleNotFoundError"),
        ("doctor_broken:split", "doctor_broken does not import: ModuleNotFoundError: No module named 'nothing_of"),
        ("doctor_factories:splt", "has no 'splt'; it has: Split, Leaving, split"),
        ("doctor_factories:number", "returns a int as its inputs"),
        ("doctor_factories:unnamed", "keys that are no names"),
        ("doctor_factories:left", "the model ends the program when it is called"),
        ("doctor_factories:gone", "the factory doctor_factories:gone ends the program; expected that it returns"),
        ("doctor_factories:threaded", "the model or its factory ends the program; expected that it returns"),
        ("doctor_factories:forked", "the factory doctor_factories:forked ends the program; expected that it returns"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit, as threading takes it
def test_a_slip_is_one_line_and_exits_with_2(refused, factory, message):
    """Others are those of an own case: see ``test_admission``."""
    refused(message, "doctor", factory, *FAST)


@pytest.mark.parametrize("words", [("compare", "clean", "gone"), ("modules", "gone"), ("modules", "left")])
def test_no_command_ends_with_0_because_a_model_does(refused, words):
    command, *factories = words
    refused("ends the program", command, *(f"doctor_factories:{factory}" for factory in factories))


def test_a_card_that_is_taken_is_one_line_of_doctor_and_modules(refused, monkeypatch):
    def zeros(*args, **kwargs):
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors")

    monkeypatch.setattr(environment, "resolved_device", lambda device: "cuda")
    monkeypatch.setattr(torch, "zeros", zeros)
    for words in (("doctor", "doctor_factories:split", "--device", "cuda"), ("modules", "doctor_factories:split")):
        refused("device cuda does not work: another process has it for itself", *words)


WHOLE = Patch(place=None, diff="--- a/here.py\n+++ b/here.py\n", code="", origin="", verified=True, left=())
STORED = replace(WHOLE, diff="", code="model.k.data = model.k.data.float()")
PARTIAL = replace(WHOLE, verified=False, left=("promotion at here.py:3",))


@pytest.mark.parametrize(
    ("patches", "faults", "says"),
    [
        ((STORED, WHOLE), 1, "wrote fix.patch"),
        ((replace(WHOLE, diff="--- a/lib/far.py\n"),), 1, "patch -p1 in the folder that lib/far.py is below"),
        ((replace(WHOLE, code=STORED.code),), 1, "needs both"),
        ((STORED,), 1, "go where the model is built"),
        ((PARTIAL,), 1, "no change of a source line cures the model by itself; left: promotion at here.py:3"),
        ((), 1, "no change of a source line cures the model"),
        ((), 0, "there is no fault"),
    ],
)
def test_a_whole_change_is_written_or_refused_in_a_line(patches, faults, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    diagnosis = SimpleNamespace(patches=patches, patch=next(iter(patches), None), faults=("a fault",) * faults)
    _write_patch(diagnosis, Path("fix.patch"))
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert Path("fix.patch").exists() == line.startswith("wrote")


def test_a_checkpoint_folder(program, tmp_path):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(config).save_pretrained(tmp_path / "t5")
    code, out, _ = program("doctor", f"hf:{tmp_path / 't5'}", "--set", "dtype=float16", *FAST, "--json")
    data = json.loads(out)
    assert (code, data["is_clean"], data["base_dtype"]) == (0, True, "float16")
    assert [held["modules"] for held in data["held"]] == [["encoder.block.0.layer.1.DenseReluDense.wo"]]


@pytest.fixture
def checkpoint(tmp_path):
    """A small GPT-2 as transformers writes it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "checkpoint"
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=32)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("edit", "code", "message"),
    [
        (lambda config: config | {"auto_map": {"AutoConfig": "evil.Evil"}, "model_type": "evil"}, 0, "GPT2LMHeadModel"),
        (lambda config: config | {"inner": {"auto_map": {"AutoModel": "evil.Evil"}}}, 0, "GPT2LMHeadModel"),
        (lambda config: config | {"vocab_size": 10**12}, 2, "allocate memory"),
        (lambda config: config | {"architectures": ["pipeline"]}, 2, r"names .* expected a class of transformers"),
    ],
)
def test_a_checkpoint_is_data_that_never_runs(edit, code, message, checkpoint, monkeypatch, program):
    (checkpoint / "evil.py").write_text("raise SystemExit('the code of a checkpoint ran')\n", encoding="utf-8")
    path = checkpoint / "config.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether the checkpoint's code may run"))
    ended, out, err = program("doctor", f"hf:{checkpoint}", *FAST)
    assert ended == code
    assert re.search(message, " ".join((out + err).split()))
