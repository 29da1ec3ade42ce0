"""Checkpoints load whole, or are refused in one line. Each is one that the library wrote, with one thing changed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from precision_eval.cases.huggingface.checkpoint import as_dtype, checkpoint_folder, import_library, load_checkpoint
from precision_eval.core.errors import ParameterError, UnknownNameError, UnsupportedError


@pytest.fixture(scope="module")
def written(tmp_path_factory, tiny_models):
    folder = tmp_path_factory.mktemp("written")
    tiny_models.make_llama()[0].half().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "llama")


def change_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refuse(folder, message, **settings):
    with pytest.raises(ParameterError, match=message) as refusal:
        load_checkpoint(folder, **{"dtype": None} | settings)
    assert "\n" not in str(refusal.value)
    assert str(folder) in str(refusal.value)


def test_weights_load_in_their_own_dtype_or_in_the_one_asked_for(folder):
    stored = load_file(folder / "model.safetensors")["model.norm.weight"]
    for dtype in (None, "float32", torch.bfloat16):
        model = load_checkpoint(folder, dtype)
        expected = torch.float16 if dtype is None else as_dtype(dtype)
        assert model.dtype is expected
        assert not model.training
        assert torch.equal(model.model.norm.weight, stored.to(expected))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "missing keys: model.norm.weight"),
        (lambda tensors: tensors.update(stray=torch.ones(2)), "unexpected keys: stray"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(7).half()}), r"is \(7,\) in .*\(32,\)"),
        (lambda tensors: tensors["model.norm.weight"].fill_(torch.nan), "not finite in model.norm.weight in float16"),
        (lambda tensors: tensors["model.norm.weight"].fill_(-torch.inf), "not finite in model.norm.weight in float16"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_refused(folder, change, message):
    change_tensors(folder, change)
    refuse(folder, message)


def test_values_beyond_the_range_of_the_dtype_are_refused(folder):
    change_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.full((32,), 1e5)}))
    refuse(folder, "wider range, bfloat16 or float32", dtype="float16")
    assert load_checkpoint(folder, "bfloat16").dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["NoSuchModel"]}, "names .*NoSuchModel.* expected a class of transformers"),
        ({"architectures": []}, "names no class"),
        ({"architectures": ["AutoModel"]}, "expected a class of transformers"),
        ({"hidden_size": 48}, "mismatched keys|does not load"),
        ({"hidden_size": "wide"}, "does not load as a LlamaForCausalLM"),
    ],
)
def test_configs_of_another_model_are_refused(folder, values, message):
    change_config(folder, **values)
    refuse(folder, message)


def test_code_of_a_checkpoint_never_runs(folder, tmp_path):
    change_config(folder, auto_map={"AutoModelForCausalLM": "evil.Model"})
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nModel = None")
    load_checkpoint(folder, None)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    refuse(folder, "does not load as a LlamaForCausalLM")


def test_damaged_files_are_refused(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    refuse(folder, "does not load as a LlamaForCausalLM")
    (folder / "config.json").write_text("{")
    refuse(folder, "is no JSON")
    (folder / "config.json").write_text("[]")
    refuse(folder, "holds a list")
    (folder / "config.json").unlink()
    refuse(folder, "has no config.json")


def test_weights_larger_than_the_memory_are_refused(folder, monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000})())
    refuse(folder, "GiB of weights, .* are free")


def test_names_that_are_no_folder_are_refused(tmp_path):
    for name in (tmp_path / "nothing", "./nothing", "one/two/three"):
        with pytest.raises(ParameterError, match="give one with config"):
            checkpoint_folder(name)


def test_unknown_dtypes_and_libraries_are_refused(folder):
    with pytest.raises(UnknownNameError, match="int8"):
        load_checkpoint(folder, "int8")
    with pytest.raises(UnsupportedError, match="pip install 'precision-eval\\[zoo\\]'"):
        import_library("no_such_library_of_the_zoo")
