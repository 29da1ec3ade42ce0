"""The page of a run: every number is its record's, the answer is the engine's, and it needs nothing else."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import html_reading as reading
import made_runs as made
import pytest

from precision_eval.explain.messages import short_reason
from precision_eval.report.choice_text import doubt_lines, headline, tie_lines
from precision_eval.report.facts import COSTS, SOUND
from precision_eval.report.findings import narrow_cache_sentence, sound_sentences
from precision_eval.report.html import FILE_NAME, LARGEST_BYTES, render_html, write_html, writing
from precision_eval.report.html.writing import subject
from precision_eval.report.text import environment_line, reading_guide
from precision_eval.report.writer import write_report
from precision_eval.results.choose import Question, answer, groups_of
from precision_eval.results.choose.choosing import POLICIES
from precision_eval.results.reading import load_run

PAGE = Path(writing.__file__).parent
ENVIRONMENT = {
    "cpu": {"model": "A CPU", "usable_cores": 2},
    "torch": {"version": "2.13.0"},
    "memory_bytes": 8_000_000_000,
}


def make_run(folder, *, minutes=2.0):
    run = made.Synthetic(folder, minutes=minutes)
    for mode in ("eager", "compiled"):
        run.attention("attention-decode", "metavoice", mode)
    run.voice()
    run.write()
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run") / "made")


@pytest.fixture(scope="module")
def page(run_dir):
    return write_html(run_dir)


@pytest.fixture(scope="module")
def text(page):
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def root(text):
    return reading.read(text)


def counts_of(run_dir):
    """Count the choices, asked of the engine in its own way."""
    groups = groups_of(load_run(run_dir).records)
    counts = {}
    for policy in POLICIES:
        for choice in answer(groups, Question(policy=policy)).choices:
            for path in (f"/{policy}/*/taken", f"/{policy}/{choice.fix}/taken") if choice.fix else ():
                counts[path] = counts.get(path, 0) + 1
            if choice.fix and len(choice.tied) > 1:
                path = f"/{policy}/{choice.fix}/tied"
                counts[path] = counts.get(path, 0) + 1
    return counts


def sentences_of(run_dir):
    """Return what report and engine say about a run, by kind."""
    run = load_run(run_dir)
    records = reading.records_of(run_dir)
    groups = groups_of(run.records, run=run_dir.name)
    choices = [one for policy in POLICIES for one in answer(groups, Question(policy=policy)).choices if one.fix]
    titles = {group.title for group in groups}
    days = sorted(record.started_at[:10] for record in run.records)
    environments = Counter(record.environment[:12] for record in run.records)

    def reason(plain, node):
        of = records[node.attrs["data-record"]]["reason"]
        return plain in (" ".join(of.split()), " ".join(short_reason(of).split()))

    return {
        "place": lambda plain, _: any(plain in title for title in titles),
        "cell": {cell.partition("#")[0] for cell in records},
        "line": {f"{environment_line(run.environment)}."},
        "reason": {headline(choice) for choice in choices},
        "subject": {subject(run)},
        "tie": {line for choice in choices for line in tie_lines(choice)},
        "doubt": {line for choice in choices for line in doubt_lines(choice, most=99)},
        "guide": set(reading_guide(run)),
        "instead": {narrow_cache_sentence(section) for section in run.sections} - {""},
        "sound": {line for section in run.sections for line in sound_sentences(run, section)},
        "message": reason,
        "whole": reason,
        "where": lambda plain, _: plain.partition(": ")[0] in titles,
        "command": lambda plain, _: plain.startswith("precision-eval "),
        "environment": lambda plain, node: plain == str(reading.origin(_origin(node), records)),
        "date": {days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"},
        "environments": {"; ".join(f"{sha}: {count}" for sha, count in environments.items())},
    }


def _origin(node):
    return next(one.attrs for one in node.within() if "data-path" in one.attrs)


@pytest.fixture(scope="module")
def counts(run_dir):
    return counts_of(run_dir)


@pytest.fixture(scope="module")
def said(run_dir):
    return sentences_of(run_dir)


def hold(root, records, counts, said):
    """Hold everything on a page to a run's records; return how many numbers, values and marks that were."""
    found = reading.numbers(root, records, counts), reading.series(root, records), reading.marks(root)
    assert reading.ticks(root) > 0
    fixed = reading.template_text(PAGE / "report.html") | {fact.page for fact in (*COSTS, *SOUND)}
    assert reading.unnamed(root, said=said, fixed=fixed) == []
    return found


def test_every_number_is_its_records(root, run_dir, counts, said):
    numbers, values, marks = hold(root, reading.records_of(run_dir), counts, said)
    assert numbers > 500
    assert values > 1000
    assert marks == 3 * 6  # six fixes that cure it, in three groups


def changed(run_dir, folder, cell, *path, by=1.01):
    """Copy a run with one number of one record changed."""
    folder.mkdir()
    records = [json.loads(line) for line in (run_dir / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    (record,) = [one for one in records if one["cell"] == cell]
    *way, last = path
    node = record["data"]
    for name in way:
        node = node[name]
    node[last] = node[last] * by
    text = "\n".join(map(json.dumps, records)) + "\n"
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT), encoding="utf-8")
    return folder


ATTENTION = "attention-decode/{}/eager@cpu:metavoice#{}"
VOICE = "voice/{}/eager@cpu:default#{}"


@pytest.mark.parametrize(
    ("cell", "path"),
    [
        (ATTENTION.format("kv_to_query", "latency"), ("ratio",)),
        (ATTENTION.format("kv_to_query", "latency"), ("ratio_high",)),
        (ATTENTION.format("float16", "drift"), ("relative_error",)),
        (ATTENTION.format("bfloat16", "memory"), ("storage_bytes",)),
        (VOICE.format("autocast", "teacher_forced_drift"), ("series", "kl_nats", 0)),
        (VOICE.format("noise_floor", "audio"), ("against_original", "mel_mcd_db", "mean")),
        (VOICE.format("reference", "audio"), ("phoneme_accuracy", "value")),
        (VOICE.format("float16", "audio"), ("against_reference", "mel_mcd_db", "series", "value", 0)),
    ],
)
def test_a_record_that_says_otherwise_is_noticed(root, run_dir, counts, said, tmp_path, cell, path):
    other = changed(run_dir, tmp_path / "other", cell, *path)
    with pytest.raises(AssertionError, match=re.escape(cell)):
        hold(root, reading.records_of(other), counts, said)


def test_a_choice_that_is_another_is_noticed(root, run_dir, counts, said):
    counts = counts | {"/speed/*/taken": counts["/speed/*/taken"] + 1}
    with pytest.raises(AssertionError, match="speed"):
        hold(root, reading.records_of(run_dir), counts, said)


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r'(data-path="/data/ratio")>[\d.]+<', r"\1>0.123<"),  # what is read, not what it stands for
        (r'(class="mark"[^>]*data-tip="tradeoff-.*?<use [^>]*x=")[\d.]+', r"\g<1>100.00"),
        (r'(class="tick x".*?<text[^>]*>)[\d.]+<', r"\g<1>0.123<"),
        (r"<p class=\"faint\">Lower left", "<p>It is 3.7 times faster. Lower left"),
    ],
)
def test_a_page_that_says_otherwise_is_noticed(text, run_dir, counts, said, pattern, instead):
    wrong, count = re.subn(pattern, instead, text, count=1, flags=re.DOTALL)
    assert count == 1
    with pytest.raises(AssertionError):
        hold(reading.read(wrong), reading.records_of(run_dir), counts, said)


def test_the_answer_is_the_engines(root, run_dir):
    groups = groups_of(load_run(run_dir).records)
    expected = {
        policy: {choice.group.title: choice for choice in answer(groups, Question(policy=policy)).choices}
        for policy in POLICIES
    }
    (table,) = [node for node in root.walk() if node.attrs.get("id") == "take"]
    rows = table.having("data-group")
    assert len(rows) == 3
    for row in rows:
        said = f"{row.attrs['data-case']} · {row.having('data-said')[0].text}"
        (title,) = [one for one in expected["speed"] if one.startswith(f"{said} · ")]
        cells = [node for node in row.walk() if node.tag == "td"]
        taken = [cell.attrs["data-take"] for cell in cells for _ in range(int(cell.attrs["colspan"]))]
        assert taken == [expected[policy][title].fix for policy in POLICIES]
        ties = {one.text.partition(":")[0].removeprefix("in "): one for cell in cells for one in cell.of_class("tie")}
        for policy in POLICIES:
            tied = expected[policy][title].tied[1:]
            name = policy.replace("balanced", "balance")
            shown = [node.text for node in ties[name].of_class("fix")] if tied else []
            assert shown == list(tied)


def test_it_is_one_file_that_loads_nothing(text, root):
    assert reading.loaded(root) == []
    links = [node.attrs["href"] for node in root.having("href")]
    assert [link for link in links if link.startswith(("http", "//"))] == []
    assert not root.having("src")
    assert "connect-src data: blob:" in text
    assert "base-uri 'none'; form-action 'none'" in text


def test_no_script_runs_but_its_own(text):
    allowed, needed = reading.inline_scripts(text)
    assert allowed == needed
    assert len(needed) == 1
    assert not re.search(r"<[^>]*\son\w+=", text)


def test_links_within_it_lead_somewhere_and_ids_are_unique(root):
    ids = [node.attrs["id"] for node in root.having("id")]
    assert len(ids) == len(set(ids))
    links = {node.attrs["href"][1:] for node in root.having("href") if node.attrs["href"].startswith("#")}
    assert links <= set(ids)
    described = {node.attrs["aria-describedby"] for node in root.having("aria-describedby")}
    assert described
    assert described <= set(ids)


def test_charts_can_be_reached_and_have_words(root):
    charts = root.of_class("chart")
    assert len(charts) == 3 + 2 + 4 + 4 + 1 + 3  # trade-off, drift, sound, its changes, survival, memory
    assert all(chart.attrs["tabindex"] == "0" and len(chart.attrs["aria-label"]) > 30 for chart in charts)
    headings = [int(node.tag[1]) for node in root.walk() if re.fullmatch("h[1-6]", node.tag)]
    assert headings[:2] == [1, 2]
    assert all(after <= before + 1 for before, after in pairwise(headings))
    heads = [node for node in root.walk() if node.tag == "th"]
    assert all(node.attrs.get("scope") in ("row", "col") for node in heads)


def test_the_page_is_written_whole_and_says_where(page, run_dir, text):
    assert page == run_dir / FILE_NAME
    assert len(text.encode()) < 1_500_000 < LARGEST_BYTES
    assert not list(run_dir.glob(".*partial"))
    assert str(run_dir.parent) not in text  # no path of the machine


def test_messages_and_names_are_escaped(tmp_path):
    run = made.Synthetic(tmp_path / "odd", minutes=1.0)
    run.attention("attention-decode", "metavoice", "eager")
    for record in run.records:
        record["reason"] = record["reason"] and '<script>alert("1")</script> & more'
        record["fix"] = record["fix"].replace("autocast", "<b>mine</b>")
        record["cell"] = record["cell"].replace("autocast", "<b>mine</b>")
    text = render_html(run.write())
    assert "<script>alert" not in text
    assert "<b>mine" not in text
    assert "&lt;script&gt;alert(" in text
    assert "&lt;b&gt;mine&lt;/b&gt;" in text


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    run = made.Synthetic(tmp_path_factory.mktemp("small"))
    run.attention("attention-decode", "metavoice", "eager")
    return run.write()


def test_the_same_records_give_the_same_bytes(small):
    assert render_html(small) == render_html(small)


def test_sound_is_plugged_in_and_told_what_is_left(small, monkeypatch):
    told, text = {}, render_html(small)

    def section(run, *, budget_bytes):
        told.update(run=run.directory, budget=budget_bytes)
        return SimpleNamespace(html="<p>PLAYERS</p>", style=".players{}", script="'players'", bytes_used=40)

    monkeypatch.setattr(writing, "sound_section", section)
    played = render_html(small)
    assert told["run"] == small
    assert len(text.encode()) + told["budget"] < LARGEST_BYTES
    assert "<p>PLAYERS</p>" in played
    assert ".players{}" in played
    assert "<script>'players'</script>" in played
    allowed, needed = reading.inline_scripts(played)
    assert allowed == needed
    assert len(needed) == 2


def test_statuses_alone_make_a_page(tmp_path):
    run = made.Synthetic(tmp_path / "statuses")
    run.add("attention-decode", "metavoice", "eager", "as_shipped", "trace", status="raised", reason=made.RAISED)
    root = reading.read(render_html(run.write()))
    assert "No fix can be recommended" in root.text
    assert "Nothing measured here cures these" in root.text
    assert "Expected query, key, and value" in root.text
    assert not root.of_class("chart")


def test_without_recordings_there_are_no_players(small, monkeypatch):
    text = render_html(small)
    assert "#players" not in text
    assert 'id="players"' not in text
    section = SimpleNamespace(html="<p>PLAYERS</p>", style="", script="", bytes_used=0)
    monkeypatch.setattr(writing, "sound_section", lambda run, budget_bytes: section)
    assert 'href="#players"' in render_html(small)


def test_the_heading_names_case_processor_and_day(small):
    (heading,) = (node for node in reading.read(render_html(small)).walk() if node.tag == "h1")
    run = load_run(small)
    assert heading.text == f"Which fix to take: {subject(run)}, {run.records[0].started_at[:10]}"
    assert subject(replace(run, environment=ENVIRONMENT)) == "attention-decode on A CPU"
    assert (
        subject(replace(run, environment=ENVIRONMENT | {"device": {"model": "A GPU"}})) == "attention-decode on A GPU"
    )


def test_the_answer_says_what_an_8_bit_cache_would_have_cost_and_many_fixes_are_rows(run_dir, tmp_path):
    assert "What an 8-bit cache" not in render_html(run_dir)
    run = made.Synthetic(tmp_path / "run")
    run.attention("attention-decode", "metavoice", "eager")
    narrow = [f"cache_{held}_{per}" for held in ("int8", "e4m3", "e5m2") for per in ("token", "head", "tensor")]
    for fix in narrow:
        run.add("attention-decode", "metavoice", "eager", fix, "drift", made.tensor_drift(1e-2))
    run.write()
    (tmp_path / "run" / "environment.json").write_text(json.dumps(ENVIRONMENT), encoding="utf-8")
    root = reading.read(render_html(tmp_path / "run"))
    (line,) = (node.text for node in root.walk() if node.attrs.get("data-said") == "instead")
    assert line == narrow_cache_sentence(load_run(tmp_path / "run").sections[0])
    assert line.startswith("An 8-bit cache instead of kv_to_query's, whose drift is")
    (table,) = (node for node in root.walk() if node.tag == "table" and node.attrs.get("class") == "statuses")
    rows = [[cell.text for cell in row.walk() if cell.tag in ("th", "td")] for row in table.walk() if row.tag == "tr"]
    assert len(rows) == 1 + len(load_run(tmp_path / "run").sections[0].fixes)
    assert [status for _, status in rows[1:] if status != "passed"] == ["raised"]
    assert {row[0] for row in rows} >= set(narrow)


def test_the_saved_figures_of_a_run_with_several_threads_are_linked(tmp_path):
    run = made.Synthetic(tmp_path, minutes=2.0)
    run.attention("attention-decode", "metavoice", "eager")
    records = run.write() / "records.jsonl"
    records.write_text(re.sub(r'"threads": ?1\b', '"threads": 2', records.read_text()))
    write_report(tmp_path)
    assert 'href="figures/tradeoff-attention-decode-cpu-2-threads.svg"' in render_html(tmp_path)
