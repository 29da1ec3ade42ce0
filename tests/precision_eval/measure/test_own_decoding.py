"""Drift over steps, divergence and sound of a case from outside, through the measures that the voice has."""

import re
from dataclasses import replace

import own_files
import pytest
import torch
from made_cells import cell as made_cell

from precision_eval import OwnCase, ParameterError
from precision_eval.cases.base import BuiltCase
from precision_eval.cases.modes import SharedNoise
from precision_eval.cases.own import built, parts_of, write_case
from precision_eval.core.figures import figures_of
from precision_eval.core.targets import called
from precision_eval.measure.admission import admit_case
from precision_eval.measure.registry import run_cell
from precision_eval.results.sound import judged_sound


@pytest.fixture
def target(tmp_path):
    (tmp_path / "speaker.py").write_text(own_files.SPEAKER)
    return f"{tmp_path / 'speaker.py'}:factory"


def measured(target, tmp_path, measure, *fixes, mode="eager"):
    outcomes = {}
    for fix in fixes:
        cell = made_cell(measure, fix, case=target, size="own", mode=mode, streams=3, steps=12)
        (outcomes[fix],) = run_cell(cell, tmp_path).outcomes
    return outcomes


def test_drift_over_steps_is_of_each_precision(target, tmp_path):
    found = measured(target, tmp_path, "teacher_forced_drift", "full_float32", "float16", "as_shipped", "query_to_half")
    drifts = {fix: outcome.data and outcome.data["relative_error"] for fix, outcome in found.items()}
    assert drifts["full_float32"] < 1e-6 < 1e-4 < drifts["query_to_half"] < drifts["float16"] < 1e-2
    assert found["as_shipped"].status == "raised"
    assert found["float16"].data["streams"] == 3


@pytest.mark.slow
def test_a_step_is_compiled_and_a_loop_of_ones_own_is_not(target, tmp_path):
    assert measured(target, tmp_path, "teacher_forced_drift", "float16", mode="compiled")["float16"].status == "passed"
    assert measured(target, tmp_path, "synthesis", "float16", mode="compiled")["float16"].status == "unsupported"


def test_streams_share_noise_and_the_noise_floor_does_not(target, tmp_path):
    measured(target, tmp_path, "streams", "reference", "noise_floor", "full_float32")
    found = measured(target, tmp_path, "divergence", "noise_floor", "full_float32")
    assert found["full_float32"].data["diverged"] == 0
    assert found["noise_floor"].data["diverged"] == 3
    assert found["noise_floor"].data["frame_rate_hz"] == 50


def test_sound_is_held_to_the_reference_beside_the_noise_floor(target, tmp_path):
    spoken = measured(target, tmp_path, "synthesis", "reference", "noise_floor", "full_float32")
    assert {outcome.data["duration_s"] for outcome in spoken.values()} == {36 * 320 / 16000}
    heard = measured(target, tmp_path, "audio", "noise_floor", "full_float32")
    ratios = {fix: outcome.data["against_reference"]["ratio_to_null"] for fix, outcome in heard.items()}
    assert ratios["full_float32"]["log_spectral_distance_db"] < 0.01
    assert ratios["noise_floor"]["log_spectral_distance_db"] == 1


def heard(target, tmp_path, *fixes):
    """Data of the measure `sound` for the reference, the noise floor and some fixes, over 8 streams."""
    names = ("reference", "noise_floor", *fixes)
    cells = {name: made_cell("sound", name, case=target, size="own", streams=8, steps=12) for name in names}
    return {name: run_cell(cell, tmp_path).outcomes[0].data for name, cell in cells.items()}


def verdicts(found):
    figures = {name: figures_of("sound", data) for name, data in found.items()}
    return judged_sound(figures, figures.pop("reference"), figures.pop("noise_floor"))


def test_streams_of_ones_own_are_judged_by_margins_of_their_own(target, tmp_path):
    found = heard(target, tmp_path, "full_float32")
    reference, same = found["reference"], found["full_float32"]
    for metric, values in same["heard"].items():  # what the voice makes of its tokens is float64's in the reference
        assert reference["heard"][metric] == pytest.approx(values, abs=1e-3)
        assert metric == "length_error" or found["noise_floor"]["heard"][metric] != pytest.approx(values, abs=1e-3)
    assert len(reference["heard"]["mel_mcd_db"]) == 8
    assert 0.0 < reference["margins"]["mel_mcd_db"] < 3.0
    verdict = verdicts(found)["full_float32"]
    assert set(verdict.metrics) == {"mel_mcd_db", "log_spectral_distance_db", "level_error_db", "length_error"}
    assert verdict.metrics["mel_mcd_db"].margin == reference["margins"]["mel_mcd_db"]
    assert [decision.estimate for decision in verdict.metrics.values()] == pytest.approx([0.0] * 4, abs=1e-3)
    far = {name: [value + 3.0 for value in values] for name, values in same["heard"].items()}
    assert verdicts(found | {"full_float32": same | {"heard": far}})["full_float32"].verdict == "worse"


STEADY = """
import torch
import speaker
from dataclasses import replace

class Fixed(speaker.Speaker):
    def forward(self, tokens, at):
        logits = super().forward(tokens, at)
        self.half = self.qkv.weight.dtype is torch.float16
        return logits

def synthesize(model, script, seed):
    speaker.decode_step(model, torch.tensor([3]), 0)
    wave = torch.sin(torch.arange(16000) * 0.2) * torch.sin(torch.arange(16000) * 0.0007) * 0.3
    if model.half:
        wave = CHANGE
    return wave, 16000

def factory():
    return replace(speaker.factory(), model=Fixed().eval(), synthesize=synthesize)
"""


@pytest.mark.parametrize(
    ("change", "verdict", "by"),
    [
        ("wave * 1.0001", "no worse", ""),
        ("wave * torch.where(torch.arange(16000) % 2000 < 320, 0.0, 1.0)", "worse", "log_spectral_distance_db"),
        ("wave[:14400]", "worse", "length_error"),
    ],
)
def test_a_model_without_noise_is_worse_by_more_than_its_margin_alone(
    target, tmp_path, monkeypatch, change, verdict, by
):
    """Any fix differs from it, bit for bit; eight drop-outs a second and a tenth that is missing are worse."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "steady.py").write_text(STEADY.replace("CHANGE", change))
    found = heard(f"{tmp_path / 'steady.py'}:factory", tmp_path, "float16")
    assert not any(any(values) for values in found["reference"]["heard"].values())
    judged = verdicts(found)["float16"]
    assert judged.verdict == verdict
    if by:
        assert judged.metrics[by].verdict == "worse"


def test_what_a_case_lacks_is_named_with_what_to_add(tmp_path):
    own = OwnCase(model=torch.nn.Linear(2, 2), inputs=(torch.ones(1, 2),))
    assert own.measures == ("trace", "drift", "memory", "latency")
    assert [re.findall(r"decode_step|sample|synthesize", text) for text in own.not_applicable] == [
        ["decode_step", "sample"],
        ["synthesize"],
    ]


SLIPS = {
    "decode_step=lambda model, tokens, at: model(tokens, at)": "decode_step returns a Tensor; expected a pair",
    "state=lambda model, seed: 3": "state returns a int; expected a pair",
    "decode_step=lambda model, tokens, at, n=[]: (model(tokens, at) * (n.append(0) or len(n)), at + 1)": "begin anew",
    "synthesize=lambda model, script, seed: torch.ones(3)": "synthesize returns a Tensor; expected a pair",
    "synthesize=lambda model, script, seed: (torch.ones(3, 5), 16000)": "give mono",
    "synthesize=lambda model, script, seed: model.missing": "raises AttributeError under query_to_half",
    "state=None": "decode_step and state together",
    "sample=3": "sample of .* is a int; expected a function",
    "tolerances={'drift': 1.0}": "no tolerance of .* 'drift'|unknown tolerance|max_drift",
    "decode_step=None, state=None, sample=lambda model, x, pick, steps: pick(torch.ones(4))": "called pick 1 times",
}


@pytest.mark.parametrize(("given", "message"), SLIPS.items())
def test_a_slip_in_a_hook_is_refused(tmp_path, given, message):
    text = own_files.SPEAKER.replace('script="x" * 36,', 'script="x" * 2,') + (
        f"\n\nshipped = factory\ndef factory():\n    return __import__('dataclasses').replace(shipped(), {given})\n"
    )
    (tmp_path / "slip.py").write_text(text)
    with pytest.raises(ParameterError, match=message):
        admit_case(f"{tmp_path / 'slip.py'}:factory", "cpu", 0)


def test_noise_is_alike_in_every_precision():
    def drawn(dtype):
        with SharedNoise(3):
            draws = [torch.randn(4, dtype=dtype), torch.rand_like(torch.ones(4, dtype=dtype))]
            draws.append(torch.empty(4, dtype=dtype).normal_(0.0, 2.0))
            return draws, torch.multinomial(torch.ones(6, dtype=dtype).softmax(0), 4)

    (wide, chosen), (narrow, others) = drawn(torch.float64), drawn(torch.float16)
    for exact, rounded in zip(wide, narrow, strict=True):
        torch.testing.assert_close(exact.half(), rounded, rtol=0, atol=0)
    assert torch.equal(chosen, others)
    assert chosen.unique().numel() == 4


def test_a_case_in_memory_is_written_for_other_processes(target, tmp_path):
    made = called(target)
    written = write_case(replace(made, call=None), tmp_path / "run")
    assert written == f"{tmp_path / 'run' / 'Speaker_case.py'}:factory"
    (outcome,) = measured(written, tmp_path / "run", "drift", "full_float32").values()
    assert outcome.status == "passed"
    with pytest.raises(ParameterError, match="cannot be handed to other processes"):
        write_case(replace(made, call=lambda model, *inputs: model(*inputs)), tmp_path / "other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(ParameterError, match="holds no records"):
        write_case(made, tmp_path / "full")


def test_inputs_and_weights_of_a_case_have_digests_of_their_own(target):
    case = built(target, "own", device="cpu", seed=0)
    before = parts_of(case)
    wide = BuiltCase(case.model.double(), case.inputs, case.own)
    assert parts_of(wide) == before  # by value
    wide.model.get_parameter("model.head.bias").data.add_(1)
    assert parts_of(wide)["weights_digest"] != before["weights_digest"]
    other = BuiltCase(case.model, tuple(tensor + 1 for tensor in case.inputs), case.own)
    assert parts_of(other)["inputs_digest"] != before["inputs_digest"]
