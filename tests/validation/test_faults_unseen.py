"""The fourth, fifth and sixth held-out part are what they say, by the float64 reference alone: no rule judges here."""

from dataclasses import replace

import pytest
import torch

from validation.faults import earlier, families, unseen
from validation.faults.alarms import ratios
from validation.faults.families import DTYPES, sample
from validation.faults.kernels import exact, yardstick
from validation.faults.shapes import KINDS
from validation.faults.trials import Stand, drawn

SHAPED = [name for name, family in (families.FAMILIES | families.UNSEEN).items() if family.kind in KINDS]
OPERATIONS = earlier.OPERATIONS | unseen.OPERATIONS


def rms(x):
    return float(x.double().square().mean().sqrt())


@pytest.mark.parametrize("family", SHAPED)
def test_honest_variations_are_as_good_as_plain_and_inputs_are_one_in_every_dtype(family):
    for dtype in DTYPES:
        operands = sample(family, seed=11, dtype=dtype)
        assert operands.mask.any(-1).all()
        assert torch.equal(sample(family, seed=11, dtype=torch.float32).k.to(dtype), operands.k)
        truth = exact(operands)
        own = rms(yardstick(operands) - truth)
        for variation in (*earlier.HONEST, *unseen.HONEST):
            found = variation.apply(operands)
            assert found.dtype is dtype, variation.id
            assert found.shape == operands.q.shape, variation.id
            assert rms(found - truth) < (4.0 if dtype is not torch.float32 else 12.0) * own, (variation.id, dtype)


def test_masks_by_hand():
    count = {name: sample(name, seed=0, dtype=torch.float32).mask.sum(-1).tolist() for name in SHAPED}
    assert set(count["window"]) == {24}
    assert set(count["cross_padded"]) == {107}
    assert count["packed"] == [*range(1, 21)] * 3 + [*range(1, 13)]
    assert set(count["bidirectional"]) == {60}
    assert set(count["sink_and_window"]) == {34}
    assert count["prefix"] == [20] * 20 + [*range(21, 91)]
    assert count["draft_tree"] == [189] + [190] * 2 + [191] * 4 + [192] * 8
    assert count["strided"] == [23 + row // 8 for row in range(66)]


@pytest.mark.parametrize("fault", [*earlier.FAULTS, *unseen.FAULTS], ids=lambda fault: fault.id)
def test_each_fault_shows_and_its_host_is_right_without_it(fault):
    dtype, moved = fault.dtypes[0], []
    for family in ("awkward", "window", "massive"):
        stand = Stand([sample(family, seed=9, dtype=dtype)])
        moved += stand.effects(torch.stack([fault.apply(stand.calls[0])]), fault)
        without = replace(fault, inside={}, before=lambda o: o, after=lambda y, o: y)
        assert stand.effects(torch.stack([without.apply(stand.calls[0])]), fault) == [0.0]
    assert max(moved) > 0.0


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_fault_of_an_operation_shows_and_honest_variations_are_near(name):
    for dtype in DTYPES:
        stand = Stand([drawn(name, seed=seed, dtype=dtype) for seed in (0, 1)])
        own = rms(torch.stack(stand.plain).double() - torch.stack(stand.reference))
        for change in OPERATIONS[name].changes(name, "honest"):
            outputs = torch.stack([change.apply(o) for o in stand.calls])
            assert outputs.dtype is dtype
            assert rms(outputs.double() - torch.stack(stand.reference)) < 12.0 * own, (change.id, dtype)
    stand = Stand([drawn(name, seed=seed, dtype=torch.float16) for seed in (0, 1)])
    for fault in OPERATIONS[name].changes(name, "fault"):
        assert max(stand.effects(torch.stack([fault.apply(o) for o in stand.calls]), fault)) > 0.01, fault.id


def test_how_much_an_alarm_errs_by_hand():
    assert ratios("wide", "cumulative_sum", "float32") == (1.0, 1.0)  # torch's cumsum is that, rounded once
    rms_ratio, largest = ratios("fused", "window", "float16")
    assert 0.0 < rms_ratio < 1.0  # plain stores more
    assert largest > 0.0
