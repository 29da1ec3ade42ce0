"""The registry of tensors and the mode that all observations share, and the floor that the room stands on."""

import contextlib

import numpy as np
import torch
from torch import nn

from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure.model_calls import observe_call, seed_all
from precision_eval.trace.observer import ModuleCalls, TensorMap


def test_a_tensor_is_found_by_identity_and_never_after_it_is_gone():
    registry, one, equal = TensorMap(), torch.ones(2), torch.ones(2)
    registry[one] = "one"
    assert (registry.get(one), registry.get(equal)) == ("one", None)
    key = id(one)
    del one
    registry._entries[id(equal)] = registry._entries[key]  # a new tensor at the identity of a dead one
    assert registry.get(equal) is None


def test_modules_are_followed_by_path_and_left_when_one_raises():
    class Failing(nn.Module):
        def forward(self, x):
            seen.append(calls.current.path)
            raise RuntimeError("as meant")

    seen, model = [], nn.Sequential(nn.Identity(), Failing())
    calls = ModuleCalls({id(module): path for path, module in model.named_modules()})
    with calls.followed():
        with contextlib.suppress(RuntimeError):
            model(torch.ones(1))
        assert calls.current is None
    assert seen == ["1"]


def test_values_are_counted_as_they_were_when_an_operation_gave_them():
    class Special(nn.Module):
        def forward(self, x):
            x = x * torch.tensor([1.0, 1e-6, 0.0]).half()  # a subnormal, and a zero, which is none
            x += 6e4  # counted as it was before
            y = x.float() + 1.0
            return torch.mul(y, 2.0, out=y).half() * 4.0  # the last one overflows

    subject = ExaminedModel(Special(), (torch.ones(3).half(),), {})
    observer, _ = observe_call(
        subject, lambda: subject(*subject.tensors), subject.tensors, base=torch.float16, values=True
    )
    counts = observer.numbers.counts[torch.float16]
    assert counts.subnormal == 2  # of the factor and of the product
    assert observer.numbers.broken[0].name == "cast from float32"


def test_a_seed_within_a_seed_leaves_the_outer_stream_and_numpys_own_as_they_were():
    own = np.random.get_state()[1].copy()  # noqa: NPY002
    with seed_all(1):
        first = np.random.rand()  # noqa: NPY002
        with seed_all(2):
            np.random.rand()  # noqa: NPY002
        second = np.random.rand()  # noqa: NPY002
    expected = np.random.RandomState(1)
    assert (first, second) == (expected.rand(), expected.rand())
    assert np.array_equal(own, np.random.get_state()[1])  # noqa: NPY002
