"""The figure over length: which ratios it draws, and between which lengths two of them cross."""

import made_groups as made
import pytest

from precision_eval.report.drawing import NotDrawn
from precision_eval.report.figures.lengths import crossings, draw_lengths, ratios_by_length


def group(length, *, query, cache):
    rows = (
        made.base(),
        made.contender("query_to_half", logs=made.around(query)),
        made.contender("kv_to_query", logs=made.around(cache)),
    )
    return made.group(*rows, size=str(length))


GROUPS = [group(1024, query=2.0, cache=3.0), group(256, query=2.0, cache=0.5), group(512, query=2.0, cache=0.8)]


def test_a_crossing_is_two_neighboring_lengths_and_a_touch_is_none():
    assert crossings({1: 0.5, 2: 2.0, 4: 0.5}, {1: 1.0, 2: 1.0, 4: 1.0}) == [(1, 2), (2, 4)]
    assert crossings({1: 0.5, 2: 1.0, 4: 0.5}, {1: 1.0, 2: 1.0, 4: 1.0}) == []
    assert crossings({1: 0.5}, {2: 1.0}) == []


def test_the_ratios_are_those_of_the_groups_by_length():
    ratios = ratios_by_length([*GROUPS, made.group(made.base(), size="tiny")])
    assert list(ratios["kv_to_query"]) == [256, 512, 1024]
    assert ratios["kv_to_query"][512].value == pytest.approx(0.8, rel=0.05)


def test_the_figure_names_the_lengths_around_each_crossing():
    (axes,) = draw_lengths("attention-decode", "cpu, eager", GROUPS).axes
    assert axes.get_title(loc="left").split("; ") == [
        "kv_to_query crosses full_float32 between 512 and 1,024",
        "kv_to_query crosses query_to_half between 512 and 1,024",
    ]
    with pytest.raises(NotDrawn, match="fewer than two lengths"):
        draw_lengths("attention-decode", "cpu, eager", GROUPS[:1])
