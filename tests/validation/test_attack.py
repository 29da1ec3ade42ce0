"""Hostile result files: seeded mutations end in no exception but the suite's own; what is planted is found."""

import pytest

from precision_eval.core.errors import RecordError
from validation import attack


@pytest.mark.parametrize("seed", range(3))
def test_mutated_records_are_refused_or_read(seed):
    assert attack.attack("records", seed, mutations=100)["faults"] == []


@pytest.mark.parametrize(
    ("target", "mutations"), [("expectations", 30), ("asv", 20), pytest.param("sweep", 4, marks=pytest.mark.slow)]
)
def test_other_result_files(target, mutations):
    assert attack.attack(target, 1, mutations=mutations)["faults"] == []


def test_an_exception_of_pythons_own_and_a_control_character_are_counted():
    def broken():
        return {}["ratio"]

    def refused():
        raise RecordError("line 3")

    assert attack._fault(broken).startswith("KeyError")
    assert attack._fault(refused) == ""
    assert attack._fault(lambda: "a\x1b[2J") == "character '\\x1b' reaches the output"
    assert attack._fault(lambda: "line\nline\t") == ""
