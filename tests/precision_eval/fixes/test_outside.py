"""fixed: the same as the fix's own block, on a copy, with nested inputs, and nothing left behind."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval import Fix, compare, fix_by_id, fixed
from precision_eval.core.errors import ParameterError, UnknownNameError, UnsupportedError
from precision_eval.fixes.outside import in_dtype
from precision_eval.fixes.packing import ExaminedModel


class Attends(nn.Module):
    """A float32 query, keys and values in half."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("key", torch.randn(1, 2, 5, 8, generator=generator).half())
        self.register_buffer("value", torch.randn(1, 2, 5, 8, generator=generator).half())

    def forward(self, query, *, more=None):
        out = F.scaled_dot_product_attention(query, self.key, self.value)
        return out if more is None else out + more["bias"][0]


@pytest.fixture
def query():
    return torch.randn(1, 2, 1, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("fix", ["query_to_half", "kv_to_query", "full_float32", "bfloat16", "float16", "autocast"])
def test_it_is_what_the_fix_itself_does(fix, query):
    model = Attends()
    with fix_by_id(fix).applied(model) as call:
        expected = call(*call.prepare((query,)))
    found = fixed(model, fix)(query)
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)
    assert not found.requires_grad


def test_the_model_and_torch_stay_as_they_are(query):
    model, original = Attends(), F.scaled_dot_product_attention
    call = fixed(model, "full_float32")
    call(query)
    assert (model.key.dtype, call.model.key.dtype) == (torch.float16, torch.float32)
    assert F.scaled_dot_product_attention is original
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        model(query)
    assert repr(call) == "<full_float32 on a copy of Attends>"


def test_inputs_inside_others_follow_the_storage(query):
    more = {"bias": [torch.full((8,), 0.5)]}
    model = Attends()
    found = fixed(model, "bfloat16")(query, more=more)
    assert found.dtype is torch.bfloat16  # a float32 bias would have promoted it
    assert torch.equal(found, fixed(model, "bfloat16")(query) + 0.5)
    assert more["bias"][0].dtype is torch.float32


def test_what_is_no_floating_tensor_is_passed_on():
    ids, other = torch.arange(3), object()
    brought = in_dtype({"ids": ids, "other": (other, 1.5, torch.ones(2))}, torch.float64)
    assert brought["ids"] is ids
    assert brought["other"][:2] == (other, 1.5)
    assert brought["other"][2].dtype is torch.float64


def test_what_landed_upstream():
    class System(Attends):
        @contextmanager
        def upstream(self):
            kept = self.key, self.value
            self.key, self.value = self.key.float(), self.value.float()
            yield
            self.key, self.value = kept

    assert fixed(System(), "upstream")(torch.ones(1, 2, 1, 8)).dtype is torch.float32
    with pytest.raises(UnsupportedError, match="does not define what landed"):
        fixed(Attends(), "upstream")


def test_bad_input_is_named():
    with pytest.raises(UnknownNameError, match="did you mean kv_to_query"):
        fixed(Attends(), "kv_to_qury")
    with pytest.raises(UnknownNameError, match="mode of the fix 'dynamo_fallback'"):
        fixed(Attends(), "dynamo_fallback")
    with pytest.raises(ParameterError, match=r"the model is a function; expected a torch\.nn\.Module"):
        fixed(lambda x: x, "bfloat16")
    model = Attends()
    model.kept = (number for number in ())  # a generator, which nothing can copy
    with pytest.raises(ParameterError, match=r"the model cannot be copied .* fixes are put on copies"):
        fixed(model, "bfloat16")


def test_memory_that_ends_in_a_copy_is_no_fault_of_the_model(monkeypatch):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Attends, "__deepcopy__", full, raising=False)
    with pytest.raises(torch.OutOfMemoryError):
        fixed(Attends(), "bfloat16")


@contextmanager
def counted(entered):
    entered.append(None)
    yield


def test_a_context_of_ones_own_is_in_force_around_its_calls_alone(query):
    model, entered = nn.Linear(8, 8), []
    autocast = fixed(model, Fix(id="autocast_of_ours", change=lambda model: torch.autocast("cpu", torch.bfloat16)))
    once = fixed(model, Fix(id="counts", change=lambda model: counted(entered)))
    assert not torch.is_autocast_enabled("cpu")
    assert not entered
    assert torch.equal(fixed(model, "as_shipped")(query), model(query))
    for number in (1, 2):  # a generator's context can be entered only once
        assert autocast(query).dtype is torch.bfloat16
        assert torch.equal(once(query), model(query))
        assert len(entered) == number
    costs = compare({"autocast": autocast, "plain": model}, query, baseline="plain", reference=model, latency=False)
    assert costs["plain"].drift < 1e-6 < 1e-4 < costs["autocast"].drift


@dataclass
class Held:
    keys: list
    filled: int = 0


class Cached(nn.Module):
    """Joins what is new to the keys of a cache, which then hold both."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(8, 8)

    def forward(self, x, cache):
        cache.keys[0] = torch.cat([cache.keys[0], self.key(x)], dim=1)
        return F.scaled_dot_product_attention(self.key(x), cache.keys[0], cache.keys[0])


@pytest.mark.parametrize(("fix", "dtype"), [("full_float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_cache_object_follows_the_storage(fix, dtype):
    x, cache = torch.randn(1, 2, 8), Held([torch.randn(1, 3, 8).half()])
    assert fixed(Cached(), fix)(x, cache).dtype is dtype
    assert (cache.keys[0].dtype, cache.keys[0].shape[1]) == (dtype, 5)  # the very cache, which a next call goes on with
    subject = ExaminedModel(Cached(), (x, Held([torch.randn(1, 3, 8).half()])), {})
    with fix_by_id(fix).applied(subject) as call:
        assert call(*call.prepare(subject.tensors))[0].dtype is dtype
    assert subject.objects()[0][1].keys[0].dtype is torch.float16  # put back
