"""What a voice is judged by: whole sentences, words counted against their text."""

from itertools import pairwise

import numpy as np
import pytest

from precision_eval.cases.voice.assets import VOICES
from tools.voice import judging
from tools.voice.judging import MOST_FRAMES, PROMPT_FRAMES, parts_of


def test_parts_are_whole_sentences_after_the_prompt_and_short_enough() -> None:
    rng = np.random.default_rng(0)
    firsts = np.cumsum([0, *rng.integers(100, 400, 60)]).tolist()
    sentences = [(first, f"word{number}") for number, first in enumerate(firsts)]
    parts = list(parts_of(sentences, n_frames=firsts[50] + 20))
    assert all(part.stop - part.start <= MOST_FRAMES for part, _ in parts)
    assert all(before.stop == after.start for (before, _), (after, _) in pairwise(parts))
    first = next(number for number, at in enumerate(firsts) if at >= PROMPT_FRAMES)
    assert parts[0][0].start == firsts[first]
    assert parts[-1][0].stop == firsts[50]  # the sentence that is cut off is left out
    assert " ".join(text for _, text in parts).split() == [f"word{number}" for number in range(first, 50)]


def test_words_are_counted_against_the_text_by_hand() -> None:
    """Nine words said; the ear drops one of each three, so a third is wrong."""
    pytest.importorskip("transformers")
    sentences = [(PROMPT_FRAMES + 400 * n, "one red dog") for n in range(4)]
    samples = np.zeros((PROMPT_FRAMES + 1300) * 320, np.float32)
    asked = []

    def hear(part: np.ndarray) -> str:
        asked.append(len(part))
        return " ".join(["one dog"] * round(len(part) / 320 / 400))

    heard = judging._heard(samples, sentences, hear=hear, mos=lambda part: float(len(part) / 160_000))
    assert asked == [1200 * 320]
    assert (heard["words"], heard["wer"]) == (9, pytest.approx(1 / 3))
    assert (heard["words_skipped"], heard["words_doubled"]) == (3, 0)
    assert heard["mos"] == 1.0
    assert heard["wer_thirds"] == [
        pytest.approx(1 / 3),
        None,
        None,
    ]  # one part alone: a third without words has no rate
    silent = judging._heard(samples, sentences, hear="whisper is not installed", mos="nor is the other")
    assert silent == {"seconds": len(samples) / 16_000, "missing": "whisper is not installed"}


def test_a_script_without_text_is_not_heard() -> None:
    """The shipped scripts hold none: no word can be counted, and a mean opinion score is blind on that speech."""
    assert judging.hearing(None, minutes=0.5, seed=0) == {}


def test_precision_of_the_shipped_voice_orders_as_its_formats_do() -> None:
    rows = judging.precision(None, fixes=("full_float32", "bfloat16"), seed=0, n_streams=1, n_frames=PROMPT_FRAMES + 20)
    single, half = rows["full_float32"], rows["bfloat16"]
    assert single["drift"]["relative_error"] < 1e-4 < half["drift"]["relative_error"]
    assert single["divergence"]["diverged"] == 0
    assert single["max_abs_logit"] > 8.0  # which capped attention cannot reach
    assert single["attention_entropy_nats"] > 0.0


def test_attention_of_the_capped_twin_is_capped_and_that_of_its_like_is_not() -> None:
    fixes = ("full_float32",)
    sharpest = {
        case: judging.precision(VOICES[case], fixes=fixes, seed=0, n_streams=1, n_frames=PROMPT_FRAMES + 20)
        for case in ("voice-natural", "voice-natural-capped")
    }
    plain, capped = (found["full_float32"]["max_abs_logit"] for found in sharpest.values())
    assert capped <= 8.001 < plain


def test_a_voice_in_a_folder_is_judged_by_its_sound_with_margins_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens drawn anew: a few of them, others under another seed and the good fix, and most under the bad one."""
    shares = {"reference": 0.02, "noise_floor": 0.02, "good": 0.02, "bad": 0.6}

    def spoken(condition, streams, *, n_frames, seed, voice):
        tokens = judging.original_tokens(streams, n_frames=n_frames).copy()
        rng = np.random.default_rng(list(shares).index(condition))
        hit = rng.random(tokens.shape) < shares[condition]
        tokens[hit] = rng.integers(0, 256, int(hit.sum()))
        return tokens

    monkeypatch.setattr(judging, "spoken_tokens", spoken)
    found = judging.sounds(
        VOICES["voice-natural"], conditions=("good", "bad"), seed=0, n_streams=8, n_frames=PROMPT_FRAMES // 2
    )
    assert found["bad"]["verdict"] == "worse"
    assert found["good"]["verdict"] != "worse"
    assert found["good"]["metrics"]["mel_mcd_db"]["margin"] not in (0.0, 0.16)  # 0.16 is the shipped voice's
    (good, bad) = judging.sound_table(found).rows
    assert (good[:2], bad[:2]) == (("good", found["good"]["verdict"]), ("bad", "worse"))
