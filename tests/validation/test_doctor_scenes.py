"""The seventh set by torch alone: a careless twin raises, drifts or widens; a careful one is clean."""

import re
import traceback
from functools import cache
from inspect import getsource
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from validation.doctor.scenes import BRAIN, HALF, SINGLE, source_of
from validation.doctor.seventh import SET

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("__array__ implementation", "ComplexHalf support", "There are modules")
]
# What a fault costs at least, of what its format costs, and the most that a careful twin drifts.
TIMES, CLEAN = 5.0, {HALF: 0.005, BRAIN: 0.03, SINGLE: 2e-4}
# What a fault that only widens writes at least, of the bytes that its careful twin does.
WIDER = 1.3
# Raises beyond every line of its truth: what was widened there is refused later on.
RAISED_BEYOND = ("prefix",)


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
def output(name, dtype, *, careful):
    model, (inputs,) = SET.twin(name, dtype, careful=careful)
    with torch.no_grad():
        return model(**inputs)


def drift(name, dtype, *, careful):
    truth, found = output(name, torch.float64, careful=True), output(name, dtype, careful=careful)
    assert (truth.dtype, found.dtype) == (torch.float64, dtype)
    assert truth.isfinite().all()
    return float((found.double() - truth).norm() / truth.norm())


def written_bytes(name, *, careful):
    model, (inputs,) = SET.twin(name, SET.scenes[name].of, careful=careful)
    with torch.no_grad(), Written() as counted:
        model(**inputs)
    return counted.bytes


def names_of(*kinds):
    return [name for name, row in SET.scenes.items() if row.kind in kinds]


def test_the_set_has_forty_silent_plants_and_twenty_that_raise_and_every_truth_has_a_line():
    assert sorted(row.raises for row in SET.scenes.values()) == [False] * 40 + [True] * 20
    assert all(SET.truths(name) for name in SET.scenes)
    names = [plant.name.split(" ")[0] for plant in SET.plants()]
    assert names == [name for name, _ in SET.clean()] == list(SET.scenes)
    assert set(SET.library) | set(SET.within) <= set(names)


def test_every_pattern_finds_a_line_of_the_library():
    for owner, pattern, *_ in (row for rows in SET.library.values() for row in rows):
        assert any(re.search(pattern, line) for line in getsource(source_of(owner)).splitlines()), (owner, pattern)


@pytest.mark.slow
@pytest.mark.parametrize("name", SET.scenes)
@pytest.mark.parametrize("dtype", CLEAN)
def test_a_careful_twin_drifts_by_what_its_format_costs(name, dtype):
    assert drift(name, dtype, careful=True) <= CLEAN[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of("drifts", "widens"))
def test_a_silent_plant_drifts_many_times_what_its_format_does_or_widens(name):
    row = SET.scenes[name]
    if row.costs:
        assert written_bytes(name, careful=False) >= WIDER * written_bytes(name, careful=True)
    else:
        wrong, right = (drift(name, row.of, careful=careful) for careful in (False, True))
        assert not wrong <= TIMES * right  # not finite counts


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of("raises"))
def test_a_raising_plant_raises(name):
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        output(name, SET.scenes[name].of, careful=False)
    frames = {(Path(frame.filename).name, frame.lineno) for frame in traceback.extract_tb(raised.tb)}
    assert frames & {(file, line) for file, line, _ in SET.truths(name)} or name in RAISED_BEYOND, frames
