"""The table of judges, on streams whose truth is made by hand, and that a deaf judge shows as one."""

import numpy as np

from precision_eval.results.sound import JUDGE_METRICS, VOICE_METRICS
from validation.frame import Options
from validation.judges import EXPERIMENT, FAMILIES, FIXES, RUNGS, SPOKEN
from validation.sound.bank import CONTROLS, MARGIN_RUNG

METRICS = (*VOICE_METRICS, *JUDGE_METRICS)


def lines(*, deaf=(), harm=8.0):
    """Two batches; a control and every rung but the first of its family do `harm` standard deviations of a stream."""
    rng = np.random.default_rng(3)
    first = {rungs[0].name for rungs in FAMILIES}
    for part in range(2):
        for name in (*SPOKEN, *RUNGS):
            harmed = name in CONTROLS or (name in RUNGS and name not in first)
            heard = {
                m.name: (rng.standard_normal(16) + m.worse * harm * (harmed and m.name not in deaf)).tolist()
                for m in METRICS
            }
            yield {"key": f"{name}/{part}", "heard": heard, "missing": ["judge distillmos is unsupported: no"]}


def of_fixes(*, harmed):
    rng = np.random.default_rng(4)
    for part in range(2):
        for name in FIXES[:2]:
            heard = {m.name: (rng.standard_normal(16) + m.worse * 8.0 * (name == harmed)).tolist() for m in METRICS}
            yield {"key": f"{name}/{part}", "heard": heard, "missing": []}


def figures(content):
    return {figure.name: figure for figure in EXPERIMENT.figures(content)}


def test_a_judge_that_hears_both_controls_is_told_from_one_that_is_deaf(tmp_path):
    content = EXPERIMENT.summary(list(lines(deaf=("speaker_distance",))), Options(out=tmp_path))
    assert content["streams"] == 32
    rows = [figure for figure in EXPERIMENT.figures(content) if figure.target]
    met = {figure.name.partition(" (")[0]: figure.met for figure in rows}
    assert met == {
        "distances of audio_metrics": True,
        "phonemes by the voice's own recogniser": True,
        "words and characters by Whisper tiny.en": True,
        "phones by pocketsphinx": True,
        "speaker by Resemblyzer's encoder": False,
        "opinion lost by ViSQOL": True,
        "distance by Zimtohrli": True,
    }
    heard, deaf = rows[0].rivals, rows[4].rivals
    smallest = "smallest degradation called worse"
    assert heard[smallest] == "; ".join(rungs[1].name for rungs in FAMILIES)
    assert deaf[smallest] == "; ".join(f"not {rungs[-1].name}" for rungs in FAMILIES)
    assert {figure.rivals["equal streams"] for figure in rows} <= {"undecided", "no worse"}
    assert EXPERIMENT.notes(content)[1] == "judge distillmos is unsupported: no."


def test_the_noise_floor_and_the_margin_are_those_of_the_streams(tmp_path):
    content = EXPERIMENT.summary(list(lines()), Options(out=tmp_path))
    for metric in METRICS:  # two streams of spread 1 differ by root 2; the rung of the margin did nothing
        assert 0.9 < content["noise_floor"][metric.name] < 2.0
        margin = content["margins"][MARGIN_RUNG][metric.name]
        assert abs(margin["mean"]) < 4 * margin["standard_error"]


def test_a_row_per_fix_has_what_each_judge_says_and_changes_no_other_row(tmp_path):
    alone = EXPERIMENT.summary(list(lines()), Options(out=tmp_path))
    content = EXPERIMENT.summary([*lines(), *of_fixes(harmed=FIXES[1])], Options(out=tmp_path))
    assert content["rows"] == alone["rows"]
    rows = [figures(content)[fix] for fix in FIXES[:2]]
    assert [row.found for row in rows] == ["called worse by 0 of 7", "called worse by 7 of 7"]
    speaker = content["fixes"][next(title for title in content["fixes"] if title.startswith("speaker"))]
    change = speaker[FIXES[1]]["metrics"]["speaker_distance"]
    text = rows[1].rivals["speaker by Resemblyzer's encoder"]
    assert text == f"worse: speaker distance +{change['estimate']:.3f} ({change['low']:.3f} to {change['high']:.3f})"
    assert abs(change["estimate"] - 8.0) < 1.0  # four standard errors
    assert FIXES[2] not in figures(content)


def test_a_passage_that_was_not_heard_in_every_condition_is_left_out(tmp_path):
    some = [line for line in lines() if line["key"] != "noise_floor/1"]
    assert EXPERIMENT.summary(some, Options(out=tmp_path))["streams"] == 16
    assert EXPERIMENT.summary(some[:1], Options(out=tmp_path)) is None
