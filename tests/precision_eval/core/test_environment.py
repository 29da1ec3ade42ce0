"""Provenance: plain, repeatable, and stored without losing an older one."""

import functools
import json

import pytest
import torch

from precision_eval.core import environment
from precision_eval.core.environment import (
    collect,
    collect_here,
    environment_sha,
    resolved_device,
    source_sha256,
    store_environment,
)
from precision_eval.core.errors import ParameterError


def test_repeatable_and_plain():
    first = collect("cpu")
    assert first == collect("cpu")
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert first["torch"]["version"] == torch.__version__
    assert first["device"] == {"name": "cpu"}
    assert first["memory_bytes"] > 2**28
    assert len(source_sha256()) == 64


def test_device_that_is_not_there_is_named():
    assert collect("cuda:99")["device"] == {"name": "cuda:99"}


def test_variables_count(monkeypatch):
    before = environment_sha(collect("cpu"))
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    assert environment_sha(collect("cpu")) != before


def test_store_keeps_the_older(tmp_path):
    first, second = {"a": 1}, {"a": 2}
    sha = store_environment(first, tmp_path / "run")
    assert store_environment(first, tmp_path / "run") == sha
    store_environment(second, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "environment.json").read_text()) == second
    (older,) = (tmp_path / "run").glob("environment-*.json")
    assert older.stem == f"environment-{sha[:12]}"
    assert json.loads(older.read_text()) == first


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_device_that_is_not_here_is_refused(device):
    resolved_device("cpu")
    with pytest.raises(ParameterError, match=f"device {device} is not here: .*give cpu"):
        resolved_device(device)


NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and a driver"
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (AssertionError("Torch not compiled with CUDA enabled"), "torch .* is built without CUDA; install a build"),
        (RuntimeError(NO_DRIVER), "torch .* finds no NVIDIA driver; install one, or give cpu"),
        (RuntimeError(TOO_OLD), "the NVIDIA driver is too old for torch .*; update it or take an older torch, or give"),
        (RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu."), "does not start; see"),
        (RuntimeError("No CUDA GPUs are available"), "sees 0 GPUs; give cpu"),
    ],
)
def test_why_there_is_no_cuda_is_one_line(monkeypatch, error, line):
    def init():
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ParameterError, match=f"device cuda:0 is not here: .*{line}") as caught:
        resolved_device("cuda:0")
    assert "\n" not in str(caught.value)
    assert resolved_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("visible", "line"),
    [
        (None, "sees 1 GPUs; give cuda:0 or less, or cpu"),
        ("MIG-41b35b0d-3a8a-5a1e", "sees 1 GPUs of CUDA_VISIBLE_DEVICES=MIG-.*; a process sees one instance of MIG"),
    ],
)
def test_a_card_too_many_is_named_with_those_that_are_there(monkeypatch, visible, line):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resolved_device("cuda:0") == "cuda:0"
    with pytest.raises(ParameterError, match=f"device cuda:1 is not here: torch .* {line}"):
        resolved_device("cuda:1")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors", "another process has it"),
        ("CUDA out of memory. Tried to allocate 2.00 MiB.", "its memory is full; end other processes"),
        ("CUDA error: unspecified launch failure\nmore", "CUDA error: unspecified launch failure; see whether"),
    ],
)
def test_a_card_that_does_not_calculate_is_refused_before_anything_is_measured(monkeypatch, text, line):
    def zeros(*args, **kwargs):
        raise RuntimeError(text)

    monkeypatch.setattr(environment, "resolved_device", lambda device: device)
    monkeypatch.setattr(torch, "zeros", zeros)
    with pytest.raises(ParameterError, match=f"device cuda:0 does not work: {line}") as caught:
        collect_here("cuda:0")
    assert "\n" not in str(caught.value)


def test_a_cudnn_that_torch_refuses_is_no_matter_on_a_cpu(monkeypatch):
    answers = iter([RuntimeError("cuDNN version incompatibility"), 100])

    def version():  # refused at first, then named, as torch has it
        answer = next(answers)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    monkeypatch.setattr(environment, "_cudnn_version", functools.cache(environment._cudnn_version.__wrapped__))
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", version)
    assert [collect("cpu")["torch"]["cudnn"] for _ in range(2)] == [None, None]


def test_another_card_in_a_runs_folder_is_named(tmp_path):
    from precision_eval.run.session import _other_cards

    def on(device):
        return {"device": device}

    small, large = ({"name": "cuda:0", "model": f"NVIDIA {name}"} for name in ("T4", "H200"))
    for device in ({"name": "cpu"}, small):
        store_environment(on(device), tmp_path)
    assert _other_cards(on(large), tmp_path) == "NVIDIA T4 (cuda:0)"
    assert _other_cards(on(large | {"name": "cuda:1"}), tmp_path) == "NVIDIA T4 (cuda:0)"
    assert _other_cards(on(small), tmp_path) == _other_cards(on({"name": "cpu"}), tmp_path) == ""
