import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import audio_metrics as am

SEQUENCES = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(lambda values: np.array(values, np.int64))


def test_by_hand():
    a, b = np.array([1, 1, 2, 2]), np.array([3, 3, 3, 3])
    assert am.token_js_divergence(a, b) == 1.0  # nothing in common
    assert am.token_js_divergence(a, np.array([2, 1])) == 0.0  # the same frequencies
    expected = 0.75 * np.log2(4 / 3) + 0.25 * 2 - 0.5  # H(3/4, 1/4) - (H(1/2, 1/2) + H(1)) / 2
    assert am.token_js_divergence(np.array([1, 2]), np.array([1])) == pytest.approx(expected, abs=1e-12)
    assert am.token_entropy_bits(np.arange(8)) == 3.0
    assert am.token_entropy_bits(b) == 0.0
    assert am.longest_token_run(np.array([5, 1, 1, 1, 2, 2])) == 3.0
    assert am.longest_token_run(np.array([7])) == 1.0
    assert am.ngram_repetition(np.array([1, 2, 1, 2, 1]), n_tokens=2) == 0.5  # 12 21 12 21
    assert am.first_token_divergence(a, np.array([1, 1, 3, 2])) == 2.0
    assert am.first_token_divergence(a, a[:3]) == 3.0
    assert np.isnan(am.first_token_divergence(a, a.copy()))


@settings(max_examples=80)
@given(first=SEQUENCES, second=SEQUENCES)
def test_against_scipy_and_loops(first, second):
    p, q = np.bincount(first, minlength=7) / len(first), np.bincount(second, minlength=7) / len(second)
    expected = scipy.spatial.distance.jensenshannon(p, q, base=2) ** 2
    assert am.token_js_divergence(first, second) == pytest.approx(expected, abs=1e-7)
    assert am.token_js_divergence(first, second) == am.token_js_divergence(second, first)
    assert am.token_entropy_bits(first) == pytest.approx(scipy.stats.entropy(p, base=2), abs=1e-12)
    longest = run = 0
    for index, token in enumerate(first):
        run = run + 1 if index and token == first[index - 1] else 1
        longest = max(longest, run)
    assert am.longest_token_run(first) == longest
    grams = [tuple(first[start : start + 3]) for start in range(len(first) - 2)]
    if grams:
        assert am.ngram_repetition(first, n_tokens=3) == pytest.approx(1 - len(set(grams)) / len(grams))
    differing = [i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    whole = min(len(first), len(second)) if len(first) != len(second) else float("nan")
    assert am.first_token_divergence(first, second) == pytest.approx(differing[0] if differing else whole, nan_ok=True)


def test_planted_faults():
    """A divergence in nats, or one of counts that are not frequencies, would miss the values by hand."""
    a, b = np.array([1, 1, 2, 2]), np.array([3, 3, 3, 3])
    assert am.token_js_divergence(a, b) != pytest.approx(np.log(2))
    assert am.token_js_divergence(a, np.tile(a, 9)) == 0.0


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((3, 2), int), r"shape \(3, 2\).*measure each codebook by itself"),
        (np.zeros(3), "dtype float64; expected integers"),
        (np.zeros(0, int), "is empty"),
        ([1, 2], "is a list"),
    ],
)
def test_unusable_sequences_are_refused(tokens, message):
    good = np.array([1, 2])
    with pytest.raises(am.AudioParameterError, match=message):
        am.token_entropy_bits(tokens)
    with pytest.raises(am.AudioParameterError, match=message):
        am.token_js_divergence(good, tokens)
    with pytest.raises(am.AudioParameterError, match=message):
        am.first_token_divergence(tokens, good)
    with pytest.raises(am.AudioParameterError, match="n_tokens is 0"):
        am.ngram_repetition(good, n_tokens=0)
    with pytest.raises(am.UndefinedMetricError, match="2 tokens hold no run of 4"):
        am.ngram_repetition(good)
