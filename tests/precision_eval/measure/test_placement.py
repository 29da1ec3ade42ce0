"""Where tensors lie: what is moved and what is not, values kept, memory shared, and how placements enter a ratio."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from precision_eval.core.errors import ParameterError
from precision_eval.core.figures import LatencyFigures
from precision_eval.fixes.outside import fixed
from precision_eval.measure import blocks, latency, placement
from precision_eval.measure.blocks import Candidate
from precision_eval.measure.latency import compare_latency
from precision_eval.measure.placement import Draws, Placement, check_cards, sharing, values_carried
from precision_eval.stats.paired import locations_by_group, over_groups, paired_ratio
from precision_eval.stats.sequential import student_quantile


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("cache", torch.zeros(64))
        self.attribute = torch.ones(64)

    def forward(self, x):
        self.cache.add_(0.0)
        return self.linear(x) + self.attribute


def storages(model, *tensors):
    every = [model.linear.weight, model.linear.bias, model.cache, model.attribute, *tensors]
    return [tensor.untyped_storage().data_ptr() for tensor in every]


def a_call(model, x):
    return {
        "partial of a module": partial(model, x),
        "closure": lambda: model(x),
        "method": partial(model.forward, x),
        "without gradients": torch.no_grad()(lambda: model(x)),
        "a fix": partial(fixed(model, "autocast").applied, (x,), {}),
    }


@pytest.mark.parametrize("kind", ["partial of a module", "closure", "method", "without gradients"])
def test_what_a_call_carries_moves_with_its_values_and_views(kind):
    model, x = Cached(), torch.randn(3, 64)
    view, values = model.linear.weight.detach()[5:7], model.linear.weight.detach().clone()
    calls = a_call(model, x)
    before = storages(model, x)
    placed = Placement([Candidate(calls[kind])], seed=0)
    placed.draw()
    assert all(a != b for a, b in zip(before, storages(model, x), strict=True))
    assert torch.equal(model.linear.weight, values)
    assert torch.equal(view, values[5:7])
    assert view.untyped_storage().data_ptr() == model.linear.weight.untyped_storage().data_ptr()


def test_the_tensors_of_a_fix_move():
    model = fixed(Cached(), "float16")
    before = model.model.linear.weight.data_ptr()
    Placement([Candidate(model.bound((torch.ones(1, 64),), {}))], seed=0).draw()
    assert model.model.linear.weight.data_ptr() != before


def test_places_are_drawn_from_the_seed():
    def sizes(seed):
        return [pad.nbytes for pad in placement.take_random_memory(seed)]

    assert sizes(1) == sizes(1) != sizes(2)


def test_what_others_hold_by_address_stays(tmp_path):
    seen = torch.randn(64)
    seen.numpy()
    mapped = torch.from_file(str(tmp_path / "weights"), shared=True, size=64)
    forked = torch.ones(64).share_memory_()
    sparse = torch.eye(3).to_sparse()
    free = torch.randn(64)
    held = (seen, mapped, forked)
    before = [tensor.data_ptr() for tensor in (*held, free)]
    placed = Placement([Candidate(lambda: (seen, mapped, forked, sparse, free))], seed=0)
    placed.draw()
    moved = [a != tensor.data_ptr() for a, tensor in zip(before, (*held, free), strict=True)]
    assert moved == [False, False, False, True]
    array = free.numpy()  # seen by numpy after the search
    placed.draw()
    assert array.ctypes.data == free.data_ptr()


def test_a_model_with_graphs_of_its_own_stays(monkeypatch):
    class Graph: ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    x, graph = torch.ones(8), Graph()
    assert not Placement([Candidate(lambda: (x, graph))], seed=0)
    assert Placement([Candidate(lambda: x)], seed=0)


def test_short_memory_leaves_a_tensor_in_its_place(monkeypatch):
    x, tried = torch.randn(64), []
    values, storage = x.clone(), x.untyped_storage()

    class Short(torch.UntypedStorage):
        def __new__(cls, size, **options):
            tried.append(size)
            raise RuntimeError("out of memory")

    class Storage:
        device, nbytes, resize_ = storage.device, storage.nbytes, storage.resize_
        data_ptr = storage.data_ptr

        def __new__(cls, *args, **options):
            return Short(*args) if args else object.__new__(cls)

    monkeypatch.setattr(placement, "_bytes_of", lambda _: torch.empty(0, dtype=torch.uint8).set_(storage))
    placement._move(Storage(), torch.zeros(1000, dtype=torch.uint8))
    assert tried == [256]
    assert torch.equal(x, values)


class TestSharing:
    def test_equal_constants_are_shared_and_given_back(self):
        base, other = Cached(), Cached()
        other.load_state_dict(base.state_dict())
        with torch.no_grad():
            other.linear.bias += 1.0
        x = torch.ones(1, 64)
        calls = {
            "base": Candidate(partial(base, x), torch.no_grad),
            "other": Candidate(partial(other, x), torch.no_grad),
        }
        before = storages(other)
        with sharing(calls, "base"):
            shared = [a == b for a, b in zip(storages(base), storages(other), strict=True)]
            assert shared == [True, False, False, False]  # the bias differs, a call writes the cache
        assert storages(other) == before

    def test_candidates_share_with_one_another_what_the_baseline_does_not_hold(self):
        base, first, second = (Cached().double() if index == 0 else Cached() for index in range(3))
        second.load_state_dict(first.state_dict())
        models = {"first": first, "second": second, "base": base}
        calls = {
            name: Candidate(partial(model, torch.ones(1, 64, dtype=model.linear.weight.dtype)), torch.no_grad)
            for name, model in models.items()
        }
        with sharing(calls, "base"):
            assert storages(first)[:2] == storages(second)[:2] != storages(base)[:2]
        assert storages(first)[:2] != storages(second)[:2]

    @pytest.mark.parametrize("call", [lambda: torch.ones(1), partial(torch.add, torch.ones(1), 1.0)])
    def test_functions_have_nothing_to_share(self, call):
        with sharing({"base": Candidate(call), "other": Candidate(partial(nn.Linear(1, 1), torch.ones(1)))}, "base"):
            pass


class TestGroups:
    def test_by_hand(self):
        """Groups at 1, 2 and 6, without scatter: mean 3, standard deviation √7, and t of 2 degrees of freedom."""
        groups = locations_by_group([1.0] * 4 + [2.0] * 3 + [6.0] * 5, [0] * 4 + [1] * 3 + [2] * 5)
        assert [(group.estimate, group.size) for group in groups] == [(1.0, 4), (2.0, 3), (6.0, 5)]
        location, interval = over_groups(groups)
        assert location.estimate == pytest.approx(3.0)
        assert location.standard_error == pytest.approx(math.sqrt(7.0 / 3.0))
        assert interval.high - 3.0 == pytest.approx(4.3027 * math.sqrt(7.0 / 3.0), rel=1e-4)

    def test_groups_that_agree_scatter_as_their_rounds(self):
        rng = np.random.default_rng(0)
        rounds = [rng.normal(size=400) for _ in range(4)]
        values = np.concatenate([part - part.mean() for part in rounds])
        location, _ = over_groups(locations_by_group(values, np.repeat(range(4), 400)))
        assert (
            location.standard_error >= 0.9 * over_groups(locations_by_group(values, np.repeat(range(4), 400)))[0].scale
        )

    def planted(self, rng, groups=8, rounds=20, *, between=0.003, within=0.001):
        effects = np.repeat(between * rng.standard_normal(groups), rounds)
        return np.exp(effects + within * rng.standard_normal(groups * rounds)), np.repeat(range(groups), rounds)

    def test_the_interval_holds_what_placements_scatter_and_rounds_alone_do_not(self):
        rng, held = np.random.default_rng(3), {"placements": 0, "rounds": 0}
        trials = 200
        for _ in range(trials):
            ratios, groups = self.planted(rng)
            for name, numbers in (("placements", list(groups)), ("rounds", [])):
                made = paired_ratio(
                    ratios, np.ones_like(ratios), baseline="base", margin=0.002, seed=0, groups=numbers, resamples=200
                )
                held[name] += made.ratio_low <= 1.0 <= made.ratio_high
        assert held["placements"] >= 0.93 * trials
        assert held["rounds"] < 0.6 * trials

    def test_records_count_placements_as_units(self):
        ratios, groups = self.planted(np.random.default_rng(0), groups=5)
        made = paired_ratio(ratios, np.ones_like(ratios), baseline="base", margin=0.002, seed=0, groups=list(groups))
        assert len(made.placement_ratios) == 5
        assert made.ratio == pytest.approx(math.exp(np.mean(np.log(made.placement_ratios))))
        data = made.to_dict()
        figures = LatencyFigures(
            baseline="base", ratio=made.ratio, placement_ratios=data["placement_ratios"], process_ratios=[]
        )
        assert figures.unit_ratios == data["placement_ratios"]
        once = paired_ratio(ratios, np.ones_like(ratios), baseline="base", margin=0.002, seed=0)
        assert once.placement_ratios == ()


class Machine:
    """A clock that only calls and draws move; each draw gives every call a factor, for as long as it lasts."""

    clocks = ("fake",)

    def __init__(self, monkeypatch, *, scatter=0.003, draw_s=0.01, fails_after=None):
        self.now_s, self.scatter, self.draw_s, self.fails_after = 0.0, scatter, draw_s, fails_after
        self.drawn, self.factors, self.rng = 0, {}, np.random.default_rng(1)
        for module in (latency, blocks):
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self):
        return self.now_s

    def draw(self):
        if self.drawn == self.fails_after:
            raise RuntimeError("no memory left")
        self.drawn += 1
        self.now_s += self.draw_s
        self.factors = {}

    def __call__(self, call, calls):
        factor = self.factors.setdefault(call, math.exp(self.scatter * self.rng.standard_normal()))
        samples_s = 1e-3 * factor * np.exp(1e-4 * self.rng.standard_normal(calls))
        self.now_s += samples_s.sum()
        return {"fake": samples_s}

    def compare(self, monkeypatch, **options):
        draws = Draws(self.draw, self.draw_s) if self.draw_s else None
        monkeypatch.setattr(latency, "draws_of", lambda *args, **kinds: draws)
        calls = {"base": lambda: None, "same": lambda: None}
        options = {"budget_s": 2.0, "check": False, "timer": self, "stop_early": False} | options
        return compare_latency(calls, baseline="base", **options)["same"]


class TestComparing:
    def test_placements_are_the_units(self, monkeypatch):
        ratio = Machine(monkeypatch).compare(monkeypatch)
        groups = len(ratio.placement_ratios)
        assert groups == 12
        spread = np.log(ratio.placement_ratios).std(ddof=1)
        half = student_quantile(0.05, groups - 1) * spread / math.sqrt(groups)
        assert math.log(ratio.ratio_high / ratio.ratio) == pytest.approx(half, rel=1e-6)
        assert ratio.ratio_low < 1.0 < ratio.ratio_high

    def test_one_place_alone_is_confident_of_what_is_not_so(self, monkeypatch):
        """The fault that placements cure: on one place, equal calls are told apart."""
        ratio = Machine(monkeypatch, scatter=0.05, draw_s=0.0).compare(monkeypatch)
        assert ratio.verdict in ("faster", "slower")
        assert Machine(monkeypatch, scatter=0.05).compare(monkeypatch).verdict == "undecided"

    def test_a_draw_that_costs_too_much_is_a_doubt(self, monkeypatch):
        machine = Machine(monkeypatch, draw_s=100.0)
        ratio = machine.compare(monkeypatch)
        assert (ratio.placement_ratios, machine.drawn) == ((), 0)
        assert [doubt for doubt in ratio.doubts if doubt.startswith("one placement: ") and "takes 100 s" in doubt]

    def test_where_memory_has_no_room_to_lay_tensors_elsewhere_one_place_is_timed_and_said(self, monkeypatch):
        def full(placement):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        monkeypatch.setattr(Placement, "cost_s", full)
        x, y = torch.ones(64, 64), torch.ones(64, 64)
        ratio = compare_latency(
            {"x": partial(torch.exp, x), "y": partial(torch.exp, y)}, baseline="x", budget_s=0.05, redraw=True
        )["y"]
        assert ratio.placement_ratios == ()
        assert [doubt for doubt in ratio.doubts if "memory has no room to lay them elsewhere" in doubt]

    def test_what_was_measured_is_kept_where_a_draw_fails(self, monkeypatch):
        ratio = Machine(monkeypatch, fails_after=4).compare(monkeypatch)
        assert len(ratio.placement_ratios) == 5
        assert "placement: drawn 5 times, then RuntimeError: no memory left" in ratio.doubts

    @pytest.mark.parametrize("draw_s", [0.001, 0.1, 0.4])
    def test_the_budget_holds_draws(self, monkeypatch, draw_s):
        machine = Machine(monkeypatch, draw_s=draw_s)
        ratio = machine.compare(monkeypatch)
        assert len(ratio.placement_ratios) == {0.001: 12, 0.1: 10, 0.4: 0}[draw_s]  # moving would take half the time
        assert 1.8 < machine.now_s <= 2.1

    def test_draws_that_turn_out_slow_end_the_rounds(self, monkeypatch):
        machine = Machine(monkeypatch, draw_s=0.05)
        draw = machine.draw

        def slow_draw():
            machine.draw_s = 0.5
            draw()

        machine.draw = slow_draw
        ratio = machine.compare(monkeypatch)
        assert 3 <= len(ratio.placement_ratios) <= 5
        assert machine.now_s <= 2.6

    def test_a_large_difference_is_settled_early(self, monkeypatch):
        machine = Machine(monkeypatch, scatter=1e-4)
        ratio = machine.compare(monkeypatch, stop_early=True)
        assert ratio.verdict == "equivalent"
        assert machine.now_s < 1.5


class TestWhenPlacesAreDrawn:
    def calls(self, *, shared):
        x = torch.randn(256)
        other = x if shared else x.clone()
        return {"base": Candidate(lambda: x + 1.0), "other": Candidate(lambda: other + 1.0)}

    @pytest.mark.parametrize(
        ("shared", "redraw", "on_cpu", "drawn"),
        [
            (False, None, True, False), (False, None, False, True), (True, None, False, False),
            (True, True, True, True), (False, False, False, False),
        ],
    )  # fmt: skip
    def test_by_default_on_a_gpu_where_tensors_are_not_shared(self, monkeypatch, shared, redraw, on_cpu, drawn):
        monkeypatch.setattr(Placement, "on_cpu", property(lambda _: on_cpu))
        calls = self.calls(shared=shared)
        draws = placement.draws_of(list(calls.values()), 0, wanted=redraw)
        assert (draws is not None) is drawn


def test_a_method_of_a_tensor_carries_it():
    target, source = torch.zeros(4), torch.ones(4)
    assert {id(value) for value in values_carried(partial(target.copy_, source))} == {id(target), id(source)}
    placement = Placement([Candidate(partial(target.copy_, source))], 0)
    assert placement.nbytes == target.nbytes + source.nbytes


class TestCards:
    """Tensors of cards that are not here have places and no values."""

    @pytest.fixture(autouse=True)
    def _cards(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda card: {"0": "T4", "1": "A100"}[str(card)[-1]])
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield

    def on(self, *cards):
        return Candidate(partial(print, *(torch.empty(2, device=card) for card in cards)))

    def test_calls_on_the_timed_card_are_taken(self):
        check_cards({"a": self.on("cuda:0"), "b": self.on("cuda:0", "cuda:1", "cpu"), "c": self.on("cpu")}, "cuda:0")

    @pytest.mark.parametrize(
        ("device", "said"),
        [
            ("cuda:0", r"candidate 'b' has tensors on cuda:1 \(A100\), and times are taken on cuda:0 \(T4\)"),
            ("cpu", r"candidate 'b' has tensors on cuda:1 \(A100\), and times are taken on cpu"),
        ],
    )
    def test_a_call_elsewhere_is_refused_by_the_names_of_both(self, device, said):
        with pytest.raises(ParameterError, match=said):
            check_cards({"a": self.on("cpu"), "b": self.on("cuda:1")}, device)

    def test_a_comparison_across_cards_is_refused_before_anything_is_timed(self):
        calls = {"a": self.on("cuda:0"), "b": self.on("cuda:1")}
        with pytest.raises(ParameterError, match="'b' has tensors on cuda:1"):
            compare_latency(calls, baseline="a", budget_s=1.0, device="cuda:0", timer=print)
