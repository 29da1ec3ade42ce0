"""The copies leave the model's modes alone, what is drawn is noticed, and which values count as broken."""

import inspect

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from precision_eval.doctor.examination import examine
from precision_eval.fixes.packing import copy_model
from precision_eval.measure.float64_reference import check_available, device_of, reference_of
from precision_eval.measure.model_calls import CallOutcome, run_fresh, run_twice, subject_of

D = 8
INF = float("inf")


def quick(model, *inputs, **options):
    return examine(model, *inputs, **{"fixes": False, "compiled": False} | options)


class Wrapper(nn.Module):
    """In train mode, as every fresh module is, around a part that may not be."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def test_train_and_eval_flags_stay_and_dropout_with_them():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5), nn.BatchNorm1d(D)).eval()
    net[2].train()
    model, x = Wrapper(net), torch.randn(4, D)
    before = [module.training for module in model.modules()]
    assert before == [True, False, False, False, True]
    quick(model, x)
    assert [module.training for module in model.modules()] == before
    model.net[2].eval()
    with torch.no_grad():
        assert torch.equal(run_fresh(subject_of(model, (x,))).outputs[0], model(x))
    assert not run_twice(subject_of(model, (x,))).draws
    model.train()
    assert run_twice(subject_of(model, (x,))).draws


class Noisy(nn.Module):
    """Adds noise; where asked for, after an operation that raises over dtypes."""

    def __init__(self, *, split, noise=1.0):
        super().__init__()
        self.project = nn.Linear(D, D).half() if split else nn.Linear(D, D)
        self.gain = nn.Parameter(torch.ones(D))
        self.noise = noise

    def forward(self, x):
        y = self.project(x * self.gain)
        return y + self.noise * torch.randn_like(y)


@pytest.mark.parametrize("split", [False, True])
def test_drift_of_what_draws_numbers_is_not_measured(split):
    x = torch.ones(2, D).half() if split else torch.ones(2, D)
    found = examine(Noisy(split=split), x, compiled=False, latency=False)
    assert found.status == ("raised" if split else "passed")
    assert any(remedy.cures for remedy in found.remedies)
    assert all(remedy.relative_error is None for remedy in found.remedies)
    assert sum("draws random numbers" in doubt for doubt in found.doubts) == 1
    quiet = examine(Noisy(split=split, noise=0.0), x, compiled=False, latency=False)
    assert quiet.reference == "float64"
    assert any(remedy.relative_error is not None for remedy in quiet.remedies)
    assert not any("draws random numbers" in doubt for doubt in quiet.doubts)


class Masked(nn.Module):
    """Scores with infinity where a mask says so; `scale` makes the first one overflow float16."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.project = nn.Linear(D, D, bias=False)
        nn.init.eye_(self.project.weight)
        self.scale = scale

    def forward(self, x):
        scores = self.project(x)
        scores = torch.cat((scores[:, :1] * self.scale, scores[:, 1:]), 1)
        return scores.masked_fill(torch.arange(D) > 5, -INF)


def test_infinities_that_the_reference_has_too_are_meant():
    for fixes in (False, True):
        found = examine(Masked(), torch.ones(3, D), fixes=fixes, latency=False, compiled=True)
        assert (found.status, found.message, found.faults, found.reference) == ("passed", "", (), "float64")
        assert found.compiled.status == "passed"
        assert "6 of 24 output values are infinite in the reference too, and taken as meant" in found.doubts
    by_id = {remedy.fix: remedy for remedy in found.remedies}
    assert by_id["full_float32"].relative_error == 0.0
    assert not any(remedy.status == "non_finite" for remedy in found.remedies)


def test_what_overflows_beside_a_mask_is_counted():
    found = quick(Masked(scale=1e5).half(), torch.ones(3, D).half())
    assert (found.status, found.message) == ("non_finite", "3 of 24 output values are not finite")
    assert quick(Masked(scale=1e5), torch.ones(3, D)).status == "passed"


def test_nan_and_overflowed_weights_stay_broken():
    class Undefined(nn.Module):
        def forward(self, x):
            return (x - x) / (x - x)

    found = quick(Undefined(), torch.ones(3))
    assert (found.status, found.message) == ("non_finite", "3 of 3 output values are not finite, in float64 too")
    assert reference_of(subject_of(Undefined(), (torch.ones(3),)), available_bytes=2**30).outputs is None
    overflowed = nn.Linear(D, 1, bias=False)
    nn.init.constant_(overflowed.weight, 1e5)
    assert quick(overflowed.half(), torch.ones(2, D).half()).status == "non_finite"


def test_broken_by_hand():
    found = CallOutcome((torch.tensor([1.0, INF, -INF, INF, float("nan")]),), None)
    assert found.broken() == (4, 5)
    truth = torch.tensor([1.0, INF, INF, 2.0, INF], dtype=torch.float64)
    assert found.broken((truth,)) == (3, 5)  # of the other sign, finite there, NaN
    assert found.broken((truth[:2],)) == (4, 5)  # of another shape: no reference
    assert CallOutcome(None, RuntimeError()).broken() == (0, 0)


def test_a_weight_that_is_computed_and_kept_as_an_attribute_is_copied():
    with pytest.warns(FutureWarning, match="weight_norm"):
        net = nn.utils.weight_norm(nn.Linear(D, D))
    subject = subject_of(Wrapper(net), (torch.randn(4, D),))
    assert not net.weight.is_leaf
    copy = copy_model(subject)
    assert run_fresh(copy).outputs[0].equal(run_fresh(subject).outputs[0])


class TestWhereAModelRuns:
    def test_on_a_gpu_also_where_its_first_input_is_on_the_cpu(self):
        with FakeTensorMode():
            lengths, weight, other = (torch.empty(2, device=place) for place in ("cpu", "cuda:1", "cuda:0"))
        assert device_of((lengths, weight, other)) == torch.device("cuda:1")
        assert device_of((lengths,)) == device_of(()) == torch.device("cpu")

    def test_memory_is_the_gpus_with_what_its_allocator_can_hand_out_again(self, monkeypatch):
        answers = {"mem_get_info": (100, 1000), "memory_reserved": 70, "memory_allocated": 30}
        for name, answer in answers.items():
            assert "device" in inspect.signature(getattr(torch.cuda, name)).parameters
            monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
        assert check_available(None, "cuda:1") == 140
        assert check_available(7, "cuda:1") == 7
        assert check_available(None) == check_available(None, "cpu") > 10**6
