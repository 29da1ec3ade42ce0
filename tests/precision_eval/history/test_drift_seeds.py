"""Drift over seeds: what is compared, and what it changes of the change points."""

import json
import math

import numpy as np
import pytest

from precision_eval.core.errors import RecordError
from precision_eval.history.series import SEEDS_NAME, read_drift_seeds, seed_step
from precision_eval.history.versions import history_of
from precision_eval.results.asv import read_results

DRIFT = "eager.dia_decode.track_drift"
CELL = ("kv_to_query", "tiny")
KEY = ("eager", "dia-decode", "drift", *CELL)
OLD = {seed: 1e-3 * (1.0 + 0.1 * seed) for seed in range(8)}


def write_seeds(folder, values, *, definition="v1", cpu="Testium 1"):
    """Write torch version → seed → drift as the command does."""
    lines = []
    for version, drift in values.items():
        line = {"key": version, "mode": "eager", "case": "dia-decode", "fix": CELL[0], "size": CELL[1]}
        line |= {"torch_version": version, "benchmark_version": definition, "cpu": cpu, "torch_build": "any"}
        lines.append(json.dumps(line | {"drift": {str(seed): value for seed, value in drift.items()}}) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SEEDS_NAME).write_text("".join(lines))
    return read_drift_seeds(folder)


def step_of(found, definition="v1"):
    return seed_step(found, KEY, before="2.8.0", at="2.9.1", benchmark_version=definition)


def test_a_step_by_hand(tmp_path):
    """Log-ratios 0, 0.1 … 0.4: mean 0.2, SD 0.158114; t of 4 degrees at 97.5 % is 2.776445, so ± 0.196324."""
    old = dict.fromkeys(range(5), 2e-4)
    found = step_of(write_seeds(tmp_path, {"2.8.0": old, "2.9.1": {k: 2e-4 * math.exp(0.1 * k) for k in old}}))
    assert (found.old, found.new) == (pytest.approx(2e-4), pytest.approx(2e-4 * math.exp(0.2)))
    assert found.factor == pytest.approx(found.new / found.old)
    assert found.interval == pytest.approx((math.exp(0.2 - 0.196324), math.exp(0.2 + 0.196324)), rel=1e-5)
    assert (found.least, found.most, found.seeds) == (pytest.approx(1.0), pytest.approx(math.exp(0.4)), 5)


def test_seeds_are_paired_and_only_those_that_both_have_count(tmp_path):
    """Seeds differ among themselves by far more than the versions do: paired, the step is exact."""
    new = {seed: 1.3 * value for seed, value in OLD.items() if seed >= 2} | {99: 1.0}
    found = step_of(write_seeds(tmp_path, {"2.8.0": OLD, "2.9.1": new}))
    assert found.seeds == 6
    assert found.interval == pytest.approx((1.3, 1.3))


def test_too_few_another_definition_or_no_drift_say_nothing(tmp_path):
    few = {seed: OLD[seed] for seed in range(4)}
    assert step_of(write_seeds(tmp_path, {"2.8.0": OLD, "2.9.1": few})) is None
    assert step_of(write_seeds(tmp_path, {"2.8.0": OLD})) is None
    both = write_seeds(tmp_path, {"2.8.0": OLD, "2.9.1": OLD})
    assert step_of(both) is not None
    assert step_of(both, "v2") is None
    assert step_of(write_seeds(tmp_path, {"2.8.0": OLD, "2.9.1": OLD | {3: 0.0}})) is None
    assert read_drift_seeds(tmp_path / "none") == ()


@pytest.mark.parametrize("line", ['{\n{"key": "a"}', '[]\n{"key": "a"}', '{"key": "a"}', '{"key": "a", "drift": 3}'])
def test_a_damaged_line_is_named(tmp_path, line):
    (tmp_path / SEEDS_NAME).write_text(line + "\n")
    with pytest.raises(RecordError, match=r"drift-seeds.jsonl .* remove"):
        read_drift_seeds(tmp_path)


def history_with(path, write, run_type, tracked, seeds, **more):
    runs = [
        run_type(torch=version, values={DRIFT: {CELL: value}})
        for version, value in zip(("2.8.0", "2.9.1"), tracked, strict=True)
    ]
    write(path, runs)
    if seeds is not None:
        write_seeds(path, seeds, **more)
    return history_of(read_results(path))


def scattered(factor):
    """Seeds of which each moves by chance, about a factor."""
    rng = np.random.default_rng(2)
    return {"2.8.0": OLD, "2.9.1": {s: v * factor * math.exp(0.1 * rng.normal()) for s, v in OLD.items()}}


def test_a_small_change_that_the_seeds_confirm_is_called_with_their_factor(tmp_path, write, run_type):
    seeds = {"2.8.0": OLD, "2.9.1": {seed: 1.2 * value for seed, value in OLD.items()}}
    history = history_with(tmp_path, write, run_type, (1.0, 1.25), seeds)
    (found,) = history.cases[0].changes
    assert (found.seeds, found.factor, found.p_value) == (8, pytest.approx(1.2), None)
    assert found.factor_interval == pytest.approx((1.2, 1.2))
    assert [one.id for one in found.explained_by] == ["cpu-flash-takes-grouped-heads"]
    assert not any("of one seed" in note for note in history.notes)


def test_one_seeds_luck_is_no_change_and_says_what_the_seeds_say(tmp_path, write, run_type):
    for number, tracked in enumerate(((1.0, 1.28), (1.0, 1.6))):
        history = history_with(tmp_path / str(number), write, run_type, tracked, scattered(1.0))
        assert history.cases[0].changes == ()
        (note,) = [note for note in history.notes if "of one seed" in note]
        assert f"×{tracked[1]:g} at 2.9.1, over 8 seeds ×" in note
    assert len(history_with(tmp_path / "bare", write, run_type, (1.0, 1.6), None).cases[0].changes) == 1


def test_samples_of_several_seeds_are_compared_by_themselves_seed_by_seed(tmp_path, write, run_type):
    """No file of seeds is needed; luck of the seeds is no change, and no note speaks of one seed."""
    old, lucky, better = list(OLD.values()), list(scattered(1.0)["2.9.1"].values()), [0.8 * v for v in OLD.values()]
    assert history_with(tmp_path / "luck", write, run_type, (old, lucky), None).cases[0].changes == ()
    history = history_with(tmp_path / "step", write, run_type, (old, better), None)
    (found,) = history.cases[0].changes
    assert (found.seeds, found.factor) == (8, pytest.approx(0.8))
    assert not any("of one seed" in note for note in history.notes)
    assert len(history_with(tmp_path / "few", write, run_type, (old[:4], better[:4]), None).cases[0].changes) == 0
