from types import SimpleNamespace

import numpy as np
import pytest

from precision_eval.measure import minutes
from precision_eval.stats import bootstrap_interval
from validation import hour
from validation.frame import content_of, run


@pytest.fixture
def short(monkeypatch, tmp_path):
    """Minutes of half a second, spoken in this process; a judge that hears the level."""
    monkeypatch.setattr(minutes, "MINUTE_FRAMES", 25)
    spoken = []

    def call(target, *arguments, start):
        assert target == "validation.hour:spoken"
        spoken.append(arguments[0])
        return hour.spoken(*arguments)

    panel = SimpleNamespace(
        hear=lambda samples: float(np.abs(samples).mean()),
        scores=lambda truth, heard: {"speaker_distance": abs(truth - heard)},
    )
    monkeypatch.setattr(hour, "call_isolated", call)
    monkeypatch.setattr(hour, "Panel", lambda judges: panel)
    given = {"minutes": str(2 / 60), "conditions": "full_float32,other seed", "folder": str(tmp_path / "wav")}

    def measured(**more):
        options = hour.EXPERIMENT.options(given | more, out=tmp_path / "out")
        run(hour.EXPERIMENT, options, progress=lambda *_: None)
        return content_of(hour.EXPERIMENT, options)

    return measured, spoken


def test_what_is_spoken_is_heard_once_and_by_a_judge_later(short):
    measured, spoken = short
    first = measured()
    assert list(first["conditions"]) == ["full_float32", "other seed"]
    assert first["conditions"]["full_float32"]["synthesis"]["cpu_s"] > 0.0
    assert len(first["conditions"]["other seed"]["minutes"]["flags"]) == 4
    judged = measured(judges="resemblyzer")
    assert spoken == ["full_float32", "other seed"]
    assert len(judged["conditions"]["other seed"]["minutes"]["speaker_distance"]) == 4
    assert judged["conditions"]["other seed"]["minutes"]["mel_mcd_db"]
    names = [figure.name for figure in hour.EXPERIMENT.figures(judged)]
    assert "full_float32: cost" in names
    assert "other seed" in names
    assert "speaker distance" in hour.EXPERIMENT.figures(judged)[-1].found


def made(values, tokens="a", flags=()):
    heard = {"phonemes_right": values, "flags": [list(flags)] * len(values)}
    return {"minutes": heard, "tokens_sha256": tokens, "judging_s": 1.0}


def test_a_change_is_paired_by_minute():
    anchor = [0.9 - 0.02 * (minute % 3) for minute in range(60)]
    conditions = {
        "full_float32": made(anchor),
        "bfloat16": made([value - 0.01 for value in anchor], tokens="b"),
        "kv_to_query": made(anchor),
    }
    found = {figure.name: figure for figure in hour.EXPERIMENT.figures({"conditions": conditions, "length_min": 60.0})}
    column = "change to float32 (95 %)"
    assert found["bfloat16"].rivals[column] == "phonemes right −0.010 (−0.010 to −0.010)"
    assert found["kv_to_query"].rivals[column] == "the very same tokens"
    assert found["full_float32"].rivals[column] == "–"


def test_an_hour_that_is_too_slow_misses_its_target():
    data = made([0.9] * 60, flags=["stuck"]) | {"synthesis": {"cpu_s": 301.0, "rss_peak_bytes": 2**20}}
    cost, *_ = hour.EXPERIMENT.figures({"conditions": {"full_float32": data}, "length_min": 60.0})
    assert cost.met is False
    assert "stuck: 1–60" in cost.found


class TestBlockBootstrap:
    def test_block_of_one_is_the_plain_bootstrap(self):
        values = np.random.default_rng(0).normal(size=60)
        ours = hour.block_bootstrap_mean(values, block_length=1, seed=0, resamples=6000)
        theirs = bootstrap_interval(values, seed=1, resamples=6000)
        assert ours.high - ours.low == pytest.approx(theirs.high - theirs.low, rel=0.06)

    def test_autocorrelation_widens(self):
        rng = np.random.default_rng(3)
        noise = rng.normal(size=2000)
        walk = np.zeros(2000)
        for step in range(1, 2000):
            walk[step] = 0.9 * walk[step - 1] + noise[step]
        naive = hour.block_bootstrap_mean(walk, block_length=1, seed=0)
        blocks = hour.block_bootstrap_mean(walk, block_length=60, seed=0)
        assert (blocks.high - blocks.low) > 2.5 * (naive.high - naive.low)  # theory: √19 = 4.4
        assert (blocks.high - blocks.low) < 6.0 * (naive.high - naive.low)
