"""The sixth set by torch alone: a careless twin raises, drifts or widens; a careful one is clean."""

import re
import traceback
from inspect import getsource
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from validation.doctor.blind import source_of
from validation.doctor.plants import BRAIN, HALF, SINGLE
from validation.doctor.sixth import LIBRARY, SCENES, sixth_clean, sixth_plants, truths, twin

TIMES, CLEAN = 5.0, {HALF: 0.005, BRAIN: 0.03, SINGLE: 2e-4}
"""What a fault costs at least, of what its format costs, and the most that a careful twin drifts."""
WIDER = 1.3
"""What a fault that only widens writes at least, of the bytes that its careful twin does."""
SILENT = [name for name, row in SCENES.items() if not row.raises]

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


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


def output(name, dtype, *, careful):
    model, (inputs,) = twin(name, dtype, careful=careful)
    with torch.no_grad():
        return model(**inputs)


def drift(name, dtype, *, careful):
    truth, found = output(name, torch.float64, careful=True), output(name, dtype, careful=careful)
    assert found.dtype == dtype
    assert truth.isfinite().all()
    return float((found.double() - truth).norm() / truth.norm())


def written(name, *, careful):
    model, (inputs,) = twin(name, SCENES[name].of, careful=careful)
    with torch.no_grad(), Written() as counted:
        model(**inputs)
    return counted.bytes


def test_the_set_has_forty_silent_plants_and_twenty_that_raise_and_every_truth_has_a_line():
    assert sorted(row.raises for row in SCENES.values()) == [False] * 40 + [True] * 20
    assert all(truths(name) for name in SCENES)
    assert [plant.name.split(" ")[0] for plant in sixth_plants()] == [name for name, _ in sixth_clean()] == list(SCENES)


@pytest.mark.parametrize(("owner", "pattern"), [row[:2] for rows in LIBRARY.values() for row in rows])
def test_every_pattern_finds_a_line_of_the_library(owner, pattern):
    assert any(re.search(pattern, line) for line in getsource(source_of(owner)).splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("dtype", CLEAN)
def test_a_careful_twin_drifts_by_what_its_format_costs(name, dtype):
    assert drift(name, dtype, careful=True) <= CLEAN[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("name", SILENT)
def test_a_silent_plant_drifts_many_times_what_its_format_does_or_widens(name):
    row = SCENES[name]
    if row.costs:
        assert written(name, careful=False) >= WIDER * written(name, careful=True)
    else:
        wrong, right = (drift(name, row.of, careful=careful) for careful in (False, True))
        assert not wrong <= TIMES * right  # not finite counts


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in SCENES.items() if row.raises])
def test_a_raising_plant_raises(name):
    with pytest.raises((RuntimeError, ValueError)) as raised:
        output(name, SCENES[name].of, careful=False)
    frames = {(Path(frame.filename).name, frame.lineno) for frame in traceback.extract_tb(raised.tb)}
    assert frames & {(file, line) for file, line, _ in truths(name)}, frames
