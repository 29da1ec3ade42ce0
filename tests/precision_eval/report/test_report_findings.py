"""What the voice's paragraph says, on records whose answer is set by hand, and on the opposite of each."""

from dataclasses import replace

import pytest

from precision_eval.report.findings import (
    findings_of,
    recommendation,
    silent_controls,
    sound_sentences,
    yardsticks_of,
)
from precision_eval.results.choose import Choice
from precision_eval.results.choose.choosing import choices_of
from precision_eval.results.choose.comparing import leaders
from precision_eval.results.reading import load_run

# condition: MCD to the original speech in dB, phonemes right
AS_ON_A_GOOD_DAY = {
    "reference": (5.28, 0.916),
    "noise_floor": (5.31, 0.900),
    "control_rope_bfloat16": (5.84, 0.869),
    "control_long_window": (5.83, 0.864),
    "full_float32": (5.28, 0.916),
    "kv_to_query": (5.30, 0.915),
    "float16": (5.27, 0.910),
}
# fix: latency (ratio, low, high), drift, storage in bytes, streams diverged of 64
COSTS = {
    "full_float32": ((1.0, 0.99, 1.01), 3e-7, 18 * 2**20, 0),
    "kv_to_query": ((1.04, 1.03, 1.05), 9e-5, 16 * 2**20, 8),
    "float16": ((1.31, 1.30, 1.32), 7e-4, 9 * 2**20, 49),
}


def taken(section):
    """What each policy takes."""
    return tuple(choice for choice in choices_of(section).values() if isinstance(choice, Choice) and choice.fix)


@pytest.fixture
def voice(synthetic, tmp_path):
    """Write a voice run from two tables, and return it with its only section."""

    def build(sound=AS_ON_A_GOOD_DAY, costs=COSTS, *, minutes=1.0):
        run = synthetic(tmp_path, minutes=minutes)
        for condition, (mcd, phonemes) in sound.items():
            role = "control" if condition.startswith("control") else condition
            data = run.audio(0.5, mcd)
            data["against_original"]["mel_mcd_db"]["mean"] = mcd
            data["phoneme_accuracy"]["value"] = phonemes
            role = role if role in ("control", "reference", "noise_floor") else "fix"
            run.add("voice", "default", "eager", condition, "audio", data, role=role)
        for fix, ((ratio, low, high), drift, storage, diverged) in costs.items():
            latency = run.latency(ratio, fix) | {"ratio": ratio, "ratio_low": low, "ratio_high": high}
            run.add("voice", "default", "eager", fix, "latency", latency)
            found = {"relative_error": drift, "relative_error_low": drift * 0.95, "relative_error_high": drift * 1.05}
            run.add("voice", "default", "eager", fix, "teacher_forced_drift", found)
            memory = {"storage_bytes": storage, "allocated_peak_bytes": 0}
            run.add("voice", "default", "eager", fix, "memory", memory)
            divergence = run.divergence(drift) | {"diverged": diverged}
            run.add("voice", "default", "eager", fix, "divergence", divergence)
        loaded = load_run(run.write())
        return loaded, loaded.sections[0]

    return build


def test_nothing_beyond_the_null_and_both_controls_degrade(voice):
    fixes, controls = sound_sentences(*voice())
    assert fixes == (
        "No fix differs from the reference's MCD to the original speech (5.28 dB) or phonemes right (0.916) "
        "by more than "
        "three times the noise floor's shift (+0.03 dB, −0.016; one draw of chance); farthest: kv_to_query "
        "(+0.02 dB, −0.001) "
        "and float16 (−0.01 dB, −0.006)."
    )
    assert controls == (
        "Both controls are worse by more than that, as intended: control_long_window (+0.55 dB, −0.052) and "
        "control_rope_bfloat16 (+0.56 dB, −0.047)."
    )
    assert "Sound does not separate the fixes over 60 s" in recommendation(*voice())


def test_the_opposite_a_fix_that_is_heard(voice):
    sound = AS_ON_A_GOOD_DAY | {"float16": (5.78, 0.80)}
    fixes, _ = sound_sentences(*voice(sound))
    assert fixes.startswith(
        "Farther from the reference's MCD to the original speech (5.28 dB) or phonemes right (0.916)"
    )
    assert fixes.endswith(": float16 (+0.50 dB, −0.116).")
    assert "Sound speaks against float16: worse than the reference by more than chance" in recommendation(*voice(sound))


def test_nearer_than_the_reference_differs_but_is_not_held_against_it(voice):
    sound = AS_ON_A_GOOD_DAY | {"float16": (5.10, 0.916)}
    fixes, _ = sound_sentences(*voice(sound))
    assert fixes.endswith("float16 (−0.18 dB, +0.000), none of them for the worse.")
    assert "Sound does not separate" in recommendation(*voice(sound))


@pytest.mark.parametrize("minutes", [1.0, 10.0])
def test_a_control_that_shows_nothing_makes_the_run_too_short(voice, minutes):
    sound = AS_ON_A_GOOD_DAY | {"control_long_window": (5.28, 0.914)}
    loaded, section = voice(sound, minutes=minutes)
    _, controls = sound_sentences(loaded, section)
    length = "60 s" if minutes == 1.0 else "10 min"
    assert controls == (
        "control_rope_bfloat16 (+0.56 dB, −0.047) is worse by more than that, as intended, but control_long_window "
        f"(+0.00 dB, −0.002) is not worse by more than that: this run of {length} is too short to judge by sound."
    )
    assert silent_controls(yardsticks_of(loaded, section)) == ("control_long_window",)
    text = recommendation(loaded, section)
    assert f"Sound takes no part in this: a control that must degrade it does not over {length}" in text


def test_without_null_or_controls_it_says_so(voice):
    bare = {name: value for name, value in AS_ON_A_GOOD_DAY.items() if name not in ("noise_floor",)}
    fixes, controls = sound_sentences(*voice(bare))
    assert fixes.endswith("without the noise floor no shift can be weighed.")
    assert controls == ""
    bare = {name: value for name, value in AS_ON_A_GOOD_DAY.items() if not name.startswith("control")}
    _, controls = sound_sentences(*voice(bare))
    assert controls.startswith("No control was measured")
    assert "Sound was not measured beside noise floor and controls" in recommendation(*voice(bare))


def test_the_opposite_machine_gets_the_opposite_recommendation(voice):
    faster = {
        "full_float32": ((1.0, 0.99, 1.01), 3e-7, 18 * 2**20, 0),
        "kv_to_query": ((0.70, 0.69, 0.71), 9e-8, 8 * 2**20, 0),
        "float16": ((0.80, 0.79, 0.81), 7e-4, 9 * 2**20, 49),
    }
    text = recommendation(*voice(costs=faster))
    assert text.startswith(
        "On this machine (cpu, 1 thread): for quality, balance and speed take kv_to_query (drift 9.0e-8 "
        "[8.5e-8, 9.5e-8], 0.700 [0.690, 0.710] of full_float32's time, 8 MiB, 0 of 64 streams diverged, "
    )


def test_a_tie_goes_to_less_drift_and_is_named(voice):
    tied = COSTS | {
        "kv_to_query": ((0.92, 0.90, 0.94), 9e-5, 16 * 2**20, 8),
        "float16": ((0.90, 0.88, 0.93), 7e-4, 9 * 2**20, 49),
        "bfloat16": ((1.20, 1.19, 1.21), 6e-3, int(9.05 * 2**20), 64),
    }
    loaded, section = voice(costs=tied)
    assert [row.fix for row in leaders(section, "memory")] == ["float16", "bfloat16"]
    text = recommendation(loaded, section)
    assert "; for speed take kv_to_query (" in text
    assert "; in time a tie with float16, broken by less drift)" in text


def test_the_recommendation_is_what_choose_answers(voice, synthetic, tmp_path):
    run = synthetic(tmp_path / "attention")
    run.attention("attention-decode", "dia", "eager")
    loaded = load_run(run.write())
    for given in (voice(), (loaded, loaded.sections[0])):
        text, choices = recommendation(*given), taken(given[1])
        assert [choice.policy for choice in choices] == ["quality", "balanced", "speed"]
        assert all(f"take {choice.fix} (" in text for choice in choices)


def test_unlike_digests_cost_their_own_section_alone(voice, synthetic, tmp_path):
    run = synthetic(tmp_path / "attention")
    for size in ("dia", "metavoice"):
        run.attention("attention-decode", size, "eager")
    run.records[-1]["case_digest"] = "of a later definition"
    loaded = load_run(run.write())
    good, bad = sorted(loaded.sections, key=lambda section: section.size)
    assert taken(bad) == ()
    assert recommendation(loaded, bad).startswith(f"No fix is recommended: {bad.title} holds unlike case digests (")
    assert len(taken(good)) == 3
    assert all(findings_of(loaded, section) for section in loaded.sections)


def test_a_compiled_section_keeps_the_null_of_eager(voice):
    loaded, _ = voice()
    compiled = [
        replace(one, mode="compiled", cell=f"{one.cell}/compiled") for one in loaded.records if one.role == "fix"
    ]
    both = replace(loaded, records=(*loaded.records, *compiled))
    _, section = both.sections
    sounds = [taken(one)[0].group.row("float16").sound for one in both.sections]
    assert section.mode == "compiled"
    assert sounds[0] == sounds[1]
    assert sounds[0].low < sounds[0].high  # resampled together with the noise floor's recording


RATIOS = {"kv_to_query": (1.4, 3.1), "query_to_half": (2.0, 2.02), "full_float32": (1.0, 1.001)}


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        (
            RATIOS,
            "With the allocator grown and returned, the time ratio moves of kv_to_query at 1.40 grown and 3.10 "
            "returned. The order of query_to_half and kv_to_query depends on it.",
        ),
        (
            RATIOS | {"kv_to_query": (0.8, 1.9)},
            "With the allocator grown and returned, the time ratio moves of kv_to_query at 0.80 grown and 1.90 "
            "returned (the verdict turns). The order of kv_to_query and full_float32 depends on it.",
        ),
        (
            RATIOS | {"kv_to_query": (1.4, 1.41)},
            "No conclusion on time was seen to depend on the allocator's state (grown and returned).",
        ),
    ],
)
def test_which_conclusions_depend_on_the_allocator(synthetic, tmp_path, ratios, expected):
    run = synthetic(tmp_path)
    for fix, both in ratios.items():
        data = [
            run.latency(ratio, fix)
            | {"ratio": ratio, "ratio_low": 0.98 * ratio, "ratio_high": 1.02 * ratio, "memory": state}
            | {"verdict": "slower" if ratio > 1.01 else "faster" if ratio < 0.99 else "equivalent"}
            for state, ratio in zip(("grown", "returned"), both, strict=True)
        ]
        run.add("dia-decode", "cpu", "eager", fix, "latency", data[0] | {"by_memory": {"returned": data[1]}})
    loaded = load_run(run.write())
    assert expected in findings_of(loaded, loaded.sections[0])
