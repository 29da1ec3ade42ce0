"""The drawn verdicts on sound, on a bank whose truth is made by hand, and that they can fail."""

from functools import partial

import numpy as np
import pytest

from precision_eval.results import sound
from precision_eval.results.sound import VOICE_METRICS
from precision_eval.stats.differences import judge_differences
from validation.sound import EXPERIMENT, trials
from validation.sound.bank import CONTROLS, FIXES, MARGIN_RUNG, PLANTED, RENDERING

SPREADS = np.array([0.25, 0.3, 0.15, 0.03])


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(trials, "RUNS", {"A/A": 15, "A/A, one fix": 30, "planted": 4, "control": 6})


def bank(*, planted=1.0):
    """Lines of 48 passages and 9 seeds; `planted` margins are what each degradation does."""
    rng = np.random.default_rng(5)
    margins = np.array([metric.margin * metric.worse for metric in VOICE_METRICS])
    passage = rng.normal([4.4, 8.4, 2.4, 0.86], SPREADS, (3, 16, 4))

    def heard(part, change):
        values = passage[part] + rng.normal(0.0, SPREADS, (16, 4)) + change * margins
        return {metric.name: values[:, at].tolist() for at, metric in enumerate(VOICE_METRICS)}

    for seed in range(9):
        for part in range(3):
            line = {"key": f"{RENDERING}/{seed}/{part}", "heard": heard(part, 0.0)}
            if not seed:
                line["planted"] = {rung.name: heard(part, planted) for rung in PLANTED}
            yield line
    for part in range(3):
        for name in (*CONTROLS, *FIXES):
            yield {"key": f"{name}/0/{part}", "heard": heard(part, 10.0 if name in CONTROLS else 0.0)}


def share(counts, verdict):
    return counts.get(verdict, 0) / counts["verdicts"]


def test_equal_seeds_do_not_alarm_and_controls_are_caught(few):
    found = trials.summary(list(bank()))
    assert (found["passages"], found["seeds"], found["conditions"]) == (48, 9, 7)
    assert found["aa"]["verdicts"] == 15 * 7
    assert share(found["aa"], "worse") + share(found["aa"], "better") < 0.05
    assert {name: share(counts, "worse") for name, counts in found["controls"].items()} == dict.fromkeys(CONTROLS, 1.0)
    assert {found["fixes"][name]["verdict"] for name in CONTROLS} == {"worse"}
    assert all(figure.name for figure in EXPERIMENT.figures(found))


def test_a_planted_change_of_ten_margins_is_heard_and_of_none_is_not(few):
    loud, none = (trials.summary(list(bank(planted=size)))["planted"][MARGIN_RUNG] for size in (10.0, 0.0))
    assert share(loud, "worse") == 1.0
    assert share(none, "worse") == 0.0


def test_an_error_rate_that_is_not_kept_would_show(few, monkeypatch):
    """Planted fault: the family is judged at 49 %."""
    monkeypatch.setattr(sound, "judge_differences", partial(judge_differences, error=0.49))
    found = trials.summary(list(bank()))["aa_single"]
    assert share(found, "worse") + share(found, "better") > 0.1


def test_a_bank_that_is_too_small_has_no_summary():
    assert trials.summary([line for line in bank() if line["key"].startswith(f"{RENDERING}/0")]) is None
