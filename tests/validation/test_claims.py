"""The suite's claims about itself: what they compare is what they say."""

import copy

import pytest
import torch

from precision_eval.cases.systems import workload_by_id
from precision_eval.fixes import fix_by_id
from validation import claims

CASES = [("attention-decode", "tiny", claims._attention_in_source), ("voice", "default", claims._voice_in_source)]


@pytest.mark.parametrize(("workload", "size", "in_source"), CASES)
@pytest.mark.parametrize("fix", ["kv_to_query", "query_to_half"])
def test_a_fix_from_outside_gives_the_bits_of_the_cast_in_the_source(workload, size, in_source, fix) -> None:
    case = workload_by_id(workload).build(size, device="cpu", seed=0)
    if workload == "attention-decode":
        case.model.key = case.model.key.repeat_interleave(2, dim=1)  # the source version has no grouped queries
        case.model.value = case.model.value.repeat_interleave(2, dim=1)
    written = in_source(copy.deepcopy(case.model), fix)
    applied = fix_by_id(fix).applied(case.model)
    with applied:
        found = applied(*case.inputs)
    with torch.no_grad():
        assert torch.equal(found, written(*case.inputs))


def test_the_two_casts_are_told_apart() -> None:
    """Planted fault: comparing one fix with the other's source must not pass for identical."""
    case = workload_by_id("voice").build("default", device="cpu", seed=0)
    written = claims._voice_in_source(copy.deepcopy(case.model), "query_to_half")
    with fix_by_id("kv_to_query").applied(case.model) as applied:
        found = applied(*case.inputs)
    with torch.no_grad():
        assert not torch.equal(found, written(*case.inputs))


def test_help_claim_measures_the_real_command() -> None:
    (claim,) = claims.help_is_quick()
    assert "torch not imported" in claim.found
