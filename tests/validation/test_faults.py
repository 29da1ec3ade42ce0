"""The planted faults, the rivals' rules, and what becomes of their lines; every fault moves something, somewhere."""

import math

import numpy as np
import pytest
import torch

from validation import frame
from validation.faults import EXPERIMENT, catalog, families, honest, trials
from validation.faults.catalog import FAULTS, HELD_OUT_FAULTS, SEEDS_PER_HOST
from validation.faults.families import DTYPES, FAMILIES, sample
from validation.faults.honest import HELD_OUT_HONEST, HONEST
from validation.faults.kernels import FUSED, exact, yardstick
from validation.faults.trials import (
    BEYOND,
    OURS,
    POOLED,
    RIVALS,
    Rate,
    Reference,
    Stand,
    collect,
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


def test_effects_by_hand():
    with_nan = Stand(BY_ID["nan_hidden"].inputs(sample("gaussian", seed=0, dtype=torch.float16)))
    assert with_nan.operands.v.isnan().sum() == 1
    assert with_nan.effect(with_nan.host(FUSED).clone(), FUSED) == 0.0
    assert with_nan.effect(torch.full_like(with_nan.host(FUSED), math.nan), FUSED) == BEYOND
    stand, fault = Stand(sample("gaussian", seed=0, dtype=torch.float32)), BY_ID["gain_1%"]
    truth = exact(stand.operands)
    own = (yardstick(stand.operands) - truth).square().mean().sqrt()
    expected = float(0.01 * truth.square().mean().sqrt() / own)
    assert stand.effect(fault.apply(stand.operands), fault.host(stand.operands)) == pytest.approx(expected, rel=1e-3)


def test_a_pool_comes_from_one_host():
    calls = [sample("gaussian", seed=seed, dtype=torch.float16) for seed in range(3 * SEEDS_PER_HOST)]
    hosts = [id(BY_ID["dropped_key"].host(operands)) for operands in calls]
    pools = [set(hosts[first : first + SEEDS_PER_HOST]) for first in range(0, len(hosts), SEEDS_PER_HOST)]
    assert [len(pool) for pool in pools] == [1, 1, 1]
    assert len(set(hosts)) == 3


@pytest.mark.parametrize(("exp", "low", "high"), [("exp_quadratic", 1e-3, 5e-3), ("exp_cubic", 5e-5, 2e-4)])
def test_approximate_exp_is_as_coarse_as_said(exp, low, high):
    x = torch.linspace(-20.0, 0.0, 5001)
    worst = float((BY_ID[exp].inside["exp"](x) / x.exp() - 1.0).abs().max())
    assert low < worst < high
    assert BY_ID[exp].inside["exp"](torch.tensor([-math.inf])).item() == 0.0


# ---- the rivals


@pytest.mark.parametrize("dtype", DTYPES)
def test_rivals_flag_what_is_not_finite_and_not_the_yardstick(dtype):
    operands = sample("gaussian", seed=3, dtype=dtype)
    reference = Reference(exact(operands), yardstick(operands))
    assert {name for name, rule in RIVALS.items() if rule(reference.yardstick, reference)} <= {"bias_or_rms"}
    for bad in (math.nan, math.inf):
        spoiled = reference.yardstick.clone()
        spoiled[0, 0, 0, 0] = bad
        assert all(rule(spoiled, reference) for rule in RIVALS.values())


def test_twice_the_maximum_by_hand():
    eps = 2.0**-10
    plain = torch.tensor([1.0 + eps, 2.0], dtype=torch.float16)
    reference = Reference(torch.tensor([1.0, 2.0], dtype=torch.float64), plain)
    for errors, flagged in ((2, False), (3, True)):
        candidate = torch.tensor([1.0 + errors * eps, 2.0], dtype=torch.float16)
        assert RIVALS["flash_2max"](candidate, reference) is flagged
    x, step = np.float16(0.1), np.float16(0.3)
    reference = Reference(torch.tensor([0.1], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float16))
    by_numpy = abs(np.float16(np.float16(x + step) - step) - x)  # the allowance is computed in the dtype
    assert reference.rounding_atol == pytest.approx(2.0 * float(by_numpy), abs=2.0**-13)


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
    assert (single.id[0], single.family[0], single.dtype[0]) == ("x", "voice", "float16")
    assert single.held_out.all()
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


@pytest.mark.parametrize(("judge", "caught", "flagged"), [(never, "0.00 %", "0.00 %"), (always, "100.0 %", "100.0 %")])
def test_figures_follow_the_judge_and_a_plot_is_written(run, tmp_path, judge, caught, flagged):
    lines = run(judge)
    figures = {figure.name: figure for figure in EXPERIMENT.figures(lines)}
    first = figures["faults caught, effect at least the format's own error"]
    assert set(first.rivals) == set(RIVALS)
    for name in (
        first.name,
        "held-out faults caught, effect at least the format's own error",
        "faults caught at ≥ 1, 4 calls pooled",
    ):
        assert figures[name].found.startswith(caught)
        assert figures[name].met is (judge is always)
    for name in ("false alarms, honest variations", "false alarms, held-out honest variations"):
        assert figures[name].found.startswith(flagged)
        assert figures[name].met is (judge is never)
    drawn = [path for path in EXPERIMENT.plots(lines, tmp_path) if path.suffix == ".png"]
    assert [path.name for path in drawn] == ["faults.png"]
    assert drawn[0].stat().st_size > 5_000


def test_a_trial_holds_one_entry_per_seed_and_pool(monkeypatch):
    monkeypatch.setattr(trials, "suite_judge", always)
    line = trials.trial(BY_ID["zeros"], stands("gaussian", torch.bfloat16, 8))
    assert len(line["effect"]) == 8
    flags = {rule: from_bits(bits) for rule, bits in line["alarms"].items()}
    assert (flags[OURS], flags[POOLED], flags["flash_2max"]) == ([True] * 8, [True] * 2, [True] * 8)
