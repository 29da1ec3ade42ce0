"""What the count of torch's sentences counts, and that an operation that hangs costs itself alone."""

import sys
from types import SimpleNamespace

import torch

from precision_eval.core.workers import WorkerTimedOutError
from precision_eval.diagnose.explain import FAMILY
from validation import sentences

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


def test_the_table_counts_what_is_not_recognised_too():
    strange = "RuntimeError: zorp found float32 beside float64"
    line = {"programs": 3, "failing": 2, "status": "passed", "messages": {"a": MIXED, "b": strange}}
    text = sentences.table([line])
    assert "1 operations (1 passed), 3 programs, 2 messages" in text
    assert "| that name two dtypes | 2 | 1 | 1 | 1 | 1 |" in text
    assert f"- {strange}" in text


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
    assert "no samples in a dtype: 1 times, in 1 operations" in sentences.table([found])


def test_an_operation_that_hangs_is_one_line_and_the_rest_goes_on(monkeypatch, tmp_path, capsys):
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
    monkeypatch.setattr(sys, "argv", ["sentences", "--out", str(tmp_path / "s.jsonl")])
    sentences.main()
    out = capsys.readouterr().out
    assert "2 operations (1 timed out, 1 passed), 2 programs, " in out
    assert "| that name two dtypes | 1 | 1 |" in out
    monkeypatch.setattr(sentences, "call_isolated", None)  # both lines are on file: nothing is asked again
    sentences.main()
    assert capsys.readouterr().out == out
