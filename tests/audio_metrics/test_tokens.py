import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audio_metrics as am

SEQUENCES = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(lambda values: np.array(values, np.int64))


def test_by_hand():
    a = np.array([1, 1, 2, 2])
    assert am.longest_token_run(np.array([5, 1, 1, 1, 2, 2])) == 3.0
    assert am.longest_token_run(np.array([7])) == 1.0
    assert am.first_token_divergence(a, np.array([1, 1, 3, 2])) == 2.0
    assert am.first_token_divergence(a, a[:3]) == 3.0
    assert np.isnan(am.first_token_divergence(a, a.copy()))


@settings(max_examples=80)
@given(first=SEQUENCES, second=SEQUENCES)
def test_against_loops(first, second):
    longest = run = 0
    for index, token in enumerate(first):
        run = run + 1 if index and token == first[index - 1] else 1
        longest = max(longest, run)
    assert am.longest_token_run(first) == longest
    differing = [i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    whole = min(len(first), len(second)) if len(first) != len(second) else float("nan")
    assert am.first_token_divergence(first, second) == pytest.approx(differing[0] if differing else whole, nan_ok=True)


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
        am.longest_token_run(tokens)
    with pytest.raises(am.AudioParameterError, match=message):
        am.first_token_divergence(tokens, good)
