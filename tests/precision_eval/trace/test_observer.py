"""The registry of tensors and the mode that all observations share, and the floor that the room stands on."""

import contextlib

import torch
from torch import nn

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
