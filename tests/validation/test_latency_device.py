"""The simulated device: what is planted, determinism, each tool's rule on it, and what is counted."""

import numpy as np
import pytest

from validation.frame import Options
from validation.latency import device
from validation.latency.device import Device, Kernel, Memory


@pytest.fixture
def quiet(monkeypatch):
    """A device without scatter, outliers, a wandering clock or effects of places."""
    for name in ("_SCATTER", "_OUTLIERS", "_WANDERS", "_COLD"):
        monkeypatch.setattr(device, name, 0.0)
    for name in ("_ALLOCATION", "_POOL"):
        monkeypatch.setattr(device, name, (0.0, 0.0))
    return Device(0)


def pair(delta=0.0, call_s=1e-3, effect=0.0):
    return Kernel(call_s, Memory(0.0)), Kernel(call_s * (1.0 + delta), Memory(effect))


def test_a_quiet_device_is_exact_and_its_clock_moves_by_the_work(quiet):
    times_s = quiet.times_s(Kernel(2e-3, Memory(np.log(1.5))), 4, after_s=1e-3)
    assert times_s == pytest.approx(3e-3)
    assert quiet.perf_counter() == pytest.approx(4 * 4e-3)


def test_a_place_is_worth_no_more_than_planted():
    planted = Device(0)
    effects = [planted.draw((0.0015, 0.003)) for _ in range(2000)]
    assert max(map(abs, effects)) == 0.003
    assert np.std(effects) == pytest.approx(0.0015, rel=0.1)


@pytest.mark.parametrize("rule", device.RULES)
def test_each_rule_tells_a_tenth_on_a_quiet_device(quiet, rule):
    judge = device.RULES[rule][1]
    found = judge(quiet, *pair(0.1), 0)
    assert (found.said, found.ratio) == ("slower", pytest.approx(1.1, rel=1e-3))
    assert judge(Device(0), *pair(-0.1), 0).said == "faster"
    assert judge(Device(0), *pair(), 0).said in ("same", "equivalent")


def test_one_place_alone_takes_its_effect_for_the_call(quiet):
    """The fault that drawing places cures, planted: the candidate's memory is 0.5 % slower."""
    assert device.ours(quiet, *pair(effect=0.005), 0, redraw=False).said == "slower"
    assert device.ours(quiet, *pair(effect=0.005), 0).said != "slower"


def test_host_bound_calls_hide_their_difference_from_a_launched_clock(quiet):
    ratio = device.RULES["torch_iqr"][1](quiet, *pair(0.1, call_s=1e-6), 0).ratio
    assert ratio == pytest.approx(1.0, abs=0.01)


def test_nvbench_stops_by_its_deviation_or_when_that_has_settled(quiet, monkeypatch):
    device.stdrel(quiet, Kernel(1e-2, Memory(0.0)))
    assert 0.5 < quiet.now_s < 0.9
    monkeypatch.setattr(device, "_SCATTER", 0.1)
    noisy = Device(0)
    _, noise = device.stdrel(noisy, Kernel(1e-2, Memory(0.0)))
    assert noise > 0.05
    assert noisy.now_s < 15.5


def test_nvbench_stops_by_the_entropy_of_its_times_once_that_hardly_rises(quiet, monkeypatch):
    """By hand: of n distinct times the entropy is log2 n, whose slope 1.44 / n is below 0.048° from some 1700 on."""
    device.entropy(quiet, Kernel(1e-5, Memory(0.0)))
    assert quiet.now_s == pytest.approx(16 * (1e-5 + device._FLUSH_S), rel=0.01)  # all alike
    monkeypatch.setattr(device, "_SCATTER", 0.1)
    monkeypatch.setattr(device, "CUDA_EVENT_RESOLUTION_S", 1e-15)
    noisy = Device(0)
    _, noise = device.entropy(noisy, Kernel(1e-4, Memory(0.0)))
    calls = noisy.now_s / (1e-4 + device._FLUSH_S)
    assert calls == pytest.approx(1722 + 150, rel=0.02)  # the line is through the last 299
    assert noise == pytest.approx(0.1, rel=0.1)


def test_trials_repeat_bit_for_bit_and_are_in_turn():
    trials = device._trials(Options(out=None, settings={"trials": 2}))
    assert len({trial.key for trial in trials}) == len(trials) == 2 * 2 * 2 * len(device.CALLS_S)
    assert [device.Spec.parse(trial.key) for trial in trials] == [trial.spec for trial in trials]
    spec = device.Spec("own", 0.01, 1e-2, 0)
    assert device._judged(spec) == device._judged(spec)


def lines(said="equivalent", low=0.999, high=1.001, *, delta=0.0, tensors="own", count=20, later=1.0):
    """Trials of one cell; `later` is the ratio of every second one."""
    return [
        {
            "key": device.Spec(tensors, delta, 1e-3, number).key,
            "rows": {rule: [said, later if number % 2 else 1.0, low, high, 1.0] for rule in device.RULES},
        }
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("of_equal", "of_slowed", "met"),
    [
        ({}, {"said": "slower", "low": 1.005, "high": 1.015}, [True] * 4 + [True, False, True]),
        ({"said": "faster", "low": 0.9, "high": 0.95}, {"said": "equivalent", "later": 1.02}, [False] * 6 + [True]),
    ],
)
def test_figures_are_judged_against_their_targets(of_equal, of_slowed, met):
    made = []
    for tensors in device.TENSORS:
        made += lines(tensors=tensors, **of_equal) + lines(tensors=tensors, delta=0.01, **of_slowed)
    figures = device._figures(made)
    assert [figure.met for figure in figures] == met * 2
    (_, table) = device._notes(made)
    assert table.count("\n") >= len(device.RULES)
    assert {name for name, _ in device.RULES.values()} <= {row.split("|")[1].strip() for row in table.splitlines()}
