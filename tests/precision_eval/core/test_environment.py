"""Provenance: plain, repeatable, and stored without losing an older one."""

import functools
import json

import pytest
import torch

from precision_eval.core import environment
from precision_eval.core.environment import collect, environment_sha, resolved_device, source_sha256, store_environment
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
    with pytest.raises(ParameterError, match=f"device {device} is not here.*sees 0 GPUs; give cpu"):
        resolved_device(device)


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
