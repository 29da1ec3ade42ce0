import copy

import pytest
import torch

from precision_eval.cases.systems.dia import D4790DD, DIA_DECODE, DIA_DECODE_PR45, DIA_ENCODE
from precision_eval.cases.systems.dia_model import Dense, Rotary
from precision_eval.fixes import fix_by_id

# torch says so once per process, where its norm gives back a narrower dtype than its gain's
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

TOLERANCE = 1e-10


def built(case, seed=0):
    built = case.build("tiny", device="cpu", seed=seed)
    return built.model.in_float64(), built.inputs


# An implementation of its own, head by head and row by row, without SDPA, tensordot or torch's norm.


def normed(x, norm):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight


def turned(x, position, timescale):
    """Turn the halves of x (…, D) as the real and imaginary parts of complex numbers."""
    half = x.shape[-1] // 2
    number = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * position / timescale)
    return torch.cat((number.real, number.imag), -1)


def attention(query, key, value):
    """One head's attention of one query (D,) to keys and values (S, D), scale 1."""
    weight = (key @ query).exp()
    return (weight[:, None] * value).sum(0) / weight.sum()


def fed(x, feed):
    gate, up = (x @ feed.gate_up.weight[:, part] for part in (0, 1))
    return (gate / (1 + (-gate).exp()) * up) @ feed.down.weight


def joined(heads, output):
    """Project a list of heads (D,) to (W,)."""
    return sum(head @ weight for head, weight in zip(heads, output.weight, strict=True))


def self_attended(x, layer, position):
    part, cache = layer.self_attention, layer.self_attention.cache
    query, key, value = ([x @ w for w in p.weight.unbind(1)] for p in (part.query, part.key, part.value))
    timescale = part.rotary.timescale
    groups, copies = len(query) // len(key), cache.key.shape[1] // len(key)
    rows = []
    for row in range(2):
        heads = []
        for head, wanted in enumerate(query):
            own = head // groups
            keys = cache.key[row, own * copies].clone()[: position + 1]
            values = cache.value[row, own * copies].clone()[: position + 1]
            keys[position] = turned(key[own][row], position, timescale)
            values[position] = value[own][row]
            heads.append(attention(turned(wanted[row], position, timescale), keys, values))
        rows.append(joined(heads, part.output))
    return torch.stack(rows)


def cross_attended(x, layer, position, in_use):
    part, cache = layer.cross_attention, layer.cross_attention.cache
    rows = []
    for row in range(2):
        heads = [
            attention(turned(x[row] @ weight, position, part.rotary.timescale), key[in_use], value[in_use])
            for weight, key, value in zip(part.query.weight.unbind(1), cache.key[row], cache.value[row], strict=True)
        ]
        rows.append(joined(heads, part.output))
    return torch.stack(rows)


def decoded(model, tokens):
    position, in_use = model.size.filled - 1, model.text_mask[0, 0, 0]
    x = sum(table.weight[tokens[:, 0, channel]] for channel, table in enumerate(model.embeddings))
    for layer in model.layers:
        x = x + self_attended(normed(x, layer.self_norm), layer, position)
        x = x + cross_attended(normed(x, layer.cross_norm), layer, position, in_use)
        x = x + fed(normed(x, layer.feed_norm), layer.feed_forward)
    return torch.einsum("bw,wcv->bcv", normed(x, model.norm), model.head.weight)[:, None]


def encoded(model, tokens, padding):
    x = model.embedding.weight[tokens]  # (B, S, W)
    for layer in model.layers:
        part, source = layer.self_attention, normed(x, layer.self_norm)
        mixed = torch.zeros_like(x)
        for row, head in ((r, h) for r in range(2) for h in range(part.query.weight.shape[1])):
            query, key, value = (source[row] @ p.weight[:, head] for p in (part.query, part.key, part.value))
            query, key = (
                torch.stack([turned(vector, at, part.rotary.timescale) for at, vector in enumerate(vectors)])
                for vectors in (query, key)
            )
            for at in range(len(query)):
                seen = padding[row] == padding[row, at]
                mixed[row, at] += attention(query[at], key[seen], value[seen]) @ part.output.weight[head]
        x = x + mixed
        x = x + fed(normed(x, layer.feed_norm), layer.feed_forward)
    return normed(x, model.norm)


def apart(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


COMPARATORS = [(DIA_DECODE, decoded), (DIA_DECODE_PR45, decoded), (DIA_ENCODE, encoded)]


@pytest.mark.parametrize(("case", "reference"), COMPARATORS)
@torch.no_grad()
def test_float64_twin_against_an_implementation_of_its_own(case, reference):
    model, inputs = built(case)
    expected = reference(model, *inputs)
    found = model(*inputs)
    assert found.dtype is torch.float64
    assert apart(found, expected) < TOLERANCE
    with model.upstream():
        assert apart(model(*inputs), expected) < TOLERANCE


def scaled_by_head_dim(model):
    for layer in model.layers:
        layer.self_attention.scale = layer.self_attention.query.weight.shape[-1] ** -0.5


def swapped_heads(model):
    weight = model.layers[0].self_attention.query.weight
    weight.data = weight.data.flip(1)


def turned_one_late(model):
    model.positions += 1


def interleaved_rotation(model):
    weight = model.layers[0].self_attention.query.weight
    weight.data = weight.data.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def gate_and_up_exchanged(model):
    weight = model.layers[0].feed_forward.gate_up.weight
    weight.data = weight.data.flip(1)


FAULTS = [scaled_by_head_dim, swapped_heads, turned_one_late, interleaved_rotation, gate_and_up_exchanged]


@pytest.mark.parametrize(("case", "reference"), COMPARATORS)
@pytest.mark.parametrize("plant", FAULTS)
@torch.no_grad()
def test_a_planted_fault_is_seen(plant, case, reference):
    model, inputs = built(case)
    faulty = copy.deepcopy(model)
    plant(faulty)
    if plant is turned_one_late and case is DIA_ENCODE:
        assert apart(faulty(*inputs), reference(model, *inputs)) < TOLERANCE  # rotation is relative, without a cache
    else:
        assert apart(faulty(*inputs), reference(model, *inputs)) > 1e-6


@torch.no_grad()
def test_a_step_in_the_wrong_slot_is_seen():
    model, inputs = built(DIA_DECODE)
    expected = decoded(model, *inputs)
    for layer in model.blocks:
        layer.self_attention.position -= 1
    assert apart(model(*inputs), expected) > 1e-6


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
