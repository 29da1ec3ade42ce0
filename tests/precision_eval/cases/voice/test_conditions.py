"""Every fix and every reference on the trained voice itself."""

import numpy as np
import pytest
import torch

from precision_eval.cases.voice.assets import load_streams
from precision_eval.cases.voice.conditions import COMPARATORS, noise_seed, open_voice
from precision_eval.cases.voice.synthesis import teacher_forced
from precision_eval.core.cells import PSEUDO_FIXES
from precision_eval.measure.voice import score_steps

N_FRAMES = 24
CURING = ("query_to_half", "kv_to_query", "full_float32", "bfloat16", "float16", "autocast")


def test_fixes_order_as_their_formats_do() -> None:
    streams = load_streams(2, n_frames=N_FRAMES)
    with open_voice("reference", n_streams=2) as decoder:
        reference = list(teacher_forced(decoder, streams, n_frames=N_FRAMES))
    errors = {}
    for condition in CURING:
        with open_voice(condition, n_streams=2) as decoder:
            scores = score_steps(teacher_forced(decoder, streams, n_frames=N_FRAMES), reference)
        errors[condition] = float(scores["relative_error"].mean())
    assert 0 < errors["full_float32"] < 1e-5
    assert errors["full_float32"] < errors["kv_to_query"] / 10
    assert max(errors["kv_to_query"], errors["query_to_half"]) < errors["float16"] < errors["bfloat16"] < 0.1


@pytest.mark.slow
def test_positions_in_bfloat16_hurt_more_than_any_fix() -> None:
    """The control degrades: over 280 frames its angles collapse (positions beyond 256 are no longer told apart)."""
    n_frames = 280
    streams = load_streams(1, n_frames=n_frames)

    def logits(condition: str) -> list[torch.Tensor]:
        with open_voice(condition, n_streams=1) as decoder:
            return [found.double() for found in teacher_forced(decoder, streams, n_frames=n_frames)][-20:]

    reference = logits("reference")

    def last_error(condition: str) -> float:
        pairs = zip(logits(condition), reference, strict=True)
        return float(np.mean([float((found - exact).norm() / exact.norm()) for found, exact in pairs]))

    control = last_error("control_rope_bfloat16")
    assert control > 10 * last_error("full_float32")
    assert control > 0.02


def test_null_is_the_reference_with_other_noise() -> None:
    assert noise_seed("noise_floor", 3) != noise_seed("reference", 3) == noise_seed("kv_to_query", 3) == 3
    assert {comparator.id for comparator in COMPARATORS} == set(PSEUDO_FIXES)
