import math

import numpy as np
import pytest
import torch

from validation import frame
from validation.faults import EXPERIMENT, catalog, families, honest, plants, trials
from validation.faults.catalog import FAULTS, HELD_OUT_FAULTS, SEEDS_PER_HOST
from validation.faults.families import DTYPES, FAMILIES, sample
from validation.faults.honest import HELD_OUT_HONEST, HONEST
from validation.faults.kernels import FUSED, exact, yardstick
from validation.faults.scoring import Rate, collect
from validation.faults.trials import (
    BEYOND,
    OURS,
    POOLED,
    RIVALS,
    Reference,
    Stand,
    alarms,
    fault_trial,
    from_bits,
    stands,
    to_bits,
)
from validation.frame import Options

ALL = FAULTS + HELD_OUT_FAULTS
BY_ID = {fault.id: fault for fault in ALL}


def never(candidate, reference, plain):
    return False


def always(candidate, reference, plain):
    return True


# ---- the faults


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.id)
def test_each_fault_shows_somewhere(fault):
    dtype = fault.dtypes[0]
    moved = []
    for family in FAMILIES:
        for seed in (1, 5, 10):
            stand = Stand(fault.inputs(sample(family, seed=seed, dtype=dtype)))
            found = fault.apply(stand.operands)
            assert found.shape == stand.operands.q.shape
            assert found.dtype is dtype
            moved.append(stand.effect(found, fault.host(stand.operands)))
    assert max(moved) > 0.0


def test_a_host_without_its_fault_has_no_effect():
    stand = Stand(plants.nan_in_value(sample("gaussian", seed=0, dtype=torch.float16)))
    assert stand.effect(stand.host(FUSED).clone(), FUSED) == 0.0


def test_effect_of_a_gain_by_hand():
    stand = Stand(sample("gaussian", seed=0, dtype=torch.float32))
    fault = BY_ID["gain_1%"]
    truth = exact(stand.operands)
    own = (yardstick(stand.operands) - truth).square().mean().sqrt()
    expected = float(0.01 * truth.square().mean().sqrt() / own)
    assert stand.effect(fault.apply(stand.operands), fault.host(stand.operands)) == pytest.approx(expected, rel=1e-3)


def test_what_is_not_finite_is_beyond():
    stand = Stand(sample("gaussian", seed=0, dtype=torch.float16))
    assert stand.effect(torch.full_like(stand.host(FUSED), math.nan), FUSED) == BEYOND


def test_a_pool_comes_from_one_host():
    for first in range(0, 24, SEEDS_PER_HOST):
        pool = [sample("gaussian", seed=first + i, dtype=torch.float16) for i in range(SEEDS_PER_HOST)]
        assert len({id(BY_ID["dropped_key"].host(operands)) for operands in pool}) == 1
    firsts = [sample("gaussian", seed=s, dtype=torch.float16) for s in (0, 4, 8)]
    assert len({id(BY_ID["dropped_key"].host(operands)) for operands in firsts}) == 3


@pytest.mark.parametrize(("exp", "low", "high"), [("exp_quadratic", 1e-3, 5e-3), ("exp_cubic", 5e-5, 2e-4)])
def test_approximate_exp_is_as_coarse_as_said(exp, low, high):
    x = torch.linspace(-20.0, 0.0, 5001)
    worst = float((BY_ID[exp].inside["exp"](x) / x.exp() - 1.0).abs().max())
    assert low < worst < high
    assert BY_ID[exp].inside["exp"](torch.tensor([-math.inf])).item() == 0.0


def test_a_flipped_bit_is_one_element():
    operands = sample("gaussian", seed=4, dtype=torch.bfloat16)
    output = yardstick(operands)
    moved = plants.flipped_bit(output, operands) != output
    assert moved.sum().item() == 1


# ---- the rivals


def held(dtype=torch.float16):
    operands = sample("gaussian", seed=3, dtype=dtype)
    return Reference(exact(operands), yardstick(operands))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rival_flags_the_yardstick(dtype):
    reference = held(dtype)
    assert {rule for rule, found in alarms(reference.yardstick, reference).items() if found} <= {"bias_or_rms"}


def test_every_rival_flags_what_is_not_finite():
    reference = held()
    for bad in (math.nan, math.inf):
        found = reference.yardstick.clone()
        found[0, 0, 0, 0] = bad
        assert all(alarms(found, reference).values())


def test_twice_the_maximum_by_hand():
    reference = torch.tensor([1.0, 2.0], dtype=torch.float64)
    eps = 2.0**-10
    reference = Reference(reference, torch.tensor([1.0 + eps, 2.0], dtype=torch.float16))
    inside = torch.tensor([1.0 + 2 * eps, 2.0], dtype=torch.float16)
    outside = torch.tensor([1.0 + 3 * eps, 2.0], dtype=torch.float16)
    assert not RIVALS["flash_2max"](inside, reference)
    assert RIVALS["flash_2max"](outside, reference)


def test_the_allowance_is_computed_in_the_dtype():
    reference = Reference(torch.tensor([0.1], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float16))
    x = np.float16(0.1)
    by_numpy = abs(np.float16(np.float16(x + np.float16(0.3)) - np.float16(0.3)) - x)
    assert reference.rounding_atol == pytest.approx(2.0 * float(by_numpy), abs=2.0**-13)
    assert reference.rounding_atol >= 0.0


def test_bias_and_rms_each_raise_their_alarm():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(10_000, generator=generator, dtype=torch.float64)
    noise = 1e-3 * torch.randn(10_000, generator=generator, dtype=torch.float64)
    held_to, rule = Reference(truth, truth + noise), RIVALS["bias_or_rms"]
    assert not rule(truth + noise.roll(1), held_to)
    assert rule(truth + noise.roll(1) + 1e-4 * truth.sign(), held_to)  # z = 10
    assert rule(truth + 2.1 * noise.roll(1), held_to)


# ---- the lines


def test_pools_take_the_root_mean_square():
    line = {"key": "fault/x/voice/float16/4", "held_out": True}
    line["effect"] = [0.0, 0.0, 0.0, 2.0]
    line["alarms"] = {rule: to_bits([False, True, False, True]) for rule in (OURS, *RIVALS)} | {POOLED: to_bits([True])}
    pooled, single = collect([line], "fault", pooled=True), collect([line], "fault")
    assert (single.id[0], single.family[0], single.dtype[0], bool(single.held_out[0])) == (
        "x",
        "voice",
        "float16",
        True,
    )
    assert pooled.effect.tolist() == [1.0]
    assert pooled.rate(POOLED).value == 1.0
    assert str(single.rate(OURS, single.between(1.0, math.inf))).endswith("of 1")
    assert single.rate(OURS) == Rate(2, 4)
    assert single.between(0.0, 0.25).sum() == 0  # no effect, no trial


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a few faults with a judge; return the lines."""
    chosen = (BY_ID["gain_0.05%"], BY_ID["zeros"], BY_ID["nan_hidden"])
    for module, name, value in (
        (catalog, "FAULTS", chosen), (catalog, "HELD_OUT_FAULTS", (BY_ID["stale_row"],)),
        (honest, "HONEST", HONEST[:2]), (honest, "HELD_OUT_HONEST", HELD_OUT_HONEST[:1]),
        (families, "FAMILIES", ("gaussian", "outlier_channels")), (families, "DTYPES", (torch.float16,)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)

    def run_with(judge):
        monkeypatch.setattr(trials, "suite_judge", judge)
        options = Options(out=tmp_path, settings={"seeds": 4})
        frame.run(EXPERIMENT, options, progress=lambda *step: None)
        return frame.content_of(EXPERIMENT, options)

    return run_with


def test_run_goes_on_where_it_stopped(run, tmp_path):
    first = run(always)
    assert len(first) == 14
    path = tmp_path / "faults.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:6]) + lines[6][:20], encoding="utf-8")
    assert [line | {"assess_ms": 0} for line in run(always)] == [line | {"assess_ms": 0} for line in first]


@pytest.mark.parametrize(("judge", "caught", "flagged"), [(never, "0.00 %", "0.00 %"), (always, "100.0 %", "100.0 %")])
def test_figures_follow_the_judge_and_plots_are_written(run, tmp_path, judge, caught, flagged):
    lines = run(judge)
    found = {figure.name: figure for figure in EXPERIMENT.figures(lines)}
    first = found["faults caught, effect at least the format's own error"]
    assert first.found.startswith(caught)
    assert first.met is (judge is always)
    assert found["false alarms, honest variations"].found.startswith(flagged)
    assert found["false alarms, honest variations"].met is (judge is never)
    assert set(first.rivals) == set(RIVALS)
    assert found["held-out faults caught, effect at least the format's own error"].found.startswith(caught)
    assert found["false alarms, held-out honest variations"].found.startswith(flagged)
    assert found["faults caught at ≥ 1, 4 calls pooled"].found.startswith(caught)
    drawn = [path for path in EXPERIMENT.plots(lines, tmp_path) if path.suffix == ".png"]
    assert [path.name for path in drawn] == ["faults.png", "faults-by-fault.png"][: 1 + (judge is never)]
    assert all(path.stat().st_size > 5_000 for path in drawn)


def test_a_trial_holds_one_entry_per_seed_and_pool():
    found = fault_trial(BY_ID["zeros"], stands("gaussian", torch.bfloat16, 8), judge=always)
    assert len(found["effect"]) == 8
    assert len(from_bits(found["alarms"][OURS])) == 8
    assert len(from_bits(found["alarms"][POOLED])) == 2
    assert all(from_bits(found["alarms"]["flash_2max"]))
