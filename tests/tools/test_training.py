"""Training: it learns, and an interrupted run resumes to the very same weights."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from precision_eval.cases.voice.model import VoiceConfig
from precision_eval.core.errors import IntegrityError, ParameterError
from tools.voice import training
from tools.voice.training import TrainingPlan, learning_rate_factor, train_voice

PLAN = {"out_dir": "", "million_frames": 1.0, "corpus_hours": 1.0, "ranks": 1, "seed": 0}
SMALL = VoiceConfig(width=32, n_layers=2, n_heads=2, hidden=48, window_frames=16)


class PowerCutError(Exception):
    """Stands in for a power cut."""


class Reports:
    """The parent's queue; breaks off at a step if told to."""

    def __init__(self, stop_at=None):
        self.stop_at, self.rows = stop_at, []

    def put(self, row):
        self.rows.append(row)
        if row["step"] == self.stop_at:
            raise PowerCutError


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "VoiceConfig", lambda: SMALL)  # dataclasses.replace keeps its sizes
    monkeypatch.setattr(training, "CROP_FRAMES", 64)
    monkeypatch.setattr(training, "LOG_EVERY_STEPS", 5)
    monkeypatch.setattr(training, "CHECKPOINT_EVERY_S", 0.0)
    monkeypatch.setattr(training, "VALIDATION_CROPS", 1)


def write_corpus(folder: Path) -> None:
    """Two speakers whose tokens follow from the phoneme, so there is something to learn."""
    rng = np.random.default_rng(0)
    arrays = {}
    for speaker in range(2):
        starts = np.arange(0, 4000, 8)
        phonemes = rng.integers(1, 20, len(starts))
        arrays[f"segments.{speaker}"] = np.stack([phonemes, starts, starts + 8], 1).astype(np.int32)
        arrays[f"tokens.{speaker}"] = np.repeat(phonemes, 8)[:, None].repeat(4, 1).astype(np.uint8)
    save_file(arrays, folder / "corpus.safetensors", metadata={"seed": "0", "corpus_hours": "1.0"})


def run_rank(folder: Path, *, million_frames: float, stop_at: int | None = None, **options) -> Reports:
    plan = TrainingPlan(
        out_dir=str(folder), million_frames=million_frames, corpus_hours=1.0, ranks=1, seed=0, **options
    )
    reports = Reports(stop_at)
    rendezvous = folder / "rendezvous"
    try:
        training._train_rank(0, plan, str(rendezvous.resolve()), reports)
    except PowerCutError:
        torch.distributed.destroy_process_group()
    rendezvous.unlink(missing_ok=True)
    return reports


def log_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "training_log.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "number_format": "float16"}])
def test_an_interrupted_run_resumes_to_the_same_weights(tmp_path: Path, options: dict) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    frames = 25 * training.BATCH * 64 / 1e6
    for folder in (whole, broken):
        folder.mkdir()
        write_corpus(folder)
    run_rank(whole, million_frames=frames, **options)
    assert run_rank(broken, million_frames=frames, stop_at=15, **options).rows[-1]["step"] == 15
    resumed = run_rank(broken, million_frames=frames, **options).rows
    assert resumed[0]["step"] == 15  # the checkpoint of step 14 is the last that was written
    expected, found = (load_file(folder / "checkpoint.safetensors") for folder in (whole, broken))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert [row["step"] for row in log_of(broken)] == [5, 10, 15, 20, 25]


@pytest.mark.usefixtures("small")
def test_it_learns(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    rows = run_rank(tmp_path, million_frames=150 * training.BATCH * 64 / 1e6).rows
    assert rows[0]["train_loss"] > 4.0
    assert rows[-1]["train_loss"] < 0.7 * rows[0]["train_loss"]
    assert "validation_loss" in rows[-1]
    weights = load_file(training.export_weights(tmp_path))
    assert {value.dtype for value in weights.values()} == {torch.float32}


def test_another_plan_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"million_frames": 1.0, "corpus_hours": 1.0, "ranks": 2, "seed": 0}')
    with pytest.raises(IntegrityError, match="holds another plan"):
        train_voice(TrainingPlan(out_dir=str(tmp_path), million_frames=2.0, corpus_hours=1.0, seed=0, ranks=2))


def test_a_plan_of_before_speech_could_be_chosen_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"million_frames": 1.0, "corpus_hours": 1.0, "ranks": 2, "seed": 0}')
    amounts = {"out_dir": str(tmp_path), "million_frames": 1.0, "corpus_hours": 1.0, "seed": 0, "ranks": 2}
    training._hold_plan(TrainingPlan(**amounts))
    with pytest.raises(IntegrityError, match="holds another plan"):
        training._hold_plan(TrainingPlan(**amounts, qk_norm=True))


def test_products_of_float16_are_rounded_once_forwards_and_backwards() -> None:
    """Each is float64's, rounded: no more than half a unit away; float32 is left alone."""
    rng = torch.Generator().manual_seed(0)
    x, w, given = (torch.randn(shape, generator=rng).half() for shape in ((48, 600), (600, 32), (48, 32)))
    pairs = []
    for products, to in ((training.Float16Products(), torch.float16), (nullcontext(), torch.float64)):
        left, right = (value.detach().clone().to(to).requires_grad_() for value in (x, w))
        with products:
            made = left @ right
            made.backward(given.to(to))
        pairs.append((made, left.grad, right.grad))
    for half, exact in zip(*pairs, strict=True):
        assert half.dtype == torch.float16
        unit = np.spacing(np.abs(exact.detach().numpy()).astype(np.float16)).astype(float)
        error = np.abs(half.detach().double().numpy() - exact.detach().numpy())
        assert (error <= 0.5 * unit + 1e-4).all()  # and what float32 loses of sums of 600 terms
    with training.Float16Products():
        assert (x.float() @ w.float()).dtype == torch.float32


def test_attention_of_float16_is_rounded_once_under_a_mask() -> None:
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 24, 8, generator=rng).half().requires_grad_() for _ in range(3))
    mask = training.sequence_mask(24, 6)
    with training.Float16Products():
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        made.float().square().sum().backward()
    wide = [value.detach().double().requires_grad_() for value in (q, k, v)]
    truth = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=mask)
    truth.backward(2.0 * made.detach().double())
    assert made.dtype == torch.float16
    assert (made - truth).abs().max() <= 0.6 * torch.finfo(torch.float16).eps * truth.abs().max()
    for half, exact in zip((q, k, v), wide, strict=True):
        assert (half.grad - exact.grad).abs().max() <= 2e-3 * exact.grad.abs().max()


@pytest.mark.usefixtures("small")
def test_training_in_float16_says_its_loss_scale(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    rows = run_rank(tmp_path, million_frames=5 * training.BATCH * 64 / 1e6, number_format="float16").rows
    assert rows[-1]["loss_scale"] == 65536.0


def test_a_format_that_no_training_has_is_refused(tmp_path: Path) -> None:
    plan = TrainingPlan(
        out_dir=str(tmp_path), million_frames=1.0, corpus_hours=1.0, seed=0, ranks=1, number_format="float8"
    )
    with pytest.raises(ParameterError, match="float8"):
        train_voice(plan)


@pytest.mark.usefixtures("small")
def test_twins_begin_with_the_same_weights_and_learn_from_the_same_crops(tmp_path: Path) -> None:
    """Capped and not differ in the cap alone: before the first step they hold the very same weights."""
    initial = []
    for qk_norm in (False, True):
        folder = tmp_path / str(qk_norm)
        folder.mkdir()
        write_corpus(folder)
        rows = run_rank(folder, million_frames=10 * training.BATCH * 64 / 1e6, qk_norm=qk_norm).rows
        torch.manual_seed(0)
        initial.append((training.VoiceModel(TrainingPlan(**PLAN, qk_norm=qk_norm).config).state_dict(), rows))
    (plain, plain_rows), (capped, capped_rows) = initial
    assert plain.keys() == capped.keys()
    assert all(torch.equal(plain[name], capped[name]) for name in plain)
    assert plain_rows[-1]["train_loss"] != capped_rows[-1]["train_loss"]


def test_learning_rate_by_hand() -> None:
    assert learning_rate_factor(0, 1000) == pytest.approx(0.01)
    assert learning_rate_factor(500, 1000) == pytest.approx(0.5)
    assert learning_rate_factor(1000, 1000) == pytest.approx(0.0)
