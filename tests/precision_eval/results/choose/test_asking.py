"""Questions to a whole run: names and threads."""

import made_groups as made
import pytest

from precision_eval.core.errors import ParameterError, UnknownNameError
from precision_eval.results.choose import Question, answer


def group(size="metavoice", **rest):
    rows = (
        made.base(),
        made.contender("query_to_half", logs=made.around(3.0), drift=1e-3, memory=32),
        made.contender("bfloat16", logs=made.around(0.5), drift=1e-2, memory=32),
    )
    return made.group(*rows, size=size, **rest)


def asked(groups, **question):
    return answer(groups, Question(**question))


def test_nothing_of_that_name():
    with pytest.raises(UnknownNameError, match="unknown case 'voice'; known: attention-decode"):
        asked([group()], cases=("voice",))
    with pytest.raises(ParameterError, match=r"nothing with 4 threads, only \[1\]"):
        asked([group()], threads=4)
    with pytest.raises(ParameterError, match="threads is 0"):
        asked([group()], threads=0)
