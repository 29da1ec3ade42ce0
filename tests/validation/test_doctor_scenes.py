"""The seventh set by torch alone: a careless twin raises, drifts or widens; a careful one is clean."""

import pytest

from tests.support import scenes
from validation.doctor.seventh import SET

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("__array__ implementation", "ComplexHalf support", "There are modules")
]


def named(*kinds):
    """Parametrise by plant, of some kinds or of all."""
    return pytest.mark.parametrize("name", scenes.names_of(SET, *kinds) if kinds else list(SET.scenes))


def test_the_set_has_forty_silent_plants_and_twenty_that_raise_and_every_truth_has_a_line():
    assert sorted(row.raises for row in SET.scenes.values()) == [False] * 40 + [True] * 20
    scenes.check_truths(SET)


@pytest.mark.parametrize(("owner", "pattern"), scenes.patterns_of(SET))
def test_every_pattern_finds_a_line_of_the_library(owner, pattern):
    scenes.check_pattern(owner, pattern)


@pytest.mark.slow
@named()
@pytest.mark.parametrize("dtype", scenes.CLEAN)
def test_a_careful_twin_drifts_by_what_its_format_costs(name, dtype):
    scenes.check_careful(SET, name, dtype)


@pytest.mark.slow
@named("drifts", "widens")
def test_a_silent_plant_drifts_many_times_what_its_format_does_or_widens(name):
    scenes.check_silent(SET, name)


@pytest.mark.slow
@named("raises")
def test_a_raising_plant_raises(name):
    scenes.check_raises(SET, name)
