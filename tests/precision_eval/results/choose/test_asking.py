"""Questions to a whole run: names, lengths of sizes, batches."""

import made_groups as made
import pytest

from precision_eval.core.errors import ParameterError, UnknownNameError
from precision_eval.results.choose import Question, answer
from precision_eval.results.choose.asking import extent_of


def group(size="metavoice", **rest):
    rows = (
        made.base(),
        made.contender("query_to_half", logs=made.around(3.0), drift=1e-3, memory=32),
        made.contender("bfloat16", logs=made.around(0.5), drift=1e-2, memory=32),
    )
    return made.group(*rows, size=size, **rest)


def asked(groups, **question):
    return answer(groups, Question(**question))


@pytest.mark.parametrize(
    ("case", "size", "extent"),
    [
        ("attention-decode", "metavoice", (2048, 2)),
        ("attention-decode", "4096", (4096, 1)),
        ("metavoice-prefill", "cpu", (64, 2)),
        ("metavoice-decode-slice", "cpu", (2048, 2)),
        ("cogvideo-t5-encoder", "cpu", (226, 1)),
        ("voice", "default", None),
        ("dia-decode", "nothing", None),
        ("mine.py:factory", "own", None),
    ],
)
def test_sizes_state_their_extents(case, size, extent):
    assert extent_of(case, size) == extent


def test_every_case_of_the_registry_has_an_extent_or_none_by_intent():
    from precision_eval.cases.systems import CASES

    without = {case.id for case in CASES if extent_of(case.id, case.default_sizes[0]) is None}
    assert without == {"voice", "imaginairy-time-embed", "imaginairy-time-embed-cast-first"}


def test_a_length_takes_the_nearest_size_and_says_so():
    groups = [group("metavoice"), group("dia")]
    (choice,) = asked(groups, length=3072, policy="quality").choices
    assert (choice.group.size, choice.group.notes) == ("dia", ())
    (choice,) = asked(groups, length=100, policy="quality").choices
    assert (choice.group.size, choice.group.notes) == ("metavoice", ("measured at length 2,048, asked for 100",))


def test_a_batch_that_nothing_has_names_those_there_are():
    assert len(asked([group()], batch=2).choices) == 1
    with pytest.raises(ParameterError, match=r"no size in the run has 8 rows, only 2; omit --batch"):
        asked([group()], batch=8)


def test_nothing_of_that_name():
    with pytest.raises(UnknownNameError, match="unknown case 'voice'; known: attention-decode"):
        asked([group()], cases=("voice",))
    with pytest.raises(ParameterError, match=r"nothing with 4 threads, only \[1\]"):
        asked([group()], threads=4)
    with pytest.raises(ParameterError, match="length is 0"):
        asked([group()], length=0)
