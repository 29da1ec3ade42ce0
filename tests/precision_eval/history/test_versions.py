"""Series over torch versions and commits, the steps in them, and their table, heatmap, CSV and JSON."""

import math

import matplotlib.image
import pytest
from made_versions import Run, write_runs

from precision_eval.core.errors import ParameterError
from precision_eval.core.table import to_markdown
from precision_eval.history.asv_results import read_results
from precision_eval.history.versions import history_of, level_changes
from precision_eval.report.drawing import NotDrawn
from precision_eval.report.versions import as_data, draw_heatmap, versions_table

VERSIONS = ("2.6.0", "2.8.0", "2.9.1", "2.10.0", "2.11.0")
CELL = ("kv_to_query", "tiny")
STATUS, DRIFT = "eager.dia_decode.track_status", "eager.dia_decode.track_drift"
RATIO, BYTES = "eager.dia_decode.track_latency_ratio", "eager.dia_decode.track_peak_bytes"


def history(path, values, **options):
    """Write a run per version, of a value per version and benchmark; return their history."""
    runs = [
        Run(torch=version, values={name: {CELL: series[place]} for name, series in values.items()})
        for place, version in enumerate(VERSIONS)
    ]
    write_runs(path, runs)
    return history_of(read_results(path), **options)


def steps_of(history, metric):
    (series,) = (series for series in history.series if series.key.metric == metric)
    return [(step.before, step.at, step.old, step.new) for step in series.steps]


def test_steps_beyond_the_margin_are_changes_and_versions_are_ordered_as_numbers(tmp_path):
    values = {
        STATUS: [2, 2, 1, 1, 1],
        DRIFT: [1e-3, 1.28e-3, 1.6e-3, 1.6e-3, 1.6e-3],
        RATIO: [[1.0, 1.02, 0.99], [1.01, 1.0, 1.1], [1.0, 1.0, 1.0], [1.5, 1.5, 1.6], [1.5, 1.5, 1.6]],
        BYTES: [4096, 4096, 4096, 4000, 4000],
    }
    found = history(tmp_path, values)
    assert found.positions == VERSIONS
    assert steps_of(found, "status") == [("2.8.0", "2.9.1", "raised", "passed")]
    assert steps_of(found, "drift") == [("2.8.0", "2.9.1", pytest.approx(1e-3), pytest.approx(1.6e-3))]
    assert steps_of(found, "latency_ratio") == [("2.9.1", "2.10.0", pytest.approx(1.0, rel=0.02), pytest.approx(1.5))]
    assert steps_of(found, "peak_bytes") == [("2.9.1", "2.10.0", pytest.approx(4096), pytest.approx(4000))]


def test_within_the_margin_nothing_changes_and_failures_are_no_figures(tmp_path):
    values = {RATIO: [1.0, 1.2, 1.0, 1.2, 1.1], DRIFT: [1e-3, None, 1.2e-3, math.nan, 1e-3]}
    found = history(tmp_path, values)
    assert found.changed == ()
    (drift,) = (series for series in found.series if series.key.metric == "drift")
    assert drift.values == (1e-3, "failed", 1.2e-3, "not_applicable", 1e-3)
    with pytest.raises(NotDrawn, match="nothing changed"):
        draw_heatmap(found, tmp_path / "none.png")


@pytest.mark.parametrize(
    ("values", "changes"),
    [([], []), ([1.0], []), ([1.0, 2.0], [(1, 1.0, 2.0)]), ([0.0, 0.0, 1.0], [(2, 0.0, 1.0)]), ([0.0, 0.0], [])],
)
def test_level_changes_of_few_values(values, changes):
    assert [tuple(map(pytest.approx, change)) for change in level_changes(values, margin=1.25)] == changes


def test_what_was_defined_anew_is_not_compared(tmp_path):
    runs = [
        Run(torch=torch, values={DRIFT: {CELL: value}}, versions={DRIFT: version})
        for torch, value, version in (("2.8.0", 1.0, "v1"), ("2.9.1", 9.0, "v2"))
    ]
    found = history_of(read_results(write_runs(tmp_path, runs)))
    assert found.changed == ()
    assert found.notes == ("defined anew within the range, so not compared across it: dia-decode/drift",)


def test_of_several_commits_the_one_with_most_versions_is_shown(tmp_path):
    values = {DRIFT: {CELL: 1.0}}
    runs = [Run(torch=torch, values=values) for torch in ("2.8.0", "2.9.1")]
    write_runs(tmp_path, [*runs, Run(torch="2.9.1", commit="b" * 40, values=values)])
    found = history_of(read_results(tmp_path))
    assert (found.positions, found.notes) == (("2.8.0", "2.9.1"), ("shown is the commit aaaaaaaa; left out: bbbbbbbb",))
    assert history_of(read_results(tmp_path), axis="commit").positions == ("aaaaaaaa", "bbbbbbbb")
    write_runs(tmp_path, [Run(torch="2.8.0", python="3.12", values=values)])
    with pytest.raises(ParameterError, match=r"are both 2\.8\.0; keep one of the two"):
        history_of(read_results(tmp_path))


def test_table_json_and_heatmap(tmp_path):
    found = history(tmp_path, {STATUS: [2, 1, 1, 1, 1], BYTES: [4096, 8192, 8192, 8192, 8192]})
    assert to_markdown(versions_table(found)) == (
        "**5 torch versions on lab (Testium 1): 2 of 2 series changed beyond their margin**\n\n"
        "| case | mode, size | fix | metric | 2.6.0 | 2.8.0 | 2.9.1 | 2.10.0 | 2.11.0 | changed |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n"
        "| dia-decode | eager, tiny | kv_to_query | peak bytes | 4 KiB | 8 KiB | 8 KiB | 8 KiB | 8 KiB "
        "| ×2.00 at 2.8.0 |\n"
        "| dia-decode | eager, tiny | kv_to_query | status | raised | passed | passed | passed | passed "
        "| raised → passed at 2.8.0 |"
    )
    first = as_data(found)["series"][0]
    assert first["values"] == [4096, 8192, 8192, 8192, 8192]
    assert first["steps"] == [
        {"before": "2.6.0", "at": "2.8.0", "old": pytest.approx(4096), "new": pytest.approx(8192)}
    ]
    draw_heatmap(found, tmp_path / "map.png")
    assert matplotlib.image.imread(tmp_path / "map.png").shape[0] > 100
