"""Sets five to seven by torch alone: a careless twin raises, drifts or widens; a careful one is clean."""

import pytest

from tests.support import scenes
from validation.doctor import fifth, seventh, sixth

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("__array__ implementation", "ComplexHalf support", "There are modules")
]

SETS = (fifth.SET, sixth.SET, seventh.SET)
of_each_set = pytest.mark.parametrize("of", SETS, ids=("fifth", "sixth", "seventh"))


def named(*kinds):
    """Parametrise by set and plant, of some kinds or of all."""
    rows = [(of, name) for of in SETS for name in (scenes.names_of(of, *kinds) if kinds else of.scenes)]
    return pytest.mark.parametrize(("of", "name"), rows, ids=[name for _, name in rows])


@of_each_set
def test_a_set_has_forty_silent_plants_and_twenty_that_raise_and_every_truth_has_a_line(of):
    assert sorted(row.raises for row in of.scenes.values()) == [False] * 40 + [True] * 20
    scenes.check_truths(of)


@pytest.mark.parametrize(("owner", "pattern"), [pattern for of in SETS for pattern in scenes.patterns_of(of)])
def test_every_pattern_finds_a_line_of_the_library(owner, pattern):
    scenes.check_pattern(owner, pattern)


@pytest.mark.slow
@named()
@pytest.mark.parametrize("dtype", scenes.CLEAN)
def test_a_careful_twin_drifts_by_what_its_format_costs(of, name, dtype):
    scenes.check_careful(of, name, dtype)


@pytest.mark.slow
@named("drifts", "widens")
def test_a_silent_plant_drifts_many_times_what_its_format_does_or_widens(of, name):
    scenes.check_silent(of, name)


@pytest.mark.slow
@named("raises")
def test_a_raising_plant_raises(of, name):
    scenes.check_raises(of, name)
