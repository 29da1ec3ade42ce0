"""The work of a call, by hand: bytes of each operand once, FLOPs of products, what is no work at all."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from precision_eval.trace import work
from precision_eval.trace.work import WorkCounter, work_of


def rows_of(call, *inputs):
    return {(row["kind"], row["dtype"]): row for row in work_of(call, inputs)["operations"]}


def test_a_product_by_hand():
    x, weight = torch.ones(2, 8), torch.ones(16, 8)
    (row,) = rows_of(torch.nn.functional.linear, x, weight).values()
    assert row == {
        **{"kind": "product", "dtype": "float32", "count": 1},
        **{"flops": 2 * 2 * 8 * 16, "bytes": 4 * (2 * 8 + 16 * 8 + 2 * 16)},
    }


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm"])
def test_the_layout_of_a_products_second_matrix_is_told(name):
    x, weight = torch.ones(2, 8), torch.ones(8, 16)
    batch = [tensor[None] for tensor in (x, weight)] if name == "bmm" else [x, weight]
    bias = [torch.ones(2, 16)] if name == "addmm" else []
    call = getattr(torch, name)
    turned = batch[1].transpose(-1, -2).contiguous().transpose(-1, -2)
    assert set(rows_of(call, *bias, *batch)) == {("untransposed product", "float32")}
    assert set(rows_of(call, *bias, batch[0], turned)) == {("product", "float32")}
    assert set(rows_of(torch.nn.functional.conv1d, torch.ones(1, 2, 9), torch.ones(3, 2, 4))) == {
        ("product", "float32")
    }


def test_attention_reads_each_head_of_the_cache_once():
    q = torch.ones(1, 4, 1, 16, dtype=torch.float16)
    k = torch.ones(1, 4, 64, 16, dtype=torch.float16)
    row = rows_of(torch.nn.functional.scaled_dot_product_attention, q, k, k)["attention", "float16"]
    assert (row["flops"], row["rows"]) == (2 * 2 * 4 * 64 * 16, 1)
    logsumexp = row["bytes"] - 2 * (2 * q.numel() + 2 * k.numel())
    assert 0 < logsumexp <= 4 * 4


def test_a_cast_an_activation_a_lookup_and_a_write_by_hand():
    half, table = torch.ones(8, dtype=torch.float16), torch.ones(1000, 8)
    assert rows_of(lambda x: x.float(), half)["cast", "float16 to float32"]["bytes"] == 8 * (2 + 4)
    assert rows_of(torch.relu, table)["other", "float32"]["bytes"] == 2 * table.numel() * 4
    found = rows_of(torch.nn.functional.embedding, torch.tensor([3, 4]), table)
    assert found["other", "float32"]["bytes"] == 2 * 2 * 8 * 4  # not the table

    def step(cache, value):
        cache[2:3] = value

    row = rows_of(step, table.clone(), torch.ones(1, 8, dtype=torch.bfloat16))["cast", "bfloat16 to float32"]
    assert row["bytes"] == 8 * (2 + 4)  # not the cache


def test_views_and_empty_tensors_are_no_work():
    assert work_of(lambda x: x.t().reshape(-1)[None].expand(5, 64), (torch.ones(64, 1),))["operations"] == []
    assert work_of(lambda x: torch.empty_like(x), (torch.ones(64),))["operations"] == []


def test_an_expanded_operand_is_read_once():
    bias = torch.ones(1, 8).expand(1000, 8)
    (row,) = rows_of(torch.add, bias, torch.ones(1000, 8)).values()
    assert row["bytes"] == 4 * (8 + 2 * 8000)


def test_two_calls_are_twice_the_work_of_one():
    x = torch.ones(4, 4)
    once, twice = work_of(torch.mm, (x, x)), work_of(lambda a: (a @ a, a @ a), (x,))
    assert [row["count"] for row in twice["operations"]] == [2]
    for name in ("flops", "bytes"):
        assert twice["operations"][0][name] == 2 * once["operations"][0][name]


def test_flops_are_those_of_torchs_own_counter():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    with FlopCounterMode(display=False) as counter:
        model(x)
    found = work_of(model, (x,))["operations"]
    assert sum(row["flops"] for row in found) == counter.get_total_flops() == 2 * 3 * (8 * 16 + 16 * 4)


def test_fresh_memory_is_of_results_beyond_the_threshold(monkeypatch):
    monkeypatch.setattr(work, "FRESH_BYTES", 256)
    assert work_of(torch.relu, (torch.ones(64),))["fresh_bytes"] == 256
    assert work_of(torch.relu, (torch.ones(63),))["fresh_bytes"] == 0
    assert work_of(lambda x: x.relu_(), (torch.ones(64),))["fresh_bytes"] == 0


def test_a_call_on_fake_tensors_has_the_same_work():
    def call(x, weight):
        return torch.nn.functional.linear(x, weight).half()

    real = work_of(call, (torch.ones(2, 8), torch.ones(16, 8)))
    with FakeTensorMode():
        fake = work_of(call, (torch.ones(2, 8), torch.ones(16, 8)))
    assert fake == real


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_what_does_not_float_has_bytes(dtype):
    (row,) = rows_of(torch.logical_not, torch.ones(8, dtype=dtype)).values()
    assert (row["kind"], row["dtype"], row["bytes"]) == ("other", "none", 8 * dtype.itemsize + 8)


def test_the_counter_changes_no_result():
    x = torch.arange(9.0).reshape(3, 3)
    with WorkCounter():
        counted = (x @ x).half()
    assert torch.equal(counted, (x @ x).half())
