import json
from pathlib import Path

import pytest
from fake_machine import BENCHMARKS, COLUMNS, select, write_results

from precision_eval.core.errors import ParameterError, RecordError
from tools.torch_versions import sweep_plan
from tools.torch_versions.sweep_plan import (
    DiskSpaceError,
    check_build,
    check_room,
    choose_versions,
    missing_benchmarks,
    read_benchmarks,
    read_configuration,
    read_durations,
    runs,
    selection,
)

ROOT = Path(__file__).resolve().parents[2]
KNOWN = ("2.6.0", "2.7.0", "2.7.1", "2.10.0")


def test_versions_are_ordered_as_numbers_and_named_once():
    assert choose_versions(["2.10.0", "2.6.0", "2.6.0"], KNOWN) == ("2.6.0", "2.10.0")
    assert choose_versions([], KNOWN) == KNOWN
    assert choose_versions(["2.7"], KNOWN) == ("2.7.1",)
    assert choose_versions(["2.99.0"], KNOWN) == ("2.99.0",)  # whether it exists, the index knows


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("two", "'two' is no torch version"),
        ("2.8.0+cpu", "is no torch version"),
        (">=2.8", "is no torch version"),
        ("2.5.1", "older than 2.6"),
        ("2.9", r"no patch of torch 2.9 is configured; name one, such as 2.9.0"),
    ],
)
def test_what_is_no_version_is_named(asked, message):
    with pytest.raises(ParameterError, match=message):
        choose_versions([asked], KNOWN)


def test_the_projects_configuration_covers_every_minor_version():
    found = read_configuration(ROOT / "asv.versions.json")
    assert [sweep_plan.numbers(version)[:2] for version in found.versions] == [(2, minor) for minor in range(6, 16)]
    plain = json.loads((ROOT / "asv.conf.json").read_text(encoding="utf-8"))
    for key in ("benchmark_dir", "launch_method", "project", "version"):
        assert found.raw[key] == plain[key], key
    assert set(sweep_plan.SLIM_BYTES) == set(found.versions)


def whole(versions):
    """A configuration with everything in it; `versions` as JSON."""
    places = '"repo": ".", "benchmark_dir": "b", "env_dir": "e", "results_dir": "r", "html_dir": "h"'
    return f'{{"matrix": {{"req": {{"torch": {versions}}}}}, {places}}}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "run in a checkout of the project"),
        ("{", "is no asv configuration"),
        ("[]", "is no asv configuration"),
        ('{"matrix": {"req": {"torch": ["2.6.0"]}}, "repo": "."}', "lacks benchmark_dir, env_dir"),
        (whole("[2.8]"), r"has \[2\.8\] as torch versions; expected a list of texts"),
        (whole('"2.13.0"'), r'has "2\.13\.0" as torch versions; expected a list of texts'),
        (whole("[]"), r"has \[\] as torch versions"),
    ],
)
def test_a_bad_configuration_is_named(tmp_path, content, message):
    path = tmp_path / "asv.versions.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ParameterError, match=message):
        read_configuration(path)


def test_a_sweep_that_does_not_fit_is_refused_with_the_remedy(tmp_path):
    needed, reserve = [2_000_000_000, 3_000_000_000], sweep_plan.RESERVE_BYTES
    assert check_room(needed, free=5_000_000_000 + reserve, where=tmp_path, keep=True) == 5_000_000_000 + reserve
    with pytest.raises(
        DiskSpaceError,
        match=r"2 environments need 6\.0 GB, 5\.9 GB are free at .*remove-environments \(4\.0 GB at a time",
    ):
        check_room(needed, free=5_900_000_000, where=tmp_path, keep=True)
    assert check_room(needed, free=5_900_000_000, where=tmp_path, keep=False) == 4_000_000_000
    with pytest.raises(DiskSpaceError, match=r"name fewer --versions, or another disk with --environments"):
        check_room(needed, free=3_900_000_000, where=tmp_path, keep=False)
    assert check_room([], free=0, where=tmp_path, keep=True) == 0


@pytest.mark.parametrize(
    ("results", "missing"),
    [
        ({}, ["eager.a.time_call", "eager.a.track_status", "eager.b.track_status"]),
        ({"eager.a.time_call": ([None, 1.0], "1"), "eager.a.track_status": ([2, 1], "2")}, ["eager.b.track_status"]),
        # measured, but by another definition; failed in every case; never run
        ({"eager.a.time_call": ([1.0], "0"), "eager.b.track_status": ([1], "3")}, None),
        ({"eager.a.time_call": ([None, None], "1"), "eager.b.track_status": ([1], "3")}, None),
        ({"eager.a.time_call": (None, "1"), "eager.b.track_status": ([1], "3")}, None),
        # not applicable is a result
        ({name: ([float("nan")], version) for name, version in BENCHMARKS.items()}, []),
    ],
)
def test_what_is_missing(tmp_path, results, missing):
    path = tmp_path / "vm" / "a.json"
    write_results(path, results)
    expected = ["eager.a.time_call", "eager.a.track_status"] if missing is None else missing
    assert list(missing_benchmarks(BENCHMARKS, [path])) == expected


@pytest.mark.parametrize(
    "content",
    [
        '{"results": {',
        "[]",
        "7",
        "noise_floor",
        '{"result_columns": ["result"], "results": []}',
        '{"result_columns": ["result"], "results": {"eager.a.time_call": 5}}',
        '{"result_columns": ["result"], "results": {"eager.a.time_call": [5]}}',
        '{"result_columns": 5, "results": {}}',
        '{"result_columns": ["result"], "results": {}, "env_vars": [1]}',
    ],
)
def test_a_damaged_result_file_counts_as_none(tmp_path, content):
    path = tmp_path / "vm" / "0-torch-py3.11-torch2.8.0.json"
    path.parent.mkdir()
    path.write_text(content)
    assert missing_benchmarks(BENCHMARKS, [path]) == tuple(sorted(BENCHMARKS))
    assert read_durations(tmp_path) == {}


def test_results_of_another_build_are_refused(tmp_path):
    path = tmp_path / "vm" / "a.json"
    write_results(path, {}, build="slim")
    check_build([path], "slim")
    with pytest.raises(ParameterError, match=r"a\.json was measured with the build slim .* and cuda is asked for.*--r"):
        check_build([path], "cuda")
    write_results(path, {}, build=None)
    with pytest.raises(ParameterError, match=r"without saying with which build of torch and slim is asked for"):
        check_build([path], "slim")
    path.write_text("[1]")
    check_build([path], "cuda")


def test_classes_share_a_run_as_far_as_their_time_is_known():
    a, b, c = ("e.a.time", "e.a.track"), ("e.b.track",), ("e.c.track",)
    names = (*a, *b, *c)
    most = sweep_plan.RUN_S
    assert runs(names, {}) == (a, b, c)
    assert runs(names, dict.fromkeys(names, 1.0)) == ((*a, *b, *c),)
    assert runs(names, {"e.a.time": most / 2, "e.a.track": 0.0, "e.b.track": most / 2, "e.c.track": 1.0}) == (
        (*a, *b),
        c,
    )
    assert runs(names, {"e.a.time": 2 * most, "e.a.track": 0.0, "e.b.track": 1.0}) == (a, b, c)
    assert runs(names, {"e.a.time": 1.0, "e.b.track": 1.0, "e.c.track": 1.0}) == (a, (*b, *c))
    assert runs((), {}) == ()


def test_durations_are_the_longest_seen(tmp_path):
    for machine, seconds in (("one", 3.0), ("two", 5.0)):
        path = tmp_path / machine / "0-torch-py3.11-torch2.8.0.json"
        path.parent.mkdir()
        rows = {"e.a.time": [[1.0], [], "v", 0, None, seconds], "e.b.time": [[1.0]], "e.c.time": None}
        path.write_text(json.dumps({"result_columns": [*COLUMNS, "duration"], "results": rows}))
    (tmp_path / "one" / "1-torch-py3.11-torch2.9.1.json").write_text("torn")
    assert read_durations(tmp_path) == {"e.a.time": 5.0}


def test_a_run_measures_what_it_names_and_nothing_else():
    pattern = selection(["eager.a.time_call"])
    matching = [name for name in (*BENCHMARKS, "eager.a.time_call_2", "eagerXa.time_call") if select(pattern, name)]
    assert matching == ["eager.a.time_call"]
    assert select(pattern, "eager.a.time_call('bfloat16', 'dia')")


def test_asvs_list_of_benchmarks_is_read(tmp_path):
    assert read_benchmarks(tmp_path) is None
    (tmp_path / "benchmarks.json").write_text(json.dumps({"a.b.c": {"version": "7"}, "version": 2}))
    assert read_benchmarks(tmp_path) == {"a.b.c": "7"}
    (tmp_path / "benchmarks.json").write_text('{"a": {}}')
    with pytest.raises(RecordError, match="remove it, asv writes its list of benchmarks anew"):
        read_benchmarks(tmp_path)
