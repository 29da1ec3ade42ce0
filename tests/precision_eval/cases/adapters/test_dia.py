import copy

import pytest
import torch
import transformers
from own_dia import own_decoder, own_encoder
from torch.nn import functional as F

from precision_eval.cases.adapters.dia import DIA
from precision_eval.cases.modes import KeepingWide
from precision_eval.cases.systems.dia_model import DiaAttention
from precision_eval.fixes import fix_by_id

TOLERANCE = 1e-10
#: nn.Linear refuses the float32 that the norm's product has become; without a bias the CPU's words are the first.
LINEAR = r"(expected m1 and m2|mat1 and mat2 must|expected mat1 and mat2).* have the same dtype"


@pytest.fixture(scope="module")
def shared():
    return DIA.build("tiny", device="cpu", seed=0)


@pytest.fixture
def built(shared):
    return copy.deepcopy(shared)


def run(fix_id, built):
    with fix_by_id(fix_id).applied(built.model) as call:
        return call(*call.prepare(built.inputs))


def apart(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def test_the_split_is_dias(built):
    dia = built.model.dia
    assert type(dia) is transformers.DiaForConditionalGeneration
    gains = {name for name, p in dia.named_parameters() if p.dtype is torch.float32}
    assert gains == {name for name, _ in dia.named_parameters() if "norm" in name}
    assert all(p.dtype is torch.float16 for name, p in dia.named_parameters() if name not in gains)
    caches = [b for name, b in built.model.named_buffers() if name.startswith(("self_", "cross_"))]
    assert len(caches) == 8
    assert all(cache.dtype is torch.float16 for cache in caches)
    assert built.model.self_0_key.shape == (2, 2, 256, 32)
    assert built.model.self_0_key[:, :, :39].any(dim=-1).all()  # the model's own; the step writes slot 39
    assert not built.model.self_0_key[:, :, 40:].any()
    assert dia.model.decoder.rotary_emb.inv_freq.dtype is torch.float32
    assert built.inputs[0].shape == (2, 1, 9)


@torch.no_grad()
def test_own_decoder_equals_transformers(built):
    twin = built.model.in_float64()
    expected = twin(*built.inputs)
    assert expected.dtype is torch.float64
    found = own_decoder(twin)(*built.inputs)
    assert found.shape == expected.shape
    assert apart(found, expected) < TOLERANCE


@torch.no_grad()
def test_own_encoder_equals_transformers(built):
    twin = built.model.in_float64()
    in_use = twin.in_use.bool()
    ids = torch.randint(1, 256, in_use.shape, generator=torch.Generator().manual_seed(3)) * in_use
    with KeepingWide(torch.float64):
        expected = twin.dia.model.encoder(input_ids=ids, attention_mask=twin.in_use)[0]
    found = own_encoder(twin)(ids, in_use)
    # what padding attends to differs, and nothing reads it
    assert apart(found[in_use], expected[in_use]) < TOLERANCE
    assert apart(found, expected) > TOLERANCE


@torch.no_grad()
def test_without_keeping_float64_the_twin_is_not_float64s(built):
    twin = built.model.in_float64()
    own = own_decoder(twin)(*built.inputs)
    narrowed = twin.run(*built.inputs)
    assert 1e-9 < apart(narrowed, own) < 1e-4


def swap_heads(own):
    own.layers[0].self_attention.query.weight.data = own.layers[0].self_attention.query.weight.flip(1)


def scale_by_head_dim(own):
    for module in own.modules():
        if isinstance(module, DiaAttention):
            module.scale = module.query.weight.shape[-1] ** -0.5


def rotate_in_cross_attention(own):
    for layer in own.layers:
        layer.cross_attention.is_rotary = True


def exchange_gate_and_up(own):
    own.layers[1].feed_forward.gate_up.weight.data = own.layers[1].feed_forward.gate_up.weight.flip(1)


def shift_channels(own):
    own.head.weight.data = own.head.weight.roll(1, dims=1)


def interleave_rotation(own):
    weight = own.layers[0].self_attention.query.weight
    weight.data = weight.data.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def turn_one_late(own):
    own.positions += 1


def write_into_the_wrong_slot(own):
    for layer in own.layers:
        layer.self_attention.position -= 1


@pytest.mark.parametrize(
    "plant",
    [
        *(swap_heads, scale_by_head_dim, rotate_in_cross_attention, exchange_gate_and_up, shift_channels),
        *(interleave_rotation, turn_one_late, write_into_the_wrong_slot),
    ],
)
@torch.no_grad()
def test_a_planted_fault_is_seen(plant, built):
    twin = built.model.in_float64()
    own = own_decoder(twin)
    plant(own)
    assert apart(own(*built.inputs), twin(*built.inputs)) > 1e-6


def test_fixes_reach_the_librarys_own_calls(built, monkeypatch):
    seen = []
    real = F.scaled_dot_product_attention

    def spy(query, key, value, *rest, **options):
        seen.append((query.dtype, key.dtype, value.dtype))
        return real(query, key, value, *rest, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    run("query_to_half", built)
    assert set(seen) == {(torch.float16,) * 3}
    seen.clear()
    run("kv_to_query", built)
    assert set(seen) == {(torch.float32,) * 3}
    seen.clear()
    run("bfloat16", built)
    assert set(seen) == {(torch.bfloat16,) * 3}
