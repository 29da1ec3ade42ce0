"""The planted faults, the rivals' rules, and what becomes of their lines; every fault moves something, somewhere."""

import json
import math

import numpy as np
import pytest
import torch

from validation import frame
from validation.faults import EXPERIMENT, _candidates, catalog, earlier, families, honest, trials, unseen
from validation.faults.catalog import FAULTS, SEEDS_PER_HOST
from validation.faults.families import DTYPES, FAMILIES, sample
from validation.faults.honest import HONEST
from validation.faults.kernels import exact, yardstick
from validation.faults.operations import OPERATIONS
from validation.faults.trials import (
    BEYOND,
    OURS,
    POOL,
    RIVALS,
    RULES,
    Rate,
    Reference,
    Stand,
    collect,
    drawn,
    is_held_out,
    is_seen,
    stands,
)
from validation.frame import Options

BY_ID = {fault.id: fault for fault in FAULTS}


# ---- the faults


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_each_fault_shows_somewhere(fault):
    dtype = fault.dtypes[0]
    moved = []
    for family in ("gaussian", "outlier_channels", "long_tailed", "voice", "decode_one_key"):
        for seed in (1, 9, 18):
            stand = Stand([fault.inputs(sample(family, seed=seed, dtype=dtype))])
            found = torch.stack([fault.apply(stand.calls[0])])
            assert found.shape[1:] == stand.calls[0].q.shape
            assert found.dtype is dtype
            moved += stand.effects(found, fault)
    assert max(moved) > 0.0


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_fault_of_an_operation_shows_and_honest_variations_are_near(name):
    for dtype in DTYPES:
        stand = Stand([drawn(name, seed=seed, dtype=dtype) for seed in (0, 1)])
        for fault in OPERATIONS[name].changes(name, "fault"):
            outputs = torch.stack([fault.apply(o) for o in stand.calls])
            if dtype is torch.float32 and fault.id in ("chunks_stored", "stored_steps", "moments_stored"):
                continue  # in float32 that is the honest order
            if dtype is torch.bfloat16 and fault.id in ("sink_in_bfloat16", "gain_0.1%", "sine_by_series"):
                continue  # and in bfloat16 these change nothing
            assert max(stand.effects(outputs, fault)) > 0.01, (fault.id, dtype)
        for change in OPERATIONS[name].changes(name, "honest"):
            outputs = torch.stack([change.apply(o) for o in stand.calls])
            assert outputs.dtype is dtype
            assert max(stand.effects(outputs, change)) < 20.0, (change.id, dtype)


def test_effects_by_hand():
    hidden, gain = BY_ID["nan_hidden"], BY_ID["gain_1%"]
    with_nan = Stand([hidden.inputs(sample("gaussian", seed=0, dtype=torch.float16))])
    assert with_nan.calls[0].v.isnan().sum() == 1
    correct = with_nan.correct(hidden)
    assert with_nan.effects(correct.clone(), hidden) == [0.0]
    assert with_nan.effects(torch.full_like(correct, math.nan), hidden) == [BEYOND]
    stand = Stand([sample("gaussian", seed=0, dtype=torch.float32)])
    truth = exact(stand.calls[0])
    own = (yardstick(stand.calls[0]) - truth).square().mean().sqrt()
    expected = float(0.01 * truth.square().mean().sqrt() / own)
    outputs = torch.stack([gain.apply(stand.calls[0])])
    assert stand.effects(outputs, gain) == [pytest.approx(expected, rel=5e-3)]


def test_a_pool_comes_from_one_host():
    calls = [sample("gaussian", seed=seed, dtype=torch.float16) for seed in range(3 * SEEDS_PER_HOST)]
    hosts = [id(BY_ID["dropped_key"].host(operands)) for operands in calls]
    pools = [set(hosts[first : first + SEEDS_PER_HOST]) for first in range(0, len(hosts), SEEDS_PER_HOST)]
    assert [len(pool) for pool in pools] == [1, 1, 1]
    assert len(set(hosts)) == 3


def test_what_is_held_out_is_neither_seen_nor_half_of_it():
    assert is_held_out("loops", "strided")
    assert is_held_out("cap_8.08", "capped_attention")
    for pair in (("loops", "gaussian"), ("fused", "strided")):
        assert not is_held_out(*pair)
        assert not is_seen(*pair)
    assert is_seen("fused", "gaussian")
    assert is_seen("ring_4", "prefix")
    assert is_seen("gain", "linear")
    names = [one.id for part in (earlier, unseen) for one in (*part.HONEST, *part.FAULTS)]
    names += [one.id for one in (*HONEST, *FAULTS)]
    assert len(names) == len(set(names))  # a name that is tuned on is not held out
    assert not set(families.UNSEEN) & set(FAMILIES)


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
    alarms = {name for name, rule in RIVALS.items() if rule(reference.yardstick, reference)}
    assert alarms <= {"bias_or_rms", *(["sqnr_45_db"] if dtype is torch.bfloat16 else [])}
    for bad in (math.nan, math.inf):
        spoiled = reference.yardstick.clone()
        spoiled[0, 0, 0, 0] = bad
        assert all(rule(spoiled, reference) for rule in RIVALS.values())


def test_mean_rms_and_sqnr_by_hand():
    truth = torch.full((1000,), 1.0, dtype=torch.float64)
    held_to = Reference(truth, (truth + 2.0**-9).bfloat16() + torch.tensor(2.0**-7).bfloat16())
    err = float((held_to.yardstick.double() - truth)[0])
    for rule, factor in (("flex_mean", 1.1), ("flex_gold", 1.35)):
        assert not RIVALS[rule](truth + 0.99 * factor * err, held_to)
        assert RIVALS[rule](truth + 1.01 * factor * err, held_to)
    assert not RIVALS["sqnr_45_db"](truth + 0.0056, held_to)  # 10^(-45/20) = 0.00562
    assert RIVALS["sqnr_45_db"](truth + 0.0057, held_to)


def test_get_tolerances_by_hand():
    truth, dtype = torch.tensor([1.0, 100.0], dtype=torch.float64), torch.float32
    held_to = Reference(truth, torch.tensor([1.0, 101.0], dtype=dtype))  # atol 1, rtol 0.01
    assert not RIVALS["get_tolerances"](torch.tensor([2.0, 101.9], dtype=dtype), held_to)
    assert RIVALS["get_tolerances"](torch.tensor([2.1, 100.0], dtype=dtype), held_to)


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


# ---- the judge


@pytest.mark.parametrize(
    ("variation", "family", "dtype"),
    [
        ("by_blocks", "cumulative_sum", "float32"),
        ("by_product", "cumulative_sum", "float32"),
        ("around_first", "channel_norm", "float32"),
        ("by_log2", "log_mel", "float32"),
        ("wide_by_position", "alibi", "float32"),
        ("log2_sum", "massive", "float32"),
        ("log2_sum", "speech", "float32"),
        ("sdpa_keys_reversed", "speech", "float32"),
        ("sum_of_stored", "prefix", "float16"),
        ("sum_of_stored", "int8_cache", "float32"),
        ("scaled_key", "shared_decode", "bfloat16"),
        ("turned_round", "prefix", "bfloat16"),
        ("one_key_at_a_time", "int8_cache", "float32"),
        ("tiles_64_stored_query", "strided", "bfloat16"),
        ("sdpa_math_reduced", "prefill", "float16"),
        ("einsum", "one_key_outliers", "float16"),
    ],
)
def test_orders_that_alarmed_once_are_honest(variation, family, dtype):
    stand = stands(family, getattr(torch, dtype), POOL)[0]
    known = _candidates(family)["honest"]
    apply = next(one.apply for one in known if one.id == variation)
    assert stand.range.assess([apply(o) for o in stand.calls]).verdict == "as expected of the format"


# ---- the lines


def line_of(key, letters, pooled, **more):
    said = {**dict.fromkeys(RULES, letters), **{f"{rule}_pooled": pooled for rule in RULES}}
    return {"key": key, "said": said, **more}


def test_pools_take_the_root_mean_square_and_single_calls_the_first():
    effects = [3.0, *[0.0] * 6, 1.0]
    line = line_of("fault/stale_row/voice/float16/8", "w", ".", effect=effects)
    pooled, single = (collect([line], "fault", pooled=pool) for pool in (True, False))
    assert (single.id[0], single.family[0], single.dtype[0]) == ("stale_row", "voice", "float16")
    assert pooled.effect.tolist() == [pytest.approx(math.sqrt(10 / 8))]
    assert single.effect.tolist() == [3.0]
    assert (single.rate(OURS), pooled.rate(OURS)) == (Rate(1, 1), Rate(0, 1))
    assert str(single.rate(OURS, single.between(1.0, math.inf))).endswith("of 1")
    nothing = collect([line | {"effect": [0.0] * 8}], "fault", pooled=True)
    assert nothing.between(0.0, 0.25).sum() == 0  # no effect, no trial


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a few faults; return what the figures are made of."""
    chosen = (BY_ID["gain_0.05%"], BY_ID["zeros"], BY_ID["nan_hidden"], BY_ID["stale_row"])
    for module, name, value in (
        (catalog, "FAULTS", chosen), (honest, "HONEST", HONEST[:3]),
        (families, "FAMILIES", {name: FAMILIES[name] for name in ("gaussian", "outlier_channels")}),
        (families, "UNSEEN", {}), (families, "DTYPES", (torch.float16,)),
        (earlier, "HONEST", ()), (earlier, "FAULTS", ()),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("validation.faults.OPERATIONS", {"gelu": OPERATIONS["gelu"]})
    monkeypatch.setattr("validation.faults.TIMED", ("gaussian",))
    monkeypatch.setattr("validation.faults.LARGE", {})
    options = Options(out=tmp_path, settings={"seeds": POOL, "compile": (), "families": (), "part": ("all",)})

    def run_once():
        frame.run(EXPERIMENT, options, progress=lambda *step: None)
        return frame.content_of(EXPERIMENT, options)

    return run_once


def test_a_run_goes_on_where_it_stopped_and_is_reported(run, tmp_path):
    run()
    path = tmp_path / "faults.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 2 * 7 + 4 + 1
    path.write_text("".join(lines[:6]) + lines[6][:20], encoding="utf-8")
    again = run()
    found = [json.loads(line).get("said") for line in path.read_text(encoding="utf-8").splitlines()]
    assert found == [json.loads(line).get("said") for line in lines]
    figures = {figure.name: figure for figure in EXPERIMENT.figures(again)}
    caught = figures["faults caught, effect ≥ 1, every trial on file"]
    assert caught.found.startswith("100.0 %")
    assert caught.met is True
    assert set(caught.rivals) == set(RIVALS)
    assert figures["false alarms, every trial on file"].found.startswith("0.00 %")
    assert "gaussian/float16" in figures["cost of judging, small calls, eight judged whole"].found
    drawn_files = [path for path in EXPERIMENT.plots(again, tmp_path) if path.suffix == ".png"]
    assert all(path.stat().st_size > 5_000 for path in drawn_files)


def test_a_judge_that_says_nothing_catches_nothing(run, tmp_path):
    run()
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["said"] = {rule: "." * len(letters) for rule, letters in line.get("said", {}).items()}
    content = EXPERIMENT.summary(lines, Options(out=tmp_path))
    figures = {figure.name: figure for figure in EXPERIMENT.figures(content)}
    assert figures["faults caught, effect ≥ 1, every trial on file"].met is False
    assert figures["false alarms, every trial on file"].met is True


def test_a_trial_holds_one_letter_per_pool():
    line = trials.trial(BY_ID["zeros"], stands("gaussian", torch.bfloat16, 2 * POOL))
    assert len(line["effect"]) == 2 * POOL
    assert {rule: line["said"][rule] for rule in (OURS, f"{OURS}_pooled", "flash_2max")} == {
        OURS: "ww", f"{OURS}_pooled": "ww", "flash_2max": "ww"
    }  # fmt: skip
