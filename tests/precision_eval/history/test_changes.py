"""Change points, changes of status and their explanations, on made-up folders."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from precision_eval.core.errors import IntegrityError, ParameterError, RecordError, UnknownNameError
from precision_eval.history.changes import change_points, reach
from precision_eval.history.series import build_series
from precision_eval.history.text import as_json, headline, markdown, write_csv
from precision_eval.history.upstream import DATA, load_upstream
from precision_eval.history.versions import history_of
from precision_eval.results.asv import read_results

VERSIONS = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0")
RATIO = "eager.dia_decode.track_latency_ratio"
ANCHOR = "eager.dia_decode.track_latency_to_anchor"
DRIFT = "eager.dia_decode.track_drift"
STATUS = "eager.dia_decode.track_status"
BYTES = "eager.dia_decode.track_peak_bytes"
CELL = ("kv_to_query", "tiny")


def folder_of(path, write, run_type, values, **more):
    """Write one run per version; `values` maps a benchmark and a cell to what each version found."""
    runs = []
    for number_, version in enumerate(VERSIONS):
        found = {name: {cell: series[number_] for cell, series in cells.items()} for name, cells in values.items()}
        runs.append(run_type(torch=version, values=found, **more))
    return write(path, runs)


def noisy(levels, *, scale=0.01, processes=3, seed=0):
    rng = np.random.default_rng(seed)
    return [list(level * np.exp(rng.normal(0.0, scale, processes))) for level in levels]


def series_of(folder):
    sets = read_results(folder)
    return build_series(sets, [one.torch_version for one in sets])


def changes_of(folder, **more):
    return change_points(series_of(folder), **more)


def test_a_drift_that_moves_by_more_than_half_is_a_change_and_one_by_a_quarter_is_none(tmp_path, write, run_type):
    values = [1e-3, 1e-3, 1.28e-3, 1.6e-3, 1.6e-3, 1.6e-3, 1.6e-3, 1.6e-3]
    folder = folder_of(tmp_path, write, run_type, {DRIFT: {CELL: values}})
    (found,) = changes_of(folder)
    assert (found.before, found.at, found.old, found.new) == ("2.8.0", "2.9.1", 1e-3, 1.6e-3)
    assert found.factor == pytest.approx(1.6)
    (note,) = [one for one in history_of(read_results(folder)).notes if "of one seed" in one]
    assert note.endswith("were measured: dia-decode/kv_to_query (eager, tiny) ×1.28 at 2.8.0")
    assert found.factor_interval is None
    assert found.p_value is None


def test_a_slow_creep_is_reported_when_it_has_left_the_level(tmp_path, write, run_type):
    values = [1.0 * 1.15**k for k in range(len(VERSIONS))]
    found = changes_of(folder_of(tmp_path, write, run_type, {DRIFT: {CELL: values}}))
    assert [(one.before, one.at) for one in found] == [("2.8.0", "2.9.1"), ("2.11.0", "2.12.1")]


def test_a_step_in_latency_is_found_with_its_size(tmp_path, write, run_type):
    cells = {(fix, "tiny"): noisy([2.0] * 8, seed=k) for k, fix in enumerate(("query_to_half", "bfloat16", "autocast"))}
    cells[CELL] = noisy([2.0] * 5 + [1.4] * 3, seed=9)
    (found,) = changes_of(folder_of(tmp_path, write, run_type, {RATIO: cells}))
    assert (found.fix, found.before, found.at) == ("kv_to_query", "2.10.0", "2.11.0")
    low, high = found.factor_interval
    assert low < 0.7 < high < 0.75
    assert found.p_value <= found.adjusted_p_value <= 0.05
    assert found.adjusted_p_value == pytest.approx(4 * found.p_value)


def test_without_samples_latency_is_not_judged(tmp_path, write, run_type):
    folder = folder_of(tmp_path, write, run_type, {RATIO: {CELL: [1.0] * 4 + [3.0] * 4}})
    assert changes_of(folder) == ()
    assert any("latency_ratio without samples" in note for note in history_of(read_results(folder)).notes)


def test_a_benchmark_defined_anew_is_no_change(tmp_path, write, run_type):
    for number_, version in enumerate(VERSIONS):
        late = number_ >= 4
        values = {DRIFT: {CELL: 2.0 if late else 1.0}, RATIO: {CELL: noisy([3.0 if late else 1.0], seed=number_)[0]}}
        digest = "v2" if late else "v1"
        write(tmp_path, [run_type(torch=version, values=values, versions={DRIFT: digest, RATIO: digest})])
    assert changes_of(tmp_path) == ()
    assert any("defined anew" in note for note in history_of(read_results(tmp_path)).notes)


def test_a_ratio_that_moves_with_its_baseline_says_so(tmp_path, write, run_type):
    values = {
        RATIO: {CELL: noisy([2.0] * 4 + [4.0] * 4, seed=1), ("full_float32", "tiny"): [[1.0] * 3] * 8},
        ANCHOR: {CELL: noisy([1.0] * 8, seed=2), ("full_float32", "tiny"): noisy([0.5] * 4 + [0.25] * 4, seed=3)},
    }
    found = changes_of(folder_of(tmp_path, write, run_type, values))
    assert {(one.metric, one.fix, one.at, one.with_baseline) for one in found} == {
        ("latency_ratio", "kv_to_query", "2.10.0", True),
        ("latency_to_anchor", "full_float32", "2.10.0", False),
    }


def stepped(factor):
    return [[2.0] * 3] * 4 + [[2.0 * factor] * 3] * 4


@pytest.mark.parametrize(
    ("metric", "factor", "called"),
    [
        (RATIO, 1.20, False),
        (RATIO, 1 / 1.20, False),
        (RATIO, 1.30, True),
        (RATIO, 1 / 1.30, True),
        (ANCHOR, 1.20, False),
        (ANCHOR, 1.30, True),
    ],
)
def test_a_step_that_sessions_may_differ_by_is_not_called(tmp_path, write, run_type, metric, factor, called):
    folder = folder_of(tmp_path, write, run_type, {metric: {CELL: stepped(factor)}})
    found = changes_of(folder)
    assert [one.factor for one in found] == ([pytest.approx(factor)] if called else [])
    (without,) = changes_of(folder, margins={})  # the noise of its processes alone would call each
    assert without.factor == pytest.approx(factor)
    (note,) = [one for one in history_of(read_results(folder)).notes if "session" in one]
    assert "beyond 25 %, chosen after" in note


def test_the_whole_interval_must_lie_beyond_the_sessions_margin(tmp_path, write, run_type):
    """A step of 26 % in noise of 1 %: its size is beyond 25 %, its interval is not."""
    cells = {(fix, "tiny"): noisy([2.0] * 8, seed=k) for k, fix in enumerate(("query_to_half", "bfloat16", "autocast"))}
    folder = folder_of(
        tmp_path, write, run_type, {RATIO: cells | {CELL: noisy([2.0] * 4 + [2.53] * 4, processes=5, seed=9)}}
    )
    (without,) = changes_of(folder, margins={})
    low, high = without.factor_interval
    assert 1.0 < low < 1.25 < without.factor < high
    assert changes_of(folder) == ()


FIXES = ("kv_to_query", "query_to_half", "bfloat16", "autocast", "float16", "full_bfloat16")


def few_versions(path, write, run_type, *, versions, moved, fixes=FIXES, **more):
    """Three processes at each of a few versions; the first `moved` fixes become five times as fast at the second."""
    for number_, version in enumerate(VERSIONS[:versions]):
        cells = {
            (fix, "tiny"): noisy([2.0 / (5.0 if number_ and k < moved else 1.0)], seed=10 * number_ + k)[0]
            for k, fix in enumerate(fixes)
        }
        write(path, [run_type(torch=version, values={RATIO: cells} | more)])
    return read_results(path)


def test_two_versions_of_three_processes_can_call_nothing_and_say_so(tmp_path, write, run_type):
    """p ≥ 2/20, however large the step and however many series take it."""
    history = history_of(few_versions(tmp_path, write, run_type, versions=2, moved=6))
    assert history.cases[0].changes == ()
    found = reach(history.cases[0].series)
    assert (found.tested, found.smallest, found.clear) == (6, pytest.approx(0.1), pytest.approx(0.1))
    assert found.none
    (note,) = [one for one in history.notes if "too few" in one]
    assert note == (
        "too few versions or processes to call any paired change in dia-decode: p is 0.1 or more, 0.025 at most would "
        "be called"
    )
    said = "Between torch 2.6.0 and 2.7.1, no status turned over and no exact metric changed."
    assert headline(history) == f"{said} Paired latencies could not be judged: dia-decode."


def test_statuses_turn_over_with_their_upstream_change(tmp_path, write, run_type):
    values = {
        STATUS: {
            ("as_shipped", "tiny"): [2] + [1] * 7,
            ("autocast", "tiny"): [1] + [2] * 7,
            ("float16", "tiny"): [1] * 5 + [3] * 3,
            ("bfloat16", "tiny"): [1, 1, math.nan, None, 1, 1, 1, 1],
        }
    }
    history = history_of(read_results(folder_of(tmp_path, write, run_type, values)))
    (case,) = history.cases
    found = {(one.fix, one.before, one.at, one.old, one.new): one.explained_by for one in case.status_changes}
    assert {key: [one.id for one in causes] for key, causes in found.items()} == {
        ("as_shipped", "2.6.0", "2.7.1", "raised", "passed"): ["rms-norm-keeps-input-dtype"],
        ("autocast", "2.6.0", "2.7.1", "passed", "raised"): ["rms-norm-half-meets-autocast"],
        ("float16", "2.10.0", "2.11.0", "passed", "non_finite"): [],
        ("bfloat16", "2.7.1", "2.9.1", "passed", "failed"): [],
        ("bfloat16", "2.9.1", "2.10.0", "failed", "passed"): [],
    }
    cells = case.tables[0].cells
    assert cells["bfloat16", "2.8.0"].status == "not_applicable"
    assert case.tables[0].fixes == ("as_shipped", "bfloat16", "float16", "autocast")
    assert {one.id for one in history.upstream} == {"rms-norm-keeps-input-dtype", "rms-norm-half-meets-autocast"}
    text = markdown(history)
    assert "| as_shipped | eager, tiny | 2.6.0 → 2.7.1 (2025-06) | raised → passed | rms-norm-keeps-input-dtype" in text
    assert "passed → non_finite | unexplained |" in text


def test_a_change_on_cuda_explains_nothing_that_ran_on_the_cpu(tmp_path, write, run_type):
    """The tracked figures run on the CPU, whichever build of torch it is."""
    values = {DRIFT: {("autocast", "tiny"): [1.0] * 6 + [2.0] * 2}}
    (entry,) = [one for one in load_upstream().changes if one.id == "rms-norm-autocast-float32"]
    upstream = load_upstream()
    on_cpu = replace(upstream, changes=(replace(entry, device="cpu"),))
    for cuda in (False, True):
        folder = folder_of(tmp_path / str(cuda), write, run_type, values, cuda=cuda)
        explained = {
            name: [one.id for one in history_of(read_results(folder), upstream=known).cases[0].changes[0].explained_by]
            for name, known in (("as it is", upstream), ("planted", on_cpu))
        }
        assert explained == {"as it is": [], "planted": ["rms-norm-autocast-float32"]}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: c.update(schema_version=9), "has schema 9, expected 1"),
        (lambda c: c["releases"].update({"2.9.0": "soon"}), "is damaged .*soon"),
        (lambda c: c["changes"][0].pop("since"), "is damaged .*since"),
        (lambda c: c["changes"][0].update(device="rocm"), "is damaged .*rocm"),
    ],
)
def test_damaged_upstream_data_are_refused(tmp_path, damage, said):
    content = json.loads(DATA.read_text())
    damage(content)
    (tmp_path / "upstream.json").write_text(json.dumps(content))
    with pytest.raises(IntegrityError, match=said):
        load_upstream(tmp_path / "upstream.json")


def test_commits_are_an_axis_too(tmp_path, write, run_type):
    commits = ["1" * 40, "2" * 40, "3" * 40]
    for number_, commit in enumerate(commits):
        for torch in ("2.8.0", "2.9.1") if number_ < 2 else ("2.9.1",):
            values = {DRIFT: {CELL: 2.0 if number_ else 1.0}, STATUS: {CELL: 1 if number_ else 2}}
            write(tmp_path, [run_type(torch=torch, values=values, commit=commit, date_ms=1000 + number_)])
    sets = read_results(tmp_path)
    history = history_of(sets, axis="commit")
    assert history.positions == ("11111111", "22222222", "33333333")
    assert {one.torch_version for one in history.sets} == {"2.9.1"}
    assert history.notes[0] == "torch version 2.9.1 is shown; --torch shows another: 2.8.0"
    (case,) = history.cases
    assert [(one.at, one.explained_by) for one in case.changes] == [("22222222", ())]
    assert [(one.at, one.explained_by) for one in case.status_changes] == [("22222222", ())]
    assert "unexplained" not in markdown(history)
    by_torch = history_of(sets)
    assert by_torch.positions == ("2.8.0", "2.9.1")
    assert {one.commit for one in by_torch.sets} == {commits[1]}
    assert history_of(sets, shown="111").sets[0].commit == commits[0]
    with pytest.raises(UnknownNameError, match="unknown commit 'f00'"):
        history_of(sets, shown="f00")
    with pytest.raises(UnknownNameError, match=r"unknown torch version '2\.9\.0'"):
        history_of(sets, axis="commit", shown="2.9.0")


def test_what_cannot_be_told_is_named(tmp_path, write, run_type):
    folder = folder_of(tmp_path, write, run_type, {DRIFT: {CELL: [1.0] * 8}})
    sets = read_results(folder)
    with pytest.raises(UnknownNameError, match="unknown metric 'drifts'; did you mean drift"):
        history_of(sets, metrics=("drifts",))
    twice = [*sets, replace(sets[0], environment="virtualenv-py3.12")]
    with pytest.raises(ParameterError, match=r"are both 2\.6\.0; keep one of the two"):
        history_of(twice)
    write(tmp_path / "bare", [run_type(torch="2.8.0", values={})])
    with pytest.raises(RecordError, match="hold no benchmark of a case"):
        history_of(read_results(tmp_path / "bare"))


def test_json_is_strict_and_csv_holds_every_value(tmp_path, write, run_type):
    values = {BYTES: {CELL: [0.0] + [2048.0] * 7}, RATIO: {CELL: noisy([2.0] * 8)}, STATUS: {CELL: [1] * 8}}
    history = history_of(read_results(folder_of(tmp_path / "in", write, run_type, values)))
    found = json.loads(as_json(history), parse_constant=lambda name: pytest.fail(name))
    assert [one["released"] for one in found["positions"]][:2] == ["2025-01-29", "2025-06-04"]
    (change,) = found["cases"][0]["changes"]
    assert (change["at"], change["factor"], change["explained_by"]) == ("2.7.1", None, ["rms-norm-keeps-input-dtype"])
    write_csv(history, tmp_path / "out" / "values.csv")
    lines = (tmp_path / "out" / "values.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * 8
    assert lines[1].startswith("dia-decode,eager,tiny,kv_to_query,latency_ratio,2.6.0,measured,")
    with pytest.raises(ParameterError, match="cannot be written"):
        write_csv(history, tmp_path / "out" / "values.csv" / "below.csv")
