import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from precision_eval.cases.systems import case_by_id
from precision_eval.fixes import FIXES, fix_by_id
from precision_eval.fixes.sites import SITES
from precision_eval.trace.capture import observe

CURES = [fix.id for fix in FIXES if fix.id not in ("as_shipped", "dynamo_fallback", "upstream")]
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
EXPECTED = {
    "query_to_half": ("float16", [("query", "float32", "float16")]),
    "kv_to_query": ("float32", [("key", "float16", "float32"), ("value", "float16", "float32")]),
    "full_float32": ("float32", []),
    "bfloat16": ("bfloat16", []),
    "float16": ("float16", []),
    "autocast": (
        "bfloat16",
        [("key", "float16", "bfloat16"), ("query", "float32", "bfloat16"), ("value", "float16", "bfloat16")],
    ),
}
COMPILED = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed:UserWarning")]


@pytest.fixture
def built():
    return case_by_id("attention-decode").build("tiny", device="cpu", seed=3)


def names():
    return [(s.name, s.name in vars(s.owner), vars(s.owner).get(s.name)) for s in SITES] + [torch.Tensor.to]


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=COMPILED)])
@pytest.mark.parametrize("fix_id", CURES)
def test_attention_under_every_fix(built, fix_id, mode):
    before = names()
    with fix_by_id(fix_id).applied(built.model, mode=mode) as call:
        inputs = call.prepare(built.inputs)
        seen = observe(call, inputs)
        assert torch.equal(call(*inputs), seen.output)
    assert names() == before
    dtype, casts = EXPECTED[fix_id]
    entry = {"query": dtype, "key": dtype, "value": dtype, "mask": "bool", "output": dtype, "count": 1}
    found = seen.to_dict()
    assert found["sdpa"] == [entry]
    assert found["casts"] == [{"site": "sdpa", "operand": o, "from": f, "to": t, "count": 1} for o, f, t in casts]
    if TORCH >= (2, 13):  # older ones have no fused kernel on the CPU for grouped heads
        assert found["backend"] == "flash"
    assert (found["observed"], found["graphs"]) == (("call", None) if mode == "eager" else ("graph", 1))


def test_the_math_backend_is_told_from_the_fused_one(built):
    with fix_by_id("full_float32").applied(built.model) as call:
        inputs = call.prepare(built.inputs)
        if TORCH >= (2, 13):
            assert observe(call, inputs).backend == "flash"
        with sdpa_kernel(SDPBackend.MATH):
            assert observe(call, inputs).backend == "math"


def test_no_attention_no_backend():
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))
    seen = observe(model, (torch.ones(1, 4),))
    assert seen.backend == "unknown"
    assert seen.to_dict()["linear"] == [
        {"input": "float32", "weight": "float32", "bias": "float32", "output": "float32", "count": 1}
    ]


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8).half()
        self.linear = nn.Linear(8, 8, bias=False).half()
        self.register_buffer("cache", torch.zeros(1, 4, 8).half())

    def forward(self, x, position):
        x = self.linear(self.norm(x))
        x = x @ self.linear.weight
        self.cache[:, position] = x
        return self.cache.index_copy_(1, position, x)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=COMPILED)])
def test_casts_are_named_by_site_and_operand(mode):
    torch.manual_seed(0)
    inputs = (torch.randn(1, 1, 8), torch.tensor([2]))
    with fix_by_id("kv_to_query").applied(Mixed(), mode=mode) as call:
        seen = observe(call, inputs).to_dict()
    found = {(c["site"], c["operand"], c["from"], c["to"]): c["count"] for c in seen["casts"]}
    assert found == {
        ("norm", "weight", "float16", "float32"): 1,
        ("norm", "bias", "float16", "float32"): 1,
        ("linear", "weight", "float16", "float32"): 1,
        ("matmul", "right", "float16", "float32"): 1,
        ("cache_write", "value", "float32", "float16"): 2,
    }
    both = {"cache": "float16", "value": "float16", "count": 1}
    assert seen["cache_write"] == [both, {**both, "output": "float16"}]  # an assignment has no output


def test_a_cast_in_the_source_is_seen_too():
    class Source(nn.Module):
        def forward(self, q, kv):
            return F.scaled_dot_product_attention(q.half(), kv, kv)

    q, kv = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4).half()
    assert observe(Source(), (q, kv)).casts == [
        {"site": "sdpa", "operand": "query", "from": "float32", "to": "float16", "count": 1}
    ]


def test_autocast_sites_report_what_ran_and_repeated_weights_too():
    linear = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(linear, linear)
    with fix_by_id("autocast").applied(model) as call:
        seen = observe(call, (torch.ones(1, 4),)).to_dict()
    assert seen["linear"] == [{"input": "bfloat16", "weight": "bfloat16", "output": "bfloat16", "count": 2}]


@pytest.mark.parametrize("kind", ["attention", "encoder"])
@pytest.mark.parametrize("fix_id", ["full_float32", "kv_to_query"])
def test_observation_does_not_change_the_path_of_stock_modules(kind, fix_id):
    torch.manual_seed(0)
    if kind == "attention":
        model, inputs = nn.MultiheadAttention(16, 4, batch_first=True).half().eval(), (torch.randn(2, 5, 16),) * 3
    else:
        model, inputs = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).half().eval(), (torch.randn(2, 5, 16),)
    with fix_by_id(fix_id).applied(model) as call:
        found, expected = observe(call, inputs).output, call(*inputs)
    found, expected = (y[0] if kind == "attention" else y for y in (found, expected))
    assert torch.equal(found, expected)


def test_what_raises_raises_and_everything_is_put_back(built):
    before = names()
    with (
        fix_by_id("as_shipped").applied(built.model) as call,
        pytest.raises(RuntimeError, match="Expected query, key, and value to have the same dtype"),
    ):
        observe(call, built.inputs)
    assert names() == before


def test_a_planted_silent_cast_is_caught(built):
    """A component declared half that computes in float32 (sglang-omni #1713) shows in the record."""

    class Silent(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = copy.deepcopy(model)

        def forward(self, query):
            m = self.model
            return F.scaled_dot_product_attention(
                query.float(), m.key.float(), m.value.float(), m.mask, enable_gqa=True
            )

    with fix_by_id("float16").applied(Silent(built.model)) as call:
        inputs = call.prepare(built.inputs)
        seen = observe(call, inputs)
    assert inputs[0].dtype is torch.float16
    assert seen.sites["sdpa"][0]["key"] == "float32"
    assert {c["operand"] for c in seen.casts} == {"query", "key", "value"}
