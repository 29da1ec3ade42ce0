"""Each of the five systems, as shipped, gives its true cause by itself."""

import pytest

from precision_eval.cases.systems import case_by_id
from precision_eval.doctor.examination import examine


def told(case, **options):
    built = case_by_id(case).build("tiny", device="cpu", seed=0)
    return examine(built.model, *built.inputs, **{"fixes": False, "compiled": False} | options)


def operands_of(finding):
    return {operand.name: (operand.dtype, operand.brought_by) for operand in finding.operands}


@pytest.mark.parametrize(
    ("case", "first", "operands", "raised", "change"),
    [
        (
            "metavoice-decode", ("raise", "linear", "speaker_projection"),
            {"input": ("float16", "input speaker"), "weight": ("bfloat16", "parameter speaker_projection.weight")},
            "linear", "+ self.speaker_projection(speaker.to(self.speaker_projection.weight.dtype))",
        ),
        (
            "metavoice-decode-float32", ("downcast", "__setitem__", "layers.0.attention"),
            {"cache": ("float16", "buffer layers.0.attention.cache.key")}, "scaled_dot_product_attention", "",
        ),
        (
            "imaginairy-time-embed", ("raise", "linear", "time_embed.0"),
            {"weight": ("float16", "parameter time_embed.0.weight")}, "linear",
            "self.embedded(timesteps).to(self.time_embed[0].weight.dtype)",
        ),
        pytest.param(
            "cogvideo-t5-encoder", ("promotion", "add", "blocks.0"), {}, "FusedNorm", "", marks=pytest.mark.slow
        ),
    ],
)  # fmt: skip
def test_a_system_as_shipped_gives_its_cause_by_itself(case, first, operands, raised, change):
    found = told(case)
    split = found.first_split
    assert (split.kind, split.op, split.module) == first
    assert operands.items() <= operands_of(split).items()
    assert raised in (found.raised.op, found.raised.module_class)
    assert change in found.patch.diff


def test_metavoice_gpu_path_fails_elsewhere_when_compiled():
    found = told("metavoice-decode", compiled=True)
    assert found.compiled.status == "raised"
    assert found.compiled.differs
    assert "Expected query, key, and value to have the same dtype" in found.compiled.message


def test_dia_the_norms_float32_gain():
    found = told("dia-decode")
    first = found.first_split
    assert (first.op, first.module, first.module_class) == ("rms_norm", "layers.0.self_norm", "RMSNorm")
    assert operands_of(first)["weight"] == ("float32", "parameter layers.0.self_norm.weight")
    if found.status == "passed":  # torch 2.8 and later: its norm returns half
        assert (first.kind, first.severity) == ("mixed_norm", "risk")
        assert "2.6" in first.reason
    else:
        assert (first.kind, found.raised.op) == ("promotion", "scaled_dot_product_attention")


def test_dia_before_pr45_the_cache_promotes_the_key():
    found = told("dia-decode-pr45")
    if found.status == "passed":  # torch 2.6: its norm returns float32, and so is the query
        assert (found.first_split.op, found.first_split.kind) == ("rms_norm", "promotion")
        return
    first = found.first_split
    assert (first.op, first.module) == ("cat", "layers.0.self_attention")
    assert ("float32", "buffer layers.0.self_attention.cache.key") in operands_of(first).values()
    query, key = (operand.dtype for operand in found.raised.operands[:2])
    assert (query, key) == ("bfloat16", "float32")


def test_t4_nothing_disagrees_and_autocast_copies_the_weights():
    found = told("metavoice-t4")
    assert (found.status, found.faults, found.base_dtype) == ("passed", (), "float32")
    assert found.recast["to"] == ["float16"]
    assert found.recast["copies_bytes"] * 2 == found.recast["stored_bytes"]


def test_the_stock_norm_has_no_fault():
    assert told("cogvideo-t5-encoder-stock").faults == ()


def test_dias_encoder_has_one_only_where_torchs_norm_widens():
    found = told("dia-encode")
    assert (found.status, found.first_split.op) == ("passed", "rms_norm")
    assert bool(found.faults) == (found.first_split.result == "float32")  # torch 2.6: attention runs in float32
