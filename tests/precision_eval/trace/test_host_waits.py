"""Where a model makes the host wait: seen with every tensor of the CPU taken for a device's, and on fake tensors."""

import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from precision_eval.cases.systems import CASES, metavoice_model
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.measure.model_calls import base_dtype, copy_model, observe_call, subject_of
from precision_eval.trace import host_waits
from precision_eval.trace.host_waits import FROM_HOST, INSIDE, READS, SIZES, TO_HOST, OperationsWithWaits, WaitFlow


@pytest.fixture
def on_device(monkeypatch):
    monkeypatch.setattr(host_waits, "runs_apart", lambda device: True)


def waits_of(model, *inputs):
    subject = copy_model(subject_of(model, inputs))
    base = base_dtype(subject)
    call = lambda: subject(*subject.tensors)  # noqa: E731
    flow, seen = observe_call(subject, call, subject.tensors, base=base, values=False, flow=WaitFlow)
    assert seen.error is None, seen.error
    return flow.waits


class Step(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.step = step
        self.register_buffer("table", torch.rand(8))

    def forward(self, x):
        return self.step(x + self.table)


def set_one(x):
    x[0] = 2.0
    return x


def set_through_mask(x):
    x[x > 0.5] = 0.0
    return x


def set_slice(x):
    x[1:] = 0.0
    return x


def count_up(x):
    for _ in range(3):
        x = x * x.max().item()
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("step", "reasons"),
    [
        (lambda x: x * x.max().item(), [READS]),
        (lambda x: x * float(x[0]), [READS]),
        (lambda x: x * x.tolist()[0], [READS]),
        (lambda x: x[x > 0], [SIZES]),
        (lambda x: x * len((x > 0).nonzero()), [SIZES]),
        (lambda x: x * torch.tensor([2.0]), [FROM_HOST]),
        (set_one, [FROM_HOST]),
        (count_up, 4 * [READS]),
        (set_slice, []),
        (set_through_mask, []),
        (lambda x: torch.where(x > 0.5, x, 0.0).half().float()[torch.arange(3)], []),
        (lambda x: x * torch.full((), 2.0), []),
    ],
)  # fmt: skip
def test_each_wait_of_a_call_is_seen_once_and_nothing_else_is(on_device, step, reasons):
    waits = waits_of(Step(step), torch.rand(8))
    assert [wait.reason for wait in waits] == reasons
    assert all(wait.line[0] is step.__code__ for wait in waits)


def test_on_the_cpu_nobody_waits():
    assert waits_of(Step(lambda x: x * x.max().item()), torch.rand(8)) == []


@pytest.mark.parametrize(
    ("copy", "reasons"),
    [
        (lambda here, there: there.cpu(), [TO_HOST]),
        (lambda here, there: here.copy_(there), [TO_HOST]),
        (lambda here, there: here.to(there), [FROM_HOST]),
        (lambda here, there: here.to(there.device, non_blocking=True), []),
        (lambda here, there: (there.half(), there + 1, here.half()), []),
    ],
)
def test_copies_across_are_told_by_the_devices_of_fake_tensors(copy, reasons):
    noted = []
    with FakeTensorMode():
        here, there = torch.empty(4), torch.empty(4, device="cuda")
        with OperationsWithWaits(noted.append):
            copy(here, there)
    assert noted == reasons


def test_torch_tells_of_waits_inside_its_kernels_and_its_mode_is_put_back(on_device, monkeypatch):
    modes = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def draw(x):
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return x * torch.multinomial(x, 1)

    (wait,) = waits_of(Step(draw), torch.rand(8))
    assert wait.reason == INSIDE
    assert modes == [0, "warn", 0]


def test_the_observer_does_not_take_its_look_at_digits_for_a_wait(on_device):
    assert waits_of(Step(lambda x: x.type_as(torch.arange(8)) + x), torch.rand(8)) == []


def runs_in_float32(case):
    built = case.build(case.default_sizes[0], device="cpu", seed=0)
    with fix_by_id("full_float32").applied(built.model).stored() as applied:
        return waits_of(applied.model, *applied.prepare(built.inputs))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_no_step_of_a_system_makes_the_host_wait(on_device, case):
    assert runs_in_float32(case) == []


def test_a_sampler_that_assigns_one_element_does(on_device, monkeypatch):
    monkeypatch.setattr(metavoice_model, "trimmed", trimmed_by_element)
    (wait,) = runs_in_float32(next(case for case in CASES if case.id == "metavoice-decode"))
    assert (wait.reason, wait.line[0]) == (FROM_HOST, trimmed_by_element.__code__)


def trimmed_by_element(logits, top_p):
    """The sampler as it once was."""
    ascending, order = torch.sort(logits)
    dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    dropped[-1] = False
    return logits.masked_fill(dropped.scatter(0, order, dropped), -torch.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.95, 1.0])
def test_the_sampler_keeps_the_same_bits_as_by_element(dtype, top_p):
    generator = torch.Generator().manual_seed(0)
    share = torch.tensor(top_p)
    for _ in range(50):
        logits = (4 * torch.randn(257, generator=generator)).to(dtype)
        logits[::3] = logits[0]  # ties
        assert torch.equal(metavoice_model.trimmed(logits, share), trimmed_by_element(logits, share))
    for logits in (torch.zeros(9, dtype=dtype), torch.tensor([1.0], dtype=dtype)):
        assert torch.equal(metavoice_model.trimmed(logits, share), trimmed_by_element(logits, share))
