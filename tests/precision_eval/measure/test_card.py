"""What the fakes of the other files stand for, on a card: captures, generators, clocks, places of tensors."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from precision_eval.core.errors import ParameterError
from precision_eval.measure import isolation, kept
from precision_eval.measure.blocks import Candidate
from precision_eval.measure.graphs import CaptureRefusedError, CudaDevice, KernelTimer, capture_candidate
from precision_eval.measure.latency import compare_latency
from precision_eval.measure.placement import Placement
from precision_eval.measure.timers import CudaTimer

pytestmark = pytest.mark.cuda


@pytest.fixture
def product():
    weight, vector = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, device="cuda")
    return partial(torch.mv, weight, vector)


class Samples(nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def forward(self, x):
        return x + torch.rand(x.shape, device=x.device, generator=self.generator)


@pytest.mark.parametrize("own", [True, False])
def test_a_model_that_samples_is_captured_and_draws_anew_at_each_replay(own):
    generator = torch.Generator("cuda").manual_seed(1) if own else None
    call = partial(Samples(generator).cuda(), torch.zeros(1 << 16, device="cuda"))
    graph = capture_candidate("sampler", Candidate(call), CudaDevice("cuda"))
    assert not [doubt for doubt in graph.doubts if "bit-equal" in doubt]
    first, second = (graph.replay().clone() for _ in range(2))
    assert not torch.equal(first, second)


def test_what_reads_a_value_is_refused_with_its_line_and_the_next_call_is_captured(product):
    def reads():
        return product().sum().item()

    device, line = CudaDevice("cuda"), reads.__code__.co_firstlineno + 1
    with pytest.raises(CaptureRefusedError, match=rf"test_card\.py:{line}: "):
        capture_candidate("reads", Candidate(reads), device)
    assert capture_candidate("product", Candidate(product), device).doubts == device.replay_doubts


def test_graphs_outlive_others_that_end(product):
    device = CudaDevice("cuda")
    kept_graph = capture_candidate("kept", Candidate(product), device)
    expected = kept_graph.replay().clone()
    for _ in range(20):  # fewer than there are streams, of which torch 2.13 wants one for each graph that lives
        capture_candidate("ends", Candidate(product), device)
    assert torch.equal(kept_graph.replay(), expected)


def test_the_clocks_agree_on_a_call_that_is_long_enough(product):
    graph = capture_candidate("product", Candidate(product), CudaDevice("cuda"))
    by_graph = np.median(CudaTimer("cuda", cache="warm", graph=True)(graph.replay, 20)["cuda-graph-warm"])
    clock, kind = CudaDevice("cuda").fallback()
    assert isinstance(clock, KernelTimer), kind
    by_kernels = clock(product, 20)["cuda-kernels"][0]
    assert 0.5 < by_kernels / by_graph < 1.5


def test_tensors_move_and_keep_their_bits(product):
    weight = product.args[0]
    before, place = weight.clone(), weight.data_ptr()
    placement = Placement([Candidate(product)], 0)
    placement.draw()
    assert torch.equal(weight, before)
    assert weight.data_ptr() != place


def test_equal_calls_are_compared_by_graphs_that_are_captured_anew(product):
    other = partial(torch.mv, product.args[0].clone(), product.args[1].clone())
    calls = {"a": product, "b": other}
    ratio = compare_latency(calls, baseline="a", budget_s=0.5, device="cuda", graph=True)["b"]
    assert ratio.clock == "cuda-graph-warm"
    assert len(ratio.placement_ratios) >= 3
    assert not [doubt for doubt in ratio.doubts if doubt.startswith(("placement", "over budget"))]
    with pytest.raises(ParameterError, match="times are taken on cpu"):
        compare_latency(calls, baseline="a", budget_s=0.5)


def test_the_card_is_known_by_name_to_nvidias_tools():
    gpu, card = isolation._names_of("cuda:0")
    assert card.startswith("GPU-")
    state = isolation.gpu_state(card)
    assert state is not None
    assert (state.sm_mhz or 0) > 0
    assert gpu == card or gpu.startswith("MIG-")


def test_settings_of_a_card_are_read_and_put_back():
    settings = kept.Settings("cuda:0")
    state = torch.cuda.get_rng_state()
    torch.rand(1, device="cuda")
    settings.restore()
    assert torch.equal(torch.cuda.get_rng_state(), state)
