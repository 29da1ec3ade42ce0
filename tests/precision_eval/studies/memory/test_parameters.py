"""Parameter counts: by hand, as published, and against real modules without memory."""

import dataclasses
import warnings

import pytest
import torch
from torch import nn

from precision_eval.core.errors import UnknownNameError
from precision_eval.studies.memory import MODELS, ModelConfig, Stack, model_by_name, parameter_count
from precision_eval.studies.memory.hugging_face import READERS
from precision_eval.studies.memory.models import layer_parameters, parameter_groups

TINY = Stack(layers=1, width=4, heads=2, kv_heads=1, head_dim=2, mlp_width=8, vocabulary=10, max_length=16)


def test_a_tiny_stack_by_hand():
    # q 4·4, k and v 4·2 each, o 4·4; two MLP inputs 4·8 each and its output 8·4; norms 4 + 4 and 4 at the end
    assert layer_parameters(TINY) == {"linear": 16 + 8 + 8 + 16 + 32 + 32, "mlp_out": 32, "norms": 8}
    assert parameter_groups(ModelConfig(name="t", source="", decoder=TINY)) == {
        "linear": 112 + 40, "mlp_out": 32, "norms": 12,
    }  # fmt: skip


@pytest.mark.parametrize("config", MODELS, ids=lambda config: config.name)
def test_the_published_count(config):
    published = config.published_parameters
    unit = 10**6 if config.name == "dia-1.6b" else 10**7 if config.name == "t5-xxl" else 10**8
    assert published % unit == 0
    assert round(parameter_count(config) / unit) == published // unit


def stack_module(stack):
    """A stack as modules, written without the formulas."""
    with torch.device("meta"):
        inner, cached = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
        layers = [
            nn.ModuleList(
                [
                    nn.Linear(stack.width, inner + 2 * cached, bias=False),
                    nn.Linear(inner, stack.width, bias=False),
                    *[nn.Linear(stack.width, stack.mlp_width, bias=False) for _ in range(2)],
                    nn.Linear(stack.mlp_width, stack.width, bias=False),
                    nn.RMSNorm(stack.width),
                    nn.RMSNorm(stack.width),
                ]
            )
            for _ in range(stack.layers)
        ]
        ends = [nn.Embedding(stack.vocabulary, stack.width), nn.RMSNorm(stack.width)]
        if stack.outputs:
            ends.append(nn.Linear(stack.width, stack.outputs, bias=False))
        if stack.positions == "learned":
            ends.append(nn.Embedding(stack.max_length, stack.width))
        if stack.condition_width:
            ends.append(nn.Linear(stack.condition_width, stack.width, bias=False))
    return nn.ModuleList([*layers, *ends])


def counted(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("stack", [TINY, dataclasses.replace(TINY, outputs=10), MODELS[0].decoder])
def test_against_modules_on_the_meta_device(stack):
    assert parameter_count(ModelConfig(name="t", source="", decoder=stack)) == counted(stack_module(stack))


def test_ignored_kv_heads_would_be_noticed():
    ignored = dataclasses.replace(TINY, kv_heads=TINY.heads)
    assert parameter_count(ModelConfig(name="t", source="", decoder=ignored)) != counted(stack_module(TINY))


def test_against_the_case_s_own_class():
    from precision_eval.cases.systems.metavoice import SIZES
    from precision_eval.cases.systems.metavoice_model import MetaVoice, StaticCache

    size = SIZES["full"]
    empty = torch.empty((2, size.heads, size.slots, size.head_dim), device="meta")
    model = MetaVoice(size, [StaticCache(empty, empty, first_slot=None) for _ in range(size.layers)])
    assert parameter_count(model_by_name("metavoice-1b")) == counted(model)


def hugging_face(name, config, model):
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # transformers' own
        built = getattr(transformers, config)(**HUGGING_FACE[name])
        return built.to_dict(), getattr(transformers, model)(built)


_SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "intermediate_size": 80, "vocab_size": 100, "max_position_embeddings": 64}  # fmt: skip
HUGGING_FACE = {
    "dia": {},
    "t5": {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 24, "vocab_size": 32128,
           "feed_forward_proj": "gated-gelu"},
    "t5-relu": {"d_model": 32, "d_ff": 64, "d_kv": 4, "num_heads": 4, "num_layers": 2, "vocab_size": 50},
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100},
    "llama": _SMALL,
    "llama-tied": _SMALL | {"tie_word_embeddings": True, "head_dim": 16},
    "mistral": _SMALL,
    "qwen2": _SMALL,
    "qwen3": _SMALL,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config", "model"),
    [
        ("dia", "DiaConfig", "DiaForConditionalGeneration"),
        ("t5", "T5Config", "T5EncoderModel"),
        ("t5-relu", "T5Config", "T5EncoderModel"),
        ("gpt2", "GPT2Config", "GPT2LMHeadModel"),
        ("llama", "LlamaConfig", "LlamaForCausalLM"),
        ("llama-tied", "LlamaConfig", "LlamaForCausalLM"),
        ("mistral", "MistralConfig", "MistralForCausalLM"),
        ("qwen2", "Qwen2Config", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3Config", "Qwen3ForCausalLM"),
    ],
)
def test_against_transformers(name, config, model):
    data, built = hugging_face(name, config, model)
    read = READERS[data["model_type"]]("config.json", data)
    assert parameter_count(read) == counted(built)
    published = {"dia": "dia-1.6b", "t5": "t5-xxl"}.get(name)
    if published:
        assert parameter_count(model_by_name(published)) == counted(built)


def test_an_unknown_model_is_named():
    with pytest.raises(UnknownNameError, match="did you mean metavoice-1b"):
        model_by_name("metavoice")
