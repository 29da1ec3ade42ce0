"""The short answer of a run: few lines of 80 columns, each message once, and what would decide an undecided time."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from precision_eval.report.summary import budget_to_decide, doubts_line, print_summary, summaries_of, undecided_line
from precision_eval.results.model import exact
from precision_eval.results.reading import load_run

CPU = Path(__file__).resolve().parents[3] / "results" / "cpu"


@pytest.fixture(scope="module")
def run():
    """A run as the default tier makes it: one size of each case."""
    whole = load_run(CPU)
    records = tuple(record for record in whole.records if record.size in ("default", "dia"))
    return replace(whole, records=records)


@pytest.fixture(scope="module")
def lines(run):
    file = StringIO()
    print_summary(run, Console(file=file, width=80))
    return file.getvalue().splitlines()


def test_it_fits_a_screen_and_cuts_nothing(run, lines):
    assert len(lines) <= 38  # progress and the path come on top
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    for group in run.sections:
        assert all(any(row.fix in line for line in lines) for row in group.fixes)


def test_each_message_is_said_once_with_its_fixes(lines):
    text = " ".join(" ".join(lines).split())
    assert text.count("Expected query, key, and value") == 1
    assert "raised: as_shipped, as_shipped (compiled) and dynamo_fallback (compiled): Expected query" in text
    assert "Nothing measured cures compiled attention-decode, attention-prefill and voice; " in text
    assert "what cures eager was not measured compiled: --mode eager,compiled." in text


def test_the_pick_stands_first_and_a_tie_is_marked(run):
    summaries = [summary for summary in summaries_of(run.sections) if summary.group.curing]
    for summary in summaries:
        assert summary.table().rows[0][0] == summary.pick
        assert summary.table().kinds[0] == "chosen"
        marked = {row[0].removeprefix("≈ ") for row in summary.table().rows if row[0].startswith("≈")}
        assert marked == set(summary.ties)
        json.dumps(summary.to_dict(), allow_nan=False)
    tied = replace(summaries[0], choice=replace(summaries[0].choice, tied=(summaries[0].pick, "kv_to_query")))
    assert tied.headline.endswith(f"take {summaries[0].pick} ≈ kv_to_query")
    assert "≈ kv_to_query" in [row[0] for row in tied.table().rows]


def undecided(run, *, ratio, **data):
    """A row of the voice whose time is undecided at `ratio`, with a record that says `data`."""
    (group,) = (group for group in run.sections if group.case == "voice" and group.mode == "eager")
    row = group.row("kv_to_query")
    record = row.records["latency"]
    kept = {name: value for name, value in record.data.items() if name != "settling_s"}
    record = replace(record, data=kept | data)
    changed = replace(row, time=exact(ratio), verdict="undecided", records=dict(row.records) | {"latency": record})
    return replace(group, noise_floor_off=False, rows=(changed,)), changed


@pytest.mark.parametrize(
    ("ratio", "data", "budget_s"),
    [
        (1.01, {"minimum_detectable_effect": 0.04, "elapsed_s": 2.0}, 32.0),  # (ln 1.04 / ln 1.01)² × 2 s, rounded up
        (1.01, {"minimum_detectable_effect": 0.04, "elapsed_s": 2.0, "settling_s": 20.0}, 20.0),
        (1.001, {"minimum_detectable_effect": 0.04, "elapsed_s": 2.0}, None),  # within the margin
        (1.05, {"minimum_detectable_effect": 0.04, "elapsed_s": 2.0}, None),  # should have been seen
    ],
)
def test_what_would_decide_follows_from_the_detectable_effect(run, ratio, data, budget_s):
    group, row = undecided(run, ratio=ratio, **data)
    assert budget_to_decide(group, row) == budget_s
    assert budget_to_decide(replace(group, noise_floor_off=True), row) is None
    line = undecided_line((replace(summaries_of(run.sections)[0], group=group),))
    assert (
        line.endswith(f"s of timing: --set budget={budget_s:g}.")
        if budget_s
        else ("no budget that the records tell of" in line)
    )


def test_fresh_memory_stands_in_the_row_and_several_processes_decide_it(run):
    group, row = undecided(run, ratio=1.5, doubts=["fresh memory: a call had 9,000 page faults"])
    assert group.verdict_text(row) == "undecided: fresh memory"
    summary = replace(summaries_of(run.sections)[0], group=group)
    ((_, result, *_),) = summary.table().rows
    assert result == "fresh memory"
    line = undecided_line((summary,))
    assert line == "Undecided: 1 time; 1 for fresh memory, which --set processes=5 takes into the interval."
    assert group.verdict_text(replace(row, records={})) == "undecided"


def test_doubts_are_named_once_by_kind(run):
    """Fresh memory of one fix in one group, a noise floor that is off in another; intervals hold the rest."""

    def doubted(summary, fixes, doubt):
        data = {"ratio": 1.5, "ratio_low": 1.4, "ratio_high": 1.6, "doubts": [doubt]}
        rows = [
            replace(
                row,
                time=exact(1.5),
                records={"latency": replace(row.records["latency"], data=data if row.fix in fixes else {"doubts": []})},
            )
            for row in summary.group.curing
        ]
        return replace(summary, group=replace(summary.group, rows=tuple(rows)))

    first, second = [summary for summary in summaries_of(run.sections) if summary.group.curing][:2]
    every = {row.fix for row in second.group.curing}
    line = doubts_line(
        (
            doubted(first, {"kv_to_query"}, "in 2 of 5 processes: fresh memory: 8,193 page faults"),
            doubted(second, every, "the noise floor is off: 0.97"),
        )
    )
    pages = "each call takes new pages, at a cost that differs from process to process"
    memory, off = f"fresh memory ({first.group.case}: kv_to_query), {pages}", f"({second.group.case}: every fix)"
    assert line == f"Doubts: {memory}; the noise floor is off {off}, the baseline differs from its own copy."
    both = doubts_line(tuple(doubted(one, {"kv_to_query"}, "fresh memory: 9 faults") for one in (first, second)))
    assert both == f"Doubts: fresh memory ({first.group.case} and {second.group.case}: kv_to_query), {pages}."
    assert doubts_line((doubted(second, every, "over budget: 12 rounds"),)) == doubts_line(()) == ""


def test_what_a_record_says_cannot_move_the_terminal(run):
    """A reason of a hostile record, which turns the direction of the text and its colour."""
    reason = "\u202egnp.exe \x1b[31mred"
    records = tuple(replace(r, reason=reason) if r.status == "raised" else r for r in run.records)
    file = StringIO()
    print_summary(replace(run, records=records), Console(file=file, width=80))
    assert "gnp.exe" in file.getvalue()
    assert not {"\u202e", "\x1b"} & set(file.getvalue())
