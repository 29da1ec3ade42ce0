"""The front against brute force, and dominance that only intervals can establish."""

import numpy as np
import pytest
from made_groups import base, contender, group

from precision_eval.results.choose import choose_from, point_front, standings
from precision_eval.results.choose import comparing as front_module
from precision_eval.results.choose.comparing import Difference


def brute_force(points):
    """Indices of the points that no other weakly beats everywhere and strictly somewhere; numpy, all pairs at once."""
    points = np.asarray(points)
    no_worse = (points[:, None, :] <= points[None, :, :]).all(axis=2)
    better = (points[:, None, :] < points[None, :, :]).any(axis=2)
    return set(np.flatnonzero(~(no_worse & better).any(axis=0)).tolist())


def test_the_point_front_by_hand():
    points = [(1.0, 5.0), (2.0, 2.0), (3.0, 1.0), (3.0, 2.0), (2.0, 2.0)]
    assert point_front(points) == (0, 1, 4, 2)


def test_the_point_front_is_the_brute_force_front(rng):
    for _ in range(60):
        points = [tuple(map(float, row)) for row in rng.integers(0, 5, size=(int(rng.integers(1, 12)), 3))]
        assert set(point_front(points)) == brute_force(points)


def test_without_noise_the_front_is_the_brute_force_front(rng):
    for _ in range(40):
        grid = rng.integers(0, 4, size=(7, 3))  # factors of 2: far beyond every margin, or exactly equal
        rows = [
            contender(f"fix_{place}", time=2.0**a, drift=1e-6 * 2.0**b, memory=10**6 * 2 ** int(c))
            for place, (a, b, c) in enumerate(grid)
        ]
        found = standings(group(*rows, baseline="none"), rows)
        assert {int(one.fix[4:]) for one in found if one.standing != "dominated"} == brute_force(grid)
        for one in found:
            assert (one.by is None) == (one.standing != "dominated")


NOISY = (-0.30, 0.10, -0.25, 0.05)


def uncertain():
    """The second is faster by its mean, but the measurement does not say so; it drifts and stores less for certain."""
    return (base(drift=1e-3), contender("float16", logs=NOISY, drift=1e-4, memory=32 * 2**20))


def test_dominated_only_when_the_interval_says_so():
    rows = uncertain()
    assert [one.standing for one in standings(group(*rows), rows)] == ["perhaps", "front"]
    steady = (rows[0], contender("float16", logs=(-0.11, -0.10, -0.10, -0.09), drift=1e-4, memory=32 * 2**20))
    assert [(one.standing, one.by) for one in standings(group(*steady), steady)] == [
        ("dominated", "float16"),
        ("front", None),
    ]


def test_a_front_of_point_estimates_is_caught(monkeypatch):
    rows = uncertain()
    honest = front_module.difference
    monkeypatch.setattr(
        front_module, "difference", lambda *given: Difference(honest(*given).log, 0.0, honest(*given).log == 0.0)
    )
    with pytest.raises(AssertionError):
        assert [one.standing for one in standings(group(*rows), rows)] == ["perhaps", "front"]


def test_an_axis_that_one_lacks_takes_no_part():
    rows = (base(), contender("float16", logs=(0.11, 0.10, 0.10, 0.09), drift=1e-4))  # no memory
    assert [one.standing for one in standings(group(*rows), rows)] == ["front", "dominated"]
    assert choose_from(group(*rows)).standing_of("float16").by == "full_float32"
    assert standings(group(), ()) == ()
