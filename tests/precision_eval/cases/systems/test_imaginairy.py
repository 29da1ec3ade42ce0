import copy
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from precision_eval.cases.systems.imaginairy import (
    IMAGINAIRY_TIME_EMBED,
    IMAGINAIRY_TIME_EMBED_CAST_FIRST,
    SIZES,
    TICKS_PER_STEP,
    discrete_timesteps,
    edm_timesteps,
    timestep_ticks,
)
from precision_eval.cases.systems.imaginairy_model import timestep_embedding
from precision_eval.core.errors import UnsupportedError
from precision_eval.fixes import fix_by_id

LINEAR = r"^mat1 and mat2 must have the same dtype, but got Float and Half$"
CASES = (IMAGINAIRY_TIME_EMBED, IMAGINAIRY_TIME_EMBED_CAST_FIRST)


def build(case=IMAGINAIRY_TIME_EMBED, size="tiny", seed=0):
    return case.build(size, device="cpu", seed=seed)


def wide(inputs):
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def reference(built):
    return built.model.in_float64()(*wide(built.inputs))


def relative_error(found, truth):
    return float((found.double() - truth).norm() / truth.norm())


def test_published_sizes():
    assert (SIZES["cpu"].channels, SIZES["cpu"].embedding, 3 * SIZES["cpu"].label_channels) == (320, 1280, 768)
    assert (SIZES["cpu"].frames, SIZES["full"].frames) == (14, 25)
    assert SIZES["full"].channels == SIZES["cpu"].channels
    built = build(size="cpu")
    assert [tuple(x.shape) for x in built.inputs] == [(28,), (28, 768)]
    shapes = {name: tuple(p.shape) for name, p in built.model.named_parameters()}
    assert shapes["time_embed.0.weight"] == (1280, 320)
    assert shapes["time_embed.2.weight"] == (1280, 1280)
    assert shapes["label_embed.0.weight"] == (1280, 768)
    assert {p.dtype for p in built.model.parameters()} == {torch.float16}
    assert built.inputs[1].dtype is torch.float32


@pytest.mark.parametrize("size", ["tiny", "cpu"])
def test_as_shipped_raises_the_reported_message_at_the_first_linear(size):
    built = build(size=size)
    reached = []
    built.model.label_embed.register_forward_pre_hook(lambda *_: reached.append("labels"))
    with pytest.raises(RuntimeError, match=LINEAR):
        built.model(*built.inputs)
    assert not reached


def test_upstream_is_autocast_on_cuda_only(monkeypatch):
    built = build()
    assert "PR #443" in built.model.landed
    with built.model.upstream():
        with pytest.raises(RuntimeError, match=LINEAR):
            built.model(*built.inputs)
        monkeypatch.setattr(torch, "autocast", lambda device_type: f"autocast on {device_type}")
        assert built.model._landed_autocast("cuda") == "autocast on cuda"
        assert isinstance(built.model._landed_autocast("cpu"), nullcontext)
    assert isinstance(built.model._landed_autocast("cuda"), nullcontext)
    fault = build(IMAGINAIRY_TIME_EMBED_CAST_FIRST).model
    with pytest.raises(UnsupportedError, match="a fault to be measured"), fault.upstream():
        pass


@pytest.mark.cuda
def test_upstream_passes_on_cuda():
    built = IMAGINAIRY_TIME_EMBED.build("tiny", device="cuda", seed=0)
    with fix_by_id("upstream").applied(built.model) as call:
        assert call(*built.inputs).dtype is torch.float16


# ---- the embedding


def test_embedding_by_hand():
    found = timestep_embedding(torch.tensor([0.0, 1.0, 999.0], dtype=torch.float64), 4)  # frequencies 1 and 1/100
    expected = [[1.0, 1.0, 0.0, 0.0]] + [
        [math.cos(t), math.cos(t / 100), math.sin(t), math.sin(t / 100)] for t in (1.0, 999.0)
    ]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def cast_errors(step, dtype, channels=320):
    """Largest error of the embedding with the cast before it, and after it."""
    exact = timestep_embedding(torch.tensor([step], dtype=torch.float64), channels)
    before = timestep_embedding(torch.tensor([step]).to(dtype), channels).to(dtype)
    after = timestep_embedding(torch.tensor([step]), channels).to(dtype)
    return tuple(float((found.double() - exact).abs().max()) for found in (before, after))


@pytest.mark.parametrize(("channels", "expected"), [(320, 0.85), (1280, 0.90)])  # SVD's width, and four times that
def test_bfloat16_turns_999_into_1000(channels, expected):
    assert float(torch.tensor(999.0).bfloat16()) == 1000.0
    assert float(torch.tensor(999.0).half()) == 999.0
    before, after = cast_errors(999.0, torch.bfloat16, channels)
    assert before == pytest.approx(expected, abs=0.01)
    assert after == pytest.approx(2e-3, rel=0.1)
    before, after = cast_errors(999.0, torch.float16, channels)
    assert before == after < 5e-4


# ---- timesteps


def test_schedules_by_hand():
    assert discrete_timesteps(4) == [999.0, 666.0, 333.0, 0.0]
    first, *middle, last = edm_timesteps(3)
    assert first == pytest.approx(0.25 * math.log(700.0))
    assert last == pytest.approx(0.25 * math.log(0.002))
    assert middle[0] == pytest.approx(0.25 * 7 * math.log((700 ** (1 / 7) + 0.002 ** (1 / 7)) / 2))


@pytest.mark.parametrize("size", SIZES)
def test_ticks_are_exact_in_float32(size):
    ticks = timestep_ticks(SIZES[size].frames)
    assert len(ticks) == 2 * SIZES[size].frames
    assert ticks[0] == 999 * TICKS_PER_STEP
    steps = torch.tensor(ticks).to(torch.float32) / TICKS_PER_STEP
    assert torch.equal(steps.double(), torch.tensor(ticks).double() / TICKS_PER_STEP)


# ---- float64, independently


def by_numpy(built, *, shift=0.0, swapped=False, timestep_dtype=None):
    """The whole model in numpy's float64; the options plant a fault."""
    weight = {name: p.double().numpy() for name, p in built.model.named_parameters()}
    steps = built.inputs[0].double() / TICKS_PER_STEP
    if timestep_dtype is not None:
        steps = steps.to(timestep_dtype).double()
    half = built.model.channels // 2
    angles = steps.numpy()[:, None] * 10_000.0 ** (-np.arange(half) / (half - shift))
    parts = [np.cos(angles), np.sin(angles)]
    embedded = np.concatenate(parts[::-1] if swapped else parts, axis=1)

    def two_linears(x, name):
        hidden = x @ weight[f"{name}.0.weight"].T + weight[f"{name}.0.bias"]
        return hidden / (1 + np.exp(-hidden)) @ weight[f"{name}.2.weight"].T + weight[f"{name}.2.bias"]

    labels = built.inputs[1].double().numpy()
    return torch.from_numpy(two_linears(embedded, "time_embed") + two_linears(labels, "label_embed"))


@pytest.mark.parametrize("case", CASES, ids=lambda w: w.id)
@pytest.mark.parametrize("size", ["tiny", "cpu"])
def test_float64_twin_agrees_with_numpy(case, size):
    built = build(case, size)
    truth = reference(built)
    assert truth.dtype is torch.float64
    assert (truth - by_numpy(built)).abs().max() < 1e-10


@pytest.mark.parametrize(
    "fault",
    [{"shift": 1.0}, {"swapped": True}, {"timestep_dtype": torch.bfloat16}],
    ids=["frequencies", "sines first", "cast before"],
)
def test_planted_faults_are_seen(fault):
    built = build()
    assert (reference(built) - by_numpy(built, **fault)).abs().max() > 1e-3


# ---- drift


def rows_error(case, fix_id, size="cpu"):
    """Relative error of the rows with discrete timesteps, and of those with SVD's own."""
    built = build(case, size)
    truth = reference(built)
    with fix_by_id(fix_id).applied(copy.deepcopy(built.model)) as call:
        found = call(*call.prepare(built.inputs))
    half = len(truth) // 2
    return relative_error(found[:half], truth[:half]), relative_error(found[half:], truth[half:])


def test_only_drift_shows_the_cast_before_the_embedding():
    discrete, own = rows_error(IMAGINAIRY_TIME_EMBED_CAST_FIRST, "bfloat16")
    after, after_own = rows_error(IMAGINAIRY_TIME_EMBED, "autocast")  # bfloat16 on the CPU, cast after the embedding
    assert discrete > 0.1
    assert after < 0.01
    assert own < 0.01
    assert after_own < 0.01


@pytest.mark.slow
def test_compiled_the_cast_before_the_embedding_rounds_nothing():
    torch._dynamo.reset()
    built = build(IMAGINAIRY_TIME_EMBED_CAST_FIRST)
    with fix_by_id("bfloat16").applied(copy.deepcopy(built.model), mode="compiled") as call:
        found = call(*call.prepare(built.inputs))
    with fix_by_id("bfloat16").applied(copy.deepcopy(built.model)) as call:
        eager = call(*call.prepare(built.inputs))
    truth = reference(built)
    assert relative_error(found, truth) < 0.01 < 0.1 < relative_error(eager, truth)
