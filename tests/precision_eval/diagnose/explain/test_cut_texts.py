"""Sentences that were cut, as titles of threads are, or written into one line of JSON."""

import json

import pytest

from precision_eval.diagnose.explain import FAMILY, explain, reading
from precision_eval.diagnose.explain.dtypes import lowered

SDPA = "Expected query, key, and value to have the same dtype, but got query.dtype: "


def dtypes_of(found):
    return {operand.name: operand.dtype for operand in found.operands if operand.dtype is not None}


def as_raised(member, sentence):
    """Fill a sentence's placeholders, with unlike dtypes."""
    for operand, dtype in zip(member.operands, ("float", "c10::Half", "c10::Half", "c10::Half"), strict=False):
        sentence = sentence.replace(f"{{{operand.name}}}", dtype)
    return sentence.replace("{#}", "1").replace("{*}", "1x")


@pytest.mark.parametrize("member", [m for m in FAMILY if m.beginnings], ids=lambda member: member.id)
def test_a_beginning_begins_a_sentence(member):
    whole = [lowered(as_raised(member, sentence)) for sentence in member.sentences]
    for beginning in member.beginnings:
        cut = reading.compiled_sentence(beginning)
        assert any(cut.match(sentence) for sentence in whole), beginning
        assert set(cut.groupindex) <= {operand.name for operand in member.operands}


@pytest.mark.parametrize("member", [m for m in FAMILY if m.beginnings], ids=lambda member: member.id)
def test_a_sentence_that_was_cut_is_known(member):
    for beginning in member.beginnings:
        found = explain(f"RuntimeError: {as_raised(member, beginning)} · Issue #1")
        assert found.member == member.id
        assert set(dtypes_of(found)) == set(reading.compiled_sentence(beginning).groupindex)
    for sentence in member.sentences:  # the whole one wins where it is there
        assert set(dtypes_of(explain(as_raised(member, sentence)))) == set(
            reading.compiled_sentence(sentence).groupindex
        )


@pytest.mark.parametrize(
    ("title", "member"),
    [
        ("Expected query, key, and value to have the same dtype", "sdpa"),
        ("expected m1 and m2 to have the same dtype", "m1_m2"),
        ("expected mat1 and mat2 to have the same dtype", "cuda_mat1_mat2"),
        ("mat1 and mat2 must have the same dtype", "mat1_mat2"),
        ("Index put requires the source and destination dtypes match", "index_put"),
        ("Expected attn_mask dtype to be bool or float or to match query dtype", "sdpa_mask"),
        ("both inputs should have same dtype", "tensordot"),
        ("Expected scalar type Float but found Half", "scalar_type"),
        ("mixed dtype (CPU): expect parameter to have scalar type of Float", "norm_cpu"),
        ("index_copy_(): self and source expected to have the same dtype", "index_copy"),
        ("masked_scatter: expected self and source to have same dtypes", "masked_scatter"),
        ("current cuda device does not support bfloat16", "autocast_no_bfloat16"),
    ],
)
def test_what_titles_say_is_known(title, member):
    assert explain(title).member == member


WHOLE = f"{SDPA}float key.dtype: c10::Half and value.dtype: c10::Half instead."


@pytest.mark.parametrize("length", range(len("Expected query, key, and value to have the same dtype"), len(WHOLE)))
def test_the_sentence_of_attention_is_known_wherever_it_was_cut(length):
    found = explain(f"RuntimeError: {WHOLE[:length]}...")
    whole = {"query": "float32", "key": "float16", "value": "float16"}
    assert found.member == "sdpa"
    assert dtypes_of(found).items() <= whole.items()
    assert len(dtypes_of(found)) >= sum(
        f"{name}.dtype: {spelling} " in WHOLE[:length] for name, spelling in (("query", "float"), ("key", "c10::Half"))
    )
    assert found.causes


def test_what_a_cut_sentence_leaves_open_is_not_held_against_a_cause():
    for text in (SDPA + "float", SDPA + "float key.dtype: float", SDPA.removesuffix(", but got query.dtype: ")):
        assert "autocast_norm" in [cause.id for cause in explain(text).causes]
    assert "autocast_norm" not in [cause.id for cause in explain(f"{SDPA}float key.dtype: c10::Half").causes]


@pytest.mark.parametrize(
    "text",
    [
        "Index put requires the source and destination dtypes match, got Long for the destination and Int for the "
        "source.",
        "expected m1 and m2 to have the same dtype, but got: float != float",
        "expected mat1 and mat2 to have the same dtype, but got: int != long int",
    ],
)
def test_the_beginning_of_a_refused_sentence_is_not_taken(text):
    found = explain(text)
    assert not found.known
    assert found.reason.startswith("the sentence is that of '")


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
