"""Each of the five systems, as shipped, gives its true cause by itself."""

from precision_eval.cases.systems import case_by_id
from precision_eval.doctor.examination import examine


def told(case, **options):
    built = case_by_id(case).build("tiny", device="cpu", seed=0)
    return examine(built.model, *built.inputs, **{"fixes": False, "compiled": False} | options)


def operands(finding):
    return {operand.name: (operand.dtype, operand.brought_by) for operand in finding.operands}


def test_metavoice_gpu_path_the_speaker_is_float16_and_the_weights_bfloat16():
    found = told("metavoice-decode")
    first = found.first_split
    assert (first.kind, first.op, first.module) == ("raise", "linear", "speaker_projection")
    assert operands(first) == {
        "input": ("float16", "input speaker"),
        "weight": ("bfloat16", "parameter speaker_projection.weight"),
    }
    assert found.base_dtype == "bfloat16"
    assert found.held[0].dtype == "float16"
    assert found.held[0].modules == ("layers.0.attention.cache", "layers.1.attention.cache")
    assert "+ self.speaker_projection(speaker.to(self.speaker_projection.weight.dtype))" in found.patch.diff
    assert found.patch.origin == "give input speaker in bfloat16; it is in float16"


def test_metavoice_gpu_path_fails_elsewhere_when_compiled():
    found = told("metavoice-decode", compiled=True)
    assert found.compiled.status == "raised"
    assert found.compiled.differs
    assert "Expected query, key, and value to have the same dtype" in found.compiled.message


def test_metavoice_cpu_path_slice_assignment_casts_and_attention_raises():
    found = told("metavoice-decode-float32")
    first = found.first_split
    assert (first.kind, first.place.text) == ("downcast", "self.key[:, :, self.first_slot : end] = key")
    assert operands(first)["cache"] == ("float16", "buffer layers.0.attention.cache.key")
    assert (found.raised.op, operands(found.raised)["query"][0]) == ("scaled_dot_product_attention", "float32")
    assert operands(found.raised)["key"] == ("float16", "buffer layers.0.attention.cache.key")


def test_dia_the_norms_float32_gain():
    found = told("dia-decode")
    first = found.first_split
    assert (first.op, first.module, first.module_class) == ("rms_norm", "layers.0.self_norm", "RMSNorm")
    assert operands(first)["weight"] == ("float32", "parameter layers.0.self_norm.weight")
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
    assert ("float32", "buffer layers.0.self_attention.cache.key") in operands(first).values()
    query, key = (operand.dtype for operand in found.raised.operands[:2])
    assert (query, key) == ("bfloat16", "float32")


def test_imaginairy_the_embedding_is_float32_and_the_linear_half():
    found = told("imaginairy-time-embed")
    first = found.first_split
    assert (first.kind, first.op, first.module) == ("raise", "linear", "time_embed.0")
    assert operands(first)["input"][0] == "float32"
    assert operands(first)["weight"] == ("float16", "parameter time_embed.0.weight")
    assert [step.place.function for step in first.operands[0].history][-1] == "timestep_embedding"
    assert "self.embedded(timesteps).to(self.time_embed[0].weight.dtype)" in found.patch.diff


def test_cogvideo_wo_makes_the_residual_float32_and_the_norm_refuses():
    found = told("cogvideo-t5-encoder")
    first = found.first_split
    assert (first.kind, first.op, first.module) == ("promotion", "add", "blocks.0")
    assert "linear with blocks.0.feed_forward.wo.weight" in [step.what for step in first.operands[1].history]
    assert (found.raised.module, found.raised.module_class) == ("blocks.1.attention_norm", "FusedNorm")
    assert operands(found.raised)["hidden"][0] == "float32"
    assert operands(found.raised)["weight"] == ("float16", "parameter blocks.1.attention_norm.weight")
    assert found.held[0].modules == ("blocks.0.feed_forward.wo", "blocks.1.feed_forward.wo")


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
