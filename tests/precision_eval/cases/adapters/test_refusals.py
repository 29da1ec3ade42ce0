"""Checkpoints of the three real classes that must not load: refused whole, in one line that names what is wrong.

Each is a checkpoint that the library itself wrote, with one thing changed. Nothing here is skipped: without the extra
``zoo`` these tests fail.
"""

import json
import re
import shutil

import diffusers
import pytest
import torch
import transformers

from precision_eval.cases.adapters import ADAPTED_CASES
from precision_eval.cases.adapters import checkpoints as stored
from precision_eval.cases.adapters.base import as_dtype, load_checked
from precision_eval.core.errors import ParameterError

CLASSES = {
    "dia": transformers.DiaForConditionalGeneration,
    "t5": transformers.T5EncoderModel,
    "svd": diffusers.UNetSpatioTemporalConditionModel,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    dia, t5, svd = (case.build("tiny", device="cpu", seed=0).model for case in ADAPTED_CASES)
    dia.dia.float().save_pretrained(folder / "dia")
    t5.encoder.float().save_pretrained(folder / "t5")
    svd.unet.save_pretrained(folder / "svd")
    return folder


@pytest.fixture
def changed(written, tmp_path):
    def change(kind, values):
        """Copy a checkpoint; ``{"decoder_config.vocab_size": 5}`` sets a value in a part, ... takes one out."""
        folder = shutil.copytree(written / kind, tmp_path / kind, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text())
        for name, value in values.items():
            *parts, last = name.split(".")
            inner = config
            for part in parts:
                inner = inner[part]
            if value is ...:
                del inner[last]
            else:
                inner[last] = value
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return change


def refused(kind, folder, message, *, dtype="float16"):
    with pytest.raises(ParameterError, match=message) as refusal:
        load_checked(CLASSES[kind], folder, dtype=as_dtype(dtype))
    text = str(refusal.value)
    assert "\n" not in text
    assert str(folder) in text
    assert re.search("expected|needs", text)
    assert re.search("correct|fetch|give|take", text)


@pytest.mark.parametrize("kind", CLASSES)
def test_unchanged_they_load(kind, written):
    assert load_checked(CLASSES[kind], written / kind, dtype=torch.float16)


BEFORE = [
    ("dia", {"model_type": "t5"}, r"says model_type 't5'; expected 'dia': give .*\.save_pretrained wrote"),
    ("svd", {"_class_name": "UNet2DModel"}, "_class_name 'UNet2DModel'; expected 'UNetSpatioTemporalConditionModel'"),
    (
        "t5",
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        r"quantization_config \(bitsandbytes\); expected",
    ),
    ("dia", {"compression_config": 5}, r"compression_config \(5\); expected weights stored as floats"),
    ("dia", {"delay_pattern": [0, 8, 9]}, "is no DiaConfig: .* Number of channels must match delay pattern length"),
    ("t5", {"num_layers": "two"}, r"is no T5Config: .*num_layers.*two.*; expected a config that the class takes"),
]


@pytest.mark.parametrize(("kind", "values", "message"), BEFORE)
def test_what_a_config_says_is_refused_before_a_model_is_built(kind, values, message, changed, monkeypatch):
    monkeypatch.setattr(CLASSES[kind], "from_pretrained", lambda *_, **__: pytest.fail("was built"))
    refused(kind, changed(kind, values), message)


AFTER = [
    (
        "dia",
        {"decoder_config.num_attention_heads": 6},
        r"_proj\.weight is \(\d+, \d+\) in the file and \(\d+, \d+\) by",
    ),
    ("dia", {"decoder_config.num_hidden_layers": 3}, r"missing keys: model\.decoder\.layers\.2\..* and \d+ more;"),
    ("dia", {"decoder_config.num_hidden_layers": 1}, r"unexpected keys: model\.decoder\.layers\.1\."),
    (
        "dia",
        {"decoder_config.hidden_act": "gone"},
        "does not load as a DiaForConditionalGeneration: .*gone.*; expected",
    ),
    ("t5", {"vocab_size": 90}, r"shared\.weight is \(96, 64\) in the file and \(90, 64\) by the config; expected"),
    (
        "svd",
        {"cross_attention_dim": 64},
        r"is \(32, 32\) in the file and \(32, 64\) by the config, .* more; exp",
    ),
    ("svd", {"in_channels": 4}, r"conv_in\.weight is \(32, 8, 3, 3\) in the file and \(32, 4, 3, 3\) by the config"),
    ("svd", {"num_attention_heads": [0, 4]}, "does not load as a UNetSpatio.*: .*zero; expected"),
]


@pytest.mark.parametrize(("kind", "values", "message"), AFTER)
def test_what_does_not_fit_its_config_is_refused_by_name(kind, values, message, changed, capfd):
    refused(kind, changed(kind, values), message)
    assert torch.get_default_dtype() is torch.float32  # diffusers leaves another where a class raises
    told = capfd.readouterr()
    assert "LOAD REPORT" not in told.out + told.err
    assert "newly initialized" not in told.out + told.err


@pytest.mark.parametrize("kind", CLASSES)
def test_what_does_not_fit_in_memory_is_refused_before_a_model_is_built(kind, written, monkeypatch):
    monkeypatch.setattr(CLASSES[kind], "from_pretrained", lambda *_, **__: pytest.fail("was built"))
    monkeypatch.setattr(stored, "free_bytes", lambda: 1024)
    refused(kind, written / kind, r"GiB for its weights in float16, 9\.54e-07 GiB are free; take a larger machine")
    refused(kind, written / kind, "in float32, .* load it in float16 or bfloat16, or take a", dtype="float32")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kind", CLASSES)
def test_the_memory_asked_for_is_the_weights(kind, dtype, written, monkeypatch):
    library = CLASSES[kind].from_pretrained(written / kind, dtype=getattr(torch, dtype))
    held_bytes = sum(p.numel() * p.element_size() for p in library.parameters())  # a tied one counts once
    monkeypatch.setattr(stored, "free_bytes", lambda: held_bytes)
    load_checked(CLASSES[kind], written / kind, dtype=as_dtype(dtype))
    monkeypatch.setattr(stored, "free_bytes", lambda: held_bytes - 1)
    refused(kind, written / kind, f"needs .* in {dtype}", dtype=dtype)
