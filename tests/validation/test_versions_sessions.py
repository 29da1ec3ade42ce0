"""Sessions of equal code: how they are kept, what scatter is found in them, and what trials make of it."""

import numpy as np
import pytest

from precision_eval.core.errors import RecordError
from precision_eval.core.files import TrialFile
from precision_eval.history.changes import SESSION_MARGIN
from precision_eval.stats import change_points as detection
from validation import versions as trials
from validation.versions import rivals, sessions, tables

SOURCE = {"cpu": "Testium", "torch": "2.13.0", "commit": "abc", "source_sha256": "f" * 64, "processes": 3}
FIXES = ("a", "b", "c", "d")


def made_ratios(*, count=12, processes=3, session_sd=0.0, process_sd=0.01, seed=0):
    """Ratios of one case's series that share their sessions, as a table of fix to (session, process)."""
    rng = np.random.default_rng(seed)
    shared = session_sd * rng.normal(size=count)
    return {
        fix: np.exp(0.1 * number + shared[:, None] + process_sd * rng.normal(size=(count, processes))).tolist()
        for number, fix in enumerate(FIXES)
    }


def write_sessions(path, ratios, *, source=SOURCE):
    for number in range(len(ratios["a"])):
        rows = {fix: one[number] for fix, one in ratios.items()}
        found = {"w/s": dict.fromkeys(sessions.METRICS, rows)}
        TrialFile(path).append({"key": f"{source['cpu']}/{number}", "source": source, "found": found})
    return path


def test_the_scatter_is_taken_apart_by_hand():
    """Means 0, 0.03 and −0.03: variance 9e-4; within: 2 · 0.01² / 1, halved for two processes."""
    logs = np.array([[0.01, -0.01], [0.04, 0.02], [-0.02, -0.04]])
    found = tables.estimated(np.exp(logs))
    assert found.process_sd == pytest.approx(0.01 * np.sqrt(2.0))
    assert found.session_sd == pytest.approx(np.sqrt(9e-4 - 2e-4 / 2))
    assert found.largest_difference == pytest.approx(0.06)


@pytest.fixture
def few_deals(monkeypatch):
    """Random deals by the hundred: enough for what is far from the level, and quick."""
    monkeypatch.setattr(detection, "FEW", 99)
    monkeypatch.setattr(detection, "MANY", 999)


SESSIONS = next(condition for condition in tables.CONDITIONS if condition.of_sessions)


def measured(**options):
    return [{fix: [np.asarray(row) for row in rows] for fix, rows in made_ratios(**options).items()}]


def made(source, *, steps):
    return tables.made_table(SESSIONS, np.random.default_rng(0), source, steps=steps)


def test_a_table_is_the_sessions_in_another_order_and_steps_lie_beyond_the_margin():
    source = measured(session_sd=0.05, process_sd=1e-4)
    table, injected = made(source, steps=True)
    assert sorted(injected) == ["b", "d"]
    rows = [row.tolist() for row in source[0]["a"]]
    order = [rows.index(row.tolist()) for row in table["a"]]
    assert len(set(order)) == 10, "no session comes twice"
    assert order != sorted(order)
    assert [row.tolist() for row in table["c"]] == [source[0]["c"][session].tolist() for session in order]
    for fix, (version, size) in injected.items():
        moved = [np.log(row / source[0][fix][session]).mean() for row, session in zip(table[fix], order, strict=True)]
        wanted = np.log1p(SESSION_MARGIN["latency_ratio"]) + size * tables.estimated(source[0][fix]).scale
        assert moved[:version] == pytest.approx([0.0] * version)
        assert np.abs(moved[version:]) == pytest.approx([wanted] * (10 - version))
    assert made(source, steps=False)[1] == {}


def test_the_margin_keeps_sessions_from_being_changes_and_is_that_of_the_metric(few_deals, monkeypatch):
    """Sessions of 1 % SD, processes of 0.1 %: every session is significant, and below the margin."""
    monkeypatch.setattr(tables, "VERSIONS", 6)
    monkeypatch.setattr(rivals, "SESSION_MARGIN", {"latency_ratio": 0.03, "latency_to_anchor": 0.10})
    rules = rivals.session_rules("latency_ratio")
    table, _ = made(measured(session_sd=0.008, process_sd=1e-3), steps=False)
    assert sum(map(len, rules[rivals.NO_MARGIN](table).values())) > 0
    assert sum(map(len, rules[rivals.OURS](table).values())) == 0
    table["b"] = [row * (1.08 if number >= 3 else 1.0) for number, row in enumerate(table["b"])]
    assert rules[rivals.OURS](table)["b"] == [range(3, 4)]
    assert rivals.session_rules("latency_to_anchor")[rivals.OURS](table)["b"] == []  # within 10 %


def test_sessions_of_another_machine_are_left_out_and_too_few_are_named(tmp_path):
    path = tmp_path / "sessions.jsonl"
    write_sessions(path, made_ratios(count=5), source=SOURCE | {"cpu": "other"})
    write_sessions(path, made_ratios(count=3))
    source, read = sessions.read_sessions(path)
    assert source == SOURCE
    assert len(read["w/s"]["latency_ratio"]["a"]) == 3
    few = write_sessions(tmp_path / "few.jsonl", made_ratios(count=2))
    with pytest.raises(RecordError, match="holds 2 sessions"):
        sessions.read_sessions(few)
    TrialFile(tmp_path / "other.jsonl").append({"key": "a"})
    with pytest.raises(RecordError, match="no file of sessions"):
        sessions.read_sessions(tmp_path / "other.jsonl")


def test_a_condition_of_sessions_is_scored_under_all_rules(tmp_path, few_deals):
    _, read = sessions.read_sessions(write_sessions(tmp_path / "sessions.jsonl", made_ratios(session_sd=0.01)))
    found = trials.run_condition(SESSIONS, tables=2, noise_floor_tables=1, seed=0, residuals=[], sessions=read)
    assert list(found)[:2] == [rivals.OURS, rivals.NO_MARGIN]
    assert len(found) == len(rivals.RULES) + 1
    for scores in found.values():
        assert scores["recall"][1] == 2 * len(FIXES) // 2
        assert scores["tables_without_steps_flagged"][1] == 1


@pytest.mark.slow
def test_a_session_is_measured_for_real(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "CASES", sessions.CASES[:1])
    session = sessions.one_session(tmp_path)
    assert list(session) == [f"{case}/{size}" for case, size in sessions.CASES]
    for metrics in session.values():
        assert set(metrics) == set(sessions.METRICS)
        for fixes in metrics.values():
            assert len(fixes) >= 3
            assert {len(ratios) for ratios in fixes.values()} == {3}
