"""Sites, rules and policies as data."""

from dataclasses import asdict

import pytest

from precision_eval.studies.sensitivity.policies import MixedPolicy
from precision_eval.studies.sensitivity.targets import DIA_RULES, T5_RULES, VOICE_RULES
from precision_eval.trace.sites import Rule, SensitivityError, StorageSite, sites_of

SITES = (StorageSite("0", "q"), StorageSite("0", "norm"), StorageSite("1", "q"), StorageSite("all", "head"))


@pytest.mark.parametrize(
    ("rules", "path", "operation", "tag", "expected"),
    [
        (VOICE_RULES, "voice.blocks.2.attention.qkv", "mm", "", ["2.q", "2.k", "2.v"]),
        (VOICE_RULES, "voice.blocks.2.attention", "bmm", "scores", ["2.scores"]),
        (VOICE_RULES, "voice.blocks.2.attention", "mul", "", ["2.positions"]),
        (VOICE_RULES, "voice.blocks.0", "add", "", ["0.residual"]),
        (VOICE_RULES, "voice.blocks.0", "silu", "", ["0.mlp"]),
        (T5_RULES, "encoder.encoder.block.3.layer.1.DenseReluDense.wo", "mm", "", ["3.mlp"]),
        (T5_RULES, "encoder.encoder.block.3.layer.1", "add", "", ["3.residual"]),
        (
            T5_RULES,
            "encoder.encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            "mm",
            "",
            ["all.positions"],
        ),
        (DIA_RULES, "dia.model.decoder.layers.1.cross_attention", "bmm", "softmax", ["1.cross.softmax"]),
        (DIA_RULES, "dia.model.decoder.norm", "mul", "", ["all.norm"]),
    ],
)
def test_operations_of_the_targets_belong_where_the_table_says(rules, path, operation, tag, expected):
    assert [site.id for site in sites_of(rules, path, operation, tag)] == expected


def test_the_first_rule_counts_and_no_rule_is_an_error():
    rules = (Rule("a", "q"), Rule("a|b", "k"))
    assert sites_of(rules, "x.a", "mm")[0].role == "q"
    assert sites_of(rules, "x.b", "mm")[0].role == "k"
    with pytest.raises(SensitivityError, match=r"operation mm in the module 'x.c' belongs to no site; add a rule"):
        sites_of(rules, "x.c", "mm")


def test_a_policy_says_what_every_site_stores_in():
    policy = MixedPolicy(held=("norm", "1.q"), cache="float16")
    formats = {site.id: policy.format_of(site) for site in (*SITES, StorageSite("0", "cache"))}
    assert formats == {
        "0.q": "bfloat16", "0.norm": "float32", "1.q": "float32", "all.head": "bfloat16", "0.cache": "float16",
    }  # fmt: skip
    assert policy.id == "bf16, f32: norm 1.q, cache f16"
    assert MixedPolicy.from_dict(asdict(policy)) == policy
