"""Drift of logits: hand values, identities, scipy beside it, and a fault that must show."""

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax

from precision_eval.measure.decoding import score_step
from precision_eval.measure.voice import score_steps, summarise


def random_logits(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def test_by_hand() -> None:
    reference = torch.tensor([[[0.0, np.log(3.0)]]], dtype=torch.float64)  # p = (1/4, 3/4)
    candidate = torch.tensor([[[0.0, 0.0]]], dtype=torch.float64)  # q = (1/2, 1/2)
    score = score_step(candidate, reference)
    assert score["kl_nats"][0] == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), abs=1e-15)
    assert score["total_variation"][0] == pytest.approx(0.25, abs=1e-15)
    assert score["relative_error"][0] == pytest.approx(1.0, abs=1e-15)
    assert score["top1_flip"][0] == 1.0  # the tie goes to the first token


def test_no_drift_against_itself() -> None:
    logits = random_logits(0, 3, 4, 16)
    assert all((value == 0).all() for value in score_step(logits, logits).values())


def test_a_shift_of_all_logits_is_no_drift_of_the_distribution() -> None:
    logits = random_logits(0, 3, 4, 16)
    score = score_step(logits + 5.0, logits)
    assert score["kl_nats"].max() < 1e-14
    assert score["relative_error"].min() > 0.1


def test_scipy_agrees() -> None:
    reference, candidate = random_logits(0, 3, 4, 16), random_logits(1, 3, 4, 16)
    p, q = softmax(reference.numpy(), -1), softmax(candidate.numpy(), -1)
    score = score_step(candidate, reference)
    np.testing.assert_allclose(score["kl_nats"], rel_entr(p, q).sum(-1).mean(-1), rtol=1e-12)
    np.testing.assert_allclose(score["total_variation"], 0.5 * np.abs(p - q).sum(-1).mean(-1), rtol=1e-12)


def test_kl_of_a_tiny_error_is_not_lost_in_cancellation() -> None:
    """KL ≈ ½ Var_p(δ) for a small error δ: 1e-7 in the logits leaves 1e-14, where a plain sum loses its digits."""
    reference = random_logits(0, 1, 1, 256)
    delta = random_logits(1, 1, 1, 256) * 1e-7
    p = reference.softmax(-1)
    expected = 0.5 * float((p * delta**2).sum() - (p * delta).sum() ** 2)
    assert score_step(reference + delta, reference)["kl_nats"][0] == pytest.approx(expected, rel=0.05)


def test_half_rounding_of_the_softmax_is_caught() -> None:
    """Planted fault: logits that passed through bfloat16 must drift by about its epsilon, and float32 must not."""
    reference = random_logits(0, 8, 4, 256)
    rounded = score_step(reference.bfloat16(), reference)["relative_error"].mean()
    assert 2**-9 / 4 < rounded < 2**-8
    assert score_step(reference.float(), reference)["relative_error"].mean() < 1e-7


def test_summary_has_means_intervals_and_course() -> None:
    rng = np.random.default_rng(0)
    values = {name: rng.random((100, 8)) for name in ("relative_error", "kl_nats", "total_variation", "top1_flip")}
    data = summarise(values, frame_rate_hz=50, seed=0)
    assert data["relative_error"] == pytest.approx(values["relative_error"].mean())
    assert data["relative_error_low"] < data["relative_error"] < data["relative_error_high"]
    assert data["series"]["time_s"] == [0.24, 0.74, 1.24, 1.74]
    np.testing.assert_allclose(data["series"]["kl_nats"][1], values["kl_nats"][25:50].mean())
    assert (data["streams"], data["steps"]) == (8, 100)


def test_non_finite_is_seen() -> None:
    reference = random_logits(0, 2, 4, 16)
    broken = reference.clone()
    broken[0, 0, 0] = torch.nan
    assert not np.isfinite(score_steps([broken], [reference])["relative_error"]).all()
    assert np.isfinite(list(score_steps([reference], [reference]).values())).all()
