"""Real generating classes in the state of the bug, driven through their own generate: run, cured, reported."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from made_cells import cell as made_cell

from precision_eval import ParameterError, generation_case, write_report
from precision_eval.cases.own import case_of, own_case
from precision_eval.core.cells import Options
from precision_eval.core.records import RecordFile
from precision_eval.fixes.catalog import FIXES
from precision_eval.measure.decoding import Picks, decoding
from precision_eval.run.plan import Selection, make_plan
from precision_eval.run.runner import run_plan

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the libraries, about tiny configs
    pytest.mark.usefixtures("tiny_models"),
]

FEW = ("llama", "whisper")
SPEAKING = ("bark", "csm", "dance_diffusion", "dia", "fastspeech2", "musicgen", "speecht5", "vits")
NOT_CURED = ("fastspeech2", "float16")  # it makes a float32 operand of its own
SILENT = ("ddpm_step", "dit_loop", "llama", "moonshine", "t5", "whisper")
WITHOUT_TOKENS = ("dance_diffusion", "ddpm_step", "dit_loop", "fastspeech2", "speecht5", "vits")
OPTIONS = Options(streams=2, steps=6)
ENVIRONMENT = "0" * 64


def reported(folder, names):
    """Run the plan of some classes in this process and write its report."""
    cases = [case_of(f"tiny_models:{name}", measures=own_case(f"tiny_models:{name}").measures) for name in names]
    measures = ("trace", "drift", "teacher_forced_drift", "streams", "divergence", "synthesis", "audio")
    selection = Selection(fixes=("as_shipped", "full_float32", "float16"), measures=measures, options=OPTIONS)
    plan = make_plan(
        Selection(**vars(selection) | {"cases": tuple(case.id for case in cases)}), cases=cases, fixes=FIXES
    )
    with ThreadPoolExecutor(1) as executor:
        run_plan(plan, executor, RecordFile(folder / "records.jsonl"), environment=ENVIRONMENT)
    write_report(folder)
    return RecordFile(folder / "records.jsonl").read().records


def check(run, name):
    records = {(record.measure, record.fix): record for record in run if record.case == f"tiny_models:{name}"}
    assert records["trace", "as_shipped"].status == "raised"
    for (measure, fix), record in records.items():
        if fix != "as_shipped" and (name, fix) != NOT_CURED:
            assert record.status == "passed", (measure, fix, record.reason)
    assert records["drift", "full_float32"].data["relative_error"] < 1e-5
    if (name, "float16") == NOT_CURED:
        assert records["trace", "float16"].status == "raised"
    else:
        assert 1e-5 < records["drift", "float16"].data["relative_error"] < 0.1
    return {measure for measure, _ in records}


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in SPEAKING + SILENT]
)
def test_a_class_in_the_state_of_the_bug_is_cured_and_reported(tmp_path, name):
    found = check(reported(tmp_path, [name]), name)
    assert ("divergence" in found) == ("teacher_forced_drift" in found) == (name not in WITHOUT_TOKENS)
    assert ("audio" in found) == (name in SPEAKING)
    assert f"tiny_models:{name}" in (tmp_path / "report.md").read_text()


def test_every_class_is_run(tiny_models):
    assert sorted(SPEAKING + SILENT) == sorted(tiny_models.CLASSES)


def test_the_tokens_are_those_of_the_class_itself_and_forced_ones_are_fed(tiny_models):
    model, inputs = tiny_models.make_llama()
    model.eval()
    own = generation_case(model, inputs)
    cell = made_cell("streams", "full_float32", case="a:b", size="own", options=OPTIONS)
    picks = Picks(noise=lambda step: torch.zeros(1, 1, 64))
    ids = inputs["input_ids"]
    settings = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    expected = model.generate(ids, **settings)[0, ids.shape[1] :].tolist()
    with decoding(cell, "full_float32", own) as loop:
        loop(0, picks, 3)
        forced = Picks(forced=torch.tensor([[7], [9], [11]]).numpy())
        loop(0, forced, 3)
    assert [int(tokens[0]) for tokens in picks.tokens] == expected
    with torch.no_grad():
        logits = model(torch.cat([ids, torch.tensor([[7, 9]])], dim=1)).logits[0, -1]
    known = forced.logits[-1][0].isfinite()  # the end of the text is ruled out
    torch.testing.assert_close(forced.logits[-1][0][known].float(), logits[known], rtol=1e-4, atol=1e-5)


def test_a_folder_is_a_case_as_its_class_loads_it(tmp_path, tiny_models):
    tiny_models.make_llama()[0].half().save_pretrained(tmp_path / "llama")
    own = generation_case(tmp_path / "llama")
    assert own.model.dtype is torch.float16
    assert own.inputs["input_ids"].shape == (1, 8)
    assert generation_case(str(tmp_path / "llama"), dtype="float32").model.dtype is torch.float32
    assert own_case(f"hf:{tmp_path / 'llama'}").decodes


def test_a_model_that_speaks_none_by_itself_is_driven(tiny_models):
    assert generation_case(tiny_models.make_speecht5()[0].eval(), {}).synthesize is None


def test_what_cannot_be_driven_is_refused_in_one_line(tiny_models):
    for model, inputs, message in (
        (torch.nn.Linear(2, 2), None, "the model is a Linear; expected one of transformers"),
        ("tests/support", None, "has no config.json"),
        (tiny_models.make_llama()[0].eval(), {"pixels": torch.ones(1)}, "cannot be called with pixels, in float32 too"),
    ):
        with pytest.raises(ParameterError, match=message) as refusal:
            generation_case(model, inputs)
        assert "\n" not in str(refusal.value)
