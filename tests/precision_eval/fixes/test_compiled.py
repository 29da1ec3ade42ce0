"""Compiled fixes: each callable has the graph of its own fix, however calls of several fixes alternate."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.cases.systems import case_by_id
from precision_eval.fixes import FIXES, fix_by_id

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed:UserWarning"),  # inductor, of autocast on this case
]

SENTENCE = "Expected query, key, and value to have the same dtype"
DTYPES = {
    "query_to_half": torch.float16,
    "kv_to_query": torch.float32,
    "full_float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "autocast": torch.bfloat16,
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch):
    """Count graphs: torch.compile with a backend that only counts."""
    compiled = []

    def count(graph, _):
        compiled.append(graph)
        return graph

    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, backend: original(f, backend=count))
    return compiled


class Splitting(nn.Module):
    """Graph breaks between the operations, so that inner frames are compiled on their own."""

    def __init__(self, gain=2):
        super().__init__()
        self.gain = gain

    def attend(self, q, k, v):
        q = q * self.gain
        torch._dynamo.graph_break()
        return F.scaled_dot_product_attention(q, k, v) + 1

    def forward(self, q, k, v):
        return self.attend(q, k, v) * 3


def test_status_of_every_fix_with_inductor():
    built = case_by_id("attention-decode").build("tiny", device="cpu", seed=3)
    applied = [fix.applied(copy.deepcopy(built.model), mode="compiled") for fix in FIXES if fix.id != "upstream"]
    for a in applied:
        with a:
            inputs = a.prepare(built.inputs)
            if a.fix.id in DTYPES:
                assert a(*inputs).dtype is DTYPES[a.fix.id]
            else:
                with pytest.raises(RuntimeError, match=SENTENCE):
                    a(*inputs)


@pytest.mark.parametrize("fix_id", ["query_to_half", "kv_to_query"])
def test_inductor_gives_what_the_source_version_gives(fix_id):
    built = case_by_id("attention-prefill").build("tiny", device="cpu", seed=3)

    class Source(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, query):
            m = self.model
            key, value = m.key, m.value
            if fix_id == "query_to_half":
                query = query.half()
            else:
                key, value = key.to(query.dtype), value.to(query.dtype)
            return F.scaled_dot_product_attention(query, key, value, attn_mask=m.mask, enable_gqa=True)

    with fix_by_id("as_shipped").applied(Source(built.model), mode="compiled") as call:
        expected = call(*built.inputs)
    with fix_by_id(fix_id).applied(built.model, mode="compiled") as call:
        found = call(*built.inputs)
    assert torch.equal(found, expected)
    # planted fault: the other direction must not pass for this one
    other = {"query_to_half": "kv_to_query", "kv_to_query": "query_to_half"}[fix_id]
    with fix_by_id(other).applied(built.model, mode="compiled") as call:
        assert not torch.equal(call(*built.inputs).float(), expected.float())


@pytest.mark.parametrize("breaks", [False, True])
def test_interleaved_fixes_neither_recompile_nor_borrow_a_graph(graphs, breaks):
    torch.manual_seed(0)
    q, kv = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8).half()
    if breaks:
        model, inputs = Splitting(), (q, kv, kv)
    else:
        built = case_by_id("attention-decode").build("tiny", device="cpu", seed=3)
        model, inputs = built.model, built.inputs
    cures = [fix_by_id(i).applied(copy.deepcopy(model), mode="compiled") for i in DTYPES]
    counts, results = [], []
    for _ in range(3):
        for a in cures:
            with a.stored(), a.agreeing():
                results.append((a.fix.id, a(*a.prepare(inputs))))
        counts.append(len(graphs))
    assert counts[0] >= len(cures) - 1  # full_float32 with breaks may share an inner frame's graph
    assert counts[1:] == counts[:1] * 2
    for fix_id, out in results:
        assert out.dtype is DTYPES[fix_id], fix_id


def test_beyond_dynamos_limit_of_eight_variants_calls_stay_compiled(graphs):
    q, kv = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8).half()
    applied = [fix_by_id("kv_to_query").applied(Splitting(gain), mode="compiled") for gain in range(20)]
    for a in applied:
        before = len(graphs)
        with a:
            assert a(q, kv, kv).dtype is torch.float32
        assert len(graphs) > before


def test_every_site_is_traced(graphs):
    class Sites(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.linear = nn.Linear(8, 8).half()
            self.weight = nn.Parameter(torch.randn(8, 8).half())
            self.register_buffer("cache", torch.zeros(1, 2, 5, 8).half())

        def forward(self, x, position):
            x = self.linear(self.norm(x))
            x = torch.matmul(x @ self.weight, self.weight).matmul(self.weight)
            self.cache[:, :, position] = x
            self.cache.index_copy_(2, position, x)
            return F.scaled_dot_product_attention(x, self.cache, self.cache)

    torch.manual_seed(0)
    model = Sites().eval()
    inputs = (torch.randn(1, 2, 1, 8), torch.tensor([2]))
    for fix_id, dtype in (("kv_to_query", torch.float32), ("query_to_half", torch.float16)):
        with fix_by_id(fix_id).applied(copy.deepcopy(model)) as call:
            expected = call(*inputs)
        with fix_by_id(fix_id).applied(copy.deepcopy(model), mode="compiled") as call:
            found = call(*inputs)
        assert found.dtype is dtype
        assert torch.equal(found, expected)
    assert len(graphs) == 2


def test_no_mode_is_left_on_the_stack_at_run_time():
    from torch.overrides import _get_current_function_mode_stack

    seen = []

    def spy(graph, _):
        def run(*args):
            seen.append(len(_get_current_function_mode_stack()))
            return graph(*args)

        return run

    built = case_by_id("attention-decode").build("tiny", device="cpu", seed=3)
    applied = fix_by_id("kv_to_query").applied(built.model, mode="compiled")
    with applied.agreeing():
        torch.compile(applied.function, backend=spy, dynamic=False)(*built.inputs)
    assert seen == [0]


def test_dynamo_settings_and_log_level_are_put_back():
    built = case_by_id("attention-decode").build("tiny", device="cpu", seed=3)
    logger = logging.getLogger("torch._dynamo.convert_frame")
    before = (torch._dynamo.config.suppress_errors, logger.level)
    with fix_by_id("dynamo_fallback").applied(built.model, mode="compiled") as call:
        assert torch._dynamo.config.suppress_errors
        with pytest.raises(RuntimeError, match=SENTENCE):
            call(*built.inputs)
    assert (torch._dynamo.config.suppress_errors, logger.level) == before
