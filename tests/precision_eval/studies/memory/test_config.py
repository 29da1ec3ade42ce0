"""Reading CONFIG.json: both schemas, and everything that can be wrong with one."""

import dataclasses
import json

import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.studies.memory import MODELS, model_by_name, parameter_count
from precision_eval.studies.memory.config import read_config
from precision_eval.studies.memory.plan import Request, plan_all

DECODER = {"layers": 2, "width": 8, "heads": 4, "kv_heads": 2, "head_dim": 2, "mlp_width": 16, "vocabulary": 20,
           "max_length": 32}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 100, "max_position_embeddings": 64,
         "torch_dtype": "bfloat16", "rope_theta": 1e4}  # fmt: skip
T5 = {"model_type": "t5", "d_model": 32, "d_ff": 64, "d_kv": 4, "num_heads": 4, "num_layers": 2, "vocab_size": 50,
      "feed_forward_proj": "gated-gelu", "torch_dtype": "float16"}  # fmt: skip
DIA_ENCODER = {"num_hidden_layers": 12, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
               "vocab_size": 256, "max_position_embeddings": 1024}  # fmt: skip
DIA_DECODER = {"num_hidden_layers": 18, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
               "intermediate_size": 8192, "vocab_size": 1028, "max_position_embeddings": 3072,
               "num_channels": 9}  # fmt: skip
DIA = {"model_type": "dia", "encoder_config": DIA_ENCODER, "decoder_config": DIA_DECODER, "torch_dtype": "float16",
       "delay_pattern": [0, 8, 9, 10, 11, 12, 13, 14, 15]}  # fmt: skip


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


def test_the_published_t5_from_its_file(tmp_path):
    published = T5 | {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 24,
                      "vocab_size": 32128}  # fmt: skip
    found, known = read(tmp_path, published), model_by_name("t5-xxl")
    assert (found.encoder, found.shipped, found.landed) == (known.encoder, known.shipped, known.landed)


def test_the_published_dia_from_its_file(tmp_path):
    found = read(tmp_path, DIA)
    assert parameter_count(found) == parameter_count(model_by_name("dia-1.6b"))
    assert read(tmp_path, without(DIA, "delay_pattern")) == read(tmp_path, DIA | {"delay_pattern": None}) == found


@pytest.mark.parametrize("content", [T5, DIA], ids=["t5", "dia"])
def test_what_landed_is_what_transformers_does(tmp_path, content):
    plans = {plan.fix: plan for plan in plan_all(Request(config=read(tmp_path, content), length=64))}
    assert plans["upstream"].status == "runs"
    assert plans["upstream"].total_bytes == plans["as_shipped"].total_bytes


@pytest.mark.parametrize(
    ("projection", "gated", "activation"),
    [("relu", False, "fused"), ("gated-gelu", True, "gelu_new"), ("gelu", False, "fused"),
     ("gated-silu", True, "fused"), ("gelu_new", False, "gelu_new")],
)  # fmt: skip
def test_t5_s_feed_forward_is_read(tmp_path, projection, gated, activation):
    stack = read(tmp_path, T5 | {"feed_forward_proj": projection}).encoder
    assert (stack.gated, stack.activation) == (gated, activation)
    assert not read(tmp_path, without(T5, "feed_forward_proj")).encoder.gated


def test_a_stack_of_a_billion_layers_is_refused_at_once(tmp_path):
    for content in (LLAMA | {"num_hidden_layers": 10**9}, {"name": "x", "decoder": DECODER | {"tables": 10**9}}):
        with pytest.raises(ParameterError, match="is 1000000000; a plan goes through each, and takes 1000 at most"):
            read(tmp_path, content)
    assert read(tmp_path, LLAMA | {"num_hidden_layers": 1000}).decoder.layers == 1000


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
        (DIA | {"delay_pattern": [0, 8, 9]}, "has 3 delays, 'num_channels' of decoder_config is 9; give one delay per"),
        (DIA | {"delay_pattern": 9}, "'delay_pattern' is 9; expected a list of integers"),
        (DIA | {"delay_pattern": [-1] * 9}, "expected a list of integers, 0 or more"),
        (DIA | {"delay_pattern": [True] * 9}, "expected a list of integers, 0 or more"),
        (without(DIA, "delay_pattern") | {"decoder_config": DIA_DECODER | {"num_channels": 4}}, "has 9 delays"),
        (T5 | {"feed_forward_proj": 5}, "'feed_forward_proj' is 5; expected one of relu, gelu"),
        (T5 | {"feed_forward_proj": None}, "'feed_forward_proj' is None; expected one of"),
        (T5 | {"feed_forward_proj": "gated"}, "'feed_forward_proj' is 'gated'; expected one of"),
        (T5 | {"feed_forward_proj": "open-gelu"}, "alone or after 'gated-'"),
        (T5 | {"feed_forward_proj": "gated-gelu-new"}, "alone or after 'gated-'"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, content, message):
    with pytest.raises(ParameterError) as found:
        read(tmp_path, content)
    assert message in str(found.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ParameterError, match=r"cannot be read: No such file or directory; give a JSON file"):
        read_config(tmp_path / "none.json")
