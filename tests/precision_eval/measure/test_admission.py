"""What a factory or a candidate from outside has to be, and what each slip is told."""

import own_files
import pytest
import torch

from precision_eval import ParameterError, fix_by_id
from precision_eval.cases.systems import case_by_id
from precision_eval.measure.admission import admit, admit_candidate, admit_case


@pytest.fixture
def slips(tmp_path):
    (tmp_path / "slips.py").write_text(own_files.SLIPS)
    return tmp_path / "slips.py"


@pytest.fixture
def case(tmp_path):
    (tmp_path / "case.py").write_text(own_files.CASE)
    return tmp_path / "case.py"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("draws", "draws random numbers"),
        ("keeps", "keeps state"),
        ("counts", "returns neither a floating tensor nor tokens"),
        ("training", r"call \.eval\(\)"),
        ("unseeded", "give what draws numbers in it a fixed seed"),
        ("no_model", "returns a function as its model"),
        ("no_inputs", "returns a model without inputs"),
        ("three", "returns 3 things"),
        ("ends", "ends the program"),
        ("raises", "raises KeyError: 'missing'"),
        ("needs", "needs width; give one that is called without arguments"),
        ("other_names", "cannot be called with the inputs given"),
        ("absent", "has no 'absent'; it has: Layer"),
        ("NUMBER", "is a int; expected a callable"),
    ],
)
def test_a_slip_in_a_factory_is_one_line(slips, factory, message):
    with pytest.raises(ParameterError, match=message) as caught:
        admit_case(f"{slips}:{factory}", "cpu", 0)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_import_is_one_line(tmp_path):
    (tmp_path / "wrong.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(ParameterError, match=r"SyntaxError: .*wrong\.py, line 2"):
        admit_case(f"{tmp_path / 'wrong.py'}:f", "cpu", 0)
    with pytest.raises(ParameterError, match="there is no file"):
        admit_case(f"{tmp_path / 'nowhere.py'}:f", "cpu", 0)


@pytest.mark.parametrize("factory", ["factory", "named", "passes"])
def test_a_model_may_raise_take_names_or_pass(case, factory):
    assert len(admit_case(f"{case}:{factory}", "cpu", 0).digest) == 64


def test_a_method_of_a_model_is_a_call(slips):
    built = case_by_id(f"{slips}:method").build("own", device="cpu", seed=0)
    assert torch.equal(built.model(*built.inputs)[0], built.model.model.model.inner(*built.inputs) + 1)


def test_the_digest_follows_source_weights_and_inputs(case):
    digests = {admit_case(f"{case}:{name}", "cpu", seed).digest for name, seed in (("factory", 0), ("factory", 1))}
    assert len(digests) == 2
    other = case.with_name("other.py")
    other.write_text(own_files.CASE)
    assert admit_case(f"{other}:factory", "cpu", 0).digest in digests  # wherever it lies
    edited = case.with_name("edited.py")
    edited.write_text(own_files.CASE.replace("* scale", "* 1.0 * scale"))
    assert admit_case(f"{edited}:factory", "cpu", 0).digest not in digests


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("returns_a_number", "returns a int; expected a model"),
        ("nothing", "changes nothing"),
        ("fails", "raises AttributeError: 'Layer' object has no attribute 'missing'"),
        ("NUMBER", "is a int; expected a Fix"),
    ],
)
def test_a_slip_in_a_candidate_is_one_line(slips, candidate, message):
    with pytest.raises(ParameterError, match=message):
        admit_candidate(f"{slips}:{candidate}", f"{slips}:plain", "own", "cpu", 0)


def test_a_candidate_under_which_the_model_raises_is_measured_and_one_refused_says_why(slips, case):
    for candidate in ("breaks", "doubled"):
        assert not admit_candidate(f"{slips}:{candidate}", f"{slips}:plain", "own", "cpu", 0).refused
    assert not admit_candidate(f"{slips}:nothing", f"{case}:factory", "own", "cpu", 0).refused  # raises as without it
    names = [f"{slips}:{name}" for name in ("held", "nothing", "NUMBER")]
    _, (held, nothing, number) = admit([], names, (f"{slips}:plain", "own"), "cpu", 0)
    assert not held.refused
    assert "changes nothing" in nothing.refused
    assert "is a int; expected a Fix" in number.refused
    assert len({entry.digest for entry in (held, nothing, number)}) == 3


@pytest.mark.parametrize("candidate", ["held", "HALF"])
def test_a_context_manager_and_a_fix_are_candidates(slips, candidate):
    admitted = admit_candidate(f"{slips}:{candidate}", f"{slips}:plain", "own", "cpu", 0)
    assert admitted.modes == ("eager", "compiled")
    assert admitted.storage == ("float16" if candidate == "HALF" else "as_shipped")


def test_a_candidate_changes_a_copy_and_only_inside_its_block(case):
    built = case_by_id(f"{case}:factory").build("own", device="cpu", seed=0)
    fix = fix_by_id(f"{case}:wide_cache")
    with fix.applied(built.model) as call:
        assert call(*built.inputs)[0].dtype is torch.float32
    assert built.model.model.keys.dtype is torch.float16
    assert call.model is built.model
