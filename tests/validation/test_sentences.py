"""What the count of torch's sentences counts, and that an operation that hangs costs itself alone."""

from types import SimpleNamespace

import torch

from precision_eval.core.workers import WorkerTimedOutError
from precision_eval.explain import FAMILY
from validation import sentences
from validation.frame import content_of, run

MIXED = "RuntimeError: expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16"


def test_a_sentence_counts_once_whatever_its_dtypes_and_numbers():
    first = "RuntimeError: expected scalar type Float but found Half at 3"
    assert sentences.sentence_of(first) == sentences.sentence_of(first.replace("Half at 3", "BFloat16 at 12"))
    assert sentences.sentence_of(first) != sentences.sentence_of("RuntimeError: expected scalar type Float")


def test_what_names_two_dtypes():
    assert sentences.two_dtypes(MIXED)
    assert sentences.two_dtypes("RuntimeError: Expected query, key, and value to have the same dtype")
    assert not sentences.two_dtypes('RuntimeError: "addmm" not implemented for Half')
    assert not sentences.two_dtypes("RuntimeError: The size of tensor a (3) must match the size of tensor b (4)")


def test_what_is_not_recognised_is_counted_and_named():
    strange = "RuntimeError: zorp found float32 beside float64"
    line = {"key": "2.13/mm/", "programs": 3, "failing": 2, "status": "passed", "messages": {"a": MIXED, "b": strange}}
    two, _ = sentences.EXPERIMENT.figures([line])
    assert two.found.endswith("1 of 2")
    assert two.rivals == dict.fromkeys(("with the operation", "with both dtypes", "what is asked"), "1 of 2")
    called, unknown = sentences.EXPERIMENT.notes([line])
    assert called.startswith("torch 2.13: 1 operations (1 passed), 3 programs, 2 messages")
    assert unknown == f"Not recognised: {strange}"


def test_every_sentence_that_is_known_has_a_row_and_is_read_as_itself():
    lines = sentences.family_table().splitlines()[2:]
    assert len(lines) == sum(len(member.sentences) for member in FAMILY)
    assert not [line for line in lines if "(read as another)" in line]
    (first,) = [line for line in lines if line.startswith("| Expected query, key, and value") and "{query} key" in line]
    assert "kv_to_query" in first
    assert "| torch 2.6–2.15 |" in first


def test_a_dtype_without_samples_is_counted():
    def samples(device, dtype):
        if dtype is torch.float16:
            raise RuntimeError("no samples")
        yield SimpleNamespace(input=torch.ones(2, 2, dtype=dtype), args=(torch.ones(2, 2, dtype=dtype),), kwargs={})

    found = sentences.asked(SimpleNamespace(op=torch.mm, sample_inputs=samples), 20.0)
    assert found["lacking"] == ["torch.float16: RuntimeError"]
    assert found["programs"] > 0
    (called,) = sentences.EXPERIMENT.notes([{"key": "2.13/mm/", **found}])
    assert "no samples in a dtype: 1 times, in 1 operations" in called


def test_an_operation_that_hangs_is_one_line_and_the_rest_goes_on(monkeypatch, tmp_path):
    def samples(device, dtype):
        yield SimpleNamespace(input=torch.ones(2, 2, dtype=dtype), args=(torch.ones(2, 2, dtype=dtype),), kwargs={})

    mm, slow = (
        SimpleNamespace(name=name, variant_test_name="", op=torch.mm, sample_inputs=samples) for name in ("mm", "slow")
    )

    def isolated(call, budget_s, *, timeout_s):
        if call.args[0] is slow:
            raise WorkerTimedOutError(f"no answer in {timeout_s} s")
        return call(budget_s)

    monkeypatch.setattr(sentences, "call_isolated", isolated)
    monkeypatch.setattr(sentences, "database", lambda: [slow, mm])
    monkeypatch.setattr(sentences, "MIXED", ((torch.float32, torch.bfloat16),))
    options = sentences.EXPERIMENT.options({}, out=tmp_path)
    run(sentences.EXPERIMENT, options, progress=lambda *_: None)
    lines = content_of(sentences.EXPERIMENT, options)
    assert "2 operations (1 timed out, 1 passed), 2 programs, " in sentences.EXPERIMENT.notes(lines)[0]
    assert sentences.EXPERIMENT.figures(lines)[0].found.endswith("1 of 1")
    monkeypatch.setattr(sentences, "call_isolated", None)  # both lines are on file: nothing is asked again
    run(sentences.EXPERIMENT, options, progress=lambda *_: None)
