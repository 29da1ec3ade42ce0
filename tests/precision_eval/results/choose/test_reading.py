"""Groups from records: figures, statuses, doubts, and unlike things that are refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_groups import latency, record

from precision_eval.core.errors import RecordError
from precision_eval.results.choose import Constraints, MissingMeasureError, Question, answer, choose_from, groups_of
from precision_eval.results.reading import TWO_DIGITS, status_of

RATIOS = (1.29, 1.31, 1.30, 1.32)


def records(**rest):
    return [
        record("full_float32", "latency", latency((1.0, 1.001, 0.999, 1.0), verdict="undecided"), **rest),
        record("full_float32", "drift", {"relative_error": 1e-6}, **rest),
        record("full_float32", "memory", {"storage_bytes": 64, "allocated_peak_bytes": 2}, **rest),
        record("float16", "latency", latency(RATIOS), **rest),
        record("float16", "drift", {"relative_error": 1e-3}, **rest),
        record("float16", "memory", {"storage_bytes": 32, "allocated_peak_bytes": 1}, **rest),
        record("as_shipped", "latency", status="raised", reason="Expected query", **rest),
    ]


def test_figures_are_those_of_the_records():
    (group,) = groups_of(records(), run="runs/a")
    assert (group.title, group.baseline) == ("attention-decode · dia · eager · cpu, 1 thread", "full_float32")
    row = group.row("float16")
    assert row.time.value == pytest.approx(math.exp(np.mean(np.log(RATIOS))))
    assert row.time.degrees == 3
    assert row.time_logs == pytest.approx(np.log(RATIOS))
    assert (row.drift.value, row.memory_bytes, row.processes) == (1e-3, 33, 4)
    assert group.row("full_float32").time.value == 1.0
    assert [row.fix for row in group.failing] == ["as_shipped"]
    assert group.row("as_shipped").reason == "Expected query"


def test_one_process_is_paired_round_by_round():
    blocks = (1.30, 1.31, 1.29, 1.30, 1.28)
    found = [record("full_float32", "latency", latency((), blocks=(1.0,) * 4 + (1.01,))),
             record("float16", "latency", latency((), blocks=blocks))]  # fmt: skip
    (group,) = groups_of(found)
    assert group.row("float16").time_logs == pytest.approx(np.log(blocks))
    assert group.row("float16").processes == 1
    assert any("one process" in doubt and "--set processes" in doubt for doubt in group.doubts)


def test_non_finite_rules_and_a_measure_that_raised_is_named():
    broken = record("float16", "trace", status="non_finite", reason="3 of 9 output values are NaN")
    (group,) = groups_of([*records(), broken])
    assert group.row("float16").status == "non_finite"
    lacking = [one for one in records() if (one.fix, one.measure) != ("float16", "drift")]
    lacking.append(record("float16", "drift", status="raised", reason="no reference"))
    (group,) = groups_of(lacking)
    assert group.row("float16").missing == {"drift": "drift raised: no reference"}


def test_what_the_trace_does_not_support_is_not_taken_whatever_else_passed():
    """A pinned kernel that float32 lacks, with a latency that was measured without the pin."""
    flash = {"options": {"sdpa_backend": "flash"}}
    refused = record("full_float32", "trace", status="unsupported", reason="No available kernel", **flash)
    (before,) = groups_of(records(**flash))
    assert choose_from(before, policy="speed").fix == "full_float32"
    for found in ([refused, *records(**flash)], [*records(**flash), refused]):
        (group,) = groups_of(found)
        row = group.row("full_float32")
        assert (row.status, row.reason) == ("unsupported", "No available kernel")
        assert choose_from(group, policy="speed").fix == "float16"
        assert group.row("float16").time.value == pytest.approx(1.305, abs=1e-3)  # still against the same baseline
    with pytest.raises(MissingMeasureError, match="full_float32, which is unsupported here; give a size: --max-memory"):
        choose_from(group, Constraints(max_memory_ratio=0.6))
    broken = record("full_float32", "memory", status="non_finite", reason="3 NaN", **flash)
    assert status_of([refused, broken]) == ("non_finite", "3 NaN")
    assert status_of([record("float16", "drift", status="unsupported", reason="x"), records()[3]])[0] == "passed"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            record("bfloat16", "drift", {"relative_error": 1.0}, case_digest="d1"),
            "cpu, 1 thread holds unlike case digests (d0, d1), which are not compared; measure again what is old: "
            "precision-eval run --case attention-decode --size dia --mode eager --device cpu --out x",
        ),
        (
            record("bfloat16", "latency", latency(RATIOS, baseline="float16")),
            "unlike baselines (float16, full_float32), which are not compared; measure it anew: precision-eval run "
            "--case attention-decode --size dia --mode eager --device cpu --out NEW",
        ),
    ],
)
def test_unlike_digests_and_baselines_are_not_compared_and_block_nothing_else(other, reason):
    bad, good = groups_of([*records(), other, *records(size="metavoice")], run="x")
    assert good.fault == ""
    assert bad.fault.endswith(reason)
    with pytest.raises(RecordError, match="which are not compared"):
        choose_from(bad)
    found = answer((bad, good), Question(policy="speed"))
    assert [choice.group for choice in found.choices] == [good]
    assert found.unanswered == ((bad, bad.fault),)
    assert found.found  # of another size the case has an answer
    assert not answer((bad, replace(good, case="voice")), Question(policy="speed")).found
    with pytest.raises(RecordError, match="which are not compared"):
        answer((bad,), Question())


def test_doubts_reach_the_answer():
    found = records()
    found[0] = record("full_float32", "latency", latency((1.05, 1.06, 1.05, 1.06), verdict="slower"))
    found[3] = record("float16", "latency", latency(RATIOS, verdict="undecided", doubts=["over budget: 12 rounds"]))
    found[4] = record("float16", "drift", {"relative_error": 2 * TWO_DIGITS}, environment="e1")
    (group,) = groups_of(found)
    doubts = choose_from(group, policy="speed").doubts
    assert any(doubt.startswith("the noise floor is off: full_float32 against itself gave 1.05") for doubt in doubts)
    assert any("drift is of one seeded input" in doubt for doubt in doubts)
    assert any("unlike environments" in doubt for doubt in doubts)
    own = group.row("float16").doubts
    assert any("over budget" in doubt for doubt in own)
    assert any("undecided against full_float32; this measurement would see 2 %" in doubt for doubt in own)
    assert any("fewer than two decimal digits" in doubt for doubt in own)


def test_the_voice_reads_streams_survival_and_sound():
    series = {"time_s": [0.0, 1.0, 2.0, 3.0], "value": [1.0, 2.0, 1.0, 2.0]}
    chance = {"time_s": [0.0, 1.0, 2.0, 3.0], "value": [4.0, 4.0, 4.0, 4.0]}
    voice = {"case": "voice", "size": "default"}
    drift = {"streams": 12, "relative_error": 1e-3, "relative_error_low": 0.9e-3, "relative_error_high": 1.1e-3}
    survival = {"time_s": [0.0, 1.0], "fraction": [1.0, 0.89], "low": [0.9, 0.79], "high": [1.0, 0.95]}
    distance, noise_floor = {"series": series, "ratio_to_null": 0.375}, {"series": chance}
    found = [
        record("float16", "teacher_forced_drift", drift, **voice),
        record("float16", "divergence", {"streams": 64, "diverged": 7, "survival": survival}, **voice),
        record("float16", "audio", {"against_reference": {"mel_mcd_db": distance}}, **voice),
        record("noise_floor", "audio", {"against_reference": {"mel_mcd_db": noise_floor}}, role="noise_floor", **voice),
    ]
    (group,) = groups_of(found)
    row = group.row("float16")
    assert (row.diverged, row.streams, row.survival.value) == (7, 64, 0.89)
    assert row.paired_drift
    assert row.drift.degrees == 11
    assert (row.sound.verdict, row.sound.reason) == ("undecided", "one recording per fix is not enough seeds")
    assert group.measure_of("drift") == "teacher_forced_drift"
    (own,) = groups_of([record("float16", "drift", drift, case="voice.py:factory")])
    assert own.measure_of("drift") == "drift"


def test_pinned_settings_are_a_group_of_their_own():
    pinned = record("float16", "drift", {"relative_error": 2e-3}, options={"sdpa_backend": "math"}, size="metavoice")
    plain, other = groups_of([*records(), pinned])
    assert plain.row("float16").drift.value == 1e-3
    assert (other.pins, other.title) == (
        ",sdpa=math",
        "attention-decode · metavoice · eager · cpu, 1 thread, sdpa math",
    )
    assert "--set sdpa_backend=math" in other.command("latency")
    assert "--case 'x; rm -rf y' " in replace(other, case="x; rm -rf y").command()
