"""What every case keeps: repeatable calls, seeds that decide, digests of its own, and a listing without torch."""

import dataclasses

import pytest
import torch

from precision_eval.cases.systems import CASES, case_by_id
from precision_eval.fixes import fix_by_id

TINY = [case for case in CASES if "tiny" in case.sizes and case.id != "voice"]


def output_of(built):
    with torch.no_grad(), fix_by_id("full_float32").applied(built.model) as call:
        return call(*call.prepare(built.inputs))


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else [leaf for part in value for leaf in leaves(part)]


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.id)
def test_calls_repeat_seeds_decide_and_torchs_generator_stays(case):
    state = torch.get_rng_state()
    one, same, other = (case.build("tiny", device="cpu", seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    inputs = [value.clone() for value in one.inputs]
    first, again, equal, different = (leaves(output_of(built)) for built in (one, one, same, other))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, again, equal, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, different, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(inputs, one.inputs, strict=True))


def test_digests_follow_the_definition_and_not_the_wording():
    assert len({case.digest for case in CASES}) == len(CASES)
    case = case_by_id("attention-decode")
    assert dataclasses.replace(case, definition=(*case.definition, "v2")).digest != case.digest
    assert dataclasses.replace(case, title="another").digest == case.digest


def test_a_run_that_names_no_case_takes_attention_and_the_voice():
    assert [case.id for case in CASES if case.by_default] == ["attention-decode", "attention-prefill", "voice"]
