"""Caches in 8 bits: values by hand, bytes by hand, the same as in the source, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.systems import case_by_id
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.fixes import FIXES, MORE_FIXES, Fix, fix_by_id
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.narrow import LARGEST, NarrowTensor, cache_part, narrow, narrow_caches
from precision_eval.fixes.storage import storage_bytes
from precision_eval.measure.system_drift import attention_drift
from precision_eval.run.plan import Selection, make_plan

SHAPE = (1, 2, 6, 4)  # (B, H, S, D)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Step(nn.Module):
    """Writes one slot of a float16 cache and attends to it."""

    def __init__(self, shape=SHAPE, filled=True):
        super().__init__()
        for seed, name in enumerate(("key", "value")):
            self.register_buffer(name, (drawn(*shape, seed=seed) * filled).half())

    def forward(self, query, key, value, position):
        self.key[:, :, position] = key
        self.value[:, :, position] = value
        return F.scaled_dot_product_attention(query, self.key, self.value)


INPUTS = (drawn(1, 2, 1, 4, seed=7), drawn(1, 2, 1, 4, seed=8), drawn(1, 2, 1, 4, seed=9), torch.tensor([3]))


def coded(values, held_format, dims):
    """Codes · scale by numpy, and by ml_dtypes' rule for 8-bit floats: the nearest representable, ties to even."""
    values = np.asarray(values, np.float32)
    dtype, largest = LARGEST[held_format]
    scale = np.abs(values).max(dims, keepdims=True) / np.float32(largest)
    scaled = values / np.where(scale > 0, scale, np.float32(1))
    if held_format == "int8":
        return np.rint(scaled) * scale
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64)
    grid = np.unique(codes[codes.isfinite()].numpy())
    at = np.clip(np.searchsorted(grid, scaled), 1, len(grid) - 1)
    low, high = grid[at - 1], grid[at]
    return np.where(scaled - low < high - scaled, low, high).astype(np.float32) * scale


def test_codes_by_hand():
    kept = narrow(torch.tensor([[[2.0, 1.0, -0.5, 0.0]]]), "int8")
    assert kept.codes.tolist() == [[[127, 64, -32, 0]]]  # 63.5 to even, 31.75 up
    assert kept.scale.item() == pytest.approx(2 / 127, rel=1e-7)
    kept = narrow(torch.tensor([[[448.0, 1.06, 1.07, -0.003]]]), "e4m3")
    assert kept.to(torch.float32).tolist() == [[[448.0, 1.0, 1.125, -(2.0**-8)]]]


@pytest.mark.parametrize("held_format", ["int8", "e4m3"])
def test_like_an_independent_implementation(held_format):
    values = drawn(2, 3, 8, 4).half()
    read = narrow(values, held_format).to(torch.float32).numpy()
    np.testing.assert_array_equal(read, coded(values.float().numpy(), held_format, (3,)))


@pytest.mark.parametrize("held_format", ["int8", "e4m3"])
def test_zeros_stay_zero_and_take_what_is_written(held_format):
    kept = narrow(torch.zeros(SHAPE).half(), held_format)
    assert not (kept * 1).any()
    assert not kept.scale.any()
    kept[:, :, torch.tensor([2])] = torch.ones(1, 2, 1, 4)
    assert kept.to(torch.float32)[:, :, 2].allclose(torch.ones(4), rtol=0.01)
    assert not kept.to(torch.float32)[:, :, 3:].any()
    kept[:, :, 3] = torch.full((1, 2, 4), 60000.0)  # every write brings its own scale
    assert kept.to(torch.float32)[:, :, 3].allclose(torch.tensor(60000.0), rtol=0.01)


def test_what_is_not_finite_is_not_hidden():
    cache = torch.ones(SHAPE).half()
    cache[0, 0, 0, 0] = float("nan")
    for held_format in ("int8", "e4m3"):
        assert narrow(cache, held_format).to(torch.float32)[0, 0, 0].isnan().all()


def test_bytes_by_hand():
    model = case_by_id("attention-decode").build("tiny", device="cpu", seed=0).model
    values, rows, mask = 2 * 2 * 64 * 16, 2 * 2 * 64, 64  # of one tensor: (2, 2, 64, 16); mask (1, 1, 1, 64)
    assert storage_bytes(model) == 2 * 2 * values + mask
    with narrow_caches(model, "e4m3/token"):
        assert storage_bytes(model) == 2 * (values + 4 * rows) + mask


@pytest.mark.parametrize("held_format", ["int8", "e4m3"])
def test_the_same_as_in_the_source(held_format):
    """Write, attend: codes kept in the source, by another implementation; a token's scale is its own."""
    query, key, value, position = INPUTS
    model = Step()
    written = [model.key.clone(), model.value.clone()]
    for cache, new in zip(written, (key, value), strict=True):
        cache[:, :, position] = new.half()
    expected = F.scaled_dot_product_attention(
        query, *(torch.from_numpy(coded(cache.float().numpy(), held_format, (3,))) for cache in written)
    )
    before = (model.key, model.key.clone())
    with fix_by_id(f"cache_{held_format}_token").applied(model) as call:
        assert torch.equal(call(*INPUTS), expected)
        assert torch.equal(call(*INPUTS), expected)  # the write went to the codes, and repeats
    assert model.key is before[0]
    assert torch.equal(*before)


class Layered:
    """A cache object as transformers have them."""

    class Layer:
        def __init__(self):
            self.keys, self.values = drawn(*SHAPE).half(), drawn(*SHAPE, seed=1).half()

    def __init__(self):
        self.layers = [self.Layer()]


class Generating(nn.Module):
    def forward(self, query, cache, position):
        layer = cache.layers[0]
        layer.keys.index_copy_(2, position, query.half())
        return F.scaled_dot_product_attention(query, layer.keys, layer.values)


class LayeredCache(Layered):
    pass


def test_a_cache_object_among_a_models_attributes():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.past, self.inner = LayeredCache(), Generating()

        def forward(self, query, position):
            return self.inner(query, self.past, position)

    model = Holder()
    expected = Holder()(INPUTS[0].half(), INPUTS[3])
    with fix_by_id("cache_int8_token").applied(model) as call:
        assert isinstance(model.past.layers[0].keys, NarrowTensor)
        found = call(INPUTS[0], INPUTS[3])
    assert 0 < (found - expected).norm() / expected.norm() < 0.02
    assert type(model.past.layers[0].keys) is torch.Tensor


def refused(match, forward, caches, shape=SHAPE):
    model = Step(shape)
    model.forward = forward.__get__(model)
    with pytest.raises(UnsupportedError, match=match), narrow_caches(model, caches):
        model(torch.ones(1))


def test_layouts_that_are_not_known_are_named():
    with pytest.raises(UnsupportedError, match="no buffer, attribute or cache object named key"):
        fix_by_id("cache_int8_token").applied(nn.Linear(2, 2)).__enter__()
    with pytest.raises(ParameterError, match="int4/token"), narrow_caches(Step(), "int4/token"):
        pass
    refused("whole rows", lambda self, x: self.key.__setitem__((..., 0), x), "int8/token")
    refused("knows no fill_", lambda self, x: self.key.fill_(1.0), "int8/token")
    refused("knows no add_", lambda self, x: self.key.__iadd__(x), "int8/token")
    refused("in the place of 'key'", lambda self, x: setattr(self, "key", self.key * x), "int8/token")


VIEWS = {
    "mT": lambda x: x.mT,
    "data": lambda x: x.data,
    "detach": lambda x: x.detach(),
    "transpose": lambda x: x.transpose(1, 2),
    "permute": lambda x: torch.permute(x, (0, 2, 1, 3)),
    "narrow": lambda x: x.narrow(2, 1, 3),
    "select": lambda x: x.select(1, 1),
    "unsqueeze": lambda x: x[:, :, None],
    "unbind": lambda x: x.unbind(1)[1],
    "split": lambda x: torch.split(x, 2, dim=2)[1],
    "cut": lambda x: x[..., :2],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_read_as_the_view_of_the_values(view):
    kept = narrow(drawn(*SHAPE).half(), "int8")
    assert torch.equal(VIEWS[view](kept) * 1, VIEWS[view](kept * 1))


@pytest.mark.parametrize("view", VIEWS)
def test_what_is_written_to_a_view_is_kept_or_refused(view):
    kept, values = narrow(drawn(*SHAPE).half(), "int8"), drawn(*SHAPE, seed=1).half()
    written = kept * 1
    VIEWS[view](written).copy_(VIEWS[view](values))
    if view in ("mT", "cut"):  # the rows that share a scale are not whole, or not the last dimension
        with pytest.raises(UnsupportedError, match=r"whole rows|through a slice"):
            VIEWS[view](kept).copy_(VIEWS[view](values))
    else:
        VIEWS[view](kept).copy_(VIEWS[view](values))
        assert torch.equal(kept * 1, narrow(written, "int8") * 1)


PRODUCTS = {
    "matmul": lambda q, k, v: (q @ k.mT).softmax(-1).to(v.dtype) @ v,
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("turned", ["key", "value"])
def test_a_cache_that_is_kept_channels_first_is_named(product, dtype, turned):
    """Its scale per row would be one per channel."""
    model, query = Step(), INPUTS[0].to(dtype)
    setattr(model, turned, getattr(model, turned).mT.contiguous())
    turn = {"key": (lambda k, v: (k.mT, v)), "value": (lambda k, v: (k, v.mT))}[turned]
    model.forward = lambda q: PRODUCTS[product](q, *turn(model.key, model.value))
    match = f"{turned}s are kept with channels before slots"
    with fix_by_id("cache_int8_token").applied(model) as call, pytest.raises(UnsupportedError, match=match):
        call(query)


@pytest.mark.parametrize(
    ("name", "part"),
    [("key", "keys"), ("self_0_value", "values"), ("k_cache", "keys"), ("cache_v", "values"), ("kv_cache", "both")]
    + [(name, None) for name in ("monkey", "query", "mask", "weight", "text")],
)
def test_names_of_caches(name, part):
    assert cache_part(name) == part


def test_drift_of_a_narrow_cache_is_a_cast_of_the_input():
    built = case_by_id("attention-decode").build("tiny", device="cpu", seed=0)
    with fix_by_id("cache_int8_token").applied(copy.deepcopy(built.model)) as call:
        found = attention_drift(built, call)
    assert found.split.input_cast_mse == pytest.approx(found.split.total_mse, rel=0.01)
    assert found.rms_ratio < 3  # beyond the codes, float32's own error


def test_every_fix_has_a_status_on_a_system():
    built = case_by_id("metavoice-decode").build("tiny", device="cpu", seed=0)
    drifts = {}
    for fix in ("kv_to_query", "cache_int8_token", "cache_e4m3_token", "softmax_float32"):
        with fix_by_id(fix).applied(copy.deepcopy(built.model)) as call:
            drifts[fix] = call(*call.prepare(built.inputs))[0]
    assert all(bool(output.isfinite().all()) for output in drifts.values())
    assert not torch.equal(drifts["kv_to_query"], drifts["cache_int8_token"])


def test_more_fixes_are_measured_where_they_are_named():
    ids = [fix.id for fix in (*FIXES, *MORE_FIXES)]
    assert len(ids) == len(set(ids))

    def planned(*patterns):
        cells = make_plan(Selection(cases=("attention-decode",), sizes=("tiny",), fixes=patterns)).cells
        return {fix for cell in cells if cell.measure == "drift" for fix in cell.fixes}

    assert planned("*") == {fix.id for fix in FIXES} - {"upstream"} | {"as_shipped"}
    assert planned("cache_*") == {"cache_int8_token", "cache_e4m3_token"}
    assert planned("*", "softmax_float32") == planned("*") | {"softmax_float32"}


def test_a_fix_of_ones_own_combines_the_choices():
    fix = Fix(id="own", storage="bfloat16", caches="int8/token")
    model = nn.Sequential(Step(), nn.Linear(4, 4))
    model.forward = lambda *inputs: model[1](model[0](*inputs))
    with fix.applied(model) as call:
        assert call(*call.prepare(INPUTS[:3]), INPUTS[3]).dtype is torch.bfloat16
        assert model[0].key.dtype is torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("fix", ["cache_int8_token", "cache_e4m3_token"])
@pytest.mark.parametrize("filled", [True, False])
def test_compiled_is_eager(fix, filled):
    torch._dynamo.reset()
    found = []
    for mode in ("eager", "compiled"):
        with fix_by_id(fix).applied(model := Step(filled=filled), mode=mode) as call:
            found.append((call(*INPUTS), model.key.to(torch.float32), model.value.to(torch.float32)))
    for eager, compiled in zip(*found, strict=True):
        # the compiler keeps more digits of what is written, which may tip a code
        assert (compiled - eager).norm() < 0.05 * eager.norm()
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_model_that_asks_its_cache_for_the_shape_compiles():
    torch._dynamo.reset()
    built, found = case_by_id("attention-decode").build("tiny", device="cpu", seed=0), []
    for mode in ("eager", "compiled"):
        fix = fix_by_id("cache_int8_token")
        with AppliedFix(fix, copy.deepcopy(built.model), mode=mode, backend="aot_eager") as call:
            found.append(call(*built.inputs))
    torch.testing.assert_close(found[1], found[0])
    torch._dynamo.reset()


class Sliced(nn.Module):
    """Of docs/own-model.md: the compiler takes its writes for frames of their own."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.register_buffer("keys", torch.zeros(1, 4, 32, 16).half())
        self.register_buffer("values", torch.zeros(1, 4, 32, 16).half())

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        self.keys[:, :, : x.shape[1]], self.values[:, :, : x.shape[1]] = k, v
        return F.scaled_dot_product_attention(q, self.keys, self.values)


@pytest.mark.slow
def test_a_write_that_is_compiled_alone():
    torch._dynamo.reset()
    model, found = Sliced(), []
    for mode in ("eager", "compiled"):
        with fix_by_id("cache_int8_token").applied(model, mode=mode) as call:
            found.append(call(drawn(1, 8, 64)))
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.01)
    torch._dynamo.reset()
