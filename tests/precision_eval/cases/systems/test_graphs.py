"""Every casting fix is one graph when compiled, as the same casts written into the source would be."""

import copy

import pytest
import torch

from precision_eval.cases.systems import case_by_id
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.catalog import fix_by_id

CASTING = ("query_to_half", "kv_to_query")
SYSTEMS = [case_by_id(name) for name in ("metavoice-decode-slice", "dia-decode", "cogvideo-t5-encoder-stock")]


def graphs_of(applied: AppliedFix, inputs) -> int:
    """Count the graphs that Dynamo captures of a call."""
    count = 0

    def counting(graph, _):
        nonlocal count
        count += 1
        return graph.forward

    torch._dynamo.reset()
    with applied as call:
        torch.compile(call.function, backend=counting)(*call.prepare(inputs))
    return count


@pytest.mark.slow
@pytest.mark.parametrize("fix", CASTING)
@pytest.mark.parametrize("case", SYSTEMS, ids=lambda case: case.id)
def test_a_casting_fix_is_one_graph(case, fix):
    built = case.build("tiny", device="cpu", seed=0)
    applied = AppliedFix(fix_by_id(fix), copy.deepcopy(built.model), mode="compiled", backend="eager")
    assert graphs_of(applied, built.inputs) == 1


def test_a_graph_break_would_be_counted():
    """Planted: what Dynamo must leave the graph for."""

    class Breaking(torch.nn.Linear):
        def forward(self, x):
            projected = super().forward(x)
            torch._dynamo.graph_break()
            return projected + 1

    applied = AppliedFix(fix_by_id("query_to_half"), Breaking(4, 4), mode="compiled", backend="eager")
    assert graphs_of(applied, (torch.ones(2, 4),)) > 1
