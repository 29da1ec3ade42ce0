"""A set of scenes by torch alone: a careless twin raises, drifts or widens; a careful one is clean."""

import re
import traceback
from functools import cache
from inspect import getsource
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from validation.doctor.scenes import BRAIN, HALF, SINGLE, source_of

TIMES, CLEAN = 5.0, {HALF: 0.005, BRAIN: 0.03, SINGLE: 2e-4}
"""What a fault costs at least, of what its format costs, and the most that a careful twin drifts."""
RAISED_BEYOND = ("prefix",)
"""Raise beyond every line of their truth: what was widened there is refused later on."""
WIDER = 1.3
"""What a fault that only widens writes at least, of the bytes that its careful twin does."""


class Written(TorchDispatchMode):
    """Count the bytes of floating-point results."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            is_floating = isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex())
            self.bytes += tensor.nbytes if is_floating and not operation.is_view else 0
        return result


@cache
def output(scenes, name, dtype, *, careful):
    model, (inputs,) = scenes.twin(name, dtype, careful=careful)
    with torch.no_grad():
        return model(**inputs)


def drift(scenes, name, dtype, *, careful):
    truth, found = output(scenes, name, torch.float64, careful=True), output(scenes, name, dtype, careful=careful)
    assert (truth.dtype, found.dtype) == (torch.float64, dtype)
    assert truth.isfinite().all()
    return float((found.double() - truth).norm() / truth.norm())


def written(scenes, name, *, careful):
    model, (inputs,) = scenes.twin(name, scenes.scenes[name].of, careful=careful)
    with torch.no_grad(), Written() as counted:
        model(**inputs)
    return counted.bytes


def names_of(scenes, *kinds):
    return [name for name, row in scenes.scenes.items() if row.kind in kinds]


def patterns_of(scenes):
    return [row[:2] for rows in scenes.library.values() for row in rows]


def check_pattern(owner, pattern):
    assert any(re.search(pattern, line) for line in getsource(source_of(owner)).splitlines())


def check_truths(scenes):
    assert all(scenes.truths(name) for name in scenes.scenes)
    names = [plant.name.split(" ")[0] for plant in scenes.plants()]
    assert names == [name for name, _ in scenes.clean()] == list(scenes.scenes)
    assert set(scenes.library) | set(scenes.within) <= set(names)


def check_careful(scenes, name, dtype):
    assert drift(scenes, name, dtype, careful=True) <= CLEAN[dtype]


def check_silent(scenes, name):
    row = scenes.scenes[name]
    if row.costs:
        assert written(scenes, name, careful=False) >= WIDER * written(scenes, name, careful=True)
    else:
        wrong, right = (drift(scenes, name, row.of, careful=careful) for careful in (False, True))
        assert not wrong <= TIMES * right  # not finite counts


def check_raises(scenes, name):
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        output(scenes, name, scenes.scenes[name].of, careful=False)
    frames = {(Path(frame.filename).name, frame.lineno) for frame in traceback.extract_tb(raised.tb)}
    assert frames & {(file, line) for file, line, _ in scenes.truths(name)} or name in RAISED_BEYOND, frames
