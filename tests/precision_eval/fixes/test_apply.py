"""Storage and agreement on whole models, and exact restoration."""

import copy
import sys
from types import ModuleType

import pytest
import torch
from programs import printed_by
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.systems import case_by_id
from precision_eval.core.errors import UnsupportedError
from precision_eval.fixes import FIXES, fix_by_id
from precision_eval.fixes.apply import FixStateError
from precision_eval.fixes.sites import SITES
from precision_eval.fixes.storage import floating_tensors, storage_bytes

EAGER = [fix.id for fix in FIXES if "eager" in fix.modes and fix.id != "upstream"]


def names():
    """Every exchanged name as it stands: what the class or module itself holds."""
    return [(s.name, s.name in vars(s.owner), vars(s.owner).get(s.name)) for s in SITES]


def addresses(model):
    return [(id(t), t.data_ptr(), t.dtype) for t in floating_tensors(model)]


@pytest.fixture(params=["attention-decode", "attention-prefill"])
def built(request):
    return case_by_id(request.param).build("tiny", device="cpu", seed=3)


def by_hand(model, query, fix_id):
    key, value = model.key, model.value
    if fix_id == "query_to_half":
        query = query.half()
    elif fix_id == "kv_to_query":
        key, value = key.to(query.dtype), value.to(query.dtype)
    else:
        dtype = {"full_float32": torch.float32}.get(fix_id) or getattr(torch, fix_id)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=model.mask, enable_gqa=True)


def everything_torch_asks():
    """What may run besides a model: exchanged names, modes, hooks of all modules, and the code of a call."""
    stacks = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    every = nn.modules.module
    hooks = [len(getattr(every, f"_global_{kind}_hooks")) for kind in ("forward", "forward_pre", "backward")]
    return names(), stacks, hooks, nn.Module.__call__.__code__, nn.Module._call_impl.__code__


@pytest.mark.parametrize("fix_id", ["as_shipped", "full_float32", "bfloat16", "float16"])
def test_a_timed_call_of_a_fix_without_casts_is_the_plain_model(built, fix_id):
    model, before = built.model, everything_torch_asks()
    code, of_instance = type(model).forward.__code__, vars(model).keys() | set()
    with fix_by_id(fix_id).applied(model).stored() as applied:
        call = applied.bind(*applied.prepare(built.inputs))
        with applied.agreeing():
            assert everything_torch_asks() == before
            assert call.func is model
            assert (type(model).forward.__code__, vars(model).keys()) == (code, of_instance)
            assert len(model._forward_hooks) + len(model._forward_pre_hooks) == 0


def test_a_timed_call_of_a_fix_with_casts_has_its_block(built):
    with fix_by_id("query_to_half").applied(built.model).stored() as applied:
        call = applied.bind(*built.inputs)
        with pytest.raises(FixStateError, match="not in force"):
            call()
        with applied.agreeing():
            assert torch.equal(call(), applied(*built.inputs))


@pytest.mark.parametrize("fix_id", ["query_to_half", "kv_to_query", "full_float32", "bfloat16", "float16"])
def test_bit_identical_to_the_fix_in_the_source(built, fix_id):
    with torch.no_grad():
        expected = by_hand(built.model, *built.inputs, fix_id)
    before, held = names(), addresses(built.model)
    with fix_by_id(fix_id).applied(built.model) as call:
        found = call(*call.prepare(built.inputs))
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)
    assert (names(), addresses(built.model)) == (before, held)


class Block(nn.Module):
    """Pre-norm attention with a static cache, written as the reported systems write it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48, bias=False)
        self.out = nn.Linear(16, 16)
        self.register_buffer("cache", torch.zeros(2, 1, 4, 8, 4))
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.tied = self.out

    def forward(self, x, position):
        q, k, v = self.qkv(self.norm(x)).view(1, 1, 3, 4, 4).permute(2, 0, 3, 1, 4)
        self.cache[0][:, :, position] = k
        self.cache[1].index_copy_(2, position, v)
        attended = F.scaled_dot_product_attention(q, self.cache[0], self.cache[1])
        x = x + self.out(attended.transpose(1, 2).reshape(1, 1, 16))
        return x + self.mlp(x)


def mixed_block():
    torch.manual_seed(0)
    block = Block().eval()
    block.out.half()
    block.mlp.half()
    block.cache = block.cache.half()
    return block, (torch.randn(1, 1, 16), torch.tensor([3]))


@pytest.mark.parametrize("fix_id", EAGER)
def test_a_decoder_block_that_splits_at_every_site(fix_id):
    block, inputs = mixed_block()
    with fix_by_id(fix_id).applied(block) as call:
        if fix_id in ("as_shipped", "autocast"):  # autocast does not reach cache writes
            with pytest.raises(RuntimeError, match="dtype"):
                call(*call.prepare(inputs))
        else:
            assert call(*call.prepare(inputs)).isfinite().all()


@pytest.mark.parametrize("fix_id", ["query_to_half", "kv_to_query"])
@pytest.mark.parametrize("build", ["attention", "encoder"])
def test_stock_attention_modules(build, fix_id):
    torch.manual_seed(0)
    if build == "attention":
        model = nn.MultiheadAttention(16, 4, batch_first=True).half().eval()
        inputs = (torch.randn(2, 5, 16),) * 3
    else:
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).half().eval()
        inputs = (torch.randn(2, 5, 16),)
    with fix_by_id("as_shipped").applied(model) as call, pytest.raises(RuntimeError, match=r"dtype|scalar type"):
        call(*inputs)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with fix_by_id("full_float32").applied(model) as call:
        wide = call(*inputs)
    with fix_by_id(fix_id).applied(model) as call:
        found = call(*inputs)
    wide, found = (y[0] if build == "attention" else y for y in (wide, found))
    torch.testing.assert_close(found.float(), wide, rtol=2e-2, atol=2e-2)
    assert torch.backends.mha.get_fastpath_enabled() is fastpath


def test_a_name_imported_earlier_is_found(monkeypatch):
    module = ModuleType("somebodys_model")
    source = """
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attend
class Model(nn.Module):
    def forward(self, q, kv):
        return attend(q, kv, kv)
"""
    monkeypatch.setitem(sys.modules, "somebodys_model", module)
    exec(source, vars(module))
    original = module.attend
    q, kv = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4).half()
    with fix_by_id("kv_to_query").applied(module.Model()) as call:
        assert module.attend is not original
        assert call(q, kv).dtype is torch.float32
    assert module.attend is original


@pytest.mark.parametrize("fix_id", ["kv_to_query", "float16"])
def test_everything_is_put_back_after_an_exception(fix_id):
    block, inputs = mixed_block()
    before, held, content = names(), addresses(block), copy.deepcopy(block.state_dict())
    call = fix_by_id(fix_id).applied(block)
    for _ in range(2):  # and it can be entered again
        with pytest.raises(ZeroDivisionError), call:
            raise ZeroDivisionError
        assert names() == before
        assert addresses(block) == held
    assert all(torch.equal(block.state_dict()[name], value) for name, value in content.items())
    with call:
        call(*call.prepare(inputs))


def test_ties_hold_while_converted():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    parameter = model[0].weight
    with fix_by_id("bfloat16").applied(model):
        assert model[0].weight is model[1].weight is parameter
        assert parameter.dtype is torch.bfloat16
        assert storage_bytes(model) == 5 * 4 * 2
    assert parameter.dtype is torch.float32
    assert storage_bytes(model) == 5 * 4 * 4


def test_wrong_states_are_refused(built):
    up, down = (fix_by_id(i).applied(copy.deepcopy(built.model)) for i in ("kv_to_query", "query_to_half"))
    with pytest.raises(FixStateError, match="not in force"):
        up(*built.inputs)
    with up:
        with pytest.raises(FixStateError, match="entered already"):
            up.__enter__()
        with pytest.raises(FixStateError, match="'kv_to_query' is in force"), down:
            pass
        with pytest.raises(FixStateError, match="not in force"):
            down(*built.inputs)
        with pytest.raises(FixStateError, match="in force"):
            fix_by_id("autocast").applied(built.model)
        assert up(*built.inputs).dtype is torch.float32
    with down:
        assert down(*built.inputs).dtype is torch.float16


def test_where_no_agreement_is_needed_nothing_is_patched(built):
    before = names()
    for fix_id in ("as_shipped", "full_float32", "bfloat16", "float16", "autocast"):
        with fix_by_id(fix_id).applied(built.model):
            assert names() == before
    with fix_by_id("kv_to_query").applied(built.model):
        assert names() != before


def test_dynamo_loads_only_if_a_call_compiles_and_finds_the_originals_then():
    """With the replacements in its tables it would take the originals for functions that it does not know."""
    code = """
import torch, sys
from torch import nn
from torch.nn import functional as F
from precision_eval.fixes import fix_by_id
from precision_eval.fixes.late_dynamo import forced_eager
traced = []
def tracing(graph, inputs):
    traced.append(graph)
    return graph
class Late(nn.Module):
    def forward(self, q, kv):
        if q.shape[0] > 1:
            q = torch.compile(lambda a: a + 1, backend=tracing)(q)
        return F.scaled_dot_product_attention(q, kv, kv)
q, kv = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4).half()
with fix_by_id("kv_to_query").applied(Late()) as call:
    call(q, kv)
    assert "torch._dynamo" not in sys.modules
    two = [torch.cat([part, part]) for part in (q, kv)]
    with forced_eager():
        call(*two)
    assert "torch._dynamo" in sys.modules and not traced
    call(*two)
    assert traced
compiled = torch.compile(F.scaled_dot_product_attention, backend="eager", fullgraph=True)
product = torch.compile(lambda a: torch.matmul(a, a.mT) @ a, backend="eager", fullgraph=True)
compiled(q, q, q), product(q)
"""
    printed_by("-W", "error::UserWarning", "-c", code)


def upstream_system():
    from precision_eval.cases.systems.system import System

    class Norm(System):
        landed = "PR #1"

        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(4, 4).half()
            self.compute_dtype = torch.float16

        def forward(self, x):
            return self.out(x.to(self.compute_dtype) if self.is_upstream else x)

    return Norm().eval()


def test_what_landed_upstream_is_the_models_own_state():
    model, x = upstream_system(), torch.randn(2, 4)
    with fix_by_id("as_shipped").applied(model) as call, pytest.raises(RuntimeError, match="dtype"):
        call(x)
    with fix_by_id("upstream").applied(model) as call:
        assert call(*call.prepare((x,))).dtype is torch.float16
        assert model.is_upstream
    assert not model.is_upstream
    twin = model.in_float64()
    assert twin.compute_dtype is torch.float64
    assert twin.out.weight.dtype is torch.float64
    assert model.out.weight.dtype is torch.float16


def test_where_nothing_landed_it_is_unsupported(built):
    model = upstream_system()
    model.landed, model.not_landed = None, "#108 is open"
    with pytest.raises(UnsupportedError, match="#108 is open"), fix_by_id("upstream").applied(model):
        pass
    with pytest.raises(UnsupportedError, match="nothing to apply"), fix_by_id("upstream").applied(built.model):
        pass
    fix_by_id("full_float32").applied(built.model)  # nothing is left in force
