import contextlib

import pytest
import torch
import torch._dynamo  # which lists torch's functions: before a test patches one
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.systems.dia import D4790DD, DECODER_SIZES, DIA_DECODE, DIA_DECODE_PR45, DIA_ENCODE
from precision_eval.cases.systems.dia_model import Dense, DiaDecoder, Rotary
from precision_eval.fixes import FIXES, fix_by_id

# torch says so once per process, where its norm gives back a narrower dtype than its gain's
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

DIA = {case.id: case for case in (DIA_DECODE, DIA_DECODE_PR45, DIA_ENCODE)}
EAGER = [fix.id for fix in FIXES if "eager" in fix.modes]
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
RAISED = (
    "Expected query, key, and value to have the same dtype, but got query.dtype: {} key.dtype: {} and value.dtype: {}"
)

#: Autocast of the CPU takes bfloat16 and float32 only in functions that promote, such as the rotation's cat.
AUTOCAST = {"autocast": "Unexpected floating ScalarType in at::autocast::prioritize"}

#: What raises on the CPU, by what nn.RMSNorm returns for a narrower input than its gain. Every other fix passes.
RAISES = {
    ("dia-decode", "wide"): {"as_shipped": RAISED.format("float", "c10::Half", "c10::Half")},
    ("dia-decode", "narrow"): AUTOCAST,
    ("dia-decode-pr45", "wide"): {},
    ("dia-decode-pr45", "narrow"): {"as_shipped": RAISED.format("c10::BFloat16", "float", "float")},
    ("dia-encode", "wide"): {},
    ("dia-encode", "narrow"): AUTOCAST,
}


def norm_returns():
    found = nn.RMSNorm(8, dtype=torch.float32)(torch.ones(1, 8, dtype=torch.float16)).dtype
    return {torch.float32: "wide", torch.float16: "narrow"}[found]


@contextlib.contextmanager
def norm_that_returns(kind):
    """Have torch.rms_norm return what the torch versions of that kind return."""
    real = torch.rms_norm

    def rms_norm(input, normalized_shape, weight=None, eps=None):
        dtype = input.dtype if weight is None else torch.promote_types(input.dtype, weight.dtype)
        normed = real(input.to(dtype), normalized_shape, None if weight is None else weight.to(dtype), eps)
        return normed if kind == "wide" else normed.to(input.dtype)

    torch.rms_norm = rms_norm
    try:
        yield
    finally:
        torch.rms_norm = real


def run(fix_id, built):
    with fix_by_id(fix_id).applied(built.model) as call:
        return call(*call.prepare(built.inputs))


def failures(case_id, fixes=tuple(EAGER), device="cpu"):
    found = {}
    for fix_id in fixes:
        built = DIA[case_id].build("tiny", device=device, seed=0)
        try:
            output = run(fix_id, built)
        except RuntimeError as error:
            found[fix_id] = str(error)
        else:
            assert torch.isfinite(output).all(), fix_id
    return found


def agree(found, expected):
    assert found.keys() == expected.keys()
    for fix_id, message in expected.items():
        assert message in found[fix_id].replace("struct ", "")


def test_what_torchs_norm_returns_by_version():
    found = norm_returns()
    if VERSION <= (2, 6):
        assert found == "wide"
    elif VERSION >= (2, 8):
        assert found == "narrow"


@pytest.mark.parametrize(("case_id", "kind"), RAISES)
def test_status_of_every_fix_under_either_norm(case_id, kind):
    with norm_that_returns(kind):
        assert norm_returns() == kind
        agree(failures(case_id), RAISES[case_id, kind])


@pytest.mark.cuda
@pytest.mark.parametrize(("case_id", "kind"), RAISES)
def test_status_on_cuda(case_id, kind):
    fixes = [fix_id for fix_id in EAGER if fix_id != "autocast"]
    expected = {fix_id: message for fix_id, message in RAISES[case_id, kind].items() if fix_id != "autocast"}
    with norm_that_returns(kind):
        agree(failures(case_id, fixes, "cuda"), expected)


@pytest.mark.parametrize("case_id", DIA)
def test_what_landed(case_id):
    built = DIA[case_id].build("tiny", device="cpu", seed=0)
    assert built.model.landed is not None
    assert built.model.landed.split()[1] in DIA[case_id].source
    with built.model.upstream():
        assert all(module.is_upstream for module in built.model.modules() if hasattr(module, "is_upstream"))
    assert not any(getattr(module, "is_upstream", False) for module in built.model.modules())
    twin = built.model.in_float64()
    expected = twin(*built.inputs)
    with twin.upstream():
        torch.testing.assert_close(twin(*built.inputs), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["wide", "narrow"])
def test_pr127_brings_every_operand_to_half(kind, monkeypatch):
    seen = []
    real = F.scaled_dot_product_attention

    def spy(query, key, value, *rest, **options):
        seen.append({query.dtype, key.dtype, value.dtype})
        return real(query, key, value, *rest, **options)

    with norm_that_returns(kind):
        decoder, encoder = (DIA[name].build("tiny", device="cpu", seed=0) for name in ("dia-decode", "dia-encode"))
        text_key = decoder.model.blocks[0].cross_attention.cache.key
        before, address = text_key.dtype, text_key.data_ptr()
        assert before is (torch.float32 if kind == "wide" else torch.float16)  # as the encoder's norm left it
        monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
        for built in (decoder, encoder):
            with torch.no_grad(), built.model.upstream():
                built.model(*built.inputs)
    assert len(seen) == 6
    assert all(dtypes == {torch.float16} for dtypes in seen)
    assert (text_key.dtype, text_key.data_ptr()) == (before, address)


def test_stored_dtypes_as_shipped():
    for case_id, weights, embedding, cache in (
        ("dia-decode", torch.float16, torch.float16, torch.float16),
        ("dia-decode-pr45", torch.float32, torch.bfloat16, torch.float32),
    ):
        model = DIA[case_id].build("tiny", device="cpu", seed=0).model
        layer = model.blocks[0]
        assert {layer.self_attention.query.weight.dtype, model.head.weight.dtype} == {weights}
        assert model.compute_dtype is model.embeddings[0].weight.dtype is embedding
        assert layer.self_attention.cache.key.dtype is cache
        assert {layer.self_norm.weight.dtype, model.norm.weight.dtype} == {torch.float32}


def test_the_published_sizes():
    with torch.device("meta"):
        decoder = DiaDecoder(DECODER_SIZES["full"], D4790DD)
    cache = decoder.blocks[0].self_attention.cache
    assert cache.key.shape == (2, 4, 3072, 128)
    assert len(decoder.layers) * 2 * cache.key.numel() * 2 == 226_492_416  # bytes in half
    assert decoder.blocks[0].cross_attention.cache.key.shape == (2, 16, 1024, 128)
    assert decoder.head.weight.shape == (2048, 9, 1028)


def test_padding_is_hidden():
    built = DIA["dia-decode"].build("tiny", device="cpu", seed=0)
    before = run("full_float32", built)
    for layer in built.model.blocks:
        cache = layer.cross_attention.cache
        cache.key[:, :, 18:], cache.value[:, :, 18:] = 3.0, 3.0  # 18 of 24 bytes are in use
        layer.self_attention.cache.key[:, :, 48:] = 3.0  # slots not yet filled
    assert torch.equal(run("full_float32", built), before)
    built.model.blocks[0].cross_attention.cache.value[:, :, 17] += 1.0
    assert not torch.equal(run("full_float32", built), before)


@pytest.mark.parametrize("case_id", DIA)
def test_dynamo_traces_the_model_whole(case_id):
    built = DIA[case_id].build("tiny", device="cpu", seed=0)
    model = built.model.float()
    with torch.no_grad():
        traced = torch.compile(model, backend="eager", fullgraph=True)(*built.inputs)
        assert torch.equal(traced, model(*built.inputs))


def test_the_message_of_the_compiled_model():
    name = "dia-decode" if norm_returns() == "wide" else "dia-decode-pr45"
    built = DIA[name].build("tiny", device="cpu", seed=0)
    with pytest.raises(RuntimeError, match="Expected query, key, and value to have the same dtype"):
        run_compiled("as_shipped", built)


def run_compiled(fix_id, built):
    with fix_by_id(fix_id).applied(built.model, mode="compiled") as call:
        return call(*call.prepare(built.inputs))


@torch.no_grad()
def test_drift_is_that_of_the_format():
    built = DIA_DECODE.build("tiny", device="cpu", seed=0)
    reference = built.model.in_float64()(*built.inputs)
    found = {}
    for fix_id in ("query_to_half", "kv_to_query", "full_float32", "bfloat16", "float16", "upstream"):
        with fix_by_id(fix_id).applied(built.model) as call:
            found[fix_id] = (
                (call(*built.inputs).double() - reference).square().mean() / reference.square().mean()
            ).sqrt()
    assert found["full_float32"] < 2e-6
    assert 3e-3 < found["bfloat16"] < 6e-2
    for fix_id in ("query_to_half", "kv_to_query", "float16", "upstream"):
        assert 5e-5 < found[fix_id] < 8e-3, fix_id
    assert found["bfloat16"] > 3 * found["float16"]


def test_projections_by_hand():
    dense = Dense((2,), (1, 2), D4790DD)
    dense.weight.data = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]], dtype=torch.float16)
    found = dense(torch.tensor([[1.0, 10.0]]))
    assert found.tolist() == [[[31.0, 42.0]]]
    assert found.dtype is torch.float32  # the input's, as in the source


def test_rotation_by_hand_and_what_pr127_changes():
    rotary = Rotary(2, D4790DD)
    x = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float16)  # (B, T, H, D)
    positions = torch.tensor([1])
    shipped = rotary(x, positions, torch.float16)
    assert shipped.dtype is torch.float16
    assert torch.allclose(
        shipped.flatten().float(), torch.tensor([1.0, 1.0]).mul(torch.tensor([0.5403, 0.8415])), atol=4e-4
    )
    assert rotary(x.float(), positions, torch.float16).dtype is torch.float32
    with rotary.upstream():
        assert rotary(x.float(), positions, torch.float16).dtype is torch.float16
