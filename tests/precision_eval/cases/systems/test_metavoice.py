"""The decoder: sizes, dtypes as shipped, and equality with an independent float64 implementation."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.nn import functional as F

from precision_eval.cases.systems import metavoice
from precision_eval.cases.systems.metavoice import SIZES, Case
from precision_eval.cases.systems.metavoice_model import MetaVoice, StaticCache, build_metavoice, guided_probabilities
from precision_eval.fixes.storage import store_as

CASES = {w.id: w for w in vars(metavoice).values() if isinstance(w, Case) and w.id != "metavoice-t4"}
GPU_PATH = ("metavoice-decode", "metavoice-prefill", "metavoice-decode-slice")
CPU_PATH = ("metavoice-decode-float32", "metavoice-prefill-float32")
SENTENCE = (
    "Expected query, key, and value to have the same dtype, but got query.dtype: float "
    "key.dtype: c10::Half and value.dtype: c10::Half instead."
)


def build(case_id, size="tiny", seed=0):
    return CASES[case_id].build(size, device="cpu", seed=seed)


def twin(built):
    tokens, speaker, positions = built.inputs
    return built.model.in_float64(), (tokens, speaker.double(), positions)


# --- an independent implementation: numpy, one position and one head at a time, no mask, no cache tensor operations


def norm(x, gain):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * gain


def attention_by_heads(x, weights, keys, values, positions, heads):
    """Each position sees the cache's rows up to its own; keys, values: (H, S, D), written in place."""
    dim = x.shape[-1]
    out = np.zeros_like(x)
    projected = x @ weights["query_key_value"].T
    for i, position in enumerate(positions):
        for h, part in enumerate(np.split(np.arange(dim), heads)):
            keys[h, position] = projected[i, dim + part]
            values[h, position] = projected[i, 2 * dim + part]
            scores = keys[h, : position + 1] @ projected[i, part] / np.sqrt(len(part))
            shares = np.exp(scores - scores.max())
            out[i, part] = shares / shares.sum() @ values[h, : position + 1]
    return out @ weights["output"].T


def independent_logits(built):
    tokens, speaker, positions = (x.double().numpy() if x.is_floating_point() else x.numpy() for x in built.inputs)
    state = {name: value.double().numpy() for name, value in built.model.state_dict().items()}
    rows = []
    for row in range(2):
        x = state["token_embedding.weight"][tokens[row]] + state["position_embedding.weight"][positions]
        if row == 0:
            x = x + state["speaker_projection.weight"] @ speaker[0]
        for index, layer in enumerate(built.model.layers):
            own = {k.split(".", 2)[2]: v for k, v in state.items() if k.startswith(f"layers.{index}.")}
            cache = layer.attention.cache
            keys, values = (x[row].double().numpy().copy() for x in (cache.key, cache.value))
            weights = {k: own[f"attention.{k}.weight"] for k in ("query_key_value", "output")}
            normed = norm(x, own["attention_norm.weight"])
            x = x + attention_by_heads(normed, weights, keys, values, positions, built.model.size.heads)
            normed = norm(x, own["feed_forward_norm.weight"])
            gate = normed @ own["feed_forward.gate.weight"].T
            up = normed @ own["feed_forward.up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ own["feed_forward.down.weight"].T
        rows.append(norm(x, state["norm.weight"]) @ state["head.weight"].T)
    return torch.from_numpy(np.stack(rows))


@pytest.mark.parametrize("case_id", CASES)
def test_float64_equals_an_independent_implementation(case_id):
    built = build(case_id)
    expected = independent_logits(built)
    model, inputs = twin(built)
    logits, probabilities = model(*inputs)
    assert logits.dtype is probabilities.dtype is torch.float64
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
    assert torch.equal(probabilities, guided_probabilities(logits, precision=torch.float64))


FAULTS = {
    "mask one slot too wide": lambda model: model.causal_mask.copy_(torch.ones_like(model.causal_mask).tril(1)),
    "mask one slot too narrow": lambda model: model.causal_mask.copy_(torch.ones_like(model.causal_mask).tril(-1)),
    "dropped key": lambda model: model.causal_mask[:, 1].fill_(False),
    "speaker in both rows": lambda model: model.has_speaker.fill_(True),
    "one gain": lambda model: model.norm.weight[0].mul_(1 + 1e-8),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("case_id", ["metavoice-decode", "metavoice-prefill"])
def test_a_planted_fault_breaks_the_equality(case_id, fault):
    built = build(case_id)
    expected = independent_logits(built)
    model, inputs = twin(built)
    FAULTS[fault](model)
    assert (model(*inputs)[0] - expected).abs().max() > 1e-10


def test_prefill_then_decode_equals_a_longer_prefill():
    built = build("metavoice-prefill")
    stepwise, (tokens, speaker, positions) = twin(built)
    whole = copy.deepcopy(stepwise)
    first = stepwise(tokens[:, :-1], speaker, positions[:-1])[0]
    last, probabilities = stepwise(tokens[:, -1:], speaker, positions[-1:])
    expected, expected_probabilities = whole(tokens, speaker, positions)
    torch.testing.assert_close(torch.cat([first, last], dim=1), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(probabilities, expected_probabilities, rtol=0, atol=1e-10)


def test_index_put_and_slice_write_the_same():
    indexed, sliced = build("metavoice-decode"), build("metavoice-decode-slice")
    with store_as(indexed.model, torch.float16), store_as(sliced.model, torch.float16):
        found = [built.model(built.inputs[0], built.inputs[1].half(), built.inputs[2]) for built in (indexed, sliced)]
        for one, other in zip(indexed.model.layers, sliced.model.layers, strict=True):
            assert torch.equal(one.attention.cache.key, other.attention.cache.key)
            assert torch.equal(one.attention.cache.value, other.attention.cache.value)
    assert torch.equal(found[0][0], found[1][0])


def test_only_the_slice_casts():
    value = torch.full((2, 1, 1, 4), 1.0 + 2.0**-12)  # not a float16
    caches = [StaticCache(*torch.zeros(2, 2, 1, 8, 4).half(), first_slot=first) for first in (None, 3)]
    with pytest.raises(RuntimeError, match="Index put requires the source and destination dtypes match"):
        caches[0].write(torch.tensor([3]), value, value)
    caches[1].write(torch.tensor([3]), value, value)
    assert caches[1].key[:, :, 3].eq(1).all()
    assert caches[1].value.count_nonzero() == 8


@pytest.mark.parametrize("case_id", CASES)
def test_a_call_is_repeatable_and_writes_only_its_own_slots(case_id):
    built = build(case_id)
    model, inputs = twin(built)
    before = [layer.attention.cache.key.clone() for layer in model.layers]
    first, second = model(*inputs), model(*inputs)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    for layer, old in zip(model.layers, before, strict=True):
        changed = (layer.attention.cache.key != old).any(-1).all(1).all(0)
        assert changed.nonzero().flatten().tolist() == built.inputs[2].tolist()


@pytest.mark.parametrize("case_id", CASES)
def test_dtypes_as_shipped(case_id):
    built = build(case_id)
    weights, speaker = (torch.float32,) * 2 if case_id in CPU_PATH else (torch.bfloat16, torch.float16)
    assert {p.dtype for p in built.model.parameters()} == {weights}
    assert {b.dtype for b in built.model.buffers()} == {torch.float16, torch.bool}
    assert [x.dtype for x in built.inputs] == [torch.int64, speaker, torch.int64]
    assert not built.model.training


@pytest.mark.parametrize("case_id", GPU_PATH)
def test_gpu_path_raises_in_the_speakers_linear(case_id):
    built = build(case_id)
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype, but got: c10::Half != c10::BFl"):
        built.model(*built.inputs)


@pytest.mark.parametrize("case_id", CPU_PATH)
def test_cpu_path_raises_the_reported_sentence(case_id):
    built = build(case_id)
    with pytest.raises(RuntimeError) as caught:
        built.model(*built.inputs)
    assert str(caught.value) == SENTENCE


@pytest.fixture
def attended(monkeypatch):
    seen = []
    original = F.scaled_dot_product_attention

    def record(query, key, value, attn_mask):
        seen.append([(tuple(x.shape), x.dtype) for x in (query, key, value, attn_mask)])
        return original(query, key, value, attn_mask=attn_mask)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    return seen


@pytest.mark.parametrize("case_id", ["metavoice-decode", "metavoice-prefill", *CPU_PATH])
def test_attention_is_given_what_187_reports(case_id, attended, monkeypatch):
    """At the published attention; the GPU path under fake tensors, as the compiler sees it."""
    size = dataclasses.replace(SIZES["full"], layers=1, hidden=64, vocabulary=8)
    monkeypatch.setitem(SIZES, "published", size)
    built = build_metavoice("published", device="cpu", seed=0, **CASES[case_id].make.keywords)
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        model, inputs = copy.deepcopy(built.model), copy.deepcopy(built.inputs)
    with mode, pytest.raises(RuntimeError, match=SENTENCE):
        model(*inputs)
    s = 64 if "prefill" in case_id else 1
    cache = ((2, 16, 2048, 128), torch.float16)
    assert attended == [[((2, 16, s, 128), torch.float32), cache, cache, ((1, 1, s, 2048), torch.bool)]]


def test_published_size():
    size = SIZES["full"]
    assert (size.dim, size.hidden, size.hidden / size.dim) == (2048, 5632, SIZES["cpu"].hidden / SIZES["cpu"].dim)
    empty = torch.empty(2, 2, 16, 2048, 128, dtype=torch.float16, device="meta")
    model = MetaVoice(size, [StaticCache(*empty.clone(), first_slot=None) for _ in range(24)])
    cache_bytes = sum(b.numel() * b.element_size() for b in model.buffers() if b.is_floating_point())
    assert cache_bytes == 24 * 2 * (2 * 16 * 2048 * 128) * 2  # 0.8 GB
