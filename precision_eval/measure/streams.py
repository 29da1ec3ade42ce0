"""Free-running divergence: when does a fix's token sequence leave the reference's?

Conventions: all conditions get the same prompts and the same Gumbel noise, so the first differing frame is the fix's
own doing; steps count from the end of the prompt. A stream that never diverges is censored at the last step. The
noise floor (other noise) diverges at once and bounds the scale from above.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from precision_eval.cases.voice.assets import load_streams
from precision_eval.cases.voice.codec import N_CODEBOOKS
from precision_eval.cases.voice.conditions import noise_seed, opened
from precision_eval.cases.voice.synthesis import free_run
from precision_eval.core.errors import ParameterError
from precision_eval.stats import kaplan_meier

PROMPT_FRAMES = 100  # 2 s
SURVIVAL_POINTS = 60


def free_running_tokens(
    condition: str, *, n_streams: int, n_steps: int, seed: int, mode: str, device: str, checkpoint_dtype: str
) -> np.ndarray:
    """Let ``n_streams`` voices speak on."""
    streams = load_streams(n_streams, n_frames=PROMPT_FRAMES + n_steps)
    with opened(
        condition,
        n_streams=n_streams,
        n_frames=PROMPT_FRAMES + n_steps + N_CODEBOOKS,  # the delay pattern runs K − 1 frames on
        mode=mode,
        device=device,
        checkpoint_dtype=checkpoint_dtype,
    ) as decoder:
        frames = free_run(
            decoder, streams, prompt_frames=PROMPT_FRAMES, n_frames=n_steps, seed=noise_seed(condition, seed)
        )
        return np.stack(list(frames))


def divergence(tokens: np.ndarray, reference: np.ndarray, *, frame_rate_hz: float) -> dict[str, Any]:
    """Compare free-running tokens with the reference's."""
    if tokens.shape != reference.shape:
        raise ParameterError(
            f"tokens {tokens.shape} and the reference's {reference.shape} differ in shape; same streams, same steps"
        )
    n_steps, n_streams = tokens.shape[:2]
    differs = (tokens != reference).any(axis=2)  # (n_steps, B)
    diverged = differs.any(axis=0)
    first = differs.argmax(axis=0)
    # counted from 1: a stream that differs in its first frame has survived no frame, and left at the end of it
    time_s = np.where(diverged, first + 1, n_steps) / frame_rate_hz
    at = np.unique(np.linspace(0, n_steps, SURVIVAL_POINTS + 1).astype(int)) / frame_rate_hz
    return {
        "streams": n_streams,
        "steps": n_steps,
        "frame_rate_hz": frame_rate_hz,
        "diverged": int(diverged.sum()),
        "first_divergent_step": [int(step) if left else None for step, left in zip(first, diverged, strict=True)],
        "token_difference_fraction": float((tokens != reference).mean()),
        "survival": kaplan_meier(time_s, diverged).sampled(at),
    }
