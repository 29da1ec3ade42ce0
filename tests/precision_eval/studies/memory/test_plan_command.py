"""The command: its table, its strict JSON, a Hugging Face config, and its errors."""

import json

import pytest

from precision_eval.cli.plan import plan as plan_command
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.fixes.catalog import FIXES
from precision_eval.studies.memory.models import is_cache


def test_the_table(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    plan_command("metavoice-1b", length=64, device="t4", device_memory="1TB")
    text = capsys.readouterr().out
    assert "1.248 B parameters" in text
    assert all(fix.id in text for fix in FIXES)
    assert "as_shipped raises: mm: float16 meets bfloat16" in text
    assert "t4: its format is float16; float16 native, bfloat16 emulated, float32 native" in text
    assert "2048*" in text
    assert "* all 2048 learned positions" in text
    assert "not in this plan: the second stage" in text


def test_strict_json(capsys):
    plan_command("metavoice-1b", device_memory="16GiB", as_json=True, length=512, fix=("float16",))
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"] == 1_248_438_272
    assert (document["rows"], document["device_memory_bytes"]) == (2, 16 << 30)
    (plan,) = document["fixes"]
    assert plan["fits"] is True
    parts = ("weights_bytes", "self_cache_bytes", "cross_cache_bytes", "buffer_bytes")
    assert plan["stored_bytes"] == sum(plan[part] for part in parts)
    assert {choice["device"] for choice in document["formats"]} >= {"t4", "a100"}


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "num_hidden_layers": 5, "intermediate_size": 128, "max_position_embeddings": 256, "torch_dtype": "float16",
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 5, "n_positions": 128, "vocab_size": 100}


@pytest.mark.parametrize(
    ("config", "cache_bytes", "cls"),
    [
        (LLAMA, 2 * 5 * 2 * 64 * 16 * 2, "LlamaForCausalLM"),  # k and v, layers, kv heads, slots, D, bytes
        (GPT2, 2 * 5 * 4 * 64 * 16 * 4, "GPT2LMHeadModel"),
    ],
    ids=["llama", "gpt2"],
)
def test_a_hugging_face_config(tmp_path, capsys, config, cache_bytes, cls):
    import torch
    import transformers

    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    plan_command(str(path), as_json=True, length=64, fix=("as_shipped", "full_float32"))
    document = json.loads(capsys.readouterr().out)
    shipped, wide = document["fixes"]
    values = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = getattr(transformers, cls)(transformers.AutoConfig.for_model(config["model_type"], **values))
    assert document["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert shipped["self_cache_bytes"] == cache_bytes
    assert shipped["status"] == wide["status"] == "runs"
    assert wide["weights_bytes"] == 4 * document["parameters"]
    assert shipped["cross_cache_bytes"] == 0


FACTORY = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.embedding = nn.LSTM(8, 16, 2, batch_first=True), nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.full((1,), 0.5)

    def forward(self, x):
        return self.head(self.layers(x)[0] * self.scale.to(x.dtype))


def factory():
    return Model().half().eval(), (torch.randn(2, 5, 8),)
"""


def test_a_model_of_one_s_own_with_tied_weights_a_refusal_in_python_and_a_tensor_that_is_no_buffer(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "own.py").write_text(FACTORY, encoding="utf-8")
    target = f"{tmp_path / 'own.py'}:factory"
    plan_command(target, as_json=True, fix=("as_shipped", "full_float32"), device_memory="1GiB")
    document = json.loads(capsys.readouterr().out)
    shipped, wide = document["fixes"]
    assert (shipped["status"], wide["status"]) == ("raises", "runs")
    assert "type" in shipped["reason"]  # a ValueError, in other words with each version
    recurrent = 4 * 16 * (8 + 16 + 2) + 4 * 16 * (16 + 16 + 2)
    assert document["parameters"] == recurrent + 40 * 16
    assert wide["weights_bytes"] == 4 * document["parameters"] == 2 * shipped["weights_bytes"]
    assert wide["fits"] is True
    assert wide["largest_length"] is None
    monkeypatch.setenv("COLUMNS", "300")
    plan_command(target, fix=("full_float32",), device_memory="1GiB")
    text = capsys.readouterr().out
    assert "as built, in 1 GiB" in text
    assert "longest" not in text


NORM = """
import torch
from torch import nn


def factory():
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).half().eval(), (torch.randn(2, 8).half(),)
"""


def test_a_norm_that_refuses_its_parameters_is_planned_to_raise(tmp_path, capsys):
    """Under autocast to bfloat16 its input is bfloat16, and its parameters float16."""
    import torch

    (tmp_path / "norm.py").write_text(NORM, encoding="utf-8")
    plan_command(f"{tmp_path / 'norm.py'}:factory", device="cpu", as_json=True, fix=("autocast", "float16"))
    plans = {plan["fix"]: plan for plan in json.loads(capsys.readouterr().out)["fixes"]}
    assert plans["float16"]["status"] == "runs"
    assert plans["autocast"]["reason"] == "native_layer_norm: bfloat16 meets float16"
    names: dict = {}
    exec(NORM, names)
    model, inputs = names["factory"]()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="mixed dtype"):
        model(*inputs)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "is damaged"),
        ("[]", "holds list; expected an object"),
        ("{}", "model_type is None; expected the config.json of a Hugging Face model"),
        ('{"model_type": "vit"}', "model_type 'vit' is no causal language model"),
        (json.dumps(LLAMA | {"num_hidden_layers": 10**9}), "expected 1 to 1000"),
        (json.dumps(LLAMA | {"torch_dtype": "int8"}), "expected a floating format"),
    ],
)
def test_a_config_that_cannot_be_planned(tmp_path, config, message):
    path = tmp_path / "config.json"
    path.write_text(config, encoding="utf-8")
    with pytest.raises(PrecisionEvalError) as raised:
        plan_command(str(path), length=64)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model": "none.json"}, "cannot read none.json"),
        ({"device_memory": "16"}, "device memory '16' is no size; write a number and a unit"),
        ({"device_memory": "0GiB"}, "device memory '0GiB' is nothing"),
        ({"dtype": "fp16"}, "unknown dtype 'fp16'; did you mean"),
        ({"length": 4096}, "length 4096 is beyond the 2048 learned positions"),
        ({"model": "attention-decode"}, "attention-decode is planned with its own inputs; leave out --length"),
        ({"model": "whisper-large"}, "unknown model 'whisper-large'"),
    ],
)
def test_bad_input(asked, message):
    with pytest.raises(PrecisionEvalError) as raised:
        plan_command(**({"model": "metavoice-1b", "length": 64} | asked))
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["keys", "layers.0.value", "block.key_cache", "past_values"])
def test_a_buffer_is_a_cache_by_the_names_that_the_fixes_know(name):
    assert is_cache(name)
    assert not is_cache(f"{name}.mask")
