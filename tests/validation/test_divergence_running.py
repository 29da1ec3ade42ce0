"""What is run on the voice: the split of the scripts, and first divergence against streams that really run freely."""

import numpy as np
import pytest

from precision_eval.cases.voice.assets import load_streams
from precision_eval.cases.voice.codec import CODEBOOK_SIZE, N_CODEBOOKS
from precision_eval.cases.voice.conditions import open_voice
from precision_eval.cases.voice.synthesis import GumbelNoise, free_run
from validation.divergence.plan import DESIGNS, N_SPEAKERS, PROMPT_FRAMES, window_starts
from validation.divergence.running import Voices, first_divergence, reference_path

SHAPE = (N_CODEBOOKS, CODEBOOK_SIZE)
STEPS, SEED, TEMPERATURE = 60, 11, 0.65


FRAMES = PROMPT_FRAMES + STEPS + N_CODEBOOKS


def as_voices(streams) -> Voices:
    return Voices.of(streams, n_frames=FRAMES)


def own_path(streams, condition: str) -> np.ndarray:
    """Tokens of a really free run, by step of emission, (STEPS, B, K); the prompt's own as −1."""
    with open_voice(condition, n_streams=len(streams), n_frames=PROMPT_FRAMES + STEPS) as decoder:
        frames = free_run(
            decoder, streams, prompt_frames=PROMPT_FRAMES, n_frames=STEPS, seed=SEED, temperature=TEMPERATURE
        )
        tokens = np.stack(list(frames)).astype(int)
    path = np.full_like(tokens, -1)
    for k in range(N_CODEBOOKS):
        path[k:, :, k] = tokens[: STEPS - k, :, k]
    return path


@pytest.fixture(scope="module")
def streams():
    return load_streams(5, n_frames=FRAMES)


@pytest.fixture(scope="module")
def reference(streams):
    with open_voice("reference", n_streams=len(streams), n_frames=PROMPT_FRAMES + STEPS) as decoder:
        noise = GumbelNoise(SEED, len(streams), SHAPE)
        return reference_path(decoder, as_voices(streams), noise, n_steps=STEPS, temperature=TEMPERATURE)


def first_under(condition: str, streams, path, *, seed: int = SEED) -> np.ndarray:
    with open_voice(condition, n_streams=len(streams), n_frames=PROMPT_FRAMES + STEPS) as decoder:
        noise = GumbelNoise(seed, len(streams), SHAPE)
        return first_divergence(decoder, as_voices(streams), noise, path, n_steps=STEPS, temperature=TEMPERATURE)


class TestFirstDivergence:
    def test_reference_runs_as_the_suite_does(self, streams, reference):
        expected = own_path(streams, "reference")
        mine = np.where(expected < 0, -1, reference.numpy())
        assert (mine == expected).all()

    @pytest.mark.parametrize("condition", ["bfloat16", "autocast"])
    def test_as_in_a_free_run(self, condition, streams, reference):
        differs = (own_path(streams, condition) != own_path(streams, "reference")).any(axis=2)
        expected = np.where(differs.any(axis=0), differs.argmax(axis=0), -1)
        assert (expected >= 0).any()
        assert first_under(condition, streams, reference).tolist() == expected.tolist()

    def test_reference_leaves_itself_under_other_noise_alone_and_a_planted_difference(self, streams, reference):
        assert (first_under("reference", streams, reference) == -1).all()
        first = first_under("reference", streams, reference, seed=SEED + 1)
        assert set(first) <= set(range(6))
        spoiled = reference.clone()
        spoiled[17, 3, 2] = (spoiled[17, 3, 2] + 1) % CODEBOOK_SIZE
        assert first_under("reference", streams, spoiled).tolist() == [-1, -1, -1, 17, -1]


@pytest.mark.parametrize("size", ["quick", "full"])
def test_no_frame_of_calibration_is_spoken(size):
    design = DESIGNS[size]
    length = PROMPT_FRAMES + max(max(g.steps.values()) for g in design.groups) + N_CODEBOOKS
    window = PROMPT_FRAMES + design.calibration_steps
    for script in load_streams(N_SPEAKERS, n_frames=1):
        calibration, held_out = window_starts(len(script.tokens), design, stream_frames=length)
        assert (len(calibration), len(held_out)) == (design.segments, design.segments * design.held_out)
        seen = {frame for start in calibration for frame in range(start, start + window)}
        assert not any(seen.intersection(range(start, start + length)) for start in held_out)
        assert max(held_out) + length <= len(script.tokens)
