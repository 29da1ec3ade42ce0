"""Divergence of free-running token streams, by hand."""

import numpy as np
import pytest

from precision_eval.core.errors import ParameterError
from precision_eval.measure.voice import token_divergence as divergence


def test_by_hand() -> None:
    reference = np.zeros((10, 4, 2), np.uint8)
    tokens = reference.copy()
    tokens[0, 0, 1] = 1  # stream 0 leaves in its first frame, in one codebook only
    tokens[6:, 2] = 7  # stream 2 leaves at frame 6 and stays away
    data = divergence(tokens, reference, frame_rate_hz=50)
    assert data["first_divergent_step"] == [0, None, 6, None]
    assert data["diverged"] == 2
    assert data["token_difference_fraction"] == pytest.approx((1 + 4 * 2) / 80)
    survival = dict(
        zip(
            np.round(np.multiply(data["survival"]["time_s"], 50)).astype(int), data["survival"]["fraction"], strict=True
        )
    )
    assert [survival[step] for step in (0, 1, 6, 7, 10)] == [1.0, 0.75, 0.75, 0.5, 0.5]


def test_intervals_have_width_even_where_nothing_diverged() -> None:
    reference = np.zeros((10, 50, 2), np.uint8)
    data = divergence(reference, reference, frame_rate_hz=50)
    assert data["diverged"] == 0
    assert set(data["survival"]["fraction"]) == {1.0}
    assert data["survival"]["low"][-1] == pytest.approx(0.9287, abs=1e-4)  # Wilson: 50 of 50
    assert data["survival"]["high"][-1] == 1.0


def test_a_late_merge_does_not_undo_a_divergence() -> None:
    """Planted fault: judging by the last frame, or by a mean, would call this stream undiverged."""
    reference = np.zeros((100, 1, 4), np.uint8)
    tokens = reference.copy()
    tokens[3, 0, 2] = 9
    assert divergence(tokens, reference, frame_rate_hz=50)["first_divergent_step"] == [3]


def test_unlike_runs_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"tokens \(5, 1, 4\) and the reference's \(6, 1, 4\) differ"):
        divergence(np.zeros((5, 1, 4)), np.zeros((6, 1, 4)), frame_rate_hz=50)
