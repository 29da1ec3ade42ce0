"""Latencies in rounds: what is on record, and which margin their changes are held to."""

import json
from dataclasses import asdict

import pytest

from precision_eval.core.errors import RecordError
from precision_eval.core.files import JsonLines
from precision_eval.history.changes import TURN_MARGIN, change_points
from precision_eval.history.series import build_series
from precision_eval.results.asv import ROUNDS_NAME, Visit, read_results, read_visits, visit_times

RATIO = "eager.dia_decode.track_latency_ratio"
CELL = ("kv_to_query", "tiny")
VERSIONS = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0")
WHERE = {"machine": "lab", "commit": "a" * 40}


def visit(version, number, at_s, *, definition="v1", **more):
    environment = f"virtualenv-py3.11-torch{version}"
    return Visit(**WHERE | more, environment=environment, round=number, at_s=at_s, benchmarks={RATIO: definition})


def note_visit(folder, one):
    JsonLines(folder / ROUNDS_NAME).append([json.dumps(asdict(one))])


def test_of_visits_made_again_the_last_counts_and_a_gap_ends_them(tmp_path):
    for one in (visit("2.6.0", 1, 1.0), visit("2.6.0", 2, 2.0), visit("2.6.0", 2, 3.0), visit("2.6.0", 4, 5.0)):
        note_visit(tmp_path, one)
    note_visit(tmp_path, visit("2.7.1", 3, 4.0))
    note_visit(tmp_path, visit("2.6.0", 3, 4.0, machine="other"))
    found = visit_times(read_visits(tmp_path), environment="virtualenv-py3.11-torch2.6.0", **WHERE)
    assert found == {(RATIO, "v1"): (1.0, 3.0)}
    assert read_visits(tmp_path / "none") == ()


@pytest.mark.parametrize("line", ["{", "[]", '{"round": 1}', '{"machine": 1}'])
def test_a_damaged_line_is_named(tmp_path, line):
    (tmp_path / ROUNDS_NAME).write_text(line + "\n")
    with pytest.raises(RecordError, match=r"line 1 .* remove that line"):
        read_visits(tmp_path)


def swept(folder, write, run_type, *, factor, rounds=3, times=None):
    """Six versions, three processes each, that step by a factor in the middle; `times` says when a visit was."""
    runs = []
    for place, version in enumerate(VERSIONS):
        samples = [(factor if place >= 3 else 1.0) * (1.0 + 0.002 * k) for k in range(3)]
        runs.append(run_type(torch=version, values={RATIO: {CELL: samples}}))
        for number in range(1, rounds + 1) if times else ():
            note_visit(folder, visit(version, number, times(place, number)))
    write(folder, runs)
    return read_results(folder)


def turned(place, number):
    return 100.0 * number + place


def one_after_the_other(place, number):
    return 100.0 * place + number


def factors(sets):
    return [one.factor for one in change_points(build_series(sets, VERSIONS))]


def test_a_small_step_is_called_where_versions_were_measured_in_turn_only(tmp_path, write, run_type):
    ways = {
        "turned": {"times": turned},
        "alone": {},
        "behind": {"times": one_after_the_other},
        "short": {"times": turned, "rounds": 2},  # three samples: the third was not a round's
    }
    found = {name: factors(swept(tmp_path / name, write, run_type, factor=1.10, **more)) for name, more in ways.items()}
    assert found == {"turned": [pytest.approx(1.10)], "alone": [], "behind": [], "short": []}
    for name in ("turned", "behind"):
        large = swept(tmp_path / f"{name}-large", write, run_type, factor=1.4, times=ways[name]["times"])
        assert factors(large) == [pytest.approx(1.4)]


def test_the_margin_in_turn_is_small_and_still_one(tmp_path, write, run_type):
    assert factors(swept(tmp_path, write, run_type, factor=1.015, times=turned)) == []
    assert TURN_MARGIN["latency_ratio"] == pytest.approx(0.02)


def test_visits_of_an_older_definition_are_none_of_these_samples(tmp_path, write, run_type):
    for place, version in enumerate(VERSIONS):
        for number in (1, 2, 3):
            note_visit(tmp_path, visit(version, number, turned(place, number), definition="v0"))
    sets = swept(tmp_path, write, run_type, factor=1.10)
    assert factors(sets) == []
    assert all(point.visits == () for one in sets for point in one.points.values())
