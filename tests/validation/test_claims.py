"""The suite's claims about itself: what they compare is what they say."""

import copy

import pytest
import torch

from precision_eval.cases.systems import case_by_id
from precision_eval.fixes import fix_by_id
from validation import claims

CASES = [("attention-decode", "tiny", claims._attention_in_source), ("voice", "default", claims._voice_in_source)]


@pytest.mark.parametrize(("case", "size", "in_source"), CASES)
@pytest.mark.parametrize("fix", ["kv_to_query", "query_to_half"])
def test_a_fix_from_outside_gives_the_bits_of_the_cast_in_the_source(case, size, in_source, fix) -> None:
    built = case_by_id(case).build(size, device="cpu", seed=0)
    if case == "attention-decode":
        built.model.key = built.model.key.repeat_interleave(2, dim=1)  # the source version has no grouped queries
        built.model.value = built.model.value.repeat_interleave(2, dim=1)
    written = in_source(copy.deepcopy(built.model), fix)
    applied = fix_by_id(fix).applied(built.model)
    with applied:
        found = applied(*built.inputs)
    with torch.no_grad():
        assert torch.equal(found, written(*built.inputs))


def test_the_two_casts_are_told_apart() -> None:
    """Planted fault: comparing one fix with the other's source must not pass for identical."""
    built = case_by_id("voice").build("default", device="cpu", seed=0)
    written = claims._voice_in_source(copy.deepcopy(built.model), "query_to_half")
    with fix_by_id("kv_to_query").applied(built.model) as applied:
        found = applied(*built.inputs)
    with torch.no_grad():
        assert not torch.equal(found, written(*built.inputs))


def test_help_claim_measures_the_real_command() -> None:
    (claim,) = claims.help_is_quick()
    assert "torch not imported" in claim.found
