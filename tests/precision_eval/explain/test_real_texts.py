"""Every member on text that was really raised, whole, cut, folded or in JSON; a mutated pattern must be caught."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_messages import as_raised

from precision_eval.explain import explain, messages
from precision_eval.explain.mismatches import family

SDPA = "Expected query, key, and value to have the same dtype, but got query.dtype: "

ROWS = json.loads(Path(__file__).with_name("messages.json").read_text(encoding="utf-8"))["real"]
REAL = [(row["text"], row["member"], row["op"], row["dtypes"]) for row in ROWS]
"""Each as it stood in the issue that ``from`` names, or as torch raised it."""


def dtypes_of(found):
    return {operand.name: operand.dtype for operand in found.operands if operand.dtype is not None}


@pytest.mark.parametrize(("text", "member", "op", "dtypes"), REAL)
def test_real_text_is_read(text, member, op, dtypes):
    found = explain(text)
    assert (found.member, found.op, dtypes_of(found)) == (member, op, dtypes)
    assert found.op is not None or len(found.candidates) > 1


def test_every_member_has_a_real_text():
    assert {member for _, member, _, _ in REAL} == {member.id for member in family()}


def test_members_are_named_once_and_say_where_they_come_from():
    ids = [member.id for member in family()]
    assert len(ids) == len(set(ids))
    for member in family():
        assert member.sources
        assert member.asks
        assert member.where
        named = {name for sentence in member.sentences for name in messages.compiled_sentence(sentence).groupindex}
        assert named == {operand.name for operand in member.operands}, member.id


def mutated(sentence):
    """Change one letter of the longest literal word before the first place where it may be cut off."""
    beginning, *rest = sentence.split("{|}")
    words = beginning.split()
    longest = max([word for word in words if word.isalpha()] or words, key=len)
    return "{|}".join([beginning.replace(longest, longest[:-1] + ("x" if longest[-1] != "x" else "y")), *rest])


@pytest.mark.parametrize(("text", "member", "op", "dtypes"), REAL)
def test_a_mutated_pattern_is_caught(text, member, op, dtypes, monkeypatch):
    broken = [replace(m, templates=tuple(map(mutated, m.templates))) if m.id == member else m for m in family()]
    monkeypatch.setattr(messages, "family", lambda: broken)
    assert explain(text).member != member


LINES = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl',
        "    return self._call_impl(*args, **kwargs)",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        '  File "C:\\ai\\automatic\\modules\\sd_unet.py", line 91, in forward',
        "[2026-01-02 03:04:05] INFO loading pipeline components: 100%|██████| 5/5",
        "│ ❱ 1553 │   │   │   return self._call_impl(*args, **kwargs)        │",
        "The above exception was the direct cause of the following exception:",
        "ValueError: too many values to unpack (expected 2)",
        "",
    ]
)


@settings(max_examples=25, derandomize=True)
@given(real=st.sampled_from(REAL), before=st.lists(LINES, max_size=60), after=st.lists(LINES, max_size=30))
def test_a_sentence_is_found_anywhere_in_a_long_log(real, before, after):
    text, member, _, dtypes = real
    found = explain("\n".join([*before, text, *after]))
    assert (found.member, dtypes_of(found)) == (member, dtypes)


@settings(max_examples=15, derandomize=True)
@given(text=st.text(max_size=300))
def test_arbitrary_text_is_not_claimed(text):
    if text.strip():
        assert not explain(text).known


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_sentence_folded_by_a_terminal_is_found(width):
    text = f"{SDPA}float key.dtype: c10::Half and value.dtype: c10::Half instead."
    folded, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) > width:
            folded.append(f"│ {line} │")
            line = ""
        line += f" {word}"
    found = explain("\n".join([*folded, f"│ {line} │"]))
    assert dtypes_of(found) == {"query": "float32", "key": "float16", "value": "float16"}


def test_the_last_of_several_sentences_is_the_one_that_surfaced():
    first = f"{SDPA}float key.dtype: c10::Half and value.dtype: c10::Half instead."
    found = explain(
        f"suppressed: {first}\n\nRuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half"
    )
    assert found.member == "mat1_mat2"
    assert found.also == (first.removesuffix("."),)


MIXED_LINEAR = "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half"
HANDLED = "During handling of the above exception, another exception occurred:"
CAUSED = "The above exception was the direct cause of the following exception:"
BEGUN = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    y = g(x)\n'


@pytest.mark.parametrize("between", [HANDLED, CAUSED])
def test_in_a_chain_of_exceptions_the_first_is_the_cause(between):
    half = "RuntimeError: expected scalar type Float but found BFloat16"
    found = explain(f"{BEGUN}{MIXED_LINEAR}\n\n{between}\n\n{BEGUN}{half}\n")
    assert (found.member, found.also) == ("mat1_mat2", (half.removeprefix("RuntimeError: "),))
    apart = explain(f"{BEGUN}{MIXED_LINEAR}\n\n{between}\n\n{BEGUN}ValueError: no\n\nstep 2\n{BEGUN}{half}\n")
    assert apart.member == "scalar_type", "a later traceback of the same log is another error"


def test_a_notice_does_not_speak_for_an_error():
    notice = "UserWarning: MatMul8bitLt: inputs will be cast from torch.bfloat16 to float16 during quantization"
    assert explain(f"{MIXED_LINEAR}\n{notice}\n").member == "mat1_mat2"
    assert (
        explain(f"{notice}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.").other == "memory"
    )
    assert explain(notice).kind == "notice"


def test_an_error_of_another_kind_that_begins_the_chain_is_the_cause():
    first = (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    )
    found = explain(f"{BEGUN}{first}\n\n{HANDLED}\n\n{BEGUN}{MIXED_LINEAR}\n")
    assert (found.known, found.other) == (False, "devices")
    assert "mat1 and mat2" in found.reason
    assert explain(f"{BEGUN}{first}\n\nretry in float16\n{BEGUN}{MIXED_LINEAR}\n").member == "mat1_mat2"


@pytest.mark.parametrize("member", [m for m in family() if m.beginnings], ids=lambda member: member.id)
def test_a_sentence_that_was_cut_is_known(member):
    for beginning in member.beginnings:
        found = explain(f"RuntimeError: {as_raised(member, beginning)} · Issue #1")
        assert found.member == member.id
        assert set(dtypes_of(found)) == set(messages.compiled_sentence(beginning).groupindex)
    for sentence in member.sentences:  # the whole one wins where it is there
        assert set(dtypes_of(explain(as_raised(member, sentence)))) == set(
            messages.compiled_sentence(sentence).groupindex
        )


WHOLE = f"{SDPA}float key.dtype: c10::Half and value.dtype: c10::Half instead."


def test_a_log_of_json_is_read():
    traceback = (
        'Traceback (most recent call last):\n  File "C:\\new\\layers.py", line 7, in forward\n    y = attend(q)\n'
        f"RuntimeError: {WHOLE}"
    )
    inside = json.dumps({"level": "error", "text": traceback})
    found, plain = explain(inside), explain(traceback)
    assert (found.sentence, found.how, found.frame) == (plain.sentence, "eager", "new/layers.py line 7 in forward")
    folded = json.dumps("RuntimeError: " + WHOLE.replace(" key", "\n  key"))
    assert dtypes_of(explain(folded)) == dtypes_of(plain)
    assert explain(folded).sentence == plain.sentence
    written = 'File "C:\\new\\table.py", line 1, in f\nRuntimeError: ' + WHOLE  # a path is not unescaped
    assert explain(written).frame == "new/table.py line 1 in f"
