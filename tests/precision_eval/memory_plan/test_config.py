"""Reading CONFIG.json: both schemas, and everything that can be wrong with one."""

import dataclasses
import json

import pytest

from precision_eval.errors import ParameterError
from precision_eval.memory_plan import MODELS, parameter_count
from precision_eval.memory_plan.config import read_config
from precision_eval.memory_plan.plan import Request, plan_all

DECODER = {"layers": 2, "width": 8, "heads": 4, "kv_heads": 2, "head_dim": 2, "mlp_width": 16, "vocabulary": 20,
           "max_length": 32}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 100, "max_position_embeddings": 64,
         "torch_dtype": "bfloat16", "rope_theta": 1e4}  # fmt: skip
T5 = {"model_type": "t5", "d_model": 32, "d_ff": 64, "d_kv": 4, "num_heads": 4, "num_layers": 2, "vocab_size": 50,
      "feed_forward_proj": "gated-gelu", "torch_dtype": "float16"}  # fmt: skip


def read(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_config(path)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_published_models_survive_the_own_schema(tmp_path, model):
    written = {
        key: value
        for key, value in dataclasses.asdict(model).items()
        if value is not None and key not in ("source", "published_parameters", "published_source")
    }
    found = read(tmp_path, written)
    assert parameter_count(found) == parameter_count(model)
    ours, theirs = (plan_all(Request(config=config, length=64)) for config in (found, model))
    assert [plan.total_bytes for plan in ours] == [plan.total_bytes for plan in theirs]


def test_a_minimal_own_file(tmp_path):
    found = read(tmp_path, {"name": "mine", "decoder": DECODER, "shipped": {"weights": "bfloat16"}})
    assert (found.name, found.decoder.kv_heads, found.shipped.weights, found.shipped.cache) == (
        "mine", 2, "bfloat16", "float32",
    )  # fmt: skip


def test_a_hugging_face_file(tmp_path):
    found = read(tmp_path, LLAMA)
    assert (found.decoder.head_dim, found.decoder.outputs, found.shipped.weights) == (12, 100, "bfloat16")
    encoder = read(tmp_path, T5)
    assert (encoder.decoder, encoder.shipped.mlp_out, encoder.encoder.gated) == (None, "float32", True)


def without(data, key):
    return {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[1]", "holds list; expected an object"),
        ({"name": "x"}, "neither 'encoder' nor 'decoder'"),
        ({"decoder": DECODER}, "lacks name; add it"),
        ({"name": "x", "decoder": [1]}, "decoder: found list; expected an object"),
        ({"name": "x", "decoder": without(DECODER, "width")}, "decoder lacks width"),
        ({"name": "x", "decoder": DECODER | {"widht": 8}}, "unknown key of model.json: decoder: 'widht'; did you mean"),
        ({"name": "x", "decoder": DECODER | {"width": "8"}}, "'width' is '8'; expected int"),
        ({"name": "x", "decoder": DECODER | {"width": True}}, "'width' is True; expected int"),
        ({"name": "x", "decoder": DECODER | {"layers": 0}}, "'layers' is 0; expected 1 or more"),
        ({"name": "x", "decoder": DECODER | {"outputs": -1}}, "'outputs' is -1; expected 0 or more"),
        ({"name": "x", "decoder": DECODER | {"gated": 1}}, "'gated' is 1; expected bool"),
        ({"name": "x", "decoder": DECODER | {"norm": "batch"}}, "'norm' is 'batch'; expected one of rms"),
        ({"name": "x", "decoder": DECODER | {"kv_heads": 3}}, "4 heads are no multiple of 3 kv heads"),
        (
            {"name": "x", "decoder": DECODER | {"fused_qkv": True, "head_dim": 3}},
            "heads × head_dim = 4 × 3 = 12, but the fused projection of width 8 demands 8",
        ),
        ({"name": "x", "decoder": DECODER | {"cross_heads": 2}}, "go together"),
        (
            {
                "name": "x",
                "decoder": DECODER | {"cross_heads": 3, "cross_kv_heads": 2, "cross_head_dim": 2, "cross_width": 4},
            },
            "3 cross heads are no multiple of 2",
        ),
        (
            {
                "name": "x",
                "decoder": DECODER | {"cross_heads": 2, "cross_kv_heads": 2, "cross_head_dim": 2, "cross_width": 4},
            },
            "needs an 'encoder_length'",
        ),
        (
            {
                "name": "x", "encoder": DECODER, "encoder_length": 3,
                "decoder": DECODER | {"cross_heads": 2, "cross_kv_heads": 2, "cross_head_dim": 2, "cross_width": 4},
            },
            "cross_width is 4, the encoder's width 8; make them equal",
        ),
        ({"name": "x", "decoder": DECODER, "shipped": {"weights": "half"}}, "unknown dtype of x, shipped weights:"),
        ({"name": "x", "decoder": DECODER, "published_parameters": 5}, "unknown key of model.json: 'published_param"),
        ({"model_type": "mamba"}, "model_type 'mamba' is not among dia, gpt2, llama"),
        (without(LLAMA, "hidden_size"), "lacks 'hidden_size'; add it"),
        (LLAMA | {"hidden_size": 50}, "width 50 is no multiple of 4 heads"),
        (LLAMA | {"num_key_value_heads": 3}, "4 heads are no multiple of 3 kv heads"),
        (LLAMA | {"vocab_size": 1.5}, "'vocab_size' is 1.5; expected a positive integer"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes'; expected true or false"),
        (LLAMA | {"attention_bias": True}, "'attention_bias' is true, which no reader here knows"),
        (LLAMA | {"torch_dtype": "fp8"}, "unknown dtype of model.json, shipped weights: 'fp8'"),
        ({"model_type": "dia"}, "lacks 'encoder_config', an object"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, content, message):
    with pytest.raises(ParameterError) as found:
        read(tmp_path, content)
    assert message in str(found.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ParameterError, match=r"cannot be read: No such file or directory; give a JSON file"):
        read_config(tmp_path / "none.json")
