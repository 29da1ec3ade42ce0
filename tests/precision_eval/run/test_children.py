import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # a spawned child imports the calls by name

import child_calls

from precision_eval.run.children import ChildFailure, in_children


def answers(function, count, *, at_once=2, limit_s=30.0):
    return in_children(function, [(number,) for number in range(count)], at_once=at_once, limit_s=limit_s)


@pytest.mark.parametrize("at_once", [1, 2])
def test_answers_come_in_the_order_of_the_arguments(at_once):
    assert answers(child_calls.double, 5, at_once=at_once) == [0, 2, 4, 6, 8]


def test_a_crash_costs_its_own_answer_only():
    found = answers(child_calls.die, 3)
    assert [found[0], found[2]] == [0, 2]
    assert found[1] == ChildFailure(status="crashed", reason="the process ended with exit code -9")


def test_a_hang_is_ended_at_its_limit():
    found = answers(child_calls.hang, 3, limit_s=1.0)
    assert [found[0], found[2]] == [0, 2]
    assert found[1].status == "timed_out"


def test_each_child_is_a_fresh_process_that_leads_its_own_group():
    found = answers(child_calls.group_of, 2)
    assert all(process == group for process, group in found)
    assert len({os.getpid(), *(process for process, _ in found)}) == 3
